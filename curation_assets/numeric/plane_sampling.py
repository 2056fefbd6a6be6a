"""A draw that covers a plane evenly: equal quota per non-empty cell of a grid."""

import numpy as np


def sample_plane(x: np.ndarray, y: np.ndarray, count: int, rng: np.random.Generator, *, cells: int = 10) -> np.ndarray:
    """Rows drawn about uniformly over the unit square. (N,), (N,) → (count,) row numbers, ascending. METHODS §1.7.

    The square is cut into `cells` × `cells`. Every non-empty cell gives the same number of rows, a cell with fewer
    gives all it has and the others share what is left; a last remainder goes to cells drawn at random. Values outside
    [0, 1] (a student's output is not clipped) belong to the nearest cell; rows with a NaN are never drawn.
    Raises ValueError for unequal shapes, count or cells below 1, or fewer than `count` complete rows.
    """
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if x.shape != y.shape or x.ndim != 1:
        raise ValueError(f"expected x (N,) and y (N,), got {x.shape} and {y.shape}")
    if count < 1 or cells < 1:
        raise ValueError(f"count and cells must be at least 1, got {count} and {cells}")
    complete = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
    if len(complete) < count:
        raise ValueError(f"asked for {count} rows, only {len(complete)} of {len(x)} have both scores; ask for fewer")
    columns, rows = (np.clip(np.floor(values[complete] * cells), 0, cells - 1).astype(np.int64) for values in (x, y))
    cell_of = columns * cells + rows  # (M,)
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
