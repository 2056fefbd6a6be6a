"""How many samples each cluster may keep: more where images lie apart (density-based pruning, Abbas et al. 2024)."""

import numpy as np

STEPS = 100


def spread_of_clusters(
    embeddings: np.ndarray, cluster: np.ndarray, centroids: np.ndarray, neighbours: int = 20
) -> tuple[np.ndarray, np.ndarray]:
    """(K,) d_intra: mean distance 1 − cosine of a cluster's members to its centroid (0 of an empty one), and (K,)
    d_inter: mean distance of its centroid to the `neighbours` nearest others (1 where it is the only one).
    """
    unit = centroids / np.maximum(np.linalg.norm(centroids, axis=1, keepdims=True), 1e-12)
    counts = np.bincount(cluster, minlength=len(unit))
    apart = 1.0 - np.einsum("nd,nd->n", embeddings, unit[cluster])
    intra = np.bincount(cluster, weights=apart, minlength=len(unit)) / np.maximum(counts, 1)
    if len(unit) == 1:
        return intra, np.ones(1)
    between = 1.0 - unit @ unit.T  # (K, K)
    np.fill_diagonal(between, np.inf)
    nearest = np.sort(between, axis=1)[:, : min(neighbours, len(unit) - 1)]
    return intra, nearest.mean(axis=1)


def cluster_quotas(
    intra: np.ndarray, inter: np.ndarray, counts: np.ndarray, total: int, temperature: float = 0.5
) -> np.ndarray:
    """Abbas et al. 2024: p = softmax(d_intra · d_inter / τ), x_j = clip(p_j N + λ, 1, n_j), λ by bisection so that
    Σ x_j = N. (K,), (K,), (K,) members, N → (K,) int64 that sum to N (empty clusters: 0).

    Whole numbers by largest remainder. Raises ValueError for N outside [occupied clusters, Σ n_j].
    """
    occupied = counts > 0
    if not int(occupied.sum()) <= total <= int(counts.sum()):
        raise ValueError(
            f"density pruning keeps at least one sample of each of {int(occupied.sum())} clusters and at most all "
            f"{int(counts.sum())}, got {total}; take fewer clusters or another share"
        )
    complexity = (intra * inter)[occupied] / temperature
    share = np.exp(complexity - complexity.max())
    wanted, most = share / share.sum() * total, counts[occupied].astype(np.float64)
    low, high = -wanted.max(), most.max()
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if np.clip(wanted + middle, 1, most).sum() < total else (low, middle)
    real = np.clip(wanted + high, 1, most)
    whole = np.floor(real).astype(np.int64)
    room = np.flatnonzero(whole < most)
    first = room[np.argsort(-(real - whole)[room], kind="stable")]
    whole[first[: total - int(whole.sum())]] += 1
    quotas = np.zeros(len(counts), dtype=np.int64)
    quotas[occupied] = whole
    return quotas
