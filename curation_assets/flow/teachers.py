"""teachers: how well two autoencoders reconstruct the captions of the distillation sample (ICC §3)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from curation_assets.flow import PoolContext, Table
from curation_assets.flow.parallel import call_in_workers
from curation_assets.methods import Method
from curation_assets.numeric.identity import sample_id_of, unit_interval_of
from curation_assets.scoring import score_samples
from curation_assets.settings import Settings
from curation_assets.stores.content_hash import file_sha256

DEFAULT_DISTILLATION_SIZE = 600  # captions; ICC §4 scores 118 K, EMBEDDED profile needs 500–700
DEFAULT_LABELLED_SIZE = 244  # captions rated by people; ICC §4.3


def tables(ctx: PoolContext) -> Iterator[Table]:
    """Tables of this stage; none where the pool distils no student of its own."""
    if not ctx.distils:
        return
    yield Table(
        name="teachers/distillation_fraction",
        grain="pool",
        inputs=(),
        version="1",
        compute=_distillation_fraction,
        config=lambda ctx, shard: {"size": _distillation_size(ctx)},
        is_frozen=True,
        description="One row: the share of the pool that the teachers score, from the rows that it had at first.",
    )
    yield Table(
        name="teachers/distillation_sample",
        grain="shard",
        inputs=("raw/samples", "teachers/distillation_fraction"),
        version="1",
        compute=_distillation_sample,
        description="One row per kept sample that the teachers score, drawn by hash of the sample_id.",
    )
    for method in ctx.methods("teachers"):
        yield _teacher_table(method)
    yield Table(
        name="teachers/labelled_captions",
        grain="pool",
        inputs=(),
        version="1",
        compute=_labelled_captions,
        roles=tuple(sorted({role for method in ctx.methods("teachers") for role in method.roles})),
        config=lambda ctx, shard: {
            **labels_config(ctx),
            "methods": {
                method.name: [method.version, dict(ctx.profile.methods.get(method.name, {}))]
                for method in ctx.methods("teachers")
            },
        },
        description="One row per caption that a person rated for concreteness (0–3), with both teachers' values.",
        kinds=("torch", "polars"),
    )


def _teacher_table(method: Method) -> Table:
    def compute(ctx: PoolContext, shard: str | None) -> pl.DataFrame:
        return _score(ctx, method, ctx.store.read("teachers/distillation_sample", shard), f"{method.name} {shard}")

    return Table(
        name=f"teachers/{method.name}",
        grain="shard",
        inputs=("teachers/distillation_sample",),
        version=method.version,
        compute=compute,
        roles=method.roles,
        continues="teachers/distillation_sample",
        description=(
            f"One row per sample of the distillation sample: {method.summary} Reconstructions are kept. "
            f"Unit: {method.unit}. Source: {method.source}."
        ),
        kinds=("torch", "polars"),
    )


def _score(ctx: PoolContext, method: Method, samples: pl.DataFrame, label: str) -> pl.DataFrame:
    with ctx.progress.task(label, samples.height) as advance:
        return score_samples(
            method,
            samples,
            ctx.engines(method.roles),
            load_image=None,  # teachers read captions only
            batch_size=ctx.batch_size(method.roles),
            progress=advance,
        )


def _distillation_size(ctx: PoolContext) -> int:
    return int(ctx.option("distillation_size", DEFAULT_DISTILLATION_SIZE))


def _distillation_fraction(ctx: PoolContext, shard: str | None) -> pl.DataFrame:
    """The fraction is in (0, 1]. The pool's declaration says how many rows it has."""
    rows = ctx.pool.expected_rows(ctx.settings)
    return pl.DataFrame({"rows": [rows], "fraction": [min(1.0, _distillation_size(ctx) / max(1, rows))]})


def _distillation_sample(ctx: PoolContext, shard: str | None) -> pl.DataFrame:
    samples = ctx.store.read("raw/samples", shard).filter(pl.col("status") == "kept")
    fraction = ctx.store.read("teachers/distillation_fraction")["fraction"][0]
    chosen = [unit_interval_of(sample_id, "distillation") < fraction for sample_id in samples["sample_id"]]
    return samples.filter(pl.Series(chosen, dtype=pl.Boolean)).select("sample_id", "caption", "status", "reason")


def _labelled_captions(ctx: PoolContext, shard: str | None) -> pl.DataFrame:
    return score_in_parts(ctx, read_labels(ctx))


def score_in_parts(ctx: PoolContext, labels: pl.DataFrame) -> pl.DataFrame:
    """`score_labelled`, in as many parts as there are workers."""
    parts = min(ctx.settings.workers, labels.height)
    size = -(-labels.height // parts)
    calls = [(ctx.settings, ctx.pool.name, labels.slice(start, size)) for start in range(0, labels.height, size)]
    with ctx.progress.task("teachers on rated captions, parts", len(calls)) as advance:
        scored = []
        for part in call_in_workers(ctx.settings, score_labelled, calls):
            scored.append(part)
            advance(1)
    return pl.concat(scored)


def score_labelled(settings: Settings, pool_name: str, labels: pl.DataFrame) -> pl.DataFrame:
    """`labels` with both teachers' values. A value depends on its caption alone, so labels may come in parts."""
    ctx = PoolContext.open(settings, pool_name)
    samples = labels.with_columns(
        pl.col("caption").map_elements(lambda caption: sample_id_of("", caption), pl.String).alias("sample_id"),
        pl.lit("kept").alias("status"),
        pl.lit(None, dtype=pl.String).alias("reason"),
    )
    table = labels
    for method in ctx.methods("teachers"):
        scored = _score(ctx, method, samples, f"{method.name} on rated captions")
        table = table.with_columns(
            scored["value"].alias(method.name),
            scored["best_reconstruction"].alias(f"{method.name}_best"),
            scored["open_similarity"].alias(f"{method.name}_open_similarity"),
            scored["reason"].alias(f"{method.name}_reason"),
        )
    return table


def labels_config(ctx: PoolContext) -> dict[str, Any]:
    """What decides `read_labels`: the content of the pool's file, else how many captions are planted, by which seed."""
    path = ctx.option("labels", None)
    if path is not None:
        return {"labels_sha256": file_sha256(Path(path))}
    seed = ctx.option("labels_seed", None)
    return {
        "labels": ctx.option("labelled_captions", DEFAULT_LABELLED_SIZE),
        **({} if seed is None else {"seed": seed}),
    }


def read_labels(ctx: PoolContext) -> pl.DataFrame:
    """Rated captions: columns caption, rating (0–3). From the pool's `labels:` file (tsv, csv, parquet), else planted.

    Raises ValueError where the file lacks a column.
    """
    path = ctx.option("labels", None)
    if path is None:
        from curation_assets.world.pool import plant_labelled_captions

        planted = plant_labelled_captions(
            ctx.option("labelled_captions", DEFAULT_LABELLED_SIZE), seed=ctx.option("labels_seed", 244)
        )
        return pl.DataFrame(planted, schema={"caption": pl.String, "rating": pl.Float64}, orient="row")
    frame = (
        pl.read_parquet(path)
        if str(path).endswith(".parquet")
        else pl.read_csv(path, separator="\t", quote_char=None)
        if str(path).endswith(".tsv")
        else pl.read_csv(path)
    )
    rating = next((name for name in ("rating", "concreteness") if name in frame.columns), None)
    if "caption" not in frame.columns or rating is None:
        raise ValueError(f"{path}: expected columns caption and rating (0–3), got {frame.columns}")
    return frame.select("caption", pl.col(rating).cast(pl.Float64).alias("rating"))
