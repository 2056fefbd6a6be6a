"""One byte of any file of a home turns over: `verify` names it, or says that it is derived; what guards is refused."""

import json
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

from curation_assets.audit.index import refresh_index
from curation_assets.core.json_files import DamagedFileError
from curation_assets.core.progress import Silent
from curation_assets.core.seal import is_sealed, sealed_json
from curation_assets.core.settings import load_settings
from curation_assets.flow.context import PoolContext
from curation_assets.flow.graph import tables_of
from curation_assets.operations.releases import create_release
from curation_assets.operations.takedown import begin_takedown, finish_takedown, pending_takedown
from curation_assets.operations.verify import _CHANGED, Verified, verify_pool
from curation_assets.outputs.exports.taken_down import _flag
from curation_assets.outputs.holders import EXPORT_FLAG
from curation_assets.outputs.loading.places import _of_shard
from curation_assets.outputs.registry import EXPORTS_FILE, recorded_exports
from curation_assets.scoring.canary import ACCEPTED, read_accepted
from curation_assets.sources.declaration import load_pool, remember_declared, save_pool
from curation_assets.sources.shard_keys import KEYS_FILE
from curation_assets.stores import costs
from curation_assets.stores.catalog import rebuild_catalog
from curation_assets.stores.denylist import Denylist, add_to_denylist
from curation_assets.stores.home_format import check_home
from tests.support.command import curate
from tests.support.id_lists import read_subset
from tests.support.lineage_pools import bring_up_to_date, finished_photos

