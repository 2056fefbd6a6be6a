"""The report's section on trained models: what each training set is worth, with intervals, curves and captions."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from markupsafe import Markup
from PIL import Image

from curation_assets.core.table_names import COMPARISON, EVALUATION_SET, SAMPLES
from curation_assets.evaluation.drawn_sets import TrainingKey
from curation_assets.evaluation.evaluation_set import evaluation_rows
from curation_assets.flow.context import PoolContext
from curation_assets.outputs.report import pictures
from curation_assets.outputs.report.image_texts import caption_text, clamped, metric_text
from curation_assets.outputs.report.page import page_of
from curation_assets.outputs.thumbnails import jpeg_uri
from curation_assets.stores.images import ImageRejected, decode_image

RANDOM = "random"
CONTROL = "control"
NO_DIFFERENCE = "no difference from random shown"
CONFIDENCE = 0.95  # of the intervals in `downstream/comparison`
SAMPLE_COUNT = 6  # evaluation images whose captions stand side by side
SAMPLE_PX = 160

#: Metric key → its usual name. Recalls follow from their keys.
METRIC_NAMES = {
    "bleu_1": "BLEU-1", "bleu_2": "BLEU-2", "bleu_3": "BLEU-3", "bleu_4": "BLEU-4", "meteor": "METEOR",
    "rouge_l": "ROUGE-L", "cider": "CIDEr-D", "spice": "SPICE", "bert_score": "BERTScore",
    "clip_score": "CLIPScore", "ref_clip_score": "RefCLIPScore", "acc1": "top-1 accuracy", "acc5": "top-5 accuracy",
    "mean_per_class_recall": "mean per-class recall",
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """A metric of a training set: of its models, and against random."""

    label: str
    mean: float | None
    low: float | None  # 95 % interval; None where one run has no spread
    high: float | None
    rank: int | None
    against: str  # how it differs from random, in few words
    reading: str  # the whole sentence


def metric_name(key: str) -> str:
    """The usual name of a metric: BLEU-4, CIDEr-D, text → image R@1."""
    recall = re.fullmatch(r"(?:(\w+)_to_(\w+)|mean)_recall@(\d+)", key)
    if recall is None:
        return METRIC_NAMES.get(key, key)
    source, target, k = recall.groups()
    return f"{source} → {target} R@{k}" if source else f"mean R@{k}"


def size_name(size: float | None) -> str:
    """A share of the pool in words."""
    return "each set at its own size" if size is None else f"{100 * size:.4g} % of the pool"


def section_html(
    ctx: PoolContext,
    trained: Mapping[str, Sequence[str]],
    *,
    untrained_reason: str | None = None,
    budgets: Mapping[str, str] | None = None,
    evaluation_name: str | None = None,
) -> Markup:
    """The section as the report holds it; empty where no model was trained and nothing states why.

    `untrained_reason`: why there are none, a sentence for the page; the others as of `downstream_section`.
    """
    section = None
    if untrained_reason is None:
        section = downstream_section(ctx, trained, budgets=budgets, evaluation_name=evaluation_name)
        if section is None:
            return Markup()
    template = Path(__file__).with_name("report_section.html.jinja")
    return Markup(page_of(template, downstream=section, untrained_reason=untrained_reason))


def downstream_section(
    ctx: PoolContext,
    trained: Mapping[str, Sequence[str]],
    *,
    budgets: Mapping[str, str] | None = None,
    evaluation_name: str | None = None,
) -> dict[str, Any] | None:
    """What the template report_section.html.jinja shows; None where no model was trained.

    `trained`: tables of trainers → their main metrics. `budgets`: the same tables → in words, how long each model was
    trained. `evaluation_name`: in words, what the evaluation set is. Raises what reading the tables raises.
    """
    tables = [name for name in trained if ctx.store.manifest(name) is not None]
    if not tables:
        return None
    results = {name: ctx.store.read(name) for name in tables}
    kept = ctx.store.scan(SAMPLES).filter(pl.col("status") == "kept").select(pl.len()).collect().item()
    comparison = ctx.store.read(COMPARISON)
    trainers = []
    for name, rows in results.items():
        trainer = name.rpartition("/")[2]
        compared = comparison.filter(pl.col("trainer") == trainer)
        trainers.append(_trainer(trainer, rows, compared, trained[name], kept, (budgets or {}).get(name)))
    return {
        "trainers": trainers,
        "is_world": ctx.pool.is_planted,
        "evaluation": _evaluation(ctx, evaluation_name),
        "samples": _caption_samples(ctx, results),
    }


def _trainer(
    name: str, rows: pl.DataFrame, compared: pl.DataFrame, main: Sequence[str], kept: int, budget: str | None
) -> dict[str, Any]:
    valued = compared.drop_nulls("mean")
    known = set(valued["metric"])
    present = [metric for metric in rows["metric"].unique(maintain_order=True) if metric in known]
    shown = [metric for metric in main if metric in present] or present[:3]
    without = rows.filter(pl.col("value").is_null() & ~pl.col("metric").is_in(present))
    sizes = sorted(compared["size"].unique().to_list(), key=lambda size: (size is None, size))
    return {
        "name": name,
        "budget": budget,
        "seeds": int(compared["seeds"].max() or 0),  # type: ignore[arg-type]
        "pools": int(compared["pools"].max() or 0),  # type: ignore[arg-type]
        "has_one_run": bool(valued.select((pl.col("seeds") * pl.col("pools")).max().fill_null(1)).item() == 1),
        "sizes": [_of_size(valued.filter(pl.col("size").eq_missing(size)), size, shown, present) for size in sizes],
        "metrics": [(metric, metric_name(metric)) for metric in shown],
        "all_metrics": [(metric, metric_name(metric)) for metric in present],
        "without": sorted(
            (metric_name(metric), reason or "no value") for metric, reason in set(without["metric", "reason"].rows())
        ),
        "pictures": _pictures(rows.drop_nulls("value"), valued, shown, kept),
    }


def _of_size(
    compared: pl.DataFrame, size: float | None, shown: Sequence[str], present: Sequence[str]
) -> dict[str, Any]:
    """One table: training sets by the rank of their first main metric, controls after the others."""
    of_set: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for row in compared.to_dicts():
        of_set.setdefault((row["policy"], row["kind"]), {})[row["metric"]] = row
    first = shown[0] if shown else ""

    def place(item: tuple[tuple[str, str], dict[str, dict[str, Any]]]) -> tuple[float, str]:
        mean = item[1].get(first, {}).get("mean")
        return (float("inf") if mean is None else -mean, item[0][0])

    lines = [
        {
            "name": policy,
            "kind": kind,
            "n": next((row["n"] for row in metrics.values()), None),
            "cells": [_cell(metrics.get(metric), metric) for metric in shown],
            "all": [_cell(metrics.get(metric), metric) for metric in present],
        }
        for (policy, kind), metrics in sorted(of_set.items(), key=place)
    ]
    of_shown = compared.filter(pl.col("metric").is_in(list(shown)))
    clear = of_shown.filter("is_clear").sort("difference", "policy", descending=[True, False])
    readings = [
        (metric, row["policy"], *row["reading"].split("; "))
        for metric in shown
        for row in clear.filter(pl.col("metric") == metric).to_dicts()
    ]
    return {
        "title": size_name(size),
        "groups": [
            ("Policies and given sets", [line for line in lines if line["kind"] != CONTROL]),
            ("Controls", [line for line in lines if line["kind"] == CONTROL]),
        ],
        "clear": clear.height,
        "tested": of_shown["difference_low"].drop_nulls().len(),
        "by_chance": (1 - CONFIDENCE) * of_shown["difference_low"].drop_nulls().len(),
        "readings": [
            (metric_name(metric), [(policy, first) for of, policy, first, *_ in readings if of == metric])
            for metric in dict.fromkeys(metric for metric, *_ in readings)
        ],
        "notes": list(dict.fromkeys(note for _, _, _, *notes in readings for note in notes)),
    }


def _cell(row: Mapping[str, Any] | None, metric: str) -> Cell:
    if row is None:
        return Cell(metric_name(metric), None, None, None, None, "", "")
    runs = row["pools"] * row["seeds"]
    low, high = (row["low"], row["high"]) if runs > 1 else (None, None)
    return Cell(metric_name(metric), row["mean"], low, high, row["rank"], _against_random(row), row["reading"] or "")


def _against_random(row: Mapping[str, Any]) -> str:
    """The reading without its interval and its notes: "above random by .041"."""
    if row["is_clear"] is not None and not row["is_clear"]:
        return NO_DIFFERENCE
    return str(row["reading"] or "").partition(";")[0].partition(" (")[0]


def _pictures(rows: pl.DataFrame, compared: pl.DataFrame, shown: Sequence[str], kept: int) -> list[dict[str, str]]:
    """Per main metric: curves over sizes where some training set has two, else its bars."""
    drawn = []
    for metric in shown:
        points = _points(compared.filter(pl.col("metric") == metric), kept)
        label = metric_name(metric)
        if any(len(line) > 1 for line in points.values()):
            largest = max(share for line in points.values() for share, *_ in line)
            means = [(name, mean) for name, line in points.items() for share, mean, *_ in line if share == largest]
            shares = sorted({share for line in points.values() for share, *_ in line})
            text = metric_text(label, means, f"at {100 * largest:.3g} % of the pool")
            text = f"Curves over {len(shares)} shares of the pool, {shares[0]:.3g} to {largest:.3g}. {text}"
            uri = pictures.data_uri(pictures.curves_figure(points, label, band=RANDOM))
        else:
            means = [(name, line[0][1]) for name, line in points.items()]
            text = f"Bars. {metric_text(label, means, 'at one size')}"
            uri = pictures.data_uri(pictures.metric_bars(rows.filter(pl.col("metric") == metric), metric, label))
        drawn.append({"uri": uri, "text": text})
    return drawn


def _points(compared: pl.DataFrame, kept: int) -> dict[str, list[pictures.Point]]:
    """Training set → its points by share of the pool; a set of its own size at the share that it has."""
    points: dict[str, list[pictures.Point]] = {}
    for row in compared.to_dicts():
        share = row["size"] if row["size"] is not None else (row["n"] or 0) / max(1, kept)
        has_spread = row["pools"] * row["seeds"] > 1 and row["low"] is not None
        low, high = (row["low"], row["high"]) if has_spread else (None, None)
        points.setdefault(row["policy"], []).append(pictures.Point(share, row["mean"], low, high))
    return {name: sorted(line) for name, line in sorted(points.items())}


# -- what models were measured on, and what they wrote ---------------------------------------------------------------


def _evaluation(ctx: PoolContext, name: str | None) -> dict[str, Any] | None:
    if ctx.store.manifest(EVALUATION_SET) is None:
        return None
    images = evaluation_rows(ctx)
    references = images["captions"].list.len()
    return {
        "name": name,
        "images": images.height,
        "references": int(references.sum()),
        "least": int(references.min() or 0),  # type: ignore[arg-type]
        "most": int(references.max() or 0),  # type: ignore[arg-type]
    }


def _caption_samples(ctx: PoolContext, results: Mapping[str, pl.DataFrame]) -> list[dict[str, Any]]:
    """A few evaluation images: references, and what the captioner of each training set wrote, of the first seed."""
    if ctx.store.manifest(EVALUATION_SET) is None:
        return []
    by_table = {name.rpartition("/")[2]: dict(_captions(ctx, f"{name}_runs", rows)) for name, rows in results.items()}
    written = {trainer: of_set for trainer, of_set in by_table.items() if of_set}
    images = evaluation_rows(ctx).sort("image_id")
    if not written or images.is_empty():
        return []
    places = np.unique(np.linspace(0, images.height - 1, SAMPLE_COUNT).astype(int))
    samples = []
    for row in images[places.tolist()].to_dicts():
        picture, note = _picture(ctx, row)
        references = row["captions"] or []
        samples.append(
            {
                "picture": picture,
                "note": note,
                "text": caption_text(next(iter(references), None)),
                "references": [clamped(one) for one in references],
                "written": [
                    (trainer, policy, size, None if (one := captions.get(row["image_id"])) is None else clamped(one))
                    for trainer, of_set in written.items()
                    for policy, (size, captions) in of_set.items()
                ],
            }
        )
    return samples


def _captions(ctx: PoolContext, table: str, results: pl.DataFrame) -> Iterator[tuple[str, tuple[str, dict[str, str]]]]:
    """Training set → (its size in words, image_id → caption) of the largest size and first seed that it has."""
    runs = (
        results.select("policy", "size", "seed")
        .unique()
        .sort(
            pl.col("policy") == RANDOM,
            "policy",
            pl.col("size").fill_null(0),
            "seed",
            descending=[False, False, True, False],
        )
    )
    for policy, size, seed in runs.unique("policy", keep="first", maintain_order=True).iter_rows():
        key = str(TrainingKey(policy, size, seed))
        if ctx.store.manifest(table, key) is None:
            continue
        rows = ctx.store.read(table, key)
        if "caption" not in rows.columns:
            return  # a trainer that writes no captions
        yield policy, ("own size" if size is None else size_name(size), dict(rows["image_id", "caption"].rows()))


def _picture(ctx: PoolContext, row: Mapping[str, Any]) -> tuple[str | None, str]:
    """Data URI of an evaluation image, or why there is none."""
    try:
        return jpeg_uri(_evaluation_image(ctx, row), SAMPLE_PX), ""
    except ImageRejected as rejected:
        return None, f"no picture: {rejected.reason}"
    except (OSError, KeyError):  # the owner's file or tar has changed since
        return None, "its file is missing"


def _evaluation_image(ctx: PoolContext, row: Mapping[str, Any]) -> Image.Image:
    if row["path"] is None:
        return ctx.image_loader(few=True)({"sample_id": row["image_id"], **row})
    path, limits = Path(row["path"]), ctx.pool.download.limits
    size = path.stat().st_size
    if size > limits.max_bytes:
        raise ImageRejected("too_many_bytes", f"{path}: {size} bytes; at most {limits.max_bytes} are read")
    return decode_image(path.read_bytes(), limits)
