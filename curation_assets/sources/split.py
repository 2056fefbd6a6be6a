"""A source of rows cut into shards, once per version of its files: the parts, their rows and hashes.

A split is a folder under the pool's `source`: a Parquet file per shard and a file that holds its own sha256.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from curation_assets.core.settings import shard_key
from curation_assets.numeric.identity import sample_id_of
from curation_assets.stores.atomic import make_folder, move_into_place, remove_path, remove_stale
from curation_assets.stores.content_hash import config_sha256, frame_sha256
from curation_assets.stores.denylist import Denylist
from curation_assets.stores.file_hash import FileState, file_sha256
from curation_assets.stores.parquet import read_parquet
from curation_assets.stores.samples import mark_duplicates, without_denied
from curation_assets.stores.seal import read_sealed_json, sealed_json
from curation_assets.stores.temporary import temporary_path

SPLIT_FILE = "split.json"


@dataclass(frozen=True)
class Split:
    """A source cut into shards: the folder of the parts, and rows and content of each shard."""

    folder: Path
    rows: Mapping[str, int]
    content_sha256: Mapping[str, str]
    facts: Mapping[str, int] = field(default_factory=dict)  # what people want to know of the source: name → count

    def part(self, shard: str) -> pl.DataFrame:
        """Rows of one shard: sample_id, source_row, url, caption, is_duplicate, source_reason, and what else was read.

        Raises ValueError for no such shard.
        """
        if shard not in self.rows:
            raise ValueError(f"no shard {shard!r}; the source has {len(self.rows)}: {sorted(self.rows)[:5]} …")
        frame = read_parquet(self.folder / f"{shard}.parquet")
        if frame_sha256(frame) != self.content_sha256[shard]:
            raise ValueError(f"{self.folder / shard}.parquet is damaged; delete {self.folder}, it will be made again")
        if "source_reason" not in frame.columns:
            frame = frame.with_columns(source_reason=pl.lit(None, pl.String))
        return frame


def read_split(folder: Path) -> Split:
    """The split of a folder. Raises ValueError for one that is absent or damaged."""
    content = read_sealed_json(folder / SPLIT_FILE)
    if content is None:
        raise ValueError(f"{folder / SPLIT_FILE} is absent or damaged; delete {folder}, it will be made again")
    return Split(folder, content["rows"], content["content_sha256"], content.get("facts", {}))


def split_once(
    folder: Path, read: Callable[[], pl.DataFrame], pool: str, shard_size: int, denylist: Denylist | None
) -> Split:
    """The split in `folder`, whose name has the version of the source; made from the rows of `read` where absent."""
    if read_sealed_json(folder / SPLIT_FILE) is None:
        write_split(folder, pool, read(), shard_size, denylist)
    return read_split(folder)


#: File name → its state (the fields of FileState), null where there is no such file.
Stamps = Mapping[str, list[int] | None]


def stamps_of(folder: Path, names: Sequence[str]) -> Stamps:
    """States of files of a folder, by name."""
    return {name: None if (state := _state(folder / name)) is None else [*astuple(state)] for name in names}


def _state(path: Path) -> FileState | None:
    try:
        return FileState.of(path)
    except OSError:
        return None


def stamped_split(
    home: Path,
    base: str,
    folder: Path,
    read: Callable[[], tuple[pl.DataFrame, Stamps, dict[str, int]]],
    pool: str,
    shard_size: int,
    denylist: Denylist | None,
) -> Split:
    """The split of version `base` under `home` while the files of `folder` that its rows name are what they were.

    Else made anew. `read` gives the rows, the stamps of those files, and facts.
    """
    for known in sorted(home.glob(f"split-{base}-*/{SPLIT_FILE}")):
        stamps: Stamps | None = (read_sealed_json(known) or {}).get("stamps")
        if stamps is not None and stamps == stamps_of(folder, list(stamps)):
            return read_split(known.parent)
    rows, stamps, facts = read()
    made = home / f"split-{base}-{config_sha256(dict(stamps))[:8]}"
    write_split(made, pool, rows, shard_size, denylist, {"facts": facts, "stamps": stamps})
    return read_split(made)


def _slices(rows: pl.DataFrame, pool: str, shard_size: int) -> Iterator[tuple[str, pl.DataFrame]]:
    for number, start in enumerate(range(0, rows.height, shard_size)):
        yield shard_key(pool, number), rows.slice(start, shard_size)


def write_split(
    folder: Path,
    pool: str,
    rows: pl.DataFrame,
    shard_size: int,
    denylist: Denylist | None = None,
    more: Mapping[str, Any] | None = None,
) -> None:
    """Cut rows into parts of `shard_size` in `folder`, which appears whole; earlier splits of the source go."""
    make_folder(folder.parent)
    remove_stale(folder)
    draft = temporary_path(folder)
    draft.mkdir()
    try:
        counts, hashes, files = {}, {}, {}
        for key, source in _slices(rows, pool, shard_size):
            part = without_denied(source, denylist) if denylist else source
            part.write_parquet(draft / f"{key}.parquet", compression="zstd")
            counts[key], hashes[key] = part.height, frame_sha256(part)
            files[f"{key}.parquet"] = file_sha256(draft / f"{key}.parquet")
        content = {"rows": counts, "content_sha256": hashes, "files": files, **(more or {})}
        (draft / SPLIT_FILE).write_text(sealed_json(content), encoding="utf-8")
        if read_sealed_json(folder / SPLIT_FILE) is None:
            remove_path(folder)  # a damaged one
        try:
            move_into_place(draft, folder)
        except OSError:
            if not (folder / SPLIT_FILE).is_file():
                raise
            remove_path(draft)  # another process made the same split first
    except BaseException:
        remove_path(draft)
        raise
    for old in folder.parent.glob("split-*"):
        if old != folder:
            remove_path(old)


def identified(rows: pl.DataFrame) -> pl.DataFrame:
    """Adds sample_id (of url, caption and uid, which goes), source_row and is_duplicate.

    Where rows bring their images, one without URL or uid goes by the image's bytes, as in tars.
    """
    if "image_sha256" in rows.columns:
        cells = rows.select("url", "caption", "uid", "image_sha256").iter_rows()
        ids = [
            sample_id_of(url or (f"sha256:{digest}" if digest else f"row#{position}"), caption, uid)
            for position, (url, caption, uid, digest) in enumerate(cells)
        ]
    else:
        ids = [sample_id_of(*row) for row in rows.select("url", "caption", "uid").iter_rows()]
    numbered = (
        rows.drop("uid")
        .with_row_index("source_row")
        .with_columns(pl.Series("sample_id", ids, dtype=pl.String), pl.col("source_row").cast(pl.Int64))
    )
    first = ["sample_id", "source_row", "url", "caption", "is_duplicate", "source_reason"]
    marked = mark_duplicates(numbered)
    return marked.select(*first, *(name for name in marked.columns if name not in first))
