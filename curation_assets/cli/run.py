"""curate demo, run: the whole chain without the Dagster UI."""

import json
import shlex
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict
from typing import Annotated

import polars as pl
import typer
from rich.text import Text

from curation_assets.audit.verdict_changes import VerdictChanges, verdict_changes
from curation_assets.cli.commands import command
from curation_assets.cli.common import (
    FEW,
    HomeOption,
    JsonOption,
    PoolArgument,
    ProfileOption,
    WaitOption,
    notice,
    settings_from,
    show,
    show_json,
    show_table,
    warn,
    with_home,
)
from curation_assets.cli.memory import PeakMemory
from curation_assets.core.errors import few
from curation_assets.core.progress import reporter_for
from curation_assets.core.settings import home_name
from curation_assets.core.stages import STAGES, stage_position
from curation_assets.core.table_names import METHOD_QUALITY, SAMPLES, stage_of
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import holds_in_words, left_out, policies_of, worths_of
from curation_assets.flow.freshness import is_up_to_date, warnings_of
from curation_assets.flow.frozen import frozen_notes
from curation_assets.flow.graph import tables_of, with_upstream
from curation_assets.flow.mixtures import HAD, STATED, shares_of
from curation_assets.flow.parallel import roles_of, warm_up
from curation_assets.flow.table import Phase, Table, TableReport, Tables
from curation_assets.flow.worth import domain_in_words
from curation_assets.operations.pieces import cautions_of, check_pieces, pieces_of
from curation_assets.operations.removed_shards import missing_shards
from curation_assets.operations.shard_ranges import shards_in
from curation_assets.selection.judging import reason_kind
from curation_assets.selection.policy import Policy
from curation_assets.sources.declaration import add_world_pool, list_pools
from curation_assets.stages.raw.deliveries import pool_notes
from curation_assets.stores.catalog import view_sql
from curation_assets.stores.manifest import utc_now
from curation_assets.stores.shard_store import WHOLE

SHOWN_GROUPS = 12  # of a mixture
DEMO_POOL = "scenes"
DEMO_SIZE, DEMO_SHARD_SIZE, DEMO_SEED = 2000, 500, 20_260
# Less than the defaults: two minutes on two cores in all.
DEMO_BUDGET = {
    "captioning": {"samples_seen": 1_320, "batch_size": 24},
    "retrieval": {"samples_seen": 1_536, "batch_size": 48},
}
DEMO_OPTIONS = {"distillation_size": 450, "caption_count": 2, "fusion_l2": 1.0, "downstream_budget": DEMO_BUDGET}


@command("demo", "Pools")
def demo(home: HomeOption = None, profile: ProfileOption = None) -> None:
    """Run everything on the embedded pool of rendered scenes and write the report."""
    settings = settings_from(home, profile)
    if DEMO_POOL not in list_pools(settings):  # the repository brings data/pools/scenes.yaml; another --home does not
        add_world_pool(
            settings, DEMO_POOL, size=DEMO_SIZE, seed=DEMO_SEED, shard_size=DEMO_SHARD_SIZE, options=DEMO_OPTIONS
        )
    run(DEMO_POOL, home=home, profile=profile)


ShardsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--shards",
        "--shard",
        metavar="A..B",
        help="Only tables of these shards: a key, a number, or a range with both ends (repeat). Commands of "
        "different shards run beside each other.",
    ),
]
PhaseOption = Annotated[
    Phase | None,
    typer.Option(
        "--phase",
        help="shards: only per-shard tables, as far as the whole-pool tables that they rest on are up to date; "
        "pool: only the others, likewise.",
    ),
]
TableOption = Annotated[
    list[str] | None,
    typer.Option(
        "--table",
        help="Only these tables, e.g. signals/icc (repeat), or a selection of Dagster's: +signals/icc with all that it "
        "reads, signals/icc+ with all that reads it, tag:policy=icc, tag:stage=signals.",
    ),
]


