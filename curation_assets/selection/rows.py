"""Rows of a pool as cuts see them: frames with a row per row of raw/samples, in its order, some shards at a time."""

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
HELD_ROWS = 1_000_000  # of a pool that is read once for several looks


def uid_columns(column: str = "sample_id") -> list[pl.Expr]:
    """sample_id (32 hex digits) → uid_high, uid_low, the two halves of DataComp's `u8,u8`."""
    text = pl.col(column)
    return [
        text.str.slice(0, 16).str.to_integer(base=16, dtype=pl.UInt64).alias("uid_high"),
        text.str.slice(16, 16).str.to_integer(base=16, dtype=pl.UInt64).alias("uid_low"),
    ]


def floats(column: pl.Series) -> np.ndarray:
    """(N,) float64, NaN for null."""
    return column.cast(pl.Float64).fill_null(float("nan")).to_numpy()


def values_of(rows: pl.DataFrame, reference: str) -> np.ndarray:
    """(N,) float64 values of 'stage.table' as cuts compare them: higher is better, NaN for none."""
    return np.asarray(oriented(reference, floats(rows[reference])))


@dataclass(frozen=True)
class Wanted:
    """What is read of rows beside IDENTITY, `status` and `raw_reason`.

    Of each reference 'stage.table' (or random) the columns `REF` (value, null for none), `REF:reason` (why there is
    none) and `REF:drop_reason` (why a cut by it drops the row); of recipes in `scores` a column `REF:NAME` for each
    score that they fuse; of `texts`, (table, column) each, `TABLE:COLUMN`.
    """

    references: tuple[str, ...] = ()
    scores: tuple[str, ...] = ()
    texts: tuple[tuple[str, str], ...] = ()
    seed: int = 0
    with_reasons: bool = True  # False: of references the values alone

    @classmethod
    def of(cls, policy: Policy, *, steps: int | None = None, with_reasons: bool = True) -> "Wanted":
        """What the cuts of a policy look at, of the first `steps` or of all."""
        references = dict.fromkeys(step.rank_by for step in policy.steps[:steps])
        texts = [(PROVENANCE, "licence")] * bool(policy.licences) + [
            (CONTAMINATION, DROP_REASON)
        ] * policy.decontaminate
        return cls(tuple(references), (), tuple(texts), policy.seed, with_reasons)

    def __or__(self, other: "Wanted") -> "Wanted":
        """Both; the seed is this one's."""
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
        """One at least. `only`: numbers of parts; None: all."""
        ...


@dataclass(frozen=True)
class Frames:
    """Rows that are in memory, with all that is wanted."""

    frames: Sequence[pl.DataFrame]

    def parts(self, wanted: Wanted = NOTHING_MORE, only: Collection[int] | None = None) -> Iterator[pl.DataFrame]:
        """As they are."""
        yield from (one for number, one in enumerate(self.frames) if only is None or number in only)


@dataclass(frozen=True)
class Changed:
    """Rows of which each part goes through a function, which reads `more`."""

    rows: Rows
    change: Callable[[pl.DataFrame], pl.DataFrame]
    more: Wanted = NOTHING_MORE

    def parts(self, wanted: Wanted = NOTHING_MORE, only: Collection[int] | None = None) -> Iterator[pl.DataFrame]:
        """Changed."""
        return map(self.change, self.rows.parts(wanted | self.more, only))


@dataclass(frozen=True)
class Pool:
    """The rows of a pool's shards, repeats dropped."""

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
            count = 0 if manifest is None else manifest.row_count
            size += count
            if groups and size <= ROWS_AT_ONCE:
                groups[-1].append(shard)
            else:
                groups.append([shard])
                size = count
        return groups

    @property
    def row_count(self) -> int:
        """Rows of raw/samples."""
        shards = self.store.partitions(SAMPLES) if self.shards is None else self.shards
        manifests = (self.store.manifest(SAMPLES, shard) for shard in shards)
        return sum(manifest.row_count for manifest in manifests if manifest is not None)

    def held(self, wanted: Wanted) -> Rows:
        """The same rows, read once where they are few."""
        return Frames(list(self.parts(wanted))) if self.row_count <= HELD_ROWS else self


