"""What counts as a word of a short caption, and what its value becomes."""

import numpy as np
import pytest

from curation_assets.numeric.short_captions import ShortCaptions, informative_words


@pytest.mark.parametrize(
    ("caption", "words"),
    [
        ("dog", 1), ("dog dog dog dog", 1), ("A brown dog.", 3), ("brown dog, brown dog", 2),
        ("logo", 0), ("Alt text", 0), ("company logo", 1), ("IMG_2031", 0), ("image1.jpg", 0), ("red-dog.JPG", 0),
        ("photo 3 of 5", 1), ("an image of two dogs", 4), ("picture of a logo", 4),
        ("🎉 🎊 🎈", 0), ("42", 0), ("", 0), ("…", 0), ("красный змей", 2), ("“dog” (dog) 'dog'", 1),
    ],
)  # fmt: skip
def test_words(caption: str, words: int) -> None:
    assert informative_words(caption) == words


def test_values_by_hand() -> None:
    short = ShortCaptions((0.0, 0.25, 0.5, 0.75), -0.2)
    captions = ["logo", "dog", "brown dog", "a brown dog", "a brown dog runs", "hope"]
    values = np.array([0.9, 0.8, 0.8, 0.8, 0.8, -0.1])
    #       floor + share · (value − floor)
    expected = [-0.2, -0.2 + 0.25, -0.2 + 0.5, -0.2 + 0.75, 0.8, -0.2 + 0.25 * 0.1]
    np.testing.assert_allclose(short.adjusted(captions, values), expected)
    assert short.adjusted([], np.zeros(0)).shape == (0,)


@pytest.mark.parametrize("shares", [(0.0, 0.5, 1.0), (0.0, 0.5, 1.0, 1.2), (-0.1, 0.5, 1.0, 1.0)])
def test_shares_that_are_none_are_refused(shares: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="shares must be 4 numbers"):
        ShortCaptions(shares, 0.0)
