"""Sources: kinds of the package and of a user's own keep to one contract, and are found by their files."""

import re
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from PIL import Image

from curation_assets.core.own_modules import no_other_home
from curation_assets.core.settings import Settings, load_settings
from curation_assets.sources.base import kinds_of_the_package, source_of
from curation_assets.sources.contract import check_own_source, check_source
from curation_assets.sources.declaration import add_pool, load_pool
from curation_assets.sources.shards import build_samples, discover_shards, download, register_shard, source_fingerprint
from tests.support.command import curate
from tests.support.lineage_pools import jpeg, write_tar
from tests.support.paths import REPOSITORY
from tests.support.tars import encoded

PAGE = (REPOSITORY / "docs" / "user" / "own_source.md").read_text(encoding="utf-8")
CODE = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)[0]
CAPTIONS = ["a red kite", "two geese", "", "a heron by a lake", "an owl"]


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    with no_other_home():
        yield load_settings(tmp_path / "home", "embedded")


@pytest.fixture
def own(settings: Settings) -> Path:
    """The page's source in a home."""
    path = settings.pools_root / "sources" / "sqlite_table.py"
    path.parent.mkdir(parents=True)
    path.write_text(CODE)
    return path


def picture(seed: int) -> bytes:
    return encoded(Image.new("RGB", (40, 30), (seed * 40 % 256, 90, 120)), "PNG")


def database(path: Path, captions: list[str] = CAPTIONS) -> Path:
    """A picture a caption; the last one is no picture, the one before has none."""
    images = [*(picture(number) for number in range(len(captions) - 2)), None, b"no picture"]
    with sqlite3.connect(path) as connection:
        connection.execute("create table samples (caption text, image blob)")
        connection.executemany("insert into samples values (?, ?)", zip(captions, images, strict=True))
    connection.close()
    return path


def samples_of(settings: Settings, name: str) -> pl.DataFrame:
    pool = load_pool(settings, name)
    parts = []
    for shard in discover_shards(pool, settings):
        registered = register_shard(pool, shard, settings)
        parts.append(build_samples(pool, shard, registered, download(pool, shard, registered, settings), settings))
    return pl.concat(parts)


def test_the_source_of_the_page_is_detected_and_its_rows_have_their_images(
    tmp_path: Path, settings: Settings, own: Path
) -> None:
    source = database(tmp_path / "birds.sqlite")
    pool = add_pool(settings, "birds", source, shard_size=2)
    assert (pool.kind, pool.has_images, pool.opens_urls) == ("sqlite_table", True, False)
    assert discover_shards(pool, settings) == ["birds-000000", "birds-000001", "birds-000002"]
    samples = samples_of(settings, "birds")
    assert samples["caption"].to_list() == CAPTIONS
    ends = [(row["status"], (row["reason"] or "").partition(":")[0]) for row in samples.iter_rows(named=True)]
    assert ends[:2] == [("kept", ""), ("kept", "")]
    assert [status for status, _ in ends[2:]] == ["dropped", "failed", "failed"]
    assert ends[3][1] == "missing_image"
    assert samples["width"][0] == 40
    before = source_fingerprint(pool, "birds-000000", settings)
    source.unlink()
    database(source, ["another", *CAPTIONS[1:]])
    assert source_fingerprint(pool, "birds-000000", settings) != before


def test_the_command_says_what_holds_and_what_does_not(tmp_path: Path) -> None:
    file, example = tmp_path / "sqlite_table.py", database(tmp_path / "small.sqlite")
    file.write_text(CODE)
    done = curate("pool", "check-source", file, example)
    assert done.exit_code == 0, done.output
    assert done.output.count("ok: ") == 8
    file.write_text(CODE.replace("order by rowid", "order by random()"))
    database(tmp_path / "many.sqlite", [f"bird {number}" for number in range(9)])
    done = curate("pool", "check-source", file, tmp_path / "many.sqlite")
    assert done.exit_code == 1
    assert "FAULT: The same source gives the same rows and the same fingerprint." in done.output


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        (CODE.replace("path.is_file() and", "path.is_dir() or"), "takes an empty folder for its own"),
        (CODE.replace('== ".sqlite"', '== ".db"'), "expected a folder of tars or of images"),
        (CODE.replace("image=image", "image=None"), "no row of contract-000000 has an image"),
        (CODE.replace("yield Row(caption,", "yield Row(None,"), "no row has a caption"),
        (CODE.replace("from samples", "from birds"), "no such table: birds"),
    ],
    ids=["greedy", "blind", "no image", "no caption", "raises"],
)
def test_a_source_that_breaks_a_rule_is_told_which(code: str, fault: str, tmp_path: Path) -> None:
    file, example = tmp_path / "sqlite_table.py", database(tmp_path / "small.sqlite")
    file.write_text(code)
    last = check_own_source(file, example)[-1]
    assert fault in str(last.fault)