def read_rows(store: ShardStore, shards: Sequence[str], wanted: Wanted = NOTHING_MORE) -> pl.DataFrame:
    """Rows of some shards. Of a sample that raw kept in several rows the first as registered stays kept.

    Raises MissingTableError where a table is not there, StoreError for one that has two rows for one row of
    raw/samples, and for a state that is none.
    """
    columns = ("sample_id", *ROW_KEY, "status", pl.col("reason").alias("raw_reason"))
    rows = store.scan(SAMPLES, list(shards)).select(columns).collect()
    odd = rows.filter(~pl.col("status").is_in(STATES) | pl.col("status").is_null())["status"].unique().to_list()
    if odd:
        raise StoreError(f"{SAMPLES} of {shards[0]} …: status must be one of {STATES} in every row, got {odd}")
    rows = _without_repeats(store, shards, rows)
    for reference in wanted.references:
        if reference == RANDOM:
            rows = rows.with_columns(_random(rows, wanted.seed))
        else:
            rows = rows.hstack(_signal(store, rows, shards, reference, wanted.with_reasons))
    for reference in (one for one in wanted.scores if one != RANDOM):
        rows = rows.hstack(_scores(store, rows, shards, reference))
    for asset, name in wanted.texts:
        found, is_there = beside(store, rows, shards, asset, [pl.col(name).cast(pl.String).alias(f"{asset}:{name}")])
        if (~is_there & (rows["status"] == "kept")).any():
            raise StoreError(f"{asset} has not every row of raw/samples; `curate run` the pool again")
        rows = rows.hstack(found)
    return rows


def dropped(rows: pl.DataFrame, reasons: pl.Expr) -> pl.DataFrame:
    """The rows, of which those that raw kept and that have one of `reasons` (null: none) count as dropped for it."""
    why = pl.when(pl.col("status") == "kept").then(reasons)
    return rows.with_columns(
        pl.when(why.is_not_null()).then(pl.lit("dropped")).otherwise("status").alias("status"),
        pl.coalesce(why, "raw_reason").alias("raw_reason"),
    )


def _without_repeats(store: ShardStore, shards: Sequence[str], rows: pl.DataFrame) -> pl.DataFrame:
    path = store.table_path(DUPLICATES)
    if path.is_file():
        store.check(DUPLICATES)
        state = path.stat()
        recorded = _recorded_repeats(path, state.st_ino, state.st_mtime_ns)
        mine = recorded.filter(pl.col("shard").is_in(list(shards)))
        if mine.is_empty():
            return rows
        keys = rows.select(ROW_KEY).join(mine.with_columns(again=True), on=ROW_KEY, how="left", maintain_order="left")
        again = keys["again"].fill_null(False)
    else:
        kept = rows.with_row_index("at").filter(pl.col("status") == "kept").sort(ROW_KEY)
        later = kept.filter(~pl.col("sample_id").is_first_distinct())["at"]
        again = pl.Series("again", np.isin(np.arange(rows.height), later.to_numpy()))
    return dropped(rows, pl.when(again).then(pl.lit(REPEATED)))


def repeats_digest(store: ShardStore, shard: str) -> str:
    """A digest of which rows of a shard are recorded as repeats; '' where none is."""
    return _repeats_of(store).get(shard, "")


def shards_with_repeats(store: ShardStore) -> list[str]:
    """Shards of which a row is recorded as a repeat."""
    return sorted(_repeats_of(store))


def _repeats_of(store: ShardStore) -> dict[str, str]:
    path = store.table_path(DUPLICATES)
    if not path.is_file():
        return {}
    state = path.stat()
    return _repeats_digests(path, state.st_ino, state.st_mtime_ns)


@functools.lru_cache(maxsize=2)
def _repeats_digests(path: Path, inode: int, modified_ns: int) -> dict[str, str]:
    rows = _recorded_repeats(path, inode, modified_ns).group_by("shard").agg(pl.col("source_row").sort())
    return {shard: hashlib.sha256(repr(of_shard).encode()).hexdigest()[:16] for shard, of_shard in rows.iter_rows()}


