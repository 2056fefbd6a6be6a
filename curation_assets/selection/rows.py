"""The rows of a pool as arrays, sorted by sample_id: what verdicts, differences and plans are computed from."""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import polars as pl

from curation_assets.core.errors import StoreError
from curation_assets.core.table_names import DUPLICATES, SAMPLES, table_of
from curation_assets.numeric.identity import to_u64_pair
from curation_assets.numeric.selection import random_ranking
from curation_assets.numeric.sorting import argsort, gather, in_runs, inverse, position_type, stretches
from curation_assets.selection.policy import RANDOM
from curation_assets.stores.columns import (
    coded_column,
    each_in_threads,
    hex_column,
    integer_column,
    read_columns,
    uid_texts,
)
from curation_assets.stores.parquet import parquet_schema, read_parquet, scan_parquet
from curation_assets.stores.shard_store import ShardStore

#: Every table of this package is sorted so: ids as unsigned pairs, which is the order of the hex digits and of the npy.
ROW_ORDER = ("uid_high", "uid_low", "shard", "source_row")
UID = ROW_ORDER[:2]
#: Columns that identify a row of raw/samples; a sample_id may be in several rows.
ROW_KEY = ("shard", "source_row")
_State = tuple[Any, ...]  # which files a table consists of, and when they were written

#: Column of a table that says, in words, why a cut by it drops a row (selection/kinds).
DROP_REASON = "drop_reason"
RECENT_BYTES = 256 << 20  # of signals that are kept for the next reader
ROWS_AT_ONCE = 400_000  # of a signal, while it is read

REPEATED = "duplicate_across_shards"  # why a row is dropped whose sample an earlier one has


def uid_columns(column: str = "sample_id") -> list[pl.Expr]:
    """sample_id (32 hex digits) → uid_high, uid_low, the two halves of DataComp's `u8,u8`."""
    text = pl.col(column)
    return [
        text.str.slice(0, 16).str.to_integer(base=16, dtype=pl.UInt64).alias("uid_high"),
        text.str.slice(16, 16).str.to_integer(base=16, dtype=pl.UInt64).alias("uid_low"),
    ]


def code_type(count: int) -> type[np.signedinteger[Any]]:
    """The smallest type of codes of so many words, with -1 for null."""
    return np.int8 if count < 127 else np.int16 if count < 32_767 else np.int32


@dataclass(frozen=True)
class Texts:
    """A column of few different texts: (N,) signed codes, -1 for null, and the text of each code."""

    codes: np.ndarray
    words: list[str]
    whole: list[str] | None = None  # of a part of a column: what `used` is of all of it

    @classmethod
    def of(cls, column: pl.Series) -> "Texts":
        """Encode a column of strings."""
        words = column.drop_nulls().unique().cast(pl.String).sort().to_list()
        codes = column.cast(pl.Enum(words)).to_physical().cast(pl.Int32)
        return cls(codes.fill_null(-1).to_numpy(), words)

    @classmethod
    def none(cls, size: int) -> "Texts":
        """`size` nulls."""
        return cls(np.full(size, -1, dtype=code_type(0)), [])

    @cached_property
    def used(self) -> list[str]:
        """The words that occur, sorted."""
        if self.whole is not None:
            return self.whole
        return sorted({self.words[code] for code in np.flatnonzero(counts_of(self.codes, len(self.words))).tolist()})

    def series(self, name: str, part: slice = slice(None)) -> pl.Series:
        """The rows of `part` as an Enum of `used`, which Parquet stores as a dictionary."""
        code_of = {word: code for code, word in enumerate(self.used)}
        table = np.array([code_of.get(word, 0) for word in self.words] or [0], dtype=np.uint32)
        codes = self.codes[part]
        if not self.used:
            return pl.Series(name, [None] * len(codes), dtype=pl.Enum([]))
        physical = pl.Series(name, table[np.maximum(codes, 0)], dtype=pl.UInt32)
        if codes.min(initial=0) < 0:
            physical = pl.select(pl.when(pl.lit(codes >= 0)).then(physical).alias(name)).to_series()
        return physical.cat.to(pl.Enum(self.used))


def enum_series(name: str, codes: np.ndarray, words: Sequence[str]) -> pl.Series:
    """(N,) codes into `words`, -1 for null → Enum of only the words that occur, sorted."""
    return Texts(codes, list(words)).series(name)


