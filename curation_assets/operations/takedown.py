"""curate takedown: a sample leaves every byte that we wrote, and a certificate lists what was changed.

The denylist (stores/denylist.py) keeps it from coming back: it is read at registration, at download and when subsets
are written. `begin` writes down what it is about to remove (`pending_path`), then purges what holds the sample: its
bytes leave tars and tables at once, before anything is computed. The flow then makes the affected shards again, and
nothing else; `finish` looks for what is left, writes the certificate and removes the note. A takedown that was killed
in between is finished by the next `takedown apply` or `run`. Cuts, ranges, statistics and students that were fitted on
the sample stay frozen and are named; a frozen table that holds something of the sample itself is made again.
"""

import contextlib
import hashlib
import io
import json
import sqlite3
import tarfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import polars as pl

from curation_assets.core.errors import EXPECTED_ERRORS, StoreError
from curation_assets.core.json_files import read_json
from curation_assets.core.stages import STAGES
from curation_assets.core.table_names import CANARY, DUPLICATES, LEDGER, REGISTERED_SHARDS, SAMPLES
from curation_assets.flow.context import PoolContext
from curation_assets.flow.table import Table
from curation_assets.operations.releases import affected_releases, withdraw
from curation_assets.operations.scrubbing import MIN_TEXT, TABLES, forms_of, is_database, scrub, values_in
from curation_assets.operations.takedown_sources import (
    HASHES,
    SAMPLE_SCHEMA,
    SourceChangedError,
    images_in_sources,
    purge_source,
    registered_sources,
    samples_in_sources,
)
from curation_assets.outputs.explore import FOLDER as EXPLORE_FOLDER
from curation_assets.outputs.registry import EXPORTS_FILE, recorded_exports
from curation_assets.scoring.canary import Canary, keep_builds
from curation_assets.sources.declaration import WORLD_SOURCE, Pool, list_pools, load_pool
from curation_assets.sources.download.download import take_down_downloads
from curation_assets.sources.shards import DOWNLOADS_FOLDER, requested_rows, takedown_marker, tars_of_pool
from curation_assets.stages.signals.options import SignalsOptions
from curation_assets.stores.atomic import (
    PRIVATE,
    fetch_folder,
    remove_all_stale,
    remove_path,
    replacing,
    write_text_atomically,
)
from curation_assets.stores.catalog import rebuild_catalog
from curation_assets.stores.denylist import FOLDER, TAKEDOWN, Denylist, add_to_denylist
from curation_assets.stores.file_hash import file_sha256
from curation_assets.stores.images import tar_index
from curation_assets.stores.manifest import utc_now
from curation_assets.stores.object_versions import purge_versions
from curation_assets.stores.objects import ObjectHome
from curation_assets.stores.parquet import read_parquet
from curation_assets.stores.releases import FOLDER as RELEASES
from curation_assets.stores.shard_store import CorruptTableError, ShardStore
from curation_assets.stores.subsets import read_subset_npy
from curation_assets.stores.tar_members import index_path

EXPORT_FLAG = "TAKEDOWN.json"  # in the folder of an export that holds a sample taken down since


class Records(Protocol):
    """What Dagster's instance keeps beyond the files of the home."""

    @property
    def not_done(self) -> Sequence[str]:
        """What cannot be reached, in sentences."""
        ...

    def files(self) -> list[Path]:
        """Its files outside the home."""
        ...

    def scrub(self, texts: Collection[str]) -> None:
        """Take texts out of the tables of its server."""
        ...

    def matches(self, texts: Collection[str]) -> dict[str, set[str]]:
        """Place in its server → texts that it holds."""
        ...


