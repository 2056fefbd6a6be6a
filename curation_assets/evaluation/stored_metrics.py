"""Metrics of the models trained on each pool's subsets: the tables `downstream/<trainer>` of several pools in one."""

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from curation_assets.evaluation.comparison import METRIC_SCHEMA
from curation_assets.evaluation.evaluation_set import untrained_reason
from curation_assets.evaluation.subset_training import trainers_of
from curation_assets.flow.context import PoolContext


@dataclass(frozen=True)
class StoredMetrics:
    """Rows of METRIC_SCHEMA, and the pools and trainers without any, each with the reason as a sentence."""

    rows: pl.DataFrame
    absent: dict[str, dict[str, str]]  # pool → trainer → why


def read_metrics(pools: Sequence[PoolContext], trainers: Sequence[str] = ()) -> StoredMetrics:
    """The stored metrics of these trainers (default: those that a pool runs).

    Raises CorruptTableError for a damaged table.
    """
    parts = [pl.DataFrame(schema=dict(METRIC_SCHEMA))]
    absent: dict[str, dict[str, str]] = {}
    for ctx in pools:
        for trainer in trainers or trainers_of(ctx):
            table = f"downstream/{trainer}"
            manifest = ctx.store.manifest(table)
            if manifest is None:
                absent.setdefault(ctx.pool.name, {})[trainer] = why_absent(ctx, table)
                continue
            frame = ctx.store.read(table).with_columns(pool=pl.lit(ctx.pool.name), trainer=pl.lit(trainer))
            lacking = [name for name in METRIC_SCHEMA if name not in frame.columns]
            if lacking:
                absent.setdefault(ctx.pool.name, {})[trainer] = (
                    f"its {table} is of an older version, without {', '.join(lacking)}; `curate run {ctx.pool.name}` "
                    "makes it again"
                )
                continue
            parts.append(frame.select(pl.col(name).cast(dtype) for name, dtype in METRIC_SCHEMA.items()))
    return StoredMetrics(pl.concat(parts), absent)


def why_absent(ctx: PoolContext, table: str) -> str:
    """Why a pool has no such table, and what to do."""
    return untrained_reason(ctx) or f"it has no {table} yet; `curate run {ctx.pool.name}` makes it"
