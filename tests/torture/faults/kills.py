"""kill -9 of the whole process group at every point of a command, and at random ones; then the same command to its end.

A try kills one command many times over: at every `STRIDE`-th point, each time in a process that goes on from the kill
before. The tries together meet every point.
"""

import random
from collections.abc import Sequence
from pathlib import Path

from tests.torture.homes import LINKS, ROWS, SCENES, TARS, Prepared, Undisturbed, differences, prepared
from tests.torture.outcome import Fault, Outcome

RANDOM_KILLS = 6  # of a try; those by wall time and by audited event take turns
QUICK_POINTS = 3
#: Command → the name under which the home that it leaves is kept, for commands that begin from it.
LEAVES = {"run": "finished", "release": "released"}


def at_points(pool: str, command: str, state: str, stride: int, quick: int) -> Fault:
    """A fault that kills `command`, begun from `state`, at every one of its points in `stride` tries."""

    def attempt(folder: Path, rng: random.Random, outcome: Outcome) -> None:
        home = prepared(pool)
        undisturbed = begun(home, command, state)
        number = outcome.number % stride
        points = undisturbed.points[number::stride]
        if outcome.is_quick:
            points = sorted(rng.sample(points, min(len(points), QUICK_POINTS)), key=points.index)
        missed = kill_at_points(home, command, state, points, outcome, undisturbed)
        for point in missed:  # a kill before it took it out of the way
            if kill_at_points(home, command, state, [point], outcome, undisturbed):
                outcome.faults_missed += 1

    return Fault(
        name=f"kill -9 of `{command}` at every write ({pool})",
        sentence="the same command goes on; tables, `.npy` and ledgers as without a kill; no run, slot or file is left",
        attempt=attempt,
        quick=quick,
        full=stride,
    )


def begun(home: Prepared, command: str, state: str) -> Undisturbed:
    """The undisturbed command, after those that its state comes from."""
    if home.pool == LINKS:
        home.links.are_alive = False
    if state != "declared":
        home.straight("run", "declared", "finished")
    if state == "released":
        home.straight("release", "finished", state)
    if state == "damaged" and not (home.base / state).is_dir():
        home.restore("finished")
        home.damage()
        home.save(state)
    if home.pool == LINKS:
        home.links.are_alive = True
    return home.straight(command, state, LEAVES.get(command))


def kill_at_points(
    home: Prepared, command: str, state: str, points: Sequence[str], outcome: Outcome, undisturbed: Undisturbed
) -> list[str]:
    """Kill at each of `points`, then let the command end, and compare. Returns the points that did not come up."""
    home.restore(state)
    waiting, hit = list(points), list[str]()
    while True:
        ended, point = home.begin(command, kill_at=waiting)
        if not ended.was_killed:
            break
        waiting.remove(point)
        hit.append(point)
    outcome.tries += max(0, len(hit) - 1)
    outcome.faults_reached += len(hit)
    check_end(home, ended.status, ended.is_late, ended.log, hit, outcome, undisturbed)
    return waiting


def check_end(
    home: Prepared,
    status: int,
    is_late: bool,
    log: str,
    kills: Sequence[str],
    outcome: Outcome,
    undisturbed: Undisturbed,
) -> None:
    """Count what came of a command that went on after `kills`. Raises AssertionError with the kills."""
    after = f"after kills {' | '.join(kills)}"
    if is_late:
        outcome.silent_waits += 1
        raise AssertionError(f"{after}: the command did not end:\n{log[-1500:]}")
    assert status == 0, f"{after}: the command ended with {status}:\n{log[-3000:]}"
    facts = home.facts()
    outcome.count_rows(ROWS[home.pool], facts["rows accounted"])
    different = differences(undisturbed.facts, facts)
    outcome.harmed_neighbours += len(different)
    assert not different, f"{after}: " + "; ".join(different[:10])


def at_random(pool: str, full: int, quick: int) -> Fault:
    """A fault that kills a run at random moments: wherever it is, not only where it writes."""

    def attempt(folder: Path, rng: random.Random, outcome: Outcome) -> None:
        home = prepared(pool)
        undisturbed = begun(home, "run", "declared")
        home.restore("declared")
        kills = list[str]()
        for number in range(RANDOM_KILLS):
            share = rng.random() / (number + 1)  # each process goes on from the one before
            if number % 2:
                ended, _ = home.begin("run", event=1 + int(share * undisturbed.events))
            else:
                ended, _ = home.begin("run", kill_after=share * undisturbed.seconds)
            if not ended.was_killed:
                break
            kills.append(f"{'event' if number % 2 else 'second'} at {share:.3f} of the run")
        else:
            ended, _ = home.begin("run")
        outcome.tries += max(0, len(kills) - 1)
        outcome.faults_reached += len(kills)
        check_end(home, ended.status, ended.is_late, ended.log, kills, outcome, undisturbed)

    return Fault(
        name=f"kill -9 of `run` at random moments ({pool})",
        sentence="the same command goes on; tables, `.npy` and ledgers as without a kill; no run, slot or file is left",
        attempt=attempt,
        quick=quick,
        full=full,
    )


FAULTS = [
    at_points(TARS, "run", "declared", stride=10, quick=1),
    at_points(TARS, "refit", "finished", stride=3, quick=0),
    at_points(SCENES, "run", "declared", stride=10, quick=0),
    at_points(LINKS, "retry", "finished", stride=6, quick=0),
    at_points(TARS, "release", "finished", stride=3, quick=0),
    at_points(TARS, "export", "finished", stride=3, quick=0),
    at_points(TARS, "repair", "damaged", stride=6, quick=0),
    at_random(TARS, full=16, quick=0),
    at_random(SCENES, full=10, quick=0),
]
