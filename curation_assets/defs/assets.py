"""One Dagster asset per table and pool, made from the flow's declarations."""

import functools
import hashlib
import resource
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import dagster as dg
import polars as pl

from curation_assets.core.progress import LogLines, ProgressReporter
from curation_assets.core.settings import Settings
from curation_assets.flow.conservation import counts_by_state, success_violations, violations
from curation_assets.flow.context import PoolContext
from curation_assets.flow.freshness import materialise_table, warnings_of
from curation_assets.flow.graph import tables_of
from curation_assets.flow.parallel import Outcome, materialise_model, materialise_shards, outcome_of
from curation_assets.flow.table import Table, TableReport
from curation_assets.outputs.report.pictures import picture_of, preview_of
from curation_assets.stores.shard_store import WHOLE, Materialised, named

MAX_SHARDS_PER_RUN = 32  # 64 partitions took 60 s in runs of many against 209 s in runs of one
PICTURES_PER_RUN = 8  # a table: drawing one takes ten times as long as fusing or judging its shard


@dataclass(frozen=True)
class Observer:
    """Who watches a run: `curate run` shows bars and a line per table; the UI gets log lines."""

    progress: ProgressReporter | None = None
    table_done: Callable[[TableReport], None] = lambda report: None
    problem: Callable[[str, Exception | None], None] = lambda sentence, error: None  # what makes the run fail


def observer_resource(observer: Observer | None = None) -> dict[str, dg.ResourceDefinition]:
    """The one resource that the assets need."""
    return {"observer": dg.ResourceDefinition.hardcoded_resource(observer or Observer())}


def asset_key(pool: str, table_name: str) -> dg.AssetKey:
    """Key of a table's asset: [pool, stage, name]."""
    return dg.AssetKey([pool, *table_name.split("/")])


@functools.cache
def partitions_of(pool: str) -> dg.DynamicPartitionsDefinition:
    """The shards of a pool."""
    return dg.DynamicPartitionsDefinition(name=pool)


def backfill_condition(cron_schedule: str) -> dg.AutomationCondition:
    """Scheduled backfill: at each tick, what is missing and can be made; nothing twice, nothing on failed checks."""
    return (
        dg.AutomationCondition.cron_tick_passed(cron_schedule)
        & dg.AutomationCondition.missing()
        & ~dg.AutomationCondition.in_progress()
        & ~dg.AutomationCondition.any_deps_missing()
        & dg.AutomationCondition.all_deps_blocking_checks_passed()
    )


def pool_assets(settings: Settings, pool_name: str) -> list[dg.AssetsDefinition]:
    """All assets of one pool, upstream first."""
    ctx = PoolContext.open(settings, pool_name)
    tables = tables_of(ctx)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category=dg.BetaWarning)  # backfill policies: known, and wanted
        return [_asset_of(settings, pool_name, table, tables, ctx) for table in tables.values()]


def _asset_of(
    settings: Settings, pool_name: str, table: Table, tables: dict[str, Table], declared: PoolContext
) -> dg.AssetsDefinition:
    key = asset_key(pool_name, table.name)
    is_sharded = table.grain == "shard"

    @dg.asset(
        key=key,
        deps=[asset_key(pool_name, name) for name in table.inputs],
        partitions_def=partitions_of(pool_name) if is_sharded else None,
        backfill_policy=dg.BackfillPolicy.multi_run(MAX_SHARDS_PER_RUN) if is_sharded else None,
        group_name=table.stage,
        code_version=table.version,
        description=table.description,
        kinds=set(table.kinds),
        metadata=_declared_metadata(table, pool_name),
        automation_condition=backfill_condition(declared.options.backfill_cron) if is_sharded else None,
        check_specs=_check_specs(table, key),
        pool=_concurrency_pool(table, declared),
        required_resource_keys={"observer"},
    )
    def table_asset(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult]:
        start = time.perf_counter()
        observer: Observer = context.resources.observer
        progress = observer.progress or LogLines(context.log.info)
        ctx = PoolContext.open(settings, pool_name, run_id=context.run_id, progress=progress)
        problems: dict[str, str] = {}
        failures: dict[str, str] = {}
        errors: dict[str, Exception] = {}
        finished: list[Materialised] = []
        for shard, outcome in _outcomes(ctx, table, sorted(context.partition_keys) if is_sharded else None, tables):
            if isinstance(outcome, Exception):
                # One bad shard harms no neighbour: the others go on, and the run fails at the end by name.
                observer.problem(f"{named(table.name, shard)}: {outcome}", outcome)
                if shard is None:
                    raise outcome
                context.log.error(f"{table.name} of {shard} failed", exc_info=outcome)
                errors[shard] = outcome
                continue
            finished.append(outcome)
            frame = None if table.compute is None else ctx.store.read(table.name, shard)
            wrong = violations(ctx, table, shard, frame)
            too_many = success_violations(ctx, table, shard, frame)
            ctx.store.set_blocked(table.name, shard, [*wrong, *too_many])
            for found, said in ((problems, wrong), (failures, too_many)):
                if said:
                    found[shard or WHOLE] = "; ".join(said)
                    observer.problem(f"{named(table.name, shard)}: {found[shard or WHOLE]}", None)
            metadata = _run_metadata(ctx, table, outcome, frame, with_picture=len(finished) <= PICTURES_PER_RUN)
            context.add_asset_metadata(metadata, partition_key=shard)
        if errors:
            told = {one: f"{type(error).__name__}: {error}" for one, error in errors.items()}
            raise dg.Failure(
                f"{table.name}: {len(errors)} of {len(errors) + len(finished)} shards failed; finished shards are kept "
                f"and a retry computes only the rest. First: {next(iter(told.values()))}",
                metadata=told,
            ) from next(iter(errors.values()))
        observer.table_done(
            TableReport(
                table=table.name,
                seconds=time.perf_counter() - start,
                row_count=sum(done.manifest.row_count for done in finished),
                reused=sum(done.is_reused for done in finished),
                computed=sum(not done.is_reused for done in finished),
            )
        )
        hashes = "".join(sorted(done.manifest.content_sha256 for done in finished))
        yield dg.MaterializeResult(
            # One version for all partitions of a run is all that Dagster takes; the exact ones are in the manifests.
            data_version=dg.DataVersion(hashlib.sha256(hashes.encode()).hexdigest()),
            check_results=[
                dg.AssetCheckResult(
                    check_name="rows_conserved",
                    passed=not problems,
                    metadata={"shards checked": len(finished), **problems},
                ),
                dg.AssetCheckResult(
                    check_name="enough_succeeded",
                    passed=not failures,
                    metadata={"shards checked": len(finished), **failures},
                ),
                *_warnings(ctx, table),
                *_further_checks(ctx, table, [done.manifest.partition for done in finished]),
            ],
        )

    return table_asset


