"""What a pool's tables after its signals cost, and what one shard that comes late costs: CPU seconds, bytes, tables.

    python -m benchmarks.late_shard --home FOLDER [--rows 6400000] [--shards 640] [--slim]

Runs with the code of any version (`PYTHONPATH`): results/scale.md has this version beside 1c8839ef. A folder that is
there is measured as it is. `--slim`: as of audit_12m.py.
"""

import argparse
import resource
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks import audit_12m
from curation_assets.core.settings import load_settings
from curation_assets.flow.context import PoolContext
from curation_assets.flow.freshness import materialise_table
from curation_assets.flow.graph import tables_of
from curation_assets.flow.parallel import materialise_partitions

TABLES = (
    "fused/sieve_range", "fused/clip_score_range", "fused/sieve_clip", "filtered/duplicates", "filtered/clip_cut",
    "filtered/sieve_clip_cut", "filtered/clip", "filtered/sieve_clip", "filtered/ledger", "filtered/subsets",
    "filtered/overlaps", "raw/lookup",
)  # fmt: skip


def cpu_seconds() -> float:
    """Of this process and of those that it waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def peak_gib(*, anew: bool = False) -> float:
    """Largest resident memory of this process since the count began `anew`; Linux only."""
    if anew:
        Path("/proc/self/clear_refs").write_text("5")
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 2**20


def measure(home: Path) -> None:
    """Bring every table up to date, and print what each cost."""
    ctx = PoolContext.open(load_settings(home, "embedded"), audit_12m.POOL)
    tables, shards = tables_of(ctx), ctx.store.partitions("raw/samples")
    total, began = 0.0, time.time_ns()
    for name in (one for one in TABLES if one in tables):
        before, started = cpu_seconds(), time.perf_counter()
        peak_gib(anew=True)
        made = sum(_made(ctx, tables, name, shards))
        seconds = cpu_seconds() - before
        total += seconds
        wall = time.perf_counter() - started
        print(f"{name:26} {seconds:8.2f} CPU s {wall:8.2f} s, {peak_gib():.2f} GiB, {made} made", flush=True)
    written: Counter[str] = Counter()
    for path in ctx.store.root.rglob("*"):
        if path.is_file() and not path.is_symlink() and path.stat().st_mtime_ns >= began:
            written["/".join(path.relative_to(ctx.store.root).parts[:2])] += path.stat().st_size
    print(f"{len(shards)} shards: {total:.2f} CPU s; {sum(written.values()) / 1e6:.1f} MB written: {dict(written)}")


def _made(ctx: PoolContext, tables: Any, name: str, shards: list[str]) -> list[bool]:
    if tables[name].grain != "shard":
        return [not materialise_table(ctx, tables[name], tables=tables).is_reused]
    made = []
    for _, outcome in materialise_partitions(ctx, tables[name], shards, tables=tables):
        if isinstance(outcome, Exception):
            raise outcome
        made.append(not outcome.is_reused)
    return made


def main() -> None:
    """Build the pool, measure it, add a shard and measure again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=6_400_000)
    parser.add_argument("--shards", type=int, default=640)
    parser.add_argument("--slim", action="store_true")
    given = parser.parse_args()
    for shards in (given.shards, given.shards + 1):
        audit_12m.build(given.home, given.rows // given.shards * shards, shards, slim=given.slim)
        measure(given.home)


if __name__ == "__main__":
    main()
