"""Try every fault many times; print the table, write it into docs/reliability.md.

make torture                          (or: python -m tests.torture --into docs/reliability.md)
python -m tests.torture --only tar --tries 500 --seed 7
"""

import argparse
import re
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from curation_assets.stores.atomic import write_text_atomically
from tests.torture.outcome import all_faults, markdown_table, problems_of, tries_of

BEGIN, END = "<!-- torture -->", "<!-- /torture -->"


def write_page(path: Path, table: str) -> None:
    """Put the table between the markers of a Markdown file. Raises ValueError where they are not there once each."""
    text = path.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"{path}: expected {BEGIN} and {END}, once each, to mark the place of the table")
    between = f"{BEGIN}\n\n{table}\n\n{END}"
    marked = f"{re.escape(BEGIN)}.*{re.escape(END)}"
    write_text_atomically(path, re.sub(marked, lambda _: between, text, flags=re.DOTALL))


def main() -> int:
    """Exit status: 0 when nothing was lost, harmed, missed or left waiting; 1 otherwise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="faults whose name holds this")
    parser.add_argument("--tries", type=int, help="of each fault, in place of its own number")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=10.0, help="at most, for each fault")
    parser.add_argument("--into", type=Path, help="page to write the table into")
    given = parser.parse_args()
    console = Console(stderr=True)
    outcomes = {}
    for name, fault in all_faults().items():
        if given.only not in name:
            continue
        with tempfile.TemporaryDirectory(prefix="torture-") as folder:
            tries = given.tries or fault.full
            console.print(f"{name}: {tries} tries", highlight=False)
            outcomes[name] = tries_of(fault, Path(folder), tries=tries, seed=given.seed, minutes=given.minutes)
        for problem in outcomes[name].problems:
            console.print(f"  {problem}", highlight=False, style="red", markup=False)
    table = markdown_table(outcomes)
    print(table)
    if given.into is not None:
        write_page(given.into, table)
    return 1 if problems_of(outcomes) or not all(outcome.is_good for outcome in outcomes.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
