"""downstream: what a model trained on each subset is worth, how good the methods are, and the report."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from PIL import Image

from curation_assets.flow import PoolContext, Table
from curation_assets.flow.filtered import kept_ids, policies_of

DEFAULT_BUDGET = {
    "captioner_steps": 150,
    "captioner_batch": 48,
    "dual_encoder_steps": 100,
    "dual_encoder_batch": 96,
}
DEFAULT_EVALUATION_SCENES = 200
EVALUATION_SEED = 7_000_001  # never a pool's seed: evaluation scenes are held out


def tables(ctx: PoolContext) -> Iterator[Table]:
    """Tables of this stage. Training downstream models needs an evaluation set, which only the world pool brings."""
    verdicts = tuple(f"filtered/{policy.name}" for policy in policies_of(ctx))
    downstream: tuple[str, ...] = ()
    if ctx.option("downstream", ctx.pool.kind == "world"):
        downstream = ("downstream/captioning", "downstream/retrieval")
        for name, compute, what in (
            ("captioning", _captioning, "captioning metrics (BLEU, ROUGE-L, CIDEr-D) of a captioner"),
            ("retrieval", _retrieval, "recall@k both ways of a dual encoder"),
        ):
            yield Table(
                name=f"downstream/{name}",
                grain="pool",
                inputs=("raw/samples", *verdicts),
                version="1",
                compute=compute,
                roles=("image_text_encoder",),
                config=lambda ctx, shard: _budget(ctx),
                description=f"One row per policy, seed and metric: {what} trained on the subset, one budget for all.",
                kinds=("torch", "polars"),
            )
    signals = tuple(f"signals/{method.name}" for method in ctx.methods("signals"))
    quality: tuple[str, ...] = ()
    if ctx.pool.kind == "world":
        teachers = ("standardised/teacher_scores", "distilled/targets") if ctx.distils else ()
        quality = ("downstream/method_quality", "downstream/separation")
        yield Table(
            name="downstream/method_quality",
            grain="pool",
            inputs=("raw/samples", *signals, *teachers, "fused/sieve_clip"),
            version="1",
            compute=_method_quality,
            description=(
                "One row per method and metric against the planted truth: agreement with planted concreteness, AUC of "
                "aligned against mismatched samples."
            ),
        )
        yield Table(
            name="downstream/separation",
            grain="pool",
            inputs=("raw/samples", *signals, "fused/sieve_clip"),
            version="1",
            compute=_separation,
            description="One row per method and planted noise kind: AUC of clean samples against it (.5 is chance).",
        )
    report_inputs = ["raw/samples", *signals, *verdicts, "filtered/overlaps", *downstream, *quality]
    if ctx.distils:
        report_inputs += [
            "standardised/labelled_scores",
            "standardised/length_dependence",
            "distilled/fusion_weights",
        ]
    yield Table(
        name="downstream/report",
        grain="pool",
        inputs=tuple(report_inputs),
        version="1",
        compute_folder=_report,
        description="One HTML page: counts, distributions, galleries of kept and dropped samples, metrics, costs.",
        kinds=("html",),
    )


def _budget(ctx: PoolContext) -> dict[str, Any]:
    budget = {**DEFAULT_BUDGET, **ctx.option("downstream_budget", {})}
    return {
        **budget,
        "seeds": list(ctx.option("downstream_seeds", [0])),
        "evaluation_scenes": ctx.option("evaluation_scenes", DEFAULT_EVALUATION_SCENES),
    }


class _Features:
    """Frozen vision features of the pool's samples and of the evaluation scenes, computed on first use."""

    def __init__(self, ctx: PoolContext) -> None:
        self._ctx = ctx
        self._samples: dict[str, tuple[np.ndarray, str]] | None = None
        self._evaluation: tuple[np.ndarray, list[list[str]]] | None = None

    def subset(self, sample_ids: list[str]) -> tuple[np.ndarray, list[str]]:
        """(N, T, D) features and N captions of the given samples, in their order."""
        if self._samples is None:
            self._samples = self._of_pool()
        chosen = [self._samples[sample_id] for sample_id in sample_ids]
        return np.stack([features for features, _ in chosen]), [caption for _, caption in chosen]

    def evaluation(self) -> tuple[np.ndarray, list[list[str]]]:
        """(M, T, D) features and M lists of reference captions."""
        if self._evaluation is None:
            from curation_assets.world.pool import plant_evaluation_scenes

            scenes = plant_evaluation_scenes(_budget(self._ctx)["evaluation_scenes"], EVALUATION_SEED)
            images = [image for image, _ in scenes]
            self._evaluation = self._embed(images), [list(references) for _, references in scenes]
        return self._evaluation

    def _of_pool(self) -> dict[str, tuple[np.ndarray, str]]:
        wanted = {name for policy in policies_of(self._ctx) for name in kept_ids(self._ctx, policy.name)}
        found: dict[str, tuple[np.ndarray, str]] = {}
        load_image = self._ctx.image_loader()
        for shard in self._ctx.store.partitions("raw/samples"):
            rows = self._ctx.store.read("raw/samples", shard).filter(
                (pl.col("status") == "kept") & pl.col("sample_id").is_in(list(wanted))
            )
            records = rows.to_dicts()
            with self._ctx.progress.task(f"vision features {shard}", len(records)) as advance:
                features = self._embed([load_image(record) for record in records])
                advance(len(records))
            found |= {
                record["sample_id"]: (feature, record["caption"])
                for record, feature in zip(records, features, strict=True)
            }
        return found

    def _embed(self, images: list[Image.Image]) -> np.ndarray:
        from curation_assets.downstream import vision_features

        return vision_features(images)


