"""Sources against what was registered, parts of tables, and downloads against their receipts."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from curation_assets.core.json_files import DamagedFileError
from curation_assets.core.seal import is_sealed, read_sealed_json, seal_now
from curation_assets.core.table_names import DOWNLOADS, REGISTERED_SHARDS
from curation_assets.flow.context import PoolContext
from curation_assets.flow.table import Table, Tables
from curation_assets.numeric.identity import sample_id_from
from curation_assets.sources.download.download import RECEIPT_FILE, remove_download
from curation_assets.sources.kinds.webdataset import source_files, takedown_marker
from curation_assets.sources.shards import DOWNLOADS_FOLDER
from curation_assets.sources.split import SPLIT_FILE, remove_splits
from curation_assets.sources.table_files import partition_values
from curation_assets.stages.raw.takedown_sources import registered_config_hash
from curation_assets.stores.damage import Check, Damage, changed_files, first_line
from curation_assets.stores.documents import save_document
from curation_assets.stores.file_hash import sha256_now
from curation_assets.stores.shard_store import CorruptTableError

SOURCE_ADVICE = (
    "bring back the file as it was; nothing here can repair it. If you changed it: `curate run` registers it"
)


def source_checks(ctx: PoolContext, tables: Tables) -> Iterator[Check]:
    """Sources, the hashes that are remembered of them, and the parts that tables were cut into."""
    if ctx.pool.source_kind.has_own_tars:
        try:
            present = set(ctx.shards())
        except DamagedFileError:  # the numbers of its tars: named with the other records
            return
        except (OSError, ValueError) as error:
            source = ctx.pool.source_path(ctx.settings)
            damage = Damage(source, "source", "a folder of tars", first_line(error), SOURCE_ADVICE)
            yield partial(list, [damage])
            return
        for shard in ctx.store.partitions(REGISTERED_SHARDS):
            if shard in present:  # curate run names those that the source lacks
                yield partial(_tar_damages, ctx, tables[REGISTERED_SHARDS], shard)
        return
    home = ctx.store.root / "source"
    yield partial(_table_source_damages, ctx, home / "sha256.json")
    for split in sorted(home.glob("split-*")):
        yield partial(_split_damages, split)


def _cache_damage(cache: Path) -> Iterator[Damage]:
    """A damaged file of remembered hashes: without it, sources are read once more."""
    if cache.is_file() and read_sealed_json(cache) is None:
        advice = "curate verify --repair removes it; the sources are read once more"
        yield Damage(cache, "manifest", "a file that holds its own sha256", seal_now(cache), advice, (), cache.unlink)


def _tar_damages(ctx: PoolContext, table: Table, shard: str) -> Iterator[Damage]:
    cache = ctx.store.root / "source" / f"{shard}.sha256.json"
    yield from _cache_damage(cache)
    marker = takedown_marker(ctx.pool, shard, ctx.settings)
    if marker.is_file() and not _is_list_of_ids(marker.read_bytes()):
        advice = "curate verify --repair removes it: the shard is registered again, by the denylist"
        whole = "ids, and their sha256"
        yield Damage(marker, "record", whole, "other bytes", advice, (REGISTERED_SHARDS,), marker.unlink)
        return
    files = source_files(ctx.pool, shard, ctx.settings)
    if not files:
        return
    try:
        got = {path.name: sha256_now(path) for path in files}
    except OSError as error:  # as an unreadable source is registered
        got = {path.name: type(error).__name__ for path in files}
    try:
        manifest = ctx.store.manifest(table.name, shard)
    except CorruptTableError:  # named with the tables; what is remembered of the files still counts
        manifest = None
    if manifest is not None and registered_config_hash(ctx, table, shard, got) == manifest.config_hash:
        return
    remembered = {Path(path).name: entry[2] for path, entry in _remembered_files(cache).items()}
    changed = [path for path in files if remembered.get(path.name, got[path.name]) != got[path.name]]
    for path in changed or files[: manifest is not None]:
        expected = remembered[path.name] if changed else "what was registered"
        yield Damage(path, "source", expected, got[path.name], SOURCE_ADVICE)


def _is_list_of_ids(data: bytes) -> bool:
    """Whether a note of samples taken down is as it was written; one of a version before has no seal."""
    return is_sealed(data) or all(sample_id_from(line.decode("utf-8", "replace")) for line in data.splitlines())


def _remembered_files(cache: Path) -> Mapping[str, Any]:
    files: Mapping[str, Any] = (read_sealed_json(cache) or {}).get("files", {})
    return files


def _table_source_damages(ctx: PoolContext, cache: Path) -> Iterator[Damage]:
    yield from _cache_damage(cache)
    restore = ctx.pool.source_kind.restore(ctx.pool, ctx.settings)
    source = ctx.pool.source_path(ctx.settings)
    remembered = _remembered_files(cache).items()
    files = {_place_now(source, Path(name)): expected for name, (_, _, expected, *_) in remembered}
    for damage in changed_files(files, Damage(source, "source", "", "", SOURCE_ADVICE)):
        if restore is None:
            yield damage
        else:
            advice = "curate verify --repair plants it again"
            yield replace(damage, advice=advice, repair=partial(restore, damage.path))


def _place_now(source: Path, recorded: Path) -> Path:
    """Where a file of a source lies that may have been copied with its home since; folders KEY=VALUE are part of it."""
    if not source.is_dir():
        return source
    folders = 0 if recorded.parent == source else len(partition_values(recorded))
    return source.joinpath(*recorded.parts[-1 - folders :])


def _split_damages(split: Path) -> Iterator[Damage]:
    if not split.is_dir():
        return
    advice = "curate verify --repair removes the folder; the source is cut again"
    damage = Damage(
        split / SPLIT_FILE, "part of a source", "a file that holds its own sha256", "damaged or absent", advice, (),
        partial(remove_splits, split.parent),
    )  # fmt: skip
    content = read_sealed_json(split / SPLIT_FILE)
    if content is None:
        yield damage
        return
    yield from changed_files({split / name: expected for name, expected in content["files"].items()}, damage)


def download_checks(ctx: PoolContext) -> Iterator[Check]:
    """Every downloaded shard."""
    for folder in sorted((ctx.store.root / DOWNLOADS_FOLDER).glob("[!.]*")):
        yield partial(_download_damages, ctx, folder)


def _download_damages(ctx: PoolContext, folder: Path) -> Iterator[Damage]:
    if not folder.is_dir():
        return

    def fetch_again() -> None:
        ctx.store.remove(DOWNLOADS, folder.name)
        remove_download(folder)

    path, fetched = folder / RECEIPT_FILE, "curate verify --repair fetches the shard again"
    damage = Damage(path, "download", "a receipt", "", fetched, (DOWNLOADS,), fetch_again)
    try:
        data = path.read_bytes()
        receipt = json.loads(data)
        files = dict(receipt["files"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        yield replace(damage, got=first_line(error))
        return
    damaged = list(changed_files({folder / name: expected for name, expected in files.items()}, damage))
    if is_sealed(data):
        yield from damaged
    elif damaged or "request_sha256" not in receipt:
        yield replace(damage, expected="a receipt that holds its own sha256", got=seal_now(path))
    else:
        content = {name: receipt[name] for name in ("files", "request_sha256")}
        yield replace(
            damage, expected=seal_now(path), got=str(receipt.get("seal")), tables=(),
            repair=partial(save_document, path, content),
            advice="curate verify --repair writes it again: the files that it lists are whole",
        )  # fmt: skip
