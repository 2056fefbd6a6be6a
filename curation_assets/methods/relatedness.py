"""Relatedness of Rao et al.: how near is the caption to the captions of the task that a model is trained for?"""

import numpy as np

from curation_assets.core.roles import Texts
from curation_assets.core.table_names import WORD_WEIGHTS
from curation_assets.methods import Columns, Example, FileSetting, Method, Values
from curation_assets.numeric.relatedness import WordWeights, fit_word_weights
from curation_assets.numeric.relatedness import relatedness as summed_cosines


def relatedness(caption: Texts, word_weights: WordWeights | None = None) -> Values:
    """Sum over the downstream texts of the TF-IDF cosine with each. Rao et al., relatedness; formulas.md §8.1.

    A caption without a weighted word is related to nothing: 0. In a pool the weights are its own table, fitted on its
    captions and the file of its option `related_to`; elsewhere the setting `word_weights_file` names a file that
    `curate pool word-weights POOL` wrote. Reason `no_word_weights` where neither is given.
    """
    if word_weights is None:
        return Values(np.full(len(caption), np.nan), ["no_word_weights"] * len(caption))
    return Values.of(summed_cosines(caption, word_weights))


def parse_word_weights(columns: Columns) -> WordWeights:
    """Weights from a table with word, idf and target. Raises ValueError for other columns."""
    missing = [name for name in ("word", "idf", "target") if name not in columns]
    if missing:
        raise ValueError(f"word weights need the columns word, idf, target; {', '.join(missing)} missing")
    return WordWeights(
        tuple(columns["word"]), np.array(columns["idf"], dtype=float), np.array(columns["target"], dtype=float)
    )


METHOD = Method(
    function=relatedness,
    unit="sum of cosines, one per downstream text",
    bounds=(0.0, float("inf")),
    source="Rao et al., relatedness (TF-IDF, idf not smoothed); formulas.md §8.1",
    summary="Sum of TF-IDF cosines of the caption with the captions of a downstream task.",
    made_for=("abstract", "boilerplate"),
    file_settings={"word_weights_file": FileSetting("word_weights", parse_word_weights, table=WORD_WEIGHTS)},
    example=Example(
        columns={"caption": ["red kite beach", "tractor barn", "red tractor", "kite kite sea"]},
        value=[0.47124932, 0.31622777, 1.0, 0.9486833],  # formulas.md §13.10
        settings={
            "word_weights": fit_word_weights(
                {"red": 2, "kite": 2, "beach": 1, "tractor": 2, "barn": 1, "sea": 1},
                4,
                ["kite over the sea", "a red tractor"],
            )
        },
    ),
)
