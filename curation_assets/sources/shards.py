"""The first tables made from a pool: its shards, registered rows, downloads and samples."""

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from curation_assets.core.settings import Settings
from curation_assets.sources.declaration import Pool, source_split
from curation_assets.sources.download.download import DOWNLOADS_SCHEMA, download_shard
from curation_assets.sources.download.retry import download_with_retries
from curation_assets.sources.kinds import webdataset
from curation_assets.sources.kinds.image_table import IMAGE_SCHEMA, folder_of
from curation_assets.sources.kinds.url_table import SIZES
from curation_assets.sources.local_images import LocalImages
from curation_assets.sources.options import SourceOptions
from curation_assets.sources.shard_keys import tar_of_shard, tars_by_shard
from curation_assets.stores.atomic import fetch
from curation_assets.stores.denylist import Denylist
from curation_assets.stores.file_hash import cached_sha256
from curation_assets.stores.hash_lists import HashList, read_hash_lists
from curation_assets.stores.samples import OWN_ID, REGISTERED_SCHEMA, build_sample_rows, drop_reason, without_denied
from curation_assets.stores.tar_members import indexed_sha256

DOWNLOADS_FOLDER = "downloads"
ROBOTS_FOLDER = "robots_txt"  # in the home: rules of servers, for all pools


def tars_of_pool(pool: Pool, settings: Settings) -> dict[str, Path]:
    """Shard key → tar, for the delivered tars that the source holds now. Raises ValueError for none."""
    return tars_by_shard(pool.name, pool.source_path(settings), settings.work(pool.name))


def _tar(pool: Pool, shard: str, settings: Settings) -> Path:
    return tar_of_shard(pool.name, pool.source_path(settings), settings.work(pool.name), shard)


def _from_work(path: Path, pool: Pool, settings: Settings) -> str:
    """A path inside the home, relative to the pool's work folder; another one as it is."""
    is_inside = path.is_relative_to(settings.home)
    return Path(os.path.relpath(path, settings.work(pool.name))).as_posix() if is_inside else str(path)


def discover_shards(pool: Pool, settings: Settings) -> list[str]:
    """Keys of the shards that the source holds now, sorted. Raises what reading a broken source raises."""
    if pool.kind == "webdataset":
        return list(tars_of_pool(pool, settings))
    return sorted(source_split(pool, settings).rows)


def source_fingerprint(pool: Pool, shard: str, settings: Settings) -> dict[str, str]:
    """What identifies a shard's source: when it changes, the shard is registered again. Cheap while files rest."""
    if pool.kind == "webdataset":
        cache = settings.work(pool.name) / "source" / f"{shard}.sha256.json"
        tar = _tar(pool, shard, settings)
        known = indexed_sha256(tar)
        files = [*([] if known else [tar]), *webdataset.siblings(tar)]
        if known is None:
            fetch(tar)
        try:
            hashes = {Path(path).name: sha256 for path, sha256 in cached_sha256(files, cache).items()} if files else {}
            fingerprint = {tar.name: known, **hashes} if known else hashes
        except FileNotFoundError:
            raise
        except OSError as error:  # the shard is a failed row until it can be read
            fingerprint = {file.name: type(error).__name__ for file in (tar, *webdataset.siblings(tar))}
        return fingerprint | takedown_facts(pool, shard, settings)
    split = source_split(pool, settings)
    if shard not in split.rows:
        raise ValueError(f"pool {pool.name!r} has no shard {shard!r}; it has {len(split.rows)}")
    return {"rows": split.content_sha256[shard]}


def source_files(pool: Pool, shard: str, settings: Settings) -> list[Path]:
    """The files that a shard of delivered tars is registered from."""
    tar = _tar(pool, shard, settings)
    fetch(tar)
    return [tar, *webdataset.siblings(tar)]


def takedown_facts(pool: Pool, shard: str, settings: Settings) -> dict[str, str]:
    """What a takedown adds to the fingerprint of a shard's source."""
    taken_down = takedown_marker(pool, shard, settings)
    return {"takedown": taken_down.read_text(encoding="utf-8")} if taken_down.is_file() else {}


def takedown_marker(pool: Pool, shard: str, settings: Settings) -> Path:
    """A file that a takedown writes: when it changes, a shard of delivered tars is registered again."""
    return settings.work(pool.name) / "takedown" / f"{shard}.txt"


def register_shard(pool: Pool, shard: str, settings: Settings) -> pl.DataFrame:
    """Table raw/registered_shards of a shard. Grain: one row per input row, in source order (REGISTERED_SCHEMA).

    Pools of kind image_table have further columns (IMAGE_SCHEMA), and pools of tables the numbers that they carry
    (`Pool.numbers`, float64). Rows on the denylist keep their id only.
    """
    schema = pl.Schema(
        {
            **REGISTERED_SCHEMA,
            **(IMAGE_SCHEMA if pool.kind == "image_table" else {}),
            **dict.fromkeys(pool.numbers, pl.Float64()),
            **({OWN_ID: pl.String()} if OWN_ID in pool.columns else {}),
        }
    )
    if pool.kind == "webdataset":
        tar = _tar(pool, shard, settings)
        fetch(tar)
        denylist = Denylist.load(settings.home)
        rows = webdataset.read_tar_rows(tar, with_sha256=bool(denylist.hashes.get("sha256")))
        rows = without_denied(rows, denylist).with_columns(tar=pl.lit(_from_work(tar, pool, settings)))
    else:
        rows = (
            source_split(pool, settings)
            .part(shard)
            .with_columns(tar=pl.lit(None, pl.String), member=pl.lit(None, pl.String))
        )
    return rows.with_columns(shard=pl.lit(shard)).select(schema.names()).cast(schema)