def counts_of(codes: np.ndarray, size: int) -> np.ndarray:
    """(size,) how often each code from 0 on occurs among (N,) codes."""
    counts = np.zeros(size, dtype=np.int64)
    for part in stretches(len(codes)):
        counts += np.bincount(codes[part].astype(np.int64) + 1, minlength=size + 1)[1:]
    return counts


class _Coded:
    """A column of few different texts in the making, where parts come in any order of rows."""

    def __init__(self, size: int) -> None:
        self.codes = np.full(size, -1, dtype=code_type(0))
        self.code_of: dict[str, int] = {}

    def put(self, rows: np.ndarray | slice, codes: np.ndarray, words: Sequence[str]) -> None:
        """`codes` into `words`, none of them null, of the rows at these positions."""
        table = np.array([self.code_of.setdefault(word, len(self.code_of)) for word in words] or [0])
        if self.codes.dtype != (needed := code_type(len(self.code_of))):
            self.codes = self.codes.astype(needed)
        self.codes[rows] = table[codes]

    def texts(self) -> Texts:
        """The column, with sorted words."""
        words = sorted(self.code_of)
        table = np.empty(len(words) + 1, dtype=self.codes.dtype)
        table[[self.code_of[word] for word in words]] = np.arange(len(words))
        table[-1] = -1  # what code -1 takes
        return Texts(gather(table, self.codes), words)


@dataclass(frozen=True)
class Signal:
    """One number per row of the pool, and why it is missing where it is."""

    values: np.ndarray  # (N,) float64, NaN where there is none
    reasons: Texts
    scores: Mapping[str, np.ndarray] | None = field(default_factory=dict)  # as `PoolRows.scores`; None: in its table
    drop_reasons: Texts | None = None  # fitted recipes: why a cut drops the row, in words
    has_reasons: bool = True  # False: they were not read

    @property
    def size(self) -> int:
        """Bytes."""
        more = [] if self.drop_reasons is None else [self.drop_reasons.codes]
        return sum(column.nbytes for column in (self.values, self.reasons.codes, *(self.scores or {}).values(), *more))


class Columns(Protocol):
    """Columns that lie in the order of some rows already."""

    def signal(self, reference: str, seed: int = 0, needs_reasons: bool = True) -> Signal:
        """As `PoolRows.signal`."""
        ...

    def scores(self, reference: str, kind: type[np.floating[Any]]) -> Mapping[str, np.ndarray]:
        """As `PoolRows.scores`."""
        ...

    def texts(self, asset: str, name: str) -> Texts:
        """As `PoolRows.texts`."""
        ...


@dataclass(frozen=True)
class StoredRows:
    """Rows of raw/samples in any order, such as stored. `sorted` frees them one by one: they are large."""

    columns: dict[str, np.ndarray]  # uid_high, uid_low, shard, source_row, status, reason; (N,) each
    reasons: list[str]

    def sorted(self) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """(N,) positions in ROW_ORDER, and every column in that order; this object loses its columns."""
        order = argsort(self.columns["uid_high"])
        near = np.flatnonzero(in_runs(high := gather(self.columns["uid_high"], order)))
        if len(near):  # ids are hashes, so the first half distinguishes all but a few rows
            tied = order[near]
            keys = [self.columns[name][tied] for name in ("source_row", "shard", "uid_low", "uid_high")]
            order[near] = tied[np.lexsort(keys)]
        del self.columns["uid_high"]
        return order, {
            "uid_high": high,
            **{name: gather(self.columns.pop(name), order) for name in list(self.columns)},
        }


def _stored_rows(store: ShardStore, shards: Sequence[str]) -> StoredRows:
    """Identities and states of shards. Raises MissingTableError where one is missing, or none is named."""
    paths = store.checked_paths(SAMPLES, shards)
    manifests = (store.manifest(SAMPLES, shard) for shard in shards)
    lengths = [manifest.row_count for manifest in manifests if manifest is not None]
    ends = np.cumsum([0, *lengths])
    high, low = np.empty(ends[-1], dtype=np.uint64), np.empty(ends[-1], dtype=np.uint64)
    source_row, status = np.empty(ends[-1], dtype=np.int32), np.empty(ends[-1], dtype=np.int8)
    reasons = _Coded(int(ends[-1]))
    for number, (ids, rows, states, codes, words) in enumerate(each_in_threads(_read_states, paths)):
        here = slice(ends[number], ends[number + 1])
        if len(ids) != lengths[number]:
            raise StoreError(f"{paths[number]} was replaced while it was read; run again")
        if rows.max(initial=0) > np.iinfo(source_row.dtype).max or rows.min(initial=0) < np.iinfo(source_row.dtype).min:
            source_row = source_row.astype(np.int64)
        high[here], low[here], source_row[here], status[here] = ids[:, 0], ids[:, 1], rows, states
        has_reason = np.flatnonzero(codes >= 0)
        reasons.put(here.start + has_reason, codes[has_reason], words)
    texts = reasons.texts()
    shard = np.repeat(np.arange(len(shards), dtype=code_type(len(shards))), lengths)
    columns = {"uid_high": high, "uid_low": low, "shard": shard, "source_row": source_row, "status": status}
    return StoredRows({**columns, "reason": texts.codes}, texts.words)


