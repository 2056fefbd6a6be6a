"""How cut, verdicts, look-ups and diffs grow with rows: audit_12m.py at several sizes, exponents fitted.

    python benchmarks/growth.py [--rows 1280000,3840000,64000000] [--work FOLDER]

Shards hold 10,000 rows at every size (--rows-per-shard).
The figures of 12.8 million rows are those of audit_12m.csv, measured by itself,
unless --rows names that size. Of larger pools only fuse, cut, verdict tables and npy are measured, on raw/samples
without the columns that these do not read. Without --work each pool is removed at once.
The exponent b of seconds = a × rows^b is the slope of a least-squares line through the logarithms; memory is a line,
peak = base + rows × slope. Seconds are CPU time (user and system) except for `why`, whose figures are wall-clock.
Writes benchmarks/results/growth.csv, with a row per size and measure, and those of the fits with rows empty.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np
import polars as pl
from audit_12m import RESULTS, build

AUDITED_ROWS = 12_800_000
Measure = tuple[int | None, str, str, float]  # rows (None: a fit), stage, measure, value
STAGES = ("fuse_cut_ledger_npy", "second_policy", "lookup", "why", "diff", "diff_page")
OF_LARGE = STAGES[:1]  # of more than AUDITED_ROWS
PARTS = ("fuse_cpu_seconds", "cut_cpu_seconds", "ledger_cpu_seconds", "npy_cpu_seconds")  # of the first stage
FITTED = ("cpu_seconds", "by_id_p50_ms", "by_url_p50_ms", *PARTS)


def measured(home: Path, stage: str) -> dict[str, float]:
    """Measures of one stage in a process of its own."""
    command = [sys.executable, str(Path(__file__).with_name("audit_12m.py")), "--stage", stage, "--work", str(home)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def audited() -> list[tuple[str, str, float]]:
    """(stage, measure, value) of audit_12m.csv."""
    found = pl.read_csv(RESULTS / "audit_12m.csv", schema_overrides={"value": pl.String})
    of_pool = found.filter(pl.col("stage") == "pool", pl.col("measure") == "rows")["value"].item()
    if int(of_pool) != AUDITED_ROWS:
        raise ValueError(f"audit_12m.csv is of {of_pool} rows, expected {AUDITED_ROWS}; run audit_12m.py anew")
    rows = found.filter(pl.col("stage").is_in(STAGES)).with_columns(pl.col("value").cast(pl.Float64))
    return list(rows.select("stage", "measure", "value").iter_rows())


def exponent(rows: np.ndarray, values: np.ndarray) -> float:
    """Slope of log value over log rows. (N,), (N,) → number. rows 1, 10, 100 and values 2, 20, 200 → 1.0"""
    return float(np.polyfit(np.log(rows), np.log(values), 1)[0])


def main() -> None:
    """Build each size, run each stage, fit, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="1280000,3840000", help="Sizes, between commas.")
    parser.add_argument("--rows-per-shard", type=int, default=10_000)
    parser.add_argument("--work", type=Path, help="Folder to build in and to keep; default: a temporary one.")
    parser.add_argument("--stages", help="Which to run, between commas; of audit_12m.py.")
    parser.add_argument("--out", type=Path, default=RESULTS / "growth.csv")
    given = parser.parse_args()
    sizes = [int(size) for size in given.rows.split(",")]
    work = given.work or Path(tempfile.mkdtemp(prefix="growth_"))
    rows_of: list[Measure] = []
    for size in sizes:
        home, is_large = work / str(size), size > AUDITED_ROWS
        build(home, size, size // given.rows_per_shard, slim=is_large)
        for stage in given.stages.split(",") if given.stages else OF_LARGE if is_large else STAGES:
            for name, value in measured(home, stage).items():
                rows_of.append((size, stage, name, value))
        write(given.out, rows_of)
        if given.work is None:
            shutil.rmtree(home)
    found = [] if AUDITED_ROWS in sizes else [(AUDITED_ROWS, *one) for one in audited()]
    write(given.out, [*rows_of, *found, *fits([*rows_of, *found])])


def fits(rows_of: list[Measure]) -> list[Measure]:
    """What is fitted through all sizes, where there are three."""
    found: list[Measure] = []
    series: dict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)
    for size, stage, name, value in rows_of:
        if size is not None:
            series[stage, name].append((size, value))
    for (stage, name), points in series.items():
        rows, values = np.array(points, dtype=np.float64).T
        if len(points) < 3 or not (values > 0).all():
            continue
        if name in FITTED:
            found.append((None, stage, f"{name} exponent", round(exponent(rows, values), 2)))
        elif name.endswith("peak_gib"):
            slope, base = np.polyfit(rows, values, 1)
            peak = name.removesuffix("_gib").replace("_", " ")
            found.append((None, stage, f"{peak} bytes per row", round(float(slope) * 2**30, 1)))
            found.append((None, stage, f"{peak} base GiB", round(float(base), 2)))
    return found


def write(out: Path, rows_of: list[Measure]) -> None:
    """What is measured so far."""
    out.parent.mkdir(parents=True, exist_ok=True)
    found = pl.DataFrame(rows_of, schema=["rows", "stage", "measure", "value"], orient="row", strict=False)
    found.write_csv(out)
    print(found.tail(12), flush=True)


if __name__ == "__main__":
    main()
