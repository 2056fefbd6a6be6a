"""curate refit: fit the frozen cuts of a pool again, and report which verdicts that flips.

What is frozen (`Table.is_frozen`) stays until it is removed here; the next run fits it again. The verdicts from before
are kept under `recuts/` of the pool's work folder until the report of the flips is written there. They are put aside
whole, with what will be removed, before anything is: a refit that was killed goes on from there.
"""

import contextlib
import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq

from curation_assets.core.json_files import read_json
from curation_assets.core.stages import STAGES
from curation_assets.core.table_names import DUPLICATES
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import policies_of
from curation_assets.flow.graph import with_upstream
from curation_assets.flow.table import Table
from curation_assets.selection.rows import ROW_KEY
from curation_assets.stages.filtered.tables import cut_of
from curation_assets.stores.atomic import remove_path, replacing, write_text_atomically
from curation_assets.stores.documents import save_document
from curation_assets.stores.manifest import utc_now
from curation_assets.stores.parquet import read_parquet
from curation_assets.stores.shard_store import MissingTableError

REFITS_FOLDER = "recuts"  # relative to the pool's work folder
BEFORE, REPORT = "before", "flips.json"  # of one refit; the report ends it
_PLAN, _REMOVED = "refit.json", "removed"  # in BEFORE: what is refitted, and that the frozen tables are removed
_ADVICE = "remove the folder of that refit, and run `curate refit POOL` again"
_COLUMNS = ["sample_id", *ROW_KEY, "verdict", "reason"]
_EMPTY = pl.DataFrame(schema={name: pl.Int64 if name == "source_row" else pl.String for name in _COLUMNS})


@dataclass(frozen=True)
class Refit:
    """A refit under way: `folder` holds the verdicts from before."""

    folder: Path
    policies: tuple[str, ...]
    tables: tuple[str, ...]  # frozen ones, to be removed and fitted again

    @property
    def before(self) -> Path:
        """Folder of the verdicts and cuts from before."""
        return self.folder / BEFORE


def begin_refit(
    ctx: PoolContext, tables: Mapping[str, Table], policies: Sequence[str] | None = None, *, with_fits: bool = False
) -> Refit:
    """Put the verdicts aside and unfreeze the cuts of `policies` (None: all), and the ranges of recipes they rank by.

    `with_fits`: length statistics, fusion weights and students too. Raises ValueError for an unknown policy,
    MissingTableError for one that has no verdicts yet.
    """
    known = [policy.name for policy in policies_of(ctx)]
    unknown = sorted(set(policies or ()) - set(known))
    if unknown:
        raise ValueError(f"no policies {unknown}; known: {', '.join(sorted(known))}")
    chosen = tuple(name for name in known if policies is None or name in policies)
    for name in chosen:
        if not ctx.store.partitions(f"filtered/{name}"):
            raise MissingTableError(f"policy {name!r} has no verdicts yet; `curate run {ctx.pool.name}` makes them")
    frozen = frozen_upstream(tables, [f"filtered/{name}" for name in chosen], with_fits=with_fits)
    refit = Refit(_next_folder(ctx), chosen, (*frozen, DUPLICATES))
    with replacing(refit.before) as draft:
        draft.mkdir()
        for name in chosen:
            (draft / name).mkdir()
            for shard in ctx.store.partitions(f"filtered/{name}"):
                ctx.store.read(f"filtered/{name}", shard, _COLUMNS).write_parquet(draft / name / f"{shard}.parquet")
            save_document(draft / f"{name}.json", cut_of(ctx, name).to_dict())
        plan = {"policies": refit.policies, "tables": refit.tables}
        save_document(draft / _PLAN, plan)
    unfreeze(ctx, refit)
    return refit


def unfreeze(ctx: PoolContext, refit: Refit) -> None:
    """Remove the frozen tables of a refit, once: what the run after it has fitted stays."""
    if (refit.before / _REMOVED).is_file():
        return
    for name in refit.tables:
        ctx.store.remove(name)
    write_text_atomically(refit.before / _REMOVED, "")


def frozen_upstream(tables: Mapping[str, Table], names: Sequence[str], *, with_fits: bool) -> list[str]:
    """Frozen tables that `names` rest on: ranges and cuts (of derived stages), or all fits. Sorted."""
    frozen = (table for table in with_upstream(tables, names).values() if table.is_frozen)
    return sorted(table.name for table in frozen if with_fits or STAGES[table.stage].is_derived)


