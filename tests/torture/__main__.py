"""Try every fault many times; print the table, write it into docs/operator/reliability.md.

make torture                          (or: python -m tests.torture --into docs/operator/reliability.md)
python -m tests.torture --list
python -m tests.torture --only tar --tries 500 --seed 7
python -m tests.torture --only "takedown killed" --seed 7 --first 3 --tries 1      (one try again)

Each time another seed is drawn and printed, so that every night tries what no night before did; --seed repeats one.
"""

import argparse
import json
import multiprocessing
import os
import platform
import re
import secrets
import sys
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, wait
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import psutil
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from curation_assets.stores.documents import save_text
from tests.torture.outcome import Fault, Outcome, all_faults, markdown_table, problems_of, try_by_name

BEGIN, END = "<!-- torture -->", "<!-- /torture -->"
PACKAGES = ("curation_assets", "dagster", "polars", "duckdb", "pyarrow", "torch")
GIB = 1024**3


def write_page(path: Path, table: str) -> None:
    """Put the table between the markers of a Markdown file. Raises ValueError where they are not there once each."""
    text = path.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"{path}: expected {BEGIN} and {END}, once each, to mark the place of the table")
    between = f"{BEGIN}\n\n{table}\n\n{END}"
    marked = f"{re.escape(BEGIN)}.*{re.escape(END)}"
    save_text(path, re.sub(marked, lambda _: between, text, flags=re.DOTALL))


def machine() -> dict[str, str]:
    """Versions and machine, for the page and the JSON."""
    versions = {name: version(name) for name in PACKAGES}
    memory = f"{psutil.virtual_memory().total / GIB:.0f} GiB"
    system = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, {memory}"
    return {"machine": system, "Python": platform.python_version(), **versions}


def try_all(
    faults: Mapping[str, Fault],
    tries: Callable[[Fault], int],
    console: Console,
    *,
    jobs: int,
    seed: int,
    minutes: float,
    first: int,
    is_quick: bool,
) -> dict[str, Outcome]:
    """Outcomes by name, in the order of `faults`; `jobs` faults at a time, with progress and the time left."""
    columns = (
        TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(),
        TimeRemainingColumn(),
    )  # fmt: skip
    outcomes: dict[str, Outcome] = {}
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="torture-", ignore_cleanup_errors=True) as folder:
        os.environ["TMPDIR"] = folder  # of the workers: what they leave is removed with it
        with (
            context.Manager() as manager,
            Progress(*columns, console=console) as progress,
            ProcessPoolExecutor(jobs, mp_context=context) as executor,
        ):
            finished_tries: Queue[tuple[str, int]] = manager.Queue()  # type: ignore[assignment]
            waiting: dict[Future[Outcome], str] = {}
            bars = {}
            for number, (name, fault) in enumerate(faults.items()):
                place = Path(folder) / f"fault-{number:02d}"
                count = tries(fault)
                job = executor.submit(
                    try_by_name,
                    name,
                    place,
                    finished_tries,
                    tries=count,
                    seed=seed,
                    minutes=minutes,
                    first=first,
                    is_quick=is_quick,
                )
                waiting[job] = name
                bars[name] = progress.add_task(name, total=count, start=False)
            while waiting:
                done, _ = wait(waiting, timeout=0.5)
                while True:
                    try:
                        name, completed = finished_tries.get_nowait()
                    except Empty:
                        break
                    progress.start_task(bars[name])
                    progress.update(bars[name], completed=completed)
                for job in done:
                    name = waiting.pop(job)
                    outcomes[name] = job.result()
                    for problem in outcomes[name].problems:
                        console.print(f"{name}: {problem}", highlight=False, style="red", markup=False)
    return {name: outcomes[name] for name in faults}


def main() -> int:
    """Exit status: 0 when nothing was lost, harmed, missed or left waiting; 1 otherwise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="faults whose name holds this")
    parser.add_argument("--list", action="store_true", help="list the faults and try none")
    parser.add_argument("--tries", type=int, help="of each fault, in place of its own number")
    parser.add_argument("--quick", action="store_true", help="one short try of each, as in make test-all")
    parser.add_argument("--first", type=int, default=0, help="number of the first try, to repeat one")
    parser.add_argument("--seed", type=int, help="as printed, to repeat its tries; else one is drawn")
    parser.add_argument("--minutes", type=float, default=20.0, help="at most, for each fault")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="faults at a time")
    parser.add_argument("--into", type=Path, help="page to write the table into")
    parser.add_argument("--json", type=Path, help="file for outcomes, versions and machine")
    given = parser.parse_args()
    faults = {name: fault for name, fault in all_faults().items() if given.only in name}
    if not faults:
        parser.error(f"no fault's name holds {given.only!r}; --list shows them")
    if given.list:
        for name, fault in faults.items():
            print(f"{name}: {fault.full} tries ({fault.quick} in make test-all)")
        return 0
    console = Console(stderr=True)
    seed = secrets.randbelow(1 << 32) if given.seed is None else given.seed
    console.print(f"seed {seed}: --seed {seed} repeats these tries", highlight=False)
    bound = given.minutes * len(faults) / given.jobs
    console.print(f"{len(faults)} faults, {given.jobs} at a time, at most about {bound:.0f} minutes", highlight=False)
    outcomes = try_all(
        faults, lambda fault: given.tries or (1 if given.quick else fault.full), console,
        jobs=given.jobs, seed=seed, minutes=given.minutes, first=given.first, is_quick=given.quick,
    )  # fmt: skip
    facts = machine()
    where = ", ".join(f"{name} {value}" for name, value in facts.items() if name != "machine")
    table = f"{markdown_table(outcomes)}\n\nSeed {seed}; {facts['machine']}; {where}."
    print(table)
    if given.into is not None:
        write_page(given.into, table)
    if given.json is not None:
        content: dict[str, Any] = {"seed": seed, **facts}
        content["faults"] = {
            name: {**asdict(outcome), "is_good": outcome.is_good} for name, outcome in outcomes.items()
        }
        save_text(given.json, json.dumps(content, indent=1, ensure_ascii=False))
    return 1 if problems_of(outcomes) or not all(outcome.is_good for outcome in outcomes.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
