"""Which groups of samples a policy favours: counts by domain, language and caption length, shard by shard."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from curation_assets.core.errors import StoreError
from curation_assets.core.table_names import SAMPLES
from curation_assets.numeric.words import word_counts
from curation_assets.selection.part_by_part import Pool, by_shards
from curation_assets.selection.rows import PoolRows
from curation_assets.stores.catalog import stored_tables
from curation_assets.stores.columns import each_in_threads, read_columns
from curation_assets.stores.parquet import read_parquet
from curation_assets.stores.shard_store import ShardStore
from curation_assets.stores.web_addresses import hosts_of

#: Upper ends of the groups of caption lengths, in words.
LENGTH_GROUPS = (5, 10, 20, 40)
DIMENSIONS = ("domain", "language", "caption length")
COUNTED_ROWS = 200_000  # rows whose domains are counted at once: some 40 MB of URLs
#: Bits of a row's mark.
JUDGED, LEFT, RIGHT = 1, 2, 4

Progress = Callable[[int], None]


def _length_lows() -> tuple[int, ...]:
    return (1, *(high + 1 for high in LENGTH_GROUPS))


def length_group_names() -> list[str]:
    """Names of the groups of caption lengths, from the shortest."""
    lows = _length_lows()
    return [
        "0 words",
        *(f"{low}–{high} words" for low, high in zip(lows, LENGTH_GROUPS, strict=False)),
        f"{lows[-1]}+ words",
    ]


def _words(caption: pl.Expr) -> pl.Expr:
    return caption.fill_null("").str.count_matches(r"\S+")


def _length_group(caption: pl.Expr) -> pl.Expr:
    words, names = _words(caption), length_group_names()
    group = pl.lit(names[0])
    for low, name in zip(_length_lows(), names[1:], strict=True):
        group = pl.when(words >= low).then(pl.lit(name)).otherwise(group)
    return group


def language_table(store: ShardStore) -> str | None:
    """The first signals table that has a column `language`; None where there is none."""
    for asset in stored_tables(store):
        if asset.startswith("signals/") and store.scan(asset).collect_schema().get("language") == pl.String:
            return asset
    return None


def dimensions_of(rows: PoolRows, facts: pl.DataFrame) -> dict[str, pl.Series]:
    """Dimension → group of each row that raw kept; null in none. `facts`: url and caption of those rows, in order."""
    asset = language_table(rows.store)
    language = pl.Series("language", [None] * len(rows), dtype=pl.String)
    if asset is not None:
        language = rows.column(asset, "language")
    described = facts.with_columns(language.filter(pl.Series(rows.is_kept)))
    groups = (hosts_of(pl.col("url")), pl.col("language"), _length_group(pl.col("caption")))
    return {
        name: described.select(group.alias("group"))["group"] for name, group in zip(DIMENSIONS, groups, strict=True)
    }


def marks_of(is_judged: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """(N,) bool each: kept by raw, by either policy → (N,) uint8 for `shifts`."""
    return is_judged * np.uint8(JUDGED) | left * np.uint8(LEFT) | right * np.uint8(RIGHT)


def shifts(pool: Pool, marks: Iterable[np.ndarray], on_progress: Progress | None = None) -> pl.DataFrame:
    """One row per dimension and group of the rows that raw kept, the largest changes of share first in a dimension.

    `marks`: `marks_of` every part of the pool. No text of more than a few shards is held at once. `on_progress` gets
    the number of shards that are counted. Raises StoreError where raw/samples has other rows now.
    """
    counts: dict[str, pl.DataFrame] = {}
    by_marks = np.zeros(8, dtype=np.int64)
    for rows, of_rows in by_shards(pool, marks):
        by_marks += np.bincount(of_rows, minlength=8)
        for name, more in _counts(rows, of_rows, on_progress).items():
            counts[name] = _added([counts[name], more]) if name in counts else more
    bits = (("left", LEFT), ("right", RIGHT))
    totals = {side: max(int(by_marks[np.arange(8) & bit > 0].sum()), 1) for side, bit in bits}
    return pl.concat(
        counts[dimension]
        .filter(pl.col("group").is_not_null() & (pl.col("pool") > 0))
        .select(
            pl.lit(dimension).alias("dimension"), "group", "pool", "left", "right",
            *((pl.col(side) / total).alias(f"{side}_share") for side, total in totals.items()),
        )
        .with_columns((pl.col("right_share") - pl.col("left_share")).alias("change"))
        .sort(pl.col("change").abs(), "group", descending=[True, False])
        for dimension in DIMENSIONS
    )  # fmt: skip


def _counts(rows: PoolRows, marks: np.ndarray, on_progress: Progress | None) -> dict[str, pl.DataFrame]:
    """Dimension → group, pool, left, right. `marks` (N,) uint8."""
    store, shards = rows.store, rows.shard.words
    by_shard, ends = _by_shard(rows.shard.codes, len(shards))
    asset = language_table(store)
    languages = None if asset is None else _Languages(store, asset)

    def read(path: Path) -> tuple[pl.DataFrame, np.ndarray]:
        """url, language and marks of a shard, and its (lengths, 8) counts."""
        shard = path.parent.name.removeprefix("shard=")
        number = shards.index(shard)
        mine = by_shard[ends[number] : ends[number + 1]]
        table = read_columns(path, ["source_row", "url", "caption"])
        source_row = table.column("source_row").to_numpy()
        mark = marks[mine[_indices(rows.source_row[mine], source_row, path)]]
        lengths = np.searchsorted(_length_lows(), _word_counts(table.column("caption")), side="right")
        size = (len(LENGTH_GROUPS) + 2) * 8
        counted = np.bincount(lengths * 8 + mark, minlength=size).reshape(-1, 8)
        part = pl.DataFrame({"url": pl.Series(table.column("url"), dtype=pl.String), "mark": mark})
        language = pl.lit(None, pl.String) if languages is None else languages.of(shard, source_row)
        return part.with_columns(language.alias("language")), counted

    lengths = np.zeros((len(LENGTH_GROUPS) + 2, 8), dtype=np.int64)
    empty = pl.DataFrame(schema={"group": pl.String, "pool": pl.Int64, "left": pl.Int64, "right": pl.Int64})
    parts = {"domain": [empty], "language": [empty]}
    block: list[pl.DataFrame] = []
    for part, counted in each_in_threads(read, store.checked_paths(SAMPLES, list(shards))):
        lengths += counted
        block.append(part)
        if on_progress is not None:
            on_progress(1)
        if sum(of_group.height for of_group in block) >= COUNTED_ROWS:
            _count(block, parts)
            block = []
    if block:
        _count(block, parts)
    counts = {name: _added(some) for name, some in parts.items()}
    bits = [np.arange(8) & bit > 0 for bit in (JUDGED, LEFT, RIGHT)]
    counts["caption length"] = pl.DataFrame(
        [
            pl.Series("group", length_group_names()),
            *(
                pl.Series(name, lengths[:, bit].sum(axis=1))
                for name, bit in zip(("pool", "left", "right"), bits, strict=True)
            ),
        ]
    )
    return counts


def _added(counts: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """group, pool, left, right: sums of each group."""
    return pl.concat(counts).group_by("group").agg(pl.col("pool", "left", "right").sum())


def _count(block: Sequence[pl.DataFrame], parts: dict[str, list[pl.DataFrame]]) -> None:
    """Add the counts of some shards to `parts`: group, pool, left, right."""
    rows = pl.concat(block)
    sums = [
        (pl.col("mark") & bit > 0).sum().cast(pl.Int64).alias(name)
        for name, bit in (("pool", JUDGED), ("left", LEFT), ("right", RIGHT))
    ]
    parts["domain"].append(rows.group_by(hosts_of(pl.col("url")).alias("group")).agg(sums))
    if rows["language"].null_count() < rows.height:
        parts["language"].append(rows.group_by(pl.col("language").alias("group")).agg(sums))


def _by_shard(codes: np.ndarray, shards: int) -> tuple[np.ndarray, np.ndarray]:
    """(N,) positions, shard after shard, and (S + 1,) where each begins. Codes of 16 bits sort by radix."""
    small = codes.astype(np.uint16) if shards <= 2**16 else codes
    ends = np.concatenate([[0], np.cumsum(np.bincount(codes, minlength=shards))])
    return np.argsort(small, kind="stable"), ends


def _indices(known: np.ndarray, keys: np.ndarray, path: Path) -> np.ndarray:
    """(M,) where each source row of a file is among `known` (M,). Raises StoreError unless both are the same rows."""
    order = np.argsort(known)
    in_order = known[order]
    indices = np.minimum(np.searchsorted(in_order, keys), max(len(known) - 1, 0))
    if len(known) != len(keys) or not np.array_equal(in_order[indices], keys):
        raise StoreError(
            f"{path} has {len(keys)} rows that are not the {len(known)} known ones; `curate run` the pool again"
        )
    return order[indices]


def _word_counts(captions: Any) -> np.ndarray:
    """(n,) words of each caption of an Arrow column, as `_words` counts them."""
    texts = captions.combine_chunks().cast(pa.large_string()).fill_null("")
    _, ends, letters = texts.buffers()
    offsets = np.frombuffer(ends, dtype=np.int64)[texts.offset : texts.offset + len(texts) + 1]
    data = np.frombuffer(letters, dtype=np.uint8) if letters is not None else np.zeros(0, dtype=np.uint8)
    counts, is_sure = word_counts(data[: offsets[-1]], offsets)
    doubtful = np.flatnonzero(~is_sure)
    if len(doubtful):
        doubtful_captions = pl.DataFrame({"caption": pl.Series(texts.take(pa.array(doubtful)), dtype=pl.String)})
        counts[doubtful] = doubtful_captions.select(_words(pl.col("caption")))["caption"].to_numpy()
    return counts


class _Languages:
    """Languages of rows, as a signals table has them."""

    def __init__(self, store: ShardStore, asset: str) -> None:
        self._store, self._asset = store, asset
        columns = ["shard", "source_row", "language"]
        is_whole = store.table_path(asset).is_file()
        self._whole = store.scan(asset).select(columns).collect() if is_whole else None

    def of(self, shard: str, source_row: np.ndarray) -> pl.Series:
        """(n,) languages of rows of a shard; null for rows that the table lacks."""
        if self._whole is not None:
            known = self._whole.filter(pl.col("shard") == shard)
        else:
            path = self._store.table_path(self._asset, shard)
            if not path.is_file():
                return pl.Series("language", [None] * len(source_row), dtype=pl.String)
            known = pl.DataFrame(read_parquet(path, columns=["source_row", "language"]))
        if np.array_equal(known["source_row"].to_numpy(), source_row):
            return known["language"]
        rows = pl.DataFrame({"source_row": source_row})
        return rows.join(known, on="source_row", how="left", maintain_order="left")["language"]
