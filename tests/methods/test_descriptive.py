"""Descriptive: its order, what it was fitted on, and what it says of alt-texts of sites that it does not know."""

import numpy as np
import polars as pl
import pytest
from sklearn.metrics import roc_auc_score

from curation_assets.methods.descriptive import INTERCEPT, PER_WORD, descriptive
from lab.descriptive import counts_of, fitted, held_out_by_owner, labelled_alt_texts
from tests.support.paths import SHARED_DATA

needs_web_pairs = pytest.mark.skipif(not (SHARED_DATA / "web").is_dir(), reason="needs the web pairs in ../shared")


def test_more_informative_words_are_more_likely_to_describe() -> None:
    """A word more, a likelier description, up to ten; which words they are counts for nothing else."""
    rising = ["IMG_2031.jpg", "kite", "red kite", "a red kite", "a red kite flies over the wide and sandy beach"]
    found = descriptive([*rising, "logo", "🎉", "hope", f"{rising[-1]} where people walk their dogs"])
    values = found.value
    assert (np.diff(values[:5]) > 0).all()
    assert 0 < values[0] < 0.2
    assert 0.95 < values[4] < 1
    assert values[5] == values[6] == values[0]
    assert values[7] == values[1]
    assert values[8] == values[4]
    assert found.details["informative_words"] == [0, 1, 2, 3, 10, 0, 0, 1, 10]


@needs_web_pairs
def test_the_numbers_are_those_of_the_labels() -> None:
    known = labelled_alt_texts(SHARED_DATA.parent, only_open=True)
    found = fitted(counts_of(known["alt"].to_list()), known["is_descriptive"].to_numpy())
    assert found == pytest.approx((INTERCEPT, PER_WORD), abs=5e-3)


@needs_web_pairs
def test_alt_texts_that_people_found_descriptive_stand_above_the_others() -> None:
    """Of licences that nothing was fitted on; and by fits on other owners."""
    labelled = labelled_alt_texts(SHARED_DATA.parent, only_open=False)
    unseen = labelled.filter(pl.col("licence_class") != "open")
    assert unseen.height > 100
    assert roc_auc_score(unseen["is_descriptive"], descriptive(unseen["alt"].to_list()).value) > 0.8
    assert roc_auc_score(labelled["is_descriptive"], held_out_by_owner(labelled)) > 0.84
