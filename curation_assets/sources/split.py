"""A source of rows cut into shards, once per version of its files: the parts, their rows and hashes.

A split is a folder under the pool's `source`: a Parquet file per shard and a file that holds its own sha256. Rows come
part by part and none are held: which of them repeat an earlier one is found by sorting their ids on disk.
"""

import functools
import hashlib
import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from curation_assets.core.seal import read_sealed_json, sealed_json
from curation_assets.core.settings import shard_key
from curation_assets.numeric.identity import SAMPLE_ID, sample_id_of
from curation_assets.stores.atomic import make_folder, move_into_place, remove_path, remove_stale
from curation_assets.stores.columns import hex_column
from curation_assets.stores.content_hash import config_sha256, frame_sha256
from curation_assets.stores.denylist import Denylist
from curation_assets.stores.external_sort import ExternalSort
from curation_assets.stores.file_hash import FileState
from curation_assets.stores.frame_file import FrameFile, in_batches
from curation_assets.stores.parquet import UNREADABLE, parquet_schema, read_parquet
from curation_assets.stores.samples import are_usable, without_denied
from curation_assets.stores.temporary import temporary_path

SPLIT_FILE = "split.json"
SORTED_BYTES = 1 << 26  # of ids, 24 a row, that are sorted at once
_OLDEST = pl.CompatLevel.oldest()
Rows = Iterable[pl.DataFrame]  # of a source, part by part in its order: url, caption, uid, and what else was read


@dataclass(frozen=True)
class Split:
    """A source cut into shards: the folder of the parts, and rows and content of each shard."""

    folder: Path
    rows: Mapping[str, int]
    content_sha256: Mapping[str, str]
    facts: Mapping[str, int] = field(default_factory=dict)  # what people want to know of the source: name → count

    def part(self, shard: str) -> pl.DataFrame:
        """Rows of one shard: sample_id, source_row, url, caption, is_duplicate, source_reason, and what else was read.

        Raises ValueError for no such shard, and for a damaged file.
        """
        if shard not in self.rows:
            raise ValueError(f"no shard {shard!r}; the source has {len(self.rows)}: {sorted(self.rows)[:5]} …")
        with self._naming_damage(shard) as path:
            frame = read_parquet(path)
        if frame_sha256(frame) != self.content_sha256[shard]:
            raise self._damaged(shard)
        if "source_reason" not in frame.columns:
            frame = frame.with_columns(source_reason=pl.lit(None, pl.String))
        return frame

    def columns(self, *names: str) -> Iterator[pl.DataFrame]:
        """Some columns of each shard that has them, in turn. Raises ValueError for a damaged file."""
        for shard in sorted(self.rows):
            with self._naming_damage(shard) as path:
                frame = read_parquet(path, columns=names) if set(names) <= set(parquet_schema(path)) else None
            if frame is not None:
                yield frame

    @contextmanager
    def _naming_damage(self, shard: str) -> Iterator[Path]:
        try:
            yield self.folder / f"{shard}.parquet"
        except UNREADABLE as error:
            raise self._damaged(shard) from error

    def _damaged(self, shard: str) -> ValueError:
        path = self.folder / f"{shard}.parquet"
        return ValueError(
            f"{path}, a part of the source, is damaged or absent; delete {self.folder}, or `curate verify --repair`: "
            "the source is cut again"
        )


def read_split(folder: Path) -> Split:
    """The split of a folder. Raises ValueError for one that is absent or damaged."""
    split = _known_split(folder)
    if split is None:
        raise ValueError(f"{folder / SPLIT_FILE} is absent or damaged; delete {folder}, it will be made again")
    return split


def _known_split(folder: Path) -> Split | None:
    state = _state(folder / SPLIT_FILE)
    return None if state is None else _split_of(folder, state)


