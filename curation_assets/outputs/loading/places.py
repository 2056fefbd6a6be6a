"""Where the images of rows lie in their tars: found once per shard and kept as numbers beside what is known of the
source, `work/POOL/source/SHARD.places.parquet`, until the shard's rows or one of its tars change.

That file has no name and no id: a takedown has nothing to remove from it. Tars of a home in a bucket have their index
there (stores/tar_members.py).
"""

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import astuple
from pathlib import Path

import polars as pl

from curation_assets.core.disk import DiskError
from curation_assets.core.table_names import SAMPLES
from curation_assets.flow.context import PoolContext
from curation_assets.outputs.exports.subset import Subset
from curation_assets.stores.atomic import replacing
from curation_assets.stores.file_hash import FileState
from curation_assets.stores.images import tar_index
from curation_assets.stores.mapped_rows import mapped_rows, slices
from curation_assets.stores.parquet import UNREADABLE, is_whole, parquet_footer, read_parquet, write_sealed
from curation_assets.stores.tar_members import far_tar

_SCHEMA = {"source_row": pl.Int64, "offset": pl.Int64, "length": pl.Int64}


def located(subset: Subset) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Rows of the subset with offset and length, and samples whose image is not where it was: as `Subset.missing`, with
    a detail."""
    ctx, lost = subset.ctx, list[pl.DataFrame]()

    def found() -> Iterator[pl.DataFrame]:
        with ctx.progress.task(f"{ctx.pool.name}: members of tars", subset.rows.height) as advance:
            for part in slices(subset.rows):
                rows, unlocated = _located(_with_places(ctx, part))
                lost.append(unlocated)
                yield rows
                advance(part.height)

    return mapped_rows(found()), pl.concat(lost)


def _located(rows: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    is_gone = pl.col("offset").is_null()
    reason = (
        pl.when(pl.col("tar").is_null())
        .then(pl.lit("no_image"))
        .when(is_gone)
        .then(pl.lit("image_gone"))
        .when(pl.col("length") != pl.col("image_bytes"))
        .then(pl.lit("image_changed"))
    )
    place = pl.format("member {} of {} (shard {}) was {} bytes", "member", "tar", "shard", "image_bytes")
    found = pl.when(is_gone).then(pl.lit("found none")).otherwise(pl.format("found {}", "length"))
    marked = rows.with_columns(reason=reason, detail=pl.format("{}, {}", place, found))
    lost = marked.filter(pl.col("reason").is_not_null())
    return (
        marked.filter(pl.col("reason").is_null()).drop("reason", "detail"),
        lost.select("sample_id", "multiplicity", "reason", "detail"),
    )


def _with_places(ctx: PoolContext, rows: pl.DataFrame) -> pl.DataFrame:
    """Rows (shard, source_row, tar …) with the columns offset and length: the bytes of their image in its tar.

    Both are null where the tar or the name in it is missing, and where there is no image.
    """
    shards = rows.filter(pl.col("tar").is_not_null())["shard"].unique().sort().to_list()
    found = [pl.DataFrame(schema={"shard": pl.String, **_SCHEMA})]
    found += [_of_shard(ctx, shard).select(pl.lit(shard).alias("shard"), *_SCHEMA) for shard in shards]
    return rows.join(pl.concat(found), on=["shard", "source_row"], how="left", maintain_order="left")


def _of_shard(ctx: PoolContext, shard: str) -> pl.DataFrame:
    store = ctx.store
    samples = store.scan(SAMPLES, [shard]).select("source_row", "tar", "member").drop_nulls().collect()
    tars = {tar: store.root / tar for tar in samples["tar"].unique().sort()}
    states = {tar: FileState.of(path) if path.is_file() else None for tar, path in tars.items()}
    if any(far_tar(path) is not None for path in tars.values()):
        return _found(samples, tars)  # the bucket has the index
    manifest = store.manifest(SAMPLES, shard)
    assert manifest is not None, shard
    known = [(tar, state and astuple(state)) for tar, state in states.items()]
    key = hashlib.sha256(repr([manifest.content_sha256, known]).encode()).hexdigest()
    cache = store.root / "source" / f"{shard}.places.parquet"
    with contextlib.suppress(*UNREADABLE):
        if cache.is_file() and is_whole(cache) and parquet_footer(cache).get("of") == key:
            return read_parquet(cache)
    places = _found(samples, tars)
    if all(state is not None and state.is_settled for state in states.values()):
        with contextlib.suppress(DiskError), replacing(cache) as temporary:  # a home that is only read
            write_sealed(places, temporary, {"of": key})
    return places


def _found(samples: pl.DataFrame, tars: Mapping[str, Path]) -> pl.DataFrame:
    found = [pl.DataFrame(schema={"tar": pl.String, "member": pl.String, "offset": pl.Int64, "length": pl.Int64})]
    for tar, path in tars.items():
        far = far_tar(path)
        try:
            members = tar_index(path).members if far is None else {}
        except OSError:  # no tar: its rows have no place
            continue
        places = far.places if far else {name: (member.offset, member.size) for name, member in members.items()}
        names = samples.filter(pl.col("tar") == tar)["member"].to_list()
        rows = [(tar, name, *places[name]) for name in names if name in places]
        found.append(pl.DataFrame(rows, schema=found[0].schema, orient="row"))
    joined = samples.join(pl.concat(found).unique(["tar", "member"]), on=["tar", "member"], how="inner")
    return joined.select(*_SCHEMA).sort("source_row")
