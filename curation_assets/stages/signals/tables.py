"""signals: one value per sample and method over the whole pool. Every method that the pool runs gets its table here."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import polars as pl

from curation_assets.flow.context import PoolContext
from curation_assets.flow.table import Table
from curation_assets.methods import Method
from curation_assets.scoring.derived import (
    DERIVED_COLUMNS,
    DERIVING_ROLES,
    derive_column,
    detect_objects,
    generate_captions,
)
from curation_assets.scoring.samples import score_samples
from curation_assets.stages.signals.canary import canary_tables
from curation_assets.stages.signals.given_columns import DTYPES, fingerprint, given_file, read_given
from curation_assets.stages.signals.image_clusters import TABLE as IMAGE_CLUSTERS
from curation_assets.stages.signals.image_clusters import image_clusters


def tables(ctx: PoolContext) -> Iterator[Table]:
    """Tables of this stage: the generated captions, then one per method."""
    is_given = {name: given_file(ctx, name) is not None for name in DTYPES}
    yield Table(
        name="signals/generated_captions",
        grain="shard",
        inputs=("raw/samples",),
        version="1",
        compute=_given("generated_captions") if is_given["generated_captions"] else _generated_captions,
        roles=() if is_given["generated_captions"] else ("captioner",),
        config=_given_config("generated_captions")
        if is_given["generated_captions"]
        else lambda ctx, shard: {"count": ctx.options.caption_count},
        continues="raw/samples",
        description="One row per sample: captions sampled from its image (nucleus), kept for every method that asks.",
        kinds=("torch", "polars"),
    )
    methods = ctx.methods("signals")
    if any("detected_objects" in method.columns for method in methods):
        yield Table(
            name="signals/detected_objects",
            grain="shard",
            inputs=("raw/samples",),
            version="1",
            compute=_given("detected_objects", "detection_scores")
            if is_given["detected_objects"]
            else _detected_objects,
            roles=() if is_given["detected_objects"] else ("object_detector",),
            config=_given_config("detected_objects") if is_given["detected_objects"] else None,
            continues="raw/samples",
            description="One row per sample: labels of the objects in its image, best first, with their scores.",
            kinds=("torch", "polars"),
        )
    for name in derived_columns(ctx):
        yield _derived_table(name, is_given=is_given[name])
    yield from image_clusters(ctx)
    for method in methods:
        yield _signal_table(ctx, method)
    if ctx.options.canary:
        yield from canary_tables(ctx)


def derived_columns(ctx: PoolContext) -> list[str]:
    """Columns made of each image that a method of this pool, or its search for duplicates, asks for, sorted."""
    asked = {name for method in ctx.methods("signals") for name in method.columns}
    compared = ctx.options.duplicates
    asked |= set() if compared is None else set(compared.columns)
    tables = {file.table for method in ctx.methods("signals") for file in method.file_settings.values()}
    if IMAGE_CLUSTERS in tables:
        asked.add("image_embedding")
    return sorted(asked & set(DERIVED_COLUMNS))


def _given(column: str, also: str | None = None) -> Callable[[PoolContext, str | None], pl.DataFrame]:
    """What computes a table whose column the pool brings along."""

    def compute(ctx: PoolContext, shard: str | None) -> pl.DataFrame:
        path = given_file(ctx, column)
        assert path is not None, column
        return read_given(path, column, ctx.store.read("raw/samples", shard), also)

    return compute


def _given_config(column: str) -> Callable[[PoolContext, str | None], dict[str, str | None]]:
    return lambda ctx, shard: {"given_sha256": fingerprint(ctx, column)}


def _derived_table(name: str, *, is_given: bool) -> Table:
    column = DERIVED_COLUMNS[name]
    roles = (column.role,) if column.role and not is_given else ()

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
        compute=_given(name) if is_given else compute,
        roles=roles,
        config=_given_config(name) if is_given else None,
        continues="raw/samples",
        description=column.description,
        kinds=("polars",),
    )


def _signal_table(ctx: PoolContext, method: Method) -> Table:
    derived = [name for name in method.columns if name in DERIVING_ROLES or name in DERIVED_COLUMNS]
    inputs = ["raw/samples", *(f"signals/{column}" for column in derived)]
    given = ctx.profile.methods.get(method.name, {})
    fitted = {
        file.table: file
        for setting, file in method.file_settings.items()
        if file.table is not None and setting not in given
    }
    inputs += fitted
    if "student" in method.roles and ctx.profile.address("student").startswith("pool:"):
        inputs.append("distilled/" + ctx.profile.address("student").removeprefix("pool:"))

    def compute(ctx: PoolContext, shard: str | None) -> pl.DataFrame:
        samples = ctx.store.read("raw/samples", shard).with_columns(
            # where the size before any scaling is unknown (tars of one's own), that of the stored image counts
            pl.coalesce("original_width", "width").alias("original_width"),
            pl.coalesce("original_height", "height").alias("original_height"),
        )
        for column in derived:
            written = ctx.store.read(f"signals/{column}", shard)
            samples = samples.with_columns(
                written[column], written["reason"].alias(f"{column}_reason")
            )  # row for row: both carry on raw/samples
        statistics = {
            file.parameter: file.parse(ctx.store.read(table).to_dict(as_series=False)) for table, file in fitted.items()
        }
        with ctx.progress.task(f"{method.name} {shard}", samples.height) as advance:
            return score_samples(
                replace(method, function=partial(method.function, **statistics)) if statistics else method,
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


def _detected_objects(ctx: PoolContext, shard: str | None) -> pl.DataFrame:
    samples = ctx.store.read("raw/samples", shard)
    with ctx.progress.task(f"objects {shard}", samples.height) as advance:
        return detect_objects(
            samples,
            ctx.engines(["object_detector"])["object_detector"],
            load_image=ctx.image_loader(),
            batch_size=ctx.batch_size(["object_detector"]),
            progress=advance,
        )


def _generated_captions(ctx: PoolContext, shard: str | None) -> pl.DataFrame:
    samples = ctx.store.read("raw/samples", shard)
    with ctx.progress.task(f"captions {shard}", samples.height) as advance:
        return generate_captions(
            samples,
            ctx.engines(["captioner"])["captioner"],
            count=ctx.options.caption_count,
            load_image=ctx.image_loader(),
            batch_size=ctx.batch_size(["captioner"]),
            progress=advance,
        )