@functools.lru_cache(maxsize=8)  # some 400 bytes a shard; every shard's table asks for its rows
def _split_of(folder: Path, state: FileState) -> Split | None:
    content = read_sealed_json(folder / SPLIT_FILE)
    return (
        None if content is None else Split(folder, content["rows"], content["content_sha256"], content.get("facts", {}))
    )


def split_once(folder: Path, read: Callable[[], Rows], pool: str, shard_size: int, denylist: Denylist | None) -> Split:
    """The split in `folder`, whose name has the version of the source; made from the rows of `read` where absent."""
    if _known_split(folder) is None:
        with _draft(folder.parent) as draft:
            _publish(draft, folder, _write_parts(draft, pool, read(), shard_size, denylist))
    return read_split(folder)


#: File name → its state (the fields of FileState), null where there is no such file.
Stamps = Mapping[str, list[int] | None]


def stamps_of(folder: Path, names: Sequence[str]) -> Stamps:
    """States of files of a folder, by name."""
    return {name: _stamp(os.path.join(folder, name)) for name in names}  # every shard's table looks at all of them


def _stamp(path: str) -> list[int] | None:
    state = _state(path)
    return None if state is None else [state.size, state.modified_ns, state.changed_ns, state.inode]


def _state(path: Path | str) -> FileState | None:
    try:
        return FileState.of(path)
    except OSError:
        return None


@dataclass(frozen=True)
class Named:
    """Rows that name files of a folder."""

    rows: Rows
    files: list[str]  # complete when all rows were read
    facts: dict[str, int]  # likewise


def stamped_split(
    home: Path,
    base: str,
    folder: Path,
    read: Callable[[], Named],
    pool: str,
    shard_size: int,
    denylist: Denylist | None,
) -> Split:
    """The split of version `base` under `home` while the files of `folder` that its rows name are what they were.

    Else made anew from what `read` gives.
    """
    for known in sorted(home.glob(f"split-{base}-*/{SPLIT_FILE}")):
        stamps: Stamps | None = (read_sealed_json(known) or {}).get("stamps")
        if stamps is not None and stamps == stamps_of(folder, list(stamps)):
            return read_split(known.parent)
    with _draft(home) as draft:
        named = read()
        content = _write_parts(draft, pool, named.rows, shard_size, denylist)
        stamps = stamps_of(folder, named.files)
        made = home / f"split-{base}-{config_sha256(dict(stamps))[:8]}"
        _publish(draft, made, {**content, "facts": named.facts, "stamps": stamps})
    return read_split(made)


@contextmanager
def _draft(home: Path) -> Iterator[Path]:
    """A folder in which a split is written, removed unless it was published; those of writers that ended go, too."""
    make_folder(home)
    target = home / "split"
    remove_stale(target)
    draft = temporary_path(target)
    draft.mkdir()
    try:
        yield draft
    finally:
        remove_path(draft)


def _publish(draft: Path, folder: Path, content: Mapping[str, Any]) -> None:
    """The draft becomes `folder`, which appears whole; earlier splits of the source go."""
    (draft / SPLIT_FILE).write_text(sealed_json(content), encoding="utf-8")
    if read_sealed_json(folder / SPLIT_FILE) is None:
        remove_path(folder)  # a damaged one
    try:
        move_into_place(draft, folder)
    except OSError:
        if not (folder / SPLIT_FILE).is_file():  # no other process made the same split first
            raise
    for old in folder.parent.glob("split-*"):
        if old != folder:
            remove_path(old)