def _read_states(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, list[str]]:
    """(n, 2) halves of the ids, (n,) source rows, (n,) codes of states and (n,) of reasons, and these, of a shard."""
    table = read_columns(path, ["sample_id", "source_row", "status", "reason"])
    codes, words = coded_column(table.column("status"))
    odd = sorted(set(words) - set(STATES)) + (["null"] if (codes < 0).any() else [])
    if odd:
        raise StoreError(f"{path}: status must be one of {STATES} in every row, got {odd}")
    status = np.array([STATES.index(word) for word in words] or [0], dtype=np.int8)[codes]
    ids = hex_column(table.column("sample_id")).reshape(-1, 2)
    return ids, integer_column(table.column("source_row")), status, *coded_column(table.column("reason"))


class Parted(Protocol):
    """Rows sorted by ROW_ORDER in one part or several, which can be read again and again."""

    def parts(self) -> Iterator["PoolRows"]:
        """One at least."""
        ...


@dataclass
class PoolRows:
    """All rows of raw/samples, sorted by ROW_ORDER. Of a sample in several rows, the first as registered counts.

    Some 30 bytes a row: the ids are two numbers, all else is as narrow as its values allow.
    """

    store: ShardStore
    uid_high: np.ndarray  # (N,) uint64
    uid_low: np.ndarray
    shard: Texts
    source_row: np.ndarray  # (N,) int32, or int64 where one needs it
    status: np.ndarray  # (N,) int8: 0 kept, 1 dropped, 2 failed, as STATES
    raw_reason: Texts
    stored_order: np.ndarray  # (N,) row as stored, shard after shard → its position here
    shards: tuple[str, ...] | None = None  # None: all of the pool
    #: What a policy leaves out before its first cut, as its ledger recorded it; None: read from the pool's tables.
    recorded_left_out: Texts | None = None
    #: Of a part of a pool on disk (selection/ranges.py), which has no `stored_order`; None: read from the tables.
    columns: Columns | None = None
    _signals: dict[str, Signal] = field(default_factory=dict)
    _recent: OrderedDict[str, tuple[_State, Signal]] | None = None  # shared by all that read the same pool whole

    def __len__(self) -> int:
        return len(self.uid_high)

    @classmethod
    def read(cls, store: ShardStore, shards: Sequence[str] | None = None) -> "PoolRows":
        """Read raw/samples, of all shards or those named; repeats are dropped. Raises MissingTableError."""
        rows = cls.with_repeats(store, shards)
        if store.table_path(DUPLICATES).is_file():
            recorded = store.scan(DUPLICATES)
            if shards is not None:
                recorded = recorded.filter(pl.col("shard").is_in(shards))
            rows._drop(rows._positions_of(recorded.select(ROW_KEY).collect()))
        rows.drop_repeats()
        return rows

    @classmethod
    def with_repeats(cls, store: ShardStore, shards: Sequence[str] | None = None) -> "PoolRows":
        """All of raw/samples as it is: a sample in several rows is kept in each. Raises MissingTableError.

        The rows of the last pool that was read whole are kept (some 30 B each) for the next policy to be judged, and
        with them the signals that were read last.
        """
        if shards is not None:
            return cls._read(store, tuple(sorted(shards)))
        state = _state_of(store, SAMPLES)
        cached = _last.get("pool")
        if cached is None or cached[0] != state:
            _last.clear()  # make room first
            cached = _last["pool"] = (state, cls._read(store, None))
            cached[1]._recent = OrderedDict()
        return replace(cached[1], store=store, _signals={})

    @classmethod
    def _read(cls, store: ShardStore, only: tuple[str, ...] | None) -> "PoolRows":
        shards = store.partitions(SAMPLES) if only is None else only
        stored = _stored_rows(store, shards)
        order, column = stored.sorted()
        return cls(
            store, column["uid_high"], column["uid_low"], Texts(column["shard"], list(shards)), column["source_row"],
            column["status"], Texts(column["reason"], stored.reasons), inverse(order), only,
        )  # fmt: skip

    def repeats(self, first_too: bool = False) -> np.ndarray:
        """Rows whose sample an earlier row (by shard and source_row) has already, both kept by raw.

        `first_too`: with the first row of each such sample.
        """
        near = np.flatnonzero(in_runs(self.uid_high))  # few: the rest need no look at whole ids
        kept = near[self.status[near] == KEPT]
        again = np.zeros(len(kept), dtype=bool)
        high, low = self.uid_high[kept], self.uid_low[kept]
        again[1:] = (high[1:] == high[:-1]) & (low[1:] == low[:-1])
        if first_too:
            again[:-1] |= again[1:]
        return kept[again]

    def dropping(self, reasons: Texts) -> "PoolRows":
        """The rows, of which those that raw kept and that have one of `reasons` (N,) count as dropped for it."""
        dropped = np.flatnonzero((self.status == KEPT) & (reasons.codes >= 0))
        code_of = {word: code for code, word in enumerate(self.raw_reason.words)}
        table = np.array([code_of.setdefault(word, len(code_of)) for word in reasons.words] or [0])
        status, codes = self.status.copy(), self.raw_reason.codes.astype(code_type(len(code_of)))
        status[dropped], codes[dropped] = DROPPED, table[reasons.codes[dropped]]
        signals = {key: one for key, one in self._signals.items() if not key.startswith(f"{RANDOM}:")}  # of kept rows
        return replace(self, status=status, raw_reason=Texts(codes, list(code_of)), _signals=signals)

    def drop_repeats(self) -> None:
        """Of a sample that raw kept in several rows, only the first stays kept."""
        self._drop(self.repeats())

    def parts(self) -> Iterator["PoolRows"]:
        """These rows: of a larger pool (selection/ranges.py) there are several parts."""
        yield self

    def _drop(self, repeats: np.ndarray) -> None:
        repeats = repeats[self.status[repeats] == KEPT]
        if len(repeats):
            words = list(dict.fromkeys([*self.raw_reason.words, REPEATED]))
            status, codes = self.status.copy(), self.raw_reason.codes.astype(code_type(len(words)))
            status[repeats], codes[repeats] = DROPPED, words.index(REPEATED)
            self.status, self.raw_reason = status, Texts(codes, words)

    def _positions_of(self, keys: pl.DataFrame) -> np.ndarray:
        """Sorted positions of rows given by ROW_KEY; unknown rows are left out."""
        found = [np.zeros(0, dtype=np.int64)]
        for (shard,), part in keys.select(ROW_KEY).partition_by("shard", as_dict=True).items():
            mine = self.of_shard(str(shard))
            found.append(mine[np.isin(self.source_row[mine], part["source_row"].to_numpy())])
        return np.sort(np.concatenate(found))

    @cached_property
    def order(self) -> np.ndarray:
        """(N,) position here → row as stored: the inverse of `stored_order`."""
        return inverse(self.stored_order)

    @cached_property
    def _ends(self) -> dict[str, slice]:
        """Shard → its rows as stored."""
        ends = np.cumsum([0, *counts_of(self.shard.codes, len(self.shard.words))]).tolist()
        return {shard: slice(*ends[number : number + 2]) for number, shard in enumerate(self.shard.words)}

    def of_shard(self, shard: str) -> np.ndarray:
        """(n,) positions of a shard's rows, in the order in which they are stored; none of one that is unknown."""
        return self.stored_order[self._ends.get(shard, slice(0, 0))]

    def count_up_to(self, sample_id: str) -> int:
        """How many rows have this sample_id or a lower one: they come first."""
        high, low = (np.uint64(half) for half in to_u64_pair(sample_id))
        first, end = np.searchsorted(self.uid_high, high), np.searchsorted(self.uid_high, high, side="right")
        return int(first + np.searchsorted(self.uid_low[first:end], low, side="right"))

    @property
    def is_kept(self) -> np.ndarray:
        """(N,) bool: raw kept the row, so policies judge it."""
        return self.status == KEPT

    @property
    def sample_ids(self) -> pl.Series:
        """(N,) ids as text."""
        return uid_texts(self.uid_high, self.uid_low)

    def signal(self, reference: str, seed: int = 0) -> Signal:
        """Values of 'stage.table', or of the random ranking with `seed`. Raises what reading the table raises."""
        key = f"{RANDOM}:{seed}" if reference == RANDOM else reference
        if key not in self._signals:
            self._signals[key] = self._random(seed) if reference == RANDOM else self._recent_signal(reference)
        return self._signals[key]

    def values(self, reference: str, seed: int = 0) -> np.ndarray:
        """(N,) values of `signal`, without reading reasons: a third of the time."""
        if reference == RANDOM or reference in self._signals:
            return self.signal(reference, seed).values
        return self._recent_signal(reference, needs_reasons=False).values

    def _recent_signal(self, reference: str, needs_reasons: bool = True) -> Signal:
        """A signal as its tables have it now: a policy's cut, verdicts and ledger read the same ones."""
        if self.columns is not None:
            return self.columns.signal(reference, needs_reasons=needs_reasons)
        if self._recent is None:
            return self._read_signal(reference, needs_reasons)
        state = _state_of(self.store, table_of(reference))
        known_state, signal = self._recent.pop(reference, (None, None))
        if signal is None or known_state != state or (needs_reasons and not signal.has_reasons):
            signal = self._read_signal(reference, needs_reasons)
        self._recent[reference] = (state, signal)
        while len(self._recent) > 1 and sum(recent.size for _, recent in self._recent.values()) > RECENT_BYTES:
            self._recent.popitem(last=False)
        return signal

    def scores(self, reference: str, kind: type[np.floating[Any]] = np.float64) -> Mapping[str, np.ndarray]:
        """The standardised scores that the recipe 'stage.table' fuses: column → (N,) `kind`, NaN for none.

        No scores of a table that is no recipe. Raises what reading the table raises.
        """
        signal = self._signals.get(reference)
        if reference == RANDOM or (signal is not None and signal.scores is not None):
            return {} if signal is None or signal.scores is None else signal.scores
        if self.columns is not None:
            return self.columns.scores(reference, kind)
        asset = table_of(reference)
        if self.store.table_path(asset).is_file():
            frame = self._aligned(asset, self._scan(asset).collect())
            names = _score_columns(frame.columns)
            return {name: gather(floats(frame[name]).astype(kind), self.order) for name in names}
        names = _score_columns(self._columns_of(asset))
        scores = {name: np.full(len(self), np.nan, dtype=kind) for name in names}
        for rows, frame, _ in self._parts(asset, names) if names else ():
            for name in names:
                scores[name][rows] = floats(frame[name])
        return scores

    def without_signals(self) -> "PoolRows":
        """The same rows, which read signals anew where they are not among those that were read last."""
        return replace(self, _signals={key: one for key, one in self._signals.items() if one.scores is not None})

    def provide(self, reference: str, signal: Signal, seed: int = 0) -> None:
        """Use `signal` as 'stage.table' (or as the random ranking) instead of reading it."""
        self._signals[f"{RANDOM}:{seed}" if reference == RANDOM else reference] = signal

    def with_signal(self, reference: str, signal: Signal) -> "PoolRows":
        """The same rows with `signal` in place of 'stage.table'."""
        return replace(self, _signals={**self._signals, reference: signal})

    def facts(self, columns: Sequence[str]) -> pl.DataFrame:
        """Columns of raw/samples, (N,) rows in our order."""
        keys = self.store.partitions(SAMPLES) if self.shards is None else self.shards
        paths = self.store.checked_paths(SAMPLES, keys)
        stored = scan_parquet(paths).select(columns).collect()
        return stored[self.order]

    def texts(self, asset: str, name: str) -> Texts:
        """A column of few texts of a table of shards, in our order. Raises StoreError where rows that raw kept miss."""
        if self.columns is not None:
            return self.columns.texts(asset, name)
        coded = _Coded(len(self))
        for rows, frame, lacking in self._parts(asset, [name]):
            if (self.status[lacking] == KEPT).any():
                raise StoreError(f"{asset} has not every row of raw/samples; `curate run` the pool again")
            has_text = frame[name].is_not_null().arg_true().to_numpy()
            column = Texts.of(frame[name].gather(has_text))
            coded.put(rows[has_text], column.codes, column.words)
        return coded.texts()

    def column(self, asset: str, name: str) -> pl.Series:
        """A column of a table that carries on raw/samples, in our order."""
        frame = self._scan(asset, name).with_columns(reason=pl.lit(None, pl.String)).collect()
        return self._aligned(asset, frame)[name][self.order]

    def _random(self, seed: int) -> Signal:
        if self.columns is not None:
            values = np.where(self.is_kept, self.columns.signal(RANDOM, seed, needs_reasons=False).values, np.nan)
            return Signal(values, Texts.none(len(self)))
        values = np.full(len(self), np.nan)
        kept = self.is_kept
        ids = uid_texts(self.uid_high[kept], self.uid_low[kept])
        values[kept] = random_ranking(ids.to_list(), seed)
        return Signal(values, Texts.none(len(self)))

    def _read_signal(self, reference: str, needs_reasons: bool = True) -> Signal:
        asset = table_of(reference)
        if self.store.table_path(asset).is_file():
            return self._read_whole(asset)
        columns = self._columns_of(asset)
        value = _value_column(asset, columns)
        values = np.full(len(self), np.nan)
        if not needs_reasons:
            for rows, frame, _ in self._parts(asset, [value]):
                values[rows] = floats(frame[value])
            return Signal(values, Texts.none(len(self)), None, has_reasons=False)
        texts = {name: _Coded(len(self)) for name in ("reason", DROP_REASON) if name in columns}
        for rows, frame, lacking in self._parts(asset, [value, *texts]):
            values[rows] = floats(frame[value])
            for name, coded in texts.items():
                has_text = frame[name].is_not_null().arg_true().to_numpy()
                column = Texts.of(frame[name][has_text])
                coded.put(rows[has_text], column.codes, column.words)
            texts["reason"].put(lacking, np.zeros(len(lacking), dtype=np.int8), ["no_row"] if len(lacking) else [])
        drop_reasons = texts[DROP_REASON].texts() if DROP_REASON in texts else None
        return Signal(values, texts["reason"].texts(), None, drop_reasons)

    def _shards_of(self, asset: str) -> list[str]:
        """Shards of a table: all that are known here, or those that were named."""
        shards = self.store.partitions(asset) if self.shards is None else self.shards
        return [shard for shard in shards if shard in self._ends]

    def _columns_of(self, asset: str) -> list[str]:
        """Columns of a table of shards, of the first of them. Raises MissingTableError where there is none."""
        return list(parquet_schema(self.store.checked_paths(asset, self._shards_of(asset)[:1])[0]))

    def _parts(self, asset: str, columns: Sequence[str]) -> Iterator[tuple[np.ndarray, pl.DataFrame, np.ndarray]]:
        """Columns of a table, some shards at a time: (n,) positions of rows here, the rows, and (m,) positions
        of rows that the table lacks. Raises StoreError where it has two rows for one."""
        stored = self._shards_of(asset)
        for shard in self._ends.keys() - set(stored):
            yield self.stored_order[:0], pl.DataFrame(schema=dict.fromkeys(columns, pl.Null)), self.of_shard(shard)
        for parts in each_in_threads(partial(self._parts_of, asset, ["source_row", *columns]), self._groups(stored)):
            yield from parts

    def _parts_of(
        self, asset: str, names: Sequence[str], group: Sequence[str]
    ) -> list[tuple[np.ndarray, pl.DataFrame, np.ndarray]]:
        """`_parts` of shards that follow each other."""
        paths = self.store.checked_paths(asset, group)
        counts = [manifest.row_count for shard in group if (manifest := self.store.manifest(asset, shard))]
        ends = [self._ends[shard] for shard in group]
        if counts == [end.stop - end.start for end in ends]:
            mine = self.stored_order[ends[0].start : ends[-1].stop].astype(np.intp)  # NumPy's own: half the time
            frame = scan_parquet(paths).select(names).collect()
            if np.array_equal(self.source_row.take(mine), frame["source_row"].to_numpy()):  # as nearly always
                return [(mine, frame, mine[:0])]
        parts = []
        for shard, path in zip(group, paths, strict=True):
            frame = read_parquet(path, columns=list(names))
            mine = self.of_shard(shard)
            here = pl.DataFrame({"source_row": self.source_row[mine].astype(np.int64), "position": mine})
            if frame["source_row"].is_duplicated().any():
                raise StoreError(f"{asset} has two rows for one row of raw/samples; materialise it again")
            known = frame.join(here, on="source_row", how="inner")
            lacking = here.join(frame, on="source_row", how="anti")["position"].to_numpy()
            parts.append((known["position"].to_numpy(), known, lacking))
        return parts

    def _groups(self, shards: Sequence[str]) -> Iterator[list[str]]:
        """Shards that follow each other as stored here, up to some ROWS_AT_ONCE rows of them."""
        group: list[str] = []
        for shard in shards:
            here, first = self._ends[shard], self._ends[group[0]] if group else None
            if first is not None and (
                here.start != self._ends[group[-1]].stop or here.stop - first.start > ROWS_AT_ONCE
            ):
                yield group
                group = []
            group.append(shard)
        if group:
            yield group

    def _read_whole(self, asset: str) -> Signal:
        """A signal of a table that is one file for the whole pool."""
        frame = self._scan(asset).collect()
        value = _value_column(asset, frame.columns)
        frame = self._aligned(asset, frame)
        texts = {name: Texts.of(frame[name]) for name in ("reason", DROP_REASON) if name in frame.columns}
        texts = {name: Texts(gather(column.codes, self.order), column.words) for name, column in texts.items()}
        return Signal(gather(floats(frame[value]), self.order), texts["reason"], None, texts.get(DROP_REASON))

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
        shard, source_row = (column[self.stored_order] for column in (self.shard.codes, self.source_row))
        words = pl.Enum(self.shard.words)
        keys = [pl.Series("shard", shard.astype(np.uint32)).cat.to(words), pl.Series("source_row", source_row)]
        row_keys = pl.DataFrame(keys).with_columns(pl.col("source_row").cast(pl.Int64))
        if frame.height == row_keys.height and frame.select(ROW_KEY).equals(row_keys):
            return frame
        if frame.select(ROW_KEY).is_duplicated().any():
            raise StoreError(f"{asset} has two rows for one row of raw/samples; materialise it again")
        marked = frame.with_columns(is_in_table=pl.lit(True))
        joined = row_keys.join(marked, on=ROW_KEY, how="left", maintain_order="left")
        return joined.with_columns(
            pl.when(pl.col("is_in_table").is_null())
            .then(pl.lit("no_row"))
            .otherwise(pl.col("reason").cast(pl.String))
            .alias("reason")
        )


