"""Which quarter of web pairs describes its images: policies, and the weights of recipe web, cross-validated by site.

    python benchmarks/web_mix.py --data ../shared/data --work DIR   # DIR of web_pairs.py exam

Hand-labelled web pairs (388), each once as it is and once with the caption of a drawn row of another site, which is no
description of the image and counts a third. Image and caption are scored by heads that know nothing of the row's site
(web_pairs.py exam), captions by the methods of profile photos, `descriptive` with numbers fitted on the open rows of
the other folds (lab/descriptive.py); every signal is standardised within its fold, as recipe web does within a pool. A
logistic regression learns P(descriptive) on four folds and scores the fifth. A row without a value, as `icc` has none
of another language, has no score and comes last. Writes benchmarks/results/web_mix.csv: the share of descriptive rows
in the best quarter, and the AUC, with 95 % intervals by drawing sites with replacement; then the weights of all folds
with intervals.
"""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from scipy.stats import rankdata
from sklearn.linear_model import LogisticRegression

from curation_assets.core.settings import load_profile
from curation_assets.engines import load_engine
from curation_assets.methods import get_method
from curation_assets.numeric.identity import sample_id_of, unit_interval_of
from lab.descriptive import counts_of, logistic

RESULTS = Path(__file__).parent / "results" / "web_mix.csv"
MIXES: dict[str, tuple[str, ...]] = {
    "web": ("clip_score", "descriptive"),
    "web before": ("clip_score", "word_count"),
    "web and icc": ("clip_score", "descriptive", "icc"),
    "web and word_count": ("clip_score", "descriptive", "word_count"),
    "web and image_kind": ("clip_score", "descriptive", "image_kind"),
    "icc and descriptive": ("icc", "descriptive"),
    "clip_score and icc": ("clip_score", "icc"),
}
SIGNALS = ("clip_score", "icc", "descriptive")
MOST_WORDS = 10  # of word_count, as recipe web had it
MISMATCH_WEIGHT = 1 / 3
LAST = -1000.0
RESAMPLES = 1000


def caption_values(captions: list[str], name: str) -> np.ndarray:
    """(N,) values of a method that reads captions, NaN where it has none."""
    method, profile = get_method(name), load_profile("photos").with_roles(student="embedded:icc_student")
    engines = {role: load_engine(role, profile) for role in method.roles}
    return method.function(captions, **engines).value


def labelled_rows(data: Path, work: Path) -> pl.DataFrame:
    """Labelled pairs, then each image with another site's caption: owner, fold, weight, is_descriptive and values."""
    pairs = pl.read_parquet(data / "web" / "pairs.parquet")
    labels = pl.read_parquet(data / "web" / "labels_400.parquet")
    scores = pl.read_parquet(sorted(work.glob("scores_all_sites_*.parquet")))
    scores = scores.group_by("key").agg(pl.col("score", "score_other").mean(), pl.col("other").first())
    rows = labels.join(pairs, on="key").join(scores, on="key").join(
        pairs.select(other="key", other_alt="alt"), on="other", how="left"
    ).sort("key")  # fmt: skip
    folds = {owner: int(unit_interval_of(sample_id_of(owner, ""), "folds") * 5) for owner in set(rows["owner"])}
    shared = [
        "key", "owner", pl.col("owner").replace_strict(folds).alias("fold"),
        (pl.col("kind") == "photo").cast(pl.Float64).alias("image_kind"),
        ((pl.col("licence_class") == "open") & (pl.col("language_guess") == "en")).alias("may_teach"),
    ]  # fmt: skip
    own = rows.select(
        *shared, caption="alt", clip_score="score", is_descriptive=pl.col("descriptive") == "yes", weight=pl.lit(1.0)
    )
    drawn = rows.select(
        *shared, caption="other_alt", clip_score="score_other", is_descriptive=pl.lit(False),
        weight=pl.lit(MISMATCH_WEIGHT),
    )  # fmt: skip
    both = pl.concat([own, drawn])
    captions = both["caption"].to_list()
    valued = [pl.Series(name, caption_values(captions, name)) for name in ("icc", "word_count", "descriptive")]
    return both.with_columns(*valued, informative_words=pl.Series(counts_of(captions)))