@functools.lru_cache(maxsize=2)
def _recorded_repeats(path: Path, inode: int, modified_ns: int) -> pl.DataFrame:
    """The table of repeats, which every shard looks at."""
    return read_parquet(path, columns=list(ROW_KEY))


def _random(rows: pl.DataFrame, seed: int) -> list[pl.Series]:
    """Values of the random ranking, for rows that are kept."""
    kept = (rows["status"] == "kept").arg_true()
    values = pl.Series(RANDOM, [None] * rows.height, dtype=pl.Float64)
    values = values.scatter(kept, random_ranking(rows["sample_id"].gather(kept).to_list(), seed))
    none = pl.Series([None] * rows.height, dtype=pl.String)
    return [values.alias(RANDOM), none.alias(f"{RANDOM}:reason"), none.alias(f"{RANDOM}:{DROP_REASON}")]


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
    """Of the columns of a fused table those of the scores that its recipe fuses; none of any other table."""
    return [name for name in names if "quality" in names and name.endswith("_score")]


def _scores(store: ShardStore, rows: pl.DataFrame, shards: Sequence[str], reference: str) -> pl.DataFrame:
    asset = table_of(reference)
    read = [
        pl.col(name).cast(pl.Float64).fill_nan(None).alias(f"{reference}:{name}")
        for name in score_names(_columns_of(store, shards, asset))
    ]
    return beside(store, rows, shards, asset, read)[0] if read else pl.DataFrame()


def _there(store: ShardStore, shards: Sequence[str], asset: str) -> list[str]:
    """Those of the shards that a table has; all of them where it is one file."""
    if store.table_path(asset).is_file():
        return list(shards)
    return [shard for shard in shards if store.table_path(asset, shard).is_file()]


def _columns_of(store: ShardStore, shards: Sequence[str], asset: str) -> list[str]:
    """Columns of a table. Raises MissingTableError where there is none."""
    if store.table_path(asset).is_file():
        return store.scan(asset).collect_schema().names()
    there = _there(store, shards, asset)
    return store.scan(asset, there[:1] or store.partitions(asset)[:1]).collect_schema().names()


def beside(
    store: ShardStore, rows: pl.DataFrame, shards: Sequence[str], asset: str, columns: Sequence[pl.Expr]
) -> tuple[pl.DataFrame, pl.Series]:
    """Columns of a table, row for row with `rows`, null where it has no row; and (N,) where it has one."""
    is_whole, there = store.table_path(asset).is_file(), _there(store, shards, asset)
    scan = store.scan(asset).filter(pl.col("shard").is_in(list(shards))) if is_whole else None
    if scan is None:
        scan = store.scan(asset, there) if there else store.scan(asset, store.partitions(asset)[:1]).limit(0)
    found = scan.select(pl.col("shard").cast(pl.String), "source_row", *columns).collect()
    keys = rows.select(ROW_KEY)
    if found.height == keys.height and found.select(ROW_KEY).equals(keys):  # as nearly always
        return found.drop(ROW_KEY), pl.Series("is_there", np.ones(rows.height, dtype=bool))
    if found.select(ROW_KEY).is_duplicated().any():
        raise StoreError(f"{asset} has two rows for one row of raw/samples; materialise it again")
    joined = keys.join(found.with_columns(is_there=True), on=ROW_KEY, how="left", maintain_order="left")
    return joined.drop(*ROW_KEY, "is_there"), joined["is_there"].fill_null(False)


def with_values(rows: pl.DataFrame, reference: str, values: np.ndarray) -> pl.DataFrame:
    """The rows with (N,) values in place of 'stage.table', and no words on them."""
    none = pl.lit(None, pl.String)
    named = (none.alias(f"{reference}:reason"), none.alias(f"{reference}:{DROP_REASON}"))
    return rows.with_columns(pl.Series(reference, values).fill_nan(None), *named)
