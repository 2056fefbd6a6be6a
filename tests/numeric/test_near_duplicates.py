"""Near-duplicate maths against a slow, obvious twin, and k-means selection."""

import numpy as np
import pytest

from curation_assets.numeric.clusters import fit_centroids, nearest_centroid, reference_counts
from curation_assets.numeric.near_duplicates import bands_of, choose_representatives, cosine_pairs


def flipped(hashes, count, rng):
    """The hashes with so many of their bits flipped."""
    made = hashes.copy()
    for row in made:
        for bit in rng.choice(64 * len(row), count, replace=False).tolist():
            row[bit // 64] ^= np.uint64(1 << bit % 64)
    return made


@pytest.mark.parametrize("size", [100, 10**5, 10**7, 10**10])
@pytest.mark.parametrize(("words", "limit"), [(1, 0), (1, 3), (1, 4), (1, 8), (1, 15), (4, 0), (4, 5), (4, 31)])
def test_every_cut_into_bands_finds_all_close_pairs(words, limit, size):
    """Hashes that differ in exactly the limit, and in one bit more, among random ones."""
    rng = np.random.default_rng(limit)
    base = rng.integers(0, 2**64, (40, words), dtype=np.uint64)
    hashes = np.unique(np.concatenate([base, flipped(base, limit, rng), flipped(base[:20], limit + 1, rng)]), axis=0)
    differing = hashes[:, None] ^ hashes[None]
    left, right = np.nonzero(np.triu(np.bitwise_count(differing).sum(axis=2) <= limit, k=1))
    assert len(left) >= 40 * (limit > 0)
    agreeing = [differing[left, right, word] & mask == 0 for word, mask in bands_of(hashes, size, limit)]
    assert np.any(agreeing, axis=0).all()


def test_distances_for_which_there_are_no_bands_are_refused():
    hashes = np.arange(64, dtype=np.uint64)[:, None]
    for wrong in (-1, 16):
        with pytest.raises(ValueError, match=r"in \[0, 15\]"):
            bands_of(hashes, 64, wrong)


def candidates(hashes, bands):
    counts = [np.unique(hashes[:, word] & mask, return_counts=True)[1] for word, mask in bands]
    return sum(int((one * (one - 1) // 2).sum()) for one in counts)


def test_bands_follow_from_how_often_hashes_agree():
    """Few candidates, of many hashes and of hashes that begin alike; longer bands where there are more."""
    rng = np.random.default_rng(0)
    hashes = rng.integers(0, 2**64, (200_000, 1), dtype=np.uint64)
    bands = bands_of(hashes[::50], len(hashes), 4)
    assert candidates(hashes, bands) < 100 * len(hashes), "of 100,000 times as many pairs"
    alike = hashes & np.uint64(2**40 - 1) | np.uint64(7 << 60)
    fitted = bands_of(alike[::50], len(alike), 4)
    assert candidates(alike, fitted) < candidates(alike, bands) / 10


def test_cosine_pairs_of_some_rows(monkeypatch):
    vectors = np.array([[1, 0], [0.6, 0.8], [0.8, 0.6], [0, 1], [1, 0]])

    def pairs(rows):
        found = cosine_pairs(vectors, np.array(rows, dtype=np.int64), 0.79)
        return sorted(
            (int(i), int(j), round(float(apart), 6)) for block in found for i, j, apart in zip(*block, strict=True)
        )

    whole = pairs(range(5))
    assert whole == [(0, 2, 0.2), (0, 4, 0.0), (1, 2, 0.04), (1, 3, 0.2), (2, 4, 0.2)]
    assert pairs([0, 1, 4]) == [(0, 2, 0.0)]
    assert pairs([]) == []
    monkeypatch.setattr("curation_assets.numeric.near_duplicates.ROWS_AT_ONCE", 1)
    monkeypatch.setattr("curation_assets.numeric.near_duplicates.COLUMNS_AT_ONCE", 2)
    assert pairs(range(5)) == whole


def test_the_kept_representative_is_near():
    """0–1–2 is a chain: 1 is near both ends, the ends are not near each other. 3 stands alone."""

    def chosen(size, *pairs):
        """Which are kept; which pairs (later, earlier), nearest first, drop one. They come in two parts."""
        is_kept = np.ones(size, dtype=bool)
        made = [
            choose_representatives(is_kept, *np.array(part, dtype=np.uint32).reshape(-1, 2).T)
            for part in (pairs[:1], pairs[1:])
        ]
        return np.flatnonzero(is_kept).tolist(), [one.tolist() for one in made]

    assert chosen(4, (1, 0), (2, 1)) == ([0, 2, 3], [[0], []])  # not one component: 2 is not near 0
    assert chosen(4, (1, 0), (2, 0)) == ([0, 3], [[0], [0]])
    assert chosen(4, (3, 2), (3, 1)) == ([0, 1, 2], [[0], []])  # the nearer of two kept
    assert chosen(4, (1, 0), (3, 1), (3, 2)) == ([0, 2], [[0], [1]])  # the nearest is not kept
    assert chosen(2) == ([0, 1], [[], []])


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
