"""Takedown: a canary leaves every byte, the other shards stay as they are, and nothing brings it back."""

import base64
import hashlib
import io
import itertools
import json
import os
import re
import shutil
import sqlite3
import stat
import sys
import tarfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import dagster as dg
import duckdb
import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curation_assets.audit.why import explain
from curation_assets.core.errors import StoreError
from curation_assets.core.json_files import read_json
from curation_assets.core.settings import Settings, load_settings
from curation_assets.defs.launch import prepare_instance, run_pool
from curation_assets.defs.takedown import take_down
from curation_assets.flow.context import PoolContext
from curation_assets.flow.freshness import is_up_to_date, materialise_table
from curation_assets.flow.graph import tables_of
from curation_assets.flow.holder import all_holders
from curation_assets.flow.run_table import run_with_upstream
from curation_assets.numeric.identity import sample_id_of
from curation_assets.operations import takedown as takedown_module
from curation_assets.operations.releases import create_release, verify_release
from curation_assets.operations.takedown import begin_takedown, finish_takedown, pending_path
from curation_assets.outputs.holders import EXPORT_FLAG
from curation_assets.outputs.registry import ExportRecord, record_export
from curation_assets.outputs.report.report import THUMBNAIL_PX
from curation_assets.outputs.thumbnails import jpeg_thumbnail
from curation_assets.scoring.canary import CANARY_SCORES_SCHEMA, Canary, freeze_canary
from curation_assets.sources.declaration import add_pool, add_world_pool, load_pool, save_pool
from curation_assets.sources.download.download import DownloadSettings, download_shard, take_down_downloads
from curation_assets.stages.raw import takedown_sources
from curation_assets.stages.raw.source_checks import download_checks
from curation_assets.stages.raw.takedown_sources import SourceChangedError
from curation_assets.stores.catalog import stored_tables
from curation_assets.stores.denylist import Denylist, _hash, add_to_denylist, normalised
from curation_assets.stores.images import decode_image, tar_index
from curation_assets.stores.releases import list_releases
from curation_assets.stores.saved_rows import SavedRows
from curation_assets.stores.scrubbing import GONE
from curation_assets.stores.shard_store import SPILLED, ShardStore
from curation_assets.stores.tar_writing import rewrite_tar
from curation_assets.world.server import WorldServer, encode, planted, world_url, write_world_urls
from tests.conftest import FinishedPool
from tests.support.command import curate
from tests.support.id_lists import read_subset
from tests.support.killing import Killed, killed_at_rename
from tests.support.lineage_pools import (
    OPTIONS,
    bring_up_to_date,
    caption_of,
    finished_photos,
    jpeg,
    webdataset_pool,
    write_tar,
)


