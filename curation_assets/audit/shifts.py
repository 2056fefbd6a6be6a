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

#: Upper ends of the groups of caption lengths, in words, but for the last; their names.
LENGTH_ENDS = (0, 5, 10, 20, 40)
LENGTH_NAMES = ("0 words", "1–5 words", "6–10 words", "11–20 words", "21–40 words", "41+ words")
DIMENSIONS = ("domain", "language", "caption length")

Progress = Callable[[int], None]


def language_table(store: ShardStore) -> str | None:
    """The first signals table that has a column `language`; None where there is none."""
    for asset in stored_tables(store):
        if asset.startswith("signals/") and store.scan(asset).collect_schema().get("language") == pl.String:
            return asset
    return None


def dimensions_of(store: ShardStore, shards: Sequence[str], facts: pl.DataFrame) -> dict[str, pl.Series]:
    """Dimension → group of each row; null in none. `facts`: shard, source_row, url, caption of rows of some shards."""
    asset = language_table(store)
    languages = pl.Series([None] * facts.height, dtype=pl.String)
    if asset is not None:
        languages = beside(store, facts, shards, asset, [pl.col("language").cast(pl.String)])[0]["language"]
    hosts = facts.select(hosts_of(pl.col("url")).alias("group"))["group"]
    words = facts.select(pl.col("caption").fill_null("").str.count_matches(r"\S+"))["caption"]
    lengths = pl.Series("group", np.array(LENGTH_NAMES)[np.searchsorted(LENGTH_ENDS, words)])
    return dict(zip(DIMENSIONS, (hosts, languages.alias("group"), lengths), strict=True))


def marks_of(is_judged: np.ndarray, left: np.ndarray, right: np.ndarray) -> pl.DataFrame:
    """(N,) bool each: kept by raw, by either policy → pool, left, right for `shifts`."""
    return pl.DataFrame({"pool": is_judged, "left": left, "right": right}).cast(pl.Int64)


def shifts(pool: Pool, marks: Iterable[pl.DataFrame], on_progress: Progress | None = None) -> pl.DataFrame:
    """One row per dimension and group of the rows that raw kept, the largest changes of share first in a dimension.

    `marks`: `marks_of` every part of the pool. No text of more than a few shards is held at once. `on_progress` gets
    the number of shards that are counted. Raises StoreError where raw/samples has other rows now.
    """
    counted = [pl.DataFrame(schema={"dimension": pl.String, "group": pl.String, **_COUNTS})]
    totals = pl.DataFrame(schema=_COUNTS)
    for shards, of_rows in zip(pool.groups(), marks, strict=True):
        columns = ["shard", "source_row", "url", "caption"]
        rows = pool.store.scan(SAMPLES, shards).select(columns).collect()
        if rows.height != of_rows.height:
            raise StoreError(f"{SAMPLES} has other rows than were judged; `curate run` the pool again")
        totals = pl.concat([totals, of_rows]).sum()
        for name, groups in dimensions_of(pool.store, shards, rows).items():
            counted.append(of_rows.select(pl.lit(name).alias("dimension"), groups.alias("group"), *_COUNTS))
        counted = [pl.concat(counted).group_by("dimension", "group").sum()]
        if on_progress is not None:
            on_progress(len(shards))
    whole = {side: max(totals[side].sum(), 1) for side in ("left", "right")}
    shares = {f"{side}_share": pl.col(side) / total for side, total in whole.items()}
    found = counted[0].filter(pl.col("group").is_not_null() & (pl.col("pool") > 0)).with_columns(**shares)
    by = [pl.col("dimension").cast(pl.Enum(DIMENSIONS)), pl.col("change").abs(), "group"]
    return found.with_columns(change=pl.col("right_share") - pl.col("left_share")).sort(
        by, descending=[False, True, False]
    )


_COUNTS = {"pool": pl.Int64(), "left": pl.Int64(), "right": pl.Int64()}
