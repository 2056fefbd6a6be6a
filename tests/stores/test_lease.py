"""The lease of a pool: one command at a time, named to those that wait, freed by the kernel."""

import errno
import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from curation_assets.stores.lease import (
    LEASE,
    alone_with_tables,
    holder_of,
    pool_lease,
    writing_tables,
)
from curation_assets.stores.shard_store import OvertakenError, ShardStore
from curation_assets.stores.waiting import PoolHeldError
from tests.support.paths import REPOSITORY

HOLD = """
import sys, time
from pathlib import Path
from curation_assets.stores import lease

with getattr(lease, sys.argv[2])(Path(sys.argv[1]), *sys.argv[3:], on_notice=print):
    Path(sys.argv[1], "inside").touch()
    time.sleep(600)
"""


@contextmanager
def held_by_another(work: Path, kind: str, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds a lock of a pool for ten minutes."""
    work.mkdir(parents=True, exist_ok=True)
    child = subprocess.Popen([sys.executable, "-c", HOLD, str(work), kind, *command], cwd=REPOSITORY)
    try:
        while not (work / "inside").exists():
            assert child.poll() is None, "it ended before it had the lock"
            time.sleep(0.02)
        yield child
    finally:
        child.kill()
        child.wait()


def test_who_waits_names_the_holder_and_goes_on_when_it_is_killed(tmp_path: Path) -> None:
    work = tmp_path / "photos"
    with held_by_another(work, "pool_lease", "curate run photos") as child:
        holder = holder_of(work)
        assert holder is not None
        assert holder.startswith(f"`curate run photos` (pid {child.pid} on ")
        with pytest.raises(PoolHeldError) as refusal, pool_lease(work, "mine", on_notice=print, wait=False):
            raise AssertionError("two commands inside at once")
        assert str(refusal.value) == f"{holder} holds pool 'photos'; wait for its end, or leave out --no-wait"
        notices: list[str] = []

        def on_notice(sentence: str) -> None:
            notices.append(sentence)
            child.kill()

        with pool_lease(work, "mine", on_notice=on_notice):
            mine = holder_of(work)
            assert mine is not None
            assert f"`mine` (pid {os.getpid()} on " in mine
        assert notices == [f"waits for {holder}: it holds pool 'photos'", "goes on: pool 'photos' is free"]
    assert holder_of(work) is None
    assert (work / LEASE).read_text() == ""


def test_a_command_that_calls_another_holds_the_pool_once(tmp_path: Path) -> None:
    with pool_lease(tmp_path, "outer", on_notice=pytest.fail), pool_lease(tmp_path, "inner", on_notice=pytest.fail):
        outer = holder_of(tmp_path)
        assert outer is not None
        assert "`outer`" in outer
    with (
        alone_with_tables(tmp_path, "takedown", on_notice=pytest.fail),
        writing_tables(tmp_path, on_notice=pytest.fail),
    ):
        pass


def test_another_thread_waits(tmp_path: Path) -> None:
    order: list[str] = []
    second_waits = threading.Event()

    def second() -> None:
        with pool_lease(tmp_path, "second", on_notice=lambda sentence: second_waits.set()):
            order.append("second")

    with pool_lease(tmp_path, "first", on_notice=pytest.fail):
        thread = threading.Thread(target=second)
        thread.start()
        assert second_waits.wait(60)
        order.append("first")
    thread.join(60)
    assert order == ["first", "second"]


@pytest.mark.slow
def test_writers_of_tables_share_and_whoever_removes_waits_for_them(tmp_path: Path) -> None:
    with held_by_another(tmp_path, "writing_tables") as child:
        with writing_tables(tmp_path, on_notice=pytest.fail):
            pass
        notices: list[str] = []

        def on_notice(sentence: str) -> None:
            notices.append(sentence)
            child.kill()

        with alone_with_tables(tmp_path, "curate takedown apply", on_notice=on_notice):
            pass
        assert "a run of the UI or the daemon" in notices[0]


def test_what_a_dead_holder_left_names_nobody(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left = {"host": os.uname().nodename, "pid": ended.pid, "start": "1", "command": "curate run", "since": "long ago"}
    for text in (json.dumps(left), "{", "[]", '{"pid": 1}', "\0"):
        (tmp_path / LEASE).write_text(text)
        assert holder_of(tmp_path) is None
        with pool_lease(tmp_path, "mine", on_notice=pytest.fail):
            pass


def test_a_disk_without_locks_costs_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    notices: list[str] = []
    with pool_lease(tmp_path, "mine", on_notice=notices.append):
        pass
    assert notices == [
        "warning: this disk has no locks (No locks available); nothing keeps two commands of "
        f"pool {tmp_path.name!r} apart"
    ]


def test_two_writers_of_a_folder_leave_a_version_that_is_there(tmp_path: Path) -> None:
    other_store, threads, overtaken = ShardStore(tmp_path), [], []

    def write(store: ShardStore, number: int) -> None:
        store.materialise_folder(
            "raw/lookup", lambda folder: (folder / "n").write_text(str(number)) and None, code_version=str(number)
        )

    def write_late() -> None:
        try:
            write(other_store, 2)
        except OvertakenError as error:
            overtaken.append(str(error))

    class Interrupted(ShardStore):
        """Another writer comes while this one has its version in place, and no link to it yet."""

        @staticmethod
        def _swap_link(link: Path, version: Path) -> None:
            thread = threading.Thread(target=write_late)
            threads.append(thread)
            thread.start()
            thread.join(1)
            ShardStore._swap_link(link, version)

    write(Interrupted(tmp_path), 1)
    for thread in threads:
        thread.join()
    manifest = other_store.manifest("raw/lookup")
    assert manifest is not None
    assert (other_store.folder_path("raw/lookup") / "n").read_text() == manifest.code_version == "1"
    assert overtaken == ["raw/lookup: another process stored it meanwhile; its version stays"]
