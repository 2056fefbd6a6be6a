"""The papers' tables for one or more pools: our numbers, the printed ones beside them, and what is not comparable.

One function per table. The printed numbers are in printed.yaml; docs/user/papers.md.
"""

import collections
import contextlib
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import yaml

from benchmarks.papers.correlation import spearman_interval
from benchmarks.papers.text_methods import CC_STAGES, RAO_METHODS, data_sets, funnel
from curation_assets.audit.diff import iou_at
from curation_assets.core.table_names import AGREEMENT, RATED_SCORES, SAMPLES, table_of
from curation_assets.evaluation.comparison import (
    ALL_TRAINERS,
    compare_training_sets,
    score_training_sets,
    written,
    written_share,
)
from curation_assets.evaluation.drawn_sets import TrainingKey
from curation_assets.evaluation.evaluation_set import evaluation_rows
from curation_assets.evaluation.options import DownstreamOptions
from curation_assets.evaluation.stored_metrics import StoredMetrics, read_metrics
from curation_assets.evaluation.trainers import all_trainers
from curation_assets.evaluation.training_sets import HELD_OUT as HELD_OUT_ROWS
from curation_assets.evaluation.training_sets import TRAINING_SETS
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import policies_of, teacher_names
from curation_assets.methods import method_names
from curation_assets.numeric.agreement import (
    Agreement,
    AgreementDifference,
    agreement,
    agreement_difference,
    spearman,
)
from curation_assets.numeric.metrics.comparison import estimate, independent_units, paired_differences
from curation_assets.selection.policy import Policy
from curation_assets.selection.rows import Pool, Wanted
from curation_assets.stages.distilled.human_agreement import CAPTIONS, CORRELATIONS, HELD_OUT
from curation_assets.stores.shard_store import MissingTableError

PRINTED_FILE = Path(__file__).with_name("printed.yaml")
HERE, PRINTED = "here", "printed"
COUNT_COLUMNS = (
    "samples",
    "candidates",
    "passed",
    "examples",
    "unique_tokens",
)  # integers; all other numbers are shares or metrics

CAPTIONING = ("bleu_4", "meteor", "rouge_l", "cider", "spice", "bert_score")
TEXT_TO_IMAGE = tuple(f"text_to_image_recall@{k}" for k in (1, 5, 10))
#: One metric per kind of evaluation, for tables of all trainers.
MAIN_METRICS = ("acc1", "mean_per_class_recall", "mean_recall@1", "text_to_image_recall@1", "cider")
TOP_SHARES = (0.1, 0.2, 0.3)  # SIEVE, Table 8
REMOVED = (0.5, 0.6, 0.7, 0.8)  # Compress & Align, Table 7
FEWEST_SETS = 3  # of a correlation
PAIR = ("coco", "cc")  # names of the files of ids of cc-pair
PAIRED_DRAWS = 1000  # of captions
#: What a policy ranks by → the part of ICC that this is.
ICC_PARTS = {
    "teachers.vba": "VBA, teacher",
    "teachers.sba": "SBA, teacher",
    "distilled.targets": "both, fused",
    "signals.icc": "student",
}


class RowsMissingError(ValueError):
    """A table that these pools cannot fill; the message names what to set."""


def declaration_of(ctx: PoolContext) -> str:
    """Where the pool is declared, as a person would write it."""
    return str(ctx.settings.pools_root / f"{ctx.pool.name}.yaml")


@dataclass(frozen=True)
class Cell:
    """One number: a metric with its 95 % interval, or a count."""

    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Row:
    """`labels`: what the row is of. `origin`: HERE or PRINTED. `cells`: column → number."""

    labels: Mapping[str, str | float | None]
    cells: Mapping[str, Cell]
    origin: str = HERE


@dataclass(frozen=True)
class PaperTable:
    """A table as a reader needs it. `absent`: why it has no rows, and what to set."""

    name: str
    title: str
    source: str
    rows: tuple[Row, ...]
    remarks: tuple[str, ...]
    absent: str | None = None

    @property
    def labels(self) -> list[str]:
        """Names of what the rows are of, in order."""
        return list(dict.fromkeys(name for row in self.rows for name in row.labels))

    @property
    def columns(self) -> list[str]:
        """Names of the numbers, in order."""
        return list(dict.fromkeys(name for row in self.rows for name in row.cells))


