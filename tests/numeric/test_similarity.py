"""Edit similarity and its continuity correction against numbers that a reader can count (formulas.md §13.1, §13.2)."""

import csv

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curation_assets.numeric.similarity import corrected_edit_similarity, edit_similarity, open_interval
from tests.support.paths import SHARED_DATA

FIGURES = SHARED_DATA / "icc" / "figures_9_10.tsv"

PAIRS = [
    ("a red kite", "a red kite", 1.0, 0.954545),
    ("a red kite", "a blue kite", 0.636364, 0.625),
    ("A red kite", "a red kite", 0.9, 0.863636),
    ("", "abc", 0.0, 0.125),
    ("kitten", "sitting", 0.571429, 0.5625),
    ("a red kite over the sea", "kite", 0.173913, 0.1875),
]


@pytest.mark.parametrize(("a", "b", "similarity", "corrected"), PAIRS)
def test_worked_pairs(a: str, b: str, similarity: float, corrected: float) -> None:
    assert edit_similarity([a], [b])[0] == pytest.approx(similarity, abs=1e-6)
    assert corrected_edit_similarity([a], [b])[0] == pytest.approx(corrected, abs=1e-6)


def test_two_empty_strings_are_equal() -> None:
    assert edit_similarity([""], [""]).tolist() == [1.0]


def test_printed_reconstructions_have_the_known_similarities() -> None:
    if not FIGURES.is_file():
        pytest.skip(f"the paper's printed pairs are not here ({FIGURES.name} of ../shared)")
    with FIGURES.open() as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    found = edit_similarity([row["sba_reconstruction"] for row in rows], [row["caption"] for row in rows])
    concrete = [0.675, 0.889, 0.689, 0.880, 0.776, 0.694, 1.000, 0.774]
    abstract = [1.000, 0.797, 0.767, 0.939, 0.265, 0.182, 0.338, 0.262]
    np.testing.assert_allclose(found, concrete + abstract, atol=5e-4)


def slow_distance(a: str, b: str) -> int:
    """The textbook recursion by rows."""
    row = list(range(len(b) + 1))
    for i, left in enumerate(a, start=1):
        previous, row[0] = row[0], i
        for j, right in enumerate(b, start=1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (left != right))
    return row[-1]


@given(st.text("abc ", max_size=12), st.text("abc ", max_size=12))
def test_agrees_with_the_slow_twin(a: str, b: str) -> None:
    longer = max(len(a), len(b))
    expected = 1.0 if longer == 0 else 1 - slow_distance(a, b) / longer
    assert edit_similarity([a], [b])[0] == pytest.approx(expected)
    assert 0 < corrected_edit_similarity([a], [b])[0] < 1


def test_open_interval_clips_and_keeps_gaps() -> None:
    np.testing.assert_array_equal(open_interval(np.array([-0.2, 0.5, 1.0, np.nan])), [0.005, 0.5, 0.995, np.nan])


def test_unequal_lists_are_refused() -> None:
    with pytest.raises(ValueError, match="equally many; got 2 and 1"):
        edit_similarity(["a", "b"], ["a"])