@dataclass
class Takedown:
    """A takedown under way in one pool."""

    pool: str
    samples: pl.DataFrame  # SAMPLE_SCHEMA
    with_sources: bool = False
    sources: dict[str, str] = field(default_factory=dict)  # path of a source to be rewritten → sha256 as registered
    digests_before: dict[str, str] = field(default_factory=dict)  # path relative to home → sha256
    tables: list[str] = field(default_factory=list)  # that were materialised before, in flow order
    remaining_sources: list[str] = field(default_factory=list)
    holding: list[str] = field(default_factory=list)  # frozen tables that held one of the samples
    is_purged: bool = False  # everything that held a sample is removed: what is made again since then stays

    @property
    def shards(self) -> list[str]:
        """Shards that hold a sample, sorted."""
        return sorted(self.samples["shard"].unique())


def affected_samples(ctx: PoolContext, denylist: Denylist) -> pl.DataFrame:
    """Rows of a pool that the denylist knows and that still hold something, in either of the tables with their texts.

    Columns of SAMPLE_SCHEMA, sorted by shard and source_row.
    """
    listed, texts = ["sample_id", "shard", "source_row"], ["url", "caption"]
    rows = pl.DataFrame(schema=SAMPLE_SCHEMA)
    if ctx.store.partitions(REGISTERED_SHARDS):
        registered = ctx.store.scan(REGISTERED_SHARDS).filter(pl.col("source_reason").ne_missing(TAKEDOWN))
        rows = _as_samples(registered.select(*listed, *texts).collect())
    if ctx.store.partitions(SAMPLES):
        # its rows outlive registration where a takedown was interrupted
        stored = ctx.store.scan(SAMPLES).filter(pl.col("reason").ne_missing(TAKEDOWN))
        samples = stored.select(*listed, *texts, *HASHES).collect()
        rows = rows.drop(HASHES).join(
            samples.select("shard", "source_row", *HASHES), on=["shard", "source_row"], how="left"
        )
        unregistered = samples.join(rows, on=["shard", "source_row"], how="anti")
        rows = pl.concat([_as_samples(rows), _as_samples(unregistered)])
    is_denied = denylist.denied(rows)
    # Rows of the same id anywhere are the same sample.
    ids = rows.filter(is_denied)["sample_id"].unique()
    return rows.filter(is_denied | pl.col("sample_id").is_in(ids.implode())).sort("shard", "source_row")


def _as_samples(rows: pl.DataFrame) -> pl.DataFrame:
    """The columns of SAMPLE_SCHEMA; those that are missing are null."""
    missing = [pl.lit(None, kind).alias(name) for name, kind in SAMPLE_SCHEMA.items() if name not in rows.columns]
    return rows.with_columns(missing).select(pl.col(name).cast(kind) for name, kind in SAMPLE_SCHEMA.items())


# -- what was begun ---------------------------------------------------------------------------------------------------


def pending_path(home: Path, pool: str) -> Path:
    """The note of a takedown under way: it holds the texts to look for, and is removed with the certificate."""
    return home / FOLDER / "pending" / f"{pool}.json"


def pending_takedown(home: Path, pool: str) -> Takedown | None:
    """The takedown of a pool that was begun and has no certificate yet; None where there is none."""
    path = pending_path(home, pool)
    if not path.is_file():
        return None

    def build(content: dict[str, Any]) -> Takedown:
        samples = pl.DataFrame(content.pop("samples"), schema=SAMPLE_SCHEMA, orient="row")
        return Takedown(pool, samples, **content)

    advice = "restore it from a backup; without it what the takedown left cannot be looked for (docs/takedown.md)"
    return read_json(path, build, advice=advice)


def _write_pending(home: Path, takedown: Takedown) -> None:
    content = {**vars(takedown), "samples": takedown.samples.rows()}
    del content["pool"]
    write_text_atomically(pending_path(home, takedown.pool), json.dumps(content), mode=PRIVATE)


