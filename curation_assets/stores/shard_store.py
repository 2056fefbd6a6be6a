"""Tables on disk: one Parquet file per shard (or per pool), each carrying the manifest of what it was made from.

Layout under the store's root, a pool's work folder:

    raw/samples/shard=scenes-000003/data.parquet   per shard, with manifest.json beside it
    standardised/length_statistics/data.parquet    per pool, likewise
    distilled/icc_student/                         a folder of files (a model)

The manifest lives in the Parquet footer, so table and manifest change in one os.replace; `manifest.json` is a copy
for people and other tools. Any number of processes may write different tables or shards at once.

A table holds its own sha256 (seal.py), the manifest of a folder those of its files: `read`, `scan` and `checked_file`
compare them once in a process while a file is the same, and raise CorruptTableError.
"""

import contextlib
import functools
import os
import re
import stat
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Required, TypedDict, TypeGuard, Unpack

import polars as pl

from curation_assets.core.errors import StoreError
from curation_assets.core.json_files import read_json
from curation_assets.core.plain_json import plain
from curation_assets.core.roles import ModelIdentity
from curation_assets.core.seal import is_sealed, seal_file, seal_now, sealed_text, with_seal
from curation_assets.core.settings import check_shard_key
from curation_assets.core.stages import check_reads_forward, stage_position
from curation_assets.stores.arrow_buffers import repeats_text
from curation_assets.stores.atomic import (
    move_into_place,
    remove_all_stale,
    remove_path,
    replacing,
)
from curation_assets.stores.content_hash import config_sha256, file_hashes, folder_sha256, frame_sha256
from curation_assets.stores.costs import attempt, wall_seconds
from curation_assets.stores.documents import save_document, save_text
from curation_assets.stores.file_hash import file_sha256, once_per_version, remembered
from curation_assets.stores.lease import brief_lock
from curation_assets.stores.manifest import InputVersion, Manifest, model_records, utc_now
from curation_assets.stores.objects import MAX_AGE_SECONDS, ObjectChangedError, object_home
from curation_assets.stores.parquet import UNREADABLE, parquet_footer, read_parquet, scan_parquet, scan_shards

DATA_FILE = "data.parquet"
MANIFEST_FILE = "manifest.json"
FOOTER_KEY = "curation_manifest"
BLOCKED = "blocked"  # folder of the failed blocking checks
SWAP_LOCK = ".versions.lock"  # held while a table or a folder asset changes its version
KEPT_MANIFESTS = 65_536  # in memory, 1.2 kB each; reading one anew takes some 60 µs
CHECK_THREADS = 2  # that hash files side by side
SPILLED = "spilled"  # folder of a pool for what does not fit into memory, removed when the query ends
WHOLE = "pool"  # in place of a shard, of a whole-pool table
_NAME = re.compile(r"[a-z0-9_]+")
_VERSION = re.compile(r"\.[a-z0-9_]+\.version-[0-9a-f]{12}")

Models = Sequence[ModelIdentity | Mapping[str, str]]


class MadeFrom(TypedDict, total=False):
    """What decides the content of a table: where none of it is another, what is stored is used again."""

    code_version: Required[str]
    inputs: Sequence[tuple[str, str | None]]  # (asset, shard); None of a sharded asset: all its shards
    models: Models
    config: Mapping[str, Any] | None
    is_frozen: bool  # changed inputs alone are no reason to make it again


Changes = Callable[[pl.DataFrame, pl.DataFrame], Mapping[str, Any]]


def _is_fresh(stored: Manifest | None, wanted: Manifest, *, is_frozen: bool) -> TypeGuard[Manifest]:
    """Whether a stored manifest is of what would be made now, of a frozen table whatever its inputs hold."""
    inputs = None if is_frozen else wanted.inputs
    return stored is not None and stored.is_made_from(wanted.code_version, wanted.config_hash, wanted.models, inputs)


class MissingTableError(StoreError, FileNotFoundError):
    """The table is not there yet."""


