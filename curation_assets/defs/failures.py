"""Failed runs of the UI and the daemon, and killed ones of `curate run`, reach the hook of CURATION_ON_FAILURE."""

import dagster as dg

from curation_assets.core.settings import Settings
from curation_assets.defs.dead_runs import HIDDEN, KILLED
from curation_assets.defs.metadata import WRONG
from curation_assets.defs.names import pool_and_table
from curation_assets.defs.records import errors_of
from curation_assets.operations.failure_hook import FailureHook

POOL, COMMAND = "curation/pool", f"{HIDDEN}command"  # tags of a run


def problems_of(instance: dg.DagsterInstance, run: dg.DagsterRun) -> list[str]:
    """What made a run fail, one sentence each: blocking checks with their shards, then what steps raised."""
    checks, errors = [], []
    for record in instance.get_records_for_run(run.run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION).records:
        event = record.event_log_entry.dagster_event
        outcome = event.asset_check_evaluation_data if event else None
        if outcome is None or outcome.passed or outcome.severity != dg.AssetCheckSeverity.ERROR:
            continue
        _, table = pool_and_table(outcome.asset_key.path)
        wrong = outcome.metadata.get(WRONG)
        rows = wrong.records if isinstance(wrong, dg.TableMetadataValue) else []
        checks += [f"{table} of shard {row.data['where']}: {row.data['what']} ({outcome.check_name})" for row in rows]
    for step, _, cause in errors_of(instance, run):
        if cause is not None and "AssetCheckFailed" not in (cause.cls_name or ""):
            errors.append(f"{step}: {cause.message.strip()}")
    return [*checks, *errors]


def failure_sensor(settings: Settings) -> dg.SensorDefinition | None:
    """Tells the hook of failed runs; None where there is no hook. `curate run` tells it by itself, unless it is killed.

    Raises what FailureHook.of raises.
    """
    hook = FailureHook.of(settings)
    if hook is None:
        return None

    @dg.run_failure_sensor(
        name="failed_runs",
        description="Tells the command or webhook of CURATION_ON_FAILURE of failed runs.",
        minimum_interval_seconds=30,
        default_status=dg.DefaultSensorStatus.RUNNING,
        monitor_all_code_locations=True,
    )
    def failed_runs(context: dg.RunFailureSensorContext) -> None:
        run = context.dagster_run
        if COMMAND in run.tags and KILLED not in run.tags:
            return
        problems = problems_of(context.instance, run) or [context.failure_event.message or "no reason was recorded"]
        sentence = hook.report(
            _pool_of(run), problems, job=run.job_name, runs=[run.run_id], command=run.tags.get(COMMAND)
        )
        if sentence is not None:
            context.log.warning(sentence)

    return failed_runs


def _pool_of(run: dg.DagsterRun) -> str | None:
    selected = [pool_and_table(key.path)[0] for key in run.asset_selection or ()]
    return run.tags.get(POOL) or (selected[0] if selected else None)