def _check_specs(table: Table, key: dg.AssetKey) -> list[dg.AssetCheckSpec]:
    specs = [
        dg.AssetCheckSpec(
            "rows_conserved",
            asset=key,
            blocking=True,
            description="Every input row is kept, dropped (reason) or failed (reason); no value misses silently.",
        ),
        dg.AssetCheckSpec(
            "enough_succeeded",
            asset=key,
            blocking=True,
            description="In every shard at least the pool's min_success_rate of the rows at stake did not fail.",
        ),
    ]
    specs += [dg.AssetCheckSpec(one.name, asset=key, description=one.description) for one in table.checks]
    if table.warning_column is not None:
        specs.append(
            dg.AssetCheckSpec(
                "no_warnings", asset=key, blocking=False, description="Nothing here that a person should look at."
            )
        )
    return specs


def _warnings(ctx: PoolContext, table: Table) -> list[dg.AssetCheckResult]:
    """The table's own sentences as a check that warns and stops nothing, with the table as evidence."""
    if table.warning_column is None:
        return []
    frame, said = ctx.store.read(table.name), warnings_of(ctx, table)
    evidence = dg.MetadataValue.md(preview_of(frame.drop(table.warning_column), rows=frame.height))
    return [
        dg.AssetCheckResult(
            check_name="no_warnings",
            passed=not said,
            severity=dg.AssetCheckSeverity.WARN,
            metadata={"evidence": evidence, **{f"warning {i}": text for i, text in enumerate(said, start=1)}},
        )
    ]


def _further_checks(ctx: PoolContext, table: Table, shards: list[str | None]) -> Iterator[dg.AssetCheckResult]:
    """The table's own checks, which warn."""
    for check in table.checks:
        found = {shard or WHOLE: "; ".join(wrong) for shard in shards if (wrong := check.violations(ctx, shard))}
        yield dg.AssetCheckResult(
            check_name=check.name, passed=not found, severity=dg.AssetCheckSeverity.WARN, metadata=dict(found)
        )


def _outcomes(
    ctx: PoolContext, table: Table, shards: list[str] | None, tables: dict[str, Table]
) -> Iterator[tuple[str | None, Outcome]]:
    if shards is None and table.compute_folder is not None and table.roles:
        yield None, materialise_model(ctx, table, tables=tables)
    elif shards is None:
        yield None, outcome_of(lambda: materialise_table(ctx, table, tables=tables))
    else:
        yield from materialise_shards(ctx, table, shards, tables=tables)


def _concurrency_pool(table: Table, ctx: PoolContext) -> str | None:
    """Downloads share the network; models of a GPU profile share the GPU."""
    if table.name == "raw/downloads":
        return "network"
    asks_models = bool(table.roles) or "torch" in table.kinds
    return "gpu" if asks_models and ctx.profile.device != "cpu" else None


def _declared_metadata(table: Table, pool_name: str) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "grain": f"one row per sample of a {table.grain}",
        "query": dg.MetadataValue.md(f"`select * from {pool_name}.{table.name.replace('/', '_')} limit 20`"),
    }
    if table.column_lineage:
        metadata["dagster/column_lineage"] = dg.TableColumnLineage(
            {
                column: [dg.TableColumnDep(asset_key(pool_name, source), name) for source, name in sources]
                for column, sources in table.column_lineage.items()
            }
        )
    return metadata


def _run_metadata(
    ctx: PoolContext, table: Table, done: Materialised, frame: pl.DataFrame | None, *, with_picture: bool
) -> dict[str, Any]:
    manifest = done.manifest
    metadata: dict[str, Any] = {
        "dagster/row_count": manifest.row_count,
        "compute seconds": round(manifest.seconds, 3),
        "reused": done.is_reused,
        "content_sha256": manifest.content_sha256,
        "peak memory MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "models": dg.MetadataValue.json([str(model) for model in manifest.models]),
    }
    if frame is None:
        metadata["folder"] = dg.MetadataValue.path(str(ctx.store.folder_path(table.name)))
        return metadata
    metadata |= {f"rows {state}": count for state, count in counts_by_state(frame).items()}
    metadata["dagster/uri"] = str(ctx.store.table_path(table.name, manifest.partition))
    metadata["preview"] = dg.MetadataValue.md(preview_of(frame))
    picture = picture_of(table.name, frame) if with_picture else None
    if picture is not None:
        metadata["picture"] = dg.MetadataValue.md(f"![{table.name}]({picture})")
    return metadata