@command("run", "Pools")
def run(
    pool: PoolArgument,
    shards: ShardsOption = None,
    phase: PhaseOption = None,
    table: TableOption = None,
    wait: WaitOption = True,
    as_json: JsonOption = False,
    home: HomeOption = None,
    profile: ProfileOption = None,
) -> None:
    """Bring every table of a pool up to date; what is up to date is not made again.

    A stopped run goes on where it was. Pools of your own train no models on their subsets unless their declaration
    has options: {downstream: true, evaluation_set: …}; docs/user/evaluation.md.
    """
    start, since = time.perf_counter(), utc_now()
    ctx = PoolContext.open(settings_from(home, profile), pool)
    declared = tables_of(ctx)
    settings = ctx.settings  # with the pool's own profile
    show(
        Text.assemble((f"Pool {pool}", "bold"), f", profile {settings.profile.name}, under {home_name(settings.home)}")
    )
    tables = None
    if table:
        tables = _chosen(ctx, declared, table, shards)
        _check_tables(ctx, tables, shards)
    _check_pieces(ctx, declared, tables)
    if _computes_models(ctx, declared, tables, phase):
        warm_up(settings, roles_of(declared.values()))  # beside the import of Dagster, which takes seconds
    from curation_assets.defs.publishing import run_and_publish

    lines = TableLines(declared, () if shards or phase else tables or declared)
    left: list[Table] = []
    with PeakMemory() as peak, lines:
        reports = run_and_publish(
            settings,
            pool,
            progress=reporter_for(),
            on_table=lines.add,
            on_notice=notice,
            shards=shards,
            tables=tables,
            phase=phase,
            on_left=left.extend,
            wait=wait,
            command=" ".join(["curate run", pool, *(f"--shards {chosen}" for chosen in shards or ())]),
        )
    seconds = time.perf_counter() - start
    reports = sorted(reports, key=lambda report: stage_position(declared[report.table].stage))
    is_judged = any(report.table.startswith("filtered/") and report.computed for report in reports)
    changes = verdict_changes(ctx.store, since) if is_judged else []
    if as_json:
        made = [asdict(report) for report in reports]
        waiting = {"next": _next_phase(left), "left": [table.name for table in left]}
        show_json({"pool": pool, "seconds": seconds, "samples": _sample_counts(ctx), "tables": made, **waiting,
                   "verdict_changes": [asdict(change) for change in changes]})  # fmt: skip
        return
    _show_stages(reports)
    if shards or phase:
        _show_left(pool, left)
        show(f"Done in {seconds:.0f} s, peak memory {peak.gib:.1f} GiB (workers included).")
        return
    _show_warnings(ctx)
    for sentence in pool_notes(ctx):
        warn(sentence)
    _show_removed_shards(ctx)
    _show_policies(ctx)
    _show_changes(changes)
    show()
    _show_samples(ctx)
    _show_endings(ctx)
    report_page = settings.work(pool) / "downstream" / "report" / "report.html"
    if report_page.exists():
        show(f"Report   {report_page}")
    show(f"Subsets  {settings.work(pool) / 'filtered' / 'subsets'}")
    query = f"select * from {view_sql(pool, 'raw/samples')} limit 5"
    code = f"import duckdb; print(duckdb.connect({json.dumps(str(settings.catalog))}).sql({json.dumps(query)}))"
    show(f"Tables   {shlex.join([sys.executable, '-c', code])}")
    show(with_home("Graph    `curate ui`"))
    show(f"Done in {seconds:.0f} s, peak memory {peak.gib:.1f} GiB (workers included).")


class TableLines:
    """A line per finished table, stage after stage: a run makes tables of one grain together, so that some of a later
    stage are finished first. Their lines wait for the `expected` tables of earlier stages; what still waits at the end,
    as where a run fails, is shown then."""

    def __init__(self, declared: Tables, expected: Iterable[str]) -> None:
        self._declared = declared
        self._missing = set(expected)
        self._held: list[TableReport] = []
        self._width = max(len(table.title) for table in declared.values())

    def __enter__(self) -> "TableLines":
        return self

    def __exit__(self, *_: object) -> None:
        self._missing.clear()
        self._show()

    def add(self, report: TableReport) -> None:
        """Show it, or hold it back."""
        self._missing.discard(report.table)
        self._held.append(report)
        self._show()

    def _show(self) -> None:
        stage = {report.table: stage_position(self._declared[report.table].stage) for report in self._held}
        first_missing = min((stage_position(self._declared[name].stage) for name in self._missing), default=len(STAGES))
        self._held.sort(key=lambda report: stage[report.table])
        while self._held and stage[self._held[0].table] <= first_missing:
            report = self._held.pop(0)
            table = self._declared[report.table]
            time_of = "up to date" if not report.computed else f"{report.seconds:6.1f} s"
            unit = "files" if table.is_folder else "rows"
            show(f"  {table.title:<{self._width}} {report.row_count:>8,} {unit:<5} {time_of:>10}")


def _computes_models(ctx: PoolContext, declared: Tables, names: Collection[str] | None, phase: Phase | None) -> bool:
    """Whether a run is sure to compute a table that runs models: one of which nothing is stored yet."""
    if phase == "pool":
        return False  # workers, if any, are started with its first table
    of_run = (table for name, table in declared.items() if not names or name in names)
    return any(
        table.needs.roles and table.grain == "shard" and not ctx.store.partitions(table.name) for table in of_run
    )


def _next_phase(left: Sequence[Table]) -> Phase | None:
    """Which phase can go on: that of the first table that waits, inputs first."""
    if not left:
        return None
    return "shards" if left[0].grain == "shard" else "pool"


