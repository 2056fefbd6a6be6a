"""docs/operator/format_on_disk.md names what a pool that ran has on disk, with its columns."""

import re
import sys

from curation_assets.selection.judging import VERDICT_SCHEMA
from curation_assets.stores.home_format import FORMAT
from curation_assets.stores.manifest import Manifest
from tests.conftest import FinishedPool
from tests.support.paths import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "docs" / "contributor"))

from make_format import PAGE, table_rows

TEXT = PAGE.read_text(encoding="utf-8")


def test_the_page_has_every_table_and_its_columns(finished_pool: FinishedPool) -> None:
    listed = {
        name: (grain, columns)
        for names, grain, columns in re.findall(
            r"^\| (`[a-z_]+/.*?) \| ([a-z ]+) \| (.*) \|$", TEXT, flags=re.MULTILINE
        )
        for name in names.split(", ")
    }
    found = {
        name: (grain, columns)
        for names, grain, columns in table_rows(finished_pool.ctx.store)
        for name in names.split(", ")
    }
    assert len(found) > 30
    assert {name: listed.get(name) for name in found} == found, "run docs/contributor/make_format.py"


def test_the_page_has_every_folder(finished_pool: FinishedPool) -> None:
    stages = {"raw", "teachers", "standardised", "distilled", "signals", "fused", "filtered", "downstream"}
    for folder in (finished_pool.settings.home, finished_pool.ctx.store.root):
        there = {path.name for path in folder.iterdir() if not path.name.startswith(".")} - stages
        assert there
        assert {
            name for name in there if not re.search(rf"`{re.escape(name)}[`/]|, `{re.escape(name)}/`", TEXT)
        } == set()


def test_the_page_has_the_number_the_ledger_and_the_manifest() -> None:
    assert f'{{"format": {FORMAT}}}' in TEXT
    for name in (*VERDICT_SCHEMA, *Manifest.__dataclass_fields__):
        assert f"`{name}`" in TEXT
