"""curate agree: how well a file of scores agrees with a file of ratings."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.table import Table

from curation_assets.annotation.ratings import (
    Joined,
    RatingAgreement,
    join_ratings,
    only_unigram_nouns,
    rating_agreement,
    rating_difference,
)
from curation_assets.cli.common import console, errors_as_sentences
from curation_assets.numeric.agreement import AgreementDifference
from curation_assets.numeric.caption_benchmark import UNIGRAM_NOUNS_OF_THE_FULL_LIST
from curation_assets.stores.text_tables import read_table

FEW_RATINGS = 12  # distinct ratings up to which a mean score per rating is worth a table


@errors_as_sentences
def agree(
    scores: Annotated[Path, typer.Argument(help="tsv, csv, parquet or jsonl with a score per caption, word or id.")],
    labels: Annotated[Path, typer.Argument(help="The same kinds of file, with a rating per row; may be one file.")],
    score_column: Annotated[
        str | None, typer.Option(help="Default: score, value, icc_score, or the method's name.")
    ] = None,
    label_column: Annotated[str | None, typer.Option(help="Default: rating, concreteness, conc_mean or label.")] = None,
    key: Annotated[
        str | None, typer.Option(help="Column to join on. Default: sample_id, else caption, word or text.")
    ] = None,
    benchmark_rule: Annotated[
        str | None,
        typer.Option(
            help="Only captions that the caption benchmark could have sampled: stated (stop-word share ≥ .20) or "
            "as_printed (≤ .20)."
        ),
    ] = None,
    word_benchmark: Annotated[
        bool, typer.Option("--word-benchmark", help="LABELS is a Brysbaert-format list: unigram nouns only.")
    ] = False,
    against: Annotated[
        Path | None,
        typer.Option(
            help="A second file of scores of the same rows: is SCORES better beyond noise (paired bootstrap)?"
        ),
    ] = None,
    against_column: Annotated[
        str | None, typer.Option(help="Score column of --against; default as for SCORES.")
    ] = None,
    resamples: Annotated[int, typer.Option(help="Bootstrap draws for the 95 % intervals; 0 for none.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Pearson, Spearman and Kendall tau-b of scores with ratings, with intervals and every lost row counted."""
    if resamples < 0:
        raise ValueError(f"resamples must be at least 0, got {resamples}")
    if against is not None and (benchmark_rule is not None or not resamples):
        raise ValueError(
            "--against compares all rows by resampling: leave --benchmark-rule out and --resamples above 0"
        )
    rated = read_table(labels)
    listed = rated.height
    if word_benchmark:
        rated = only_unigram_nouns(rated)
    joined = join_ratings(read_table(scores), rated, score_column=score_column, label_column=label_column, key=key)
    rng = np.random.default_rng(seed) if resamples else None
    found = rating_agreement(joined, rng, resamples=resamples, rule=benchmark_rule)
    notes = _notes(joined, found, listed if word_benchmark else None, benchmark_rule)
    difference = None
    if against is not None:
        other = join_ratings(
            read_table(against), rated, score_column=against_column, label_column=label_column, key=key
        )
        difference = rating_difference(joined, other, np.random.default_rng(seed), resamples=resamples)
        notes.append(
            f"difference: {joined.columns[0]} of {scores} minus {other.columns[0]} of {against}, "
            f"on the {difference.n:,} captions, words or ids that both have"
        )
    if as_json:
        content = {"scores": str(scores), "labels": str(labels), **_as_dict(joined, found), "notes": notes}
        if difference is not None:
            content["difference"] = asdict(difference)
        print(json.dumps(content, ensure_ascii=False, allow_nan=False))
        return
    _show(joined, found, notes)
    if difference is not None:
        _show_difference(difference)


def _show_difference(found: AgreementDifference) -> None:
    table = Table(title="Difference, paired bootstrap", title_justify="left", box=None, pad_edge=False)
    for heading in ("correlation", "difference", "95 % low", "95 % high", ""):
        table.add_column(heading, justify="left" if heading in ("correlation", "") else "right")
    for name, (low, high) in found.intervals.items():
        said = "within noise" if low <= 0 <= high else "beyond noise"
        table.add_row(name, f"{getattr(found, name):+.4f}", f"{low:+.4f}", f"{high:+.4f}", said)
    console.print(table)


def _as_dict(joined: Joined, found: RatingAgreement) -> dict[str, object]:
    counts = {name: value for name, value in vars(joined).items() if name != "table"}
    return {**counts, "joined_rows": joined.table.height, **asdict(found)}


def _notes(joined: Joined, found: RatingAgreement, listed: int | None, rule: str | None) -> list[str]:
    """One sentence per thing that a reader of the figures must know."""
    score_column, label_column = joined.columns
    score_key, label_key = joined.key
    notes = [
        f"{score_column} against {label_column}, joined by {score_key}"
        + (f" = {label_key}" if label_key != score_key else "")
        + f": {joined.table.height:,} pairs of {joined.score_rows:,} scores and {joined.label_rows:,} labels"
    ]
    if listed is not None:
        notes.append(
            f"word benchmark: {joined.label_rows:,} of {listed:,} listed words are unigram nouns (the full list has "
            f"{UNIGRAM_NOUNS_OF_THE_FULL_LIST:,}; the paper prints 14,562)"
        )
    for count, what in (
        (joined.unmatched_scores, "scores without a label"),
        (joined.unmatched_labels, "labels without a score"),
        (joined.duplicate_scores, "scores of a row already seen"),
        (joined.duplicate_labels, "labels of a row already seen"),
        (joined.averaged_keys, "rows that the files repeat unequally often: means compared"),
        (joined.unreadable_scores, f"scores that are no number ({score_column})"),
        (joined.unreadable_labels, f"labels that are no number ({label_column})"),
        (found.agreement.n_incomplete, "pairs left out because a number is missing"),
        (found.broke_rule or 0, f"pairs left out by the benchmark's rule ({rule})"),
    ):
        if count:
            notes.append(f"{count:,} {what}")
    return notes


def _show(joined: Joined, found: RatingAgreement, notes: list[str]) -> None:
    for note in notes:
        console.print(note, highlight=False, soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    for heading in ("correlation", "value", "95 % low", "95 % high", "n"):
        table.add_column(heading, justify="left" if heading == "correlation" else "right")
    for name in ("pearson", "spearman", "kendall"):
        interval = found.agreement.intervals.get(name)
        low, high = ("–", "–") if interval is None else (f"{bound:.4f}" for bound in interval)
        shown = "kendall tau-b" if name == "kendall" else name
        table.add_row(shown, f"{getattr(found.agreement, name):.4f}", low, high, f"{found.agreement.n:,}")
    console.print(table)
    if found.length is not None:
        console.print(
            f"Length: {found.length.slope_per_word:+.5f} of the score per word, Spearman {found.length.spearman:+.3f}",
            highlight=False,
        )
    if len(found.by_rating) <= FEW_RATINGS:
        groups = Table(title="Mean score by rating", title_justify="left", box=None, pad_edge=False)
        for heading in ("rating", "mean score", "n"):
            groups.add_column(heading, justify="right")
        for group in found.by_rating:
            groups.add_row(f"{group.rating:g}", f"{group.mean_value:.4f}", f"{group.n:,}")
        console.print(groups)
