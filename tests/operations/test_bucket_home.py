"""A pool whose home is in a bucket: the bytes of a home on a disk, from any machine; a takedown leaves nothing."""

import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import polars as pl
import pytest
from torch.utils.data import DataLoader

import curation_assets as ca
from curation_assets.api import open_pool
from curation_assets.audit.index import SHARED
from curation_assets.core.settings import Settings, home_of, load_settings
from curation_assets.core.stages import STAGES
from curation_assets.definitions import build_definitions
from curation_assets.defs.automation import shard_sensor
from curation_assets.defs.launch import prepare_instance
from curation_assets.flow.context import PoolContext
from curation_assets.numeric.identity import sample_id_of
from curation_assets.outputs.explore import prepare
from curation_assets.outputs.exports.subset import find_subset
from curation_assets.outputs.loading import spans
from curation_assets.sources.declaration import add_pool, add_world_pool
from curation_assets.stores.catalog import stored_tables
from curation_assets.stores.objects import open_home
from tests.defs.test_ways_to_launch import by_request
from tests.support.bucket import BUCKET, Bucket, running_bucket
from tests.support.command import curate as in_process
from tests.support.lineage_pools import jpeg, write_tar
from tests.support.webserver import curate_ui

pytestmark = pytest.mark.slow

URL = f"s3://{BUCKET}/home"
POOL, ROWS, CANARY = "photos", 16, 11
CANARY_URL, CANARY_CAPTION = "http://canary.example/11.jpg", "a canary that nobody else has seen in a box"
SIGNALS = ("icc", "clip_score", "sieve")


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Bucket]:
    """An empty bucket."""
    with running_bucket(monkeypatch) as running:
        yield running


def url_of(number: int) -> str:
    """Address of a sample."""
    return CANARY_URL if number == CANARY else f"http://host{number % 3}.example/{number}.jpg"


def caption_of(number: int) -> str:
    """Caption of a sample."""
    return CANARY_CAPTION if number == CANARY else f"a photo of thing {number} in the {'very ' * (number % 5)}small box"


