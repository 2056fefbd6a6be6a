"""A home in a bucket: what is put, fetched, refused, evicted, held and purged, on a real S3 server."""

import gzip
import hashlib
import http.client
import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import polars as pl
import pytest

from curation_assets.core.settings import home_name, home_of, homes_root, load_settings, working_copy
from curation_assets.sources.declaration import add_pool, load_pool
from curation_assets.sources.kinds.webdataset import tars_of_pool
from curation_assets.sources.shards import discover_shards, register_shard, source_fingerprint
from curation_assets.stores import object_lease
from curation_assets.stores import objects as objects_module
from curation_assets.stores.atomic import (
    append_line,
    fetch,
    move_into_place,
    remove_path,
    replacing,
)
from curation_assets.stores.documents import save_text
from curation_assets.stores.images import read_member, tar_index
from curation_assets.stores.lease import alone_with_tables, holder_of, pool_lease, writing_tables
from curation_assets.stores.object_versions import purge_versions
from curation_assets.stores.objects import (
    BODY_ATTEMPTS,
    ObjectChangedError,
    ObjectHome,
    ObjectStoreError,
    object_home,
    open_home,
)
from curation_assets.stores.shard_store import CorruptTableError, ShardStore
from curation_assets.stores.tar_writing import rewrite_tar
from curation_assets.stores.waiting import PoolHeldError
from tests.support.bucket import BUCKET, Bucket, Request, running_bucket
from tests.support.lineage_pools import jpeg, write_tar

URL = f"s3://{BUCKET}/homes/mine"
ASSET, SHARD = "raw/samples", "toy-000000"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Bucket]:
    """An empty bucket, and a cache of this test's own."""
    monkeypatch.setenv("CURATION_HOMES", str(tmp_path / "homes"))
    monkeypatch.setenv("CURATION_BUCKET_RETRY_SECONDS", "3")
    with running_bucket(monkeypatch) as running:
        yield running


def machine(tmp_path: Path, name: str) -> ObjectHome:
    """The home as another machine sees it: with a cache of its own."""
    objects = ObjectHome(URL, tmp_path / name)
    objects.refresh()
    return objects


def put(objects: ObjectHome, name: str, text: str) -> None:
    """Write a file as `replacing` does, into the working copy of a machine."""
    draft = objects.root / ".draft"
    draft.write_text(text)
    objects.commit(draft, objects.root / name)
    (objects.root / name).parent.mkdir(parents=True, exist_ok=True)
    os.replace(draft, objects.root / name)


# -- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["s3://b/p/q", "s3:/b/p/q", "s3://b/p/q/", "s3://b//p/q", Path("s3://b/p/q")])
def test_a_url_has_one_working_copy(given: str | Path) -> None:
    home = home_of(given)
    assert working_copy(home / "work/x") == ("s3://b/p/q", home)
    assert home_name(home) == "s3://b/p/q"
    assert home.parent == homes_root()
    assert not set("%=*?[]{} ") & set(home.name), "a letter that SQLite, Parquet readers or globs read"


def test_a_folder_and_a_file_url_are_homes_on_a_disk(tmp_path: Path) -> None:
    assert home_of(tmp_path) == home_of(f"file://{tmp_path}") == tmp_path
    assert working_copy(tmp_path) is None
    assert home_name(tmp_path) == str(tmp_path)


@pytest.mark.parametrize("given", ["s3:///", "gs://bucket/x", "https://bucket.example/x"])
def test_other_urls_are_refused(given: str) -> None:
    with pytest.raises(ValueError, match=r"a home is a folder, file:///FOLDER or s3://BUCKET/PREFIX, got"):
        home_of(given)


def test_a_bucket_that_is_not_there_is_named(bucket: Bucket) -> None:
    with pytest.raises(ObjectStoreError, match="s3://absent/x: there is no such bucket"):
        open_home(home_of("s3://absent/x"))


# -- files ------------------------------------------------------------------------------------------------------------


def test_files_links_folders_and_removals_reach_another_machine(bucket: Bucket, tmp_path: Path) -> None:
    home = home_of(URL)
    open_home(home)
    save_text(home / "pools/toy.yaml", "name: toy")
    save_text(home / "pools/removed.yaml", "name: removed")
    with replacing(home / "releases/toy/one") as folder:
        folder.mkdir()
        (folder / "release.json").write_text("{}")
        (folder / "a").mkdir()
        (folder / "a" / "b.txt").write_text("b")
    with replacing(home / "work/toy/distilled/model") as link:
        link.symlink_to(".model.version-0123456789ab/files")
    save_text(home / "work/toy/source/cache.json", "local")
    other = machine(tmp_path, "other")
    files = sorted(path.relative_to(other.root).as_posix() for path in other.root.rglob("*") if path.is_file())
    assert [name for name in files if "/." not in name] == [
        "pools/removed.yaml", "pools/toy.yaml", "releases/toy/one/a/b.txt", "releases/toy/one/release.json",
    ]  # fmt: skip
    assert os.readlink(other.root / "work/toy/distilled/model") == ".model.version-0123456789ab/files"
    remove_path(home / "pools/removed.yaml")
    remove_path(home / "releases/toy/one")
    remove_path(home / "work/toy/distilled/model")
    other.refresh()
    assert bucket.keys() == ["homes/mine/pools/toy.yaml"]
    assert not (other.root / "pools/removed.yaml").exists()
    assert not (other.root / "releases").exists()
    assert not (other.root / "work/toy/distilled/model").is_symlink()


