"""Whether what lies on the disk is what was written: every file with a recorded hash is read again, nothing remembered.

Of a pool: sources against what was registered, parts of tables, downloads against their receipts, tables (their bytes,
their content, the copy of their manifest), folders (links, manifests, every file: ledgers, subsets, models, reports),
exports, and the weights of its profile. What is made from these at any time has no hash: logs, the catalogue, the index
of a dry run, thumbnails. Nor has a pool's declaration, which people edit.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from curation_assets.core.errors import ModelUnavailableError
from curation_assets.core.progress import ProgressReporter
from curation_assets.core.settings import Profile
from curation_assets.core.stages import STAGES
from curation_assets.core.table_names import DOWNLOADS, REGISTERED_SHARDS
from curation_assets.engines.addresses import SCHEMES, ModelAddress, embedded_names, pins_of, resolve_address
from curation_assets.engines.packages import PINNED_MODELS
from curation_assets.engines.pins import damaged_weights
from curation_assets.engines.presence import cached_snapshot
from curation_assets.flow.context import PoolContext
from curation_assets.flow.table import Table
from curation_assets.operations.releases import verify_release
from curation_assets.operations.takedown_sources import registered_config_hash
from curation_assets.outputs.registry import ExportRecord, recorded_exports
from curation_assets.sources.declaration import WORLD_TRUTH
from curation_assets.sources.download.download import RECEIPT_FILE
from curation_assets.sources.kinds.url_table import SPLIT_FILE
from curation_assets.sources.shards import DOWNLOADS_FOLDER, source_files
from curation_assets.stores.atomic import fetch, remove_path, write_text_atomically
from curation_assets.stores.catalog import stored_tables
from curation_assets.stores.content_hash import folder_sha256, frame_sha256
from curation_assets.stores.file_hash import sha256_now
from curation_assets.stores.manifest import Manifest
from curation_assets.stores.parquet import read_parquet
from curation_assets.stores.releases import FOLDER as RELEASES
from curation_assets.stores.releases import release_folders
from curation_assets.stores.seal import is_sealed, read_sealed_json, seal_now, sealed_json
from curation_assets.stores.shard_store import MANIFEST_FILE, UNREADABLE, CorruptTableError, manifest_text
from curation_assets.stores.temporary import TEMPORARY

SOURCE_ADVICE = (
    "bring back the file as it was; nothing here can repair it. If you changed it: `curate run` registers it"
)
_VERSION_LINK = re.compile(r"^\.(?P<name>[a-z0-9_]+)\.version-[0-9a-f]{12}/files$")
NO_FILE = "no file"
PENDING = "repair.json"  # in a pool's folder while it is repaired: the tables to be made again


@dataclass(frozen=True)
class Damage:
    """A file that is not what was written."""

    path: Path
    kind: str  # source, part of a source, download, table, manifest, folder, link, export, release, weights
    expected: str  # a hash, or in words
    got: str
    advice: str  # what to do
    tables: tuple[str, ...] = ()  # to be made again once it is removed
    repair: Callable[[], None] | None = field(default=None, compare=False)  # removes or rewrites it; None: no way

    def __str__(self) -> str:
        return f"{self.path} ({self.kind}): expected {self.expected}, got {self.got}"

    def to_dict(self) -> dict[str, Any]:
        """What is known of it, for other programs."""
        facts = {name: getattr(self, name) for name in ("kind", "expected", "got", "advice", "tables")}
        return {"path": str(self.path), **facts, "can_be_repaired": self.repair is not None}


#: One file, or a few that belong together.
Check = Callable[[], Iterable[Damage]]


@dataclass(frozen=True)
class Verified:
    """What was looked at, and what was found."""

    checks: int
    damages: list[Damage]


def verify_pool(ctx: PoolContext, tables: Mapping[str, Table], progress: ProgressReporter | None = None) -> Verified:
    """Read everything that a pool holds and compare it with what was recorded. Changes nothing.

    Of a home in a bucket every object of the pool is fetched anew: a damaged copy is no damage.
    """
    if ctx.store.objects is not None:
        ctx.store.objects.reload_folder(ctx.store.root)
        ctx.store.objects.reload_folder(ctx.settings.home / RELEASES / ctx.pool.name)
    checks = [*_sources(ctx, tables), *_downloads(ctx), *_tables(ctx, tables), *_folders(ctx, tables), *_exports(ctx)]
    checks += [partial(_release_damages, folder) for folder in release_folders(ctx.settings.home, ctx.pool.name)]
    return _run(f"verify {ctx.pool.name}", [*checks, *_weights_of_profile(ctx.profile)], progress or ctx.progress)


def unfinished_repair(work: Path) -> list[str]:
    """Tables that a repair which was killed had still to make again: a file that it removed shows no damage."""
    path = work / PENDING
    fetch(path)
    return list(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else []


def verify_weights(progress: ProgressReporter) -> Verified:
    """Read all weights that ship with this package, and those of installed packages that are pinned."""
    texts = [f"embedded:{name}" for name in embedded_names()]
    texts += [f"{scheme}:{name}" for scheme, models in PINNED_MODELS.items() for name in models]
    return _run("verify weights", [check for text in texts for check in _weights_at(text)], progress)


def _run(label: str, checks: list[Check], progress: ProgressReporter) -> Verified:
    damages: list[Damage] = []
    with progress.task(label, len(checks)) as advance:
        for check in checks:
            if list(check()):  # a writer may have replaced it meanwhile: look again
                damages += check()
            advance(1)
    return Verified(len(checks), damages)


def _release_damages(folder: Path) -> Iterator[Damage]:
    for problem in verify_release(folder):
        yield Damage(folder, "release", "as it was released", problem, "put a copy of the release in its place")


# -- tables -----------------------------------------------------------------------------------------------------------


def _tables(ctx: PoolContext, tables: Mapping[str, Table]) -> Iterator[Check]:
    for asset in stored_tables(ctx.store):
        whole = ctx.store.table_path(asset).is_file()
        for key in [None] if whole else ctx.store.partitions(asset):
            yield partial(_table_damages, ctx, tables, asset, key)


def _table_damages(
    ctx: PoolContext, tables: Mapping[str, Table], asset: str, partition: str | None
) -> Iterator[Damage]:
    path = ctx.store.table_path(asset, partition)
    if not path.is_file():
        return
    damage = Damage(
        path,
        "table",
        "a table with its manifest",
        "",
        _remake_advice(asset, tables),
        (asset,),
        partial(ctx.store.remove, asset, partition),
    )
    try:
        text = manifest_text(path)
        manifest = Manifest.from_json(text or "")
        if manifest.seal and (got := seal_now(path)) != manifest.seal:
            yield replace(damage, expected=manifest.seal, got=got)
            return
        content = frame_sha256(read_parquet(path))
    except (*UNREADABLE, ValueError, TypeError) as error:
        yield replace(damage, got=_first_line(error))
        return
    if content != manifest.content_sha256:
        yield replace(damage, expected=f"content {manifest.content_sha256}", got=content)
        return
    copy = path.with_name(MANIFEST_FILE)
    if copy.is_file() and not _is_copy(copy.read_bytes(), str(text)):
        expected, got = hashlib.sha256(str(text).encode()).hexdigest(), sha256_now(copy)
        advice = "curate verify --repair writes it again, from the table"
        yield Damage(copy, "manifest", expected, got, advice, (), partial(write_text_atomically, copy, str(text)))


def _is_copy(data: bytes, text: str) -> bool:
    """Whether manifest.json is a copy of a table's manifest, or of the one before whose writer was stopped.

    A flipped bit changes one field or its name, another write at least two fields (its time, its seal).
    """
    if data == text.encode():
        return True
    try:
        theirs, ours = json.loads(data), json.loads(text)
    except ValueError:
        return False
    is_manifest = isinstance(theirs, dict) and set(theirs) in (set(ours), set(ours) - {"files", "seal"})
    return is_manifest and sum(value != ours[name] for name, value in theirs.items()) > 1


def _remake_advice(asset: str, tables: Mapping[str, Table]) -> str:
    if asset not in tables:
        return "curate verify --repair removes it; the pool no longer has this table"
    if tables[asset].is_frozen:
        return "curate verify --repair fits it again, on the rows that the pool holds now"
    return "curate verify --repair makes it again"


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


# -- folders ----------------------------------------------------------------------------------------------------------


def _folders(ctx: PoolContext, tables: Mapping[str, Table]) -> Iterator[Check]:
    for stage in STAGES:
        folder = ctx.store.root / stage
        # a link under a temporary name is a write that was killed, and the next write removes it
        links = (path for path in folder.glob("*") if path.is_symlink() and not TEMPORARY.match(path.name))
        for link in sorted(links):
            yield partial(_link_damages, ctx, tables, link)
        for version in sorted(folder.glob(".*.version-*")):
            yield partial(_version_damages, ctx, tables, version)


def _link_damages(ctx: PoolContext, tables: Mapping[str, Table], link: Path) -> Iterator[Damage]:
    target = os.readlink(link)
    match = _VERSION_LINK.match(target)
    if match is None or match["name"] != link.name or not (link.parent / target).is_dir():
        asset = f"{link.parent.name}/{link.name}"
        yield Damage(
            link, "link", f".{link.name}.version-…/files, which is there", target, _remake_advice(asset, tables),
            (asset,), partial(ctx.store.remove, asset),
        )  # fmt: skip


def _version_damages(ctx: PoolContext, tables: Mapping[str, Table], version: Path) -> Iterator[Damage]:
    name = version.name.removeprefix(".").partition(".version-")[0]
    link, asset = version.with_name(name), f"{version.parent.name}/{name}"
    if not version.is_dir():
        return
    if link.is_symlink() and link.resolve().parent == version.resolve():
        advice, remade, repair = _remake_advice(asset, tables), [asset], partial(ctx.store.remove, asset)
    else:
        advice, remade = "an earlier version, kept for who reads it: `curate verify --repair` removes it", []
        repair = partial(remove_path, version)
    path = version / MANIFEST_FILE
    damage = Damage(path, "manifest", "a manifest that holds its own sha256", "", advice, tuple(remade), repair)
    try:
        data = path.read_bytes()
        manifest = Manifest.from_json(data.decode("utf-8"))
    except (OSError, ValueError) as error:
        yield replace(damage, got=_first_line(error))
        return
    if manifest.seal and not is_sealed(data):
        yield replace(damage, expected=manifest.seal, got=seal_now(path))
        return
    files = version / "files"
    for file, expected in manifest.files.items():
        got = sha256_now(files / file) if (files / file).is_file() else NO_FILE
        if got != expected:
            yield replace(damage, path=files / file, kind="folder", expected=expected, got=got)
    if not manifest.files:  # of a version before 0.3
        paths = sorted(path for path in files.rglob("*") if path.is_file())
        got = folder_sha256({path.relative_to(files).as_posix(): sha256_now(path) for path in paths})
        if got != manifest.content_sha256:
            yield replace(damage, path=files, kind="folder", expected=manifest.content_sha256, got=got)


# -- sources ----------------------------------------------------------------------------------------------------------


def _sources(ctx: PoolContext, tables: Mapping[str, Table]) -> Iterator[Check]:
    if ctx.pool.kind == "webdataset":
        try:
            present = set(ctx.shards())
        except (OSError, ValueError) as error:
            source = ctx.pool.source_path(ctx.settings)
            damage = Damage(source, "source", "a folder of tars", _first_line(error), SOURCE_ADVICE)
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
    if cache.is_file() and not _is_older(cache) and read_sealed_json(cache) is None:
        advice = "curate verify --repair removes it; the sources are read once more"
        yield Damage(cache, "manifest", "a file that holds its own sha256", seal_now(cache), advice, (), cache.unlink)


def _is_older(path: Path) -> bool:
    """Whether a JSON file is of a version before 0.3, which wrote no seal and no hashes of files.

    Both names are looked for: one flipped bit does not make a new file an older one.
    """
    text = path.read_text("utf-8", "replace") if path.is_file() else ""
    return bool(text) and '"seal"' not in text and '"files"' not in text


def _tar_damages(ctx: PoolContext, table: Table, shard: str) -> Iterator[Damage]:
    cache = ctx.store.root / "source" / f"{shard}.sha256.json"
    yield from _cache_damage(cache)
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


def _remembered_files(cache: Path) -> Mapping[str, Any]:
    files: Mapping[str, Any] = (read_sealed_json(cache) or {}).get("files", {})
    return files


def _table_source_damages(ctx: PoolContext, cache: Path) -> Iterator[Damage]:
    yield from _cache_damage(cache)
    is_planted = ctx.pool.kind == "world"
    source = ctx.pool.source_path(ctx.settings)
    for name, (_, _, expected, *_) in _remembered_files(cache).items():
        path = source / Path(name).name if source.is_dir() else source
        got = sha256_now(path) if path.is_file() else NO_FILE
        if got == expected:
            continue
        if not is_planted:
            yield Damage(path, "source", expected, got, SOURCE_ADVICE)
            continue

        def plant_again(path: Path = path) -> None:
            remove_path(path)
            remove_path(ctx.store.root / WORLD_TRUTH)

        yield Damage(path, "source", expected, got, "curate verify --repair plants it again", (), plant_again)


def _split_damages(split: Path) -> Iterator[Damage]:
    if not split.is_dir():
        return
    advice = "curate verify --repair removes the folder; the source is cut again"
    damage = Damage(
        split / SPLIT_FILE, "part of a source", "a file that holds its own sha256", "damaged or absent", advice, (),
        partial(remove_path, split),
    )  # fmt: skip
    content = read_sealed_json(split / SPLIT_FILE)
    if content is None:
        if not _is_older(split / SPLIT_FILE):
            yield damage
        return
    for name, expected in content["files"].items():
        got = sha256_now(split / name) if (split / name).is_file() else NO_FILE
        if got != expected:
            yield replace(damage, path=split / name, expected=expected, got=got)


# -- downloads, exports -----------------------------------------------------------------------------------------------


def _downloads(ctx: PoolContext) -> Iterator[Check]:
    for folder in sorted((ctx.store.root / DOWNLOADS_FOLDER).glob("[!.]*")):
        yield partial(_download_damages, ctx, folder)


def _download_damages(ctx: PoolContext, folder: Path) -> Iterator[Damage]:
    if not folder.is_dir():
        return

    def fetch_again() -> None:
        ctx.store.remove(DOWNLOADS, folder.name)
        remove_path(folder)

    path, fetched = folder / RECEIPT_FILE, "curate verify --repair fetches the shard again"
    damage = Damage(path, "download", "a receipt", "", fetched, (DOWNLOADS,), fetch_again)
    try:
        data = path.read_bytes()
        receipt = json.loads(data)
        files = dict(receipt["files"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        yield replace(damage, got=_first_line(error))
        return
    damaged = []
    for name, expected in files.items():
        got = sha256_now(folder / name) if (folder / name).is_file() else NO_FILE
        if got != expected:
            damaged.append(replace(damage, path=folder / name, expected=expected, got=got))
    if is_sealed(data) or set(receipt) == {"files", "request_sha256"}:  # those of before 0.3 have no seal
        yield from damaged
    elif damaged or "request_sha256" not in receipt:
        yield replace(damage, expected="a receipt that holds its own sha256", got=seal_now(path))
    else:
        content = {name: receipt[name] for name in ("files", "request_sha256")}
        yield replace(
            damage, expected=seal_now(path), got=str(receipt.get("seal")), tables=(),
            repair=partial(write_text_atomically, path, sealed_json(content)),
            advice="curate verify --repair writes it again: the files that it lists are whole",
        )  # fmt: skip


def _exports(ctx: PoolContext) -> Iterator[Check]:
    for record in recorded_exports(ctx.settings.home, ctx.pool.name):
        if record.manifest_sha256 is not None and Path(record.folder).is_dir():
            yield partial(_export_damages, record)


def _export_damages(record: ExportRecord) -> Iterator[Damage]:
    folder = Path(record.folder)
    path, advice = folder / MANIFEST_FILE, "curate export it again into another folder"
    got = sha256_now(path) if path.is_file() else NO_FILE
    if got != record.manifest_sha256:
        yield Damage(path, "export", str(record.manifest_sha256), got, advice)
        return
    for file in json.loads(path.read_text(encoding="utf-8"))["files"]:
        name, expected = folder / file["path"], file["sha256"]
        got = sha256_now(name) if name.is_file() else NO_FILE
        if got != expected:
            yield Damage(name, "export", expected, got, advice)


# -- weights ----------------------------------------------------------------------------------------------------------


def _weights_of_profile(profile: Profile) -> Iterator[Check]:
    """The models of a profile that lie on this disk; what the pool trains itself is among its folders."""
    settings = [value for of_role in profile.generation.values() for value in of_role.values()]
    texts = [*profile.roles.values(), *(value for value in settings if isinstance(value, str))]
    for text in sorted({text for text in texts if text.partition(":")[0] in SCHEMES and not text.startswith("pool:")}):
        yield from _weights_at(text)


def _weights_at(text: str) -> Iterator[Check]:
    try:
        address = resolve_address(text)
        folder = cached_snapshot(address) if address.scheme == "hub" else address.folder
    except (ModelUnavailableError, ValueError):
        return  # not on this disk
    if folder is not None:
        yield partial(_weight_damages, address, folder)


def _weight_damages(address: ModelAddress, folder: Path) -> Iterator[Damage]:
    try:
        for file in damaged_weights(folder, *pins_of(address), fresh=True):
            yield Damage(file.path, "weights", file.expected, file.got, f"{address.text}: {file.advice}")
    except ModelUnavailableError as error:
        yield Damage(folder, "weights", "files with a pinned sha256", "no list of them", str(error))
