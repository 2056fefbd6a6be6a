"""curate agreement: of a file of scores with a file of ratings, and of raters with each other."""

import itertools
import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from curation_assets.annotation.ratings import (
    Joined,
    RatingAgreement,
    join_ratings,
    only_unigram_nouns,
    rating_agreement,
    rating_difference,
)
from curation_assets.annotation.ratings_log import rating_matrix, read_ratings
from curation_assets.cli.commands import command
from curation_assets.cli.common import FEW, JsonOption, notice, show, show_json, show_table
from curation_assets.numeric.agreement import AgreementDifference, bootstrap_interval
from curation_assets.numeric.caption_benchmark import UNIGRAM_NOUNS_OF_THE_FULL_LIST
from curation_assets.numeric.rater_agreement import Level, krippendorff_alpha, weighted_kappa
from curation_assets.stores.text_tables import read_table

SEED = 0  # of the bootstrap
FEW_RATINGS = 12  # distinct ratings up to which a mean score per rating is worth a table


@command("agreement scores", "People")
def scores(
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
    resamples: Annotated[
        int, typer.Option(help=f"Bootstrap draws for the 95 % intervals; 0 for none where there are {FEW} pairs.")
    ] = 1000,
    as_json: JsonOption = False,
) -> None:
    """Correlate a file of scores with a file of ratings.

    Pearson, Spearman and Kendall tau-b, with intervals and every lost row counted.
    """
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
    if not resamples and joined.table.height < FEW:
        resamples = 1000
    rng = np.random.default_rng(SEED) if resamples else None
    agreement = rating_agreement(joined, rng, resamples=resamples, rule=benchmark_rule)
    notes = _notes(joined, agreement, listed if word_benchmark else None, benchmark_rule)
    difference = None
    if against is not None:
        other = join_ratings(
            read_table(against), rated, score_column=against_column, label_column=label_column, key=key
        )
        difference = rating_difference(joined, other, np.random.default_rng(SEED), resamples=resamples)
        notes.append(
            f"difference: {joined.columns[0]} of {scores} minus {other.columns[0]} of {against}, "
            f"on the {difference.n:,} captions, words or ids that both have"
        )
    if as_json:
        content = {"scores": str(scores), "labels": str(labels), **_as_dict(joined, agreement), "notes": notes}
        if difference is not None:
            content["difference"] = asdict(difference)
        show_json(content, indent=None)
        return
    _show(agreement, notes)
    if difference is not None:
        _show_difference(difference)


def _show_difference(difference: AgreementDifference) -> None:
    rows = []
    for name, (low, high) in difference.intervals.items():
        verdict = "within noise" if low <= 0 <= high else "beyond noise"
        rows.append(
            (name, f"{getattr(difference, name):+.4f}", f"{low:+.4f}", f"{high:+.4f}", f"{difference.n:,}", verdict)
        )
    headings = ("correlation", "difference", "95 % low", "95 % high", "n", "")
    show_table(headings, rows, left=("correlation", ""), title="Difference, paired bootstrap")


def _as_dict(joined: Joined, agreement: RatingAgreement) -> dict[str, object]:
    counts = {name: value for name, value in vars(joined).items() if name != "table"}
    return {**counts, "joined_rows": joined.table.height, **asdict(agreement)}


def _notes(joined: Joined, agreement: RatingAgreement, listed: int | None, rule: str | None) -> list[str]:
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
        (agreement.agreement.n_incomplete, "pairs left out because a number is missing"),
        (agreement.broke_rule or 0, f"pairs left out by the benchmark's rule ({rule})"),
    ):
        if count:
            notes.append(f"{count:,} {what}")
    return notes


def _show(agreement: RatingAgreement, notes: list[str]) -> None:
    for note in notes:
        show(note)
    rows = []
    for name in ("pearson", "spearman", "kendall"):
        interval = agreement.agreement.intervals.get(name)
        low, high = ("–", "–") if interval is None else (f"{bound:.4f}" for bound in interval)
        shown = "kendall tau-b" if name == "kendall" else name
        rows.append((shown, f"{getattr(agreement.agreement, name):.4f}", low, high, f"{agreement.agreement.n:,}"))
    show_table(("correlation", "value", "95 % low", "95 % high", "n"), rows)
    length = agreement.length
    if length is not None and agreement.agreement.n >= FEW:
        show(f"Length: {length.slope_per_word:+.5f} of the score per word, Spearman {length.spearman:+.3f}")
    if len(agreement.by_rating) <= FEW_RATINGS:
        groups = [(f"{group.rating:g}", f"{group.mean_value:.4f}", f"{group.n:,}") for group in agreement.by_rating]
        show_table(("rating", "mean score", "n"), groups, left=0, title="Mean score by rating")


