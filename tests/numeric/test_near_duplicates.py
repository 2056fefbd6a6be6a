"""Near-duplicate maths against a slow, obvious twin, and k-means selection."""

import numpy as np
import pytest

from curation_assets.numeric.clusters import fit_centroids, nearest_centroid, reference_counts
from curation_assets.numeric.near_duplicates import cosine_pairs, hamming_pairs, representatives


def all_pairs(n, distance, limit):
    return [(i, j) for i in range(n) for j in range(i + 1, n) if distance(i, j) <= limit]


@pytest.mark.parametrize("limit", [0, 3, 4, 8, 11])
def test_hamming_pairs_are_all_there(limit):
    rng = np.random.default_rng(limit)
    base = rng.integers(0, 2**64, 40, dtype=np.uint64)
    near = [value ^ np.uint64(sum(1 << int(b) for b in rng.choice(64, limit, replace=False))) for value in base[:20]]
    far = [value ^ np.uint64(sum(1 << int(b) for b in rng.choice(64, limit + 1, replace=False))) for value in base[20:]]
    hashes = np.unique(np.array([*base, *near, *far], dtype=np.uint64))

    def distance(i, j):
        return (int(hashes[i]) ^ int(hashes[j])).bit_count()

    pairs, distances = hamming_pairs(hashes, limit)
    assert list(map(tuple, pairs)) == all_pairs(len(hashes), distance, limit)
    assert distances.tolist() == [distance(i, j) for i, j in pairs]


def test_hamming_pairs_in_small_slices(monkeypatch):
    hashes = np.arange(64, dtype=np.uint64)
    whole = hamming_pairs(hashes, 2)
    monkeypatch.setattr("curation_assets.numeric.near_duplicates.PAIRS_AT_ONCE", 100)
    assert np.array_equal(hamming_pairs(hashes, 2)[0], whole[0])
    with pytest.raises(ValueError, match="all be different"):
        hamming_pairs(np.zeros(2, np.uint64), 2)
    with pytest.raises(ValueError, match=r"in \[0, 15\]"):
        hamming_pairs(hashes, 16)


def test_cosine_pairs_within_clusters():
    vectors = np.array([[1, 0], [0.6, 0.8], [0.8, 0.6], [0, 1], [1, 0]])
    pairs, distances = cosine_pairs(vectors, 0.79)
    assert pairs.tolist() == [[0, 2], [0, 4], [1, 2], [1, 3], [2, 4]]
    np.testing.assert_allclose(distances, [0.2, 0, 0.04, 0.2, 0.2], atol=1e-6)
    assert cosine_pairs(vectors, 0.79, np.array([0, 0, 1, 1, 0]))[0].tolist() == [[0, 4]]
    assert cosine_pairs(np.zeros((0, 2)), 0.5)[0].shape == (0, 2)


def test_the_kept_representative_is_near():
    """0–1–2 is a chain: 1 is near both ends, the ends are not near each other. 3 stands alone."""
    pairs, distances = np.array([[0, 1], [1, 2]]), np.array([2.0, 1.0])
    chosen, apart = representatives(np.array([0, 1, 2, 3]), pairs, distances)
    assert chosen.tolist() == [0, 0, 2, 3]  # not one component: 2 is not near 0
    assert apart.tolist() == [0, 2, 0, 0]
    chosen, apart = representatives(np.array([1, 0, 2, 3]), pairs, distances)
    assert chosen.tolist() == [1, 1, 1, 3]
    chosen, _ = representatives(np.array([3, 2, 0, 1]), pairs, distances)
    assert chosen.tolist() == [0, 2, 2, 3]  # the nearer of two kept
    assert representatives(np.array([1, 0]), np.array([[0, 1]]), np.array([0.0]))[0].tolist() == [1, 1]
    assert representatives(np.arange(2), np.zeros((0, 2), int), np.zeros(0))[0].tolist() == [0, 1]
    with pytest.raises(ValueError, match="each of 2 items once"):
        representatives(np.array([0, 0]), pairs, distances)


def test_clusters_and_their_reference_images():
    rng = np.random.default_rng(0)
    corners = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1]])
    data = np.repeat(corners, 10, axis=0) + rng.normal(0, 0.02, (30, 3))
    centroids = fit_centroids(data, 3)
    assert sorted(centroids.round().argmax(axis=1)) == [0, 1, 2]
    assert np.array_equal(fit_centroids(data, 3), centroids)
    labels = nearest_centroid(data, centroids)
    assert [len(set(labels[start : start + 10])) for start in (0, 10, 20)] == [1, 1, 1]
    counts = reference_counts(corners[[0, 0, 1]], centroids)
    assert counts[labels[0]] == 2
    assert counts[labels[10]] == 1
    assert counts[labels[20]] == 0
    assert len(fit_centroids(np.ones((5, 2)), 3)) == 1
    # the highest dot product, not the shortest distance
    assert nearest_centroid(np.array([[1.0, 0.0]]), np.array([[1.0, 0.0], [3.0, 3.0]])).tolist() == [1]
    with pytest.raises(ValueError, match="N ≥ 1"):
        fit_centroids(np.zeros((0, 2)), 2)
