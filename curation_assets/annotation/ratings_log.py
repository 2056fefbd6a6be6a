"""The ratings file: tab-separated, append-only, safe to kill at any moment; the last line on a caption wins."""

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl

from curation_assets.stores.atomic import write_text_atomically

HEADER = ("caption", "rater", "rating", "time")
SKIPPED = ""  # a rater who cannot say


@dataclass(frozen=True)
class Ratings:
    """What a ratings file holds."""

    table: pl.DataFrame  # caption, rater, rating (null: skipped), time; one row per caption and rater, in file order
    corrected: int  # lines that a later one of the same caption and rater replaced
    unreadable: int  # lines that a killed writer or another program left


def is_storable(text: str) -> bool:
    """Whether a caption fits one cell of a tab-separated line."""
    return bool(text.strip()) and not any(mark in text for mark in "\t\n\r")


class RatingsLog:
    """One ratings file, open for appending by several threads."""

    def __init__(self, path: Path) -> None:
        """Raises ValueError where `path` is a file of another kind."""
        self.path = path
        self._lock = threading.Lock()
        if not path.exists() or path.stat().st_size == 0:
            write_text_atomically(path, "\t".join(HEADER) + "\n")
        read_ratings([path])

    def append(self, caption: str, rater: str, rating: int | None) -> None:
        """Write one rating (None: skipped) and make it last. Raises ValueError for a bad rater, caption or rating."""
        check_rater(rater)
        if not is_storable(caption):
            raise ValueError(f"a caption is one line without tabs, got {caption!r}")
        if rating is not None and rating not in (0, 1, 2, 3):
            raise ValueError(f"a rating is 0, 1, 2 or 3, got {rating!r}")
        time = datetime.now(UTC).isoformat(timespec="seconds")
        line = "\t".join((caption, rater, SKIPPED if rating is None else str(rating), time)) + "\n"
        with self._lock, self.path.open("rb+") as stream:
            end = stream.seek(0, os.SEEK_END)
            stream.seek(end - 1)
            if stream.read(1) != b"\n":  # a writer was killed inside its line: end it, the reader counts it
                line = "\n" + line
            stream.write(line.encode("utf-8"))
            stream.flush()
            os.fsync(stream.fileno())

    def rated_by(self, rater: str) -> dict[str, int | None]:
        """Caption → rating of one rater (None: skipped), oldest first."""
        with self._lock:
            table = read_ratings([self.path]).table.filter(pl.col("rater") == rater)
        return {row["caption"]: None if row["rating"] is None else int(row["rating"]) for row in table.to_dicts()}


def check_rater(rater: str) -> str:
    """`rater` itself. Raises ValueError for a name that is blank, long or does not fit the file."""
    if not is_storable(rater) or len(rater) > 60 or rater != rater.strip():
        raise ValueError(f"a rater's name is 1 to 60 characters on one line, got {rater!r}")
    return rater


def read_ratings(paths: Sequence[Path]) -> Ratings:
    """The ratings of one or more files together. Raises ValueError for a file that is no ratings file."""
    rows: dict[tuple[str, str], tuple[str, str, float | None, str]] = {}
    corrected = unreadable = 0
    for path in paths:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
        if tuple(lines[0].split("\t")) != HEADER:
            raise ValueError(
                f"{path} is no ratings file: expected the header {' '.join(HEADER)}, got {lines[0][:80]!r}"
            )
        for line in lines[1:]:
            if not line:
                continue
            cells = line.split("\t")
            if len(cells) != len(HEADER) or cells[2] not in ("", "0", "1", "2", "3") or not cells[3]:
                unreadable += 1
                continue
            caption, rater, rating, time = cells
            corrected += rows.pop((caption, rater), None) is not None
            rows[caption, rater] = (caption, rater, float(rating) if rating else None, time)
    schema = {"caption": pl.String, "rater": pl.String, "rating": pl.Float64, "time": pl.String}
    return Ratings(pl.DataFrame(list(rows.values()), schema=schema, orient="row"), corrected, unreadable)


def rating_matrix(ratings: Ratings) -> tuple[np.ndarray, list[str], list[str]]:
    """(R, N) ratings with NaN for gaps and skips, raters sorted, captions in order of first appearance."""
    raters = sorted(ratings.table["rater"].unique().to_list())
    captions = ratings.table["caption"].unique(maintain_order=True).to_list()
    matrix = np.full((len(raters), len(captions)), np.nan)
    row_of = {rater: i for i, rater in enumerate(raters)}
    column_of = {caption: i for i, caption in enumerate(captions)}
    for caption, rater, rating, _ in ratings.table.iter_rows():
        if rating is not None:
            matrix[row_of[rater], column_of[caption]] = rating
    return matrix, raters, captions


def merge_ratings(ratings: Ratings, min_raters: int = 1) -> tuple[pl.DataFrame, int]:
    """Labels: caption, rating (mean over raters, 0–3), raters; and how many captions had fewer than `min_raters`.

    A skip is no rating. The table is what a pool's option `labels` reads. Raises ValueError where nothing is left.
    """
    if min_raters < 1:
        raise ValueError(f"min_raters must be at least 1, got {min_raters}")
    captions = ratings.table["caption"].n_unique()
    merged = (
        ratings.table.drop_nulls("rating")
        .group_by("caption", maintain_order=True)
        .agg(pl.col("rating").mean(), pl.len().alias("raters"))
        .filter(pl.col("raters") >= min_raters)
    )
    if merged.is_empty():
        raise ValueError(f"none of {captions} captions was rated by at least {min_raters} raters; nothing to merge")
    return merged, captions - merged.height
