"""Files and folders that appear whole or not at all; of a home in a bucket, their objects with them (objects.py)."""

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from curation_assets.core.disk import DiskError, refused_write
from curation_assets.core.settings import flushes_to_disk, is_in_bucket
from curation_assets.stores.objects import object_home
from curation_assets.stores.temporary import TEMPORARY, has_ended, host, temporary_path

PRIVATE = 0o600  # readable by its owner alone
READ_ONLY = 0o444
#: Whether a writer on another host lives cannot be checked: its leftovers are stale after a day.
FOREIGN_STALE_SECONDS = 24 * 3600.0


def remove_stale(target: Path) -> list[Path]:
    """Delete what dead writers of `target` left; the temporaries of living ones stay. Returns the removed paths."""
    removed: list[Path] = []
    prefix = f".{target.name}.tmp-"
    try:
        names = os.listdir(target.parent)
    except FileNotFoundError:
        return removed
    for name in sorted(name for name in names if name.startswith(prefix)):
        path = target.with_name(name)
        match = TEMPORARY.fullmatch(name)
        if match is None or match["target"] != target.name:
            continue
        if match["host"] == host():
            is_stale = has_ended(int(match["pid"]), match["start"])
        else:
            is_stale = time.time() - path.lstat().st_mtime > FOREIGN_STALE_SECONDS
        if is_stale:
            remove_path(path)
            removed.append(path)
    if removed:
        flush(target.parent)
    return removed


def remove_all_stale(folder: Path) -> None:
    """Delete what dead writers left of whatever file or folder, anywhere below `folder`."""
    for path in list(folder.rglob(".*.tmp-*")):
        remove_stale(path.with_name(path.name.split(".tmp-")[0].removeprefix(".")))


def fetch(path: Path) -> None:
    """Bring a file of the working copy up to date with its object in the bucket; nothing for a home
    on a disk."""
    objects = object_home(path)
    if objects is not None:
        objects.fetch(path)


def fetch_folder(folder: Path) -> None:
    """`fetch` of all files in a folder and its folders."""
    objects = object_home(folder)
    if objects is not None:
        objects.fetch_folder(folder)


def reload(path: Path) -> None:
    """Bring the object of a file as another machine put it; nothing for a home on a disk."""
    objects = object_home(path)
    if objects is not None:
        objects.reload(path)


def reload_folder(folder: Path) -> None:
    """`fetch_folder` of the objects as they are now, whatever is here."""
    objects = object_home(folder)
    if objects is not None:
        objects.reload_folder(folder)


def remove_path(path: Path) -> None:
    """Delete a file, link or folder, if it exists. It stays away after a power cut, unless it was a temporary."""
    objects = object_home(path)
    if objects is not None:
        objects.delete(path)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        try:
            path.unlink()
        except FileNotFoundError:
            return
    if not TEMPORARY.fullmatch(path.name):
        flush(path.parent)


def flush(path: Path) -> None:
    """Have the disk hold a file's bytes, or a folder's names, after a power cut, too (fsync; docs/decisions/0084)."""
    if not flushes_to_disk() or is_in_bucket(path):  # of a bucket: a cache
        return
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    except OSError as error:  # some network disks keep no names to flush
        if error.errno not in (errno.EINVAL, errno.ENOTSUP) or not path.is_dir():
            raise
    finally:
        os.close(file)


