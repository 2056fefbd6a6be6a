"""What a fault is, and what its tries came to."""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from queue import Queue
from typing import Any

from tests.torture import faults as fault_modules


@dataclass
class Outcome:
    """Sums over the tries of a fault. Rows are None where a fault concerns none (a lock, a header)."""

    tries: int = 0
    rows_in: int | None = None
    rows_accounted: int | None = None  # kept, dropped or failed, each with its reason
    faults_reached: int = 0  # planted faults that the code under test met: kills that came, damage that it read
    harmed_neighbours: int = 0  # rows, or files, that the fault was not about and that came out otherwise
    silent_waits: int = 0  # tries that outlived their time limit, or waited without a word
    faults_missed: int = 0  # tries whose fault nothing reported (a flipped bit that nobody saw)
    sentence: str = ""  # what happens, in one line for the table
    problems: list[str] = field(default_factory=list)  # one line per try that went wrong, enough to repeat it
    number: int = 0  # of the try under way, from 0
    is_quick: bool = False  # a try of `make test-all`: seconds, not minutes
    seconds: float = 0.0  # wall time of all tries

    @property
    def lost_rows(self) -> int:
        """Rows that went in and came out as nothing."""
        return (self.rows_in or 0) - (self.rows_accounted or 0)

    @property
    def is_good(self) -> bool:
        """Nothing lost, nothing harmed, nobody waiting, nothing missed, and at least one fault was reached."""
        bad = (self.lost_rows, self.harmed_neighbours, self.silent_waits, self.faults_missed, len(self.problems))
        return self.faults_reached > 0 and not any(bad)

    def count_rows(self, rows_in: int, rows_accounted: int) -> None:
        """Add the rows of a try."""
        self.rows_in = (self.rows_in or 0) + rows_in
        self.rows_accounted = (self.rows_accounted or 0) + rows_accounted


#: One try: its folder (empty, its own), its random numbers (equal for equal seed and number), where to count.
Try = Callable[[Path, random.Random, Outcome], None]


@dataclass(frozen=True)
class Fault:
    """A fault and how often it is tried. `attempt` raises AssertionError where a try goes wrong."""

    name: str
    sentence: str
    attempt: Try
    quick: int = 1  # tries in `make test-all`; 0: none
    full: int = 10  # tries in `make torture`


def all_faults() -> dict[str, Fault]:
    """Name → fault, of every module of faults/."""
    names = sorted(module.name for module in iter_modules(fault_modules.__path__))
    found = [fault for name in names for fault in import_module(f"{fault_modules.__name__}.{name}").FAULTS]
    if len({fault.name for fault in found}) < len(found):
        raise ValueError(f"two faults have one name: {sorted(fault.name for fault in found)}")
    return {fault.name: fault for fault in found}


def tries_of(
    fault: Fault,
    folder: Path,
    *,
    tries: int,
    seed: int,
    minutes: float = float("inf"),
    is_quick: bool = False,
    first: int = 0,
    on_try: Callable[[Outcome], None] = lambda outcome: None,
) -> Outcome:
    """Try a fault so often, or until the time is up; a try that raises is a problem, and the next follows.

    `first`: number of the first try, to repeat one alone. `on_try` is called after each.
    """
    outcome = Outcome(sentence=fault.sentence, is_quick=is_quick)
    begin = time.monotonic()
    for number in range(first, first + tries):
        if number > first and time.monotonic() > begin + 60 * minutes:
            outcome.problems.append(f"{first + tries - number} of {tries} tries did not come up in {minutes:g} minutes")
            break
        place = folder / f"{number:04d}"
        place.mkdir(parents=True)
        outcome.tries += 1
        outcome.number = number
        try:
            fault.attempt(place, random.Random(f"{seed} {fault.name} {number}"), outcome)
        except Exception as error:  # a try that breaks is a finding, not the end of the others
            outcome.problems.append(f"try {number} of seed {seed}: {type(error).__name__}: {error}")
        outcome.seconds = time.monotonic() - begin
        on_try(outcome)
    if not outcome.faults_reached:
        outcome.problems.append(f"none of {outcome.tries} tries of seed {seed} reached the fault: they show nothing")
    return outcome


def try_by_name(
    name: str, folder: Path, finished_tries: "Queue[tuple[str, int]]", *, first: int, **given: Any
) -> Outcome:
    """`tries_of` in a worker process, which puts (name, number of finished tries) into a queue."""

    def on_try(outcome: Outcome) -> None:
        finished_tries.put((name, outcome.number + 1 - first))

    return tries_of(all_faults()[name], folder, first=first, on_try=on_try, **given)


def markdown_table(outcomes: dict[str, Outcome]) -> str:
    """The table of docs/operator/reliability.md."""
    head = [
        "fault",
        "tries",
        "reached",
        "rows in",
        "rows accounted",
        "harmed neighbours",
        "silent waits",
        "missed",
        "outcome",
    ]
    lines = ["| " + " | ".join(head) + " |", "|" + "|".join("---" for _ in head) + "|"]
    for name, outcome in outcomes.items():
        rows = [outcome.rows_in, outcome.rows_accounted]
        counted = [*rows, outcome.harmed_neighbours, outcome.silent_waits, outcome.faults_missed]
        cells = ["–" if number is None else f"{number:,}" for number in counted]
        words = outcome.sentence if outcome.is_good else f"**{len(outcome.problems)} problems** – {outcome.sentence}"
        lines.append(f"| {name} | {outcome.tries} | {outcome.faults_reached:,} | " + " | ".join([*cells, words]) + " |")
    return "\n".join(lines)


def problems_of(outcomes: dict[str, Outcome]) -> Sequence[str]:
    """A line per problem, with the fault's name."""
    return [f"{name}: {problem}" for name, outcome in outcomes.items() for problem in outcome.problems]
