"""Quotas of clusters: by hand, their sum, and more for what lies apart."""

import numpy as np
import pytest

from curation_assets.numeric.density import cluster_quotas, spread_of_clusters


def test_spread_by_hand() -> None:
    """Members on their centroid are 0 apart; at 60° .5. Orthogonal centroids are 1 apart."""
    half = np.array([0.5, np.sqrt(0.75)])
    embeddings = np.array([[1.0, 0.0], [1.0, 0.0], half])
    intra, inter = spread_of_clusters(embeddings, np.array([0, 0, 0]), np.eye(2))
    np.testing.assert_allclose(intra, [0.5 / 3, 0.0])
    np.testing.assert_allclose(inter, [1.0, 1.0])


def test_equal_clusters_share_equally_and_small_ones_stay_whole() -> None:
    equal = np.full(3, 0.2)
    assert cluster_quotas(equal, equal, np.array([100, 100, 100]), 30).tolist() == [10, 10, 10]
    assert cluster_quotas(equal, equal, np.array([100, 4, 100]), 30).tolist() == [13, 4, 13]


@pytest.mark.parametrize("total", [5, 17, 100, 333])
def test_quotas_sum_to_the_total_within_bounds(total: int) -> None:
    rng = np.random.default_rng(total)
    counts = np.array([0, *rng.integers(1, 200, 5)])
    total = min(total, int(counts.sum()))
    quotas = cluster_quotas(rng.random(6), rng.random(6), counts, total)
    assert quotas.sum() == total
    assert (quotas <= counts).all()
    assert (quotas[counts > 0] >= 1).all()


def test_a_spread_out_cluster_keeps_more() -> None:
    quotas = cluster_quotas(np.array([0.9, 0.1]), np.ones(2), np.array([500, 500]), 100)
    assert quotas[0] > 2 * quotas[1]


def test_too_few_for_every_cluster_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one sample of each of 3 clusters"):
        cluster_quotas(np.ones(3), np.ones(3), np.array([5, 5, 5]), 2)