class MissingInputError(MissingTableError):
    """An input of the table to be made is not there yet."""


class OvertakenError(StoreError):
    """Another process stored another version while this one was computed; its version stays."""


class CorruptTableError(StoreError):
    """The table's file exists and does not hold what was written."""


@dataclass(frozen=True)
class Materialised:
    """Outcome of `materialise`: the manifest in force, and whether the work was already done."""

    manifest: Manifest
    is_reused: bool


def named(asset: str, partition: str | None) -> str:
    """'raw/samples of shard scenes-000000', or the asset alone for a whole-pool table."""
    return asset if partition is None else f"{asset} of shard {partition}"


@functools.lru_cache(maxsize=KEPT_MANIFESTS)
def _manifest_in(path: str, inode: int, modified_ns: int, size: int) -> Manifest | None:
    """Manifest in a file's footer. A table's manifest is read several times in a run; a written one is another file."""
    text = manifest_text(Path(path))
    return None if text is None else Manifest.from_json(text)


def _file_stat(path: str) -> os.stat_result | None:
    """State of a regular file, in one call; None where there is none."""
    try:
        state = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return state if stat.S_ISREG(state.st_mode) else None


def manifest_text(path: Path) -> str | None:
    """The manifest in a file's footer, as it was written; None where it has none. Raises one of `UNREADABLE`."""
    return parquet_footer(path).get(FOOTER_KEY)


def folder_manifest(folder: Path) -> Manifest | None:
    """Manifest of the folder asset that a link, or the folder itself, is a version of; None where it is no version.

    Raises ValueError for one that is damaged or absent.
    """
    files = folder.resolve()
    if not _VERSION.fullmatch(files.parent.name):
        return None
    path = files.parent / MANIFEST_FILE
    if not path.is_file():
        raise ValueError(f"{files.parent} has no {MANIFEST_FILE}")
    return _manifest_of_version(path)


@once_per_version(256)
def _manifest_of_version(path: Path) -> Manifest:
    data = path.read_bytes()
    manifest = Manifest.from_json(data.decode("utf-8"))
    if not is_sealed(data):
        raise ValueError(f"{path} is damaged: its bytes are not those that were written")
    return manifest


def check_in_version(folder: Path, name: str) -> Path:
    """A file of a version of a folder asset. Raises ValueError where it is not what its manifest lists."""
    manifest, path = folder_manifest(folder), folder / name
    expected = None if manifest is None else manifest.files.get(name)
    if expected is not None and (actual := file_sha256(path)) != expected:
        raise ValueError(f"expected sha256 {expected} of {path}, got {actual}")
    return path


