"""The audit at 12.8 M rows in 1,280 shards: fuse, cut, verdicts, npy; why; diff; plan for 100 k shards; pandas.

    python benchmarks/audit_12m.py [--rows N] [--shards N] [--work FOLDER]

Signals are synthetic; everything else is the package's own code, through the flow's declarations. Each stage runs in a
process of its own, whose peak memory is its own. Writes benchmarks/results/audit_12m.csv.
"""

import argparse
import json
import multiprocessing
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from curation_assets.core.settings import shard_key
from curation_assets.stores.columns import texts_of
from curation_assets.stores.parquet import parquet_rows
from curation_assets.stores.samples import SAMPLES_SCHEMA
from curation_assets.stores.shard_store import ShardStore

RESULTS = Path(__file__).parent / "results"
POOL = "big"
POLICIES = ("clip", "sieve_clip")
HOSTS = 5_000


def build(home: Path, rows: int, shards: int, *, slim: bool = False) -> None:
    """raw/samples and two signals, as the flow stores them; goes on where it stopped. One row in 50 failed, one in 200
    has no value.

    `slim`: raw/samples without URL, caption, tar and image hashes, which fuse, cut, verdicts and npy do not read: half
    the time and a third of the disk; and with ids that end in zeros, a third of the disk again. A process per core
    builds.
    """
    from curation_assets.core.settings import load_settings
    from curation_assets.sources.declaration import add_pool
    from curation_assets.stores.shard_store import ShardStore

    home.mkdir(parents=True, exist_ok=True)
    (home / "source.csv").write_text("caption,url\nx,http://a.example/x.jpg\n")
    settings = load_settings(home, "embedded")
    if not (settings.pools_root / f"{POOL}.yaml").is_file():
        add_pool(settings, POOL, home / "source.csv", options={"distil": False, "policies": list(POLICIES)})
    there = set(ShardStore(settings.work(POOL)).partitions("signals/sieve"))  # written last
    missing = [number for number in range(shards) if shard_key(POOL, number) not in there]
    groups = [missing[start : start + 50] for start in range(0, len(missing), 50)]
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("forkserver")) as executor:
        for _ in executor.map(partial(_build_shards, settings.work(POOL), rows // shards, slim), groups):
            pass


def _build_shards(root: Path, size: int, slim: bool, numbers: Sequence[int]) -> None:
    store = ShardStore(root)
    for number in numbers:
        _build_shard(store, size, slim, number)


def _build_shard(store: ShardStore, size: int, slim: bool, number: int) -> None:
    shard = shard_key(POOL, number)
    rng = np.random.default_rng([7, number])
    is_failed = rng.random(size) < 0.02
    kept = pl.lit(pl.Series(~is_failed))
    hosts = pl.Series(rng.integers(0, HOSTS, size))
    ids = _hex(rng, size, 8) + "0" * 16 if slim else _hex(rng, size, 16)
    samples = pl.DataFrame({"sample_id": ids, "source_row": np.arange(size)}).with_columns(
        pl.lit(shard).alias("shard"),
        kept.alias("has_image"),
        *(pl.when(kept).then(512).alias(name) for name in ("width", "height", "original_width", "original_height")),
        pl.when(kept).then(40_000).alias("image_bytes"),
        pl.when(kept).then(pl.lit("kept")).otherwise(pl.lit("failed")).alias("status"),
        pl.when(~kept).then(pl.lit("download_http_404")).alias("reason"),
    )
    texts = ("url", "caption", "tar", "member", "image_sha256", "original_sha256")
    if slim:
        samples = samples.with_columns(pl.lit(None, pl.String).alias(name) for name in texts)
    else:
        samples = samples.with_columns(
            pl.format("https://host{}.example/{}/{}.jpg", hosts, pl.lit(number), "source_row").alias("url"),
            pl.Series("caption", [f"a photo of {'a very ' * n}small thing" for n in rng.integers(0, 20, size)]),
            pl.when(kept).then(pl.lit(f"downloads/{shard}/{number:06d}.tar")).alias("tar"),
            pl.when(kept).then(pl.format("{}.jpg", pl.col("source_row"))).alias("member"),
            *(pl.when(kept).then(_hex(rng, size, 32)).alias(name) for name in ("image_sha256", "original_sha256")),
        )
    schema = dict(SAMPLES_SCHEMA)
    store.write("raw/samples", samples.select(list(schema)).cast(schema), shard, code_version="1", seconds=1.0)
    inputs = store.input_versions("signals/icc", [("raw/samples", shard)])
    for name in ("clip_score", "sieve"):
        is_missing = is_failed | (rng.random(size) < 0.005)
        values = rng.normal(0.25, 0.08, size).astype(np.float32).astype(np.float64)
        missing, failed = pl.lit(pl.Series(is_missing)), pl.lit(pl.Series(is_failed))
        signal = samples.select("sample_id", "shard", "source_row").with_columns(
            pl.when(~missing).then(pl.Series(values)).alias("value"),
            pl.when(failed)
            .then(pl.lit("upstream_failed:download_http_404"))
            .when(missing)
            .then(pl.lit("image_undecodable"))
            .alias("reason"),
        )
        store.write(f"signals/{name}", signal, shard, code_version="1", inputs=inputs, seconds=5.0)


def _hex(rng: np.random.Generator, size: int, width: int) -> pl.Series:
    """(size,) texts of `width` random bytes."""
    return texts_of("", rng.bytes(size * width).hex().encode(), 2 * width)


#: What the first stage makes, in order.
RANGES = ("fused/sieve_range", "fused/clip_score_range")
RECIPE = "fused/sieve_clip"
CUT = ("filtered/duplicates", "filtered/sieve_clip_cut")
VERDICTS = "filtered/sieve_clip"


def context(home: Path) -> Any:
    from curation_assets.core.settings import load_settings
    from curation_assets.flow.context import PoolContext

    return PoolContext.open(load_settings(home, "embedded"), POOL)


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = work()
    return round(time.perf_counter() - start, 3), result


@contextmanager
def peak_memory(name: str, peaks: dict[str, float]) -> Iterator[None]:
    """Put the largest resident memory of this process during the work inside, in GiB, into `peaks`; Linux only."""
    marks = Path("/proc/self/clear_refs")
    if marks.is_file():
        marks.write_text("5")  # the peak starts anew from what is resident
    yield
    if marks.is_file():
        status = Path("/proc/self/status").read_text()
        peaks[name] = round(int(status.split("VmHWM:")[1].split()[0]) / 2**20, 3)


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def materialised(ctx: Any, *names: str) -> None:
    """Make tables, all shards of those that have some."""
    from curation_assets.flow.freshness import materialise_table
    from curation_assets.flow.graph import tables_of
    from curation_assets.flow.parallel import materialise_partitions

    tables = tables_of(ctx)
    for name in names:
        if tables[name].grain == "pool":
            materialise_table(ctx, tables[name], tables=tables)
            continue
        for _, outcome in materialise_partitions(ctx, tables[name], ctx.store.partitions("raw/samples"), tables=tables):
            if isinstance(outcome, Exception):
                raise outcome


def chain(home: Path) -> dict[str, Any]:
    """Fuse, cut, verdict tables, npy of policy sieve_clip, by the flow's tables."""
    from curation_assets.audit.ledger import recorded_ledger

    ctx = context(home)
    for name in (*RANGES, RECIPE, *CUT, VERDICTS, "filtered/clip_cut", "filtered/clip"):  # of an earlier run
        ctx.store.remove(name)

    def npy() -> int:
        packed = recorded_ledger(ctx.store, "sieve_clip").subset()
        np.save(home / "sieve_clip.npy", packed)
        return len(packed)

    seconds: dict[str, float] = {}
    cpu: dict[str, float] = {}
    peaks: dict[str, float] = {}
    kept = 0
    steps: dict[str, Callable[[], Any]] = {
        "fuse": lambda: materialised(ctx, *RANGES, RECIPE),
        "cut": lambda: materialised(ctx, *CUT),
        "ledger": lambda: materialised(ctx, VERDICTS),
        "npy": npy,
    }
    for name, work in steps.items():
        before = _cpu_seconds()
        with peak_memory(name, peaks):
            seconds[name], kept = timed(work)
        cpu[name] = round(_cpu_seconds() - before, 2)
    paths = recorded_ledger(ctx.store, "sieve_clip").paths
    size = sum(path.stat().st_size for path in paths)
    count = sum(map(parquet_rows, paths))
    return {
        **{f"{name}_seconds": value for name, value in seconds.items()},
        **{f"{name}_cpu_seconds": value for name, value in cpu.items()},
        **{f"{name}_peak_gib": value for name, value in peaks.items()},
        **({"peak_gib": max(peaks.values())} if peaks else {}),
        "total_seconds": round(sum(seconds.values()), 2),
        "total_cpu_seconds": round(sum(cpu.values()), 2),
        "kept": kept,
        "rows": count,
        "ledger_bytes_per_row": round(size / count, 1),
    }


def second_policy(home: Path) -> dict[str, Any]:
    """A second policy, so that there is something to compare with."""
    ctx = context(home)
    materialised(ctx, "filtered/clip_cut")
    seconds, _ = timed(lambda: materialised(ctx, "filtered/clip"))
    shards = len(ctx.store.partitions("raw/samples"))
    return {"verdict_table_milliseconds_per_shard": round(1000 * seconds / shards, 1)}


def lookup(home: Path) -> dict[str, Any]:
    """The table by which `curate why` finds the shard of a URL, hash or id."""
    from curation_assets.audit.lookup import LOOKUP
    from curation_assets.flow.freshness import materialise_table
    from curation_assets.flow.graph import tables_of

    ctx = context(home)
    tables = tables_of(ctx)
    ctx.store.remove(LOOKUP)  # of an earlier run in this folder
    seconds, _ = timed(lambda: materialise_table(ctx, tables[LOOKUP], tables=tables))
    size = sum(path.stat().st_size for path in ctx.store.folder_path(LOOKUP).glob("*"))
    return {"seconds": seconds, "megabytes": round(size / 1e6, 1)}


def why(home: Path) -> dict[str, Any]:
    """`curate why` without starting Python, with two policies' ledgers: 200 samples by id, URL and image hash."""
    from curation_assets.audit.why import explain
    from curation_assets.core.settings import load_settings

    settings = load_settings(home, "embedded")
    rng = np.random.default_rng(1)
    shards = sorted((home / "work" / POOL / "raw" / "samples").glob("shard=*/data.parquet"))
    measures: dict[str, Any] = {"lookups": 200}
    names = {"by_id": "sample_id", "by_url": "url", "by_sha256": "original_sha256"}
    picked = []
    for at in rng.integers(0, len(shards), measures["lookups"]):
        rows = pl.read_parquet(shards[at], columns=list(names.values())).drop_nulls()
        picked.append(rows.row(int(rng.integers(0, rows.height)), named=True))
    explain(settings, picked[0]["sample_id"])
    for name, column in names.items():
        seconds = [timed(partial(explain, settings, one[column]))[0] for one in picked]
        measures |= {f"{name}_p{q}_ms": round(1000 * float(np.quantile(seconds, q / 100)), 1) for q in (50, 95, 100)}
    return measures


def diff(home: Path) -> dict[str, Any]:
    """`curate diff A B --recorded` without starting Python: two policies as their ledgers have them."""
    from curation_assets.audit.diff import recorded_difference
    from curation_assets.audit.ledger import recorded_ledger

    store = context(home).store
    ledgers = [recorded_ledger(store, name) for name in POLICIES]
    seconds, recorded = timed(lambda: recorded_difference(*ledgers, store).to_dict())
    return {"of_ledgers_seconds": seconds, "iou": round(recorded["iou"], 4)}


def diff_page(home: Path) -> dict[str, Any]:
    """`curate diff A B` of two recorded policies: first their verdicts, then groups and what each signal decides."""
    from curation_assets.audit.diff import RECORDED, Comparison, policy_comparison
    from curation_assets.flow.declared import policies_of

    ctx = context(home)
    policies = {one.name: one for one in policies_of(ctx)}
    pair = [policies[name] for name in POLICIES]

    def start() -> Comparison:
        both = policy_comparison(ctx.store, *pair)
        assert (both.left.origin, both.right.origin, both.verdicts.judged > 0) == (RECORDED, RECORDED, True)
        return both

    first, both = timed(start)
    rest, found = timed(both.whole)
    (home / "diff.json").write_text(json.dumps(found.to_dict()))
    return {"first_seconds": first, "seconds": round(first + rest, 3)}


def diff_judged(home: Path) -> dict[str, Any]:
    """The same where no ledger is current: judges both policies again. The numbers are those of the ledgers."""
    from curation_assets.audit.diff import compare
    from curation_assets.flow.declared import policies_of
    from curation_assets.selection.rows import Pool

    ctx = context(home)
    policies = {one.name: one for one in policies_of(ctx)}
    seconds, found = timed(lambda: compare(Pool(ctx.store), *(policies[name] for name in POLICIES)))
    assert json.loads((home / "diff.json").read_text()) == json.loads(json.dumps(found.to_dict()))
    return {"seconds": seconds}


def plan(home: Path, shards: int = 100_000) -> dict[str, Any]:
    """A plan for 100 k shards of a pool with the tables of the demo's kind, two shards in a hundred changed."""
    from dataclasses import replace

    from curation_assets.audit.index import INPUTS_SCHEMA, TABLES_SCHEMA, Index, write_index
    from curation_assets.audit.index import POOL as WHOLE
    from curation_assets.flow.context import PoolContext
    from curation_assets.flow.graph import tables_of
    from curation_assets.operations.planning import TableFacts, make_plan

    ctx: PoolContext = context(home)
    keys = [f"{POOL}-{number:06d}" for number in range(shards)]
    rng = np.random.default_rng(3)
    facts = [
        TableFacts(
            name,
            table.grain == "shard",
            table.inputs,
            table.version,
            "[]",
            None,
            table.is_frozen,
            bool(table.needs.roles),
        )
        for name, table in tables_of(ctx).items()
    ]
    contents: dict[str, np.ndarray] = {}
    parts, inputs = [], []
    for one in facts:
        n = shards if one.is_per_shard else 1
        contents[one.name] = rng.integers(0, 2**63, n, dtype=np.uint64)
        partition = pl.Series("partition", keys if one.is_per_shard else [WHOLE])
        parts.append(
            pl.DataFrame({"partition": partition, "content": contents[one.name]}).select(
                asset=pl.lit(one.name), partition="partition", modified_ns=pl.lit(0), content="content",
                code_version=pl.lit(one.code_version), config_hash=pl.lit("c" * 64), models=pl.lit("[]"),
                row_count=pl.lit(10_000), seconds=pl.lit(12.5),
            )
        )  # fmt: skip
        for name in one.inputs:
            read = contents[name]
            is_single = len(read) == n
            value = read if is_single else np.full(n, read.sum(dtype=np.uint64))
            if one.is_per_shard and name == "raw/samples":
                value = np.where(rng.random(n) < 0.02, value + np.uint64(1), value)
            inputs.append(
                pl.DataFrame({"partition": partition, "content": value}).select(
                    asset=pl.lit(one.name), partition="partition", input=pl.lit(name), content="content",
                    count=pl.lit(1 if is_single else len(read)),
                )
            )  # fmt: skip
    folder = home / "index_100k"
    write_index(folder, pl.concat(parts).cast(dict(TABLES_SCHEMA)), pl.concat(inputs).cast(dict(INPUTS_SCHEMA)))
    changed = [replace(one, code_version="new") if one.name == "signals/sieve" else one for one in facts]
    seconds, found = timed(lambda: make_plan(changed, Index.read(folder, keys)))
    return {
        "seconds": seconds,
        "shards": shards,
        "tables": len(facts),
        "partitions": int(found.costs["partitions"].sum()),
        "stale": int(found.costs["stale"].sum()),
    }


def pandas_selection(home: Path) -> dict[str, Any]:
    """What DataComp's baselines do for one score: read, threshold by fraction, pack, sort, save (formulas.md §3.3)."""
    import pandas as pd

    def select() -> int:
        paths = sorted((home / "work" / POOL / "signals" / "clip_score").glob("shard=*/data.parquet"))
        frame = pd.concat([pd.read_parquet(path, columns=["sample_id", "value"]) for path in paths], ignore_index=True)
        values = frame["value"].dropna().sort_values(ascending=False)
        threshold = values.iloc[int(len(values) * 0.25)]
        uids = frame.loc[frame["value"] >= threshold, "sample_id"].to_numpy()
        packed = np.array([(int(uid[:16], 16), int(uid[16:32], 16)) for uid in uids], np.dtype("u8,u8"))
        packed.sort()
        np.save(home / "pandas.npy", packed)
        return len(packed)

    seconds, kept = timed(select)
    return {"seconds": seconds, "kept": kept}


STAGES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "fuse_cut_ledger_npy": chain,
    "second_policy": second_policy,
    "lookup": lookup,
    "why": why,
    "diff": diff,
    "plan_100k_shards": plan,
    "pandas_selection": pandas_selection,
    "diff_page": diff_page,
    "diff_judged": diff_judged,
}


def run_stage(name: str, home: Path) -> None:
    """One stage in this process; JSON on the last line."""
    before = _machine_ticks()
    measures = STAGES[name](home)
    used = resource.getrusage(resource.RUSAGE_SELF)
    measures = {"peak_gib": round(used.ru_maxrss / 2**20, 2)} | measures
    measures["cpu_seconds"] = round(used.ru_utime + used.ru_stime, 1)
    if before is not None and (after := _machine_ticks()) is not None:
        busy, stolen = (now - then for now, then in zip(after, before, strict=True))
        measures["stolen_share"] = round(
            stolen / max(1, busy + stolen), 3
        )  # of CPU time: taken by other machines of the host
    print(json.dumps(measures))


def _machine_ticks() -> tuple[int, int] | None:
    """CPU ticks of the whole machine that were used, and that the host of a virtual machine took away; Linux only."""
    if not Path("/proc/stat").is_file():
        return None
    user, nice, system, _, _, irq, softirq, stolen = map(int, Path("/proc/stat").read_text().split()[1:9])
    return user + nice + system + irq + softirq, stolen


GOALS = {
    ("fuse_cut_ledger_npy", "total_seconds"): 60, ("fuse_cut_ledger_npy", "peak_gib"): 4,
    ("fuse_cut_ledger_npy", "ledger_bytes_per_row"): 64, ("why", "by_id_p95_ms"): 100, ("why", "by_url_p95_ms"): 100,
    ("why", "by_sha256_p95_ms"): 100, ("diff", "of_ledgers_seconds"): 3, ("plan_100k_shards", "seconds"): 2,
}  # fmt: skip


def main() -> None:
    """Build, run every stage, write the results: one row per stage and measure, with the goal where there is one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=12_800_000)
    parser.add_argument("--shards", type=int, default=1_280)
    parser.add_argument("--work", type=Path, help="Folder to build in and to keep; default: a temporary one.")
    parser.add_argument(
        "--stage", choices=list(STAGES), help="Only this one, in this process, in a folder that is built."
    )
    parser.add_argument("--stages", default=",".join(STAGES), help="Which to run, between commas.")
    parser.add_argument("--slim", action="store_true", help="Without what only other stages than the first read.")
    parser.add_argument("--out", type=Path, default=RESULTS / "audit_12m.csv")
    given = parser.parse_args()
    if given.stage:
        run_stage(given.stage, given.work)
        return
    home = given.work or Path(tempfile.mkdtemp(prefix="audit_12m_"))
    facts = {"rows": given.rows, "shards": given.shards, "cores": os.cpu_count(), "python": platform.python_version()}
    measures = [("pool", name, value) for name, value in facts.items()]
    seconds, _ = timed(lambda: build(home, given.rows, given.shards, slim=given.slim))
    measures.append(("build", "seconds", seconds))
    for name in given.stages.split(","):
        load = round(os.getloadavg()[0], 1)
        command = [sys.executable, __file__, "--stage", name, "--work", str(home)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found = json.loads(done.stdout.splitlines()[-1])
        print(name, found, flush=True)
        measures += [(name, measure, value) for measure, value in {**found, "load_when_started": load}.items()]
        rows = [(*one[:2], str(one[2]), GOALS.get(one[:2])) for one in measures]
        given.out.parent.mkdir(parents=True, exist_ok=True)
        pl.DataFrame(rows, schema=["stage", "measure", "value", "goal"], orient="row").write_csv(given.out)
    if given.work is None:
        shutil.rmtree(home)


if __name__ == "__main__":
    main()
