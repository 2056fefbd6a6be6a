"""fused/duplicates: exact, perceptual and semantic near-duplicates of the pool, with the sample kept for each.

Any two samples may be near, so hashes, ids and pairs are in memory, as numbers: some 160 bytes a row with hashes alone
(between 400,000 and 1.2 million rows; .05 ms of CPU each at 400,000, growing with the rows). All else is read and
written shard by shard, vectors lie in a file: 2 GiB hold 13 million rows.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
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
from curation_assets.numeric.sorting import argsort, inverse, positions, stretches
from curation_assets.scoring.derived import vectors_of
from curation_assets.scoring.upstream import upstream_reason
from curation_assets.selection.rows import Texts
from curation_assets.stores.arrays import VectorFile
from curation_assets.stores.atomic import remove_path
from curation_assets.stores.columns import uid_texts
from curation_assets.stores.parquet import read_parquet, scan_parquet

CLUSTERED_FROM = 20_000  # images: below, all pairs are compared
#: Added to distances, so that a pHash twin goes before a PDQ twin, that before an SSCD one, and semantic ones are last.
PDQ, COPY, SEMANTIC = 1.0, 2.0, 3.0
KINDS = ("exact", "perceptual", "pdq", "copy", "semantic")
ROWS_PER_CENTRE = 1000  # images per centroid, for keep: hard and easy
ROWS_AT_ONCE = 8192  # vectors that are in memory together


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


def _duplicates(ctx: PoolContext, settings: DuplicateSettings) -> pl.LazyFrame:
    scratch = ctx.store.unfinished_path(NEAR_DUPLICATES)
    remove_path(scratch)
    scratch.mkdir(parents=True)
    paths: list[Path] = []
    for part in find_duplicates(_read_shards(ctx, settings), settings, scratch):
        paths.append(scratch / f"duplicates-{len(paths):06d}.parquet")
        part.write_parquet(paths[-1], compression="lz4")
    return scan_parquet(paths)


def _read_shards(ctx: PoolContext, settings: DuplicateSettings) -> Iterator[pl.DataFrame]:
    """Rows of raw/samples with what the settings compare, shard by shard, by source row."""
    row_key = ["shard", "source_row"]
    columns = ["sample_id", *row_key, "image_sha256", "width", "height", "status", "reason"]
    read = {f"signals/{name}": [pl.col(name), pl.col("reason").alias(f"{name}_reason")] for name in settings.columns}
    if settings.prefer is not None:
        read[table_of(settings.prefer)] = [oriented(settings.prefer, pl.col("value")).alias("prefer")]
    for shard in ctx.store.partitions(SAMPLES):
        rows = ctx.store.scan(SAMPLES, [shard]).select(columns).collect()
        for asset, values in read.items():
            is_whole = ctx.store.table_path(asset).is_file()
            made = ctx.store.scan(asset).filter(shard=shard) if is_whole else ctx.store.scan(asset, [shard])
            rows = rows.join(made.select(*row_key, *values).collect(), on=row_key, how="left", maintain_order="left")
        yield rows.sort("source_row")


@dataclass
class _Compared:
    """The rows that are compared, (M,) each, in numbers: some 50 bytes a row; their vectors lie in files."""

    uid: np.ndarray  # (M, 2) uint64
    sha: np.ndarray  # (M, 2) uint64, the first 128 bits
    hashes: np.ndarray  # (M,) uint64 or (0,)
    pdq: np.ndarray  # (M, 4) uint64 or (0, 4)
    has_pdq: np.ndarray  # (M,) bool or (0,)
    pixels: np.ndarray  # (M,) int64
    prefer: np.ndarray | None  # (M,) float64, the higher the sooner kept
    vectors: dict[str, VectorFile]

    def __len__(self) -> int:
        return len(self.uid)


def find_duplicates(
    parts: Iterable[pl.DataFrame], settings: DuplicateSettings, scratch: Path
) -> Iterator[pl.DataFrame]:
    """One row per row, in order: sample_id, shard, source_row, quality, representative, kind, distance, reason.

    `parts`: rows with sample_id, shard, source_row, image_sha256, width, height, status, reason, and of
    perceptual_hash, pdq_hash, copy_descriptor, image_embedding (each with `…_reason`) and prefer what the settings use.
    Kept first: the highest `prefer`, then most pixels, then the lowest sample_id. distance: bits (perceptual, pdq) or
    1 − cosine (copy, semantic). Rows and vectors lie in the folder `scratch` meanwhile.
    """
    paths: list[Path] = []
    rows = _compared(_kept_on_disk(parts, settings, scratch, paths), settings, scratch)
    order = _best_first(rows)  # (M,)
    rank = inverse(order)
    # Items are groups of equal keys, each spoken for by its best member: thousands of blank images are one item.
    item_of = _items(rows.hashes if settings.perceptual_bits is not None else rows.sha)  # (M,)
    best = np.zeros(int(item_of.max(initial=-1)) + 1, dtype=order.dtype)  # (I,) row of each item
    best[item_of[order[::-1]]] = order[::-1]  # the first in the order is written last
    pairs, distances = _pairs(rows, best, settings, rank[best], scratch)
    chosen, apart = representatives(np.argsort(rank[best], kind="stable"), pairs, distances)
    del pairs, distances, order, rank
    leader = best[chosen[item_of]]  # (M,) row that stands for each
    dropped = positions(leader != np.arange(len(leader), dtype=leader.dtype))
    kind, distance = _kinds(rows, dropped, leader, apart, item_of)
    del item_of, apart, chosen, best
    start = 0
    for path in paths:
        frame = read_parquet(path)
        compared = frame["reason"].is_null().arg_true()
        stop = start + len(compared)
        ids = rows.uid[leader[start:stop]]
        of_part = slice(*np.searchsorted(dropped, [start, stop]))
        place = (dropped[of_part] - start).astype(np.intp)
        codes, apart = np.full(len(compared), -1, dtype=np.int8), np.full(len(compared), np.nan)
        codes[place], apart[place] = kind[of_part], distance[of_part]
        duplicates = pl.DataFrame(
            {
                "row": compared,
                "quality": (codes < 0).astype(np.float64),
                "representative": uid_texts(ids[:, 0], ids[:, 1]),
                "kind": Texts(codes, list(KINDS)).series("kind").cast(pl.String),
                "distance": pl.Series(apart, dtype=pl.Float64).fill_nan(None),
            }
        )
        joined = frame.with_row_index("row").join(duplicates, on="row", how="left", maintain_order="left")
        yield joined.select(
            "sample_id", "shard", "source_row", "quality", "representative", "kind", "distance", "reason"
        )
        start = stop


def _kept_on_disk(
    parts: Iterable[pl.DataFrame], settings: DuplicateSettings, scratch: Path, paths: list[Path]
) -> Iterator[pl.DataFrame]:
    """The rows of each part that are compared. Ids of all, and why some are not, go to a file that `paths` names."""
    causes = [
        upstream_reason(),
        pl.when(pl.col("image_sha256").is_null()).then(pl.lit("no_image")),
        *(
            pl.when(pl.col(name).is_null()).then(pl.col(f"{name}_reason").fill_null(f"no_{name}"))
            for name in settings.columns
        ),
    ]
    for rows in parts:
        judged = rows.with_columns(pl.coalesce(causes).cast(pl.String).alias("reason"))
        paths.append(scratch / f"rows-{len(paths):06d}.parquet")
        judged.select("sample_id", "shard", "source_row", "reason").write_parquet(paths[-1], compression="lz4")
        yield judged.filter(pl.col("reason").is_null())


def _compared(parts: Iterable[pl.DataFrame], settings: DuplicateSettings, scratch: Path) -> _Compared:
    vectors: dict[str, VectorFile] = {
        name: VectorFile(scratch / f"{name}.f32")
        for name in ("copy_descriptor", "image_embedding")
        if name in settings.columns
    }
    found: dict[str, list[np.ndarray]] = {
        name: [np.zeros(shape, dtype)]
        for name, shape, dtype in (
            ("uid", (0, 2), np.uint64), ("sha", (0, 2), np.uint64), ("hashes", 0, np.uint64),
            ("pdq", (0, 4), np.uint64), ("has_pdq", 0, bool), ("pixels", 0, np.int64), ("prefer", 0, np.float64),
        )
    }  # fmt: skip
    for of in (part for part in parts if part.height):
        found["uid"].append(_words(of["sample_id"], 32))
        found["sha"].append(_words(of["image_sha256"], 64)[:, :2])
        pixels = of.select(pl.col("width").cast(pl.Int64) * pl.col("height")).to_series()
        found["pixels"].append(pixels.fill_null(np.iinfo(np.int64).max).to_numpy())
        if settings.perceptual_bits is not None:
            found["hashes"].append(_words(of["perceptual_hash"], 16)[:, 0])
        if settings.pdq_bits is not None:
            has_pdq = (of["pdq_hash"].str.len_chars() == 64).fill_null(False)
            found["has_pdq"].append(has_pdq.to_numpy())
            found["pdq"].append(
                _words(pl.select(pl.when(has_pdq).then(of["pdq_hash"]).otherwise(pl.lit("0" * 64))).to_series(), 64)
            )
        if settings.keep == "random":
            found["prefer"].append(np.array([unit_interval_of(one, "duplicates") for one in of["sample_id"]]))
        elif "prefer" in of.columns:
            found["prefer"].append(of["prefer"].cast(pl.Float64).fill_null(float("-inf")).to_numpy())
        for name, file in vectors.items():
            file.append(vectors_of(of[name]))
    whole: dict[str, Any] = {name: np.concatenate(found.pop(name)) for name in list(found)}
    if len(whole["prefer"]) < len(whole["uid"]):
        whole["prefer"] = _preference(vectors, settings) if settings.keep in ("hard", "easy") else None
    return _Compared(**whole, vectors=vectors)


def _words(texts: pl.Series, digits: int) -> np.ndarray:
    """(N,) texts of so many hex digits → (N, digits ÷ 16) uint64. Raises ValueError for others."""
    letters = "".join(texts).encode()
    if len(letters) != digits * len(texts):
        raise ValueError(f"{texts.name} must have {digits} hex digits in every row; materialise its table again")
    return u64_of_hex(np.frombuffer(letters, np.uint8).reshape(len(texts), digits))


def _preference(vectors: Mapping[str, VectorFile], settings: DuplicateSettings) -> np.ndarray:
    """(M,) the higher the sooner kept; hard, easy: SemDeDup's choice, far from or near to the centroid of the image's
    cluster (Abbas et al. 2023 §3).
    """
    of = vectors["image_embedding"].array
    centroids = fit_centroids(of, len(of) // ROWS_PER_CENTRE + 1)
    label = nearest_centroid(of, centroids)
    near = np.empty(len(of))
    for part in stretches(len(of)):
        near[part] = np.einsum("nd,nd->n", of[part], centroids[label[part]], dtype=np.float64)
    vectors["image_embedding"].forget()
    return -near if settings.keep == "hard" else near


def _best_first(rows: _Compared) -> np.ndarray:
    """(M,) rows, the one to keep first. The columns that only this needs are freed."""
    columns = {} if rows.prefer is None else {"prefer": rows.prefer}
    columns |= {"pixels": rows.pixels, "high": rows.uid[:, 0], "low": rows.uid[:, 1]}
    is_descending = [name in ("prefer", "pixels") for name in columns]
    frame = pl.DataFrame(columns)
    rows.prefer, rows.pixels = None, rows.pixels[:0]
    return (
        frame.select(pl.arg_sort_by(list(columns), descending=is_descending, maintain_order=True))
        .to_series()
        .to_numpy()
    )


def _items(keys: np.ndarray) -> np.ndarray:
    """(M,) or (M, 2) uint64 → (M,) number of each row's key among the different ones, in order."""
    order = np.lexsort(keys.T[::-1]) if keys.ndim == 2 else argsort(keys)
    ordered = keys[order]
    is_new = np.ones(len(keys), dtype=bool)
    is_new[1:] = ordered[1:] != ordered[:-1] if keys.ndim == 1 else (ordered[1:] != ordered[:-1]).any(axis=1)
    number = np.empty(len(keys), dtype=np.int32 if len(keys) < 1 << 31 else np.int64)
    number[order] = np.cumsum(is_new, dtype=number.dtype) - 1
    return number


