"""Tables `downstream/<trainer>` written by hand, as the flow stores them."""

from collections.abc import Mapping

import polars as pl

from curation_assets.flow.context import PoolContext

SCHEMA = {
    "policy": pl.String, "kind": pl.String, "size": pl.Float64, "n": pl.Int64, "seed": pl.Int64, "metric": pl.String,
    "value": pl.Float64, "reason": pl.String,
}  # fmt: skip


def metric_rows(policy: str, values: Mapping[str, list[float] | None], **more: object) -> list[dict[str, object]]:
    """metric → value per seed, or None for a metric without one."""
    same = {"policy": policy, "kind": "policy", "size": 0.25, "n": 100, "reason": None, **more}
    rows: list[dict[str, object]] = []
    for metric, of_metric in values.items():
        if of_metric is None:
            rows.append({**same, "seed": 0, "metric": metric, "value": None, "reason": "METEOR needs Java"})
            continue
        rows += [{**same, "seed": seed, "metric": metric, "value": value} for seed, value in enumerate(of_metric)]
    return rows


def store_metrics(ctx: PoolContext, trainer: str, rows: list[dict[str, object]]) -> None:
    """Materialise `downstream/<trainer>` of a pool."""
    frame = pl.DataFrame(rows, schema=SCHEMA, orient="row")
    ctx.store.materialise(f"downstream/{trainer}", lambda: frame, code_version="test")