def make_folder(path: Path) -> None:
    """A folder and those above it, if they are not there; flushed."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        flush(path.parent)


def share(source: Path, target: Path) -> None:
    """A second name of a file that is replaced and never changed, from now on read only; a copy where the disk, or a
    home in a bucket, has no such."""
    try:
        if object_home(source) is object_home(target) is None:
            os.link(source, target)
            target.chmod(READ_ONLY)
            return
    except OSError:  # another disk, too many names, or a file of somebody else
        target.unlink(missing_ok=True)
    shutil.copyfile(source, target)
    target.chmod(READ_ONLY)


def _flush_all(draft: Path) -> None:
    """`flush` of a file, or of a folder with all that is in it; a link has nothing but its name."""
    if draft.is_symlink() or not flushes_to_disk():
        return
    for folder, _, files in os.walk(draft):  # of a file: nothing
        for path in (Path(folder, name) for name in files):
            if not path.is_symlink():
                flush(path)
        flush(Path(folder))
    if draft.is_file():
        flush(draft)


@contextlib.contextmanager
def naming_refusals(target: Path) -> Iterator[None]:
    """Errors of a full or read-only disk, of whatever library, become a DiskError that names `target`."""
    try:
        yield
    except Exception as error:
        sentence = refused_write(error, target)
        if sentence is None or isinstance(error, DiskError):
            raise
        raise DiskError(sentence) from error


@contextlib.contextmanager
def replacing(target: Path, *, move: Callable[[Path, Path], None] | None = None) -> Iterator[Path]:
    """Write to the path given; on success it becomes `target` in one step, on an exception it vanishes.

    `move`: the last step; None: `move_into_place`. Raises DiskError where the disk is full or cannot be written.
    """
    temporary = temporary_path(target)
    with naming_refusals(target):
        make_folder(target.parent)
        remove_stale(target)
        try:
            yield temporary
            (move or move_into_place)(temporary, target)
        except BaseException:
            remove_path(temporary)
            raise


def check_new(target: Path, *, folder: bool = False) -> None:
    """Raise ValueError where something lies at a path that a user gave for a result; a `folder` may be there empty."""
    if folder and target.is_dir():
        if any(target.iterdir()):
            raise ValueError(f"{target} is not empty and is never overwritten; give a new folder")
    elif os.path.lexists(target):
        raise ValueError(f"{target} exists already and is never overwritten; give a new name, or move it away")


@contextlib.contextmanager
def writing_new(target: Path, *, folder: bool = False) -> Iterator[Path]:
    """As `replacing`, for a path that a user gave: what lies there, or is put there meanwhile, stays as it is.

    Raises ValueError as `check_new`, before and after the result is written.
    """
    check_new(target, folder=folder)
    with replacing(target, move=move_into_place if folder else _move_to_new) as temporary:
        yield temporary
        check_new(target, folder=folder)  # a folder that is filled from here on refuses the rename


def _move_to_new(draft: Path, target: Path) -> None:
    """`move_into_place` of a file that fails where a file is: of two writers one goes on."""
    if object_home(target) is not None:  # the put of a new object is conditional
        move_into_place(draft, target)
        return
    _flush_all(draft)
    try:
        os.link(draft, target)
        draft.unlink()
    except FileExistsError:
        check_new(target)
        raise
    except OSError:  # a disk without hard links
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        os.replace(draft, target)
    flush(target.parent)


def move_into_place(draft: Path, target: Path) -> None:
    """The last step of a write: a finished file, link or folder beside `target` becomes it, also on the disk.

    In a home in a bucket its objects are put first: that is the commit. Raises ObjectChangedError, ObjectStoreError.
    """
    objects = object_home(target)
    if objects is not None:
        objects.commit(draft, target)
    _flush_all(draft)
    os.replace(draft, target)
    flush(target.parent)


def swap_folder(draft: Path, target: Path) -> None:
    """Put a finished folder in place of `target`. Where a kill comes between, `finish_swap` does the rest."""
    move_into_place(draft, _swapping(target))
    finish_swap(target)


def finish_swap(target: Path) -> None:
    """Finish a `swap_folder` that was interrupted, remove what dead writers of `target` left, and see to it that of a
    bucket all of it is here."""
    remove_stale(target)
    waiting = _swapping(target)
    objects = object_home(target)
    if waiting.is_dir():
        old = temporary_path(target)
        if objects is not None:
            objects.commit(waiting, target)
        if target.exists():
            os.replace(target, old)
        os.replace(waiting, target)
        flush(target.parent)
        remove_path(old)
    if objects is not None:
        objects.fetch_folder(target)


def _swapping(target: Path) -> Path:
    return target.with_name(f".{target.name}.next")


def append_line(path: Path, line: str, *, is_own: bool = False) -> None:
    """Add a line to a file that others append to at the same time; a full disk leaves no part of it.

    One short write: whole or, at a kill, cut. `is_own`: no other process writes this file; a bucket has it when
    the process ends, and a power cut may take its last lines. Raises DiskError.
    """
    data = line.encode() + b"\n"
    objects = object_home(path)
    if objects is not None and not is_own:
        objects.append(path, data)
        return
    with naming_refusals(path), path.open("ab", buffering=0) as file:
        written = file.write(data)
        if written != len(data):  # the disk is full: what it took is taken back
            os.truncate(path, path.stat().st_size - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        if not is_own:
            flush(path)
            flush(path.parent)
