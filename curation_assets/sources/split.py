"""A source of rows cut into shards, once per version of its files: the parts, their rows and hashes.

A split is a folder under the pool's `source`: a Parquet file per shard and a file that holds its own sha256. Rows come
part by part and none are held: DuckDB finds which of them repeat an earlier one (docs/decisions/0106).
"""

import hashlib
import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from curation_assets.core.errors import few
from curation_assets.core.seal import read_sealed_json, sealed_json
from curation_assets.core.settings import shard_key
from curation_assets.numeric.identity import SAMPLE_ID, sample_id_of
from curation_assets.stores.atomic import move_into_place, remove_path, replacing
from curation_assets.stores.content_hash import config_sha256, frame_sha256
from curation_assets.stores.denylist import Denylist
from curation_assets.stores.file_hash import FileState, once_per_version
from curation_assets.stores.parquet import UNREADABLE, parquet_schema, path_sql, read_parquet, table_sql
from curation_assets.stores.pool_queries import bounded
from curation_assets.stores.samples import are_usable, without_denied

SPLIT_FILE = "split.json"
Rows = Iterable[pl.DataFrame]  # of a source, part by part in its order: url, caption, uid, and what else was read
#: File name → its state (the fields of FileState), null where there is no such file.
Stamps = Mapping[str, list[int] | None]


@dataclass(frozen=True)
class Split:
    """A source cut into shards: the folder of the parts, and rows and content of each shard."""

    folder: Path
    rows: Mapping[str, int]
    content_sha256: Mapping[str, str]
    facts: Mapping[str, int]  # what people want to know of the source: name → count
    stamps: Stamps  # of the files that its rows name

    def part(self, shard: str) -> pl.DataFrame:
        """Rows of one shard: sample_id, source_row, url, caption, is_duplicate, source_reason, and what else was read.

        Raises ValueError for no such shard, and for a damaged file.
        """
        if shard not in self.rows:
            raise ValueError(f"no shard {shard!r}; the source has {few(sorted(self.rows), 5) or 'none'}")
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
    try:
        return _split_of(folder / SPLIT_FILE)
    except OSError:
        return None


@once_per_version(8)  # some 400 bytes a shard; every shard's table asks for its rows
def _split_of(path: Path) -> Split | None:
    content = read_sealed_json(path)
    if content is None:
        return None
    rows, digests, facts, stamps = (content.get(name, {}) for name in ("rows", "content_sha256", "facts", "stamps"))
    return Split(path.parent, rows, digests, facts, stamps)


def _stamps_of(folder: Path, names: Iterable[str]) -> Stamps:
    """States of files of a folder, by name."""
    return {name: _stamp(os.path.join(folder, name)) for name in names}  # every shard's table looks at all of them


def _stamp(path: str) -> list[int] | None:
    try:
        return list(astuple(FileState.of(path)))
    except OSError:
        return None


@dataclass(frozen=True)
class Reading:
    """What decides the rows of a source, and how they are read."""

    files: Sequence[Path]  # read whole: one whose content changed makes another source
    facts: Mapping[str, Any]  # what else decides the rows
    rows: Callable[[], Rows]
    named: list[str] = field(default_factory=list)  # files of the source's folder, complete when all rows were read
    counts: dict[str, int] = field(default_factory=dict)  # for people; likewise


def split_once(
    home: Path,
    version: str,
    folder: Path,
    reading: Reading,
    pool: str,
    shard_size: int,
    denylist: Denylist | None,
) -> Split:
    """The split of a version of a source under `home`, while the files of `folder` that its rows name are what they
    were; else made anew.
    """
    for known in sorted(home.glob(f"split-{version}*/{SPLIT_FILE}")):
        split = _known_split(known.parent)
        if split is not None and split.stamps == _stamps_of(folder, split.stamps):
            return split
    with replacing(home / "split", move=lambda draft, _: _publish(draft, made)) as draft:
        draft.mkdir()
        content = _write_parts(draft, pool, reading.rows(), shard_size, denylist)
        stamps = _stamps_of(folder, reading.named)
        named = [config_sha256(dict(stamps))[:8]] if stamps else []
        made = home / "-".join(["split", version, *named])
        content |= {"facts": reading.counts, "stamps": stamps}
        (draft / SPLIT_FILE).write_text(sealed_json(content), encoding="utf-8")
    return read_split(made)


def _publish(draft: Path, folder: Path) -> None:
    """The draft becomes `folder`, which appears whole; earlier splits of the source go."""
    if read_sealed_json(folder / SPLIT_FILE) is None:
        remove_path(folder)  # a damaged one
    try:
        move_into_place(draft, folder)
    except OSError:
        if not (folder / SPLIT_FILE).is_file():
            raise
        remove_path(draft)  # another process made the same split first
    remove_splits(folder.parent, but=folder)


def remove_splits(home: Path, *, but: Path | None = None) -> None:
    """Delete what sources were cut into, which the next run cuts again; `but` stays."""
    for split in home.glob("split-*"):
        if split != but:
            remove_path(split)


def _write_parts(draft: Path, pool: str, rows: Rows, shard_size: int, denylist: Denylist | None) -> dict[str, Any]:
    """Write a file per shard, and once the ids of all are there each anew, with which rows repeat an earlier one."""
    height, has_reasons = 0, False

    def identified() -> Iterator[pl.DataFrame]:
        nonlocal height, has_reasons
        for part in rows:
            has_reasons |= "source_reason" in part.columns
            reason = pl.col("source_reason") if "source_reason" in part.columns else pl.lit(None, pl.String)
            part = _with_ids(part, height).select(pl.exclude("source_reason"), source_reason=reason)
            height += part.height
            yield part.with_columns(is_usable=are_usable())

    paths: list[Path] = []
    for part in _in_batches(identified(), shard_size):
        if part.height:
            paths.append(draft / f"{shard_key(pool, len(paths))}.parquet")
            part.write_parquet(paths[-1], compression="lz4")
    first = ["sample_id", "source_row", "url", "caption", "is_duplicate", *(["source_reason"] if has_reasons else [])]
    content: dict[str, Any] = {"rows": {}, "content_sha256": {}, "files": {}}
    with bounded(draft) as connection:
        if paths:
            connection.execute(_REPEATS.format(source=table_sql(f"[{', '.join(map(path_sql, paths))}]")))
        for path in paths:
            part = read_parquet(path).rechunk()
            row = part["source_row"]
            repeats = connection.sql(f"select source_row from repeats where source_row between {row[0]} and {row[-1]}")
            part = part.with_columns(is_duplicate=row.is_in(repeats.fetchnumpy()["source_row"]))
            part = part.select(*first, pl.exclude(*first, "source_reason", "is_usable"))
            part = without_denied(part, denylist) if denylist else part
            part.write_parquet(data := io.BytesIO(), compression="zstd")
            path.write_bytes(data.getbuffer())
            content["rows"][path.stem], content["content_sha256"][path.stem] = part.height, frame_sha256(part)
            content["files"][path.name] = hashlib.sha256(data.getbuffer()).hexdigest()
    return content


#: Usable rows whose id an earlier usable row has. `{source}`: with sample_id, source_row, is_usable.
_REPEATS = """
create table repeats as
with ids as (select sample_id::uuid as id, source_row from {source} where is_usable)
select source_row
from ids
join (select id, min(source_row) as first from ids group by id having count(*) > 1) using (id)
where source_row > first
order by source_row
"""


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


def _in_batches(parts: Iterable[pl.DataFrame], size: int) -> Iterator[pl.DataFrame]:
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