def everything(folder: Path) -> dict[str, bytes]:
    """Every file, and what compressed files hold: values of Parquet files, members of tars, rows of DuckDB views."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not path.is_file():
            continue
        found[str(path)] = path.read_bytes()
        if path.suffix == ".parquet":
            rows = duckdb.sql(f"select * from read_parquet('{path}', hive_partitioning = false)").fetchall()
            found[f"{path}!"] = repr(rows).encode()
        elif path.suffix == ".tar":
            with tarfile.open(path) as tar:
                for member in tar:
                    found[f"{path}!{member.name}"] = tar.extractfile(member).read()  # type: ignore[union-attr]
    return found


def holders(folder: Path, *needles: bytes) -> list[str]:
    return [name for name, data in everything(folder).items() if any(needle in data for needle in needles)]


def shard_files(ctx: PoolContext, shard: str) -> dict[str, tuple[str, int]]:
    """Content and time of change of every table of a shard."""
    found = {}
    for table in tables_of(ctx).values():
        if table.grain == "shard":
            manifest = ctx.store.manifest(table.name, shard)
            assert manifest is not None, table.name
            found[table.name] = (manifest.content_sha256, ctx.store.table_path(table.name, shard).stat().st_mtime_ns)
    return found


def rows_of_shard(ctx: PoolContext, shard: str) -> dict[str, pl.DataFrame]:
    names = [table.name for table in tables_of(ctx).values() if table.grain == "shard"]
    return {name: ctx.store.read(name, shard) for name in names}


@pytest.mark.slow
def test_a_canary_leaves_every_byte_of_a_real_run(finished_pool: FinishedPool, tmp_path: Path) -> None:
    home = tmp_path / "home"
    shutil.copytree(finished_pool.settings.home, home, symlinks=True)
    settings = load_settings(home, "embedded")
    ctx = PoolContext.open(settings, "tiny")
    samples = ctx.store.scan("raw/samples").filter(pl.col("status") == "kept").collect()
    is_canary = (pl.col("shard") == "tiny-000001") & pl.col("caption").is_unique()
    canary = samples.filter(is_canary).sort(pl.col("caption").str.len_chars()).to_dicts()[-1]
    image = tar_index(ctx.store.root / canary["tar"]).read(canary["member"])
    small = base64.b64encode(jpeg_thumbnail(decode_image(image, ctx.pool.download.limits), THUMBNAIL_PX))
    needles = (canary["caption"].encode(), canary["url"].encode(), image, small)
    assert holders(home / "work", *needles)
    before = shard_files(ctx, "tiny-000000")
    rows_before = rows_of_shard(ctx, "tiny-000001")
    release = create_release(ctx, tables_of(ctx), "icc", "v1")
    assert verify_release(release.folder) == []
    others = {
        name: data for name, data in everything(ctx.store.root / "downloads" / "tiny-000001").items() if "!" in name
    }

    added = curate("takedown", "add", "--url", canary["url"], home=home)
    assert "1 added" in added.output, added.output
    certificate = take_down(settings, "tiny")
    assert certificate is not None
    assert [one["sample_id"] for one in certificate["samples"]] == [canary["sample_id"]]

    assert certificate["releases_withdrawn"] == ["v1"]
    following = list_releases(home)[-1]
    assert (following.name, following.counts["rows"]) == ("v1.1", release.counts["rows"] - 1)
    assert verify_release(following.folder) == []
    shown = prepare_instance(settings).get_materialized_partitions(dg.AssetKey(["tiny", "releases"]))
    assert shown == {"v1", "v1.1"}
    assert holders(home / "releases", canary["sample_id"].encode()) == []

    assert holders(home, *needles) == []
    report = (ctx.store.folder_path("downstream/report") / "report.html").read_text()
    pictures = [base64.b64decode(data) for data in re.findall(r"data:image/jpeg;base64,([^\"')]+)", report)]
    assert len(pictures) > 20
    assert certificate["left"] == []
    assert shard_files(ctx, "tiny-000000") == before
    is_other = pl.col("sample_id") != canary["sample_id"]
    rows = rows_of_shard(ctx, "tiny-000001")
    for name, of_table in rows.items():
        assert of_table.filter(is_other).equals(rows_before[name].filter(is_other)), name
    kept = {
        name: data for name, data in everything(ctx.store.root / "downloads" / "tiny-000001").items() if "!" in name
    }
    stem = canary["member"].partition(".")[0]
    same = {name for name in others if name.partition("!")[2] and stem not in name}
    assert {name: kept[name] for name in same} == {name: others[name] for name in same}
    assert certificate["fits_kept"]
    changed = {Path(one["path"]).name for one in certificate["artefacts"]}
    assert {"000001.tar", "000001.parquet", "urls.parquet", "report.html", "data.parquet"} <= changed
    assert all(one["sha256_before"] != one["sha256_after"] for one in certificate["artefacts"])

    output = explain(settings, canary["sample_id"])[0]
    assert output["raw"] == {"status": "dropped", "reason": "takedown"}
    assert output["caption"] is None
    assert {one["verdict"] for one in output["policies"]} == {"dropped"}
    # Again, from the server: without the download and its table.
    shutil.rmtree(ctx.store.root / "downloads" / "tiny-000001")
    ctx.store.remove("raw/downloads", "tiny-000001")
    run_pool(settings, "tiny", tables=["raw/registered_shards", "raw/downloads", "raw/samples"])
    assert len(everything(ctx.store.root / "downloads" / "tiny-000001")) > 100
    assert holders(home, *needles) == []
    assert take_down(settings, "tiny") is None
    # what a takedown leaves of a row is what the flow makes of it
    tables = tables_of(ctx)
    for name, of_table in rows.items():
        made = tables[name].rows(ctx, "tiny-000001")
        assert made.filter(~is_other).equals(of_table.filter(~is_other)), name


@pytest.mark.parametrize("kind", ["url", "uid", "sha256", "domain"])
def test_delivered_tars_by_every_kind_of_name(tmp_path: Path, kind: str) -> None:
    ctx = finished_photos(tmp_path)
    settings = ctx.settings
    row = ctx.store.scan("raw/samples").filter(pl.col("url").str.ends_with("/9.jpg")).collect().to_dicts()[0]
    names = {
        "url": row["url"].replace("http://", "HTTP://") + "#part",
        "uid": row["sample_id"],
        "sha256": hashlib.sha256(jpeg(9)).hexdigest(),
        "domain": "host0.example",
    }
    hit = {9} if kind != "domain" else {n for n in range(24) if n % 3 == 0}
    before = everything(tmp_path / "tars")
    add_to_denylist(tmp_path, [(kind, names[kind])])  # type: ignore[list-item]
    tables = tables_of(ctx)
    begun = begin_takedown(ctx, tables)
    assert begun is not None
    assert begun.samples.height == len(hit)
    bring_up_to_date(settings)
    certificate, _ = finish_takedown(ctx, tables, begun)
    assert certificate["left"] == []
    assert everything(tmp_path / "tars") == before, "the owner's tars are the owner's"
    assert {Path(source).name for source in certificate["sources_not_ours"]} == {f"{n // 8:06d}.tar" for n in hit}
    needles = [f"{n}.jpg" for n in hit] + [caption_of(n) for n in hit]
    left = holders(ctx.store.root, *(json.dumps(needle)[1:-1].encode() for needle in needles if len(needle) > 6))
    assert left == [], left
    samples = ctx.store.scan("raw/samples").collect()
    assert samples.filter(pl.col("reason") == "takedown").height == len(hit)
    assert samples.height == 24


def test_sources_are_rewritten_on_request_and_rows_keep_their_places(tmp_path: Path) -> None:
    ctx = finished_photos(tmp_path)
    settings = ctx.settings
    before = ctx.store.scan("raw/samples").collect()
    add_to_denylist(tmp_path, [("url", "http://host0.example/9.jpg")])
    tables = tables_of(ctx)
    begun = begin_takedown(ctx, tables, with_sources=True)
    assert begun is not None
    bring_up_to_date(settings)
    certificate, _ = finish_takedown(ctx, tables, begun)
    assert certificate["sources_not_ours"] == []
    assert holders(tmp_path / "tars", jpeg(9), caption_of(9).encode(), b"/9.jpg") == []
    after = ctx.store.scan("raw/samples").collect()
    place = ["sample_id", "shard", "source_row"]
    assert after.select(place).equals(before.select(place))
    same = pl.col("source_row") != 1
    assert after.filter(same | (pl.col("shard") != "photos-000001")).equals(
        before.filter(same | (pl.col("shard") != "photos-000001"))
    )


def made_of_others(store: ShardStore) -> list[tuple[str, str, str]]:
    """Tables of shards that count as made from other rows of their shard than are stored: they would be stale."""
    return [
        (name, shard, read.asset)
        for name in stored_tables(store)
        for shard in store.partitions(name)
        for read in store.manifest(name, shard).inputs  # type: ignore[union-attr]
        if read.partition == shard and read != store.manifest(read.asset, shard).version  # type: ignore[union-attr]
    ]


def killed_at(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the `number`-th change of a file by the takedown is not made, and ends it."""
    changes = itertools.count()

    def counted(change: Callable[..., Any]) -> Callable[..., Any]:
        def made(*args: Any, **settings: Any) -> Any:
            if next(changes) == number:
                raise Killed
            return change(*args, **settings)

        return made

    changing = {
        "remove_path",
        "save_text",
        "save_document",
        "add_to_denylist",
        "scrub",
        "rewrite_tar",
        "save_frame",
    }
    patched = set()
    for module in (takedown_module, takedown_sources, *(sys.modules[type(one).__module__] for one in all_holders())):
        for name in changing & set(vars(module)):
            if (module, name) not in patched:
                patched.add((module, name))
                monkeypatch.setattr(module, name, counted(getattr(module, name)))
    assert {name for _, name in patched} == changing
    for name in ("remove", "rewrite"):
        monkeypatch.setattr(ShardStore, name, counted(getattr(ShardStore, name)))


