"""Running a pool without the UI: the same assets, the same instance, in this process."""

import filecmp
import itertools
import shlex
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import dagster as dg

from curation_assets.audit.index import refresh_index
from curation_assets.core.errors import EXPECTED_ERRORS, ExpectedError, StoreError
from curation_assets.core.progress import ProgressReporter
from curation_assets.core.settings import Settings, resource_path
from curation_assets.core.stages import STAGES
from curation_assets.defs.assets import partitions_definition, pool_assets
from curation_assets.defs.dead_runs import free_dead_runs, free_own_runs, process_tags, watched
from curation_assets.defs.event_log import write_events_in_batches
from curation_assets.defs.failures import COMMAND, POOL
from curation_assets.defs.names import asset_key, job_name
from curation_assets.defs.partitions import partitions_of_shards, register, size_of
from curation_assets.defs.steps import Observer, observer_resource
from curation_assets.flow.context import PoolContext
from curation_assets.flow.freshness import is_up_to_date
from curation_assets.flow.graph import tables_of
from curation_assets.flow.parallel import roles_of, warm_up
from curation_assets.flow.table import Grain, Phase, Table, TableReport, Tables
from curation_assets.foreign.dagster_runs import for_commands, set_dagster_home, sleep_while_waiting
from curation_assets.operations.failure_hook import FailureHook
from curation_assets.operations.removed_shards import missing_shards
from curation_assets.operations.shard_ranges import shards_in
from curation_assets.sources.declaration import Pool, remember_declared
from curation_assets.stores.documents import save_text
from curation_assets.stores.lease import brief_lock, pool_lease
from curation_assets.stores.shard_store import WHOLE

SHOWN_PROBLEMS = 10  # of a failed run, one per shard
RANGE_START, RANGE_END = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"


class InstanceError(ExpectedError):
    """Dagster's instance cannot be opened as its dagster.yaml says."""


class RunFailedError(ValueError):
    """A table could not be made, or one of its blocking checks failed. What is finished is kept."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = list(problems)
        more = f"\nand {len(problems) - SHOWN_PROBLEMS} more" if len(problems) > SHOWN_PROBLEMS else ""
        super().__init__(
            "\n".join(problems[:SHOWN_PROBLEMS])
            + more
            + "\nNothing that needs it was computed; what is finished is kept, and the same command goes on from here."
        )


def prepare_instance(settings: Settings) -> dg.DagsterInstance:
    """The instance under `settings.dagster_home`, made on first use from infra/dagster.yaml."""
    home = settings.dagster_home
    config = home / "dagster.yaml"
    if not config.exists():
        save_text(config, resource_path("infra/dagster.yaml").read_text(encoding="utf-8"))
    set_dagster_home(home)
    write_events_in_batches()
    with brief_lock(home / ".preparing"):  # two processes that make a database at once stamp its version twice
        try:
            instance = dg.DagsterInstance.get()
            _ = instance.run_storage, instance.event_log_storage, instance.schedule_storage  # made when they are read
        except Exception as error:
            if filecmp.cmp(config, resource_path("infra/dagster.yaml"), shallow=False):
                raise
            raise InstanceError(_why_not_opened(config, error)) from error
        return instance


def _why_not_opened(config: Path, error: Exception) -> str:
    """Why a person's own instance does not open: its file, environment, packages or server."""
    if isinstance(error, dg.DagsterInvalidConfigError):
        reasons = [" ".join(found.message.splitlines()[:2]) for found in error.errors]  # without their stack traces
    else:
        causes = [error, *([error.__cause__] if error.__cause__ else [])]
        reasons = [line for line in str(causes[-1]).splitlines() if line and "sqlalche.me" not in line]
    return (
        f"Dagster's instance of {config} cannot be opened: {'; '.join(dict.fromkeys(reasons))}. Look at the "
        "environment variables that the file names, at the server, and at the extra of its "
        "launcher (docs/operator/launchers.md)"
    )


