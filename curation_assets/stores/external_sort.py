"""Sorting more rows than memory holds: sorted runs on disk, then stretch after stretch from all of them."""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from curation_assets.stores.atomic import remove_path

RUN_BYTES = 1 << 27  # sorted at once; sorting takes twice as much beside them
MARKS = 256  # rows of a run from which the borders of stretches are chosen


class ExternalSort:
    """Rows that are added, part by part, then read in order. `folder` holds sorted runs of them meanwhile; what fits
    into one run is not written."""

    def __init__(self, by: Sequence[str], folder: Path, run_bytes: int = RUN_BYTES) -> None:
        """`by`: columns without null."""
        self.by, self.folder, self.run_bytes = list(by), folder, run_bytes
        self._scratch: Path | None = None
        self._paths: list[Path] = []
        self._marks: list[pl.DataFrame] = []
        self._waiting: list[pl.DataFrame] = []
        self._size = 0  # bytes

    def add(self, part: pl.DataFrame) -> None:
        """More rows, with the columns of those before."""
        more = int(part.estimated_size())
        if part.height and self._waiting and self._size + more > self.run_bytes:
            self._write_run()
        if part.height:
            self._waiting.append(part)
            self._size += more

    def stretches(self) -> Iterator[pl.DataFrame]:
        """All rows in order, in stretches of about `run_bytes`, none of them empty; once.

        Rows that agree in `by` are in one stretch, in any order.
        """
        try:
            yield from self._stretches()
        finally:
            if self._scratch is not None:
                remove_path(self._scratch)

    def _sorted(self, parts: list[pl.DataFrame]) -> pl.DataFrame:
        rows = pl.concat(parts)
        if rows.columns == self.by and rows.dtypes[0].is_integer() and rows.width == 1:
            return pl.DataFrame({self.by[0]: np.sort(rows[self.by[0]].to_numpy())})  # a third of polars' time
        return rows.sort(self.by)

    def _write_run(self) -> None:
        if self._scratch is None:
            self._scratch = Path(tempfile.mkdtemp(prefix=".sort-", dir=self.folder))
        run = self._sorted(self._waiting)
        self._waiting, self._size = [], 0
        self._paths.append(self._scratch / f"{len(self._paths)}.arrow")
        run.write_ipc(self._paths[-1])
        marks = run.select(self.by).gather_every(max(1, run.height // MARKS))
        # copied: texts that are taken of a column hold the memory of all its texts
        self._marks.append(pl.DataFrame(marks.to_dict(as_series=False), schema=marks.schema))

    def _stretches(self) -> Iterator[pl.DataFrame]:
        if not self._waiting:
            return
        by, last = self.by, self._sorted(self._waiting)
        self._waiting = []
        marks = pl.concat([last.select(by).clear(), *self._marks]).sort(by)
        borders = marks.gather_every(MARKS, MARKS).unique(maintain_order=True).rows()
        for low, high in zip([None, *borders], [*borders, None], strict=True):
            inside = pl.lit(True)
            if low is not None:
                inside &= (pl.col(by[0]) >= low[0]) & ~_is_before(by, low)
            if high is not None:
                inside &= (pl.col(by[0]) <= high[0]) & _is_before(by, high)
            runs = (*(_mapped(path) for path in self._paths), last)
            stretch = self._sorted([_between(run, by[0], low, high).filter(inside) for run in runs])
            if stretch.height:
                yield stretch


def _mapped(path: Path) -> pl.DataFrame:
    """A run as it lies on disk: rows are read when they are looked at."""
    with pa.memory_map(str(path)) as file:
        found = pl.from_arrow(pa.ipc.open_file(file).read_all(), rechunk=False)
    assert isinstance(found, pl.DataFrame)
    return found


def _between(run: pl.DataFrame, name: str, low: tuple[Any, ...] | None, high: tuple[Any, ...] | None) -> pl.DataFrame:
    """The rows of a sorted run whose first column lies between those of two borders, both included."""
    start = 0 if low is None else int(run[name].search_sorted(low[0], "left"))
    stop = run.height if high is None else int(run[name].search_sorted(high[0], "right"))
    return run[start:stop]


def _is_before(by: Sequence[str], row: tuple[Any, ...]) -> pl.Expr:
    """Whether a row comes before `row`, the first column first."""
    is_before = pl.lit(False)
    for name, value in reversed(list(zip(by, row, strict=True))):
        is_before = (pl.col(name) < value) | ((pl.col(name) == value) & is_before)
    return is_before