@pytest.mark.parametrize(
    ("with_sources", "stride"),
    [(False, 12), *(pytest.param(with_sources, 1, marks=pytest.mark.slow) for with_sources in (False, True))],
)
def test_a_takedown_killed_at_any_step_is_finished_by_the_next(tmp_path: Path, with_sources: bool, stride: int) -> None:
    """Nothing of the sample is left and there is a certificate, whichever step the first attempt ended before."""
    undisturbed = tmp_path / "undisturbed"
    finished_photos(undisturbed)
    needles = [json.dumps(needle)[1:-1].encode() for needle in ("/9.jpg", caption_of(9))]
    for number in itertools.count(step=stride):
        home = tmp_path / f"killed-{number}"
        shutil.copytree(undisturbed, home, symlinks=True)
        settings = load_settings(home, "embedded")
        save_pool(settings, replace(load_pool(settings, "photos"), source=str(home / "tars")))
        ctx = PoolContext.open(settings, "photos")
        assert holders(ctx.store.root, *needles)
        add_to_denylist(home, [("url", "http://host0.example/9.jpg")])
        with pytest.MonkeyPatch.context() as monkeypatch:
            killed_at(number, monkeypatch)
            try:
                begin_takedown(ctx, tables_of(ctx), with_sources=with_sources)
                was_killed = False
            except Killed:
                was_killed = True
        note = pending_path(home, "photos")
        was_begun = note.is_file()
        if was_killed and number:  # before the first change nothing is begun
            assert stat.S_IMODE(note.stat().st_mode) == 0o600
        # where nothing was begun the next one has to be told again; else it goes on as the first was told
        begun = begin_takedown(ctx, tables_of(ctx), with_sources=with_sources and not was_begun)
        assert begun is not None, number
        assert [row["url"] for row in begun.samples.to_dicts()] == ["http://host0.example/9.jpg"]
        assert made_of_others(ctx.store) == [], number
        bring_up_to_date(settings)
        certificate, _ = finish_takedown(ctx, tables_of(ctx), begun)
        assert certificate["left"] == [], number
        assert certificate["artefacts"], "the digests are those from before the first attempt"
        assert holders(ctx.store.root, *needles) == [], number
        assert not pending_path(home, "photos").exists()
        assert certificate["sources_not_ours"] == ([] if with_sources else [str(home / "tars" / "000001.tar")]), number
        assert (holders(home / "tars", jpeg(9), b"/9.jpg") == []) == with_sources, number
        assert len(holders(home / "tars", b"\xff\xd8\xff")) > 20
        assert begin_takedown(ctx, tables_of(ctx), with_sources=with_sources) is None
        shutil.rmtree(home)
        if not was_killed:
            break
    assert number > 10, "a takedown has more steps than this test interrupted"


def test_a_takedown_killed_after_its_purge_goes_on_and_does_not_begin_anew(tmp_path: Path) -> None:
    ctx = finished_photos(tmp_path)
    settings = ctx.settings
    add_to_denylist(tmp_path, [("url", "http://host0.example/9.jpg")])
    begun = begin_takedown(ctx, tables_of(ctx))
    assert begun is not None
    bring_up_to_date(settings)  # and killed here
    made = {path: path.stat().st_mtime_ns for path in ctx.store.root.rglob("data.parquet")}
    assert made
    again = begin_takedown(ctx, tables_of(ctx))
    assert again is not None
    assert again.samples.equals(begun.samples)
    assert again.digests_before == begun.digests_before
    assert {path: path.stat().st_mtime_ns for path in ctx.store.root.rglob("data.parquet")} == made
    add_to_denylist(tmp_path, [("url", "http://host1.example/10.jpg")])  # of another row: everything again
    more = begin_takedown(ctx, tables_of(ctx))
    assert more is not None
    assert more.samples.height == 2
    emptied = ctx.store.scan("raw/samples").filter(pl.col("reason") == "takedown").collect()
    assert emptied["sample_id"].to_list() == more.samples["sample_id"].to_list()
    bring_up_to_date(settings)
    scratch = ctx.store.root / "note.txt"
    scratch.write_text(caption_of(9))
    certificate, _ = finish_takedown(ctx, tables_of(ctx), more)
    assert certificate["left"]
    assert pending_path(tmp_path, "photos").is_file()
    begin_takedown(ctx, tables_of(ctx))  # purges again, since something was left
    assert caption_of(9) not in scratch.read_text()
    bring_up_to_date(settings)
    assert finish_takedown(ctx, tables_of(ctx), more)[0]["left"] == []


def test_a_version_kept_for_readers_is_purged_although_a_run_came_first(tmp_path: Path) -> None:
    ctx = finished_photos(tmp_path)
    report = ctx.store.asset_path("downstream/report")
    for content in (caption_of(9), "the next version, without it"):

        def write(folder: Path, content: str = content) -> None:
            (folder / "report.html").write_text(content)

        ctx.store.materialise_folder("downstream/report", write, code_version=content)
    assert holders(report.parent, caption_of(9).encode())
    add_to_denylist(tmp_path, [("url", "http://nowhere.example/1.jpg")])
    assert begin_takedown(ctx, tables_of(ctx)) is None
    assert holders(report.parent, caption_of(9).encode()) == []
    assert holders(report.parent, b"the next version")


def test_a_table_that_the_pool_no_longer_declares_is_searched(tmp_path: Path) -> None:
    ctx = finished_photos(tmp_path)
    settings = ctx.settings
    old = ctx.store.root / "filtered" / "an_old_policy" / "shard=photos-000001"
    old.mkdir(parents=True)
    pl.DataFrame({"caption": [caption_of(9)]}).write_parquet(old / "data.parquet")
    add_to_denylist(tmp_path, [("url", "http://host0.example/9.jpg")])
    begun = begin_takedown(ctx, tables_of(ctx))
    assert begun is not None
    bring_up_to_date(settings)
    assert finish_takedown(ctx, tables_of(ctx), begun)[0]["left"] == []
    assert holders(old.parent, caption_of(9).encode()) == []