def begin_takedown(
    ctx: PoolContext, tables: Mapping[str, Table], *, with_sources: bool = False, records: Records | None = None
) -> Takedown | None:
    """Purge everything that holds a sample of the denylist; None where the pool holds none.

    `with_sources`: also the pool's own tars, which are its owner's, and what they hold of samples that have left the
    tables. The samples' ids join the denylist, so that they are known once their URLs are removed. Raises
    SourceChangedError, before anything is purged, where such a tar is not what was registered.
    """
    home, store, pool = ctx.settings.home, ctx.store, ctx.pool
    fetch_folder(store.root)  # of a bucket: what is searched and rewritten has to be here
    before = pending_takedown(home, pool.name) or Takedown(pool.name, pl.DataFrame(schema=SAMPLE_SCHEMA))
    samples = pl.concat([before.samples, affected_samples(ctx, Denylist.load(home))])
    sources: dict[str, str] = {}
    if pool.kind == "webdataset" and (with_sources or before.with_sources):
        samples, sources = _with_sources(ctx, tables, samples, before.sources, is_resumed=not with_sources)
    place = ["shard", "source_row"]
    samples = samples.group_by(place).agg(pl.all().drop_nulls().first()).select(SAMPLE_SCHEMA.names()).sort(place)
    if Denylist.load(home):
        _drop_previous_versions(ctx, tables)
    if samples.is_empty():
        return None
    if before.is_purged and before.with_sources >= with_sources and before.samples.equals(samples):
        return before  # killed while the flow made the shards again: it goes on from there
    takedown = Takedown(pool.name, samples, with_sources or before.with_sources, sources)
    takedown.holding = sorted({*before.holding, *_holding(ctx, tables, samples["sample_id"])})
    touched = touched_tables(tables, takedown.holding)
    stored = [name for name in tables if store.partitions(name) or _is_stored(store, name)]
    takedown.tables = [name for name in tables if name in stored or name in before.tables]
    takedown.digests_before = digests(home, _artefacts(ctx, tables, touched, takedown.shards)) | before.digests_before
    takedown.remaining_sources = list(before.remaining_sources)
    _write_pending(home, takedown)
    add_to_denylist(home, [("uid", sample_id) for sample_id in samples["sample_id"].unique()])
    for shard in takedown.shards:
        _purge_shard(ctx, shard, samples.filter(pl.col("shard") == shard), takedown=takedown)
    if pool.kind == "world":
        _purge_world(ctx, samples["sample_id"].unique().to_list())
    elif pool.kind in ("url_table", "image_table"):
        takedown.remaining_sources.append(pool.source)
    for split in (store.root / "source").glob("split-*"):
        remove_path(split)  # made again, without them
    needles = Needles.of(samples)
    for name, files in orphans(ctx, tables).items():
        if any(needles.matches_in(path) for path in files):
            store.remove(name)
    for name in reversed(touched):  # registered rows last: what is downloaded is purged by them
        if tables[name].grain == "shard":
            for shard in takedown.shards:
                store.remove(name, shard)
        else:
            store.remove(name)
    remove_path(store.root / EXPLORE_FOLDER)  # thumbnails; `curate explore` makes it again, without them
    remove_all_stale(store.root)
    for folder in list(store.root.glob("*/.*.unfinished")):  # what long computations saved on their way
        for part in [folder / "pool", *(folder / shard for shard in takedown.shards)]:
            remove_path(part)
    _purge_canary(ctx, samples)
    for path in [*other_files(ctx, takedown.shards), *(records.files() if records else ())]:
        scrub(path, needles.texts)
    if records:
        records.scrub(needles.texts)
    takedown.is_purged = True
    _write_pending(home, takedown)
    return takedown


