"""Near-duplicates: pairs that are close (by hash or by embedding), and which sample stands for the others."""

from collections.abc import Iterator
from itertools import combinations, pairwise, product

import numpy as np

HASH_BITS, BANDS = 64, 4
BAND_BITS = HASH_BITS // BANDS
PAIRS_AT_ONCE = 200_000  # candidates looked at together, 1.6 MB per array
CANDIDATES_PER_SORTED_ROW = 30  # that are compared in the time in which a row is sorted
ROWS_AT_ONCE, COLUMNS_AT_ONCE = 1024, 1 << 15  # of a block of cosines, 134 MB
PROBES_AT_ONCE = 1 << 20  # hashes whose bands are looked up together
Band = tuple[int, np.uint64]  # a word of a hash and bits of it


def bands_of(sample: np.ndarray, size: int, max_distance: int) -> list[Band]:
    """Bits of a hash such that two hashes that differ in at most `max_distance` bits agree in all bits of one band.

    `sample` (n, W) uint64, of `size` hashes. A hash is cut into W, 2 W or 4 W parts: in one of them at most
    f = max_distance ÷ parts bits differ, so that b - f of its b blocks agree, whichever these are (Manku et al. 2007
    §3.1). Of such cuts the cheapest is taken: for every band all hashes are sorted, and those that agree in it, whose
    share the sample gives, are compared. Raises ValueError for a distance outside [0, 15] of 64 bits, [0, 31] of more.
    """
    words = sample.shape[1]
    most = 15 if words == 1 else 31
    if not 0 <= max_distance <= most:
        raise ValueError(f"max_distance must be in [0, {most}] of {words * HASH_BITS} bits, got {max_distance}")
    cheapest, least = list[Band](), float("inf")
    for parts in (1, 2, 4):
        differing = max_distance // (words * parts)
        for blocks in range(differing + 1, differing + 5):
            bands = _bands(words, parts, blocks, blocks - differing)
            cost = float(len(bands) * size * CANDIDATES_PER_SORTED_ROW)
            if cost < least:
                cost += sum(_agreeing_share(sample, band) for band in bands) * size * size / 2
            if cost < least:
                cheapest, least = bands, cost
    return cheapest


def _bands(words: int, parts: int, blocks: int, agreeing: int) -> list[Band]:
    bits = HASH_BITS // parts
    edges = [bits * block // blocks for block in range(blocks + 1)]
    masks = [(1 << end) - (1 << start) for start, end in pairwise(edges)]
    return [
        (word, np.uint64(sum(chosen) << part * bits))
        for word, part in product(range(words), range(parts))
        for chosen in combinations(masks, agreeing)
    ]


def _agreeing_share(sample: np.ndarray, band: Band) -> float:
    """The share of pairs that agree in a band: that of a sample, at least that of random hashes."""
    word, mask = band
    counts = np.unique(sample[:, word] & mask, return_counts=True)[1]
    n = max(len(sample), 2)
    return max(float((counts * (counts - 1.0)).sum()) / (n * (n - 1)), 0.5 ** int(np.bitwise_count(mask)))


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
        order = np.argsort(of_known, kind="stable")
        begins = np.concatenate([[0], np.cumsum(np.bincount(of_known, minlength=2**BAND_BITS))])
        for start, flip in product(range(0, len(hashes), PROBES_AT_ONCE), flips):
            probes = _band(hashes[start : start + PROBES_AT_ONCE], band) ^ np.uint16(flip)
            first = begins[probes]
            counts = begins[probes.astype(np.int64) + 1] - first
            # rows in slices whose candidates fit into memory
            edges = np.flatnonzero(np.diff(np.cumsum(counts) // PAIRS_AT_ONCE)) + 1
            for rows in np.split(np.arange(len(probes)), edges):
                lengths = counts[rows]
                left = np.repeat(rows + start, lengths)  # (C,)
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
    embeddings: np.ndarray, rows: np.ndarray, min_cosine: float
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Pairs among some unit vectors with a cosine of at least `min_cosine`, block by block.

    (N, D), (n,) its rows that are compared → (P,), (P,) positions in `rows`, first < second, and (P,) distances
    1 − cosine. Of vectors in a file those of a block are in memory.
    """
    for first in range(0, len(rows), COLUMNS_AT_ONCE):
        across = np.asarray(embeddings[rows[first : first + COLUMNS_AT_ONCE]], dtype=np.float32)  # (m, D)
        end = first + len(across)
        for start in range(0, end, ROWS_AT_ONCE):
            block = np.asarray(embeddings[rows[start : min(start + ROWS_AT_ONCE, end)]], dtype=np.float32)
            cosines = block @ across.T  # (b, m)
            left, right = np.nonzero(cosines >= min_cosine)
            is_pair = left + start < right + first
            left, right = left[is_pair], right[is_pair]
            apart = np.clip(1.0 - cosines[left, right].astype(np.float64), 0.0, 2.0)
            yield left + start, right + first, apart


def choose_representatives(is_kept: np.ndarray, later: np.ndarray, earlier: np.ndarray) -> np.ndarray:
    """Which items are dropped. `is_kept` (N,) bool: of each item, the one to keep first at 0; at first all are.

    (P,), (P,) close pairs, by the later item, nearest first, then the earlier item first: all of them, or a part after
    the parts before. In that order an item is kept unless it is close to one already kept; else the nearest kept one
    stands for it. So every dropped item is within the limit of the representative that is named, which groups by
    connected components do not promise: chains join items far apart. Changes `is_kept` → (K,) positions of the pairs
    that gave an item its representative.
    """
    kept, chosen = is_kept.data, []
    for place, (one, other) in enumerate(zip(later.tolist(), earlier.tolist(), strict=True)):
        if kept[one] and kept[other]:
            kept[one] = False
            chosen.append(place)
    return np.array(chosen, dtype=np.intp)
