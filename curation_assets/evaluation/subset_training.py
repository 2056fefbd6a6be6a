"""What a training set is worth: every trainer trains a model on it, and measures it on the evaluation set.

`downstream/<trainer>_runs` has one partition per training set, size and seed, so that only changed sets train again,
and a stopped training goes on from its last checkpoint; `downstream/<trainer>` measures them all.
"""

import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from curation_assets.core.table_names import COMPARISON, EVALUATION_SET, SAMPLES
from curation_assets.core.validation import check_known
from curation_assets.evaluation.comparison import METRIC_SCHEMA, compare_training_sets
from curation_assets.evaluation.drawn_sets import TrainingKey
from curation_assets.evaluation.evaluation_set import (
    chosen_set,
    evaluation_image,
    evaluation_rows,
    untrained_reason,
)
from curation_assets.evaluation.options import DownstreamOptions
from curation_assets.evaluation.trainers import Examples, Task, Trainer, all_trainers
from curation_assets.evaluation.training_sets import (
    TRAINING_SETS,
    captions_config,
    keys_of_pool,
    sets_of,
)
from curation_assets.evaluation.vision_features import (
    EVALUATION_FEATURES,
    ROLES,
    VISION_FEATURES,
    feature_tables,
    stacked,
)
from curation_assets.flow.context import PoolContext
from curation_assets.flow.table import Needs, Shown, Table, Trainings

if TYPE_CHECKING:
    from curation_assets.evaluation.caption_metrics import Values

_RUN_SCHEMAS: dict[str, Any] = {
    "captions": {"image_id": pl.String, "caption": pl.String},
    "metrics": {"metric": pl.String, "value": pl.Float64},
}

#: Grain: one row per training set, size, seed and metric of one trainer.
METRICS_SCHEMA = pl.Schema({name: kind for name, kind in METRIC_SCHEMA.items() if name not in ("pool", "trainer")})


def trainers_of(ctx: PoolContext) -> dict[str, Trainer]:
    """Trainers that the pool runs. Raises ValueError for an unknown name, with the nearest."""
    known, named = all_trainers(), DownstreamOptions.of(ctx).downstream_trainers
    if named is None:
        return {name: trainer for name, trainer in known.items() if trainer.is_default}
    check_known(f"pool {ctx.pool.name!r}: option downstream_trainers", "trainer", named, known)
    return {name: trainer for name, trainer in known.items() if name in named}


def tables(ctx: PoolContext) -> Iterator[Table]:
    """Two tables per trainer, the features that some read, and the comparison of all training sets; none in pools that
    train no models.

    A pool that should train and has nothing to measure on gets tables whose rows say so.
    """
    if not ctx.trains_downstream:
        return
    has_set = chosen_set(ctx) is not None
    if has_set and any(trainer.reads == "features" for trainer in trainers_of(ctx).values()):
        yield from feature_tables()
    keys = keys_of_pool(ctx)
    trained = []
    for trainer in trainers_of(ctx).values():
        runs = f"downstream/{trainer.name}_runs"
        if has_set:
            yield _runs_table(ctx, trainer, keys)
        trained.append(f"downstream/{trainer.name}")
        yield Table(
            name=trained[-1],
            grain="pool",
            inputs=(TRAINING_SETS, EVALUATION_SET, runs) if has_set else (SAMPLES,),
            version="2",
            description=f"One row per training set, size, seed and metric: {trainer.measures}, one budget for all. "
            "Higher is better.",
            compute=lambda ctx, trainer=trainer: metrics_of(ctx, trainer),  # type: ignore[misc]
            needs=Needs(roles=_measuring_roles(ctx, trainer) if has_set else ()),
            config=lambda ctx, trainer=trainer: _metrics_config(ctx, trainer),  # type: ignore[misc]
        )
    yield Table(
        name=COMPARISON,
        grain="pool",
        inputs=tuple(trained),
        version="1",
        compute=comparison_of,
        description=(
            "One row per trainer, training set, size and metric: mean and 95 % interval over seeds, difference from "
            "`random` of the same size, rank, and a sentence on what the figures show."
        ),
    )


def _runs_table(ctx: PoolContext, trainer: Trainer, keys: tuple[str, ...]) -> Table:
    features = (VISION_FEATURES, EVALUATION_FEATURES) if trainer.reads == "features" else ()

    def reads(ctx: PoolContext, key: str) -> list[tuple[str, str | None]]:
        # features follow from a sample's image and the model; a new shard changes those of no other sample
        return [(TRAINING_SETS, key), (EVALUATION_SET, None)]

    return Table(
        name=f"downstream/{trainer.name}_runs",
        grain="training",
        inputs=(SAMPLES, TRAINING_SETS, EVALUATION_SET, *features),
        version=trainer.version,
        description=f"What each trained model gave on the evaluation set, a {trainer.name} model per training set, "
        f"size and "
        "seed: " + ("a caption per image." if trainer.gives == "captions" else "one row per metric."),
        compute=lambda ctx, key: train(ctx, trainer, key),
        needs=Needs(roles=ROLES if trainer.reads == "features" else (), core=True),
        config_by_key=lambda ctx, key: {"budget": budget_of(ctx, trainer)} | captions_config(ctx, key),
        trainings=Trainings(keys, reads),
        shown=Shown(kinds=("torch", "polars")),
    )