def test_what_says_that_a_folder_is_whole_is_put_last(bucket: Bucket, tmp_path: Path) -> None:
    home = home_of(URL)
    draft = home / ".draft"
    for name in ("release.json", "z.parquet", "versions/v.parquet"):
        (draft / name).parent.mkdir(parents=True, exist_ok=True)
        (draft / name).write_text(name)
    bucket.client.put_object(Bucket=BUCKET, Key="homes/mine/releases/toy/r/z.parquet", Body=b"of another")
    with pytest.raises(ObjectChangedError):
        move_into_place(draft, home / "releases/toy/r")
    assert bucket.keys("homes/mine/releases/toy/r/release.json") == []
    assert not (home / "releases/toy/r").exists()


def test_a_stale_file_is_not_overwritten(bucket: Bucket, tmp_path: Path) -> None:
    one, two = machine(tmp_path, "one"), machine(tmp_path, "two")
    put(one, "pools/toy.yaml", "first")
    with pytest.raises(ObjectChangedError, match=rf"{URL}/pools/toy.yaml was written or removed by another process"):
        put(two, "pools/toy.yaml", "second")
    two.refresh()
    put(two, "pools/toy.yaml", "second")
    with pytest.raises(ObjectChangedError):
        put(one, "pools/toy.yaml", "third")
    assert bucket.read("homes/mine/pools/toy.yaml") == b"second"
    put(one, "pools/same.yaml", "same")
    put(two, "pools/same.yaml", "same")  # nothing to decide


def test_lines_of_two_machines_are_all_kept(bucket: Bucket, tmp_path: Path) -> None:
    machines = [machine(tmp_path, name) for name in ("one", "two")]

    def add(number: int) -> None:
        machines[number % 2].append(machines[number % 2].root / "exports.jsonl", f"{number}\n".encode())

    add(0)
    with ThreadPoolExecutor(2) as threads:
        for part in (range(2, 12, 2), range(1, 12, 2)):
            threads.submit(lambda numbers: [add(number) for number in numbers], part)
    assert sorted(map(int, bucket.read("homes/mine/exports.jsonl").split())) == list(range(12))


def test_a_log_of_one_process_is_put_when_it_ends_and_after_a_kill_by_the_next(bucket: Bucket) -> None:
    script = (
        "import os, sys; from curation_assets.core.settings import home_of\n"
        "from curation_assets.stores.atomic import append_line\n"
        f"path = home_of({URL!r}) / 'work/toy/costs' / sys.argv[1]; path.parent.mkdir(parents=True, exist_ok=True)\n"
        "append_line(path, 'a line', is_own=True)\n"
        "if sys.argv[2] == 'killed': os.kill(os.getpid(), 9)\n"
    )
    for end in ("ended", "killed"):
        subprocess.run([sys.executable, "-c", script, f"attempts-{end}.jsonl", end], check=False)
    assert bucket.keys() == ["homes/mine/work/toy/costs/attempts-ended.jsonl"]
    open_home(home_of(URL))
    assert bucket.read("homes/mine/work/toy/costs/attempts-killed.jsonl") == b"a line\n"


def test_of_sixteen_racing_creates_one_wins(bucket: Bucket, tmp_path: Path) -> None:
    machines = [machine(tmp_path, f"m{number}") for number in range(16)]
    gate = threading.Barrier(16)

    def create(number: int) -> bool:
        gate.wait()
        try:
            put(machines[number], "pools/toy.yaml", f"of {number}")
        except ObjectChangedError:
            return False
        return True

    with ThreadPoolExecutor(16) as threads:
        won = list(threads.map(create, range(16)))
    assert sum(won) == 1
    assert bucket.read("homes/mine/pools/toy.yaml") == f"of {won.index(True)}".encode()


# -- tables -----------------------------------------------------------------------------------------------------------


def write_table(store: ShardStore, values: list[int], *, version: str = "1", shard: str = SHARD) -> None:
    """A table of one column."""
    store.materialise(ASSET, lambda: pl.DataFrame({"value": values}), partition=shard, code_version=version)


