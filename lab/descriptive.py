"""The two numbers of the method `descriptive`: `python -m lab.descriptive --shared DIR`.

DIR holds data/web. Fits the log odds that a person found an alt-text descriptive to its number of informative words, on
labelled English alt-texts of open licences, and prints both numbers with 95 % intervals over drawn owners; then, out of
fold by owners on all labelled English rows, the AUC of this form, of the share at each of 0 to 3 words and more (which
counted inside ICC before), and of shares that never fall with the number; and of the number of words.
"""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import polars as pl
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from curation_assets.methods.descriptive import probability_of
from curation_assets.numeric.informative_words import FEW, informative_words
from curation_assets.stores.parquet import read_parquet

FOLDS, REPEATS, RESAMPLES = 10, 3, 1_000

#: (N,) numbers of informative words and whether each alt-text is descriptive → numbers → probabilities
Fit = Callable[[np.ndarray, np.ndarray], Callable[[np.ndarray], np.ndarray]]


def labelled_alt_texts(shared: Path, *, only_open: bool) -> pl.DataFrame:
    """English alt-texts of web pages that a person judged: alt, owner, licence_class, is_descriptive; with `only_open`
    those whose licence lets weights be trained on them.
    """
    folder = shared / "data" / "web"
    pairs = read_parquet(folder / "pairs.parquet").filter(pl.col("language_guess") == "en")
    labelled = pairs.join(read_parquet(folder / "labels_400.parquet").drop("kind"), on="key").sort("key")
    return labelled.filter(pl.lit(not only_open) | (pl.col("licence_class") == "open")).select(
        "alt", "owner", "licence_class", is_descriptive=pl.col("descriptive") == "yes"
    )


def owner_folds(labelled: pl.DataFrame, repeat: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Masks (N,) of the alt-texts of nine tenths of the owners, and of the other tenth, for each of the ten."""
    names, owner = np.unique(labelled["owner"].to_numpy(), return_inverse=True)
    tenth = (np.random.default_rng(repeat).permutation(len(names)) % FOLDS)[owner]
    for fold in range(FOLDS):
        yield tenth != fold, tenth == fold


def counts_of(captions: list[str]) -> np.ndarray:
    """(N,) numbers of informative words."""
    return np.array([informative_words(caption) for caption in captions])


def fitted(counts: np.ndarray, is_descriptive: np.ndarray) -> tuple[float, float]:
    """(N,), (N,) → INTERCEPT and PER_WORD of the method, by maximum likelihood."""
    model = LogisticRegression(C=np.inf).fit(counts[:, None], is_descriptive)
    return float(model.intercept_[0]), float(model.coef_[0, 0])


def logistic(counts: np.ndarray, is_descriptive: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """The form of the method."""
    intercept, per_word = fitted(counts, is_descriptive)
    return lambda others: probability_of(others, intercept, per_word)


def shares(counts: np.ndarray, is_descriptive: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Of 0 to FEW words, and of all with more."""
    few = np.minimum(counts, FEW + 1)
    found = np.array([is_descriptive[few == n].mean() for n in range(FEW + 2)])
    return lambda others: found[np.minimum(others, FEW + 1)]


def rising_shares(counts: np.ndarray, is_descriptive: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Of each number, never falling with it."""
    return IsotonicRegression(out_of_bounds="clip").fit(counts, is_descriptive).predict


def held_out_by_owner(labelled: pl.DataFrame, fit: Fit = logistic) -> np.ndarray:
    """(N,) probabilities of alt-texts by fits on openly licensed ones of other owners (mean of REPEATS draws of the
    tenths).
    """
    counts, is_descriptive = counts_of(labelled["alt"].to_list()), labelled["is_descriptive"].to_numpy()
    is_open = (labelled["licence_class"] == "open").to_numpy()
    held_out = np.zeros((REPEATS, len(counts)))
    for repeat in range(REPEATS):
        for known, test in owner_folds(labelled, repeat):
            held_out[repeat, test] = fit(counts[known & is_open], is_descriptive[known & is_open])(counts[test])
    return held_out.mean(axis=0)


def owner_draws(owners: np.ndarray) -> list[np.ndarray]:
    """RESAMPLES times the rows of owners drawn with replacement."""
    names, owner = np.unique(owners, return_inverse=True)
    rng, rows_of = np.random.default_rng(0), [np.flatnonzero(owner == i) for i in range(len(names))]
    drawn = rng.integers(len(names), size=(RESAMPLES, len(names)))
    return [np.concatenate([rows_of[i] for i in draw]) for draw in drawn]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, required=True, help="folder that holds data/")
    shared = parser.parse_args().shared

    def shown(value: float, drawn: np.ndarray) -> str:
        low, high = np.quantile(drawn, [0.025, 0.975])
        return f"{value:.3f} ({low:.3f} to {high:.3f})"

    known = labelled_alt_texts(shared, only_open=True)
    counts, is_descriptive = counts_of(known["alt"].to_list()), known["is_descriptive"].to_numpy()
    drawn = np.array([fitted(counts[d], is_descriptive[d]) for d in owner_draws(known["owner"].to_numpy())])
    print(f"{known.height} alt-texts of {known['owner'].n_unique()} owners")
    for place, name in enumerate(("INTERCEPT", "PER_WORD")):
        print(name, shown(fitted(counts, is_descriptive)[place], drawn[:, place]))
    labelled = labelled_alt_texts(shared, only_open=False)
    y, captions = labelled["is_descriptive"].to_numpy(), labelled["alt"].to_list()
    values = {fit.__name__: held_out_by_owner(labelled, fit) for fit in (logistic, shares, rising_shares)}
    words = np.array([len(caption.split()) for caption in captions], dtype=float)
    draws = owner_draws(labelled["owner"].to_numpy())
    of_words = np.array([roc_auc_score(y[d], words[d]) for d in draws])
    print(f"\n{labelled.height} alt-texts, {y.sum()} descriptive; number of words:", end=" ")
    print("AUC", shown(float(roc_auc_score(y, words)), of_words))
    for name, value in values.items():
        auc = float(roc_auc_score(y, value))
        of_form = np.array([roc_auc_score(y[d], value[d]) for d in draws])
        difference = shown(auc - float(roc_auc_score(y, words)), of_form - of_words)
        print(f"{name}: AUC {shown(auc, of_form)}, less the number of words {difference}; ", end="")
        print(f"Brier score {((value - y) ** 2).mean():.3f}")


if __name__ == "__main__":
    main()
