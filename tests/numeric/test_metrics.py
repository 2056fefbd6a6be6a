"""Metrics against hand-checkable numbers and the reference implementation (formulas.md §10, §11, §13.13–15)."""

from collections.abc import Sequence

import numpy as np
import pytest
from pycocoevalcap.bleu.bleu_scorer import BleuScorer

from curation_assets.numeric.metrics.captioning import bleu, bleu_from_counts, tokenise_caption
from curation_assets.numeric.metrics.concreteness import concreteness_report
from curation_assets.numeric.metrics.retrieval import recalls_of_ranks, retrieval_ranks
from curation_assets.numeric.separation import roc_auc
from tests.support.captioning import CANDIDATES, GOLDEN, REFERENCES, captioning_metrics


def test_golden_set() -> None:
    metrics = captioning_metrics(REFERENCES, CANDIDATES)
    assert metrics == pytest.approx({key: value for key, value in GOLDEN.items() if key != "meteor"}, abs=1e-9)


def test_cider_depends_on_the_whole_set() -> None:
    assert captioning_metrics(REFERENCES[:2], CANDIDATES[:2])["cider"] == pytest.approx(1.1211078752, abs=1e-9)
    assert captioning_metrics(REFERENCES[:1], CANDIDATES[:1])["cider"] == 0.0


def test_bleu_from_counts() -> None:
    """formulas.md §13.15: the COCO demo."""
    found = bleu_from_counts([5732, 2510, 1043, 423], [9893, 8893, 7893, 6893], 9893, 9855)
    assert [round(score, 3) for score in found] == [0.579, 0.404, 0.279, 0.191]


def test_bleu_equals_the_reference_on_random_texts() -> None:
    rng = np.random.default_rng(0)

    def text() -> str:
        return " ".join(rng.choice(list("abcde"), size=rng.integers(1, 9)))

    references = [[text() for _ in range(rng.integers(1, 4))] for _ in range(30)]
    candidates = [text() for _ in range(30)]
    scorer = BleuScorer(n=4)
    for texts, candidate in zip(references, candidates, strict=True):
        scorer += (candidate, texts)
    np.testing.assert_allclose(bleu(references, candidates), scorer.compute_score(option="closest")[0], rtol=1e-9)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("A man's dog, isn't it?", "a man 's dog is n't it"),
        ("Two 3/4-inch pipes (metal) cost $5.00 & more...", "two 3/4-inch pipes -lrb- metal -rrb- cost $ 5.00 & more"),
        ('He said "hi" - then left; ok!', "he said hi then left ok"),
        ("U.S. flag   flying   high.", "u.s. flag flying high"),
        ("can't won't cannot gonna", "ca n't wo n't can not gon na"),
        ("naïve café – em—dash", "naïve café em dash"),
        ("#hashtag @user http://a.com/b", "#hashtag @user http://a.com/b"),
        ("The 1990's T-shirt", "the 1990 's t-shirt"),
        ("dog/cat and/or e.g. Mr. Smith", "dog/cat and/or e.g. mr. smith"),
        ("5'10\" tall", "5 10 tall"),
        ("A “quoted” thing…", "a quoted thing"),
        ("new-york-based 10:30am", "new-york-based 10:30 am"),
        ("Someone's kite is flying above a sandy beach", "someone 's kite is flying above a sandy beach"),
        ("A bowl of noodle soup (with an egg).", "a bowl of noodle soup -lrb- with an egg -rrb-"),
        ("Hot soup - and chopsticks - on the table!", "hot soup and chopsticks on the table"),
        ("A small kitten isn't awake yet; it's in a box.", "a small kitten is n't awake yet it 's in a box"),
        ("two\nlines", "two lines"),
        ("Corner of Hollywood Blvd.", "corner of hollywood blvd."),
        ("On 8th Ave. and Ft. Spokane Rd.", "on 8th ave. and ft. spokane rd."),
        ("A sign for W. Centre st.", "a sign for w. centre st."),
        ("8th Ave/CTH D.", "8th ave/cth d."),
        ("Pa. and his ill pa.", "pa. and his ill pa"),
        ("22 3/4 street", "22\u00a03/4 street"),
        ("bus #41 #hashtag", "bus # 41 #hashtag"),
        ("a multi- colored .hit/", "a multi colored hit /"),
        ("the bird 's eye wow!!! what?! so!", "the bird 's eye wow !!! what ?! so"),
        ("", ""),
    ],
)
def test_tokens_equal_the_treebank_tokeniser(text: str, tokens: str) -> None:
    assert tokenise_caption(text) == tokens


