"""Who may change a pool whose home is in a bucket: small objects that their holders renew while they live.

An exclusive lease is one object, made by a conditional put, so one of many wins. Holders of a shared lease have one
object each, in a folder beside it: who wants it alone takes the exclusive object and waits until that folder is empty.
A holder puts its object again every RENEW_SECONDS; one that stays the same for EXPIRY_SECONDS, by the clock of whoever
waits, is of a process that has ended, and is taken over. Clocks of different machines are not compared.
"""

import contextlib
import json
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from curation_assets.core.errors import ExpectedError
from curation_assets.stores.objects import ObjectHome
from curation_assets.stores.processes import ProcessName
from curation_assets.stores.waiting import Waiting

RENEW_SECONDS = 10.0
EXPIRY_SECONDS = 60.0
POLL_SECONDS = 1.0


@contextlib.contextmanager
def object_lease(objects: ObjectHome, path: Path, waiting: Waiting, command: str, *, shared: bool) -> Iterator[None]:
    """Hold the lease of a path, alone or shared, while inside. Raises PoolHeldError, ObjectStoreError."""
    key, others = objects.key_of(path), _Others(objects, waiting)
    mine = _Held(objects, f"{key}.d/{uuid.uuid4().hex}" if shared else key, command, waiting)
    if shared:
        mine.take(None)
        while (holder := others.look(key)) is not None:
            mine.give_back()
            others.pause(holder)
            mine.take(None)
    else:
        while not mine.take(others.expired):
            holder = others.look(key)
            if holder is not None:
                others.pause(holder)
    try:
        with mine.renewed():
            if not shared:
                for other in objects.raw_keys(f"{key}.d"):
                    while (holder := others.look(other)) is not None:
                        others.pause(holder)
                    if other in others.expired:
                        objects.raw_delete(other)
            others.end()
            yield
    finally:
        mine.give_back()


def object_holder(objects: ObjectHome, path: Path) -> str | None:
    """Which command of which machine holds a lease (one of those that share it), by its object; None: nobody."""
    key = objects.key_of(path)
    for name in (key, *objects.raw_keys(f"{key}.d")):
        read = objects.raw_get(name)
        if read is not None:
            return _shown(read[0])
    return None


class _Held:
    """The object of a lease that this process holds."""

    def __init__(self, objects: ObjectHome, key: str, command: str, waiting: Waiting) -> None:
        self.objects, self.key, self.waiting = objects, key, waiting
        since = f"{datetime.now():%Y-%m-%d %H:%M}"
        self._content = {**asdict(ProcessName.own()), "command": command, "since": since, "id": uuid.uuid4().hex}
        self._e_tag: str | None = None
        self._ended = threading.Event()

    def _data(self) -> bytes:
        return json.dumps({**self._content, "renewal": uuid.uuid4().hex}).encode()

    def take(self, expired: "dict[str, str] | None") -> bool:
        """Put the object; in place of one of a holder that has ended (key → e_tag), where it still is that one."""
        replaced = None if expired is None else expired.get(self.key)
        self._e_tag = self.objects.raw_put(self.key, self._data(), replaced)
        return self._e_tag is not None

    @contextlib.contextmanager
    def renewed(self) -> Iterator[None]:
        """Renew it in a thread while inside."""
        thread = threading.Thread(target=self._renew, name=f"lease {self.key}", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def _renew(self) -> None:
        while not self._ended.wait(RENEW_SECONDS):
            try:
                renewed = self.objects.raw_put(self.key, self._data(), self._e_tag)
            except ExpectedError:
                continue  # the bucket does not answer: the next time
            if renewed is None:
                self.waiting.on_notice(
                    f"warning: this process did not renew its lease of {self.waiting.what} for "
                    f"{EXPIRY_SECONDS:.0f} s and another one took it; of tables that both make, the first counts"
                )
                self._e_tag = None
                return
            self._e_tag = renewed

    def give_back(self) -> None:
        """Remove the object, where it still is this process's."""
        read = self.objects.raw_get(self.key) if self._e_tag is not None else None
        if read is not None and read[1] == self._e_tag:
            self.objects.raw_delete(self.key)
        self._e_tag = None


class _Others:
    """What a process that waits knows of the holders: since when their objects have been the same."""

    def __init__(self, objects: ObjectHome, waiting: Waiting) -> None:
        self.objects, self.waiting = objects, waiting
        self.expired: dict[str, str] = {}  # key → e_tag of holders that have ended
        self._seen: dict[str, tuple[str, float]] = {}  # key → e_tag, since when (monotonic)

    def look(self, key: str) -> str | None:
        """Who holds an object, in words; None where nobody does, or who did has ended."""
        read = self.objects.raw_get(key)
        if read is None:
            return None
        content, e_tag = read
        if self._seen.get(key, ("", 0.0))[0] != e_tag:
            self._seen[key] = e_tag, time.monotonic()
        has_expired = _process(content).has_ended() or time.monotonic() - self._seen[key][1] > EXPIRY_SECONDS
        if not has_expired:
            return _shown(content)
        if self.expired.get(key) != e_tag:
            self.expired[key] = e_tag
            self.waiting.on_notice(f"takes over {self.waiting.what} from {_shown(content)}, which no longer renews it")
            self.waiting.notified = _shown(content)
        return None

    def pause(self, holder: str) -> None:
        """Say who is waited for, and wait a moment. Raises PoolHeldError."""
        self.waiting.name(holder)
        time.sleep(POLL_SECONDS)

    def end(self) -> None:
        """It is free: what others wrote meanwhile is taken in."""
        if self.waiting.notified:
            self.objects.refresh()
        self.waiting.end()


def _process(content: Any) -> ProcessName:
    return ProcessName(str(content.get("host")), int(content.get("pid", 0)), str(content.get("start")))


def _shown(content: Any) -> str:
    return f"`{content.get('command') or 'a run'}` ({_process(content)}, since {content.get('since')})"
