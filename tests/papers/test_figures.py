"""Figures and galleries of pools: what is drawn follows from the stored values."""

import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from benchmarks.papers import plots
from benchmarks.papers.__main__ import app
from benchmarks.papers.gallery import chosen_rows
from benchmarks.papers.tables import Sources
from curation_assets.core.settings import load_settings
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import policies_of


def papers(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})


def sources(home: Path, *pools: str) -> Sources:
    settings = load_settings(home, "embedded")
    return Sources([PoolContext.open(settings, name) for name in pools])


@pytest.mark.slow
def test_fractions_are_the_means_and_intervals_of_the_comparison(home: Path, tmp_path: Path) -> None:
    figure = plots.fractions(sources(home, "first", "second"))
    titles = [axis.get_title() for axis in figure.axes if axis.get_visible()]
    assert titles == ["captioning: cider", "retrieval: text_to_image_recall@1"]
    reward = next(bars for bars in figure.axes[0].containers if bars.get_label() == "reward")
    shares, means = reward.lines[0].get_data()
    # cider of reward at shares .2 and .5: .05 + share / 10 + .01 of seed's mean; the second pool .11 more
    assert list(shares) == [0.2, 0.5]
    assert means == pytest.approx([0.05 + 0.02 + 0.01 + 0.055, 0.05 + 0.05 + 0.01 + 0.055])
    plots.plt.close(figure)
    out = tmp_path / "fractions.png"
    result = papers("plot", "fractions", "first", "--out", out, "--home", home)
    assert result.exit_code == 0, result.output
    with Image.open(out) as image:
        assert image.format == "PNG"
        assert min(image.size) > 300
    again = papers("plot", "fractions", "first", "--out", out, "--home", home)
    assert again.exit_code == 1
    assert "is never overwritten" in again.output


@pytest.mark.slow
def test_correlations_show_a_point_per_training_set(home: Path) -> None:
    figure = plots.correlations(sources(home, "first"))
    axis = next(axis for axis in figure.axes if axis.get_title().startswith("clip_score at 0.5"))
    points = axis.collections[0].get_offsets()
    names = {text.get_text() for text in axis.texts}
    assert names == {"clip", "icc", "sieve", "random"}
    best = points[[text.get_text() for text in axis.texts].index("clip")]
    assert best[0] == points[:, 0].max(), "the best half by CLIPScore has the highest mean of it"
    plots.plt.close(figure)


def test_histograms_are_shares_of_the_pool_and_of_each_subset(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "RAO_METHODS", ("clip_score",))  # a signal that this pool has
    own = sources(home, "first")
    (ctx,) = own.pools
    by_subset = plots.values_by_subset(ctx, "clip_score")
    stored = ctx.store.scan("signals/clip_score").select("value").collect()["value"].drop_nulls()
    assert sorted(by_subset["pool"]) == pytest.approx(sorted(stored))
    assert set(by_subset) == {"pool", *(policy.name for policy in policies_of(ctx))}
    assert by_subset["clip"].min() >= np.quantile(by_subset["pool"], 0.5)
    figure = plots.histograms(own)
    assert figure.axes[0].patches[0].get_data().values.sum() == pytest.approx(1.0)
    plots.plt.close(figure)


def test_what_cannot_be_drawn_names_what_to_set(home: Path, tmp_path: Path) -> None:
    for arguments, sentence in (
        (("histograms", "first"), "add object_word_quality to the option `methods`"),
        (("fractions", "texts"), "No models are trained on this pool's subsets"),
        (("fraction", "first"), "has no figure 'fraction'; did you mean 'fractions'"),
    ):
        result = papers("plot", *arguments, "--out", tmp_path / "a.png", "--home", home)
        assert result.exit_code == 1, arguments
        assert sentence in " ".join(result.output.split())
    assert not list(tmp_path.iterdir())


def test_a_gallery_has_the_best_the_middle_and_the_worst(home: Path, tmp_path: Path) -> None:
    (ctx,) = sources(home, "first").pools
    parts = chosen_rows(ctx, "signals/icc", 5, lower_is_better=False)
    values = ctx.store.scan("signals/icc").select("value").collect()["value"].drop_nulls().sort(descending=True)
    assert parts["best"]["value"].to_list() == values.head(5).to_list()
    assert parts["worst"]["value"].to_list() == values.tail(5).to_list()
    rows = pl.concat(part.select("shard", "source_row") for part in parts.values())
    assert rows.height == rows.unique().height == 15
    turned = chosen_rows(ctx, "signals/icc", 5, lower_is_better=True)
    assert turned["best"]["value"].to_list() == values.reverse().head(5).to_list()
    result = papers("gallery", "first", "--out", tmp_path / "page.html", "--count", 5, "--home", home)
    assert result.exit_code == 0, result.output
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert len(re.findall(r'<img src="data:image/jpeg;base64,', page)) == 15
    shown = [float(number) for number in re.findall(r"<b>(-?[\d.]+)</b>", page)]
    assert shown[:5] == pytest.approx(values.head(5).to_list(), abs=5e-4)
    wrong = papers("gallery", "texts", "--out", tmp_path / "other", "--home", home)
    assert wrong.exit_code == 1
    assert "pool texts has no signals/icc" in " ".join(wrong.output.split())
