"""fused/duplicates: exact, perceptual and semantic near-duplicates of the pool, with the sample kept for each.

The pool is held in memory, for any two samples may be near: some 0.8 kB per row with hashes alone (measured at 400,000
rows, .05 ms of CPU each), 4.3 kB with embeddings of 64 numbers (at 60,000). So 4 GB hold 5 million rows, or 1 million.
"""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import polars as pl

from curation_assets.core.table_names import NEAR_DUPLICATES, SAMPLES, table_of
from curation_assets.flow.context import PoolContext
from curation_assets.flow.options import DuplicateSettings, FlowOptions
from curation_assets.flow.table import Shown, Table
from curation_assets.methods import lower_is_better, oriented
from curation_assets.numeric.clusters import fit_centroids, nearest_centroid
from curation_assets.numeric.identity import u64_of_hex, unit_interval_of
from curation_assets.numeric.near_duplicates import cosine_pairs, hamming_pairs, representatives
from curation_assets.scoring.derived import vectors_of
from curation_assets.scoring.upstream import upstream_reason
from curation_assets.selection.rows import Texts

CLUSTERED_FROM = 20_000  # images: below, all pairs are compared
#: Added to distances, so that a pHash twin goes before a PDQ twin, that before an SSCD one, and semantic ones are last.
PDQ, COPY, SEMANTIC = 1.0, 2.0, 3.0
ROWS_PER_CENTRE = 1000  # images per centroid, for keep: hard and easy


def tables(ctx: PoolContext) -> Iterator[Table]:
    """The table, in pools whose option `duplicates` is set."""
    settings = FlowOptions.of(ctx).duplicates
    if settings is None:
        return
    if not ctx.pool.has_images:
        raise ValueError(
            f"pool {ctx.pool.name!r}: option duplicates compares images, and the pool has captions only; take it out"
        )
    preferred = () if settings.prefer is None else (table_of(settings.prefer),)
    yield Table(
        name=NEAR_DUPLICATES,
        grain="pool",
        inputs=(SAMPLES, *(f"signals/{name}" for name in settings.columns), *preferred),
        version="2",
        description="One row per row of raw.samples: quality 1 where it is kept, 0 where another sample stands for "
        "it: its "
        "`representative`. kind: exact (same file), perceptual (pHash), pdq, copy (SSCD) or semantic (embedding). "
        "Every sample is within the limit of its representative.",
        compute=lambda ctx, shard: _duplicates(ctx, settings),
        config=lambda ctx, shard: _config(settings),
        continues=SAMPLES,
        shown=Shown(label="near-duplicates"),
    )


def _config(settings: DuplicateSettings) -> dict[str, Any]:
    """The settings; without copy_cosine where it is not set, so that tables from before it was there stay current."""
    config = {name: value for name, value in asdict(settings).items() if name != "copy_cosine" or value is not None}
    if settings.prefer is not None and lower_is_better(settings.prefer):
        config["lower_is_better"] = True
    return config


def _duplicates(ctx: PoolContext, settings: DuplicateSettings) -> pl.DataFrame:
    row_key = ["shard", "source_row"]
    columns = ["sample_id", *row_key, "image_sha256", "width", "height", "status", "reason"]
    rows = ctx.store.scan(SAMPLES).select(columns).collect()
    for name in settings.columns:
        made = ctx.store.scan(f"signals/{name}").select(*row_key, name, pl.col("reason").alias(f"{name}_reason"))
        rows = rows.join(made.collect(), on=row_key, how="left", maintain_order="left")
    if settings.prefer is not None:
        prefer = oriented(settings.prefer, pl.col("value")).alias("prefer")
        preferred = ctx.store.scan(table_of(settings.prefer)).select(*row_key, prefer)
        rows = rows.join(preferred.collect(), on=row_key, how="left", maintain_order="left")
    rows = rows.sort(*row_key)
    return find_duplicates(rows, settings)


