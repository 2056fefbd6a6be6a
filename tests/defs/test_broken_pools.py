"""A pool that cannot be loaded is named everywhere, and every other pool goes on."""

import json
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest

from curation_assets.core.settings import Settings, load_settings
from curation_assets.definitions import build_definitions
from curation_assets.defs.broken import CHECK, declaration_key
from curation_assets.defs.launch import prepare_instance
from curation_assets.operations.nightly import look_at_declarations
from curation_assets.sources.declaration import add_pool
from tests.support.command import curate

Break = Callable[[Path], object]
GOOD = "name: bad\nkind: url_table\nsource: captions.csv\ncolumns: {caption: caption}\n"


def text(content: str, name: str = "bad.yaml") -> Break:
    return lambda pools: (pools / name).write_text(content)


def _recipe(pools: Path) -> None:
    (pools / "bad.yaml").write_text(GOOD)
    (pools / "bad" / "recipes").mkdir(parents=True)
    (pools / "bad" / "recipes" / "mine.yaml").write_text("name: mine\nkind: no_such_kind\n")


#: What is wrong → (how it is made, what the sentence names).
FAULTS: dict[str, tuple[Break, str]] = {
    "no yaml": (text("source: [oops"), "bad.yaml is no YAML"),
    "a tab": (text("name: bad\n\tkind: world"), "bad.yaml is no YAML"),
    "no utf-8": (lambda pools: (pools / "bad.yaml").write_bytes(b"name: \xff\xfe\xfa"), "bad.yaml is no YAML"),
    "an unknown option": (text(GOOD + "options: {fracton: .3}\n"), "fracton"),
    "an unknown field": (text(GOOD + "colums: {}\n"), "colums"),
    "another type": (text(GOOD + "shard_size: many\n"), "shard_size"),
    "another name": (text(GOOD.replace("name: bad", "name: other")), "expected name: bad"),
    "a file that is named as no pool": (text(GOOD, "My pool-1.yaml"), "expected name: My pool-1"),
    "empty": (text(""), "expected a mapping"),
    "a list": (text("- a\n- b\n"), "expected a mapping"),
    "a folder": (lambda pools: (pools / "bad.yaml").mkdir(), "bad"),
    "no such profile": (text(GOOD + "profile: nowhere\n"), "no profile 'nowhere'"),
    "a faulty recipe of its own": (_recipe, "no_such_kind"),
}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "captions.csv").write_text("caption\na red kite\n")
    settings = load_settings(tmp_path, "embedded")
    add_pool(settings, "good", tmp_path / "captions.csv")
    return load_settings(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_one_faulty_declaration_leaves_every_other_pool_in_dagster(settings: Settings, fault: str) -> None:
    alone = build_definitions(settings).resolve_asset_graph().get_all_asset_keys()
    make, named = FAULTS[fault]
    make(settings.pools_root)
    (pool,) = {path.stem for path in settings.pools_root.glob("*.yaml")} - {"good"}
    definitions = build_definitions(settings)
    key = declaration_key(pool)
    graph = definitions.resolve_asset_graph()
    assert graph.get_all_asset_keys() == alone | {key}
    assert named in (graph.get(key).description or "")
    with prepare_instance(settings) as instance:
        repository = definitions.get_repository_def()
        sensor = repository.get_sensor_def(f"{key.path[0]}_cannot_be_loaded")
        ticked = sensor.evaluate_tick(dg.build_sensor_context(instance))
        assert named in (ticked.skip_message or "")
        (event,) = ticked.asset_events
        assert isinstance(event, dg.AssetCheckEvaluation)
        assert (event.check_name, event.passed) == (CHECK, False)
        assert named in (event.description or "")
    (problem,) = look_at_declarations(settings).problems
    assert named in problem


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", ["no yaml", "an unknown option", "a file that is named as no pool", "a missing source"]
)
def test_commands_over_all_pools_name_the_faulty_one_and_do_the_others(settings: Settings, fault: str) -> None:
    make, named = FAULTS.get(fault, (text(GOOD.replace("captions.csv", "gone.csv")), "gone.csv"))
    make(settings.pools_root)
    (pool,) = {path.stem for path in settings.pools_root.glob("*.yaml")} - {"good"}

    def called(*words: str) -> tuple[int, str, str]:
        done = curate(*words, home=settings.home)
        return done.exit_code, done.stdout, done.stderr

    code, out, err = called("pool", "list")
    assert (code, "good" in out, pool in out, named in err) == (1, True, True, True), (out, err)
    code, out, err = called("pool", "list", "--json")
    rows = {row["pool"]: row for row in json.loads(out)}
    assert code == 1
    assert (rows["good"]["error"], rows["good"]["shards"], named in rows[pool]["error"]) == (None, 1, True)
    if fault != "a missing source":  # nothing is stored yet: nothing to verify
        for words in (("verify",), ("verify", "--only", "freshness")):
            code, out, err = called(*words)
            assert (code, "Pool good" in out, named in err) == (1, True, True), (words, out, err)
    assert called("verify", "good")[0] == 0


def test_a_mended_pool_is_loaded_again(settings: Settings) -> None:
    (settings.pools_root / "bad.yaml").write_text("source: [oops")
    definitions = build_definitions(settings)
    (settings.pools_root / "bad.yaml").write_text(GOOD)
    with prepare_instance(settings) as instance:
        sensor = definitions.get_repository_def().get_sensor_def("bad_cannot_be_loaded")
        ticked = sensor.evaluate_tick(dg.build_sensor_context(instance))
        assert "can be loaded now" in (ticked.skip_message or "")
    assert declaration_key("bad") not in build_definitions(settings).resolve_asset_graph().get_all_asset_keys()
