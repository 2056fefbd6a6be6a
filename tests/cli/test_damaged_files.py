"""Files of a home that are damaged or mistyped: the error names the file and what to do, and is no bug of ours."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from curation_assets.core.json_files import DamagedFileError
from curation_assets.core.settings import load_settings
from curation_assets.flow.context import PoolContext
from curation_assets.operations.opt_out_checks import proposed_opt_outs
from curation_assets.operations.refit import unfinished
from curation_assets.operations.retry import with_pending
from curation_assets.operations.takedown import pending_takedown
from curation_assets.operations.verify import unfinished_repair
from curation_assets.outputs.registry import recorded_exports
from curation_assets.scoring.canary import read_accepted
from curation_assets.sources.download.download import read_refused
from curation_assets.stores.denylist import Denylist, add_to_denylist
from curation_assets.stores.objects import _Copies
from tests.support.command import curate
from tests.support.lineage_pools import webdataset_pool

RAW = ["run", "photos", "--table", "raw/registered_shards"]
NOISE = [
    b"\xff\xfe broken",
    b'{"half": [1, 2',
    b"[1, 2]\n",
    b'"text"\n',
    b"{}\n",
    b'{"a": 1}\n',
    b"null\n",
    b"[" * 100_000,
]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home whose first table is made."""
    home = tmp_path_factory.mktemp("made") / "home"
    webdataset_pool(home, shards=1, per_shard=3)
    made = curate(*RAW, home=home)
    assert made.exit_code == 0, made.output
    return home


@pytest.fixture
def home(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    return Path(shutil.copytree(original, tmp_path / "home"))


def _ctx(home: Path) -> PoolContext:
    return PoolContext.open(load_settings(home, "embedded"), "photos")


READERS: dict[str, Callable[[Path], Any]] = {
    "exports.jsonl": recorded_exports,
    "takedown/denylist.json": Denylist.load,
    "takedown/pending/photos.json": lambda home: pending_takedown(home, "photos"),
    "work/photos/opt_outs.jsonl": lambda home: proposed_opt_outs(_ctx(home)),
    "work/photos/canary/accepted.json": lambda home: read_accepted(_ctx(home).store),
    "work/photos/retry.json": lambda home: with_pending(_ctx(home), []),
    "work/photos/repair.json": lambda home: unfinished_repair(home / "work/photos"),
    "work/photos/recuts/0001/refit.json": lambda home: unfinished(_ctx(home)),
    "work/photos/blocked/raw/samples/pool.json": lambda home: _ctx(home).store.blocked("raw/samples"),
    "work/photos/downloads/photos-000000/refused.json": lambda home: read_refused(
        home / "work/photos/downloads/photos-000000"
    ),
}
#: What a reader takes: an object or a list of anything.
TAKEN = {
    "work/photos/retry.json": [b"{}\n"],
    "work/photos/repair.json": [b"[1, 2]\n"],
    "work/photos/canary/accepted.json": [b"{}\n", b'{"a": 1}\n'],
    "work/photos/blocked/raw/samples/pool.json": [b"[1, 2]\n"],
    "work/photos/downloads/photos-000000/refused.json": [b"{}\n", b'{"a": 1}\n'],
}


@pytest.mark.parametrize("name", READERS)
def test_a_json_file_that_cannot_be_read_is_named(name: str, home: Path) -> None:
    path = home / name
    path.parent.mkdir(parents=True, exist_ok=True)
    for content in NOISE:
        if content in TAKEN.get(name, ()):
            continue
        path.write_bytes(content)
        with pytest.raises(DamagedFileError) as refused:
            READERS[name](home)
        assert str(path) in str(refused.value), content[:20]
        assert "; " in str(refused.value), "what to do"
        assert path.read_bytes() == content


def test_one_bad_line_is_named_by_its_number(home: Path) -> None:
    known = {"pool": "photos", "folder": "a", "subset": "b", "written_at": "2026"}
    line = json.dumps(known | {"format": "npy", "name": "icc", "samples": 1, "manifest_sha256": "0"})
    (home / "exports.jsonl").write_text(f"{line}\n\n{line[:-5]}\n{line}\n")
    with pytest.raises(DamagedFileError, match=r"exports\.jsonl, line 3, is damaged .*; correct it, or remove it"):
        recorded_exports(home)
    (home / "exports.jsonl").write_text(f"{line}\n\n")
    assert len(recorded_exports(home)) == 1


def test_nothing_is_added_to_half_a_denylist(home: Path) -> None:
    path = home / "takedown/denylist.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text('{"salt": "a"}')
    with pytest.raises(DamagedFileError, match="restore the file from a backup"):
        add_to_denylist(home, [("domain", "a.example")])
    assert path.read_text() == '{"salt": "a"}'


def _flipped(path: Path) -> bytes:
    """A database whose pages are overwritten behind the header."""
    data = path.read_bytes()
    return data[:100] + b"\xff" * (len(data) - 100)


DATABASES = ["dagster/history/runs.db", "dagster/history/runs/index.db", "dagster/schedules/schedules.db"]
TYPOS = [
    "dagster/dagster.yaml",
    "pools/photos.yaml",
    "pools/photos/mine.yaml",
    "pools/photos/recipes/mine.yaml",
]


def _says(home: Path, words: list[str], path: Path) -> None:
    result = curate(*words, home=home)
    said = "".join(result.output.split())
    assert result.exit_code == 1, result.output
    assert str(path) in said, result.output
    assert "bug" not in said, result.output


@pytest.mark.parametrize("name", DATABASES)
@pytest.mark.parametrize("damage", [lambda path: b"no database at all" * 300, _flipped], ids=["other", "flipped"])
def test_a_damaged_database_of_dagster_is_named(name: str, damage: Callable[[Path], bytes], home: Path) -> None:
    path = home / name
    path.write_bytes(damage(path))
    for rest in ("-wal", "-shm"):
        path.with_name(path.name + rest).unlink(missing_ok=True)
    _says(home, RAW, path)


@pytest.mark.parametrize("name", TYPOS)
@pytest.mark.parametrize("content", [b"a: [b\nc: d", b"\xff\xfe\x00", b"a: 'b", b"a: !!python/object:os.system 1"])
def test_a_yaml_typo_is_named(name: str, content: bytes, home: Path) -> None:
    path = home / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    _says(home, RAW, path)


@pytest.mark.parametrize("content", NOISE)
def test_a_damaged_denylist_stops_a_run(content: bytes, home: Path) -> None:
    path = home / "takedown/denylist.json"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    _says(home, ["takedown", "apply"], path)


def test_what_is_known_of_copies_is_begun_anew(tmp_path: Path) -> None:
    """It is a cache: a damaged one costs requests, no more."""
    path, file = tmp_path / "home.sqlite", tmp_path / "file"
    path.write_bytes(b"no database" * 1000)
    file.write_text("x")
    copies = _Copies(path)
    copies.note("key", "tag", file)
    assert copies.get("key") is not None