@dataclass
class Sources:
    """What the tables are made from: the pools and their stored metrics, read when first needed."""

    pools: Sequence[PoolContext]
    remarks: list[str] = field(default_factory=list)  # of the table in work

    @cached_property
    def stored(self) -> StoredMetrics:
        return read_metrics(self.pools)

    @cached_property
    def comparison(self) -> pl.DataFrame:
        return compare_training_sets(self.stored.rows)

    @cached_property
    def scores(self) -> pl.DataFrame:
        return score_training_sets(self.comparison)

    def of_trainer(self, trainer: str | None, metrics: Iterable[str]) -> pl.DataFrame:
        """Rows of the comparison with a mean, of one trainer or all. Raises RowsMissingError for none."""
        metrics = tuple(metrics)
        of = self.comparison.filter(pl.col("metric").is_in(metrics))
        if trainer is not None:
            of = of.filter(pl.col("trainer") == trainer)
        for reading, part in of.filter(pl.col("mean").is_null()).group_by("reading", maintain_order=True):
            self.remarks.append(f"{', '.join(part['metric'].unique(maintain_order=True))}: {reading[0]}.")
        valued = of.filter(pl.col("mean").is_not_null())
        if valued.is_empty():
            raise RowsMissingError(self._why_without(trainer, metrics))
        for name in valued["trainer"].unique(maintain_order=True):
            measures = all_trainers()[name].measures
            self.remarks.append(f"Here: {measures}, under these pools' own budget and on their own evaluation set.")
        if valued["pools"].max() == 1:
            self.remarks.append("One pool: intervals are over its seeds, and how pools vary is not in them.")
        return valued

    def _why_without(self, trainer: str | None, metrics: tuple[str, ...]) -> str:
        reasons = [
            f"pool {pool}, {name}: {why}"
            for pool, of_pool in self.stored.absent.items()
            for name, why in of_pool.items()
            if trainer in (None, name)
        ]
        return "; ".join(reasons) or f"no training set has a value of {', '.join(metrics)}"


Maker = Callable[[Sources], list[Row]]


@functools.cache
def printed_tables() -> dict[str, dict[str, Any]]:
    """Content of printed.yaml by name of the table."""
    content: dict[str, dict[str, Any]] = yaml.safe_load(PRINTED_FILE.read_text(encoding="utf-8"))
    return content


def paper_table(name: str, sources: Sources) -> PaperTable:
    """One table for these pools. Where the pools cannot fill it, `absent` names what to set. Raises StoreError."""
    printed = printed_tables()[name]
    sources.remarks = []
    heading = {"name": name, "title": printed["title"], "source": printed["source"]}
    try:
        ours = MAKERS[name](sources)
    except RowsMissingError as missing:
        return PaperTable(**heading, rows=(), remarks=(), absent=str(missing))
    beside = _printed_rows(printed)
    remarks = [*_of_the_pools(sources), *dict.fromkeys(sources.remarks), printed["not_comparable"]]
    if "order_by" in printed:
        remarks += _orders(ours, beside, printed["order_by"])
    remarks += [f"Printed, and not on record here: {text}." for text in printed.get("not_on_record", ())]
    remarks += [f"Of the printed numbers: {text}" for text in printed.get("misprints", ())]
    return PaperTable(**heading, rows=tuple(_beside(ours, beside)), remarks=tuple(remarks))


def _orders(ours: Sequence[Row], printed: Sequence[Row], column: str) -> list[str]:
    """How alike our order of the training sets and the printed one are, a sentence per size and printed set."""
    sentences = []
    for evaluated in dict.fromkeys(row.labels.get("evaluation_set") for row in printed):
        theirs = {
            row.labels["training_set"]: row.cells[column].value
            for row in printed
            if row.labels.get("evaluation_set") == evaluated and row.cells[column].value is not None
        }
        for size in dict.fromkeys(row.labels["size"] for row in ours):
            mine = {
                row.labels["training_set"]: row.cells[column].value
                for row in ours
                if row.labels["size"] == size and row.cells[column].value is not None
            }
            shared = [name for name in mine if name in theirs]
            rho = spearman(*(np.array([side[name] for name in shared]) for side in (mine, theirs)))
            if len(shared) < FEWEST_SETS or np.isnan(rho):
                continue
            interval = spearman_interval(rho, len(shared))
            low_high = "no interval" if interval is None else " to ".join(written(*interval))
            where = "their own size" if size is None else written_share(float(size))
            of = f" on {evaluated}" if evaluated else ""
            sentences.append(
                f"Order by {column} at {where} and the printed one{of}: Spearman {written(rho)[0]} ({low_high}) over "
                f"{len(shared)} training sets."
            )
    return sentences


def _of_the_pools(sources: Sources) -> list[str]:
    worlds = [ctx.pool.name for ctx in sources.pools if ctx.pool.is_planted]
    remarks = [f"Pools: {', '.join(ctx.pool.name for ctx in sources.pools)}."]
    if worlds:
        remarks.append(f"{', '.join(worlds)}: rendered scenes, and inside their own world only.")
    return remarks


def _printed_rows(printed: Mapping[str, Any]) -> list[Row]:
    percent = set(printed.get("percent", ()))
    rows = []
    for row in printed.get("rows", ()):
        labels = {name: value for name, value in row.items() if name in LABELS}
        numbers = {name: value for name, value in row.items() if name not in LABELS}
        cells = {name: Cell(_as_share(value, name in percent)) for name, value in numbers.items()}
        rows.append(Row(labels, cells, PRINTED))
    return rows


