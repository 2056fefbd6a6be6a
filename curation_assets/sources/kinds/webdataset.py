"""Tars in webdataset layout: KEY.jpg, KEY.txt, KEY.json (img2dataset's output, or anybody's). Images stay in them."""

import hashlib
import os
import re
import tarfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import polars as pl

from curation_assets.core.settings import Settings
from curation_assets.numeric.identity import is_sample_id, sample_id_of
from curation_assets.sources.base import Found, Note, Offered, Source
from curation_assets.sources.download.reasons import reason_of
from curation_assets.sources.pool_facts import ColumnNames, PoolFacts
from curation_assets.sources.shard_keys import tar_of_shard, tars_by_shard
from curation_assets.sources.table_files import split_notes
from curation_assets.sources.text_columns import GIVEN_NAMES, MAX_GIVEN_CHARACTERS, carried_columns
from curation_assets.stores.caption_text import MAX_TEXT_BYTES, caption_text, is_encodable
from curation_assets.stores.denylist import Denylist
from curation_assets.stores.file_hash import cached_sha256
from curation_assets.stores.image_formats import IMAGE_EXTENSIONS
from curation_assets.stores.images import BLOCK, ImageRejected, TarIndex, compression_of, printable, tar_index
from curation_assets.stores.parquet import scan_parquet
from curation_assets.stores.provenance import GIVEN
from curation_assets.stores.samples import OWN_ID, mark_duplicates, without_denied
from curation_assets.stores.tar_members import far_tar
from curation_assets.stores.tar_samples import (
    DownloadResults,
    TarSample,
    download_results,
    find_tars,
    json_of,
    keys_of,
    members_by_key,
    no_files,
    siblings,
    stem_and_role,
    tars_here,
    text_of,
)

SHOWN_NOTES = 10


class Webdataset(Source):
    """A folder of tars, or one."""

    order = 10
    version = "3"  # more formats, keys and captions of tars are read than in 2
    has_own_tars = True

    def detect(self, offered: Offered) -> Found | None:
        source = offered.path
        if not find_tars(source):
            return None
        given = {ours: key for ours, key in offered.columns.items() if ours in GIVEN}
        if given.keys() != offered.columns.keys():
            raise ValueError(
                f"{source} holds tars: columns, header and encoding do not apply, got {dict(offered.columns)}"
            )
        keys = {ours: key for ours, key in {**_given_keys(source), **given}.items() if key is not None}
        return Found(source, {**({OWN_ID: "uid"} if has_own_ids(source) else {}), **keys})

    def shards(self, pool: PoolFacts, settings: Settings) -> list[str]:
        return list(tars_of_pool(pool, settings))

    def fingerprint(self, pool: PoolFacts, shard: str, settings: Settings) -> dict[str, str]:
        cache = settings.work(pool.name) / "source" / f"{shard}.sha256.json"
        tar = _tar(pool, shard, settings)
        far = far_tar(tar)
        files = siblings(tar) if far else [tar, *siblings(tar)]
        try:
            hashes = {Path(path).name: sha256 for path, sha256 in cached_sha256(files, cache).items()} if files else {}
            fingerprint = {tar.name: far.sha256, **hashes} if far else hashes
        except FileNotFoundError:
            raise
        except OSError as error:  # the shard is a failed row until it can be read
            fingerprint = {file.name: type(error).__name__ for file in (tar, *siblings(tar))}
        return fingerprint | takedown_facts(pool, shard, settings)

    def rows(self, pool: PoolFacts, shard: str, settings: Settings) -> pl.DataFrame:
        tar = _tar(pool, shard, settings)
        denylist = Denylist.load(settings.home, pool.implied_source)
        rows = read_tar_rows(tar, pool.columns, with_sha256=bool(denylist.hashes.get("sha256")))
        return without_denied(rows, denylist).with_columns(tar=pl.lit(_from_work(tar, pool, settings)))

    def expected_rows(self, pool: PoolFacts, settings: Settings) -> int:
        """Rows by the tables beside the tars where all have one; else an estimate by the first tar."""
        return expected_row_count(find_tars(self.path(pool, settings)))

    def describe(self, pool: PoolFacts, settings: Settings, given: ColumnNames) -> Iterator[Note]:
        check_images(self.path(pool, settings))
        notes = tar_notes(self.path(pool, settings))
        more = len(notes) - SHOWN_NOTES
        shown = notes if more <= 0 else [*notes[:SHOWN_NOTES], f"… and {more:,} more like these"]
        for sentence in [*shown, *split_notes(tar.name for tar in find_tars(self.path(pool, settings)))]:
            yield Note(sentence, "warning")

    def doubts(self, path: Path) -> list[str]:
        return [*no_tars(path), *split_notes(tar.name for tar in find_tars(path))]

    def collected(self, pool: PoolFacts) -> str:
        return "Image–text pairs came as tars from their owner and were registered as they are."

    def remove_samples(self, pool: PoolFacts, settings: Settings, sample_ids: Collection[str]) -> list[str]:
        """The tars are their owner's; `curate takedown apply --sources` rewrites them one by one
        (stages/raw/takedown_sources.py)."""
        return []


