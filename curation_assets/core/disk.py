"""Writes that the disk refuses (full, read-only, failing, not ours), whatever library made them: one sentence."""

import errno
import os
import re
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from curation_assets.core.errors import ExpectedError

FULL = (errno.ENOSPC, errno.EDQUOT)
DENIED = (errno.EACCES, errno.EPERM)
FAILED = (errno.EIO, errno.EMFILE, errno.ENFILE)  # the disk, or this process, which may open no more files
#: SQLite's codes (the last byte of its extended ones) for a full and a read-only disk, and for what either may cause.
_SQLITE_FULL, _SQLITE_READONLY, _SQLITE_UNCLEAR = 13, 8, (10, 14)
_SQLITE_DAMAGED = (11, 26)  # malformed; no database
_SQLITE_BUSY = (5, 6, 15)  # busy; locked; of two that open a log at once, one begins again
NO_ROOM = 1_000_000  # bytes: less is a full disk where the error is unclear
#: What libraries put the system's words for an error into; numpy says how much it wrote.
_FULL_WORDS = re.compile(
    "|".join([*(re.escape(os.strerror(code)) for code in FULL), r"^\d+ requested and \d+ written$"])
)
_UNCLEAR_WORDS = "Invalid thrift: transport error"  # polars: the footer of a Parquet file did not fit
_FAILED_WORDS = re.compile("|".join(re.escape(os.strerror(code)) for code in FAILED))
_READ_ONLY_WORDS = re.compile(re.escape(os.strerror(errno.EROFS)))
_WRITERS = ("polars", "_duckdb", "duckdb", "safetensors", "safetensors_rust")


class DiskError(ExpectedError, OSError):
    """The disk refused a write; nothing that was there before has changed."""


def refused_write(error: BaseException, place: Path) -> str | None:
    """A sentence where the disk refused a write somewhere behind `error`; None for every other error.

    `place`: what was written, or the folder that it lies in, where the error does not name it.
    """
    for one in behind(error):
        if isinstance(one, DiskError):
            return str(one)
        named = (one.filename2 or one.filename) if isinstance(one, OSError) else None  # 2: where to, of two
        path = Path(os.fsdecode(named)) if isinstance(named, str | bytes) else place
        if _is_full(one, path):
            return _full_sentence(path)
        if getattr(one, "errno", None) in FAILED or (_is_of_writer(one) and _FAILED_WORDS.search(str(one))):
            return (
                f"a file operation failed at {path} ({one}); once disk and limits (`dmesg`, `ulimit -n`) are in order, "
                "run the same command again: what is finished is kept"
            )
        if why := _why_read_only(one, path, place):
            return (
                f"{path} cannot be written ({why}); make it writable, or give another folder, and run the same "
                "command again: what is finished is kept"
            )
    return None


def damaged_database(error: BaseException, dagster_home: Path) -> str | None:
    """A sentence where SQLite could not read a file of Dagster's behind `error`; None for every other error.

    The error does not name the file: they are looked at.
    """
    if not any(isinstance(one, sqlite3.Error) and is_damage(one) for one in behind(error)):
        return None
    found = sorted(path for path in dagster_home.rglob("*.db") if not is_database(path))
    named = ", ".join(map(str, found)) or f"a database below {dagster_home}"
    return (
        f"{named} is damaged: restore it from a backup, or move it away, and Dagster begins a new one. The tables of "
        "the pools are no part of it; what Dagster shows of earlier runs is lost"
    )


def is_damage(error: sqlite3.Error) -> bool:
    """Whether SQLite says that the file is malformed, or no database."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _SQLITE_DAMAGED


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another process or connection is in the way, as SQLite says, and may have left at the next try."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _SQLITE_BUSY


def is_database(path: Path) -> bool:
    """Whether SQLite can read all of a file; one that somebody writes to counts."""
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=2)
    try:
        return connection.execute("pragma quick_check(1)").fetchone() == ("ok",)
    except sqlite3.DatabaseError as error:
        return "locked" in str(error)
    finally:
        connection.close()


def _full_sentence(path: Path) -> str:
    free = shutil.disk_usage(_existing(path)).free / 1e6
    return (
        f"no space left for {path} ({free:,.1f} MB free on its disk); make room, or give another folder, and run the "
        "same command again: what is finished is kept"
    )


def _is_full(error: BaseException, path: Path) -> bool:
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        return code == _SQLITE_FULL or (code in _SQLITE_UNCLEAR and shutil.disk_usage(_existing(path)).free < NO_ROOM)
    if getattr(error, "errno", None) in FULL:
        return True
    is_unclear = _UNCLEAR_WORDS in str(error) and shutil.disk_usage(_existing(path)).free < NO_ROOM
    return _is_of_writer(error) and (is_unclear or bool(_FULL_WORDS.search(str(error))))


def _why_read_only(error: BaseException, path: Path, place: Path) -> str | None:
    read_only = os.strerror(errno.EROFS).lower()
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        is_refused = code == _SQLITE_READONLY or (code in _SQLITE_UNCLEAR and not os.access(_existing(path), os.W_OK))
        return read_only if is_refused else None
    if getattr(error, "errno", None) == errno.EROFS or (_is_of_writer(error) and _READ_ONLY_WORDS.search(str(error))):
        return read_only
    is_inside = path.is_relative_to(place if place.is_dir() else place.parent)
    if getattr(error, "errno", None) in DENIED and is_inside and not os.access(_existing(path.parent), os.W_OK):
        return os.strerror(errno.EACCES).lower()
    return None


def _is_of_writer(error: BaseException) -> bool:
    return isinstance(error, OSError) or type(error).__module__.partition(".")[0] in _WRITERS


def _existing(path: Path) -> Path:
    """The path itself or the nearest folder above it that is there."""
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())


def behind(error: BaseException) -> Iterator[BaseException]:
    """The error, its causes and contexts, and those of a group, each once."""
    waiting, seen = [error], set[int]()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting += one.exceptions if isinstance(one, BaseExceptionGroup) else ()
        waiting += [other for other in (one.__context__, one.__cause__) if other is not None]