def _as_share(value: float | None, is_percent: bool) -> float | None:
    return None if value is None else value / 100 if is_percent else float(value)


#: Columns of printed rows that say what the row is of; the others are its numbers.
LABELS = (
    "evaluation_set", "training_set", "size", "samples", "scale", "ranking", "removed", "stage", "split", "scorer",
    "model", "similarity", "per_length", "rated", "n", "alpha", "captions",
)  # fmt: skip


def _beside(ours: Sequence[Row], printed: Sequence[Row]) -> list[Row]:
    """Each printed row below our rows of the same training set, ranking or stage; others at the end."""

    def key(row: Row) -> object:
        return next(
            row.labels[name]
            for name in ("removed", "training_set", "ranking", "stage", "split", "scorer")
            if name in row.labels
        )

    if all(row.origin == HERE for row in (*ours, *printed)):
        return list(ours)

    placed: list[Row] = []
    for name in dict.fromkeys(key(row) for row in (*ours, *printed)):
        placed += [row for row in (*ours, *printed) if key(row) == name]
    return placed


def _cell(row: Mapping[str, Any] | None) -> Cell:
    return Cell(None) if row is None else Cell(row["mean"], row["low"], row["high"])


def _metric_rows(
    table: pl.DataFrame, columns: Mapping[tuple[str, str], str], labels: Mapping[str, str] | None = None
) -> list[Row]:
    """Comparison rows → one row per training set and size. `columns`: (trainer, metric) → heading."""
    rows = []
    for part in table.sort("policy", "size", nulls_last=True).partition_by(
        "policy", "kind", "size", maintain_order=True
    ):
        first = part.row(0, named=True)
        by_metric = {(row["trainer"], row["metric"]): row for row in part.iter_rows(named=True)}
        cells = {heading: _cell(by_metric.get(key)) for key, heading in columns.items()}
        of = {"training_set": first["policy"], "size": first["size"], "samples": first["n"]}
        rows.append(Row({**(labels or {}), **of}, cells))
    return rows


def _one_trainer(trainer: str, metrics: Iterable[str]) -> dict[tuple[str, str], str]:
    return {(trainer, metric): metric for metric in metrics}


def icc1(sources: Sources) -> list[Row]:
    """Captioning metrics by training set and size."""
    table = sources.of_trainer("captioning", CAPTIONING)
    _note_sizes(sources, table)
    return _metric_rows(table, _one_trainer("captioning", CAPTIONING))


def icc2(sources: Sources) -> list[Row]:
    """Text-to-image recall by training set and size."""
    table = sources.of_trainer("retrieval", TEXT_TO_IMAGE)
    _note_sizes(sources, table)
    return _metric_rows(table, _one_trainer("retrieval", TEXT_TO_IMAGE), {"evaluation_set": "of these pools"})


def _note_sizes(sources: Sources, table: pl.DataFrame) -> None:
    if table["size"].n_unique() == 1:
        sources.remarks.append("One size only; the option `downstream_sizes`, such as [.125, .25, .5], adds others.")


def icc3(sources: Sources) -> list[Row]:
    """Agreement with people: the students and the baselines, on every rated set."""
    teachers = [teacher for ctx in sources.pools for teacher in teacher_names(ctx)]
    return _agreement_rows(sources, ~pl.col("scorer").is_in([*teachers, "fused"]))


def icc4(sources: Sources) -> list[Row]:
    """Agreement with people by teacher, similarity and standardisation."""
    teachers = [teacher for ctx in sources.pools for teacher in teacher_names(ctx)]
    return _agreement_rows(sources, pl.col("scorer").is_in(teachers))


def icc5(sources: Sources) -> list[Row]:
    """Agreement with people before and after distillation: the fused teachers, the students, and paired differences."""
    rows = _agreement_rows(sources, (pl.col("scorer") == "fused") | pl.col("scorer").str.starts_with("icc"))
    paired = _paired_rows(sources)
    if paired:
        sources.remarks.append(
            "A − B: how much better A agrees with people than B on the same captions; intervals by drawing captions. "
            "Out of fold: ten times weights of four fifths of the ratings."
        )
    return [*rows, *paired]