def test_tables_are_fetched_when_they_are_asked_for(bucket: Bucket, tmp_path: Path, monkeypatch) -> None:
    work = home_of(URL) / "work/toy"
    write_table(ShardStore(work), [1, 2])
    write_table(ShardStore(work), [3], shard="toy-000001")
    monkeypatch.setenv("CURATION_HOMES", str(tmp_path / "elsewhere"))
    open_home(home_of(URL))
    store = ShardStore(home_of(URL) / "work/toy")
    stored = [path for path in store.root.rglob("data.parquet") if path.is_file()]
    assert stored == []
    assert store.partitions(ASSET) == [SHARD, "toy-000001"]
    assert store.read(ASSET, SHARD)["value"].to_list() == [1, 2]
    assert not (store.root / ASSET / "shard=toy-000001/data.parquet").exists()
    assert store.scan(ASSET).collect().height == 3


def test_of_two_machines_that_made_the_same_table_the_first_counts(bucket: Bucket, tmp_path: Path, monkeypatch) -> None:
    def on(name: str) -> ShardStore:
        monkeypatch.setenv("CURATION_HOMES", str(tmp_path / name))
        return ShardStore(home_of(URL) / "work/toy")

    assert [on(name).manifest(ASSET, SHARD) for name in ("one", "two")] == [None, None]
    write_table(on("one"), [1])
    table = "homes/mine/work/toy/raw/samples/shard=toy-000000"
    written = [bucket.read(f"{table}/{name}") for name in ("data.parquet", "manifest.json")]
    write_table(on("two"), [1])  # made from the same: reused
    assert [bucket.read(f"{table}/{name}") for name in ("data.parquet", "manifest.json")] == written
    write_table(on("two"), [2], version="2")
    with pytest.raises(ObjectChangedError):
        write_table(on("one"), [3], version="3")
    assert on("one").read(ASSET, SHARD)["value"].to_list() == [2]


def test_processes_that_share_a_working_copy_know_what_each_other_wrote(bucket: Bucket, tmp_path: Path) -> None:
    parent, worker = machine(tmp_path, "shared"), machine(tmp_path, "shared")
    put(worker, "work/toy/raw/samples/shard=toy-000000/data.parquet", "of a worker")
    table = parent.root / "work/toy/raw/samples/shard=toy-000000/data.parquet"
    assert parent.has(table)
    put(parent, "work/toy/raw/samples/shard=toy-000000/data.parquet", "of the parent")  # replaces it: no conflict
    worker.delete(table)
    table.unlink()
    assert not parent.has(table)
    put(parent, "work/toy/raw/samples/shard=toy-000000/data.parquet", "again")
    worker.delete(table)
    assert bucket.keys() == []


def test_a_damaged_copy_is_fetched_again_and_a_damaged_object_is_an_error(bucket: Bucket) -> None:
    store = ShardStore(home_of(URL) / "work/toy")
    write_table(store, list(range(100)))
    path = store.table_path(ASSET, SHARD)
    sound = path.read_bytes()
    path.write_bytes(sound[:20] + bytes([sound[20] ^ 1]) + sound[21:])
    assert ShardStore(store.root).read(ASSET, SHARD).height == 100
    assert path.read_bytes() == sound
    key = "homes/mine/work/toy/raw/samples/shard=toy-000000/data.parquet"
    bucket.client.put_object(Bucket=BUCKET, Key=key, Body=sound[:20] + bytes([sound[20] ^ 1]) + sound[21:])
    open_home(home_of(URL))
    with pytest.raises(CorruptTableError, match="not those that were written"):
        ShardStore(store.root).read(ASSET, SHARD)


