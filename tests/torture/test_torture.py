"""A few tries of every fault; `make torture` makes many."""

from pathlib import Path

import pytest

from tests.torture.faults import disks, tars
from tests.torture.outcome import all_faults, tries_of

FAULTS = {name: fault for name, fault in all_faults().items() if fault.quick}
#: The other faults start processes, kill them, or run servers.
IN_THIS_PROCESS = {fault.name for module in (disks, tars) for fault in module.FAULTS}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in IN_THIS_PROCESS else [pytest.mark.infra]) for name in sorted(FAULTS)],
)
def test_nothing_is_lost_harmed_or_left_waiting(name: str, tmp_path: Path) -> None:
    outcome = tries_of(FAULTS[name], tmp_path, tries=FAULTS[name].quick, seed=0, is_quick=True)
    assert outcome.is_good, "\n".join([str(outcome), *outcome.problems])
