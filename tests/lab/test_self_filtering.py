"""Self-filtering: which rows a round learns from, and that a round begins at the heads it is given."""

from dataclasses import replace

import numpy as np

from benchmarks.self_filtering import mismatched, mixture_of, refitted
from lab.photo_pair import scores_of
from lab.photo_pair_fit import PairFeatures, Recipe, fit

TINY = Recipe(heads=2, reduced=8, hidden=16, width=8, epochs=4, batch=16, more_captions=4)


def toy(count: int) -> PairFeatures:
    """Images and sentences that share a direction."""
    rng = np.random.default_rng(0)
    sentences = rng.normal(size=(count, 384)).astype(np.float32)
    sentences /= np.linalg.norm(sentences, axis=1, keepdims=True)
    images = (sentences[:, :20] + 0.01 * rng.normal(size=(2, count, 20))).astype(np.float32)
    probabilities = rng.dirichlet(np.ones(1000), size=count).astype(np.float32)
    return PairFeatures(images, probabilities, sentences, np.arange(count + 1))


def test_a_round_learns_from_the_better_half_and_a_random_tenth() -> None:
    scores = np.random.default_rng(1).normal(size=200)
    chosen = mixture_of(scores, np.random.default_rng(2))
    better = set(np.argsort(-scores)[:100].tolist())
    assert better <= set(chosen.tolist())
    assert len(chosen) == len(set(chosen.tolist())) <= 120
    assert len(set(chosen.tolist()) - better) > 3, "rows of the worse half"


def test_half_of_the_captions_are_exchanged() -> None:
    pool = toy(40)
    changed = mismatched(pool, np.random.default_rng(0))
    is_other = (changed.sentences != pool.sentences).any(axis=1)
    assert is_other.sum() == 20
    rows = [sorted(map(tuple, one.sentences.tolist())) for one in (changed, pool)]
    assert rows[0] == rows[1], "the same captions"


def test_a_round_begins_at_the_heads_it_is_given() -> None:
    pool = toy(64)
    classes = np.random.default_rng(3).normal(size=(1000, 384)).astype(np.float32)
    heads = fit(pool, classes, TINY, 0, more=pool.sentences)
    before = scores_of(heads, pool)
    still = scores_of(dict(refitted(heads, pool, replace(TINY, learning_rate=0.0), 1, pool.sentences)), pool)
    assert np.abs(still - before).max() < 0.02, "rounding to eight bits alone"
    moved = scores_of(dict(refitted(heads, pool, replace(TINY, learning_rate=1e-2), 1, pool.sentences)), pool)
    assert np.abs(moved - before).max() > 0.05
