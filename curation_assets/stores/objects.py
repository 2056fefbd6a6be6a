"""A home in a bucket: its objects are what counts; a folder of the cache, its working copy, is what readers read.

Every file of a home is an object under the home's URL, with the same relative path. A link, the version in force of a
folder asset, is a small object PATH.link that holds where it points. What `is_local` names is no object: locks, drafts,
Dagster's own storage, and what follows from the rest.

Writing: `atomic.py` puts a file before it moves it into place, so an object never lags behind the working copy. The put
is conditional: on there being no object, or on the one (by its e_tag) that this process knows; who comes second gets
ObjectChangedError. Reading: `open_home` lists the objects and fetches small files and links; tables, versions and
downloads are fetched when they are used, and kept while their e_tag is the same (docs/operator/object_storage.md).
"""

import atexit
import contextlib
import functools
import hashlib
import json
import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from curation_assets.core.disk import is_damage
from curation_assets.core.errors import StoreError, install_extra
from curation_assets.core.settings import bucket_retry_seconds, working_copies_bytes, working_copy
from curation_assets.stores.temporary import temporary_path

T = TypeVar("T")
LINK = ".link"  # suffix of the object of a link
COPIES_SUFFIX = ".sqlite"  # beside a working copy: which object each of its files is a copy of
THREADS = 16  # requests at a time
MAX_AGE_SECONDS = 10.0  # of a listing that a process which lives long goes by
APPEND_ATTEMPTS = 50
BODY_ATTEMPTS = 5  # of a request whose answer is cut
BODY_PAUSE_SECONDS = 0.25  # before the second one, doubled; then twice as long each time
MAX_CONDITIONAL_BYTES = 2**30  # a larger file goes up in parts; its condition is checked just before
USED_STEP_SECONDS = 3600.0  # how exactly the time of last use is known; younger files are not evicted

_LOCAL = ("dagster", "logs", "robots_txt", "evaluation", "catalog.duckdb", "catalog.duckdb.wal", "catalog.duckdb.tmp")
_LOCAL_OF_POOL = ("index", "source")  # made again from tables and from the pool's source
#: Folders of a pool; the second of the home, too.
_FETCHED_WHEN_USED = ("downloads", "tar_indexes", "shared_index", "sorted_rows")
_TABLE_MANIFEST = "manifest.json"  # a copy of what the table's footer holds, put after it: nobody reads it to decide
_OF_TABLES = ("data.parquet", _TABLE_MANIFEST)
_VERSION = re.compile(r"\.[a-z0-9_]+\.version-[0-9a-f]{12}")


class ObjectStoreError(StoreError, OSError):
    """The bucket refused a request, or does not answer."""


class ObjectChangedError(StoreError):
    """Another process wrote or removed an object since this one looked."""


@dataclass(frozen=True)
class Entry:
    """What a listing says of an object."""

    e_tag: str
    size: int
    modified: float  # seconds since 1970


@dataclass(frozen=True)
class Copy:
    """A file of the working copy, as it was when it was equal to the object."""

    e_tag: str
    state: tuple[int, int, int]  # inode, size, modification time in ns
    noted_at: float  # seconds since 1970


def is_local(relative: PurePosixPath) -> bool:
    """Whether a path under a home stays on this machine: locks, drafts, storage of other programs, what is derived."""
    parts = relative.parts
    if not parts or parts[0] in _LOCAL or any(part[0] == "." and not _VERSION.fullmatch(part) for part in parts):
        return True
    return parts[0] == "work" and len(parts) > 2 and parts[2] in _LOCAL_OF_POOL


def is_fetched_when_used(key: str) -> bool:
    """Whether an object is large or one of very many: tables, versions of folder assets, downloads, tars."""
    parts = PurePosixPath(key).parts
    owned = parts[2:] if parts[0] == "work" else parts
    if parts[-1].endswith(".tar") or (len(owned) > 1 and owned[0] in _FETCHED_WHEN_USED):
        return True
    return parts[0] == "work" and (parts[-1] in _OF_TABLES or any(_VERSION.fullmatch(part) for part in parts))


