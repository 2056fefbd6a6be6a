"""Rows of a pool as cuts see them: one per row of raw/samples, in its order, some shards at a time."""

import functools
import hashlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import polars as pl

from curation_assets.core.errors import StoreError
from curation_assets.core.progress import ProgressReporter, Silent
from curation_assets.core.table_names import CONTAMINATION, DUPLICATES, PROVENANCE, SAMPLES, table_of
from curation_assets.methods import oriented
from curation_assets.numeric.selection import random_ranking
from curation_assets.selection.policy import RANDOM, Policy
from curation_assets.stores.parquet import read_parquet
from curation_assets.stores.shard_store import ShardStore

#: Halves of a sample_id: DataComp's u8,u8.
UID = ("uid_high", "uid_low")
#: Columns that identify a row of raw/samples; a sample_id may be in several rows.
ROW_KEY = ("shard", "source_row")
IDENTITY = ("sample_id", *ROW_KEY)
STATES = ("kept", "dropped", "failed")
#: Column of a table that says, in words, why a cut by it drops a row (selection/kinds).
DROP_REASON = "drop_reason"
REPEATED = "duplicate_across_shards"  # why a row is dropped whose sample an earlier one has
ROWS_AT_ONCE = 200_000  # of a pool that is read part by part


def uid_columns(column: str = "sample_id") -> list[pl.Expr]:
    """sample_id (32 hex digits) → uid_high, uid_low, the two halves of DataComp's `u8,u8`."""
    return [
        pl.col(column).str.slice(start, 16).str.to_integer(base=16, dtype=pl.UInt64).alias(name)
        for name, start in zip(UID, (0, 16), strict=True)
    ]


def floats(column: pl.Series) -> np.ndarray:
    """(N,) float64, NaN for null."""
    return column.cast(pl.Float64).fill_null(float("nan")).to_numpy()


def values_of(rows: pl.DataFrame, reference: str) -> np.ndarray:
    """(N,) float64 values of 'stage.table' as cuts compare them: higher is better, NaN for none."""
    return np.asarray(oriented(reference, floats(rows[reference])))


@dataclass(frozen=True)
class Wanted:
    """Which columns are read beside IDENTITY, `status` and `raw_reason`.

    A reference REF is 'stage.table' or random. Each of `references` gives the columns `REF` (the
    value, null for none), `REF:reason` (why there is none) and `REF:drop_reason` (why a cut by it
    drops the row). Each of `scores`, a recipe, gives a column `REF:NAME` for each score that it
    fuses. Each of `texts`, a table and one of its columns, gives the column `TABLE:COLUMN`.
    """

    references: tuple[str, ...] = ()
    scores: tuple[str, ...] = ()
    texts: tuple[tuple[str, str], ...] = ()
    seed: int = 0
    with_reasons: bool = True  # False: only the values of the references

    @classmethod
    def of(cls, policy: Policy, *, steps: int | None = None, with_reasons: bool = True) -> "Wanted":
        """The columns that the cuts of a policy read: its first `steps`, or all of them."""
        references = dict.fromkeys(step.rank_by for step in policy.steps[:steps])
        texts = []
        if policy.licences:
            texts.append((PROVENANCE, "licence"))
        if policy.decontaminate:
            texts.append((CONTAMINATION, DROP_REASON))
        return cls(tuple(references), (), tuple(texts), policy.seed, with_reasons)

    def __or__(self, other: "Wanted") -> "Wanted":
        """The columns of both; seed and `with_reasons` are of the first."""
        return Wanted(
            tuple(dict.fromkeys([*self.references, *other.references])),
            tuple(dict.fromkeys([*self.scores, *other.scores])),
            tuple(dict.fromkeys([*self.texts, *other.texts])),
            self.seed,
            self.with_reasons,
        )


NOTHING_MORE = Wanted()


