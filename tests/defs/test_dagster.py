"""Dagster wiring: the graph as a snapshot, the shard sensor, the scheduled backfill, one bad shard among good ones."""

import datetime
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.storage.tags import TagType, get_tag_type
from PIL import Image

from curation_assets.audit.index import Index
from curation_assets.core.settings import Settings, load_settings
from curation_assets.definitions import build_definitions
from curation_assets.defs.automation import shard_sensor
from curation_assets.defs.failures import COMMAND
from curation_assets.defs.launch import RunFailedError, command_line, prepare_instance, run_pool
from curation_assets.flow import context, parallel
from curation_assets.flow.context import PoolContext
from curation_assets.flow.freshness import materialise_table
from curation_assets.flow.table import Table
from curation_assets.sources.declaration import add_pool
from curation_assets.stores.shard_store import CorruptTableError
from tests.conftest import FinishedPool, declare_tiny_pool
from tests.support.command import curate
from tests.support.lineage_pools import jpeg, webdataset_pool, write_tar
from tests.support.paths import REPOSITORY

SNAPSHOT = Path(__file__).parent / "snapshots" / "graph.txt"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return declare_tiny_pool(tmp_path)


def add_pool_of_captions(settings: Settings, name: str) -> None:
    source = settings.home / f"{name}.csv"
    source.write_text("caption\na red dog on a wooden bench\n", encoding="utf-8")
    columns = {"caption": "caption", "url": None, "uid": None}
    add_pool(settings, name, source, columns=columns)


def test_graph_is_the_one_we_last_agreed_on(settings: Settings) -> None:
    """After a deliberate change: delete the snapshot, run this once (it writes a new one, fails), look at the diff."""
    graph = build_definitions(settings).resolve_asset_graph()
    lines = []
    for key in sorted(graph.get_all_asset_keys(), key=lambda key: key.path):
        node = graph.get(key)
        kinds = {dg.DynamicPartitionsDefinition: "per shard", dg.StaticPartitionsDefinition: "per training"}
        grain = kinds.get(type(node.partitions_def), "whole pool")
        parents = ", ".join(sorted("/".join(parent.path) for parent in node.parent_keys)) or "–"
        lines.append(f"{'/'.join(key.path)} [{node.group_name}, {grain}] ← {parents}")
    drawn = "\n".join(lines) + "\n"
    if not SNAPSHOT.exists():
        SNAPSHOT.parent.mkdir(exist_ok=True)
        SNAPSHOT.write_text(drawn)
        pytest.fail(f"wrote {SNAPSHOT}; look at it, then run again")
    assert drawn == SNAPSHOT.read_text()


def test_trainings_are_partitions_that_a_job_runs_one_by_one(finished_pool: FinishedPool) -> None:
    definitions = build_definitions(finished_pool.settings)
    runs = dg.AssetKey(["tiny", "downstream", "retrieval_runs"])
    partitions = definitions.resolve_asset_graph().get(runs).partitions_def
    assert partitions is not None
    assert {"icc_own-000000", "random_own-000000", "oracle_own-000000"} < set(partitions.get_partition_keys())
    with dg.DagsterInstance.ephemeral() as instance:
        result = definitions.resolve_job_def("tiny_trainings").execute_in_process(
            partition_key="icc_own-000000", instance=instance
        )
        assert result.success
        assert instance.get_materialized_partitions(runs) == {"icc_own-000000"}


def test_every_asset_has_code_version_group_and_blocking_check(settings: Settings) -> None:
    graph = build_definitions(settings).resolve_asset_graph()
    for key in graph.get_all_asset_keys():
        node = graph.get(key)
        if not node.is_materializable:  # no run makes them
            assert key.path[1:] in (["source"], ["releases"], ["releases", "summary"])
            continue
        assert node.code_version, key
        assert node.group_name == f"tiny_{key.path[1]}", key
        checks = [graph.get_check_spec(check) for check in node.check_keys]
        assert any(check.blocking for check in checks), key


