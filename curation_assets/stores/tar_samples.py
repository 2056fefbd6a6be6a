"""Samples in tars: which files belong together (KEY.jpg, KEY.txt, KEY.json), what they hold, the table beside."""

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from curation_assets.stores.caption_text import MAX_TEXT_BYTES, caption_of_file
from curation_assets.stores.image_formats import IMAGE_EXTENSIONS, TRAINING_EXTENSIONS
from curation_assets.stores.images import MIB, ImageRejected, TarIndex, printable, tar_index
from curation_assets.stores.objects import object_home
from curation_assets.stores.parquet import read_parquet

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
MAX_JSON_BYTES = 16 * MIB  # which may hold more than its owner's url
#: Reasons of rows that stand for a tar, or for what is lost of one, and for no sample.
TAR_REASONS = ("tar_truncated", "tar_damaged", "tar_unreadable", "tar_table_unreadable")
#: Extensions of captions, in the order in which one of several files of a sample is taken.
TEXT_EXTENSIONS = ("txt", "caption", "text")
_ROLES = {
    **dict.fromkeys(IMAGE_EXTENSIONS, "image"),
    **dict.fromkeys(TEXT_EXTENSIONS, "text"),
    "json": "meta",
}
_ORDER = (*IMAGE_EXTENSIONS, *TEXT_EXTENSIONS, "json")
#: Names of files in folders that hold one sample each, image.jpg beside caption.txt.
_NAMES_OF_ROLES = {
    "image": {"image", "img", "photo", "picture"},
    "text": {"caption", "captions", "text", "txt", "prompt", "description", "alt"},
}


def find_tars(source: Path) -> list[Path]:
    """The tars of a folder (or the one given), sorted by name: files, whatever they hold. Of a folder of a home in a
    bucket, also those that are not fetched.
    """
    objects = object_home(source)
    if objects is not None and source.suffix != ".tar":
        return [path for path in objects.files_in(source) if _is_tar_name(path.name)]
    if not source.is_dir():
        return [source] if source.is_file() and source.suffix == ".tar" else []
    with os.scandir(source) as entries:
        return sorted(source / entry.name for entry in entries if _is_tar_name(entry.name) and entry.is_file())


def tars_here(source: Path) -> list[Path]:
    """`find_tars`; none of a home in a bucket, from which they are not fetched for a look."""
    return find_tars(source) if object_home(source) is None else []


def has_tar(tar: Path) -> bool:
    """Whether a tar is there, fetched or not."""
    objects = object_home(tar)
    return tar.is_file() if objects is None else objects.has(tar)


def no_files(source: Path) -> list[Path]:
    """What is called NAME.tar in a folder and is no file: folders, links to nothing. They are no shards."""
    if not source.is_dir():
        return []
    with os.scandir(source) as entries:
        return sorted(source / entry.name for entry in entries if _is_tar_name(entry.name) and not entry.is_file())


def _is_tar_name(name: str) -> bool:
    return name.endswith(".tar") and not name.startswith(".")


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


def sample_key(member: pl.Expr) -> pl.Expr:
    """`key_of` of each member of a column; a hidden file, which has none, keeps its whole name."""
    key = member.str.replace(r"^((?:[^/]*/)*)([^./]+)\.[^/]*$", "${1}${2}")
    return key.str.replace(r"^/([^./][^/]*)$", "${1}")  # a file in the root folder


def sample_keys(tar: Path) -> list[str]:
    """Keys of a tar's rows, by source_row; rows that stand for what is lost come after them and have no key."""
    return sorted(set(members_by_key(tar_index(tar))) | set(download_results(tar).by_key))


def keys_of(members: Iterable[str]) -> dict[str, str]:
    """Member → key of the files of a tar or a folder; hidden ones are left out.

    A key reaches to the first dot of the name, as webdataset has it, except where that would put several samples under
    one key (a.1.jpg, a.1.txt, a.2.jpg, …): there it reaches to the last one. A folder that holds one image and its
    caption in files named for what they are (0/image.jpg, 0/caption.txt) is one sample, whose key is the folder.
    """
    groups: dict[str, list[str]] = {}
    for member in members:
        key = key_of(member)
        if key is not None:
            groups.setdefault(key, []).append(member)
    keys = {member: key for key, group in groups.items() for member, key in _dotted(key, group)}
    by_folder: dict[str, list[str]] = {}
    for member in keys:
        by_folder.setdefault(member.rpartition("/")[0], []).append(member)
    for folder, group in by_folder.items():
        if folder and _is_sample_folder(group, keys):
            keys |= dict.fromkeys(group, folder)
    return keys


