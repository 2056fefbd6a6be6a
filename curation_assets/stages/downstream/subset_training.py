"""What a subset is worth: every trainer trains a small model on it and measures it on held-out scenes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from curation_assets.core.settings import Settings
from curation_assets.core.validation import check_known
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import policies_of
from curation_assets.flow.parallel import call_in_workers
from curation_assets.flow.table import Table
from curation_assets.stages.filtered.tables import kept_ids
from curation_assets.training.trainers import Task, Trainer, all_trainers

EVALUATION_SEED = 7_000_001  # never a pool's seed: evaluation scenes are held out


def tables(ctx: PoolContext) -> Iterator[Table]:
    """One table per trainer."""
    verdicts = tuple(f"filtered/{policy.name}" for policy in policies_of(ctx))
    for trainer in all_trainers().values():
        yield Table(
            name=f"downstream/{trainer.name}",
            grain="pool",
            inputs=("raw/samples", *verdicts),
            version=trainer.version,
            compute=lambda ctx, shard, trainer=trainer: metrics_by_policy_and_seed(ctx, trainer),  # type: ignore[misc]
            roles=("image_text_encoder",),
            config=lambda ctx, shard, trainer=trainer: run_settings(ctx, trainer),  # type: ignore[misc]
            description=(
                f"One row per policy, seed and metric: {trainer.measures} trained on the subset, one budget for all."
            ),
            kinds=("torch", "polars"),
        )


def run_settings(ctx: PoolContext, trainer: Trainer) -> dict[str, Any]:
    """The trainer's budget, the same for every subset; seeds; number of evaluation scenes.

    Raises ValueError where the pool's option `downstream_budget` names what no trainer has.
    """
    given = ctx.options.downstream_budget
    check_known(
        "option downstream_budget", "setting", given, {name for each in all_trainers().values() for name in each.budget}
    )
    return {
        **trainer.budget,
        **{name: value for name, value in given.items() if name in trainer.budget},
        "seeds": list(ctx.options.downstream_seeds),
        "evaluation_scenes": ctx.options.evaluation_scenes,
    }


def metrics_by_policy_and_seed(ctx: PoolContext, trainer: Trainer) -> pl.DataFrame:
    """Rows policy, seed, metric, value. Each (policy, seed) is stored apart, so only changed subsets train again."""
    budget = run_settings(ctx, trainer)
    seeds = budget.pop("seeds")
    runs = [(policy.name, seed) for policy in policies_of(ctx) for seed in seeds]
    table = f"downstream/{trainer.name}_runs"
    made_from: dict[tuple[str, int], dict[str, Any]] = {
        (policy, seed): {
            "partition": f"{policy}-{seed:06d}",
            "code_version": trainer.version,
            "inputs": [(f"filtered/{policy}", None)],
            "models": ctx.identities(["image_text_encoder"]),
            "config": budget,
        }
        for policy, seed in runs
    }
    stale = [run for run in runs if not _is_fresh(ctx, table, made_from[run])]
    if stale:
        features = pool_features(ctx)
        calls = [
            (Task(*features.subset(kept_ids(ctx, policy)), *features.evaluation, seed, budget),)
            for policy, seed in stale
        ]
        with ctx.progress.task(f"train {trainer.name}", len(stale)) as advance:
            for run, metrics in zip(
                stale, call_in_workers(ctx.settings, trainer.train_and_measure, calls), strict=True
            ):
                policy, seed = run
                rows = [
                    {"policy": policy, "seed": seed, "metric": key, "value": value} for key, value in metrics.items()
                ]
                ctx.store.materialise(table, lambda rows=rows: pl.DataFrame(rows), run_id=ctx.run_id, **made_from[run])  # type: ignore[misc]
                advance(1)
    return pl.concat([ctx.store.read(table, made_from[run]["partition"]) for run in runs])


def _is_fresh(ctx: PoolContext, table: str, made_from: Mapping[str, Any]) -> bool:
    facts = dict(made_from)
    return ctx.store.is_fresh(table, facts.pop("partition"), **facts)


class PoolFeatures:
    """Frozen vision features of every sample that some policy keeps, and of the evaluation scenes."""

    def __init__(
        self, by_id: dict[str, tuple[np.ndarray, str]], evaluation: tuple[np.ndarray, list[list[str]]]
    ) -> None:
        self._by_id = by_id
        self.evaluation = evaluation  # (M, T, D) features, M lists of references

    def subset(self, sample_ids: Sequence[str]) -> tuple[np.ndarray, list[str]]:
        """(N, T, D) features and N captions of the given samples, in their order."""
        chosen = [self._by_id[sample_id] for sample_id in sample_ids]
        return np.stack([features for features, _ in chosen]), [caption for _, caption in chosen]


_last_features: tuple[Any, PoolFeatures] | None = None


def pool_features(ctx: PoolContext) -> PoolFeatures:
    """Features of the pool's kept samples, 16 KiB each; remembered from one trainer to the next."""
    global _last_features
    kept = sorted({sample_id for policy in policies_of(ctx) for sample_id in kept_ids(ctx, policy.name)})
    key = (ctx.store.root, tuple(kept), ctx.options.evaluation_scenes)
    if _last_features is None or _last_features[0] != key:
        shards = ctx.store.partitions("raw/samples")
        calls = [(ctx.settings, ctx.pool.name, shard, kept) for shard in shards]
        by_id: dict[str, tuple[np.ndarray, str]] = {}
        with ctx.progress.task("vision features, shards", len(shards)) as advance:
            for of_shard in call_in_workers(ctx.settings, shard_features, calls):
                by_id |= of_shard
                advance(1)
        (evaluation,) = call_in_workers(ctx.settings, evaluation_features, [(ctx.options.evaluation_scenes,)])
        _last_features = (key, PoolFeatures(by_id, evaluation))
    return _last_features[1]


def shard_features(
    settings: Settings, pool_name: str, shard: str, sample_ids: Sequence[str]
) -> dict[str, tuple[np.ndarray, str]]:
    """sample_id → ((T, D) features, caption) of those of `sample_ids` that one shard has and keeps."""
    from curation_assets.training.downstream import vision_features

    ctx = PoolContext.open(settings, pool_name)
    rows = ctx.store.read("raw/samples", shard).filter(
        (pl.col("status") == "kept") & pl.col("sample_id").is_in(list(sample_ids))
    )
    if rows.is_empty():
        return {}
    records, load_image = rows.to_dicts(), ctx.image_loader()
    features = vision_features([load_image(record) for record in records])
    return {
        record["sample_id"]: (feature, record["caption"]) for record, feature in zip(records, features, strict=True)
    }


def evaluation_features(count: int) -> tuple[np.ndarray, list[list[str]]]:
    """(count, T, D) features of held-out scenes, and their references."""
    from curation_assets.training.downstream import vision_features
    from curation_assets.world.pool import plant_evaluation_scenes

    scenes = plant_evaluation_scenes(count, EVALUATION_SEED)
    return vision_features([image for image, _ in scenes]), [list(references) for _, references in scenes]
