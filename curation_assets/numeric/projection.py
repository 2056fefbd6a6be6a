"""Places on a plane for vectors: near ones lie near."""

import numpy as np

PRINCIPAL_COMPONENTS = 50  # before t-SNE, as its authors do (van der Maaten and Hinton 2008, §4.2)
PERPLEXITY = 30.0  # scikit-learn's; neighbours that count, less for few vectors
ITERATIONS = 500  # half of scikit-learn's: clusters stand by then, and the wait is halved


def project(vectors: np.ndarray, seed: int) -> np.ndarray:
    """(N, D) float32 → (N, 2) float32: t-SNE of the principal components; of fewer than 10, the first two of those.

    The same vectors in the same order give the same places on one machine.
    """
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    n, dimensions = vectors.shape
    places = np.zeros((n, 2), dtype=np.float32)
    if n < 2 or np.ptp(vectors, axis=0).max(initial=0) == 0:  # nothing that tells them apart
        return places
    count = min(PRINCIPAL_COMPONENTS, n, dimensions)
    components = PCA(count, svd_solver="covariance_eigh").fit_transform(vectors.astype(np.float64))  # (N, count)
    if n < 10:
        places[:, : min(2, count)] = components[:, :2]
        return places
    tsne = TSNE(2, init="pca", perplexity=min(PERPLEXITY, (n - 1) / 3), max_iter=ITERATIONS, random_state=seed)
    return np.asarray(tsne.fit_transform(components), dtype=np.float32)