def write_source(folder: Path) -> None:
    """Two tars of images, and a table with values of the signals, so that no model is loaded."""
    for shard in range(2):
        numbers = range(shard * ROWS // 2, (shard + 1) * ROWS // 2)
        rows = [(f"{number:06d}", url_of(number), caption_of(number), jpeg(number)) for number in numbers]
        write_tar(folder / "tars" / f"{shard:06d}.tar", rows)
    values = {
        name: [number * step % 17 / 17 for number in range(ROWS)] for name, step in zip(SIGNALS, (3, 5, 7), strict=True)
    }
    given = {"sample_id": [sample_id_of(url_of(number), caption_of(number)) for number in range(ROWS)], **values}
    captions = [[f"thing {number}"] for number in range(ROWS)]
    pl.DataFrame({**given, "generated_captions": captions}).write_parquet(folder / "given.parquet")


def declare(settings: Settings, source: Path, tars: str | Path | None = None) -> None:
    """A pool of those tars, or of a copy of them."""
    options = {
        "distil": False, "downstream": False, "policies": ["clip", "icc"], "fraction": 0.5, "image_domain": "other",
        "given_signals": {name: f"{source / 'given.parquet'}:{name}" for name in SIGNALS},
        "given": {"generated_captions": str(source / "given.parquet")},
    }  # fmt: skip
    add_pool(settings, POOL, tars or source / "tars", options=options)


def curate(*arguments: object) -> str:
    """Output of a command that must end well."""
    result = in_process(*arguments)
    assert result.exit_code == 0, f"{result.output}\n{result.exception!r}"
    return result.output


def computed(home: Path | str, pool: str) -> list[str]:
    """Run a pool; the tables that needed work."""
    return [report.table for report in open_pool(pool, home=home).run() if report.computed]


def content(home: Path | str, pool: str) -> dict[str, object]:
    """Everything that a home holds of a pool: frames of tables, bytes of files without a time in them."""
    settings = load_settings(home, "embedded")
    open_home(settings.home)
    store = PoolContext.open(settings, pool).store
    held: dict[str, object] = {}
    for asset in stored_tables(store):
        for key in store.partitions(asset) or [None]:
            held[f"{asset} {key}"] = (store.read(asset, key), store.manifest(asset, key).content_sha256)
    for stage in STAGES:
        for link in (path for path in (store.root / stage).glob("*") if path.is_symlink()):
            folder = store.folder_path(f"{stage}/{link.name}")
            for path in sorted(path for path in folder.resolve().rglob("*") if path.is_file()):
                name = f"{stage}/{link.name}/{path.relative_to(folder.resolve())}"
                if path.suffix != ".html":  # it shows costs
                    held[name] = path.read_bytes()
    return held


def assert_same(left: dict[str, object], right: dict[str, object], but: str = "$^") -> None:
    """Two homes hold the same, but for what has the seconds of a computation in it."""
    assert left.keys() == right.keys()
    differing = []
    for name, held in left.items():
        other = right[name]
        is_same = held[0].equals(other[0]) if isinstance(held, tuple) else held == other
        if not is_same and not re.search(but, name):
            differing.append(name)
    assert differing == []


def files_under(home: Path) -> set[str]:
    """Paths of a home that are no objects' business: what stays on a machine is left out."""
    local = re.compile(r"^(dagster|logs|catalog)|/(index|source)/|/\.(lease|writing|versions\.lock)$")
    found = set()
    for path in home.rglob("*"):
        name = path.relative_to(home).as_posix() + (".link" if path.is_symlink() else "")
        if (path.is_symlink() or path.is_file()) and not local.search(name):
            found.add(_plain(name))
    return found


def _plain(name: str) -> str:
    """Without what differs from run to run."""
    return re.sub(r"attempts-.*", "attempts", re.sub(r"version-[0-9a-f]{12}", "version", name))


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A function that makes this process another machine, with a cache of its own."""

    def become(name: str) -> Path:
        monkeypatch.setenv("CURATION_HOMES", str(tmp_path / name))
        return home_of(URL)

    return become


def test_a_photo_pool_is_the_same_on_a_disk_and_in_a_bucket_from_any_machine(bucket, tmp_path, machines) -> None:
    write_source(tmp_path)
    for home in (tmp_path / "disk", URL):
        machines("one")
        declare(load_settings(home, "embedded"), tmp_path)
        computed(home, POOL)
        computed(home, POOL)  # the ledger, with what the first run recorded
        assert computed(home, POOL) == []
    on_disk, in_bucket = content(tmp_path / "disk", POOL), content(URL, POOL)
    assert len(on_disk) > 20
    assert_same(on_disk, in_bucket)
    in_common = {_plain(key.removeprefix("home/")) for key in bucket.keys("home/")} - {f"work/{POOL}/{SHARED}"}
    assert in_common == files_under(tmp_path / "disk")

    shutil.rmtree(machines("one"))
    assert_same(content(URL, POOL), in_bucket)
    machines("two")
    assert computed(URL, POOL) == []
    assert_same(content(URL, POOL), in_bucket)

    machines("three")
    sample_id = sample_id_of(url_of(2), caption_of(2))
    assert caption_of(2) in curate("why", sample_id, "--home", URL)
    assert "By domain" in curate("diff", "clip", "icc", "--pool", POOL, "--home", URL)
    assert "everything is as it was written" in curate("verify", POOL, "--home", URL)
    curate("release", "create", "clip", "r1", "--pool", POOL, "--home", URL)
    machines("four")
    assert "in force" in curate("release", "list", "--home", URL)
    curate("export", "webdataset", "--release", "r1", "--out", tmp_path / "out", "--home", URL)
    with tarfile.open(next((tmp_path / "out").glob("*.tar"))) as tar:
        assert len([name for name in tar.getnames() if name.endswith(".jpg")]) == ROWS // 2
    machines("five")
    assert '"folder": "' + str(tmp_path / "out") in bucket.read("home/exports.jsonl").decode()
    curate("refit", POOL, "--home", URL)
    assert "everything is as it was written" in curate("verify", POOL, "--home", URL)


def test_a_takedown_leaves_no_byte_in_any_version(bucket, tmp_path, machines) -> None:
    bucket.client.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
    write_source(tmp_path)
    machines("one")
    declare(load_settings(URL, "embedded"), tmp_path)
    computed(URL, POOL)
    curate("release", "create", "clip", "r1", "--pool", POOL, "--home", URL)
    assert _versions_with_canary(bucket)
    first = machines("one")
    stale = [path for path in first.rglob("*.parquet") if _quotes(path.read_bytes())]
    assert stale
    machines("two")
    curate("summary", "r1", "--home", URL)
    assert any(key.endswith("/r1.summary/eu-gpai/domains.csv") for key in bucket.keys("home/releases/"))
    curate("takedown", "add", "--url", CANARY_URL, "--home", URL)
    shown = curate("takedown", "apply", "--home", URL)
    assert "0 still hold something" in shown
    assert re.search(r"[1-9]\d* earlier versions removed", shown)
    assert _versions_with_canary(bucket) == []
    assert not any("/r1.summary/" in key for key in bucket.keys("home/releases/"))
    machines("one")
    open_home(home_of(URL))
    assert [path for path in stale if path.is_file() and "/source/" not in str(path)] == []
    assert computed(URL, POOL) == []


def test_tars_in_the_bucket_are_found_shown_retried_and_taken_down(bucket, tmp_path, machines) -> None:
    def drop(tar: Path) -> None:
        bucket.client.put_object(Bucket=BUCKET, Key=f"home/sources/photos/{tar.name}", Body=tar.read_bytes())

    bucket.client.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
    write_source(tmp_path)
    first, second = sorted((tmp_path / "tars").glob("*.tar"))
    drop(first)
    machines("one")
    open_home(home_of(URL))
    declare(load_settings(URL, "embedded"), tmp_path, f"{URL}/sources/photos")
    computed(URL, POOL)

    machines("two")
    settings = load_settings(URL, "embedded")
    ctx = PoolContext.open(settings, POOL)
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions(POOL, ctx.shards())
        drop(second)
        open_home(settings.home)
        (found,) = shard_sensor(settings, POOL)(dg.build_sensor_context(instance=instance)).dynamic_partitions_requests
    assert found.partition_keys == [f"{POOL}-000001"]
    assert f"{POOL}_new_shards" in {sensor.name for sensor in build_definitions(settings).sensors}
    curate("run", POOL, "--shards", "1", "--home", URL)
    curate("run", POOL, "--home", URL)
    assert "no row failed" in curate("retry", POOL, "--home", URL)

    machines("three")
    bucket.requests.clear()
    shown = prepare(PoolContext.open(load_settings(URL, "embedded"), POOL), limit=3)
    assert pl.read_parquet(shown.path)["image"].null_count() == 0
    read = [one.size for one in bucket.requests if one.method == "GET" and one.key.endswith(".tar")]
    assert len(read) == 3
    assert max(read) < first.stat().st_size / 10

    machines("four")
    assert _versions_with_canary(bucket)
    curate("takedown", "add", "--url", CANARY_URL, "--home", URL)
    assert "0 still hold something" in curate("takedown", "apply", "--sources", "--home", URL)
    assert _versions_with_canary(bucket) == []
    names = [gzip.decompress(bucket.read(key)) for key in bucket.keys("home/tar_indexes/")]
    assert len(names) == 2
    assert not any(f"{CANARY:06d}.jpg".encode() in data for data in names)
    machines("five")
    assert computed(URL, POOL) == []


def test_a_training_reads_kept_members_by_range_from_tars_in_the_bucket(
    bucket, tmp_path, machines, monkeypatch
) -> None:
    machines("one")
    write_source(tmp_path)
    for tar in sorted((tmp_path / "tars").glob("*.tar")):
        bucket.client.put_object(Bucket=BUCKET, Key=f"home/sources/photos/{tar.name}", Body=tar.read_bytes())
    open_home(home_of(URL))
    declare(load_settings(URL, "embedded"), tmp_path, f"{URL}/sources/photos")
    computed(URL, POOL)

    machines("two")
    monkeypatch.setattr(spans, "MAX_GAP", -1)  # these tars are so small that each would be one request
    rows = PoolContext.open(load_settings(URL, "embedded"), POOL)
    kept = find_subset(rows, "icc").rows
    bucket.requests.clear()
    stream = ca.dataset("icc", home=URL, columns=("sample_id", "image", "caption"), shuffle_seed=0, batch_size=2)
    read = list(stream)
    sizes = [one.size for one in bucket.requests if one.method == "GET" and one.key.endswith(".tar")]
    assert sorted(sizes) == sorted(kept["image_bytes"])
    assert not list(rows.store.root.parent.parent.rglob("*.tar"))  # none was fetched
    held = {row["sample_id"]: (row["image_sha256"], row["caption"]) for row in kept.to_dicts()}
    assert {one["sample_id"]: (hashlib.sha256(one["image"]).hexdigest(), one["caption"]) for one in read} == held
    with pytest.raises(ValueError, match='give the DataLoader multiprocessing_context="forkserver"'):
        next(iter(DataLoader(stream, batch_size=2, num_workers=1)))
    # A fork server that an earlier test started has that test's environment, and so another machine's cache.
    loader = DataLoader(stream, batch_size=2, num_workers=2, multiprocessing_context="spawn")
    assert [name for batch in loader for name in batch["sample_id"]] == [one["sample_id"] for one in read]

    first = sorted((tmp_path / "tars").glob("*.tar"))[0]
    bucket.client.put_object(Bucket=BUCKET, Key=f"home/sources/photos/{first.name}", Body=first.read_bytes()[:512])
    with pytest.raises(ca.ExpectedError, match=r"member .* was .* found"):
        list(stream)


def test_the_daemon_sees_a_tar_that_comes_and_the_ui_makes_its_tables(bucket, tmp_path, machines, monkeypatch) -> None:
    monkeypatch.setenv("CURATION_PROFILE", "embedded")
    write_source(tmp_path)
    new = f"{POOL}-000001"

    def drop(name: str) -> None:
        data = (tmp_path / "tars" / name).read_bytes()
        bucket.client.put_object(Bucket=BUCKET, Key=f"home/sources/photos/{name}", Body=data)

    drop("000000.tar")
    machines("one")
    open_home(home_of(URL))
    declare(load_settings(URL, "embedded"), tmp_path, f"{URL}/sources/photos")
    with curate_ui(URL) as url, prepare_instance(load_settings(URL, "embedded")) as instance:
        drop("000001.tar")
        while new not in instance.get_dynamic_partitions(POOL):  # pytest's own limit ends a wait without end
            time.sleep(1)
        by_request(url)(home_of(URL), new, new)
    machines("two")
    store = PoolContext.open(load_settings(URL, "embedded"), POOL).store
    assert store.read("raw/samples", new)["status"].to_list() == ["kept"] * (ROWS // 2)
    assert store.partitions("signals/icc") == [new]


@pytest.mark.parametrize("ranges", [("0..1", "0..1"), ("0", "1")], ids=["the same shards", "a shard each"])
def test_two_machines_run_shards_at_once(bucket, tmp_path, machines, ranges) -> None:
    write_source(tmp_path)
    machines("first")
    declare(load_settings(URL, "embedded"), tmp_path)
    started = []
    for number, shards in enumerate(ranges):
        command = [
            sys.executable,
            "-c",
            "from curation_assets.cli import main; main()",
            "run",
            POOL,
            "--shards",
            shards,
            "--home",
            URL,
        ]
        environment = {**os.environ, "CURATION_HOMES": str(tmp_path / f"machine-{number}")}
        started.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    ended = [(process.communicate()[0], process.returncode) for process in started]
    assert [status for _, status in ended] == [0, 0], "\n".join(text for text, _ in ended)
    machines("reader")
    assert computed(URL, POOL)  # the tables of the whole pool
    in_bucket = content(URL, POOL)
    assert {name for name in in_bucket if name.startswith("raw/samples ")} == {
        f"raw/samples {POOL}-{number:06d}" for number in range(2)
    }
    puts = Counter(one.key for one in bucket.requests if one.method == "PUT" and one.key.endswith("/data.parquet"))
    assert max(puts.values()) <= (2 if ranges[0] == ranges[1] else 1)
    machines("alone")
    declare(load_settings(tmp_path / "disk", "embedded"), tmp_path)
    computed(tmp_path / "disk", POOL)
    assert_same(content(tmp_path / "disk", POOL), in_bucket)
    assert "everything is as it was written" in curate("verify", POOL, "--home", URL)


def _versions_with_canary(bucket: Bucket) -> list[str]:
    pages = bucket.client.get_paginator("list_object_versions").paginate(Bucket=BUCKET)
    found = []
    for page in pages:
        for item in page.get("Versions", ()):
            body = bucket.client.get_object(Bucket=BUCKET, Key=item["Key"], VersionId=item["VersionId"])["Body"].read()
            if _quotes(body):
                found.append(item["Key"])
    return found


def _quotes(data: bytes) -> bool:
    """Whether bytes hold the canary's texts, also inside a Parquet file."""
    if data.startswith(b"PAR1"):
        data = "\n".join(map(str, pl.read_parquet(io.BytesIO(data)).rows())).encode()
    return CANARY_URL.encode() in data or CANARY_CAPTION.encode() in data


def test_scenes_with_downloads_and_trainings_are_the_same_in_a_bucket(bucket, tmp_path, machines) -> None:
    budget = {name: {"samples_seen": 8, "batch_size": 4} for name in ("captioning", "retrieval")}
    options = {
        "distil": False, "policies": ["clip"], "fraction": 0.5, "caption_count": 1, "evaluation_images": 4,
        "downstream_controls": [], "downstream_budget": budget,
    }  # fmt: skip
    machines("one")
    for home in (tmp_path / "disk", URL):
        settings = load_settings(home, "embedded")
        open_home(settings.home)
        add_world_pool(settings, "scenes", size=24, seed=5, shard_size=12, options=options)
        computed(home, "scenes")
        computed(home, "scenes")
    on_disk, in_bucket = content(tmp_path / "disk", "scenes"), content(URL, "scenes")
    assert_same(on_disk, in_bucket, but=r"^raw/(downloads|provenance)|_runs |^downstream/.*seconds")
    assert any(key.endswith(".tar") for key in bucket.keys("home/work/scenes/downloads/"))
    machines("two")
    assert computed(URL, "scenes") == []
    machines("three")
    curate("export", "webdataset", "clip", "--out", tmp_path / "out", "--pool", "scenes", "--home", URL)
    assert list((tmp_path / "out").glob("*.tar"))
