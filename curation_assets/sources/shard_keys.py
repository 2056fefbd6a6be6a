"""Which tar of a delivered pool has which shard key: written down once, so that tars that come later move no other."""

import contextlib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from curation_assets.core.errors import StoreError, few
from curation_assets.core.json_files import read_json
from curation_assets.core.seal import read_sealed_json
from curation_assets.core.settings import LAST_SHARD, shard_key, shard_number
from curation_assets.core.table_names import REGISTERED_SHARDS, SAMPLES
from curation_assets.stores.documents import save_agreed
from curation_assets.stores.file_hash import once_per_version
from curation_assets.stores.lease import brief_lock
from curation_assets.stores.parquet import UNREADABLE
from curation_assets.stores.shard_store import ShardStore
from curation_assets.stores.tar_samples import find_tars, has_tar

KEYS_FILE = "shard_keys.json"  # in the pool's work folder; of a home in a bucket an object
MAX_OWN_NUMBER = 999_999  # longer ones are dates and the like
_NUMBER = re.compile(r"(\d+)$")


def tars_by_shard(pool: str, source: Path, work: Path) -> dict[str, Path]:
    """Shard key → tar, for the tars that the source holds now, sorted by key. Keys of new tars are written down.

    At first sight a tar has the number at the end of its name, where all have different ones below a million; else
    tars are counted. 000002.tar of pool photos → photos-000002. One that comes later has the number of its name if it
    is free, else the next one. Raises ValueError for a source without tars.
    """
    tars = {_name(source, tar): tar for tar in find_tars(source)}
    if not tars:
        raise ValueError(f"{source}: expected .tar files, got none")
    known = _written(pool, work).numbers
    if not tars.keys() <= known.keys():
        known = _write_down(pool, source, work, tars)
    return dict(sorted((shard_key(pool, known[name]), tar) for name, tar in tars.items()))


def tar_of_shard(pool: str, source: Path, work: Path, shard: str) -> Path:
    """The tar of a shard. Raises ValueError where the source has none."""
    name = _written(pool, work).tars.get(shard)
    if name is not None:
        tar = source / name if source.is_dir() else source
        if has_tar(tar):
            return tar
    tars = tars_by_shard(pool, source, work)
    if shard not in tars:
        raise ValueError(f"pool {pool!r} has no shard {shard!r}; it has {few(tars, 5) or 'none'}")
    return tars[shard]


def _name(source: Path, tar: Path) -> str:
    return tar.name if tar == source else tar.relative_to(source).as_posix()


@dataclass(frozen=True)
class _Written:
    numbers: Mapping[str, int]  # name of a tar → its number
    tars: Mapping[str, str]  # shard key → name of its tar


def _written(pool: str, work: Path) -> _Written:
    """What was written down; nothing where there is no file yet. Raises DamagedFileError: by other keys, rows would be
    looked for in other tars.
    """
    try:
        return _read(work / KEYS_FILE, pool)
    except OSError:
        return _Written({}, {})


@once_per_version(16)
def _read(path: Path, pool: str) -> _Written:
    advice = f"`curate verify {pool} --repair` removes it; stored tables then tell which tar has which key"
    numbers = read_json(path, lambda content: dict(content["numbers"]), advice=advice)
    return _Written(numbers, {shard_key(pool, number): name for name, number in numbers.items()})


def _write_down(pool: str, source: Path, work: Path, names: Iterable[str]) -> Mapping[str, int]:
    """Number the tars that have no number yet. Who may only look sees the numbers that the next run writes down."""
    with contextlib.suppress(OSError), brief_lock(work / "source" / ".shard_keys"):
        saved = save_agreed(work / KEYS_FILE, lambda: {"numbers": _numbered(pool, source, work, names)})
        return saved["numbers"]
    return _numbered(pool, source, work, names)


def _numbered(pool: str, source: Path, work: Path, names: Iterable[str]) -> dict[str, int]:
    stored = {key for table in (REGISTERED_SHARDS, SAMPLES) for key in ShardStore(work).partitions(table)}
    present, known = set(names), dict(_written(pool, work).numbers)
    # a number of which nothing is stored, and whose tar is not there any more, is free
    known = {name: number for name, number in known.items() if name in present or shard_key(pool, number) in stored}
    known = known or _numbers_of_tables(source, work) or _numbers_at_first_sight(present)
    return known | _next_numbers(sorted(present - known.keys()), set(known.values()))


def _numbers_at_first_sight(names: Iterable[str]) -> dict[str, int]:
    ordered = sorted(names)
    own = [_own_number(name) for name in ordered]
    if None in own or len(set(own)) < len(own):
        own = list(range(len(ordered)))
    return {name: number for name, number in zip(ordered, own, strict=True) if number is not None}


def _own_number(name: str) -> int | None:
    match = _NUMBER.search(Path(name).stem)
    return int(match[1]) if match is not None and int(match[1]) <= MAX_OWN_NUMBER else None


def _next_numbers(names: Iterable[str], taken: set[int]) -> dict[str, int]:
    """Numbers of tars that come later: their own first, then those after all others."""
    numbers: dict[str, int] = {}
    taken, waiting = set(taken), []
    for name in names:
        own = _own_number(name)
        if own is None or own in taken:
            waiting.append(name)
        else:
            numbers[name] = own
            taken.add(own)
    after = max(taken, default=-1) + 1
    free = (number for number in chain(range(after, LAST_SHARD + 1), range(after)) if number not in taken)
    return numbers | dict(zip(waiting, free, strict=False))


def _numbers_of_tables(source: Path, work: Path) -> dict[str, int]:
    """Name of a tar → number, where the file of numbers is lost: by the rows, and the hashes of the sources."""
    store, numbers = ShardStore(work), {}
    for key in store.partitions(REGISTERED_SHARDS):
        hashed = (read_sealed_json(work / "source" / f"{key}.sha256.json") or {}).get("files", {})
        tars = [tar for tar in hashed if tar.endswith(".tar")]
        with contextlib.suppress(*UNREADABLE, StoreError):
            tars = tars or store.read(REGISTERED_SHARDS, key, ["tar"])["tar"].drop_nulls().to_list()
        for tar in tars[:1]:
            path = Path(os.path.normpath(work / tar))
            name = path.relative_to(source).as_posix() if path.is_relative_to(source) else path.name
            numbers[name] = shard_number(key)
    return numbers
