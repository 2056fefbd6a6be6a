"""A home that was copied, and whose original is no longer there, is as finished as the original was."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import duckdb
import polars as pl
import pytest

from curation_assets.core.settings import Settings, load_settings
from curation_assets.defs.launch import prepare_instance
from curation_assets.defs.publishing import run_and_publish
from curation_assets.outputs.registry import recorded_exports
from curation_assets.sources.declaration import load_pool
from tests.support.command import curate
from tests.support.lineage_pools import bring_up_to_date, webdataset_pool

#: What asks no model: the signals of this pool are written by hand.
RAW = ["raw/registered_shards", "raw/downloads", "raw/samples", "raw/lookup"]
FILTERED = ["filtered/duplicates", "filtered/icc_cut", "filtered/icc", "filtered/clip_cut", "filtered/clip"]


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> tuple[Settings, Path]:
    """Settings of the copy, and where the original was."""
    base = tmp_path_factory.mktemp("homes")
    original, copy = base / "original", base / "other" / "disk" / "copy"
    settings = replace(webdataset_pool(original), workers=1)
    bring_up_to_date(settings)
    run_and_publish(settings, "photos", tables=[*RAW, *FILTERED])
    _curate("export", "keys", "icc", "--out", str(original / "lists"), "--home", str(original))
    shutil.copytree(original, copy, symlinks=True)
    shutil.rmtree(original)
    return replace(load_settings(copy, "embedded"), workers=1), original


def _curate(*words: str) -> str:
    run = curate(*words)
    assert run.exit_code == 0, run.output
    return run.stdout


@pytest.mark.slow
def test_nothing_is_made_again(copied: tuple[Settings, Path]) -> None:
    settings, _ = copied
    with prepare_instance(settings) as instance:
        before = instance.get_runs_count()
    reports = run_and_publish(settings, "photos", tables=[*RAW, *FILTERED])
    assert [report.table for report in reports if report.computed] == []
    assert {report.table for report in reports} == {*RAW, *FILTERED}
    with prepare_instance(settings) as instance:
        assert instance.get_runs_count() == before > 0


@pytest.mark.slow
def test_commands_read_the_copy(copied: tuple[Settings, Path], tmp_path: Path) -> None:
    settings, _ = copied
    home = ["--home", str(settings.home)]
    with duckdb.connect(str(settings.catalog), read_only=True) as catalog:  # as it was copied
        kept = catalog.sql("select sample_id from photos.filtered_icc where verdict = 'kept'").fetchall()
        assert catalog.sql("select count(*) from photos.ledger_icc where verdict = 'kept'").fetchall() == [(len(kept),)]
    assert "kept" in _curate("why", kept[0][0], *home)
    _curate("diff", "icc", "clip", *home)
    _curate("show", "lineage", "icc", *home)
    _curate("export", "webdataset", "icc", "--out", str(tmp_path / "tars"), *home)
    assert sum(1 for _ in (tmp_path / "tars").glob("*.tar")) == 1
    _curate("takedown", "apply", *home)
    assert next(record.folder for record in recorded_exports(settings.home)) == str(settings.home / "lists")
    assert load_pool(settings, "photos").source == str(settings.home / "tars")


def test_no_file_names_the_folder_of_the_original(copied: tuple[Settings, Path]) -> None:
    settings, original = copied
    # a cache of hashes, whose entries of other paths are not used
    files = [path for path in _files(settings.home) if not path.name.endswith(".sha256.json")]
    assert len(files) > 40
    assert [path for path in files if str(original).encode() in path.read_bytes()] == []
    for path in files:
        if path.suffix == ".parquet":
            texts = pl.read_parquet(path, hive_partitioning=False).select(pl.selectors.string())
            assert not any(series.str.contains(str(original), literal=True).any() for series in texts), path


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink())


def test_a_source_outside_the_home_stays_where_it_is(tmp_path: Path) -> None:
    settings = webdataset_pool(tmp_path / "elsewhere", shards=1)
    home = load_settings(tmp_path / "home", "embedded")
    (tmp_path / "home" / "pools").mkdir(parents=True)
    text = (settings.pools_root / "photos.yaml").read_text(encoding="utf-8")
    assert "source: tars\n" in text
    absolute = text.replace("source: tars\n", f"source: {tmp_path / 'elsewhere' / 'tars'}\n")
    (home.pools_root / "photos.yaml").write_text(absolute, encoding="utf-8")
    assert load_pool(home, "photos").source == str(tmp_path / "elsewhere" / "tars")