def _with_sources(
    ctx: PoolContext, tables: Mapping[str, Table], samples: pl.DataFrame, noted: Mapping[str, str], *, is_resumed: bool
) -> tuple[pl.DataFrame, dict[str, str]]:
    """The samples with what the pool's tars hold of them now; and path → sha256 of the files that may be rewritten.

    `noted`: those of an attempt that was stopped. `is_resumed`: a tar that is not what was registered stays as it is,
    and the certificate names it; else SourceChangedError is raised.
    """
    held = samples_in_sources(ctx, Denylist.load(ctx.settings.home), samples["sample_id"].unique().to_list())
    tars, sources, unknown = tars_of_pool(ctx.pool, ctx.settings), dict(noted), []
    for shard in sorted({*samples["shard"], *held["shard"]}):
        tar = tars.get(shard)
        if tar is None or str(tar) in noted or not _is_whole(tar):
            continue
        try:
            sources |= registered_sources(ctx, tables, shard)
        except SourceChangedError:
            if not is_resumed:
                raise
            unknown.append(shard)
    return pl.concat([samples, held.filter(~pl.col("shard").is_in(unknown))]), sources


def _is_stored(store: ShardStore, name: str) -> bool:
    """Whether there is a whole-pool table or folder, damaged ones included: they may hold a sample."""
    try:
        return store.manifest(name) is not None
    except CorruptTableError:
        return True


def other_files(ctx: PoolContext, shards: Sequence[str]) -> list[Path]:
    """Files under home that may quote a sample and that no table of the flow makes again: Dagster's, the pool's loose
    files, labels. Not among them: sources, exports (flagged, never rewritten), other pools, shards without a sample.
    """
    home, root = ctx.settings.home, ctx.store.root
    names = list_pools(ctx.settings)
    kept_out = [home / "work" / name for name in names if name != ctx.pool.name]
    declared, unknown = _declared_pools(ctx)
    kept_out += [_source_folder(pool.source_path(ctx.settings)) for pool in declared]
    canaries = (SignalsOptions.of(pool).canary for pool in declared)
    kept_out += [home / canary for canary in canaries if canary]
    kept_out += [Path(export.folder) for export in recorded_exports(home)]
    kept_out += [home / FOLDER, home / "pools", root / "costs", *(root / name for name in (*STAGES, "source", "world"))]
    kept_out += [folder for folder in (root / DOWNLOADS_FOLDER).glob("*") if folder.name not in shards]
    outside = {path.resolve() for path in kept_out}
    files = []
    # the source of a pool whose declaration cannot be read may lie anywhere under the home
    looked_at = [home / "dagster", home / "logs", root] if unknown else [home]
    for path in (path for folder in looked_at for path in _files(folder)):
        target = path.resolve()
        if outside.isdisjoint((target, *target.parents)) and path.name != EXPORTS_FILE:
            files.append(path)
    return files


def _declared_pools(ctx: PoolContext) -> tuple[list[Pool], list[str]]:
    """All pools of the home; and the names of those whose declarations cannot be read."""
    declared, unknown = [], []
    for name in list_pools(ctx.settings):
        try:
            declared.append(load_pool(ctx.settings, name))
        except EXPECTED_ERRORS:
            unknown.append(name)
    return declared, unknown


def _source_folder(source: Path) -> Path:
    """Where a source lies; of a pattern such as tars/*.tar the folder before it."""
    while any(letter in source.name for letter in "*?[{"):
        source = source.parent
    return source


def _purge_canary(ctx: PoolContext, samples: pl.DataFrame) -> None:
    """Its rows leave the frozen set; the scores that earlier builds gave to the others stay comparable."""
    path = ctx.settings.home / (SignalsOptions.of(ctx).canary or "")
    if not path.is_file():
        return
    ids, captions = samples["sample_id"].implode(), samples["caption"].drop_nulls().implode()
    is_removed = pl.col("sample_id").is_in(ids) | pl.col("caption").is_in(captions)
    for name in HASHES:
        is_removed |= pl.col("image_sha256").is_in(samples[name].drop_nulls().implode()).fill_null(False)
    rows = read_parquet(path)
    if rows.filter(is_removed).is_empty():
        return
    before = Canary.read(path).sha256
    with replacing(path) as temporary:
        rows.filter(~is_removed).write_parquet(temporary, compression="zstd")
    if ctx.store.manifest(CANARY) is not None:
        keep_builds(ctx.store, before, Canary.read(path))


