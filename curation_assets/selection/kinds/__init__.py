"""Kinds of fitted recipes: a score that needs a frozen fit over the pool. One file each; discovered, never registered.

A module defines `KIND`, a `checked` subclass of `Kind`. A kind fits once on the pool and then scores each shard alone,
so a shard that comes late moves nobody (docs/decisions/0041).
"""

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl


class Kind(ABC):
    """Settings of a recipe, and what they compute. Rows are those that raw kept, with sample_id.

    Values of signals are given so that higher is better: negated where the method's direction is lower.
    """

    version: ClassVar[str] = "1"  # bump when the same settings would give other numbers
    later: ClassVar[tuple[str, ...]] = ()  # settings of later versions: empty ones leave a recipe's version as it was

    @property
    def signals(self) -> tuple[str, ...]:
        """'stage.table' whose values it reads: columns of that name and `<name>:reason`."""
        return ()

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of raw/samples (caption) and derived columns (image_embedding) that it reads besides."""
        return ()

    @property
    def roles(self) -> tuple[str, ...]:
        """Roles that the fit needs."""
        return ()

    @property
    def files(self) -> tuple[Path, ...]:
        """Files that the fit reads: their content is part of the recipe."""
        return ()

    @abstractmethod
    def fit(self, shards: Iterable[pl.DataFrame], engines: Mapping[str, Any]) -> pl.DataFrame:
        """What is frozen, from the rows of the pool, a frame per shard. Raises ValueError where there are too few."""

    @abstractmethod
    def score(self, rows: pl.DataFrame, fit: pl.DataFrame) -> pl.DataFrame:
        """(N,) rows → what `scored` returns, row for row: each by itself and the fit."""

    def holds_any(self, fit: pl.DataFrame, scored: pl.DataFrame) -> bool:
        """Whether a fit holds something of one of these rows alone; `scored`: the rows as `score` gave them."""
        return False


@cache
def all_kinds() -> dict[str, type[Kind]]:
    """Every kind by the name of its file, sorted."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return {name: importlib.import_module(f"{__name__}.{name}").KIND for name in names}


def scored(quality: np.ndarray, reason: pl.Series, drop_reason: Iterable[str | None], **further: Any) -> pl.DataFrame:
    """quality (null exactly where `reason` is not), reason, drop_reason (why a cut would drop the row, in words; null:
    its value says it all), and further columns."""
    missing = reason.is_not_null().to_numpy()
    columns = [
        pl.Series("quality", np.where(missing, np.nan, quality), dtype=pl.Float64).fill_nan(None),
        reason.alias("reason").cast(pl.String),
        pl.Series("drop_reason", list(drop_reason), dtype=pl.String),
        *(pl.Series(name, column) for name, column in further.items()),
    ]
    return pl.DataFrame(columns)


def floats(rows: pl.DataFrame, signal: str) -> np.ndarray:
    """(N,) float64, NaN where there is no value."""
    return rows[signal].cast(pl.Float64).fill_null(float("nan")).to_numpy()


def missing_reason(rows: pl.DataFrame, names: Iterable[str]) -> pl.Series:
    """(N,) why the first of the columns that is missing is missing; null where all are there."""
    why = [
        pl.when(pl.col(name).is_null() | (pl.col(name).is_nan() if rows[name].dtype.is_float() else False)).then(
            pl.format("{}:{}", pl.lit(name), pl.col(f"{name}:reason").fill_null("no_row"))
        )
        for name in names
    ]
    none = pl.lit(None, pl.String)
    return (
        rows.select(pl.coalesce(*why, none).alias("reason"))["reason"]
        if rows.height
        else pl.Series("reason", [], pl.String)
    )


def no_reason(rows: pl.DataFrame) -> pl.Series:
    """(N,) nulls: every row has a value."""
    return pl.Series("reason", [None] * rows.height, dtype=pl.String)


def embeddings_of(rows: pl.DataFrame, column: str = "image_embedding") -> np.ndarray:
    """(N, D) float32 of rows that all have one, without a Python number per value."""
    flat = rows[column].cast(pl.List(pl.Float32)).explode().to_numpy()
    return flat.reshape(rows.height, -1) if rows.height else np.zeros((0, 0), np.float32)
