"""curate evaluate compare: what models trained on the subsets of one or more pools are worth, side by side."""

from pathlib import Path
from typing import Annotated

import polars as pl
import typer

from curation_assets.cli.commands import command
from curation_assets.cli.common import HomeOption, JsonOption, notice, settings_from, show, show_json, show_table
from curation_assets.core.validation import check_known
from curation_assets.evaluation.comparison import (
    ALL_TRAINERS,
    RANDOM,
    REFERENCE,
    compare_training_sets,
    comparisons_in_words,
    score_training_sets,
    written,
    written_share,
)
from curation_assets.evaluation.stored_metrics import read_metrics
from curation_assets.evaluation.trainers import all_trainers
from curation_assets.flow.context import PoolContext
from curation_assets.stores.atomic import check_new
from curation_assets.stores.text_tables import save_new_table

OWN_SIZE = "own"


@command("evaluate compare", "Evaluation")
def compare(
    pools: Annotated[list[str], typer.Argument(metavar="POOL...", help="Pools, such as draws of one source.")],
    size: Annotated[
        list[str] | None, typer.Option("--size", help="Only sets of this share of the pool, or `own` (repeat).")
    ] = None,
    metric: Annotated[
        list[str] | None, typer.Option("--metric", help="Only this metric (repeat); default: what the report shows.")
    ] = None,
    trainer: Annotated[list[str] | None, typer.Option("--trainer", help="Only this trainer (repeat).")] = None,
    holm: Annotated[
        bool, typer.Option("--holm", help="Clear is what Holm's correction for all comparisons leaves.")
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Write all metrics as a csv file.")] = None,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Compare what models trained on subsets are worth, over pools and seeds, with intervals.

    Several pools: a pool is the unit, and the intervals hold the variance of pool, draw and seed. One pool: a seed is.
    """
    if len(set(pools)) < len(pools):
        raise ValueError(f"each pool once, got {' '.join(pools)}")
    check_known("curate evaluate compare", "trainer", trainer or [], all_trainers())
    if out is not None:
        if out.suffix != ".csv":
            raise ValueError(f"--out writes a .csv file, got {out}")
        check_new(out)
    settings = settings_from(home)
    stored = read_metrics([PoolContext.open(settings, name) for name in pools], trainer or [])
    for pool, trainers in stored.absent.items():
        for why in dict.fromkeys(trainers.values()):
            names = ", ".join(name for name, reason in trainers.items() if reason == why)
            notice(f"pool {pool}, {names}: {why}")
    if stored.rows.is_empty():
        raise ValueError("none of these pools has models to compare; the lines above say what each lacks")
    rows = _of_sizes(stored.rows, size or [])
    check_known("the pools' tables", "metric", metric or [], rows["metric"].unique())
    if metric:
        rows = rows.filter(pl.col("metric").is_in(metric))
    comparison = compare_training_sets(rows, holm_adjusted=holm)
    scores = score_training_sets(comparison)
    if out is not None:
        save_new_table(out, comparison)
        notice(f"{comparison.height} rows in {out}")
    if as_json:
        show_json(
            {
                "comparison": comparison.to_dicts(),
                "scores": scores.to_dicts(),
                "comparisons": comparisons_in_words(comparison),
                "absent": stored.absent,
            }
        )
        return
    shown = comparison if metric else _shown_metrics(comparison)
    for part in shown.partition_by("trainer", "size", maintain_order=True):
        _show_part(part)
    _show_scores(scores)
    show()
    show(comparisons_in_words(comparison))


def _of_sizes(rows: pl.DataFrame, sizes: list[str]) -> pl.DataFrame:
    """Rows of these sizes, all for none. Raises ValueError for text, and for a size that no training set has."""
    if not sizes:
        return rows
    known = {_size_text(size): size for size in rows["size"].unique().sort(nulls_last=True)}
    chosen: list[float | None] = []
    for text in sizes:
        try:
            size = None if text == OWN_SIZE else float(text)
        except ValueError:
            raise ValueError(f"--size takes a share of the pool such as .25, or {OWN_SIZE}; got {text!r}") from None
        if size not in known.values():
            raise ValueError(f"no training set has the size {text}; there are {', '.join(known)}")
        chosen.append(size)
    return rows.filter(pl.col("size").is_in(chosen, nulls_equal=True))


def _size_text(size: float | None) -> str:
    return OWN_SIZE if size is None else written_share(size)


def _share_text(size: float | None) -> str:
    return "subsets of their own size" if size is None else f"{_size_text(size)} of the pool"


def _shown_metrics(comparison: pl.DataFrame) -> pl.DataFrame:
    """The rows of metrics that the report shows, or all rows of a trainer that has none of these."""
    keep = pl.lit(False)
    for name in comparison["trainer"].unique():
        of_trainer = pl.col("trainer") == name
        shown = set(all_trainers()[name].shown_metrics)
        known = set(comparison.filter(of_trainer)["metric"])
        keep |= of_trainer & pl.col("metric").is_in(shown & known or known)
    return comparison.filter(keep)


def _show_part(part: pl.DataFrame) -> None:
    """One table, a block of rows per metric, and below it what limits single rows."""
    rows: list[tuple[str, ...]] = []
    notes: dict[str, dict[str, None]] = {}
    for block in part.partition_by("metric", maintain_order=True):
        rows.append((block["metric"][0], "", "", ""))
        for row in block.iter_rows(named=True):
            mean = "–" if row["mean"] is None else written(row["mean"])[0]
            if row["low"] is not None:
                value, low, high = written(row["mean"], row["low"], row["high"])
                mean = f"{value} ({low} to {high})"
            rows.append((f"  {row['policy']}", f"{row['n']:,}", mean, _against_random(row)))
            first = 0 if row["difference_low"] is None else 1  # the first sentence is the last column
            for note in row["reading"].split("; ")[first:]:
                if row["policy"] != RANDOM or note != REFERENCE:
                    notes.setdefault(note, {})[row["policy"]] = None
    counts = ", ".join(_counted(part[f"{what}s"].to_list(), what) for what in ("pool", "seed"))
    show()
    show(f"{part['trainer'][0]}, {_share_text(part['size'][0])}: {counts}")
    show_table(("", "samples", "mean (95 %)", "against random"), rows, left=("", "against random"))
    for note, names in notes.items():
        whose = "" if len(names) == part["policy"].n_unique() else f"{', '.join(names)}: "
        show(f"  {whose}{note}")


def _counted(numbers: list[int], what: str) -> str:
    most = max(numbers)
    return f"{most} {what}" + "s" * (most != 1)


def _against_random(row: dict[str, float | None]) -> str:
    difference = row["difference"]
    if difference is None:
        return ""
    if row["difference_low"] is None or row["difference_high"] is None:
        return f"{written(difference)[0]}, no interval"
    value, low, high = written(difference, row["difference_low"], row["difference_high"])
    word = "above" if difference > 0 else "below"
    if not row["is_clear"]:
        word = "no difference shown"
    return f"{word}: {value} ({low} to {high})"


def _show_scores(scores: pl.DataFrame) -> None:
    """Score of each training set per trainer, best first by the last."""
    for part in scores.partition_by("size", maintain_order=True):
        trainers = part["trainer"].unique(maintain_order=True).to_list()
        scored = {(r["policy"], r["kind"], r["trainer"]): r["score"] for r in part.iter_rows(named=True)}
        last = part.filter(pl.col("trainer") == trainers[-1])
        if last["score"].null_count() == last.height:
            continue
        rows = []
        for policy, kind in last.select("policy", "kind").iter_rows():
            numbers = (scored.get((policy, kind, one)) for one in trainers)
            rows.append((policy, *("–" if number is None else f"{number:.3f}" for number in numbers)))
        show()
        headings = ["all trainers" if one == ALL_TRAINERS else one for one in trainers]
        show(f"Score, {_share_text(part['size'][0])}: the mean of metrics, each scaled to 0–1 over these training sets")
        show_table(("", *headings), rows)