def _paired_rows(sources: Sources) -> list[Row]:
    """The teachers fused out of fold; each scorer less that, one student less the other; of two pools the scorers that
    both have, where they are not the same."""
    rows: list[Row] = []
    first: dict[str, tuple[str, dict[str, pl.DataFrame]]] = {}  # benchmark → the first pool with it, its scorers
    for ctx in sources.pools:
        scores = ctx.store.read(RATED_SCORES) if ctx.store.manifest(RATED_SCORES) else pl.DataFrame({"benchmark": []})
        pool = ctx.pool.name
        for part in scores.partition_by("benchmark", maintain_order=True):
            of = {one["scorer"][0]: one for one in part.partition_by("scorer", maintain_order=True)}
            in_sample = of.pop("fused")
            fused = of.pop(HELD_OUT, in_sample)
            rows += [] if fused is in_sample else [_paired_row(sources, pool, fused)]
            rows += [_paired_row(sources, pool, one, fused) for one in of.values()]
            students = [one for name, one in of.items() if name.startswith("icc")]
            rows += [_paired_row(sources, pool, *students)] if len(students) == 2 else []
            other, of_other = first.setdefault(part["benchmark"][0], (pool, {HELD_OUT: fused, **of}))
            pairs = [(of_other[name], one) for name, one in {HELD_OUT: fused, **of}.items() if name in of_other]
            pairs = [pair for pair in pairs if not pair[0]["score"].equals(pair[1]["score"])]
            rows += [_paired_row(sources, f"{other} − {pool}", *pair) for pair in pairs]
    return rows


def _paired_row(sources: Sources, pool: str, one: pl.DataFrame, less: pl.DataFrame | None = None) -> Row:
    """Agreement of a scorer of distilled/rated_scores, or how much it exceeds another's on the same captions."""
    names = [side["scorer"][0] for side in (one, less) if side is not None]
    saw = any(side["saw_ratings"][0] for side in (one, less) if side is not None)
    rng, n = np.random.default_rng(0), one.height
    cells = dict.fromkeys(CORRELATIONS, Cell(None))
    with contextlib.suppress(ValueError):  # one of them is constant, or too few are rated
        found: Agreement | AgreementDifference
        if less is None:
            found = agreement(one["score"].to_numpy(), one["rating"].to_numpy(), rng, resamples=PAIRED_DRAWS)
        else:
            captions = one.unique("caption", maintain_order=True)
            both = captions.join(less.unique("caption"), on="caption", maintain_order="left")
            values, others, ratings = (both[name].to_numpy() for name in ("score", "score_right", "rating"))
            found = agreement_difference(values, others, ratings, rng, resamples=PAIRED_DRAWS)
        cells = {name: Cell(getattr(found, name), *found.intervals[name]) for name in CORRELATIONS}
        n = found.n
    labels = {
        **({"pool": pool} if len(sources.pools) > 1 else {}),
        "scorer": " − ".join(dict.fromkeys(names)),
        "similarity": "",
        "per_length": "",
        "rated": one["benchmark"][0] + (", fitted on them" if saw else ""),
        "n": n,
    }
    return Row(labels, cells)


def _agreement_rows(sources: Sources, chosen: pl.Expr) -> list[Row]:
    """Rows of distilled/agreement of the pools that have it."""
    rows = []
    for ctx in sources.pools:
        with contextlib.suppress(MissingTableError):
            for row in ctx.store.read(AGREEMENT).filter(chosen).iter_rows(named=True):
                labels = {
                    **({"pool": ctx.pool.name} if len(sources.pools) > 1 else {}),
                    "scorer": row["scorer"],
                    "similarity": row["similarity"] or "",
                    "per_length": "yes" if row["standardised"] else "",
                    "rated": row["benchmark"] + (", fitted on them" if row["saw_ratings"] else ""),
                    "n": row["n"],
                }
                cells = {name: Cell(row[name], row[f"{name}_low"], row[f"{name}_high"]) for name in CORRELATIONS}
                rows.append(Row(labels, cells))
    if not rows:
        raise RowsMissingError(
            "agreement takes rated captions: a pool with `distil: true` and the option `labels`, `caption_benchmark` "
            "or `word_benchmark` (docs/user/icc.md); then curate run"
        )
    shipped = [row for row in rows if row.labels["scorer"] == "fused" and str(row.labels["rated"]) == CAPTIONS]
    if shipped and any(ctx.ratings is None for ctx in sources.pools):
        sources.remarks.append(
            "Without labels the fusion weights are those that ship, fitted on 300 captions of LAION; a benchmark of "
            "these captions has been seen by them and by the shipped student."
        )
    return rows


