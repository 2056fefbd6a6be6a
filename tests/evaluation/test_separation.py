"""Method × planted noise kind: AUC with its interval, what a method is made for, the table of a pool and its report."""

import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from curation_assets.core.settings import load_settings
from curation_assets.evaluation.truth import read_truth
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import known_limit, made_for, recipes, shown_name
from curation_assets.flow.graph import tables_of
from curation_assets.methods import all_methods, get_method
from curation_assets.numeric.metrics.separation import KINDS, in_order, verdict_of
from curation_assets.numeric.separation import auc_interval, roc_auc
from curation_assets.outputs.report.pictures import auc_colour
from curation_assets.sources.declaration import add_world_pool
from curation_assets.world.photo_noise import PHOTO_MIX
from curation_assets.world.pool import CAPTION_FOR
from tests.conftest import FinishedPool


@pytest.mark.parametrize("auc", [0.0, 0.03, 0.5, 0.8, 0.99, 1.0])
def test_an_interval_holds_its_auc_and_has_a_width_at_the_ends(auc: float) -> None:
    low, high = auc_interval(auc, 40, 25)
    assert 0 <= low <= auc <= high <= 1
    assert high - low > 0.05
    wide_low, wide_high = auc_interval(auc, 8, 5)
    assert wide_low <= low
    assert wide_high >= high
    mirrored = auc_interval(1 - auc, 40, 25)
    assert (1 - mirrored[1], 1 - mirrored[0]) == pytest.approx((low, high))


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """Two normal groups one standard deviation apart: the AUC is Φ(1/√2) = .7602."""
    rng = np.random.default_rng(0)
    is_positive = np.arange(60) < 40
    held = 0
    for _ in range(400):
        low, high = auc_interval(roc_auc(rng.normal(size=60) + is_positive, is_positive), 40, 20)
        held += low <= 0.76025 <= high
    assert 0.92 <= held / 400 <= 0.985


def test_intervals_of_nothing_are_refused() -> None:
    for wrong in ((1.1, 3, 3), (0.5, 0, 3), (0.5, 3, 0), (0.5, 3, 3, 1.0)):
        with pytest.raises(ValueError, match=r"expected an auc in \[0, 1\]"):
            auc_interval(*wrong)  # type: ignore[arg-type]


def test_what_methods_are_made_for_names_what_exists(tmp_path: Path) -> None:
    settings = load_settings(tmp_path, "embedded")
    add_world_pool(settings, "scenes", size=10, seed=0)
    kinds_of = made_for(PoolContext.open(settings, "scenes"))
    assert set(kinds_of) == {*all_methods(), *(shown_name(recipe) for recipe in recipes().values())}
    assert "fused conceptual_captions" in kinds_of
    assert set(KINDS) == {*CAPTION_FOR, *PHOTO_MIX} - {"clean"}
    for name, method in all_methods().items():
        assert bool(method.made_for) != bool(method.no_planted_kind), f"{name}: say which, or why none"
    for recipe in recipes().values():
        assert recipe.made_for, recipe.key
    assert known_limit("datacomp_text", "abstract")
    assert known_limit("datacomp_text", "foreign") is known_limit("sieve_clip", "mismatched") is None
    assert in_order(["odd_size", "new", "mismatched"]) == ["mismatched", "odd_size", "new"]


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"made_for": ("typos",)}, "unknown kinds of noise"),
        ({"known_limits": {"caps": "why"}}, "are of kinds in made_for"),
        ({"no_planted_kind": "why"}, "stands without made_for"),
    ],
)
def test_a_methods_verdicts_are_checked(facts: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(get_method("clip_score"), **facts)


def test_verdicts() -> None:
    assert [verdict_of(auc) for auc in (0.8, 0.799, 0.649)] == ["separates", "partly", "does not"]


def test_colours_run_from_red_over_white_to_green() -> None:
    assert [auc_colour(auc) for auc in (0.0, 0.5, 1.0)] == [
        "rgba(214, 69, 69, 0.75)", "rgba(58, 157, 93, 0.00)", "rgba(58, 157, 93, 0.75)",
    ]  # fmt: skip
    assert auc_colour(None).startswith("#")


def test_the_table_of_a_pool_counts_by_hand(finished_pool: FinishedPool) -> None:
    ctx = finished_pool.ctx
    table = ctx.store.read("downstream/separation")
    assert {"icc", "clip_score", "sieve", "sieve_clip", "vba", "sba"} <= set(table["method"])
    row = table.row(by_predicate=(pl.col("method") == "clip_score") & (pl.col("kind") == "abstract"), named=True)
    values = ctx.store.scan("signals/clip_score").select("sample_id", "value").collect().drop_nulls()
    values = values.join(read_truth(ctx), on="sample_id")
    clean, noise = (values.filter(pl.col("kind") == kind)["value"].to_numpy() for kind in ("clean", "abstract"))
    wins = np.mean([(a > b) + 0.5 * (a == b) for a in clean for b in noise])
    assert row["auc"] == pytest.approx(wins)
    assert (row["n"], row["n_clean"], row["without_value"]) == (len(noise), len(clean), 0)
    assert row["low"] <= row["auc"] <= row["high"]
    assert row["low"] < row["high"]
    valued = table.filter(pl.col("n") > 0)
    assert valued["auc"].is_between(0, 1).all()
    # teachers score a part of the pool only: the others were never asked, and are no gap
    asked = ctx.store.scan("standardised/teacher_scores").select("sample_id").collect().height
    of_vba = table.filter(pl.col("method") == "vba")
    assert of_vba["n"].sum() + of_vba["without_value"].sum() < asked


def test_the_report_shows_the_table_with_its_legend(finished_pool: FinishedPool) -> None:
    page = (finished_pool.ctx.store.folder_path("downstream/report") / "report.html").read_text()
    table = finished_pool.ctx.store.read("downstream/separation")
    heat = page.partition('<table class="heat">')[2].partition("</table>")[0]
    for name in table["method"].unique():
        assert f'<tr><th scope="row">{name}</th>' in heat
    assert heat.count('<td class="n') == table.height
    assert heat.count('<td class="n own"') == table["is_made_for"].sum()
    assert "Which kind each method is made for" in page
    assert KINDS["mismatched"] in page
    failing = table.filter(pl.col("verdict") == "does not")
    assert ("Does not separate a kind that it was made for" in page) == bool(failing.height)


def test_planted_truth_is_out_of_every_methods_reach(finished_pool: FinishedPool) -> None:
    """What methods are given holds nothing of it, and only the tables that judge read the file."""
    ctx = finished_pool.ctx
    planted = set(read_truth(ctx).columns) - {"sample_id", "index"}
    for name, table in tables_of(ctx).items():
        columns = set(ctx.store.scan(name).collect_schema()) if ctx.store.partitions(name) else set()
        if not name.startswith("downstream/"):
            assert not columns & planted, name
            assert not any("truth" in one for one in table.inputs)
    source = pl.read_parquet(ctx.pool.source_path(finished_pool.settings)).columns
    assert not set(source) & planted
    tars = sorted((ctx.store.root / "downloads").rglob("*.tar"))
    assert tars
    with tarfile.open(tars[0]) as tar:
        members = [member for member in tar.getmembers() if member.name.endswith(".json")]
        content = json.load(io.TextIOWrapper(tar.extractfile(members[0])))  # type: ignore[arg-type]
    assert not set(content) & planted
