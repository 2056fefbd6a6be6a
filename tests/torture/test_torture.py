"""A few tries of every fault; `make torture` makes many."""

import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.support.forking import ForkServer
from tests.torture.faults import disks, tars
from tests.torture.outcome import Fault, Outcome, all_faults, tries_of

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


def test_a_fault_that_no_try_reaches_fails_its_row(tmp_path: Path) -> None:
    def attempt(folder: Path, rng: random.Random, outcome: Outcome) -> None:
        outcome.count_rows(3, 3)
        outcome.faults_reached += folder.name == "0002"

    fault = Fault("a kill that may come too late", "", attempt)
    outcomes = [tries_of(fault, tmp_path / str(tries), tries=tries, seed=7) for tries in (2, 3)]
    assert [outcome.is_good for outcome in outcomes] == [False, True]
    assert outcomes[0].problems == ["none of 2 tries of seed 7 reached the fault: they show nothing"]


def end_parent() -> None:
    """As a command does that Ctrl+C stops in this process: it ends all of its children."""
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(60)


@pytest.mark.slow
def test_a_process_that_forks_is_started_anew_where_it_died(tmp_path: Path) -> None:
    """What it wrote is in the error."""
    server = ForkServer(())
    parent = server.call("os:getppid", {}, tmp_path, seconds=60).result
    with pytest.raises(RuntimeError, match="the process that forks ended with -15"):
        server.call(f"{__name__}:end_parent", {}, tmp_path, seconds=60)
    assert server.call("os:getppid", {}, tmp_path, seconds=60).result != parent
    with pytest.raises(RuntimeError, match="No module named 'nowhere'"):
        ForkServer(("nowhere",)).socket()
