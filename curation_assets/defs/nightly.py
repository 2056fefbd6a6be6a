"""The nightly schedule: files, opt-outs, drift and freshness of every pool, then what is removed for its age."""

import time
from collections.abc import Callable, Sequence
from functools import partial

import dagster as dg

from curation_assets.core.progress import LogLines, ProgressReporter
from curation_assets.core.settings import Settings
from curation_assets.defs.dead_runs import PID, process_tags
from curation_assets.defs.old_runs import remove_old
from curation_assets.flow.context import PoolContext
from curation_assets.operations.nightly import LOOKS, Findings, Part, look_at_declarations, look_at_weights

CRON = "0 3 * * *"
SHOWN_ROWS = 50


def nightly(settings: Settings, pool_names: Sequence[str]) -> dg.ScheduleDefinition:
    """Job `nightly` at three: an op for each part of every pool; one that finds a problem fails and names it."""

    @dg.job(
        name="nightly",
        executor_def=dg.in_process_executor,
        description="Files, opt-outs, drift and freshness of every pool; then old runs, logs and reports are removed.",
    )
    def job() -> None:
        for pool_name in pool_names:
            for part in LOOKS:
                _look_op(f"{part.replace('-', '_')}_{pool_name}", partial(_looked, settings, pool_name, part))()
        _look_op("declarations", lambda progress: look_at_declarations(settings))()
        _look_op("weights", look_at_weights)()
        _old_op(settings)()

    return dg.ScheduleDefinition(
        name="nightly",
        job=job,
        cron_schedule=CRON,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Damaged files, opt-outs, drift of models, stale tables; removes what is old.",
    )


def _looked(settings: Settings, pool_name: str, part: Part, progress: ProgressReporter) -> Findings:
    return LOOKS[part](PoolContext.open(settings, pool_name, progress=progress), progress)


def _look_op(name: str, look: Callable[[ProgressReporter], Findings]) -> dg.OpDefinition:
    @dg.op(name=name)
    def look_and_tell(context: dg.OpExecutionContext) -> None:
        _tag(context)
        found = look(LogLines(context.log.info))
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
        context.instance.add_run_tags(context.run_id, process_tags())
