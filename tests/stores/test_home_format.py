"""The number of a home's format: written when it is made, refused where it is newer, 1 where there is none."""

import json
from pathlib import Path

import pytest

from curation_assets.core.json_files import DamagedFileError
from curation_assets.core.settings import Settings, load_settings
from curation_assets.sources.declaration import Pool, add_pool, list_pools, load_pool
from curation_assets.stores.home_format import FORMAT, FORMAT_FILE, HomeFormatError
from tests.support.command import curate


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(tmp_path / "home", "embedded")


@pytest.fixture
def pool(settings: Settings, tmp_path: Path) -> Pool:
    source = tmp_path / "captions.csv"
    source.write_text("caption\na dog\n")
    return add_pool(settings, "texts", source)


def test_a_new_home_is_numbered(settings: Settings, pool: Pool) -> None:
    assert json.loads((settings.home / FORMAT_FILE).read_text())["format"] == FORMAT


def test_a_home_without_a_number_opens_and_stays_as_it_is(settings: Settings, pool: Pool) -> None:
    (settings.home / FORMAT_FILE).unlink()
    before = {path: path.read_bytes() for path in settings.home.rglob("*") if path.is_file()}
    assert load_pool(settings, "texts") == pool
    assert list_pools(settings) == ["texts"]
    assert {path: path.read_bytes() for path in settings.home.rglob("*") if path.is_file()} == before


def test_a_home_of_a_newer_format_is_refused(settings: Settings, pool: Pool) -> None:
    (settings.home / FORMAT_FILE).write_text(json.dumps({"format": FORMAT + 1, "written_by": "9.0.0", "more": []}))
    for read in (list_pools, lambda settings: load_pool(settings, "texts"), lambda settings: load_pool(settings, "no")):
        with pytest.raises(HomeFormatError, match=rf"is of format {FORMAT + 1}, which a newer version made"):
            read(settings)
    run = curate("run", "texts", home=settings.home)
    assert run.exit_code == 1
    assert "install the newer version" in " ".join(run.output.split())


@pytest.mark.parametrize("content", ["", "[]", '{"format": "x"}', "{}"])
def test_a_number_that_cannot_be_read_is_refused(settings: Settings, pool: Pool, content: str) -> None:
    (settings.home / FORMAT_FILE).write_text(content)
    with pytest.raises(DamagedFileError, match=r'write {"format": 1} into it'):
        list_pools(settings)
