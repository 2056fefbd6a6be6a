"""signals: one value per sample and method over the whole pool. Every method that the pool runs gets its table here."""

from collections.abc import Iterator

import polars as pl

from curation_assets.flow import PoolContext, Table
from curation_assets.flow.canary import canary_tables
from curation_assets.methods import Method
from curation_assets.scoring import DEFAULT_CAPTION_COUNT, generate_captions, score_samples


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
    for method in ctx.methods("signals"):
        yield _signal_table(ctx, method)
    if ctx.option("canary", None):
        yield from canary_tables(ctx)


def _signal_table(ctx: PoolContext, method: Method) -> Table:
    inputs = ["raw/samples"]
    if "generated_captions" in method.columns:
        inputs.append("signals/generated_captions")
    if "student" in method.roles and ctx.profile.address("student").startswith("pool:"):
        inputs.append("distilled/" + ctx.profile.address("student").removeprefix("pool:"))

    def compute(ctx: PoolContext, shard: str | None) -> pl.DataFrame:
        samples = ctx.store.read("raw/samples", shard)
        if "generated_captions" in method.columns:
            generated = ctx.store.read("signals/generated_captions", shard)
            samples = samples.with_columns(
                generated["generated_captions"], generated["reason"].alias("generated_captions_reason")
            )  # row for row: both carry on raw/samples
        with ctx.progress.task(f"{method.name} {shard}", samples.height) as advance:
            return score_samples(
                method,
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
