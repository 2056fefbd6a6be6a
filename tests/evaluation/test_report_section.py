"""The report's section on trained models, from its tables: what is shown, what is left out, and the texts of images."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from PIL import Image

from curation_assets.evaluation.report_section import downstream_section, metric_name, size_name
from curation_assets.flow.context import PoolContext
from curation_assets.outputs.report import image_texts
from curation_assets.stores.images import ImageLimits
from tests.support.lineage_pools import finished_photos
from tests.support.trained_tables import CONTROLS, POLICIES, write_trained_tables

SHOWN = {"downstream/captioning": ("cider", "no_such_metric", "bleu_4"), "downstream/retrieval": ("mean_recall@1",)}


@pytest.fixture(scope="module")
def ctx(tmp_path_factory: pytest.TempPathFactory) -> PoolContext:
    """A pool with tables of trained models; five images in files, two of which cannot be shown."""
    home = tmp_path_factory.mktemp("home")
    folder = tmp_path_factory.mktemp("images")
    for number in range(4):
        Image.new("RGB", (30 + number, 20), (number * 60, 0, 0)).save(folder / f"{number}.jpg")
    (folder / "4.jpg").write_bytes(b"no jpeg")
    ctx = finished_photos(home)
    write_trained_tables(ctx, images=folder)
    (folder / "3.jpg").unlink()
    return ctx


def test_nothing_trained_is_no_section(ctx: PoolContext) -> None:
    assert downstream_section(ctx, {"downstream/not_there": ("cider",)}) is None


def test_the_figures_are_those_of_the_comparison(ctx: PoolContext) -> None:
    section = downstream_section(ctx, SHOWN)
    assert section is not None
    captioning = section["trainers"][0]
    assert captioning["metrics"] == ["CIDEr-D", "BLEU-4"], "metrics without values are no columns"
    assert captioning["without"] == [("SPICE", "java is not installed")]
    assert [size["title"] for size in captioning["sizes"]] == [
        "10 % of the pool", "25 % of the pool", "each set at its own size",
    ]  # fmt: skip
    comparison = ctx.store.read("downstream/comparison").filter(
        pl.col("trainer") == "captioning", pl.col("size") == 0.25
    )
    known = {(row["policy"], row["metric"]): row for row in comparison.to_dicts()}
    (_, policies), (_, controls) = captioning["sizes"][1]["groups"]
    assert {line["name"] for line in policies} == set(POLICIES)
    assert {line["name"] for line in controls} == set(CONTROLS)
    ciders = [line["cells"][0][1]["mean"] for line in policies]
    assert ciders == sorted(ciders, reverse=True)
    for line in [*policies, *controls]:
        for (_, cell, against), metric in zip(line["cells"], ("cider", "bleu_4"), strict=True):
            row = known[line["name"], metric]
            assert cell == row
            if row["is_clear"]:
                side = "above" if row["difference"] > 0 else "below"
                assert against == f"{side} random by {abs(row['difference']):.3f}".replace("0.", ".")
            elif row["policy"] != "random":
                assert against == "no difference from random shown"
    clear = {(label, policy) for label, listed in captioning["sizes"][1]["readings"] for policy, _ in listed}
    rows = comparison.filter(pl.col("is_clear") & pl.col("metric").is_in(["cider", "bleu_4"]))
    assert clear == {(metric_name(metric), policy) for policy, metric in rows.select("policy", "metric").iter_rows()}
    assert (captioning["sizes"][1]["clear"], captioning["sizes"][1]["tested"]) == (rows.height, 2 * 14)
    assert captioning["sizes"][1]["by_chance"] == pytest.approx(1.4)
    assert captioning["sizes"][1]["notes"] == ["one pool: how pools vary is not in the interval"]


@pytest.mark.slow
def test_images_that_cannot_be_shown_are_named_and_none_is_read_past_its_limit(
    ctx: PoolContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = downstream_section(ctx, SHOWN)
    assert section is not None
    assert section["evaluation"] == {"name": None, "images": 5, "references": 10, "least": 2, "most": 2}
    notes = [(sample["picture"] is None, sample["note"]) for sample in section["samples"]]
    assert notes == [*[(False, "")] * 3, (True, "no picture: not_found"), (True, "no picture: undecodable")]
    assert section["samples"][0]["text"] == "reference one of 0"
    written = section["samples"][2]["written"]
    assert [policy for _, policy, _, _ in written] == [*sorted([*POLICIES, "longest_caption", "all"]), "random"]
    assert written[0][2:] == ("25 % of the pool", f"{written[0][1]} at at0250 with seed 0 sees image 2")
    smallest = Path(ctx.store.read("downstream/evaluation_set")["path"][0]).stat().st_size
    limits = ImageLimits(max_bytes=smallest - 1)
    monkeypatch.setattr(type(ctx.pool.download), "limits", property(lambda _: limits))
    section = downstream_section(ctx, SHOWN)
    assert section is not None
    assert section["samples"][0]["note"] == "no picture: too_many_bytes"


def test_names_of_metrics_and_sizes() -> None:
    assert metric_name("text_to_image_recall@10") == "text → image R@10"
    assert metric_name("mean_recall@5") == "mean R@5"
    assert metric_name("cider") == "CIDEr-D"
    assert metric_name("my_metric") == "my_metric"
    assert size_name(0.0025) == "0.25 % of the pool"


def test_texts_of_images_have_their_figures() -> None:
    assert image_texts.caption_text("  two men\n row ") == "two men row"
    assert image_texts.caption_text(" ") == image_texts.caption_text(None) == "image without caption"
    long = image_texts.caption_text("w" * 121)
    assert len(long) == 120
    assert long.endswith("w…")
    values = pl.Series([1.0, 2.0, 3.0, None, float("nan")])
    assert image_texts.distribution_text("icc", values) == (
        "Histogram of 3 values of icc, from 1 to 3: median 2, half of them between 2 and 3."
    )
    assert "no value" in image_texts.distribution_text("icc", pl.Series([None], dtype=pl.Float64))
    samples = pl.DataFrame({"status": ["kept", "kept", "failed"], "reason": [None, None, "undecodable"]})
    assert image_texts.states_text(samples) == "Bars of 3 rows by state and reason: 2 kept, 1 failed (undecodable)."
    verdicts = pl.DataFrame(
        {"verdict": ["kept", "dropped", "dropped"], "value": [3.0, 1.0, 2.0], "threshold": [2.5, 2.5, None]}
    )
    assert image_texts.verdicts_text("icc", verdicts) == (
        "Histogram of the values by which icc ranks: 1 kept (median 3), 2 dropped (median 1.5); the cut is at 2.5."
    )
    iou = np.array([[1, 0.2, 0.4], [0.2, 1, 0.9], [0.4, 0.9, 1]])
    assert image_texts.overlaps_text(["a", "b", "c"], iou) == (
        "Intersection over union of 3 subsets, pair by pair: median 0.40, most 0.90 (c and b), least 0.20 (b and a)."
    )
    assert image_texts.metric_text("CIDEr-D", [("random", 0.1), ("icc", 0.35)], "at one size") == (
        "CIDEr-D of 2 training sets at one size: best icc 0.35, median 0.225, last random 0.1, random 0.1. "
        "The tables have all figures."
    )