def find_duplicates(rows: pl.DataFrame, settings: DuplicateSettings) -> pl.DataFrame:
    """One row per row, in order: sample_id, shard, source_row, quality, representative, kind, distance, reason.

    `rows`: sample_id, shard, source_row, image_sha256, width, height, status, reason, and of perceptual_hash, pdq_hash,
    copy_descriptor, image_embedding (each with `…_reason`) and prefer what the settings use. Kept first: the highest
    `prefer`, then most pixels, then the lowest sample_id. distance: bits (perceptual, pdq) or 1 − cosine (copy,
    semantic).
    """
    causes = [
        upstream_reason(),
        pl.when(pl.col("image_sha256").is_null()).then(pl.lit("no_image")),
        *(
            pl.when(pl.col(name).is_null()).then(pl.col(f"{name}_reason").fill_null(f"no_{name}"))
            for name in settings.columns
        ),
    ]
    reasons = rows.select(pl.coalesce(causes).cast(pl.String).alias("why"))["why"]
    compared = np.flatnonzero(reasons.is_null().to_numpy())  # (M,) rows
    of = _with_preference(rows[compared], settings)
    is_ranked = "prefer" in of.columns
    ranked = ["sample_id", "width", "height", *(["prefer"] if is_ranked else [])]
    first = (
        of.select(ranked)
        .with_row_index("row")
        .sort(
            *([pl.col("prefer").fill_null(float("-inf"))] if is_ranked else []),
            pl.col("width").cast(pl.Int64) * pl.col("height"),
            pl.col("sample_id"),
            pl.col("row"),
            descending=[*([True] if is_ranked else []), True, False, False],
        )
    )
    order = first["row"].to_numpy().astype(np.int64)  # (M,) best first
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    has_hash = settings.perceptual_bits is not None
    key = _hashes(of) if has_hash else Texts.of(of["image_sha256"]).codes
    # Items are groups of equal keys, each spoken for by its best member: thousands of blank images are one item.
    _, item_of = np.unique(key, return_inverse=True) if len(key) else (key, np.zeros(0, np.int64))
    best = _best_member(item_of, rank)  # (I,) row of each item
    pairs, distances = _pairs(of[best], settings, rank[best])
    chosen, apart = representatives(np.argsort(rank[best], kind="stable"), pairs, distances)
    leader = best[chosen[item_of]] if len(best) else np.zeros(0, np.int64)  # (M,) row that stands for each
    kind, distance = _kinds(of, leader, apart[item_of] if len(best) else np.zeros(0), settings)
    duplicates = pl.DataFrame(
        {
            "row": compared,
            "quality": (leader == np.arange(len(leader))).astype(np.float64),
            "representative": of["sample_id"].gather(leader) if len(leader) else pl.Series([], dtype=pl.String),
            "kind": pl.Series(kind, dtype=pl.String),
            "distance": pl.Series(distance, dtype=pl.Float64),
        },
        schema_overrides={"row": pl.UInt32},
    )
    return (
        rows.select("sample_id", "shard", "source_row")
        .with_columns(reasons.alias("reason"))
        .with_row_index("row")
        .join(duplicates, on="row", how="left", maintain_order="left")
        .select("sample_id", "shard", "source_row", "quality", "representative", "kind", "distance", "reason")
    )


