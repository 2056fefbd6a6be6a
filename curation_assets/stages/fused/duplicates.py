"""fused/duplicates: exact, perceptual and semantic near-duplicates of the pool, with the sample kept for each.

Rows are sorted on disk, the one to keep first first; hashes by some of their bits, one set of bits after the other
(docs/decisions/0089); vectors lie in a file, one cluster is looked at after the other. Who stands for each row,
and why, lies in files, too: 5 bytes a row, whose pages the system may take back.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from curation_assets.core.progress import ProgressReporter, Silent
from curation_assets.core.table_names import NEAR_DUPLICATES, SAMPLES, table_of
from curation_assets.flow.context import PoolContext
from curation_assets.flow.options import DuplicateSettings, FlowOptions
from curation_assets.flow.table import Shown, Table
from curation_assets.methods import lower_is_better, oriented
from curation_assets.numeric.clusters import fit_centroids, nearest_centroid
from curation_assets.numeric.identity import u64_of_hex, unit_interval_of
from curation_assets.numeric.near_duplicates import bands_of, choose_representatives, cosine_pairs, pairs_in_band
from curation_assets.numeric.sorting import ordinals, position_type, stretches
from curation_assets.scoring.derived import vectors_of
from curation_assets.scoring.upstream import upstream_reason
from curation_assets.stores.arrays import ArrayFile
from curation_assets.stores.atomic import remove_path
from curation_assets.stores.columns import uid_texts
from curation_assets.stores.external_sort import ExternalSort
from curation_assets.stores.parquet import read_parquet, scan_parquet

CLUSTERED_FROM = 20_000  # images: below, all pairs are compared
#: Added to distances, so that a pHash twin goes before a PDQ twin, that before an SSCD one, and semantic ones are last.
PDQ, COPY, SEMANTIC = 1.0, 2.0, 3.0
KINDS = ("exact", "perceptual", "pdq", "copy", "semantic")
ROWS_PER_CENTRE = 1000  # images per centroid, for keep: hard and easy
ROWS_AT_ONCE = 8192  # vectors, or rows of a file in any order, that are in memory together
RUN_BYTES = 1 << 25  # of rows that are sorted: peak memory is some 18 times as much, whatever the rows
READ_TOGETHER = 1 << 18  # rows of a file, in their order
LOOKED_UP = 1 << 16  # rows of `leaders` in any order, each of which may read a page of 4 KiB
SAMPLED = 4096  # hashes that tell how many agree in a band
PDQ_WORDS = ["pdq0", "pdq1", "pdq2", "pdq3"]
VECTORS = ("copy_descriptor", "image_embedding")
#: A row that another one stands for: its position among those compared, that one's id, the code of KINDS.
DROPPED = {"row": pl.UInt64, "high": pl.UInt64, "low": pl.UInt64, "kind": pl.Int8, "distance": pl.Float64}


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
    for part in find_duplicates(_read_shards(ctx, settings), settings, scratch, ctx.progress):
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
    """The N rows that are compared, the one to keep first first: numbers of them in a file, vectors in others."""

    scratch: Path
    progress: ProgressReporter
    columns: list[str]  # of `numbers`
    numbers: ArrayFile  # (N, C) uint64
    vectors: dict[str, ArrayFile]  # (N, D) float32, at the position that `numbers` has as `row`
    count: int  # N
    leaders: ArrayFile  # (N, 1) who stands for each row
    kinds: ArrayFile  # (N, 1) int8, code of KINDS by which a row is near its leader; 0 where both have one key

    def sorted(self, *by: str) -> ExternalSort:
        """For rows of other columns, without any yet."""
        return _sort(by, self.scratch)

    def ranks(self, part: slice) -> np.ndarray:
        """Positions in the order of these rows."""
        return np.arange(part.start, part.stop, dtype=position_type(self.count))

    def typed(self, ranks: np.ndarray) -> np.ndarray:
        """Positions as those of `leaders`."""
        return ranks.astype(position_type(self.count))

    @property
    def leader(self) -> np.ndarray:
        """(N,) `leaders`, once all are there."""
        return self.leaders.array[:, 0]

    @property
    def kind(self) -> np.ndarray:
        """(N,) `kinds`."""
        return self.kinds.array[:, 0]

    def forget(self) -> None:
        """Give the memory of `leader` and `kind` back."""
        self.leaders.forget()
        self.kinds.forget()

    def at(self, rows: np.ndarray | slice) -> pl.DataFrame:
        """Numbers of some rows."""
        found = pl.DataFrame(self.numbers.array[rows], schema=self.columns)
        self.numbers.forget()
        return found


def _sort(by: Sequence[str], scratch: Path) -> ExternalSort:
    return ExternalSort(by, scratch, RUN_BYTES)


def find_duplicates(
    parts: Iterable[pl.DataFrame], settings: DuplicateSettings, scratch: Path, progress: ProgressReporter | None = None
) -> Iterator[pl.DataFrame]:
    """One row per row, in order: sample_id, shard, source_row, quality, representative, kind, distance, reason.

    `parts`: rows with sample_id, shard, source_row, image_sha256, width, height, status, reason, and of
    perceptual_hash, pdq_hash, copy_descriptor, image_embedding (each with `…_reason`) and prefer what the settings use.
    Kept first: the highest `prefer`, then most pixels, then the lowest sample_id. distance: bits (perceptual, pdq) or
    1 − cosine (copy, semantic). Rows and vectors lie in the folder `scratch` meanwhile.
    """
    paths: list[Path] = []
    rows = _kept_on_disk(parts, settings, scratch, paths)
    dropped = _dropped(rows, settings, scratch, progress or Silent()).stretches()
    waiting, stop = pl.DataFrame(schema=DROPPED), 0
    for path in paths:
        frame = read_parquet(path)
        compared = frame["reason"].is_null().arg_true()
        start, stop = stop, stop + len(compared)
        while not (waiting.height and waiting["row"][-1] >= stop) and (more := next(dropped, None)) is not None:
            waiting = pl.concat([waiting, more])
        size = waiting["row"].search_sorted(stop)
        mine, waiting = waiting[:size], waiting[size:]
        found = mine.select(
            compared.gather(mine["row"] - start).alias("row"),
            uid_texts(mine["high"], mine["low"]).alias("representative"),
            pl.col("kind").replace_strict(range(len(KINDS)), KINDS, return_dtype=pl.String),
            "distance",
        )
        joined = frame.with_row_index("row").join(found, on="row", how="left", maintain_order="left")
        is_compared = pl.col("reason").is_null()
        yield joined.select(
            "sample_id",
            "shard",
            "source_row",
            pl.when(is_compared).then(pl.col("kind").is_null().cast(pl.Float64)).alias("quality"),
            pl.when(is_compared).then(pl.coalesce("representative", "sample_id")).alias("representative"),
            "kind",
            "distance",
            "reason",
        )


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


def _dropped(
    parts: Iterable[pl.DataFrame], settings: DuplicateSettings, scratch: Path, progress: ProgressReporter
) -> ExternalSort:
    """The rows of DROPPED, by position."""
    vectors = {name: ArrayFile(scratch / f"{name}.f32", np.float32) for name in VECTORS if name in settings.columns}
    rows = _best_first(parts, settings, vectors, scratch, progress)
    if not rows.count:
        return rows.sorted("row")
    keys = ["hash"] if settings.perceptual_bits is not None else ["sha_high", "sha_low"]
    by_key, by_rank = rows.sorted(*keys, "rank"), rows.sorted("rank")
    for part in stretches(rows.count, READ_TOGETHER):
        by_key.add(rows.at(part).select(*keys, "row").with_columns(rank=rows.ranks(part)))
    # Items are groups of equal keys, each spoken for by its best member: thousands of blank images are one item.
    items = ArrayFile(scratch / "items.u64", np.uint64)  # (I, 1 + K) its best row, its key; in order of keys
    of_items = {name: ArrayFile(scratch / f"items_{name}.f32", np.float32) for name in vectors}
    for stretch, is_best, best in _grouped(by_key, keys):
        by_rank.add(pl.DataFrame({"rank": stretch["rank"], "best": best}))
        bests = stretch.filter(is_best)
        items.append(bests.select(pl.col("rank").cast(pl.UInt64), *keys).to_numpy())
        for name, file in vectors.items():
            for part in stretches(bests.height, ROWS_AT_ONCE):
                of_items[name].append(file.array[bests["row"][part].to_numpy()])
                file.forget()
    for stretch in by_rank.stretches():
        rows.leaders.append(stretch["best"].to_numpy()[:, None])
        rows.kinds.append(np.zeros((stretch.height, 1), dtype=np.int8))
    by_later = rows.sorted("later", "gap", "earlier")
    for one, other, gap in _pairs(rows, items, of_items, settings):
        by_later.add(pl.DataFrame({"later": np.maximum(one, other), "gap": gap, "earlier": np.minimum(one, other)}))
    for pairs in by_later.stretches():
        for some in stretches(pairs.height, LOOKED_UP):
            later, gap, earlier = (column.to_numpy() for column in pairs[some])
            chosen = choose_representatives(rows.leader, later, earlier)
            rows.kind[later[chosen]] = np.floor(gap[chosen]) + 1
            rows.forget()
    return _judged(rows)


def _best_first(
    parts: Iterable[pl.DataFrame],
    settings: DuplicateSettings,
    vectors: dict[str, ArrayFile],
    scratch: Path,
    progress: ProgressReporter,
) -> _Compared:
    paths: list[Path] = []
    for part in (part for part in parts if part.height):
        for name, file in vectors.items():
            file.append(vectors_of(part[name]))
        paths.append(scratch / f"numbers-{len(paths):06d}.parquet")
        _numbers(part, settings).write_parquet(paths[-1], compression="lz4")
    nearness = _nearness(vectors["image_embedding"], scratch) if settings.keep in ("hard", "easy") else None
    ordered, count = _sort(["disliked", "small", "high", "low", "row"], scratch), 0
    for path in paths:
        part = read_parquet(path)
        if nearness is not None:
            near = nearness.array[count : count + part.height, 0]
            part = part.with_columns(disliked=~ordinals(-near if settings.keep == "hard" else near))
        ordered.add(part.with_columns(row=pl.int_range(count, count + part.height, dtype=pl.UInt64)))
        count += part.height
    numbers = ArrayFile(scratch / "numbers.u64", np.uint64)
    columns = ["row", "high", "low", "sha_high", "sha_low"]
    columns += ["hash"] if settings.perceptual_bits is not None else []
    columns += ["has_pdq", *PDQ_WORDS] if settings.pdq_bits is not None else []
    for stretch in ordered.stretches():
        numbers.append(stretch.select(columns).to_numpy())
    leaders = ArrayFile(scratch / "leaders.u", position_type(count))
    return _Compared(
        scratch, progress, columns, numbers, vectors, count, leaders, ArrayFile(scratch / "kinds.i8", np.int8)
    )


def _numbers(of: pl.DataFrame, settings: DuplicateSettings) -> pl.DataFrame:
    """What is compared of rows, and how late they are kept, uint64 each; no vectors."""
    pixels = of.select(pl.col("width").cast(pl.Int64) * pl.col("height")).to_series()
    most = np.iinfo(np.int64).max
    columns = {"small": most - pixels.fill_null(most).to_numpy()}
    columns |= zip(("high", "low"), _words(of["sample_id"], 32).T, strict=True)
    columns |= zip(("sha_high", "sha_low"), _words(of["image_sha256"], 64).T[:2], strict=True)
    if settings.perceptual_bits is not None:
        columns["hash"] = _words(of["perceptual_hash"], 16)[:, 0]
    if settings.pdq_bits is not None:
        has_pdq = (of["pdq_hash"].str.len_chars() == 64).fill_null(False)
        columns["has_pdq"] = has_pdq.to_numpy()
        texts = pl.select(pl.when(has_pdq).then(of["pdq_hash"]).otherwise(pl.lit("0" * 64))).to_series()
        columns |= zip(PDQ_WORDS, _words(texts, 64).T, strict=True)
    prefer = np.zeros(of.height)
    if settings.keep == "random":
        prefer = np.array([unit_interval_of(one, "duplicates") for one in of["sample_id"]], dtype=np.float64)
    elif "prefer" in of.columns:
        prefer = of["prefer"].cast(pl.Float64).fill_null(float("-inf")).to_numpy()
    columns["disliked"] = ~ordinals(prefer)
    return pl.DataFrame({name: column.astype(np.uint64) for name, column in columns.items()})


def _words(texts: pl.Series, digits: int) -> np.ndarray:
    """(N,) texts of so many hex digits → (N, digits ÷ 16) uint64. Raises ValueError for others."""
    letters = "".join(texts).encode()
    if len(letters) != digits * len(texts):
        raise ValueError(f"{texts.name} must have {digits} hex digits in every row; materialise its table again")
    return u64_of_hex(np.frombuffer(letters, np.uint8).reshape(len(texts), digits))


def _nearness(vectors: ArrayFile, scratch: Path) -> ArrayFile:
    """(M, 1) float64 cosine of each vector and the centroid of its cluster, by which SemDeDup keeps (Abbas et al. 2023
    §3).
    """
    of, nearness = vectors.array, ArrayFile(scratch / "nearness.f64", np.float64)
    if len(of):
        centroids = fit_centroids(of, len(of) // ROWS_PER_CENTRE + 1)
        for part in stretches(len(of)):
            label = nearest_centroid(of[part], centroids)
            near = np.einsum("nd,nd->n", of[part], centroids[label], dtype=np.float64)
            nearness.append(near[:, None])
            vectors.forget()
    return nearness


def _grouped(ordered: ExternalSort, keys: Sequence[str]) -> Iterator[tuple[pl.DataFrame, np.ndarray, np.ndarray]]:
    """Rows sorted by `keys` and rank, in stretches: of each, whether it is the first with its keys, and the rank of the
    first.
    """
    last, rank = None, np.zeros(1, dtype=np.uint32)
    for stretch in ordered.stretches():
        key, own = stretch.select(keys).to_numpy(), stretch["rank"].to_numpy()
        is_first = np.append(last is None or (key[0] != last).any(), (key[1:] != key[:-1]).any(axis=1))
        first = np.append(rank[-1:], own[is_first])[np.cumsum(is_first)]
        yield stretch, is_first, first
        last, rank = key[-1], first


Pairs = tuple[np.ndarray, np.ndarray, np.ndarray]  # (P,), (P,) ranks, (P,) float64 distance


def _pairs(
    rows: _Compared, items: ArrayFile, vectors: Mapping[str, ArrayFile], settings: DuplicateSettings
) -> Iterator[Pairs]:
    """Close pairs of items, some of them again with a larger distance; semantic distances lie beyond all others."""
    if settings.perceptual_bits is not None:
        for one, other, bits in _close_hashes(rows, items, settings.perceptual_bits):
            yield one, other, bits / 64.0
    if settings.pdq_bits is not None:
        for one, other, bits in _close_pdq(rows, settings.pdq_bits):
            yield one, other, bits / 256.0 + PDQ
    for column, min_cosine, offset in (
        ("copy_descriptor", settings.copy_cosine, COPY),
        ("image_embedding", settings.cosine, SEMANTIC),
    ):
        if min_cosine is not None:
            for one, other, apart in _close_vectors(rows, items, vectors[column], min_cosine):
                yield one, other, apart + offset


def _close_hashes(rows: _Compared, file: ArrayFile, max_distance: int) -> Iterator[Pairs]:
    """Pairs of hashes that differ in at most so many bits. `file` (H, 1 + W): rank and words, all hashes different."""
    of, columns = file.array, [f"word{number}" for number in range(file.array.shape[1] - 1)]
    if len(of) < 2:
        return
    bands = bands_of(of[:: -(-len(of) // SAMPLED), 1:], len(of), max_distance)
    with rows.progress.task("near-duplicates: bands of hashes compared", len(bands)) as advance:
        for number, (word, mask) in enumerate(bands):
            by_band = rows.sorted("band")
            for part in stretches(len(of), READ_TOGETHER):
                words = pl.DataFrame(of[part], schema=["rank", *columns])
                by_band.add(words.with_columns(band=of[part, 1 + word] & mask))
                file.forget()
            for stretch in by_band.stretches():
                rank = stretch["rank"].to_numpy()
                for left, right, bits in pairs_in_band(stretch.select(columns).to_numpy(), bands, number, max_distance):
                    yield rows.typed(rank[left]), rows.typed(rank[right]), bits
            advance(1)


def _close_pdq(rows: _Compared, max_distance: int) -> Iterator[Pairs]:
    """Pairs of items whose PDQ hashes are near; an item without a hash is near nobody.

    Of items with one hash the best speaks for all: a pair with it is enough, as only it may be kept.
    """
    by_hash = rows.sorted(*PDQ_WORDS, "rank")
    for part in stretches(rows.count, READ_TOGETHER):
        ranks = rows.ranks(part)
        numbers = rows.at(part)
        is_compared = (numbers["has_pdq"] == 1) & pl.Series(rows.leader[part] == ranks)
        by_hash.add(numbers.select(PDQ_WORDS).with_columns(rank=ranks).filter(is_compared))
        rows.forget()
    hashes = ArrayFile(rows.scratch / "pdq.u64", np.uint64)
    both = rows.sorted("best")  # of a best item: what else has its hash (bits -1), and the bests of near hashes
    for stretch, is_best, best in _grouped(by_hash, PDQ_WORDS):
        hashes.append(stretch.filter(is_best).select(pl.col("rank").cast(pl.UInt64), *PDQ_WORDS).to_numpy())
        rank, best = stretch["rank"].to_numpy()[~is_best], best[~is_best]
        both.add(pl.DataFrame({"best": best, "other": rank, "bits": np.full(len(rank), -1)}))
        yield rank, best, np.zeros(len(rank))
    for one, other, bits in _close_hashes(rows, hashes, max_distance):
        yield one, other, bits
        for best, near in ((one, other), (other, one)):
            both.add(pl.DataFrame({"best": best, "other": near, "bits": bits}))
    for stretch in both.stretches():
        is_member = pl.col("bits") < 0
        found = stretch.filter(is_member).drop("bits").join(stretch.filter(~is_member), on="best", suffix="_near")
        yield found["other"].to_numpy(), found["other_near"].to_numpy(), found["bits"].to_numpy()


def _close_vectors(rows: _Compared, items: ArrayFile, file: ArrayFile, min_cosine: float) -> Iterator[Pairs]:
    """Pairs of unit vectors of items and 1 − cosine: all of few items, of many those within one cluster of k-means."""
    vectors, count = file.array, len(file.array)
    clusters = rows.sorted("cluster")
    centroids = fit_centroids(vectors, count // CLUSTERED_FROM + 1) if count > CLUSTERED_FROM else None
    for part in stretches(count, ROWS_AT_ONCE):
        item = np.arange(part.start, part.stop)
        label = np.zeros(len(item), dtype=np.int64) if centroids is None else nearest_centroid(vectors[part], centroids)
        clusters.add(pl.DataFrame({"cluster": label, "item": item}))
        file.forget()
    with rows.progress.task("near-duplicates: vectors compared", count) as advance:
        for stretch in clusters.stretches():
            for _, cluster in stretch.sort("cluster", "item").group_by("cluster", maintain_order=True):
                item = cluster["item"].to_numpy()
                rank = rows.typed(items.array[item, 0])
                items.forget()
                for left, right, apart in cosine_pairs(vectors, item, min_cosine, file.forget):
                    yield rank[left], rank[right], apart
                advance(len(item))


def _judged(rows: _Compared) -> ExternalSort:
    """The rows of DROPPED. Those of one leader are looked at together, so that the file is read from front to back."""
    by_leader = rows.sorted("leader")
    for part in stretches(rows.count, LOOKED_UP):
        mine = np.flatnonzero(rows.leader[part] != rows.ranks(part)) + part.start
        item = rows.leader[mine]  # of an item its leader
        kind = np.where(rows.kind[mine] > 0, rows.kind[mine], np.maximum(rows.kind[item], KINDS.index("perceptual")))
        by_leader.add(rows.at(mine).with_columns(leader=rows.leader[item], kind=kind))
        rows.forget()
    by_row = rows.sorted("row")
    for stretch in by_leader.stretches():
        for part in stretches(stretch.height, ROWS_AT_ONCE):
            mine = stretch[part]
            by_row.add(_apart(mine, rows.at(mine["leader"].to_numpy()), rows.vectors))
    return by_row


def _apart(mine: pl.DataFrame, other: pl.DataFrame, vectors: Mapping[str, ArrayFile]) -> pl.DataFrame:
    """`mine` rows, of `kind` where they are not the same file, and the `other` row of each → DROPPED."""
    is_exact = (mine["sha_high"] == other["sha_high"]) & (mine["sha_low"] == other["sha_low"])
    kind = np.where(is_exact, 0, mine["kind"].to_numpy()).astype(np.int8)
    distance = np.zeros(len(kind))
    for name, columns in (("perceptual", ["hash"]), ("pdq", PDQ_WORDS)):
        near = np.flatnonzero(kind == KINDS.index(name))
        if len(near):
            left, right = (of.select(columns).to_numpy()[near] for of in (mine, other))
            distance[near] = np.bitwise_count(left ^ right).sum(axis=1, dtype=np.int64)
    for name, column in (("copy", "copy_descriptor"), ("semantic", "image_embedding")):
        for at in np.flatnonzero(kind == KINDS.index(name)).tolist():
            of = vectors[column].array
            distance[at] = max(0.0, 1.0 - float(of[mine["row"][at]] @ of[other["row"][at]]))
    for file in vectors.values():
        file.forget()
    return pl.DataFrame(
        {"row": mine["row"], "high": other["high"], "low": other["low"], "kind": kind, "distance": distance}
    )
