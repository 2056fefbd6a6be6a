"""Held-out quality of the embedded models: a fresh planted pool through the same flow, judged by its truth."""

import polars as pl

from curation_assets.flow import PoolContext, Table, materialise_table, tables_of
from curation_assets.flow.parallel import materialise_shards
from curation_assets.pools import add_world_pool
from curation_assets.progress import ProgressReporter
from curation_assets.settings import Settings

#: What the feasibility study of the embedded models measured (length-balanced pool, 400 held-out captions): the bar.
REFERENCE: dict[tuple[str, str], float] = {
    ("vba", "pearson"): 0.849,
    ("vba", "spearman"): 0.857,
    ("vba", "kendall"): 0.708,
    ("sba", "pearson"): 0.616,
    ("sba", "spearman"): 0.655,
    ("sba", "kendall"): 0.513,
    ("fused teachers", "pearson"): 0.887,
    ("fused teachers", "spearman"): 0.870,
    ("fused teachers", "kendall"): 0.726,
    ("icc", "pearson"): 0.925,
    ("icc", "spearman"): 0.908,
    ("icc", "kendall"): 0.779,
    ("clip_score", "auc"): 0.977,
    ("sieve", "auc"): 0.975,
    ("sieve_clip", "auc"): 0.995,
}


def bench_embedded(
    settings: Settings, *, size: int, captions: int, seed: int, progress: ProgressReporter | None = None
) -> pl.DataFrame:
    """Columns target, method, metric, value, n, reference (null where the study has none).

    Plants a pool of `size` samples with `seed`, runs every table that `downstream/method_quality` needs, and returns
    that table beside the reference figures.
    """
    pool = add_world_pool(
        settings, "bench", size=size, seed=seed, shard_size=-(-size // 2), options={"distillation_size": captions}
    )
    ctx = PoolContext.open(settings, pool.name, progress=progress)
    materialise_with_inputs(ctx, "downstream/method_quality")
    quality = ctx.store.read("downstream/method_quality")
    reference = [REFERENCE.get((row["method"], row["metric"])) for row in quality.iter_rows(named=True)]
    return quality.with_columns(pl.Series("reference", reference, dtype=pl.Float64))


def materialise_with_inputs(ctx: PoolContext, name: str) -> None:
    """Bring one whole-pool table up to date with everything it reads, in this process and without Dagster."""
    tables = tables_of(ctx)
    needed = _with_inputs(tables, name)
    for table in tables.values():
        if table.name in needed:
            if table.grain == "pool":
                materialise_table(ctx, table, tables=tables)
                continue
            for _, outcome in materialise_shards(ctx, table, ctx.shards(), tables=tables):
                if isinstance(outcome, Exception):
                    raise outcome


def _with_inputs(tables: dict[str, Table], name: str) -> set[str]:
    needed, waiting = set[str](), [name]
    while waiting:
        current = waiting.pop()
        if current not in needed:
            needed.add(current)
            waiting.extend(tables[current].inputs)
    return needed
