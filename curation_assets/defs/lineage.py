"""A subset's lineage with Dagster's word on it, and its OpenLineage events."""

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

import dagster as dg

from curation_assets.audit.origin import Lineage, checked, lineage_of, lineage_of_tables
from curation_assets.core.errors import ExpectedError, install_extra
from curation_assets.core.validation import check_known
from curation_assets.defs.launch import prepare_instance
from curation_assets.defs.records import check_results, failures, materialisations
from curation_assets.flow.context import PoolContext
from curation_assets.flow.graph import tables_of
from curation_assets.stores.shard_store import MissingTableError

if TYPE_CHECKING:
    from openlineage.client.event_v2 import RunEvent


def recorded_lineage(ctx: PoolContext, table: str) -> Lineage:
    """Lineage of a table of a pool, every edge checked against Dagster's records."""
    try:
        lineage = lineage_of(ctx.store, table, pool=ctx.pool.name)
    except MissingTableError:
        check_known(f"pool {ctx.pool.name!r}", "table", [table], tables_of(ctx))
        raise
    instance = prepare_instance(ctx.settings)
    return checked(lineage, materialisations(instance, ctx.pool, lineage.tables))


def lineage_events(ctx: PoolContext, lineage: Lineage) -> "list[RunEvent]":
    """OpenLineage events of a lineage, with column lineage, check results and failed steps.

    Raises ExpectedError where the extra `lineage` is not installed.
    """
    try:
        from curation_assets.audit.openlineage_events import FailedStep, TableFacts, events_of
    except ModuleNotFoundError as error:
        raise ExpectedError(f"events of OpenLineage need {error.name}: {install_extra('lineage')}") from None
    instance = prepare_instance(ctx.settings)
    declared = tables_of(ctx)
    facts = {
        name: TableFacts(
            declared[name].description.split("\n\n```")[0],
            declared[name].shown.column_lineage,
            check_results(instance, ctx.pool, name, ["rows_conserved"]),
        )
        for name in lineage.tables
        if name in declared
    }
    failed = [
        FailedStep(failure.table, failure.run_id, failure.at, failure.message)
        for failure in failures(instance, ctx.pool)
        if failure.table in facts
    ]
    return events_of(lineage, ctx.store, facts=facts, failed=failed, engine_version=dg.__version__)


def events_since(ctx: PoolContext, tables: Iterable[str], since: datetime) -> "list[RunEvent]":
    """OpenLineage events of what was computed of `tables`, or failed, at `since` or later."""
    events = lineage_events(ctx, lineage_of_tables(ctx.store, tables, pool=ctx.pool.name))
    new = {event.run.runId for event in events if datetime.fromisoformat(event.eventTime) >= since}
    return [event for event in events if event.run.runId in new]  # with their START, which may be a moment earlier