def _pairs(
    rows: _Compared, best: np.ndarray, settings: DuplicateSettings, rank: np.ndarray, scratch: Path
) -> tuple[np.ndarray, np.ndarray]:
    """Close pairs of items, each pair once with its smaller distance; semantic distances lie beyond all others.

    (I,) `best` row of each item and (I,) its `rank`.
    """
    pairs, distances = [np.zeros((0, 2), np.int64)], [np.zeros(0)]
    if settings.perceptual_bits is not None and len(best):
        close, bits = hamming_pairs(rows.hashes[best], settings.perceptual_bits)
        pairs.append(close)
        distances.append(bits / 64.0)
    if settings.pdq_bits is not None and len(best):
        close, bits = _pdq_pairs(rows.pdq[best], rows.has_pdq[best], settings.pdq_bits, rank)
        pairs.append(close)
        distances.append(bits / 256.0 + PDQ)
    for column, min_cosine, offset in (
        ("copy_descriptor", settings.copy_cosine, COPY),
        ("image_embedding", settings.cosine, SEMANTIC),
    ):
        if min_cosine is not None and len(best):
            of_items = VectorFile(scratch / f"items_{column}.f32")
            for part in stretches(len(best), ROWS_AT_ONCE):
                of_items.append(rows.vectors[column].array[best[part]])
            rows.vectors[column].forget()
            close, apart = _vector_pairs(of_items, min_cosine)
            pairs.append(close)
            distances.append(apart + offset)
    both, apart = np.concatenate(pairs), np.concatenate(distances)
    order = np.lexsort((apart, both[:, 1], both[:, 0]))
    both, apart = both[order], apart[order]
    is_first = np.ones(len(both), dtype=bool)
    is_first[1:] = (both[1:] != both[:-1]).any(axis=1)
    return both[is_first], apart[is_first]


