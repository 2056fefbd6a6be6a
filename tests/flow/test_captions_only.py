"""A pool without images runs what reads captions; the rest is left out in a sentence, or refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

from curation_assets.cli import app
from curation_assets.core.settings import load_settings
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import fitted_recipes, left_out, missing_signals, policies_of
from curation_assets.flow.graph import tables_of
from curation_assets.methods import all_methods, get_method
from curation_assets.scoring.derived import DERIVING_ROLES
from curation_assets.selection.fitted import load_recipes
from curation_assets.selection.policy import load_policies
from curation_assets.sources.declaration import add_pool, save_pool

SIGNALS = [method for method in all_methods().values() if method.stage == "signals"]
OF_IMAGES = {"image_text_encoder", "captioner", "object_detector", "text_spotter", *DERIVING_ROLES.values()}
CAPTIONS = [f"a red dog number {number} on a beach" for number in range(12)]


def pool_of(home: Path, table: dict[str, Any] | None = None, profile: str = "embedded", **options: Any) -> PoolContext:
    settings = load_settings(home, profile)
    pl.DataFrame({"caption": CAPTIONS}).write_csv(home / "captions.csv")  # an option may name it
    pl.DataFrame(table or {"caption": CAPTIONS}).write_parquet(home / "captions.parquet")
    add_pool(settings, "texts", home / "captions.parquet", options=options)
    return PoolContext.open(settings, "texts")


@pytest.mark.parametrize("profile", ["embedded", "photos"])
def test_no_table_reads_an_image_and_a_sentence_says_what_is_missing(tmp_path: Path, profile: str) -> None:
    ctx = pool_of(tmp_path, profile=profile)
    tables = tables_of(ctx)
    assert not {role for table in tables.values() for role in table.needs.roles} & OF_IMAGES
    without = [method.name for method in ctx.methods_without_values()]
    assert {"clip_score", "sieve"} <= set(without)
    (sentence,) = left_out(ctx)
    assert sentence.startswith("The pool has captions only, so what reads images is left out: methods ")
    methods, _, policies = sentence.partition("; policies ")
    assert methods.rpartition("methods ")[2].split(", ") == without
    known = load_policies()
    assert {"clip", "sieve", "sieve_clip", "icc_after_clip"} <= set(policies.split(", ")) <= set(known)
    kept = {policy.name for policy in policies_of(ctx)}
    assert kept == {"icc", "random"}
    for policy in policies_of(ctx):
        assert not missing_signals(ctx, policy.references)


@pytest.mark.parametrize("method", [method.name for method in SIGNALS if method.image_columns])
def test_a_method_of_images_that_is_named_runs_and_a_sentence_says_that_it_is_in_vain(
    tmp_path: Path, method: str
) -> None:
    ctx = pool_of(tmp_path, methods=[method])
    assert method in {one.name for one in ctx.methods("signals")}
    assert {policy.name for policy in policies_of(ctx)} == {"icc", "random"}
    first, second = left_out(ctx)
    assert first.startswith(f"Method {method} gives every row a reason instead of a value: it reads ")
    assert method not in second.partition("methods ")[2].partition("; policies")[0].split(", ")


@pytest.mark.parametrize("method", [method.name for method in SIGNALS if not method.image_columns])
def test_a_method_of_captions_that_is_named_runs(tmp_path: Path, method: str) -> None:
    assert method in {one.name for one in pool_of(tmp_path, methods=[method]).methods("signals")}


@pytest.mark.parametrize("policy", list(load_policies()))
def test_a_policy_that_is_named_runs_or_is_refused(tmp_path: Path, policy: str) -> None:
    """Each as its signals say; named with the methods of captions that it needs."""
    reads = {one for name in load_policies()[policy].references for one in _methods_behind(name)}
    of_images = [name for name in reads if get_method(name).image_columns]
    others = sorted(name for name in reads if not get_method(name).image_columns)
    needs_embeddings = policy in ("density", "clip_deduplicated")
    related = {"related_to": str(tmp_path / "captions.csv")} if "relatedness" in others else {}
    ctx = pool_of(tmp_path, policies=[policy], methods=others, **related)
    if of_images or needs_embeddings:
        with pytest.raises(ValueError, match=r"captions only|no stage of this pool provides"):
            tables_of(ctx)
        if of_images:
            with pytest.raises(ValueError, match=rf"policy '{policy}' reads .*, and the pool has captions only; bring"):
                policies_of(ctx)
    else:
        assert f"filtered/{policy}" in tables_of(ctx)


def _methods_behind(reference: str) -> set[str]:
    from curation_assets.flow.sql import recipes

    name = reference.partition(".")[2]
    if reference in recipes():
        return {one for read in recipes()[reference].references for one in _methods_behind(read)}
    if reference.startswith("fused."):
        known = load_recipes()
        return (
            {one for read in known[name].settings.signals for one in _methods_behind(read)} if name in known else set()
        )
    return {name} if name in all_methods() else set()


def test_values_columns_and_sizes_that_are_given_count(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    sizes = {"caption": CAPTIONS, "original_width": [640] * 12, "original_height": [480] * 12, "cosine": [0.3] * 12}
    ctx = pool_of(tmp_path / "a", sizes, given_signals={"clip_score": "cosine"}, methods=["image_aspect"])
    assert {"clip_score", "image_aspect"} <= {method.name for method in ctx.methods("signals")}
    assert {"clip", "icc_after_clip"} <= {policy.name for policy in policies_of(ctx)}
    assert "clip" not in left_out(ctx)[0].partition("; policies ")[2].split(", ")
    written = pl.DataFrame({"caption": CAPTIONS, "generated_captions": [["a dog"]] * 12})
    written.write_parquet(tmp_path / "generated.parquet")
    (tmp_path / "b").mkdir()
    ctx = pool_of(tmp_path / "b", given={"generated_captions": str(tmp_path / "generated.parquet")})
    assert "sieve" in {method.name for method in ctx.methods("signals")}
    assert tables_of(ctx)["signals/generated_captions"].needs.roles == ()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"duplicates": {"cosine": 0.9}}, "option duplicates compares images"),
        ({"caption_choice": {"raw_share": 0.5}}, "option caption_choice compares captions with images"),
        ({"recipes": {"density": {}}}, "recipe 'density' reads image_embedding"),
        ({"recipes": {"clip_soft_cap": {}}}, "recipe 'clip_soft_cap' reads clip_score"),
    ],
)
def test_options_that_compare_images_are_refused(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=rf"{said}.* captions only"):
        tables_of(pool_of(tmp_path, **options))


def test_a_pool_with_images_leaves_nothing_out_for_want_of_them(tmp_path: Path) -> None:
    table = {"caption": CAPTIONS, "url": [f"http://host.example/{number}.jpg" for number in range(12)]}
    ctx = pool_of(tmp_path, table)
    assert ctx.methods_without_values() == []
    assert not any("captions only" in sentence for sentence in left_out(ctx))
    assert fitted_recipes(ctx) == {}


@pytest.mark.slow
def test_run_dry_run_report_and_methods_say_it(tmp_path: Path) -> None:
    pool_of(tmp_path)
    run = CliRunner()

    def output(*arguments: str) -> str:
        result = run.invoke(
            app, [*arguments, "--home", str(tmp_path)] if arguments[0] in ("plan", "run") else [*arguments]
        )
        assert result.exit_code == 0, result.output
        return result.output

    planned = json.loads(output("plan", "texts", "--json"))
    assert "captions only" in planned["left_out"][0]
    assert "captions only" in " ".join(output("plan", "texts").split())
    said = " ".join(output("run", "texts").split())
    assert "The pool has captions only, so what reads images is left out: methods" in said
    assert "signals/clip_score" not in said
    page = (tmp_path / "work/texts/downstream/report/report.html").read_text()
    assert "The pool has captions only" in page
    assert "policy-clip" not in page
    assert "default, with images" in output("methods")


def test_a_recipe_of_the_package_is_made_where_something_reads_it(tmp_path: Path) -> None:
    table = {"caption": CAPTIONS, "url": [f"http://host.example/{number}.jpg" for number in range(12)]}

    def made(ctx: PoolContext) -> set[str]:
        names = {name.removeprefix("fused/") for name in tables_of(ctx)}
        return names & {"icc_clip", "sieve_clip", "icc_range"}

    plain, named = tmp_path / "plain", tmp_path / "named"
    plain.mkdir()
    named.mkdir()
    ctx = pool_of(plain, table)
    assert made(ctx) == {"sieve_clip"}
    assert made(pool_of(named, table, recipes={"icc_clip": {}})) == {"sieve_clip", "icc_clip", "icc_range"}
    policies = plain / "pools" / "policies"
    policies.mkdir(parents=True)
    (policies / "both.yaml").write_text("name: both\nrank_by: fused.icc_clip\nfraction: 0.3\n")
    assert made(ctx) == {"sieve_clip", "icc_clip", "icc_range"}


def test_a_student_of_the_pools_own_is_made_where_the_pool_distils(tmp_path: Path) -> None:
    ctx = pool_of(tmp_path)
    own = replace(ctx.pool, roles={"student": "pool:icc_student"})
    save_pool(ctx.settings, own)
    with pytest.raises(ValueError, match=r"reads \['distilled/icc_student'\].*; option distil: true makes a student"):
        tables_of(PoolContext.open(ctx.settings, "texts"))
    save_pool(ctx.settings, replace(own, options={"distil": True}))
    assert "distilled/icc_student" in tables_of(PoolContext.open(ctx.settings, "texts"))
