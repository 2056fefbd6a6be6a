"""Tables and folders of a pool against their manifests."""

import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from curation_assets.core.seal import is_sealed, seal_now
from curation_assets.core.stages import STAGES
from curation_assets.flow.context import PoolContext
from curation_assets.flow.table import Tables
from curation_assets.stores.catalog import stored_tables
from curation_assets.stores.content_hash import frame_sha256
from curation_assets.stores.damage import Check, Damage, changed_files, first_line
from curation_assets.stores.documents import save_text
from curation_assets.stores.file_hash import sha256_now
from curation_assets.stores.manifest import Manifest
from curation_assets.stores.parquet import UNREADABLE, read_parquet
from curation_assets.stores.shard_store import MANIFEST_FILE, manifest_text
from curation_assets.stores.temporary import TEMPORARY

_VERSION_LINK = re.compile(r"\.(?P<name>[a-z0-9_]+)\.version-[0-9a-f]{12}/files")


def table_checks(ctx: PoolContext, tables: Tables) -> Iterator[Check]:
    """Every table: its bytes, its content, the copy of its manifest."""
    for asset in stored_tables(ctx.store):
        whole = ctx.store.table_path(asset).is_file()
        for key in [None] if whole else ctx.store.partitions(asset):
            yield partial(_table_damages, ctx, tables, asset, key)


def folder_checks(ctx: PoolContext, tables: Tables) -> Iterator[Check]:
    """Links, manifests and every file of folders: subsets, look-up, models, reports."""
    for stage in STAGES:
        folder = ctx.store.root / stage
        # a link under a temporary name is a write that was killed, and the next write removes it
        links = (path for path in folder.glob("*") if path.is_symlink() and not TEMPORARY.fullmatch(path.name))
        for link in sorted(links):
            yield partial(_link_damages, ctx, tables, link)
        for version in sorted(folder.glob(".*.version-*")):
            yield partial(_version_damages, ctx, tables, version)


def _table_damages(ctx: PoolContext, tables: Tables, asset: str, partition: str | None) -> Iterator[Damage]:
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
        if (got := seal_now(path)) != manifest.seal:
            yield replace(damage, expected=manifest.seal, got=got)
            return
        content = frame_sha256(read_parquet(path))
    except (*UNREADABLE, ValueError, TypeError) as error:
        yield replace(damage, got=first_line(error))
        return
    if content != manifest.content_sha256:
        yield replace(damage, expected=f"content {manifest.content_sha256}", got=content)
        return
    copy = path.with_name(MANIFEST_FILE)
    if copy.is_file() and not _is_copy(copy.read_bytes(), str(text)):
        expected, got = hashlib.sha256(str(text).encode()).hexdigest(), sha256_now(copy)
        advice = "curate verify --repair writes it again, from the table"
        yield Damage(copy, "manifest", expected, got, advice, (), partial(save_text, copy, str(text)))


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
    optional = {"facts", "before"}  # of verdict tables and fits
    is_manifest = isinstance(theirs, dict) and set(theirs) ^ set(ours) <= optional
    return is_manifest and sum(value != ours.get(name) for name, value in theirs.items()) > 1


def _remake_advice(asset: str, tables: Tables) -> str:
    if asset not in tables:
        return "curate verify --repair removes it; the pool no longer has this table"
    if tables[asset].is_frozen:
        return "curate verify --repair fits it again, on the rows that the pool holds now"
    return "curate verify --repair makes it again"


def _link_damages(ctx: PoolContext, tables: Tables, link: Path) -> Iterator[Damage]:
    target = os.readlink(link)
    match = _VERSION_LINK.fullmatch(target)
    if match is None or match["name"] != link.name or not (link.parent / target).is_dir():
        asset = f"{link.parent.name}/{link.name}"
        yield Damage(
            link, "link", f".{link.name}.version-…/files, which is there", target, _remake_advice(asset, tables),
            (asset,), partial(ctx.store.remove, asset),
        )  # fmt: skip


def _version_damages(ctx: PoolContext, tables: Tables, version: Path) -> Iterator[Damage]:
    name = version.name.removeprefix(".").partition(".version-")[0]
    link, asset = version.with_name(name), f"{version.parent.name}/{name}"
    if not version.is_dir():
        return
    if link.is_symlink() and link.resolve().parent == version.resolve():
        advice, remade, repair = _remake_advice(asset, tables), [asset], partial(ctx.store.remove, asset)
    else:
        advice, remade = "an earlier version, kept for who reads it: `curate verify --repair` removes it", []
        repair = partial(ctx.store.remove_previous, asset)
    path = version / MANIFEST_FILE
    damage = Damage(path, "manifest", "a manifest that holds its own sha256", "", advice, tuple(remade), repair)
    try:
        data = path.read_bytes()
        manifest = Manifest.from_json(data.decode("utf-8"))
    except (OSError, ValueError) as error:
        yield replace(damage, got=first_line(error))
        return
    if not is_sealed(data):
        yield replace(damage, expected=manifest.seal, got=seal_now(path))
        return
    files = {version / "files" / file: expected for file, expected in manifest.files.items()}
    yield from changed_files(files, replace(damage, kind="folder"))
