"""curate demo, run, ui: the whole chain with or without the Dagster UI."""

import os
import shutil
import sys
import time
from pathlib import Path
from typing import Annotated

import polars as pl
import typer
from rich.table import Table

from curation_assets.cli.common import HomeOption, ProfileOption, console, errors_as_sentences, settings_from
from curation_assets.cli.memory import PeakMemory
from curation_assets.core.progress import reporter_for
from curation_assets.core.settings import Settings
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import policies_of
from curation_assets.flow.freshness import warnings_of
from curation_assets.flow.graph import tables_of
from curation_assets.flow.table import TableReport
from curation_assets.operations.refit import frozen_notes
from curation_assets.operations.removed_shards import gone_shards
from curation_assets.stores.pools.declaration import add_world_pool, list_pools

DEMO_POOL = "scenes"
DEMO_SIZE, DEMO_SHARD_SIZE, DEMO_SEED = 2000, 500, 20_260
# Less than the defaults: five minutes on two cores.
DEMO_BUDGET = {"captioner_steps": 150, "captioner_batch": 24, "dual_encoder_steps": 80, "dual_encoder_batch": 48}
DEMO_OPTIONS = {"distillation_size": 450, "caption_count": 2, "fusion_l2": 1.0, "downstream_budget": DEMO_BUDGET}


@errors_as_sentences
def demo(home: HomeOption = None, profile: ProfileOption = None) -> None:
    """Run everything on the embedded pool of rendered scenes and write the report."""
    settings = settings_from(home, profile)
    if DEMO_POOL not in list_pools(settings):  # the repository brings data/pools/scenes.yaml; another --home does not
        add_world_pool(
            settings, DEMO_POOL, size=DEMO_SIZE, seed=DEMO_SEED, shard_size=DEMO_SHARD_SIZE, options=DEMO_OPTIONS
        )
    _run_and_show(settings, DEMO_POOL)


@errors_as_sentences
def run(
    pool: Annotated[str, typer.Argument(help="A declared pool; see `curate pool list`.")],
    shard: Annotated[list[str] | None, typer.Option("--shard", help="Only these shards (repeat).")] = None,
    table: Annotated[
        list[str] | None, typer.Option("--table", help="Only these tables, e.g. signals/icc (repeat).")
    ] = None,
    home: HomeOption = None,
    profile: ProfileOption = None,
) -> None:
    """Bring every table of a pool up to date, with progress. What is up to date is not made again."""
    _run_and_show(settings_from(home, profile), pool, shard, table)


def _run_and_show(
    settings: Settings, pool: str, shards: list[str] | None = None, tables: list[str] | None = None
) -> None:
    from curation_assets.defs.publishing import run_and_publish  # Dagster takes seconds to import

    start = time.perf_counter()
    console.print(f"[bold]Pool {pool}[/], profile {settings.profile.name}, under {settings.home}", highlight=False)

    def show(report: TableReport) -> None:
        done = "up to date" if not report.computed else f"{report.seconds:6.1f} s"
        console.print(f"  {report.table:<32} {report.row_count:>8,} rows  {done:>10}", highlight=False)

    with PeakMemory() as peak:
        reports = run_and_publish(
            settings,
            pool,
            progress=reporter_for(console),
            on_table=show,
            on_notice=lambda sentence: console.print(sentence, highlight=False, soft_wrap=True),
            shards=shards,
            tables=tables,
        )
    seconds = time.perf_counter() - start
    _show_stages(reports)
    ctx = PoolContext.open(settings, pool)
    _show_warnings(ctx)
    _show_gone_shards(ctx)
    _show_policies(ctx)
    report_page = settings.work(pool) / "downstream" / "report" / "report.html"
    console.print(f"\nDone in {seconds:.0f} s, peak memory {peak.gib:.1f} GiB (workers included).", highlight=False)
    if report_page.exists():
        console.print(f"Report   {report_page}", highlight=False, soft_wrap=True)
    console.print(f"Subsets  {settings.work(pool) / 'filtered' / 'subsets'}", highlight=False, soft_wrap=True)
    console.print(
        f"Tables   duckdb {settings.catalog}  (select * from {pool}.filtered_icc limit 5;)",
        highlight=False,
        soft_wrap=True,
    )
    console.print("Graph    make ui", highlight=False)


