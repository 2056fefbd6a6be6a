"""Sorting more rows than memory holds: sorted runs on disk, then stretch after stretch from all of them."""

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from curation_assets.stores.parquet import scan_parquet

RUN_BYTES = 1 << 27  # sorted at once; sorting takes twice as much beside them
GROUP_ROWS = 1 << 16  # of a run, read together
MARKS = 256  # rows of a run from which the borders of stretches are chosen


def sorted_stretches(
    parts: Iterable[pl.DataFrame], by: Sequence[str], folder: Path, run_bytes: int = RUN_BYTES
) -> Iterator[pl.DataFrame]:
    """All rows of `parts` sorted by the columns `by` (without null), in stretches of about `run_bytes`; no empty one.

    Rows that agree in `by` are in one stretch, in any order. Sorted runs lie in a temporary folder in `folder`
    meanwhile; what fits into one run is not written.
    """
    with tempfile.TemporaryDirectory(prefix=".sort-", dir=folder, ignore_cleanup_errors=True) as scratch:
        paths: list[Path] = []
        marks: list[pl.DataFrame] = []
        waiting: list[pl.DataFrame] = []
        size = 0
        for part in (one for one in parts if one.height):
            more = int(part.estimated_size())
            if waiting and size + more > run_bytes:
                run = pl.concat(waiting).sort(by)
                waiting, size = [], 0
                paths.append(Path(scratch) / f"{len(paths)}.parquet")
                run.write_parquet(paths[-1], compression="lz4", row_group_size=GROUP_ROWS)
                marks.append(run.select(by).gather_every(max(1, run.height // MARKS)))
                del run
            waiting.append(part)
            size += more
        if not waiting:
            return
        last = pl.concat(waiting).sort(by)
        del waiting
        borders = (
            pl.concat(marks).sort(by).gather_every(MARKS, MARKS).unique(maintain_order=True).rows() if marks else []
        )
        for low, high in zip([None, *borders], [*borders, None], strict=True):
            inside = pl.lit(True)
            if low is not None:
                inside &= (pl.col(by[0]) >= low[0]) & ~_is_before(by, low)
            if high is not None:
                inside &= (pl.col(by[0]) <= high[0]) & _is_before(by, high)
            stretch = pl.concat([*(scan_parquet(path).filter(inside).collect() for path in paths), last.filter(inside)])
            if stretch.height:
                yield stretch.sort(by)


def _is_before(by: Sequence[str], row: tuple[Any, ...]) -> pl.Expr:
    """Whether a row comes before `row`, the first column first."""
    is_before = pl.lit(False)
    for name, value in reversed(list(zip(by, row, strict=True))):
        is_before = (pl.col(name) < value) | ((pl.col(name) == value) & is_before)
    return is_before