def _show_left(pool: str, left: Sequence[Table]) -> None:
    if left:
        names = few((table.name for table in left), 5)
        notice(f"Left: {len(left)} tables that rest on the other phase: {names}")
        notice(
            f"Next, once all shards are there: `curate run {pool} --phase {_next_phase(left)}`, or `curate run {pool}`"
        )


def _sample_counts(ctx: PoolContext) -> dict[str, int]:
    """Samples of raw/samples by status: kept, dropped, failed; empty before it is made."""
    if not ctx.store.partitions(SAMPLES):
        return {}
    return dict(ctx.store.scan(SAMPLES).group_by("status").len().collect().iter_rows())


def _show_samples(ctx: PoolContext) -> None:
    """How many rows can be chosen from, and why the others cannot."""
    if not ctx.store.partitions(SAMPLES):
        return
    kinds = pl.coalesce(reason_kind(pl.col("reason")), pl.lit("")).alias("reason")
    found = ctx.store.scan(SAMPLES).group_by(pl.col("status").cast(pl.String), kinds).len().collect()
    parts = [f"{found.filter(status='kept')['len'].sum():,} to choose from"]
    for state in ("dropped", "failed"):
        of_state = found.filter(status=state).sort("len", "reason", descending=[True, False])
        if of_state.height:
            reasons = ", ".join(f"{reason} {count:,}" for _, reason, count in of_state.iter_rows())
            parts.append(f"{of_state['len'].sum():,} {state} ({reasons})")
    show(f"Samples  {found['len'].sum():,}: {', '.join(parts)}")


def _chosen(ctx: PoolContext, declared: Tables, wanted: list[str], shards: list[str] | None) -> list[str]:
    """Names of the tables of --table. With --shards, of a selection those of shards alone, as without --table.

    Raises what `select_tables` raises.
    """
    if all(name in declared for name in wanted):
        return wanted
    from curation_assets.defs.selection import select_tables  # Dagster takes seconds to import

    chosen = select_tables(ctx.settings, ctx.pool.name, declared, wanted)
    return [name for name in chosen if shards is None or name in wanted or declared[name].grain == "shard"]


def _check_tables(ctx: PoolContext, names: list[str], shards: list[str] | None) -> None:
    """Warn of upstream tables that --table leaves as they are: missing, stale, or blocked by a check.

    Raises ValueError where a table that one of them reads is not made at all.
    """
    declared = tables_of(ctx)
    for name in names:
        absent = [one for one in declared[name].inputs if one not in names and not ctx.store.asset_path(one).exists()]
        if absent:
            raise ValueError(
                f"{name} reads {', '.join(absent)}, not made yet; `curate run {ctx.pool.name} --table +{name}` makes "
                "what it reads first"
            )
    keys = ctx.shards() if shards is None else shards_in(shards, ctx.shards())
    for name, table in with_upstream(declared, names).items():
        if name in names:
            continue
        parts = table.partitions(keys)
        blocked = ctx.store.blocked(name)
        failed = [part or WHOLE for part in parts if (part or WHOLE) in blocked]
        state = None
        if failed:
            state = f"is blocked: {blocked[failed[0]][0]}"
        elif any(ctx.store.manifest(name, part) is None for part in parts):
            state = "is not made yet"
        elif not all(is_up_to_date(ctx, table, part, tables=declared) for part in parts):
            state = "is not up to date; what is stored is read"
        if state is not None:
            warn(f"{name}, which this needs, {state}. `--table +{names[-1]}` makes all that it reads")


def _check_pieces(ctx: PoolContext, declared: Tables, names: list[str] | None) -> None:
    """Notices of what is fetched, gated, or stood in for. Raises MissingPiecesError before anything is begun."""
    pieces = pieces_of(ctx, declared, names)
    check_pieces(pieces)
    fetched = list(dict.fromkeys(piece.address for piece in pieces if piece.state in ("fetch", "gated")))
    if fetched:
        notice(f"Fetched when first needed: {', '.join(fetched)}")
    for piece in pieces:
        if piece.advice:
            warn(f"{piece.name}: {piece.advice}")
    for sentence in cautions_of(ctx):
        warn(sentence)


def _show_stages(reports: list[TableReport]) -> None:
    seconds: dict[str, float] = {}
    for report in reports:
        stage = stage_of(report.table)
        seconds[stage] = seconds.get(stage, 0.0) + report.seconds
    show()
    show("Seconds per stage: " + ", ".join(f"{stage} {value:.1f}" for stage, value in seconds.items()))


def _show_warnings(ctx: PoolContext) -> None:
    for table in tables_of(ctx).values():
        if ctx.store.manifest(table.name) is not None:
            for warning in warnings_of(ctx, table):
                warn(f"{table.name}: {warning}")