Evaluate = Callable[[PoolContext, _Features, str, int], dict[str, float]]


def _per_policy_and_seed(ctx: PoolContext, name: str, evaluate: Evaluate) -> pl.DataFrame:
    """Rows policy, seed, metric, value. Each (policy, seed) is stored apart, so only changed subsets train again."""
    features = _Features(ctx)
    budget = _budget(ctx)
    seeds, policies = budget.pop("seeds"), [policy.name for policy in policies_of(ctx)]
    parts = []
    with ctx.progress.task(f"train {name}", len(seeds) * len(policies)) as advance:
        for policy in policies:
            for seed in seeds:

                def compute(policy: str = policy, seed: int = seed) -> pl.DataFrame:
                    metrics = evaluate(ctx, features, policy, seed)
                    return pl.DataFrame(
                        [
                            {"policy": policy, "seed": seed, "metric": key, "value": value}
                            for key, value in metrics.items()
                        ]
                    )

                run = f"downstream/{name}_runs"
                key = f"{policy}-{seed:06d}"
                ctx.store.materialise(
                    run,
                    compute,
                    partition=key,
                    code_version="1",
                    inputs=[(f"filtered/{policy}", None)],
                    models=ctx.identities(["image_text_encoder"]),
                    config=budget,
                    run_id=ctx.run_id,
                )
                parts.append(ctx.store.read(run, key))
                advance(1)
    return pl.concat(parts)


def _captioning(ctx: PoolContext, shard: str | None) -> pl.DataFrame:
    def evaluate(ctx: PoolContext, features: _Features, policy: str, seed: int) -> dict[str, float]:
        from curation_assets.downstream import train_captioner
        from curation_assets.evaluations.captioning import captioning_metrics

        budget = _budget(ctx)
        captioner = train_captioner(
            *features.subset(kept_ids(ctx, policy)),
            seed=seed,
            steps=budget["captioner_steps"],
            batch_size=budget["captioner_batch"],
        )
        images, references = features.evaluation()
        return captioning_metrics(references, captioner.generate(images))

    return _per_policy_and_seed(ctx, "captioning", evaluate)


def _retrieval(ctx: PoolContext, shard: str | None) -> pl.DataFrame:
    def evaluate(ctx: PoolContext, features: _Features, policy: str, seed: int) -> dict[str, float]:
        from curation_assets.downstream import train_dual_encoder
        from curation_assets.evaluations.retrieval import recall_at_k

        budget = _budget(ctx)
        model = train_dual_encoder(
            *features.subset(kept_ids(ctx, policy)),
            seed=seed,
            steps=budget["dual_encoder_steps"],
            batch_size=budget["dual_encoder_batch"],
        )
        images, references = features.evaluation()
        captions = [texts[0] for texts in references]  # one caption per image
        similarity = model.embed_texts(captions) @ model.embed_images(images).T  # (texts, images)
        found = [recall_at_k(similarity, np.arange(len(captions)), k) for k in (1, 5, 10)]
        return {name: value for metrics in found for name, value in metrics.items()}

    return _per_policy_and_seed(ctx, "retrieval", evaluate)


