"""What a store has written outlives a power cut, whole; a file operation that fails leaves the old or the new.

`benchmarks/power_cut.py` tries whole commands at every write.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from curation_assets.stores.shard_store import MANIFEST_FILE, ShardStore
from tests.support.disk_record import Disk, Folder, State, recorded
from tests.support.paths import REPOSITORY
from tests.torture import power
from tests.torture.homes import TARS, prepared

pytestmark = pytest.mark.skipif(power.why_not() is not None, reason=str(power.why_not()))

WRITES = """
import sys
import tempfile
from pathlib import Path
import polars as pl
from curation_assets.stores.atomic import append_line, finish_swap, remove_path, swap_folder
from curation_assets.stores.documents import save_text
from curation_assets.stores.shard_store import ShardStore

def write(home, number):
    store = ShardStore(home)
    frame = pl.DataFrame({"sample_id": ["0" * 32], "value": [number]})
    store.write("raw/samples", frame, "toy-000000", code_version=str(number))
    weights = b"w%d" % number
    store.materialise_folder("raw/model", lambda f: (f / "w.bin").write_bytes(weights), code_version=str(number))
    append_line(home / "lines.jsonl", f"line {number}")
    finish_swap(home / "swapped")  # as every caller does
    draft = home / "draft"
    draft.mkdir()
    (draft / "part").write_text(f"part {number}")
    swap_folder(draft, home / "swapped")
    save_text(home / "deep" / "er" / "text", f"text {number}")
    save_text(home / f"old {number}", "")
    remove_path(home / f"old {number - 1}")
    with tempfile.TemporaryFile(dir=home) as nameless:  # as the ids of a subset: no name, ever
        nameless.write(b"nothing of it stays")

write(Path(sys.argv[-1]), int(sys.argv[-2]))
"""


def written(home: Path, number: int, log: Path | None = None, durability: str = "full") -> None:
    """Run WRITES, recorded where a log is named."""
    environment = {"CURATION_DURABILITY": durability, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *sys.path])}
    program = WRITES.replace("sys.argv[-1]", repr(str(home))).replace("sys.argv[-2]", str(number))
    if log is not None:
        ended = recorded(program, log, environment)
    else:
        ended = subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, **environment}, capture_output=True, text=True
        )
    assert ended.returncode == 0, ended.stderr


def check_whole(home: Path) -> None:
    """Everything is that of the first or of the second write, or not there before the first."""
    store = ShardStore(home)
    frame = store.read("raw/samples", "toy-000000")
    assert frame["value"].to_list() in ([1], [2])
    copy = store.table_path("raw/samples", "toy-000000").with_name(MANIFEST_FILE)
    assert json.loads(copy.read_text())["code_version"] >= str(frame["value"][0]), "no run would mend the copy"
    assert (store.folder_path("raw/model") / "w.bin").read_bytes() in (b"w1", b"w2")
    lines = (home / "lines.jsonl").read_text()
    assert lines.startswith("line 1\n")
    assert "line 2\n".startswith(lines[7:])
    waiting = home / ".swapped.next"
    assert ((waiting if waiting.is_dir() else home / "swapped") / "part").read_text() in ("part 1", "part 2")
    assert (home / "deep" / "er" / "text").read_text() in ("text 1", "text 2")


@pytest.fixture(scope="module")
def begin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home after the first write."""
    home = tmp_path_factory.mktemp("begin") / "home"
    home.mkdir()
    written(home, 1)
    return home