def test_salt_and_denylist_are_their_owners_alone(tmp_path: Path) -> None:
    add_to_denylist(tmp_path, [("domain", "example.org")])
    path = tmp_path / "takedown" / "denylist.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)  # as an earlier version wrote it
    add_to_denylist(tmp_path, [("domain", "example.org")])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_subsets_obey_before_anything_is_purged_and_exports_are_flagged(tmp_path: Path) -> None:
    ctx = finished_photos(tmp_path)
    settings = ctx.settings
    npy = ctx.store.folder_path("filtered/subsets") / "icc.npy"
    kept = read_subset(npy)
    exported = tmp_path / "exported"
    exported.mkdir()
    shutil.copy(npy, exported / "subset.npy")
    facts = ("npy", "icc", 1, "ab" * 32)
    ids = str(exported / "subset.npy")
    record_export(tmp_path, ExportRecord("photos", str(exported), ids, "2026-01-01T00:00:00Z", *facts))
    contents = np.load(exported / "subset.npy")
    add_to_denylist(tmp_path, [("uid", kept[0])])
    bring_up_to_date(settings)
    assert read_subset(npy) == kept[1:]
    tables = tables_of(ctx)
    begun = begin_takedown(ctx, tables)
    assert begun is not None
    bring_up_to_date(settings)
    certificate, path = finish_takedown(ctx, tables, begun)
    assert certificate["exports_flagged"] == [{"folder": str(exported), "samples": 1}]
    assert json.loads((exported / EXPORT_FLAG).read_text())["sample_ids"] == [kept[0]]
    assert (np.load(exported / "subset.npy") == contents).all()
    assert read_json(path, dict, advice="") == certificate


def test_what_is_denied_elsewhere_makes_nothing_stale_here(tmp_path: Path) -> None:
    """A pool without a hit stays current and is released; one with a hit is neither until that is applied."""
    ctx = finished_photos(tmp_path)
    tables = tables_of(ctx)
    add_to_denylist(tmp_path, [("url", "http://nowhere.example/1.jpg"), ("uid", "f" * 32)])
    assert begin_takedown(ctx, tables) is None
    assert is_up_to_date(ctx, tables["filtered/subsets"], tables=tables)
    create_release(ctx, tables, "icc", "v1")
    kept = read_subset(ctx.store.folder_path("filtered/subsets") / "icc.npy")
    add_to_denylist(tmp_path, [("uid", kept[0])])
    assert not is_up_to_date(ctx, tables["filtered/subsets"], tables=tables)
    with pytest.raises(StoreError, match="stale"):
        create_release(ctx, tables, "icc", "v2")