def test_what_was_not_used_for_longest_leaves_the_cache(bucket: Bucket) -> None:
    home = home_of(URL)
    store = ShardStore(home / "work/toy")
    for number in range(3):
        write_table(store, [number], shard=f"toy-{number:06d}")
        path = store.table_path(ASSET, f"toy-{number:06d}")
        os.utime(path, ns=(time.time_ns() - (10 - number) * 3_600 * 10**9, path.stat().st_mtime_ns))
    size = path.stat().st_size
    removed = store.objects.evict(size + size // 2 + 2 * 1_000)
    kept = [path.parent.name for path in sorted(store.root.rglob("data.parquet"))]
    assert removed
    assert kept[-1] == "shard=toy-000002"
    assert len(kept) < 3
    assert store.scan(ASSET).collect()["value"].sort().to_list() == [0, 1, 2]


# -- sources ----------------------------------------------------------------------------------------------------------


def test_tars_that_others_drop_into_the_home_are_shards(bucket: Bucket, tmp_path: Path, monkeypatch) -> None:
    def drop(number: int) -> None:
        tar = tmp_path / f"{number:06d}.tar"
        write_tar(
            tar, [(f"{number:03d}{n:03d}", f"http://h.example/{number}/{n}", f"box {n}", jpeg(n)) for n in (1, 2)]
        )
        key = f"homes/mine/sources/photos/{tar.name}"
        bucket.client.put_object(Bucket=BUCKET, Key=key, Body=tar.read_bytes())

    drop(0)
    settings = load_settings(URL, "embedded")
    open_home(settings.home)
    pool = add_pool(settings, "photos", f"{URL}/sources/photos")
    assert "source: sources/photos" in bucket.read("homes/mine/pools/photos.yaml").decode()
    monkeypatch.setenv("CURATION_HOMES", str(tmp_path / "elsewhere"))
    settings = load_settings(URL, "embedded")
    open_home(settings.home)
    pool = load_pool(settings, "photos")
    drop(1)
    open_home(settings.home)
    assert discover_shards(pool, settings) == ["photos-000000", "photos-000001"]
    rows = register_shard(pool, "photos-000001", settings)
    assert rows["caption"].to_list() == ["box 1", "box 2"]
    assert rows["tar"].to_list() == ["../../sources/photos/000001.tar"] * 2
    tars = settings.home / "sources/photos"
    assert [path.name for path in tars.glob("*.tar")] == ["000001.tar"]  # the other was not needed
    remove_path(tars / "000001.tar")
    drop(1)
    open_home(settings.home)
    settings.work("photos").mkdir(parents=True, exist_ok=True)
    assert read_member(settings.work("photos") / rows["tar"][0], rows["member"][0]) == jpeg(1)


@pytest.fixture
def drawn_tar(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tar of a home whose index was made by one machine, as another sees it, which has no copy of either."""
    source = tmp_path / "000000.tar"
    write_tar(source, [(f"{n:06d}", f"http://h.example/{n}", f"box {n}", jpeg(n)) for n in range(20)])
    bucket.client.put_object(Bucket=BUCKET, Key=f"homes/mine/{TAR}", Body=source.read_bytes())
    open_home(home_of(URL))
    assert tar_index(home_of(URL) / TAR).read("000003.jpg") == jpeg(3)
    monkeypatch.setenv("CURATION_HOMES", str(tmp_path / "elsewhere"))
    open_home(home_of(URL))
    bucket.requests.clear()
    return home_of(URL) / TAR


TAR = "work/toy/downloads/toy-000000/000000.tar"
TAR_INDEX = "work/toy/tar_indexes/downloads/toy-000000/000000.tar.json.gz"


def test_one_image_of_a_tar_that_is_not_here_is_one_range_read(bucket: Bucket, drawn_tar: Path) -> None:
    index_size = len(bucket.read(f"homes/mine/{TAR_INDEX}"))
    bucket.requests.clear()
    assert read_member(drawn_tar, "000003.jpg") == jpeg(3)
    assert bucket.requests == [
        Request("GET", f"homes/mine/{TAR_INDEX}", index_size),
        Request("GET", f"homes/mine/{TAR}", len(jpeg(3))),
    ]
    bucket.requests.clear()
    assert read_member(drawn_tar, "000007.jpg") == jpeg(7)
    assert bucket.requests == [Request("GET", f"homes/mine/{TAR}", len(jpeg(7)))]
    assert not drawn_tar.exists()
    with pytest.raises(KeyError, match=r"no member '999999.jpg'; it has 60 files"):
        read_member(drawn_tar, "999999.jpg")
    assert tar_index(drawn_tar).read("000003.jpg") == jpeg(3)  # for many: whole, and from then on here
    bucket.requests.clear()
    assert read_member(drawn_tar, "000004.jpg") == jpeg(4)
    assert bucket.requests == []


@pytest.mark.slow
@pytest.mark.parametrize("what", ["no index", "damaged index", "changed tar", "changed unseen"])
def test_without_an_index_of_this_tar_it_is_fetched(bucket: Bucket, drawn_tar: Path, tmp_path: Path, what) -> None:
    index = f"homes/mine/{TAR_INDEX}"
    if what == "no index":
        bucket.client.delete_object(Bucket=BUCKET, Key=index)
    elif what == "damaged index":
        data = bytearray(bucket.read(index))
        data[len(data) // 2] ^= 1
        bucket.client.put_object(Bucket=BUCKET, Key=index, Body=bytes(data))
    else:
        write_tar(tmp_path / "new.tar", [("other", "u", "c", jpeg(8)), ("000003", "u", "c", jpeg(9))])
        new = (tmp_path / "new.tar").read_bytes()
        bucket.client.put_object(Bucket=BUCKET, Key=f"homes/mine/{TAR}", Body=new)
    if what != "changed unseen":
        open_home(home_of(URL))
    assert read_member(drawn_tar, "000003.jpg") == jpeg(9 if what.startswith("changed") else 3)
    assert drawn_tar.read_bytes() == bucket.read(f"homes/mine/{TAR}")
    bucket.requests.clear()
    shutil.rmtree(home_of(URL))
    open_home(home_of(URL))
    assert read_member(drawn_tar, "000003.jpg") == jpeg(9 if what.startswith("changed") else 3)
    assert not drawn_tar.exists()  # whoever fetched it made the index


def test_the_hash_of_a_source_comes_from_the_index(bucket: Bucket, tmp_path: Path, monkeypatch) -> None:
    write_tar(tmp_path / "000000.tar", [(f"{n:06d}", f"http://h.example/{n}", f"box {n}", jpeg(n)) for n in range(4)])
    key = "homes/mine/sources/photos/000000.tar"
    bucket.client.put_object(Bucket=BUCKET, Key=key, Body=(tmp_path / "000000.tar").read_bytes())
    settings = load_settings(URL, "embedded")
    open_home(settings.home)
    pool = add_pool(settings, "photos", f"{URL}/sources/photos")
    register_shard(pool, "photos-000000", settings)
    known = source_fingerprint(pool, "photos-000000", settings)
    monkeypatch.setenv("CURATION_HOMES", str(tmp_path / "elsewhere"))
    settings = load_settings(URL, "embedded")
    open_home(settings.home)
    bucket.requests.clear()
    assert source_fingerprint(load_pool(settings, "photos"), "photos-000000", settings) == known
    assert key not in [one.key for one in bucket.requests]
    write_tar(tmp_path / "000000.tar", [("000000", "http://h.example/0", "box", jpeg(0))])
    bucket.client.put_object(Bucket=BUCKET, Key=key, Body=(tmp_path / "000000.tar").read_bytes())
    open_home(settings.home)
    assert source_fingerprint(load_pool(settings, "photos"), "photos-000000", settings) == {
        "000000.tar": hashlib.sha256((tmp_path / "000000.tar").read_bytes()).hexdigest()
    }


def test_two_machines_that_see_new_tars_give_them_the_same_keys(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one looked before the first wrote: what it would have written is refused, and it goes by the other."""

    def deliver(name: str) -> None:
        write_tar(tmp_path / name, [("0", f"http://h.example/{name}", f"a box of {name}", jpeg(0))])
        key = f"homes/mine/sources/photos/{name}"
        bucket.client.put_object(Bucket=BUCKET, Key=key, Body=(tmp_path / name).read_bytes())

    def numbers() -> dict[str, int]:
        settings = load_settings(URL, "embedded")
        tars = tars_of_pool(load_pool(settings, "photos"), settings)
        return {tar.name: int(key.removeprefix("photos-")) for key, tar in tars.items()}

    deliver("train-0.tar")
    deliver("val-0.tar")
    open_home(home_of(URL))
    add_pool(load_settings(URL, "embedded"), "photos", f"{URL}/sources/photos")
    assert numbers() == {"train-0.tar": 0, "val-0.tar": 1}
    deliver("test-0.tar")
    with monkeypatch.context() as other:
        other.setenv("CURATION_HOMES", str(tmp_path / "elsewhere"))
        open_home(home_of(URL))  # it sees test-0.tar
    deliver("early-0.tar")
    open_home(home_of(URL))
    assert numbers() == {"train-0.tar": 0, "val-0.tar": 1, "early-0.tar": 2, "test-0.tar": 3}
    with monkeypatch.context() as other:
        other.setenv("CURATION_HOMES", str(tmp_path / "elsewhere"))
        assert numbers() == {"train-0.tar": 0, "val-0.tar": 1, "test-0.tar": 3}


def test_a_takedown_leaves_no_index_with_the_names_that_it_removed(bucket: Bucket, drawn_tar: Path) -> None:
    fetch(drawn_tar)
    rewrite_tar(drawn_tar, drop=lambda member, _: member.startswith("000003."))
    assert not any(TAR_INDEX in key for key in bucket.keys("homes"))
    assert "000003.jpg" not in tar_index(drawn_tar).members
    assert b"000003" not in gzip.decompress(bucket.read(f"homes/mine/{TAR_INDEX}"))


def test_a_damaged_tar_and_a_tar_on_a_disk_get_no_index(bucket: Bucket, drawn_tar: Path, tmp_path: Path) -> None:
    whole = bucket.read(f"homes/mine/{TAR}")
    bucket.client.put_object(Bucket=BUCKET, Key="homes/mine/sources/cut.tar", Body=whole[:5000])
    open_home(home_of(URL))
    assert tar_index(home_of(URL) / "sources/cut.tar").damage is not None
    write_tar(tmp_path / "disk" / "a.tar", [("000001", "u", "c", jpeg(1))])
    assert read_member(tmp_path / "disk" / "a.tar", "000001.jpg") == jpeg(1)
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["a.tar"]
    assert [key for key in bucket.keys("homes") if "tar_indexes" in key] == [f"homes/mine/{TAR_INDEX}"]


def test_a_source_in_another_bucket_is_refused(bucket: Bucket) -> None:
    with pytest.raises(
        ValueError, match=r"has to lie under the home.*expected s3://curation/homes/mine/…, got s3://b/t"
    ):
        add_pool(load_settings(URL, "embedded"), "photos", "s3://b/t")


# -- kills and servers that refuse ------------------------------------------------------------------------------------

KILLED = """
import os, sys
import polars as pl
from curation_assets.core.settings import home_of
from curation_assets.stores.objects import ObjectHome, open_home
from curation_assets.sources.declaration import add_pool, load_pool
from curation_assets.sources.shards import discover_shards, register_shard
from curation_assets.stores.shard_store import ShardStore

home = home_of(sys.argv[1]); open_home(home)
put, name = ObjectHome._put, sys.argv[2]
def put_or_die(self, draft, target):
    if target.name == name:
        os.kill(os.getpid(), 9)
    put(self, draft, target)
if name:
    ObjectHome._put = put_or_die
store = ShardStore(home / "work/toy")
def fill(folder):
    (folder / "m.txt").write_text("m")
store.materialise("raw/samples", lambda: pl.DataFrame({"value": [1]}), partition="toy-000000", code_version="1")
store.materialise_folder("distilled/model", fill, code_version="1")
model = store.checked_file("distilled/model", "m.txt")
print(store.read("raw/samples", "toy-000000")["value"].to_list(), model.read_text())
"""


@pytest.mark.slow
@pytest.mark.parametrize("at", ["data.parquet", "manifest.json", "m.txt", "model.link"])
def test_a_kill_between_two_puts_leaves_a_home_that_goes_on(bucket: Bucket, tmp_path: Path, at: str) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, URL, at], check=False)
    assert killed.returncode == -9
    elsewhere = {**os.environ, "CURATION_HOMES": str(tmp_path / "elsewhere")}
    went_on = subprocess.run([sys.executable, "-c", KILLED, URL, ""], env=elsewhere, capture_output=True, text=True)
    assert went_on.stdout.strip() == "[1] m", went_on.stderr
    table = "homes/mine/work/toy/raw/samples/shard=toy-000000"
    copy = json.loads(bucket.read(f"{table}/manifest.json"))
    (tmp_path / "data.parquet").write_bytes(bucket.read(f"{table}/data.parquet"))
    footer = json.loads(pl.read_parquet_metadata(tmp_path / "data.parquet")["curation_manifest"])
    assert copy["content_sha256"] == footer["content_sha256"]
    assert copy["written_at"] == footer["written_at"]


