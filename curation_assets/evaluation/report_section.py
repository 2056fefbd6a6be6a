"""The report's section on trained models: what each training set is worth, with intervals, curves and captions."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from markupsafe import Markup

from curation_assets.core.table_names import COMPARISON, EVALUATION_SET, SAMPLES
from curation_assets.evaluation.comparison import RANDOM
from curation_assets.evaluation.drawn_sets import CONTROL, TrainingKey
from curation_assets.evaluation.evaluation_set import chosen_set, evaluation_image, evaluation_rows, untrained_reason
from curation_assets.evaluation.subset_training import budget_of, trainers_of
from curation_assets.evaluation.trainers import all_trainers
from curation_assets.flow.context import PoolContext
from curation_assets.numeric.metrics.comparison import CONFIDENCE
from curation_assets.outputs.pages import page_of
from curation_assets.outputs.report import pictures
from curation_assets.outputs.report.image_texts import caption_text, clamped, metric_text
from curation_assets.outputs.thumbnails import thumbnail_uri

NO_DIFFERENCE = "no difference from random shown"
SAMPLE_COUNT = 6  # evaluation images whose captions stand side by side
SAMPLE_PX = 160

#: Metric key → its usual name. Recalls follow from their keys.
METRIC_NAMES = {
    "bleu_1": "BLEU-1", "bleu_2": "BLEU-2", "bleu_3": "BLEU-3", "bleu_4": "BLEU-4", "meteor": "METEOR",
    "rouge_l": "ROUGE-L", "cider": "CIDEr-D", "spice": "SPICE", "bert_score": "BERTScore",
}  # fmt: skip
#: Of a metric that a training set has no value of.
NO_VALUE = dict.fromkeys(("mean", "low", "high", "rank", "is_clear", "reading"))


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


def section_html(ctx: PoolContext) -> Markup:
    """The section as the report holds it: models, or why there are none; empty where no model was trained yet."""
    why = untrained_reason(ctx)
    section = None
    if why is None:
        shown = {f"downstream/{trainer.name}": trainer.shown_metrics for trainer in all_trainers().values()}
        section = downstream_section(ctx, shown)
        if section is None:
            return Markup()
    template = Path(__file__).with_name("report_section.html.jinja")
    return Markup(page_of(template, downstream=section, untrained_reason=why))


def downstream_section(ctx: PoolContext, trained: Mapping[str, Sequence[str]]) -> dict[str, Any] | None:
    """What the template report_section.html.jinja shows; None where no model was trained.

    `trained`: tables of trainers → their main metrics. Raises what reading the tables raises.
    """
    results = {name: ctx.store.read(name) for name in trained if ctx.store.manifest(name) is not None}
    if not results:
        return None
    kept = ctx.store.scan(SAMPLES).filter(pl.col("status") == "kept").select(pl.len()).collect().item()
    comparison, known = ctx.store.read(COMPARISON), trainers_of(ctx)
    trainers = []
    for name, rows in results.items():
        trainer = name.rpartition("/")[2]
        compared = comparison.filter(pl.col("trainer") == trainer)
        budget = "{samples_seen:,} samples seen in batches of {batch_size}".format_map(budget_of(ctx, known[trainer]))
        trainers.append({**_trainer(rows, compared, trained[name], kept), "name": trainer, "budget": budget})
    return {
        "trainers": trainers,
        "is_world": ctx.pool.is_planted,
        "evaluation": _evaluation(ctx),
        "samples": _caption_samples(ctx, results),
    }


def _trainer(rows: pl.DataFrame, compared: pl.DataFrame, main: Sequence[str], kept: int) -> dict[str, Any]:
    valued = compared.drop_nulls("mean")
    known = set(valued["metric"])
    present = [metric for metric in rows["metric"].unique(maintain_order=True) if metric in known]
    shown = [metric for metric in main if metric in present] or present[:3]
    without = rows.filter(pl.col("value").is_null() & ~pl.col("metric").is_in(present))
    sizes = sorted(compared["size"].unique().to_list(), key=lambda size: (size is None, size))
    return {
        "seeds": int(compared["seeds"].max() or 0),  # type: ignore[arg-type]
        "pools": int(compared["pools"].max() or 0),  # type: ignore[arg-type]
        "has_one_run": bool(valued.select((pl.col("seeds") * pl.col("pools")).max().fill_null(1)).item() == 1),
        "sizes": [_of_size(valued.filter(pl.col("size").eq_missing(size)), size, shown, present) for size in sizes],
        "metrics": [metric_name(metric) for metric in shown],
        "all_metrics": [metric_name(metric) for metric in present],
        "without": sorted(
            (metric_name(metric), reason or "no value") for metric, reason in set(without["metric", "reason"].rows())
        ),
        "pictures": [_picture(rows.drop_nulls("value"), valued, metric, kept) for metric in shown],
    }


def _of_size(
    compared: pl.DataFrame, size: float | None, shown: Sequence[str], present: Sequence[str]
) -> dict[str, Any]:
    """One table: training sets by the mean of their first main metric, controls after the others."""
    of_set: dict[tuple[str, str, int], dict[str, dict[str, Any]]] = {}
    for row in compared.iter_rows(named=True):
        of_set.setdefault((row["policy"], row["kind"], row["n"]), {})[row["metric"]] = row
    lines = [
        {
            "name": policy,
            "kind": kind,
            "n": n,
            "cells": [(metric_name(one), metrics.get(one, NO_VALUE), against(metrics.get(one))) for one in shown],
            "all": [metrics.get(one, NO_VALUE) for one in present],
            "order": -metrics[shown[0]]["mean"] if shown and shown[0] in metrics else float("inf"),
        }
        for (policy, kind, n), metrics in of_set.items()
    ]
    lines.sort(key=lambda line: (line["order"], line["name"]))
    of_shown = compared.filter(pl.col("metric").is_in(list(shown)))
    clear = of_shown.filter("is_clear").sort("difference", "policy", descending=[True, False])
    by_metric = {metric: clear.filter(pl.col("metric") == metric).to_dicts() for metric in shown}
    tested = of_shown["difference_low"].count()
    return {
        "title": size_name(size),
        "groups": [
            ("Policies and given sets", [line for line in lines if line["kind"] != CONTROL]),
            ("Controls", [line for line in lines if line["kind"] == CONTROL]),
        ],
        "clear": clear.height,
        "tested": tested,
        "by_chance": (1 - CONFIDENCE) * tested,
        "readings": [
            (metric_name(metric), [(row["policy"], row["reading"].partition("; ")[0]) for row in rows])
            for metric, rows in by_metric.items()
            if rows
        ],
        "notes": list(
            dict.fromkeys(
                note for rows in by_metric.values() for row in rows for note in row["reading"].split("; ")[1:]
            )
        ),
    }


def against(row: Mapping[str, Any] | None) -> str:
    """How a training set differs from random, without the interval and notes: "above random by .041"."""
    if row is None or row["is_clear"] is False:
        return "" if row is None else NO_DIFFERENCE
    return str(row["reading"] or "").partition(";")[0].partition(" (")[0]


def _picture(rows: pl.DataFrame, compared: pl.DataFrame, metric: str, kept: int) -> dict[str, str]:
    """Curves over sizes where some training set has two, else bars."""
    points, label = _points(compared.filter(pl.col("metric") == metric), kept), metric_name(metric)
    if all(len(line) == 1 for line in points.values()):
        text = f"Bars. {metric_text(label, [(name, line[0][1]) for name, line in points.items()], 'at one size')}"
        figure = pictures.metric_bars(rows.filter(pl.col("metric") == metric), metric, label)
    else:
        shares = sorted({share for line in points.values() for share, *_ in line})
        means = [(name, mean) for name, line in points.items() for share, mean, *_ in line if share == shares[-1]]
        text = metric_text(label, means, f"at {100 * shares[-1]:.3g} % of the pool")
        text = f"Curves over {len(shares)} shares of the pool, {shares[0]:.3g} to {shares[-1]:.3g}. {text}"
        figure = pictures.curves_figure(points, label, band=RANDOM)
    return {"uri": pictures.data_uri(figure), "text": text}


def _points(compared: pl.DataFrame, kept: int) -> dict[str, list[pictures.Point]]:
    """Training set → its points by share of the pool; a set of its own size at the share that it has."""
    points: dict[str, list[pictures.Point]] = {}
    for row in compared.iter_rows(named=True):
        share = row["size"] if row["size"] is not None else (row["n"] or 0) / max(1, kept)
        points.setdefault(row["policy"], []).append(pictures.Point(share, row["mean"], row["low"], row["high"]))
    return {name: sorted(line) for name, line in sorted(points.items())}


# -- what models were measured on, and what they wrote ---------------------------------------------------------------


def _evaluation(ctx: PoolContext) -> dict[str, Any] | None:
    if ctx.store.manifest(EVALUATION_SET) is None:
        return None
    chosen = chosen_set(ctx)
    references = evaluation_rows(ctx)["captions"].list.len()
    return {
        "name": None if chosen is None else chosen.description,
        "images": references.len(),
        "references": int(references.sum()),
        "least": int(references.min() or 0),  # type: ignore[arg-type]
        "most": int(references.max() or 0),  # type: ignore[arg-type]
    }


def _caption_samples(ctx: PoolContext, results: Mapping[str, pl.DataFrame]) -> list[dict[str, Any]]:
    """A few evaluation images: references, and what the captioner of each training set wrote, of the first seed."""
    if ctx.store.manifest(EVALUATION_SET) is None:
        return []
    written = [one for name, rows in results.items() for one in _captions(ctx, name, rows)]
    images = evaluation_rows(ctx).sort("image_id")
    if not written or images.is_empty():
        return []
    places = np.unique(np.linspace(0, images.height - 1, SAMPLE_COUNT).astype(int))
    samples = []
    for row in images[places.tolist()].to_dicts():
        picture, why = thumbnail_uri(partial(evaluation_image, ctx), row, SAMPLE_PX)
        references = row["captions"] or []
        samples.append(
            {
                "picture": picture,
                "note": why and f"no picture: {why}",
                "text": caption_text(next(iter(references), None)),
                "references": [clamped(one) for one in references],
                "written": [
                    (*of_set, clamped(captions[row["image_id"]]) if row["image_id"] in captions else None)
                    for *of_set, captions in written
                ],
            }
        )
    return samples


def _captions(ctx: PoolContext, table: str, results: pl.DataFrame) -> Iterator[tuple[str, str, str, dict[str, str]]]:
    """Trainer, training set, its size in words, image_id → caption: of the largest size and first seed that it has."""
    runs = sorted(
        set(results.select("policy", "size", "seed").rows()),
        key=lambda run: (run[0] == RANDOM, run[0], -(run[1] or 0), run[2]),
    )
    first = {run[0]: run for run in reversed(runs)}
    for policy, size, seed in reversed(first.values()):
        key = str(TrainingKey(policy, size, seed))
        if ctx.store.manifest(f"{table}_runs", key) is None:
            continue
        rows = ctx.store.read(f"{table}_runs", key)
        if "caption" not in rows.columns:
            return  # a trainer that writes no captions
        size_in_words = "own size" if size is None else size_name(size)
        yield table.rpartition("/")[2], policy, size_in_words, dict(rows["image_id", "caption"].rows())
