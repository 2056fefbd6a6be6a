"""k-means over cached embeddings, and which clusters hold reference images (DataComp §3.2, image-based filtering)."""

import hashlib

import numpy as np

ITERATIONS, SEED = 20, 0  # DataComp's (formulas.md §3.2)
FULL_BATCH_ROWS = 50_000  # beyond, k-means looks at mini-batches
ROWS_AT_ONCE = 8192
PRODUCTS_AT_ONCE = 2**28  # of rows with centroids, 1 GB: 2,684 rows with 100,000 centroids


def fit_centroids(embeddings: np.ndarray, count: int, seed: int = SEED) -> np.ndarray:
    """(N, D) → (K, D) float32 centroids of k-means (Euclidean, 20 iterations), K = min(count, different rows).

    The reference takes 100,000 for 12.8 M images and more. Raises ValueError for no rows or count < 1.
    """
    embeddings = np.asarray(embeddings, dtype=np.float32)
    if embeddings.ndim != 2 or len(embeddings) == 0:
        raise ValueError(f"k-means needs embeddings (N, D) with N ≥ 1, got {embeddings.shape}")
    if count < 1:
        raise ValueError(f"the number of clusters must be at least 1, got {count}")
    count = min(count, _different_rows(embeddings, count))
    from sklearn.cluster import KMeans, MiniBatchKMeans  # takes a second to load

    kind = KMeans if len(embeddings) <= FULL_BATCH_ROWS else MiniBatchKMeans
    fitted = kind(count, max_iter=ITERATIONS, n_init=1, random_state=seed).fit(embeddings)
    return fitted.cluster_centers_.astype(np.float32)


def nearest_centroid(embeddings: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    """(N, D), (K, D) → (N,) int64 index of the centroid with the highest dot product, as the reference has it."""
    embeddings, centroids = np.asarray(embeddings, dtype=np.float32), np.asarray(centroids, dtype=np.float32)
    if embeddings.ndim != 2 or centroids.ndim != 2 or embeddings.shape[1] != centroids.shape[1]:
        raise ValueError(f"expected (N, D) and (K, D), got {embeddings.shape} and {centroids.shape}")
    at_once = max(1, min(ROWS_AT_ONCE, PRODUCTS_AT_ONCE // max(1, len(centroids))))
    parts = (embeddings[start : start + at_once] for start in range(0, len(embeddings), at_once))
    return np.concatenate([np.zeros(0, np.int64), *((part @ centroids.T).argmax(axis=1) for part in parts)])


def _different_rows(embeddings: np.ndarray, enough: int) -> int:
    """How many rows differ from all others before them, counted up to `enough`; -0.0 is 0.0."""
    seen: set[bytes] = set()
    for row in embeddings:
        seen.add(hashlib.blake2b((row + 0.0).tobytes(), digest_size=16).digest())
        if len(seen) == enough:
            break
    return len(seen)


def reference_counts(reference: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    """(R, D) reference embeddings, (K, D) → (K,) int64: reference images nearest to each centroid."""
    return np.bincount(nearest_centroid(reference, centroids), minlength=len(centroids))