def icc6(sources: Sources) -> list[Row]:
    """Captioning at one size by the part of ICC that a policy ranks by."""
    part_of = {
        policy.name: ICC_PARTS[policy.rank_by]
        for ctx in sources.pools
        for policy in policies_of(ctx)
        if policy.rank_by in ICC_PARTS
    }
    table = sources.of_trainer("captioning", CAPTIONING)
    ranked = table.filter(pl.col("policy").is_in(list(part_of)))
    parts = {name: len({part_of[policy] for policy in of["policy"]}) for (name,), of in ranked.group_by("size")}
    if max(parts.values(), default=0) < 2:
        places = ", ".join(str(ctx.settings.pools_root / ctx.pool.name) for ctx in sources.pools)
        raise RowsMissingError(
            "an ablation takes policies of two parts of ICC at one size: put policies with rank_by "
            f"{', '.join(ICC_PARTS)} into {places} (docs/user/options.md), in a pool with `distil: true`; "
            "then curate run"
        )
    size = max(parts, key=lambda name: (parts[name], name is not None, name or 0))
    at_size = table.filter(pl.col("size").eq_missing(pl.lit(size, pl.Float64)))
    rows = _metric_rows(at_size, _one_trainer("captioning", CAPTIONING))
    chosen = [row for row in rows if row.labels["training_set"] in {*part_of, "random", "all"}]
    return [
        Row({"ranked_by": part_of.get(str(row.labels["training_set"]), "–"), **row.labels}, row.cells) for row in chosen
    ]


def _headings(table: pl.DataFrame) -> dict[tuple[str, str], str]:
    """(trainer, metric) → heading: the metric, with the trainer where two trainers have it."""
    pairs = list(dict.fromkeys(table.select("trainer", "metric").iter_rows()))
    pairs.sort(key=lambda pair: (MAIN_METRICS.index(pair[1]), pair[0]))
    metrics = [metric for _, metric in pairs]
    return {pair: pair[1] if metrics.count(pair[1]) == 1 else f"{pair[0]} {pair[1]}" for pair in pairs}


def _with_score(sources: Sources) -> list[Row]:
    """One row per training set and size: a metric of every kind, and Score over all metrics of all trainers."""
    table = sources.of_trainer(None, MAIN_METRICS)
    overall = ALL_TRAINERS if table["trainer"].n_unique() > 1 else table["trainer"][0]
    of_all = sources.scores.filter(pl.col("trainer") == overall)
    scores = {(row["policy"], row["size"]): row["score"] for row in of_all.iter_rows(named=True)}
    if None in scores.values():
        sources.remarks.append("A training set that lacks a metric, or has no other one of its size, has no Score.")
    rows = []
    for row in _metric_rows(table, _headings(table)):
        score = scores.get((row.labels["training_set"], row.labels["size"]))
        rows.append(Row(row.labels, {**row.cells, "Score": Cell(score)}))
    return rows


def sieve1(sources: Sources) -> list[Row]:
    """One metric of every kind that is at hand, by training set."""
    return _with_score(sources)


def rao1(sources: Sources) -> list[Row]:
    """The same with Score, which is scaled over the training sets of a size."""
    return _with_score(sources)


def sieve8(sources: Sources) -> list[Row]:
    """IoU of the best shares by SIEVE (and SIEVE with CLIPScore) with those by CLIPScore, from the pool's values."""
    shares = {f"top {share:.0%}".replace("%", " %"): share for share in TOP_SHARES}
    rows, by_chance, missing = [], dict[str, Row](), []
    iou_of: dict[str, list[list[float]]] = {}
    for ranking, reference in (("sieve", "signals.sieve"), ("sieve_clip", "fused.sieve_clip")):
        for ctx in sources.pools:
            try:
                ranked = (
                    Policy(name=ranking, rank_by=reference, fraction=1.0),
                    Policy(name="clip", rank_by="signals.clip_score", fraction=1.0),
                )
                pool = Pool(ctx.store, ctx.progress)
                table = iou_at(pool, *ranked, TOP_SHARES)
                samples = sum(int((rows["status"] == "kept").sum()) for rows in pool.parts())
            except MissingTableError:
                missing.append(lacks_values(ctx, reference))
                continue
            values, chance = table["iou"].to_list(), table["chance_iou"].to_list()
            of: dict[str, str | int] = {"pool": ctx.pool.name, "samples": samples}
            rows.append(_iou_row({**of, "ranking": ranking}, shares, values))
            by_chance[ctx.pool.name] = _iou_row({**of, "ranking": "independent rankings"}, shares, chance)
            if None not in values:
                iou_of.setdefault(ranking, []).append(values)
    if not rows:
        raise RowsMissingError("; ".join(missing))
    sources.remarks += [f"{text[0].upper()}{text[1:]}." for text in missing]
    for ranking, of_pools in iou_of.items():
        if len(of_pools) > 1:
            means = [estimate(np.array(values)) for values in zip(*of_pools, strict=True)]
            cells = {name: Cell(mean.mean, mean.low, mean.high) for name, mean in zip(shares, means, strict=True)}
            rows.append(Row({"pool": f"mean of {len(of_pools)}", "ranking": ranking}, cells))
    return [*rows, *by_chance.values()]


def _iou_row(labels: Mapping[str, str | int], shares: Mapping[str, float], values: Sequence[float | None]) -> Row:
    return Row(labels, {name: Cell(v) for name, v in zip(shares, values, strict=True)})


