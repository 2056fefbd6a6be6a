"""Releases: subsets under names that never change. A release is a folder, `<home>/releases/<pool>/<NAME>/`:

    release.json      name, policy, counts, models, and the sha256 and size of every other file
    subset.npy        DataComp's u8,u8; subset.parquet: sample_id, multiplicity
    ledger/           <shard>.parquet: the policy's verdict tables, one row per row of the pool; replaying them gives
                      the subset. Hard links to the pool's own files where the disk has such
    provenance.parquet  one row per row of the ledger, shard after shard: where it comes from
    manifests.jsonl   the manifest of every table upstream, one per line: code, settings and models
    <policy>.yaml     the policy; cuts.json: its cuts; card.md: for people

It holds ids, numbers, licences and names of creators, and no caption, URL or image. The folder appears whole or not at
all, and no file of it is ever written again. A release that a takedown touched keeps release.json alone, which names
the next one. Beside it, `NAME.summary/FORM/` has what `curate summary` wrote of it, and goes with it.

In place of ledger/, a version before 0.4 wrote ledger.parquet, sorted by id (audit/old_ledger.py), and versions/, what
its columns point to.
"""

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from curation_assets.core.errors import StoreError
from curation_assets.core.validation import unknown_name
from curation_assets.stores.atomic import READ_ONLY
from curation_assets.stores.documents import save_text

FOLDER = "releases"  # under home
RELEASE_FILE = "release.json"
LEDGER_FOLDER = "ledger"
LEDGER_FILES = f"{LEDGER_FOLDER}/*.parquet"
OLD_LEDGER_FILE = "ledger.parquet"
PROVENANCE_FILE = "provenance.parquet"  # earlier releases lack it
SUBSET_NPY, SUBSET_PARQUET = "subset.npy", "subset.parquet"
CUTS, MANIFESTS = "cuts.json", "manifests.jsonl"
FORMAT = "curation_release/1"
SUMMARIES = ".summary"  # end of the name of the folder beside a release
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


class MissingReleaseError(StoreError, FileNotFoundError):
    """There is no release of this name, or what it held was withdrawn."""


@dataclass(frozen=True)
class Withdrawal:
    """Why and when a release was withdrawn, and what to use instead."""

    at: str  # UTC, ISO 8601
    reason: str
    certificate: str  # of the takedown, relative to home; empty where there is none
    rows: int  # of the ledger that were removed
    kept: int  # of those, samples of the subset
    next: str  # the release that has everything else
    files: Mapping[str, Mapping[str, Any]]  # as the release had them, so that a copy elsewhere can be recognised


@dataclass(frozen=True)
class Release:
    """The content of `release.json`, and where it lies."""

    name: str
    pool: str
    subset: str  # the policy
    policy_version: str
    profile: str
    created_at: str  # UTC, ISO 8601
    software: str
    original: str  # itself, or the release whose successor after takedowns it is
    previous: str | None  # the release of the same policy before it
    counts: Mapping[str, int]  # rows, kept, dropped, failed
    left_out: Mapping[str, int]  # reason → rows of the pool that are not in the ledger
    models: tuple[Mapping[str, Any], ...]  # table, address, revision, weights_sha256
    about: Mapping[str, Any]  # of the pool: kind, image_domain, worths, what these are measured on, holds
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # path → sha256, bytes
    withdrawn: Withdrawal | None = None
    folder: Path = Path()

    @property
    def ledger_name(self) -> str:
        """The files of its ledger, as a statement in its folder names them."""
        return OLD_LEDGER_FILE if (self.folder / OLD_LEDGER_FILE).is_file() else LEDGER_FILES

    @property
    def ledger_paths(self) -> list[Path]:
        """The files of its ledger, shard after shard. Raises MissingReleaseError where it was withdrawn."""
        self.check_in_force()
        return sorted(self.folder.glob(self.ledger_name))

    def check_in_force(self) -> None:
        """Raise MissingReleaseError, with the next release, where this one was withdrawn."""
        if self.withdrawn is not None:
            raise MissingReleaseError(
                f"release {self.name!r} was withdrawn at {self.withdrawn.at} ({self.withdrawn.reason}) and holds no "
                f"samples any more; use {self.withdrawn.next!r}"
            )

    @property
    def sha256(self) -> str:
        """What the release is known by: 64 hex digits over its content, files and all."""
        return hashlib.sha256(_dumped(self._content).encode()).hexdigest()

    @property
    def _content(self) -> dict[str, Any]:
        content = {"format": FORMAT, **dataclasses.asdict(self)}
        del content["folder"]
        return content

    def to_text(self) -> str:
        """`release.json`: there is one text for one content, with its hash, so that a changed byte shows."""
        return _dumped({**self._content, "sha256": self.sha256}) + "\n"

    def write(self) -> None:
        """Write `release.json` into its folder, whole or not at all, to be read only."""
        save_text(self.folder / RELEASE_FILE, self.to_text())
        (self.folder / RELEASE_FILE).chmod(READ_ONLY)


