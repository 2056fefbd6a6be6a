"""signals: one value per sample and method over the whole pool. Every method that the pool runs gets its table here."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import polars as pl

from curation_assets.core.table_names import IMAGE_CLUSTERS, REGISTERED_SHARDS, SAMPLES
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import fitted_recipes
from curation_assets.flow.options import FlowOptions
from curation_assets.flow.saved import saved_rows
from curation_assets.flow.table import Needs, OfImages, Shown, Table
from curation_assets.methods import Method
from curation_assets.scoring.batches import LoadImage, Steps, result_of, row_identity
from curation_assets.scoring.derived import DERIVED_COLUMNS, derive_in_steps, vectors_of
from curation_assets.scoring.samples import score_in_steps
from curation_assets.sources.options import SourceOptions
from curation_assets.stages.signals.contamination import compared_columns
from curation_assets.stages.signals.given_columns import given_file, read_given
from curation_assets.stages.signals.given_signals import given_config, given_source, given_values
from curation_assets.stages.signals.options import SignalsOptions
from curation_assets.stores.content_hash import frame_sha256


def tables(ctx: PoolContext) -> Iterator[Table]:
    """Tables of this stage: the derived columns, then one per method."""
    for name in derived_columns(ctx):
        yield _derived_table(ctx, name)
    for method in ctx.methods("signals"):
        source = given_source(ctx, method.name)
        yield _signal_table(ctx, method) if source is None else _given_table(method, source[1])


def derived_columns(ctx: PoolContext) -> list[str]:
    """Columns made of each image that a method of this pool, its search for duplicates, or a fitted recipe reads,
    sorted; and those that every pool has."""
    given = set(SourceOptions.of(ctx).given_signals)
    read = {name for method in ctx.methods("signals") if method.name not in given for name in method.columns}
    compared = FlowOptions.of(ctx).duplicates
    read |= set() if compared is None else set(compared.columns)
    read |= set(compared_columns(ctx))
    read |= {"image_embedding"} if SignalsOptions.of(ctx).caption_choice else set()
    read |= {name for recipe in fitted_recipes(ctx).values() for name in recipe.settings.columns}
    tables = {file.table for method in ctx.methods("signals") for file in method.file_settings.values()}
    if IMAGE_CLUSTERS in tables:
        read.add("image_embedding")
    read |= {name for name, column in DERIVED_COLUMNS.items() if column.is_always_made and not ctx.lacking([name])}
    return sorted(read & set(DERIVED_COLUMNS))


def _derived_table(ctx: PoolContext, name: str) -> Table:
    """Table `signals/<name>`: what the pool brings along (its option `given`), else what the column's role makes."""
    column = DERIVED_COLUMNS[name]
    is_given = given_file(ctx, name) is not None
    roles = (column.role,) if column.role and not is_given else ()

    def settings(ctx: PoolContext) -> dict[str, int]:
        return {setting: getattr(ctx.options, column.options[setting]) for setting in column.settings}

    def config(ctx: PoolContext) -> dict[str, Any]:
        return {"given_sha256": given_file(ctx, name)} if is_given else dict(settings(ctx))

    def compute_given(ctx: PoolContext, shard: str) -> pl.DataFrame:
        path = given_file(ctx, name)
        assert path is not None, name
        return read_given(path, name, ctx.store.read(SAMPLES, shard))

    def compute_images(ctx: PoolContext, shard: str, load_image: LoadImage) -> Steps[pl.DataFrame]:
        samples = ctx.store.read(SAMPLES, shard)
        made_from = {
            "samples": _content(ctx, shard, [SAMPLES], samples),
            "column": ["1", settings(ctx)],
        }
        with ctx.progress.task(f"{name} {shard}", samples.height) as advance:
            return (
                yield from derive_in_steps(
                    name,
                    samples,
                    ctx.engines(roles)[column.role] if column.role else None,
                    settings(ctx),
                    load_image=load_image,
                    batch_size=ctx.batch_size(roles),
                    progress=advance,
                    saved=saved_rows(ctx, f"signals/{name}", shard, roles, made_from),
                )
            )

    return Table(
        name=f"signals/{name}",
        grain="shard",
        inputs=(SAMPLES,),
        version="1",
        description=column.description,
        compute=compute_given if is_given else OfImages(compute_images),
        needs=Needs(roles=roles),
        config=config if is_given or column.settings else None,
        continues=SAMPLES,
        shown=Shown(kinds=column.kinds),
    )