class ShardStore:
    """The tables of one pool. Raises ValueError for names that are not 'stage/name' or keys that are no shard keys."""

    def __init__(self, root: Path) -> None:
        self.root = Path(root)
        self.objects = object_home(self.root)  # None for a home on a disk
        self._fetched_anew: set[Path] = set()
        self._folders: dict[str, str] = {}  # asset → its folder: joining it anew takes longer than to stat a file

    # -- paths ----------------------------------------------------------------------------------------------------

    def asset_path(self, asset: str) -> Path:
        """Folder of an asset."""
        stage, _, name = asset.partition("/")
        stage_position(stage)
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"asset must read stage/name with name in a-z, 0-9, _ (such as signals/icc), got {asset!r}"
            )
        return self.root / stage / name

    def table_path(self, asset: str, partition: str | None = None) -> Path:
        """Where the Parquet file of a table lies, whether it exists or not. From a bucket it is fetched."""
        return Path(self._fetched(asset, partition))

    def _fetched(self, asset: str, partition: str | None) -> str:
        path = self._table_file(asset, partition)
        if self.objects is not None:
            self.objects.fetch(Path(path))
        return path

    def _table_path(self, asset: str, partition: str | None) -> Path:
        return Path(self._table_file(asset, partition))

    def _table_file(self, asset: str, partition: str | None) -> str:
        folder = self._folders.get(asset)
        if folder is None:
            folder = self._folders[asset] = str(self.asset_path(asset))
        return (
            f"{folder}/{DATA_FILE}" if partition is None else f"{folder}/shard={check_shard_key(partition)}/{DATA_FILE}"
        )

    def folder_path(self, asset: str) -> Path:
        """Where a folder asset lies. It is a link to the version in force: resolve it once to read one version.

        From a bucket the version's files are fetched.
        """
        path = self.asset_path(asset)
        if self.objects is not None:
            self.objects.fetch_folder(path)
        return path

    def fetch_tables(self, asset: str, partitions: Sequence[str] | None = None) -> None:
        """Fetch the files of an asset (all its shards, or these) from a bucket, several at a time."""
        if self.objects is not None:
            keys = self.partitions(asset) if partitions is None else partitions
            self.objects.fetch_all([self._table_path(asset, None), *(self._table_path(asset, key) for key in keys)])

    def refresh(self, asset: str) -> None:
        """See what other machines put into a bucket of an asset."""
        if self.objects is not None:
            self.objects.refresh(self.asset_path(asset))

    def size_of(self, folder: Path) -> int:
        """Bytes of all files in a folder of the pool; of a bucket, those that are not here, too."""
        if self.objects is not None:
            return self.objects.size_of(folder)
        return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())

    def unfinished_path(self, asset: str, partition: str | None = None) -> Path:
        """Folder for what a long computation of a table saves on its way; removed when the table is written."""
        folder = self.asset_path(asset)
        return folder.with_name(f".{folder.name}.unfinished") / (partition or WHOLE)

    def discard_unfinished(self, asset: str, partition: str | None = None) -> None:
        """Delete what a computation saved on its way: it is done."""
        remove_path(self.unfinished_path(asset, partition))

    def scratch(self, asset: str) -> Path:
        """An empty `unfinished_path` of a whole-pool table."""
        folder = self.unfinished_path(asset)
        remove_path(folder)
        folder.mkdir(parents=True)
        return folder

    def stamp(self, asset: str, partition: str | None = None) -> int | None:
        """A number that changes when a table or folder asset is replaced; None where it is not there.

        On a disk its modification time in ns; of a bucket it is the object's, and nothing is fetched.
        """
        folder = self.asset_path(asset)
        path = folder if partition is None and folder.is_symlink() else self._table_path(asset, partition)
        if self.objects is not None:
            return self.objects.stamp(path)
        try:
            return path.lstat().st_mtime_ns
        except FileNotFoundError:
            return None

    def partitions(self, asset: str) -> list[str]:
        """Shard keys that are materialised, sorted."""
        if self.objects is not None:
            of_asset = self.asset_path(asset)
            self.objects.refresh(of_asset, max_age=MAX_AGE_SECONDS)
            folders = [path for path in of_asset.glob("shard=*") if self.objects.has(path / DATA_FILE)]
            return sorted(path.name.removeprefix("shard=") for path in folders)
        try:
            names = os.listdir(folder := self.asset_path(asset))
        except (FileNotFoundError, NotADirectoryError):
            return []
        stored = (
            name for name in names if name.startswith("shard=") and os.path.exists(f"{folder}/{name}/{DATA_FILE}")
        )
        return sorted(name.removeprefix("shard=") for name in stored)

    # -- blocking checks --------------------------------------------------------------------------------------------

    def set_blocked(self, asset: str, partition: str | None, sentences: Sequence[str]) -> None:
        """Remember which blocking checks of a table fail, in words; none: that all hold."""
        path = self.root / BLOCKED / asset / f"{partition or WHOLE}.json"
        if sentences:
            save_document(path, list(sentences))
        else:
            remove_path(path)

    def blocked(self, asset: str) -> dict[str, list[str]]:
        """Shard (or 'pool' for a whole-pool table) → results of its blocking checks when it was last materialised."""
        paths = sorted((self.root / BLOCKED / asset).glob("*.json"))
        advice = "remove the file: the next run of the table writes it again"
        return {path.stem: read_json(path, list, advice=advice) for path in paths}

    # -- reading --------------------------------------------------------------------------------------------------

    def manifest(self, asset: str, partition: str | None = None) -> Manifest | None:
        """Manifest of a table or folder asset, None where it is not materialised. Raises CorruptTableError."""
        path = self._fetched(asset, partition)
        if (state := _file_stat(path)) is not None:
            try:
                manifest = _manifest_in(path, state.st_ino, state.st_mtime_ns, state.st_size)
            except (*UNREADABLE, ValueError) as error:
                if self._is_fetched_anew(Path(path)):
                    return self.manifest(asset, partition)
                raise self._corrupt(asset, partition, str(error)) from error
            if manifest is None:
                raise self._corrupt(asset, partition, f"its footer has no {FOOTER_KEY!r}: another program wrote it")
            return manifest
        folder = self.asset_path(asset)
        if partition is None and folder.is_symlink():
            if self.objects is not None:
                self.objects.fetch(folder.parent / os.readlink(folder).partition("/")[0] / MANIFEST_FILE)
            try:
                manifest = folder_manifest(folder)
            except ValueError as error:
                raise self._corrupt(asset, partition, str(error)) from error
            if manifest is None:
                raise self._corrupt(asset, partition, f"{folder} is a link to {os.readlink(folder)}, no version of it")
            return manifest
        return None

    def read(self, asset: str, partition: str | None = None, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """One table file, whole or some of its columns.

        Raises MissingTableError when it is not there, CorruptTableError when the file is damaged.
        """
        path = self.table_path(asset, partition)
        if self.check(asset, partition) is None or not path.is_file():
            raise MissingTableError(
                f"{named(asset, partition)} is not materialised (no {path}); materialise {asset} first "
                f"(`curate run {self.root.name}`)"
            )
        try:
            return read_parquet(path, columns=list(columns) if columns else None)
        except pl.exceptions.ColumnNotFoundError as error:
            raise StoreError(f"{named(asset, partition)} lacks a requested column: {error}") from error
        except UNREADABLE as error:
            raise self._corrupt(asset, partition, str(error)) from error

    def check(self, asset: str, partition: str | None = None) -> Manifest | None:
        """The manifest of a table whose bytes are what was written; they are read once in a process.

        None where it is not there. Raises CorruptTableError.
        """
        path = self.table_path(asset, partition)
        while (manifest := self.manifest(asset, partition)) is not None:
            try:
                actual = remembered(seal_now, path)
            except OSError as error:
                raise self._corrupt(asset, partition, str(error)) from error
            if actual == manifest.seal:
                break
            if self._is_still(asset, partition, manifest):
                if self._is_fetched_anew(path):
                    continue
                why = f"its bytes are not those that were written: expected sha256 {manifest.seal}, got {actual}"
                raise self._corrupt(asset, partition, why)
            # else a writer replaced the file between our looks: look again
        return manifest

    def _is_fetched_anew(self, path: Path) -> bool:
        """Fetch a damaged file once more from the bucket. False after that, and without a bucket."""
        if self.objects is None or path in self._fetched_anew:
            return False
        self._fetched_anew.add(path)
        self.objects.reload(path)
        return True

    def _is_still(self, asset: str, partition: str | None, manifest: Manifest) -> bool:
        now = self.manifest(asset, partition)
        return now is not None and (now, now.seal) == (manifest, manifest.seal)

    def checked_paths(self, asset: str, partitions: Sequence[str]) -> list[Path]:
        """Files of these shards, whose bytes are what was written. Raises as `scan`."""
        self.fetch_tables(asset, partitions)
        paths = [self.table_path(asset, key) for key in partitions]
        missing = [key for key, path in zip(partitions, paths, strict=True) if not path.is_file()]
        if missing or not paths:
            shown = f" for shards {missing[:5]}" if missing else ""
            raise MissingTableError(
                f"{asset} is not materialised{shown}; materialise {asset} first (`curate run {self.root.name}`)"
            )
        self._check_all(asset, partitions)
        return paths

    def _check_all(self, asset: str, partitions: Sequence[str]) -> None:
        """`check` of each, several at a time where they are many: hashing runs outside Python's lock."""
        check = functools.partial(self.check, asset)
        if len(partitions) < CHECK_THREADS:
            list(map(check, partitions))
            return
        with ThreadPoolExecutor(CHECK_THREADS) as threads:
            list(threads.map(check, partitions))

    def checked_file(self, asset: str, name: str) -> Path:
        """A file of a folder asset, in the version in force, whose content is what was written.

        Raises MissingTableError where it is not there, CorruptTableError where it is damaged.
        """
        path = self.asset_path(asset).resolve() / name
        if self.objects is not None:
            self.objects.fetch(path)
        if self.manifest(asset) is None or not path.is_file():
            raise MissingTableError(f"{asset} has no file {name} under {self.root}; materialise {asset} first")
        try:
            return check_in_version(path.parents[name.count("/")], name)
        except ValueError as error:
            raise self._corrupt(asset, None, str(error)) from error

    def scan(self, asset: str, partitions: Sequence[str] | None = None) -> pl.LazyFrame:
        """All shards (or those named) of an asset, lazily, with the column `shard`; a global table as it is.

        Raises MissingTableError when nothing, or a named shard, is not there, CorruptTableError for a damaged one.
        """
        if partitions is None and self.table_path(asset).is_file():
            self.check(asset)
            return scan_parquet(self.table_path(asset))
        paths = self.checked_paths(asset, self.partitions(asset) if partitions is None else list(partitions))
        return scan_shards(paths)

    def _corrupt(self, asset: str, partition: str | None, why: str) -> CorruptTableError:
        link = self.asset_path(asset)
        path = link if link.is_symlink() else self.table_path(asset, partition)
        return CorruptTableError(
            f"{named(asset, partition)} cannot be trusted: {why}. Delete {path} and materialise {asset} again; "
            f"`curate verify {self.root.name} --repair` does both"
        )

    def remove(self, asset: str, partition: str | None = None) -> None:
        """Delete a table (or one shard of it), or a folder asset with all its versions, if it exists."""
        folder = self.asset_path(asset)
        if partition is not None:
            remove_path(self.table_path(asset, partition).parent)
            return
        remove_path(folder)  # first: a version that no link names goes with the next one, a link to nothing is damage
        for version in folder.parent.glob(f".{folder.name}.version-*"):
            remove_path(version)

    def remove_unfinished(self, partitions: Sequence[str]) -> None:
        """Delete what long computations of whole-pool tables and of these shards saved on their way, what queries put
        on the disk, and what dead writers left."""
        remove_all_stale(self.root)
        for left in self.root.glob(f".{SPILLED}*"):
            remove_path(left)
        for folder in list(self.root.glob("*/.*.unfinished")):
            for part in (WHOLE, *partitions):
                remove_path(folder / part)

    def remove_previous(self, asset: str) -> None:
        """Delete the versions of a folder asset but the one in force."""
        link = self.asset_path(asset)
        current = link.resolve().parent if link.is_symlink() else None
        for version in link.parent.glob(f".{link.name}.version-*"):
            if version != current:
                remove_path(version)

    # -- writing --------------------------------------------------------------------------------------------------

    def write(
        self,
        asset: str,
        frame: pl.DataFrame | pl.LazyFrame,
        partition: str | None = None,
        *,
        code_version: str,
        inputs: Sequence[InputVersion] = (),
        models: Models = (),
        config: Mapping[str, Any] | None = None,
        run_id: str = "",
        seconds: float = 0.0,
        facts: Mapping[str, Any] | None = None,
    ) -> Manifest:
        """Store `frame` (row order kept) with its manifest, in one step; a lazy one, of a table of the whole pool, is
        never in memory whole. `seconds`: what computing it took. `facts`: of its manifest.

        Raises ValueError when a column `shard` disagrees with the partition.
        """
        made_from: MadeFrom = {"code_version": code_version, "models": models, "config": config}
        wanted = replace(self._wanted(asset, partition, run_id, made_from), inputs=tuple(inputs), seconds=seconds)
        return self._put(frame, replace(wanted, facts=facts or {}, before=self._before(wanted, frame)))

    def _wanted(self, asset: str, partition: str | None, run_id: str, made_from: MadeFrom) -> Manifest:
        """The manifest of what is to be made, as far as it is known before. Raises as `input_versions`."""
        return Manifest(
            asset=asset,
            partition=partition,
            content_sha256="",
            code_version=made_from["code_version"],
            models=model_records(made_from.get("models", ())),
            config_hash=config_sha256(made_from.get("config")),
            inputs=self.input_versions(asset, made_from.get("inputs", ())),
            run_id=run_id,
            row_count=0,
            seconds=0.0,
            written_at="",
        )

    def _before(
        self, manifest: Manifest, frame: pl.DataFrame | pl.LazyFrame, changes: Changes | None = None
    ) -> dict[str, Any]:
        """`Manifest.before` of a table that is about to be replaced. `changes`: as of `materialise`."""
        try:
            old = self.manifest(manifest.asset, manifest.partition)
            if old is None:
                return {}
            names = ("code_version", "models", "config_hash")
            before = {name: plain(was) for name in names if (was := getattr(old, name)) != getattr(manifest, name)}
            if changes is not None and isinstance(frame, pl.DataFrame):
                before |= changes(self.read(manifest.asset, manifest.partition), frame)
            return before
        except StoreError:  # damaged: nobody knows what it was
            return {}

    def rewrite(
        self,
        asset: str,
        frame: pl.DataFrame,
        partition: str | None = None,
        *,
        inputs: Sequence[InputVersion] | None = None,
    ) -> Manifest:
        """Store other rows of a stored table, as made by the same run from the same code, models and settings.

        `inputs`: the versions that it counts as made from; None: as before. Raises MissingTableError.
        """
        before = self.manifest(asset, partition)
        if before is None:
            raise MissingTableError(f"{named(asset, partition)} is not materialised, and so has no rows to change")
        return self._put(frame, replace(before, inputs=before.inputs if inputs is None else tuple(inputs), seal=""))

    def _put(
        self, frame: pl.DataFrame | pl.LazyFrame, manifest: Manifest, check: Callable[[], None] = lambda: None
    ) -> Manifest:
        """Write a table with its manifest in one step.

        `check` is called when all but that step is done, with other writers kept out; what it raises ends the write. In
        a home in a bucket it is not called: there the put of a later writer is refused.
        """
        asset, partition = manifest.asset, manifest.partition
        if partition is not None and isinstance(frame, pl.DataFrame) and "shard" in frame.columns:
            shards = frame["shard"].cast(pl.String)
            if not repeats_text(shards.to_arrow(compat_level=pl.CompatLevel.oldest()), partition):
                strays = shards.filter(shards.ne_missing(partition))
                raise ValueError(
                    f"{named(asset, partition)}: column 'shard' must be {partition!r} in every row, "
                    f"got {strays[0]!r} in {len(strays)} rows"
                )
        manifest = replace(
            manifest,
            content_sha256=frame_sha256(frame),
            row_count=frame.height if isinstance(frame, pl.DataFrame) else frame.select(pl.len()).collect().item(),
            written_at=utc_now(),
        )
        path = self.table_path(asset, partition)
        try:
            with contextlib.ExitStack() as until_replaced, replacing(path) as temporary:
                # Level 1 takes two thirds of the time of level 3, and scores and ids come out no larger.
                text = manifest.to_json()
                footer = {FOOTER_KEY: text}
                frame.lazy().sink_parquet(temporary, compression="zstd", compression_level=1, metadata=footer)
                manifest = replace(manifest, seal=seal_file(temporary))
                text = with_seal(text, manifest.seal)
                if self.objects is None:
                    until_replaced.enter_context(brief_lock(self.root / SWAP_LOCK))
                    check()
                    # before the table: killed in between, the table is still the old one, and both are written again
                    save_text(path.with_name(MANIFEST_FILE), text)
        except ObjectChangedError:
            written = self._written_elsewhere(manifest)
            if written is None:
                raise
            return written
        if self.objects is not None:  # after: of two writers, only the one whose table it is puts it
            save_text(path.with_name(MANIFEST_FILE), text)
        return manifest

    def _written_elsewhere(self, manifest: Manifest) -> Manifest | None:
        """The manifest that another machine was first to put, where it is of what we were about to put."""
        if self.objects is None:
            return None
        self.objects.refresh(self.asset_path(manifest.asset).parent)
        other = self.manifest(manifest.asset, manifest.partition)
        return other if _is_fresh(other, manifest, is_frozen=False) else None

    def content(self, asset: str, partition: str | None = None) -> str | None:
        """Hash of what is stored of a table; None where it is not materialised. Raises CorruptTableError."""
        manifest = self.manifest(asset, partition)
        return None if manifest is None else manifest.content_sha256

    def input_versions(self, reader: str, inputs: Sequence[tuple[str, str | None]]) -> tuple[InputVersion, ...]:
        """Versions of what `reader` is about to read. (asset, None) of a sharded asset means all its shards.

        Raises BackwardsReadError for a read against the flow, MissingInputError for a table that is not there.
        """
        versions = []
        for asset, partition in inputs:
            check_reads_forward(reader, asset)
            keys: list[str | None] = [partition]
            if partition is None and self.manifest(asset) is None:
                keys = [*self.partitions(asset)]
            manifests = [self.manifest(asset, key) for key in keys]
            if not manifests or None in manifests:
                raise MissingInputError(
                    f"{reader} reads {named(asset, partition)}, which is not materialised; materialise {asset} first "
                    f"(`curate run {self.root.name}`)"
                )
            versions += [manifest.version for manifest in manifests if manifest is not None]
        return tuple(versions)

    def is_fresh(self, asset: str, partition: str | None = None, **made_from: Unpack[MadeFrom]) -> bool:
        """Whether what is stored was made from exactly this code, configuration, models and input contents.

        A frozen table stays fresh whatever its inputs hold now. Raises MissingInputError, BackwardsReadError. A damaged
        table is not fresh.
        """
        is_frozen = made_from.get("is_frozen", False)
        if is_frozen:
            made_from["inputs"] = ()
        wanted = self._wanted(asset, partition, "", made_from)
        return _is_fresh(self._readable_manifest(asset, partition), wanted, is_frozen=is_frozen)

    def _readable_manifest(self, asset: str, partition: str | None) -> Manifest | None:
        try:
            return self.manifest(asset, partition)
        except CorruptTableError:
            return None  # unreadable: it will be made again

    def _check_still(self, manifest: Manifest | None, asset: str, partition: str | None) -> None:
        """Raise OvertakenError where a manifest is no longer the one that was read before computing."""
        if self._readable_manifest(asset, partition) != manifest:
            raise OvertakenError(f"{named(asset, partition)}: another process stored it meanwhile; its version stays")

    def materialise(
        self,
        asset: str,
        compute: Callable[[], pl.DataFrame | pl.LazyFrame],
        *,
        partition: str | None = None,
        run_id: str = "",
        facts: Mapping[str, Any] | None = None,
        changes: Changes | None = None,
        **made_from: Unpack[MadeFrom],
    ) -> Materialised:
        """Bring a table up to date: `compute` runs only if code, configuration, models or inputs changed.

        `facts`: of its manifest. `changes`: (rows before, rows now) → what of them its manifest is to remember. The
        inputs' versions are taken before computing. Raises
        MissingInputError, BackwardsReadError, and what `compute` raises; then the stored state is the old one.
        Raises OvertakenError where another process stored the table meanwhile, perhaps of newer inputs.
        """
        before = self._readable_manifest(asset, partition)
        wanted = self._wanted(asset, partition, run_id, made_from)
        if _is_fresh(before, wanted, is_frozen=made_from.get("is_frozen", False)):
            self.discard_unfinished(asset, partition)  # of a run that was killed once the table was written
            if self.objects is not None and self.objects.is_torn(path := self._table_path(asset, partition)):
                save_text(path.with_name(MANIFEST_FILE), before.to_json())
            return Materialised(before, is_reused=True)
        with attempt(self.root, asset, partition, run_id) as record:
            start = wall_seconds()
            frame = compute()
            made = replace(wanted, seconds=wall_seconds() - start, facts=facts or {})
            made = replace(made, before=self._before(made, frame, changes))
            manifest = self._put(frame, made, lambda: self._check_still(before, asset, partition))
            record["content_sha256"] = manifest.content_sha256
        self.discard_unfinished(asset, partition)
        return Materialised(manifest, is_reused=False)

    def materialise_folder(
        self,
        asset: str,
        compute: Callable[[Path], None],
        *,
        run_id: str = "",
        **made_from: Unpack[MadeFrom],
    ) -> Materialised:
        """As `materialise`, for an asset that is a folder of files: `compute` fills an empty folder.

        Each version has a folder of its own; the asset's path is a link, swapped in one step, so a reader sees one
        version whole. Raises ValueError when `compute` writes nothing, OvertakenError as `materialise`.
        """
        before = self._readable_manifest(asset, None)
        wanted = self._wanted(asset, None, run_id, made_from)
        link = self.asset_path(asset)
        if _is_fresh(before, wanted, is_frozen=made_from.get("is_frozen", False)):
            self.discard_unfinished(asset)
            return Materialised(before, is_reused=True)
        if link.is_dir() and not link.is_symlink():
            raise StoreError(f"{asset} is a table ({link} is a folder of ours); give the model folder another name")
        with replacing(link, move=lambda draft, link: None) as draft:
            (draft / "files").mkdir(parents=True)
            with attempt(self.root, asset, None, run_id) as record:
                start = time.perf_counter()
                compute(draft / "files")
                wanted = replace(wanted, seconds=time.perf_counter() - start)
                files = file_hashes(draft / "files")
                if not files:
                    raise ValueError(f"{asset}: compute wrote no file into the folder it was given")
                record["content_sha256"] = folder_sha256(files)
            made = {"content_sha256": record["content_sha256"], "row_count": len(files), "files": files}
            manifest = replace(wanted, written_at=utc_now(), **made)
            save_text(draft / MANIFEST_FILE, sealed_text(manifest.to_json()))
            version = link.with_name(f".{link.name}.version-{uuid.uuid4().hex[:12]}")
            with brief_lock(self.root / SWAP_LOCK):  # else another writer removes a version that no link names yet
                if self.objects is None:
                    self._check_still(before, asset, None)
                move_into_place(draft, version)
                try:
                    self._swap_link(link, version)
                except ObjectChangedError:
                    remove_path(version)
                    written = self._written_elsewhere(manifest)
                    if written is None:
                        raise
                    manifest = written
        self.discard_unfinished(asset)
        return Materialised(manifest, is_reused=False)

    @staticmethod
    def _swap_link(link: Path, version: Path) -> None:
        """Point `link` at `version` in one step; of the older versions, keep the one before for its readers."""
        previous = link.resolve().parent if link.is_symlink() else None
        with replacing(link) as temporary:
            temporary.symlink_to(Path(version.name) / "files")  # relative: the store may move
        for old in link.parent.glob(f".{link.name}.version-*"):
            if old not in (version, previous):
                remove_path(old)