def test_an_empty_candidate_scores_nothing() -> None:
    metrics = captioning_metrics(REFERENCES[:2], ["", ""])
    assert metrics == pytest.approx(dict.fromkeys(metrics, 0.0), abs=1e-6)


def test_captioning_refuses_uneven_input() -> None:
    with pytest.raises(ValueError, match="one candidate per list"):
        captioning_metrics(REFERENCES, CANDIDATES[:3])
    with pytest.raises(ValueError, match="image 1 has no reference"):
        captioning_metrics([["a"], []], ["a", "b"])


SCORES = np.array([[0.9, 0.1, 0.2], [0.3, 0.5, 0.4], [0.2, 0.6, 0.7], [0.1, 0.2, 0.8], [0.65, 0.3, 0.6]])
IMAGES = [0, 0, 1, 2, 2]


def _recalls(scores: np.ndarray, caption_image: Sequence[int] | np.ndarray, k: int) -> dict[str, float]:
    """`scores` (T, I): row per caption, column per image."""
    return recalls_of_ranks(*retrieval_ranks(np.eye(scores.shape[1]), scores, caption_image), (k,))


def test_retrieval_toy() -> None:
    """formulas.md §13.13."""
    first, second = _recalls(SCORES, IMAGES, 1), _recalls(SCORES, IMAGES, 2)
    assert first["text_to_image_recall@1"] == pytest.approx(0.4)
    assert second["text_to_image_recall@2"] == pytest.approx(0.8)
    assert first["image_to_text_recall@1"] == 1.0
    assert first["mean_recall@1"] == pytest.approx(0.7)


def test_perfect_retrieval() -> None:
    assert set(_recalls(np.eye(3), range(3), 1).values()) == {1.0}


def test_ties_count_against_the_model() -> None:
    found = _recalls(np.zeros((10, 5)), np.repeat(range(5), 2), 1)
    assert found == {"text_to_image_recall@1": 0.0, "image_to_text_recall@1": 0.0, "mean_recall@1": 0.0}
    assert _recalls(np.zeros((5, 5)), range(5), 5)["text_to_image_recall@5"] == 1.0


def test_two_equal_captions_of_one_image_are_no_rivals() -> None:
    scores = np.array([[0.9, 0.1], [0.9, 0.1], [0.1, 0.9]])
    assert _recalls(scores, [0, 0, 1], 1)["image_to_text_recall@1"] == 1.0


def test_retrieval_refuses_gaps() -> None:
    with pytest.raises(ValueError, match="NaN"):
        _recalls(np.full((2, 2), np.nan), [0, 1], 1)
    with pytest.raises(ValueError, match="needs a caption"):
        _recalls(np.zeros((2, 3)), [0, 1], 1)


def test_the_auc_leaves_out_values_that_are_none() -> None:
    assert roc_auc(np.array([0.3, 0.2, 0.25, np.nan]), np.array([True, False, True, True])) == 1.0


def test_concreteness_report() -> None:
    report = concreteness_report(np.array([0.1, 0.3, 0.5, 0.9, np.nan]), np.array([0, 1, 1, 3, 3]))
    assert [(g.rating, g.mean_value, g.n) for g in report.by_rating] == [(0, 0.1, 1), (1, 0.4, 2), (3, 0.9, 1)]
    assert report.agreement.n_incomplete == 1
    assert report.agreement.pearson > 0.9