class Rows(Protocol):
    """Rows of a pool, part by part, which can be read again and again."""

    def parts(self, wanted: Wanted = NOTHING_MORE, only: Collection[int] | None = None) -> Iterator[pl.DataFrame]:
        """The parts, at least one. `only`: numbers of parts; None: all."""
        ...


@dataclass(frozen=True)
class Frames:
    """Rows that are in memory, with all columns that are wanted."""

    frames: Sequence[pl.DataFrame]

    def parts(self, wanted: Wanted = NOTHING_MORE, only: Collection[int] | None = None) -> Iterator[pl.DataFrame]:
        """The frames as they are."""
        return (frame for number, frame in enumerate(self.frames) if only is None or number in only)


@dataclass(frozen=True)
class Changed:
    """Rows whose parts a function changes; it reads the columns `more`, too."""

    rows: Rows
    change: Callable[[pl.DataFrame], pl.DataFrame]
    more: Wanted = NOTHING_MORE

    def parts(self, wanted: Wanted = NOTHING_MORE, only: Collection[int] | None = None) -> Iterator[pl.DataFrame]:
        """The parts, changed."""
        return map(self.change, self.rows.parts(wanted | self.more, only))


@dataclass(frozen=True)
class Pool:
    """The rows of a pool's shards. A row that repeats an earlier sample counts as dropped."""

    store: ShardStore
    progress: ProgressReporter = field(default_factory=Silent)
    shards: tuple[str, ...] | None = None  # None: all

    def parts(self, wanted: Wanted = NOTHING_MORE, only: Collection[int] | None = None) -> Iterator[pl.DataFrame]:
        """Shards that follow each other, some ROWS_AT_ONCE rows of them. Raises as `read_rows`."""
        groups = [group for number, group in enumerate(self.groups()) if only is None or number in only]
        if not groups:
            self.store.scan(SAMPLES)  # raises MissingTableError: what to materialise
        yield from (read_rows(self.store, group, wanted) for group in groups)

    def groups(self) -> list[list[str]]:
        """The shards of each part."""
        groups: list[list[str]] = []
        size = 0
        for shard in self.store.partitions(SAMPLES) if self.shards is None else self.shards:
            manifest = self.store.manifest(SAMPLES, shard)
            count = manifest.row_count if manifest else 0
            size += count
            if groups and size <= ROWS_AT_ONCE:
                groups[-1].append(shard)
            else:
                groups.append([shard])
                size = count
        return groups


def read_rows(store: ShardStore, shards: Sequence[str], wanted: Wanted = NOTHING_MORE) -> pl.DataFrame:
    """Rows of some shards. Of a sample in several rows only the first registered row stays kept.

    Raises MissingTableError where a table is not there, StoreError for a table that has two rows
    for one row of raw/samples, and for an unknown state.
    """
    columns = ("sample_id", *ROW_KEY, "status", pl.col("reason").alias("raw_reason"))
    rows = store.scan(SAMPLES, list(shards)).select(columns).collect()
    odd = rows.filter(~pl.col("status").is_in(STATES) | pl.col("status").is_null())["status"].unique().to_list()
    if odd:
        raise StoreError(f"{SAMPLES} of {shards[0]} …: status must be one of {STATES} in every row, got {odd}")
    rows = _without_repeats(store, shards, rows)
    for reference in wanted.references:
        if reference == RANDOM:
            rows = _with_random(rows, wanted.seed)
        else:
            rows = rows.hstack(_signal(store, rows, shards, reference, wanted.with_reasons))
    for reference in wanted.scores:
        if reference != RANDOM:
            rows = rows.hstack(_scores(store, rows, shards, reference))
    for asset, name in wanted.texts:
        text = pl.col(name).cast(pl.String).alias(f"{asset}:{name}")
        found, is_there = beside(store, rows, shards, asset, [text])
        if (~is_there & (rows["status"] == "kept")).any():
            raise StoreError(f"{asset} has not every row of raw/samples; `curate run` the pool again")
        rows = rows.hstack(found)
    return rows


