"""A pool as a component of another Dagster project: prefix, translation, two pools beside each other, declarations."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from curation_assets.core.settings import load_settings
from curation_assets.defs.component import CurationPool
from curation_assets.defs.records import check_results, failures, materialisations
from curation_assets.sources.declaration import Pool, add_pool, load_pool
from tests.support.paths import REPOSITORY

CAPTIONS = "caption\na red dog on a wooden bench\nthe best day ever\ntwo boats at a pier\nso happy\n"


def definitions_of(project: Path, name: str, **attributes: Any) -> dg.Definitions:
    """Those of a component whose source is four captions."""
    (project / "captions.csv").write_text(CAPTIONS, encoding="utf-8")
    options = attributes.pop("options", {})
    pool = {
        "name": name, "kind": "url_table", "source": str(project / "captions.csv"),
        "columns": {"caption": "caption", "url": None, "uid": None}, "options": options,
    }  # fmt: skip
    given = {"home": str(project / "home"), "pool": pool, **attributes}
    context = dg.ComponentTree.for_test().load_context
    return CurationPool.from_attributes_dict(attributes=given, context=context).build_defs(context)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dg.Definitions, dg.DagsterInstance]:
    """Two pools in one project; a shard of the one with a prefix is made."""
    project = tmp_path_factory.mktemp("project")
    defs = dg.Definitions.merge(
        definitions_of(project, "texts", key_prefix=["team", "curation"]),
        definitions_of(project, "others", translation={"group_name": "{{ stage }}_of_{{ pool }}", "tags": {"a": "b"}}),
    )
    instance = dg.DagsterInstance.ephemeral()
    (request,) = defs.resolve_sensor_def("texts_new_shards")(  # type: ignore[union-attr]
        dg.build_sensor_context(instance=instance)
    ).dynamic_partitions_requests
    instance.add_dynamic_partitions(request.partitions_def_name, request.partition_keys)
    job = defs.resolve_implicit_global_asset_job_def()
    keys = [dg.AssetKey(["team", "curation", "texts", *name.split("/")]) for name in TABLES]
    done = job.execute_in_process(instance=instance, asset_selection=keys, partition_key="texts-000000")
    assert done.success
    return project, defs, instance


TABLES = ("raw/registered_shards", "raw/downloads", "raw/samples")


def test_everything_stands_under_the_prefix(made: tuple[Path, dg.Definitions, dg.DagsterInstance]) -> None:
    project, defs, instance = made
    graph = defs.resolve_asset_graph()
    of_pool = {key for key in graph.get_all_asset_keys() if "texts" in key.path}
    assert {tuple(key.path[:3]) for key in of_pool} == {("team", "curation", "texts")}
    parents = {parent for key in of_pool for parent in graph.get(key).parent_keys}
    assert parents <= of_pool
    assert {check.asset_key for check in graph.asset_check_keys if "texts" in check.asset_key.path} <= of_pool
    selected = defs.resolve_job_def("texts_shards").asset_layer.selected_asset_keys
    assert selected <= of_pool
    assert dg.AssetKey(["team", "curation", "texts", "raw", "samples"]) in selected
    # what was made is found again in Dagster's records, and its inputs, by the tables' own names
    pool = load_pool(load_settings(project / "home"), "texts")
    rows = materialisations(instance, pool, TABLES)
    assert rows["table"].to_list() == list(TABLES)
    assert {pointer["table"] for pointers in rows["pointers"] for pointer in pointers} == set(TABLES[:2])
    assert check_results(instance, pool, "raw/samples", ["rows_conserved"]) == {"rows_conserved": True}
    assert failures(instance, pool) == []


def test_what_follows_asks_for_assets_under_the_prefix(
    made: tuple[Path, dg.Definitions, dg.DagsterInstance], monkeypatch: pytest.MonkeyPatch
) -> None:
    project, _, _ = made
    from curation_assets.defs.following import Step, requests_of

    pool = load_pool(load_settings(project / "home"), "texts")
    (request,) = requests_of(pool, Step(("filtered/subsets",), "pool", (), "s"), ["texts-000000"])
    assert request.asset_selection == [dg.AssetKey(["team", "curation", "texts", "filtered", "subsets"])]
    assert request.job_name == "texts_summary"


def test_a_failed_step_under_a_prefix_is_named_by_its_table(tmp_path: Path) -> None:
    defs = definitions_of(tmp_path, "texts", key_prefix=["curation"])
    (tmp_path / "captions.csv").write_text("caption\n", encoding="utf-8")
    instance = dg.DagsterInstance.ephemeral()
    instance.add_dynamic_partitions("texts", ["texts-000000"])
    done = defs.resolve_implicit_global_asset_job_def().execute_in_process(
        instance=instance, asset_selection=[dg.AssetKey(["curation", "texts", "raw", "registered_shards"])],
        partition_key="texts-000000", raise_on_error=False,
    )  # fmt: skip
    assert not done.success
    pool = load_pool(load_settings(tmp_path / "home"), "texts")
    assert [failure.table for failure in failures(instance, pool)] == ["raw/registered_shards"]


def test_a_translation_sets_what_is_shown_and_no_key(
    made: tuple[Path, dg.Definitions, dg.DagsterInstance], tmp_path: Path
) -> None:
    graph = made[1].resolve_asset_graph()
    samples = graph.get(dg.AssetKey(["others", "raw", "samples"]))
    assert (samples.group_name, samples.tags["a"], samples.tags["pool"]) == ("raw_of_others", "b", "others")
    assert graph.get(dg.AssetKey(["others", "releases"])).group_name == "releases_of_others"
    assert graph.get(dg.AssetKey(["team", "curation", "texts", "raw", "samples"])).group_name == "texts_raw"
    with pytest.raises(Exception, match=r"translation[\s\S]*key"):
        definitions_of(tmp_path, "texts", translation={"key": "mine"})


def test_the_declaration_in_the_home_follows_the_component_and_nobody_else(tmp_path: Path) -> None:
    file = tmp_path / "home" / "pools" / "texts.yaml"
    definitions_of(tmp_path, "texts")
    written = file.stat().st_mtime_ns
    definitions_of(tmp_path, "texts")
    assert file.stat().st_mtime_ns == written
    definitions_of(tmp_path, "texts", options={"fraction": 0.25})
    assert yaml.safe_load(file.read_text())["options"] == {"fraction": 0.25}
    add_pool(load_settings(tmp_path / "home"), "by_hand", tmp_path / "captions.csv")
    definitions_of(tmp_path, "by_hand")  # the same declaration
    with pytest.raises(ValueError, match=r"by_hand.*declared already, differently"):
        definitions_of(tmp_path, "by_hand", options={"fraction": 0.25})
    assert "fraction" not in (tmp_path / "home" / "pools" / "by_hand.yaml").read_text()


def test_the_schema_describes_every_field_of_a_declaration_and_takes_switches(tmp_path: Path) -> None:
    schema = CurationPool.get_model_cls().model_json_schema()
    declared = schema["$defs"]["Pool"]["properties"]
    assert list(declared) == list(Pool.__pydantic_fields__)  # type: ignore[attr-defined]
    options = schema["$defs"]["PoolOptions"]["properties"]
    assert [name for name, field in {**declared, **options}.items() if not field.get("description")] == []
    assert {"type": "boolean"} in options["duplicates"]["anyOf"]
    definitions_of(tmp_path, "texts", options={"duplicates": False})


def test_the_package_is_imported_without_dagster() -> None:
    said = "import sys, curation_assets; assert 'CurationPool' in dir(curation_assets); print('dagster' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", said], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
