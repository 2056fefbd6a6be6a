"""Where samples lie before any method has seen them: registered rows, the pool's source, downloads."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import polars as pl

from curation_assets.core.seal import SEAL_LINE, sealed_text
from curation_assets.core.table_names import REGISTERED_SHARDS, SAMPLES
from curation_assets.flow.context import PoolContext
from curation_assets.flow.holder import SAMPLE_SCHEMA, Holder, Left, Takedown, files_in
from curation_assets.flow.table import Tables
from curation_assets.numeric.identity import sample_id_from
from curation_assets.sources.download.download import take_down_downloads
from curation_assets.sources.kinds.webdataset import takedown_marker
from curation_assets.sources.shards import DOWNLOADS_FOLDER, requested_rows
from curation_assets.sources.split import remove_splits
from curation_assets.stages.raw.source_checks import download_checks, source_checks
from curation_assets.stages.raw.takedown_sources import (
    SourceChangedError,
    images_in_sources,
    present_tars,
    purge_source,
    registered_sources,
    samples_in_sources,
)
from curation_assets.stores.damage import Check
from curation_assets.stores.denylist import COLUMNS, FOLDER, TAKEDOWN, Denylist
from curation_assets.stores.documents import save_text
from curation_assets.stores.images import tar_index
from curation_assets.stores.scrubbing import HASHES, Needles


class RegisteredRows(Holder):
    """Registered rows and raw/samples: they say which samples of the denylist the pool has."""

    def find(self, ctx: PoolContext, tables: Tables, takedown: Takedown, *, is_resumed: bool) -> None:
        denylist = ctx.denylist
        rows = affected_samples(ctx, denylist)
        takedown.samples = pl.concat([takedown.samples, rows.select(SAMPLE_SCHEMA.names())])
        stated = rows.select("sample_id", denylist.reasons(rows)).filter(pl.col("reason") != "")
        takedown.reasons = {**dict(stated.iter_rows()), **takedown.reasons}
        takedown.add_entries(denylist.entries_of(rows))


class Sources(Holder):
    """The pool's source. The tars of its owner are rewritten where the takedown may do so; tables never are."""

    def find(self, ctx: PoolContext, tables: Tables, takedown: Takedown, *, is_resumed: bool) -> None:
        if not (takedown.with_sources and ctx.pool.source_kind.has_own_tars):
            return
        denylist = ctx.denylist
        held = samples_in_sources(ctx, denylist, takedown.sample_ids)
        takedown.add_entries(denylist.entries_of(held))
        tars, noted, unknown = present_tars(ctx), set(takedown.sources), []
        for shard in sorted({*takedown.samples["shard"], *held["shard"]}):
            tar = tars.get(shard)
            if tar is None or str(tar) in noted or not _is_whole(tar):
                continue
            try:
                takedown.sources |= registered_sources(ctx, tables, shard)
            except SourceChangedError:
                if not is_resumed:
                    raise
                unknown.append(shard)  # stays as it is, and the certificate names it
        takedown.samples = pl.concat([takedown.samples, held.filter(~pl.col("shard").is_in(unknown))])

    def artefacts(self, ctx: PoolContext, tables: Tables, takedown: Takedown) -> Iterator[Path]:
        return (path for name in ("source", "world", "truth", FOLDER) for path in files_in(ctx.store.root / name))

    def purge(self, ctx: PoolContext, tables: Tables, takedown: Takedown) -> None:
        pool = ctx.pool
        for shard in takedown.shards if pool.source_kind.has_own_tars else ():
            _purge_tar(ctx, shard, takedown)
        takedown.remaining_sources += pool.source_kind.remove_samples(pool, ctx.settings, takedown.sample_ids)
        remove_splits(ctx.store.root / "source")  # made again, without them

    def of_shard(self, ctx: PoolContext, shard: str) -> Iterator[Path]:
        return (ctx.store.root / "source").glob(f"{shard}.*")

    def left(self, ctx: PoolContext, takedown: Takedown) -> Left:
        if not (takedown.with_sources and ctx.pool.source_kind.has_own_tars):
            return Left()
        tars, unread = images_in_sources(ctx, Needles.of(takedown.samples).sha256)  # of other rows, too
        return Left(with_owners=[(str(tar), "image") for tar in tars], not_done=unread)

    def checks(self, ctx: PoolContext, tables: Tables) -> Iterator[Check]:
        return source_checks(ctx, tables)