def lacks_values(ctx: PoolContext, reference: str, others: Sequence[str] = ("signals.clip_score",)) -> str:
    """Which of the tables of a ranking, and of the others beside it, a pool lacks."""
    needed = dict.fromkeys((reference, *others))
    tables = [table_of(name) for name in needed]
    absent = [name for name in tables if not (ctx.store.table_path(name).is_file() or ctx.store.partitions(name))]
    run = {method.name for method in ctx.methods("signals")}
    signals = {name.removeprefix("signals/") for name in absent if name.startswith("signals/")}
    add = sorted((signals & method_names()) - run)
    first = f"add {', '.join(add)} to the option `methods` in {declaration_of(ctx)}, then " if add else ""
    return (
        f"pool {ctx.pool.name} has no {' and no '.join(absent or ['raw/samples'])}: {first}`curate run {ctx.pool.name}`"
    )


def rao2(sources: Sources) -> list[Row]:
    """Spearman of the mean of every signal over a training set's samples with Score, over the training sets."""
    rows = []
    for (measure, size), by_set in measures_and_scores(sources).items():
        means, scores = (np.array(side) for side in zip(*by_set.values(), strict=True))
        rho = spearman(means, scores)
        if not np.isnan(rho):
            cell = Cell(rho, *(spearman_interval(rho, len(by_set)) or (None, None)))
            rows.append(Row({"measure": measure, "size": size, "training_sets": len(by_set)}, {"spearman": cell}))
    if not rows:
        raise RowsMissingError(
            "a correlation takes three policies of one size with a Score; train more of them (option `policies`), or "
            "see `python -m benchmarks.papers tables POOL --table rao1` for what lacks"
        )
    return rows


def measures_and_scores(sources: Sources) -> dict[tuple[str, float | None], dict[str, tuple[float, float]]]:
    """(measure, size) → training set → (mean of the measure, Score), of three training sets at least."""
    if sources.comparison.is_empty():
        sources.of_trainer(None, MAIN_METRICS)  # raises with what to set
    scores = sources.scores
    overall = ALL_TRAINERS if ALL_TRAINERS in scores["trainer"] else scores["trainer"][0]
    scored = scores.filter((pl.col("trainer") == overall) & pl.col("score").is_not_null())
    found = {}
    for part in scored.sort("size", nulls_last=True).partition_by("size", maintain_order=True):
        size = part["size"][0]
        score_of = dict(part.select("policy", "score").iter_rows())
        for measure, of_sets in _means_of_sets(sources, part.select("policy", "kind").rows(), size).items():
            if len(of_sets) >= FEWEST_SETS:
                found[measure, size] = {name: (mean, score_of[name]) for name, mean in of_sets.items()}
    return found


def _means_of_sets(
    sources: Sources, sets: Sequence[tuple[str, str]], size: float | None
) -> dict[str, dict[str, float]]:
    """Signal → training set → mean over its samples that have a value, averaged over pools.

    Of the samples that were trained on with the first seed, each once. Sets that some pool lacks are left out.
    """
    by_signal: dict[str, dict[str, list[float]]] = {}
    for ctx in sources.pools:
        seed = min(DownstreamOptions.of(ctx).downstream_seeds)
        ids = {}
        for name, _ in sets:
            with contextlib.suppress(MissingTableError):  # trained in an earlier run, whose tables were removed
                rows = ctx.store.read(TRAINING_SETS, str(TrainingKey(name, size, seed)), ["sample_id"])
                ids[name] = rows["sample_id"].implode()
        for method in ctx.methods("signals"):
            with contextlib.suppress(MissingTableError):
                for name, mean in _means_of(ctx, f"signals.{method.name}", ids).items():
                    by_signal.setdefault(method.name, {}).setdefault(name, []).append(mean)
    pools = len(sources.pools)
    return {
        signal: {name: float(np.mean(means)) for name, means in of_sets.items() if len(means) == pools}
        for signal, of_sets in by_signal.items()
    }


def _means_of(ctx: PoolContext, reference: str, ids: Mapping[str, pl.Series]) -> dict[str, float]:
    """Training set → mean of a signal over the rows that are kept, listed and have a value."""
    found: dict[str, list[pl.Series]] = {name: [] for name in ids}
    for rows in Pool(ctx.store, ctx.progress).parts(Wanted((reference,))):
        valued = rows.filter(pl.col("status") == "kept").drop_nulls(reference)
        for name, listed in ids.items():
            found[name].append(valued.filter(pl.col("sample_id").is_in(listed))[reference])
    values = {name: pl.concat(parts) for name, parts in found.items()}
    return {name: float(np.mean(one.to_numpy())) for name, one in values.items() if len(one)}


