"""The rows of a pool as arrays, sorted by sample_id: what verdicts, differences and plans are computed from."""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from curation_assets.core.errors import StoreError
from curation_assets.numeric.identity import UID_DTYPE, to_u64_pair
from curation_assets.numeric.selection import random_ranking
from curation_assets.numeric.sorting import argsort, gather, in_runs
from curation_assets.selection.policy import RANDOM
from curation_assets.stores.columns import coded_column, each_file, hex_column, read_columns
from curation_assets.stores.shard_store import ShardStore

#: Every table of this package is sorted so: ids as unsigned pairs, which is the order of the hex digits and of the npy.
ROW_ORDER = ("uid_high", "uid_low", "shard", "source_row")
#: Columns that identify a row of raw/samples; a sample_id may be in several rows.
ROW_KEY = ("shard", "source_row")
_State = tuple[Any, ...]  # which files a table consists of, and when they were written

#: Column of a table that says, in words, why a cut by it drops a row (selection/kinds).
DROP_REASON = "drop_reason"
RECENT_BYTES = 512 << 20  # of signals that are kept for the next reader

#: Rows whose sample another shard has already; see stages/filtered/tables.py.
DUPLICATES = "filtered/duplicates"


def uid_columns(column: str = "sample_id") -> list[pl.Expr]:
    """sample_id (32 hex digits) → uid_high, uid_low, the two halves of DataComp's `u8,u8`."""
    text = pl.col(column)
    return [
        text.str.slice(0, 16).str.to_integer(base=16, dtype=pl.UInt64).alias("uid_high"),
        text.str.slice(16, 16).str.to_integer(base=16, dtype=pl.UInt64).alias("uid_low"),
    ]


def uid_texts(high: pl.Series, low: pl.Series) -> pl.Series:
    """The inverse of `uid_columns`: (N,) and (N,) → (N,) sample_ids."""
    pairs = np.stack([high.to_numpy(), low.to_numpy()], axis=1).astype(">u8")  # (N, 2)
    texts = np.frombuffer(pairs.tobytes().hex().encode(), dtype="S32").astype("U32")
    return pl.Series("sample_id", texts, dtype=pl.String)