def _vector_pairs(file: VectorFile, min_cosine: float) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of unit vectors and 1 − cosine: all of few items, of many those within one cluster of k-means."""
    vectors, clusters = file.array, None
    if len(vectors) > CLUSTERED_FROM:
        clusters = nearest_centroid(vectors, fit_centroids(vectors, len(vectors) // CLUSTERED_FROM + 1))
        file.forget()
    return cosine_pairs(vectors, min_cosine, clusters, file.forget)


def _pdq_pairs(
    hashes: np.ndarray, is_there: np.ndarray, max_distance: int, rank: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of items whose PDQ hashes (I, 4) are near, and their bits; an item without a hash is near nobody.

    Of items with one hash the best by `rank` speaks for all: a pair with it is enough, as only it may be kept.
    """
    there = np.flatnonzero(is_there)
    if not len(there):
        return np.zeros((0, 2), np.int64), np.zeros(0)
    there = there[np.argsort(rank[there], kind="stable")]
    hashes, best, hash_of = np.unique(hashes[there], axis=0, return_index=True, return_inverse=True)
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


def _kinds(
    rows: _Compared, dropped: np.ndarray, leader: np.ndarray, apart: np.ndarray, item_of: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(D,) `dropped` rows, (M,) `leader` and `item_of`, (I,) `apart` → (D,) code of KINDS and distance in its unit."""
    kind, distance = np.zeros(len(dropped), dtype=np.int8), np.zeros(len(dropped))
    for part in stretches(len(dropped)):
        mine, other = dropped[part], leader[dropped[part]]
        gap = apart[item_of[mine]]
        is_exact = (rows.sha[mine] == rows.sha[other]).all(axis=1)
        kind[part] = found = np.select([is_exact, gap < PDQ, gap < COPY, gap < SEMANTIC], range(4), len(KINDS) - 1)
        for name, hashes in (("perceptual", rows.hashes[:, None]), ("pdq", rows.pdq)):
            near = np.flatnonzero(found == KINDS.index(name))
            bits = np.bitwise_count(hashes[mine[near]] ^ hashes[other[near]])
            distance[part][near] = bits.sum(axis=1, dtype=np.int64)
        for name, column in (("copy", "copy_descriptor"), ("semantic", "image_embedding")):
            for at in np.flatnonzero(found == KINDS.index(name)).tolist():
                vectors = rows.vectors[column].array
                distance[part][at] = max(0.0, 1.0 - float(vectors[mine[at]] @ vectors[other[at]]))
    return kind, distance