def run_pool(
    settings: Settings,
    pool_name: str,
    *,
    progress: ProgressReporter | None = None,
    on_table: Callable[[TableReport], None] = lambda report: None,
    shards: Sequence[str] | None = None,
    tables: Sequence[str] | None = None,
    phase: Phase | None = None,
    on_notice: Callable[[str], None] = lambda sentence: None,
    on_left: Callable[[Sequence[Table]], None] = lambda tables: None,
    wait: bool = True,
) -> list[TableReport]:
    """Materialise every table of a pool (or those named), shard by shard, in Dagster runs of this process.

    `shards`: keys, numbers or ranges (`shards_in`); then no whole-pool table is made. `phase`: tables of one kind
    alone, as far as those of the other kind that they rest on are up to date; `on_left` receives the tables that wait
    for the other phase. Runs of phase 'shards' go on beside each other, others one at a time.
    What is up to date and known to the instance is reported without a run. `on_notice` receives sentences about runs
    that died and about what this one waits for; first of all for another command that holds the pool.
    Raises RunFailedError for what a person can mend; for a bug, what Dagster raises; where not `wait`, PoolHeldError.
    A second call resumes.
    """
    phase = phase_of(shards, phase)
    named = f"run of {pool_name}"
    with (
        pool_lease(settings.work(pool_name), named, on_notice=on_notice, wait=wait, shared=phase == "shards"),
        ExitStack() as last,
    ):
        hook = FailureHook.of(settings)
        instance = for_commands(prepare_instance(settings))
        sleep_while_waiting()
        for sentence in (*free_dead_runs(instance), *free_own_runs(instance, {POOL: pool_name})):
            on_notice(sentence)
        remember_declared(settings, pool_name)
        ctx = PoolContext.open(settings, pool_name)
        declared = tables_of(ctx)
        _check_names(pool_name, declared, tables, shards)
        keys = ctx.shards()
        if not keys:
            raise ValueError(f"pool {pool_name!r} has no shards; look at its declaration in {settings.pools_root}")
        # stored shards without a source still count: where a cut changes, they are judged by it
        missing = missing_shards(ctx, keys)
        # all: in the order of their keys, whoever comes first
        register(instance, ctx, [*keys, *missing])
        if shards is not None:
            chosen = set(shards_in(shards, [*keys, *missing]))
            keys, missing = [key for key in keys if key in chosen], [key for key in missing if key in chosen]
        definitions = pool_assets(settings, pool_name)
        last.push(partial(_refresh_index, ctx, declared))
        reports: list[TableReport] = []

        def table_done(report: TableReport) -> None:
            reports.append(report)
            on_table(report)

        problems: list[tuple[str, Exception | None]] = []
        observer = Observer(progress, table_done, lambda sentence, error: problems.append((sentence, error)), on_notice)
        left: dict[str, Table] = {}  # of the other phase and not up to date, and what rests on it
        for group in phases(list(declared.values()), tables):
            of_derived = sorted([*keys, *missing])
            parts_of = {
                table.name: table.partitions(of_derived if STAGES[table.stage].is_derived else keys) for table in group
            }
            is_of_phase = phase is None or (group[0].grain == "shard") == (phase == "shards")
            for table in group:  # inputs first
                if not left.keys().isdisjoint(table.inputs) or not (
                    is_of_phase or _is_made(ctx, table, parts_of[table.name], declared)
                ):
                    left[table.name] = table
            if not is_of_phase:
                continue
            group = [table for table in group if table.name not in left]
            up_to_date = _up_to_date(ctx, group, parts_of, declared, instance)
            for table in (table for table in group if table.name in up_to_date):
                table_done(_report_of_up_to_date(ctx, table, parts_of[table.name]))
            waiting = [table for table in group if table.name not in up_to_date]
            if waiting:
                if roles := roles_of(waiting):
                    warm_up(settings, roles)
                try:
                    with watched(instance, on_notice):
                        _run_phase(ctx.pool, waiting, keys, definitions, instance, observer)
                        derived = [table for table in waiting if STAGES[table.stage].is_derived]
                        if derived and missing and group[0].grain == "shard":
                            _run_phase(ctx.pool, derived, missing, definitions, instance, observer)
                except Exception as error:  # Dagster raises what the step raised; a bug goes on as it is
                    if hook is not None:
                        _report_failure(hook, pool_name, group[0].grain, problems, error, on_notice)
                    bugs = [one for _, one in problems if one and not isinstance(one, EXPECTED_ERRORS)]
                    if bugs or not problems:
                        raise
                    raise RunFailedError([sentence for sentence, _ in problems]) from None
        on_left(list(left.values()))
        return reports


