"""A takedown leaves no quotation of a sample in Dagster's records, wherever the instance keeps them."""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
import sqlalchemy as sa
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.scheduler.instigation import TickData, TickStatus
from dagster._utils.error import SerializableErrorInfo

from curation_assets.core.settings import load_settings
from curation_assets.defs.instance_records import InstanceRecords
from curation_assets.defs.launch import prepare_instance
from curation_assets.defs.takedown import take_down
from curation_assets.flow.context import PoolContext
from curation_assets.flow.freshness import materialise_table
from curation_assets.flow.graph import tables_of
from curation_assets.sources.declaration import add_pool
from curation_assets.stores.denylist import add_to_denylist
from curation_assets.stores.objects import open_home
from curation_assets.stores.scrubbing import GONE
from tests.infra.test_postgres import postgres, postgres_server  # noqa: F401 - fixtures
from tests.support.bucket import BUCKET, running_bucket
from tests.support.lineage_pools import OPTIONS, jpeg, write_tar
from tests.support.paths import REPOSITORY

CAPTION = 'a canary\'s "yellow" feather – 50 % off_<today> & naïve \\ only'
URL = "http://canary.example/grün & blau/<11>.jpg"
NEAR = "a canary's blue feather of somebody else"  # another sample's, which stays


def quote(instance: dg.DagsterInstance, text: str) -> None:
    """Have every part of an instance hold a text, as errors and tags would."""
    run = instance.create_run_for_job(dg.GraphDefinition("some_job").to_job(), tags={"note": text})
    instance.report_engine_event(f"cannot parse {text!r}; {json.dumps(text)}", run)
    instance.report_runless_asset_event(
        dg.AssetMaterialization("some_asset", description=text, metadata={"text": text}, tags={"t": "x"})
    )
    error = SerializableErrorInfo(message=f"cannot parse {text}", stack=[], cls_name="ValueError")
    for kind in (InstigatorType.SCHEDULE, InstigatorType.SENSOR):
        instance.create_tick(TickData("origin", "some_instigator", kind, TickStatus.FAILURE, 1.0, error=error))
    instance.run_storage.set_cursor_values({"cursor": text})
    log = instance.compute_log_manager.capture_logs
    with log([run.run_id, "compute_logs", "step"]):
        print(text, flush=True)


def texts_on(server: str) -> str:
    """Everything that the tables of a server hold, whoever made them."""
    engine = sa.create_engine(server)
    with engine.connect() as connection:
        names = sa.inspect(engine).get_table_names()
        rows = [str(row[0]) for name in names for row in connection.execute(sa.text(f'select t::text from "{name}" t'))]
    engine.dispose()
    return "\n".join(rows)


def texts_in(folder: Path) -> str:
    return "\n".join(path.read_bytes().decode("latin-1") for path in folder.rglob("*") if path.is_file())


@pytest.fixture(params=["home", "elsewhere", "bucket", pytest.param("postgres", marks=pytest.mark.infra)])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """One of the storages of docs/operator/launchers.md; the environment names it."""
    with contextlib.ExitStack() as stack:
        monkeypatch.setenv("TEST_HOME", str(tmp_path / "home"))
        if request.param == "bucket":
            monkeypatch.setenv("CURATION_HOMES", str(tmp_path / "homes"))
            stack.enter_context(running_bucket(monkeypatch))
            monkeypatch.setenv("TEST_HOME", f"s3://{BUCKET}/homes/mine")
        elif request.param != "home":
            folder = tmp_path / "instance"
            folder.mkdir()
            monkeypatch.setenv("CURATION_DAGSTER_HOME", str(folder))
        if request.param == "postgres":
            for name, value in request.getfixturevalue("postgres").items():
                monkeypatch.setenv(name, value)
            shutil.copy(REPOSITORY / "infra/postgres/dagster.yaml", folder)
        yield request.param


def test_no_quotation_is_left_in_any_storage(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = os.environ["TEST_HOME"]
    settings = load_settings(home, "embedded")
    open_home(settings.home)
    rows = [("0", "http://h.example/0.jpg", NEAR, jpeg(0)), ("1", URL, CAPTION, jpeg(1))]
    write_tar(tmp_path / "tars" / "0.tar", rows)
    add_pool(settings, "photos", tmp_path / "tars", options=OPTIONS)
    ctx = PoolContext.open(settings, "photos")
    tables = tables_of(ctx)
    for name in ("raw/registered_shards", "raw/downloads", "raw/samples"):
        materialise_table(ctx, tables[name], "photos-000000", tables=tables)
    with prepare_instance(settings) as instance:
        quote(instance, CAPTION)
        quote(instance, NEAR)

    def held() -> str:
        found = texts_in(settings.dagster_home) + texts_in(ctx.store.root)
        if place == "postgres":
            e = os.environ
            url = sa.URL.create(
                "postgresql+psycopg2", e["DAGSTER_PG_USER"], e["DAGSTER_PG_PASSWORD"], e["DAGSTER_PG_HOST"],
                int(e["DAGSTER_PG_PORT"]), e["DAGSTER_PG_DB"],
            )  # fmt: skip
            found += texts_on(url.render_as_string(hide_password=False))
        return found

    needles = ["feather – 50 % off", "feather \\u2013 50 % off", "feather \\\\u2013 50", "feather \xe2\x80\x93 50"]
    assert any(needle in held() for needle in needles)
    others = held().count(NEAR)
    assert others > 5
    add_to_denylist(settings.home, [("url", URL)])
    certificate = take_down(settings, "photos")
    assert certificate is not None
    assert certificate["left"] == []
    assert [needle for needle in needles if needle in held()] == []
    assert held().count(NEAR) >= others, "another sample's texts stay"
    assert GONE in held()
    said = " ".join(certificate["not_done"])
    assert ("write-ahead log" in said) == (place == "postgres")
    assert ("other machines" in said) == (place == "bucket")


def test_what_cannot_be_reached_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launchers, log managers and clusters that keep records of their own."""
    settings = load_settings(tmp_path, "embedded")
    folder = settings.dagster_home
    folder.mkdir(parents=True)
    shutil.copy(REPOSITORY / "infra/compose/dagster.yaml", folder)
    text = (folder / "dagster.yaml").read_text().partition("run_launcher:")[2].partition("local_artifact_storage:")[0]
    (folder / "dagster.yaml").write_text(f"run_launcher:{text}")
    monkeypatch.setenv("CURATION_IMAGE", "x")
    monkeypatch.setenv("CURATION_RAY", "head:6379")
    pytest.importorskip("dagster_docker")
    settings = load_settings(tmp_path, "embedded")
    with dg.DagsterInstance.from_config(str(folder)) as instance:
        said = " ".join(InstanceRecords(settings, instance).not_done)
    assert "DockerRunLauncher started" in said
    assert "Ray" in said
