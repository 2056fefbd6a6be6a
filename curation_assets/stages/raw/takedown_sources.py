"""The owner's own tars in a takedown: only the very files that were registered are rewritten.

A row's place in a tar counts for the bytes that were registered and for no others. So files are compared with their
recorded sha256 before anything is written, members go by name and sha256 of their bytes, and afterwards all tars of the
pool are searched for the images.
"""

import hashlib
import json
import tarfile
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from curation_assets.core.errors import StoreError
from curation_assets.core.table_names import REGISTERED_SHARDS
from curation_assets.flow.context import PoolContext
from curation_assets.flow.freshness import config_of
from curation_assets.flow.holder import SAMPLE_SCHEMA
from curation_assets.flow.table import Table, Tables
from curation_assets.sources.kinds.webdataset import read_tar_rows, source_files, takedown_facts, tars_of_pool
from curation_assets.stores.content_hash import config_sha256
from curation_assets.stores.denylist import Denylist
from curation_assets.stores.documents import save_frame
from curation_assets.stores.file_hash import FileState, sha256_now
from curation_assets.stores.images import TarIndex, tar_index
from curation_assets.stores.parquet import read_parquet
from curation_assets.stores.shard_store import CorruptTableError
from curation_assets.stores.tar_samples import key_of, keys_of, members_by_key, sample_keys
from curation_assets.stores.tar_writing import ReadMember, rewrite_tar


class SourceChangedError(StoreError):
    """A source is not the file that was registered: what is known of it is of other bytes."""


def present_tars(ctx: PoolContext) -> dict[str, Path]:
    """Shard key → tar of those that lie in the pool's source now; none where it is away."""
    try:
        return tars_of_pool(ctx.pool, ctx.settings)
    except (ValueError, OSError):
        return {}


def registered_config_hash(ctx: PoolContext, table: Table, shard: str, hashes: Mapping[str, str]) -> str:
    """What the manifest of a shard's registered rows says if they were made from files of these hashes, by name."""
    registered = {**hashes, **takedown_facts(ctx.pool, shard, ctx.settings)}
    return config_sha256(config_of(ctx, replace(table, config_by_key=lambda *_: registered), shard))


def registered_sources(ctx: PoolContext, tables: Tables, shard: str) -> dict[str, str]:
    """Path → sha256 of the files of a shard of delivered tars, all read now.

    Raises SourceChangedError where they are not what was registered.
    """
    files = source_files(ctx.pool, shard, ctx.settings)
    hashes = {str(path): sha256_now(path) for path in files}
    try:
        manifest = ctx.store.manifest(REGISTERED_SHARDS, shard)
    except CorruptTableError:
        manifest = None
    named = {Path(path).name: digest for path, digest in hashes.items()}
    if manifest is None or registered_config_hash(ctx, tables[REGISTERED_SHARDS], shard, named) != manifest.config_hash:
        since = "and was not registered yet" if manifest is None else f"since it was registered ({manifest.written_at})"
        what = "is new" if manifest is None else "changed"
        raise SourceChangedError(
            f"the source {files[0]} {what} {since}, so nobody knows what lies where in it; nothing was removed. "
            f"`curate run {ctx.pool.name}` first, then `curate takedown apply --pool {ctx.pool.name} --sources` again"
        )
    return hashes


def samples_in_sources(ctx: PoolContext, denylist: Denylist, sample_ids: Collection[str]) -> pl.DataFrame:
    """Rows of the pool's tars as they are now that the denylist knows, or that have one of the ids, and that still
    hold something. Columns of SAMPLE_SCHEMA; reads every tar.
    """
    found = [pl.DataFrame(schema=SAMPLE_SCHEMA)]
    for shard, tar in present_tars(ctx).items():
        rows = read_tar_rows(tar, ctx.pool.columns, with_sha256=bool(denylist.hashes.get("sha256")))
        meant = denylist.denied(rows) | rows["sample_id"].is_in(list(sample_ids))
        holds = pl.any_horizontal(pl.col("url", "caption", "member").is_not_null())
        rows = rows.filter(meant).filter(holds)
        if rows.height:
            index = tar_index(tar)
            hashes = [member and index.sha256(member) for member in rows["member"]]
            rows = rows.with_columns(pl.Series("image_sha256", hashes, pl.String), shard=pl.lit(shard))
            missing = [pl.lit(None, pl.String).alias(name) for name in SAMPLE_SCHEMA if name not in rows.columns]
            found.append(rows.with_columns(missing).select(SAMPLE_SCHEMA.names()).cast(dict(SAMPLE_SCHEMA)))  # type: ignore[arg-type]
    return pl.concat(found)


