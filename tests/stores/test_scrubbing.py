"""What a takedown looks for is found, or a file that cannot be looked at is named."""

import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

from curation_assets.core.errors import StoreError
from curation_assets.stores import scrubbing
from curation_assets.stores.scrubbing import GONE, UNREAD, Needles, scrub

CAPTION = "a caption that no other sample has"
NEEDLES = Needles(frozenset({CAPTION}), frozenset())


@pytest.mark.parametrize("name", ["data.parquet", ".data.parquet.tmp-host-1-01234567.parquet", "part.tar", "runs.db"])
@pytest.mark.parametrize(
    ("data", "expected"), [(b"", set()), (b"PAR1 half of it", {UNREAD}), (CAPTION.encode(), {UNREAD, CAPTION})]
)
def test_a_file_that_is_being_written_is_looked_at_by_bytes(
    tmp_path: Path, name: str, data: bytes, expected: set[str]
) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    assert NEEDLES.matches_in(path) == expected


def test_a_table_cut_short_is_not_taken_for_one_without_the_sample(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    pl.DataFrame({"caption": [CAPTION, "another"] * 500}).write_parquet(path, compression="zstd")
    assert NEEDLES.matches_in(path) == {CAPTION}
    path.write_bytes(path.read_bytes()[:-100])
    assert UNREAD in NEEDLES.matches_in(path)


def lock_holder(path: Path) -> int:
    """Which process holds a lock on a file, as another one sees it; 0 for none."""
    look = (
        "import fcntl, struct, sys; request = struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 0, 0);"
        "print(struct.unpack('hhqqi4x', fcntl.fcntl(open(sys.argv[1], 'rb+'), fcntl.F_GETLK, request))[4])"
    )
    return int(subprocess.check_output([sys.executable, "-c", look, str(path)]))


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A database that this process has open, as it has Dagster's: its log is not empty."""
    with closing(sqlite3.connect(tmp_path / "runs.db", isolation_level=None)) as connection:
        connection.execute("pragma journal_mode = wal")
        connection.execute("create table runs (body text)")
        connection.execute("insert into runs values (?)", (f"failed at {CAPTION}: " + "long " * 5000,))
        yield connection


def test_looking_at_a_database_leaves_its_locks(tmp_path: Path, runs: sqlite3.Connection) -> None:
    """A file that is opened and closed beside SQLite loses the locks of its process: another one then removed the log
    that Dagster's connections here worked on (disk I/O error)."""
    runs.execute("select * from runs").fetchall()
    log = tmp_path / "runs.db-shm"
    assert lock_holder(log) == os.getpid()
    for path in sorted(tmp_path.iterdir()):
        assert NEEDLES.matches_in(path) == ({CAPTION} if path.suffix == ".db" else set())
        scrub(path, NEEDLES.texts)
        assert NEEDLES.matches_in(path) == set()
    assert lock_holder(log) == os.getpid()
    assert runs.execute("select body from runs").fetchone()[0].startswith(f"failed at {GONE}: long")
    assert CAPTION.encode() not in b"".join(path.read_bytes() for path in tmp_path.iterdir())


def test_a_database_that_others_use_is_waited_for_with_a_line(
    tmp_path: Path, runs: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It was certified as 'something that cannot be read'."""
    monkeypatch.setattr(scrubbing, "TRY_SECONDS", 0.05)
    path = tmp_path / "runs.db"
    reader = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    reader.execute("begin")
    reader.execute("select * from runs").fetchone()  # an older state, for as long as it is read
    runs.execute("insert into runs values ('later')")
    threading.Timer(0.5, reader.close).start()
    assert NEEDLES.matches_in(path) == {CAPTION}
    writer = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    writer.execute("begin immediate")
    threading.Timer(0.5, writer.close).start()
    scrub(path, NEEDLES.texts)
    assert NEEDLES.matches_in(path) == set()
    assert [record.message for record in caplog.records] == [f"waits for {path}, which another process uses"] * 2


def test_a_database_that_stays_busy_is_named(
    tmp_path: Path, runs: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrubbing, "TRY_SECONDS", 0.01)
    monkeypatch.setattr(scrubbing, "BUSY_SECONDS", 0.1)
    runs.execute("begin immediate")
    with pytest.raises(StoreError, match=r"runs.db was in use by another process.*run the same command again"):
        scrub(tmp_path / "runs.db", NEEDLES.texts)


def test_what_is_removed_while_it_is_searched_holds_nothing(tmp_path: Path) -> None:
    for name in ("run.db", "run.db-wal", "run.out", "run.txt"):
        assert NEEDLES.matches_in(tmp_path / name) == set()
