"""curate verify: what it names, what it does not call damage, what it repairs, and the nightly job."""

import json
import os
import random
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import dagster as dg
import polars as pl
import pytest

from curation_assets.core.errors import StoreError
from curation_assets.core.progress import Silent
from curation_assets.core.settings import Settings, load_settings
from curation_assets.defs import repairing
from curation_assets.defs.nightly import nightly
from curation_assets.flow.context import PoolContext
from curation_assets.flow.freshness import is_up_to_date, materialise_table
from curation_assets.flow.graph import tables_of
from curation_assets.operations.verify import verify_pool
from curation_assets.sources.declaration import add_pool, load_pool, save_pool
from curation_assets.sources.shards import source_fingerprint
from curation_assets.stores.damage import Damage
from curation_assets.stores.shard_store import CorruptTableError
from curation_assets.stores.temporary import host
from tests.support.command import curate
from tests.support.lineage_pools import finished_photos, jpeg, write_tar
from tests.torture.faults.bit_flips import flip_bit


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("made")
    finished_photos(home, shards=2, per_shard=6)
    return home


@pytest.fixture
def ctx(made: Path, tmp_path: Path) -> PoolContext:
    home = tmp_path / "home"
    shutil.copytree(made, home, symlinks=True)
    settings = load_settings(home, "embedded")
    save_pool(settings, replace(load_pool(settings, "photos"), source=str(home / "tars")))
    return PoolContext.open(settings, "photos")


def damages_of(ctx: PoolContext) -> list[Damage]:
    return verify_pool(ctx, tables_of(ctx), Silent()).damages


def test_what_was_written_is_not_damaged_and_nothing_is_changed_by_looking(ctx: PoolContext) -> None:
    before = {path: path.stat().st_mtime_ns for path in ctx.settings.home.rglob("*") if path.is_file()}
    assert damages_of(ctx) == []
    assert before == {path: path.stat().st_mtime_ns for path in ctx.settings.home.rglob("*") if path.is_file()}


def test_tables_in_folders_of_keys_and_values_are_found_in_a_copied_home_too(tmp_path: Path) -> None:
    for language in ("de", "en"):
        folder = tmp_path / "home" / "captions" / f"lang={language}"
        folder.mkdir(parents=True)
        (folder / "part.csv").write_text(f"caption\na dog, in {language}\n")
    settings = load_settings(tmp_path / "home", "embedded")
    add_pool(settings, "texts", tmp_path / "home" / "captions", columns={"url": None})
    PoolContext.open(settings, "texts").shards()
    shutil.copytree(tmp_path / "home", tmp_path / "copied")
    for home in (tmp_path / "home", tmp_path / "copied"):
        ctx = PoolContext.open(load_settings(home, "embedded"), "texts")
        assert damages_of(ctx) == []
        table = home / "captions" / "lang=en" / "part.csv"
        table.write_text("caption\na cat\n")
        assert [(damage.path, damage.kind) for damage in damages_of(ctx)] == [(table, "source")]


def test_a_writer_stopped_between_table_and_copy_is_no_damage(ctx: PoolContext) -> None:
    shard = "photos-000000"
    copy = ctx.store.table_path("signals/icc", shard).with_name("manifest.json")
    earlier = copy.read_bytes()
    frame = ctx.store.read("signals/icc", shard)
    ctx.store.write("signals/icc", frame, shard, code_version="7", run_id="run-9", seconds=2.0)
    copy.write_bytes(earlier)
    assert damages_of(ctx) == []
    copy.unlink()
    assert damages_of(ctx) == []
    path = ctx.store.table_path("signals/icc", shard)
    copy.write_bytes(earlier)
    flip_bit(path, random.Random(1))
    assert [damage.path for damage in damages_of(ctx)] == [path]