def _holding(ctx: PoolContext, tables: Mapping[str, Table], sample_ids: Iterable[str]) -> list[str]:
    """Stored frozen tables that hold something of one of the samples; damaged ones may."""
    ids, found = set(sample_ids), []
    for name, table in tables.items():
        if table.held_samples is not None and _is_stored(ctx.store, name):
            try:
                is_held = not ids.isdisjoint(table.held_samples(ctx))
            except (OSError, StoreError):
                is_held = bool(ids)
            if is_held:
                found.append(name)
    return found


def touched_tables(tables: Mapping[str, Table], holding: Collection[str] = ()) -> list[str]:
    """Tables that may hold something of a sample: all that rest on registered rows, but for frozen fits that are not
    in `holding`.

    DUPLICATES stays too: it has ids only, and remembers which shard came first. So do the canary's scores, with the
    builds that no longer exist.
    """
    resting: set[str] = {REGISTERED_SHARDS}
    for name, table in tables.items():  # inputs first
        if resting.intersection(table.inputs):
            resting.add(name)
    kept = {name for name, table in tables.items() if table.is_frozen and name not in holding} | {*_REMEMBERING}
    return [name for name in tables if name in resting and name not in kept]


_REMEMBERING = (DUPLICATES, CANARY)


def kept_fits(tables: Mapping[str, Table], holding: Collection[str] = ()) -> list[str]:
    """Frozen fits that rest on registered rows, but those in `holding`: numbers and weights, no sample."""
    touched = set(touched_tables(tables, holding))
    fits = (name for name, table in tables.items() if table.is_frozen and touched.intersection(table.inputs))
    return sorted(name for name in fits if name not in holding)


def _drop_previous_versions(ctx: PoolContext, tables: Mapping[str, Table]) -> None:
    """Delete what the store keeps of folders such as the report, and frozen tables that hold samples: a run after
    `takedown add` leaves samples there. The next run makes these tables again.

    Earlier ledgers stay: they hold ids and numbers, and `why` reads them.
    """
    if ctx.store.partitions(SAMPLES):
        emptied = ctx.store.scan(SAMPLES).filter(pl.col("reason") == TAKEDOWN).select("sample_id").collect()
        for name in _holding(ctx, tables, emptied["sample_id"]):
            ctx.store.remove(name)
    for name in touched_tables(tables):
        link = ctx.store.asset_path(name)
        if link.is_symlink() and name != LEDGER:
            for version in link.parent.glob(f".{link.name}.version-*"):
                if version != link.resolve().parent:
                    remove_path(version)


def orphans(ctx: PoolContext, tables: Mapping[str, Table]) -> dict[str, list[Path]]:
    """Stored tables that the pool no longer declares, such as a policy's that was deleted, with all their files.

    Nothing would make them again without a sample.
    """
    files: dict[str, list[Path]] = {}
    for stage in STAGES:
        for folder in sorted((ctx.store.root / stage).glob("*")):
            is_version = folder.name.startswith(".") and ".version-" in folder.name
            if folder.name.startswith(".") and not is_version:
                continue  # drafts and saved rows, which `begin_takedown` removes
            name = f"{stage}/{folder.name.removeprefix('.').partition('.version-')[0]}"
            if name not in tables and name not in _REMEMBERING:
                files.setdefault(name, []).extend(_files(folder.resolve()))
    return files


