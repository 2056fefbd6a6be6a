"""What it costs to compute several signals of the same images: a pass per table, one pass for all, a bare process pool.

python benchmarks/image_signals.py FOLDER [--images 2500] [--profile photos] [--methods clip_score,image_dark,…]

FOLDER holds tars of photographs (webdataset). Each way runs in a process of its own. Printed: images, CPU seconds of
the process and its children, peak resident memory (of the largest process), how often an image was decoded; and whether
the tables of both passes are equal. The pool of processes calls the methods on its share of the images, decodes each
once, and writes and checks nothing: what is the least that this work costs with the same code.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import polars as pl

from curation_assets.core.settings import load_settings
from curation_assets.flow import context
from curation_assets.flow.context import PoolContext
from curation_assets.flow.graph import tables_of, with_upstream
from curation_assets.flow.run_table import keys_of, run_table
from curation_assets.methods import get_method
from curation_assets.scoring.samples import score_samples
from curation_assets.stores.images import decode_image
from curation_assets.stores.pools.declaration import add_pool

METHODS = "clip_score,laion_filter,image_dark,image_light,image_blur,image_entropy"
WAYS = ("separate", "together", "pool")


def write_images(folder: Path, into: Path, count: int) -> None:
    """One tar of the first `count` photographs below `folder`, with their captions."""
    into.mkdir(parents=True)
    written = 0
    with tarfile.open(into / "000000.tar", "w") as out:
        for source in sorted(folder.glob("*.tar")):
            with tarfile.open(source) as tar:
                for member in tar:
                    written += member.name.endswith(".jpg")
                    if written > count:
                        return
                    if member.isfile():
                        member.name = f"{source.stem}_{Path(member.name).name}"
                        out.addfile(member, tar.extractfile(member))


def open_pool(home: Path, source: Path, profile: str, methods: list[str]) -> PoolContext:
    """The pool up to raw.samples."""
    settings = load_settings(home, profile)
    if not (settings.pools_root / "measured.yaml").exists():
        add_pool(settings, "measured", source, options={"methods": methods, "distil": False, "downstream": False})
    return PoolContext.open(settings, "measured")


def make_tables(ctx: PoolContext, names: list[str], planned: bool) -> dict[str, str]:
    """Signals in turn → hash of each one's content."""
    if planned:
        ctx.planned = frozenset(names)
    tables = tables_of(ctx)
    for table in with_upstream(tables, names).values():
        result = run_table(ctx, table, keys_of(table, ctx.shards()), tables=tables)
        assert not result.problems, result.problems
    (shard,) = ctx.shards()
    manifests = {name: ctx.store.manifest(name, shard) for name in names}
    return {name: manifest.content_sha256 for name, manifest in manifests.items() if manifest is not None}


def score_share(home: str, source: str, profile: str, methods: list[str], part: int, parts: int) -> int:
    """A process's share of the rows through every method, each image decoded once. Returns how many."""
    ctx = open_pool(Path(home), Path(source), profile, methods)
    (shard,) = ctx.shards()
    samples = ctx.store.read("raw/samples", shard)
    size = -(-samples.height // parts)
    load = ctx.image_loader()
    share = samples.slice(part * size, size)
    for start in range(0, share.height, 64):
        batch = share.slice(start, 64)
        images = {row["source_row"]: load(row) for row in batch.iter_rows(named=True) if row["status"] == "kept"}
        for name in methods:
            method = get_method(name)
            decoded = lambda row, images=images: images[row["source_row"]]  # noqa: E731
            score_samples(method, batch, ctx.engines(method.roles), load_image=decoded)
    return share.height


def measure(way: str, home: Path, source: Path, profile: str, methods: list[str]) -> dict[str, Any]:
    """Run one way in this process."""
    decoded = [0]

    def counted(data: bytes, limits: Any) -> Any:
        decoded[0] += 1
        return decode_image(data, limits)

    context.decode_image = counted  # type: ignore[attr-defined]
    ctx = open_pool(home, source, profile, methods)
    make_tables(ctx, ["raw/samples"], planned=False)
    ctx.engines({role for name in methods for role in get_method(name).roles})
    before = _cpu()
    hashes: dict[str, str] = {}
    if way == "pool":
        parts = os.cpu_count() or 1
        with ProcessPoolExecutor(parts) as executor:
            arguments = [(str(home), str(source), profile, methods, part, parts) for part in range(parts)]
            sum(executor.map(score_share, *zip(*arguments, strict=True)))
    else:
        hashes = make_tables(ctx, [f"signals/{name}" for name in methods], planned=way == "together")
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return {
        "way": way,
        "images": ctx.store.read("raw/samples", ctx.shards()[0]).height,
        "cpu_seconds": round(_cpu() - before, 2),
        "peak_mib": peak // 1024,
        "decoded": None if way == "pool" else decoded[0],
        "hashes": hashes,
    }


def _cpu() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def run_ways(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One process after the other."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source"
        write_images(arguments.folder, source, arguments.images)
        for way in WAYS:
            command = [sys.executable, __file__, str(source), "--way", way, "--home", str(Path(folder) / way)]
            command += ["--profile", arguments.profile, "--methods", arguments.methods]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            yield json.loads(output.splitlines()[-1])


def main() -> None:
    """Print a table of the ways, or measure one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=2500)
    parser.add_argument("--profile", default="photos")
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--home", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.way:
        methods = arguments.methods.split(",")
        print(json.dumps(measure(arguments.way, arguments.home, arguments.folder, arguments.profile, methods)))
        return
    rows = list(run_ways(arguments))
    hashes = {row["way"]: row.pop("hashes") for row in rows}
    with pl.Config(tbl_formatting="ASCII_MARKDOWN", tbl_hide_column_data_types=True, tbl_hide_dataframe_shape=True):
        print(pl.DataFrame(rows))
    print("tables of both passes are", "equal" if hashes["separate"] == hashes["together"] else "DIFFERENT")


if __name__ == "__main__":
    main()