def _refresh_index(ctx: PoolContext, declared: Tables, failure: type[BaseException] | None, *_: object) -> None:
    """Bring up to date what `curate plan` reads, after a run that failed or was stopped, too.

    `failure`: of that run; a table that is damaged then is no news that may take its place.
    """
    with suppress(StoreError) if failure else nullcontext():
        refresh_index(ctx.store, declared)


def phase_of(shards: Sequence[str] | None, phase: Phase | None) -> Phase | None:
    """The phase of a run: with `shards`, per-shard tables alone. Raises ValueError for shards of phase 'pool'."""
    if shards is not None and phase == "pool":
        raise ValueError("phase 'pool' makes tables of the whole pool; give shards without it, or it without shards")
    return phase if shards is None else "shards"


def _report_failure(
    hook: FailureHook,
    pool_name: str,
    grain: Grain,
    problems: Sequence[tuple[str, Exception | None]],
    error: Exception,
    on_notice: Callable[[str], None],
) -> None:
    sentences = [sentence for sentence, _ in problems] or [f"{type(error).__name__}: {error}"]
    warning = hook.report(pool_name, sentences, job=job_name(pool_name, grain), command=command_line())
    if warning is not None:
        on_notice(warning)


def _check_names(pool_name: str, declared: Tables, tables: Sequence[str] | None, shards: Sequence[str] | None) -> None:
    """Raises ValueError for tables that the pool does not make, or whole-pool ones where shards are named."""
    unknown = sorted(set(tables or ()) - set(declared))
    if unknown:
        raise ValueError(f"pool {pool_name!r} has no tables {unknown}; it has {', '.join(declared)}")
    whole = [name for name in tables or () if declared[name].grain != "shard"] if shards is not None else []
    if whole:
        raise ValueError(f"{', '.join(whole)} cannot be made of some shards alone; leave out the shards")


def _is_made(ctx: PoolContext, table: Table, parts: Sequence[str | None], declared: Tables) -> bool:
    """Whether a table is up to date and no blocking check failed, whichever instance knows of it."""
    is_blocked = not ctx.store.blocked(table.name).keys().isdisjoint(part or WHOLE for part in parts)
    return not is_blocked and all(is_up_to_date(ctx, table, part, tables=declared) for part in parts)


def _up_to_date(
    ctx: PoolContext,
    phase: Sequence[Table],
    parts_of: Mapping[str, Sequence[str | None]],
    declared: Tables,
    instance: dg.DagsterInstance,
) -> set[str]:
    """Names of the phase's tables that need no run: up to date, inputs too, materialised in this instance, and no
    blocking check failed when they were."""
    up_to_date: set[str] = set()
    names = {table.name for table in phase}
    for table in phase:  # inputs first
        if any(name in names and name not in up_to_date for name in table.inputs):
            continue
        key = asset_key(ctx.pool, table.name)
        parts = parts_of[table.name]
        wanted = [part for part in parts if part is not None]
        if table.grain == "shard":
            wanted = partitions_of_shards(wanted, size_of(ctx))
        is_shown = _is_shown_as_made(instance, key, partitions_definition(ctx.pool.name, table), wanted)
        if is_shown and _is_made(ctx, table, parts, declared):
            up_to_date.add(table.name)
    return up_to_date


def _is_shown_as_made(
    instance: dg.DagsterInstance, key: dg.AssetKey, partitions: dg.PartitionsDefinition | None, wanted: Sequence[str]
) -> bool:
    """Whether the UI shows an asset, or these partitions of it, as made, and not as what failed since."""
    if partitions is None:
        records = instance.get_asset_records([key])
        entry = records[0].asset_entry if records else None
        made = entry.last_materialization_record if entry else None
        if entry is None or made is None:
            return False
        last = instance.get_run_by_id(entry.last_run_id) if entry.last_run_id not in (None, made.run_id) else None
        return last is None or last.status != dg.DagsterRunStatus.FAILURE
    if not instance.get_materialized_partitions(key).issuperset(wanted):
        return False
    statuses = instance.get_status_by_partition(key, wanted, partitions) or {}
    return not any(status and status.value == "FAILED" for status in statuses.values())