@command("agreement raters", "People")
def raters(
    ratings: Annotated[list[Path], typer.Argument(help="Ratings files.")],
    as_json: JsonOption = False,
) -> None:
    """Show how well raters agree, all together and two by two.

    Krippendorff's alpha over all raters and quadratically weighted kappa of every two, with 95 % intervals of a
    bootstrap over the captions.
    """
    read = read_ratings(ratings)
    matrix, names, captions = rating_matrix(read)
    levels: tuple[Level, ...] = ("ordinal", "interval")
    alphas = {level: krippendorff_alpha(matrix, level) for level in levels}
    pairs: list[dict[str, Any]] = []
    for i, j in itertools.combinations(range(len(names)), 2):
        kappa, shared = weighted_kappa(matrix[i], matrix[j])
        pairs.append(
            {"raters": [names[i], names[j]], "kappa": None if math.isnan(kappa) else kappa, "captions": shared}
        )
    if as_json:
        content = {"captions": len(captions), "raters": names, "alpha": alphas, "pairs": pairs}
        show_json({**content, "corrected": read.corrected, "unreadable": read.unreadable}, indent=None)
        return
    if read.corrected:
        notice(f"{read.corrected} ratings were corrected by a later one")
    if read.unreadable:
        notice(f"{read.unreadable} lines are unreadable and were left out")
    show(f"{len(captions)} captions, {len(names)} raters")
    twice = int((np.isfinite(matrix).sum(axis=0) >= 2).sum())
    rows = []
    for level, alpha in alphas.items():
        interval = _interval(lambda drawn, level=level: krippendorff_alpha(matrix[:, drawn], level), len(captions))  # type: ignore[misc]
        rows.append((f"Krippendorff's alpha ({level})", f"{alpha:.3f}", *interval, f"{twice:,}"))
    for (i, j), pair in zip(itertools.combinations(range(len(names)), 2), pairs, strict=True):
        first, second = matrix[[i, j]][:, np.isfinite(matrix[[i, j]]).all(axis=0)]
        interval = ("–", "–")
        if pair["kappa"] is not None:
            interval = _interval(lambda drawn, x=first, y=second: weighted_kappa(x[drawn], y[drawn])[0], len(first))  # type: ignore[misc]
        shown = "–" if pair["kappa"] is None else f"{pair['kappa']:.3f}"
        rows.append((f"weighted kappa of {' and '.join(pair['raters'])}", shown, *interval, f"{pair['captions']:,}"))
    show_table(("", "value", "95 % low", "95 % high", "captions"), rows)


@command("agreement rankings", "People")
def rankings(
    ranked: Annotated[Path, typer.Argument(metavar="RANKINGS", help="Ranking file with a column rater.")],
    as_json: JsonOption = False,
) -> None:
    """Show how alike raters order captions, all together and two by two.

    Kendall's W over all; tau-b and pairs ordered alike of every two, with a 95 % interval of W over the images.
    """
    from curation_assets.numeric.rankings import concordance, rank_agreement
    from curation_assets.stores.rankings import read_ranks_by_rater

    read = read_ranks_by_rater(ranked)
    shared = [list(ranks.values()) for _, ranks in read.values() if len(ranks) > 1]
    names = sorted({rater for _, ranks in read.values() for rater in ranks})
    w = concordance(shared)
    pairs: list[dict[str, Any]] = []
    rows = []
    for first, second in itertools.combinations(names, 2):
        both = [(ranks[first], ranks[second]) for _, ranks in read.values() if {first, second} <= set(ranks)]
        pair = asdict(rank_agreement(both))
        pairs.append({"raters": [first, second], **pair})
        shown = ("–" if pair[name] is None else f"{pair[name]:.3f}" for name in ("kendall", "pair_agreement"))
        rows.append((first, second, *shown, str(pair["pairs"]), str(pair["images"])))
    if as_json:
        show_json({"images": len(read), "raters": names, "kendall_w": w, "pairs": pairs}, indent=None)
        return
    show(f"{len(read)} images, {len(names)} raters, {len(shared)} images by several")
    if w is None:
        show("Kendall's W: –, no image was ranked by two")
    else:

        def w_of(drawn: np.ndarray) -> float:
            value = concordance([shared[row] for row in drawn])
            return math.nan if value is None else value

        low, high = _interval(w_of, len(shared))
        show(f"Kendall's W: {w:.3f} (n = {len(shared)} images, 95 % {low} to {high})")
    show_table(("rater", "rater", "tau-b", "pairs ordered alike", "pairs", "images"), rows, left=2)


def _interval(statistic: Any, n: int) -> tuple[str, str]:
    low, high = bootstrap_interval(statistic, n, np.random.default_rng(0))
    return f"{low:.3f}", f"{high:.3f}"