def _dotted(key: str, group: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(member, its key) of the files that share a key up to the first dot."""
    roles: dict[str, set[str]] = {}  # key up to the last dot → what its files are
    for member in group:
        stem, role = stem_and_role(member)
        roles.setdefault(stem, set()).update([role] if role else [])
    are_longer = not roles.get(key) and any(roles.values())
    for member in group:
        stem, _ = stem_and_role(member)
        yield member, stem if are_longer or {"image", "text"} <= roles[stem] else key


def _is_sample_folder(group: Sequence[str], keys: Mapping[str, str]) -> bool:
    by_role: dict[str | None, list[str]] = {}
    for member in group:
        by_role.setdefault(stem_and_role(member)[1], []).append(keys[member])
    counts = [len(by_role.get(role, ())) for role in ("image", "text", "meta")]
    if counts not in ([1, 1, 0], [1, 1, 1]) or by_role["image"] == by_role["text"]:
        return False
    return any(by_role[role][0].rpartition("/")[2].lower() in names for role, names in _NAMES_OF_ROLES.items())


def stem_and_role(member: str) -> tuple[str, str | None]:
    """A name up to its last dot, and what the rest makes of the file: image, text, meta, or None."""
    folder, slash, name = member.rpartition("/")
    stem, dot, extension = name.rpartition(".")
    return (f"{folder}{slash}{stem}", _ROLES.get(extension.lower())) if dot else (member, None)


def members_by_key(index: TarIndex) -> dict[str, TarSample]:
    """Key → members (see `keys_of`); without any where all are links. Letter case of extensions does not matter."""
    samples: dict[str, TarSample] = {}
    for name, key in keys_of(index.members).items():
        sample = samples.setdefault(key, TarSample())
        stem, role = stem_and_role(name)
        if role is None or (stem != key and not stem.startswith(f"{key}/")):  # a.left.jpg is no image of a
            sample.others.append(name)
            continue
        taken = getattr(sample, role)
        if taken is None or _preference(name) < _preference(taken):
            setattr(sample, role, name)
            name = taken
        if name is not None:
            sample.others.append(name)
    for key in filter(None, map(key_of, index.irregular)):
        samples.setdefault(key, TarSample())
    return samples


def _preference(member: str) -> int:
    """The order of a sample's images or texts: the lowest is taken, as trainings take it."""
    extension = member.rpartition(".")[2].lower()
    if extension in TRAINING_EXTENSIONS:
        return 0
    return _ORDER.index(extension)


def text_of(index: TarIndex, member: str | None) -> tuple[str | None, str | None]:
    """(text, reason why there is none)."""
    if member is None:
        return None, "missing_txt"
    if index.members[member].size > MAX_TEXT_BYTES:
        return None, "txt_too_long"
    try:
        return caption_of_file(index.read(member)), None
    except ImageRejected:
        return None, "txt_truncated"
    except UnicodeDecodeError:
        return None, "txt_not_utf8"


def json_of(index: TarIndex, member: str | None) -> tuple[Mapping[str, Any], str | None]:
    """(content, reason why it is not known); no content where there is no json, or one that is no object."""
    if member is None:
        return {}, None
    if index.members[member].size > MAX_JSON_BYTES:
        return {}, f"json_too_long:{printable(member)}"
    try:
        content = json.loads(index.read(member))
    except (ValueError, RecursionError):  # ValueError: its syntax, its letters, a number of 5,000 digits, a cut tar
        return {}, f"json_unreadable:{printable(member)}"
    return (content if isinstance(content, dict) else {}), None


@dataclass(frozen=True)
class DownloadResults:
    """img2dataset's table beside a tar: its rows by key, and what is wrong with it."""

    by_key: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    repeated: Mapping[str, int] = field(default_factory=dict)  # key → rows besides its first
    damage: str | None = None  # a reason


def download_results(tar: Path) -> DownloadResults:
    """The table beside a tar; empty without one, or where it is a table of another kind that shares the name."""
    wanted = ("key", "url", "caption", "uid", "status", "error_message")
    for path in siblings(tar):
        try:
            table = read_parquet(path)
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError):
            return DownloadResults(damage=f"tar_table_unreadable:{printable(path.name)}")
        if "key" not in table.columns or "status" not in table.columns:
            return DownloadResults()
        rows = table.select(name for name in wanted if name in table.columns).iter_rows(named=True)
        by_key: dict[str, Mapping[str, Any]] = {}
        repeated: Counter[str] = Counter()
        for row in rows:
            key = str(row["key"])
            if by_key.setdefault(key, row) is not row:
                repeated[key] += 1
        return DownloadResults(by_key, repeated)
    return DownloadResults()
