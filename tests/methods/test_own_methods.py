"""Methods, recipes and policies of a user's own: the page as printed, one finder, and what a broken file does."""

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from curation_assets.core.own_modules import no_other_home
from curation_assets.core.settings import Settings, load_settings
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import left_out, policies_of, sql_recipes
from curation_assets.flow.freshness import is_up_to_date
from curation_assets.flow.graph import sound_and_broken, tables_of
from curation_assets.flow.parallel import call_in_workers, stop_workers
from curation_assets.flow.run_table import run_with_upstream
from curation_assets.methods import find_method, get_method, lower_is_better, own_methods
from curation_assets.scoring.batches import ContractError
from curation_assets.scoring.method_contract import RULES, check_own_method
from curation_assets.sources.declaration import add_pool, declaration_sha256, set_values
from tests.support.command import curate
from tests.support.pages import Reader, blocks_of
from tests.support.paths import REPOSITORY

PAGE = (REPOSITORY / "docs" / "user" / "own_methods.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, flags=re.DOTALL)
METHOD, RECIPE, POLICY, CAPTIONS = (
    next(text for kind, text in BLOCKS if kind == one) for one in ("python", "sql", "yaml", "csv")
)
OPTIONS = {"distil": False, "downstream": False, "methods": ["capitals", "word_count"]}
TABLE = "-- Grain: one row.\nwith final as (select sample_id from {})\nselect * from final\n"  # a recipe that reads it


def stating(fact: str) -> str:
    """The page's method with one fact more, such as version="2"."""
    return METHOD.replace("    unit=", f"    {fact},\n    unit=")


TEACHER = stating('stage="teachers"')


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    with no_other_home():
        settings = load_settings(tmp_path / "home", "embedded")
        (tmp_path / "captions.csv").write_text(CAPTIONS)
        for folder in ("methods", "recipes", "policies"):
            (settings.pools_root / folder).mkdir(parents=True)
        write(settings, "methods/capitals.py", METHOD)
        yield settings


def write(settings: Settings, name: str, text: str) -> Path:
    path = settings.pools_root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def pool(settings: Settings, name: str = "small", **options: object) -> PoolContext:
    add_pool(settings, name, settings.home.parent / "captions.csv", options={**OPTIONS, **options})
    return PoolContext.open(settings, name)


def tables(ctx: PoolContext) -> set[str]:
    return set(tables_of(PoolContext.open(ctx.settings, ctx.pool.name)))


# --- the page ---


@pytest.mark.slow
def test_the_page_runs_as_printed(tmp_path: Path) -> None:
    page = REPOSITORY / "docs" / "user" / "own_methods.md"
    reader = Reader(tmp_path, tmp_path)
    assert reader.read(blocks_of(page)) == []
    printed = [line for block in blocks_of(page) if block.language == "text" for line in block.text.splitlines()]
    assert len(printed) == len(RULES) + 2
    with no_other_home():
        ctx = PoolContext.open(load_settings(tmp_path / "data", "embedded"), "small")
        captions = ctx.store.scan("raw/samples").collect()["caption"].to_list()
        assert ctx.store.scan("signals/capitals").collect()["value"].to_list() == pytest.approx(
            [sum(map(str.isupper, text)) / sum(map(str.isalpha, text)) for text in captions]
        )
        kept = ctx.store.scan("filtered/calm_half").collect()["verdict"] == "kept"
        assert kept.to_list() == [True, False, True, False, True, False]


# --- the finder ---


def test_a_pool_that_names_a_method_has_its_table_and_no_other_has(settings: Settings) -> None:
    ctx = pool(settings)
    assert "signals/capitals" in tables(ctx)
    assert "signals/capitals" not in tables(pool(settings, "other", methods=[]))
    assert lower_is_better("signals.capitals")
    assert not lower_is_better("teachers.capitals")


def test_an_installed_package_brings_a_method(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (settings.pools_root / "methods" / "capitals.py").unlink()
    site = tmp_path / "site"
    (site / "calm-1.0.dist-info").mkdir(parents=True)
    (site / "calm_methods.py").write_text(METHOD)
    (site / "calm-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: calm\nVersion: 1.0\n")
    (site / "calm-1.0.dist-info" / "entry_points.txt").write_text(
        "[curation_assets.methods]\ncapitals = calm_methods:METHOD\n"
    )
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    assert "signals/capitals" in tables(pool(settings))
    assert "calm 1.0" in get_method("capitals").origin
    monkeypatch.delitem(sys.modules, "calm_methods")


def test_an_own_teacher_is_one_of_the_pools_teachers(settings: Settings) -> None:
    write(settings, "methods/capitals.py", TEACHER)
    ctx = pool(settings, methods=[], teachers=["vba", "capitals"])
    assert [method.name for method in ctx.methods("teachers")] == ["capitals", "vba"]
    assert not {"capitals"} & {method.name for method in ctx.methods("signals")}
    write(settings, "methods/capitals.py", METHOD)
    with pytest.raises(ValueError, match="option teachers names capitals, of stage signals"):
        ctx.methods("teachers")


def test_an_edit_makes_the_values_anew_whatever_the_version(settings: Settings) -> None:
    ctx = pool(settings)
    run_with_upstream(ctx, "signals/capitals")
    shard, made = ctx.shards()[0], tables_of(ctx)
    assert is_up_to_date(ctx, made["signals/capitals"], shard, tables=made)
    before = declaration_sha256(settings, "small")
    write(settings, "methods/capitals.py", METHOD.replace("str.isupper", "str.islower"))
    ctx = PoolContext.open(settings, "small")
    made = tables_of(ctx)
    assert not is_up_to_date(ctx, made["signals/capitals"], shard, tables=made)
    assert declaration_sha256(settings, "small") != before, "the UI loads its definitions anew"
    run_with_upstream(ctx, "signals/capitals")
    assert ctx.store.read("signals/capitals", shard)["value"][0] == 1
    write(settings, "methods/capitals.py", stating('version="2"'))
    assert get_method("capitals").version.startswith("2+")


@pytest.mark.slow
def test_worker_processes_find_it(settings: Settings) -> None:
    ctx = pool(settings)
    two = replace(settings, workers=2)
    try:
        found = list(call_in_workers(two, version_in_worker, [(two, ctx.pool.name)]))
    finally:
        stop_workers()
    assert [version for version, _ in found] == [get_method("capitals").version]
    assert found[0][1] != os.getpid()


def version_in_worker(settings: Settings, name: str) -> tuple[str, int]:
    methods = {method.name: method.version for method in PoolContext.open(settings, name).methods("signals")}
    return methods["capitals"], os.getpid()


# --- what is wrong with a file ---


@pytest.mark.parametrize(
    ("code", "match"),
    [
        ("def (", "cannot be imported: SyntaxError"),
        ("import there_is_no_such_module", "cannot be imported: ModuleNotFoundError"),
        ("raise SystemExit(3)", "cannot be imported: SystemExit: 3"),
        ("", r"expected METHOD = a curation_assets\.methods\.Method, got none"),
        ("METHOD = 3", "got int"),
        (stating('name="letters"'), "expected a METHOD named 'capitals'.*got 'letters'"),
        (stating('roles=("oracle",)'), "needs unknown roles"),
        (METHOD.replace('unit="share of letters",', ""), "cannot be imported: TypeError: .*unit"),
    ],
    ids=["syntax", "import", "exit", "nothing", "no method", "name", "role", "fact"],
)
def test_a_broken_file_is_named_and_stops_only_the_pools_that_name_it(
    code: str, match: str, settings: Settings
) -> None:
    path = write(settings, "methods/capitals.py", code)
    write(settings, "recipes/calm.sql", RECIPE)
    pool(settings)
    pool(settings, "other", methods=["word_count"])
    sound, broken = sound_and_broken(settings)
    assert sound == ["other"]
    assert list(broken) == ["small"]
    with pytest.raises(ValueError, match=match) as caught:
        tables_of(PoolContext.open(settings, "small"))
    assert str(path) in str(caught.value)
    methods, faults = own_methods()
    assert methods == []
    assert re.search(match, faults[0])
    shown = curate("pool", "list", home=settings.home)
    assert re.search(r"^other +captions", shown.output, flags=re.MULTILINE), shown.output
    assert re.search(r"^small +broken", shown.output, flags=re.MULTILINE)


@pytest.mark.parametrize("name", ["sieve", "icc_score", "Capitals"])
def test_a_name_that_cannot_be_used_is_an_error_where_it_is_named(name: str, settings: Settings) -> None:
    write(settings, f"methods/{name}.py", stating(f'name="{name}"'))
    pool(settings, "other", methods=["word_count"])
    assert sound_and_broken(settings)[0] == ["other"]
    with pytest.raises(ValueError, match=rf"{name}\.py: (this package has a method|a method's name is lower-case)"):
        tables_of(pool(settings, methods=[name]))
    assert len(own_methods()[1]) == 1


@pytest.mark.parametrize(
    ("returned", "match"),
    [
        ("return [1.0 for _ in caption]", r"method 'capitals' \(.*capitals\.py\) returned list, expected .*Values"),
        ("return Values.of(np.zeros(len(caption) + 1))", "returned 7 values for 6 samples"),
        ("return Values.of(np.full(len(caption), 7.0))", r"promises share of letters in \[0, 1\], got 7.0"),
    ],
)
def test_a_wrong_result_is_an_error_and_no_value(returned: str, match: str, settings: Settings) -> None:
    first = f'    if caption != ["a Red kite", "SALE", "12"]:\n        {returned}\n'
    write(settings, "methods/capitals.py", METHOD.replace("    letters = [[", f"{first}    letters = [["))
    ctx = pool(settings)
    with pytest.raises((ContractError, ValueError), match=match):
        run_with_upstream(ctx, "signals/capitals")


def test_code_that_everybody_may_write_is_not_run(settings: Settings, tmp_path: Path) -> None:
    path = write(settings, "methods/capitals.py", f"open({str(tmp_path / 'ran')!r}, 'w')")
    path.chmod(0o666)
    with pytest.raises(ValueError, match="may be written by anybody"):
        pool(settings).methods("signals")
    assert not (tmp_path / "ran").exists()


def test_no_other_folder_is_read(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (settings.pools_root / "methods" / "capitals.py").unlink()
    monkeypatch.chdir(tmp_path)
    for folder in (
        tmp_path,
        settings.home,
        settings.home / "work" / "small",
        settings.pools_root / "small" / "methods",
    ):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "capitals.py").write_text(METHOD)
    pool(settings, methods=[])
    assert find_method("capitals") is None
    assert find_method("../../capitals") is None


def test_no_pool_is_called_as_what_all_pools_share(settings: Settings) -> None:
    with pytest.raises(ValueError, match="pools/recipes holds what all pools share"):
        pool(settings, "recipes")


def test_a_pool_of_an_earlier_version_keeps_its_folder(settings: Settings) -> None:
    write(settings, "policies/calm_half.yaml", POLICY.replace("fused.calm", "signals.word_count"))
    ctx = pool(settings)
    assert "filtered/calm_half" in tables(ctx)
    write(settings, "policies.yaml", "name: policies\nkind: url_table\nsource: nowhere.csv\n")
    assert "filtered/calm_half" not in tables(ctx)


# --- recipes and policies ---


def test_recipes_and_policies_of_the_home_run_where_the_pool_makes_what_they_read(settings: Settings) -> None:
    write(settings, "recipes/calm.sql", RECIPE)
    write(settings, "recipes/mixed.yaml", "name: mixed\nkind: votes\nsignals: [signals.capitals, signals.word_count]\n")
    write(settings, "policies/calm_half.yaml", POLICY)
    ctx, other = pool(settings), pool(settings, "other", methods=["word_count"])
    assert {"fused/calm", "fused/capitals_range", "filtered/calm_half"} <= tables(ctx)
    assert not {"fused/calm", "filtered/calm_half"} & tables(other)
    assert any("Recipe calm of the home waits: the pool does not make" in note for note in left_out(other))
    assert any("Policy calm_half of the home waits" in note and "fused.calm" in note for note in left_out(other))
    assert not [note for note in left_out(ctx) if "of the home" in note]
    set_values(settings, "small", {"policies": "[]"})
    assert "filtered/calm_half" not in tables(ctx)


def test_those_of_one_pool_run_there_alone(settings: Settings) -> None:
    write(settings, "small/recipes/calm.sql", RECIPE)
    write(settings, "small/calm_half.yaml", POLICY)
    ctx, other = pool(settings), pool(settings, "other")
    assert {"fused/calm", "filtered/calm_half"} <= tables(ctx)
    assert not {"fused/calm", "filtered/calm_half"} & tables(other)
    set_values(settings, "small", {"methods": "[word_count]"})
    with pytest.raises(ValueError, match="recipe 'calm' reads capitals, which the pool does not run"):
        tables(ctx)


def test_a_pools_policy_goes_before_one_of_the_home(settings: Settings) -> None:
    write(settings, "policies/calm_half.yaml", POLICY.replace("fused.calm", "signals.word_count"))
    write(settings, "small/calm_half.yaml", POLICY.replace("fused.calm", "signals.capitals"))
    read = {name: [one.rank_by for one in policies_of(pool(settings, name)) if one.name == "calm_half"]
            for name in ("small", "other")}  # fmt: skip
    assert read == {"small": ["signals.capitals"], "other": ["signals.word_count"]}


def test_a_direction_that_changes_turns_the_recipe_round(settings: Settings) -> None:
    write(settings, "recipes/calm.sql", RECIPE)
    ctx = pool(settings)
    before = next(one for one in sql_recipes(ctx) if one.name == "calm")
    write(settings, "methods/capitals.py", METHOD.replace('direction="lower"', 'direction="higher"'))
    after = next(one for one in sql_recipes(PoolContext.open(settings, "small")) if one.name == "calm")
    assert before.code_version != after.code_version


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        (
            "policies/calm_half.yaml",
            "name: other\nrank_by: signals.word_count\nfraction: 0.5\n",
            "expected name: calm_half",
        ),
        ("policies/calm_half.yaml", "name: [", "calm_half.yaml"),
        ("policies/clip.yaml", POLICY, "there is a policy 'clip' already"),
        ("recipes/calm.sql", RECIPE.replace("capitals_score", "capital_score"), "did you mean 'capitals_score'"),
        ("recipes/calm.sql", "select 1", "calm.sql: the first comment must state the grain"),
        ("recipes/calm.sql", TABLE.format("raw.nothing"), "does not make raw.nothing"),
        ("recipes/calm.sql", RECIPE.replace("fused.scaled", "fused.calm"), "reads itself"),
        ("recipes/sieve_clip.sql", RECIPE, "there is a recipe 'sieve_clip' already"),
        ("recipes/calm.yaml", "name: calm\nkind: nonsense\n", "calm.yaml has no kind of recipe 'nonsense'"),
    ],
    ids=["name", "yaml", "taken", "typo", "header", "table", "itself", "taken recipe", "kind"],
)
def test_a_broken_policy_or_recipe_of_the_home_is_a_sentence_and_stops_no_pool(
    name: str, text: str, fault: str, settings: Settings
) -> None:
    write(settings, name, text)
    ctx = pool(settings)
    assert not {"fused/calm", "filtered/calm_half", "filtered/other"} & tables(ctx)
    notes = [note for note in left_out(ctx) if fault in note]
    assert len(notes) == 1, left_out(ctx)
    assert str(settings.home) not in notes[0]


