"""Power cuts at every write of a run, a takedown, a release and a refit; each of their file operations failing; and
each file that they meet damaged.

    PYTHONPATH=. python benchmarks/power_cut.py [--only run] [--what cuts,parts,failures,damages] [--of-each-kind]
        [--minutes 60] [--seed 0]

A command runs once under strace. At every prefix of its writes the home is built as a disk could hold it then
(tests/support/disk_record.py), equal ones once, and the command runs again on it: with all that was written or with
what was flushed alone ("cuts"), then with a part of what was not flushed ("parts"). Then its first file operation
fails, its second, and so on until it ends without reaching that number, with EIO, ENOSPC and EMFILE, once and for ever
("failures"). Then each file of the home that it meets is cut short, emptied or zeroed, as disks leave files that they
reported as flushed ("damages").
States, operations and files come in a seeded order: a run that is ended for its time is a sample. Of operations one of
each kind comes first (the call, and the file without numbers and hashes); `--of-each-kind` tries no others. Writes
benchmarks/results/power_cut.csv, a row per command and kind of fault, and one per try that went wrong into --problems.
"""

import argparse
import csv
import errno
import itertools
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from tests.torture import power
from tests.torture.homes import TARS, Prepared, prepared

RESULTS = Path(__file__).parent / "results" / "power_cut.csv"
OUTCOMES = ("recovered", "did without it", "healed by repair", "refused", "wrong success", "no sentence")
Try: TypeAlias = tuple[int, int, power.Came, str]
HEAD = ("command", "fault", "steps", "of", "tried", *OUTCOMES)


def cuts(home: Prepared, name: str, given: argparse.Namespace, is_part: bool) -> Iterator[Try]:
    """Steps, distinct states, what came of each tried one, and which it was.

    `is_part`: those states that hold a part of what was not flushed, else those that hold all of it or nothing.
    """
    seed = given.seed
    expected = power.undisturbed(home, name)
    log = power.record(home, name)
    record = power.disk(home, name)
    steps = sum(1 for _ in power.prefixes(record, log))
    escaped, unsafe = power.missed(home, record), power.unflushed(record)
    assert not escaped, f"the recorder missed {escaped[:10]}"
    assert not unsafe, f"{name} has ended, and a power cut would take {unsafe[:10]}"
    states = sorted(which[1:] for which in power.distinct(home, name, log, seed).values() if which[0] == is_part)
    chosen = random.Random(seed).sample(states, len(states) // given.every)
    print(f"{name}: {steps} steps, {len(states)} states", file=sys.stderr, flush=True)
    for block in itertools.batched(chosen, 100) if sys.version_info >= (3, 12) else _blocks(chosen, 100):
        wanted = sorted(block)  # one replay serves all of a block
        record = power.disk(home, name)
        for prefix in power.prefixes(record, log):
            numbers = [number for at, number in wanted if at == prefix]
            for number, (kind, state) in enumerate(record.cuts(seed)) if numbers else ():
                if number in numbers:
                    came = power.after_power_cut(home, name, record, state, expected)
                    yield steps, len(states), came, f"{kind}, after step {prefix}: {record.last}"


def _blocks(items: list[tuple[int, int]], size: int) -> Iterator[list[tuple[int, int]]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def failures(home: Prepared, name: str, given: argparse.Namespace, error: int) -> Iterator[Try]:
    """Operations, tries in all, what came of each tried one, and which it was."""
    expected = power.undisturbed(home, name)
    operations = power.operations(home, name, error)
    steps = len(operations)
    faults = [(number, for_ever) for number in range(1, steps + 1) for for_ever in (0, 1)]
    chosen = random.Random(given.seed).sample(faults, len(faults) // given.every)
    of_kind = {(operations[number - 1], for_ever): (number, for_ever) for number, for_ever in chosen}
    print(f"{name}, {errno.errorcode[error]}: {steps} operations, {len(of_kind)} kinds", file=sys.stderr, flush=True)
    first = list(of_kind.values())
    rest = [] if given.of_each_kind else [fault for fault in chosen if fault not in set(first)]
    for number, for_ever in first + rest:
        came = power.after_failure(home, name, [number, error, for_ever], expected)
        which = f"operation {number}{' and all that follow' if for_ever else ''}: {operations[number - 1]}"
        yield steps, len(of_kind) if given.of_each_kind else len(faults), came, which
    is_whole = given.every == 1 and not given.of_each_kind
    assert not is_whole or power.after_failure(home, name, [2 * steps, error, 0], expected).outcome == "not reached"


def damaged(home: Prepared, name: str, given: argparse.Namespace) -> Iterator[Try]:
    """Files, damages in all, what came of each tried one, and which it was."""
    expected = power.met(home, name)
    found = power.damages(home, name)
    for path, kind in random.Random(given.seed).sample(found, len(found) // given.every):
        yield len({one for one, _ in found}), len(found), power.after_damage(home, name, path, kind, expected), (
            f"{path}: {kind}"
        )  # fmt: skip


def main() -> None:
    """Exit status 1 where a table was torn, a success was none, or a command ended without a sentence."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(power.BEGINS), help="commands, with commas")
    parser.add_argument("--what", default="cuts,parts,failures,damages")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="at most, for each row of the table")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--of-each-kind", action="store_true", help="of operations that fail, one of each kind alone")
    parser.add_argument("--every", type=int, default=1, help="try one in so many")
    parser.add_argument("--into", type=Path, default=RESULTS)
    parser.add_argument("--problems", type=Path, help="a line per try that did not recover")
    given = parser.parse_args()
    if why := power.why_not():
        sys.exit(why)
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LD_PRELOAD"] = str(power.built_shim(Path(folder)))
        home = prepared(TARS)
        for name, what in itertools.product(given.only.split(","), given.what.split(",")):
            faults: dict[str, dict[str, Iterator[Try]]] = {  # none begins before its first try
                "cuts": {"power cut, all or nothing": cuts(home, name, given, is_part=False)},
                "parts": {"power cut, parts": cuts(home, name, given, is_part=True)},
                "failures": {errno.errorcode[error]: failures(home, name, given, error) for error in power.ERRORS},
                "damages": {"damaged file": damaged(home, name, given)},
            }
            for fault, tries in faults[what].items():
                counts, steps, of, begin, is_stopped = Counter[str](), 0, 0, time.monotonic(), False
                try:
                    for steps, of, came, which in tries:  # noqa: B007
                        begin = begin if counts else time.monotonic()  # without what prepares the first try
                        counts[came.outcome] += 1
                        if came.outcome not in OUTCOMES[:2]:
                            line = f"{name} | {fault} | {which} | {came.outcome} | {came.words}"
                            print(line[:600], file=sys.stderr, flush=True)
                            if given.problems:
                                with given.problems.open("a", encoding="utf-8") as file:
                                    file.write(line.replace("\n", " ⏎ ") + "\n")
                        if time.monotonic() > begin + 60 * given.minutes:
                            break
                except KeyboardInterrupt:  # what was tried is written
                    is_stopped = True
                bad += sum(number for outcome, number in counts.items() if outcome not in OUTCOMES[:4])
                row = [name, fault, steps, of, counts.total(), *(counts[one] for one in OUTCOMES)]
                print(dict(zip(HEAD, row, strict=True)), f"{time.monotonic() - begin:.0f} s", flush=True)
                is_new = not given.into.is_file()
                with given.into.open("a", newline="", encoding="utf-8") as file:
                    csv.writer(file).writerows([HEAD, row] if is_new else [row])
                if is_stopped:
                    sys.exit(130)
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
