"""Candidates of photographs: the nearer to what people wrote of the image, the better."""

from pathlib import Path

import numpy as np

from lab.photo_pairs_read import Photo
from lab.reward_photos import DRAWN, NEAREST, OWN, candidates_of


def test_a_caption_is_rated_by_its_cosine_to_the_own_captions_in_steps() -> None:
    """Forty photos, a caption each, on a circle: captions of neighbours are near, those across are far."""
    angles = 2 * np.pi * np.arange(40) / 40
    sentences = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    photos = [Photo(f"{number}.jpg", (f"caption {number}",), Path("pairs.csv")) for number in range(40)]
    table = candidates_of(photos, sentences, np.random.default_rng(0))
    assert table.columns == ["image", "caption", "rating"]
    rows = dict(table.filter(table["image"] == "0.jpg").select("caption", "rating").iter_rows())
    assert rows.pop("caption 0") == OWN
    assert NEAREST <= len(rows) <= NEAREST + DRAWN
    assert {f"caption {number}" for number in (1, 2, 3, 37, 38, 39)} <= rows.keys()
    for caption, rating in rows.items():
        cosine = np.cos(angles[int(caption.split()[1])])
        assert rating == np.floor(cosine / 0.1) * 0.1
