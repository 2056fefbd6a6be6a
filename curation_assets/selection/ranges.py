"""A pool of more rows than fit into memory, sorted by sample_id in columns on disk, and read part by part.

The rows of a group of shards are sorted by id into files of the group's own (`spill`, a plain function of a folder and
shards). Ranges of ids, each a stretch of every group's rows, are then sorted one by one and appended to the pool's
columns (docs/decisions/0082). A signal takes the same way when it is first read. Codes of reasons and shards are of
words that hold for the whole pool.
"""

import ctypes
import itertools
import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from curation_assets.core.disk import DiskError
from curation_assets.core.progress import ProgressReporter, Silent
from curation_assets.core.table_names import SAMPLES, table_of
from curation_assets.numeric.sorting import gather, stretches
from curation_assets.selection.policy import RANDOM
from curation_assets.selection.rows import UID, PoolRows, Signal, StoredRows, Texts, code_type, stored_order
from curation_assets.stores.atomic import (
    FOREIGN_STALE_SECONDS,
    fetch_folder,
    naming_refusals,
    remove_path,
    remove_stale,
)
from curation_assets.stores.shard_store import ShardStore, one_by_one
from curation_assets.stores.temporary import temporary_path

ROWS_IN_MEMORY = 14_000_000  # of a pool that is read whole
GROUP_ROWS, GROUP_SHARDS = 2_000_000, 1_000  # of shards that are sorted together, at most
PART_ROWS = 4_000_000  # of a part that is read at once, and of a range of ids that is sorted at once
SAMPLED = 1024  # one id in so many of a group serves to choose the ranges
#: Bytes a row of what is written here: the rows twice and their order; a signal twice.
_ROWS_BYTES, _SIGNAL_BYTES = 64, 20

SORTED_ROWS = "sorted_rows"  # of a pool in a bucket a folder of objects while nodes of a cluster write it
_ROWS, _WORDS = "rows", "words.json"
Contents = Mapping[str, np.ndarray | Texts]
Wanted = tuple[str | int, ...]  # what is read of a group: its rows, a signal, its scores, or texts


def fits_into_memory(store: ShardStore) -> bool:
    """Whether a pool is read whole."""
    return _groups(store)[1] <= ROWS_IN_MEMORY


@contextmanager
def whole_pool(store: ShardStore, progress: ProgressReporter | None = None) -> Iterator["PoolRows | SortedPool"]:
    """All rows of a pool, repeats dropped: in memory where they fit; else sorted on disk, until the block ends.

    Raises MissingTableError, DiskError where there is no room, and what `store.run_all` does.
    """
    groups, rows = _groups(store)
    if rows <= ROWS_IN_MEMORY:
        yield PoolRows.read(store)
        return
    with _folders(store) as (folder, spilled):
        pool = SortedPool(store, folder, spilled, groups, rows, progress or Silent())
        pool.sort()
        yield pool


@contextmanager
def ranges_with_repeats(store: ShardStore, progress: ProgressReporter | None = None) -> Iterator[Iterator[PoolRows]]:
    """All rows of a pool as they are, sorted, in ranges of ids: all rows of a sample are in one.

    Raises as `whole_pool`.
    """
    groups, rows = _groups(store)
    if rows <= ROWS_IN_MEMORY:
        yield iter([PoolRows.with_repeats(store)])
        return
    with _folders(store) as (folder, spilled):
        pool = SortedPool(store, folder, spilled, groups, rows, progress or Silent())
        yield (rows for rows, _ in pool.ranges(is_dropping=False))


def _groups(store: ShardStore) -> tuple[list[tuple[str, ...]], int]:
    """Shards that follow each other, up to GROUP_SHARDS and some GROUP_ROWS rows; and how many rows all have."""
    groups: list[tuple[str, ...]] = []
    total = size = 0
    for shard in store.partitions(SAMPLES):
        manifest = store.manifest(SAMPLES, shard)
        count = 0 if manifest is None else manifest.row_count
        size, total = size + count, total + count
        if groups and size <= GROUP_ROWS and len(groups[-1]) < GROUP_SHARDS:
            groups[-1] = (*groups[-1], shard)
        else:
            groups.append((shard,))
            size = count
    return groups, total


