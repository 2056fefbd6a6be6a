"""Mean and quantiles of values that come part by part."""

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from curation_assets.numeric.selection import value_of_rank

HELD = 1 << 22  # values that are worked on as one array, so that figures are NumPy's digit for digit


def spread(
    parts: Callable[[], Iterable[np.ndarray]], count: int, quantiles: Sequence[float]
) -> tuple[float, list[float]]:
    """(mean, linear quantiles) of `count` ≥ 1 float64 values without NaN, which `parts` gives anew at every call."""
    if count <= HELD:
        values = np.concatenate(list(parts()))
        return float(values.sum()) / count, np.quantile(values, quantiles).tolist()
    mean = math.fsum(float(part.sum()) for part in parts()) / count
    return mean, [_quantile(parts, count, quantile) for quantile in quantiles]


def _quantile(parts: Callable[[], Iterable[np.ndarray]], count: int, quantile: float) -> float:
    place = (count - 1) * quantile
    below = int(np.floor(place))
    ends = [value_of_rank(parts, count - at)[0] for at in (below, min(below + 1, count - 1))]
    return float(np.quantile(ends, place - below))
