"""Cost per stage and per kept sample: what is in force, what replaced versions had cost, and what retries wasted."""

from collections.abc import Iterable
from typing import Any

import polars as pl

from curation_assets.audit.origin import lineage_of
from curation_assets.core.stages import STAGES
from curation_assets.core.table_names import DOWNLOADS, stage_of
from curation_assets.stores.costs import read_attempts
from curation_assets.stores.shard_store import ShardStore

DOWNLOADS_FOLDER = "downloads"  # folder of the tars that raw/downloads fetched

#: Grain: one row per table.
COST_SCHEMA = pl.Schema(
    {
        "stage": pl.String,
        "table": pl.String,
        "parts": pl.Int64,  # shards, or 1
        "seconds": pl.Float64,  # wall, of what is in force
        "cpu_seconds": pl.Float64,  # null where a part was computed before costs were logged
        "gpu_seconds": pl.Float64,
        "bytes": pl.Int64,  # stored now
        "earlier_cpu_seconds": pl.Float64,  # versions that others have replaced
        "wasted_attempts": pl.Int64,  # failed or killed
        "wasted_seconds": pl.Float64,  # of those that failed; a killed one leaves no time
        "wasted_cpu_seconds": pl.Float64,
        "wasted_gpu_seconds": pl.Float64,
    }
)
_SUMS = [name for name, dtype in COST_SCHEMA.items() if dtype.is_numeric()]


def table_costs(store: ShardStore, tables: Iterable[str]) -> pl.DataFrame:
    """Cost of each table (COST_SCHEMA), in the order given, without those that were never made nor tried."""
    attempts = read_attempts(store.root)
    by_asset = {str(asset): part for (asset,), part in attempts.group_by("asset")}
    rows = []
    for table in tables:
        tried = by_asset.get(table, attempts.head(0))
        row = _cost(store, table, tried)
        if row is not None:
            rows.append(row)
    return pl.DataFrame(rows, schema=COST_SCHEMA, orient="row")


def _cost(store: ShardStore, table: str, tried: pl.DataFrame) -> dict[str, Any] | None:
    keys: list[str | None] = [*store.partitions(table)] or [None]
    manifests = [(key, manifest) for key in keys if (manifest := store.manifest(table, key)) is not None]
    if not manifests and not tried.height:
        return None
    written = tried.filter(pl.col("outcome") == "written")
    in_force = []  # indices into `written`: per part, the newest attempt that gave what is stored
    for key, manifest in manifests:
        same = (
            written["partition"].eq_missing(key) & (written["content_sha256"] == manifest.content_sha256)
        ).arg_true()
        if len(same):
            in_force.append(int(same[-1]))
    used = written[in_force]
    is_complete = len(in_force) == len(manifests)
    wasted = tried.filter(pl.col("outcome") != "written")
    return {
        "stage": stage_of(table),
        "table": table,
        "parts": len(manifests),
        "seconds": sum(manifest.seconds for _, manifest in manifests),
        "cpu_seconds": used["cpu_seconds"].sum() if is_complete else None,
        "gpu_seconds": used["gpu_seconds"].sum() if is_complete else None,
        "bytes": _stored_bytes(store, table, [key for key, _ in manifests]),
        "earlier_cpu_seconds": float(written["cpu_seconds"].sum()) - float(used["cpu_seconds"].sum()),
        "wasted_attempts": wasted.height,
        "wasted_seconds": wasted["seconds"].sum(),
        "wasted_cpu_seconds": wasted["cpu_seconds"].sum(),
        "wasted_gpu_seconds": wasted["gpu_seconds"].sum(),
    }


def _stored_bytes(store: ShardStore, table: str, keys: list[str | None]) -> int:
    folder = store.asset_path(table)
    if folder.is_symlink():
        return store.size_of(folder.resolve())
    size = sum(path.stat().st_size for key in keys if (path := store.table_path(table, key)).is_file())
    return size + (store.size_of(store.root / DOWNLOADS_FOLDER) if table == DOWNLOADS else 0)


def stage_costs(tables: pl.DataFrame) -> pl.DataFrame:
    """Sums per stage, in flow order, then the total. A stage with a table of unknown CPU time has none."""
    order = {stage: position for position, stage in enumerate(STAGES)}
    known = [
        pl.when(pl.col(name).is_null().any()).then(None).otherwise(pl.col(name).sum()).alias(name) for name in _SUMS
    ]
    stages = tables.group_by("stage").agg(known).sort(pl.col("stage").replace_strict(order, return_dtype=pl.Int64))
    total = tables.select(pl.lit("total").alias("stage"), *known)
    return pl.concat([stages, total])


def per_kept_sample(store: ShardStore, policy: str) -> dict[str, float | int | None]:
    """Cost of a policy's subset, over all tables upstream of it, per sample that it keeps.

    Raises MissingTableError where the policy was not applied, ValueError where it keeps nothing.
    """
    verdicts = store.scan(f"filtered/{policy}")
    kept = int(verdicts.select((pl.col("verdict") == "kept").sum()).collect(engine="streaming").item())
    if not kept:
        raise ValueError(f"policy {policy!r} keeps no sample; there is no cost per kept sample")
    costs = table_costs(store, lineage_of(store, f"filtered/{policy}").tables)
    total = stage_costs(costs).row(-1, named=True)
    names = ("seconds", "cpu_seconds", "gpu_seconds", "bytes", "wasted_cpu_seconds")
    return {"kept": kept, **{name: None if total[name] is None else total[name] / kept for name in names}}