def rao3(sources: Sources) -> list[Row]:
    """Mean and median of Rao et al.'s two measures, of the pool and of each subset."""
    rows, missing = [], []
    for ctx in sources.pools:
        measured = [name for name in RAO_METHODS if ctx.store.partitions(f"signals/{name}")]
        for name in RAO_METHODS:
            if name not in measured:
                missing.append(lacks_values(ctx, f"signals.{name}", ()))
        for row in data_sets(ctx, measured).iter_rows(named=True):
            labels = {"pool": ctx.pool.name, "training_set": row["data_set"], "measure": row["method"]}
            cells = {name: Cell(row[name]) for name in ("samples", "mean", "median")}
            rows.append(Row(labels, cells))
    if not rows:
        raise RowsMissingError("; ".join(missing))
    sources.remarks += [f"{text[0].upper()}{text[1:]}." for text in missing]
    return rows


def cc_stages(sources: Sources) -> list[Row]:
    """Candidates in, passed and the share, per stage, beside the printed share."""
    rows, missing = [], []
    published: dict[str, float] = {}
    for ctx in sources.pools:
        try:
            counted = funnel(ctx)
        except MissingTableError:
            missing.append(_lacks_stages(ctx))
            continue
        for part in counted.partition_by("stage", maintain_order=True):
            passed = part.row(by_predicate=pl.col("rule") == "passed", named=True)
            stage = passed["stage"]
            cells = {
                "candidates": Cell(float(part["candidates"].sum())),
                "passed": Cell(float(passed["candidates"])),
                "share": Cell(passed["share"]),
            }
            rows.append(Row({"pool": ctx.pool.name, "stage": stage}, cells))
            if passed["published_share"] is not None:
                published[stage] = passed["published_share"]
    if not rows:
        raise RowsMissingError("; ".join(missing))
    sources.remarks += [f"{text[0].upper()}{text[1:]}." for text in missing]
    return [*rows, *(Row({"stage": stage}, {"share": Cell(share)}, PRINTED) for stage, share in published.items())]


def _lacks_stages(ctx: PoolContext) -> str:
    run = {method.name for method in ctx.methods("signals")}
    add = [name for name in CC_STAGES.values() if name not in run]
    first = f"add {', '.join(add)} to the option `methods` in {declaration_of(ctx)}, then " if add else ""
    return f"pool {ctx.pool.name} has not all stages of Conceptual Captions: {first}`curate run {ctx.pool.name}`"


def cc_splits(sources: Sources) -> list[Row]:
    """Examples, distinct tokens and tokens per caption: of what models are trained on, and of the evaluation set."""
    rows = []
    for ctx in sources.pools:
        held_out = None
        if ctx.store.manifest(HELD_OUT_ROWS) is not None:
            held_out = ctx.store.read(HELD_OUT_ROWS).select("shard", "source_row")
        shards = ctx.store.partitions(SAMPLES)
        rows.append(_split_row(ctx, "train", (_captions_of(ctx, shard, held_out) for shard in shards)))
        with contextlib.suppress(MissingTableError):
            evaluated = evaluation_rows(ctx)["captions"].explode().to_list()
            rows.append(_split_row(ctx, "validation", [evaluated]))
    return rows


def _captions_of(ctx: PoolContext, shard: str, held_out: pl.DataFrame | None) -> list[str]:
    """Captions of a shard's kept rows, without those that are held out."""
    here = ctx.store.read(SAMPLES, shard, ["source_row", "status", "caption"]).filter(pl.col("status") == "kept")
    if held_out is not None:
        left_out = held_out.filter(pl.col("shard") == shard).select("source_row")
        here = here.join(left_out, on="source_row", how="anti")
    return here["caption"].drop_nulls().to_list()


def _split_row(ctx: PoolContext, split: str, parts: Iterable[Sequence[str]]) -> Row:
    words: set[str] = set()
    lengths: collections.Counter[int] = collections.Counter()
    for captions in parts:
        for caption in captions:
            tokens = caption.lower().split()
            words.update(tokens)
            lengths[len(tokens)] += 1
    counts = np.repeat(list(lengths), list(lengths.values())) if lengths else np.array([np.nan])
    cells = {
        "examples": Cell(float(lengths.total())),
        "unique_tokens": Cell(float(len(words))),
        "tokens_mean": Cell(float(counts.mean())),
        "tokens_sd": Cell(float(counts.std())),
        "tokens_median": Cell(float(np.median(counts))),
    }
    return Row({"pool": ctx.pool.name, "split": split}, cells)


