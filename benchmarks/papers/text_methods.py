"""Conceptual Captions' funnel and Rao et al.'s table of data sets, from a pool's stored signals."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import polars as pl

from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import policies_of
from curation_assets.numeric.spread import spread
from curation_assets.stages.filtered.tables import KEPT_BY, with_policies
from curation_assets.stores.mapped_rows import mapped_rows, slices

CC_STAGES = {
    "image": "conceptual_captions_image",
    "text": "conceptual_captions",
    "overlap": "conceptual_captions_overlap",
    "transform": "conceptual_captions_transform",
}
#: Share of its input that each stage passed in the paper (formulas.md §7): "drops > 65 %", "≈ 3 %", "drops ≈ 60 %",
#: "≈ 20 %".
PUBLISHED_PASS_RATE = {"image": 0.35, "text": 0.03, "overlap": 0.40, "transform": 0.80}
RAO_METHODS = ("object_word_quality", "relatedness")


def funnel(ctx: PoolContext) -> pl.DataFrame:
    """A row per stage and rule: how many candidates it dropped, of the stage's input; rule `passed`: what is left.

    Columns stage, rule, candidates, share, published_share. Raises MissingTableError where a stage has not run.
    """
    left = ctx.store.read("fused/conceptual_captions").filter(pl.col("reason").is_null())
    left = left.select("shard", "source_row", "stage")
    rows: list[dict[str, Any]] = []
    for stage, name in CC_STAGES.items():
        rules = pl.concat(
            ctx.store.read(f"signals/{name}", key).with_columns(pl.lit(key).alias("shard"))
            for key in ctx.store.partitions(f"signals/{name}")
        )
        if "rule" not in rules.columns:
            rules = rules.with_columns(pl.lit("no_overlap").alias("rule"))
        dropped = left.filter(pl.col("stage") == stage).join(
            rules.select("shard", "source_row", "rule"), on=["shard", "source_row"], how="left"
        )
        counts = dict(sorted(dropped.group_by("rule").len().iter_rows(), key=lambda pair: (-pair[1], str(pair[0]))))
        rows += _stage_rows(stage, left.height, counts)
        left = left.filter(pl.col("stage").is_null() | (pl.col("stage") != stage))
    rare = left.filter(pl.col("stage") == "rare_concept").height
    rows += _stage_rows("concept_count", left.height, {"rare_concept": rare} if rare else {})
    schema = {"stage": pl.String, "rule": pl.String, "candidates": pl.Int64, "share": pl.Float64}
    return pl.DataFrame(rows, schema={**schema, "published_share": pl.Float64}, orient="row")


def _stage_rows(stage: str, entered: int, dropped: dict[str, int]) -> list[dict[str, Any]]:
    passed = entered - sum(dropped.values())
    return [
        {
            "stage": stage,
            "rule": rule,
            "candidates": count,
            "share": count / entered if entered else None,
            "published_share": PUBLISHED_PASS_RATE.get(stage) if rule == "passed" else None,
        }
        for rule, count in (*dropped.items(), ("passed", passed))
    ]


def data_sets(ctx: PoolContext, measured: Sequence[str] = RAO_METHODS) -> pl.DataFrame:
    """A row per data set (the pool, each subset) and method: data_set, method, mean, median, samples (Rao et al.).

    Raises MissingTableError where a method has not run.
    """
    subsets = {"pool": pl.lit(True)} | {policy.name: pl.col(KEPT_BY + policy.name) for policy in policies_of(ctx)}
    rows = []
    for name in measured:
        values = mapped_rows(
            part.drop_nulls("value").drop("sample_id") for part in with_policies(ctx, f"signals/{name}", ["value"])
        )
        for subset, is_in in subsets.items():

            def chosen(values: pl.DataFrame = values, is_in: pl.Expr = is_in) -> Iterator[np.ndarray]:
                return (part.filter(is_in)["value"].to_numpy() for part in slices(values))

            count = sum(map(len, chosen()))
            mean, (median,) = spread(chosen, count, [0.5]) if count else (None, [None])
            rows.append({"data_set": subset, "method": name, "mean": mean, "median": median, "samples": count})
    return pl.DataFrame(rows, schema_overrides={"mean": pl.Float64, "median": pl.Float64})