SOURCE = Webdataset()


def tars_of_pool(pool: PoolFacts, settings: Settings) -> dict[str, Path]:
    """Shard key → tar, for the delivered tars that the source holds now. Raises ValueError for none."""
    return tars_by_shard(pool.name, SOURCE.path(pool, settings), settings.work(pool.name))


def _tar(pool: PoolFacts, shard: str, settings: Settings) -> Path:
    return tar_of_shard(pool.name, SOURCE.path(pool, settings), settings.work(pool.name), shard)


def _from_work(path: Path, pool: PoolFacts, settings: Settings) -> str:
    """A path inside the home, relative to the pool's work folder; another one as it is."""
    is_inside = path.is_relative_to(settings.home)
    return Path(os.path.relpath(path, settings.work(pool.name))).as_posix() if is_inside else str(path)


def source_files(pool: PoolFacts, shard: str, settings: Settings) -> list[Path]:
    """The files that a shard of delivered tars is registered from."""
    tar = _tar(pool, shard, settings)
    return [tar, *siblings(tar)]


def takedown_facts(pool: PoolFacts, shard: str, settings: Settings) -> dict[str, str]:
    """What a takedown adds to the fingerprint of a shard's source."""
    taken_down = takedown_marker(pool, shard, settings)
    return {"takedown": taken_down.read_text(encoding="utf-8")} if taken_down.is_file() else {}


def takedown_marker(pool: PoolFacts, shard: str, settings: Settings) -> Path:
    """A file that a takedown writes: when it changes, a shard of delivered tars is registered again."""
    return settings.work(pool.name) / "takedown" / f"{shard}.txt"


def no_tars(source: Path) -> list[str]:
    """Sentences on what is called a tar and is none."""
    return [
        f"{path.name} is {'a folder' if path.is_dir() else 'no file'}, not a tar: left out" for path in no_files(source)
    ]


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
LOOKED_AT_JSONS = 20  # to see whether a tar brings ids of its own
#: Keys of a tar's json that hold the caption, where no file does.
_CAPTION_KEYS = ("caption", "text")


def check_images(source: Path) -> None:
    """Raise ValueError where there are tars and none has a file that is an image by its name; not for damaged ones."""
    endings: Counter[str] = Counter()
    for tar in tars_here(source):
        try:
            index = tar_index(tar)
        except OSError:
            return
        if index.damage is not None or not index.members:
            return
        for name in index.members:
            if stem_and_role(name)[1] == "image":
                return
            endings[name.rpartition("/")[2].partition(".")[2]] += 1
    if not endings:
        return
    listed = ", ".join(f".{ending} {count}" for ending, count in endings.most_common(5))
    raise ValueError(
        f"{source}: no tar has a file that is an image by its name ({listed}); expected KEY.jpg or another of "
        f"{', '.join(IMAGE_EXTENSIONS)}, with KEY.txt"
    )


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
    for _, jsons in _first_jsons(source):
        if jsons:
            return any(map(_own_id, jsons))
    return False


def _first_jsons(source: Path) -> Iterator[tuple[Path, list[Mapping[str, Any]]]]:
    """Tars that are here and can be read, with what their first json files hold."""
    for tar in tars_here(source):
        try:
            index = tar_index(tar)
        except OSError:
            continue
        metas = [sample.meta for sample in members_by_key(index).values() if sample.meta is not None]
        yield tar, [json_of(index, meta)[0] for meta in metas[:LOOKED_AT_JSONS]]


def _given_keys(source: Path) -> dict[str, str]:
    """Keys on where samples come from, of the first samples of the first tar that has json files and of the table
    beside it: our name → theirs."""
    for tar, facts in _first_jsons(source):
        facts += [*download_results(tar).by_key.values()][:LOOKED_AT_JSONS]
        if facts:
            there = {key.lower(): key for one in facts for key, value in one.items() if isinstance(value, str)}
            return {
                ours: next(there[name] for name in names if name in there)
                for ours, names in GIVEN_NAMES.items()
                if not there.keys().isdisjoint(names)
            }
    return {}


