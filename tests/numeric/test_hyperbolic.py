"""Entailment cones: on a line by hand, against the hyperbolic law of cosines, and for captions that fit everything."""

import numpy as np
import pytest

from curation_assets.numeric.hyperbolic import entailment, half_aperture, lift, text_specificity


def distances(left: np.ndarray, right: np.ndarray, curvature: float) -> np.ndarray:
    """(N, D), (M, D) tangent vectors → (N, M) distances times √c."""
    x, x_time = lift(left, curvature)
    y, y_time = lift(right, curvature)
    return np.arccosh(np.maximum(-curvature * (x @ y.T - np.outer(x_time, y_time)), 1.0))  # type: ignore[no-any-return]


@pytest.mark.parametrize("curvature", [0.1, 1.0, 4.0])
def test_points_lie_on_the_hyperboloid_at_their_length_from_the_origin(curvature: float) -> None:
    vectors = np.random.default_rng(0).normal(size=(20, 6))
    space, time = lift(vectors, curvature)
    np.testing.assert_allclose(np.square(space).sum(axis=1) - np.square(time), -1 / curvature, atol=1e-8)
    apart = distances(vectors, np.zeros((1, 6)), curvature)[:, 0] / np.sqrt(curvature)
    np.testing.assert_allclose(apart, np.linalg.norm(vectors, axis=1), rtol=1e-6)
    np.testing.assert_array_equal(lift(np.zeros((1, 6)), curvature)[0], np.zeros((1, 6)))


def test_on_a_line_by_hand() -> None:
    """Beyond a text on its own ray the exterior angle is 0, on the other side of the origin π; sinh 1 = 1.1752."""
    value = entailment(np.array([[1.0, 0.0]]), np.array([[2.0, 0.0], [-2.0, 0.0], [0.5, 0.0]]), 1.0)
    aperture = np.arcsin(0.2 / np.sinh(1.0))
    np.testing.assert_allclose(value, [[-aperture, np.pi - aperture, np.pi - aperture]], atol=1e-6)


@pytest.mark.parametrize("curvature", [0.1, 1.0, 4.0])
def test_the_exterior_angle_is_that_of_the_triangle(curvature: float) -> None:
    rng = np.random.default_rng(1)
    texts, images = rng.normal(size=(9, 3)), rng.normal(size=(7, 3)) * 1.5
    to_text = distances(texts, np.zeros((1, 3)), curvature)  # (9, 1)
    to_image = distances(images, np.zeros((1, 3)), curvature).T  # (1, 7)
    between = distances(texts, images, curvature)
    cosine = (np.cosh(to_text) * np.cosh(between) - np.cosh(to_image)) / (np.sinh(to_text) * np.sinh(between))
    expected = np.pi - np.arccos(np.clip(cosine, -1, 1)) - half_aperture(lift(texts, curvature)[0], curvature)[:, None]
    np.testing.assert_allclose(entailment(texts, images, curvature), expected, atol=1e-6)


def test_a_caption_near_the_origin_entails_everything_and_is_not_specific() -> None:
    """The same direction, farther and farther from the origin: cones narrow, fewer images are inside."""
    rng = np.random.default_rng(2)
    images = rng.normal(size=(500, 8)) * 0.8
    direction = np.eye(8)[:1]
    value = text_specificity(np.concatenate([direction * length for length in (0.05, 0.5, 2.0)]), images, 1.0)
    assert (np.diff(value) > 0).all()
    assert half_aperture(lift(direction * 0.05, 1.0)[0], 1.0) == pytest.approx(np.pi / 2)
    many = np.repeat(direction * 0.5, 300, axis=0)  # more than one part
    np.testing.assert_allclose(text_specificity(many, images, 1.0), value[1])


def test_bad_numbers_are_refused_and_long_vectors_are_not() -> None:
    with pytest.raises(ValueError, match="curvature must be positive, got 0"):
        lift(np.ones((1, 2)), 0)
    with pytest.raises(ValueError, match="needs reference images"):
        text_specificity(np.ones((1, 2)), np.zeros((0, 2)), 1.0)
    assert text_specificity(np.zeros((0, 2)), np.ones((1, 2)), 1.0).shape == (0,)
    assert np.isfinite(entailment(np.array([[1e6, 0.0]]), np.array([[0.0, 1e6]]), 1.0)).all()
