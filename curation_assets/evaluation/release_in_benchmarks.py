"""Which samples of a release are in a benchmark: its own pool's hashes, compared as the option `decontaminate` does."""

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from curation_assets.audit.release_ledger import release_ledger
from curation_assets.core.errors import StoreError
from curation_assets.core.table_names import SAMPLES
from curation_assets.flow.context import PoolContext
from curation_assets.scoring.benchmark_files import benchmark_paths, read_benchmark
from curation_assets.scoring.derived import DERIVED_COLUMNS, derive_column
from curation_assets.selection.rows import ROW_KEY
from curation_assets.stages.signals.contamination import COPY_COLUMN, COPY_ROLE, PDQ_COLUMN, find_in_benchmarks
from curation_assets.stores.releases import Release


@dataclass(frozen=True)
class Contamination:
    """What of a release is in benchmarks."""

    items: pl.DataFrame  # of the benchmarks (`benchmark_files.ITEM_SCHEMA`)
    found: pl.DataFrame  # samples in them or near to them (`contamination.CONTAMINATION_SCHEMA`), shard after shard
    samples: int  # of the release
    not_compared: int  # samples of which nothing could be compared


def contamination_of_release(
    ctx: PoolContext, release: Release, against: Sequence[str], *, words: int, with_crops: bool = True
) -> Contamination:
    """Where the kept samples of a release are in the benchmarks `against`.

    Hashes are the pool's own where its tables have them, else made of its images. Raises MissingReleaseError for a
    withdrawn release, StoreError where the pool no longer has one of its samples, ValueError for a benchmark that
    cannot be read.
    """
    ledger = release_ledger(release)
    roles = (COPY_ROLE,) if ctx.pool.has_images and COPY_ROLE in ctx.profile.roles else ()
    engines = ctx.engines(roles)
    parts = [
        read_benchmark(name, path, words=words, with_crops=with_crops, descriptor=engines.get(COPY_ROLE))
        for name, path in benchmark_paths(against).items()
    ]
    items = pl.concat(parts)
    columns = [PDQ_COLUMN, *([COPY_COLUMN] if roles else [])] if ctx.pool.has_images else []
    found, not_compared = [find_in_benchmarks(_no_rows(), items, words)], 0
    places = pl.concat(part.select(pl.col("shard").cast(pl.String), "source_row") for part in ledger.kept(ROW_KEY))
    with ctx.progress.task("samples compared", places.height) as advance:
        for (shard,), rows in sorted(places.partition_by("shard", as_dict=True).items()):
            here = ctx.store.read(SAMPLES, shard) if ctx.store.manifest(SAMPLES, shard) is not None else None
            here = None if here is None else here.join(rows, on="source_row", how="semi")
            if here is None or here.height != rows.height:
                raise StoreError(
                    f"pool {ctx.pool.name!r} no longer has all samples of release {release.name!r}, {shard}"
                )
            for name in columns:
                here = _with_column(ctx, name, shard, here)
            compared = find_in_benchmarks(here, items, words)
            not_compared += compared["value"].null_count()
            found.append(compared.filter(pl.col("benchmark").is_not_null()))
            advance(rows.height)
    return Contamination(items, pl.concat(found), places.height, not_compared)


def _with_column(ctx: PoolContext, name: str, shard: str, rows: pl.DataFrame) -> pl.DataFrame:
    """The rows with a derived column: of the pool's table, or made now."""
    table, role = f"signals/{name}", DERIVED_COLUMNS[name].role
    if ctx.store.manifest(table, shard) is not None:
        made = ctx.store.read(table, shard, ["source_row", name])
        return rows.join(made, on="source_row", how="left", maintain_order="left")
    engine = ctx.engines([role])[role] if role else None
    made = derive_column(name, rows, engine, load_image=ctx.image_loader())
    return rows.with_columns(made[name])


def _no_rows() -> pl.DataFrame:
    texts = ("sample_id", "status", "reason", "caption", "image_sha256", "original_sha256")
    return pl.DataFrame(schema={**dict.fromkeys(texts, pl.String), "source_row": pl.Int64})