def dropped(rows: pl.DataFrame, reasons: pl.Expr) -> pl.DataFrame:
    """The rows; where raw kept a row that has one of `reasons` (null: none), it counts as dropped."""
    why = pl.when(pl.col("status") == "kept").then(reasons)
    return rows.with_columns(
        pl.when(why.is_not_null()).then(pl.lit("dropped")).otherwise("status").alias("status"),
        pl.coalesce(why, "raw_reason").alias("raw_reason"),
    )


def _without_repeats(store: ShardStore, shards: Sequence[str], rows: pl.DataFrame) -> pl.DataFrame:
    """The rows; repeats (recorded, or without a table found among these rows) count as dropped."""
    recorded = _recorded_file(store)
    if recorded is None:
        kept = rows.filter(pl.col("status") == "kept").sort(ROW_KEY)
        repeats = kept.filter(~pl.col("sample_id").is_first_distinct()).select(ROW_KEY)
    else:
        store.check(DUPLICATES)
        repeats = _recorded_repeats(*recorded).filter(pl.col("shard").is_in(list(shards)))
    if repeats.is_empty():
        return rows
    marked = repeats.with_columns(is_repeat=True)
    keys = rows.select(ROW_KEY).join(marked, on=ROW_KEY, how="left", maintain_order="left")
    return dropped(rows, pl.when(keys["is_repeat"]).then(pl.lit(REPEATED)))


def repeats_digest(store: ShardStore, shard: str) -> str:
    """A digest of which rows of a shard are recorded as repeats; '' where none is."""
    return _repeats_of(store).get(shard, "")


def shards_with_repeats(store: ShardStore) -> list[str]:
    """Shards that have a row which is recorded as a repeat."""
    return sorted(_repeats_of(store))


def _repeats_of(store: ShardStore) -> dict[str, str]:
    recorded = _recorded_file(store)
    return {} if recorded is None else _repeats_digests(*recorded)


def _recorded_file(store: ShardStore) -> tuple[Path, int, int] | None:
    """Path, inode and time of the table of repeats, by which it is read once; None without one."""
    path = store.table_path(DUPLICATES)
    if not path.is_file():
        return None
    state = path.stat()
    return path, state.st_ino, state.st_mtime_ns


@functools.lru_cache(maxsize=2)
def _repeats_digests(path: Path, inode: int, modified_ns: int) -> dict[str, str]:
    rows = _recorded_repeats(path, inode, modified_ns).group_by("shard").agg(pl.col("source_row").sort())
    return {shard: hashlib.sha256(repr(of_shard).encode()).hexdigest()[:16] for shard, of_shard in rows.iter_rows()}


@functools.lru_cache(maxsize=2)
def _recorded_repeats(path: Path, inode: int, modified_ns: int) -> pl.DataFrame:
    """The table of repeats, which is read for every shard."""
    return read_parquet(path, columns=list(ROW_KEY))


def _with_random(rows: pl.DataFrame, seed: int) -> pl.DataFrame:
    """The rows with values of the random ranking where they are kept."""
    is_kept = rows["status"] == "kept"
    values = np.full(rows.height, np.nan)
    values[is_kept.to_numpy()] = random_ranking(rows["sample_id"].filter(is_kept).to_list(), seed)
    return with_values(rows, RANDOM, values)


def _signal(
    store: ShardStore, rows: pl.DataFrame, shards: Sequence[str], reference: str, with_reasons: bool
) -> pl.DataFrame:
    asset = table_of(reference)
    names = _columns_of(store, shards, asset)
    value = "quality" if "quality" in names else "value"
    absent = {value, "reason", "source_row"} - set(names)
    if absent:
        raise StoreError(f"{asset} lacks the columns {sorted(absent)}; it has {names}")
    values = pl.col(value).cast(pl.Float64).fill_nan(None).alias(reference)
    if not with_reasons:
        return beside(store, rows, shards, asset, [values])[0]
    drop_reason = pl.col(DROP_REASON) if DROP_REASON in names else pl.lit(None, pl.String)
    read = [
        values,
        pl.col("reason").cast(pl.String).alias(f"{reference}:reason"),
        drop_reason.alias(f"{reference}:{DROP_REASON}"),
    ]
    found, is_there = beside(store, rows, shards, asset, read)
    if is_there.all():
        return found
    reason = pl.when(is_there).then(f"{reference}:reason").otherwise(pl.lit("no_row"))
    return found.with_columns(reason.alias(f"{reference}:reason"))