def cc_pair(sources: Sources) -> list[Row]:
    """Models trained on the files of ids coco and cc of one pool, and their paired difference."""
    table = sources.of_trainer("captioning", CAPTIONING)
    pair = table.filter((pl.col("kind") == "file") & pl.col("policy").is_in(PAIR))
    if set(pair["policy"]) != set(PAIR):
        places = ", ".join(declaration_of(ctx) for ctx in sources.pools)
        raise RowsMissingError(
            "a pair takes two lists of sample ids of one pool, COCO's and Conceptual Captions': set "
            f"`downstream_subsets: {{coco: FILE.npy, cc: FILE.npy}}` under `options` in {places}, then curate run"
        )
    rows = _metric_rows(pair, _one_trainer("captioning", CAPTIONING))
    cells = {}
    for metric in CAPTIONING:
        runs: dict[str, dict[str, dict[int, float]]] = {name: {} for name in PAIR}
        of = sources.stored.rows.filter((pl.col("trainer") == "captioning") & (pl.col("metric") == metric))
        for policy, pool, seed, value in of.select("policy", "pool", "seed", "value").drop_nulls().iter_rows():
            if policy in runs:
                runs[policy].setdefault(pool, {})[seed] = value
        if differences := paired_differences(runs["coco"], runs["cc"]):
            found = estimate(independent_units(differences))
            cells[metric] = Cell(found.mean, found.low, found.high)
    return [*rows, Row({"training_set": "coco − cc", "size": None}, cells)]


def align7(sources: Sources) -> list[Row]:
    """Reward against CLIPScore at equal shares removed: both, random and all, and the paired difference."""
    columns = {
        ("retrieval", "image_to_text_recall@1"): "image_to_text_recall@1",
        ("retrieval", "text_to_image_recall@1"): "text_to_image_recall@1",
        ("captioning", "cider"): "cider",
        ("captioning", "spice"): "spice",
    }
    metrics = [metric for _, metric in columns]
    table = sources.of_trainer(None, metrics)
    table = table.filter(pl.struct("trainer", "metric").is_in([{"trainer": t, "metric": m} for t, m in columns]))
    rows, present = [], []
    for removed in REMOVED:
        at_size = table.filter((pl.col("size") - (1 - removed)).abs() < 1e-9)
        if {"reward", "clip"} <= set(at_size["policy"]):
            present.append(removed)
            chosen = at_size.filter(pl.col("policy").is_in(["reward", "clip", "random"]))
            rows += [
                Row({"removed": f"{removed:.0%}".replace("%", " %"), **row.labels}, row.cells)
                for row in _metric_rows(chosen, columns)
            ]
    if not rows:
        sizes = ", ".join(f"{1 - removed:.1f}" for removed in REMOVED)
        places = ", ".join(declaration_of(ctx) for ctx in sources.pools)
        raise RowsMissingError(
            f"no models trained on the policies reward and clip at shares kept of {sizes}: set `downstream: true`, "
            f"`downstream_sizes: [{sizes}]` and `methods: [reward]` under `options` in {places} (reward needs a model: "
            "`curate reward train`), then curate run"
        )
    absent = [f"{removed:.0%}".replace("%", " %") for removed in REMOVED if removed not in present]
    if absent:
        sources.remarks.append(f"Not at hand: {', '.join(absent)} removed; the option `downstream_sizes` adds them.")
    differences = {heading: _mean_difference(sources.stored.rows, key, present) for key, heading in columns.items()}
    cells = {heading: cell for heading, cell in differences.items() if cell is not None}
    shares = ", ".join(f"{removed:.0%}".removesuffix("%") for removed in present)
    rows.append(Row({"removed": f"{shares} %, mean", "training_set": "reward − clip"}, cells))
    return rows


def _mean_difference(metrics: pl.DataFrame, key: tuple[str, str], removed: Sequence[float]) -> Cell | None:
    """Reward minus CLIP by pool and seed, the mean over the shares removed; None without a common run."""
    of_metric = metrics.filter(
        (pl.col("trainer") == key[0]) & (pl.col("metric") == key[1]) & pl.col("value").is_not_null()
    )
    runs: dict[str, dict[str, dict[int, list[float]]]] = {"reward": {}, "clip": {}}
    for share in removed:
        at_size = of_metric.filter((pl.col("size") - (1 - share)).abs() < 1e-9)
        for policy, pool, seed, value in at_size.select("policy", "pool", "seed", "value").iter_rows():
            if policy in runs:
                runs[policy].setdefault(pool, {}).setdefault(seed, []).append(value)
    means = {
        policy: {
            pool: {seed: float(np.mean(values)) for seed, values in seeds.items() if len(values) == len(removed)}
            for pool, seeds in of_policy.items()
        }
        for policy, of_policy in runs.items()
    }
    differences = paired_differences(means["reward"], means["clip"])
    if not differences:
        return None
    difference = estimate(independent_units(differences))
    return Cell(difference.mean, difference.low, difference.high)


MAKERS: Mapping[str, Maker] = {
    "icc1": icc1,
    "icc2": icc2,
    "icc3": icc3,
    "icc4": icc4,
    "icc5": icc5,
    "icc6": icc6,
    "sieve1": sieve1,
    "sieve8": sieve8,
    "rao1": rao1,
    "rao2": rao2,
    "rao3": rao3,
    "cc-stages": cc_stages,
    "cc-splits": cc_splits,
    "cc-pair": cc_pair,
    "align7": align7,
}
