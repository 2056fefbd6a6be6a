"""Pools that come as tars in webdataset layout: KEY.jpg, KEY.txt, KEY.json (img2dataset's output, or anybody's)."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from curation_assets.core.settings import shard_key
from curation_assets.numeric.identity import sample_id_of
from curation_assets.stores.download_reasons import reason_of
from curation_assets.stores.images import MIB, ImageRejected, TarIndex, tar_index
from curation_assets.stores.samples import mark_duplicates

#: img2dataset's table beside each tar, with our id; `curate pool add` reads it back.
SIDECAR_SCHEMA = {
    "url": pl.String,
    "caption": pl.String,
    "key": pl.String,
    "uid": pl.String,
    "status": pl.String,
    "error_message": pl.String,
    "width": pl.Int32,
    "height": pl.Int32,
    "original_width": pl.Int32,
    "original_height": pl.Int32,
    "sha256": pl.String,  # of the image file in the tar
}

IMAGE_EXTENSIONS = ("jpg", "jpeg", "png", "webp")
MAX_TEXT_BYTES = MIB  # of a caption or a json: DataComp has captions of a million characters
_NUMBER = re.compile(r"(\d{1,})$")


def find_tars(source: Path) -> list[Path]:
    """The tars of a folder (or the one given), sorted by name."""
    if source.is_file():
        return [source] if source.suffix == ".tar" else []
    return sorted(path for path in source.glob("*.tar") if not path.name.startswith("."))


def tars_by_shard(pool: str, source: Path) -> dict[str, Path]:
    """Shard key → tar. The number at the end of the tar's name is kept where all have different ones below a million.

    000002.tar of pool photos → photos-000002. Raises ValueError for a folder without tars.
    """
    tars = find_tars(source)
    if not tars:
        raise ValueError(f"{source}: expected .tar files, got none")
    matches = [_NUMBER.search(path.stem) for path in tars]
    numbers = [int(match[1]) for match in matches if match is not None]
    if len(numbers) < len(tars) or len(set(numbers)) < len(numbers) or max(numbers) > 999_999:
        numbers = list(range(len(tars)))
    return {shard_key(pool, number): tar for number, tar in sorted(zip(numbers, tars, strict=True))}


def siblings(tar: Path) -> list[Path]:
    """img2dataset's table beside a tar, if there is one. Its `_stats.json` is a claim and is not read."""
    table = tar.with_suffix(".parquet")
    return [table] if table.is_file() else []


@dataclass
class TarSample:
    """What a tar holds under one key."""

    image: str | None = None
    text: str | None = None
    meta: str | None = None
    others: list[str] = field(default_factory=list)


def key_of(member: str) -> str | None:
    """Key of a tar's member: folder included, up to the first dot of its name; None for hidden files (._000.jpg)."""
    folder, _, base = member.rpartition("/")
    stem = base.partition(".")[0]
    if not stem:
        return None
    return f"{folder}/{stem}" if folder else stem


def sample_keys(tar: Path) -> list[str]:
    """Keys of a tar's rows, by source_row."""
    return sorted(set(members_by_key(tar_index(tar))) | set(_download_results(tar)))


def members_by_key(index: TarIndex) -> dict[str, TarSample]:
    """Key (folder included, up to the first dot of the file name) → members."""
    samples: dict[str, TarSample] = {}
    for name in index.members:
        key, extension = key_of(name), name.rpartition("/")[2].partition(".")[2]
        if key is None:
            continue
        sample = samples.setdefault(key, TarSample())
        if extension.lower() in IMAGE_EXTENSIONS and sample.image is None:
            sample.image = name
        elif extension == "txt":
            sample.text = name
        elif extension == "json":
            sample.meta = name
        else:
            sample.others.append(name)
    return samples


def text_of(index: TarIndex, member: str | None) -> tuple[str | None, str | None]:
    """(text, reason why there is none)."""
    if member is None:
        return None, "missing_txt"
    if index.members[member].size > MAX_TEXT_BYTES:
        return None, "txt_too_long"
    try:
        return index.read(member).decode("utf-8"), None
    except ImageRejected:
        return None, "txt_truncated"
    except UnicodeDecodeError:
        return None, "txt_not_utf8"