@pytest.mark.slow
def test_a_link_that_a_killed_write_left_is_no_damage_and_the_next_write_removes_it(ctx: PoolContext) -> None:
    """It was named as a table of its own, and a repair ended there: no table has such a name."""
    link = ctx.store.asset_path("filtered/subsets")
    left = link.with_name(f".{link.name}.tmp-{host()}-{2**22 + 1}-0123abcd")  # no process has this number
    left.symlink_to(os.readlink(link))
    assert damages_of(ctx) == []
    (ctx.store.root / "filtered" / "subsets" / "icc.npy").write_bytes(b"no subset")
    repaired = curate("verify", "photos", "--repair", "--profile", "embedded", home=ctx.settings.home)
    assert repaired.exit_code == 0, repaired.output
    assert not left.is_symlink()
    assert damages_of(ctx) == []


def test_a_table_without_a_seal_is_refused_with_what_to_do(ctx: PoolContext) -> None:
    """As versions before 0.3 wrote it."""
    path = ctx.store.table_path("signals/icc", "photos-000000")
    manifest = ctx.store.manifest("signals/icc", "photos-000000")
    assert manifest is not None
    older = {name: fact for name, fact in asdict(manifest).items() if name not in ("seal", "files")}
    frame = pl.read_parquet(path)
    frame.write_parquet(path, metadata={"curation_manifest": json.dumps(older, indent=1, sort_keys=True)})
    with pytest.raises(
        CorruptTableError, match=r"no seal: a version before 0\.3 wrote it.*`curate verify photos --repair`"
    ):
        ctx.store.read("signals/icc", "photos-000000")
    (damage,) = damages_of(ctx)
    assert (damage.path, damage.kind, damage.tables) == (path, "table", ("signals/icc",))


def test_a_damaged_table_of_registered_rows_does_not_end_it_and_its_source_is_still_compared(ctx: PoolContext) -> None:
    path = ctx.store.table_path("raw/registered_shards", "photos-000001")
    path.write_bytes(path.read_bytes()[:-20])
    assert [damage.path for damage in damages_of(ctx)] == [path]
    tar = ctx.pool.source_path(ctx.settings) / "000001.tar"
    source_fingerprint(ctx.pool, "photos-000001", ctx.settings)  # remembers its hash
    flip_bit(tar, random.Random(1))
    assert {damage.path for damage in damages_of(ctx)} == {path, tar}


def test_remembered_hashes_without_a_seal_are_damage(ctx: PoolContext) -> None:
    cache = ctx.store.root / "source" / "photos-000000.sha256.json"
    source_fingerprint(ctx.pool, "photos-000000", ctx.settings)
    sealed = cache.read_text()
    cache.write_text(sealed.replace('"seal"', '"sdal"'))
    assert [damage.path for damage in damages_of(ctx)] == [cache]


@pytest.mark.parametrize(
    ("asset", "killed_at"),
    [
        ("raw/samples", "removing"),
        ("filtered/icc", "making"),
        *(
            pytest.param(asset, killed_at, marks=pytest.mark.slow)
            for asset, killed_at in (
                ("raw/samples", "making"),
                ("fused/sieve_clip", "removing"),
                ("fused/sieve_clip", "making"),
                ("filtered/icc", "removing"),
            )
        ),
    ],
)
def test_a_repair_that_was_killed_is_finished_by_the_next(
    ctx: PoolContext, monkeypatch: pytest.MonkeyPatch, asset: str, killed_at: str
) -> None:
    """What it removed is no damage any more: the next one makes it again all the same."""
    shard, tables, home = "photos-000001", tables_of(ctx), ["--home", str(ctx.settings.home)]
    before = ctx.store.manifest(asset, shard)
    assert before is not None
    flip_bit(ctx.store.table_path(asset, shard), random.Random(1))

    def killed(*given: object, **named: object) -> None:
        raise KeyboardInterrupt

    def make(settings: Settings, pool: str, *, tables: list[str], **named: object) -> None:
        declared = tables_of(ctx)
        for name in tables:
            materialise_table(ctx, declared[name], shard, tables=declared)

    monkeypatch.setattr(repairing, "run_and_publish", killed if killed_at == "making" else make)
    with monkeypatch.context() as patched:
        if killed_at == "removing":
            patched.setattr(repairing, "tables_of", killed)
        stopped = curate("verify", "photos", "--repair", *home)
    assert stopped.exit_code == 130
    assert not ctx.store.table_path(asset, shard).is_file()
    looked = curate("verify", "photos", *home, width=300)
    assert f"was stopped before it made {asset} again; --repair goes on" in looked.stderr
    monkeypatch.setattr(repairing, "run_and_publish", make)
    done = curate("verify", "photos", "--repair", *home)
    assert done.exit_code == 0, done.output
    after = ctx.store.manifest(asset, shard)
    assert after is not None
    assert after.content_sha256 == before.content_sha256
    assert not (ctx.store.root / "repair.json").exists()
    assert is_up_to_date(ctx, tables[asset], shard, tables=tables)