@contextmanager
def _folders(store: ShardStore) -> Iterator[tuple[Path, Path]]:
    """A new folder beside the pool's tables, and where groups are written: in it, or, where other machines write them
    into a bucket, in a folder of objects. Removed at the end; what a killed process left is removed now."""
    target = store.root / SORTED_ROWS
    remove_stale(target)
    folder = spilled = temporary_path(target)
    if store.objects is not None:
        for left in store.objects.unused_since(target, time.time() - FOREIGN_STALE_SECONDS):
            remove_path(left)
        if store.run_all is not one_by_one:
            spilled = target / folder.name.removeprefix(".")
    with naming_refusals(store.root):
        folder.mkdir(parents=True)
        try:
            yield folder, spilled
        finally:
            for one in {folder, spilled}:
                remove_path(one)
            _return_memory()


def _return_memory() -> None:
    """Give what was freed back to the system: the C library keeps it, in pieces, and the next step takes new memory."""
    with suppress(OSError, AttributeError):  # only glibc has the call
        ctypes.CDLL(None).malloc_trim(0)


# -- one group of shards ----------------------------------------------------------------------------------------------


def spill(root: Path, shards: Sequence[str], place: Path, wanted: Wanted) -> None:
    """Write what is `wanted` of some shards of the pool at `root` into `place`, in the order of their ids.

    Rows come first: (ROWS, whether repeats are dropped). Then, any number of times and in any order:
    ("signal" or "values", reference, seed), ("scores", reference, type), ("texts", table, column).
    """
    store = ShardStore(root)
    kind, *which = wanted
    if kind == _ROWS:
        contents = _row_columns(PoolRows.read(store, shards) if which[0] else PoolRows.with_repeats(store, shards))
    else:
        contents = _contents(_rows_at(store, shards, place), str(kind), *which)
    folder, draft = place / _named(wanted), temporary_path(place / str(kind))
    draft.mkdir(parents=True)
    words = {name: column.words if isinstance(column, Texts) else None for name, column in contents.items()}
    for name, column in contents.items():
        np.save(draft / f"{name}.npy", column.codes if isinstance(column, Texts) else column, allow_pickle=False)
    (draft / _WORDS).write_text(json.dumps(words))  # in the order of the columns
    remove_path(folder)  # of a call on a node that died
    if store.objects is not None:
        store.objects.commit(draft, folder)
    draft.rename(folder)  # not flushed: it goes with the run


def _row_columns(rows: PoolRows) -> Contents:
    return {
        "uid_high": rows.uid_high, "uid_low": rows.uid_low, "shard": rows.shard, "source_row": rows.source_row,
        "status": rows.status, "reason": rows.raw_reason,
    }  # fmt: skip


def _rows_at(store: ShardStore, shards: Sequence[str], place: Path) -> PoolRows:
    """Rows that were spilled, in a bucket perhaps by another node."""
    fetch_folder(place / _ROWS)
    spilled = _Spilled([place / _ROWS])
    found = {name: spilled.read(name, [slice(None)]) for name in spilled.words}
    order = stored_order(found["shard"], found["source_row"], len(shards))
    return replace(_rows_of(store, found, spilled.words, order), shards=tuple(shards))


def _rows_of(
    store: ShardStore,
    column: Mapping[str, np.ndarray],
    words: Mapping[str, list[str] | None],
    order: np.ndarray | None = None,
    columns: "_PartColumns | None" = None,
) -> PoolRows:
    """`_row_columns`, codes and words of texts, as rows. Parts of shards have no `order`: it is empty."""
    shard, reason = (Texts(column[name], words[name] or []) for name in ("shard", "reason"))
    return PoolRows(
        store, column["uid_high"], column["uid_low"], shard, column["source_row"], column["status"], reason,
        np.zeros(0, dtype=np.uint32) if order is None else order, columns=columns,
    )  # fmt: skip


def _contents(rows: PoolRows, kind: str, *which: Any) -> Contents:
    if kind == "texts":
        asset, name = which
        return {name: replace(rows, shards=_there(rows, asset)).texts(asset, name)}
    reference, *more = which
    if reference != RANDOM:
        rows = replace(rows, shards=_there(rows, table_of(reference)))
        if not rows.shards:
            return {} if kind != "signal" else {"reasons": Texts(np.zeros(len(rows), dtype=np.int8), ["no_row"])}
    if kind == "scores":
        return rows.scores(reference, np.dtype(*more).type)
    if kind == "values":
        return {"values": rows.values(reference, *more)}
    signal = rows.signal(reference, *more)
    drop_reasons = {} if signal.drop_reasons is None else {"drop_reasons": signal.drop_reasons}
    return {"values": signal.values, "reasons": signal.reasons, **drop_reasons}


