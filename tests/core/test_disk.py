"""A disk that is full or cannot be written: one sentence, whatever library wrote, and nothing half-written."""

import errno
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

from curation_assets.core.disk import DiskError, refused_write
from curation_assets.core.settings import load_settings
from curation_assets.outputs.registry import ExportRecord, record_export, recorded_exports
from curation_assets.sources.declaration import list_pools
from curation_assets.stores.atomic import append_line, replacing
from tests.support.command import curate
from tests.support.small_disk import SmallDisk, small_disk, why_no_disk

needs_disk = pytest.mark.skipif(why_no_disk() is not None, reason=str(why_no_disk()))
NUMBERS = np.random.default_rng(0).random(200_000)


def _sqlite(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("create table t (x)")
        connection.executemany("insert into t values (?)", [("y" * 1000,)] * 1000)
        connection.commit()


def _duckdb(path: Path) -> None:
    with duckdb.connect(str(path)) as connection:
        connection.execute("create table t as select random() as x, uuid() as y from range(100000)")


WRITERS: dict[str, Callable[[Path], object]] = {
    "polars parquet": lambda path: pl.DataFrame({"x": NUMBERS}).write_parquet(path),
    "polars csv": lambda path: pl.DataFrame({"x": NUMBERS}).write_csv(path),
    "pyarrow": lambda path: pq.write_table(pl.DataFrame({"x": NUMBERS}).to_arrow(), path),
    "numpy": lambda path: np.save(path.with_suffix(".npy"), NUMBERS),
    "safetensors": lambda path: save_file({"x": NUMBERS}, path),
    "sqlite": _sqlite,
    "duckdb": _duckdb,
    "text": lambda path: path.write_text("x" * 1_000_000),
}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", 256 * 1024) as mounted:
        yield mounted


@needs_disk
@pytest.mark.parametrize("name", WRITERS)
def test_every_writer_is_understood(disk: SmallDisk, name: str) -> None:
    folder = disk.folder
    with pytest.raises(Exception, match=r".") as caught:
        WRITERS[name](folder / "x")
    sentence = refused_write(caught.value, folder)
    assert sentence is not None, repr(caught.value)
    assert sentence.startswith(f"no space left for {folder}")
    assert "make room" in sentence
    for path in folder.iterdir():
        path.unlink()
    disk.make_read_only()
    with pytest.raises(Exception, match=r".") as caught:
        WRITERS[name](folder / "x")
    if name != "sqlite":  # which says that it cannot open the file: as root, nothing shows why
        sentence = refused_write(caught.value, folder)
        assert sentence is not None, repr(caught.value)
        assert str(folder) in sentence
        assert "read-only file system" in sentence


@needs_disk
def test_a_refused_write_leaves_what_was_there(disk: SmallDisk) -> None:
    target = disk.folder / "work" / "table.parquet"
    with replacing(target) as temporary:
        temporary.write_bytes(b"old")
    with pytest.raises(DiskError, match=f"no space left for {target}"), replacing(target) as temporary:
        pl.DataFrame({"x": NUMBERS}).write_parquet(temporary)
    assert target.read_bytes() == b"old"
    assert list(target.parent.iterdir()) == [target]
    disk.make_read_only()
    with pytest.raises(DiskError, match="read-only file system"), replacing(target) as temporary:
        temporary.write_bytes(b"new")
    assert target.read_bytes() == b"old"


@needs_disk
def test_a_line_is_appended_whole_or_not_at_all(disk: SmallDisk) -> None:
    path = disk.folder / "lines"
    append_line(path, "first")
    with pytest.raises(DiskError, match="no space left"):
        append_line(path, "x" * 1_000_000)
    append_line(path, "second")
    assert path.read_text() == "first\nsecond\n"
    record = ExportRecord("p", "/out", "/out/ids.npy", "2026-01-01", "npy", "icc", 1, "ab" * 32)
    record_export(disk.folder, record)
    disk.resize(disk.used)
    refused = 0
    for _ in range(200):
        try:
            record_export(disk.folder, record)
        except DiskError:
            refused += 1
    assert refused
    assert {one.folder for one in recorded_exports(disk.folder)} == {"/out"}  # each line can be read


@needs_disk
def test_commands_say_so_in_one_sentence(disk: SmallDisk, tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text("caption,url\na red kite,http://a.example/1.jpg\n")
    home = disk.folder / "home"
    settings = load_settings(home, "embedded")
    commands = (
        ["pool", "add", "mine", str(tmp_path / "c.csv"), "--home", str(home)],
        ["takedown", "add", "--url", "http://a.example/1.jpg", "--home", str(home)],
        ["run", "mine", "--home", str(home)],
        ["demo", "--home", str(home)],
    )
    settings.pools_root.mkdir(parents=True)

    def refused(command: list[str], why: str) -> None:
        run = curate(*command, width=500)
        assert run.exit_code == 1, run.output
        errors = [line for line in run.output.splitlines() if line.startswith("error ")]
        assert len(errors) == 1, run.output
        assert str(home) in errors[0]
        assert why in errors[0]
        assert "Traceback" not in run.output

    disk.make_read_only()
    for command in (commands[0], commands[1], commands[3]):
        refused(command, "read-only file system")
    disk.resize(256 * 1024)
    assert curate(*commands[0]).exit_code == 0
    disk.make_read_only()
    refused(commands[2], "cannot be written")
    disk.resize(disk.used)
    refused(commands[2], "no space left")  # Dagster's own databases
    refused(commands[1], "no space left")
    assert list_pools(settings) == ["mine"]
    assert not [path for path in home.rglob("*") if ".tmp-" in path.name]


def test_other_errors_stay_what_they_are(tmp_path: Path) -> None:
    assert refused_write(ValueError("No space left on device"), tmp_path) is None
    assert refused_write(FileNotFoundError(2, "No such file or directory", "/x"), tmp_path) is None
    assert refused_write(PermissionError(13, "Permission denied", "/source/secret.tar"), tmp_path) is None


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE])
def test_a_failing_disk_is_named_whatever_library_met_it(code: int, tmp_path: Path) -> None:
    words = os.strerror(code)
    of_python = refused_write(OSError(code, words, str(tmp_path / "table")), tmp_path)
    of_polars = refused_write(pl.exceptions.ComputeError(f"underlying IO error: {words} (os error {code})"), tmp_path)
    for sentence, place in ((of_python, tmp_path / "table"), (of_polars, tmp_path)):
        assert sentence is not None
        assert f"a file operation failed at {place}" in sentence
        assert words in sentence
        assert "run the same command again" in sentence
    assert refused_write(ValueError(words), tmp_path) is None
