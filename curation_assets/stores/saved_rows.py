"""Finished rows of a table that is still being computed: a killed run goes on inside the shard, not at its start."""

import time
from pathlib import Path

import polars as pl

from curation_assets.stores.documents import save_frame
from curation_assets.stores.parquet import read_parquet

DEFAULT_SECONDS = 60.0  # of work that a kill may cost; a table that is done sooner writes nothing here


class SavedRows:
    """Parts in a folder of their own, one Parquet file per save. Whoever finishes the table removes the folder."""

    def __init__(self, folder: Path, every_seconds: float = DEFAULT_SECONDS) -> None:
        """`folder`: of exactly one computation (its name must identify inputs, models and settings)."""
        self.folder = Path(folder)
        self.every_seconds = every_seconds
        self._saved_at = time.monotonic()

    def read(self) -> pl.DataFrame | None:
        """All rows saved so far, None where there are none. A damaged part is deleted: its rows are computed again."""
        parts = []
        for part in sorted(self.folder.glob("part-*.parquet")):
            try:
                parts.append(read_parquet(part))
            except (pl.exceptions.PolarsError, OSError):
                part.unlink()
        return pl.concat(parts) if parts else None

    def is_due(self) -> bool:
        """Whether `every_seconds` have passed since the last save, or since this object was made."""
        return time.monotonic() - self._saved_at >= self.every_seconds

    def add(self, rows: pl.DataFrame) -> None:
        """Save further rows, whole or not at all."""
        names = sorted(part.stem for part in self.folder.glob("part-*.parquet"))
        number = int(names[-1].removeprefix("part-")) + 1 if names else 0
        save_frame(self.folder / f"part-{number:06d}.parquet", rows)
        self._saved_at = time.monotonic()
