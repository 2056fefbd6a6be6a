"""Mean and quantiles of more values than memory holds, digit for digit as NumPy gives them of an array of all."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from curation_assets.numeric.selection import value_of_rank

HELD = 1 << 22  # values that are worked on as one array


def spread(
    parts: Callable[[], Iterable[np.ndarray]], count: int, quantiles: Sequence[float]
) -> tuple[float, list[float]]:
    """(mean, linear quantiles) of `count` ≥ 1 float64 values without NaN, which `parts` gives anew at every call."""
    if count <= HELD:
        values = np.concatenate(list(parts()))
        return mean_of(parts, count), np.quantile(values, quantiles).tolist()
    return mean_of(parts, count), [_quantile(parts, count, quantile) for quantile in quantiles]


def mean_of(parts: Callable[[], Iterable[np.ndarray]], count: int) -> float:
    """The mean of `spread` alone."""
    return _sum(_reader(parts()), count) / count


def _sum(read: Callable[[int], np.ndarray], count: int) -> float:
    """NumPy's pairwise sum: halves, each a multiple of 8 long but the last, are summed by themselves."""
    if count <= HELD:
        return float(np.add.reduce(read(count)))
    half = count // 2 - count // 2 % 8
    return _sum(read, half) + _sum(read, count - half)


def _reader(parts: Iterable[np.ndarray]) -> Callable[[int], np.ndarray]:
    """A function that gives the next so many values."""
    left, following = np.zeros(0), iter(parts)

    def read(count: int) -> np.ndarray:
        nonlocal left
        ready = [left]
        while sum(map(len, ready)) < count:
            ready.append(next(following))
        joined = np.concatenate(ready)
        left = joined[count:]
        return joined[:count]

    return read


def _quantile(parts: Callable[[], Iterable[np.ndarray]], count: int, quantile: float) -> float:
    place = (count - 1) * quantile
    below = int(np.floor(place))
    ends = [value_of_rank(parts, count - at)[0] for at in (below, min(below + 1, count - 1))]
    return float(np.quantile(ends, place - below))
