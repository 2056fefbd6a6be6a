"""Whether what lies on the disk is what was written: every file with a recorded hash is read again, nothing remembered.

Each place brings its own checks (`holders.py` of its folder): sources against what was registered, parts of tables,
downloads against their receipts, tables (their bytes, their content, the copy of their manifest), folders (links,
manifests, every file: ledgers, subsets, models, reports), exports, releases, records such as the denylist and
certificates; and the weights of the profile. What people wrote about a pool is compared with what the last run
read: they may have edited it, so a difference is named and is no damage (docs/decisions/0028).
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from curation_assets.core.json_files import DamagedFileError
from curation_assets.core.progress import ProgressReporter
from curation_assets.engines.weights_checks import shipped_weights, weights_of_profile
from curation_assets.flow.context import PoolContext
from curation_assets.flow.holder import all_holders
from curation_assets.flow.table import Tables
from curation_assets.outputs.explore import FOLDER as EXPLORE
from curation_assets.sources.declaration import changed_since_run
from curation_assets.stores.atomic import reload_folder, remove_path
from curation_assets.stores.catalog import rebuild_catalog
from curation_assets.stores.damage import Check, Damage
from curation_assets.stores.documents import read_document
from curation_assets.stores.releases import releases_root

DERIVED = (
    "catalog.duckdb and the thumbnails of `curate explore` are derived and were not compared; "
    "--repair makes them again. Logs and Dagster's records have no hash of ours: "
    "`curate doctor` has SQLite read the latter"
)
_CHANGED = (
    "is not what the last `curate run` read. If a person changed it, the next run takes it so; else bring back a copy"
)
PENDING = "repair.json"  # in a pool's folder while it is repaired: the tables to be made again


@dataclass(frozen=True)
class Verified:
    """What was looked at, and what was found."""

    checks: int
    damages: list[Damage]
    notes: list[str] = field(default_factory=list)  # what a person should look at, and is no damage


def verify_pool(ctx: PoolContext, tables: Tables, progress: ProgressReporter | None = None) -> Verified:
    """Read everything that a pool holds and compare it with what was recorded. Changes nothing.

    Of a home in a bucket every object of the pool is fetched anew: a damaged copy is no damage.
    """
    reload_folder(ctx.store.root)
    reload_folder(releases_root(ctx.settings.home, ctx.pool.name))
    checks = [check for holder in all_holders() for check in holder.checks(ctx, tables)]
    found = _run(f"verify {ctx.pool.name}", [*checks, *weights_of_profile(ctx.profile)], progress or ctx.progress)
    with contextlib.suppress(DamagedFileError):  # named among the records
        return replace(found, notes=[f"{path} {_CHANGED}" for path in changed_since_run(ctx.settings, ctx.pool.name)])
    return found


def remake_derived(ctx: PoolContext) -> None:
    """Make again, or remove until it is looked at next, what has no hash since it is derived (DERIVED)."""
    remove_path(ctx.store.root / EXPLORE)
    if ctx.settings.catalog.is_file():
        rebuild_catalog(ctx.settings.home)


def unfinished_repair(work: Path) -> list[str]:
    """Tables that a repair which was killed had still to make again: a file that it removed shows no damage."""
    advice = f"remove the file, and run `curate verify {work.name} --repair` again"
    return read_document(work / PENDING, list, advice=advice) or []


def verify_weights(progress: ProgressReporter) -> Verified:
    """Read all weights that ship with this package, and those of installed packages that are pinned."""
    return _run("verify weights", list(shipped_weights()), progress)


def _run(label: str, checks: Sequence[Check], progress: ProgressReporter) -> Verified:
    damages: list[Damage] = []
    with progress.task(label, len(checks)) as advance:
        for check in checks:
            if list(check()):  # a writer may have replaced it meanwhile: look again
                damages += check()
            advance(1)
    return Verified(len(checks), damages)
