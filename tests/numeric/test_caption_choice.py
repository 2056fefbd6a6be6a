"""The choice among captions by hand."""

import numpy as np

from curation_assets.numeric.caption_choice import RAW, best_caption, caption_score


def test_score_mixes_cosine_and_concreteness() -> None:
    np.testing.assert_allclose(caption_score(np.array([0.2, 0.4]), np.array([1.0, 0.0]), 0.25), [0.4, 0.3])


def test_the_best_generated_caption_wins_only_where_it_is_better_and_the_own_is_not_kept() -> None:
    generated = [np.array([0.1, 0.9]), np.array([0.1, 0.9]), np.array([0.1, 0.2]), np.zeros(0)]
    chosen = best_caption(np.array([True, False, False, False]), np.array([0.5, 0.5, 0.5, 0.5]), generated)
    assert chosen.tolist() == [RAW, 1, RAW, RAW]