def with_descriptive(rows: pl.DataFrame, known: np.ndarray) -> pl.DataFrame:
    """`descriptive` of all rows by the labels of openly licensed `known` ones."""
    taught = rows.filter(pl.Series(known) & pl.col("may_teach") & (pl.col("weight") == 1))
    fit = logistic(taught["informative_words"].to_numpy(), taught["is_descriptive"].to_numpy())
    return rows.with_columns(descriptive=pl.Series(fit(rows["informative_words"].to_numpy())))


def standardised(rows: pl.DataFrame, names: tuple[str, ...]) -> np.ndarray:
    """(N, K), within each fold by its unchanged rows; NaN without a value."""
    values = []
    for name in names:
        column = pl.col(name).clip(upper_bound=MOST_WORDS) if name == "word_count" else pl.col(name)
        column = column.fill_nan(None)
        of_pool = column.filter(pl.col("weight") == 1)
        z = (column - of_pool.mean().over("fold")) / of_pool.std(ddof=0).over("fold")
        values.append(rows.select(z.fill_nan(0.0).fill_null(np.nan)).to_series().to_numpy())
    return np.stack(values, axis=1)


def fitted(rows: pl.DataFrame, x: np.ndarray, chosen: np.ndarray) -> LogisticRegression:
    y, weight = rows["is_descriptive"].to_numpy(), rows["weight"].to_numpy()
    chosen = chosen[np.isfinite(x[chosen]).all(axis=1)]
    return LogisticRegression(C=1.0, max_iter=1000).fit(x[chosen], y[chosen], sample_weight=weight[chosen])


def out_of_fold(rows: pl.DataFrame, names: tuple[str, ...]) -> np.ndarray:
    """(N,) logits by weights that were learned on the other folds; without a value LAST."""
    fold, scores = rows["fold"].to_numpy(), np.full(rows.height, LAST)
    for number in np.unique(fold):
        x = standardised(with_descriptive(rows, fold != number), names)
        scored = np.flatnonzero((fold == number) & np.isfinite(x).all(axis=1))
        scores[scored] = fitted(rows, x, np.flatnonzero(fold != number)).decision_function(x[scored])
    return scores


def best_quarter(scores: np.ndarray, good: np.ndarray, weight: np.ndarray) -> float:
    """Share of good weight in the best quarter of all weight."""
    order = np.argsort(-scores, kind="stable")
    reached = np.cumsum(weight[order])
    kept = order[reached <= reached[-1] / 4 + 1e-9]
    return float((good[kept] * weight[kept]).sum() / weight[kept].sum())


def auc(scores: np.ndarray, good: np.ndarray, weight: np.ndarray) -> float:
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(good, scores, sample_weight=weight))


def interval_over_sites(
    function: Callable[[np.ndarray, np.ndarray, np.ndarray], float],
    scores: np.ndarray,
    good: np.ndarray,
    weight: np.ndarray,
    owners: np.ndarray,
) -> tuple[float, float]:
    """95 % interval of function(scores, good, weight), sites drawn with replacement."""
    names, at = np.unique(owners, return_inverse=True)
    values = []
    for draw in np.random.default_rng(0).integers(len(names), size=(RESAMPLES, len(names))):
        times = np.bincount(draw, minlength=len(names))[at] * weight
        values.append(function(scores[times > 0], good[times > 0], times[times > 0]))
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


