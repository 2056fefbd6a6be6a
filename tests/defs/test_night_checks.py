"""What job nightly finds stands at the table that it is about, as a check, until a run makes it again."""

import random
from collections.abc import Callable
from dataclasses import dataclass

import dagster as dg
import pytest

from curation_assets.core.settings import Settings
from curation_assets.definitions import build_definitions
from curation_assets.defs.launch import prepare_instance, run_pool
from curation_assets.defs.night_checks import CHECKS
from curation_assets.defs.nightly import nightly_of
from curation_assets.defs.records import newest_evaluation
from curation_assets.flow.context import PoolContext
from curation_assets.flow.graph import tables_of
from curation_assets.operations.verify import Verified
from tests.defs.test_partitions import key, pool_of
from tests.torture.faults.bit_flips import flip_bit

pytestmark = pytest.mark.slow
TABLES = ("raw/registered_shards", "raw/downloads", "raw/samples", "signals/icc")


@dataclass
class Home:
    """A pool of three shards whose TABLES have run."""

    settings: Settings
    instance: dg.DagsterInstance
    night: Callable[[], bool]

    def red(self, check: str) -> dict[str, str]:
        """Tables at which a check fails now, with its sentence."""
        found = {}
        for name in TABLES:
            newest = newest_evaluation(self.instance, dg.AssetCheckKey(key(name), check))
            assert newest is not None, name
            if not newest.passed:
                found[name] = str(newest.description)
        return found


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Home:
    # the shipped weights take a minute, and are tested elsewhere
    monkeypatch.setattr("curation_assets.operations.nightly.verify_weights", lambda progress: Verified(0, []))
    settings = pool_of(tmp_path_factory.mktemp("home"), 1, shards=3)
    run_pool(settings, "photos", tables=TABLES)
    instance = prepare_instance(settings)
    job = build_definitions(settings).resolve_job_def("nightly")
    return Home(settings, instance, lambda: job.execute_in_process(instance=instance, raise_on_error=False).success)


def test_a_flipped_byte_is_red_at_its_table_until_the_shard_is_made_again(home: Home) -> None:
    assert home.red("files_intact") == {}, "a run settles what it made"
    store = PoolContext.open(home.settings, "photos").store
    flip_bit(store.table_path("raw/samples", "photos-000001"), random.Random(1))
    assert not home.night()
    red = home.red("files_intact")
    assert list(red) == ["raw/samples"]
    assert "shard=photos-000001/data.parquet (table): expected" in red["raw/samples"]
    assert "--repair" in red["raw/samples"]
    store.remove("raw/samples", "photos-000000")
    run_pool(home.settings, "photos", tables=["raw/samples"], shards=["photos-000000"])
    assert list(home.red("files_intact")) == ["raw/samples"], "another shard was made"
    store.remove("raw/samples", "photos-000001")
    run_pool(home.settings, "photos", tables=["raw/samples"], shards=["photos-000001"])
    assert home.red("files_intact") == {}
    assert home.night()


def test_what_is_stale_warns_and_the_night_goes_on(home: Home) -> None:
    ctx = PoolContext.open(home.settings, "photos")
    ctx.store.remove("raw/samples", "photos-000002")
    assert home.night()
    assert home.red("up_to_date") == {"raw/samples": "missing", "signals/icc": "input changed"}
    newest = newest_evaluation(home.instance, dg.AssetCheckKey(key("raw/samples"), "up_to_date"))
    assert newest is not None
    assert newest.severity == dg.AssetCheckSeverity.WARN
    assert not newest.blocking
    run_pool(home.settings, "photos", tables=TABLES)
    assert home.red("up_to_date") == {}


def test_only_what_a_table_can_fail_is_a_check_of_it(home: Home) -> None:
    graph = build_definitions(home.settings).resolve_asset_graph()
    ctx = PoolContext.open(home.settings, "photos")
    night = {check.name for check in CHECKS.values()}
    for name in tables_of(ctx):
        checks = {check.name for check in graph.get(key(name)).check_keys}
        assert checks & night == {"files_intact", "up_to_date"}, "nothing was downloaded, no canary"
        for check in graph.get(key(name)).check_keys:
            assert "run" in str(graph.get_check_spec(check).description), "why it is not executed by itself"
    named = [name for name in tables_of(ctx) if graph.get(key(name)).freshness_policy is not None]
    assert named == ["filtered/subsets", "downstream/report"]


def test_a_project_of_another_team_has_a_night_for_each_pool(home: Home) -> None:
    schedule = nightly_of(home.settings, "photos")
    assert (schedule.name, schedule.cron_schedule) == ("photos_nightly", "0 3 * * *")
    job = schedule.job
    assert isinstance(job, dg.JobDefinition)
    assert {node.name for node in job.nodes} == {f"{part.replace('-', '_')}_photos" for part in CHECKS}