def test_what_no_table_makes_again_is_purged_too(tmp_path: Path) -> None:
    """Saved rows of unfinished tables, the canary, Dagster's databases and logs, label files."""
    ctx = finished_photos(tmp_path)
    settings = ctx.settings
    store = ctx.store
    frozen = freeze_canary(store, tmp_path / "canary.parquet", 22)
    before, ids = frozen.sha256, frozen.rows["sample_id"].to_list()
    scores = [
        dict.fromkeys(CANARY_SCORES_SCHEMA) | {"method": "icc", "build": build, "canary_sha256": before,
         "canary_sample_id": one, "value": 0.5}
        for build in ("old", "new") for one in ids
    ]  # fmt: skip
    store.write("signals/canary", pl.DataFrame(scores, schema=CANARY_SCORES_SCHEMA), code_version="1")
    pool = load_pool(settings, "photos")
    save_pool(settings, replace(pool, options=replace(pool.options, canary="canary.parquet")))
    ctx = PoolContext.open(settings, "photos", run_id="run-8")
    hit, other = (store.scan("raw/samples").filter(pl.col("url").str.ends_with(f"/{n}.jpg")).collect() for n in (9, 17))
    hit_shard, other_shard = "photos-000001", "photos-000002"
    for shard, rows in ((hit_shard, hit), (other_shard, other)):
        SavedRows(store.unfinished_path("teachers/vba", shard) / "abc").add(rows.select("sample_id", "caption"))
    spilled = store.root / f".{SPILLED}.tmp-elsewhere-1-00000000"  # of a query of another machine, which was killed
    spilled.mkdir()
    (spilled / "words.json").write_text(json.dumps([caption_of(9)]))
    quote = 'it says "small" – ' + caption_of(9)
    events = tmp_path / "dagster" / "history" / "runs" / "r.db"
    events.parent.mkdir(parents=True)
    with closing(sqlite3.connect(events)) as connection:
        connection.execute("create table event_logs (id integer primary key, event text)")
        for text in (caption_of(9), caption_of(17), quote):
            event = json.dumps({"message": json.dumps(text)})
            connection.execute("insert into event_logs (event) values (?)", (event,))
        connection.execute("insert into event_logs (event) values (?)", ("http://host0.example/9.jpg",))
        connection.execute("delete from event_logs where id = 4")  # its bytes stay in a free page
        connection.commit()
    (tmp_path / "dagster" / "run.out").write_text(f"fine\ncannot parse {caption_of(9)}\nfine\n")
    longer = caption_of(9) + ", and another"  # another sample's
    labels = f"caption\trating\n{caption_of(9)}\t1\n{longer}\t2\n"
    (tmp_path / "labels.tsv").write_text(labels)
    (tmp_path / "labels.csv").write_text(f'caption,rating\n"{caption_of(9)}",1\n"one, two",2\n')
    records = [{"text": {"caption": [caption_of(9)]}}, {"text": caption_of(17)}]
    (tmp_path / "labels.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    needles = (caption_of(9).encode(), jpeg(9), b"host0.example/9.jpg")
    held = [name for name in holders(tmp_path, *needles) if not {"tars", "work"} & set(Path(name).parts)]
    assert len(held) >= 5, held

    add_to_denylist(tmp_path, [("uid", hit["sample_id"][0])])
    tables = tables_of(ctx)
    begun = begin_takedown(ctx, tables)
    assert begun is not None
    bring_up_to_date(settings)
    certificate, _ = finish_takedown(ctx, tables, begun)
    assert certificate["left"] == []
    assert (tmp_path / "labels.tsv").read_text() == f"caption\trating\n{longer}\t2\n"
    assert (tmp_path / "labels.csv").read_text() == 'caption,rating\n"one, two",2\n'
    assert (tmp_path / "labels.jsonl").read_text() == json.dumps(records[1]) + "\n"
    (tmp_path / "labels.tsv").unlink()
    assert [name for name in holders(tmp_path, *needles) if "/tars/" not in name] == []
    assert SavedRows(store.unfinished_path("teachers/vba", hit_shard) / "abc").read() is None
    saved = SavedRows(store.unfinished_path("teachers/vba", other_shard) / "abc").read()
    assert saved is not None, "another shard's work is not lost"
    with closing(sqlite3.connect(events)) as connection:
        output = [
            json.loads(json.loads(row[0])["message"]) for row in connection.execute("select event from event_logs")
        ]
    assert output == [GONE, caption_of(17), 'it says "small" – ' + GONE]
    assert (tmp_path / "dagster" / "run.out").read_text() == f"fine\ncannot parse {GONE}\nfine\n"
    left = Canary.read(tmp_path / "canary.parquet")
    assert left.rows["sample_id"].to_list() == [one for one in ids if one != hit["sample_id"][0]]
    kept = store.read("signals/canary")
    assert kept["canary_sha256"].unique().to_list() == [left.sha256]
    assert kept.group_by("build").len()["len"].to_list() == [len(ids) - 1] * 2


@pytest.mark.parametrize("fault", ["declaration", "another name", "damaged table"])
def test_a_pool_that_cannot_be_read_is_named_and_the_others_are_done(tmp_path: Path, fault: str) -> None:
    ctx = raw_pool(tmp_path, train_0=[0, 1, 2])
    delivered(tmp_path / "other" / "0.tar", [3])
    add_pool(ctx.settings, "broken", tmp_path / "other", options=OPTIONS)
    labels = tmp_path / "labels.csv"
    labels.write_text(f"caption,rating\n{caption_of(1)},1\n")
    declaration = tmp_path / "pools" / "broken.yaml"
    match fault:
        case "declaration":
            declaration.write_text("source: [oops")
        case "another name":
            declaration.write_text(declaration.read_text().replace("name: broken", "name: other"))
        case "damaged table":
            path = ctx.settings.work("broken") / "raw/registered_shards/shard=broken-000000/data.parquet"
            path.parent.mkdir(parents=True)
            path.write_bytes(b"no table")
    home = ["--home", str(tmp_path)]
    add_to_denylist(tmp_path, [("url", "http://h.example/1.jpg")])
    shown = curate("takedown", "apply", *home)
    assert shown.exit_code == 1
    assert "pool broken: " in shown.stderr
    assert "photos: 1 rows taken down" in shown.stdout, shown.output
    is_unknown = fault in ("declaration", "another name")  # where its source lies, which is nobody's to rewrite
    assert ("sources of broken may lie" in shown.stdout) == is_unknown
    assert (caption_of(1) in labels.read_text()) == is_unknown


# -- the owner's own tars ---------------------------------------------------------------------------------------------


def delivered(path: Path, numbers: list[int], *, first_key: int = 0) -> None:
    """A tar of samples by their numbers, under keys that count from `first_key`."""
    samples = enumerate(numbers, start=first_key)
    write_tar(path, [(f"{key:06d}", f"http://h.example/{n}.jpg", caption_of(n), jpeg(n)) for key, n in samples])


def raw_pool(home: Path, **tars: list[int]) -> PoolContext:
    """A pool of tars (train_0=[1, 2] → train-0.tar), registered and no more."""
    for name, numbers in tars.items():
        delivered(home / "tars" / f"{name.replace('_', '-')}.tar", numbers)
    settings = load_settings(home, "embedded")
    add_pool(settings, "photos", home / "tars", options=OPTIONS)
    return registered(settings)


def registered(settings: Settings) -> PoolContext:
    """The pool with its raw tables made from what the source holds now."""
    ctx = PoolContext.open(settings, "photos")
    tables = tables_of(ctx)
    for shard in ctx.shards():
        for name in ("raw/registered_shards", "raw/downloads", "raw/samples"):
            materialise_table(ctx, tables[name], shard, tables=tables)
    return ctx


def taken_from_sources(ctx: PoolContext) -> dict[str, Any]:
    """The certificate of a takedown with sources."""
    begun = begin_takedown(ctx, tables_of(ctx), with_sources=True)
    assert begun is not None
    registered(ctx.settings)
    return finish_takedown(ctx, tables_of(ctx), begun)[0]


def images_of(folder: Path) -> dict[str, list[int]]:
    """Tar → numbers of the images that it holds, in order."""
    known = {jpeg(number): number for number in range(20)}
    found = {}
    for path in sorted(folder.glob("*.tar")):
        index = tar_index(path)
        with tarfile.open(path) as tar:
            members = list(itertools.islice(tar, len(index.members) + len(index.repeated)))  # as far as it is whole
            streams = [tar.extractfile(member) for member in members if member.name.endswith(".jpg")]
            found[path.stem] = [known[stream.read()] for stream in streams if stream is not None]
    return found


def _overwrite(tars: Path) -> None:
    delivered(tars / "train-0.tar", [10, 11, 12])


def _insert(tars: Path) -> None:
    delivered(tars / "train-0.tar", [10, 0, 1, 2])


def _swap_unseen(tars: Path) -> None:
    """The same members in another order of their keys; size and time stay."""
    path = tars / "train-0.tar"
    stat, data = path.stat(), path.read_bytes()
    for old, new in ((b"000001.", b"xxxxxx."), (b"000002.", b"000001."), (b"xxxxxx.", b"000002.")):
        data = data.replace(old, new)
    path.write_bytes(with_checksums(data))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def with_checksums(data: bytes) -> bytes:
    """A ustar archive whose names were changed, with the right checksums of its headers."""
    out, at = bytearray(data), 0
    while out[at : at + 1] != b"\0":
        header = bytes(out[at : at + 148]) + b" " * 8 + bytes(out[at + 156 : at + 512])
        out[at + 148 : at + 156] = b"%06o\0 " % sum(header)
        at += 512 + -(-int(bytes(out[at + 124 : at + 135]), 8) // 512) * 512
    return bytes(out)


def _table_beside(tars: Path) -> None:
    rows = {"key": ["-1", "000000"], "status": ["failed_to_download", "success"], "url": ["http://x.example/", None]}
    pl.DataFrame(rows).write_parquet(tars / "train-0.parquet")


@pytest.mark.parametrize("change", [_overwrite, _insert, _swap_unseen, _table_beside])
@pytest.mark.parametrize("kind", ["url", "sha256"])
def test_a_source_that_changed_is_refused_until_it_is_registered(
    tmp_path: Path, change: Callable[[Path], None], kind: str
) -> None:
    """No innocent image goes; after a run the one that is meant goes, wherever it lies now."""
    ctx = raw_pool(tmp_path, train_0=[0, 1, 2], val_0=[3, 4])
    change(tmp_path / "tars")
    before, tables = everything(tmp_path / "tars"), everything(ctx.store.root / "raw")
    names = {"url": "http://h.example/1.jpg", "sha256": hashlib.sha256(jpeg(1)).hexdigest()}
    add_to_denylist(tmp_path, [(kind, names[kind])])  # type: ignore[list-item]
    with pytest.raises(SourceChangedError, match=r"train-0\.tar changed since it was registered .*`curate run photos`"):
        begin_takedown(ctx, tables_of(ctx), with_sources=True)
    assert everything(tmp_path / "tars") == before
    assert everything(ctx.store.root / "raw") == tables, "nor is anything else purged"
    assert not pending_path(tmp_path, "photos").exists()
    registered(ctx.settings)
    expected = images_of(tmp_path / "tars")
    if begin_takedown(ctx, tables_of(ctx), with_sources=True) is None:
        assert change is _overwrite, "which brought other images in its place"
    else:
        assert taken_from_sources(ctx)["left"] == []
        expected["train-0"].remove(1)
    assert images_of(tmp_path / "tars") == expected


def test_a_new_tar_with_a_number_that_is_taken_loses_nothing(tmp_path: Path) -> None:
    ctx = raw_pool(tmp_path, train_0=[0, 1, 2], val_0=[3, 4, 5])
    delivered(tmp_path / "tars" / "test-0.tar", [10, 11, 12])
    add_to_denylist(tmp_path, [("sha256", hashlib.sha256(jpeg(1)).hexdigest())])
    certificate = taken_from_sources(ctx)
    assert images_of(tmp_path / "tars") == {"train-0": [0, 2], "val-0": [3, 4, 5], "test-0": [10, 11, 12]}
    assert (certificate["left"], len(certificate["samples"])) == ([], 1)


@pytest.mark.parametrize("where", ["another tar", "the same tar", "a tar that came later", "a damaged tar"])
def test_the_same_image_elsewhere_in_the_sources_is_named(tmp_path: Path, where: str) -> None:
    """It is another sample by its url, so it is not ours to delete; known by its sha256, it goes too."""
    ctx = raw_pool(tmp_path, train_0=[0, 1, 2], val_0=[3])
    folder, copy = tmp_path / "tars", ("000007", "http://other.example/", "another caption of it", jpeg(1))
    name = {"the same tar": "train-0.tar", "a tar that came later": "late-9.tar"}.get(where, "val-0.tar")
    rows = [(f"{n:06d}", f"http://h.example/{n}.jpg", caption_of(n), jpeg(n)) for n in range(3)]
    write_tar(folder / name, [*(rows if where == "the same tar" else []), copy])
    if where == "a damaged tar":
        (folder / name).write_bytes((folder / name).read_bytes().rstrip(b"\0"))
    if where != "a tar that came later":
        registered(ctx.settings)
    add_to_denylist(tmp_path, [("url", "http://h.example/1.jpg")])
    certificate = taken_from_sources(ctx)
    assert certificate["left"] == [{"path": str(folder / name), "what": "image"}]
    assert images_of(folder)["train-0"] == ([0, 2, 1] if where == "the same tar" else [0, 2])
    assert len(certificate["not_done"]) == (where == "a damaged tar")
    if where != "a damaged tar":
        registered(ctx.settings)
        add_to_denylist(tmp_path, [("sha256", hashlib.sha256(jpeg(1)).hexdigest())])
        assert taken_from_sources(ctx)["left"] == []
        assert 1 not in {number for numbers in images_of(folder).values() for number in numbers}


def test_sources_can_be_purged_after_a_takedown_that_left_them(tmp_path: Path) -> None:
    ctx = raw_pool(tmp_path, train_0=[0, 1, 2])
    add_to_denylist(tmp_path, [("url", "http://h.example/1.jpg")])
    begun = begin_takedown(ctx, tables_of(ctx))
    assert begun is not None
    registered(ctx.settings)
    certificate, _ = finish_takedown(ctx, tables_of(ctx), begun)
    assert certificate["sources_not_ours"] == [str(tmp_path / "tars" / "train-0.tar")]
    assert images_of(tmp_path / "tars") == {"train-0": [0, 1, 2]}
    assert taken_from_sources(ctx)["sources_not_ours"] == []
    assert images_of(tmp_path / "tars") == {"train-0": [0, 2]}
    assert begin_takedown(ctx, tables_of(ctx), with_sources=True) is None


def test_a_member_of_the_same_name_with_another_image_stays(tmp_path: Path) -> None:
    rows = [
        ("0", "http://h.example/0.jpg", "a photo of thing 0", jpeg(0)),
        ("1", "http://h.example/1.jpg", "b", jpeg(1)),
    ]
    again = [("1", "http://h.example/5.jpg", "another photo", jpeg(5)), ("1", "http://h.example/1.jpg", "b", jpeg(1))]
    write_tar(tmp_path / "tars" / "0.tar", [*rows, *again])
    add_pool(settings := load_settings(tmp_path, "embedded"), "photos", tmp_path / "tars", options=OPTIONS)
    ctx = registered(settings)
    add_to_denylist(tmp_path, [("url", "http://h.example/1.jpg")])
    assert taken_from_sources(ctx)["left"] == []
    assert images_of(tmp_path / "tars") == {"0": [0, 5]}


def test_a_source_that_changes_while_a_takedown_waits_is_left_and_named(tmp_path: Path) -> None:
    """One that was stopped is finished by a run, which cannot come before itself: it rewrites nothing unknown."""
    ctx = raw_pool(tmp_path, train_0=[0, 1, 2])
    add_to_denylist(tmp_path, [("url", "http://h.example/1.jpg")])
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(takedown_sources, "rewrite_tar", raise_killed)
        with pytest.raises(Killed):
            begin_takedown(ctx, tables_of(ctx), with_sources=True)
    delivered(tmp_path / "tars" / "train-0.tar", [10, 11, 1])
    begun = begin_takedown(ctx, tables_of(ctx))
    assert begun is not None
    registered(ctx.settings)
    certificate, _ = finish_takedown(ctx, tables_of(ctx), begun)
    assert images_of(tmp_path / "tars") == {"train-0": [10, 11, 1]}
    tar = str(tmp_path / "tars" / "train-0.tar")
    assert (certificate["left"], certificate["sources_not_ours"]) == ([{"path": tar, "what": "image"}], [tar])
    assert not pending_path(tmp_path, "photos").exists(), "no run could do more"
    registered(ctx.settings)
    assert taken_from_sources(ctx)["left"] == []
    assert images_of(tmp_path / "tars") == {"train-0": [10, 11]}


def raise_killed(*args: object, **more: object) -> None:
    raise Killed


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_what_stays_in_a_rewritten_tar_stays_byte_for_byte(tmp_path: Path, form: int) -> None:
    """Long and foreign names, links, folders, empty files, and attributes that only the header has."""
    path = tmp_path / "0.tar"
    long = "folder/" + "n" * 90 if form == tarfile.USTAR_FORMAT else "folder/" + "ü" * 200
    with tarfile.open(path, "w", format=form, pax_headers={"comment": "of all"}) as tar:
        for name in ("a.jpg", long, "b.jpg", "c.txt"):
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.uid, info.uname = len(name) * 40, 12345, 77, "owner"
            tar.addfile(info, io.BytesIO(name.encode() * 40 if form == tarfile.USTAR_FORMAT else bytes(info.size)))
        for kind, name in ((tarfile.SYMTYPE, "link"), (tarfile.DIRTYPE, "d"), (tarfile.REGTYPE, "empty")):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "c.txt" if kind == tarfile.SYMTYPE else ""
            tar.addfile(info)
    before = members_of(path)
    rewrite_tar(path, drop=lambda name, read: name == "b.jpg" and len(read()) == 200, add={"b.json": b"{}"})
    after = members_of(path)
    assert after.pop("b.json")[-1] == b"{}"
    del before["b.jpg"]
    assert after == before
    assert tar_index(path).damage is None


def members_of(path: Path) -> dict[str, tuple[object, ...]]:
    with tarfile.open(path) as tar:
        return {
            one.name: (one.type, one.size, one.mtime, one.uid, one.uname, one.linkname, one.pax_headers, data)
            for one in tar
            for data in [tar.extractfile(one).read() if one.isreg() else b""]  # type: ignore[union-attr]
        }


def test_a_late_tar_does_not_bring_it_in(tmp_path: Path) -> None:
    settings = webdataset_pool(tmp_path)
    add_to_denylist(tmp_path, [("sha256", hashlib.sha256(jpeg(77)).hexdigest()), ("domain", "bad.example")])
    rows = [("1", "http://a.example/1.jpg", "a caption of it", jpeg(77)), ("2", "http://x.bad.example/", "b", jpeg(2))]
    write_tar(tmp_path / "tars" / "000003.tar", rows)
    ctx = bring_up_to_date(settings)
    late = ctx.store.read("raw/samples", "photos-000003")
    assert late["reason"].to_list() == ["takedown", "takedown"]
    assert late["caption"].null_count() == 2


def test_downloads_obey_the_list_and_a_purged_one_is_not_fetched_again(tmp_path: Path) -> None:
    samples = planted(6, 1)
    write_world_urls(tmp_path / "urls.parquet", samples, 1)
    urls = pl.read_parquet(tmp_path / "urls.parquet").rename({"uid": "sample_id"}).with_row_index("source_row")
    image = hashlib.sha256(encode(samples[2])).hexdigest()
    add_to_denylist(tmp_path, [("url", world_url(0)), ("sha256", image)])
    out, key = tmp_path / "out", "toy-000000"
    with WorldServer(samples, 1, has_trouble=False) as server:
        served = DownloadSettings(retries=0, connect_to=server.connect_to)
        output = download_shard(urls, out, key, settings=served, denylist=Denylist.load(tmp_path))
        assert output["reason"].to_list() == ["takedown", None, "takedown", None, None, None]
        assert output["status"].to_list() == ["dropped", "kept", "dropped", "kept", "kept", "kept"]
        assert server.requests.total() == 5, "what is listed by its URL is not even asked for"
        assert holders(out, encode(samples[2]), samples[2].caption.encode()) == []
        before = everything(out)
        removed, after = output["sample_id"][4], urls.filter(pl.col("source_row") != 4)
        take_down_downloads(out, key, [removed], before=urls, after=after, settings=served)
        assert holders(out, encode(samples[4]), world_url(4).encode()) == []
        again = download_shard(after, out, key, settings=served, denylist=Denylist.load(tmp_path))
        assert server.requests.total() == 5, "the others are not fetched again"
    assert again.equals(output.filter(pl.col("source_row") != 4))
    members = {name: data for name, data in everything(out).items() if ".tar!" in name}
    stem = output["member"][4].partition(".")[0]
    assert members == {name: data for name, data in before.items() if ".tar!" in name and stem not in name}


def test_downloads_of_a_pool_are_purged_at_once_and_other_shards_stay(tmp_path: Path) -> None:
    settings = load_settings(tmp_path, "embedded")
    add_world_pool(settings, "toy", size=12, seed=5, shard_size=6)
    ctx = PoolContext.open(settings, "toy")
    run_with_upstream(ctx, "raw/samples")
    downloads = ctx.store.root / "downloads"
    row = ctx.store.read("raw/samples", "toy-000001").filter(status="kept").row(0, named=True)
    image = tar_index(ctx.store.root / row["tar"]).read(row["member"])
    assert holders(downloads, image)
    before = everything(downloads / "toy-000000")
    add_to_denylist(tmp_path, [("url", row["url"])])
    assert begin_takedown(ctx, tables_of(ctx)) is not None
    assert holders(downloads, image, row["url"].encode(), row["caption"].encode()) == []
    assert everything(downloads / "toy-000000") == before
    assert holders(downloads / "toy-000001", b"\xff\xd8\xff"), "its neighbours are still there"


def test_copies_of_a_folders_images_are_purged_and_stay_whole(tmp_path: Path) -> None:
    """Its other images are not copied again."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number in range(4):
        (folder / f"{number}.jpg").write_bytes(jpeg(number))
        (folder / f"{number}.txt").write_text(f"picture {number} of a shelf")
    settings = load_settings(tmp_path, "embedded")
    add_pool(settings, "own", str(folder))
    ctx = PoolContext.open(settings, "own")
    run_with_upstream(ctx, "raw/samples")
    add_to_denylist(tmp_path, [("sha256", hashlib.sha256(jpeg(2)).hexdigest())])
    assert begin_takedown(ctx, tables_of(ctx)) is not None
    assert holders(ctx.store.root / "downloads", jpeg(2)) == []
    assert [damage for check in download_checks(ctx) for damage in check()] == []
    (tar,) = (ctx.store.root / "downloads").rglob("*.tar")
    before = tar.stat()
    run_with_upstream(ctx, "raw/samples")
    assert (tar.stat().st_ino, tar.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_purge_of_downloads_that_is_killed_fetches_nothing_again(tmp_path: Path) -> None:
    """Their addresses may be dead by then: a neighbour that is fetched again is a neighbour that may be lost."""
    samples = planted(3, 1)
    write_world_urls(tmp_path / "urls.parquet", samples, 1)
    urls = pl.read_parquet(tmp_path / "urls.parquet").rename({"uid": "sample_id"}).with_row_index("source_row")
    key, removed, after = "toy-000000", urls["sample_id"][1], urls.filter(pl.col("source_row") != 1)
    with WorldServer(samples, 1, has_trouble=False) as server:
        served = DownloadSettings(retries=0, connect_to=server.connect_to)
        output = download_shard(urls, tmp_path / "out", key, settings=served)
        assert output["status"].to_list() == ["kept"] * 3
        for number in itertools.count():
            out = tmp_path / f"killed-{number}"
            shutil.copytree(tmp_path / "out", out)
            with pytest.MonkeyPatch.context() as monkeypatch:
                killed_at_rename(number, monkeypatch)
                try:
                    take_down_downloads(out, key, [removed], before=urls, after=after, settings=served)
                    was_killed = False
                except Killed:
                    was_killed = True
            take_down_downloads(out, key, [removed], before=urls, after=after, settings=served)
            again = download_shard(after, out, key, settings=served)
            assert server.requests.total() == 3, f"killed at rename {number}"
            assert again.equals(output.filter(pl.col("source_row") != 1))
            if not was_killed:
                break
    assert number > 3


def test_the_list_tells_nothing_and_knows_its_own(tmp_path: Path) -> None:
    url = "https://Some.Example/a.jpg?x=1#top"
    assert add_to_denylist(tmp_path, [("url", url), ("domain", "bad.example"), ("url", url)]) == 2
    assert add_to_denylist(tmp_path, [("url", "https://some.example/a.jpg?x=1")]) == 0
    text = (tmp_path / "takedown" / "denylist.json").read_text()
    assert "example" not in text
    listed = Denylist.load(tmp_path)
    plain = hashlib.sha256(b"https://some.example/a.jpg?x=1").hexdigest()
    assert plain not in text, "salted"
    assert listed.has("url", "HTTPS://some.example/a.jpg?x=1")
    assert not listed.has("url", "https://some.example/a.jpg")
    urls = pl.DataFrame({"url": ["http://a.b.bad.example:80/x", "http://notbad.example/x"]})
    assert listed.denied(urls).to_list() == [True, False]
    assert not Denylist.load(tmp_path / "nowhere")
    for kind, bad in (("uid", "abc"), ("sha256", "a" * 63), ("url", "no url"), ("domain", "a/b")):
        with pytest.raises(ValueError, match="expected"):
            normalised(kind, bad)  # type: ignore[arg-type]


IDS = st.integers(0, 40).map(lambda number: f"{number:032x}")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("http://a.example/b c/ä.jpg", "http://a.example/b%20c/%C3%A4.jpg"),
        ("http://bücher.example/1.jpg", "http://XN--BCHER-KVA.example/1.jpg#part"),
        (" http://a.example/1.jpg\n", "http://a.example/1.jpg"),
    ],
)
def test_a_url_is_known_however_it_is_written(tmp_path: Path, one: str, other: str) -> None:
    """Both are downloaded as the same address; so is what an earlier version put on the list."""
    for listed, shown in ((one, other), (other, one)):
        home = tmp_path / str(len(listed))
        add_to_denylist(home, [("url", listed)])
        assert Denylist.load(home).has("url", shown)
    host = urlsplit(other).hostname or ""
    add_to_denylist(tmp_path, [("domain", host)])
    assert Denylist.load(tmp_path).denied(pl.DataFrame({"url": [one]})).all()
    earlier = _hash("salt", "url", "http://a.example/b c.jpg")
    written = Denylist(("salt",), {"url": {earlier: None}})
    assert written.has("url", "http://a.example/b c.jpg")
    assert not written.has("url", "http://a.example/d.jpg")


@given(st.lists(IDS, max_size=20), st.sets(IDS, max_size=8))
def test_denied_rows_are_exactly_those_listed(
    tmp_path_factory: pytest.TempPathFactory, ids: list[str], bad: set[str]
) -> None:
    home = tmp_path_factory.mktemp("home")
    add_to_denylist(home, [("uid", one) for one in sorted(bad)])
    frame = pl.DataFrame({"sample_id": ids}, schema={"sample_id": pl.String})
    assert Denylist.load(home).denied(frame).to_list() == [one in bad for one in ids]


SIGNALS_OF_WEB = {"clip_score": 3, "descriptive": 5}


def test_a_fit_with_settings_stays_when_given_values_lose_a_row(tmp_path: Path) -> None:
    """The purge rewrites the file of given signals; what was fitted on the other rows' values does not move."""
    urls = [f"http://host.example/{number}.jpg" for number in range(8)]
    captions = [f"picture {number} of a shelf" for number in range(8)]
    rows = [(f"{number:04d}", urls[number], captions[number], jpeg(number)) for number in range(8)]
    write_tar(tmp_path / "tars" / "000000.tar", rows[:4])
    write_tar(tmp_path / "tars" / "000001.tar", rows[4:])
    given = tmp_path / "given.parquet"
    values = {name: [number * step % 7 / 7 for number in range(8)] for name, step in SIGNALS_OF_WEB.items()}
    ids = [sample_id_of(url, caption) for url, caption in zip(urls, captions, strict=True)]
    pl.DataFrame({"sample_id": ids, **values}).write_parquet(given)
    settings = load_settings(tmp_path, "embedded")
    options = {
        "distil": False, "downstream": False, "policies": ["web"], "image_domain": "other",
        "given_signals": {name: f"{given}:{name}" for name in values},
    }  # fmt: skip
    add_pool(settings, "own", tmp_path / "tars", options=options)
    ctx = PoolContext.open(settings, "own")
    run_with_upstream(ctx, "fused/web")
    is_other = pl.col("sample_id") != ids[5]
    before, fit = ctx.store.scan("fused/web").filter(is_other).collect(), ctx.store.read("fused/web_fit")
    add_to_denylist(tmp_path, [("url", urls[5])])
    begun = begin_takedown(ctx, tables_of(ctx), with_sources=True)
    assert begun is not None
    run_with_upstream(ctx, "fused/web")
    assert ctx.store.read("fused/web_fit").equals(fit)
    assert ctx.store.scan("fused/web").filter(is_other).collect().equals(before)
    assert pl.read_parquet(given).height == 7