def packed_uids(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    """(N,) halves, sorted → (N,) structured u8,u8 as `numeric.identity.pack_uids` gives."""
    packed = np.empty(len(high), dtype=UID_DTYPE)
    packed["f0"], packed["f1"] = high, low
    return packed


@dataclass(frozen=True)
class Texts:
    """A column of few different texts: (N,) codes, -1 for null, and the text of each code."""

    codes: np.ndarray
    words: list[str]

    @classmethod
    def of(cls, column: pl.Series) -> "Texts":
        """Encode a column of strings."""
        words = column.drop_nulls().unique().cast(pl.String).sort().to_list()
        codes = column.cast(pl.Enum(words)).to_physical().cast(pl.Int32)
        return cls(codes.fill_null(-1).to_numpy(), words)

    def series(self, name: str) -> pl.Series:
        """As an Enum, which Parquet stores as a dictionary."""
        return enum_series(name, self.codes, self.words)


def enum_series(name: str, codes: np.ndarray, words: Sequence[str]) -> pl.Series:
    """(N,) codes into `words`, -1 for null → Enum of only the words that occur, sorted."""
    used = sorted({words[code] for code in np.flatnonzero(np.bincount(codes + 1)[1:]).tolist()})
    code_of = {word: code for code, word in enumerate(used)}
    table = np.array([code_of.get(word, 0) for word in words] or [0], dtype=np.uint32)
    physical = pl.Series(name, table[np.maximum(codes, 0)], dtype=pl.UInt32)
    if used and codes.min(initial=0) >= 0:
        return physical.cat.to(pl.Enum(used))
    nullable = pl.select(pl.when(pl.lit(codes >= 0)).then(physical).alias(name)).to_series()
    return nullable.cat.to(pl.Enum(used)) if used else pl.Series(name, [None] * len(codes), dtype=pl.Enum([]))


@dataclass(frozen=True)
class Signal:
    """One number per row of the pool, and why it is missing where it is."""

    values: np.ndarray  # (N,) float64, NaN where there is none
    reasons: Texts
    scores: dict[str, np.ndarray] = field(default_factory=dict)  # recipes: the standardised scores they fuse, (N,)
    drop_reasons: Texts | None = None  # fitted recipes: why a cut drops the row, in words

    @property
    def size(self) -> int:
        """Bytes."""
        more = [] if self.drop_reasons is None else [self.drop_reasons.codes]
        return sum(column.nbytes for column in (self.values, self.reasons.codes, *self.scores.values(), *more))


@dataclass(frozen=True)
class StoredRows:
    """Rows of raw/samples as stored, shard after shard."""

    uid_high: np.ndarray  # (N,) uint64
    uid_low: np.ndarray
    shard: np.ndarray  # (N,) int32 codes into the shards that were read
    source_row: np.ndarray  # (N,) int64
    status: np.ndarray  # (N,) int8, as STATES
    reason: Texts


def stored_rows(store: ShardStore, shards: Sequence[str]) -> StoredRows:
    """Identities and states of shards. Raises MissingTableError where one is missing, or none is named."""
    parts = list(each_file(_read_states, store.checked_paths("raw/samples", shards)))
    high, low, source_row, status = (np.concatenate([part[n] for part in parts]) for n in range(4))
    lengths = [len(part[0]) for part in parts]
    return StoredRows(
        high,
        low,
        np.repeat(np.arange(len(parts), dtype=np.int32), lengths),
        source_row,
        status,
        _merged([part[4] for part in parts]),
    )


def _read_states(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, Texts]:
    """(n,) halves of the ids, (n,) source rows, (n,) status codes and reasons of one shard."""
    table = read_columns(path, ["sample_id", "source_row", "status", "reason"])
    codes, words = coded_column(table.column("status"))
    odd = sorted(set(words) - set(STATES)) + (["null"] if (codes < 0).any() else [])
    if odd:
        raise StoreError(f"{path}: status must be one of {STATES} in every row, got {odd}")
    status = np.array([STATES.index(word) for word in words] or [0], dtype=np.int8)[codes]
    ids = hex_column(table.column("sample_id")).reshape(-1, 2)
    reasons = Texts(*coded_column(table.column("reason")))
    return ids[:, 0].copy(), ids[:, 1].copy(), table.column("source_row").to_numpy(), status, reasons


def _merged(parts: Sequence[Texts]) -> Texts:
    """One after the other, with sorted words."""
    words = sorted({word for part in parts for word in part.words})
    code_of = {word: code for code, word in enumerate(words)}
    codes = [
        np.array([*(code_of[word] for word in part.words), -1], dtype=np.int32)[part.codes]  # code -1 takes the last
        for part in parts
    ]
    return Texts(np.concatenate([np.zeros(0, dtype=np.int32), *codes]), words)


@dataclass
class PoolRows:
    """All rows of raw/samples, sorted by ROW_ORDER. Of a sample in several rows, the first as registered counts."""

    store: ShardStore
    uid_high: np.ndarray
    uid_low: np.ndarray
    shard: Texts
    source_row: np.ndarray
    status: np.ndarray  # (N,) 0 kept, 1 dropped, 2 failed, as STATES
    raw_reason: Texts
    row_keys: pl.DataFrame  # ROW_KEY as stored, before sorting
    order: np.ndarray  # sorted row → stored row
    shards: tuple[str, ...] | None = None  # None: all of the pool
    _signals: dict[str, Signal] = field(default_factory=dict)
    _recent: OrderedDict[str, tuple[_State, Signal]] | None = None  # shared by all that read the same pool whole

    def __len__(self) -> int:
        return len(self.uid_high)

    @classmethod
    def read(cls, store: ShardStore, shards: Sequence[str] | None = None) -> "PoolRows":
        """Read raw/samples, of all shards or those named; repeats are dropped. Raises MissingTableError."""
        rows = cls.with_repeats(store) if shards is None else cls._read(store, tuple(sorted(shards)))
        if store.table_path(DUPLICATES).is_file():
            rows._drop(rows._positions_of(store.read(DUPLICATES)))
        rows._drop(rows.repeats())
        return rows

    @classmethod
    def with_repeats(cls, store: ShardStore) -> "PoolRows":
        """All of raw/samples as it is: a sample in several rows is kept in each. Raises MissingTableError.

        The rows of the last pool that was read whole are kept (some 60 B each) for the next policy to be judged, and
        with them the signals that were read last.
        """
        state = _state_of(store, "raw/samples")
        cached = _last.get("pool")
        if cached is None or cached[0] != state:
            _last.clear()  # make room first
            cached = _last["pool"] = (state, cls._read(store, None))
            cached[1]._recent = OrderedDict()
        return replace(cached[1], store=store, _signals={})

    @classmethod
    def _read(cls, store: ShardStore, only: tuple[str, ...] | None) -> "PoolRows":
        shards = store.partitions("raw/samples") if only is None else only
        stored = stored_rows(store, shards)
        shard_of_row = pl.Series("shard", stored.shard.astype(np.uint32)).cat.to(pl.Enum(shards))  # empty ones, too
        keys = pl.DataFrame([shard_of_row, pl.Series("source_row", stored.source_row)])
        order = _row_order(stored)
        columns = [stored.uid_high, stored.uid_low, stored.source_row, stored.shard, stored.status, stored.reason.codes]
        high, low, row, shard, status, reason = gather(columns, order)
        reasons = Texts(reason, stored.reason.words)
        return cls(store, high, low, Texts(shard, list(shards)), row, status, reasons, keys, order, only)

    def repeats(self, first_too: bool = False) -> np.ndarray:
        """Rows whose sample an earlier row (by shard and source_row) has already, both kept by raw.

        `first_too`: with the first row of each such sample.
        """
        kept = np.flatnonzero(self.status == KEPT)
        high = self.uid_high[kept]
        again = np.zeros(len(kept), dtype=bool)
        same = np.flatnonzero(high[1:] == high[:-1])  # few: the rest need no look at whole ids
        again[same + 1] = self.uid_low[kept[same + 1]] == self.uid_low[kept[same]]
        if first_too:
            again[:-1] |= again[1:]
        return kept[again]

    def _drop(self, repeats: np.ndarray) -> None:
        repeats = repeats[self.status[repeats] == KEPT]
        if len(repeats):
            words = [*self.raw_reason.words, "duplicate_across_shards"]
            status, codes = self.status.copy(), self.raw_reason.codes.copy()
            status[repeats], codes[repeats] = DROPPED, len(words) - 1
            self.status, self.raw_reason = status, Texts(codes, words)

    def _positions_of(self, keys: pl.DataFrame) -> np.ndarray:
        """Sorted positions of rows given by ROW_KEY; unknown rows are left out."""
        known = keys.select(ROW_KEY).filter(pl.col("shard").is_in(self.shard.words))
        if known.is_empty():
            return np.zeros(0, dtype=np.int64)
        mine = self.row_keys.with_row_index("stored").with_columns(pl.col("shard").cast(pl.String))
        stored = mine.join(known, on=ROW_KEY, how="semi")["stored"].to_numpy()
        return np.sort(self.stored_order[stored])

    @cached_property
    def stored_order(self) -> np.ndarray:
        """(N,) stored row → its position here: the inverse of `order`."""
        position = np.empty(len(self), dtype=np.int64)
        position[self.order] = np.arange(len(self))
        return position

    def count_up_to(self, sample_id: str) -> int:
        """How many rows have this sample_id or a lower one: they come first."""
        high, low = (np.uint64(half) for half in to_u64_pair(sample_id))
        first, end = np.searchsorted(self.uid_high, high), np.searchsorted(self.uid_high, high, side="right")
        return int(first + np.searchsorted(self.uid_low[first:end], low, side="right"))

    @cached_property
    def rows_sha256(self) -> str:
        """Which rows these are, in which order: 64 hex digits over ids, shards and source rows."""
        digest = hashlib.sha256(json.dumps(self.shard.words).encode())
        for column in (self.uid_high, self.uid_low, self.shard.codes, self.source_row):
            digest.update(np.ascontiguousarray(column).data)
        return digest.hexdigest()

    @property
    def is_kept(self) -> np.ndarray:
        """(N,) bool: raw kept the row, so policies judge it."""
        return self.status == KEPT

    @property
    def sample_ids(self) -> pl.Series:
        """(N,) ids as text."""
        return uid_texts(pl.Series(self.uid_high), pl.Series(self.uid_low))

    def signal(self, reference: str, seed: int = 0) -> Signal:
        """Values of 'stage.table', or of the random ranking with `seed`. Raises what reading the table raises."""
        key = f"{RANDOM}:{seed}" if reference == RANDOM else reference
        if key not in self._signals:
            self._signals[key] = self._random(seed) if reference == RANDOM else self._recent_signal(reference)
        return self._signals[key]

    def _recent_signal(self, reference: str) -> Signal:
        """A signal as its tables have it now: a policy's cut, verdicts and ledger read the same ones."""
        if self._recent is None:
            return self._read_signal(reference)
        state = _state_of(self.store, reference.replace(".", "/"))
        known = self._recent.pop(reference, None)
        signal = known[1] if known is not None and known[0] == state else self._read_signal(reference)
        self._recent[reference] = (state, signal)
        while len(self._recent) > 1 and sum(recent.size for _, recent in self._recent.values()) > RECENT_BYTES:
            self._recent.popitem(last=False)
        return signal

    def provide(self, reference: str, signal: Signal, seed: int = 0) -> None:
        """Use `signal` as 'stage.table' (or as the random ranking) instead of reading it."""
        self._signals[f"{RANDOM}:{seed}" if reference == RANDOM else reference] = signal

    def with_signal(self, reference: str, signal: Signal) -> "PoolRows":
        """The same rows with `signal` in place of 'stage.table'."""
        return replace(self, _signals={**self._signals, reference: signal})

    def facts(self, columns: Sequence[str]) -> pl.DataFrame:
        """Columns of raw/samples, (N,) rows in our order."""
        keys = self.store.partitions("raw/samples") if self.shards is None else self.shards
        paths = self.store.checked_paths("raw/samples", keys)
        stored = pl.scan_parquet(paths, hive_partitioning=False).select(columns).collect()
        return stored[self.order]

    def column(self, asset: str, name: str) -> pl.Series:
        """A column of a table that carries on raw/samples, in our order."""
        frame = self._scan(asset, name).with_columns(reason=pl.lit(None, pl.String)).collect()
        return self._aligned(asset, frame)[name][self.order]

    def _random(self, seed: int) -> Signal:
        values = np.full(len(self), np.nan)
        kept = self.is_kept
        ids = uid_texts(pl.Series(self.uid_high[kept]), pl.Series(self.uid_low[kept]))
        values[kept] = random_ranking(ids.to_list(), seed)
        return Signal(values, Texts(np.full(len(self), -1, dtype=np.int32), []))

    def _read_signal(self, reference: str) -> Signal:
        asset = reference.replace(".", "/")
        frame = self._scan(asset).collect()
        value, scores = _value_column(asset, frame.columns), _score_columns(frame.columns)
        frame = self._aligned(asset, frame)
        reasons = Texts.of(frame["reason"])
        numbers = [frame[name].cast(pl.Float64).fill_null(float("nan")).to_numpy() for name in (value, *scores)]
        codes, values, *rest = gather([reasons.codes, *numbers], self.order)
        signal = Signal(values, Texts(codes, reasons.words), dict(zip(scores, rest, strict=True)))
        if DROP_REASON not in frame.columns:
            return signal
        texts = Texts.of(frame[DROP_REASON])
        return replace(signal, drop_reasons=Texts(texts.codes[self.order], texts.words))

    def _scan(self, asset: str, *extra: str) -> pl.LazyFrame:
        """The table with `shard`, shard by shard in the order of raw/samples where it is stored so."""
        if self.shards is None or self.store.table_path(asset).is_file():
            lazy = self.store.scan(asset)
            if self.shards is not None:
                lazy = lazy.filter(pl.col("shard").is_in(self.shards))
        else:
            lazy = self.store.scan(asset, self.shards)
        names = lazy.collect_schema().names()
        read = {*ROW_KEY, "value", "quality", "reason", DROP_REASON, *extra}
        columns = [name for name in names if name in read or name.endswith("_score")]
        coded = {"shard": pl.Enum(self.shard.words), "reason": pl.Categorical()}  # numbers instead of texts
        return lazy.select(pl.col(name).cast(coded[name]) if name in coded else name for name in columns)

    def _aligned(self, asset: str, frame: pl.DataFrame) -> pl.DataFrame:
        """Row for row with raw/samples as stored; rows that the table lacks are null."""
        if frame.height == self.row_keys.height and frame.select(ROW_KEY).equals(self.row_keys):
            return frame
        if frame.select(ROW_KEY).is_duplicated().any():
            raise StoreError(f"{asset} has two rows for one row of raw/samples; materialise it again")
        marked = frame.with_columns(is_in_table=pl.lit(True))
        joined = self.row_keys.join(marked, on=ROW_KEY, how="left", maintain_order="left")
        return joined.with_columns(
            pl.when(pl.col("is_in_table").is_null())
            .then(pl.lit("no_row"))
            .otherwise(pl.col("reason").cast(pl.String))
            .alias("reason")
        )


_last: dict[str, tuple[_State, PoolRows]] = {}


def _state_of(store: ShardStore, asset: str) -> _State:
    """Changes whenever a file of the table does."""
    whole = store.table_path(asset)
    paths = [whole] if whole.is_file() else [store.table_path(asset, shard) for shard in store.partitions(asset)]
    stats = [(str(path), path.stat()) for path in paths]
    return tuple((path, stat.st_ino, stat.st_mtime_ns, stat.st_size) for path, stat in stats)


def _value_column(asset: str, columns: Sequence[str]) -> str:
    """quality of recipes, value of others. Raises StoreError for a table that is neither."""
    value = "quality" if "quality" in columns else "value"
    absent = {value, "reason", "source_row"} - set(columns)
    if absent:
        raise StoreError(f"{asset} lacks the columns {sorted(absent)}; it has {list(columns)}")
    return value


def _score_columns(columns: Sequence[str]) -> list[str]:
    is_recipe = "quality" in columns
    return [name for name in columns if is_recipe and name.endswith("_score")]


STATES = ("kept", "dropped", "failed")
KEPT, DROPPED, FAILED = range(3)


def _row_order(stored: StoredRows) -> np.ndarray:
    """(N,) positions in ROW_ORDER. Ids are hashes, so the first half tells all but a few rows apart."""
    order = argsort(stored.uid_high)
    near = np.flatnonzero(in_runs(stored.uid_high[order]))
    tied = order[near]
    keys = (stored.source_row, stored.shard, stored.uid_low, stored.uid_high)
    order[near] = tied[np.lexsort([key[tied] for key in keys])]
    return order
