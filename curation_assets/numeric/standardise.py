"""Standardisation of teacher similarities inside caption-length groups: logit, z-score, shift, inverse logit."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy  # whose parts load on first use: scipy.stats takes most of a second

from curation_assets.numeric.agreement import spearman

Grouping = Literal["length", "global"]
LengthUnit = Literal["words", "characters"]

MIN_GROUP = 50  # samples; neighbouring lengths are merged until a group has as many (formulas.md §1.6)
MIN_SD = 1e-6  # logit units; a narrower group borrows the pooled mean and sd
MU_LOGIT = 0.5  # the published target LN(0.5, 1) read in logit space (formulas.md §1.6): median σ(0.5) = 0.622459

#: |Spearman| between similarity and caption length above which per-length grouping deserves a second look. In the
#: study's natural mix word count had .74 with concreteness and grouping cost .40 of Pearson; in the balanced mix −.02.
WARN_SPEARMAN = 0.3


@dataclass(frozen=True)
class LengthGroup:
    """Mean and sd (ddof 0) of logits over captions of `length_low` … `length_high` words, both included."""

    length_low: int
    length_high: int | None  # None: no upper end (the last group)
    mean: float  # logit units
    sd: float  # logit units, > 0
    n: int  # values that the group itself holds
    is_pooled: bool  # mean and sd are those of all lengths: the group was too small or too narrow


@dataclass(frozen=True)
class LengthStatistics:
    """Frozen table of length groups: sorted, without gaps, from 0 words to any number."""

    groups: tuple[LengthGroup, ...]

    def __post_init__(self) -> None:
        if not self.groups:
            raise ValueError("length statistics need at least one group, got none")
        if self.groups[0].length_low != 0 or self.groups[-1].length_high is not None:
            raise ValueError("length groups must start at 0 words and end without a limit (length_high null)")
        for left, right in zip(self.groups, self.groups[1:], strict=False):
            if left.length_high is None or right.length_low != left.length_high + 1:
                raise ValueError(f"length groups must follow each other without a gap, got {left} then {right}")
        if any(not group.sd > 0 for group in self.groups):
            raise ValueError("every length group needs sd > 0")

    def to_rows(self) -> list[dict[str, Any]]:
        """One dict per group, in order of length: the rows of the statistics table."""
        return [dict(vars(group)) for group in self.groups]

    @classmethod
    def from_rows(cls, rows: Iterable[Mapping[str, Any]]) -> "LengthStatistics":
        """Inverse of `to_rows`. Raises ValueError where the groups leave a gap."""
        return cls(tuple(LengthGroup(**row) for row in sorted(rows, key=lambda row: row["length_low"])))


@dataclass(frozen=True)
class LengthDependence:
    """How much a number follows caption length."""

    slope_per_word: float  # units of the number per word (per character, if lengths are given so), least squares
    spearman: float  # [-1, 1]
    n: int


def caption_length(captions: Sequence[str], unit: LengthUnit = "words") -> np.ndarray:
    """Length of each caption. (N,) strings → (N,) int64. formulas.md §1.6: the paper names no unit.

    `unit`: 'words' are whitespace tokens, 'characters' code points. Raises ValueError for another unit.
    """
    if unit not in ("words", "characters"):
        raise ValueError(f"length unit must be 'words' or 'characters', got {unit!r}")
    return np.array([len(text.split() if unit == "words" else text) for text in captions], dtype=np.int64)


def fit_length_statistics(
    values: np.ndarray, lengths: np.ndarray, *, grouping: Grouping = "length", min_group: int = MIN_GROUP
) -> LengthStatistics:
    """Mean and population sd (ddof 0) of logit(value) per group of caption lengths. ICC §4.3, formulas.md §1.6.

    `values` (N,) similarities in the open interval (0, 1), NaN where there is none (left out); `lengths` (N,) words.
    Neighbouring lengths are merged upwards until a group has `min_group` values; a short tail joins its neighbour.
    Raises ValueError for values at or beyond 0 and 1, for no values, and where all values are equal.
    """
    logits, lengths = _logits(values), np.asarray(lengths)
    if logits.shape != lengths.shape:
        raise ValueError(f"values and lengths must have one shape, got {logits.shape} and {lengths.shape}")
    if grouping not in ("length", "global"):
        raise ValueError(f"grouping must be 'length' or 'global', got {grouping!r}")
    is_valued = np.isfinite(logits)
    logits, lengths = logits[is_valued], lengths[is_valued]
    if len(logits) == 0:
        raise ValueError("no values to standardise: all are NaN; see the reasons in the teacher's table")
    pooled_mean, pooled_sd = float(logits.mean()), float(logits.std())
    if pooled_sd < MIN_SD:
        raise ValueError(
            f"all {len(logits)} values are equal (sd {pooled_sd:.1e} in logit units), nothing to standardise; "
            "check that the teacher's engine answers"
        )
    groups = []
    for low, high in _length_ranges(lengths, min_group) if grouping == "length" else [(0, None)]:
        inside = logits[(lengths >= low) & (lengths <= (np.inf if high is None else high))]
        is_pooled = len(inside) < min_group or float(inside.std()) < MIN_SD
        mean, sd = (pooled_mean, pooled_sd) if is_pooled else (float(inside.mean()), float(inside.std()))
        groups.append(LengthGroup(low, high, mean, sd, len(inside), is_pooled))
    return LengthStatistics(tuple(groups))


def standardise(
    values: np.ndarray, lengths: np.ndarray, statistics: LengthStatistics, *, mu_logit: float = MU_LOGIT
) -> np.ndarray:
    """σ(μ + (logit(value) − group mean) / group sd). (N,), (N,) → (N,) scores in (0, 1); NaN stays NaN.

    Higher is better. Raises ValueError for values at or beyond 0 and 1. ICC §4.3 with ln(p / (1 − p)) for the
    misprinted ln(1 / (1 − p)) (formulas.md §1.6).
    """
    logits = _logits(values)
    lows = np.array([group.length_low for group in statistics.groups])
    group_of = np.searchsorted(lows, np.asarray(lengths), side="right") - 1  # (N,)
    mean = np.array([group.mean for group in statistics.groups])[group_of]
    sd = np.array([group.sd for group in statistics.groups])[group_of]
    return scipy.special.expit(mu_logit + (logits - mean) / sd)


def length_dependence(values: np.ndarray, lengths: np.ndarray) -> LengthDependence:
    """Least-squares slope per word and Spearman correlation of values with caption length. NaN values are left out.

    Both are 0 where either side is constant: a constant follows nothing. Raises ValueError for fewer than 2 values.
    """
    values, lengths = np.asarray(values, dtype=np.float64), np.asarray(lengths, dtype=np.float64)
    is_valued = np.isfinite(values)
    values, lengths = values[is_valued], lengths[is_valued]
    if len(values) < 2:
        raise ValueError(f"length dependence needs at least 2 values, got {len(values)}")
    if values.std() == 0 or lengths.std() == 0:
        return LengthDependence(0.0, 0.0, len(values))
    slope = float(np.cov(lengths, values, ddof=0)[0, 1] / lengths.var())
    return LengthDependence(slope, spearman(values, lengths), len(values))


def length_warning(before: LengthDependence, grouping: Grouping, unit: LengthUnit = "words") -> str | None:
    """A sentence when per-length grouping may remove real signal, else None.

    Grouping removes whatever follows length. Where similarity follows length strongly, it cannot be separated
    whether that is the teacher's bias (good to remove) or the pool (short captions really are vaguer).
    """
    if grouping != "length" or abs(before.spearman) <= WARN_SPEARMAN:
        return None
    return (
        f"similarity follows caption length (Spearman {before.spearman:+.2f}, slope {before.slope_per_word:+.4f} per "
        f"{unit.removesuffix('s')}, n {before.n}); per-length standardisation removes all of it, real signal included. "
        "Compare with the pool's option standardise_by=global on labelled captions, or balance the lengths of the "
        "distillation sample."
    )


def length_evidence(
    length_spearman: float, by_length: float, globally: float, n: int, grouping: Grouping
) -> str | None:
    """A sentence when the ratings themselves follow caption length and per-length grouping is in force, else None.

    `length_spearman`: of caption length with the ratings; `by_length` and `globally`: Pearson correlation with
    the ratings of the fused teachers under either grouping, NaN where unknown; `n` ratings. formulas.md §12: .48
    against
    .89 on such a pool.
    """
    if grouping != "length" or not abs(length_spearman) > WARN_SPEARMAN:
        return None
    if np.isnan(by_length) or np.isnan(globally):
        compared = "There are too few ratings to compare both standardisations on them."
    else:
        better = "the global one agrees better" if globally > by_length else "per-length still agrees as well"
        compared = (
            f"Fused teachers against the ratings (Pearson, held out): {by_length:.2f} per length, {globally:.2f} with "
            f"one global z-score; {better}."
        )
    return (
        f"length itself carries the signal: caption length alone follows the ratings with Spearman "
        f"{length_spearman:+.2f} (n {n}), and per-length standardisation removes that. {compared} Set the pool's "
        "option standardise_by: global, or balance the lengths of the distillation sample."
    )


def _logits(values: np.ndarray) -> np.ndarray:
    values = np.asarray(values, dtype=np.float64)
    outside = np.flatnonzero((values <= 0) | (values >= 1))
    if len(outside):
        raise ValueError(
            f"values must lie inside (0, 1) to have a logit; got {values[outside[0]]} at row {outside[0]} "
            f"({len(outside)} such rows); use corrected_edit_similarity or open_interval first"
        )
    return scipy.special.logit(values)


def _length_ranges(lengths: np.ndarray, min_group: int) -> list[tuple[int, int | None]]:
    """Ranges of lengths with at least `min_group` members each where the total allows it, covering 0 … no limit."""
    ends: list[int] = []  # highest length of each full group
    count = 0
    for length, members in zip(*np.unique(lengths, return_counts=True), strict=True):
        count += int(members)
        if count >= min_group:
            ends.append(int(length))
            count = 0
    ends = ends[:-1]  # the last full group takes the tail and every longer caption
    lows = [0, *(end + 1 for end in ends)]
    return list(zip(lows, [*ends, None], strict=True))
