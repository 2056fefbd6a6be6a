"""Near-duplicates: pairs that are close (by hash or by embedding), and which sample stands for the others."""

from collections.abc import Callable, Iterator
from itertools import combinations, product

import numpy as np
import scipy  # whose parts load on first use

from curation_assets.numeric.sorting import inverse, position_type, stretches

HASH_BITS, BANDS = 64, 4
BAND_BITS = HASH_BITS // BANDS
PAIRS_AT_ONCE = 500_000  # candidates looked at together, 4 MB per array
ROWS_AT_ONCE = 1024  # of a block of cosines
PROBES_AT_ONCE = 1 << 20  # hashes whose bands are looked up together


def hamming_pairs(hashes: np.ndarray, max_distance: int) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of hashes of 64 bits, or of W · 64, that differ in at most `max_distance` bits, exactly all of them.

    (N,) or (N, W) uint64, all different → (P, 2) int64 with first < second, sorted, and (P,) distances. Multi-index
    hashing (Norouzi et al. 2012 §3): of 4 W 16-bit bands at least one differs in at most max_distance ÷ 4 W bits, so
    looking up each band's few variants finds every pair without comparing all. Raises ValueError for equal hashes, or a
    distance outside [0, 15] of 64 bits, [0, 31] of more.
    """
    hashes = np.asarray(hashes, dtype=np.uint64)
    hashes = hashes.reshape(len(hashes), -1)  # (N, W)
    bands, most = BANDS * hashes.shape[1], 15 if hashes.shape[1] == 1 else 31
    if not 0 <= max_distance <= most:
        raise ValueError(f"max_distance must be in [0, {most}] of {bands * BAND_BITS} bits, got {max_distance}")
    if len(np.unique(hashes[:, 0] if hashes.shape[1] == 1 else hashes, axis=0)) != len(hashes):
        raise ValueError("hashes must all be different: collapse equal ones first")
    size = np.uint64(max(1, len(hashes)))
    found = [np.zeros(0, dtype=np.uint64)]  # both rows of a pair in one number
    for left, right in _sharing_a_band(hashes, hashes, max_distance):
        left, right = left[left < right], right[left < right]
        is_close = _differing(hashes[left], hashes[right]) <= max_distance
        found.append(left[is_close].astype(np.uint64) * size + right[is_close].astype(np.uint64))
    both = np.unique(np.concatenate(found))
    pairs = np.stack([both // size, both % size], axis=1).astype(np.int64)
    return pairs, _differing(hashes[pairs[:, 0]], hashes[pairs[:, 1]]).astype(np.float64)


def nearest_hashes(hashes: np.ndarray, known: np.ndarray, max_distance: int) -> tuple[np.ndarray, np.ndarray]:
    """The nearest of `known` hashes to each hash, exactly, where it differs in at most `max_distance` bits.

    (N, W), (M, W) uint64 → (N,) int64 positions in `known` (of equally near ones the first), -1 where none is so near,
    and (N,) int64 bits, -1 likewise. As `hamming_pairs`; distances up to 47 of 256 bits.
    """
    nearest, bits = np.full(len(hashes), -1, dtype=np.int64), np.full(len(hashes), max_distance + 1, dtype=np.int64)
    if len(hashes) and len(known):
        for left, right in _sharing_a_band(np.asarray(hashes, np.uint64), np.asarray(known, np.uint64), max_distance):
            differing = _differing(hashes[left], known[right])
            close = np.flatnonzero(differing <= max_distance)  # few: all else is for these
            left, right, differing = left[close], right[close], differing[close]
            order = np.lexsort((right, differing, left))
            left, right, differing = left[order], right[order], differing[order]
            is_first = np.diff(left, prepend=-1) != 0
            left, right, differing = left[is_first], right[is_first], differing[is_first]
            is_nearer = (differing < bits[left]) | ((differing == bits[left]) & (right < nearest[left]))
            nearest[left[is_nearer]], bits[left[is_nearer]] = right[is_nearer], differing[is_nearer]
    return nearest, np.where(nearest < 0, -1, bits)


def _sharing_a_band(
    hashes: np.ndarray, known: np.ndarray, max_distance: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Pairs (row of `hashes`, row of `known`), some of them again, among which are all within `max_distance` bits."""
    bands = BANDS * hashes.shape[1]
    flips = [0]
    for count in range(1, max_distance // bands + 1):
        flips += [sum(1 << bit for bit in bits) for bits in combinations(range(BAND_BITS), count)]
    for band in range(bands):
        of_known = _band(known, band)
        order = np.argsort(of_known, kind="stable").astype(position_type(len(known)))
        begins = np.concatenate([[0], np.cumsum(np.bincount(of_known, minlength=2**BAND_BITS))])
        for part, flip in product(stretches(len(hashes), PROBES_AT_ONCE), flips):
            probes = _band(hashes[part], band) ^ np.uint16(flip)
            first = begins[probes]
            counts = begins[probes.astype(np.int64) + 1] - first
            # rows in slices whose candidates fit into memory
            edges = np.flatnonzero(np.diff(np.cumsum(counts) // PAIRS_AT_ONCE)) + 1
            for rows in np.split(np.arange(len(probes)), edges):
                lengths = counts[rows]
                left = np.repeat(rows + part.start, lengths)  # (C,)
                within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
                yield left, order[np.repeat(first[rows], lengths) + within]


def _band(hashes: np.ndarray, band: int) -> np.ndarray:
    """(N,) uint16, one band of (N, W) hashes."""
    word = hashes[:, band // BANDS] >> np.uint64(band % BANDS * BAND_BITS)
    return (word & np.uint64(2**BAND_BITS - 1)).astype(np.uint16)


def _differing(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Bits in which rows of (N, W) hashes differ."""
    counts = np.bitwise_count(left ^ right)  # (N, W)
    return sum((counts[:, word].astype(np.int64) for word in range(1, counts.shape[1])), counts[:, 0].astype(np.int64))


def cosine_pairs(
    embeddings: np.ndarray,
    min_cosine: float,
    clusters: np.ndarray | None = None,
    forget: Callable[[], None] = lambda: None,
) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of unit vectors with a cosine of at least `min_cosine`.

    (N, D) → (P, 2) int64 with first < second, sorted, and (P,) distances 1 − cosine. `clusters` (N,): only pairs of one
    cluster are compared (SemDeDup, Abbas et al. 2023 §3), which costs the few that k-means separates. `forget` is
    called once the vectors of a cluster are copied: they may lie in a file.
    """
    embeddings = np.asarray(embeddings, dtype=np.float32)
    labels = np.zeros(len(embeddings), dtype=np.int64) if clusters is None else np.asarray(clusters)
    pairs, distances = [np.zeros((0, 2), dtype=np.int64)], [np.zeros(0)]
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        vectors = embeddings[rows]  # (n, D)
        forget()
        for start in range(0, len(rows), ROWS_AT_ONCE):
            cosines = vectors[start : start + ROWS_AT_ONCE] @ vectors.T  # (b, n)
            left, right = np.nonzero(cosines >= min_cosine)
            is_pair = left + start < right
            left, right = left[is_pair], right[is_pair]
            pairs.append(np.stack([rows[left + start], rows[right]], axis=1))
            distances.append(np.clip(1.0 - cosines[left, right].astype(np.float64), 0.0, 2.0))
    near, apart = np.concatenate(pairs), np.concatenate(distances)
    order = np.lexsort((near[:, 1], near[:, 0]))
    return near[order], apart[order]


def representatives(order: np.ndarray, pairs: np.ndarray, distances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Who stands for whom. `order` (N,): items from the one to keep first to the last; pairs as above.

    In that order an item is kept unless it is close to one already kept; else the nearest kept one stands for it (ties:
    the earlier in the order). So every dropped item is within the limit of the representative that is named, which
    groups by connected components do not promise: chains join items far apart.
    → (N,) the item's representative (itself where kept), and (N,) distance to it.
    """
    n = len(order)
    if not np.array_equal(np.sort(order), np.arange(n)):
        raise ValueError(f"order must name each of {n} items once")
    chosen, apart = np.arange(n, dtype=position_type(n)), np.zeros(n)
    items = np.unique(pairs)  # all others stand for themselves
    left, right = np.searchsorted(items, pairs.T)
    # stored distances + 1, so that an exact 0 is no hole in the sparse matrix
    both = scipy.sparse.csr_matrix(
        (np.tile(distances + 1.0, 2), (np.append(left, right), np.append(right, left))), shape=(len(items), len(items))
    )
    position = inverse(order)[items]
    is_kept = np.zeros(len(items), dtype=bool)
    for item in np.argsort(position).tolist():
        span = slice(both.indptr[item], both.indptr[item + 1])
        near, gaps = both.indices[span], both.data[span]
        kept = is_kept[near]
        if not kept.any():
            is_kept[item] = True
            continue
        near, gaps = near[kept], gaps[kept]
        best = np.lexsort((position[near], gaps))[0]
        chosen[items[item]], apart[items[item]] = items[near[best]], gaps[best] - 1.0
    return chosen, apart