def json_of(index: TarIndex, member: str | None) -> Mapping[str, Any]:
    """The json of a sample; empty where it is missing or broken, since image and txt make a sample without it."""
    if member is None or index.members[member].size > MAX_TEXT_BYTES:
        return {}
    try:
        content = json.loads(index.read(member))
    except (json.JSONDecodeError, UnicodeDecodeError, ImageRejected, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _string(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def read_tar_rows(tar: Path, *, with_sha256: bool = False) -> pl.DataFrame:
    """Grain: one row per key, sorted by key: the tar's samples and those that img2dataset's table lists as failed.

    Columns: sample_id, source_row (index in that order), url, caption, is_duplicate (within this tar), member,
    source_reason (null where image and caption are present). A sample with neither url nor uid is identified by its
    image's bytes, which survive resharding. A truncated tar gives rows as far as it can be followed, and rows for
    what its table promises beyond. `with_sha256`: also the column image_sha256, which costs reading every image.
    """
    index = tar_index(tar)
    samples = members_by_key(index)
    results = _download_results(tar)
    rows = []
    for source_row, key in enumerate(sorted(set(samples) | set(results))):
        row = _row(index, samples[key], results.get(key, {})) if key in samples else _untarred_row(key, results[key])
        rows.append({"source_row": source_row, **row})
    schema = {
        "sample_id": pl.String,
        "source_row": pl.Int64,
        "url": pl.String,
        "caption": pl.String,
        "member": pl.String,
        "source_reason": pl.String,
    }
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    if with_sha256:
        hashes = [_sha256(index, member) for member in frame["member"]]
        frame = frame.with_columns(pl.Series("image_sha256", hashes, dtype=pl.String))
    return mark_duplicates(frame)


def _sha256(index: TarIndex, member: str | None) -> str | None:
    if member is None:
        return None
    try:
        return hashlib.sha256(index.read(member)).hexdigest()
    except ImageRejected:
        return None


def _row(index: TarIndex, sample: TarSample, result: Mapping[str, Any]) -> dict[str, Any]:
    caption, text_reason = text_of(index, sample.text)
    meta = json_of(index, sample.meta)
    url = _string(meta.get("url")) or _string(result.get("url"))
    uid = _string(meta.get("uid")) or _string(result.get("uid"))
    image_reason = None
    origin = url
    if sample.image is None:
        image_reason = "missing_image"
    elif url is None:
        try:
            origin = f"sha256:{hashlib.sha256(index.read(sample.image)).hexdigest()}"
        except ImageRejected as rejection:
            image_reason = f"image_{rejection.reason}"
    if origin is None:  # neither url nor whole image: the position in the tar alone distinguishes samples
        origin = f"{index.path.name}#{sample.image or sample.text or sample.meta or sample.others[0]}"
    return {
        "sample_id": sample_id_of(origin, caption, uid),
        "url": url,
        "caption": caption,
        "member": sample.image,
        "source_reason": image_reason or text_reason,
    }


def _untarred_row(key: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """A row of img2dataset's table that is not in the tar."""
    url, caption = _string(result.get("url")), result.get("caption")
    status = str(result.get("status"))
    reason = "missing_in_tar" if status == "success" else reason_of(status, _string(result.get("error_message")))
    return {
        "sample_id": sample_id_of(url or f"missing#{key}", caption, _string(result.get("uid"))),
        "url": url,
        "caption": caption,
        "member": None,
        "source_reason": reason,
    }


def _download_results(tar: Path) -> dict[str, Mapping[str, Any]]:
    """Key → row of img2dataset's table beside the tar; empty without one."""
    for path in siblings(tar):
        try:
            table = pl.read_parquet(path, hive_partitioning=False)
        except pl.exceptions.PolarsError as error:
            raise ValueError(f"{path} beside {tar.name} cannot be read: {error}; repair it or move it away") from error
        if "key" not in table.columns or "status" not in table.columns:
            return {}  # a table of another kind that happens to share the name
        picked = [name for name in ("key", "url", "caption", "uid", "status", "error_message") if name in table.columns]
        return {str(row["key"]): row for row in table.select(picked).iter_rows(named=True)}
    return {}


def expected_row_count(tars: Sequence[Path]) -> int:
    """Rows of the pool, from the tables beside the tars where all have one; else the first tar's count for each."""
    if not tars:
        return 0
    tables = [path for tar in tars for path in siblings(tar)]
    if len(tables) == len(tars):
        return sum(pl.scan_parquet(path).select(pl.len()).collect().item() for path in tables)
    return len(members_by_key(tar_index(tars[0]))) * len(tars)
