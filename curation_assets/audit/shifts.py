"""Which groups of samples a policy favours: counts by domain, language and caption length, shard by shard."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import polars as pl

from curation_assets.core.errors import StoreError
from curation_assets.core.table_names import SAMPLES
from curation_assets.selection.rows import Pool, beside
from curation_assets.stores.catalog import stored_tables
from curation_assets.stores.shard_store import ShardStore
from curation_assets.stores.web_addresses import hosts_of

#: Upper ends of the groups of caption lengths, in words.
LENGTH_GROUPS = (5, 10, 20, 40)
DIMENSIONS = ("domain", "language", "caption length")
#: Bits of a row's mark.
JUDGED, LEFT, RIGHT = 1, 2, 4
_BITS = (("pool", JUDGED), ("left", LEFT), ("right", RIGHT))

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


def dimensions_of(store: ShardStore, shards: Sequence[str], facts: pl.DataFrame) -> dict[str, pl.Series]:
    """Dimension → group of each row; null in none. `facts`: shard, source_row, url, caption of rows of some shards."""
    described = facts.with_columns(_languages(store, facts, shards))
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
    empty = pl.DataFrame(schema={"group": pl.String, **dict.fromkeys(("pool", "left", "right"), pl.Int64)})
    counts = dict.fromkeys(DIMENSIONS, empty)
    lengths, by_marks = np.zeros((len(LENGTH_GROUPS) + 2, 8), dtype=np.int64), np.zeros(8, dtype=np.int64)
    for shards, of_rows in zip(pool.groups(), marks, strict=True):
        columns = ["shard", "source_row", "url", "caption"]
        rows = pool.store.scan(SAMPLES, shards).select(columns).collect()
        if rows.height != len(of_rows):
            raise StoreError(f"{SAMPLES} has other rows than were judged; `curate run` the pool again")
        by_marks += np.bincount(of_rows, minlength=8)
        words = rows.select(_words(pl.col("caption"))).to_series().to_numpy()
        place = np.searchsorted(_length_lows(), words, side="right")
        lengths += np.bincount(place * 8 + of_rows, minlength=lengths.size).reshape(-1, 8)
        rows = rows.with_columns(mark=pl.Series(of_rows, dtype=pl.UInt8))
        counts["domain"] = _added([counts["domain"], _counted(rows, hosts_of(pl.col("url")))])
        languages = _languages(pool.store, rows, shards)
        counts["language"] = _added([counts["language"], _counted(rows, languages)])
        if on_progress is not None:
            on_progress(len(shards))
    names = pl.DataFrame({"group": length_group_names()})
    counts["caption length"] = names.with_columns(
        pl.Series(name, lengths[:, np.arange(8) & bit > 0].sum(axis=1)) for name, bit in _BITS
    )
    totals = {side: max(int(by_marks[np.arange(8) & bit > 0].sum()), 1) for side, bit in _BITS[1:]}
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


def _counted(rows: pl.DataFrame, group: pl.Expr | pl.Series) -> pl.DataFrame:
    """group, pool, left, right: counts of the rows with a mark for each."""
    sums = [(pl.col("mark") & bit > 0).sum().cast(pl.Int64).alias(name) for name, bit in _BITS]
    return rows.select(group.alias("group"), "mark").group_by("group").agg(sums)


def _added(counts: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """group, pool, left, right: sums of each group."""
    return pl.concat(counts).group_by("group").agg(pl.col("pool", "left", "right").sum())


def _languages(store: ShardStore, rows: pl.DataFrame, shards: Sequence[str]) -> pl.Series:
    """(n,) languages of rows of some shards, as a signals table has them; null where it lacks them, or none does."""
    asset = language_table(store)
    if asset is None:
        return pl.Series("language", [None] * rows.height, dtype=pl.String)
    return beside(store, rows, shards, asset, [pl.col("language").cast(pl.String)])[0]["language"]