def read_truth(ctx: PoolContext) -> pl.DataFrame:
    """The planted truth of a world pool: kept apart, read by evaluation only."""
    return pl.read_parquet(ctx.store.root / "truth" / "planted.parquet")


def _with_truth(ctx: PoolContext, table: str, column: str) -> pl.DataFrame:
    """sample_id, value, kind, concreteness, is_aligned of the samples that have a value."""
    values = ctx.store.scan(table).select("sample_id", pl.col(column).cast(pl.Float64).alias("value")).collect()
    return values.join(read_truth(ctx), on="sample_id").filter(pl.col("value").is_not_null())


def _valued_tables(ctx: PoolContext) -> dict[str, tuple[str, str]]:
    """Shown name → (table, column) of everything that gives samples a number."""
    found = {method.name: (f"signals/{method.name}", "value") for method in ctx.methods("signals")}
    return found | {"sieve_clip": ("fused/sieve_clip", "quality")}


def _method_quality(ctx: PoolContext, shard: str | None) -> pl.DataFrame:
    from curation_assets.evaluations.concreteness import concreteness_report
    from curation_assets.evaluations.mismatch import mismatch_auc

    rows: list[dict[str, Any]] = []

    def add(name: str, target: str, metrics: dict[str, float], n: int) -> None:
        rows.extend(
            {"method": name, "target": target, "metric": key, "value": value, "n": n} for key, value in metrics.items()
        )

    judged = {"icc": ("signals/icc", "value")}
    if ctx.distils:
        judged |= {
            "vba": ("standardised/teacher_scores", "vba"),
            "sba": ("standardised/teacher_scores", "sba"),
            "fused teachers": ("distilled/targets", "value"),
        }
    seen = set(ctx.store.scan("distilled/targets").collect()["sample_id"]) if ctx.distils else set()
    for name, (table, column) in judged.items():
        frame = _with_truth(ctx, table, column).filter(pl.col("concreteness").is_not_null())
        if name == "icc":  # the student is judged on captions that it was not distilled from
            frame = frame.filter(~pl.col("sample_id").is_in(list(seen)))
        found = concreteness_report(frame["value"].to_numpy(), frame["concreteness"].to_numpy()).agreement
        metrics = {"pearson": found.pearson, "spearman": found.spearman, "kendall": found.kendall}
        add(name, "planted concreteness", metrics, found.n)
    for name, (table, column) in _valued_tables(ctx).items():
        frame = _with_truth(ctx, table, column).filter(pl.col("is_aligned").is_not_null())
        frame = frame.filter((pl.col("kind") == "clean") | ~pl.col("is_aligned"))
        auc = mismatch_auc(frame["value"].to_numpy(), frame["is_aligned"].to_numpy())
        add(name, "clean against mismatched", {"auc": auc}, frame.height)
    return pl.DataFrame(rows)


def _separation(ctx: PoolContext, shard: str | None) -> pl.DataFrame:
    from curation_assets.numeric.separation import roc_auc

    rows = []
    for name, (table, column) in _valued_tables(ctx).items():
        frame = _with_truth(ctx, table, column)
        clean = frame.filter(pl.col("kind") == "clean")["value"].to_numpy()
        for (kind,), group in sorted(frame.group_by("kind")):
            if kind == "clean":
                continue
            values = np.concatenate([clean, group["value"].to_numpy()])
            is_clean = np.arange(len(values)) < len(clean)
            rows.append({"method": name, "kind": kind, "auc": roc_auc(values, is_clean), "n": group.height})
    return pl.DataFrame(rows)


def _report(ctx: PoolContext, folder: Path) -> None:
    from curation_assets.reporting.report import write_report

    write_report(ctx, folder / "report.html")
