"""Rows that may be more than memory holds, as a frame like any other."""

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import polars as pl
import pyarrow as pa

from curation_assets.stores.atomic import naming_refusals


def mapped_rows(parts: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """The rows of `parts`, one at least, all with the same columns, as one frame whose columns lie in a file.

    What is read of them the system may forget again. The file is in the system's temporary folder (TMPDIR), and its
    name is removed before this returns: nothing is left of it when the process ends, however it ends. What is made of
    the frame lies in memory again: go through its texts by `slices` or a lazy query.
    """
    with naming_refusals(Path(tempfile.gettempdir())), tempfile.NamedTemporaryFile() as file:
        for part in parts:
            part.write_ipc_stream(file)
        file.flush()
        stored, tables = pa.memory_map(file.name), list[pa.Table]()
        while stored.tell() < stored.size():
            tables.append(pa.ipc.open_stream(stored).read_all())
    rows = pl.from_arrow(pa.concat_tables(tables))
    assert isinstance(rows, pl.DataFrame)
    return rows


def slices(rows: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """The rows of a frame some at a time, of an empty one the frame."""
    return rows.iter_slices() if rows.height else iter([rows])