def budget_of(ctx: PoolContext, trainer: Trainer) -> dict[str, int]:
    """The trainer's budget, the same for every training set.

    Raises ValueError where the pool's option `downstream_budget` names what no trainer has.
    """
    given = DownstreamOptions.of(ctx).downstream_budget
    check_known("option downstream_budget", "trainer", given, all_trainers())
    own = given.get(trainer.name, {})
    check_known(f"option downstream_budget.{trainer.name}", "setting", own, trainer.budget)
    return {**trainer.budget, **own}


def train(ctx: PoolContext, trainer: Trainer, key: str) -> pl.DataFrame:
    """What one model gave, see `Trainer.gives`; no row where the training set is smaller than a batch."""
    evaluation = evaluation_rows(ctx)
    chosen = _listed(ctx, trainer, key)
    budget = budget_of(ctx, trainer)
    if chosen.height < budget["batch_size"]:
        return pl.DataFrame(schema=_RUN_SCHEMAS[trainer.gives])
    with ctx.progress.task(f"{trainer.name}, {key}, steps", budget["samples_seen"] // budget["batch_size"]) as advance:
        given = trainer.train(_task(ctx, trainer, key, chosen, evaluation, _advancing(advance)))
    return evaluation.select("image_id").hstack(given) if trainer.gives == "captions" else given


def _advancing(advance: Callable[[int], None]) -> Callable[[int], None]:
    """From a function that takes how many more are done, one that takes how many are done in all."""
    before = 0

    def report(done: int) -> None:
        nonlocal before
        advance(done - before)
        before = done

    return report


def _task(
    ctx: PoolContext,
    trainer: Trainer,
    key: str,
    chosen: pl.DataFrame,
    evaluation: pl.DataFrame,
    progress: Callable[[int], None],
) -> Task:
    from curation_assets.engines import resolve_device

    return Task(
        _training_examples(ctx, trainer, chosen),
        _evaluation_examples(ctx, trainer, evaluation),
        TrainingKey.parse(key).seed,
        budget_of(ctx, trainer),
        ctx.store.unfinished_path(f"downstream/{trainer.name}_runs", key) / "training.safetensors",
        resolve_device(ctx.profile.device),
        functools.partial(_write_tars, ctx, key, chosen["sample_id"].to_list()),
        progress,
    )


def _listed(ctx: PoolContext, trainer: Trainer, key: str) -> pl.DataFrame:
    """Samples of a training set whose image can be read, each as often as it is listed."""
    listed = ctx.store.read(TRAINING_SETS, key)
    if trainer.reads == "features":
        usable = ctx.store.scan(VISION_FEATURES).filter(pl.col("reason").is_null())
    else:
        usable = ctx.store.scan(SAMPLES).filter(pl.col("has_image") & (pl.col("status") == "kept"))
    listed = listed.join(usable.select("sample_id").collect(), on="sample_id", how="semi", maintain_order="left")
    return listed[np.repeat(np.arange(listed.height), listed["count"].to_numpy())]


def _too_small(ctx: PoolContext, trainer: Trainer) -> str:
    batch = budget_of(ctx, trainer)["batch_size"]
    return (
        f"fewer than {batch} samples with an image, one batch; lower options.downstream_budget.{trainer.name}."
        "batch_size, or take larger downstream_sizes"
    )


def _training_examples(ctx: PoolContext, trainer: Trainer, listed: pl.DataFrame) -> Examples:
    ids = listed["sample_id"]
    captions = [[caption] for caption in listed["caption"].to_list()]
    features = None
    if trainer.reads == "features":
        columns = ["sample_id", "features", "patches"]
        stored = ctx.store.scan(VISION_FEATURES).filter(pl.col("sample_id").is_in(ids.unique().implode()))
        distinct = stored.select(columns).collect().drop_nulls("features").unique("sample_id")
        position = {sample_id: number for number, sample_id in enumerate(distinct["sample_id"].to_list())}
        features = stacked(distinct)[[position[sample_id] for sample_id in ids.to_list()]]
    located = ctx.store.scan(SAMPLES).filter(
        (pl.col("status") == "kept") & pl.col("sample_id").is_in(ids.unique().implode())
    )
    rows = {row["sample_id"]: row for row in located.select("sample_id", "tar", "member").collect().to_dicts()}
    load_row, sample_ids = ctx.image_loader(), ids.to_list()
    digest = hashlib.sha256("".join(listed["image_sha256"].fill_null("").to_list()).encode()).hexdigest()
    return Examples(captions, lambda positions: [load_row(rows[sample_ids[at]]) for at in positions], features, digest)


def _write_tars(ctx: PoolContext, key: str, sample_ids: Sequence[str], folder: Path) -> None:
    """The training set as tars; those that a stopped training of the same samples left in `folder` are taken."""
    from curation_assets.outputs.exports.webdataset import write_training_tars

    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    is_chosen = sets_of(ctx)[TrainingKey.parse(key).name].has_chosen_captions
    write_training_tars(ctx, sample_ids, folder, name=key, chosen_captions=is_chosen)


def _evaluation_examples(ctx: PoolContext, trainer: Trainer, evaluation: pl.DataFrame) -> Examples:
    features = None
    if trainer.reads == "features":
        features = stacked(ctx.store.read(EVALUATION_FEATURES))
    rows = evaluation.to_dicts()
    captions = [row["captions"] for row in rows]
    return Examples(captions, lambda positions: [evaluation_image(ctx, rows[at]) for at in positions], features)


# -- measuring ---------------------------------------------------------------------------------------------------------


def _measuring_roles(ctx: PoolContext, trainer: Trainer) -> tuple[str, ...]:
    compares = trainer.gives == "captions" and "bert_score" in DownstreamOptions.of(ctx).caption_metrics
    return ("text_similarity",) if compares else ()


def _metrics_config(ctx: PoolContext, trainer: Trainer) -> dict[str, Any]:
    if chosen_set(ctx) is None:
        return {"reason": untrained_reason(ctx)}
    config: dict[str, Any] = {"sets": {name: one.kind for name, one in sets_of(ctx).items()}}
    if trainer.gives == "captions":
        from curation_assets.evaluation.caption_metrics import tokeniser_in_use

        config |= {"metrics": list(DownstreamOptions.of(ctx).caption_metrics), "tokeniser": tokeniser_in_use()}
    return config


def metrics_of(ctx: PoolContext, trainer: Trainer) -> pl.DataFrame:
    """METRICS_SCHEMA of every training set, size and seed."""
    from curation_assets.evaluation.caption_metrics import Measured

    sets, keys = sets_of(ctx), keys_of_pool(ctx)
    reason = untrained_reason(ctx)
    if reason is None:
        measured = _measured(ctx, trainer, keys)
        counts = {key: int(ctx.store.read(TRAINING_SETS, key)["count"].sum()) for key in keys}
    else:
        measured = {key: {"none": Measured(None, reason)} for key in keys}
        counts = dict.fromkeys(keys, 0)
    rows = []
    for text, metrics in measured.items():
        key = TrainingKey.parse(text)
        facts = {"policy": key.name, "kind": sets[key.name].kind, "size": key.size, "n": counts[text], "seed": key.seed}
        rows += [{**facts, "metric": metric, **vars(one)} for metric, one in metrics.items()]
    return pl.DataFrame(rows, schema=METRICS_SCHEMA)


def _measured(ctx: PoolContext, trainer: Trainer, keys: Sequence[str]) -> "Values":
    """Key → metric → what was measured; sets that are too small for a model come last."""
    from curation_assets.evaluation.caption_metrics import Measured, measure_captions

    given = {key: ctx.store.read(f"downstream/{trainer.name}_runs", key) for key in keys}
    trained = {key: frame for key, frame in given.items() if frame.height}
    if trainer.gives == "captions":
        roles = _measuring_roles(ctx, trainer)
        measured = measure_captions(
            evaluation_rows(ctx)["captions"].to_list(),
            {key: frame["caption"].to_list() for key, frame in trained.items()},
            metrics=DownstreamOptions.of(ctx).caption_metrics,
            similarity=ctx.engines(roles)["text_similarity"] if roles else None,
        )
    else:
        measured = {
            key: {metric: Measured(value) for metric, value in frame.iter_rows()} for key, frame in trained.items()
        }
    names = next(iter(measured.values()), {"none": None})
    untrained = dict.fromkeys(names, Measured(None, _too_small(ctx, trainer)))
    return measured | {key: untrained for key in keys if key not in trained}


def comparison_of(ctx: PoolContext) -> pl.DataFrame:
    """All trainers' metrics, compared within this pool."""
    parts = [
        ctx.store.read(f"downstream/{name}").with_columns(
            pl.lit(name).alias("trainer"), pl.lit(ctx.pool.name).alias("pool")
        )
        for name in trainers_of(ctx)
    ]
    return compare_training_sets(pl.concat(parts))
