"""VAS-D: by hand, as the plain loop of its authors, and by both ways of summing squares."""

import numpy as np
import pytest

from curation_assets.numeric.variance_shrinking import second_moment, shrink_by_variance, summed_squares


def unit_rows(n: int, dimensions: int, seed: int) -> np.ndarray:
    """Unit vectors that lean to the first axes, as embeddings of one domain do."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, dimensions)) * np.linspace(2.0, 0.2, dimensions)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def plain_loop(vectors: np.ndarray, count: int, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Σ of what is left, the lowest fᵀ Σ f go, step by step."""
    wide, left = vectors.astype(np.float64), np.arange(len(vectors))
    moment = np.eye(vectors.shape[1])
    for step in range(1, steps + 1):
        size = len(vectors) - (len(vectors) - count) * step // steps
        moment = wide[left].T @ wide[left] / len(left)
        aligned = np.array([row @ moment @ row for row in wide[left]])
        left = np.sort(left[np.argsort(-aligned, kind="stable")[:size]])
    return left, moment


def test_by_hand() -> None:
    """Three images of one kind and one of another, which aligns with itself alone."""
    vectors = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.6, 0.8]], dtype=np.float32)
    is_left, moment = shrink_by_variance(vectors, 3, 1)
    # Σ = ((2.36, .48), (.48, 1.64)) / 4; VAS = .59, .59, .41, and (.36 · 2.36 + .96 · .48 + .64 · 1.64) / 4 = .59
    np.testing.assert_allclose(moment, np.array([[2.36, 0.48], [0.48, 1.64]]) / 4, atol=1e-7)
    assert is_left.tolist() == [True, True, False, True]


@pytest.mark.parametrize(("dimensions", "steps"), [(8, 1), (8, 4), (64, 5), (64, 40), (16, 100)])
def test_the_plain_loop_gives_the_same_set(dimensions: int, steps: int) -> None:
    vectors = unit_rows(300, dimensions, steps)
    is_left, moment = shrink_by_variance(vectors, 200, steps)
    left, expected = plain_loop(vectors, 200, steps)
    np.testing.assert_array_equal(np.flatnonzero(is_left), left)
    np.testing.assert_allclose(moment, expected, atol=1e-5)


def test_more_steps_than_rows_to_drop_drop_one_by_one() -> None:
    vectors = unit_rows(60, 6, 1)
    many, moment = shrink_by_variance(vectors, 50, 500)
    ten, expected = shrink_by_variance(vectors, 50, 10)
    np.testing.assert_array_equal(many, ten)
    np.testing.assert_array_equal(moment, expected)


def test_nothing_to_drop_and_equal_values() -> None:
    vectors = np.repeat(np.array([[1.0, 0.0]], dtype=np.float32), 5, axis=0)
    everything, moment = shrink_by_variance(vectors, 5, 3)
    assert everything.all()
    np.testing.assert_array_equal(moment, [[1.0, 0.0], [0.0, 0.0]])
    assert shrink_by_variance(vectors, 2, 3)[0].tolist() == [True, True, False, False, False]


@pytest.mark.parametrize("others", [0, 1, 31, 32, 200])
def test_sums_of_squares_by_pairs_and_by_moment(others: int) -> None:
    rows, more = unit_rows(50, 32, 0), unit_rows(200, 32, 2)[:others]
    np.testing.assert_allclose(summed_squares(rows, more), np.square(rows @ more.T).sum(axis=1), atol=1e-4)


def test_the_moment_of_some_rows() -> None:
    rows = unit_rows(20_000, 5, 3)
    chosen = np.arange(len(rows)) % 3 == 0
    np.testing.assert_allclose(second_moment(rows, chosen), rows[chosen].T @ rows[chosen] / chosen.sum(), atol=1e-5)


def test_bad_numbers_are_refused() -> None:
    vectors = unit_rows(5, 3, 0)
    for count in (0, 6):
        with pytest.raises(ValueError, match=r"count must be in \[1, 5\]"):
            shrink_by_variance(vectors, count, 2)
    with pytest.raises(ValueError, match="steps must be at least 1"):
        shrink_by_variance(vectors, 2, 0)