def score_names(names: Sequence[str]) -> list[str]:
    """The columns of a recipe's table that are scores; none of any other table."""
    return [name for name in names if "quality" in names and name.endswith("_score")]


def _scores(store: ShardStore, rows: pl.DataFrame, shards: Sequence[str], reference: str) -> pl.DataFrame:
    asset = table_of(reference)
    read = [
        pl.col(name).cast(pl.Float64).fill_nan(None).alias(f"{reference}:{name}")
        for name in score_names(_columns_of(store, shards, asset))
    ]
    return beside(store, rows, shards, asset, read)[0] if read else pl.DataFrame()


def _table(store: ShardStore, shards: Sequence[str], asset: str, at_most: int | None = None) -> pl.LazyFrame:
    """Rows of a table in (at most so many of) the shards; none where it has no such shard.

    Raises MissingTableError where the table is not there.
    """
    if store.table_path(asset).is_file():
        return store.scan(asset).filter(pl.col("shard").is_in(list(shards)))
    there = [shard for shard in shards if store.table_path(asset, shard).is_file()]
    if there:
        return store.scan(asset, there[:at_most])
    return store.scan(asset, store.partitions(asset)[:1]).limit(0)


def _columns_of(store: ShardStore, shards: Sequence[str], asset: str) -> list[str]:
    return _table(store, shards, asset, at_most=1).collect_schema().names()


def beside(
    store: ShardStore, rows: pl.DataFrame, shards: Sequence[str], asset: str, columns: Sequence[pl.Expr]
) -> tuple[pl.DataFrame, pl.Series]:
    """Columns of a table beside `rows`, null where it has no row; and (N,) bool: where it has one.

    Raises MissingTableError without the table, StoreError where it has two rows for one row.
    """
    table = _table(store, shards, asset)
    found = table.select(pl.col("shard").cast(pl.String), "source_row", *columns).collect()
    keys = rows.select(ROW_KEY)
    if found.height == keys.height and found.select(ROW_KEY).equals(keys):  # as nearly always
        return found.drop(ROW_KEY), pl.Series("is_there", np.ones(rows.height, dtype=bool))
    if found.select(ROW_KEY).is_duplicated().any():
        raise StoreError(f"{asset} has two rows for one row of raw/samples; materialise it again")
    joined = keys.join(found.with_columns(is_there=True), on=ROW_KEY, how="left", maintain_order="left")
    return joined.drop(*ROW_KEY, "is_there"), joined["is_there"].fill_null(False)


def looked_up(store: ShardStore, rows: pl.DataFrame, asset: str, *columns: str | pl.Expr) -> pl.DataFrame:
    """The rows with columns of a table at their places, null where it has no row. No other row of it is held.

    Raises MissingTableError without the table.
    """
    table = _table(store, rows["shard"].unique().to_list(), asset)
    named = table.select(pl.col("shard").cast(pl.String), "source_row", *columns)
    found = named.join(rows.lazy().select(ROW_KEY), on=ROW_KEY, how="semi").collect()
    return rows.join(found, on=ROW_KEY, how="left", maintain_order="left")


def with_values(rows: pl.DataFrame, reference: str, values: np.ndarray) -> pl.DataFrame:
    """The rows with the columns of a reference: (N,) values, NaN for none, and no reasons."""
    none = pl.lit(None, pl.String)
    named = (none.alias(f"{reference}:reason"), none.alias(f"{reference}:{DROP_REASON}"))
    return rows.with_columns(pl.Series(reference, values).fill_nan(None), *named)