@pytest.fixture
def begun(begin: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A copy of the home after the first write, and that home."""
    shutil.copytree(begin, tmp_path / "home", symlinks=True)
    return tmp_path / "home", begin


@pytest.mark.slow
def test_every_prefix_of_writes_leaves_the_old_or_the_new(begun: tuple[Path, Path], tmp_path: Path) -> None:
    home, begin = begun
    written(home, 2, tmp_path / "log")
    end = {str(path.relative_to(home)): path.read_bytes() for path in home.rglob("*") if path.is_file()}
    disk = Disk(home, begin, lambda path: False)
    states: dict[str, tuple[str, State]] = {}
    for step in disk.replay(tmp_path / "log"):
        for kind, state in disk.cuts(seed=0, mixed=16):
            states.setdefault(disk.signature(state), (f"{kind} after {step}", state))
    replayed = disk.state(lambda change: True, lambda file: 1)
    files = {one: data for one, (node, data) in replayed.items() if not isinstance(node, Folder) and node.link is None}
    assert files == {one: data for one, data in end.items() if one in files}, "the recorder missed a write"
    assert power.unflushed(disk) == []
    assert len(states) > 50
    for words, state in states.values():
        shutil.rmtree(home)
        shutil.copytree(begin, home, symlinks=True)
        disk.put(state)
        try:
            check_whole(home)
        except Exception as error:
            raise AssertionError(f"{words}: {error}") from error


def test_without_flushing_a_power_cut_takes_what_was_written(begun: tuple[Path, Path], tmp_path: Path) -> None:
    home, begin = begun
    written(home, 2, tmp_path / "log", durability="fast")
    disk = Disk(home, begin, lambda path: False)
    assert [step for step in disk.replay(tmp_path / "log") if "sync" in step.split()[0]] == []
    lost = power.unflushed(disk)
    assert "deep/er/text" in lost
    assert "raw/samples/shard=toy-000000/data.parquet" in lost


def test_durability_is_full_or_fast(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from curation_assets.stores.documents import save_text

    monkeypatch.setenv("CURATION_DURABILITY", "quick")
    with pytest.raises(ValueError, match="must be full or fast, got 'quick'"):
        save_text(tmp_path / "text", "")


ONCE_AND_FOR_EVER = [(int(error), for_ever) for error in power.ERRORS for for_ever in (0, 1)]


@pytest.mark.slow
def test_the_nth_file_operation_fails(begun: tuple[Path, Path], tmp_path: Path) -> None:
    home, begin = begun
    program = f"""
import ctypes, shutil
from pathlib import Path
from tests.stores.test_power_cut import WRITES, check_whole
exec(WRITES.rpartition("write(")[0])
home, begin = Path({str(home)!r}), Path({str(begin)!r})
libc = ctypes.CDLL(None)
libc.io_count.restype = ctypes.c_long

def fails(number, error, for_ever):
    shutil.rmtree(home)
    shutil.copytree(begin, home, symlinks=True)
    libc.fail_io(str(home).encode(), b"/nowhere", ctypes.c_long(number), error, for_ever)
    is_failed = False
    try:
        write(home, 2)
    except OSError:
        is_failed = True
    is_reached = libc.io_count() >= number
    libc.fail_io(b"", b"", ctypes.c_long(0), 0, 0)
    check_whole(home)
    shutil.rmtree(home / "draft", ignore_errors=True)
    write(home, 2)
    assert ShardStore(home).read("raw/samples", "toy-000000")["value"].to_list() == [2], number
    assert (home / "swapped" / "part").read_text() == "part 2", number
    return is_reached, is_failed

for fault in {ONCE_AND_FOR_EVER}:
    number, failed = 1, 0
    while (came := fails(number, *fault))[0]:
        number, failed = number + 1, failed + came[1]
    print(number - 1, failed)
"""
    environment = {
        **os.environ, "LD_PRELOAD": str(power.built_shim(tmp_path)), "CURATION_DURABILITY": "full",
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *sys.path]),
    }  # fmt: skip
    ended = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-3000:]
    counts = [tuple(map(int, line.split())) for line in ended.stdout.splitlines()]
    assert len(counts) == len(ONCE_AND_FOR_EVER)
    for reached, failed in counts:
        assert reached >= 20
        assert failed >= reached / 2


@pytest.mark.slow
@pytest.mark.infra
def test_a_release_outlives_a_power_cut() -> None:
    home = prepared(TARS)
    expected = power.undisturbed(home, "release")
    log = power.record(home, "release")
    disk = power.disk(home, "release")
    steps = max(power.prefixes(disk, log))
    assert power.missed(home, disk) == [], "the recorder missed a write"
    assert power.unflushed(disk) == []
    disk = power.disk(home, "release")
    for prefix in power.prefixes(disk, log):
        if prefix in (steps // 2, steps - 4):
            for _, state in list(disk.cuts(seed=0))[1:3]:
                came = power.after_power_cut(home, "release", disk, state, expected)
                assert came.outcome == "recovered", f"step {prefix}, {disk.last}: {came}"


@pytest.mark.slow
@pytest.mark.infra
@pytest.mark.parametrize(
    ("file", "kind", "outcome"),
    [
        ("index/tables.parquet", "cut", "recovered"),  # made from tables at any time
        ("filtered/icc/shard=photos-000000/manifest.json", "cut", "healed by repair"),
        ("files/keys.npy", "empty", "healed by repair"),  # where a sample is
        ("releases/photos/v1/subset.parquet", "zeros", "refused"),  # a release is never made anew
        ("given.parquet", "cut", "refused"),  # which the pool's owner has
    ],
)
def test_a_damaged_file_is_made_again_healed_or_named(file: str, kind: str, outcome: str) -> None:
    """As a disk leaves it that reports as flushed what it has not: after `run` and `release`, met by `run`."""
    home = prepared(TARS)
    expected = power.met(home, "run")
    (path,) = {path for path, how in power.damages(home, "run") if path.endswith(file) and how == kind}
    came = power.after_damage(home, "run", path, kind, expected)
    assert came.outcome == outcome, came
    if outcome == "refused":
        assert Path(file).name in came.words