def _report_of_up_to_date(ctx: PoolContext, table: Table, parts: Sequence[str | None]) -> TableReport:
    manifests = [ctx.store.manifest(table.name, part) for part in parts]
    rows = sum(manifest.row_count for manifest in manifests if manifest is not None)
    return TableReport(table=table.name, seconds=0.0, row_count=rows, reused=len(parts), computed=0)


def phases(declared: Sequence[Table], only: Sequence[str] | None = None) -> list[list[Table]]:
    """Group tables into as few runs as possible: those of one grain at a time, inputs first."""
    requested = [table for table in declared if only is None or table.name in only]
    done: set[str] = {table.name for table in declared} - {table.name for table in requested}
    result: list[list[Table]] = []
    for grain in itertools.cycle(("shard", "pool", "training")):
        if len(done) >= len({table.name for table in declared}):
            return result
        phase: list[Table] = []
        for table in requested:  # already sorted, inputs first
            if table.grain == grain and table.name not in done and done.issuperset(table.inputs):
                phase.append(table)
                done.add(table.name)
        if phase:
            result.append(phase)
    return result


def _run_phase(
    pool: Pool,
    phase: Sequence[Table],
    keys: Sequence[str],
    definitions: Sequence[dg.AssetsDefinition],
    instance: dg.DagsterInstance,
    observer: Observer,
) -> None:
    selection = [asset_key(pool, table.name) for table in phase]
    runs: Sequence[Mapping[str, str]] = [{}]
    if phase[0].grain == "shard":
        known = instance.get_dynamic_partitions(pool.name)
        blocks = set(partitions_of_shards(keys, size_of(pool)))
        runs = [{RANGE_START: first, RANGE_END: last} for first, last in stretches(known, blocks)]
        observer = replace(observer, shards=frozenset(keys))
    elif phase[0].grain == "training":
        runs = [{RANGE_START: phase[0].keys[0], RANGE_END: phase[0].keys[-1]}]
    name = job_name(pool.name, phase[0].grain)  # as the UI's job of these tables
    job = dg.Definitions(
        assets=definitions,
        jobs=[dg.define_asset_job(name, dg.AssetSelection.assets(*selection))],
        resources=observer_resource(observer),
    ).resolve_job_def(name)
    named = {
        POOL: pool.name,
        "curation/phase": ", ".join(dict.fromkeys(table.stage for table in phase)),
        COMMAND: command_line(),
        "dagster/max_retries": "0",  # who gave the command tries again, not the daemon
    }
    failed: list[Exception] = []
    for tags in runs:  # a bad shard harms no neighbour, in whichever stretch
        try:
            job.execute_in_process(
                instance=instance,
                run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},  # the observer reports
                tags={**tags, **named, **process_tags()},
            )
        except dg.DagsterExecutionInterruptedError as stop:  # SIGINT or SIGTERM, which Dagster takes for itself
            raise KeyboardInterrupt from stop
        except Exception as error:  # raised below, once the other stretches have run
            failed.append(error)
    if len(failed) > 1:
        raise ExceptionGroup(f"{len(failed)} of {len(runs)} stretches of shards failed", failed)
    if failed:
        raise failed[0]


def command_line() -> str:
    """What made this process, for people who look at its runs.

    Of other commands than `run` and `demo` no arguments: those of a takedown may name what must not stay in a log.
    """
    program, *words = sys.argv
    name = Path(program).name
    if name != "curate":
        return name
    return shlex.join([name, *(words if words[:1] in (["run"], ["demo"]) else words[:1])])


def stretches(known: Sequence[str], keys: Collection[str], at_most: int = 0) -> list[tuple[str, str]]:
    """First and last of each stretch of `known` that consists of `keys` alone: Dagster runs whole stretches.

    `at_most`: a longer stretch is cut into pieces of so many keys; 0: stretches of any length.
    """
    ranges = []
    for is_requested, group in itertools.groupby(known, lambda key: key in keys):
        stretch = list(group)
        if is_requested:
            size = at_most or len(stretch)
            pieces = [stretch[start : start + size] for start in range(0, len(stretch), size)]
            ranges += [(piece[0], piece[-1]) for piece in pieces]
    return ranges
