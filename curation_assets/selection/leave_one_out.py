"""What each signal of a policy decides: the subsets that the policy keeps without it."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import polars as pl

from curation_assets.selection.judging import NothingToCutError
from curation_assets.selection.part_by_part import Pool, kept_parts
from curation_assets.selection.policy import RANDOM, Policy
from curation_assets.selection.rows import Parted, PoolRows, Signal, Texts

#: A recipe counts as a weighted sum where weights explain its values to this absolute error.
LINEAR_TOLERANCE = 1e-9
FITTED_ROWS = 100_000  # weights are read off so many rows, and checked on all


def leave_one_out(pool: Pool, policy: Policy, kept_in: Callable[[slice], np.ndarray]) -> pl.DataFrame:
    """One row per signal of the policy: how many it keeps without it, and IoU with what it keeps, `kept_in` (n,) bool
    of some rows; null where that is not defined."""
    records: list[dict[str, object]] = []
    if isinstance(pool, PoolRows) and policy.rank_by.startswith("fused."):  # scores are read once
        whole = replace(pool.signal(policy.rank_by), scores=pool.scores(policy.rank_by))
        pool = pool.with_signal(policy.rank_by, whole)
    for without, reduced, changed in _reduced(pool, policy):
        kept, count, iou = None, None, None
        counts, start = np.zeros(3, dtype=np.int64), 0  # without the signal, in both, in either
        with contextlib.suppress(NothingToCutError):  # what is left ranks by a signal without values
            for kept in kept_parts(reduced, pool, changed) if reduced is not None else ():
                is_kept = kept_in(slice(start, start := start + len(kept)))
                counts += [np.count_nonzero(one) for one in (kept, is_kept & kept, is_kept | kept)]
        if kept is not None:
            count, both, either = counts.tolist()
            iou = both / either if either else None
        records.append({"policy": policy.name, "without": without, "kept": count, "iou": iou})
    schema = {"policy": pl.String, "without": pl.String, "kept": pl.Int64, "iou": pl.Float64}
    return pl.DataFrame(records, schema=schema, orient="row")


def _as_it_is(rows: PoolRows) -> PoolRows:
    return rows


def _reduced(pool: Parted, policy: Policy) -> Iterator[tuple[str, Policy | None, Callable[[PoolRows], PoolRows]]]:
    """(signal left out, the policy without it, from the rows of a part those to judge). A policy of one signal has
    nothing to leave out.

    Without a prefilter its cut is not made; without the ranking signal the last prefilter's ranks; without a signal of
    a recipe the others' scores keep their weights. The policy is None where that is not defined.
    """
    for index, prefilter in enumerate(policy.prefilters):
        others = policy.prefilters[:index] + policy.prefilters[index + 1 :]
        yield prefilter.rank_by, replace(policy, prefilters=others), _as_it_is
    if policy.rank_by.startswith("fused."):
        names = list(next(iter(pool.parts())).scores(policy.rank_by))
        weights = recipe_weights(pool, policy.rank_by)
        for name in names if len(names) > 1 else ():
            is_defined = weights is not None and policy.fraction is not None
            rest = {other: weight for other, weight in (weights or {}).items() if other != name}
            changed = functools.partial(_weighted, policy.rank_by, rest)
            yield name.removesuffix("_score"), policy if is_defined else None, changed
    elif policy.prefilters and policy.rank_by != RANDOM:
        *earlier, last = policy.prefilters
        without = None
        if policy.fraction is not None:  # a threshold is in the unit of one signal, not of another
            without = replace(policy, rank_by=last.rank_by, prefilters=tuple(earlier))
        yield policy.rank_by, without, _as_it_is


def _weighted(reference: str, weights: Mapping[str, float], rows: PoolRows) -> PoolRows:
    """The same rows with a weighted sum of a recipe's scores as its values."""
    scores = rows.scores(reference)
    rest = np.sum([weight * scores[name] for name, weight in weights.items()], axis=0)
    return rows.with_signal(reference, Signal(rest, Texts.none(len(rows))))


def recipe_weights(pool: Parted, reference: str) -> dict[str, float] | None:
    """Weights of the scores in a recipe, read off its values (least squares); None where it is no weighted sum."""
    names: list[str] = []
    fitted: list[np.ndarray] = []
    for rows in pool.parts():
        values, scores, complete = _complete(rows, reference)
        names, left = list(scores), FITTED_ROWS - sum(map(len, fitted))
        some = complete[:left]  # rows are sorted by id: the first are a random sample
        fitted.append(np.stack([values[some], *(column[some] for column in scores.values())], axis=1))  # (M, 1 + K)
    matrix = np.concatenate(fitted)
    if not names or not len(matrix):
        return None
    weights, *_ = np.linalg.lstsq(matrix[:, 1:], matrix[:, 0], rcond=None)
    for rows in pool.parts():
        values, scores, complete = _complete(rows, reference)
        error = -values
        for weight, column in zip(weights, scores.values(), strict=True):
            error += weight * column
        if np.abs(error[complete]).max(initial=0) >= LINEAR_TOLERANCE:
            return None
    return dict(zip(names, weights.tolist(), strict=True))


def _complete(rows: PoolRows, reference: str) -> tuple[np.ndarray, Mapping[str, np.ndarray], np.ndarray]:
    """(N,) values of a recipe, its scores, and (M,) rows that have all of these."""
    values, scores = rows.signal(reference).values, rows.scores(reference)
    is_complete = np.isfinite(values)
    for column in scores.values():
        is_complete &= np.isfinite(column)
    return values, scores, np.flatnonzero(is_complete)
