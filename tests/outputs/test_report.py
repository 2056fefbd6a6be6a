"""What the report says of policies without values, long captions, its own words, and of one run."""

import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from markupsafe import Markup

from curation_assets.core.settings import load_settings
from curation_assets.flow.context import PoolContext
from curation_assets.flow.run_table import run_with_upstream
from curation_assets.methods import get_method
from curation_assets.numeric.metrics.separation import KINDS
from curation_assets.outputs.report import image_texts, pictures, report
from curation_assets.outputs.report.report import REASON_WORDS, _words
from curation_assets.selection.policy import Policy, Prefilter
from curation_assets.sources.declaration import add_pool

LONG = "nothing in particular " * 3000


@pytest.fixture(scope="module")
def ctx(tmp_path_factory: pytest.TempPathFactory) -> PoolContext:
    """Twelve captions whose values are given: of icc all, of sieve half, of clip_score none."""
    home = tmp_path_factory.mktemp("home")
    table = {
        "caption": [LONG, *(f"a red dog {number}" for number in range(11))],
        "icc": [number / 12 for number in range(12)],
        "sieve": [number / 12 if number % 2 else None for number in range(12)],
        "cosine": [None] * 12,
    }
    pl.DataFrame(table, schema_overrides={"cosine": pl.Float64}).write_parquet(home / "captions.parquet")
    settings = load_settings(home, "embedded")
    options = {
        "given_signals": {"icc": "icc", "sieve": "sieve", "clip_score": "cosine"},
        "policies": ["icc", "sieve", "clip", "icc_after_clip"],
        "distil": False,
        "min_success_rate": 0.0,
    }
    add_pool(settings, "texts", home / "captions.parquet", options=options)
    ctx = PoolContext.open(settings, "texts")
    run_with_upstream(ctx, "downstream/report")
    return ctx


@pytest.fixture(scope="module")
def page(ctx: PoolContext) -> str:
    return (ctx.settings.work("texts") / "downstream" / "report" / "report.html").read_text()


def test_policies_without_a_value_are_named_with_the_reason_and_not_shown(page: str) -> None:
    for policy in ("clip", "icc_after_clip"):
        assert f'id="policy-{policy}"' not in page
        assert f"Policy {policy} has no value of any sample (no_value:not_given) and is not shown." in page
    for policy in ("icc", "sieve"):
        assert f'id="policy-{policy}"' in page
        assert f"Policy {policy} has no value" not in page
    overlap = re.search(r'alt="(Overlap[^"]+)"', page) or re.search(r'alt="([^"]*sieve[^"]*icc[^"]*)"', page)
    assert overlap is not None
    assert "clip" not in overlap[1]


def test_pictures_of_a_large_pool_are_drawn_of_some_of_its_rows_and_counts_are_of_all(
    ctx: PoolContext, page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "drawn of about one row" not in page
    monkeypatch.setattr(report, "DRAWN_ROWS", 4)
    report.write_report(ctx, tmp_path / "report.html", Markup())
    thinned = (tmp_path / "report.html").read_text()
    assert "drawn of about one row in 3;" in thinned
    ids = ctx.store.scan("signals/icc").collect()["sample_id"]
    drawn = sum(int(one[:8], 16) < 2**32 // 3 for one in ids)
    assert 0 < drawn < 12
    assert f"Histogram of {drawn} values of icc" in thinned
    figures = re.compile(r"<div class=.tile.>.*?</div>|>\d+ values[^<]*<|<td class=.n.>[^<]*<|<small>[^<]*<")
    of_rows = [figures.findall(html[: html.index('<section id="lineage"')]) for html in (thinned, page)]
    assert of_rows[0] == of_rows[1]
    assert len(of_rows[0]) > 40


@pytest.mark.parametrize("is_last", [False, True])
def test_a_gallery_has_the_rows_that_got_furthest_and_of_these_the_best_or_worst(
    ctx: PoolContext, is_last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "GALLERY_SIZE", 5)
    policy = Policy("p", "signals.icc", count=3, prefilters=(Prefilter("signals.perplexity", fraction=0.5),))

    def oriented(reference: str, values: Any) -> Any:
        return -values if reference == "signals.perplexity" else values  # lower is better

    monkeypatch.setattr(report, "oriented", oriented)
    samples = ctx.store.scan("raw/samples").select("shard", "source_row", "sample_id").collect()
    values = [0.5, 0.25, 0.5, 0.75, 0.5, 0.25, 0.5, 0.75, 0.5, 0.25, 0.5, 0.75]
    decided = [policy.steps[number % 3 == 0].rank_by for number in range(12)]
    rows = samples.with_columns(pl.Series("value", values), pl.Series("decided_by", decided), reason=pl.lit("x"))

    def key(row: dict[str, Any]) -> tuple[float, float, str]:
        position = [step.rank_by for step in policy.steps].index(row["decided_by"])
        return -position, -oriented(row["decided_by"], row["value"]), row["sample_id"]

    ordered = [row["sample_id"] for row in sorted(rows.to_dicts(), key=key)]
    got = report._ranked(
        ctx, (rows[start:end].lazy() for start, end in ((0, 7), (7, 8), (8, 12))), policy, is_last=is_last
    )
    assert got["sample_id"].to_list() == (ordered[-5:] if is_last else ordered[:5])
    assert got["caption"].null_count() == 0


def test_a_long_caption_is_cut_wherever_it_is_shown(page: str) -> None:
    assert "nothing in particular" in page
    assert LONG[: image_texts.SHOWN_LETTERS + 1] not in page
    shown = image_texts.clamped(LONG)
    assert len(shown) == image_texts.SHOWN_LETTERS
    assert shown.endswith("…")
    assert image_texts.clamped(" a  short\none ") == "a short one"
    assert image_texts.clamped(None) == ""


def test_reasons_are_explained_where_they_occur(page: str) -> None:
    listed = page[page.index("Words of this page") :]
    for start in ("below_cut:", "no_value:"):
        assert REASON_WORDS[start] in listed.replace("&#39;", "'")
    assert REASON_WORDS["prefilter:"] not in listed, "no shown policy has a prefilter"


def test_kinds_of_noise_are_explained_where_figures_name_them() -> None:
    method = get_method("clip_score")
    lines = _words([{"method": method, "worth": "AUC mismatched .97 [.96, .98], n 500"}], [])
    assert lines[0].startswith("AUC KIND ")
    assert lines[1:] == [f"mismatched – {KINDS['mismatched']}"]
    assert (
        _words([{"method": method, "worth": "not measured on photographs"}, {"method": method, "worth": None}], [])
        == []
    )


@pytest.mark.parametrize("seeds", [1, 2, 5])
def test_bars_have_a_dot_per_run_where_there_are_several(seeds: int) -> None:
    table = pl.DataFrame(
        [
            {"policy": policy, "seed": seed, "metric": "cider", "value": 0.1 * seed + 0.01}
            for policy in ("icc", "random")
            for seed in range(seeds)
        ]
    )
    (axes,) = pictures.metric_bars(table, "cider", "CIDEr").axes
    dots = sum(len(collection.get_offsets()) for collection in axes.collections)
    assert dots == (0 if seeds == 1 else 2 * seeds)
    assert len(axes.patches) == 2