def test_the_command_names_files_and_cannot_repair_a_source(ctx: PoolContext) -> None:
    home = ["--home", str(ctx.settings.home)]
    whole = curate("verify", "photos", *home)
    assert whole.exit_code == 0, whole.output
    assert "everything is as it was written" in whole.stdout
    tar = ctx.settings.home / "tars" / "000001.tar"
    flip_bit(tar, random.Random(3))
    shown = curate("verify", "photos", *home)
    assert shown.exit_code == 1
    assert str(tar) in shown.stdout
    assert "bring back the file as it was" in shown.stdout
    repaired = curate("verify", "photos", "--repair", "--json", *home)
    assert repaired.exit_code == 1
    (damage,) = json.loads(repaired.stdout)["damaged"]["photos"]
    assert (damage["path"], damage["kind"], damage["can_be_repaired"]) == (str(tar), "source", False)
    assert len(damage["expected"]) == len(damage["got"]) == 64
    assert "000001.tar cannot be repaired" in repaired.stderr


def test_an_export_that_changed_is_named(ctx: PoolContext, tmp_path: Path) -> None:
    out, home = tmp_path / "out", ["--home", str(ctx.settings.home)]
    exported = curate("export", "npy", "icc", "--out", out, "--pool", "photos", *home)
    assert exported.exit_code == 0, exported.output
    assert damages_of(ctx) == []
    flip_bit(out / "sample_ids.npy", random.Random(5))
    assert [(damage.path, damage.kind) for damage in damages_of(ctx)] == [(out / "sample_ids.npy", "export")]


@pytest.mark.slow
def test_the_nightly_job_fails_and_names_the_file(ctx: PoolContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("curation_assets.operations.nightly.verify_weights", lambda progress: verify_none())
    schedule = nightly(ctx.settings, ["photos"])
    assert schedule.default_status == dg.DefaultScheduleStatus.RUNNING
    job = schedule.job
    assert isinstance(job, dg.JobDefinition)
    with dg.instance_for_test() as instance:
        assert job.execute_in_process(instance=instance).success
        path = ctx.store.folder_path("filtered/subsets").resolve() / "icc.npy"
        stat = path.stat()
        flip_bit(path, random.Random(7))
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        result = job.execute_in_process(instance=instance, raise_on_error=False)
        assert not result.success
        (failure,) = [event for event in result.all_events if event.is_step_failure]
        assert failure.step_key == "files_photos"
        assert str(path) in str(failure.event_specific_data)


def verify_none() -> object:
    from curation_assets.operations.verify import Verified

    return Verified(0, [])


@pytest.mark.parametrize("change", ["another image", "a member that is gone"])
def test_no_value_of_another_image_gets_into_a_table(ctx: PoolContext, change: str) -> None:
    """A table that a repair or a single command makes again reads the images that were registered, or ends."""
    tables = tables_of(ctx)
    name = "signals/clip_score"
    tar = ctx.settings.home / "tars" / "000001.tar"
    numbers = [6, 7, 8, 9, 10] if change == "a member that is gone" else [16, 17, 18, 19, 20, 21]
    write_tar(tar, [(f"{place + 6:06d}", f"http://h.example/{n}.jpg", "x", jpeg(n)) for place, n in enumerate(numbers)])
    ctx.store.remove(name, "photos-000001")
    before = ctx.store.partitions(name)
    with pytest.raises(StoreError, match=r"000001\.tar changed since it was registered: .*`curate run photos`"):
        materialise_table(ctx, tables[name], "photos-000001", tables=tables)
    assert ctx.store.partitions(name) == before