def finish_refit(ctx: PoolContext, refit: Refit) -> dict[str, Any]:
    """Write `flips.parquet` and `flips.json` into the refit's folder, after a run; return the content of the JSON."""
    records: list[dict[str, Any]] = []
    with replacing(refit.folder / "flips.parquet") as temporary, contextlib.ExitStack() as stack:
        schema = flips(_EMPTY, _EMPTY).select(pl.lit("").alias("policy"), pl.all()).to_arrow().schema
        file = stack.enter_context(pq.ParquetWriter(temporary, schema, compression="zstd"))
        for name in refit.policies:
            record: Counter[str] = Counter(rows=0, kept_before=0, kept_after=0)
            flipped: Counter[tuple[str, str]] = Counter()
            for changed in _flips_of(ctx, refit, name, record):
                file.write_table(changed.to_arrow().cast(schema))
                flipped.update(zip(changed["before"], changed["after"], strict=True))
            counts = [{"before": was, "after": now, "rows": rows} for (was, now), rows in sorted(flipped.items())]
            records.append(
                {
                    "policy": name,
                    **record,
                    "flips": counts,
                    "cut_before": read_json(refit.before / f"{name}.json", dict, advice=_ADVICE),
                    "cut_after": cut_of(ctx, name).to_dict(),
                }
            )
    report = {"pool": ctx.pool.name, "written_at": utc_now(), "policies": records}
    save_document(refit.folder / REPORT, report)
    remove_path(refit.before)
    return report


def _flips_of(ctx: PoolContext, refit: Refit, name: str, record: Counter[str]) -> Iterator[pl.DataFrame]:
    """`flips` of a policy, shard after shard; `record` takes its counts."""
    before = {path.stem: path for path in (refit.before / name).glob("*.parquet")}
    after = ctx.store.partitions(f"filtered/{name}")
    for shard in sorted(before.keys() | set(after)):
        old = read_parquet(before[shard]) if shard in before else _EMPTY
        new = ctx.store.read(f"filtered/{name}", shard, _COLUMNS) if shard in after else _EMPTY
        record["rows"] += new.height
        record["kept_before"] += int((old["verdict"] == "kept").sum())
        record["kept_after"] += int((new["verdict"] == "kept").sum())
        yield flips(old, new).select(pl.lit(name).alias("policy"), pl.all())


def flips(before: pl.DataFrame, after: pl.DataFrame) -> pl.DataFrame:
    """Rows whose verdict or reason is another: sample_id, shard, source_row, before, after and both reasons.

    A row that is on one side only is 'absent' on the other.
    """
    joined = before.join(after, on=["sample_id", *ROW_KEY], how="full", coalesce=True, suffix="_after")
    compared = joined.select(
        "sample_id",
        *ROW_KEY,
        pl.col("verdict").fill_null("absent").alias("before"),
        pl.col("verdict_after").fill_null("absent").alias("after"),
        pl.col("reason").alias("reason_before"),
        "reason_after",
    )
    return compared.filter(pl.col("before") != pl.col("after")).sort(*ROW_KEY)


def _of_plan(folder: Path, plan: dict[str, list[str]]) -> Refit:
    return Refit(folder, tuple(plan["policies"]), tuple(plan["tables"]))


def unfinished(ctx: PoolContext) -> Refit | None:
    """The refit whose run did not end, if there is one; `unfreeze` goes on with it."""
    for folder in _reports(ctx):
        if (folder / BEFORE / _PLAN).is_file() and not (folder / REPORT).is_file():
            of_plan = functools.partial(_of_plan, folder)
            return read_json(folder / BEFORE / _PLAN, of_plan, advice=_ADVICE)
    return None


def _next_folder(ctx: PoolContext) -> Path:
    """Where the next refit lies: beside the others, or where one was killed before it was written down.

    What a kill left of a finished one's verdicts is removed.
    """
    reports = _reports(ctx)
    for folder in reports:
        if (folder / REPORT).is_file():
            remove_path(folder / BEFORE)
        elif not (folder / BEFORE / _PLAN).is_file():
            remove_path(folder / BEFORE)  # as earlier versions wrote it
            return folder
    last = int(reports[-1].name) if reports else 0  # earlier ones may have been removed for their age
    return ctx.store.root / REFITS_FOLDER / f"{last + 1:04d}"


def finished_reports(ctx: PoolContext) -> list[Path]:
    """Folders of the refits that ended, oldest first."""
    return [folder for folder in _reports(ctx) if (folder / REPORT).is_file()]


def _reports(ctx: PoolContext) -> list[Path]:
    return sorted((ctx.store.root / REFITS_FOLDER).glob("[0-9]*"))