def rows_of(name: str, scores: np.ndarray, rows: pl.DataFrame) -> list[dict[str, Any]]:
    """Share in the best quarter and AUC, on the pairs as they are and with the drawn mismatches."""
    owners = rows["owner"].to_numpy()
    good, weight = rows["is_descriptive"].to_numpy(), rows["weight"].to_numpy()
    found = []
    for pool, counted in (("as they are", np.where(weight == 1, 1.0, 0.0)), ("with mismatches", weight)):
        for measure, function in (("descriptive in the best quarter", best_quarter), ("auc", auc)):
            low, high = interval_over_sites(function, scores, good, counted, owners)
            value = function(scores[counted > 0], good[counted > 0], counted[counted > 0])
            found.append(
                {"policy": name, "pairs": pool, "measure": measure, "value": value, "low": low, "high": high,
                 "n": int((counted > 0).sum()), "sites": len(set(owners))}
            )  # fmt: skip
            print({key: round(float(cell), 3) if isinstance(cell, float) else cell for key, cell in found[-1].items()})
    return found


def weight_rows(rows: pl.DataFrame, mix: str) -> list[dict[str, Any]]:
    """The weights of a mix on all folds, and their intervals over drawn sites."""
    names = MIXES[mix]
    x = standardised(rows, names)
    owners, at = np.unique(rows["owner"].to_numpy(), return_inverse=True)
    weights = fitted(rows, x, np.arange(rows.height)).coef_[0]
    members = [np.flatnonzero(at == number) for number in range(len(owners))]
    rng, drawn = np.random.default_rng(0), []
    for _ in range(RESAMPLES):
        chosen = np.concatenate([members[number] for number in rng.integers(len(owners), size=len(owners))])
        drawn.append(fitted(rows, x, chosen).coef_[0])
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    found = [
        {"policy": f"mix: {mix}", "pairs": "with mismatches", "measure": f"weight of {name}", "value": float(value),
         "low": float(a), "high": float(b), "n": rows.height, "sites": len(owners)}
        for name, value, a, b in zip(names, weights, low, high, strict=True)
    ]  # fmt: skip
    for row in found:
        print({key: round(cell, 3) if isinstance(cell, float) else cell for key, cell in row.items()})
    return found


def plain_scores(rows: pl.DataFrame) -> Mapping[str, np.ndarray]:
    """What needs no learning: single signals, the rank sum of two, half by one and the rest by another, chance."""
    fold = rows["fold"].to_numpy()
    z = dict(zip(SIGNALS, np.nan_to_num(standardised(rows, SIGNALS), nan=LAST).T, strict=True))
    by_others = np.zeros(rows.height)
    for number in np.unique(fold):
        known = with_descriptive(rows, fold != number)["descriptive"].to_numpy()
        by_others[fold == number] = known[fold == number]
    ties = np.array([unit_interval_of(sample_id_of(key, str(row)), "ties") for row, key in enumerate(rows["key"])])
    words = rows["word_count"].to_numpy()
    is_pool = rows["weight"].to_numpy() == 1
    half = z["clip_score"] >= np.median(z["clip_score"][is_pool])
    return {
        "random": ties,
        "clip": z["clip_score"],
        "icc": z["icc"],
        "descriptive": by_others + 1e-6 * ties,
        "icc_after_clip": np.where(half, z["icc"], z["icc"] - 100.0),
        "word count": words + 1e-6 * ties,
        "clip + word count, ranks": rankdata(z["clip_score"]) + rankdata(words) + 1e-3 * ties,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared/data")
    parser.add_argument("--work", type=Path, required=True)
    given = parser.parse_args()
    rows = labelled_rows(given.data, given.work)
    found = [row for name, scores in plain_scores(rows).items() for row in rows_of(name, scores, rows)]
    for name, names in MIXES.items():
        found += rows_of(f"mix: {name}", out_of_fold(rows, names), rows)
    for name in ("web", "web and icc"):
        found += weight_rows(rows, name)
    pl.DataFrame(found).with_columns(pl.col(pl.Float64).round(4)).write_csv(RESULTS)


if __name__ == "__main__":
    main()
