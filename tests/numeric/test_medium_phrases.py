"""Medium-phrase masking in both modes (formulas.md §2.3, §13.5)."""

import pytest

from curation_assets.numeric.medium_phrases import mask_medium_phrases


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("Photograph of imagery", "graph of ry"),
        ("panda photo.jpg", "pand.jpg"),
        ("stock photo of a dog", " of a dog"),
        ("A picture of a cat", "A picture of a cat"),
        ("a photo", ""),
        ("Photos of images", "s of s"),
        ("IMAGE OF A photo of dog", " OF  dog"),
        ("photo of photo of", " of  of"),
    ],
)
def test_repo_mode_is_bit_faithful(text: str, masked: str) -> None:
    assert mask_medium_phrases(text, "repo") == masked


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("Photograph of imagery", "Photograph of imagery"),
        ("panda photo of the year", "panda the year"),
        ("Stock photo of a dog", "a dog"),
        ("A picture of a cat", "a cat"),
        ("picture of   a  cat", "a cat"),
        ("a picture frame", "a picture frame"),
        ("a photo", ""),
        ("Photos of images", "Photos of images"),
        ("a PHOTO of a dog, stock photo", "a dog,"),
    ],
)
def test_clean_mode_removes_whole_words(text: str, masked: str) -> None:
    assert mask_medium_phrases(text) == masked


def test_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="'clean' or 'repo'"):
        mask_medium_phrases("a", "paper")  # type: ignore[arg-type]
