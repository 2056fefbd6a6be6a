"""teachers: how well two autoencoders reconstruct the captions of the distillation sample (ICC §3)."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import polars as pl

from curation_assets.core.settings import Settings
from curation_assets.core.table_names import DISTILLATION_SAMPLE, PHOTO_BANK, SAMPLES, SBA_BRIDGE
from curation_assets.flow.context import PoolContext
from curation_assets.flow.options import FlowOptions
from curation_assets.flow.parallel import call_in_parts, progress_of_call
from curation_assets.flow.saved import saved_rows
from curation_assets.flow.table import Fit, Needs, Shown, Table
from curation_assets.methods import Method
from curation_assets.numeric.identity import sample_id_of, unit_interval_of
from curation_assets.scoring.samples import score_samples
from curation_assets.stages.teachers.options import TeachersOptions
from curation_assets.stores.content_hash import frame_sha256
from curation_assets.stores.text_tables import read_table

DEFAULT_LABELS_SEED = 244


def tables(ctx: PoolContext) -> Iterator[Table]:
    """Tables of this stage; none where the pool distils no student of its own."""
    options = TeachersOptions.of(ctx)
    if not ctx.distils:
        return
    yield Table(
        name="teachers/distillation_fraction",
        grain="pool",
        inputs=(),
        version="1",
        compute=_distillation_fraction,
        config=lambda ctx: {"size": options.distillation_size},
        fit=Fit(),
        description="One row: the share of the pool that the teachers score, from the rows that it had at first.",
    )
    yield Table(
        name=DISTILLATION_SAMPLE,
        grain="shard",
        inputs=(SAMPLES, "teachers/distillation_fraction"),
        version="1",
        compute=_distillation_sample,
        description="One row per kept sample that the teachers score, drawn by hash of the sample_id.",
    )
    for method in ctx.methods("teachers"):
        yield _teacher_table(ctx, method)
    if ctx.ratings is not None:
        yield _rated_table(
            ctx,
            "labelled_captions",
            read_labels,
            labels_config,
            f"One row per caption with its {ctx.ratings} rating of concreteness (0–3) and the teachers' values.",
        )
    if options.caption_benchmark is not None:
        yield _rated_table(
            ctx,
            "benchmark_captions",
            lambda ctx: read_rated(Path(options.caption_benchmark or "")),
            lambda ctx: {"benchmark_sha256": Path(options.caption_benchmark or "")},
            "One row per rated caption of the benchmark file, with both teachers' values. Nothing is fitted on it.",
        )


def _rated_table(
    ctx: PoolContext,
    name: str,
    read: Callable[[PoolContext], pl.DataFrame],
    config: Callable[[PoolContext], dict[str, Any]],
    description: str,
) -> Table:
    return Table(
        name=f"teachers/{name}",
        grain="pool",
        inputs=_made_here(ctx, ctx.methods("teachers")),
        version="2",
        description=description,
        compute=lambda ctx: score_in_parts(ctx, read(ctx), f"teachers/{name}"),
        needs=Needs(
            roles=tuple(sorted({role for method in ctx.methods("teachers") for role in method.roles})), core=True
        ),
        config=lambda ctx: {
            **config(ctx),
            "methods": {
                method.name: [method.version, dict(ctx.profile.methods.get(method.name, {}))]
                for method in ctx.methods("teachers")
            },
        },
        shown=Shown(kinds=("torch", "polars")),
    )


def _made_here(ctx: PoolContext, methods: Iterable[Method]) -> tuple[str, ...]:
    """Tables of models that the pool makes and these methods use."""
    roles = {role for method in methods for role in method.roles}
    made = [(SBA_BRIDGE, ctx.trains_sba, "semantic_decoder"), (PHOTO_BANK, ctx.has_photo_bank, "text_to_image")]
    return tuple(name for name, is_made, role in made if is_made and role in roles)


def _teacher_table(ctx: PoolContext, method: Method) -> Table:
    def compute(ctx: PoolContext, shard: str) -> pl.DataFrame:
        samples = ctx.store.read(DISTILLATION_SAMPLE, shard)
        return _score(ctx, method, samples, f"{method.name} {shard}", f"teachers/{method.name}", shard)

    return Table(
        name=f"teachers/{method.name}",
        grain="shard",
        inputs=(DISTILLATION_SAMPLE, *_made_here(ctx, [method])),
        version=method.version,
        description=f"One row per sample of the distillation sample: {method.summary} Reconstructions are kept. "
        f"Unit: {method.unit}. Source: {method.source}.",
        compute=compute,
        needs=Needs(roles=method.roles, core=True),
        continues=DISTILLATION_SAMPLE,
        shown=Shown(kinds=("torch", "polars")),
    )


def _score(
    ctx: PoolContext,
    method: Method,
    samples: pl.DataFrame,
    label: str,
    table: str | None = None,
    shard: str | None = None,
) -> pl.DataFrame:
    """Values of a teacher. At seconds per caption a shard takes hours: what is done is saved for `table`, if any."""
    saved = None
    if table is not None:
        made_from = {
            "samples": frame_sha256(samples),
            "method": [method.name, method.version, ctx.method_config(method.name)],
        }
        saved = saved_rows(ctx, table, shard, method.roles, made_from)
    with ctx.progress.task(label, samples.height) as advance:
        return score_samples(
            method,
            samples,
            ctx.engines(method.roles),
            load_image=None,  # teachers read captions only
            batch_size=ctx.batch_size(method.roles),
            progress=advance,
            saved=saved,
        )


def _distillation_fraction(ctx: PoolContext) -> pl.DataFrame:
    """The fraction is in (0, 1]. The pool's declaration has the number of its rows."""
    rows = ctx.pool.expected_rows(ctx.settings)
    return pl.DataFrame(
        {"rows": [rows], "fraction": [min(1.0, TeachersOptions.of(ctx).distillation_size / max(1, rows))]}
    )