def _there(rows: PoolRows, asset: str) -> tuple[str, ...]:
    """Shards of a group that a table has; all of them where it is one file."""
    whole = rows.store.table_path(asset).is_file()
    return tuple(one for one in rows.shard.words if whole or rows.store.table_path(asset, one).is_file())


def _named(wanted: Wanted) -> str:
    return "-".join(str(one).replace("/", ".") for one in (wanted[:1] if wanted[0] == _ROWS else wanted))


class _Spilled:
    """What `spill` wrote of some groups, one after the other."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = folders
        self._own: list[dict[str, list[str] | None]] = [json.loads((one / _WORDS).read_text()) for one in folders]
        #: Column → the words of all groups, sorted; None for numbers.
        self.words: dict[str, list[str] | None] = {name: kind for own in self._own for name, kind in own.items()}
        for name in [name for name, kind in self.words.items() if kind is not None]:
            self.words[name] = sorted({word for own in self._own for word in own.get(name) or ()})

    def read(self, name: str, parts: Sequence[slice]) -> np.ndarray:
        """(n,) a column of the rows of each group's part; NaN, or -1 for null, of groups that lack it."""
        words, found = self.words[name], []
        code_of = {word: code for code, word in enumerate(words or ())}
        for folder, own, part in zip(self.folders, self._own, parts, strict=True):
            if name not in own:
                found.append(np.full(part.stop - part.start, np.nan if words is None else -1, dtype=np.float32))
                continue
            column = np.array(np.load(folder / f"{name}.npy", mmap_mode="r")[part])
            if words is not None:  # the last is what -1 takes
                column = np.array([*(code_of[word] for word in own[name] or ()), -1])[column]
            found.append(column)
        return np.concatenate(found, dtype=None if words is None else code_type(len(words) + 1), casting="unsafe")


# -- the whole pool ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """One column of all rows, a file of numbers."""

    path: Path
    kind: np.dtype[Any]
    words: list[str] | None = None

    def read(self, part: slice, mode: Any = "r") -> np.ndarray:
        """(n,) some rows, as the disk has them: what is not looked at is not read."""
        start, size = part.start * self.kind.itemsize, part.stop - part.start
        return np.asarray(np.memmap(self.path, self.kind, mode, start, (size,))) if size else np.zeros(0, self.kind)

    def append(self, values: np.ndarray) -> None:
        """Rows that follow those which are there."""
        with self.path.open("ab") as file:
            file.write(np.ascontiguousarray(values, dtype=self.kind).data)