def download(
    pool: Pool,
    shard: str,
    registered: pl.DataFrame,
    settings: Settings,
    advance: Callable[[int], None] | None = None,
    note: Callable[[str], None] | None = None,
    is_stopped: threading.Event | None = None,
) -> pl.DataFrame:
    """Table raw/downloads of a shard. Grain: one row per registered row, in order (DOWNLOADS_SCHEMA).

    Duplicates and empty captions are not requested (dropped). Where nothing is to be fetched all rows are kept.
    `advance` is called with the number of rows done since its last call, `note` with what the download waits for.
    Raises DownloadStoppedError soon after `is_stopped` is set, which another thread may do.
    """
    keys = registered.select("sample_id", "source_row")
    if not pool.must_download:
        if advance is not None:
            advance(registered.height)
        return _as_downloads(keys.with_columns(status=pl.lit("kept")))
    requested, unrequested = requested_rows(registered)
    if advance is not None:
        advance(unrequested.height)
    fetched = _fetch(pool, shard, requested, settings, advance, note, is_stopped)
    others = _as_downloads(unrequested.select("sample_id", "source_row", "status", "reason"))
    ended = pl.concat([fetched, others])
    return keys.join(ended, on=["sample_id", "source_row"], how="left", maintain_order="left").select(
        DOWNLOADS_SCHEMA.names()
    )


def requested_rows(registered: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The rows whose images are to be fetched; and the others, which end as dropped or failed, with `reason`."""
    ends = [_end_without_request(row) for row in registered.iter_rows(named=True)]
    marked = registered.with_columns(
        pl.Series("status", [status for status, _ in ends], dtype=pl.String),
        pl.Series("reason", [reason for _, reason in ends], dtype=pl.String),
    )
    return marked.filter(pl.col("reason").is_null()), marked.filter(pl.col("reason").is_not_null())


def _end_without_request(row: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """(status, reason) of a row that is not requested."""
    dropped = drop_reason(row)
    if dropped is None and row["source_reason"] is not None:  # nothing to copy, or nobody knows what to fetch
        return "failed", row["source_reason"]
    if dropped is None and row["caption"] is None:
        dropped = "empty_caption"
    return (None if dropped is None else "dropped"), dropped


def _as_downloads(rows: pl.DataFrame) -> pl.DataFrame:
    missing = [pl.lit(None, dtype).alias(name) for name, dtype in DOWNLOADS_SCHEMA.items() if name not in rows.columns]
    return rows.with_columns(missing).select(DOWNLOADS_SCHEMA.names()).cast(DOWNLOADS_SCHEMA)


def _fetch(
    pool: Pool,
    shard: str,
    requested: pl.DataFrame,
    settings: Settings,
    advance: Callable[[int], None] | None,
    note: Callable[[str], None] | None,
    is_stopped: threading.Event | None,
) -> pl.DataFrame:
    folder = settings.work(pool.name) / DOWNLOADS_FOLDER
    denylist = Denylist.load(settings.home)
    if pool.kind != "world":
        fetch = partial(
            download_shard,
            shard_key=shard,
            settings=pool.download,
            allow_hosts=pool.allow_hosts,
            denylist=denylist,
            note=note,
            is_stopped=is_stopped,
            robots_folder=settings.home / ROBOTS_FOLDER,
            local=_local_images(pool, requested, settings) if pool.kind == "image_table" else None,
        )
        return download_with_retries(requested, folder, shard, fetch, advance)
    from curation_assets.world import server

    size, seed = pool.planted
    samples = server.planted(size, seed)
    with server.WorldServer(samples, seed) as running:
        served = replace(pool.download, connect_to=running.connect_to)
        fetch = partial(download_shard, shard_key=shard, settings=served, denylist=denylist, is_stopped=is_stopped)
        return download_with_retries(requested, folder, shard, fetch, advance)


def _local_images(pool: Pool, requested: pl.DataFrame, settings: Settings) -> LocalImages:
    number = int(requested["source_row"][0]) // pool.shard_size if requested.height else 0
    return LocalImages(
        folder=folder_of(pool.source_path(settings)),
        column=pool.columns.get("image"),
        located=requested.select("source_row", *IMAGE_SCHEMA.names()),
        first_row=number * pool.shard_size,
        max_bytes=pool.download.max_bytes,
    )


def build_samples(
    pool: Pool, shard: str, registered: pl.DataFrame, downloads: pl.DataFrame, settings: Settings
) -> pl.DataFrame:
    """Table raw/samples of a shard. Grain: one row per registered row, in order (SAMPLES_SCHEMA).

    A pool without images takes their sizes from its table, where that has them.
    """
    samples = build_sample_rows(
        registered,
        downloads,
        work=settings.work(pool.name),
        download_folder=f"{DOWNLOADS_FOLDER}/{shard}",
        has_images=pool.has_images,
        limits=pool.download.limits,
        hash_list=hash_list_of(pool),
    )
    sizes = [name for name in SIZES if name in pool.numbers]
    known = registered.select(
        pl.when(pl.col("source_reason").is_null() & pl.col(name).is_between(1, 2**31 - 1))
        .then(pl.col(name))
        .alias(name)
        for name in sizes
    )
    is_kept = samples["status"] == "kept"
    return samples.with_columns(known[name].cast(pl.Int32).set(~is_kept, None).alias(name) for name in sizes)


def hash_list_of(pool: Pool) -> HashList:
    """Hashes of images that must not be used or shown: the files of the pool's option `hash_lists`, as one list."""
    return read_hash_lists(SourceOptions.of(pool).hash_lists)