def _given_table(method: Method, column: str) -> Table:
    """Table `signals/<method>` of values that the pool brings along: no model, no image."""

    def compute(ctx: PoolContext, shard: str) -> pl.DataFrame:
        return given_values(ctx, method, shard)

    return Table(
        name=f"signals/{method.name}",
        grain="shard",
        inputs=(SAMPLES, REGISTERED_SHARDS),
        version="1",
        description=f"One row per sample: {method.name} as the pool's owner gives it (column {column}). "
        f"Unit: {method.unit_and_bounds}, {method.direction} is better.",
        compute=compute,
        config=lambda ctx: given_config(ctx, method.name),
        continues=SAMPLES,
        shown=Shown(kinds=("polars",)),
    )


def _signal_table(ctx: PoolContext, method: Method) -> Table:
    derived = [name for name in method.columns if name in DERIVED_COLUMNS]
    inputs = [SAMPLES, *(f"signals/{column}" for column in derived)]
    given = ctx.profile.methods.get(method.name, {})
    fitted = {
        file.table: file
        for setting, file in method.file_settings.items()
        if file.table is not None and setting not in given
    }
    inputs += [*fitted, *ctx.distilled(method.roles)]

    def compute_in_steps(ctx: PoolContext, shard: str, load_image: LoadImage) -> Steps[pl.DataFrame]:
        samples = ctx.store.read(SAMPLES, shard).with_columns(
            # where the size before any scaling is unknown (tars of one's own), that of the stored image counts
            pl.coalesce("original_width", "width").alias("original_width"),
            pl.coalesce("original_height", "height").alias("original_height"),
        )
        for column in derived:
            written = ctx.store.read(f"signals/{column}", shard)
            samples = samples.with_columns(
                written[column], written["reason"].alias(f"{column}_reason")
            )  # row for row: both carry on raw/samples
        statistics = {file.parameter: file.parse(_columns(ctx.store.read(table))) for table, file in fitted.items()}
        made_from = {
            "samples": _content(ctx, shard, inputs, samples),
            "method": [method.name, method.version, ctx.method_config(method.name)],
        }
        with ctx.progress.task(f"{method.name} {shard}", samples.height) as advance:
            return (
                yield from score_in_steps(
                    replace(method, function=partial(method.function, **statistics)) if statistics else method,
                    samples,
                    ctx.engines(method.roles),
                    load_image=load_image,
                    batch_size=ctx.batch_size(method.roles),
                    progress=advance,
                    saved=saved_rows(ctx, f"signals/{method.name}", shard, method.roles, made_from),
                )
            )

    def compute(ctx: PoolContext, shard: str) -> pl.DataFrame:  # of captions alone: nothing to share a pass with
        return result_of(compute_in_steps(ctx, shard, ctx.image_loader()))

    return Table(
        name=f"signals/{method.name}",
        grain="shard",
        inputs=tuple(inputs),
        version=method.version,
        description=f"One row per sample: {method.summary} Unit: {method.unit_and_bounds}, {method.direction} is "
        f"better. "
        f"Source: {method.source}.",
        compute=OfImages(compute_in_steps) if "image" in method.columns else compute,
        needs=Needs(roles=method.roles, core=True),
        continues=SAMPLES,
        shown=Shown(
            kinds=("torch", "polars") if method.roles else ("polars",),
            column_lineage={
                "sample_id": [(SAMPLES, "sample_id")],
                "source_row": [(SAMPLES, "source_row")],
                "value": [_origin(column) for column in method.columns],
            },
        ),
    )


def _columns(table: pl.DataFrame) -> dict[str, Any]:
    """Lists by column name; vectors, such as centroids, as one array (N, D)."""
    is_vector = {name: dtype == pl.List(pl.Float32) for name, dtype in table.schema.items()}
    return {name: vectors_of(table[name]) if is_vector[name] else table[name].to_list() for name in table.columns}


def _content(ctx: PoolContext, shard: str, inputs: Sequence[str], samples: pl.DataFrame) -> list[Any]:
    """Which rows (a retry computes some of a shard), and the content of the tables that they are computed from."""
    contents = [[name, ctx.store.content(name, shard) or ctx.store.content(name)] for name in inputs]
    return [frame_sha256(row_identity(samples)), *contents]


def _origin(column: str) -> tuple[str, str]:
    """(table, column) that a method's column is read from; an image's is the name of its file."""
    if column in DERIVED_COLUMNS:
        return f"signals/{column}", column
    return SAMPLES, "member" if column == "image" else column
