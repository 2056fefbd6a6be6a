"""A draw that covers a unit square or cube evenly: equal quota per non-empty cell of a grid."""

import numpy as np


def sample_plane(scores: np.ndarray, count: int, rng: np.random.Generator, *, cells: int = 10) -> np.ndarray:
    """Rows drawn about uniformly over the unit square. (N, K) → (count,) row numbers, ascending. formulas.md §1.7, K =
    2.

    Each of the K axes is cut into `cells` intervals. Every non-empty cell gives the same number of rows, a cell with
    fewer gives all it has and the others share what is left; a last remainder goes to cells drawn at random. Values
    outside [0, 1] (a student's output is not clipped) belong to the nearest cell; rows with a NaN are never drawn.
    Raises ValueError for another shape, count or cells below 1, or fewer than `count` complete rows.
    """
    scores = np.asarray(scores, dtype=np.float64)
    if scores.ndim != 2:
        raise ValueError(f"expected scores (N, K), got shape {scores.shape}")
    if count < 1 or cells < 1:
        raise ValueError(f"count and cells must be at least 1, got {count} and {cells}")
    complete = np.flatnonzero(np.isfinite(scores).all(axis=1))
    if len(complete) < count:
        raise ValueError(f"expected {count} rows with all scores, got {len(complete)} of {len(scores)}; draw fewer")
    intervals = np.clip(np.floor(scores[complete] * cells), 0, cells - 1).astype(np.int64)  # (M, K)
    cell_of = intervals @ cells ** np.arange(scores.shape[1])[::-1]  # (M,)
    members = {int(cell): rng.permutation(complete[cell_of == cell]) for cell in np.unique(cell_of)}
    taken = dict.fromkeys(members, 0)
    left = count
    while left:
        open_cells = [cell for cell in members if taken[cell] < len(members[cell])]
        quota = left // len(open_cells)
        if quota == 0:
            for cell in rng.permutation(open_cells)[:left].tolist():
                taken[cell] += 1
            break
        for cell in open_cells:
            more = min(quota, len(members[cell]) - taken[cell])
            taken[cell] += more
            left -= more
    return np.sort(np.concatenate([members[cell][: taken[cell]] for cell in members]))
