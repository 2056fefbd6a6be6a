"""Subset files and look-up of a pool whose verdict tables are drawn, not judged: CPU seconds, largest memory, bytes.

    python -m benchmarks.pool_files --home FOLDER [--rows 64000000] [--shards 6400] [--only filtered/subsets,raw/lookup]

Each table is made in a process of its own, within the memory that its control group allows. Rows have ids, URLs and two
image hashes at random and a place in a tar; two policies keep some 30 % of them each. An unfinished folder is
continued. 64 million rows take 14 GB of disk and a quarter of an hour to draw.
"""

import argparse
import multiprocessing
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

from benchmarks.audit_12m import POLICIES, POOL, _hex, context
from benchmarks.late_shard import _made, cpu_seconds, peak_gib
from curation_assets.core.settings import load_settings, shard_key
from curation_assets.flow.graph import tables_of
from curation_assets.selection.judging import VERDICT_SCHEMA
from curation_assets.sources.declaration import add_pool
from curation_assets.stores.shard_store import ShardStore

TABLES = ("filtered/subsets", "raw/lookup")
KEPT = 0.3  # of the rows, by each policy


def build(home: Path, rows: int, shards: int) -> None:
    """raw/samples and the verdict tables; goes on where it stopped. A process per core builds."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "source.csv").write_text("caption,url\nx,http://a.example/x.jpg\n")
    settings = load_settings(home, "embedded")
    if not (settings.pools_root / f"{POOL}.yaml").is_file():
        add_pool(settings, POOL, home / "source.csv", options={"distil": False, "policies": list(POLICIES)})
    there = set(ShardStore(settings.work(POOL)).partitions(f"filtered/{POLICIES[-1]}"))  # written last
    missing = [number for number in range(shards) if shard_key(POOL, number) not in there]
    groups = [missing[start : start + 50] for start in range(0, len(missing), 50)]
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("forkserver")) as executor:
        for _ in executor.map(partial(_build_shards, settings.work(POOL), rows // shards), groups):
            pass


def _build_shards(root: Path, size: int, numbers: Sequence[int]) -> None:
    store = ShardStore(root)
    for number in numbers:
        shard, rng = shard_key(POOL, number), np.random.default_rng([7, number])
        hosts = pl.Series(rng.integers(0, 5_000, size))
        samples = pl.DataFrame({"sample_id": _hex(rng, size, 16), "source_row": np.arange(size)}).with_columns(
            pl.lit(shard).alias("shard"),
            pl.format("https://host{}.example/{}/{}.jpg", hosts, pl.lit(number), "source_row").alias("url"),
            pl.lit(f"downloads/{shard}/{number:06d}.tar").alias("tar"),
            pl.format("{}.jpg", pl.col("source_row")).alias("member"),
            *(_hex(rng, size, 32).alias(name) for name in ("image_sha256", "original_sha256")),
            pl.lit("kept").alias("status"),
        )
        store.write("raw/samples", samples, shard, code_version="1")
        inputs = store.input_versions("filtered/any", [("raw/samples", shard)])
        for policy in POLICIES:
            verdict = np.where(rng.random(size) < KEPT, "kept", "dropped")
            rows = samples.select("sample_id", "shard", "source_row").with_columns(
                pl.Series("verdict", verdict),
                *(pl.lit(None, kind).alias(name) for name, kind in VERDICT_SCHEMA.items() if kind == pl.Float64),
            )
            store.write(f"filtered/{policy}", rows, shard, code_version="1", inputs=inputs)


def measure(home: Path, name: str) -> None:
    """Make a table anew, and print what it cost."""
    ctx = context(home)
    ctx.store.remove(name)
    before, started = cpu_seconds(), time.perf_counter()
    peak_gib(anew=True)
    _made(ctx, tables_of(ctx), name, [])
    size = sum(path.stat().st_size for path in ctx.store.folder_path(name).rglob("*") if path.is_file())
    shards, wall = len(ctx.store.partitions("raw/samples")), time.perf_counter() - started
    print(
        f"{name}, {shards} shards: {cpu_seconds() - before:.1f} CPU s, {wall:.1f} s, "
        f"{peak_gib():.2f} GiB resident, {size / 1e6:.0f} MB written",
        flush=True,
    )


def main() -> None:
    """Draw the pool, then measure each table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=64_000_000)
    parser.add_argument("--shards", type=int, default=6_400)
    parser.add_argument("--only", default=",".join(TABLES))
    given = parser.parse_args()
    build(given.home, given.rows, given.shards)
    for name in filter(None, given.only.split(",")):
        process = multiprocessing.get_context("spawn").Process(target=measure, args=(given.home, name))
        process.start()
        process.join()
        if process.exitcode:
            raise SystemExit(f"{name} ended with {process.exitcode}")


if __name__ == "__main__":
    os.environ.setdefault("CURATION_DURABILITY", "fast")
    main()