def open_home(home: Path, *, max_age: float = 0.0) -> None:
    """Bring the working copy of a home in a bucket up to date; nothing for a home on a disk.

    `max_age`: seconds that what is known of the bucket may be old. Raises ObjectStoreError where the bucket is not
    there or refuses.
    """
    objects = object_home(home)
    if objects is not None:
        begins = max_age == 0 or not objects.is_open
        objects.refresh(max_age=max_age)
        if begins:
            objects.put_logs()
            objects.evict(working_copies_bytes())


def object_home(path: Path) -> "ObjectHome | None":
    """The home in a bucket that a path of its working copy belongs to; None for every other path."""
    found = working_copy(path)
    return None if found is None else _object_home(*found, os.getpid())


@functools.cache
def _object_home(url: str, root: Path, pid: int) -> "ObjectHome":
    return ObjectHome(url, root)


class ObjectHome:
    """The objects under a URL and their working copy `root`. One per process and home: see `object_home`."""

    def __init__(self, url: str, root: Path) -> None:
        self.url, self.root = url, root
        self._lock = threading.RLock()
        self._entries: dict[str, Entry] = {}
        self._listed: dict[str, tuple[float, float]] = {}  # prefix → when its listing began: monotonic, since 1970
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._copies = _Copies(root.with_name(root.name + COPIES_SUFFIX))
        atexit.register(self._put_logs_at_exit)

    @functools.cached_property
    def store(self) -> Any:
        """The client. Raises ObjectStoreError where it cannot be set up."""
        try:
            from obstore.store import from_url as store_of
        except ImportError as error:
            raise ObjectStoreError(f"a home at {self.url} needs obstore: {install_extra('objects')}") from error
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
        options: Any = {
            "client_options": {"timeout": "15m", "connect_timeout": "10s", "allow_http": endpoint.startswith("http:")},
            "retry_config": {"max_retries": 20, "retry_timeout": timedelta(seconds=bucket_retry_seconds())},
        }
        if endpoint:
            options["endpoint"] = endpoint
        with self._naming_refusals(""):
            return store_of(self.url, **options)

    # -- names ----------------------------------------------------------------------------------------------------

    def key_of(self, path: Path) -> str:
        """Key of a path, relative to the URL."""
        return os.path.normpath(path.relative_to(self.root))  # tables name tars of the home as ../../sources/x.tar

    def is_object(self, path: Path) -> bool:
        """Whether what lies at a path is an object, or would be one."""
        return not is_local(PurePosixPath(self.key_of(path)))

    def has(self, path: Path) -> bool:
        """Whether there is an object of a file, by the latest listing and what this machine wrote since."""
        return self._known(self.key_of(path)) is not None

    def entry(self, path: Path) -> Entry | None:
        """What is known of the object of a file; None where there is none."""
        return self._known(self.key_of(path))

    def stamp(self, path: Path) -> int | None:
        """A number that changes with the object of a file or link, the same everywhere; None where there is none."""
        entry = self.entry(path) or self._known(f"{self.key_of(path)}{LINK}")
        return None if entry is None else int(hashlib.sha256(entry.e_tag.encode()).hexdigest()[:15], 16)

    def is_here(self, path: Path) -> bool:
        """Whether the file of the working copy is the object."""
        entry = self.entry(path)
        return entry is not None and self._is_copied(self.key_of(path), entry)

    def _known(self, key: str) -> Entry | None:
        """What is known of an object: the latest listing, or what a process of this working copy did since."""
        entry, copy = self._entries.get(key), self._copies.get(key)
        if copy is None or (entry is not None and entry.e_tag == copy.e_tag):
            return entry
        listed = max((since for prefix, (_, since) in self._listed.items() if _is_under(key, prefix)), default=0.0)
        if copy.noted_at < listed:
            return entry
        return Entry(copy.e_tag, copy.state[1], copy.noted_at) if copy.e_tag else None

    def files_in(self, folder: Path) -> list[Path]:
        """Files right in a folder, fetched or not, sorted; other machines' of the last MAX_AGE_SECONDS may be missing.

        Raises ObjectStoreError.
        """
        self.refresh(folder, max_age=MAX_AGE_SECONDS)
        key = self.key_of(folder)
        names = {name.rpartition("/")[2] for name in self._entries if name.rpartition("/")[0] == key}
        here = {path.name for path in folder.glob("*") if path.is_file()}  # put by this machine since
        return sorted(folder / name for name in names | here if self.has(folder / name))

    def size_of(self, path: Path) -> int:
        """Bytes of all objects of a file or folder, by the latest listing."""
        return sum(entry.size for name, entry in self._entries.items() if _is_under(name, self.key_of(path)))

    @contextlib.contextmanager
    def _naming_refusals(self, key: str) -> Iterator[None]:
        """Errors of the client become an ObjectStoreError that names the object."""
        try:
            yield
        except (StoreError, FileNotFoundError):
            raise
        except Exception as error:
            from obstore.exceptions import BaseError

            if not isinstance(error, BaseError | OSError | ValueError):
                raise
            if "NoSuchBucket" in str(error):
                raise self._no_bucket() from error
            raise ObjectStoreError(
                f"{self.url}{'/' if key else ''}{key}: {_short(error)}. Look at the address, the credentials and the "
                "network, and run the same command again: what is finished is kept"
            ) from error

    def _no_bucket(self) -> ObjectStoreError:
        return ObjectStoreError(f"{self.url}: there is no such bucket; create it first")

    # -- listing --------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether this process listed all objects once."""
        return "" in self._listed

    def refresh(self, folder: Path | None = None, *, max_age: float = 0.0) -> None:
        """List the objects (of a folder), fetch small files and links that changed, remove what others removed.

        Nothing where that was done less than `max_age` seconds ago. Raises ObjectStoreError.
        """
        prefix = "" if folder is None or folder == self.root else self.key_of(folder)
        with self._lock:
            now = time.monotonic()
            covering = [began for name, (began, _) in self._listed.items() if _is_under(prefix, name)]
            if covering and now - max(covering) < max_age:
                return
            began = time.time()
            listed = self._list(prefix)
            self._listed[prefix] = now, began
            others = {key: entry for key, entry in self._entries.items() if not _is_under(key, prefix)}
            self._entries = others | listed
            for key, copy in self._copies.under(prefix).items():
                if copy.noted_at >= began:  # newer than the listing, which may lack it
                    continue
                if key not in self._entries:
                    self._remove_copy(key)
                elif is_fetched_when_used(key) and copy.e_tag != self._entries[key].e_tag:
                    self._copies.forget(key)  # what a takedown removed leaves every working copy that is opened
                    (self.root / key).unlink(missing_ok=True)
            self._make_folders(listed)
            stale = [
                key
                for key, entry in listed.items()
                if not is_fetched_when_used(key) and self._known(key) == entry and not self._is_copied(key, entry)
            ]
        self._fetch_keys(stale)

    def _list(self, prefix: str) -> dict[str, Entry]:
        """Key → entry of all objects at or under a prefix."""
        found: dict[str, Entry] = {}
        with self._naming_refusals(prefix):
            try:
                for chunk in self.store.list(prefix=prefix or None, chunk_size=1000):
                    for meta in chunk:
                        if not is_local(PurePosixPath(meta["path"])):
                            found[meta["path"]] = _entry(meta)
            except FileNotFoundError as error:
                raise self._no_bucket() from error
        return found

    def _make_folders(self, keys: Iterable[str]) -> None:
        """Folders of objects are there before their files: readers find shards and versions by the folders' names."""
        for folder in {(self.root / key).parent for key in keys}:
            folder.mkdir(parents=True, exist_ok=True)

    # -- reading --------------------------------------------------------------------------------------------------

    def fetch(self, path: Path) -> None:
        """See to it that a file of the working copy is the object, where there is one. Raises ObjectStoreError."""
        self.fetch_all([path])

    def fetch_all(self, paths: Iterable[Path]) -> None:
        """`fetch` of many files, several at a time."""
        keys = [self.key_of(path) for path in paths]
        self._fetch_keys([key for key in keys if (entry := self._known(key)) and not self._is_copied(key, entry)])

    def _fetch_keys(self, keys: list[str]) -> None:
        if len(keys) < 2:
            list(map(self._fetch, keys))
            return
        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(self._fetch, keys))

    def read_range(self, path: Path, e_tag: str, start: int, size: int) -> bytes | None:
        """Bytes of an object, without a copy; None where it is not the one with this e_tag. Raises ObjectStoreError."""
        if size == 0:
            return b""
        key = self.key_of(path)
        from obstore.exceptions import PreconditionError

        with self._naming_refusals(key):
            try:
                options = {"range": (start, start + size), "if_match": e_tag}
                data, found = self._body(key, lambda one: (bytes(one.bytes()), str(one.meta["e_tag"])), options)
            except (FileNotFoundError, PreconditionError):
                return None
        return data if found == e_tag and len(data) == size else None

    def _body(self, key: str, take: Callable[[Any], T], options: Any = None) -> T:
        """What `take` makes of an answer. One that ends in the middle of its body is requested again from its start,
        BODY_ATTEMPTS times in all: the client goes on with a range, which needs a server that knows both it and ETags.
        """
        from obstore.exceptions import BaseError

        for attempt in range(1, BODY_ATTEMPTS + 1):
            response = self.store.get(key, options=options)
            try:
                return take(response)
            except BaseError:
                if attempt == BODY_ATTEMPTS:
                    raise
                time.sleep(BODY_PAUSE_SECONDS * 2**attempt)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def fetch_folder(self, folder: Path) -> None:
        """`fetch` of every file in a folder and its folders; of a link, of the version that it names."""
        self.fetch_all([self.root / name for name in self._inside(folder)])
        if folder.is_symlink():
            self.fetch_folder(folder.parent / Path(os.readlink(folder)).parts[0])  # its manifest, too

    def _fetch(self, key: str) -> None:
        path = self.root / key
        temporary = temporary_path(path)

        def write(response: Any) -> Entry:
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                for chunk in response.stream(min_chunk_size=8 * 2**20):
                    file.write(chunk)
            return _entry(response.meta)

        try:
            with self._naming_refusals(key):
                try:
                    entry = self._body(key, write)
                except FileNotFoundError:  # removed since the listing
                    with self._lock:
                        self._entries.pop(key, None)
                        self._remove_copy(key)
                    return
                self._take_in(key, temporary, entry)
        finally:
            temporary.unlink(missing_ok=True)

    def _take_in(self, key: str, temporary: Path, entry: Entry) -> None:
        """Put what was fetched in its place; of the object of a link, the link too."""
        path = self.root / key
        if temporary.stat().st_size != entry.size:
            raise OSError(f"expected {entry.size} bytes, got {temporary.stat().st_size}")
        os.utime(temporary, ns=(time.time_ns(), _time_ns(entry)))
        if key.endswith(LINK):
            link, named = path.with_name(path.name.removesuffix(LINK)), temporary.read_text(encoding="utf-8")
            drawn = temporary_path(link)
            drawn.symlink_to(named)
            os.replace(drawn, link)
            os.utime(link, ns=(_time_ns(entry), _time_ns(entry)), follow_symlinks=False)
            path = _copy_of_link(path)
        with self._lock:
            self._copies.note(key, entry.e_tag, temporary)
            self._entries[key] = entry
        os.replace(temporary, path)

    def _is_copied(self, key: str, entry: Entry) -> bool:
        path = self.root / key
        if key.endswith(LINK):
            path = _copy_of_link(path)
        try:
            stat = path.stat()
        except FileNotFoundError:
            return False
        copy = self._copies.get(key)
        if copy is None or copy.e_tag != entry.e_tag or copy.state != _state(stat):
            return False
        if time.time() - stat.st_atime > USED_STEP_SECONDS:
            os.utime(path, ns=(time.time_ns(), stat.st_mtime_ns))
        return True

    def _remove_copy(self, key: str) -> None:
        """Remove what the working copy has of an object that is no longer there, and the folders that it leaves."""
        path = self.root / key
        if key.endswith(LINK):
            _copy_of_link(path).unlink(missing_ok=True)
            path = path.with_name(path.name.removesuffix(LINK))
        self._copies.forget(key)
        path.unlink(missing_ok=True)
        self._remove_empty_folders(path.parent)

    def _remove_empty_folders(self, folder: Path) -> None:
        while folder != self.root:
            try:
                folder.rmdir()
            except OSError:
                return
            folder = folder.parent

    # -- writing --------------------------------------------------------------------------------------------------

    def commit(self, draft: Path, target: Path) -> None:
        """Put the objects of what is about to be moved from `draft` to `target`: a file, a link or a folder.

        A folder's files whose names say that it is whole (its own .json files) come last; what it held before and
        does not hold now is removed. Raises ObjectChangedError where another process was first, ObjectStoreError.
        """
        if not self.is_object(target):
            return
        if draft.is_symlink():
            self._put_link(draft, target)
        elif draft.is_dir():
            placed = {path: target / path.relative_to(draft) for path in sorted(draft.rglob("*")) if path.is_file()}
            placed = {path: place for path, place in placed.items() if self.is_object(place)}
            before = self._keys_under(target)
            last = [path for path in placed if path.parent == draft and path.suffix == ".json"]
            with ThreadPoolExecutor(THREADS) as threads:
                list(threads.map(lambda path: self._put(path, placed[path]), placed.keys() - last))
            for path in last:
                self._put(path, placed[path])
            self._delete(before - {self.key_of(place) for place in placed.values()})
        else:
            self._put(draft, target)

    def _put_link(self, draft: Path, target: Path) -> None:
        named, pointer = os.readlink(draft), target.with_name(target.name + LINK)
        temporary = temporary_path(pointer)
        temporary.write_text(named, encoding="utf-8")
        try:
            self._put(temporary, pointer)
            os.replace(temporary, _copy_of_link(pointer))
        finally:
            temporary.unlink(missing_ok=True)

    def _put(self, draft: Path, target: Path) -> None:
        key = self.key_of(target)
        known = self._known(key)
        is_own = key.startswith("work/") and (target.name == _TABLE_MANIFEST or key.split("/")[2:3] == ["costs"])
        mode: Any = "create" if known is None else {"e_tag": known.e_tag}
        if is_own:
            mode = "overwrite"
        size = draft.stat().st_size
        if size > MAX_CONDITIONAL_BYTES and mode != "overwrite":
            self._check_unchanged(key, known)
            mode = "overwrite"
        # put again after its answer was lost, or another process wrote the same
        e_tag = self._put_if(key, draft, mode) or self._same_content(key, draft)
        if e_tag is None:
            raise self._changed(key)
        with self._lock:
            self._entries[key] = Entry(e_tag, size, time.time())
            self._copies.note(key, e_tag, draft)

    def _put_if(self, key: str, data: Path | bytes, mode: Any) -> str | None:
        """The e_tag of what was put; None where `mode`, the condition, does not hold."""
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        with self._naming_refusals(key):
            try:
                return str(self.store.put(key, data, mode=mode)["e_tag"])
            except FileNotFoundError as error:
                raise self._no_bucket() from error
            except (AlreadyExistsError, PreconditionError):
                return None

    def _check_unchanged(self, key: str, known: Entry | None) -> None:
        with self._naming_refusals(key):
            try:
                now = _entry(self.store.head(key))
            except FileNotFoundError:
                now = None
        if (now and now.e_tag) != (known and known.e_tag):
            raise self._changed(key)

    def _changed(self, key: str) -> ObjectChangedError:
        return ObjectChangedError(
            f"{self.url}/{key} was written or removed by another process since this one looked; nothing was changed. "
            "Run the same command again: it goes on from what is there now"
        )

    def _same_content(self, key: str, draft: Path) -> str | None:
        """The e_tag of an object whose bytes are those of a file; None where they are others, or it is not there."""

        def hashed(response: Any) -> tuple[str, str | None]:
            digest = hashlib.sha256()
            if response.meta["size"] != draft.stat().st_size:
                return "", None
            for chunk in response.stream(min_chunk_size=8 * 2**20):
                digest.update(chunk)
            return str(response.meta["e_tag"]), digest.hexdigest()

        try:
            with self._naming_refusals(key):
                e_tag, digest = self._body(key, hashed)
        except FileNotFoundError:
            return None
        with draft.open("rb") as file:
            return e_tag if hashlib.file_digest(file, "sha256").hexdigest() == digest else None

    def reload(self, path: Path) -> None:
        """Look at one object again: what another process wrote is fetched. Raises ObjectStoreError."""
        self._fetch(self.key_of(path))

    def is_torn(self, table: Path) -> bool:
        """Whether the copy of a table's manifest is older than the table, or was never put."""
        entry, copy = (self._known(self.key_of(table.with_name(name))) for name in _OF_TABLES)
        return entry is not None and (copy is None or copy.modified < entry.modified)

    def delete(self, target: Path) -> None:
        """Remove the objects of a file, a link or a folder. Raises ObjectStoreError."""
        if not self.is_object(target):
            return
        self._delete(self._keys_under(target))

    def reload_folder(self, folder: Path) -> None:
        """Fetch every object in a folder anew: what was read is then what the bucket holds. Raises ObjectStoreError."""
        self.refresh(folder)
        self._fetch_keys(self._inside(folder))

    def _inside(self, folder: Path) -> list[str]:
        """Keys of what is in a folder and its folders, by the latest listing."""
        return [name for name in list(self._entries) if name.startswith(f"{self.key_of(folder)}/")]

    def _keys_under(self, target: Path) -> set[str]:
        key = self.key_of(target)
        with self._lock:
            if target.is_dir() and not target.is_symlink():  # others may have put files into it
                self.refresh(target)
            return {*self._inside(target)} | {name for name in (key, f"{key}{LINK}") if self._known(name) is not None}

    def _delete(self, keys: Iterable[str]) -> None:
        names = sorted(keys)
        if not names:
            return
        with self._naming_refusals(names[0]):
            self.store.delete(names)
        with self._lock:
            for key in names:
                self._entries.pop(key, None)
                self._copies.note_removal(key)
                if key.endswith(LINK):
                    _copy_of_link(self.root / key).unlink(missing_ok=True)

    # -- objects without a copy (leases) ------------------------------------------------------------------------------

    def raw_get(self, key: str) -> tuple[Any, str] | None:
        """(content of a JSON object, e_tag); None where it is not there. Raises ObjectStoreError."""
        try:
            with self._naming_refusals(key):
                data, e_tag = self._body(key, lambda one: (bytes(one.bytes()), str(one.meta["e_tag"])))
                return json.loads(data), e_tag
        except FileNotFoundError:
            return None

    def raw_put(self, key: str, data: bytes, e_tag: str | None) -> str | None:
        """Put an object in place of the one with this e_tag, or of none. Its e_tag; None where another is there."""
        put = self._put_if(key, data, "create" if e_tag is None else {"e_tag": e_tag})
        read = self.raw_get(key) if put is None else None  # this put, tried again after its answer was lost?
        return read[1] if read is not None and json.dumps(read[0]).encode() == data else put

    def raw_keys(self, prefix: str) -> list[str]:
        """Keys under a prefix."""
        with self._naming_refusals(prefix):
            return sorted(meta["path"] for chunk in self.store.list(prefix=prefix) for meta in chunk)

    def raw_delete(self, key: str) -> None:
        """Remove an object, if it is there."""
        with self._naming_refusals(key), contextlib.suppress(FileNotFoundError):
            self.store.delete(key)

    # -- logs -----------------------------------------------------------------------------------------------------

    def append(self, path: Path, data: bytes) -> None:
        """Add to a file that other machines add to. Raises ObjectChangedError where they do without end,
        ObjectStoreError.
        """
        for _ in range(APPEND_ATTEMPTS):
            self.reload(path)
            temporary = temporary_path(path)
            try:
                temporary.write_bytes((path.read_bytes() if path.is_file() else b"") + data)
                self._put(temporary, path)
                os.replace(temporary, path)
                return
            except ObjectChangedError:
                continue  # another process added a line: once more, after it
            finally:
                temporary.unlink(missing_ok=True)
        raise self._changed(self.key_of(path))

    def put_logs(self) -> None:
        """Put every log of costs that grew since it was put, those of processes that were killed too."""
        for path in sorted(self.root.glob("work/*/costs/*.jsonl")):
            if not self._is_put(path):
                self._put(path, path)

    def _is_put(self, path: Path) -> bool:
        copy = self._copies.get(self.key_of(path))
        return copy is not None and copy.state == _state(path.stat())

    def _put_logs_at_exit(self) -> None:
        with contextlib.suppress(StoreError, OSError, sqlite3.Error):  # the next process that opens the home puts them
            self.put_logs()

    # -- room -----------------------------------------------------------------------------------------------------

    def evict(self, allowed: int) -> int:
        """Remove fetched files, those first that were not used for longest, until `allowed` bytes remain.

        Never one that was used within the hour, nor one that is no copy of an object. Returns the bytes removed.
        """
        found = []
        for key, copy in self._copies.under("").items():
            path = self.root / key
            if not is_fetched_when_used(key) or not path.is_file():
                continue
            stat = path.stat()
            if copy.state == _state(stat):
                found.append((stat.st_atime, stat.st_size, key))
        excess = sum(size for _, size, _ in found) - allowed
        removed = 0
        for used, size, key in sorted(found):
            if removed >= excess or time.time() - used < USED_STEP_SECONDS:
                break
            (self.root / key).unlink(missing_ok=True)
            removed += size
        return removed