def _dumped(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False)


def read_release(folder: Path) -> Release:
    """The release in a folder. Raises MissingReleaseError where there is none, StoreError for a damaged one."""
    path = folder / RELEASE_FILE
    if not path.is_file():
        raise MissingReleaseError(f"{folder} is no release: it has no {RELEASE_FILE}; `curate release list` lists them")
    data = path.read_bytes()
    try:
        content = json.loads(data)
        del content["sha256"]
        if content.pop("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT!r}")
        withdrawn = content.pop("withdrawn")
        models = tuple(content.pop("models"))
        release = Release(
            **content, models=models, withdrawn=None if withdrawn is None else Withdrawal(**withdrawn), folder=folder
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise StoreError(f"{path} is damaged, or of another version of this program: {error}") from error
    if data != release.to_text().encode():
        raise StoreError(f"{path} was changed: its bytes are not those that were written; restore it from a copy")
    return release


def release_folder(home: Path, pool: str, name: str) -> Path:
    """Where a release lies, whether it exists or not. Raises ValueError for a malformed name."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"a release's name has lower-case letters, digits, '.', '_' and '-', 64 at most, and begins with a letter "
            f"or digit; got {name!r}"
        )
    if name.endswith(SUMMARIES):
        raise ValueError(f"a release's name does not end in {SUMMARIES}, as folders of summaries do; got {name!r}")
    return releases_root(home, pool) / name


def summaries_folder(release: Release) -> Path:
    """Where the summaries of a release lie, a folder for each form, whether there are any or not."""
    return release.folder.with_name(release.folder.name + SUMMARIES)


def releases_root(home: Path, pool: str) -> Path:
    """Where the releases of a pool lie."""
    return home / FOLDER / pool


def release_folders(home: Path, pool: str | None = None) -> list[Path]:
    """Folders of all releases (of one pool), damaged ones too."""
    found = (path.parent for path in (home / FOLDER).glob(f"{pool or '*'}/*/{RELEASE_FILE}"))
    return sorted(folder for folder in found if not folder.name.startswith("."))


def list_releases(home: Path, pool: str | None = None) -> list[Release]:
    """All releases (of one pool), withdrawn ones too, oldest first. Raises StoreError for a damaged one."""
    found = [read_release(folder) for folder in release_folders(home, pool)]
    return sorted(found, key=lambda release: (release.created_at, release.pool, release.name))


def find_release_folder(home: Path, name: str, pool: str | None = None) -> Path:
    """Folder of the release that is called `name`, else `name` itself where that is a folder: a text with a slash, or a
    folder with a release.json. A damaged release is found, too.

    Raises MissingReleaseError that lists those there are, ValueError where two pools have one of that name.
    """
    known = release_folders(home, pool)
    same = [folder for folder in known if folder.name == name]
    if len(same) > 1:
        pools = ", ".join(folder.parent.name for folder in same)
        raise ValueError(f"pools {pools} each have a release {name!r}; give --pool, or its folder")
    given = Path(name).expanduser()
    if not same and (os.sep in name or (given / RELEASE_FILE).is_file()):
        return given
    if not same:
        names = [folder.name for folder in known]
        raise MissingReleaseError(
            f"{f'pool {pool!r} has ' if pool else ''}no release {unknown_name(name, names)}"
            + ("" if names else "; make one with `curate release create SUBSET NAME`")
        )
    return same[0]


def is_release(home: Path, name: str) -> bool:
    """Whether `find_release_folder` finds a release of this name, or in this folder."""
    try:
        return (find_release_folder(home, name) / RELEASE_FILE).is_file()
    except MissingReleaseError:
        return False


def find_release(home: Path, name: str, pool: str | None = None) -> Release:
    """The release in the folder that `find_release_folder` finds. Raises as it and as `read_release`, ValueError for a
    folder of another pool.
    """
    release = read_release(find_release_folder(home, name, pool))
    if pool not in (None, release.pool):
        raise ValueError(f"{release.folder} is a release of pool {release.pool!r}, not of {pool!r}")
    return release
