"""Pools that come as tars in webdataset layout: KEY.jpg, KEY.txt, KEY.json (img2dataset's output, or anybody's)."""

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from curation_assets.numeric.identity import is_sample_id, sample_id_of
from curation_assets.sources.download.reasons import reason_of
from curation_assets.stores.caption_text import MAX_TEXT_BYTES, caption_text
from curation_assets.stores.image_formats import IMAGE_EXTENSIONS, TRAINING_EXTENSIONS
from curation_assets.stores.images import MIB, ImageRejected, TarIndex, printable, tar_index
from curation_assets.stores.objects import object_home
from curation_assets.stores.parquet import read_parquet, scan_parquet
from curation_assets.stores.samples import OWN_ID, mark_duplicates

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
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
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
LOOKED_AT_JSONS = 20  # to see whether a tar brings ids of its own
#: Keys of a tar's json that hold the caption, where no file does.
_CAPTION_KEYS = ("caption", "text")


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


def no_files(source: Path) -> list[Path]:
    """What is called NAME.tar in a folder and is no file: folders, links to nothing. They are no shards."""
    if not source.is_dir():
        return []
    with os.scandir(source) as entries:
        return sorted(source / entry.name for entry in entries if _is_tar_name(entry.name) and not entry.is_file())


def _is_tar_name(name: str) -> bool:
    return name.endswith(".tar") and not name.startswith(".")


def check_images(source: Path) -> None:
    """Raise ValueError where there are tars and none has a file that is an image by its name; not for damaged ones."""
    endings: Counter[str] = Counter()
    for tar in find_tars(source):
        if object_home(tar) is not None:
            return  # in a bucket: it is not fetched for this
        try:
            index = tar_index(tar)
        except OSError:
            return
        if index.damage is not None or not index.members:
            return
        for name in index.members:
            if _stem_and_role(name)[1] == "image":
                return
            endings[name.rpartition("/")[2].partition(".")[2]] += 1
    if not endings:
        return
    listed = ", ".join(f".{ending} {count}" for ending, count in endings.most_common(5))
    raise ValueError(
        f"{source}: no tar has a file that is an image by its name ({listed}); expected KEY.jpg or another of "
        f"{', '.join(IMAGE_EXTENSIONS)}, with KEY.txt"
    )


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
    return sorted(set(members_by_key(tar_index(tar))) | set(_download_results(tar).by_key))


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
        stem, role = _stem_and_role(member)
        roles.setdefault(stem, set()).update([role] if role else [])
    are_longer = not roles.get(key) and any(roles.values())
    for member in group:
        stem, _ = _stem_and_role(member)
        yield member, stem if are_longer or {"image", "text"} <= roles[stem] else key


def _is_sample_folder(group: Sequence[str], keys: Mapping[str, str]) -> bool:
    by_role: dict[str | None, list[str]] = {}
    for member in group:
        by_role.setdefault(_stem_and_role(member)[1], []).append(keys[member])
    counts = [len(by_role.get(role, ())) for role in ("image", "text", "meta")]
    if counts not in ([1, 1, 0], [1, 1, 1]) or by_role["image"] == by_role["text"]:
        return False
    return any(by_role[role][0].rpartition("/")[2].lower() in names for role, names in _NAMES_OF_ROLES.items())


def _stem_and_role(member: str) -> tuple[str, str | None]:
    """A name up to its last dot, and what the rest makes of the file: image, text, meta, or None."""
    folder, slash, name = member.rpartition("/")
    stem, dot, extension = name.rpartition(".")
    return (f"{folder}{slash}{stem}", _ROLES.get(extension.lower())) if dot else (member, None)


def members_by_key(index: TarIndex) -> dict[str, TarSample]:
    """Key → members (see `keys_of`); without any where all are links. Letter case of extensions does not matter."""
    samples: dict[str, TarSample] = {}
    for name, key in keys_of(index.members).items():
        sample = samples.setdefault(key, TarSample())
        stem, role = _stem_and_role(name)
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
    """Of several images or texts of a sample the lowest is taken: what trainings read before the others."""
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
        return caption_text(index.read(member).decode("utf-8")), None
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