@pytest.mark.parametrize(
    ("code", "match"),
    [
        ("SOURCE = 3", "expected SOURCE = a curation_assets.sources.base.Source, got int"),
        ("", "got none"),
        ("import there_is_no_such_module", "cannot be imported: ModuleNotFoundError"),
        ("def (", "cannot be imported: SyntaxError"),
    ],
)
def test_a_file_that_is_no_source_is_named(
    code: str, match: str, settings: Settings, own: Path, tmp_path: Path
) -> None:
    own.write_text(code)
    with pytest.raises(ValueError, match=match) as caught:
        add_pool(settings, "birds", database(tmp_path / "birds.sqlite"))
    assert str(own) in str(caught.value)


def test_code_that_everybody_may_write_is_not_run(settings: Settings, own: Path, tmp_path: Path) -> None:
    own.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    own.chmod(0o666)
    with pytest.raises(ValueError, match="may be written by anybody"):
        add_pool(settings, "birds", database(tmp_path / "birds.sqlite"))
    assert not (tmp_path / "ran").exists()


def test_a_kind_that_is_gone_and_one_of_a_taken_name_are_errors(settings: Settings, own: Path, tmp_path: Path) -> None:
    source = database(tmp_path / "birds.sqlite")
    add_pool(settings, "birds", source)
    own.rename(own.with_name("webdataset.py"))
    with pytest.raises(ValueError, match="may not be called webdataset"):
        add_pool(settings, "again", source)
    with pytest.raises(ValueError, match=r"got 'sqlite_table' .*pools/sources/sqlite_table\.py"):
        load_pool(settings, "birds")


def test_two_homes_of_one_process_may_not_mean_different_sources(settings: Settings, own: Path, tmp_path: Path) -> None:
    add_pool(settings, "birds", database(tmp_path / "birds.sqlite"))
    other = load_settings(tmp_path / "other", "embedded")
    copied = other.pools_root / "sources" / own.name
    copied.parent.mkdir(parents=True)
    copied.write_text(CODE)
    assert add_pool(other, "birds", tmp_path / "birds.sqlite").kind == "sqlite_table"
    copied.write_text(CODE + "\n# another\n")
    with pytest.raises(ValueError, match="differ; a process reads one sqlite_table"):
        load_pool(other, "birds")


def test_an_installed_package_brings_a_source(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    (site / "birds-1.0.dist-info").mkdir(parents=True)
    (site / "birds_source.py").write_text(CODE)
    (site / "birds-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: birds\nVersion: 1.0\n")
    (site / "birds-1.0.dist-info" / "entry_points.txt").write_text(
        "[curation_assets.sources]\nsqlite_table = birds_source\n"
    )
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    assert add_pool(settings, "birds", database(tmp_path / "birds.sqlite")).kind == "sqlite_table"
    monkeypatch.delitem(sys.modules, "birds_source")


def tars(folder: Path) -> Path:
    rows = [(f"{n:03d}", f"http://a.example/{n}.jpg", f"a photo {n}", jpeg(n)) for n in range(4)]
    write_tar(folder / "000000.tar", rows)
    return folder


def images(folder: Path) -> Path:
    folder.mkdir()
    for number in range(4):
        (folder / f"{number}.png").write_bytes(picture(number))
        (folder / f"{number}.txt").write_text(f"a picture {number}")
    return folder


def captions(folder: Path) -> Path:
    folder.mkdir()
    pl.DataFrame({"caption": CAPTIONS, "url": [f"http://a.example/{n}.jpg" for n in range(5)]}).write_csv(
        folder / "a.csv"
    )
    return folder / "a.csv"


EXAMPLES = {"webdataset": tars, "image_table": images, "url_table": captions}


@pytest.mark.parametrize("kind", sorted({*kinds_of_the_package()} - {"world"}))
def test_kinds_of_the_package_keep_to_the_contract(kind: str, settings: Settings, tmp_path: Path) -> None:
    found = check_source(source_of(kind), kind, EXAMPLES[kind](tmp_path / "example"), settings)
    assert [(checked.rule, checked.fault) for checked in found if checked.fault] == []
    assert len(found) == 8
