"""curate takedown: a sample leaves every byte that we wrote, and a certificate lists what was changed.

The denylist (stores/denylist.py) keeps it from coming back: it is read at registration, at download and when subsets
are written. `begin` writes down what it is about to remove (`pending_path`), then purges what holds the sample: its
bytes leave tars and tables at once. Rows of tables of shards leave them, and nothing is computed for it
(flow/taken_down.py); what is made of all rows, the flow makes again, where it can. `finish` looks for what is left,
writes the certificate and removes the note, whatever is not made again. A takedown that was killed in between is
finished by the next `takedown apply` or `run`. Cuts, ranges, statistics and students that were fitted on the sample
stay frozen and are named; a frozen table that holds something of the sample itself is made again.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import polars as pl

from curation_assets.core.errors import StoreError
from curation_assets.core.seal import sealed_json
from curation_assets.flow.context import PoolContext
from curation_assets.flow.holder import SAMPLE_SCHEMA, Holder, Takedown, all_holders
from curation_assets.flow.holders import drop_previous_versions, frozen_holding, made_of_all_rows, stored_names
from curation_assets.flow.table import Tables
from curation_assets.operations.other_rows import same_images, shared_with_others
from curation_assets.stores.atomic import PRIVATE, fetch_folder, remove_all_stale
from curation_assets.stores.catalog import rebuild_catalog
from curation_assets.stores.denylist import (
    FOLDER,
    Denylist,
    Kind,
    add_to_denylist,
    entries_without_rows,
    note_found,
)
from curation_assets.stores.documents import read_document, remove_document, save_document, save_text
from curation_assets.stores.file_hash import file_sha256
from curation_assets.stores.manifest import utc_now
from curation_assets.stores.object_versions import purge_versions
from curation_assets.stores.releases import releases_root

# -- what was begun ---------------------------------------------------------------------------------------------------


def pending_path(home: Path, pool: str) -> Path:
    """The note of a takedown under way: it holds the texts to look for, and is removed with the certificate."""
    return home / FOLDER / "pending" / f"{pool}.json"


def pending_takedown(home: Path, pool: str) -> Takedown | None:
    """The takedown of a pool that was begun and has no certificate yet; None where there is none."""

    def build(content: dict[str, Any]) -> Takedown:
        samples = pl.DataFrame(content.pop("samples"), schema=SAMPLE_SCHEMA, orient="row")
        return Takedown(pool, samples, **content)

    advice = (
        "restore it from a backup; without it what the takedown left cannot be looked for (docs/operator/operations.md)"
    )
    return read_document(pending_path(home, pool), build, advice=advice)


def _write_pending(home: Path, takedown: Takedown) -> None:
    content = {**vars(takedown), "samples": takedown.samples.rows()}
    del content["pool"]
    save_document(pending_path(home, takedown.pool), content, mode=PRIVATE)


def begin_takedown(
    ctx: PoolContext, tables: Tables, *, with_sources: bool = False, records: Holder | None = None
) -> Takedown | None:
    """Purge everything that holds a sample of the denylist; None where the pool holds none.

    `with_sources`: also the pool's own tars, which are its owner's, and what they hold of samples that have left the
    tables. `records`: what Dagster's instance keeps beyond the files of the home. The samples' ids join the denylist,
    so that they are known once their URLs are removed. Raises SourceChangedError, before anything is purged, where such
    a tar is not what was registered.
    """
    home, store, pool = ctx.settings.home, ctx.store, ctx.pool
    holders = all_holders(*([records] if records else []))
    fetch_folder(store.root)  # of a bucket: what is searched and rewritten has to be here
    before = pending_takedown(home, pool.name) or Takedown(pool.name, pl.DataFrame(schema=SAMPLE_SCHEMA))
    takedown = replace(
        before,
        with_sources=with_sources or before.with_sources,
        sources=dict(before.sources),
        remaining_sources=list(before.remaining_sources),
        is_purged=False,
    )
    with ctx.progress.task(f"takedown of {pool.name}: rows looked for", len(holders)) as advance:
        for holder in holders:
            holder.find(ctx, tables, takedown, is_resumed=not with_sources)
            advance(1)
    place = ["shard", "source_row"]
    samples = takedown.samples.group_by(place).agg(pl.all().drop_nulls().first())
    takedown.samples = samples = samples.select(SAMPLE_SCHEMA.names()).sort(place)
    if ctx.denylist:
        drop_previous_versions(ctx, tables)
    if samples.is_empty():
        return None
    if before.is_purged and before.with_sources >= with_sources and before.samples.equals(samples):
        return before  # killed while the flow made the shards again: it goes on from there
    takedown.shared = sorted({*before.shared, *shared_with_others(ctx, samples)})
    takedown.holding = sorted({*before.holding, *frozen_holding(ctx, tables, samples["sample_id"])})
    stored = {*stored_names(ctx, tables), *before.tables}
    takedown.tables = [name for name in tables if name in stored]
    takedown.digests_before = digests(home, _artefacts(ctx, tables, takedown, holders)) | before.digests_before
    _write_pending(home, takedown)
    ids: list[tuple[Kind, str]] = [("uid", sample_id) for sample_id in samples["sample_id"].unique()]
    reasons: dict[tuple[Kind, str], str | None] = {
        ("uid", sample_id): reason for sample_id, reason in takedown.reasons.items()
    }
    add_to_denylist(home, ids, reasons, is_found=True)
    note_found(home, takedown.entries)
    with ctx.progress.task(f"takedown of {pool.name}: rows taken out", len(holders)) as advance:
        for holder in holders:
            holder.purge(ctx, tables, takedown)
            advance(1)
    takedown.is_purged = True
    _write_pending(home, takedown)
    return takedown


# -- afterwards -------------------------------------------------------------------------------------------------------


def finish_takedown(
    ctx: PoolContext, tables: Tables, takedown: Takedown, records: Holder | None = None
) -> tuple[dict[str, Any], Path]:
    """Look for what is left, flag exports, write the certificate. Returns it and its path."""
    home = ctx.settings.home
    if ctx.settings.catalog.is_file():
        rebuild_catalog(home)  # into a fresh file: DuckDB leaves the bytes of deleted rows in the old one
    holders = all_holders(*([records] if records else []))
    paths = _artefacts(ctx, tables, takedown, holders)
    after, needles = digests(home, paths), takedown.needles
    searched = {*paths, *(path for holder in holders for path in holder.searched(ctx, tables, takedown))}
    left = []
    with ctx.progress.task(f"takedown of {takedown.pool}: files searched", len(searched)) as advance:
        for path in sorted(searched):
            left += [(_shown(home, path), what) for what in needles.matches_in(path)]
            advance(1)
    elsewhere = [holder.left(ctx, takedown) for holder in holders]
    left += [one for found in elsewhere for one in found.found]
    with_owners = [one for found in elsewhere for one in found.with_owners]
    same, not_searched = same_images(ctx, takedown.samples)
    unfound = entries_without_rows(home)
    artefacts = [
        {"path": path, "sha256_before": takedown.digests_before.get(path), "sha256_after": after.get(path)}
        for path in sorted({*takedown.digests_before, *after})
    ]
    before, now = set(takedown.tables), set(stored_names(ctx, tables))
    certificate: dict[str, Any] = {
        "pool": takedown.pool,
        "written_at": utc_now(),
        "denylist_version": Denylist.load(home).version,
        "samples": takedown.samples.select("sample_id", "shard", "source_row").to_dicts(),
        "artefacts": [artefact for artefact in artefacts if artefact["sha256_before"] != artefact["sha256_after"]],
        "unchanged": sum(artefact["sha256_before"] == artefact["sha256_after"] for artefact in artefacts),
        "files_searched": len(searched),
        "left": [{"path": path, "what": what} for path, what in [*left, *with_owners]],
        "entries": [{"kind": kind, "entry": digest} for kind, digest in takedown.entries],
        "entries_without_rows": [{"kind": one.kind, "entry": one.hash, "added_at": one.added_at} for one in unfound],
        "same_image": same,
        "sources_not_ours": sorted(set(takedown.remaining_sources)),
        "not_done": [*(sentence for found in elsewhere for sentence in found.not_done), *not_searched],
        "made_again": [name for name in made_of_all_rows(tables, takedown.holding) if name in before & now],
        "not_made_again": [name for name in takedown.tables if name not in now],
    }
    for holder in holders:
        certificate |= holder.certified(ctx, tables, takedown)
    rewritten = (path for path in takedown.sources if path not in takedown.remaining_sources)
    if (purged := purge_versions([ctx.store.root], map(Path, rewritten))) is not None:
        certificate["bucket"] = asdict(purged)
    remove_all_stale(home / FOLDER)  # of a certificate, whose name has the time
    text = sealed_json(certificate)
    name = f"{str(certificate['written_at']).replace(':', '')}-{hashlib.sha256(text.encode()).hexdigest()[:8]}.json"
    path = home / FOLDER / "certificates" / f"{takedown.pool}-{name}"
    save_text(path, text)
    for holder in holders:
        holder.withdraw(ctx, takedown, _shown(home, path))
    if left:  # the next one purges again; what a source still holds, another --sources finds by the denylist
        takedown.is_purged = False
        _write_pending(home, takedown)
    else:
        remove_document(pending_path(home, takedown.pool))
        forget_pending(ctx)
    return certificate, path


def forget_pending(ctx: PoolContext) -> None:
    """Delete old versions in a bucket that keeps them: of the takedown's note, which quotes the
    samples, and of releases that listed them. Raises StoreError where they stay.
    """
    home, pool = ctx.settings.home, ctx.pool.name
    note = pending_path(home, pool)
    purged = None if note.is_file() else purge_versions([releases_root(home, pool)], [note])
    if purged is not None and purged.not_done:
        raise StoreError(
            f"the objects in force are clean, but earlier versions of {_shown(home, note)}, which quotes samples taken "
            f"down, may be left: {'; '.join(purged.not_done)}"
        )


def digests(home: Path, paths: Sequence[Path]) -> dict[str, str]:
    """Path relative to home → sha256."""
    return {_shown(home, path): file_sha256(path) for path in paths}


def _shown(home: Path, path: Path) -> str:
    """Relative to the home where it lies there."""
    path, home = path.resolve(), home.resolve()
    return str(path.relative_to(home) if path.is_relative_to(home) else path)


def _artefacts(ctx: PoolContext, tables: Tables, takedown: Takedown, holders: Sequence[Holder]) -> list[Path]:
    """Files that hold, or may have held, a sample, those of the catalogue included."""
    files = {path.resolve() for holder in holders for path in holder.artefacts(ctx, tables, takedown)}
    return sorted({*files, *([ctx.settings.catalog.resolve()] if ctx.settings.catalog.is_file() else [])})
