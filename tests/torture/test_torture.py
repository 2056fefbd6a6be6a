"""A few tries of every fault; `make torture` makes many."""

from pathlib import Path

import pytest

from tests.torture.outcome import all_faults, tries_of

FAULTS = {name: fault for name, fault in all_faults().items() if fault.quick}


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_nothing_is_lost_harmed_or_left_waiting(name: str, tmp_path: Path) -> None:
    outcome = tries_of(FAULTS[name], tmp_path, tries=FAULTS[name].quick, seed=0, is_quick=True)
    assert outcome.is_good, "\n".join([str(outcome), *outcome.problems])
