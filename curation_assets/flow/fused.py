"""fused: recipes in SQL (`dbt_like_sql/fused/`). Adding a recipe is adding a file there."""

import functools
from collections.abc import Iterator

import polars as pl

from curation_assets.flow import PoolContext, Table
from curation_assets.flow.duplicates import duplicates
from curation_assets.sql import SqlModel, check_tests, load_models, run_model
from curation_assets.stores.catalog import open_pool


class SqlTestFailedError(ValueError):
    """A SQL model's result breaks a test of its own header."""


def tables(ctx: PoolContext) -> Iterator[Table]:
    """One table per SQL model of the stage, and the duplicates where the pool looks for them."""
    for model in recipes().values():
        yield _model_table(model)
    yield from duplicates(ctx)


@functools.cache
def recipes() -> dict[str, SqlModel]:
    """SQL models of this stage by 'fused.name', parsed once per process: half a second."""
    return {key: model for key, model in load_models().items() if model.stage == "fused"}


def _model_table(model: SqlModel) -> Table:
    inputs = tuple(reference.replace(".", "/") for reference in model.references)

    def compute(ctx: PoolContext, shard: str | None) -> pl.DataFrame:
        with open_pool(ctx.store, inputs) as connection:
            frame = run_model(model, connection)
        failed = [result for result in check_tests(model, frame) if not result.passed]
        if failed:
            raise SqlTestFailedError(f"{model.path}: " + "; ".join(result.message for result in failed))
        return frame

    return Table(
        name=f"{model.stage}/{model.name}",
        grain="pool",
        inputs=inputs,
        version=model.code_version,
        compute=compute,
        continues="raw/samples",
        description=f"{model.grain}\n\n```sql\n{model.text}\n```",
        kinds=("duckdb", "sql"),
        column_lineage=model.column_lineage,
    )