def _with_preference(rows: pl.DataFrame, settings: DuplicateSettings) -> pl.DataFrame:
    """The rows with `prefer`, the higher the sooner kept, where the settings rank them by more than pixels.

    hard, easy: SemDeDup's choice, far from or near to the centroid of the image's cluster (Abbas et al. 2023 §3).
    """
    if settings.keep == "random":
        draws = [unit_interval_of(one, "duplicates") for one in rows["sample_id"]]
        return rows.with_columns(pl.Series("prefer", draws, dtype=pl.Float64))
    if settings.keep == "best" or rows.is_empty():
        return rows
    vectors = vectors_of(rows["image_embedding"])
    centroids = fit_centroids(vectors, len(vectors) // ROWS_PER_CENTRE + 1)
    near = np.einsum("nd,nd->n", vectors, centroids[nearest_centroid(vectors, centroids)], dtype=np.float64)
    return rows.with_columns(pl.Series("prefer", -near if settings.keep == "hard" else near))


def _best_member(item_of: np.ndarray, rank: np.ndarray) -> np.ndarray:
    """(M,) items and ranks in the order → (I,) member of each item that comes first."""
    if not len(item_of):
        return np.zeros(0, np.int64)
    by_item = np.lexsort((rank, item_of))
    starts = np.flatnonzero(np.diff(item_of[by_item], prepend=-1))
    return by_item[starts]


def _pairs(items: pl.DataFrame, settings: DuplicateSettings, rank: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Close pairs of items, each pair once with its smaller distance; semantic distances lie beyond all others."""
    pairs, distances = [np.zeros((0, 2), np.int64)], [np.zeros(0)]
    if settings.perceptual_bits is not None and items.height:
        close, bits = hamming_pairs(_hashes(items), settings.perceptual_bits)
        pairs.append(close)
        distances.append(bits / 64.0)
    if settings.pdq_bits is not None and items.height:
        close, bits = _pdq_pairs(items["pdq_hash"], settings.pdq_bits, rank)
        pairs.append(close)
        distances.append(bits / 256.0 + PDQ)
    for column, min_cosine, offset in (
        ("copy_descriptor", settings.copy_cosine, COPY),
        ("image_embedding", settings.cosine, SEMANTIC),
    ):
        if min_cosine is not None and items.height:
            close, apart = _vector_pairs(vectors_of(items[column]), min_cosine)
            pairs.append(close)
            distances.append(apart + offset)
    both, apart = np.concatenate(pairs), np.concatenate(distances)
    order = np.lexsort((apart, both[:, 1], both[:, 0]))
    both, apart = both[order], apart[order]
    _, first = np.unique(both, axis=0, return_index=True)
    return both[first], apart[first]


def _vector_pairs(vectors: np.ndarray, min_cosine: float) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of unit vectors and 1 − cosine: all of few items, of many those within one cluster of k-means."""
    clusters = None
    if len(vectors) > CLUSTERED_FROM:
        clusters = nearest_centroid(vectors, fit_centroids(vectors, len(vectors) // CLUSTERED_FROM + 1))
    return cosine_pairs(vectors, min_cosine, clusters)


def _pdq_pairs(column: pl.Series, max_distance: int, rank: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of items whose PDQ hashes are near, and their bits; an item without a hash is near nobody.

    Of items with one hash the best by `rank` speaks for all: a pair with it is enough, as only it may be kept.
    """
    there = np.flatnonzero((column.str.len_chars() == 64).fill_null(False).to_numpy())
    if not len(there):
        return np.zeros((0, 2), np.int64), np.zeros(0)
    there = there[np.argsort(rank[there], kind="stable")]
    letters = np.frombuffer("".join(column.gather(there)).encode(), np.uint8).reshape(len(there), 64)
    hashes, best, hash_of = np.unique(u64_of_hex(letters), axis=0, return_index=True, return_inverse=True)
    hash_of = hash_of.ravel()
    close, bits = hamming_pairs(hashes, max_distance)  # of different hashes
    by_hash = np.argsort(hash_of, kind="stable")
    bounds = np.searchsorted(hash_of[by_hash], np.arange(len(hashes) + 1))
    pairs, distances = [np.stack([there[best][hash_of], there], axis=1)], [np.zeros(len(there))]
    for (left, right), bit in zip(close.tolist(), bits.tolist(), strict=True):
        for one, other in ((left, right), (right, left)):
            members = there[by_hash[bounds[other] : bounds[other + 1]]]
            pairs.append(np.stack([np.full(len(members), there[best[one]]), members], axis=1))
            distances.append(np.full(len(members), bit))
    every, apart = np.sort(np.concatenate(pairs), axis=1), np.concatenate(distances)
    is_pair = every[:, 0] != every[:, 1]
    return every[is_pair], apart[is_pair]


def _pdq_bits(left: str, right: str) -> int:
    return (int(left, 16) ^ int(right, 16)).bit_count()


def _hashes(rows: pl.DataFrame) -> np.ndarray:
    """(N,) uint64 of a column of 16 hex digits."""
    return rows["perceptual_hash"].str.to_integer(base=16, dtype=pl.UInt64).to_numpy()


def _kinds(
    of: pl.DataFrame, leader: np.ndarray, apart: np.ndarray, settings: DuplicateSettings
) -> tuple[list[str | None], list[float | None]]:
    """(M,) kind and distance in its own unit; null for samples that are kept."""
    kinds: list[str | None] = [None] * len(leader)
    distances: list[float | None] = [None] * len(leader)
    dropped = np.flatnonzero(leader != np.arange(len(leader)))
    sides = of[dropped], of[leader[dropped]]
    sha = [side["image_sha256"].to_list() for side in sides]
    bits = np.bitwise_count(_hashes(sides[0]) ^ _hashes(sides[1])) if settings.perceptual_bits is not None else None
    vectors = {
        kind: [vectors_of(side[column]) for side in sides]
        for kind, column, limit in (
            ("copy", "copy_descriptor", settings.copy_cosine),
            ("semantic", "image_embedding", settings.cosine),
        )
        if limit is not None and len(dropped)
    }
    for at, row in enumerate(dropped.tolist()):
        if sha[0][at] == sha[1][at]:
            kinds[row], distances[row] = "exact", 0.0
        elif PDQ <= apart[row] < COPY:
            kinds[row] = "pdq"
            distances[row] = float(_pdq_bits(sides[0]["pdq_hash"][at], sides[1]["pdq_hash"][at]))
        elif apart[row] >= COPY:
            kind = "semantic" if apart[row] >= SEMANTIC else "copy"
            one, other = vectors[kind]
            kinds[row], distances[row] = kind, max(0.0, 1.0 - float(one[at] @ other[at]))
        else:
            assert bits is not None
            kinds[row], distances[row] = "perceptual", float(bits[at])
    return kinds, distances
