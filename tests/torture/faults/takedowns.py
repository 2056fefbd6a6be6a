"""A takedown killed at each of its steps: the next `takedown apply` or `run` finishes it, and nothing is left.

The canary is the sample on which each cut fell; of every other one values and verdicts are those of the home before. A
release that holds it is withdrawn for one that has all others.
"""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from curation_assets.operations.takedown import pending_path
from tests.torture.canary import needles
from tests.torture.faults.kills import QUICK_POINTS, begun, check_end
from tests.torture.homes import TARS, Prepared, Undisturbed, prepared
from tests.torture.outcome import Fault, Outcome


def denied(home: Prepared, state: str = "finished") -> Undisturbed:
    """The undisturbed takedown of a canary from `STATE_denied`: 'finished' or 'released', with it on the denylist."""
    begun(home, "run", "declared")
    if state == "released":
        begun(home, "release", "finished")
    if not (home.base / f"{state}_denied").is_dir():
        home.restore(state)
        known = {line.rpartition("): ")[2] for line in home.traces()}
        unknown = needles().keys() - known
        assert not unknown, f"before its takedown the search does not find {sorted(unknown)}: it would show nothing"
        home.deny_canary()
        home.save(f"{state}_denied")
    return home.straight("take_down", f"{state}_denied", f"{state}_taken_down")


def at_every_step(name: str, state: str, stride: int) -> Fault:
    """A fault that kills the takedown of a home in `state` at every one of its points in `stride` tries."""

    def attempt(folder: Path, rng: random.Random, outcome: Outcome) -> None:
        home = prepared(TARS)
        undisturbed = {"take_down": denied(home, state), "run": home.straight("run", f"{state}_taken_down")}
        points = undisturbed["take_down"].points[outcome.number % stride :: stride]
        if outcome.is_quick:
            points = sorted(rng.sample(points, QUICK_POINTS), key=points.index)
        missed = kill_at(home, f"{state}_denied", points, rng, outcome, undisturbed)
        for point in missed:  # a kill before it took it out of the way
            if kill_at(home, f"{state}_denied", [point], rng, outcome, undisturbed):
                outcome.faults_missed += 1

    return Fault(
        name=name,
        sentence="the next `takedown apply` or `run` finishes it: a certificate, and nothing of the sample in the home",
        attempt=attempt,
        quick=0,  # tests/operations/test_takedown.py kills one at every step in its own process
        full=stride,
    )


def kill_at(
    home: Prepared,
    state: str,
    points: Sequence[str],
    rng: random.Random,
    outcome: Outcome,
    undisturbed: Mapping[str, Undisturbed],
) -> list[str]:
    """Kill, go on by `takedown apply` or by `run`, compare and search. Returns the points that did not come up.

    `undisturbed`: command that ends it → what the home must be then; `run` also makes again what reads given values.
    """
    home.restore(state)
    before = home.neighbours()
    waiting, hit, command = list(points), list[str](), "take_down"
    while True:
        ended, point = home.begin(command, kill_at=waiting)
        if not ended.was_killed:
            break
        waiting.remove(point)
        hit.append(point)
        # before the takedown is written down, and after it is done, `run` has nothing to finish
        command = rng.choice(["take_down", "run"]) if pending_path(home.home, TARS).is_file() else "take_down"
    outcome.tries += max(0, len(hit) - 1)
    outcome.faults_reached += len(hit)
    check_end(home, ended.status, ended.is_late, ended.log, hit, outcome, undisturbed[command])
    left, certificates = home.traces(), home.certificates()
    after = f"after kills {' | '.join(hit)}, finished by {command}"
    now = home.neighbours()
    changed = [name for name, rows in before.items() if now.get(name) != rows]
    outcome.harmed_neighbours += len(changed)
    assert not changed, f"{after}: other rows changed in {', '.join(changed[:10])}"
    outcome.faults_missed += bool(left)
    assert not left, f"{after}: left in {'; '.join(left[:10])}"
    assert certificates, f"{after}: no certificate"
    assert certificates[-1]["left"] == [], f"{after}: the certificate lists {certificates[-1]['left']}"
    return waiting


FAULTS = [
    at_every_step("takedown killed at each of its steps", "finished", stride=10),
    at_every_step("takedown of a release's sample killed at each of its steps", "released", stride=10),
]