def _string(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _own_id(facts: Mapping[str, Any]) -> str | None:
    """Its owner's id of a sample, where it is no sample_id; an export of ours has it as own_id."""
    for name in (OWN_ID, "uid"):
        value = facts.get(name)
        if isinstance(value, str | int) and not isinstance(value, bool):
            text = str(value)
            if text and is_encodable(text) and not is_sample_id(text):
                return text
    return None


def has_own_ids(source: Path) -> bool:
    """Whether the first samples of the first tar that has some bring ids that are no sample_ids."""
    for tar in find_tars(source):
        if object_home(tar) is not None:
            return False
        try:
            index = tar_index(tar)
        except OSError:
            continue
        metas = [sample.meta for sample in members_by_key(index).values() if sample.meta is not None]
        if metas:
            return any(_own_id(json_of(index, meta)[0]) for meta in metas[:LOOKED_AT_JSONS])
    return False


def _caption_of(meta: Mapping[str, Any]) -> str | None:
    """The caption of a json: a text, or the first of a list."""
    for name in _CAPTION_KEYS:
        value = meta.get(name)
        value = value[0] if isinstance(value, list) and value else value
        if isinstance(value, str) and is_encodable(value):
            return caption_text(value)
    return None


def _url_of(meta: Mapping[str, Any], member: str | None) -> tuple[str | None, str | None]:
    """(url of a json, reason why it is not known). Null and NaN, which is pandas' null, are no url."""
    url = meta.get("url")
    if url is None or url != url:
        return None, None
    if not isinstance(url, str) or not is_encodable(url):
        return None, f"json_url_no_text:{printable(str(member))}"
    return url or None, None


def is_encodable(text: str) -> bool:
    """Whether a text has no lone surrogate: those have no bytes, and no table can hold them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _name_fault(name: str) -> str | None:
    if not is_encodable(name):
        return f"name_not_utf8:{printable(name)}"
    if _CONTROL.search(name):
        return f"name_control_character:{printable(name)}"
    return None


_ROW_SCHEMA = {
    "sample_id": pl.String,
    "source_row": pl.Int64,
    "url": pl.String,
    "caption": pl.String,
    "member": pl.String,
    "source_reason": pl.String,
    OWN_ID: pl.String,
}


def read_tar_rows(tar: Path, *, with_sha256: bool = False) -> pl.DataFrame:
    """Grain: one row per key, sorted by key: the tar's samples and those that img2dataset's table lists as failed;
    then one row per sample whose key was there already, and one where the tar is damaged and no table lists its rows.

    Columns: sample_id, source_row (index in that order), url, caption, is_duplicate (within this tar), member,
    source_reason (null where image and caption are present), own_id. A sample with neither url nor uid is identified by
    its image's bytes, which survive resharding. A truncated tar gives rows as far as it can be followed, and rows for
    what its table promises beyond. `with_sha256`: also the column image_sha256, which costs reading every image.
    """
    index = None
    try:
        index = tar_index(tar)
        rows = [*_rows(index)]
    except FileNotFoundError:
        raise
    except OSError as error:
        rows = [_lost_row(tar, f"tar_unreadable:{type(error).__name__}")]
    numbered = [{**row, "source_row": source_row} for source_row, row in enumerate(rows)]
    frame = pl.DataFrame(numbered, schema=_ROW_SCHEMA, orient="row")
    if with_sha256:
        hashes = [None if index is None else _sha256(index, member) for member in frame["member"]]
        frame = frame.with_columns(pl.Series("image_sha256", hashes, dtype=pl.String))
    return mark_duplicates(frame)


def _rows(index: TarIndex) -> Iterator[dict[str, Any]]:
    samples, results = members_by_key(index), _download_results(index.path)
    for key in sorted(set(samples) | set(results.by_key)):
        if key in samples:
            yield _row(index, key, samples[key], results)
        else:
            yield _untarred_row(key, results.by_key[key])
    for name, count in _repeated_samples(index).items():
        for number in range(1, count + 1):
            yield _lost_row(index.path, f"member_repeated:{printable(name)}", number)
    for key, count in results.repeated.items():
        for number in range(1, count + 1):
            yield _lost_row(index.path, f"key_repeated:{printable(key)}", number)
    if results.damage is not None:
        yield _lost_row(index.path, results.damage)
    if index.damage is not None and not results.by_key:  # a table lists every row, those that are lost too
        yield _lost_row(index.path, index.damage.reason)


def _repeated_samples(index: TarIndex) -> dict[str, int]:
    """First repeated member of each key → how many samples of this key the tar has besides the first."""
    counts, keys = Counter(index.repeated), keys_of(index.members)
    by_key: dict[str, tuple[str, int]] = {}
    for name, count in counts.items():
        key = keys.get(name)
        if key is not None:
            first, most = by_key.get(key, (name, 0))
            by_key[key] = first, max(most, count)
    return dict(by_key.values())


def _lost_row(tar: Path, reason: str, number: int = 1) -> dict[str, Any]:
    """A row of which nothing is known but why."""
    identity = sample_id_of(f"{tar.name}#{reason}#{number}", None)
    return dict.fromkeys(_ROW_SCHEMA) | {"sample_id": identity, "source_reason": reason}


def _sha256(index: TarIndex, member: str | None) -> str | None:
    if member is None:
        return None
    try:
        return hashlib.sha256(index.read(member)).hexdigest()
    except ImageRejected:
        return None


def _row(index: TarIndex, key: str, sample: TarSample, results: "_DownloadResults") -> dict[str, Any]:
    caption, text_reason = text_of(index, sample.text)
    meta, json_reason = json_of(index, sample.meta)
    if sample.text is None and (listed := _caption_of(meta)) is not None:
        is_long = len(listed.encode()) > MAX_TEXT_BYTES
        caption, text_reason = (None, "txt_too_long") if is_long else (listed, None)
    result = results.by_key.get(key, {})
    url, url_reason = _url_of(meta, sample.meta)
    url = url or _string(result.get("url"))
    if url is None:  # one that is written where nobody can read it may be on the denylist
        url_reason = json_reason or url_reason or results.damage
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
    named = [name for name in (sample.image, sample.text, sample.meta, *sample.others) if name is not None] or [key]
    if origin is None:  # neither url nor whole image: the position in the tar alone distinguishes samples
        origin = f"{index.path.name}#{named[0]}"
    name_reason = next(filter(None, map(_name_fault, named)), None)
    return {
        "sample_id": sample_id_of(origin, caption, uid),
        "url": url,
        "caption": caption,
        "member": sample.image if name_reason is None else None,
        OWN_ID: _own_id(meta) or _own_id(result),
        "source_reason": name_reason or image_reason or text_reason or url_reason,
    }


def _untarred_row(key: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """A row of img2dataset's table that is not in the tar."""
    url, caption = _string(result.get("url")), result.get("caption")
    caption = caption if isinstance(caption, str) else None
    status = str(result.get("status"))
    reason = "missing_in_tar" if status == "success" else reason_of(status, _string(result.get("error_message")))
    return {
        "sample_id": sample_id_of(url or f"missing#{key}", caption, _string(result.get("uid"))),
        "url": url,
        "caption": caption,
        "member": None,
        OWN_ID: _own_id(result),
        "source_reason": reason,
    }


@dataclass(frozen=True)
class _DownloadResults:
    """img2dataset's table beside a tar: its rows by key, and what is wrong with it."""

    by_key: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    repeated: Mapping[str, int] = field(default_factory=dict)  # key → rows besides its first
    damage: str | None = None  # a reason


def _download_results(tar: Path) -> _DownloadResults:
    """The table beside a tar; empty without one, or where it is a table of another kind that shares the name."""
    wanted = ("key", "url", "caption", "uid", "status", "error_message")
    for path in siblings(tar):
        try:
            table = read_parquet(path)
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError):
            return _DownloadResults(damage=f"tar_table_unreadable:{printable(path.name)}")
        if "key" not in table.columns or "status" not in table.columns:
            return _DownloadResults()
        rows = table.select(name for name in wanted if name in table.columns).iter_rows(named=True)
        by_key: dict[str, Mapping[str, Any]] = {}
        repeated: Counter[str] = Counter()
        for row in rows:
            key = str(row["key"])
            if by_key.setdefault(key, row) is not row:
                repeated[key] += 1
        return _DownloadResults(by_key, repeated)
    return _DownloadResults()


def expected_row_count(tars: Sequence[Path]) -> int:
    """Rows of the pool, from the tables beside the tars where all have one that can be read; else as many for each as
    the first tar has that has any."""
    tables = [path for tar in tars for path in siblings(tar)]
    if len(tables) == len(tars):
        try:
            return sum(scan_parquet(path).select(pl.len()).collect().item() for path in tables)
        except (pl.exceptions.PolarsError, OSError):
            pass  # this is an estimate; the shard's rows have the reason
    return next(filter(None, map(_member_count, tars)), 0) * len(tars)


def _member_count(tar: Path) -> int:
    try:
        return len(members_by_key(tar_index(tar)))
    except OSError:
        return 0
