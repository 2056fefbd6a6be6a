"""The nightly schedule: files, opt-outs, drift and freshness of every pool, then what is removed for its age."""

import time
from collections.abc import Callable, Sequence

import dagster as dg

from curation_assets.core.progress import LogLines, ProgressReporter
from curation_assets.core.settings import Settings
from curation_assets.defs.dead_runs import PID, process_tags
from curation_assets.defs.night_checks import found_by_night
from curation_assets.defs.old_runs import remove_old
from curation_assets.flow.context import PoolContext
from curation_assets.flow.graph import tables_of
from curation_assets.operations.nightly import LOOKS, Findings, Part, look_at_declarations, look_at_weights

CRON = "0 3 * * *"
SHOWN_ROWS = 50


def nightly(settings: Settings, pool_names: Sequence[str]) -> dg.ScheduleDefinition:
    """Job `nightly` at three: the parts of every pool, and what the home holds besides."""

    def ops() -> None:
        _look_at(settings, pool_names)
        _look_op("declarations", lambda context, progress: look_at_declarations(settings))()
        _look_op("weights", lambda context, progress: look_at_weights(progress))()
        _old_op(settings)()

    return _every_night("nightly", ops, "Files, opt-outs, drift and freshness of every pool; old records are removed.")


def nightly_of(settings: Settings, pool_name: str) -> dg.ScheduleDefinition:
    """Job `POOL_nightly` at three, for projects that load a pool as a component: the parts of that pool."""
    about = f"Files, opt-outs, drift and freshness of pool {pool_name}."
    return _every_night(f"{pool_name}_nightly", lambda: _look_at(settings, [pool_name]), about)


def _look_at(settings: Settings, pool_names: Sequence[str]) -> None:
    for pool_name in pool_names:
        for part in LOOKS:
            _pool_op(settings, pool_name, part)()


def _every_night(name: str, ops: Callable[[], None], description: str) -> dg.ScheduleDefinition:
    """An op that finds a problem fails and names it; the tables that it is about have it as a check."""
    return dg.ScheduleDefinition(
        name=name,
        job=dg.job(name=name, executor_def=dg.in_process_executor, description=description)(ops),
        cron_schedule=CRON,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=description,
    )


def _pool_op(settings: Settings, pool_name: str, part: Part) -> dg.OpDefinition:
    def look(context: dg.OpExecutionContext, progress: ProgressReporter) -> Findings:
        ctx = PoolContext.open(settings, pool_name, progress=progress)
        found = LOOKS[part](ctx, progress)
        for result in found_by_night(ctx, tables_of(ctx).values(), part, found):
            context.log_event(result)  # type: ignore[arg-type]  # it takes them, too
        return found

    return _look_op(f"{part.replace('-', '_')}_{pool_name}", look)


def _look_op(name: str, look: Callable[[dg.OpExecutionContext, ProgressReporter], Findings]) -> dg.OpDefinition:
    @dg.op(name=name)
    def look_and_tell(context: dg.OpExecutionContext) -> None:
        _tag(context)
        found = look(context, LogLines(context.log.info))
        context.log.info(found.summary)
        table = dg.MetadataValue.json(found.rows[:SHOWN_ROWS])
        if found.problems:
            raise dg.Failure("\n".join([found.summary, *found.problems[:SHOWN_ROWS]]), {"found": table})
        context.add_output_metadata({"summary": found.summary, "found": table})

    return look_and_tell


def _old_op(settings: Settings) -> dg.OpDefinition:
    @dg.op(name="remove_old")
    def remove_old_records(context: dg.OpExecutionContext) -> None:
        _tag(context)
        removed = remove_old(settings, context.instance, time.time())
        said = ", ".join(map(str, removed)) or "nothing: CURATION_KEEP_DAYS is 0"
        context.log.info(f"removed, older than {settings.keep_days} days: {said}")
        context.add_output_metadata({one.what: one.count for one in removed})

    return remove_old_records


def _tag(context: dg.OpExecutionContext) -> None:
    """Name this process in the run's tags, as runs of assets do."""
    if PID not in context.run.tags:
        context.instance.add_run_tags(context.run.run_id, process_tags())