def rows_sha256(pool: Parted) -> str:
    """Which rows these are, in which order: 64 hex digits over ids, shards and source rows."""
    digest = hashlib.sha256(json.dumps(next(iter(pool.parts())).shard.words).encode())
    columns: list[tuple[type[np.generic], Callable[[PoolRows], np.ndarray]]] = [
        (np.uint64, lambda rows: rows.uid_high),
        (np.uint64, lambda rows: rows.uid_low),
        (np.int32, lambda rows: rows.shard.codes),
        (np.int64, lambda rows: rows.source_row),
    ]
    for kind, column_of in columns:
        for rows in pool.parts():
            column = column_of(rows)
            for part in stretches(len(column)):
                digest.update(np.ascontiguousarray(column[part], dtype=kind).data)
    return digest.hexdigest()


def stored_order(codes: np.ndarray, source_row: np.ndarray, shards: int) -> np.ndarray:
    """(N,) codes of shards and source rows → (M,) the positions of all rows, by shard and source row."""
    ends = np.cumsum([0, *counts_of(codes, shards)])
    lengths = np.diff(ends)
    kind = position_type(len(codes))
    place = np.empty(len(codes), dtype=kind)  # of each row, if rows are sorted so
    for part in stretches(len(codes)):
        if ((source_row[part] >= lengths[codes[part]]) | (source_row[part] < 0)).any():
            return np.lexsort((source_row, codes)).astype(kind)
        place[part] = ends[codes[part]] + source_row[part]
    return inverse(place)  # there were no gaps: nothing to sort


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


def floats(column: pl.Series) -> np.ndarray:
    """(N,) float64, NaN for null."""
    return column.cast(pl.Float64).fill_null(float("nan")).to_numpy()


def _score_columns(columns: Sequence[str]) -> list[str]:
    is_recipe = "quality" in columns
    return [name for name in columns if is_recipe and name.endswith("_score")]


STATES = ("kept", "dropped", "failed")
KEPT, DROPPED, FAILED = range(3)