def test_tables_are_selected_by_their_tags(settings: Settings) -> None:
    add_pool_of_captions(settings, "others")
    graph = build_definitions(settings).resolve_asset_graph()

    def selected(selection: str) -> set[str]:
        return {"/".join(key.path) for key in dg.AssetSelection.from_string(selection).resolve(graph)}

    assert selected("tag:pool=others") == {
        "/".join(key.path) for key in graph.materializable_asset_keys if key.path[0] == "others"
    }
    assert selected("tag:pool=tiny") & selected("tag:policy=icc") == {"tiny/filtered/icc", "tiny/filtered/icc_cut"}
    assert selected("tag:stage=raw") & selected("tag:grain=pool") == {"tiny/raw/lookup", "others/raw/lookup"}
    assert selected("group:others_signals") <= selected("tag:pool=others")


def test_lineage_begins_at_the_source_and_assets_open_their_code(settings: Settings) -> None:
    add_pool_of_captions(settings, "others")
    graph = build_definitions(settings).resolve_asset_graph()
    source = dg.AssetKey(["others", "source"])
    assert graph.get(source).metadata["dagster/uri"] == (settings.home / "others.csv").absolute().as_uri()
    assert graph.get(dg.AssetKey(["others", "raw", "registered_shards"])).parent_keys == {source}
    assert "dagster/uri" not in graph.get(dg.AssetKey(["tiny", "source"])).metadata, "a drawn world lies nowhere"

    def files(*path: str) -> list[str]:
        value = graph.get(dg.AssetKey(["tiny", *path])).metadata["dagster/code_references"]
        assert isinstance(value, dg.CodeReferencesMetadataValue)
        found = [Path(one.file_path) for one in value.code_references if isinstance(one, dg.LocalFileCodeReference)]
        assert all(path.is_file() for path in found)
        return ["/".join(path.parts[-2:]) for path in found]

    assert files("signals", "icc") == ["methods/icc.py", "signals/tables.py"]
    assert files("fused", "sieve_clip") == ["fused/sieve_clip.sql", "fused/tables.py"]
    assert files("raw", "samples") == ["raw/tables.py"]


@pytest.mark.slow
def test_an_import_of_the_code_location_does_nothing(tmp_path: Path) -> None:
    """No home is opened, nothing of Dagster is changed, no variable is set."""
    code = (
        "import os\n"
        "names = lambda: {name for name in os.environ if name.startswith(('DAGSTER', 'CURATION'))}\n"
        "before = names()\n"
        "import curation_assets.definitions\n"
        "from dagster._core.instance import config\n"
        "assert names() == before, names() - before\n"
        "assert config.load_yaml_from_globs.__module__.startswith('dagster')\n"
    )
    environment = {**os.environ, "CURATION_HOME": str(tmp_path / "home")}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    assert not (tmp_path / "home").exists()