class Downloads(Holder):
    """Images that were fetched, or copied into tars of ours."""

    def artefacts(self, ctx: PoolContext, tables: Tables, takedown: Takedown) -> Iterator[Path]:
        return (path for shard in takedown.shards for path in files_in(ctx.store.root / DOWNLOADS_FOLDER / shard))

    def of_shard(self, ctx: PoolContext, shard: str) -> Iterator[Path]:
        return (ctx.store.root / DOWNLOADS_FOLDER).glob(shard)

    def purge(self, ctx: PoolContext, tables: Tables, takedown: Takedown) -> None:
        pool = ctx.pool
        # without registered rows: an interrupted takedown got past that shard's images
        registered = set(ctx.store.partitions(REGISTERED_SHARDS)) if pool.must_download else set()
        for shard in [one for one in takedown.shards if one in registered]:
            ids = takedown.of_shard(shard)["sample_id"].unique().to_list()
            before, _ = requested_rows(ctx.store.read(REGISTERED_SHARDS, shard))
            take_down_downloads(
                ctx.store.root / DOWNLOADS_FOLDER,
                shard,
                ids,
                before=before,
                after=before.filter(~pl.col("sample_id").is_in(ids)),
                settings=pool.download,
                allow_hosts=pool.source_kind.allow_hosts(pool),
                is_local="image_sha256" in pool.source_kind.schema(pool),
            )

    def checks(self, ctx: PoolContext, tables: Tables) -> Iterator[Check]:
        return download_checks(ctx)


def affected_samples(ctx: PoolContext, denylist: Denylist) -> pl.DataFrame:
    """Rows of a pool that the denylist knows and that still hold something, in either of the tables with their texts.

    Columns of SAMPLE_SCHEMA and those that the denylist is compared with, sorted by shard and source_row.
    """
    schema = pl.Schema({**SAMPLE_SCHEMA, **{name: pl.String() for name in COLUMNS}})
    rows = pl.DataFrame(schema=schema)
    if ctx.store.partitions(REGISTERED_SHARDS):
        registered = ctx.store.scan(REGISTERED_SHARDS).filter(pl.col("source_reason").ne_missing(TAKEDOWN))
        rows = _with_columns(registered, schema)
    if ctx.store.partitions(SAMPLES):
        # its rows outlive registration where a takedown was interrupted
        stored = ctx.store.scan(SAMPLES).filter(pl.col("reason").ne_missing(TAKEDOWN))
        samples = _with_columns(stored, schema)
        rows = rows.drop(HASHES).join(
            samples.select("shard", "source_row", *HASHES), on=["shard", "source_row"], how="left"
        )
        unregistered = samples.join(rows, on=["shard", "source_row"], how="anti")
        rows = pl.concat([rows.select(schema.names()), unregistered])
    is_denied = denylist.denied(rows)
    # Rows of the same id anywhere are the same sample.
    ids = rows.filter(is_denied)["sample_id"].unique()
    return rows.filter(is_denied | pl.col("sample_id").is_in(ids.implode())).sort("shard", "source_row")


def _with_columns(rows: pl.LazyFrame, schema: pl.Schema) -> pl.DataFrame:
    """The columns of a schema; those that the table has not are null."""
    present = rows.collect_schema()
    return rows.select(
        (pl.col(name) if name in present else pl.lit(None)).cast(kind).alias(name) for name, kind in schema.items()
    ).collect()


def _purge_tar(ctx: PoolContext, shard: str, takedown: Takedown) -> None:
    """The samples leave the owner's tar where it may be rewritten; a note beside the tables keeps them out of the pool
    either way."""
    samples = takedown.of_shard(shard)
    tars = present_tars(ctx)
    tar = tars.get(shard)
    is_purged = tar is None
    if not tars:  # an owner's disk that is away holds what it held
        takedown.remaining_sources.append(ctx.pool.source)
    if tar is not None and str(tar) in takedown.sources:
        with contextlib.suppress(SourceChangedError):  # since it was compared: the certificate names it
            purge_source(ctx, shard, samples, takedown.sources)
            is_purged = True
    if not is_purged:
        takedown.remaining_sources.append(str(tar))
    marker = takedown_marker(ctx.pool, shard, ctx.settings)
    before = marker.read_text(encoding="utf-8").splitlines() if marker.is_file() else []
    ids = sorted({*filter(sample_id_from, before), *samples["sample_id"]})
    save_text(marker, sealed_text("".join(f"{sample_id}\n" for sample_id in ids) + SEAL_LINE))


def _is_whole(tar: Path) -> bool:
    try:
        return tar_index(tar).damage is None
    except OSError:
        return False
