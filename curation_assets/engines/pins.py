"""Weights are what was released: before a file is used its sha256 is compared with the one that is pinned for it.

Where the pin stands follows from where the file lies: shipped weights in `embedded/weights/manifest.json`, what a pool
trained in the manifest of its folder, files of the hub's cache in the name of their blob, files of a package in
PINNED_MODELS or in the package's RECORD. Folders of one's own (path:) have none. Hashes are remembered while a file
has the same size, time and inode (stores/file_hash.py).
"""

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import distribution as find_distribution
from pathlib import Path

from curation_assets.core.errors import ModelUnavailableError
from curation_assets.core.seal import read_sealed_json, seal_now
from curation_assets.core.settings import PACKAGE_ROOT
from curation_assets.stores.file_hash import blob_damage, file_sha256, remembered, sha256_now
from curation_assets.stores.shard_store import folder_manifest

#: Folder of the weights that ship with the package, one sub-folder per embedded name.
WEIGHTS_ROOT = PACKAGE_ROOT / "embedded" / "weights"
SHIPPED_MANIFEST = "manifest.json"
#: Files that do not change what a model answers.
UNHASHED_SUFFIXES = (".md", ".gitattributes", ".py", ".pyc", ".lock")


@dataclass(frozen=True)
class Pins:
    """What the files at an address should be: path → sha256, and what to do about one that is not."""

    hashes: Mapping[Path, str]
    advice: str


@dataclass(frozen=True)
class DamagedFile:
    """A file of weights that is not what is pinned."""

    path: Path
    expected: str
    got: str
    advice: str

    def __str__(self) -> str:
        return f"{self.path}: expected sha256 {self.expected}, got {self.got}; {self.advice}"


def check_weights(folder: Path, *pins: Pins) -> None:
    """Raise ModelUnavailableError that names the first file which is not what is pinned."""
    for damaged in damaged_weights(folder, *pins):
        raise ModelUnavailableError(str(damaged))


def damaged_weights(folder: Path, *pins: Pins, fresh: bool = False) -> Iterator[DamagedFile]:
    """Files in `folder` (or the one file that it is) that are not what is pinned, here or by where they lie.

    `fresh`: read every file now, whatever is remembered.
    """
    of_hub = "snapshots" in folder.parts  # its cache: models--…/snapshots/COMMIT, links to ../../blobs
    for path in [folder, *sorted(folder.rglob("*"))] if of_hub else []:
        if damage := blob_damage(path, fresh=fresh):
            advice = "delete it and fetch the repository again"
            yield DamagedFile(path.resolve(), *damage, advice)
    for pin in (*pins, *_pins_by_place(folder)):
        for path, expected in pin.hashes.items():
            hash_of = sha256_now if fresh else file_sha256
            got = hash_of(path) if path.is_file() else "no file"
            if got != expected:
                yield DamagedFile(path, expected, got, pin.advice)


def _pins_by_place(folder: Path) -> Iterator[Pins]:
    if folder.resolve().parent == WEIGHTS_ROOT:
        yield shipped_pins(folder.name)
        return
    try:
        manifest = folder_manifest(folder)
    except ValueError as error:
        raise ModelUnavailableError(f"{error}; {_REPAIR}") from error
    if manifest is not None:
        yield Pins({folder / name: sha256 for name, sha256 in manifest.files.items()}, _REPAIR)


_REPAIR = "`curate verify POOL --repair` makes it again"
REINSTALL = (
    "install the package again, or after a training of one's own run, in a checkout, "
    "`python -m lab --out FOLDER --stages manifest`"
)


def shipped_pins(name: str) -> Pins:
    """Files of a shipped model. Raises ModelUnavailableError where the list of pins is damaged."""
    return Pins(
        {WEIGHTS_ROOT / name / file: sha256 for file, sha256 in shipped_hashes().get(name, {}).items()}, REINSTALL
    )


def shipped_hashes() -> dict[str, dict[str, str]]:
    """Shipped model → file → sha256. Raises ModelUnavailableError where the list is damaged."""
    path = WEIGHTS_ROOT / SHIPPED_MANIFEST
    seal = remembered(seal_now, path) if path.is_file() else ""
    content = _shipped(path, seal)
    if content is None:
        raise ModelUnavailableError(f"{path} is damaged or absent, which lists the sha256 of all weights; {REINSTALL}")
    return content


@cache
def _shipped(path: Path, seal: str) -> dict[str, dict[str, str]] | None:
    content = read_sealed_json(path)
    if content is None or content["seal"] != seal:
        return None
    return {
        name: {file: str(facts["sha256"]) for file, facts in model["files"].items()}
        for name, model in content["models"].items()
    }


@cache
def recorded_pins(distribution: str, folder: Path) -> Pins:
    """Files in `folder` as the RECORD of an installed distribution lists them; none where it has no such list."""
    try:
        files = find_distribution(distribution).files or []
    except PackageNotFoundError:
        files = []
    hashes = {}
    for file in files:
        path = Path(str(file.locate()))
        if file.hash is None or file.hash.mode != "sha256" or path.name.endswith(UNHASHED_SUFFIXES):
            continue
        if path == folder or folder in path.parents:
            hashes[path] = base64.urlsafe_b64decode(file.hash.value + "==").hex()
    return Pins(hashes, f"install the package {distribution} again")
