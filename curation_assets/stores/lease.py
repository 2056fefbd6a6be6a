"""Who may change a pool: one command at a time, which others wait for by name; freed when its process ends.

Both locks are flocks on files of the pool's work folder. The kernel drops them with their process, however that ends,
so no killed command leaves one behind. Decision 0029 has which work takes which. In a home in a bucket they keep the
processes of one machine apart, and leases in the bucket (object_lease.py) the machines.
"""

import contextlib
import errno
import fcntl
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from curation_assets.stores.atomic import make_folder, naming_refusals
from curation_assets.stores.object_lease import object_holder, object_lease
from curation_assets.stores.objects import object_home
from curation_assets.stores.processes import ProcessName
from curation_assets.stores.waiting import Notice, Waiting

LEASE = ".lease"  # of a command: run, refit, takedown, retry; shared by runs of shards
WRITING = ".writing"  # shared by whatever writes tables, alone for what removes or rewrites what others made
SERVING = ".serving"  # of the UI and the daemon, in the folder of Dagster's instance
POLL_SECONDS = 0.5
NAMING_SECONDS = 3.0  # a holder writes its name right after it has the lock
NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}

_held = threading.local()  # this thread's locks, path → whether shared: a command calls others that take the same one


def pool_lease(
    work: Path, command: str, *, on_notice: Notice, wait: bool = True, shared: bool = False
) -> AbstractContextManager[None]:
    """Hold a pool while inside. `work`: its work folder; `command`: what others read of who holds it.

    `shared`: together with others that hold it so, as commands that make tables of some shards each.
    Waits until it is free, after a sentence to `on_notice`; where not `wait`, raises PoolHeldError with it.
    A thread that holds it already goes straight on.
    """
    return _locked(work / LEASE, Waiting(f"pool {work.name!r}", on_notice, wait), command, shared=shared)


def writing_tables(work: Path, *, on_notice: Notice) -> AbstractContextManager[None]:
    """While inside, nobody removes or rewrites the tables and downloads of a pool under the hands of whoever writes."""
    return _locked(work / WRITING, Waiting(f"the tables of pool {work.name!r}", on_notice), shared=True)


def alone_with_tables(work: Path, command: str, *, on_notice: Notice) -> AbstractContextManager[None]:
    """While inside, nobody writes tables of a pool, runs of the UI and the daemon included."""
    return _locked(work / WRITING, Waiting(f"the tables of pool {work.name!r}", on_notice), command)


def holder_of(work: Path) -> str | None:
    """Which command holds a pool; None where none does, or it has not written its name."""
    objects = object_home(work)
    if objects is not None:
        return object_holder(objects, work / LEASE)
    try:
        file = os.open(work / LEASE, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return _holder(file)
    finally:
        os.close(file)


def brief_lock(path: Path) -> AbstractContextManager[None]:
    """For a few system calls that belong together. Waits without a word: nobody computes inside."""
    return _locked(path, Waiting(path.name))


@contextlib.contextmanager
def filling_folder(folder: Path, command: str, *, on_notice: Notice) -> Iterator[None]:
    """While inside, no other command fills the folder that a user named. Raises PoolHeldError where one does.

    The lock's file beside it goes with the command; of a killed one it stays until the next, and holds nobody up.
    """
    path = folder.with_name(f".{folder.name}.lock")
    with _locked(path, Waiting(str(folder), on_notice, wait=False, advice="give another folder"), command):
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def serving(instance: Path, command: str) -> AbstractContextManager[None]:
    """While inside, no other command serves the UI and the daemon of Dagster's instance in this folder: two daemons
    would follow each sensor twice. Raises PoolHeldError where one does.
    """
    what, advice = f"the UI and the daemon of {instance}", "open the address that it printed, or end it first"
    return _locked(instance / SERVING, Waiting(what, wait=False, advice=advice), command)


@contextlib.contextmanager
def _locked(path: Path, waiting: Waiting, command: str = "", *, shared: bool = False) -> Iterator[None]:
    mine: dict[Path, bool] = _held.__dict__.setdefault("paths", {})
    if path in mine:
        assert shared or not mine[path], f"{path} is held together with others; it cannot be taken alone meanwhile"
        yield
        return
    with naming_refusals(path):
        make_folder(path.parent)
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _take(file, waiting, shared=shared)
        holder = {**asdict(ProcessName.own()), "command": command, "since": f"{datetime.now():%Y-%m-%d %H:%M}"}
        if command:
            with naming_refusals(path):
                _write(file, holder)
        mine[path] = shared
        objects = object_home(path)
        others = (
            contextlib.nullcontext()
            if objects is None or not objects.is_object(path.parent / "file")  # what stays on this machine
            else object_lease(objects, path, waiting, command, shared=shared)
        )
        try:
            with others:
                yield
        finally:
            del mine[path]
            if command and _read(file) == holder:  # not the name of another that holds it too
                _write(file, None)
    finally:
        os.close(file)


def _take(file: int, waiting: Waiting, *, shared: bool) -> None:
    began = time.monotonic()
    while True:
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(file)
            if holder is None and time.monotonic() - began >= NAMING_SECONDS:
                holder = "a run of the UI or the daemon, or a process that gives no name"
            if holder is not None:
                waiting.name(holder)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            waiting.on_notice(
                f"warning: this disk has no locks ({error.strerror}); nothing keeps two commands of {waiting.what} "
                "apart"
            )
            return
        else:
            waiting.end()
            return
        time.sleep(min(POLL_SECONDS, 0.05 + (time.monotonic() - began) / 10))


def _write(file: int, holder: dict[str, object] | None) -> None:
    text = b"" if holder is None else json.dumps(holder).encode()
    os.pwrite(file, text, 0)
    os.ftruncate(file, len(text))


def _read(file: int) -> Any:
    """What `_write` wrote; None where nothing is there."""
    try:
        return json.loads(os.pread(file, 4096, 0))
    except ValueError:
        return None


def _holder(file: int) -> str | None:
    """'`curate run photos` (pid 12 on host, since …)'; None where no living process has written its name."""
    try:
        written = _read(file)
        process = ProcessName(written["host"], written["pid"], written["start"])
    except (ValueError, KeyError, TypeError):
        return None
    return None if process.has_ended() else f"`{written['command']}` ({process}, since {written['since']})"
