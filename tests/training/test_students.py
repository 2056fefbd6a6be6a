"""Students: fitted on a little planted concreteness, saved, loaded as engines and asked again."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from curation_assets.core.roles import ModelIdentity, SentenceEncoder, Student
from curation_assets.core.settings import Profile
from curation_assets.engines import load_engine
from curation_assets.training.options import StudentFit
from curation_assets.training.students import train_student
from tests.support.captions import CAPTIONS, TARGETS
from tests.support.tiny_models import save_encoder

torch.set_num_threads(1)
UNSEEN = [
    "a white umbrella on the grass",
    "a black car in the street",
    "wisdom transcends limits",
    "a hidden sense of hope",
]


def student_at(folder: Path) -> Any:
    """The engine of a student folder."""
    return load_engine("student", Profile(name="test", roles={"student": f"path:{folder}"}, device="cpu"))


@pytest.fixture(scope="module")
def minilm() -> Any:
    """The sentence encoder of the embedded profile."""
    return load_engine(
        "sentence_encoder", Profile(name="test", roles={"sentence_encoder": "embedded:minilm"}, device="cpu")
    )


def test_a_ridge_learns_concreteness_and_comes_back_as_an_engine(minilm: SentenceEncoder, tmp_path: Path) -> None:
    card = train_student(CAPTIONS, TARGETS, tmp_path, sentence_encoder=minilm, seed=3)
    assert (card.kind, card.n, card.seed) == ("minilm_ridge", 64, 3)
    assert card.sentence_encoder == "embedded:minilm"
    assert card.cv_pearson > 0.9
    saved = json.loads((tmp_path / "card.json").read_text())
    assert saved["weights_sha256"] == card.weights_sha256
    engine = student_at(tmp_path)
    assert isinstance(engine, Student)
    scores = engine.score_captions(UNSEEN)
    assert scores.dtype == np.float64
    assert scores[:2].min() > scores[2:].max() + 0.2
    np.testing.assert_allclose(scores, [engine.score_captions([text])[0] for text in UNSEEN], atol=1e-5)


def test_the_ridge_is_the_ridge_by_hand(minilm: SentenceEncoder, tmp_path: Path) -> None:
    """Closed form on centred data: w = (XᵀX + αI)⁻¹ Xᵀy."""
    card = train_student(CAPTIONS, TARGETS, tmp_path, sentence_encoder=minilm)
    x = minilm.embed_sentences(CAPTIONS).astype(np.float64)
    centred = x - x.mean(axis=0)
    penalty = card.recipe["penalty"] * np.eye(384)
    w = np.linalg.solve(centred.T @ centred + penalty, centred.T @ (TARGETS - TARGETS.mean()))
    expected = (minilm.embed_sentences(UNSEEN) - x.mean(axis=0)) @ w + TARGETS.mean()
    np.testing.assert_allclose(student_at(tmp_path).score_captions(UNSEEN), expected, atol=1e-5)


def test_output_is_not_clipped(minilm: SentenceEncoder, tmp_path: Path) -> None:
    train_student(CAPTIONS, 3 * TARGETS, tmp_path, sentence_encoder=minilm)
    assert student_at(tmp_path).score_captions(CAPTIONS).max() > 1.5


def test_same_input_same_bytes_and_other_targets_other_identity(minilm: SentenceEncoder, tmp_path: Path) -> None:
    cards = [
        train_student(CAPTIONS, targets, tmp_path / name, sentence_encoder=minilm)
        for name, targets in (("one", TARGETS), ("two", TARGETS), ("other", TARGETS[::-1].copy()))
    ]
    assert cards[0] == cards[1]
    assert (tmp_path / "one/card.json").read_bytes() == (tmp_path / "two/card.json").read_bytes()
    assert cards[2].weights_sha256 != cards[0].weights_sha256
    identities = [student_at(tmp_path / name).identity.weights_sha256 for name in ("one", "two", "other")]
    assert identities[0] == identities[1] != identities[2]


def test_agreement_is_held_out(tmp_path: Path) -> None:
    """On noise the reported agreement is about nothing, although the fit itself could be perfect."""

    class Noise:
        identity = ModelIdentity("embedded:minilm", "shipped", "0" * 64)

        def embed_sentences(self, sentences: Sequence[str]) -> np.ndarray:
            return np.random.default_rng(1).normal(size=(len(sentences), 200)).astype(np.float32)

    targets = np.random.default_rng(2).normal(size=150)
    card = train_student([f"text {i}" for i in range(150)], targets, tmp_path, sentence_encoder=Noise())
    assert abs(card.cv_pearson) < 0.3
    with pytest.raises(ValueError, match=r"fitted on embedded:minilm with weights 000000000000, got .*train .* again"):
        student_at(tmp_path)


@pytest.mark.slow
def test_a_roberta_from_scratch_learns_and_is_seeded(tmp_path: Path) -> None:
    state = torch.get_rng_state()
    captions, targets = CAPTIONS * 3, np.tile(TARGETS, 3)
    settings: dict[str, Any] = {"kind": "roberta", "fit": StudentFit(epochs=3, batch_size=16), "seed": 5}
    card = train_student(captions, targets, tmp_path / "one", **settings)
    assert torch.equal(state, torch.get_rng_state())  # the caller's randomness is untouched
    assert card.kind == "roberta"
    assert card.recipe["epochs_run"] <= 3
    assert card.sentence_encoder is None
    engine = student_at(tmp_path / "one")
    scores = engine.score_captions(CAPTIONS)
    assert spearmanr(scores, TARGETS).statistic > 0.6
    assert abs(scores.mean() - TARGETS.mean()) < 0.15  # the z-scores are folded back into the head
    again = train_student(captions, targets, tmp_path / "two", **settings)
    assert again.weights_sha256 == card.weights_sha256
    other = train_student(captions, targets, tmp_path / "three", **{**settings, "seed": 6})
    assert other.weights_sha256 != card.weights_sha256


def test_early_stopping_keeps_the_best_epoch(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).normal(size=64)
    fit = StudentFit(epochs=12, patience=1, learning_rate=3e-3, batch_size=16)
    card = train_student(CAPTIONS, noise, tmp_path, kind="roberta", fit=fit)
    assert card.recipe["best_epoch"] < 12
    assert card.recipe["epochs_run"] == min(12, card.recipe["best_epoch"] + 1)


def test_a_roberta_may_start_from_a_backbone(tmp_path: Path) -> None:
    save_encoder(tmp_path / "backbone", positions=50, num_hidden_layers=1)
    fit = StudentFit(backbone=f"path:{tmp_path / 'backbone'}", epochs=1)
    card = train_student(CAPTIONS, TARGETS, tmp_path / "out", kind="roberta", fit=fit)
    assert card.recipe["learning_rate"] == 2e-5
    scores = student_at(tmp_path / "out").score_captions(["a word " * 200, "short"])  # longer than the positions
    assert np.isfinite(scores).all()


@pytest.mark.parametrize(
    ("captions", "targets", "message"),
    [
        (CAPTIONS, TARGETS[:5], r"one target per caption, got 64 captions and shape \(5,\)"),
        (CAPTIONS[:5], TARGETS[:5], "at least 20 scored captions, got 5"),
        (CAPTIONS, np.full(64, np.nan), "64 targets are not finite; drop captions without a score"),
        (CAPTIONS, np.full(64, 0.5), "nothing to learn, check the teachers"),
    ],
)
def test_bad_targets_are_refused(
    minilm: SentenceEncoder, tmp_path: Path, captions: list[str], targets: np.ndarray, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        train_student(captions, targets, tmp_path, sentence_encoder=minilm)


@pytest.mark.parametrize("kind", ["minilm_mlp", pytest.param("minilm_finetuned", marks=pytest.mark.slow)])
def test_networks_on_minilm_learn_come_back_and_are_seeded(minilm: SentenceEncoder, tmp_path: Path, kind: Any) -> None:
    state = torch.get_rng_state()
    fit = StudentFit(batch_size=16)
    if kind == "minilm_finetuned":
        fit = StudentFit(batch_size=16, epochs=2, learning_rate=2e-4)
    settings: dict[str, Any] = {"kind": kind, "sentence_encoder": minilm, "seed": 1, "fit": fit}
    card = train_student(CAPTIONS, TARGETS, tmp_path / "one", **settings)
    assert torch.equal(state, torch.get_rng_state())
    assert card.kind == kind
    assert card.recipe["best_epoch"] <= card.recipe["epochs_run"] <= card.recipe["epochs_allowed"]
    assert {path.suffix for path in (tmp_path / "one").iterdir()} <= {".safetensors", ".json", ".txt"}
    engine = student_at(tmp_path / "one")
    assert isinstance(engine, Student)
    scores = engine.score_captions(UNSEEN)
    assert scores.dtype == np.float64
    assert scores[:2].min() > scores[2:].max() + 0.1
    np.testing.assert_allclose(scores, [engine.score_captions([text])[0] for text in UNSEEN], atol=1e-5)
    assert abs(engine.score_captions(CAPTIONS).mean() - TARGETS.mean()) < 0.15, "mean and sd are folded back"
    assert train_student(CAPTIONS, TARGETS, tmp_path / "two", **settings).weights_sha256 == card.weights_sha256
    other = train_student(CAPTIONS, TARGETS, tmp_path / "three", **{**settings, "seed": 2})
    assert other.weights_sha256 != card.weights_sha256


def test_an_mlp_names_its_encoder_and_refuses_another(minilm: SentenceEncoder, tmp_path: Path) -> None:
    fit = StudentFit(epochs=2)
    card = train_student(CAPTIONS, TARGETS, tmp_path, kind="minilm_mlp", sentence_encoder=minilm, fit=fit)
    assert card.sentence_encoder == "embedded:minilm"
    content = json.loads((tmp_path / "card.json").read_text())
    (tmp_path / "card.json").write_text(json.dumps({**content, "sentence_encoder_sha256": "f" * 64}))
    with pytest.raises(ValueError, match=r"with weights ffffffffffff, got .*train .* again"):
        student_at(tmp_path)


def test_bad_fit_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="epochs"):
        StudentFit(epochs=0)
    with pytest.raises(ValueError, match="learning_rate"):
        StudentFit(learning_rate=-1)


def test_bad_kinds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs sentence_encoder="):
        train_student(CAPTIONS, TARGETS, tmp_path)
    with pytest.raises(ValueError, match="minilm_mlp needs sentence_encoder="):
        train_student(CAPTIONS, TARGETS, tmp_path, kind="minilm_mlp")
    with pytest.raises(ValueError, match=r"must be one of minilm_ridge, .*, roberta, got 'mlp'"):
        train_student(CAPTIONS, TARGETS, tmp_path, kind="mlp")  # type: ignore[arg-type]
    (tmp_path / "card.json").write_text('{"kind": "mlp"}')
    (tmp_path / "model.safetensors").write_bytes(b"x")
    with pytest.raises(ValueError, match="unknown student kind 'mlp'; expected one of minilm_ridge"):
        student_at(tmp_path)
