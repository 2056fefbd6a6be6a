"""Dagster's UI by clicks in a browser: a partition, a night, a backfill that fails and is mended, a cancelled one.

The pages lie as pictures in the test's folder (`pytest --basetemp`).
"""

import random
import time
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
import yaml

from curation_assets.core.progress import Silent
from curation_assets.core.settings import Settings
from curation_assets.defs.launch import prepare_instance, run_pool
from curation_assets.defs.repairing import repair_pool
from curation_assets.flow.context import PoolContext
from curation_assets.flow.graph import tables_of
from curation_assets.operations.verify import verify_pool
from curation_assets.stores.lease import alone_with_tables
from tests.defs.test_partitions import RAW, key, pool_of
from tests.support.browser import DESKTOP, Page, open_browser
from tests.support.webserver import curate_ui
from tests.torture.faults.bit_flips import flip_bit

pytestmark = [pytest.mark.infra, pytest.mark.timeout(1800)]
BAD = "photos-000004"
NEXT = ("raw/provenance", "signals/icc")
NEVER = "59 23 31 12 *"  # the hour would fill in what the clicks are to make


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A pool of ten shards of which three tables are made; a byte of one file of the last has changed."""
    settings = pool_of(tmp_path_factory.mktemp("home"), 1, shards=10)
    path = settings.pools_root / "photos.yaml"
    declared = yaml.safe_load(path.read_text())
    declared["options"]["backfill_cron"] = NEVER
    path.write_text(yaml.safe_dump(declared))
    run_pool(settings, "photos", tables=RAW)
    flip_bit(PoolContext.open(settings, "photos").store.table_path(RAW[-1], BAD), random.Random(1))
    return settings


@pytest.fixture(scope="module")
def instance(settings: Settings) -> Iterator[dg.DagsterInstance]:
    with prepare_instance(settings) as opened:
        yield opened


@pytest.fixture(scope="module")
def url(settings: Settings, instance: dg.DagsterInstance) -> Iterator[str]:
    """The UI, once its daemon is there, too: a dialog that is open moves when its warning of that goes."""
    with curate_ui(settings.home) as address:
        while "BACKFILL" not in instance.get_daemon_heartbeats():
            time.sleep(1)
        yield address


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with open_browser(tmp_path_factory.mktemp("browser") / "profile") as opened:
        yield opened


def _has(page: Page, url: str, table: str, **states: int) -> None:
    """Wait until the page of a table's partitions has so many of each state."""
    page.open(f"{url}/assets/photos/{table}?view=partitions&partition={BAD}", DESKTOP)
    for state, count in states.items():
        page.shows(f"{state} ({count})")


def _launch(page: Page, button: str) -> None:
    """Press the dialog's button, and wait until it is closed: a page that is left earlier sends nothing."""
    page.click(button)
    page.wait_for("!document.body.innerText.includes('Partition selection')")


def _materialise(page: Page, url: str, tables: tuple[str, ...], partitions: str, button: str) -> None:
    """Select tables in the lineage, and partitions in the dialog."""
    page.open(f"{url}/asset-groups", DESKTOP)
    page.click("Search and filter assets")
    page.type(" or ".join(f'key:"photos/{table}"' for table in tables))
    page.click("Materialize all…")
    page.click(partitions)
    _launch(page, button)


def test_one_partition(url: str, page: Page, tmp_path: Path) -> None:
    page.open(f"{url}/assets/photos/raw/provenance?view=overview", DESKTOP)
    for text in ("Materialize…", "All", "10 partitions selected", "Select all (10)", "photos-000000"):
        page.click(text)
    page.press("Escape")
    page.screenshot(tmp_path / "dialog.png", whole=False)
    _launch(page, "Launch 1 run")
    _has(page, url, "raw/provenance", Failed=0, Materialized=1, Missing=9)


def test_a_night_turns_the_table_of_a_flipped_byte_red(url: str, page: Page, tmp_path: Path) -> None:
    page.open(f"{url}/jobs", DESKTOP)
    page.click("nightly")
    page.click("Launchpad")
    page.click("Launch Run")
    page.shows("Failure")
    page.open(f"{url}/assets/photos/{RAW[-1]}?view=checks&checkDetail=files_intact", DESKTOP)
    for text in ("Failed", "non-blocking", f"work/photos/{RAW[-1]}/shard={BAD}/data.parquet (table): expected"):
        page.shows(text)
    page.screenshot(tmp_path / "red.png", whole=False)


def test_of_ten_shards_one_fails_and_failed_and_missing_makes_it(
    url: str, page: Page, settings: Settings, tmp_path: Path
) -> None:
    _materialise(page, url, NEXT, "All", "Launch backfill")
    for table in NEXT:
        _has(page, url, table, Failed=1, Materialized=9)
    page.screenshot(tmp_path / "failed.png", whole=False)
    ctx = PoolContext.open(settings, "photos")
    damages = verify_pool(ctx, tables_of(ctx)).damages
    assert repair_pool(settings, "photos", damages, progress=Silent()) == []
    _materialise(page, url, NEXT, "Failed and missing", "Launch 1 run")
    for table in NEXT:
        _has(page, url, table, Failed=0, Materialized=10)


def test_a_cancelled_backfill_ends_while_its_run_waits(
    url: str, page: Page, settings: Settings, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    """A command has the pool's tables for itself, so that the run cannot be over before the clicks are."""
    with alone_with_tables(settings.work("photos"), "a test", on_notice=lambda sentence: None):
        _materialise(page, url, ("signals/sieve", "signals/clip_score"), "All", "Launch backfill")
        page.open(f"{url}/runs?view=backfills", DESKTOP)
        newest = instance.get_backfills(limit=1)[0].backfill_id
        of_it = {"dagster/backfill": newest}
        while not instance.get_runs(dg.RunsFilter(tags=of_it, statuses=[dg.DagsterRunStatus.STARTED])):
            time.sleep(1)
        page.click(newest)
        page.click("expand_more")
        page.click("Cancel backfill")
        page.click("Cancel backfill")
        page.shows("Canceled")
        page.screenshot(tmp_path / "cancelled.png", whole=False)
        assert {run.status for run in instance.get_runs(dg.RunsFilter(tags=of_it))} == {dg.DagsterRunStatus.CANCELED}
    _has(page, url, "signals/sieve", Failed=0, Materialized=0, Missing=10)
    assert not instance.get_materialized_partitions(key("signals/sieve"))