def _write_parts(
    draft: Path, pool: str, rows: Rows, shard_size: int, denylist: Denylist | None
) -> dict[str, dict[str, Any]]:
    """Write a file per shard, once the ids of all rows are sorted: then it is known which are repeats."""
    sorted_ids, height, has_reasons = ExternalSort(["high", "low"], draft, SORTED_BYTES), 0, False

    def identified() -> Iterator[pl.DataFrame]:
        nonlocal height, has_reasons
        for part in rows:
            has_reasons |= "source_reason" in part.columns
            reason = pl.col("source_reason") if "source_reason" in part.columns else pl.lit(None, pl.String)
            part = _with_ids(part, height).select(pl.exclude("source_reason"), source_reason=reason)
            height += part.height
            usable = part.filter(are_usable()).select("sample_id", "source_row")
            halves = hex_column(usable.to_arrow(compat_level=_OLDEST)["sample_id"]).reshape(-1, 2)
            sorted_ids.add(pl.DataFrame({"high": halves[:, 0], "low": halves[:, 1], "row": usable["source_row"]}))
            yield part

    of_source = FrameFile(identified(), draft)
    repeats = _repeats(sorted_ids, height)
    first = ["sample_id", "source_row", "url", "caption", "is_duplicate", *(["source_reason"] if has_reasons else [])]
    content: dict[str, dict[str, Any]] = {"rows": {}, "content_sha256": {}, "files": {}}
    for number, part in enumerate(in_batches(of_source.parts(), shard_size) if height else ()):
        key = shard_key(pool, number)
        part = part.with_columns(is_duplicate=_bits(repeats, number * shard_size, part.height))
        part = part.select(*first, *(name for name in part.columns if name not in {*first, "source_reason"}))
        part = without_denied(part, denylist) if denylist else part
        part.write_parquet(data := io.BytesIO(), compression="zstd")
        (draft / f"{key}.parquet").write_bytes(data.getbuffer())
        content["rows"][key], content["content_sha256"][key] = part.height, frame_sha256(part)
        content["files"][f"{key}.parquet"] = hashlib.sha256(data.getbuffer()).hexdigest()
    return content


def _with_ids(rows: pl.DataFrame, first: int) -> pl.DataFrame:
    """Adds sample_id (of url, caption and uid, which goes) and source_row, counted from `first`.

    Where rows bring their images, one without URL or uid goes by the image's bytes, as in tars.
    """
    numbered = rows.with_row_index("source_row", first).with_columns(pl.col("source_row").cast(pl.Int64))
    has_own = rows["uid"].str.contains(f"^{SAMPLE_ID.pattern}$").fill_null(False)
    others = numbered.filter(~has_own)
    if "image_sha256" in rows.columns:
        cells = others.select("url", "caption", "source_row", "image_sha256").iter_rows()
        made = [
            sample_id_of(url or (f"sha256:{digest}" if digest else f"row#{position}"), caption)
            for url, caption, position, digest in cells
        ]
    else:
        made = [sample_id_of(url, caption) for url, caption in others.select("url", "caption").iter_rows()]
    ids = rows["uid"].scatter((~has_own).arg_true(), made) if made else rows["uid"]
    return numbered.drop("uid").with_columns(ids.alias("sample_id"))


def _repeats(sorted_ids: ExternalSort, rows: int) -> np.ndarray:
    """(rows ÷ 8 + 1,) uint8, a bit of each row: whether an earlier one has its id. `sorted_ids`: high, low, row."""
    bits = np.zeros(rows // 8 + 1, dtype=np.uint8)
    for stretch in sorted_ids.stretches():
        high, low, row = (stretch[name].to_numpy() for name in ("high", "low", "row"))
        is_new = np.append(True, (high[1:] != high[:-1]) | (low[1:] != low[:-1]))
        starts = np.flatnonzero(is_new)
        earliest = np.minimum.reduceat(row, starts)
        late = row[row > np.repeat(earliest, np.diff(np.append(starts, len(row))))]
        np.bitwise_or.at(bits, late >> 3, np.left_shift(1, late & 7).astype(np.uint8))
    return bits


def _bits(bits: np.ndarray, start: int, rows: int) -> pl.Series:
    """Bits `start` to `start + rows` as booleans."""
    inside = np.unpackbits(bits[start >> 3 : (start + rows >> 3) + 1], bitorder="little")
    return pl.Series(inside[start & 7 : (start & 7) + rows].astype(bool))