def test_recipes_that_read_each_other_in_a_circle_wait(settings: Settings) -> None:
    write(settings, "recipes/one.sql", TABLE.format("fused.two"))
    write(settings, "recipes/two.sql", TABLE.format("fused.one"))
    ctx = pool(settings)
    assert not {"fused/one", "fused/two"} & tables(ctx)
    assert len([note for note in left_out(ctx) if "of the home waits" in note]) == 2


def test_a_broken_file_is_an_error_of_the_pool_that_names_it(settings: Settings) -> None:
    write(settings, "policies/calm_half.yaml", "name: calm_half\n")
    with pytest.raises(ValueError, match=r"calm_half\.yaml"):
        tables(pool(settings, policies=["calm_half"]))
    write(settings, "recipes/calm.sql", "select 1")
    with pytest.raises(ValueError, match=r"calm\.sql"):
        tables(pool(settings, "other", recipes={"calm": {}}))


# --- the contract ---


def breaks(old: str, new: str) -> str:
    assert old in METHOD
    return METHOD.replace(old, new)


@pytest.mark.parametrize(
    ("code", "rule", "fault"),
    [
        (breaks('source="our own rule"', 'source=" "'), "Its facts", "empty: source"),
        (stating('columns=("caption", "colour")'), "It reads columns", "columns: no colour"),
        (breaks("[0.125, 1.0, np.nan]", "[0.25, 1.0, np.nan]"), "Its worked example", "expected [0.25, 1.0, nan], got"),
        (breaks('"no_letters"', "None"), "It returns one value", "row 2 has nan, None"),
        (
            breaks("bounds=(0.0, 1.0)", "bounds=(0.0, 0.5)"),
            "It returns one value",
            "expected values in [0, 0.5], got 1",
        ),
        (TEACHER, "As a teacher", "details: expected reconstructions"),
        (
            breaks("np.array(share)", "np.array(share) + (caption[0] != 'a Red kite') * 0.001"),
            "The order of samples",
            "expected [",
        ),
        (
            breaks("np.array(share)", "np.array(share) + (len(caption) == 1) * 0.001"),
            "A sample's neighbours",
            "row 0 has 0.125 among the others, 0.126 alone",
        ),
        (
            breaks("np.array(share)", "np.array(share) - (len(caption) == 2) * np.array(share) / 10"),
            "It runs as a table",
            "expected the same of batches of 1, 2 and 3 rows",
        ),
        (
            breaks("return Values(np.array(share), ", "return (np.array(share), "),
            "Its worked example",
            "returned tuple",
        ),
        (breaks("caption]", "caption + 1]"), "Its worked example", "TypeError"),
    ],
    ids=[
        "facts",
        "columns",
        "example",
        "reason",
        "bounds",
        "teacher",
        "order",
        "neighbours",
        "batches",
        "tuple",
        "raises",
    ],
)
def test_the_command_says_which_rule_is_broken(code: str, rule: str, fault: str, tmp_path: Path) -> None:
    file = tmp_path / "capitals.py"
    file.write_text(code)
    last = check_own_method(file)[-1]
    assert last.rule.startswith(rule)
    assert fault in str(last.fault)
    done = curate("methods", "check", file)
    assert done.exit_code == 1
    assert f"FAULT: {last.rule} " in done.output


