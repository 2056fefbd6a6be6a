"""Rows that are taken down leave stored tables: nothing is computed, other rows stay bit for bit, nothing is stale."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from curation_assets.audit.ledger import recorded_ledger
from curation_assets.core.settings import Settings, load_settings
from curation_assets.defs.publishing import run_and_publish
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import policies_of
from curation_assets.flow.freshness import is_up_to_date, materialise_table
from curation_assets.flow.graph import tables_of
from curation_assets.operations.releases import create_release, verify_release
from curation_assets.operations.takedown import begin_takedown
from curation_assets.selection.cut import cut_of_frame
from curation_assets.sources.declaration import add_pool
from curation_assets.stores.catalog import stored_tables
from curation_assets.stores.denylist import add_to_denylist
from curation_assets.stores.releases import list_releases
from curation_assets.stores.shard_store import ShardStore
from tests.support.id_lists import read_subset
from tests.support.lineage_pools import OPTIONS, caption_of, jpeg, write_tar

CAPTIONS = 20
RAW = ("raw/registered_shards", "raw/downloads", "raw/samples", "raw/provenance")
#: In place of torch, for a process and all that it starts: notes that somebody wanted it, and is none.
NO_TORCH = "import os\nopen(os.environ['TORCH_WANTED'], 'a').write('x')\nraise ImportError('no torch here')\n"


def rows_of_shards(store: ShardStore) -> dict[tuple[str, str], pl.DataFrame]:
    return {(name, key): store.read(name, key) for name in stored_tables(store) for key in store.partitions(name)}


def made_by(store: ShardStore) -> dict[tuple[str, str], tuple[str, str]]:
    """Which run computed which table, from which code."""
    keys = [(name, key) for name in stored_tables(store) for key in store.partitions(name)]
    manifests = {(name, key): store.manifest(name, key) for name, key in keys}
    return {key: (one.run_id, one.code_version) for key, one in manifests.items() if one is not None}


def stale(ctx: PoolContext) -> list[tuple[str, str | None]]:
    tables = tables_of(ctx)
    keys = [(table, key) for table in tables.values() for key in table.partitions(ctx.shards())]
    return [(table.name, key) for table, key in keys if not is_up_to_date(ctx, table, key, tables=tables)]


@pytest.fixture(scope="module")
def texts_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home whose pool of captions in two shards has run, models and all, with a release of every policy."""
    home = tmp_path_factory.mktemp("rows") / "home"
    home.mkdir()
    captions = [f"{caption_of(n)} box on table {n} beside a red {'tall ' * (n % 3)}lamp" for n in range(CAPTIONS)]
    pl.DataFrame({"caption": captions}).write_csv(home.parent / "texts.csv")
    settings = load_settings(home, "embedded")
    options = {"fraction": 0.4, "distil": False, "downstream": False}
    add_pool(settings, "texts", home.parent / "texts.csv", shard_size=CAPTIONS // 2, options=options)
    run_and_publish(settings, "texts")
    ctx = PoolContext.open(settings, "texts")
    for policy in policies_of(ctx):
        create_release(ctx, tables_of(ctx), policy.name, f"{policy.name}_v1")
    yield home
    shutil.rmtree(home)


@pytest.mark.slow
def test_the_rows_on_which_cuts_fell_are_taken_down_without_a_model(texts_home: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    shutil.copytree(texts_home, home, symlinks=True)
    settings = load_settings(home, "embedded")
    ctx = PoolContext.open(settings, "texts")
    store, policies = ctx.store, [policy.name for policy in policies_of(ctx)]
    cuts = {name: cut_of_frame(store.read(f"filtered/{name}_cut")) for name in policies}
    taken = sorted({one.boundary_id for cut in cuts.values() for one in cut.cuts if one.boundary_id is not None})
    assert len(taken) >= 2
    before, makers = rows_of_shards(store), made_by(store)
    ledgers = {name: pl.concat(recorded_ledger(store, name).parts()) for name in policies}
    kept = {name: read_subset(store.folder_path("filtered/subsets") / f"{name}.npy") for name in policies}

    stub = tmp_path / "stub" / "torch" / "__init__.py"
    stub.parent.mkdir(parents=True)
    stub.write_text(NO_TORCH)
    wanted = tmp_path / "torch_wanted"
    places = [str(stub.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places), "TORCH_WANTED": str(wanted)}
    curate = [sys.executable, "-c", "from curation_assets.cli import app; app()"]
    ids = [word for sample_id in taken for word in ("--uid", sample_id)]
    for command in (["takedown", "add", *ids], ["takedown", "apply"]):
        ended = subprocess.run(
            [*curate, *command, "--home", str(home)], env=environment, capture_output=True, text=True
        )
        assert ended.returncode == 0, ended.stderr
    assert "made again, since their rows depend on others: raw/lookup" in ended.stdout
    assert not wanted.exists(), "a model was loaded, by this process or one that it started"

    after = rows_of_shards(store)
    is_taken = pl.col("sample_id").is_in(taken)
    assert after.keys() == before.keys()
    for key, rows in after.items():
        assert rows.filter(~is_taken).equals(before[key].filter(~is_taken)), key
        assert rows.filter(is_taken).select(pl.exclude("sample_id", "shard", "source_row", "source")).n_unique() <= 1, (
            key
        )
    computed = {key for key, maker in made_by(store).items() if maker != makers[key]}
    assert {name for name, _ in computed} <= {"raw/registered_shards"}
    assert stale(ctx) == []
    for name, cut in cuts.items():
        now = cut_of_frame(store.read(f"filtered/{name}_cut"))
        assert not {one.boundary_id for one in now.cuts} & set(taken)
        assert [one.threshold for one in now.cuts] == [one.threshold for one in cut.cuts]
        left = [one for one in kept[name] if one not in taken]
        assert read_subset(store.folder_path("filtered/subsets") / f"{name}.npy") == left
        ledger, release = recorded_ledger(store, name), _latest(settings, name)
        rows = pl.concat(ledger.parts())
        others = pl.Series(rows["reason"].cast(pl.String) != "takedown").fill_null(True)
        assert rows.filter(others).equals(ledgers[name].filter(others))
        assert read_subset(release.folder / "subset.npy") == left
        assert ledger.cut == now
        assert json.loads((release.folder / "cuts.json").read_text())["cuts"] == now.to_dict()["cuts"]
        assert verify_release(release.folder) == []
    held = {path for path in home.rglob("*") if path.is_file() and _names_any(path, taken)}
    # tables keep the id of a row without content, and so does a preview of one that was made again
    assert {path.relative_to(home).parts[0] for path in held} <= {"work", "takedown", "dagster"}
    assert not [path for path in held if path.suffix in (".html", ".npy", ".tsv", ".js")]


def _latest(settings: Settings, subset: str) -> Any:
    return next(one for one in reversed(list_releases(settings.home)) if one.subset == subset)


def _names_any(path: Path, sample_ids: list[str]) -> bool:
    data = path.read_bytes()
    texts = [data]
    if path.suffix == ".parquet":
        texts.append(repr(pl.read_parquet(path, hive_partitioning=False).rows()).encode())
    halves = [half for one in sample_ids for half in (one[:16], one[16:])]
    needles = [*(one.encode() for one in sample_ids), *(int(one, 16).to_bytes(8, "little") for one in halves)]
    return any(needle in text for needle in needles for text in texts)


def tars(home: Path) -> Path:
    rows = [(f"{n:06d}", f"http://h.example/{n}.jpg", caption_of(n), jpeg(n)) for n in range(4)]
    facts = {key: {"origin": "flickr", "rights": "cc0"} for key, *_ in rows}
    write_tar(home / "tars" / "0.tar", rows, facts)
    return home / "tars"


def captions(home: Path) -> Path:
    pl.DataFrame({"caption": [*map(caption_of, range(4)), caption_of(1)]}).write_csv(home / "captions.csv")
    return home / "captions.csv"


def parquet_of_images(home: Path) -> Path:
    images = [{"bytes": jpeg(n), "path": f"{n}.jpg"} for n in range(4)]
    pl.DataFrame({"image": images, "caption": [*map(caption_of, range(4))]}).write_parquet(home / "images.parquet")
    return home / "images.parquet"


def folder_of_images(home: Path) -> Path:
    folder = home / "images"
    folder.mkdir()
    for n in range(4):
        (folder / f"{n}.jpg").write_bytes(jpeg(n))
    table = {"file_name": [f"{n}.jpg" for n in range(4)], "caption": [*map(caption_of, range(4))]}
    pl.DataFrame(table).write_csv(folder / "metadata.csv")
    return folder


@pytest.mark.parametrize("with_sources", [False, True])
@pytest.mark.parametrize("kind", [tars, captions, parquet_of_images, folder_of_images])
def test_a_shard_is_registered_again_as_the_takedown_left_it(tmp_path: Path, kind: Any, with_sources: bool) -> None:
    """So that nothing that rests on it is made again, of whatever kind its source is."""
    home = tmp_path / "home"
    settings = load_settings(home, "embedded")
    columns = {"source": "origin", "licence": "rights"} if kind is tars else None
    add_pool(settings, "photos", kind(tmp_path), columns=columns, options=OPTIONS)
    ctx = PoolContext.open(settings, "photos", run_id="first")
    tables = tables_of(ctx)
    for shard in ctx.shards():
        for name in RAW:
            materialise_table(ctx, tables[name], shard, tables=tables)
    before = rows_of_shards(ctx.store)
    sample_id = ctx.store.scan("raw/samples").filter(caption=caption_of(1)).collect()["sample_id"][0]
    add_to_denylist(home, [("uid", sample_id)])
    assert begin_takedown(ctx, tables, with_sources=with_sources) is not None
    for (name, _), rows in rows_of_shards(ctx.store).items():
        others = pl.col("sample_id") != sample_id
        assert rows.filter(others).equals(before[name, _].filter(others)), name
    contents = {key: ctx.store.manifest(*key).content_sha256 for key in before}  # type: ignore[union-attr]
    again = PoolContext.open(settings, "photos", run_id="again")
    tables = tables_of(again)
    for shard in ctx.shards():
        for name in RAW:
            made = materialise_table(again, tables[name], shard, tables=tables)
            assert made.manifest.content_sha256 == contents[name, shard], name
            assert made.is_reused or name == "raw/registered_shards", name
