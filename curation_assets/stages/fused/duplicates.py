"""fused/duplicates: exact, perceptual and semantic near-duplicates of the pool, with the sample kept for each.

DuckDB numbers the rows, the one to keep first first, and finds near hashes by joins on some of their bits
(docs/decisions/0106). Vectors lie in files, of which one cluster is looked at after the other.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from curation_assets.numeric.near_duplicates import bands_of, choose_representatives, cosine_pairs
from curation_assets.scoring.derived import vectors_of
from curation_assets.scoring.upstream import upstream_reason
from curation_assets.stores.columns import uid_texts
from curation_assets.stores.parquet import read_parquet, scan_parquet
from curation_assets.stores.pool_queries import bounded

if TYPE_CHECKING:
    import duckdb

CLUSTERED_FROM = 20_000  # images: below, all pairs are compared
KINDS = ("exact", "perceptual", "pdq", "copy", "semantic")
EXACT, PERCEPTUAL, PDQ, COPY, SEMANTIC = range(len(KINDS))
ROWS_PER_CENTRE = 1000  # images per centroid, for keep: hard and easy
ROWS_AT_ONCE = 8192  # vectors that are in memory together
PAIRS_AT_ONCE = 1 << 18
SAMPLED = 4096  # hashes that tell how many agree in a band
PDQ_WORDS = ["pdq0", "pdq1", "pdq2", "pdq3"]
VECTORS = {"copy_descriptor": COPY, "image_embedding": SEMANTIC}


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
        description=(
            "One row per row of raw.samples: quality 1 where it is kept, 0 where another sample stands for it: its "
            "`representative`. kind: exact (same file), perceptual (pHash), pdq, copy (SSCD) or semantic "
            "(embedding). Every sample is within the limit of its representative."
        ),
        compute=lambda ctx: _duplicates(ctx, settings),
        config=lambda ctx: _config(settings),
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
    scratch = ctx.store.scratch(NEAR_DUPLICATES)
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
    """The rows that are compared, in tables of DuckDB, and their vectors, in files: row by row as they come."""

    connection: "duckdb.DuckDBPyConnection"
    settings: DuplicateSettings
    scratch: Path
    progress: ProgressReporter
    count: int = 0
    widths: dict[str, int] = field(default_factory=dict)  # of the vectors of each name

    @property
    def keys(self) -> list[str]:
        """Rows that agree in these columns are one item."""
        return ["hash"] if self.settings.perceptual_bits is not None else ["sha_high", "sha_low"]

    @property
    def hashes(self) -> dict[int, list[str]]:
        """The words of each kind of hash that is compared."""
        words = {PERCEPTUAL: (["hash"], self.settings.perceptual_bits), PDQ: (PDQ_WORDS, self.settings.pdq_bits)}
        return {kind: columns for kind, (columns, limit) in words.items() if limit is not None}

    def run(self, statement: str) -> None:
        """Let DuckDB do something."""
        self.connection.execute(statement)

    def found(self, query: str) -> dict[str, np.ndarray]:
        """Column → what a query gives, in memory."""
        return dict(self.connection.sql(query).fetchnumpy())

    def number(self, query: str) -> int:
        """The one whole number that a query gives."""
        ((found,),) = self.connection.sql(query).fetchall()
        return int(found)

    def insert(self, table: str, columns: dict[str, Any]) -> None:
        """More rows of a table; beside what is read of another one meanwhile."""
        with self.connection.cursor() as cursor:
            cursor.register("more", pl.DataFrame(columns).to_arrow())
            cursor.execute(f"insert into {table} by name select * from more")

    def vectors(self, name: str) -> np.ndarray:
        """(N, D) float32, pages of a file, which are read when they are looked at."""
        return np.memmap(self.scratch / name, np.float32, "r").reshape(-1, self.widths[name])

    def append(self, name: str, vectors: np.ndarray) -> None:
        """(n, D) more vectors. Raises ValueError for another D than before."""
        width = self.widths.setdefault(name, vectors.shape[1])
        if vectors.shape[1] != width:
            raise ValueError(f"{name}: vectors of {width} and of {vectors.shape[1]} numbers; materialise it again")
        with (self.scratch / name).open("ab") as file:
            file.write(np.ascontiguousarray(vectors, dtype=np.float32).data)


def find_duplicates(
    parts: Iterable[pl.DataFrame], settings: DuplicateSettings, scratch: Path, progress: ProgressReporter | None = None
) -> Iterator[pl.DataFrame]:
    """One row per row, in order: sample_id, shard, source_row, quality, representative, kind, distance, reason.

    `parts`: rows with sample_id, shard, source_row, image_sha256, width, height, status, reason, and of
    perceptual_hash, pdq_hash, copy_descriptor, image_embedding (each with `…_reason`) and prefer what the settings use.
    Kept first: the highest `prefer`, then most pixels, then the lowest sample_id. distance: bits (perceptual, pdq) or
    1 − cosine (copy, semantic). Rows and vectors lie in the folder `scratch` meanwhile.
    """
    with bounded(scratch) as connection:
        compared = _Compared(connection, settings, scratch, progress or Silent())
        paths = list(_read(compared, parts))
        _rank(compared)
        _find_pairs(compared)
        _choose(compared)
        for path in paths:
            rows = read_parquet(path)
            found = rows.join(_dropped(compared, rows["row"].drop_nulls()), on="row", how="left", maintain_order="left")
            is_compared = pl.col("row").is_not_null()
            yield found.select(
                "sample_id",
                "shard",
                "source_row",
                pl.when(is_compared).then(pl.col("kind").is_null().cast(pl.Float64)).alias("quality"),
                pl.when(is_compared).then(pl.coalesce("representative", "sample_id")).alias("representative"),
                "kind",
                "distance",
                "reason",
            )


def _read(compared: _Compared, parts: Iterable[pl.DataFrame]) -> Iterator[Path]:
    """Keep what is compared of rows, and in a file per part their ids, `row` and why some are not compared."""
    settings = compared.settings
    words = ["high", "low", "sha_high", "sha_low", *(word for words in compared.hashes.values() for word in words)]
    columns = ", ".join(["has_pdq boolean"] * (PDQ in compared.hashes) + [f"{name} ubigint" for name in words])
    compared.run(f"create table numbers (row bigint, prefer double, pixels bigint, {columns})")
    causes = [
        upstream_reason(),
        pl.when(pl.col("image_sha256").is_null()).then(pl.lit("no_image")),
        *(
            pl.when(pl.col(name).is_null()).then(pl.col(f"{name}_reason").fill_null(f"no_{name}"))
            for name in settings.columns
        ),
    ]
    for number, part in enumerate(parts):
        judged = part.with_columns(pl.coalesce(causes).cast(pl.String).alias("reason"))
        is_compared = pl.col("reason").is_null()
        row = compared.count - 1 + is_compared.cum_sum().cast(pl.Int64)
        judged = judged.with_columns(pl.when(is_compared).then(row).alias("row"))
        path = compared.scratch / f"rows-{number:06d}.parquet"
        judged.select("sample_id", "shard", "source_row", "row", "reason").write_parquet(path, compression="lz4")
        yield path
        rows = judged.filter(is_compared)
        if rows.height:
            compared.insert("numbers", _numbers(rows, settings))
            for name in VECTORS:
                if name in settings.columns:
                    compared.append(name, vectors_of(rows[name]))
            compared.count += rows.height


def _numbers(of: pl.DataFrame, settings: DuplicateSettings) -> dict[str, Any]:
    """What is compared of rows, and how early they are kept; no vectors."""
    columns: dict[str, Any] = {"row": of["row"], "prefer": np.zeros(of.height)}
    if settings.keep == "random":
        columns["prefer"] = np.array([unit_interval_of(one, "duplicates") for one in of["sample_id"]], dtype=np.float64)
    elif "prefer" in of.columns:
        columns["prefer"] = of["prefer"].cast(pl.Float64).fill_null(float("-inf"))
    columns["pixels"] = of.select(pl.col("width").cast(pl.Int64) * pl.col("height")).to_series()
    columns |= zip(("high", "low"), _words(of["sample_id"], 32).T, strict=True)
    columns |= zip(("sha_high", "sha_low"), _words(of["image_sha256"], 64).T[:2], strict=True)
    if settings.perceptual_bits is not None:
        columns["hash"] = _words(of["perceptual_hash"], 16)[:, 0]
    if settings.pdq_bits is not None:
        columns["has_pdq"] = has_pdq = (of["pdq_hash"].str.len_chars() == 64).fill_null(False)
        texts = pl.select(pl.when(has_pdq).then(of["pdq_hash"]).otherwise(pl.lit("0" * 64))).to_series()
        columns |= zip(PDQ_WORDS, _words(texts, 64).T, strict=True)
    return columns


def _words(texts: pl.Series, digits: int) -> np.ndarray:
    """(N,) texts of so many hex digits → (N, digits ÷ 16) uint64. Raises ValueError for others."""
    letters = "".join(texts).encode()
    if len(letters) != digits * len(texts):
        raise ValueError(f"{texts.name} must have {digits} hex digits in every row; materialise its table again")
    return u64_of_hex(np.frombuffer(letters, np.uint8).reshape(len(texts), digits))


def _rank(compared: _Compared) -> None:
    """Make the tables `ranked`, all rows, the one to keep first first, and `items`, one row per different key.

    The rowid of `ranked` is a row's rank. An item is spoken for by its best row, its `rank`: thousands of blank images
    are one item.
    """
    source, by = "numbers", "prefer desc"
    if compared.count and compared.settings.keep in ("hard", "easy"):
        _measure_nearness(compared)
        source, by = "numbers join nearness using (row)", "near" if compared.settings.keep == "hard" else "near desc"
    keys = ", ".join(compared.keys)
    compared.run(
        f"create table ranked as select numbers.* exclude (prefer, pixels) from {source} "
        f"order by {by}, pixels desc nulls first, high, low, row"
    )
    compared.run("drop table numbers")
    compared.run(
        f"create table items as select min(rowid) as rank, arg_min(row, rowid) as row, count(*) as size, {keys} "
        f"from ranked group by {keys} order by {keys}"
    )


def _measure_nearness(compared: _Compared) -> None:
    """Make the table `nearness`: cosines of vectors and the centroid of their cluster (Abbas et al. 2023 §3)."""
    name = "image_embedding"
    centroids = fit_centroids(compared.vectors(name), compared.count // ROWS_PER_CENTRE + 1)
    compared.run("create table nearness (row bigint, near double)")
    for start in range(0, compared.count, ROWS_AT_ONCE):
        vectors = compared.vectors(name)[start : start + ROWS_AT_ONCE]
        near = np.einsum("nd,nd->n", vectors, centroids[nearest_centroid(vectors, centroids)], dtype=np.float64)
        compared.insert("nearness", {"row": np.arange(start, start + len(near)), "near": near})


def _find_pairs(compared: _Compared) -> None:
    """Make the table `pairs` of close items, some of them more than once: later and earlier rank, kind, gap."""
    compared.run("create table pairs (later bigint, earlier bigint, kind tinyint, gap double)")
    settings = compared.settings
    if settings.perceptual_bits is not None:
        _find_near(compared, "items", ["hash"], settings.perceptual_bits)
        compared.run(f"insert into pairs select later, earlier, {PERCEPTUAL}, bits from near")
    if settings.pdq_bits is not None:
        _find_near_pdq(compared, settings.pdq_bits)
    for name, min_cosine in (("copy_descriptor", settings.copy_cosine), ("image_embedding", settings.cosine)):
        if min_cosine is not None and compared.count:
            _find_near_vectors(compared, name, min_cosine)


def _find_near(compared: _Compared, table: str, words: Sequence[str], max_distance: int) -> None:
    """Make the table `near` of hashes that differ in at most so many bits: later and earlier rank, bits.

    `table`: rank and words of different hashes. A pair is found in the first band that it agrees in.
    """
    compared.run("create or replace table near (later bigint, earlier bigint, bits integer)")
    size = compared.number(f"select count(*) from {table}")
    if size < 2:
        return
    sample = compared.found(f"select {', '.join(words)} from {table} where rowid % {-(-size // SAMPLED)} = 0")
    bands = bands_of(np.column_stack(list(sample.values())), size, max_distance)
    bits = _apart("one", "other", words)
    earlier_bands = ""
    with compared.progress.task("near-duplicates: bands of hashes compared", len(bands)) as advance:
        for number, mask in bands:
            word = words[number]
            compared.run(
                f"insert into near select other.rank, one.rank, {bits} from {table} as one join {table} as other "
                f"on one.{word} & {mask}::ubigint = other.{word} & {mask}::ubigint and one.rank < other.rank "
                f"where {bits} <= {max_distance}{earlier_bands}"
            )
            earlier_bands += f" and xor(one.{word}, other.{word}) & {mask}::ubigint <> 0"
            advance(1)


def _find_near_pdq(compared: _Compared, max_distance: int) -> None:
    """Add pairs of items whose PDQ hashes are near; an item without a hash is near nobody.

    Of items with one hash the best speaks for all: a pair with it is enough.
    """
    words = ", ".join(PDQ_WORDS)
    compared.run(
        f"create table members as select items.rank, {words} from items join ranked on ranked.rowid = items.rank "
        "where has_pdq"
    )
    compared.run(f"create table bests as select min(rank) as rank, {words} from members group by {words}")
    _find_near(compared, "bests", PDQ_WORDS, max_distance)
    compared.run(
        f"insert into pairs select greatest(member.rank, other), least(member.rank, other), {PDQ}, bits "
        f"from members as member join bests using ({words}) join ("
        "select later as best, earlier as other, bits from near "
        "union all select earlier, later, bits from near union all select rank, rank, 0 from bests"
        ") on best = bests.rank where member.rank <> other"
    )


def _find_near_vectors(compared: _Compared, name: str, min_cosine: float) -> None:
    """Add pairs of items whose unit vectors are near: all of few items, of many those within one cluster of k-means."""
    size = compared.number("select count(*) from items")
    with compared.progress.task("near-duplicates: vectors compared", size) as advance:
        for cluster in _clusters(compared, name, size):
            vectors, rank = compared.vectors(name), cluster["rank"]
            for left, right, apart in cosine_pairs(vectors, cluster["row"], min_cosine):
                later, earlier = np.maximum(rank[left], rank[right]), np.minimum(rank[left], rank[right])
                kind = np.full(len(apart), VECTORS[name], dtype=np.int8)
                compared.insert("pairs", {"later": later, "earlier": earlier, "kind": kind, "gap": apart})
            advance(len(rank))


def _clusters(compared: _Compared, name: str, size: int) -> Iterator[dict[str, np.ndarray]]:
    """`rank` and `row` of the items of each cluster, of `size` items."""
    if size <= CLUSTERED_FROM:
        yield compared.found("select rank, row from items order by rowid")
        return
    of_items = f"{name} of items"
    for start in range(0, size, ROWS_AT_ONCE):
        rows = compared.found(f"select row from items where rowid between {start} and {start + ROWS_AT_ONCE - 1}")
        compared.append(of_items, compared.vectors(name)[rows["row"]])
    centroids = fit_centroids(compared.vectors(of_items), size // CLUSTERED_FROM + 1)
    compared.run("create or replace table labels (item bigint, cluster bigint)")
    for start in range(0, size, ROWS_AT_ONCE):
        label = nearest_centroid(compared.vectors(of_items)[start : start + ROWS_AT_ONCE], centroids)
        compared.insert("labels", {"item": np.arange(start, start + len(label)), "cluster": label})
    compared.run(
        "create or replace table clusters as select cluster, item, rank, row from labels "
        "join items on items.rowid = item order by cluster, item"
    )
    for cluster in range(len(centroids)):
        yield compared.found(f"select rank, row from clusters where cluster = {cluster} order by item")


def _choose(compared: _Compared) -> None:
    """Make the table `dropped`: `row`, the id of the row that stands for it (high, low), that one's `leader_row`, kind
    and distance, which is null where vectors give it."""
    compared.run("create table chosen (rank bigint, leader bigint, kind tinyint)")
    pairs = compared.connection.sql("select later, earlier, kind from pairs order by later, kind, gap, earlier")
    is_kept = np.ones(compared.count, dtype=bool)
    for batch in pairs.to_arrow_reader(PAIRS_AT_ONCE):
        later, earlier, kind = (column.to_numpy() for column in batch.columns)
        some = choose_representatives(is_kept, later, earlier)
        compared.insert("chosen", {"rank": later[some], "leader": earlier[some], "kind": kind[some]})
    keys = ", ".join(compared.keys)
    distances = {EXACT: "0", **{kind: _apart("mine", "other", words) for kind, words in compared.hashes.items()}}
    of_kinds = " ".join(f"when {kind} then {distance}" for kind, distance in distances.items())
    compared.run(
        f"""create table dropped as
        with item as (
            select {keys}, coalesce(leader, items.rank) as leader, coalesce(kind, {PERCEPTUAL}) as near
            from items left join chosen using (rank)
            where size > 1 or leader is not null
        ),
        mine as (
            select ranked.*, leader, near from ranked join item using ({keys}) where ranked.rowid <> leader
        )
        select
            mine.row, other.high, other.low, other.row as leader_row,
            if(mine.sha_high = other.sha_high and mine.sha_low = other.sha_low, {EXACT}, near) as kind,
            (case kind {of_kinds} end)::double as distance
        from mine join ranked as other on other.rowid = leader
        order by mine.row"""
    )


def _apart(one: str, other: str, words: Iterable[str]) -> str:
    """SQL of the bits in which two hashes differ; no hash counts as zeros."""
    return " + ".join(f"bit_count(xor({one}.{word}, {other}.{word}))::integer" for word in words)


def _dropped(compared: _Compared, rows: pl.Series) -> pl.DataFrame:
    """`row` of those among some rows, ascending, that another one stands for, its id, kind and distance."""
    first, last = (rows[0], rows[-1]) if len(rows) else (-1, -1)
    found = compared.found(f"select * from dropped where row between {first} and {last} order by row")
    kind, distance = found["kind"], np.ma.filled(found["distance"], 0.0)
    for name, its_kind in VECTORS.items():
        near = np.flatnonzero(kind == its_kind)
        if len(near):
            vectors = compared.vectors(name)
            for at in near.tolist():
                cosine = float(vectors[found["row"][at]] @ vectors[found["leader_row"][at]])
                distance[at] = max(0.0, 1.0 - cosine)
    return pl.DataFrame(
        {
            "row": found["row"],
            "representative": uid_texts(found["high"], found["low"]),
            "kind": [KINDS[one] for one in kind.tolist()],
            "distance": distance,
        },
        schema_overrides={"kind": pl.String},
    )
