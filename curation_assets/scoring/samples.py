"""A method's value of every sample of a table."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from curation_assets.methods import Method, Values
from curation_assets.scoring.batches import (
    DEFAULT_BATCH,
    ContractError,
    LoadImage,
    OutOfBoundsError,
    Progress,
    Steps,
    evaluate,
    result_of,
    row_identity,
)
from curation_assets.scoring.derived import with_derived
from curation_assets.stores.saved_rows import SavedRows

BOUNDS_TOLERANCE = 1e-6  # float32 dot products of unit vectors overshoot 1 by about 1e-7


def score_samples(
    method: Method,
    samples: pl.DataFrame,
    roles: Mapping[str, Any],
    *,
    load_image: LoadImage | None = None,
    batch_size: int = DEFAULT_BATCH,
    progress: Progress | None = None,
    saved: SavedRows | None = None,
) -> pl.DataFrame:
    """The method's value of every sample: sample_id, value (null with a reason), reason, and the method's details.

    `samples`: sample_id, the method's columns, and optionally status and reason (rows that are not kept become
    `upstream_<status>:<reason>`) and source_row (carried through). One row out per row in, in the same order.
    `roles`: engines by role name. `load_image`: row → RGB image, raising ImageRejected; None means that no sample has
    an image (`no_image`). A blank caption gets the method's `blank_caption`, where it has one, and no call. A column
    that a role can write (`DERIVING_ROLES`) and the method needs, and `samples` lacks, is derived first. `progress` is
    called with how many more rows are done. `saved`: rows that an earlier, killed call finished are taken from there
    and not scored again; this call adds its own on the way.

    An engine's exception costs only the sample it belongs to (`engine_error:<type>`), found by halving the batch.
    Raises ValueError for missing columns or roles, BrokenEngineError when an engine fails on everything, and
    OutOfBoundsError for a value beyond the method's bounds.
    """
    steps = score_in_steps(
        method, samples, roles, load_image=load_image, batch_size=batch_size, progress=progress, saved=saved
    )
    return result_of(steps)


def score_in_steps(
    method: Method,
    samples: pl.DataFrame,
    roles: Mapping[str, Any],
    *,
    load_image: LoadImage | None,
    batch_size: int,
    progress: Progress | None = None,
    saved: SavedRows | None = None,
) -> Steps[pl.DataFrame]:
    """What `score_samples` returns, batch by batch."""
    samples = with_derived(method, samples, roles, load_image, batch_size)
    missing = [role for role in method.roles if role not in roles]
    if missing:
        raise ValueError(f"{method.label} needs the roles {missing}; got {sorted(roles)}")
    given = {role: roles[role] for role in method.roles}
    values = yield from evaluate(
        samples,
        method.columns,
        lambda columns: _checked(method, method.function(**columns, **given)),
        load_image=load_image,
        batch_size=batch_size,
        progress=progress,
        label=method.label,
        blank_caption=method.blank_caption,
        saved=saved,
        detail_types=detail_schema(method),
    )
    columns = [
        pl.Series("value", [None if math.isnan(v) else v for v in values.value], dtype=pl.Float64),
        pl.Series("reason", values.reason, dtype=pl.String),
    ]
    for name, dtype in detail_schema(method).items():
        columns.append(pl.Series(name, values.details.get(name, [None] * samples.height), dtype=dtype))
    return row_identity(samples).with_columns(columns)


def _checked(method: Method, values: Values) -> Values:
    """`values` in float64 within bounds, every NaN with a reason. Raises ContractError, OutOfBoundsError."""
    if not isinstance(values, Values):
        raise ContractError(f"{method.label} returned {type(values).__name__}, expected curation_assets.methods.Values")
    value = np.asarray(values.value, dtype=np.float64).copy()
    reason = list(values.reason)
    lengths = {len(value), len(reason), *(len(column) for column in values.details.values())}
    if value.ndim != 1 or len(lengths) != 1:
        raise ContractError(f"{method.label} returned columns of different lengths {sorted(lengths)}")
    for i in np.flatnonzero(~np.isfinite(value)):
        reason[i] = reason[i] or "not_a_number"
        value[i] = np.nan
    both = [i for i, why in enumerate(reason) if why is not None and not math.isnan(value[i])]
    if both:
        raise ContractError(f"{method.label} returned value {value[both[0]]} with reason {reason[both[0]]!r}")
    low, high = method.bounds
    outside = value[(value < low - BOUNDS_TOLERANCE) | (value > high + BOUNDS_TOLERANCE)]
    if len(outside):
        raise OutOfBoundsError(
            f"{method.label} promises {method.unit} in [{low:g}, {high:g}], got {outside[0]} "
            f"({len(outside)} such values); correct its bounds, or the engine that answers"
        )
    return Values(np.clip(value, low, high), reason, values.details)


def detail_schema(method: Method) -> dict[str, pl.DataType]:
    """Column types of the method's details, read off its worked example: a shard full of nulls has the same schema."""
    worked = method.example
    try:
        example = method.function(**worked.columns, **worked.roles, **worked.settings)
    except Exception as error:
        raise ContractError(f"{method.label} fails on its worked example: {type(error).__name__}: {error}") from error
    details = _checked(method, example).details
    return {name: pl.Series(column, strict=False).dtype for name, column in details.items()}