@dataclass
class SortedPool:
    """The rows of a pool in ROW_ORDER, in columns on disk; `parts` are `PoolRows` without the order as stored."""

    store: ShardStore
    folder: Path
    spilled: Path  # folder of what `spill` writes
    groups: list[tuple[str, ...]]
    row_count: int
    progress: ProgressReporter
    shards: list[str] = field(init=False)
    _bounds: np.ndarray = field(init=False)  # (R + 1, G) where each range begins in each group
    _tables: dict[Wanted, dict[str, Column]] = field(default_factory=dict)
    _used_shards: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.shards = [shard for group in self.groups for shard in group]

    def __len__(self) -> int:
        return self.row_count

    def sort(self) -> None:
        """Sort the rows into `folder`, repeats dropped: first of all."""
        table: dict[str, Column] = {}
        for number, (rows, order) in enumerate(self.ranges(is_dropping=True)):
            rows.drop_repeats()  # which brings their reason as the last word, if it is not there
            for name, column in _row_columns(rows).items():
                codes = column.codes if isinstance(column, Texts) else column
                made = table.setdefault(name, Column(self.folder / name, codes.dtype))
                if isinstance(column, Texts) and len(column.words) > len(made.words or ()):
                    table[name] = replace(made, words=column.words)
                made.append(codes)
            Column(self.folder / f"order{number}", order.dtype).append(order)
        self._tables[_ROWS,] = table
        self._used_shards = sorted({word for rows in self.parts() for word in replace(rows.shard, whole=None).used})

    def ranges(self, is_dropping: bool) -> Iterator[tuple[PoolRows, np.ndarray]]:
        """Sorted rows of one range of ids after the other, and (n,) their positions in the groups' rows of it.

        `is_dropping`: repeats within a group of shards are dropped, and those that are recorded.
        """
        spilled = self._spill((_ROWS, is_dropping), _ROWS_BYTES)
        self._bounds = _range_bounds(spilled.folders)
        with self.progress.task("ranges of ids sorted", len(self._bounds) - 1) as advance:
            for parts in self._range_parts():
                stored = StoredRows({name: spilled.read(name, parts) for name in spilled.words}, [])
                order, column = stored.sorted()
                yield _rows_of(self.store, column, spilled.words), order
                advance(1)

    def _range_parts(self) -> Iterator[list[slice]]:
        """Of every range, each group's rows."""
        for starts, ends in itertools.pairwise(self._bounds.tolist()):
            yield [slice(*part) for part in zip(starts, ends, strict=True)]

    def _place(self, group: int) -> Path:
        return self.spilled / f"group{group}"

    def _spill(self, wanted: Wanted, bytes_a_row: int) -> _Spilled:
        rows, free = self.row_count, shutil.disk_usage(self.folder).free
        needed = rows * bytes_a_row
        if free < needed:
            raise DiskError(
                f"{self.folder} needs {needed / 1e9:,.1f} GB to sort the {rows:,} rows of the pool, and "
                f"{free / 1e9:,.1f} GB are free; make room and run the same command again: what is finished is kept"
            )
        with self.progress.task(f"{_named(wanted)}: groups of shards read", len(self.groups)) as advance:
            groups = enumerate(self.groups)
            calls = [(self.store.root, shards, self._place(number), wanted) for number, shards in groups]
            for _ in self.store.run_all(spill, calls):
                advance(1)
        if self.store.objects is not None and self.spilled != self.folder:
            self.store.objects.refresh(self.spilled)
            fetch_folder(self.spilled)
        return _Spilled([self._place(number) / _named(wanted) for number in range(len(self.groups))])

    def table(self, *wanted: str | int) -> dict[str, Column]:
        """Columns as `spill` names them, sorted like the rows; made when they are first read."""
        if wanted not in self._tables:
            kind, reference, *seed = wanted
            if kind == "values" and ("signal", reference, *seed) in self._tables:
                return self._tables["signal", reference, *seed]
            asset = None if reference == RANDOM or kind == "texts" else table_of(str(reference))
            if asset is not None and not self.store.table_path(asset).is_file():
                self.store.checked_paths(asset, self.store.partitions(asset)[:1])  # raises where there is none
            self._tables[wanted] = self._sorted(wanted)
        return self._tables[wanted]

    def _sorted(self, wanted: Wanted) -> dict[str, Column]:
        spilled, made = self._spill(wanted, _SIGNAL_BYTES), dict[str, Column]()
        for name, words in spilled.words.items():
            for number, parts in enumerate(self._range_parts()):
                values = gather(spilled.read(name, parts), self._order(number))
                path = self.folder / f"{_named(wanted)}-{name}"
                made.setdefault(name, Column(path, values.dtype, words)).append(values)
        for folder in spilled.folders:
            remove_path(folder)
        return made

    def _order(self, number: int) -> np.ndarray:
        return np.fromfile(self.folder / f"order{number}", dtype=np.uint32)

    def without_signals(self) -> "SortedPool":
        """The same rows; signals that were read leave the disk."""
        for wanted in [one for one in self._tables if one != (_ROWS,)]:
            for column in self._tables.pop(wanted).values():
                remove_path(column.path)
        return self

    def part(self, part: slice) -> PoolRows:
        """Consecutive rows."""
        table = self._tables[_ROWS,]
        column = {name: one.read(part) for name, one in table.items()}
        words = {name: one.words for name, one in table.items()}
        rows = _rows_of(self.store, column, words, columns=_PartColumns(self, part))
        return replace(rows, shard=replace(rows.shard, whole=self._used_shards))

    def parts(self) -> Iterator[PoolRows]:
        """All rows, PART_ROWS at a time."""
        return map(self.part, stretches(len(self), PART_ROWS))

    def new_column(self, name: str, kind: Any) -> Column:
        """A column for `append`, without rows."""
        column = Column(self.folder / name, np.dtype(kind))
        column.path.write_bytes(b"")
        return column

    def by_group(self, columns: Mapping[str, Column]) -> Iterator[tuple[PoolRows, dict[str, np.ndarray]]]:
        """Rows of groups of whole shards, by id, and of each what `columns` of all rows have for it."""
        backs = [
            {name: replace(one, path=self._place(group) / name) for name, one in columns.items()}
            for group in range(len(self.groups))
        ]
        for column in (one for back in backs for one in back.values()):
            remove_path(column.path)
        end = 0
        for number, parts in enumerate(self._range_parts()):
            order = self._order(number)
            start, end = end, end + len(order)
            ends = np.cumsum([part.stop - part.start for part in parts])
            for name, column in columns.items():
                values = np.empty(len(order), dtype=column.kind)
                values[order] = column.read(slice(start, end))
                for back, some in zip(backs, np.split(values, ends[:-1]), strict=True):
                    back[name].append(some)
        for shards, back, group in zip(self.groups, backs, itertools.count()):
            found = {name: np.fromfile(column.path, dtype=column.kind) for name, column in back.items()}
            yield _rows_at(self.store, shards, self._place(group)), found