DENYLIST, PENDING = "takedown/denylist.json", "takedown/pending/photos.json"


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home whose pool was released, exported and taken down in part, and whose second takedown was begun."""
    home = tmp_path_factory.mktemp("used")
    ctx = finished_photos(home, shards=2, per_shard=6)
    settings, tables = ctx.settings, tables_of(ctx)
    create_release(ctx, tables, "icc", "v1")
    words = ["export", "npy", "icc", "--out", str(home / "exported"), "--home", str(home)]
    assert curate(*words).exit_code == 0
    for number in (0, 1):
        kept = read_subset(ctx.store.folder_path("filtered/subsets") / "icc.npy")
        add_to_denylist(home, [("uid", kept[0])])
        begun = begin_takedown(ctx, tables)
        assert begun is not None
        bring_up_to_date(settings)
        if number == 0:
            finish_takedown(ctx, tables, begun)
    with costs.attempt(ctx.store.root, "signals/icc", "photos-000000", "run"):
        pass
    ctx.store.set_blocked("filtered/icc", "photos-000000", ["no row may be lost"])
    accepted = ctx.store.root / ACCEPTED
    accepted.parent.mkdir()
    accepted.write_text(sealed_json({"icc": "ab" * 32}))
    refresh_index(ctx.store, tables)
    _of_shard(ctx, "photos-000000")  # where its images lie
    remember_declared(settings, "photos")
    rebuild_catalog(home)
    return home


@pytest.fixture
def home(used: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    copy = tmp_path / "home"
    shutil.copytree(used, copy, symlinks=True)
    settings = load_settings(copy, "embedded")
    save_pool(settings, replace(load_pool(settings, "photos"), source=str(copy / "tars")))
    remember_declared(settings, "photos")
    registry = copy / EXPORTS_FILE
    assert str(used) not in registry.read_text(), "exports inside the home are moved with it"
    return copy


def verified(home: Path) -> Verified:
    ctx = PoolContext.open(load_settings(home, "embedded"), "photos")
    return verify_pool(ctx, tables_of(ctx), Silent())


def flip(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.chmod(0o644)
    path.write_bytes(data)


def one_of_each_kind(home: Path) -> dict[str, Path]:
    """Kind → a file of the home, without locks, which hold nothing that is read again."""
    found = dict[str, Path]()
    for path in sorted(home.rglob("*")):
        if path.is_file() and not path.is_symlink() and path.stat().st_size and not path.name.startswith("."):
            found.setdefault(re.sub(r"\d{6,}|[0-9a-f]{8,}|vm-\d+", "#", path.relative_to(home).as_posix()), path)
    return found


def unit_of(kind: str) -> str:
    """The folder, export or release that a file is part of."""
    return re.sub("/(files|versions)/.*", "/", kind).rpartition("/")[0]


def in_rounds(kinds: dict[str, Path]) -> list[dict[str, Path]]:
    """No two files of one folder, export or release in a round: of those a damaged manifest, or the first damage, is
    named. What tells where others are is alone.
    """
    rounds: list[tuple[set[str], dict[str, Path]]] = []
    for kind, path in kinds.items():
        unit = unit_of(kind)
        is_alone = path.name in (EXPORTS_FILE, KEYS_FILE)
        units, room = next((one for one in rounds if not is_alone and unit not in one[0]), (set(), {}))
        if not room:
            rounds.append((units, room))
        units |= {unit} | (set(map(unit_of, kinds)) if is_alone else set())
        room[kind] = path
    return [room for _, room in rounds]


@pytest.mark.slow
def test_a_flipped_byte_of_any_kind_of_file_is_named(home: Path) -> None:
    assert verified(home) == replace(verified(home), damages=[], notes=[])
    kinds, rng = one_of_each_kind(home), random.Random(20)
    assert len(kinds) > 60
    del kinds["format.json"]  # no pool opens then: below
    del kinds["catalog.duckdb"]  # derived: below
    del kinds["pools/photos.yaml"]  # people edit it: below
    missed = []
    for flipped in in_rounds(kinds):
        before = {path: path.read_bytes() for path in flipped.values()}
        for path in flipped.values():
            flip(path, rng)
        named = [f"{damage.path.resolve()}/ {damage.got}" for damage in verified(home).damages]
        missed += [
            path
            for path in before
            if not any(
                one.startswith(f"{path.resolve()}/") or (one.startswith(f"{home}/releases/") and path.name in one)
                for one in named
            )
        ]
        for path, data in before.items():
            path.write_bytes(data)
    assert "\n".join(path.relative_to(home).as_posix() for path in missed) == ""


@pytest.mark.slow
def test_a_declaration_that_no_run_has_read_is_named_and_no_damage(home: Path) -> None:
    path = home / "pools" / "photos.yaml"
    path.write_text(path.read_text().replace("fraction: 0.25", "fraction: 0.35"))
    found = verified(home)
    assert found.damages == []
    assert found.notes == [f"{path} {_CHANGED}"]
    remember_declared(load_settings(home, "embedded"), "photos")  # as a run does
    assert verified(home).notes == []


READERS: dict[str, Callable[[PoolContext], object]] = {
    DENYLIST: lambda ctx: Denylist.load(ctx.settings.home),
    PENDING: lambda ctx: pending_takedown(ctx.settings.home, "photos"),
    "format.json": lambda ctx: check_home(ctx.settings.home),
    EXPORTS_FILE: lambda ctx: recorded_exports(ctx.settings.home),
    f"exported/{EXPORT_FLAG}": lambda ctx: _flag(ctx.settings.home / "exported"),
    f"work/photos/{KEYS_FILE}": lambda ctx: ctx.shards(),
    "work/photos/blocked/filtered/icc/photos-000000.json": lambda ctx: ctx.store.blocked("filtered/icc"),
}


@pytest.mark.slow
def test_what_guards_is_refused_whichever_byte_is_another(home: Path) -> None:
    ctx = PoolContext.open(load_settings(home, "embedded"), "photos")
    for name, read in READERS.items():
        path = home / name
        data = path.read_bytes()
        seal = data.rindex(b'"seal"')
        for place in {*range(0, len(data), 1 + len(data) // 30), *range(seal - 3, seal + 12), len(data) - 1}:
            path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
            with pytest.raises(DamagedFileError, match=re.escape(str(path))):
                read(ctx)
        path.write_bytes(data)
        read(ctx)


def test_a_denylist_is_refused_whichever_byte_is_another(tmp_path: Path) -> None:
    add_to_denylist(tmp_path, [("domain", "example.org"), ("url", "https://example.com/a.jpg")])
    path = tmp_path / DENYLIST
    data = path.read_bytes()
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(DamagedFileError, match="restore the file from a backup"):
            Denylist.load(tmp_path)


@pytest.mark.slow
def test_no_command_makes_anything_with_a_damaged_denylist(home: Path) -> None:
    path = home / DENYLIST
    content = json.loads(path.read_text())
    digest = content["entries"][0]["hash"]
    other = digest[:-1] + ("0" if digest[-1] != "0" else "1")
    path.write_text(path.read_text().replace(digest, other))
    before = {one: one.stat().st_mtime_ns for one in (home / "work/photos/raw").rglob("*.parquet")}
    for words in (["run", "photos"], ["takedown", "apply"], ["export", "npy", "icc", "--out", str(home / "again")]):
        run = curate(*words, home=home)
        assert run.exit_code == 1, run.output
        assert f"{path} is damaged" in run.output
        assert "restore the file from a backup" in run.output
    assert before == {one: one.stat().st_mtime_ns for one in (home / "work/photos/raw").rglob("*.parquet")}
    run = curate("verify", "photos", "--json", home=home)
    assert run.exit_code == 1
    assert [one["path"] for one in json.loads(run.stdout)["damaged"]["photos"]] == [str(path)]


@pytest.mark.slow
def test_files_without_a_hash_are_read_and_get_one_when_written(home: Path) -> None:
    """As the version before wrote them."""
    denylist = Denylist.load(home)
    for name in (DENYLIST, PENDING, f"work/photos/{ACCEPTED}"):
        content = json.loads((home / name).read_text())
        del content["seal"]
        (home / name).write_text(json.dumps(content))
    assert Denylist.load(home) == denylist
    assert pending_takedown(home, "photos") is not None
    assert read_accepted(PoolContext.open(load_settings(home, "embedded"), "photos").store) == {"icc": "ab" * 32}
    assert verified(home).damages == []
    add_to_denylist(home, [("domain", "example.org")])
    assert is_sealed((home / DENYLIST).read_bytes())


@pytest.mark.slow
def test_repair_makes_again_what_is_derived(home: Path) -> None:
    root = home / "work" / "photos"
    for place in (root / KEYS_FILE, root / "index" / "tables.parquet", home / "catalog.duckdb"):
        flip(place, random.Random(3))
    (log,) = (root / costs.COSTS).glob("*.jsonl")
    log.write_text(log.read_text().replace("signals", "signalz", 1))
    run = curate("verify", "photos", home=home, width=400)
    assert run.exit_code == 1
    assert "catalog.duckdb and the thumbnails of `curate explore` are derived" in run.output
    ids = PoolContext.open(load_settings(home, "embedded"), "photos").store.read("raw/samples", "photos-000001")
    run = curate("verify", "photos", "--repair", home=home)
    assert run.exit_code == 0, run.output
    ctx = PoolContext.open(load_settings(home, "embedded"), "photos")
    assert ctx.shards() == ["photos-000000", "photos-000001"]
    assert ctx.store.read("raw/samples", "photos-000001").equals(ids)
    with duckdb.connect(str(home / "catalog.duckdb"), read_only=True) as connection:
        connection.execute("select count(*) from photos.raw_samples")
    assert verified(home).damages == []
