"""Downstream: tiny trainings on features that say what the caption says."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from curation_assets.engines.addresses import WEIGHTS_ROOT
from curation_assets.evaluation.models.miniature import (
    LENGTH_PARTS,
    MAX_TOKENS,
    contrastive_loss,
    encode_captions,
    new_log_scale,
    pad_captions,
    parts_of_like_length,
    train_captioner,
    train_dual_encoder,
    untrained_captioner,
    untrained_dual_encoder,
)

torch.set_num_threads(1)

COLOURS = ["red", "green", "blue", "white"]
THINGS = ["kite", "boat", "house", "tree"]
WORLD = [f"a {colour} {thing}" for colour in COLOURS for thing in THINGS]  # 16 captions


def planted_features(captions: list[str], seed: int = 0) -> np.ndarray:
    """(N, 4, 16) float16: patch 0 spells the colour, patch 1 the thing, the others are noise."""
    rng = np.random.default_rng(seed)
    features = 0.1 * rng.normal(size=(len(captions), 4, 16))
    for row, caption in enumerate(captions):
        _, colour, thing = caption.split()
        features[row, 0, COLOURS.index(colour)] += 3
        features[row, 1, 8 + THINGS.index(thing)] += 3
    return features.astype(np.float16)


TRAINING = WORLD * 4


@pytest.mark.slow
def test_a_captioner_learns_what_the_features_say() -> None:
    done: list[int] = []
    model = train_captioner(
        planted_features(TRAINING), TRAINING, seed=1, samples_seen=1920, batch_size=32, progress=done.append
    )
    assert done == list(range(1, 61))
    assert len(model.losses) == 60
    assert model.losses[-1] < 0.3 < model.losses[0]
    unseen = planted_features(WORLD, seed=9)
    captions = model.generate(unseen, batch_size=5)
    assert np.mean([got == wanted for got, wanted in zip(captions, WORLD, strict=True)]) > 0.8
    assert model.generate(unseen[3:4]) == captions[3:4]
    beams = model.generate(unseen[:4], beams=3)
    assert np.mean([got == wanted for got, wanted in zip(beams, WORLD, strict=False)]) >= 0.75
    assert model.generate(unseen[:0]) == []


@pytest.mark.slow
def test_a_dual_encoder_learns_to_retrieve() -> None:
    model = train_dual_encoder(planted_features(TRAINING), TRAINING, seed=1, samples_seen=960, batch_size=16)
    images = model.embed_images(planted_features(WORLD, seed=9), batch_size=5)
    texts = model.embed_texts(WORLD, batch_size=5)
    for embedded in (images, texts):
        assert embedded.shape == (16, 128)
        assert embedded.dtype == np.float32
        np.testing.assert_allclose(np.linalg.norm(embedded, axis=1), 1, atol=1e-5)
    assert np.mean((texts @ images.T).argmax(axis=1) == np.arange(16)) > 0.8  # chance: 1/16
    np.testing.assert_allclose(
        model.embed_texts([WORLD[5], "a much longer text about a kite"])[:1], texts[5:6], atol=1e-5
    )
    assert model.embed_images(np.zeros((0, 4, 16), dtype=np.float16)).shape == (0, 128)
    assert model.embed_texts([]).shape == (0, 128)


@pytest.mark.parametrize("train", [train_captioner, train_dual_encoder])
def test_trainings_are_seeded_and_leave_the_callers_randomness_alone(train: type) -> None:
    state = torch.get_rng_state()
    features = planted_features(TRAINING)
    one, two, other = (
        train(features, TRAINING, seed=seed, samples_seen=24, batch_size=8).losses  # type: ignore[call-arg]
        for seed in (4, 4, 5)
    )
    assert one == two != other
    assert torch.equal(state, torch.get_rng_state())


def tensors_of(*modules: torch.nn.Module) -> list[torch.Tensor]:
    return [tensor for module in modules for tensor in module.state_dict().values()]


def test_every_training_set_starts_from_the_same_weights() -> None:
    """With a learning rate of zero a training ends where it began."""
    tokenizer = AutoTokenizer.from_pretrained(WEIGHTS_ROOT / "clip")
    captioner = tensors_of(untrained_captioner(16, tokenizer, seed=3))
    dual_encoder = tensors_of(*untrained_dual_encoder(16, tokenizer, seed=3))
    for captions in (WORLD, WORLD[:8] * 5):
        facts = {"seed": 3, "samples_seen": 16, "batch_size": 8, "learning_rate": 0.0}
        features = planted_features(captions)
        one = train_captioner(features, captions, **facts)  # type: ignore[arg-type]
        two = train_dual_encoder(features, captions, **facts)  # type: ignore[arg-type]
        assert all(map(torch.equal, tensors_of(one.decoder), captioner))
        assert all(map(torch.equal, tensors_of(two.image_tower, two.text_tower), dual_encoder))
    other = tensors_of(untrained_captioner(16, tokenizer, seed=4))
    assert not all(map(torch.equal, other, captioner))


@pytest.mark.parametrize("train", [train_captioner, train_dual_encoder])
def test_a_checkpoint_of_other_features_is_not_taken_up(train: Any, tmp_path: Path) -> None:
    features = planted_features(TRAINING)
    facts = {"seed": 1, "samples_seen": 48, "batch_size": 8, "checkpoint": tmp_path / "training.safetensors"}
    whole = train(features, TRAINING, **facts)
    done: list[int] = []
    again = train(features, TRAINING, progress=done.append, **facts)
    assert (done, again.losses) == ([6], whole.losses)
    other = features.copy()
    other[0] += 1
    train(other, TRAINING, progress=done.append, **facts)
    assert done == [6, 1, 2, 3, 4, 5, 6]


def test_long_captions_are_cut_and_keep_their_end() -> None:
    tokenizer = AutoTokenizer.from_pretrained(WEIGHTS_ROOT / "clip")
    rows = encode_captions(tokenizer, ["a red kite", "word " * 200, ""])
    assert [len(rows[1]), len(rows[2])] == [MAX_TOKENS, 2]
    assert all((row[0], row[-1]) == (tokenizer.bos_token_id, tokenizer.eos_token_id) for row in rows)
    padded = pad_captions(rows, tokenizer)
    assert padded.shape == (3, MAX_TOKENS)
    assert padded[2, 2:].eq(tokenizer.pad_token_id).all()


def test_padding_does_not_change_the_loss() -> None:
    """The same captions, alone and beside a long one: the mean over real tokens is the same."""
    from curation_assets.evaluation.models.miniature import CaptionDecoder

    tokenizer = AutoTokenizer.from_pretrained(WEIGHTS_ROOT / "clip")
    torch.manual_seed(0)
    decoder = CaptionDecoder(16, tokenizer).eval()
    states = torch.randn(1, 4, 16)
    ids = pad_captions(encode_captions(tokenizer, ["a red kite"]), tokenizer)
    wide = torch.nn.functional.pad(ids, (0, 9), value=tokenizer.pad_token_id)
    with torch.inference_mode():
        assert float(decoder(states, ids)) == pytest.approx(float(decoder(states, wide)), abs=1e-5)


def test_a_batch_in_parts_has_the_loss_of_the_whole() -> None:
    """Captions of 3 to 30 words: the first loss is that of the untrained towers on the padded batch."""
    captions = [" ".join(["a", "red", "kite"] * (1 + number % 10)) for number in range(8)]
    features = np.random.default_rng(0).normal(size=(8, 4, 16)).astype(np.float16)
    model = train_dual_encoder(features, captions, seed=3, samples_seen=8, batch_size=8, learning_rate=0.0)
    images, texts = (torch.from_numpy(rows) for rows in (model.embed_images(features), model.embed_texts(captions)))
    whole = float(contrastive_loss(images, texts, new_log_scale("cpu")).detach())
    assert model.losses == [pytest.approx(whole, abs=1e-5)]


@pytest.mark.parametrize("size", [1, 3, 4, 5, 9, 48])
def test_parts_hold_every_position_once_by_length(size: int) -> None:
    rng = np.random.default_rng(size)
    encoded = [[0] * int(length) for length in rng.integers(2, 40, 60)]
    batch = rng.permutation(60)[:size].tolist()
    parts = parts_of_like_length(batch, encoded)
    assert 1 <= len(parts) <= LENGTH_PARTS
    assert sorted(itertools.chain(*parts)) == sorted(batch)
    lengths = [len(encoded[position]) for part in parts for position in part]
    assert lengths == sorted(lengths)


@pytest.mark.parametrize("train", [train_captioner, train_dual_encoder])
def test_bad_inputs_are_refused(train: type, tmp_path: Path) -> None:
    features = planted_features(WORLD)
    with pytest.raises(ValueError, match=r"got shape \(16, 4, 16\) and 15 captions"):
        train(features, WORLD[:15], seed=0)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="at least one batch of 17 samples, got 16"):
        train(features, WORLD, seed=0, batch_size=17)  # type: ignore[call-arg]