class _Copies:
    """Which object each file of a working copy is a copy of; processes that share the working copy share it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        try:
            self._connection = self._opened()
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            for suffix in ("", "-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            self._connection = self._opened()

    def _opened(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=60, check_same_thread=False, isolation_level=None)
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma synchronous = off")  # what is lost here is fetched again
        connection.execute(
            "create table if not exists copies (key text primary key, e_tag text, inode integer, size integer, "
            "modified_ns integer, noted_at real)"
        )
        return connection

    def note(self, key: str, e_tag: str, file: Path) -> None:
        """The file is a copy of the object, and stays so when it is moved."""
        row = (key, e_tag, *_state(file.stat()), time.time())
        with self._lock:
            self._connection.execute("insert or replace into copies values (?, ?, ?, ?, ?, ?)", row)

    def get(self, key: str) -> Copy | None:
        """What is noted of a key."""
        with self._lock:
            row = self._connection.execute(
                "select e_tag, inode, size, modified_ns, noted_at from copies where key = ?", (key,)
            ).fetchone()
        return None if row is None else Copy(row[0], (row[1], row[2], row[3]), row[4])

    def under(self, prefix: str) -> dict[str, Copy]:
        """Everything that is noted at or under a prefix."""
        with self._lock:
            rows = self._connection.execute("select key, e_tag, inode, size, modified_ns, noted_at from copies")
            return {row[0]: Copy(row[1], (row[2], row[3], row[4]), row[5]) for row in rows if _is_under(row[0], prefix)}

    def note_removal(self, key: str) -> None:
        """This machine removed the object: its e_tag is empty."""
        with self._lock:
            row = (key, "", 0, 0, 0, time.time())
            self._connection.execute("insert or replace into copies values (?, ?, ?, ?, ?, ?)", row)

    def forget(self, key: str) -> None:
        """The file was removed."""
        with self._lock:
            self._connection.execute("delete from copies where key = ?", (key,))


def _state(stat: os.stat_result) -> tuple[int, int, int]:
    """The `Copy.state` of a file."""
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _is_under(key: str, prefix: str) -> bool:
    return not prefix or key == prefix or key.startswith(f"{prefix}/")


def _entry(meta: Any) -> Entry:
    return Entry(str(meta["e_tag"]), int(meta["size"]), meta["last_modified"].timestamp())


def _time_ns(entry: Entry) -> int:
    """A time for a fetched file: the object's second, and below it digits of its e_tag.

    Caches that know a file by its time see every replacement, and all working copies agree.
    """
    return int(entry.modified) * 10**9 + int(hashlib.sha256(entry.e_tag.encode()).hexdigest()[:12], 16) % 10**9


def _copy_of_link(pointer: Path) -> Path:
    """Where the working copy keeps the object of a link, beside the link itself."""
    return pointer.with_name(f".{pointer.name}")


def _short(error: BaseException) -> str:
    """The first line of a client's error, with the server's own word for it, and without the debug text after it."""
    word = re.search(r"<Code>(\w+)</Code>", str(error))
    line = str(error).partition("\n")[0].partition(": <?xml")[0]
    return f"{line[:400]}{f' ({word[1]})' if word else ''}"