def _show_stages(reports: list[TableReport]) -> None:
    seconds: dict[str, float] = {}
    for report in reports:
        stage = report.table.split("/")[0]
        seconds[stage] = seconds.get(stage, 0.0) + report.seconds
    console.print(
        "\nSeconds per stage: " + ", ".join(f"{stage} {value:.1f}" for stage, value in seconds.items()),
        highlight=False,
    )


def _show_warnings(ctx: PoolContext) -> None:
    for table in tables_of(ctx).values():
        if ctx.store.manifest(table.name) is not None:
            for said in warnings_of(ctx, table):
                console.print(f"[yellow]warning[/] {table.name}: {said}", highlight=False, soft_wrap=True)


def _show_gone_shards(ctx: PoolContext) -> None:
    gone = gone_shards(ctx)
    if gone:
        console.print(
            f"[yellow]warning[/] the source no longer has {len(gone)} stored shards: {', '.join(gone[:5])}"
            f"{' …' if len(gone) > 5 else ''}. They count as before; `curate pool remove-shard {ctx.pool.name} SHARD` "
            "takes them out",
            highlight=False,
            soft_wrap=True,
        )


def _show_policies(ctx: PoolContext) -> None:
    table = Table(title="Policies", title_justify="left", box=None, pad_edge=False)
    for heading in ("policy", "kept", "dropped", "failed", "threshold"):
        table.add_column(heading, justify="left" if heading == "policy" else "right")
    for policy in policies_of(ctx):
        if not ctx.store.partitions(f"filtered/{policy.name}"):
            continue
        verdicts = ctx.store.scan(f"filtered/{policy.name}").collect()
        counts = dict(verdicts["verdict"].value_counts().iter_rows())
        threshold = verdicts.filter(pl.col("verdict") == "kept")["threshold"].drop_nulls()
        table.add_row(
            policy.name,
            *(f"{counts.get(state, 0):,}" for state in ("kept", "dropped", "failed")),
            f"{threshold[0]:.3f}" if len(threshold) else "–",
        )
    console.print(table)
    for line in frozen_notes(ctx):
        console.print(line, highlight=False)
    if ctx.store.manifest("downstream/method_quality") is not None:
        _show_quality(ctx.store.read("downstream/method_quality"))


def _show_quality(quality: pl.DataFrame) -> None:
    table = Table(title="Against the planted truth", title_justify="left", box=None, pad_edge=False)
    metrics = ["pearson", "spearman", "kendall", "auc"]
    for heading in ("target", "method", *metrics, "n"):
        table.add_column(heading, justify="left" if heading in ("target", "method") else "right")
    wide = quality.pivot(on="metric", index=["target", "method", "n"], values="value", maintain_order=True)
    for row in wide.iter_rows(named=True):
        cells = ("" if row.get(metric) is None else f"{row[metric]:.3f}" for metric in metrics)
        table.add_row(row["target"], row["method"], *cells, str(row["n"]))
    console.print(table)


@errors_as_sentences
def ui(
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1.")] = 3000,
    home: HomeOption = None,
) -> None:
    """Open the Dagster UI and daemon on 127.0.0.1: the same graph, sensors and schedules (stop with Ctrl+C)."""
    from curation_assets.defs.launch import prepare_instance

    settings = settings_from(home)
    prepare_instance(settings)
    os.environ["CURATION_HOME"] = str(settings.home)
    os.environ["VIRTUAL_ENV"] = sys.prefix  # dg warns when it is called without an activated environment
    dg = shutil.which("dg", path=str(Path(sys.executable).parent)) or "dg"
    console.print(f"Dagster UI: http://127.0.0.1:{port}", highlight=False)
    os.execv(dg, [dg, "dev", "--host", "127.0.0.1", "--port", str(port)])