def _given_of(keys: ColumnNames, *facts: Mapping[str, Any]) -> dict[str, str | None]:
    """What a sample's json, or the table beside the tar, has under the keys that the pool names."""
    found: dict[str, str | None] = {}
    for ours, key in carried_columns(keys).items():
        texts = (one[key].strip() for one in facts if isinstance(one.get(key), str) and is_encodable(one[key]))
        found[ours] = next((text for text in texts if 0 < len(text) <= MAX_GIVEN_CHARACTERS), None)
    return found


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


def read_tar_rows(tar: Path, columns: ColumnNames = MappingProxyType({}), *, with_sha256: bool = False) -> pl.DataFrame:
    """Grain: one row per key, sorted by key: the tar's samples and those that img2dataset's table lists as failed;
    then one row per sample whose key was there already, and one where the tar is damaged and no table lists its rows.

    Columns: sample_id, source_row (index in that order), url, caption, is_duplicate (within this tar), member,
    source_reason (null where image and caption are present), own_id. A sample with neither url nor uid is identified by
    its image's bytes, which survive resharding. A truncated tar gives rows as far as it can be followed, and rows for
    what its table promises beyond. `columns`: of where a sample comes from, our name → the key of its json or column of
    the table; the rows have them, too. `with_sha256`: also the column image_sha256, which costs reading every image.
    """
    index = None
    try:
        index = tar_index(tar)
        rows = [*_rows(index, columns)]
    except FileNotFoundError:
        raise
    except OSError as error:
        rows = [_lost_row(tar, f"tar_unreadable:{type(error).__name__}")]
    numbered = [{**row, "source_row": source_row} for source_row, row in enumerate(rows)]
    schema = {**_ROW_SCHEMA, **dict.fromkeys(carried_columns(columns), pl.String)}
    frame = pl.DataFrame(numbered, schema=schema, orient="row")
    if with_sha256:
        hashes = [index and member and index.sha256(member) for member in frame["member"]]
        frame = frame.with_columns(pl.Series("image_sha256", hashes, dtype=pl.String))
    return mark_duplicates(frame)


def _rows(index: TarIndex, columns: ColumnNames) -> Iterator[dict[str, Any]]:
    samples, results = members_by_key(index), download_results(index.path)
    for key in sorted(set(samples) | set(results.by_key)):
        if key in samples:
            yield _row(index, key, samples[key], results, columns)
        else:
            yield _untarred_row(key, results.by_key[key]) | _given_of(columns, results.by_key[key])
    repeated = [(f"member_repeated:{printable(name)}", count) for name, count in _repeated_samples(index).items()]
    repeated += [(f"key_repeated:{printable(key)}", count) for key, count in results.repeated.items()]
    for reason, count in repeated:
        for number in range(1, count + 1):
            yield _lost_row(index.path, reason, number)
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


def _row(
    index: TarIndex, key: str, sample: TarSample, results: DownloadResults, columns: ColumnNames
) -> dict[str, Any]:
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
        **_given_of(columns, meta, result),
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


def tar_notes(source: Path) -> list[str]:
    """Sentences on tars that cannot be read, by their first block, and on what is called a tar and is none."""
    notes = no_tars(source)
    for tar in find_tars(source):
        try:
            with tar.open("rb") as file:
                wrong = _wrong_begin(file.read(BLOCK))
        except OSError as error:
            wrong = f"cannot be read ({error.strerror})"
        if wrong is not None:
            notes.append(f"{tar.name} {wrong}")
    packed = [path.name for path in sorted(source.glob("*.tar.*")) if path.suffix in PACKED] if source.is_dir() else []
    return notes + [f"{name} is compressed and left out: unpack it" for name in packed]


PACKED = (".gz", ".bz2", ".xz", ".zst")


def _wrong_begin(head: bytes) -> str | None:
    """What is wrong with a tar that begins so; None where nothing is."""
    compression = compression_of(head)
    if compression is not None:
        return f"is {compression[0]}-compressed: {compression[1]} it"
    if not head.strip(b"\0"):
        return "has no members" if head else "has 0 bytes"
    try:
        tarfile.TarInfo.frombuf(head, tarfile.ENCODING, "surrogateescape")
    except tarfile.HeaderError:
        return "is no tar, or begins with a damaged header"
    return None
