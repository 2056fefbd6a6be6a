"""signals: one value per sample and method over the whole pool. Every method that the pool runs gets its table here."""

from collections.abc import Iterator

import polars as pl

from curation_assets.flow import PoolContext, Table
from curation_assets.flow.duplicates import duplicate_settings
from curation_assets.flow.image_clusters import image_clusters
from curation_assets.methods import Method
from curation_assets.scoring import (
    DEFAULT_CAPTION_COUNT,
    DERIVED_COLUMNS,
    derive_column,
    generate_captions,
    score_samples,
    with_parameters,
)


def tables(ctx: PoolContext) -> Iterator[Table]:
    """Tables of this stage: the generated captions, then one per method."""
    yield Table(
        name="signals/generated_captions",
        grain="shard",
        inputs=("raw/samples",),
        version="1",
        compute=_generated_captions,
        roles=("captioner",),
        config=lambda ctx, shard: {"count": ctx.option("caption_count", DEFAULT_CAPTION_COUNT)},
        continues="raw/samples",
        description="One row per sample: captions sampled from its image (nucleus), kept for every method that asks.",
        kinds=("torch", "polars"),
    )
    for name in derived_columns(ctx):
        yield _derived_table(name)
    yield from image_clusters(ctx)
    for method in ctx.methods("signals"):
        yield _signal_table(ctx, method)


def derived_columns(ctx: PoolContext) -> list[str]:
    """Columns made of each image that a method of this pool, or its search for duplicates, asks for, sorted."""
    asked = {name for method in ctx.methods("signals") for name in method.columns}
    compared = duplicate_settings(ctx)
    asked |= set() if compared is None else set(compared.columns)
    if any(method.pool_tables for method in ctx.methods("signals")):
        asked.add("image_embedding")
    return sorted(asked & set(DERIVED_COLUMNS))


def _derived_table(name: str) -> Table:
    column = DERIVED_COLUMNS[name]
    roles = (column.role,) if column.role else ()

    def compute(ctx: PoolContext, shard: str | None) -> pl.DataFrame:
        samples = ctx.store.read("raw/samples", shard)
        with ctx.progress.task(f"{name} {shard}", samples.height) as advance:
            return derive_column(
                name,
                samples,
                ctx.engines(roles)[column.role] if column.role else None,
                load_image=ctx.image_loader(),
                batch_size=ctx.batch_size(roles),
                progress=advance,
            )

    return Table(
        name=f"signals/{name}",
        grain="shard",
        inputs=("raw/samples",),
        version="1",
        compute=compute,
        roles=roles,
        continues="raw/samples",
        description=column.description,
        kinds=("polars",),
    )


def _signal_table(ctx: PoolContext, method: Method) -> Table:
    inputs = ["raw/samples"]
    derived = [name for name in method.columns if name == "generated_captions" or name in DERIVED_COLUMNS]
    inputs.extend(f"signals/{name}" for name in derived)
    given = ctx.profile.methods.get(method.name, {})
    provided = {setting: table for setting, table in method.pool_tables.items() if setting not in given}
    inputs.extend(provided.values())
    if "student" in method.roles and ctx.profile.address("student").startswith("pool:"):
        inputs.append("distilled/" + ctx.profile.address("student").removeprefix("pool:"))

    def compute(ctx: PoolContext, shard: str | None) -> pl.DataFrame:
        samples = ctx.store.read("raw/samples", shard)
        for name in derived:  # row for row: all carry on raw/samples
            made = ctx.store.read(f"signals/{name}", shard)
            samples = samples.with_columns(made[name], made["reason"].alias(f"{name}_reason"))
        paths = {setting: ctx.store.table_path(table) for setting, table in provided.items()}
        with ctx.progress.task(f"{method.name} {shard}", samples.height) as advance:
            return score_samples(
                with_parameters(method, **paths),
                samples,
                ctx.engines(method.roles),
                load_image=ctx.image_loader(),
                batch_size=ctx.batch_size(method.roles),
                progress=advance,
            )

    return Table(
        name=f"signals/{method.name}",
        grain="shard",
        inputs=tuple(inputs),
        version=method.version,
        compute=compute,
        roles=method.roles,
        continues="raw/samples",
        description=(
            f"One row per sample: {method.summary} Unit: {method.unit}, in "
            f"[{method.bounds[0]:g}, {method.bounds[1]:g}], {method.direction} is better. Source: {method.source}."
        ),
        kinds=("torch", "polars"),
    )


def _generated_captions(ctx: PoolContext, shard: str | None) -> pl.DataFrame:
    samples = ctx.store.read("raw/samples", shard)
    with ctx.progress.task(f"captions {shard}", samples.height) as advance:
        return generate_captions(
            samples,
            ctx.engines(["captioner"])["captioner"],
            count=ctx.option("caption_count", DEFAULT_CAPTION_COUNT),
            load_image=ctx.image_loader(),
            batch_size=ctx.batch_size(["captioner"]),
            progress=advance,
        )
