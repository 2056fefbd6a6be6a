"""curate refit: fit the frozen cuts of a pool again, and report which verdicts that flips.

What is frozen (`Table.is_frozen`) stays until it is removed here; the next run fits it again. What will be removed is
written down first, with the cuts as they are (`recuts/NUMBER/refit.json` of the pool's work folder): a refit that was
killed goes on from there. The flips are what the verdict tables of that run remember of those that they replaced.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from curation_assets.audit.verdict_changes import verdict_changes
from curation_assets.core.json_files import read_json
from curation_assets.core.stages import STAGES
from curation_assets.core.table_names import DUPLICATES
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import policies_of
from curation_assets.flow.graph import with_upstream
from curation_assets.flow.table import Tables
from curation_assets.stages.filtered.tables import cut_of
from curation_assets.stores.documents import save_document
from curation_assets.stores.manifest import utc_now
from curation_assets.stores.shard_store import MissingTableError

REFITS_FOLDER = "recuts"  # relative to the pool's work folder
NOTE, REPORT = "refit.json", "flips.json"  # of one refit; the report ends it


@dataclass(frozen=True)
class Refit:
    """A refit under way."""

    folder: Path
    policies: Sequence[str]
    tables: Sequence[str]  # frozen ones, to be removed and fitted again
    begun_at: str  # UTC, ISO 8601
    before: Mapping[str, Mapping[str, Any]]  # policy → its cut, and how many rows it kept
    is_unfrozen: bool = False

    def write(self) -> None:
        """Write it down."""
        content = asdict(self)
        del content["folder"]
        save_document(self.folder / NOTE, content)


def begin_refit(
    ctx: PoolContext, tables: Tables, policies: Sequence[str] | None = None, *, with_fits: bool = False
) -> Refit:
    """Unfreeze the cuts of `policies` (None: all), and the ranges of recipes they rank by.

    `with_fits`: length statistics, fusion weights and students too. Raises ValueError for an unknown policy,
    MissingTableError for one that has no verdicts yet.
    """
    known = [policy.name for policy in policies_of(ctx)]
    unknown = sorted(set(policies or ()) - set(known))
    if unknown:
        raise ValueError(f"no policies {unknown}; known: {', '.join(sorted(known))}")
    chosen = [name for name in known if policies is None or name in policies]
    for name in chosen:
        if not ctx.store.partitions(f"filtered/{name}"):
            raise MissingTableError(f"policy {name!r} has no verdicts yet; `curate run {ctx.pool.name}` makes them")
    frozen = frozen_upstream(tables, [f"filtered/{name}" for name in chosen], with_fits=with_fits)
    before = {name: {"cut": cut_of(ctx, name).to_dict(), "kept": _rows_of(ctx, name).get("kept", 0)} for name in chosen}
    last = max((int(folder.name) for folder in _folders(ctx)), default=0)  # earlier ones may have been removed
    folder = ctx.store.root / REFITS_FOLDER / f"{last + 1:04d}"
    refit = Refit(folder, chosen, [*frozen, DUPLICATES], utc_now(), before)
    refit.write()
    unfreeze(ctx, refit)
    return refit


def unfreeze(ctx: PoolContext, refit: Refit) -> None:
    """Remove the frozen tables of a refit, once: what the run after it has fitted stays."""
    if refit.is_unfrozen:
        return
    for name in refit.tables:
        ctx.store.remove(name)
    replace(refit, is_unfrozen=True).write()


def frozen_upstream(tables: Tables, names: Sequence[str], *, with_fits: bool) -> list[str]:
    """Frozen tables that `names` rest on: ranges and cuts (of derived stages), or all fits. Sorted."""
    frozen = (table for table in with_upstream(tables, names).values() if table.is_frozen)
    return sorted(table.name for table in frozen if with_fits or STAGES[table.stage].is_derived)


def finish_refit(ctx: PoolContext, refit: Refit) -> dict[str, Any]:
    """Write `flips.json` into the refit's folder, after a run; return its content: per policy the rows, how many were
    kept before and after, its cuts, and the flips as 'kept → dropped' → rows."""
    flips = {changes.policy: changes.flips for changes in verdict_changes(ctx.store, refit.begun_at)}
    records = []
    for name in refit.policies:
        rows, before = _rows_of(ctx, name), refit.before[name]
        record = {"policy": name, "rows": sum(rows.values()), "flips": flips.get(name, {})}
        record |= {"kept_before": before["kept"], "kept_after": rows.get("kept", 0)}
        records.append({**record, "cut_before": before["cut"], "cut_after": cut_of(ctx, name).to_dict()})
    report = {"pool": ctx.pool.name, "written_at": utc_now(), "policies": records}
    save_document(refit.folder / REPORT, report)
    return report


def _rows_of(ctx: PoolContext, policy: str) -> dict[str, int]:
    """Verdict → rows of a policy's tables that have it."""
    verdicts = ctx.store.scan(f"filtered/{policy}").group_by(pl.col("verdict").cast(pl.String)).len()
    return dict(verdicts.collect(engine="streaming").iter_rows())


def unfinished(ctx: PoolContext) -> Refit | None:
    """The refit whose run did not end, if there is one; `unfreeze` goes on with it."""
    for folder in _folders(ctx):
        if (folder / NOTE).is_file() and not (folder / REPORT).is_file():
            advice = f"remove the folder of that refit, and run `curate refit {ctx.pool.name}` again"
            return read_json(folder / NOTE, functools.partial(_noted, folder), advice=advice)
    return None


def _noted(folder: Path, content: dict[str, Any]) -> Refit:
    return Refit(folder, **content)


def finished_reports(ctx: PoolContext) -> list[Path]:
    """Folders of the refits that ended, oldest first."""
    return [folder for folder in _folders(ctx) if (folder / REPORT).is_file()]


def _folders(ctx: PoolContext) -> list[Path]:
    """Folders of all refits, oldest first, without those that a kill left without a note."""
    notes = (ctx.store.root / REFITS_FOLDER).glob("[0-9]*/*.json")
    return sorted({path.parent for path in notes})
