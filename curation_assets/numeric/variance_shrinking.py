"""VAS-D: a set that shrinks step by step to the images that align with what is left of it (Wang et al. 2024)."""

import numpy as np

ROWS_AT_ONCE = 8192
PRODUCTS_AT_ONCE = 2**24  # cosines held together, 64 MiB in float32


def shrink_by_variance(vectors: np.ndarray, count: int, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Which `count` of N images are left, and the second moment that made the last cut.

    Unit rows (N, D) → (N,) bool with `count` True, and (D, D) float64. VAS-D of Wang et al. 2024 (arXiv 2402.02055) §4,
    which is NormSim₂-D of arXiv 2405.19547 §3: in each step, with S the set that is left,

        Σ = Σ_{j∈S} f_j f_jᵀ / |S|,    VAS_i = f_iᵀ Σ f_i

    and the images of S with the lowest VAS go; all steps drop equally many, to within one. Equal values: the lower
    position stays. |S| · VAS_i is a sum of squared cosines, from which a step takes those with the images that went: at
    most 2 N D operations per dropped image, whatever the number of steps. Raises ValueError for a count outside [1, N],
    or no steps.
    """
    if not 1 <= count <= len(vectors):
        raise ValueError(f"count must be in [1, {len(vectors)}], got {count}")
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    vectors = np.asarray(vectors, dtype=np.float32)
    is_left = np.ones(len(vectors), dtype=bool)
    before_last = is_left.copy()
    sums = summed_squares(vectors, vectors)  # (N,) Σ_{j∈S} (f_i · f_j)²
    for size in _sizes(len(vectors), count, steps):
        left = np.flatnonzero(is_left)
        going = left[np.argsort(-sums[left], kind="stable")[size:]]
        before_last = is_left.copy()
        is_left[going] = False
        if size > count:  # another step follows
            sums -= summed_squares(vectors, vectors[going])
    return is_left, second_moment(vectors, before_last)


def _sizes(start: int, end: int, steps: int) -> list[int]:
    """Sizes after each step that drops something."""
    sizes = [start - (start - end) * step // steps for step in range(1, steps + 1)]
    return sorted({size for size in sizes if size < start}, reverse=True)


def summed_squares(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Σ_j (row · other_j)². (N, D), (M, D) → (N,) float64; by pairs where M < D, else by the others' (D, D) moment."""
    total = np.empty(len(rows))
    moment = second_moment(others) * len(others) if len(others) >= others.shape[1] else None
    at_once = ROWS_AT_ONCE if moment is not None else max(1, PRODUCTS_AT_ONCE // max(1, len(others)))
    for start in range(0, len(rows), at_once):
        part = rows[start : start + at_once]
        if moment is None:
            total[start : start + at_once] = np.square(part @ others.T, dtype=np.float64).sum(axis=1)
        else:
            wide = part.astype(np.float64)
            total[start : start + at_once] = ((wide @ moment) * wide).sum(axis=1)
    return total


def second_moment(vectors: np.ndarray, chosen: np.ndarray | None = None) -> np.ndarray:
    """Σ f fᵀ / N of (N, D) rows, or of those that (N,) `chosen` marks → (D, D) float64."""
    moment, count = np.zeros((vectors.shape[1], vectors.shape[1])), 0
    for start in range(0, len(vectors), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        part = (vectors[rows] if chosen is None else vectors[rows][chosen[rows]]).astype(np.float64)
        moment += part.T @ part
        count += len(part)
    return moment / max(count, 1)
