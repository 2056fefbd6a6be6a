"""Rows that come part by part and are read again in that order: in memory while they are few, else in a file that has
no name, in a given folder or the system's temporary one (TMPDIR). Nothing is left of it when the process ends, however
it ends.
"""

import copy
import io
import itertools
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import polars as pl
import pyarrow as pa
from polars.io.plugins import register_io_source

from curation_assets.stores.atomic import naming_refusals

PART_ROWS = 1 << 14  # of a part, as it is read
HELD_BYTES = 1 << 26  # that are not written


class FrameFile:
    """Rows in parts of at most PART_ROWS, read any number of times; more may follow as long as nothing reads them."""

    def __init__(self, parts: Iterable[pl.DataFrame], folder: Path | None = None) -> None:
        """`parts`: one at least, all with the same columns; each may be empty. `folder`: of the file."""
        self.height, self._folder = 0, folder
        self._held: list[pl.DataFrame] = []
        self._file: IO[bytes] | None = None
        self._ends, self._size = [0], 0  # of each part in the file; bytes of all rows
        for part in in_batches(parts, PART_ROWS):
            self.add(part)

    def add(self, part: pl.DataFrame) -> None:
        """More rows, PART_ROWS at most, with the columns of those before."""
        self.schema, self.height = part.schema, self.height + part.height
        self._held.append(part)
        self._size += int(part.estimated_size())
        if self._size > HELD_BYTES:
            self._write()

    def _write(self) -> None:
        """Parts that are held go to the file."""
        with naming_refusals(self._folder or Path(tempfile.gettempdir())):
            self._file = self._file or tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - closed with this object
            for part in self._held:
                part.write_ipc(data := io.BytesIO(), compression="lz4")
                self._file.write(data.getbuffer())
                self._ends.append(self._ends[-1] + data.tell())
            self._file.flush()
        self._held = []

    def only(self, columns: Iterable[str]) -> "FrameFile":
        """The same rows with some of the columns."""
        chosen = copy.copy(self)
        chosen.schema = pl.Schema({name: self.schema[name] for name in columns})
        return chosen

    def parts(self) -> Iterator[pl.DataFrame]:
        """All rows, one part at least."""
        for start, end in zip(self._ends, self._ends[1:], strict=False):
            assert self._file is not None
            data = io.BytesIO(os.pread(self._file.fileno(), end - start, start))
            yield pl.read_ipc(data, columns=list(self.schema)).select(list(self.schema))
        yield from (part.select(list(self.schema)) for part in self._held)

    def lazy(self) -> pl.LazyFrame:
        """All rows, to be collected by the engine that streams."""

        def batches(columns: list[str] | None, predicate: pl.Expr | None, *_: object) -> Iterator[pl.DataFrame]:
            for part in self.parts():
                chosen = part if predicate is None else part.filter(predicate)
                yield chosen if columns is None else chosen.select(columns)

        return register_io_source(batches, schema=self.schema)

    def frame(self) -> pl.DataFrame:
        """All rows in memory."""
        return pl.concat(self.parts())


class MappedRows:
    """Rows of which any few can be looked up, in a file without a name; what was read of it the system may forget."""

    def __init__(self, parts: Iterable[pl.DataFrame]) -> None:
        """`parts`: one at least."""
        tables = (part.to_arrow(compat_level=pl.CompatLevel.oldest()) for part in parts)
        first = next(tables)
        with naming_refusals(Path(tempfile.gettempdir())), tempfile.NamedTemporaryFile() as file:
            with pa.ipc.new_file(file, first.schema) as writer:
                for table in itertools.chain([first], tables):
                    writer.write_table(table)
            file.flush()
            reader = pa.ipc.open_file(pa.memory_map(file.name))
        # Arrow's own: what workers read after a fork must not wait for threads of polars
        self._batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
        self._ends = np.cumsum([batch.num_rows for batch in self._batches], dtype=np.int64)

    def take(self, rows: np.ndarray) -> list[dict[str, Any]]:
        """(K,) ascending numbers of rows → the rows."""
        taken, numbers = list[dict[str, Any]](), np.searchsorted(self._ends, rows, side="right")
        for number in np.unique(numbers).tolist():
            batch = self._batches[number]
            inside = rows[numbers == number] - (self._ends[number] - batch.num_rows)
            taken += batch.take(pa.array(inside)).to_pylist()
        return taken


def in_batches(parts: Iterable[pl.DataFrame], size: int) -> Iterator[pl.DataFrame]:
    """The rows of `parts`, `size` at a time and at last what is left; where there are none, one frame without rows."""
    ready: pl.DataFrame | None = None
    has_rows = False
    for part in parts:
        ready = part if ready is None else pl.concat([ready, part])
        while ready.height >= size:
            yield ready[:size].rechunk()
            ready, has_rows = ready[size:], True
    if ready is not None and (ready.height or not has_rows):
        yield ready.rechunk()
