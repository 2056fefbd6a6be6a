"""What counts as a word that may say something."""

import pytest

from curation_assets.numeric.informative_words import informative_words


@pytest.mark.parametrize(
    ("caption", "words"),
    [
        ("dog", 1), ("dog dog dog dog", 1), ("A brown dog.", 3), ("brown dog, brown dog", 2),
        ("logo", 0), ("Alt text", 0), ("company logo", 1), ("IMG_2031", 0), ("image1.jpg", 0), ("red-dog.JPG", 0),
        ("photo 3 of 5", 1), ("an image of two dogs", 5), ("picture of a logo", 4),
        ("🎉 🎊 🎈", 0), ("42", 0), ("", 0), ("…", 0), ("красный змей", 2), ("“dog” (dog) 'dog'", 1),
        ("one two three four five six seven eight nine ten eleven", 10),
    ],
)  # fmt: skip
def test_words(caption: str, words: int) -> None:
    assert informative_words(caption) == words
