"""What each signal of a policy decides: the subsets that the policy keeps without it."""

import contextlib
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import polars as pl

from curation_assets.selection.judging import NothingToCutError, kept_rows
from curation_assets.selection.policy import RANDOM, Policy
from curation_assets.selection.rows import PoolRows, Signal, Texts

#: A recipe counts as a weighted sum where weights explain its values to this absolute error.
LINEAR_TOLERANCE = 1e-9
FITTED_ROWS = 100_000  # weights are read off so many rows, and checked on all


def leave_one_out(rows: PoolRows, policy: Policy, is_kept: np.ndarray) -> pl.DataFrame:
    """One row per signal of the policy: how many it keeps without it, and IoU with what it keeps, (N,) bool; null where
    that is not defined."""
    records: list[dict[str, object]] = []
    for without, reduced, reduced_rows in _reduced(rows, policy):
        kept, count, iou = None, None, None
        if reduced is not None:
            with contextlib.suppress(NothingToCutError):  # what is left ranks by a signal without values
                kept = kept_rows(reduced, reduced_rows)
        if kept is not None:
            either = int((is_kept | kept).sum())
            count, iou = int(kept.sum()), int((is_kept & kept).sum()) / either if either else None
        records.append({"policy": policy.name, "without": without, "kept": count, "iou": iou})
    schema = {"policy": pl.String, "without": pl.String, "kept": pl.Int64, "iou": pl.Float64}
    return pl.DataFrame(records, schema=schema, orient="row")


def _reduced(rows: PoolRows, policy: Policy) -> list[tuple[str, Policy | None, PoolRows]]:
    """(signal left out, the policy without it, rows to judge). A policy of one signal has nothing to leave out.

    Without a prefilter its cut is not made; without the ranking signal the last prefilter's ranks; without a signal of
    a recipe the others' scores keep their weights. The policy is None where that is not defined.
    """
    reduced: list[tuple[str, Policy | None, PoolRows]] = []
    for index, prefilter in enumerate(policy.prefilters):
        others = policy.prefilters[:index] + policy.prefilters[index + 1 :]
        reduced.append((prefilter.rank_by, replace(policy, prefilters=others), rows))
    if policy.rank_by.startswith("fused."):
        scores = rows.scores(policy.rank_by)
        weights = _weights(rows.signal(policy.rank_by).values, scores)
        for name in scores if len(scores) > 1 else ():
            if weights is None or policy.fraction is None:
                reduced.append((name.removesuffix("_score"), None, rows))
                continue
            rest = np.sum([weights[other] * scores[other] for other in scores if other != name], axis=0)
            # The same rows with other values of the recipe; nothing is read twice.
            other_rows = rows.with_signal(policy.rank_by, Signal(rest, Texts.none(len(rows))))
            reduced.append((name.removesuffix("_score"), policy, other_rows))
    elif policy.prefilters and policy.rank_by != RANDOM:
        *earlier, last = policy.prefilters
        without = None
        if policy.fraction is not None:  # a threshold is in the unit of one signal, not of another
            without = replace(policy, rank_by=last.rank_by, prefilters=tuple(earlier))
        reduced.append((policy.rank_by, without, rows))
    return reduced


def recipe_weights(rows: PoolRows, reference: str) -> dict[str, float] | None:
    """Weights of the scores in a recipe, read off its values (least squares); None where it is no weighted sum."""
    return _weights(rows.signal(reference).values, rows.scores(reference))


def _weights(values: np.ndarray, scores: Mapping[str, np.ndarray]) -> dict[str, float] | None:
    if not scores:
        return None
    columns = list(scores.values())  # K of (N,)
    is_complete = np.isfinite(values)
    for column in columns:
        is_complete &= np.isfinite(column)
    complete = np.flatnonzero(is_complete)
    if not len(complete):
        return None
    fitted = complete[:FITTED_ROWS]  # rows are sorted by id: any of them are a random sample
    matrix = np.stack([column[fitted] for column in columns], axis=1)  # (M, K)
    weights, *_ = np.linalg.lstsq(matrix, values[fitted], rcond=None)
    error = -values
    for weight, column in zip(weights, columns, strict=True):
        error += weight * column
    if np.abs(error[complete]).max() >= LINEAR_TOLERANCE:
        return None
    return dict(zip(scores, weights.tolist(), strict=True))
