"""fused/<recipe> of fitted recipes (selection/fitted.py): a frozen fit over the pool, then each shard alone."""

from collections.abc import Collection, Iterator

import polars as pl

from curation_assets.core.table_names import PROVENANCE, SAMPLES, table_of
from curation_assets.core.validation import check_known, content_of
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import fitted_recipes, recipe_models, why_not_run
from curation_assets.flow.table import Fit, Needs, Table
from curation_assets.methods import oriented
from curation_assets.scoring.derived import DERIVED_COLUMNS
from curation_assets.scoring.upstream import upstream_reason
from curation_assets.selection.fitted import FittedRecipe
from curation_assets.stores.provenance import PROVENANCE_SCHEMA
from curation_assets.stores.samples import SAMPLES_SCHEMA

FIT = "_fit"
ROW_KEY = ["shard", "source_row"]


def tables(ctx: PoolContext) -> Iterator[Table]:
    """Two tables per recipe that the pool runs. Raises ValueError for one whose signals it does not run."""
    models = recipe_models(ctx)
    for recipe in fitted_recipes(ctx).values():
        plain = [name for name in recipe.settings.columns if "." not in name]
        known = {*SAMPLES_SCHEMA, *PROVENANCE_SCHEMA, *DERIVED_COLUMNS, *ctx.pool.numbers}
        check_known(f"pool {ctx.pool.name!r}: recipe {recipe.name!r}: the pool", "column", plain, known)
        named = (name.rpartition(".")[0] for name in recipe.settings.columns if "." in name)
        if why := why_not_run(ctx, [*recipe.settings.signals, *named]):
            raise ValueError(f"pool {ctx.pool.name!r}: recipe {recipe.name!r} reads {why}, or leave the recipe out")
        if lacking := ctx.lacking(recipe.settings.columns):
            raise ValueError(
                f"pool {ctx.pool.name!r}: recipe {recipe.name!r} reads {', '.join(lacking)}, and the pool has captions "
                "only; bring columns along (option given), or leave the recipe out"
            )
        if recipe.key in models:
            raise ValueError(f"recipe {recipe.name!r} is a SQL recipe already; give yours another name")
        yield _fit_table(recipe)
        yield _score_table(recipe)


def _inputs(recipe: FittedRecipe) -> tuple[str, ...]:
    signals = (table_of(name) for name in recipe.settings.signals)
    return tuple(dict.fromkeys((SAMPLES, *signals, *(_place_of(name)[0] for name in recipe.settings.columns))))


def _place_of(column: str) -> tuple[str, str]:
    """Table and column that hold a column of a kind; `signals.image_kind.kind` is kind of signals/image_kind."""
    if "." in column:
        table, _, name = column.rpartition(".")
        return table_of(table), name
    if column in DERIVED_COLUMNS:
        return f"signals/{column}", column
    return (PROVENANCE if column in PROVENANCE_SCHEMA and column not in SAMPLES_SCHEMA else SAMPLES), column


def _fit_table(recipe: FittedRecipe) -> Table:
    def compute(ctx: PoolContext) -> pl.DataFrame:
        shards = (rows_of(ctx, recipe, key) for key in ctx.store.partitions(SAMPLES))
        return recipe.settings.fit(shards, ctx.engines(recipe.settings.roles))

    def holds_any(ctx: PoolContext, sample_ids: Collection[str]) -> bool:
        scored = ctx.store.scan(f"fused/{recipe.name}").filter(pl.col("sample_id").is_in(list(sample_ids))).collect()
        return recipe.settings.holds_any(ctx.store.read(f"fused/{recipe.name}{FIT}"), scored)

    return Table(
        name=f"fused/{recipe.name}{FIT}",
        grain="pool",
        inputs=_inputs(recipe),
        version=recipe.version,
        description=f"What recipe {recipe.name} (kind {recipe.kind}) fits on the pool. Frozen: rows that come later "
        f"change "
        f"nothing until `curate refit POOL --fits`.\n\n```\n{content_of(recipe.settings)}\n```",
        compute=compute,
        needs=Needs(roles=recipe.settings.roles),
        config=lambda ctx: {"files": list(recipe.settings.files)},
        fit=Fit(holds_any=holds_any),
    )


def _score_table(recipe: FittedRecipe) -> Table:
    def compute(ctx: PoolContext, shard: str) -> pl.DataFrame:
        rows = rows_of(ctx, recipe, shard)
        scored = recipe.settings.score(rows, ctx.store.read(f"fused/{recipe.name}{FIT}"))
        samples = ctx.store.read(SAMPLES, shard, ["sample_id", "source_row", "status", "reason"])
        every = samples.select(
            "sample_id",
            pl.lit(shard).alias("shard"),
            "source_row",
            upstream_reason().alias("upstream"),
        )
        joined = every.join(
            pl.concat([rows.select("source_row"), scored], how="horizontal"),
            on="source_row",
            how="left",
            maintain_order="left",
        )
        return joined.with_columns(pl.coalesce("upstream", "reason").alias("reason")).drop("upstream")

    return Table(
        name=f"fused/{recipe.name}",
        grain="shard",
        inputs=(*_inputs(recipe), f"fused/{recipe.name}{FIT}"),
        version=recipe.version,
        compute=compute,
        continues=SAMPLES,
        description=(
            f"One row per row of raw/samples: {recipe.description} quality is null, with a reason, where a signal has "
            "no value; drop_reason is why a cut would drop the sample, in words."
        ),
    )


def rows_of(ctx: PoolContext, recipe: FittedRecipe, shard: str) -> pl.DataFrame:
    """Rows of a shard that raw kept, with the columns that the kind reads; of signals, higher is better."""
    kind = recipe.settings
    places = {name: _place_of(name) for name in kind.columns}
    own = [name for name, (table, _) in places.items() if table == SAMPLES]
    rows = ctx.store.read(SAMPLES, shard, ["sample_id", "source_row", "status", *own])
    rows = rows.with_columns(pl.lit(None, pl.String).alias(f"{name}:reason") for name in own)
    read = [(table_of(name), "value", name) for name in kind.signals]
    read += [(table, column, name) for name, (table, column) in places.items() if table != SAMPLES]
    for table, column, name in read:
        reason = [] if table == PROVENANCE else ["reason"]
        made = ctx.store.read(table, shard, ["source_row", column, *reason])
        made = made.rename({column: name, **dict.fromkeys(reason, f"{name}:reason")})
        if column == "value":
            made = made.with_columns(oriented(table, pl.col(name)))
        rows = rows.join(made, on="source_row", how="left", maintain_order="left")
    return rows.filter(pl.col("status") == "kept").drop("status")
