"""Checks of tables that job nightly looks at: files, staleness, opt-outs, drift. They stop nothing.

A run of the table settles them for the shards that it makes; what was found of others stays until the next night.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import dagster as dg

from curation_assets.core.table_names import CANARY, DOWNLOADS
from curation_assets.defs.metadata import WRONG, evaluation, wrong_table
from curation_assets.defs.names import asset_key
from curation_assets.defs.records import newest_evaluation
from curation_assets.flow.context import PoolContext
from curation_assets.flow.table import Table
from curation_assets.operations.nightly import Findings, Part
from curation_assets.operations.opt_out_checks import can_be_checked

BY_NIGHT = "Job nightly looks; a run settles it for what it makes."
COUNT = "how many"


@dataclass(frozen=True)
class NightCheck:
    """One of them. `table`: of that table alone; None: of each. `is_settled_by_run`: making a shard again mends it."""

    name: str
    description: str
    table: str | None = None
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.WARN
    is_settled_by_run: bool = True


CHECKS: Mapping[Part, NightCheck] = {
    "files": NightCheck(
        "files_intact", f"Its files hold the bytes that were written. {BY_NIGHT}", severity=dg.AssetCheckSeverity.ERROR
    ),
    "freshness": NightCheck("up_to_date", f"Nothing that it was made of is another one now. {BY_NIGHT}"),
    "opt-outs": NightCheck(
        "no_late_opt_outs", "No owner of an image opted out after its download. Job nightly looks at some each night.",
        DOWNLOADS, is_settled_by_run=False,
    ),
    "drift": NightCheck(
        "no_drift", "Models in force score the frozen samples as the reference builds do. Job nightly looks.",
        CANARY, is_settled_by_run=False,
    ),
}  # fmt: skip


def checks_of(table: Table, ctx: PoolContext) -> list[NightCheck]:
    """The checks that a table of a pool has."""
    return [
        check
        for part, check in CHECKS.items()
        if check.table in (None, table.name) and (part != "opt-outs" or can_be_checked(ctx))
    ]


def found_by_night(
    ctx: PoolContext, tables: Collection[Table], part: Part, found: Findings
) -> Iterator[dg.AssetCheckEvaluation]:
    """What a part of job nightly found, as a result of each table that it is about and that is there."""
    for table in tables:
        if CHECKS[part] in checks_of(table, ctx) and ctx.store.asset_path(table.name).exists():
            result = _result(CHECKS[part], found.wrong.get(table.name, {}))
            yield evaluation(asset_key(ctx.pool, table.name), result, is_blocking=False)


def after_a_run(
    instance: dg.DagsterInstance, ctx: PoolContext, table: Table, made: Collection[str]
) -> list[dg.AssetCheckResult]:
    """Results for a run of a table that made these shards ('pool' of a whole-pool table): what was found of others."""
    results = []
    for check in checks_of(table, ctx):
        last = newest_evaluation(instance, dg.AssetCheckKey(asset_key(ctx.pool, table.name), check.name))
        if last is None or last.passed:
            results.append(_result(check, {}))
            continue
        shown = last.metadata.get(WRONG)
        rows = shown.records if isinstance(shown, dg.TableMetadataValue) else []
        left = {str(row.data["where"]): str(row.data["what"]) for row in rows}
        if check.is_settled_by_run:
            left = {where: what for where, what in left.items() if where not in made}
        count = last.metadata.get(COUNT)
        unseen = int(str(count.value)) - len(rows) if count is not None else 0
        results.append(_result(check, left, unseen))
    return results


def _result(check: NightCheck, wrong: Mapping[str, str], more: int = 0) -> dg.AssetCheckResult:
    """`more`: how many further parts are wrong of which only the number is known."""
    count = len(wrong) + more
    description = None
    if count:
        description = next(iter(wrong.values()), "look again: job nightly, or `curate verify --nightly`")
    if count > 1:
        description = f"{description} (and {count - 1} more)"
    return dg.AssetCheckResult(
        check_name=check.name,
        passed=not count,
        severity=check.severity,
        description=description,
        metadata={COUNT: count, WRONG: wrong_table(wrong)} if count else {},
    )