def _show_removed_shards(ctx: PoolContext) -> None:
    missing = missing_shards(ctx)
    if missing:
        warn(
            f"the source no longer has {len(missing)} stored shards: {few(missing, 5)}. They count as before; "
            f"`curate pool remove-shard {ctx.pool.name} SHARD` takes them out"
        )


def _show_endings(ctx: PoolContext) -> None:
    for table in tables_of(ctx).values():
        ending = None if table.shown.ending is None else table.shown.ending(ctx)
        if ending is None:
            continue
        if ending.is_warning:
            warn(ending.text)
        else:
            show(with_home(ending.text))


def _show_policies(ctx: PoolContext) -> None:
    from curation_assets.selection.judging import multiplicity

    policies = [policy for policy in policies_of(ctx) if ctx.store.partitions(f"filtered/{policy.name}")]
    repeats = any(policy.repeats for policy in policies)
    rows = []
    for policy in policies:
        table, counts = f"filtered/{policy.name}", Counter[str]()
        entries, threshold = 0, None
        for shard in ctx.store.partitions(table):  # of a large pool no table fits into memory
            verdicts = ctx.store.read(table, shard, ["verdict", "threshold", *(["value"] if policy.repeats else [])])
            counts.update(dict(verdicts["verdict"].value_counts().iter_rows()))
            is_kept = verdicts["verdict"] == "kept"
            threshold = next(iter(verdicts["threshold"].filter(is_kept).drop_nulls()), threshold)
            if repeats:
                entries += int(multiplicity(policy, verdicts).sum())
        states = [f"{counts[state]:,}" for state in ("kept", "dropped", "failed")]
        states += [f"{entries:,}"] if repeats else []
        rows.append((policy.name, *states, "–" if threshold is None else f"{threshold:.3f}"))
    more = ("entries",) if repeats else ()
    show_table(("policy", "kept", "dropped", "failed", *more, "threshold"), rows, title="Policies")
    for policy in policies:
        _show_mixture(ctx, policy)
    _show_worths(ctx)
    for line in frozen_notes(ctx):
        notice(line)
    if ctx.store.manifest(METHOD_QUALITY) is not None:
        _show_quality(ctx.store.read(METHOD_QUALITY))


def _show_changes(changes: Sequence[VerdictChanges]) -> None:
    """What became of verdicts that were there before: a line per policy, and what is behind it."""
    for change in changes:
        flips = ", ".join(f"{flip} {count:,}" for flip, count in change.flips.items())
        parts = [f"{sum(change.flips.values()):,} verdicts changed" + (f" ({flips})" if flips else "")]
        if change.has_moved:
            cuts = " → ".join("none" if cut is None else f"{cut:.6g}" for cut in change.thresholds)
            parts.append(f"cut {cuts}")
        warn(f"{change.policy}: {'; '.join(parts + change.why)}")


def _show_mixture(ctx: PoolContext, policy: Policy) -> None:
    """The shares of the mixture that a policy ranks by, if it does, as stated and as they are."""
    shares = shares_of(ctx, policy)
    if shares is None:
        return
    rows = [
        (name, f"{kept:,}", f"{entries:,}", f"{stated:.1%}", f"{had:.1%}")
        for name, stated, kept, entries, had in shares.head(SHOWN_GROUPS).iter_rows()
    ]
    first = f", the first {len(rows)} of {shares.height:,} groups" if shares.height > len(rows) else ""
    show_table(("group", "rows", "entries", STATED, HAD), rows, title=f"Mixture of policy {policy.name}{first}")


def _show_worths(ctx: PoolContext) -> None:
    """What the signals behind the policies are worth on the pool's images, and which policies were left out for it."""
    references = sorted({reference for policy in policies_of(ctx) for reference in policy.references})
    worths = worths_of(ctx, references)
    if worths:
        if holds := holds_in_words(ctx):
            show(f"The pool holds {holds}")
        title = f"What the signals are worth on {domain_in_words(ctx.pool.image_domain)}"
        show_table(("signal", "worth"), list(worths.items()), left=2, title=title)
    for sentence in left_out(ctx):
        notice(sentence)


def _show_quality(quality: pl.DataFrame) -> None:
    metrics = ["pearson", "spearman", "kendall", "auc"]
    wide = quality.pivot(on="metric", index=["target", "method", "n"], values="value", maintain_order=True)
    rows = []
    for row in wide.iter_rows(named=True):
        shown = {metric: row[metric] for metric in metrics if row.get(metric) is not None}
        cells = (
            "" if metric not in shown else f"{shown[metric]:.3f}" if row["n"] >= FEW else "–" for metric in metrics
        )
        rows.append((row["target"], row["method"], *cells, str(row["n"])))
    show_table(("target", "method", *metrics, "n"), rows, left=2, title="Against the planted truth")
    if any(row["n"] < FEW for row in wide.iter_rows(named=True)):
        notice(f"–: fewer than {FEW} values are too few for a statistic")