@pytest.mark.infra
def test_what_dg_scaffolds_in_a_checkout_is_loaded(tmp_path: Path) -> None:
    """In a checkout of links, whose own folder of definitions is a copy."""
    package = tmp_path / "curation_assets"
    package.mkdir()
    for path in (REPOSITORY / "curation_assets").iterdir():
        if path.name != "definitions":
            (package / path.name).symlink_to(path)
    shutil.copytree(REPOSITORY / "curation_assets" / "definitions", package / "definitions")
    for name in ("pyproject.toml", "dbt_like_sql", "infra", "workspace.yaml"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    declare_tiny_pool(tmp_path / "home")
    environment = {
        **os.environ, "CURATION_HOME": str(tmp_path / "home"), "PYTHONPATH": str(tmp_path),
        "VIRTUAL_ENV": sys.prefix, "PYTHONWARNINGS": "default",
    }  # fmt: skip

    def dg_ran(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [Path(sys.executable).parent / "dg", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    dg_ran("scaffold", "defs", "dagster.asset", "favourites.py")
    listed = json.loads(dg_ran("list", "defs", "--json").stdout)
    keys = {asset["asset_key"] for asset in listed["assets"]}
    assert {"favourites", "tiny/raw/samples"} <= keys
    checked = dg_ran("check", "defs")
    assert [line for line in checked.stderr.splitlines() if "will be removed in" in line or "preview" in line] == []


def test_sensor_registers_new_shards_once(settings: Settings) -> None:
    sensor = shard_sensor(settings, "tiny")
    with dg.DagsterInstance.ephemeral() as instance:
        first = sensor(dg.build_sensor_context(instance=instance))
        assert isinstance(first, dg.SensorResult)
        requests = first.dynamic_partitions_requests or []
        assert [key for request in requests for key in request.partition_keys] == ["tiny-000000", "tiny-000001"]
        instance.add_dynamic_partitions("tiny", ["tiny-000000", "tiny-000001"])
        assert isinstance(sensor(dg.build_sensor_context(instance=instance)), dg.SkipReason)


@pytest.mark.slow
def test_scheduled_backfill_asks_for_missing_shards_only_when_the_cron_ticks(settings: Settings) -> None:
    definitions = build_definitions(settings)
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions("tiny", ["tiny-000000", "tiny-000001"])
        start = datetime.datetime(2026, 1, 1, 0, 30, tzinfo=datetime.UTC)

        def tick(minutes: int, cursor: object = None) -> "dg.EvaluateAutomationConditionsResult":
            return dg.evaluate_automation_conditions(
                definitions,
                instance,
                evaluation_time=start + datetime.timedelta(minutes=minutes),
                cursor=cursor,  # type: ignore[arg-type]
            )

        quiet = tick(0)
        assert quiet.total_requested == 0
        hourly = tick(31, quiet.cursor)
        registered = dg.AssetKey(["tiny", "raw", "registered_shards"])
        assert hourly.get_requested_partitions(registered) == {"tiny-000000", "tiny-000001"}
        assert tick(40, hourly.cursor).total_requested == 0


def test_one_bad_shard_fails_by_name_and_harms_no_neighbour(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sometimes(ctx: PoolContext, table: Table, shard: str | None = None, **facts: object) -> object:
        if table.name == "raw/registered_shards" and shard == "tiny-000001":
            raise OSError("disk on fire")
        return materialise_table(ctx, table, shard, **facts)  # type: ignore[arg-type]

    monkeypatch.setattr(parallel, "materialise_table", sometimes)
    with pytest.raises(
        RunFailedError, match=r"^raw/registered_shards of shard tiny-000001: disk on fire\nNothing that"
    ) as failed:
        run_pool(settings, "tiny", tables=["raw/registered_shards"])
    assert failed.value.__suppress_context__, "Dagster's wrapper is not shown beside the sentence"
    ctx = PoolContext.open(settings, "tiny")
    stored = Index.read(ctx.store.root / "index", ctx.shards()).tables["raw/registered_shards"]
    assert stored.is_stored.tolist() == [True, False], "a plan knows what a failed or stopped run made"
    assert ctx.store.partitions("raw/registered_shards") == ["tiny-000000"]
    monkeypatch.undo()
    (report,) = run_pool(settings, "tiny", tables=["raw/registered_shards"])
    assert (report.reused, report.computed) == (1, 1)


def test_what_the_ui_shows_of_a_shard_and_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two shards of photos, of which one holds no image that can be decoded."""
    for shard in range(2):
        rows = [
            (f"{n:06d}", f"http://a.example/{n}.jpg", f"thing {n}", b"no jpeg" if shard else jpeg(n)) for n in range(4)
        ]
        write_tar(tmp_path / "tars" / f"{shard:06d}.tar", rows)
    settings = load_settings(tmp_path, "embedded")
    owners = ["team:vision", "someone@photos.example"]
    options = {"distil": False, "downstream": False, "owners": owners, "min_success_rate": 0.75}
    add_pool(settings, "photos", tmp_path / "tars", options=options)
    monkeypatch.setattr(sys, "argv", ["/bin/curate", "run", "photos", "--table", "raw/samples"])
    with pytest.raises(RunFailedError, match="photos-000001"):
        run_pool(settings, "photos", tables=["raw/registered_shards", "raw/downloads", "raw/samples"])
    key = dg.AssetKey(["photos", "raw", "samples"])
    with dg.DagsterInstance.get() as instance:
        output = instance.fetch_materializations(key, limit=9).records
        (run,) = instance.get_runs()
        check = dg.AssetCheckKey(key, "enough_succeeded")
        (record,) = instance.event_log_storage.get_asset_check_execution_history(check, limit=9)
    events = [one.asset_materialization for one in output if one.asset_materialization is not None]
    good, bad = (one.metadata for one in sorted(events, key=lambda event: event.partition or ""))
    counted = ("dagster/partition_row_count", "rows kept", "blocking checks")
    assert [good[name].value for name in counted] == [4, 4, "passed"]
    assert "dagster/row_count" not in good
    assert str(bad["blocking checks"].value).startswith("only 0.0%")
    assert "rows kept" not in bad
    assert "| failed | image_undecodable | 4 | ███" in str(bad["rows by state and reason"].value)
    assert good["file"].value == "work/photos/raw/samples/shard=photos-000000/data.parquet"
    assert ("dagster/column_schema" in good, "dagster/column_schema" in bad) == (False, True)  # of the newest event
    columns = {column.name: column for column in bad["dagster/column_schema"].value.columns}  # type: ignore[union-attr]
    assert columns["source_row"].type == "Int64"
    assert columns["reason"].description
    assert run.job_name == "photos_shards"
    shown = {name: value for name, value in run.tags.items() if get_tag_type(name) == TagType.USER_PROVIDED}
    assert shown == {"curation/pool": "photos", "curation/phase": "raw"}
    assert run.tags[COMMAND] == "curate run photos --table raw/samples"
    assert record.event is not None
    assert record.event.dagster_event is not None
    outcome = record.event.dagster_event.asset_check_evaluation_data
    assert not outcome.passed
    assert outcome.description == "1 of 2 fail: photos-000001"
    (wrong,) = outcome.metadata["what is wrong"].records  # type: ignore[attr-defined]
    assert wrong.data["where"] == "photos-000001"
    assert str(wrong.data["what"]).startswith("only 0.0%")
    PoolContext.open(settings, "photos").store.table_path("raw/samples", "photos-000000").unlink()
    run_pool(settings, "photos", tables=["raw/samples"], shards=["photos-000000"])
    with dg.DagsterInstance.get() as instance:
        newest = instance.event_log_storage.get_asset_check_execution_history(check, limit=1)[0].event
    assert newest is not None
    assert newest.dagster_event is not None
    passed = newest.dagster_event.asset_check_evaluation_data
    assert passed.passed
    assert passed.metadata["blocked since earlier runs"].value == "photos-000001"
    owned = build_definitions(settings).resolve_asset_graph().get(key)
    assert list(owned.owners) == ["team:vision", "someone@photos.example"]
    assert "dagster/table_name" in owned.metadata


def test_runs_of_other_commands_keep_no_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a takedown names must not stay in Dagster's log."""
    for arguments, shown in (
        (["/bin/curate", "takedown", "apply", "photos", "--url", "http://a.example/1.jpg"], "curate takedown"),
        (["/bin/curate", "demo", "--home", "a b"], "curate demo --home 'a b'"),
        (["my_run.py", "http://a.example/1.jpg"], "my_run.py"),
    ):
        monkeypatch.setattr(sys, "argv", arguments)
        assert command_line() == shown


@pytest.mark.slow
def test_a_blocking_check_blocks_later_runs_until_it_holds(tmp_path: Path) -> None:
    """One shard of broken pictures beside a good one."""
    for shard in range(2):
        rows = [
            (f"{n:06d}", "http://a.example/1.jpg", f"thing {n}", b"no jpeg" if shard else jpeg(n)) for n in range(4)
        ]
        write_tar(tmp_path / "tars" / f"{shard:06d}.tar", rows)
    settings = load_settings(tmp_path, "embedded")
    add_pool(settings, "photos", tmp_path / "tars", options={"min_success_rate": 0.75})
    tables = ["raw/registered_shards", "raw/downloads", "raw/samples", "filtered/duplicates"]
    for _ in range(2):  # what is stored is up to date the second time, and still not good
        with pytest.raises(RunFailedError, match=r"^raw/samples of shard photos-000001: only 0.0% of the"):
            run_pool(settings, "photos", tables=tables)
    run_pool(settings, "photos", tables=tables[:3], shards=["photos-000000"])
    with pytest.raises(RunFailedError, match="photos-000001"):
        run_pool(settings, "photos", tables=tables)
    store = PoolContext.open(settings, "photos").store
    assert list(store.blocked("raw/samples")) == ["photos-000001"]
    assert store.manifest("filtered/duplicates") is None
    declaration = settings.pools_root / "photos.yaml"
    declaration.write_text(declaration.read_text().replace("min_success_rate: 0.75", "min_success_rate: 0.0"))
    reports = {report.table: report for report in run_pool(settings, "photos", tables=tables)}
    assert (reports["raw/samples"].reused, reports["filtered/duplicates"].computed) == (2, 1)
    assert store.blocked("raw/samples") == {}
    assert {report.computed for report in run_pool(settings, "photos", tables=tables)} == {0}


def test_a_failed_run_is_told_in_sentences_and_a_bug_with_its_traceback(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(error: Exception) -> Callable[..., object]:
        def materialise(ctx: PoolContext, table: Table, shard: str | None = None, **facts: object) -> object:
            raise error

        return materialise

    call = ["run", "tiny", "--home", str(settings.home), "--table", "raw/registered_shards"]
    monkeypatch.setattr(parallel, "materialise_table", failing(CorruptTableError("it cannot be trusted")))
    output = curate(*call)
    assert output.exit_code == 1
    assert isinstance(output.exception, SystemExit)
    assert "error raw/registered_shards of shard tiny-000000: it cannot be trusted" in output.stderr
    assert "Traceback" not in output.stderr
    monkeypatch.setattr(parallel, "materialise_table", failing(ZeroDivisionError("a bug")))
    output = curate(*call)
    assert output.exit_code == 70
    assert "unexpected" in output.stderr
    assert "a bug" in output.stderr


def test_shards_apart_run_without_those_between_and_harm_each_other_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = webdataset_pool(tmp_path, shards=3, per_shard=4)
    run_pool(settings, "photos", tables=["raw/registered_shards"])

    def sometimes(ctx: PoolContext, table: Table, shard: str | None = None, **facts: object) -> object:
        if table.name == "raw/downloads" and shard == "photos-000000":
            raise OSError("disk on fire")
        return materialise_table(ctx, table, shard, **facts)  # type: ignore[arg-type]

    monkeypatch.setattr(parallel, "materialise_table", sometimes)
    with pytest.raises(RunFailedError, match=r"^raw/downloads of shard photos-000000: disk on fire"):
        run_pool(settings, "photos", tables=["raw/downloads"], shards=["photos-000000", "photos-000002"])
    assert PoolContext.open(settings, "photos").store.partitions("raw/downloads") == ["photos-000002"]


IMAGE_TABLES = ("signals/clip_score", "signals/image_blur", "signals/perceptual_hash")


@pytest.mark.slow
@pytest.mark.parametrize("job", ["photos_shards", "__ASSET_JOB"])
@pytest.mark.parametrize("chosen", [IMAGE_TABLES, IMAGE_TABLES[1:]], ids=["three tables", "two tables"])
def test_a_run_of_the_ui_decodes_each_image_once_for_all_its_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str, chosen: tuple[str, ...]
) -> None:
    """`planned` is the run's own selection: no table of another run is made, and none decodes for itself."""
    monkeypatch.setenv("CURATION_WORKERS", "1")  # so that images are decoded in this process
    settings = load_settings(tmp_path, "embedded")
    rows = [(f"{n:06d}", f"https://example.org/{n}.jpg", f"a boat {n}", jpeg(n)) for n in range(5)]
    write_tar(tmp_path / "tars" / "000000.tar", rows)
    add_pool(
        settings,
        "photos",
        tmp_path / "tars",
        options={"methods": ["clip_score", "image_blur"], "duplicates": {"perceptual_bits": 4}},
    )
    decoded: Counter[bytes] = Counter()
    decode = context.decode_image

    def counted(data: bytes, limits: Any) -> Image.Image:
        decoded[data] += 1
        return decode(data, limits)

    monkeypatch.setattr(context, "decode_image", counted)
    raw = ("raw/registered_shards", "raw/downloads", "raw/samples")
    with prepare_instance(settings) as instance:
        instance.add_dynamic_partitions("photos", ["photos-000000"])
        result = (
            build_definitions(settings)
            .resolve_job_def(job)
            .execute_in_process(
                instance=instance,
                partition_key="photos-000000",
                asset_selection=[dg.AssetKey(["photos", *name.split("/")]) for name in (*raw, *chosen)],
            )
        )
    assert result.success
    store = PoolContext.open(settings, "photos").store
    assert {name for name in IMAGE_TABLES if store.partitions(name)} == set(chosen)
    assert set(decoded.values()) == {1}
    assert len(decoded) == 5