@dataclass(frozen=True)
class _PartColumns:
    """Columns of some rows of a sorted pool (`selection.rows.Columns`)."""

    pool: SortedPool
    part: slice

    def _texts(self, column: Column) -> Texts:
        return Texts(column.read(self.part), column.words or [])

    def signal(self, reference: str, seed: int = 0, needs_reasons: bool = True) -> Signal:
        table = self.pool.table("signal" if needs_reasons else "values", reference, seed)
        size = self.part.stop - self.part.start
        values = table["values"].read(self.part) if "values" in table else np.full(size, np.nan)
        if not needs_reasons:
            return Signal(values, Texts.none(size), None, has_reasons=False)
        drop_reasons = self._texts(table["drop_reasons"]) if "drop_reasons" in table else None
        return Signal(values, self._texts(table["reasons"]), None, drop_reasons)

    def scores(self, reference: str, kind: type[np.floating[Any]]) -> Mapping[str, np.ndarray]:
        table = self.pool.table("scores", reference, np.dtype(kind).name)
        return {name: column.read(self.part) for name, column in table.items()}

    def texts(self, asset: str, name: str) -> Texts:
        return self._texts(self.pool.table("texts", asset, name)[name])


def _range_bounds(places: Sequence[Path]) -> np.ndarray:
    """Where the spilled rows of each group lie → (R + 1, G) where ranges of some PART_ROWS rows begin in each.

    All rows of an id are in one range, however many they are.
    """
    samples, sizes = [], []
    for place in places:
        halves = _halves(place)
        samples.append(halves[:, ::SAMPLED].copy())
        sizes.append(halves.shape[1])
    sampled = np.concatenate(samples, axis=1)
    order = np.lexsort((sampled[1], sampled[0]))
    count = -(-sum(sizes) // PART_ROWS)
    chosen = sampled[:, order[np.arange(1, count) * len(order) // max(count, 1)]].T
    inner = np.stack([_positions(_halves(place), chosen) for place in places], axis=1)  # (R - 1, G)
    bounds = np.concatenate([np.zeros((1, len(places)), dtype=np.int64), inner, [sizes]])
    ends = bounds.sum(axis=1)
    return bounds[np.append(True, ends[1:] > ends[:-1])]  # an id may have been chosen twice


def _halves(place: Path) -> np.ndarray:
    """(2, n) uint64, the ids of a group."""
    return np.stack([np.load(place / f"{name}.npy") for name in UID])


def _positions(halves: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """(2, n) sorted ids, (M, 2) others → (M,) how many are lower than each."""
    high, low = halves
    positions = np.zeros(len(ids), dtype=np.int64)
    for number, (first, second) in enumerate(ids):
        start, end = (int(np.searchsorted(high, first, side=side)) for side in ("left", "right"))
        positions[number] = start + int(np.searchsorted(low[start:end], second))
    return positions
