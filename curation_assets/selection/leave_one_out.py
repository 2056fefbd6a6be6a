"""What each signal of a policy decides: the subsets that the policy keeps without it."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import polars as pl

from curation_assets.selection.judging import NothingToCutError, judge_pool
from curation_assets.selection.policy import RANDOM, Policy
from curation_assets.selection.rows import Changed, Rows, Wanted, floats, with_values

#: A recipe counts as a weighted sum where weights explain its values to this absolute error.
LINEAR_TOLERANCE = 1e-9
FITTED_ROWS = 100_000  # weights are read off so many rows, and checked on all


def leave_one_out(pool: Rows, policy: Policy, kept: Callable[[], Iterator[pl.Series]]) -> pl.DataFrame:
    """One row per signal of the policy: how many it keeps without it, and IoU with what it keeps; null where that is
    not defined. `kept`: (n,) bool of part after part of the pool."""
    records: list[dict[str, object]] = []
    for without, reduced, change, more in _reduced(pool, policy):
        counts = None
        with contextlib.suppress(NothingToCutError):  # what is left ranks by a signal without values
            if reduced is not None:
                found = np.zeros(3, dtype=np.int64)  # without the signal, in both, in either
                for verdicts, before in zip(judge_pool(reduced, Changed(pool, change, more)), kept(), strict=True):
                    now = verdicts["verdict"] == "kept"
                    found += [int(one.sum()) for one in (now, now & before, now | before)]
                counts = found
        count, both, either = (None, 0, 0) if counts is None else counts.tolist()
        iou = both / either if either else None
        records.append({"policy": policy.name, "without": without, "kept": count, "iou": iou})
    schema = {"policy": pl.String, "without": pl.String, "kept": pl.Int64, "iou": pl.Float64}
    return pl.DataFrame(records, schema=schema, orient="row")


def _as_it_is(rows: pl.DataFrame) -> pl.DataFrame:
    return rows


_Reduced = tuple[str, Policy | None, Callable[[pl.DataFrame], pl.DataFrame], Wanted]


def _reduced(pool: Rows, policy: Policy) -> Iterator[_Reduced]:
    """(signal left out, the policy without it, from the rows of a part those to judge, what that reads). A policy of
    one signal has nothing to leave out.

    Without a prefilter its cut is not made; without the ranking signal the last prefilter's ranks; without a signal of
    a recipe the others' scores keep their weights. The policy is None where that is not defined.
    """
    for index, prefilter in enumerate(policy.prefilters):
        others = policy.prefilters[:index] + policy.prefilters[index + 1 :]
        yield prefilter.rank_by, replace(policy, prefilters=others), _as_it_is, Wanted()
    if policy.rank_by.startswith("fused."):
        weights, names = recipe_weights(pool, policy.rank_by), score_columns(pool, policy.rank_by)
        for name in names if len(names) > 1 else ():
            is_defined = weights is not None and policy.fraction is not None
            rest = {other: weight for other, weight in (weights or {}).items() if other != name}
            change = functools.partial(_weighted, policy.rank_by, rest)
            yield name.removesuffix("_score"), policy if is_defined else None, change, Wanted(scores=(policy.rank_by,))
    elif policy.prefilters and policy.rank_by != RANDOM:
        *earlier, last = policy.prefilters
        without = None
        if policy.fraction is not None:  # a threshold is in the unit of one signal, not of another
            without = replace(policy, rank_by=last.rank_by, prefilters=tuple(earlier))
        yield policy.rank_by, without, _as_it_is, Wanted()


def _weighted(reference: str, weights: Mapping[str, float], rows: pl.DataFrame) -> pl.DataFrame:
    """The same rows with a weighted sum of a recipe's scores as its values."""
    rest = np.sum([weight * floats(rows[f"{reference}:{name}"]) for name, weight in weights.items()], axis=0)
    return with_values(rows, reference, np.broadcast_to(rest, rows.height))


def score_columns(pool: Rows, reference: str) -> list[str]:
    """Names of the scores that a recipe fuses."""
    first = next(iter(pool.parts(Wanted(scores=(reference,)))))
    return [name.removeprefix(f"{reference}:") for name in first.columns if name.startswith(f"{reference}:")
            and name.endswith("_score")]  # fmt: skip


def recipe_weights(pool: Rows, reference: str) -> dict[str, float] | None:
    """Weights of the scores in a recipe, read off its values (least squares); None where it is no weighted sum."""
    names, fitted, left = score_columns(pool, reference), list[np.ndarray](), FITTED_ROWS
    wanted = Wanted((reference,), (reference,))
    for rows in pool.parts(wanted):
        fitted.append(_complete(rows, reference, names)[:left])
        left -= len(fitted[-1])
    matrix = np.concatenate(fitted)
    if not names or not len(matrix):
        return None
    weights, *_ = np.linalg.lstsq(matrix[:, 1:], matrix[:, 0], rcond=None)
    for rows in pool.parts(wanted):
        complete = _complete(rows, reference, names)
        if np.abs(complete[:, 1:] @ weights - complete[:, 0]).max(initial=0) >= LINEAR_TOLERANCE:
            return None
    return dict(zip(names, weights.tolist(), strict=True))


def _complete(rows: pl.DataFrame, reference: str, names: list[str]) -> np.ndarray:
    """(M, 1 + K) values of a recipe and its scores, of rows that have all of these."""
    columns = np.stack([floats(rows[name]) for name in (reference, *(f"{reference}:{one}" for one in names))], axis=1)
    return columns[np.isfinite(columns).all(axis=1)]
