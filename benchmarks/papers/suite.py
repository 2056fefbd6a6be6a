"""python -m benchmarks.papers suite: one score per data set of a table of metrics, and which measure predicts it."""

from pathlib import Path
from typing import Annotated, Any

import polars as pl
import typer

from benchmarks.papers.correlation import predictive_correlation, spearman_interval
from benchmarks.papers.metric_tables import read_numbers_by_name
from curation_assets.cli.common import JsonOption, notice, show, show_json, show_table
from curation_assets.core.validation import check_known
from curation_assets.numeric.metrics.comparison import data_set_scores


def suite(
    table: Annotated[
        Path, typer.Argument(help="csv, tsv or parquet: first column the data set's name, the others metrics.")
    ],
    metrics: Annotated[
        Path | None,
        typer.Option("--metrics", help="Measures of the same data sets, such as mean ICC: first column the name."),
    ] = None,
    adversarial: Annotated[
        list[str] | None,
        typer.Option("--adversarial", metavar="NAME", help="A data set to leave out of a second correlation (repeat)."),
    ] = None,
    lower: Annotated[
        list[str] | None,
        typer.Option("--lower", metavar="COLUMN", help="A metric of TABLE of which lower is better (repeat)."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Score every data set of a table of metrics; correlate measures of the data sets with the scores.

    Score (Rao et al.): each metric is scaled to 0–1 over all rows, no pre-training included; the mean over metrics.
    """
    results = read_numbers_by_name(table)
    columns = results.columns[1:]
    check_known(str(table), "column", lower or [], columns)
    check_known(str(table), "data set", adversarial or [], results["dataset"])
    if adversarial and metrics is None:
        raise ValueError("--adversarial leaves data sets out of the correlation with --metrics FILE; give both")
    signs = [-1.0 if name in (lower or []) else 1.0 for name in columns]
    scores = data_set_scores(results.select(columns).to_numpy() * signs)
    scored = results.select("dataset").with_columns(pl.Series("score", scores))
    correlations = [] if metrics is None else _correlations(scored, metrics, adversarial or [])
    if as_json:
        show_json(scored.to_dicts() if metrics is None else {"scores": scored.to_dicts(), "correlations": correlations})
        return
    best_first = scored.sort("score", "dataset", descending=[True, False])
    show_table(("data set", "Score"), ((name, f"{score:.4f}") for name, score in best_first.iter_rows()))
    notice(f"Score: mean over {len(columns)} metrics, each scaled to 0–1 over the {scored.height} data sets")
    if constant := [name for name in columns if results[name].n_unique() == 1]:
        notice(f"the same for all data sets, so .5 for each: {', '.join(constant)}")
    if correlations:
        _show(correlations, bool(adversarial))


def _correlations(scored: pl.DataFrame, path: Path, adversarial: list[str]) -> list[dict[str, Any]]:
    """Per measure: Spearman with the scores over all sets, and without the adversarial ones (null where none is)."""
    measures = read_numbers_by_name(path, gaps=True)
    joined = scored.join(measures, on="dataset", how="inner", maintain_order="left")
    for whose, names, others in ((path, scored, measures), ("the table of metrics", measures, scored)):
        absent = names.join(others, on="dataset", how="anti")["dataset"].to_list()
        if absent:
            notice(f"left out of the correlations, since {whose} does not have them: {', '.join(absent)}")
    if joined.height < 2:
        raise ValueError(
            f"{path}: a correlation takes two data sets that both files have, got {joined.height}; the names in the "
            f"first columns must be equal (such as {scored['dataset'][0]!r})"
        )
    rows = []
    for name in measures.columns[1:]:
        valued = joined.filter(pl.col(name).is_not_null())
        is_adversarial = valued["dataset"].is_in(adversarial)
        both = predictive_correlation(valued[name].to_list(), valued["score"].to_list(), is_adversarial.to_list())
        row = {"measure": name, **_with_interval("all_sets", both["all_sets"], valued.height)}
        without = both["without_adversarial"] if adversarial else None
        rows.append({**row, **_with_interval("without_adversarial", without, int((~is_adversarial).sum()))})
    return rows


def _with_interval(name: str, value: float | None, n: int) -> dict[str, Any]:
    """The correlation, its interval and the number of data sets; null where there is none."""
    low, high = (None if value is None else spearman_interval(value, n)) or (None, None)
    return {name: value, f"{name}_low": low, f"{name}_high": high, f"{name}_n": None if value is None else n}


def _show(correlations: list[dict[str, Any]], has_adversarial: bool) -> None:
    kinds = {"all_sets": "all data sets"} | ({"without_adversarial": "without adversarial"} if has_adversarial else {})
    rows = [[row["measure"], *(_cell(row, kind) for kind in kinds)] for row in correlations]
    show()
    show_table(("measure", *kinds.values()), rows, left=1 + len(kinds), title="Spearman with Score (95 % interval)")


def _cell(row: dict[str, Any], kind: str) -> str:
    if row[kind] is None:
        return "none: one side is constant, or one data set only"
    low, high, n = (row[f"{kind}_{part}"] for part in ("low", "high", "n"))
    interval = "no interval" if low is None else f"{low:+.3f} to {high:+.3f}"
    return f"{row[kind]:+.3f} ({interval}), n {n}"
