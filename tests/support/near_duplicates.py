"""Near-duplicates of a few rows."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from curation_assets.flow.options import DuplicateSettings
from curation_assets.stages.fused.duplicates import find_duplicates


def duplicates_of(rows: pl.DataFrame | Sequence[pl.DataFrame], settings: DuplicateSettings) -> pl.DataFrame:
    """What the table holds of rows, of one shard or of several."""
    parts = [rows] if isinstance(rows, pl.DataFrame) else rows
    texts = pl.col("image_sha256").str.encode("hex").str.pad_end(64, "0")  # tests name files by words
    with tempfile.TemporaryDirectory() as scratch:
        return pl.concat(find_duplicates([part.with_columns(texts) for part in parts], settings, Path(scratch)))
