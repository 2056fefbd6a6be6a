"""fused: recipes in SQL (`dbt_like_sql/fused/`), and those with a fit (fitted.py). Adding one is adding a file.

A recipe that declares `-- applied: per shard` reads `fused.scaled`, views over `fused/<signal>_range` (flow/scaled.py):
smallest and largest value of a signal, frozen, so that a shard that comes late or goes moves no other sample's score.
"""

from collections.abc import Iterator, Sequence

import polars as pl

from curation_assets.core.table_names import SAMPLES, table_of
from curation_assets.core.validation import check_known
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import fitted_recipes, recipe_models, sql_recipes
from curation_assets.flow.options import FlowOptions
from curation_assets.flow.sql import Rows, SqlModel, broken_tests, run_model, run_on_disk, with_defaults
from curation_assets.flow.table import Fit, Shown, Table, Together
from curation_assets.selection.fitted import load_recipes
from curation_assets.stores.catalog import open_pool
from curation_assets.stores.columns import by_shard
from curation_assets.stores.pool_queries import open_whole_pool

RANGE = "_range"


class SqlTestFailedError(ValueError):
    """A SQL model's result breaks a test of its own header."""


def tables(ctx: PoolContext) -> Iterator[Table]:
    """One table per SQL model of the stage whose signals the pool runs, their ranges, and the duplicates."""
    _check_option(ctx)
    available = sql_recipes(ctx)
    references = {reference for model in available for reference in model.references}
    for reference in sorted(references - set(recipe_models(ctx))):
        if reference.startswith("fused.") and reference.endswith(RANGE):
            yield _range_table(reference.removeprefix("fused.").removesuffix(RANGE))
    yield from map(_model_table, available)


def recipe_parameters(ctx: PoolContext, model: SqlModel) -> dict[str, float]:
    """The parameters of a recipe: its defaults, or those of the pool's option `recipes`.

    Raises SqlModelError for a parameter that the recipe lacks or that is no number.
    """
    return with_defaults(model, FlowOptions.of(ctx).recipes.get(model.name, {}))


def _check_option(ctx: PoolContext) -> None:
    names = {model.name for model in recipe_models(ctx).values()} | set(load_recipes()) | set(fitted_recipes(ctx))
    check_known(f"pool {ctx.pool.name!r}: option recipes", "recipe", FlowOptions.of(ctx).recipes, names)


def _range_table(signal: str) -> Table:
    def compute(ctx: PoolContext) -> pl.DataFrame:
        value = pl.col("value").cast(pl.Float64).fill_nan(None)
        values = ctx.store.scan(f"signals/{signal}").select(value)
        return values.select(low=value.min(), high=value.max(), valued_count=value.count()).collect()

    return Table(
        name=f"fused/{signal}{RANGE}",
        grain="pool",
        inputs=(f"signals/{signal}",),
        version="1",
        compute=compute,
        fit=Fit(),
        description=(
            f"One row: smallest and largest value of {signal} in the pool, as of the last `curate refit POOL`."
        ),
    )


def _model_table(model: SqlModel) -> Table:
    inputs = tuple(table_of(reference) for reference in model.references)

    def run(ctx: PoolContext, shards: Sequence[str]) -> pl.DataFrame:
        with open_pool(ctx.store, inputs, shards=shards, threads=1) as connection:
            return run_model(model, connection, recipe_parameters(ctx, model))

    def checked(frame: Rows) -> Rows:
        if broken := broken_tests(model, frame):
            raise SqlTestFailedError(f"{model.path}: " + "; ".join(broken))
        return frame

    def compute(ctx: PoolContext, shard: str) -> pl.DataFrame:
        return checked(run(ctx, [shard]))

    def compute_pool(ctx: PoolContext) -> pl.LazyFrame:
        scratch = ctx.store.scratch(table_of(model.key))  # goes when the table is written
        with open_whole_pool(ctx.store, inputs) as connection:
            return checked(run_on_disk(model, connection, scratch, recipe_parameters(ctx, model)))

    def compute_shards(ctx: PoolContext, shards: Sequence[str]) -> dict[str, pl.DataFrame]:
        frame = run(ctx, shards)
        is_sound = not broken_tests(model, frame)  # then each shard's rows pass, too
        parts = by_shard(frame)
        return parts if is_sound else {shard: checked(part) for shard, part in parts.items()}

    return Table(
        name=f"{model.stage}/{model.name}",
        grain="shard" if model.is_per_shard else "pool",
        inputs=inputs,
        version=model.code_version,
        description=f"{model.grain[0].upper()}{model.grain[1:]}\n\n```sql\n{model.script}\n```",
        compute=Together(compute, compute_shards) if model.is_per_shard else compute_pool,
        config=(lambda ctx: recipe_parameters(ctx, model)) if model.parameters else None,
        continues=SAMPLES,
        shown=Shown(kinds=("duckdb", "sql"), column_lineage=model.column_lineage),
    )