def _purge_shard(ctx: PoolContext, shard: str, samples: pl.DataFrame, *, takedown: Takedown) -> None:
    pool, settings = ctx.pool, ctx.settings
    ids = samples["sample_id"].unique().to_list()
    if pool.kind == "webdataset":
        tar = tars_of_pool(pool, settings).get(shard)
        is_purged = tar is None
        if tar is not None and str(tar) in takedown.sources:
            with contextlib.suppress(SourceChangedError):  # since it was compared: the certificate names it
                purge_source(ctx, shard, samples, takedown.sources)
                is_purged = True
        if not is_purged:
            takedown.remaining_sources.append(str(tar))
        marker = takedown_marker(pool, shard, settings)
        before = marker.read_text(encoding="utf-8").splitlines() if marker.is_file() else []
        write_text_atomically(marker, "".join(f"{sample_id}\n" for sample_id in sorted({*before, *ids})))
        return
    if not pool.must_download or shard not in ctx.store.partitions(REGISTERED_SHARDS):
        return  # without registered rows: an interrupted takedown got past this shard's images
    before_rows, _ = requested_rows(ctx.store.read(REGISTERED_SHARDS, shard))
    take_down_downloads(
        settings.work(pool.name) / DOWNLOADS_FOLDER,
        shard,
        ids,
        before=before_rows,
        after=before_rows.filter(~pl.col("sample_id").is_in(ids)),
        settings=pool.download,
        allow_hosts=() if pool.kind == "world" else pool.allow_hosts,
    )


def _is_whole(tar: Path) -> bool:
    try:
        return tar_index(tar).damage is None
    except OSError:
        return False


def _purge_world(ctx: PoolContext, ids: Sequence[str]) -> None:
    """A planted pool's source is a file of ours: its rows stay, with their ids only."""
    path = ctx.store.root / WORLD_SOURCE
    is_removed = pl.col("uid").is_in(list(ids))
    emptied = (pl.when(is_removed).then(None).otherwise(pl.col(name)).alias(name) for name in ("url", "caption"))
    frame = read_parquet(path).with_columns(emptied)
    with replacing(path) as temporary:
        frame.write_parquet(temporary, compression="zstd")


def _rewritten_keys(ctx: PoolContext, objects: ObjectHome, takedown: Takedown) -> list[str]:
    """Prefixes of the objects of a bucket whose earlier versions hold the samples: the pool's own, and its source's."""
    keys = [f"work/{takedown.pool}/"]
    for path in map(Path, takedown.sources):
        if path.is_relative_to(objects.root) and str(path) not in takedown.remaining_sources:
            keys += map(objects.key_of, (path, *([index_path(objects, path)] if path.suffix == ".tar" else [])))
    return keys


# -- afterwards -------------------------------------------------------------------------------------------------------


