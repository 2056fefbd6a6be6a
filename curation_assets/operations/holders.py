"""What quotes samples beside the flow: releases, and loose files under the home such as Dagster's and labels."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from curation_assets.core.errors import EXPECTED_ERRORS
from curation_assets.core.stages import STAGES
from curation_assets.flow.context import PoolContext
from curation_assets.flow.holder import Holder, Left, Takedown, files_in
from curation_assets.flow.table import Tables
from curation_assets.operations.releases import affected_releases, verify_release, withdraw
from curation_assets.outputs.registry import EXPORTS_FILE, recorded_exports
from curation_assets.sources.declaration import Pool, list_pools, load_pool
from curation_assets.sources.shard_keys import KEYS_FILE
from curation_assets.sources.shards import DOWNLOADS_FOLDER
from curation_assets.stages.signals.options import SignalsOptions
from curation_assets.stores.costs import COSTS, damaged_lines, drop_damaged_lines
from curation_assets.stores.damage import Check, Damage, json_damages
from curation_assets.stores.denylist import FOLDER
from curation_assets.stores.home_format import FORMAT_FILE
from curation_assets.stores.parquet import is_whole
from curation_assets.stores.releases import FOLDER as RELEASES
from curation_assets.stores.releases import release_folders
from curation_assets.stores.scrubbing import scrub
from curation_assets.stores.temporary import TEMPORARY


class Releases(Holder):
    """Releases of the pool; those with a sample are withdrawn once there is a certificate, which they name."""

    turn = 2

    def certified(self, ctx: PoolContext, tables: Tables, takedown: Takedown) -> dict[str, Any]:
        affected = affected_releases(ctx.settings.home, ctx.pool.name, takedown.sample_ids)
        return {"releases_withdrawn": [release.name for release in affected]}

    def withdraw(self, ctx: PoolContext, takedown: Takedown, certificate: str) -> None:
        withdraw(ctx.settings.home, ctx.pool.name, takedown.sample_ids, certificate=certificate)

    def checks(self, ctx: PoolContext, tables: Tables) -> Iterator[Check]:
        return (partial(_release_damages, folder) for folder in release_folders(ctx.settings.home, ctx.pool.name))


class SealedFiles(Holder):
    """JSON that steers what is let in, made or shown and that no table holds: the denylist, certificates, notes of what
    was begun, numbers of tars, exports, costs. Its readers refuse what is not as it was written (core/json_files.py).
    """

    def checks(self, ctx: PoolContext, tables: Tables) -> Iterator[Check]:
        home, root = ctx.settings.home, ctx.store.root
        of_home = [home / FORMAT_FILE, home / EXPORTS_FILE, *sorted((home / FOLDER).rglob("*.json"))]
        for path in (*of_home, *_records_of(root)):
            yield partial(_json_damages, ctx, path)
        for path in sorted((root / COSTS).glob("*.jsonl")):
            yield partial(_cost_damages, path)
        for path in [*sorted((root / "index").glob("*.parquet")), *sorted((root / "source").glob("*.places.parquet"))]:
            yield partial(_derived_damages, path)


def _records_of(root: Path) -> Iterator[Path]:
    """JSON in a pool's folder, without that of tables, sources, downloads and costs, which is looked at as such."""
    for place in sorted(set(root.iterdir()) - {root / name for name in _HAVE_OWN_CHECKS}) if root.is_dir() else ():
        for path in files_in(place) if place.is_dir() else [place]:
            if path.suffix in (".json", ".jsonl") and not TEMPORARY.match(path.name):
                yield path


_HAVE_OWN_CHECKS = (*STAGES, "source", "world", "truth", DOWNLOADS_FOLDER, COSTS)


class LooseFiles(Holder):
    """Files of the home that no table of the flow makes again: texts are taken out of them as they lie."""

    turn = 3

    def purge(self, ctx: PoolContext, tables: Tables, takedown: Takedown) -> None:
        texts, of_releases = takedown.texts, ctx.settings.home / RELEASES
        for path in other_files(ctx, takedown.shards):
            if of_releases not in path.parents:  # withdrawn as a whole, at the end
                scrub(path, texts)

    def searched(self, ctx: PoolContext, tables: Tables, takedown: Takedown) -> list[Path]:
        return other_files(ctx, takedown.shards)

    def left(self, ctx: PoolContext, takedown: Takedown) -> Left:
        unknown = _declared_pools(ctx)[1]
        sentence = (
            f"loose files of the home, among which the sources of {', '.join(unknown)} may lie: their declarations "
            "cannot be read"
        )
        return Left(not_done=[sentence] if unknown else [])


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
    kept_out += [
        home / FOLDER,
        home / "pools",
        root / "costs",
        *(root / name for name in (*STAGES, "source", "world", FOLDER)),
    ]
    kept_out += [folder for folder in (root / DOWNLOADS_FOLDER).glob("*") if folder.name not in shards]
    outside = {path.resolve() for path in kept_out}
    files = []
    # the source of a pool whose declaration cannot be read may lie anywhere under the home
    looked_at = [home / "dagster", home / "logs", root] if unknown else [home]
    for path in (path for folder in looked_at for path in files_in(folder)):
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


def _json_damages(ctx: PoolContext, path: Path) -> Iterator[Damage]:
    advice = "bring back a copy of the file as it was; what reads it refuses it"
    repair: Callable[[], None] | None = None
    if path == ctx.store.root / KEYS_FILE:
        advice, repair = "curate verify --repair removes it: stored tables tell which tar has which key", path.unlink
    yield from json_damages(path, "record", advice, repair)


def _cost_damages(path: Path) -> Iterator[Damage]:
    if damaged := damaged_lines(path):
        advice = "curate verify --repair leaves them out; what they recorded of an attempt is lost"
        yield Damage(
            path, "costs", "lines as written", f"{damaged} others", advice, (), partial(drop_damaged_lines, path)
        )


def _derived_damages(path: Path) -> Iterator[Damage]:
    if path.is_file() and not is_whole(path):
        advice = "curate verify --repair removes it: it is derived, and made again when it is needed"
        yield Damage(path, "derived", "a file that holds its own sha256", "other bytes", advice, (), path.unlink)


def _release_damages(folder: Path) -> Iterator[Damage]:
    for problem in verify_release(folder):
        yield Damage(folder, "release", "as it was released", problem, "put a copy of the release in its place")
