"""One score per training set from many downstream metrics (Rao et al.)."""

import numpy as np


def data_set_scores(metrics: np.ndarray) -> np.ndarray:
    """(S training sets, M metrics, higher is better) → (S,) in [0, 1]: the mean of each column's min–max values.

    Each column is scaled over all rows, the set without pre-training included; averaging per task first would be wrong
    (formulas.md §8.4). A constant column counts .5. Raises ValueError for gaps or fewer than two sets.
    """
    table = np.asarray(metrics, dtype=np.float64)
    if table.ndim != 2 or len(table) < 2 or not np.isfinite(table).all():
        raise ValueError(f"expected a table of at least two training sets without gaps, got shape {table.shape}")
    low, span = table.min(axis=0), np.ptp(table, axis=0)
    varies = span > 1e-12 * np.abs(table).max(axis=0)  # less is rounding
    scaled = np.divide(table - low, span, out=np.full_like(table, 0.5), where=varies)
    return scaled.mean(axis=1)
