"""Tables of trained models as the stage `downstream` writes them, with figures that are drawn: for pages to show."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from curation_assets.evaluation.comparison import compare_training_sets
from curation_assets.flow.context import PoolContext

CAPTION_METRICS = (
    "bleu_1", "bleu_2", "bleu_3", "bleu_4", "meteor", "rouge_l", "cider", "bert_score", "clip_score",
    "ref_clip_score", "acc1", "acc5",
)  # fmt: skip
RECALLS = tuple(f"{way}_recall@{k}" for way in ("text_to_image", "image_to_text", "mean") for k in (1, 5, 10))
CONTROLS = ("random", "longest_caption", "all")
POLICIES = (
    "icc", "icc_after_clip", "sieve", "sieve_clip", "clip", "t_mars", "complexity_and_action", "reward",
    "conceptual_captions", "image_based_and_clip_score", "datacomp_basic", "a_policy_with_a_name_longer_than_most",
)  # fmt: skip
SIZES = (0.1, 0.25, None)


def write_trained_tables(ctx: PoolContext, *, seeds: Sequence[int] = (0, 1, 2), images: Path | None = None) -> None:
    """15 training sets × 3 sizes of a captioner (12 metrics) and a dual encoder, and an evaluation set of 8 images.

    `images`: a folder of .jpg to measure on; None: the pool's first images.
    """
    rng = np.random.default_rng(5)
    quality = {name: rng.normal(0, 0.05) for name in (*POLICIES, *CONTROLS)}
    tables: dict[str, pl.DataFrame] = {}
    for trainer, metrics in (("captioning", CAPTION_METRICS), ("retrieval", RECALLS)):
        rows: list[dict[str, Any]] = []
        for name, value in quality.items():
            for size in SIZES:
                for seed in seeds:
                    for place, metric in enumerate(metrics):
                        mean = 0.3 + 0.02 * place + value + 0.1 * (size or 0.2)
                        rows.append(
                            {"policy": name, "kind": _kind(name), "size": size, "n": round(48 * (size or 0.2)),
                             "seed": seed, "metric": metric, "value": mean + float(rng.normal(0, 0.004)),
                             "reason": None}
                        )  # fmt: skip
        if trainer == "captioning":
            lacking = [row for row in rows if row["metric"] == "bleu_1"]
            rows += [{**row, "metric": "spice", "value": None, "reason": "java is not installed"} for row in lacking]
        tables[trainer] = pl.DataFrame(rows, schema_overrides={"size": pl.Float64, "reason": pl.String})
        _store(ctx, trainer, tables[trainer])
    measured = [rows.with_columns(pool=pl.lit(ctx.pool.name), trainer=pl.lit(name)) for name, rows in tables.items()]
    _store(ctx, "comparison", compare_training_sets(pl.concat(measured, how="diagonal")))
    evaluation = _evaluation_set(ctx, images)
    _store(ctx, "evaluation_set", evaluation)
    for name in quality:
        for stored in ("at0100", "at0250", "own"):
            for seed in seeds:
                written = [
                    f"{name} at {stored} with seed {seed} sees image {number}" for number in range(evaluation.height)
                ]
                frame = evaluation.select("image_id").with_columns(pl.Series("caption", written))
                key = f"{name}_{stored}-{seed:06d}"
                _store(ctx, "captioning_runs", frame, key)


def _store(ctx: PoolContext, name: str, frame: pl.DataFrame, partition: str | None = None) -> None:
    ctx.store.materialise(f"downstream/{name}", lambda: frame, partition=partition, code_version="1")


def _kind(name: str) -> str:
    return "control" if name in CONTROLS else "policy"


def _evaluation_set(ctx: PoolContext, images: Path | None) -> pl.DataFrame:
    if images is not None:
        files = sorted(images.glob("*.jpg"))
        rows = [
            {"image_id": path.stem, "tar": None, "member": None, "path": str(path),
             "captions": [f"reference one of {path.stem}", f"reference two of {path.stem}"]}
            for path in files
        ]  # fmt: skip
    else:
        kept = ctx.store.scan("raw/samples").filter(pl.col("status") == "kept").sort("sample_id").head(8).collect()
        rows = [
            {"image_id": row["sample_id"], "tar": row["tar"], "member": row["member"], "path": None,
             "captions": [row["caption"]]}
            for row in kept.to_dicts()
        ]  # fmt: skip
    texts = dict.fromkeys(("tar", "member", "path", "reason"), pl.String)
    return pl.DataFrame([{**row, "reason": None} for row in rows], schema_overrides=texts)