def _distillation_sample(ctx: PoolContext, shard: str) -> pl.DataFrame:
    samples = ctx.store.read(SAMPLES, shard).filter(pl.col("status") == "kept")
    fraction = ctx.store.read("teachers/distillation_fraction")["fraction"][0]
    chosen = [unit_interval_of(sample_id, "distillation") < fraction for sample_id in samples["sample_id"]]
    return samples.filter(pl.Series(chosen, dtype=pl.Boolean)).select("sample_id", "caption", "status", "reason")


def score_in_parts(ctx: PoolContext, labels: pl.DataFrame, table: str | None = None) -> pl.DataFrame:
    """`score_labelled`, in as many parts as there are workers. `table`: the one that this is for, if any."""
    with ctx.progress.task("teachers on rated captions", labels.height) as advance:
        return pl.concat(call_in_parts(ctx.settings, score_labelled, ctx.pool.name, labels, table, advance=advance))


def score_labelled(
    settings: Settings, pool_name: str, labels: pl.DataFrame, for_table: str | None = None
) -> pl.DataFrame:
    """`labels` with both teachers' values. A value depends on its caption alone, so labels may come in parts."""
    ctx = PoolContext.open(settings, pool_name, progress=progress_of_call())
    samples = labels.with_columns(
        pl.col("caption").map_elements(lambda caption: sample_id_of("", caption), pl.String).alias("sample_id"),
        pl.lit("kept").alias("status"),
        pl.lit(None, dtype=pl.String).alias("reason"),
    )
    table = labels
    for method in ctx.methods("teachers"):
        scored = _score(ctx, method, samples, f"{method.name} on rated captions", for_table)
        table = table.with_columns(
            scored["value"].alias(method.name),
            scored["best_reconstruction"].alias(f"{method.name}_best"),
            scored["reconstructions"].alias(f"{method.name}_reconstructions"),
            scored["open_similarity"].alias(f"{method.name}_open_similarity"),
            scored["reason"].alias(f"{method.name}_reason"),
        )
    return table


def labels_config(ctx: PoolContext) -> dict[str, Any]:
    """What decides `read_labels`: the pool's file, else how many captions are planted."""
    options = TeachersOptions.of(ctx)
    path = FlowOptions.of(ctx).labels
    if path is not None:
        return {"labels_sha256": Path(path)}
    return {"labels": options.labelled_captions}


def read_labels(ctx: PoolContext) -> pl.DataFrame:
    """Rated captions: columns caption, rating (0–3). From the pool's `labels:` file; of the drawn world else planted.

    Raises ValueError where nobody rated captions of the pool, and as `read_rated` does.
    """
    options = TeachersOptions.of(ctx)
    path = FlowOptions.of(ctx).labels
    if ctx.ratings is None:
        raise ValueError(f"pool {ctx.pool.name!r} has no rated captions; name a file of them in its option labels")
    if path is None:
        from curation_assets.world.pool import plant_labelled_captions

        planted = plant_labelled_captions(options.labelled_captions, seed=DEFAULT_LABELS_SEED)
        return pl.DataFrame(planted, schema={"caption": pl.String, "rating": pl.Float64}, orient="row")
    return read_rated(Path(path))


def read_rated(path: Path) -> pl.DataFrame:
    """Columns caption, rating of a file (tsv, csv, parquet, jsonl) with a column caption, and rating or concreteness.

    A row without a rating stays (null). Raises ValueError where a column is missing, a caption is blank or a
    rating is no number; what `ratings.read_table` raises for the file.
    """
    frame = read_table(path)
    rating = next((name for name in ("rating", "concreteness") if name in frame.columns), None)
    if "caption" not in frame.columns or rating is None:
        raise ValueError(f"{path}: expected columns caption and rating (0–3), got {frame.columns}")
    if frame.is_empty():
        raise ValueError(f"{path} holds no rated caption")
    given = frame[rating].cast(pl.String).str.strip_chars()
    numbers = given.cast(pl.Float64, strict=False)
    for wrong, what in (
        (frame["caption"].cast(pl.String).fill_null("").str.strip_chars() == "", "no caption"),
        (numbers.is_null() & (given.fill_null("") != ""), f"a {rating} that is no number"),
    ):
        rows = wrong.arg_true().to_list()
        if rows:
            raise ValueError(
                f"{path}: {len(rows)} rows have {what}, the first is row {rows[0] + 1}; correct or remove them"
            )
    return pl.DataFrame({"caption": frame["caption"].cast(pl.String), "rating": numbers})