class Fault:
    """A server before the bucket that answers the first `times` requests of a method with an error of its own.

    `cut`: with half of the body and a closed connection instead, for every object that is no listing; the client goes
    on with a range, which this server does not know.
    """

    def __init__(
        self, endpoint: str, method: str, status: int, times: int, *, after: bool = False, cut: bool = False
    ) -> None:
        host = endpoint.removeprefix("http://")
        left, self.seen = itertools.count(), []
        seen = self.seen

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                is_meant = self.command == method and not (cut and "list-type" in self.path)
                turn = next(left) if is_meant else times
                is_faulty = turn < times
                seen.append((self.command, is_faulty))
                if is_faulty and not (after or cut):
                    return self.reply(status, {}, b"<Error><Code>SlowDown</Code></Error>")
                connection = http.client.HTTPConnection(host)
                is_range_unknown = cut and is_faulty and turn % 2 == 1
                left_out = ("host", "range") if is_range_unknown else ("host",)
                sent = {name: value for name, value in self.headers.items() if name.lower() not in left_out}
                connection.request(self.command, self.path, body, sent)
                response = connection.getresponse()
                data = response.read()
                if is_faulty and cut and not is_range_unknown:
                    self.close_connection = True
                    headers = {name: value for name, value in response.getheaders() if name.lower() in _PASSED}
                    return self.reply(response.status, headers, data, data[: len(data) // 2])
                if is_faulty and not cut:  # done, and the answer is lost
                    return self.reply(status, {}, b"")
                headers = {name: value for name, value in response.getheaders() if name.lower() in _PASSED}
                self.reply(response.status, headers, data)
                return None

            def reply(self, code: int, headers: dict[str, str], data: bytes, sent: bytes | None = None) -> None:
                self.send_response(code)
                for name, value in headers.items():
                    self.send_header(name, value)
                length = headers.get("Content-Length", len(data)) if self.command == "HEAD" else len(data)
                self.send_header("Content-Length", str(length))
                self.end_headers()
                self.wfile.write(data if sent is None else sent)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer  # noqa: N815

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"


_PASSED = {"etag", "last-modified", "content-type", "content-range"}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["PUT", "GET"])
@pytest.mark.parametrize("status", [503, 500])
def test_a_server_that_is_busy_is_asked_again(bucket: Bucket, tmp_path: Path, monkeypatch, method, status) -> None:
    put(machine(tmp_path, "first"), "pools/there.yaml", "there")
    fault = Fault(bucket.endpoint, method, status, 2)
    monkeypatch.setenv("AWS_ENDPOINT_URL", fault.endpoint)
    objects = machine(tmp_path, "one")
    put(objects, "pools/toy.yaml", "text")
    assert (objects.root / "pools/there.yaml").read_text() == "there"
    assert fault.seen.count((method, True)) == 2
    assert bucket.read("homes/mine/pools/toy.yaml") == b"text"
    fault.server.shutdown()


READS = {
    "whole": lambda one, path, draft: (one.fetch(path), path.read_bytes())[1],
    "range": lambda one, path, draft: b"{" + one.read_range(path, one.entry(path).e_tag, 1, path_size(one, path) - 1),
    "compared": lambda one, path, draft: draft.read_bytes() if one._same_content(one.key_of(path), draft) else b"",
    "json": lambda one, path, draft: json.dumps(one.raw_get(one.key_of(path))[0]).encode(),
}


def path_size(objects: ObjectHome, path: Path) -> int:
    return objects.entry(path).size


@pytest.mark.slow
@pytest.mark.parametrize("kind", READS)
@pytest.mark.parametrize("size", [10, 20_000_000])
def test_an_answer_that_is_cut_is_requested_again(bucket: Bucket, tmp_path: Path, monkeypatch, kind, size) -> None:
    monkeypatch.setattr(objects_module, "BODY_PAUSE_SECONDS", 0.01)
    name, content = "work/toy/downloads/x.tar", json.dumps({"a": "b" * size})
    put(machine(tmp_path, "first"), name, content)
    (tmp_path / "draft").write_text(content)
    fault = Fault(bucket.endpoint, "GET", 200, 2 * (BODY_ATTEMPTS - 1), cut=True)
    monkeypatch.setenv("AWS_ENDPOINT_URL", fault.endpoint)
    one = machine(tmp_path, "one")
    assert READS[kind](one, one.root / name, tmp_path / "draft") == content.encode()
    assert fault.seen.count(("GET", True)) == 2 * (BODY_ATTEMPTS - 1)
    fault.server.shutdown()


def test_an_answer_that_is_always_cut_is_a_sentence(bucket: Bucket, tmp_path: Path, monkeypatch) -> None:
    put(machine(tmp_path, "first"), "pools/there.yaml", "there")
    monkeypatch.setattr(objects_module, "BODY_PAUSE_SECONDS", 0.01)
    fault = Fault(bucket.endpoint, "GET", 200, 10**6, cut=True)
    monkeypatch.setenv("AWS_ENDPOINT_URL", fault.endpoint)
    with pytest.raises(ObjectStoreError, match=r"pools/there\.yaml: .*run the same command again"):
        machine(tmp_path, "one")
    assert fault.seen.count(("GET", True)) == 2 * BODY_ATTEMPTS
    fault.server.shutdown()


def test_a_put_whose_answer_is_lost_is_no_other_writer(bucket: Bucket, tmp_path: Path, monkeypatch) -> None:
    fault = Fault(bucket.endpoint, "PUT", 503, 1, after=True)
    monkeypatch.setenv("AWS_ENDPOINT_URL", fault.endpoint)
    objects = machine(tmp_path, "one")
    put(objects, "pools/toy.yaml", "text")
    put(objects, "pools/toy.yaml", "text 2")
    assert fault.seen.count(("PUT", True)) == 1
    assert bucket.read("homes/mine/pools/toy.yaml") == b"text 2"
    fault.server.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("status", [503, 403])
def test_a_server_that_refuses_is_a_sentence_and_nothing_changes(bucket, tmp_path, monkeypatch, status) -> None:
    fault = Fault(bucket.endpoint, "PUT", status, 10_000)
    monkeypatch.setenv("AWS_ENDPOINT_URL", fault.endpoint)
    home = home_of(URL)
    with pytest.raises(ObjectStoreError, match=rf"{URL}/pools/toy.yaml: .*{status}.*run the same command again"):
        save_text(home / "pools/toy.yaml", "text")
    assert not (home / "pools/toy.yaml").exists()
    assert bucket.keys() == []
    fault.server.shutdown()


# -- leases -----------------------------------------------------------------------------------------------------------

HOLDER = """
import sys, time
from curation_assets.core.settings import home_of
from curation_assets.stores.lease import pool_lease, writing_tables
work = home_of(sys.argv[1]) / "work/toy"
is_alone = sys.argv[2] == "alone"
with pool_lease(work, "curate run toy", on_notice=print) if is_alone else writing_tables(work, on_notice=print):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def quick_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {"RENEW_SECONDS": 0.3, "EXPIRY_SECONDS": 3.0, "POLL_SECONDS": 0.1}.items():
        monkeypatch.setattr(object_lease, name, seconds)


def other_machine_holding(tmp_path: Path, how: str) -> subprocess.Popen[str]:
    """A process with a working copy of its own that holds the pool, "alone" or "shared"."""
    elsewhere = {**os.environ, "CURATION_HOMES": str(tmp_path / "elsewhere")}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, URL, how], env=elsewhere, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


@pytest.mark.usefixtures("quick_leases")
def test_a_pool_is_held_by_one_machine_and_a_dead_one_is_taken_over(bucket: Bucket, tmp_path: Path) -> None:
    holder = other_machine_holding(tmp_path, "alone")
    work = home_of(URL) / "work/toy"
    open_home(home_of(URL))
    said: list[str] = []
    assert "curate run toy" in str(holder_of(work))
    with (
        pytest.raises(PoolHeldError, match=r"`curate run toy` .* holds pool 'toy'; wait for its end"),
        pool_lease(work, "curate refit", on_notice=said.append, wait=False),
    ):
        pass
    threading.Timer(1.0, holder.kill).start()
    with pool_lease(work, "curate refit", on_notice=said.append):
        assert "curate refit" in str(holder_of(work))
    holder.wait()
    assert [sentence.split(" ")[0] for sentence in said] == ["waits", "takes", "goes"]
    assert bucket.keys() == []
    assert holder_of(work) is None


@pytest.mark.slow
@pytest.mark.usefixtures("quick_leases")
def test_a_machine_that_no_longer_renews_is_taken_over(bucket: Bucket, tmp_path: Path) -> None:
    """Of another host nobody can see whether its process lives: its object stays the same."""
    content = {"host": "far-away", "pid": 1, "start": "then", "command": "curate run toy", "since": "today"}
    bucket.client.put_object(Bucket=BUCKET, Key="homes/mine/work/toy/.lease", Body=json.dumps(content).encode())
    said: list[str] = []
    with pool_lease(home_of(URL) / "work/toy", "curate refit", on_notice=said.append):
        time.sleep(1.5)  # renewed meanwhile, and still ours
    assert said[0].startswith("waits for `curate run toy` (pid 1 on far-away, since today)")
    assert said[1].endswith("which no longer renews it")
    assert bucket.keys() == []


@pytest.mark.usefixtures("quick_leases")
def test_who_rewrites_tables_waits_for_writers_of_other_machines(bucket: Bucket, tmp_path: Path) -> None:
    writer = other_machine_holding(tmp_path, "shared")
    work = home_of(URL) / "work/toy"
    said: list[str] = []
    with writing_tables(work, on_notice=said.append):  # writers do not wait for each other
        assert said == []
    threading.Timer(1.0, writer.kill).start()
    began = time.monotonic()
    with alone_with_tables(work, "curate takedown apply", on_notice=said.append):
        assert time.monotonic() - began > 0.9
    writer.wait()
    assert said[0].startswith("waits for")
    assert bucket.keys() == []


# -- versions ---------------------------------------------------------------------------------------------------------


def test_earlier_versions_and_unfinished_uploads_are_removed(bucket: Bucket, tmp_path: Path) -> None:
    client = bucket.client
    client.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
    open_home(home_of(URL))
    objects = object_home(home_of(URL))
    assert objects is not None
    for text in ("secret", "clean"):
        put(objects, "work/toy/note.txt", text)
    put(objects, "work/toy/removed.txt", "secret")
    objects.delete(objects.root / "work/toy/removed.txt")
    put(objects, "work/other/note.txt", "first")
    put(objects, "work/other/note.txt", "second")
    client.create_multipart_upload(Bucket=BUCKET, Key="homes/mine/work/toy/tar")
    purged = purge_versions([objects.root / "work/toy"])
    assert purged is not None
    assert (purged.versions, purged.uploads, purged.not_done) == (3, 1, [])
    versions = client.list_object_versions(Bucket=BUCKET)
    assert sorted(item["Key"] for item in versions["Versions"]) == [
        "homes/mine/work/other/note.txt", "homes/mine/work/other/note.txt", "homes/mine/work/toy/note.txt",
    ]  # fmt: skip
    assert "DeleteMarkers" not in versions
    assert bucket.read("homes/mine/work/toy/note.txt") == b"clean"


def test_what_may_not_be_removed_is_stated(bucket: Bucket, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    purged = purge_versions([home_of(URL) / "work/toy"])
    assert purged is not None
    assert "boto3 is not installed" in purged.not_done[0]
    assert purge_versions([tmp_path / "work/toy"]) is None


def test_append_line_reaches_the_bucket(bucket: Bucket) -> None:
    home = home_of(URL)
    open_home(home)
    append_line(home / "exports.jsonl", "one")
    append_line(home / "exports.jsonl", "two")
    assert bucket.read("homes/mine/exports.jsonl") == b"one\ntwo\n"
