"""Faults put into the code on purpose: which test fails for each.

python -m tests.mutants [NAME …]

It copies the repository into a temporary folder, puts one fault at a time into the copy, and runs the tests that should
fail: the quick ones, and where none of them does the slow ones. A fault that none finds is a hole: status 1.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.support.paths import REPOSITORY

SELECTION, VERIFIED = "curation_assets/numeric/selection.py", "curation_assets/flow/conservation.py"
MANIFEST, TAKEDOWN = "curation_assets/stores/manifest.py", "curation_assets/operations/takedown.py"
#: Whose purge is left out, and the tests that look into what it purges.
HOLDERS = {
    "StoredTables": "tests/operations/test_takedown.py",
    "Sources": "tests/operations/test_takedown.py",
    "Downloads": "tests/operations/test_takedown.py",
    "FrozenSamples": "tests/operations/test_takedown.py",
    "LooseFiles": "tests/operations/test_takedown.py",
    "RatedCaptions": "tests/stages/test_real_captions.py",
    "Exploration": "tests/outputs/test_explore.py",
    "InstanceRecords": "tests/infra/test_takedown_storages.py",
}


@dataclass(frozen=True)
class Mutant:
    """`before`, which `file` holds once, becomes `after`; one of `tests` has to fail."""

    name: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]


CUT_TESTS = ("tests/numeric/test_selection.py", "tests/selection/test_judging.py")
CONSERVATION_TESTS = ("tests/flow/test_flow.py",)
STALENESS_TESTS = ("tests/stores/test_store.py",)
TAKEDOWN_TESTS = ("tests/operations/test_takedown.py",)
SUMMARY_TESTS = ("tests/operations/test_summaries.py", "tests/outputs/test_summary_counts.py")
PURGE = "            holder.purge(ctx, tables, takedown)\n"

QUICK = "not slow and not infra"

MUTANTS = (
    Mutant(
        "cut: what equals the threshold falls",
        SELECTION,
        "values >= self.threshold",
        "values > self.threshold",
        CUT_TESTS,
    ),
    Mutant("cut: the last tie falls", SELECTION, "ids.gather(ties) <= self", "ids.gather(ties) < self", CUT_TESTS),
    Mutant("cut: a share is rounded down", SELECTION, "rounding=ROUND_HALF_UP))", 'rounding="ROUND_DOWN"))', CUT_TESTS),
    Mutant(
        "cut: one more than the share",
        SELECTION,
        "    return int(valued * fraction) + 1\n",
        "    return int(valued * fraction) + 2\n",
        CUT_TESTS,
    ),
    Mutant(
        "conservation: a verdict is lost",
        "curation_assets/selection/judging.py",
        "    return rows.select(IDENTITY).with_columns(",
        "    return rows[1:].select(IDENTITY).with_columns(",
        ("tests/selection/test_judging.py",),
    ),
    Mutant(
        "conservation: a row that is missing is no violation",
        VERIFIED,
        "height != expected[1]:",
        "height > expected[1]:",
        CONSERVATION_TESTS,
    ),
    Mutant(
        "conservation: a row that comes twice is no violation",
        VERIFIED,
        "        if repeated:\n",
        "        if False:\n",
        CONSERVATION_TESTS,
    ),
    *(
        Mutant(f"staleness: {what}", MANIFEST, before, after, STALENESS_TESTS)
        for what, before, after in (
            ("code", "recorded = (self.code_version,", "recorded = (code_version,"),
            ("configuration", "self.config_hash, _in_order(self.inputs))", "config_hash, _in_order(self.inputs))"),
            ("models", "[*map(dict, self.models)]", "[*map(dict, models)]"),
            ("inputs", "None if inputs is None else _in_order(inputs)", "None"),
        )
    ),
    Mutant(
        "staleness: a plan compares no inputs",
        "curation_assets/operations/planning.py",
        "None if table.is_frozen else False)",
        "None)",
        ("tests/operations/test_plan.py",),
    ),
    *(
        Mutant(
            f"takedown: {holder} purges nothing",
            TAKEDOWN,
            PURGE,
            f"            if type(holder).__name__ != {holder!r}:\n"
            "                holder.purge(ctx, tables, takedown)\n",
            (tests,),
        )
        for holder, tests in HOLDERS.items()
    ),
    Mutant(
        "takedown: the certificate is written before the files are searched",
        TAKEDOWN,
        "left += [(_shown(home, path), what) for what in needles.matches_in(path)]",
        "left += []",
        TAKEDOWN_TESTS,
    ),
    Mutant(
        "takedown: the note goes although something is left",
        TAKEDOWN,
        "    if left:  #",
        "    if False:  #",
        TAKEDOWN_TESTS,
    ),
    Mutant(
        "takedown: exports are not flagged",
        TAKEDOWN,
        "        certificate |= holder.certified(ctx, tables, takedown)",
        "        pass",
        TAKEDOWN_TESTS,
    ),
    Mutant(
        "takedown: a withdrawn release keeps its summary",
        "curation_assets/operations/releases.py",
        "        remove_path(summaries_folder(release))\n",
        "",
        SUMMARY_TESTS,
    ),
    Mutant(
        "summary: a tenth of the domains is rounded down",
        "dbt_like_sql/summary/domains.sql",
        "(domains + 9) // 10",
        "domains // 10",
        SUMMARY_TESTS,
    ),
    Mutant(
        "summary: a draft counts as an answer",
        "curation_assets/outputs/summary/document.py",
        'in ("missing", "to confirm")',
        'in ("missing",)',
        SUMMARY_TESTS,
    ),
)


def copy_repository(folder: Path) -> None:
    """Every file that git knows or would add."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    for name in names.rstrip("\0").split("\0"):
        if (REPOSITORY / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, folder / name)


def failing_tests(copy: Path, tests: tuple[str, ...], marks: str = QUICK) -> tuple[int, list[str]]:
    """Status of pytest in the copy, and the first test that failed (none: all passed)."""
    command = [sys.executable, "-B", "-m", "pytest", "-x", "-p", "no:cacheprovider", "-m", marks]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([*command, *tests], cwd=copy, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", done.stdout, flags=re.MULTILINE)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="of faults, or how they begin; without: all of them")
    chosen = tuple(parser.parse_args().names) or ("",)
    mutants = [mutant for mutant in MUTANTS if mutant.name.startswith(chosen)]
    missed = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        copy = Path(name)
        copy_repository(copy)
        status, failed = failing_tests(copy, tuple(sorted({test for mutant in mutants for test in mutant.tests})))
        if status:
            raise SystemExit(f"the tests must pass without a fault; pytest ended with {status}: {', '.join(failed)}")
        for mutant in mutants:
            path = copy / mutant.file
            text = path.read_text(encoding="utf-8")
            if text.count(mutant.before) != 1:
                times = text.count(mutant.before)
                raise SystemExit(f"{mutant.file} must hold this once, and holds it {times} times: {mutant.before!r}")
            path.write_text(text.replace(mutant.before, mutant.after), encoding="utf-8")
            try:
                status, failed = failing_tests(copy, mutant.tests)
                if status != 1:
                    status, failed = failing_tests(copy, mutant.tests, "slow")
            finally:
                path.write_text(text, encoding="utf-8")
            is_caught = status == 1 and bool(failed)
            missed += not is_caught
            print(
                f"{'caught' if is_caught else 'MISSED'} {mutant.name}: {', '.join(failed) or f'status {status}'}",
                flush=True,
            )
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