def test_a_method_of_image_columns_keeps_to_the_contract(tmp_path: Path) -> None:
    file = tmp_path / "capitals.py"
    file.write_text(
        stating('columns=("caption", "image_embedding")')
        .replace("def capitals(caption):", "def capitals(caption, image_embedding):")
        .replace('"12"]}', '"12"], "image_embedding": [[1.0], [1.0], [1.0]]}')
    )
    assert [one.fault for one in check_own_method(file) if one.fault] == []


def test_methods_lists_own_ones_and_names_broken_ones(settings: Settings) -> None:
    broken = write(settings, "methods/broken.py", "def (")
    shown = curate("methods", home=settings.home, width=400)
    assert shown.exit_code == 0, shown.output
    assert "capitals" in shown.output
    assert "your own, if named" in shown.output
    assert str(broken) in shown.output
    assert "capitals" not in curate("methods", "--markdown").output, "the page is the package's"


def test_a_file_is_scored_with_an_own_method(settings: Settings, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    words = ["score", "capitals", str(tmp_path / "captions.csv"), "--out", str(out), "--home", str(settings.home)]
    done = curate(*words)
    assert done.exit_code == 0, done.output
    assert pl.read_parquet(out)["capitals"].to_list() == pytest.approx([0, 1, 0, 6 / 15, 0, 2 / 6])