def purge_source(ctx: PoolContext, shard: str, samples: pl.DataFrame, sources: Mapping[str, str]) -> None:
    """Purge samples of a shard; in its tar stays KEY.json with id and source, in its table the key.

    Rows keep their order. `sources`: path → sha256 as registered. A file that holds nothing of them stays as it is:
    this was called before. Raises SourceChangedError for one that does and is another than was registered.
    """
    tar, *tables = source_files(ctx.pool, shard, ctx.settings)
    listed = sample_keys(tar)
    rows = {listed[row["source_row"]]: row for row in samples.iter_rows(named=True) if row["source_row"] < len(listed)}
    for table in tables:
        _purge_table(table, rows, sources)
    tombs = {f"{key}.json": json.dumps(_tomb(ctx, shard, row)).encode() for key, row in rows.items()}
    _purge_tar(tar, rows, tombs, sources)


def _tomb(ctx: PoolContext, shard: str, row: Mapping[str, Any]) -> dict[str, str]:
    """What stays of a sample in its tar: what stays of its registered row, so that it is registered the same again."""
    tomb, key = {"uid": str(row["sample_id"])}, ctx.pool.columns.get("source")
    if key is not None and shard in ctx.store.partitions(REGISTERED_SHARDS):
        source = ctx.store.read(REGISTERED_SHARDS, shard).filter(source_row=row["source_row"])["source"].first()
        return tomb if source is None else {**tomb, key: str(source)}
    return tomb


def _check(path: Path, sources: Mapping[str, str]) -> None:
    if sha256_now(path) != sources.get(str(path)):
        raise SourceChangedError(f"{path} changed since it was registered; nothing was removed from it")


def _purge_tar(
    tar: Path, rows: Mapping[str, Mapping[str, str | None]], tombs: Mapping[str, bytes], sources: Mapping[str, str]
) -> None:
    state, index = FileState.of(tar), tar_index(tar)
    members = members_by_key(index)
    keys = {name: key_of(name) for name in index.irregular} | keys_of(index.members)
    held = {name for name, key in keys.items() if key in rows}
    if all(name in tombs and name in index.members and index.read(name) == tombs[name] for name in held):
        return
    _check(tar, sources)
    seen: set[str] = set()
    dropped: set[str] = set()

    def drop(name: str, read: ReadMember) -> bool:
        """The members of a sample are the first ones of their names; later ones only with the same bytes."""
        key = keys.get(name)
        if key is None or key not in rows:
            return False
        digest = hashlib.sha256(read()).hexdigest()
        if name in seen:
            return digest in dropped
        expected = rows[key]["image_sha256"] if name == members[key].image else None
        if expected not in (None, digest):
            raise SourceChangedError(f"{tar}: {name} is another image than was registered; nothing was removed")
        seen.add(name)
        dropped.add(digest)
        return True

    rewrite_tar(tar, drop=drop, add=tombs, state=state)


def _purge_table(table: Path, rows: Mapping[str, Mapping[str, str | None]], sources: Mapping[str, str]) -> None:
    """Purge samples from a table. Of a repeated key: the first row, and rows of its url and caption."""
    listed = read_parquet(table)
    if "key" not in listed.columns or not rows:
        return
    key = pl.col("key").cast(pl.String)
    is_same = key.is_first_distinct()
    for name in ("url", "caption"):
        if name in listed.columns:
            texts = key.replace_strict({k: row[name] for k, row in rows.items()}, default=None, return_dtype=pl.String)
            is_same |= (pl.col(name).cast(pl.String, strict=False) == texts).fill_null(False)
    is_removed = key.is_in(list(rows)) & is_same
    emptied = [name for name in listed.columns if name not in ("key", "status", "uid")]
    ids = key.replace_strict({k: row["sample_id"] for k, row in rows.items()}, default=None, return_dtype=pl.String)
    uid = pl.col("uid") if "uid" in listed.columns else pl.lit(None, pl.String)
    after = listed.with_columns(
        *(pl.when(is_removed).then(None).otherwise(pl.col(name)).alias(name) for name in emptied),
        pl.when(is_removed).then(ids).otherwise(uid).alias("uid"),
    )
    if after.equals(listed):
        return
    _check(table, sources)
    save_frame(table, after)


def images_in_sources(ctx: PoolContext, sha256: Collection[str]) -> tuple[list[Path], list[str]]:
    """(tars of the pool that hold an image of these hashes, under whatever name; sentences on what cannot be read)."""
    holders, unread = [], []
    for tar in present_tars(ctx).values() if sha256 else ():
        try:
            index = tar_index(tar)
            if index.damage is not None:
                unread.append(index.damage.sentence)
            if any(index.sha256(name) in sha256 for name in index.members) or _in_repeated(index, sha256):
                holders.append(tar)
        except (OSError, tarfile.TarError) as error:
            unread.append(f"{tar.name} cannot be read ({type(error).__name__})")
    return holders, unread


def _in_repeated(index: TarIndex, sha256: Collection[str]) -> bool:
    """Whether a member holds one whose name another member had first: the index finds those by no name."""
    if not index.repeated or index.damage is not None:
        return False
    names = set(index.repeated)
    with tarfile.open(index.path, "r:") as tar:
        streams = (tar.extractfile(member) for member in tar if member.isreg() and member.name in names)
        return any(stream is not None and hashlib.sha256(stream.read()).hexdigest() in sha256 for stream in streams)