def finish_takedown(
    ctx: PoolContext, tables: Mapping[str, Table], takedown: Takedown, records: Records | None = None
) -> tuple[dict[str, Any], Path]:
    """Look for what is left, flag exports, write the certificate. Returns it and its path."""
    home = ctx.settings.home
    if ctx.settings.catalog.is_file():
        rebuild_catalog(home)  # into a fresh file: DuckDB leaves the bytes of deleted rows in the old one
    touched = touched_tables(tables, takedown.holding)
    paths = _artefacts(ctx, tables, touched, takedown.shards)
    after = digests(home, paths)
    needles = Needles.of(takedown.samples)
    undeclared = [path for files in orphans(ctx, tables).values() for path in files]
    searched = sorted({*paths, *undeclared, *other_files(ctx, takedown.shards), *_files(ctx.store.root / "truth")})
    canary = home / (SignalsOptions.of(ctx).canary or "")
    searched += [canary] if canary.is_file() else []
    searched += records.files() if records else []
    left = [(_shown(home, path), what) for path in searched for what in needles.matches_in(path)]
    found = records.matches(needles.texts) if records else {}
    left += [(place, what) for place, texts in found.items() for what in texts]
    not_done = list(records.not_done) if records else []
    if unknown := _declared_pools(ctx)[1]:
        not_done.append(
            f"loose files of the home, among which the sources of {', '.join(unknown)} may lie: their declarations "
            "cannot be read"
        )
    holders, unread = images_in_sources(ctx, needles.sha256) if _has_own_tars(ctx, takedown) else ([], [])
    artefacts = [
        {"path": path, "sha256_before": takedown.digests_before.get(path), "sha256_after": after.get(path)}
        for path in sorted({*takedown.digests_before, *after})
    ]
    ids = takedown.samples["sample_id"].unique().to_list()
    certificate = {
        "pool": takedown.pool,
        "written_at": utc_now(),
        "denylist_version": Denylist.load(home).version,
        "samples": takedown.samples.select("sample_id", "shard", "source_row").to_dicts(),
        "artefacts": [artefact for artefact in artefacts if artefact["sha256_before"] != artefact["sha256_after"]],
        "unchanged": sum(artefact["sha256_before"] == artefact["sha256_after"] for artefact in artefacts),
        "files_searched": len(searched),
        "left": [{"path": path, "what": what} for path, what in [*left, *((str(tar), "image") for tar in holders)]],
        "sources_not_ours": sorted(set(takedown.remaining_sources)),
        "not_done": [*unread, *not_done],
        "fits_kept": kept_fits(tables, takedown.holding),
        "exports_flagged": flag_exports(home, takedown),
        "releases_withdrawn": [release.name for release in affected_releases(home, takedown.pool, ids)],
    }
    if ctx.store.objects is not None:
        purged = purge_versions(ctx.store.objects, _rewritten_keys(ctx, ctx.store.objects, takedown))
        certificate["bucket"] = {"url": ctx.store.objects.url, **asdict(purged)}
    remove_all_stale(home / FOLDER)  # of a certificate, whose name has the time
    text = json.dumps(certificate, indent=1)
    name = f"{str(certificate['written_at']).replace(':', '')}-{hashlib.sha256(text.encode()).hexdigest()[:8]}.json"
    path = home / FOLDER / "certificates" / f"{takedown.pool}-{name}"
    write_text_atomically(path, text)
    withdraw(home, takedown.pool, ids, certificate=_shown(home, path))
    if left:  # the next one purges again; what a source still holds, another --sources finds by the denylist
        takedown.is_purged = False
        _write_pending(home, takedown)
    else:
        remove_path(pending_path(home, takedown.pool))
        forget_pending(ctx)
    return certificate, path


def _has_own_tars(ctx: PoolContext, takedown: Takedown) -> bool:
    return takedown.with_sources and ctx.pool.kind == "webdataset"


def forget_pending(ctx: PoolContext) -> None:
    """Of a bucket that keeps versions: those of the note of a takedown, which quotes the samples, and of releases that
    listed them. Raises StoreError where they stay.
    """
    if ctx.store.objects is None or pending_path(ctx.settings.home, ctx.pool.name).is_file():
        return
    note = ctx.store.objects.key_of(pending_path(ctx.settings.home, ctx.pool.name))
    purged = purge_versions(ctx.store.objects, [note, f"{RELEASES}/{ctx.pool.name}/"])
    if purged.not_done:
        raise StoreError(
            f"the objects in force are clean, but earlier versions of {note}, which quotes samples taken down, may be "
            f"left: {'; '.join(purged.not_done)}"
        )


def digests(home: Path, paths: Sequence[Path]) -> dict[str, str]:
    """Path relative to home → sha256."""
    return {_shown(home, path): file_sha256(path) for path in paths}


def _shown(home: Path, path: Path) -> str:
    """Relative to the home where it lies there."""
    path, home = path.resolve(), home.resolve()
    return str(path.relative_to(home) if path.is_relative_to(home) else path)


def _artefacts(
    ctx: PoolContext, tables: Mapping[str, Table], touched: Sequence[str], shards: Sequence[str]
) -> list[Path]:
    """Files that hold, or may have held, a sample of these shards."""
    store = ctx.store
    folders = [store.root / DOWNLOADS_FOLDER / shard for shard in shards]
    folders += [store.root / "source", store.root / "world", store.root / "truth", store.root / FOLDER]
    for name in touched:
        if tables[name].grain == "shard":
            folders += [store.table_path(name, shard).parent for shard in shards]
        else:
            folders.append(store.asset_path(name))
            folders += store.asset_path(name).parent.glob(f".{store.asset_path(name).name}.version-*")
    files_of_pool = {path.resolve() for folder in folders for path in _files(folder)}
    if ctx.settings.catalog.is_file():
        files_of_pool.add(ctx.settings.catalog.resolve())
    return sorted(files_of_pool)


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            yield path


