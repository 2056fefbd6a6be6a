"""Bringing one table up to date and checking it: what a Dagster asset, a command and a benchmark all do.

One bad shard harms no neighbour: the others are computed and kept, and the failure is in the result by the shard's
name. Shards that fail a blocking check are marked in the store, so that nothing reads them until the check holds.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import polars as pl

from curation_assets.core.errors import StoreError
from curation_assets.flow.conservation import Rows, pool_succeeds, rows_of, success_violations, violations
from curation_assets.flow.context import PoolContext
from curation_assets.flow.freshness import warnings_of
from curation_assets.flow.graph import tables_of, with_upstream
from curation_assets.flow.parallel import materialise_partitions
from curation_assets.flow.table import Table, TableReport, Tables, key_of
from curation_assets.stores.shard_store import WHOLE, Materialised, named

ROWS_CONSERVED, ENOUGH_SUCCEEDED, NO_WARNINGS = "rows_conserved", "enough_succeeded", "no_warnings"


@dataclass(frozen=True)
class Check:
    """A check that a table has, whatever its outcome."""

    name: str
    description: str
    is_blocking: bool = False  # a blocking check that fails stops what reads the table; another one warns


@dataclass(frozen=True)
class CheckResult:
    """How a check of a table ended."""

    check: Check
    violations: Mapping[str, str]  # what is wrong, by shard (or 'warning 1', …); empty when all is well
    evidence: pl.DataFrame | None = None  # rows that a person should look at

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return not self.violations


@dataclass(frozen=True)
class ShardResult:
    """How bringing one shard (None: a whole-pool table) up to date went: `done`, or `error`."""

    table: str
    shard: str | None
    done: Materialised | None = None
    error: Exception | None = None
    lost_rows: tuple[str, ...] = ()  # violations of the conservation of rows, one sentence each
    failures: tuple[str, ...] = ()  # too few rows succeeded, of this shard and of the pool
    warnings: tuple[str, ...] = ()  # too few rows of this shard succeeded, and enough of the pool

    @property
    def problems(self) -> list[str]:
        """Sentences on what stops the tables that read this one."""
        sentences = [str(self.error)] if self.error is not None else []
        sentences += ["; ".join(violated) for violated in (self.lost_rows, self.failures) if violated]
        return [f"{named(self.table, self.shard)}: {sentence}" for sentence in sentences]


@dataclass
class TableResult:
    """How bringing a table up to date went."""

    table: Table
    shards: list[ShardResult] = field(default_factory=list)  # as they finished
    checks: list[CheckResult] = field(default_factory=list)  # of a table without errors
    seconds: float = 0.0  # wall time, checks included

    @property
    def finished(self) -> list[Materialised]:
        """What is up to date now."""
        return [result.done for result in self.shards if result.done is not None]

    @property
    def errors(self) -> dict[str, Exception]:
        """What failed, by shard."""
        return {result.shard or WHOLE: result.error for result in self.shards if result.error is not None}

    @property
    def problems(self) -> list[tuple[str, Exception | None]]:
        """What stops the tables that read this one: a sentence each, with its exception where there was one."""
        return [(sentence, result.error) for result in self.shards for sentence in result.problems]

    @property
    def warnings(self) -> list[str]:
        """Sentences on shards that have next to nothing to give, and stop no other."""
        return [
            f"{named(self.table.name, result.shard)}: {sentence}; the pool goes on without these rows"
            for result in self.shards
            for sentence in result.warnings
        ]

    @property
    def report(self) -> TableReport:
        """The result as a line."""
        return TableReport(
            table=self.table.name,
            seconds=self.seconds,
            row_count=sum(done.manifest.row_count for done in self.finished),
            reused=sum(done.is_reused for done in self.finished),
            computed=sum(not done.is_reused for done in self.finished),
        )


def run_table(
    ctx: PoolContext,
    table: Table,
    shards: Sequence[str] | None,
    *,
    tables: Tables,
    on_shard: Callable[[ShardResult, Rows | None], None] = lambda result, frame: None,
) -> TableResult:
    """Bring a table up to date (`shards`: keys of partitions, None for a whole pool), check it, mark what is blocked.

    A shard of which too few rows succeed is blocked where the pool as a whole is below `min_success_rate`, too.
    `on_shard` hears of every shard as it finishes or fails, with its rows where they were read. An exception of a
    shard is never raised here: it is in `errors`, and what is finished is kept.
    """
    start = time.perf_counter()
    result = TableResult(table)
    failing: list[ShardResult] = []  # judged by all shards, once these are done
    what = {"shard": ", shards", "training": ", models", "pool": ""}[table.grain]
    with ctx.progress.task(f"{table.name}{what}", 1 if shards is None else len(shards)) as advance:
        for shard, outcome in materialise_partitions(ctx, table, shards, tables=tables, advance=advance):
            frame = None
            if not isinstance(outcome, Exception):
                try:
                    frame = None if table.is_folder else rows_of(ctx, table, shard)
                    done = _checked(ctx, table, shard, outcome, frame)
                except (StoreError, pl.exceptions.PolarsError) as error:  # what an earlier run made was damaged since
                    frame, outcome = None, error
            if isinstance(outcome, Exception):
                done = ShardResult(table.name, shard, error=outcome)
            if done.failures:
                failing.append(done)
                continue
            result.shards.append(done)
            on_shard(done, frame)
    for done in _judged(ctx, table, failing):
        result.shards.append(done)
        on_shard(done, None if table.is_folder else rows_of(ctx, table, done.shard))
    if not result.errors:
        result.checks = list(_check_results(ctx, result))
    result.seconds = time.perf_counter() - start
    return result


def run_with_upstream(ctx: PoolContext, *names: str, tables: Tables | None = None) -> None:
    """Bring tables and everything they rest on up to date, in this process and without Dagster.

    `tables`: in place of the pool's own. Raises what a shard raised, ValueError where a blocking check fails.
    """
    tables = tables_of(ctx) if tables is None else tables
    wanted = with_upstream(tables, names)
    ctx = replace(ctx, planned=frozenset(wanted))
    for table in wanted.values():
        result = run_table(ctx, table, keys_of(table, ctx.shards()), tables=tables)
        for sentence, error in result.problems:
            raise error or ValueError(sentence)


def keys_of(table: Table, shards: Sequence[str]) -> Sequence[str] | None:
    """What `run_table` takes for all of a table: its partitions, or None for a whole-pool table."""
    return None if table.grain == "pool" else [key for key in table.partitions(shards) if key is not None]


def checks_of(table: Table) -> list[Check]:
    """The checks of a table, blocking ones first."""
    checks = [
        Check(
            ROWS_CONSERVED,
            "Every input row is kept, dropped (reason) or failed (reason); no value misses silently.",
            is_blocking=True,
        ),
        Check(
            ENOUGH_SUCCEEDED,
            "At least the pool's min_success_rate of the rows that could succeed did; a shard below it is named.",
            is_blocking=True,
        ),
    ]
    if table.shown.warning_column is not None:
        checks.append(Check(NO_WARNINGS, "Nothing here that a person should look at."))
    return [*checks, *(Check(own.name, own.description) for own in table.shown.checks)]


def _checked(ctx: PoolContext, table: Table, shard: str | None, done: Materialised, frame: Rows | None) -> ShardResult:
    """Check the rows of a shard that is up to date, and mark it as blocked or not."""
    lost_rows, failures = violations(ctx, table, shard, frame), success_violations(ctx, table, shard, frame)
    ctx.store.set_blocked(table.name, shard, [*lost_rows, *failures])
    return ShardResult(table.name, shard, done, None, tuple(lost_rows), tuple(failures))


def _judged(ctx: PoolContext, table: Table, failing: Sequence[ShardResult]) -> list[ShardResult]:
    """Shards of which too few rows succeeded: blocked where too few of the pool did, too; else earlier are free."""
    earlier = ctx.store.blocked(table.name).keys() - {done.shard or WHOLE for done in failing}
    if not (failing or earlier) or not pool_succeeds(ctx, table):
        return list(failing)
    for shard in earlier:
        ctx.store.set_blocked(table.name, shard, violations(ctx, table, shard))
    for done in failing:
        ctx.store.set_blocked(table.name, done.shard, done.lost_rows)
    return [replace(done, failures=(), warnings=done.failures) for done in failing]


def _check_results(ctx: PoolContext, result: TableResult) -> Iterator[CheckResult]:
    """One result per check of `checks_of`, in its order."""
    table, own = result.table, {check.name: check for check in result.table.shown.checks}
    for check in checks_of(table):
        evidence = None
        if check.name == ROWS_CONSERVED:
            sentences_of = {of_shard.shard: of_shard.lost_rows for of_shard in result.shards}
        elif check.name == ENOUGH_SUCCEEDED:
            sentences_of = {of_shard.shard: of_shard.failures for of_shard in result.shards}
        elif check.name == NO_WARNINGS:
            sentences = warnings_of(ctx, table)
            sentences_of = {f"warning {number}": (sentence,) for number, sentence in enumerate(sentences, start=1)}
            assert table.shown.warning_column is not None, table.name
            evidence = ctx.store.read(table.name).drop(table.shown.warning_column)
        else:
            sentences_of = {
                of_shard.shard: tuple(own[check.name].violations(ctx, *key_of(of_shard.shard)))
                for of_shard in result.shards
            }
        wrong = {key or WHOLE: "; ".join(sentences) for key, sentences in sentences_of.items() if sentences}
        yield CheckResult(check, wrong, evidence)
