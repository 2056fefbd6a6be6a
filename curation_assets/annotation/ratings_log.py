"""Files of people's answers: tab-separated, append-only, safe to kill at any moment; the last line wins."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl

from curation_assets.stores.atomic import append_line
from curation_assets.stores.documents import save_text

HEADER = ("caption", "rater", "rating", "time")
SKIPPED = ""  # a rater who cannot say


@dataclass(frozen=True)
class Ratings:
    """What a ratings file holds."""

    table: pl.DataFrame  # caption, rater, rating (null: skipped), time; one row per caption and rater, in file order
    corrected: int  # lines that a later one of the same caption and rater replaced
    unreadable: int  # lines that another program left


def is_storable(text: str) -> bool:
    """Whether a caption fits one cell of a tab-separated line."""
    return bool(text.strip()) and not any(mark in text for mark in "\t\n\r")


class AnswersLog:
    """A tab-separated file that answers are appended to, the time last. What is there is kept."""

    def __init__(self, path: Path, header: Sequence[str], kind: str = "ratings") -> None:
        """Raises ValueError where `path` is a file of another kind."""
        self.path = path
        if not path.exists() or path.stat().st_size == 0:
            save_text(path, "\t".join(header) + "\n")
        _check_header(path.read_text(encoding="utf-8", errors="replace"), path, header, kind)
        self._drop_cut_line()

    def _drop_cut_line(self) -> None:
        """Cut off what a killed writer left of a line: no caller was given it as written."""
        data = self.path.read_bytes()
        if not data.endswith(b"\n"):
            os.truncate(self.path, data.rfind(b"\n") + 1)

    def _is_cut(self) -> bool:
        with self.path.open("rb") as stream:
            stream.seek(-1, os.SEEK_END)
            return stream.read(1) != b"\n"

    def write(self, rater: str, *rows: Sequence[str]) -> None:
        """Append rows at once and make them last. Raises ValueError for a bad name."""
        check_rater(rater)
        time = datetime.now(UTC).isoformat(timespec="seconds")
        lines = "\n".join("\t".join((*row, time)) for row in rows)
        # another process was killed in its line meanwhile: it is ended, not cut off, since a third may be writing
        append_line(self.path, f"\n{lines}" if self._is_cut() else lines)


class RatingsLog(AnswersLog):
    """One ratings file, open for appending."""

    def __init__(self, path: Path) -> None:
        """Raises ValueError where `path` is a file of another kind."""
        super().__init__(path, HEADER)

    def append(self, caption: str, rater: str, rating: int | None) -> None:
        """Write one rating (None: skipped) and make it last. Raises ValueError for a bad rater, caption or rating."""
        if not is_storable(caption):
            raise ValueError(f"a caption is one line without tabs, got {caption!r}")
        if rating is not None and rating not in (0, 1, 2, 3):
            raise ValueError(f"a rating is 0, 1, 2 or 3, got {rating!r}")
        self.write(rater, (caption, rater, SKIPPED if rating is None else str(rating)))

    def rated_by(self, rater: str) -> list[str]:
        """Captions that one rater has rated or skipped, oldest first."""
        return read_ratings([self.path]).table.filter(pl.col("rater") == rater)["caption"].to_list()


def check_rater(rater: str) -> str:
    """`rater` itself. Raises ValueError for a name that is blank, long or does not fit the file."""
    if not is_storable(rater) or len(rater) > 60 or rater != rater.strip():
        raise ValueError(f"a rater's name is 1 to 60 characters on one line, got {rater!r}")
    return rater


def _check_header(text: str, path: Path, header: Sequence[str], kind: str) -> None:
    first = text.split("\n", 1)[0]
    if first.split("\t") != list(header):
        raise ValueError(f"{path} is no {kind} file: expected the header {' '.join(header)}, got {first[:80]!r}")


def read_ratings(paths: Sequence[Path]) -> Ratings:
    """The ratings of one or more files together. Raises ValueError for a file that is no ratings file."""
    rows: dict[tuple[str, str], tuple[str, str, float | None, str]] = {}
    corrected = unreadable = 0
    for path in paths:
        text = path.read_text(encoding="utf-8", errors="replace")
        _check_header(text, path, HEADER, "ratings")
        for line in filter(None, text.split("\n")[1:]):
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
    captions = ratings.table["caption"].unique(maintain_order=True)
    wide = ratings.table.pivot("rater", index="caption", values="rating", maintain_order=True)
    raters = sorted(wide.columns[1:])
    matrix = wide.select(pl.col(raters).fill_null(float("nan"))).to_numpy().T
    return matrix, raters, captions.to_list()


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
