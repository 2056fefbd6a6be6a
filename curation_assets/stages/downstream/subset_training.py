"""What a subset is worth: train a small model on it under a fixed budget and measure it on held-out scenes.

The functions that train are plain, importable and free of the store, so worker processes can run them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import polars as pl

from curation_assets.core.settings import Settings
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import policies_of
from curation_assets.flow.parallel import call_in_workers
from curation_assets.stages.filtered.tables import kept_ids

EVALUATION_SEED = 7_000_001  # never a pool's seed: evaluation scenes are held out
RECALL_AT = (1, 5, 10)

#: features (N, T, D), captions (N), evaluation features (M, T, D), references (M lists), seed, budget → metrics
Evaluate = Callable[[np.ndarray, list[str], np.ndarray, list[list[str]], int, Mapping[str, Any]], dict[str, float]]


def budget_of(ctx: PoolContext) -> dict[str, Any]:
    """Steps and batch sizes, the same for every subset; seeds; number of evaluation scenes."""
    return {
        **asdict(ctx.options.downstream_budget),
        "seeds": list(ctx.options.downstream_seeds),
        "evaluation_scenes": ctx.options.evaluation_scenes,
    }


def captioning_of(
    features: np.ndarray,
    captions: list[str],
    evaluation: np.ndarray,
    references: list[list[str]],
    seed: int,
    budget: Mapping[str, Any],
) -> dict[str, float]:
    """Captioning metrics of a captioner trained on the given samples."""
    from curation_assets.numeric.metrics.captioning import captioning_metrics
    from curation_assets.training.downstream import train_captioner

    steps, batch = budget["captioner_steps"], budget["captioner_batch"]
    captioner = train_captioner(features, captions, seed=seed, steps=steps, batch_size=batch)
    return captioning_metrics(references, captioner.generate(evaluation))


def retrieval_of(
    features: np.ndarray,
    captions: list[str],
    evaluation: np.ndarray,
    references: list[list[str]],
    seed: int,
    budget: Mapping[str, Any],
) -> dict[str, float]:
    """recall@k both ways of a dual encoder trained on the given samples; one caption per evaluation image."""
    from curation_assets.numeric.metrics.retrieval import recall_at_k
    from curation_assets.training.downstream import train_dual_encoder

    steps, batch = budget["dual_encoder_steps"], budget["dual_encoder_batch"]
    model = train_dual_encoder(features, captions, seed=seed, steps=steps, batch_size=batch)
    texts = [of_image[0] for of_image in references]
    similarity = model.embed_texts(texts) @ model.embed_images(evaluation).T  # (texts, images)
    found = [recall_at_k(similarity, np.arange(len(texts)), k) for k in RECALL_AT]
    return {name: value for metrics in found for name, value in metrics.items()}


def metrics_by_policy_and_seed(ctx: PoolContext, name: str, evaluate: Evaluate) -> pl.DataFrame:
    """Rows policy, seed, metric, value. Each (policy, seed) is stored apart, so only changed subsets train again."""
    budget = budget_of(ctx)
    seeds = budget.pop("seeds")
    runs = [(policy.name, seed) for policy in policies_of(ctx) for seed in seeds]
    table = f"downstream/{name}_runs"
    made_from: dict[tuple[str, int], dict[str, Any]] = {
        (policy, seed): {
            "partition": f"{policy}-{seed:06d}",
            "code_version": "1",
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
            (*features.subset(kept_ids(ctx, policy)), *features.evaluation, seed, budget) for policy, seed in stale
        ]
        with ctx.progress.task(f"train {name}", len(stale)) as advance:
            for run, metrics in zip(stale, call_in_workers(ctx.settings, evaluate, calls), strict=True):
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
    """Features of the pool's kept samples, 16 KiB each; remembered from captioning to retrieval of one pool."""
    global _last_features
    wanted = sorted({sample_id for policy in policies_of(ctx) for sample_id in kept_ids(ctx, policy.name)})
    key = (ctx.store.root, tuple(wanted), budget_of(ctx)["evaluation_scenes"])
    if _last_features is None or _last_features[0] != key:
        shards = ctx.store.partitions("raw/samples")
        calls = [(ctx.settings, ctx.pool.name, shard, wanted) for shard in shards]
        by_id: dict[str, tuple[np.ndarray, str]] = {}
        with ctx.progress.task("vision features, shards", len(shards)) as advance:
            for found in call_in_workers(ctx.settings, shard_features, calls):
                by_id |= found
                advance(1)
        (evaluation,) = call_in_workers(ctx.settings, evaluation_features, [(budget_of(ctx)["evaluation_scenes"],)])
        _last_features = (key, PoolFeatures(by_id, evaluation))
    return _last_features[1]


def shard_features(
    settings: Settings, pool_name: str, shard: str, wanted: Sequence[str]
) -> dict[str, tuple[np.ndarray, str]]:
    """sample_id → ((T, D) features, caption) of the wanted kept samples of one shard."""
    from curation_assets.training.downstream import vision_features

    ctx = PoolContext.open(settings, pool_name)
    rows = ctx.store.read("raw/samples", shard).filter(
        (pl.col("status") == "kept") & pl.col("sample_id").is_in(list(wanted))
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
