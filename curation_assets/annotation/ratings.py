"""Ratings by people: joined with scores, and how well both agree."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from curation_assets.methods import method_names
from curation_assets.numeric.agreement import Agreement, AgreementDifference, agreement_difference
from curation_assets.numeric.caption_benchmark import is_unigram_noun, satisfies_rule
from curation_assets.numeric.metrics.concreteness import RatingGroup, concreteness_report
from curation_assets.numeric.standardise import LengthDependence, caption_length, length_dependence
from curation_assets.stores.text_tables import TEXT_KEYS

SCORE_COLUMNS = ("score", "value", "icc_score")
LABEL_COLUMNS = ("rating", "concreteness", "conc_mean", "label")


def only_unigram_nouns(table: pl.DataFrame) -> pl.DataFrame:
    """Rows of a Brysbaert-format table that belong to the word benchmark. Raises ValueError without bigram and pos."""
    missing = [name for name in ("bigram", "pos") if name not in table.columns]
    if missing:
        raise ValueError(
            f"the word benchmark needs columns Bigram and Dom_Pos (or bigram and pos), got {table.columns}"
        )
    keep = is_unigram_noun(table["bigram"].to_list(), table["pos"].to_list())
    return table.filter(pl.Series(keep))


@dataclass(frozen=True)
class Joined:
    """Scores beside labels. Every input row is counted in exactly one of the counts of its side."""

    table: pl.DataFrame  # key, text (null without), score, rating: floats, NaN where the file has no number
    key: tuple[str, str]  # column of the scores, column of the labels
    columns: tuple[str, str]  # score column, label column
    score_rows: int
    label_rows: int
    unmatched_scores: int  # rows whose key the other file lacks
    unmatched_labels: int
    duplicate_scores: int  # rows beyond the first of their key
    duplicate_labels: int
    averaged_keys: int  # keys that occur unequally often on the two sides: means are compared
    unreadable_scores: int  # rows with a text that is no number
    unreadable_labels: int


def join_ratings(
    scores: pl.DataFrame,
    labels: pl.DataFrame,
    *,
    score_column: str | None = None,
    label_column: str | None = None,
    key: str | None = None,
) -> Joined:
    """Join on `key`, else on sample_id where both have it, else on the text (caption, word or text).

    A key that occurs equally often in both files is joined occurrence by occurrence; otherwise the means of its
    numbers meet. `score_column` None takes score, value, icc_score or the one column named after a method;
    `label_column` None takes rating, concreteness, conc_mean or label.
    Raises ValueError for missing columns, and for files without a common key, with the first of each.
    """
    score_key, label_key = _keys(scores, labels, key)
    score_column = score_column or _default_score_column(scores)
    label_column = label_column or _first_present(labels, LABEL_COLUMNS, "labels", "--label-column")
    left, right = (
        _numbers(table, name, column, side)
        for table, name, column, side in (
            (scores, score_key, score_column, "scores"),
            (labels, label_key, label_column, "labels"),
        )
    )
    keys = [side["key"].drop_nulls() for side in (left, right)]
    duplicates = [len(column) - column.n_unique() for column in keys]
    counts = (
        left.group_by("key")
        .len("left")
        .join(right.group_by("key").len("right"), on="key", how="inner")
        .with_columns(is_uneven=pl.col("left") != pl.col("right"))
    )
    if counts.is_empty():
        firsts = [f"{column[0][:60]!r}" if len(column) else "none" for column in keys]
        raise ValueError(
            f"no {score_key} of the {left.height:,} scores (the first: {firsts[0]}) is a {label_key} of the "
            f"{right.height:,} labels (the first: {firsts[1]}); --key names another column that both have"
        )
    uneven = counts.filter("is_uneven").select("key")
    tables = []
    for side in (left, right):
        merged = side.join(uneven, on="key", how="semi").group_by("key", "occurrence_of_mean", maintain_order=True)
        tables.append(
            pl.concat(
                [
                    side.join(uneven, on="key", how="anti").select("key", "occurrence", "number", "text"),
                    merged.agg(pl.col("number").drop_nans().mean().fill_null(float("nan")), pl.col("text").first())
                    .rename({"occurrence_of_mean": "occurrence"})
                    .select("key", "occurrence", "number", "text"),
                ]
            )
        )
    joined = tables[0].join(tables[1], on=["key", "occurrence"], how="inner", maintain_order="left")
    matched = counts["key"].drop_nulls().to_list()
    return Joined(
        table=joined.select(
            "key",
            pl.coalesce("text", "text_right").alias("text"),
            pl.col("number").alias("score"),
            pl.col("number_right").alias("rating"),
        ),
        key=(score_key, label_key),
        columns=(score_column, label_column),
        score_rows=left.height,
        label_rows=right.height,
        unmatched_scores=left.height - int(keys[0].is_in(matched).sum()),
        unmatched_labels=right.height - int(keys[1].is_in(matched).sum()),
        duplicate_scores=duplicates[0],
        duplicate_labels=duplicates[1],
        averaged_keys=uneven.height,
        unreadable_scores=int(left["is_unreadable"].sum()),
        unreadable_labels=int(right["is_unreadable"].sum()),
    )


def _keys(scores: pl.DataFrame, labels: pl.DataFrame, key: str | None) -> tuple[str, str]:
    if key is not None:
        for table, side in ((scores, "scores"), (labels, "labels")):
            if key not in table.columns:
                raise ValueError(f"the {side} have no column {key!r}; they have {table.columns}")
        return key, key
    if "sample_id" in scores.columns and "sample_id" in labels.columns:
        return "sample_id", "sample_id"
    return (
        _first_present(scores, TEXT_KEYS, "scores", "--key"),
        _first_present(labels, TEXT_KEYS, "labels", "--key"),
    )


def _first_present(table: pl.DataFrame, names: tuple[str, ...], side: str, option: str) -> str:
    present = next((name for name in names if name in table.columns), None)
    if present is None:
        raise ValueError(
            f"the {side} have none of the columns {', '.join(names)}; got {table.columns}, name it: {option}"
        )
    return present


def _default_score_column(scores: pl.DataFrame) -> str:
    named = sorted(method_names() & set(scores.columns))
    if len(named) > 1:
        raise ValueError(f"the scores hold several methods ({', '.join(named)}); choose one with --score-column")
    return named[0] if named else _first_present(scores, SCORE_COLUMNS, "scores", "--score-column")


def _numbers(table: pl.DataFrame, key: str, column: str, side: str) -> pl.DataFrame:
    if column not in table.columns:
        raise ValueError(f"the {side} have no column {column!r}; they have {table.columns}")
    text = next((name for name in TEXT_KEYS if name in table.columns), None)
    given = table[column].cast(pl.String)
    number = given.str.strip_chars().cast(pl.Float64, strict=False)
    is_given = given.is_not_null() & (given.str.strip_chars() != "")
    return pl.DataFrame(
        {
            "key": table[key].cast(pl.String),  # a null key matches nothing
            "number": number.fill_null(float("nan")),
            "text": table[text].cast(pl.String) if text else pl.Series([None] * table.height, dtype=pl.String),
            "is_unreadable": is_given & number.is_null(),
        }
    ).with_columns(
        occurrence=pl.int_range(pl.len()).over("key").cast(pl.Int64),
        occurrence_of_mean=pl.lit(-1, dtype=pl.Int64),
    )


@dataclass(frozen=True)
class RatingAgreement:
    """What `curate agreement scores` shows."""

    agreement: Agreement
    by_rating: tuple[RatingGroup, ...]
    length: LengthDependence | None  # None where the rows carry no text
    broke_rule: int | None  # joined rows left out by the benchmark's rule; None where it was not requested


def rating_agreement(
    joined: Joined, rng: np.random.Generator | None, *, resamples: int = 1000, rule: str | None = None
) -> RatingAgreement:
    """Agreement of joined rows, with the slope of the score over caption length in words.

    `rule`: None keeps all rows, 'stated' those that satisfy the caption benchmark's sampling rule, 'as_printed' the
    paper's wording of it (formulas.md §1.9). Raises ValueError as `agreement` does, and for rows without text under a
    rule.
    """
    table, broke = joined.table, None
    has_text = table.height > 0 and table["text"].null_count() == 0
    if rule is not None:
        if rule not in ("stated", "as_printed"):
            raise ValueError(f"benchmark rule must be stated or as_printed, got {rule!r}")
        if not has_text:
            raise ValueError("the benchmark's rule reads captions; neither file has a caption for every row")
        keep = satisfies_rule(table["text"].to_list(), as_printed=rule == "as_printed")
        broke = int((~keep).sum())
        table = table.filter(pl.Series(keep, dtype=pl.Boolean))
    score, rating = table["score"].to_numpy(), table["rating"].to_numpy()
    report = concreteness_report(score, rating, rng, resamples=resamples)
    length = length_dependence(score, caption_length(table["text"].to_list())) if has_text else None
    return RatingAgreement(report.agreement, report.by_rating, length, broke)


def rating_difference(
    joined: Joined, other: Joined, rng: np.random.Generator, *, resamples: int = 1000
) -> AgreementDifference:
    """Agreement of `joined` minus that of `other`, both joined with the same labels, on the keys that both have.

    Rows of one key are averaged. Raises ValueError as `agreement` does.
    """
    means = [
        side.table.group_by("key", maintain_order=True).agg(pl.col("score", "rating").mean())
        for side in (joined, other)
    ]
    both = means[0].join(means[1].select("key", other="score"), on="key", how="inner", maintain_order="left")
    score, others, rating = (both[name].to_numpy() for name in ("score", "other", "rating"))
    return agreement_difference(score, others, rating, rng, resamples=resamples)