@dataclass(frozen=True)
class Needles:
    """What must be found nowhere: texts, and hashes of images."""

    texts: frozenset[str]
    sha256: frozenset[str]

    @classmethod
    def of(cls, samples: pl.DataFrame) -> "Needles":
        """Captions, URLs and image hashes of samples."""
        texts = {text for name in ("url", "caption") for text in samples[name] if text and text.strip()}
        return cls(frozenset(texts), frozenset(digest for name in HASHES for digest in samples[name] if digest))

    def matches_in(self, path: Path) -> set[str]:
        """What of it a file holds, looked at as what it is: Parquet by its values, tars by their members, SQLite and
        everything else by bytes.
        """
        if path.suffix == ".parquet":
            return self._in_parquet(path)
        if path.suffix == ".tar":
            return self._in_tar(path)
        if path.suffix in TABLES:
            return values_in(path) & self.texts
        if is_database(path):
            return self._in_bytes(_sqlite_bytes(path))
        return self._in_bytes(path.read_bytes())

    def _in_parquet(self, path: Path) -> set[str]:
        frame = read_parquet(path)
        matches: set[str] = set()
        for name, kind in frame.schema.items():
            column = frame[name]
            while isinstance(kind, pl.List):
                column, kind = column.explode(), kind.inner  # type: ignore[assignment]
            if isinstance(kind, pl.Struct):
                column, kind = column.struct.json_encode(), pl.String()
                matches |= self._in_bytes("\n".join(column.drop_nulls().to_list()).encode())
            elif kind == pl.String:
                matches |= {text for text in column.drop_nulls().unique() if text in self.texts}
            elif kind == pl.Binary:
                matches |= {"image" for blob in column.drop_nulls() if hashlib.sha256(blob).hexdigest() in self.sha256}
        return matches

    def _in_tar(self, path: Path) -> set[str]:
        matches: set[str] = set()
        with tarfile.open(path) as tar:
            for member in tar:
                file = tar.extractfile(member)
                data = b"" if file is None else file.read()
                if hashlib.sha256(data).hexdigest() in self.sha256:
                    matches.add("image")
                if member.name.endswith((".txt", ".json")):
                    matches |= {text for text in self.texts if text.encode() == data} | self._in_bytes(data)
        return matches

    def _in_bytes(self, data: bytes) -> set[str]:
        return {
            text
            for text in self.texts
            if len(text) >= MIN_TEXT and any(form.encode() in data for form in forms_of(text))
        }


def _sqlite_bytes(path: Path) -> bytes:
    """The texts of a database's rows, and its raw bytes, in which deleted rows linger."""
    buffer = io.BytesIO(path.read_bytes())
    with sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True) as connection:
        text = "\n".join(line for line in connection.iterdump())
    return buffer.getvalue() + text.encode("utf-8", "surrogateescape")


def flag_exports(home: Path, takedown: Takedown) -> list[dict[str, Any]]:
    """Write EXPORT_FLAG into every recorded export that holds one of the samples; the export itself stays as it is."""
    ids = set(takedown.samples["sample_id"])
    flagged = []
    for record in recorded_exports(home, takedown.pool):
        folder, subset = Path(record.folder), Path(record.subset)
        if not folder.is_dir():
            continue
        holds = sorted(ids & set(read_subset_npy(subset))) if subset.is_file() else sorted(ids)
        if holds:
            flag = {"sample_ids": holds, "flagged_at": utc_now(), "is_certain": subset.is_file()}
            write_text_atomically(folder / EXPORT_FLAG, json.dumps({**record.to_dict(), **flag}, indent=1))
            flagged.append({"folder": str(folder), "samples": len(holds)})
    return flagged
