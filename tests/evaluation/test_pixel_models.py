"""Models trained on images: a world of coloured shapes, pretrained towers from folders, resuming, refusals."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertForPreTraining,
    BertTokenizerFast,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    SwinConfig,
    SwinForImageClassification,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessor,
)

from curation_assets.core.errors import ModelUnavailableError
from curation_assets.evaluation.models.pixel_models import (
    IGNORED,
    MINIATURE_CAPTIONER,
    MINIATURE_DUAL_ENCODER,
    MINIATURE_SWIN,
    MINIATURE_VIT,
    CaptionerSpec,
    DualEncoderSpec,
    PixelCaptioner,
    PixelDualEncoder,
    next_tokens,
    train_pixel_captioner,
    train_pixel_dual_encoder,
    untrained_pixel_captioner,
    untrained_pixel_dual_encoder,
)

pytestmark = pytest.mark.slow

torch.set_num_threads(1)

COLOURS = {"red": (220, 30, 30), "green": (30, 180, 30), "blue": (40, 60, 230), "yellow": (230, 220, 40)}
GROUNDS = {"black": (15, 15, 15), "white": (245, 245, 245), "grey": (120, 120, 120)}
WORLD = [f"a {colour} square on {ground}" for colour in COLOURS for ground in GROUNDS]  # 12 captions


def picture(caption: str, rng: np.random.Generator) -> Image.Image:
    """What the caption has, at a place of its own."""
    words = caption.split()
    pixels = np.full((64, 64, 3), GROUNDS[words[-1]], dtype=np.uint8)
    left, top = rng.integers(2, 36, size=2)
    pixels[top : top + 26, left : left + 26] = COLOURS[words[1]]
    return Image.fromarray(pixels)


class Pictures:
    """Draws when it is called, and remembers how many images each call wanted."""

    def __init__(self, captions: Sequence[str], seed: int = 0) -> None:
        self.captions = captions
        self.seed = seed
        self.calls: list[int] = []

    def __call__(self, positions: Sequence[int]) -> list[Image.Image]:
        self.calls.append(len(positions))
        return [picture(self.captions[i], np.random.default_rng([self.seed, i])) for i in positions]


TRAINING = WORLD * 6
# smaller still than the miniatures, for a hundred steps of smaller batches
CAPTIONER = replace(
    MINIATURE_CAPTIONER,
    vision={**MINIATURE_SWIN, "patch_size": 8, "embed_dim": 32, "depths": (1, 1)},
    batch_size=16,
    learning_rate=2e-3,
    warm_up_share=0.05,
)
DUAL_ENCODER = replace(
    MINIATURE_DUAL_ENCODER,
    vision={**MINIATURE_VIT, "patch_size": 16, "num_hidden_layers": 2},
    batch_size=12,
    learning_rate=1e-3,
    warm_up_share=0.05,
)


@pytest.fixture(scope="module")
def captioner() -> tuple[PixelCaptioner, list[int]]:
    pictures = Pictures(TRAINING)
    return train_pixel_captioner(CAPTIONER, pictures, TRAINING, samples_seen=1280, seed=1), pictures.calls


@pytest.fixture(scope="module")
def dual_encoder() -> tuple[PixelDualEncoder, list[int]]:
    pictures = Pictures(TRAINING)
    return train_pixel_dual_encoder(DUAL_ENCODER, pictures, TRAINING, samples_seen=600, seed=1), pictures.calls


@pytest.mark.slow
def test_a_captioner_learns_what_the_pictures_show(captioner: tuple[PixelCaptioner, list[int]]) -> None:
    model, calls = captioner
    assert calls == [16] * 80  # one batch in memory at a time
    assert len(model.losses) == 80
    assert model.losses[-1] < 0.2 < 5 < model.losses[0]
    unseen = Pictures(WORLD, seed=9)
    captions = model.generate(unseen, len(WORLD), beams=1, batch_size=5)
    assert unseen.calls == [5, 5, 2]
    assert np.mean([got == wanted for got, wanted in zip(captions, WORLD, strict=True)]) > 0.8  # chance: 1/12
    assert model.generate(unseen, 1, beams=1) == captions[:1]
    beams = model.generate(unseen, len(WORLD))  # those of the specification
    assert model.model.generation_config.num_beams == 5
    assert np.mean([got == wanted for got, wanted in zip(beams, WORLD, strict=True)]) > 0.8
    assert model.generate(unseen, 0) == []


def test_a_dual_encoder_learns_to_retrieve(dual_encoder: tuple[PixelDualEncoder, list[int]]) -> None:
    model, calls = dual_encoder
    assert calls == [12] * 50
    assert model.losses[-1] < 0.6 * model.losses[0]
    images = model.embed_images(Pictures(WORLD, seed=9), len(WORLD), batch_size=3)
    texts = model.embed_texts(WORLD, batch_size=3)
    for embedded in (images, texts):
        assert embedded.shape == (12, 128)
        assert embedded.dtype == np.float32
        np.testing.assert_allclose(np.linalg.norm(embedded, axis=1), 1, atol=1e-5)
    assert np.mean((texts @ images.T).argmax(axis=1) == np.arange(12)) > 0.8  # chance: 1/12
    longer = "a much longer text about a red square that is on a white ground"
    np.testing.assert_allclose(model.embed_texts([WORLD[5], longer])[:1], texts[5:6], atol=1e-5)
    assert model.embed_images(Pictures([]), 0).shape == (0, 128)
    assert model.embed_texts([]).shape == (0, 128)


def test_a_text_longer_than_the_model_has_positions_is_cut(dual_encoder: tuple[PixelDualEncoder, list[int]]) -> None:
    model, _ = dual_encoder
    vectors = model.embed_texts(["word " * 200, "word " * 300])
    np.testing.assert_array_equal(vectors[0], vectors[1])


def test_targets_are_the_next_tokens_and_padding_is_ignored_even_if_it_is_eos() -> None:
    inputs, targets = next_tokens([[9, 1, 2, 9], [9, 3, 9]], pad=9)
    assert inputs.tolist() == [[9, 1, 2], [9, 3, 9]]
    assert targets.tolist() == [[1, 2, 9], [3, 9, IGNORED]]


# Pretrained towers in the layouts of the papers' checkpoints, tiny, with the dropout that these have.


WORDS = sorted({word for caption in WORLD for word in caption.split()})


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Name → address."""
    root = tmp_path_factory.mktemp("checkpoints")
    folders = {name: root / name for name in ("swin", "gpt2", "vit", "bert")}
    side = {"image_size": 32, "patch_size": 8}
    torch.manual_seed(3)
    swin = SwinConfig(window_size=2, embed_dim=16, depths=(1, 1), num_heads=(2, 2), num_labels=5, **side)
    vit = ViTConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, **side)
    vocabulary = {word: i for i, word in enumerate(["<|endoftext|>", *WORDS])}
    gpt2 = GPT2Config(
        vocab_size=len(vocabulary), n_positions=32, n_embd=24, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    bert_words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    bert = BertConfig(
        vocab_size=len(bert_words), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    for name, model in {
        "swin": SwinForImageClassification(swin),
        "vit": ViTForImageClassification(vit),
        "gpt2": GPT2LMHeadModel(gpt2),
        "bert": BertForPreTraining(bert),
    }.items():
        model.save_pretrained(folders[name])
    for name in ("swin", "vit"):
        ViTImageProcessor(size={"height": 32, "width": 32}, image_mean=[0.4] * 3).save_pretrained(folders[name])
    end = "<|endoftext|>"
    words = Tokenizer(models.WordLevel(vocabulary, unk_token=end))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, bos_token=end, eos_token=end, unk_token=end).save_pretrained(
        folders["gpt2"]
    )
    (root / "vocab.txt").write_text("\n".join(bert_words))
    BertTokenizerFast(vocab=str(root / "vocab.txt")).save_pretrained(folders["bert"])
    return {name: f"path:{folder}" for name, folder in folders.items()}


@pytest.fixture(scope="module")
def captioner_spec(checkpoints: dict[str, str]) -> CaptionerSpec:
    return CaptionerSpec(
        vision=checkpoints["swin"], language=checkpoints["gpt2"], batch_size=4, learning_rate=1e-3, max_tokens=16
    )


@pytest.fixture(scope="module")
def dual_encoder_spec(checkpoints: dict[str, str]) -> DualEncoderSpec:
    return DualEncoderSpec(
        vision=checkpoints["vit"], language=checkpoints["bert"], batch_size=4, learning_rate=1e-3, width=8
    )


def assert_equal_tensors(one: torch.nn.Module, two: torch.nn.Module, missing: Sequence[str] = ()) -> None:
    theirs = two.state_dict()
    for name, tensor in one.state_dict().items():
        if not any(part in name for part in missing):
            assert torch.equal(tensor, theirs[name]), name


def test_a_captioner_starts_from_the_pretrained_towers(
    captioner_spec: CaptionerSpec, checkpoints: dict[str, str]
) -> None:
    swin = SwinForImageClassification.from_pretrained(checkpoints["swin"].removeprefix("path:"))
    gpt2 = AutoModelForCausalLM.from_pretrained(checkpoints["gpt2"].removeprefix("path:"))
    one = untrained_pixel_captioner(captioner_spec, seed=0)
    assert_equal_tensors(one.model.encoder, swin.swin)
    assert_equal_tensors(one.model.decoder, gpt2, missing=("crossattention", "ln_cross_attn"))
    assert list(one.image_processor.image_mean) == [0.4] * 3
    assert one.model.decoder.lm_head.weight is one.model.decoder.transformer.wte.weight
    assert one.tokenizer.pad_token_id == one.tokenizer.eos_token_id == 0
    again, other = (untrained_pixel_captioner(captioner_spec, seed) for seed in (0, 1))
    fresh = "decoder.transformer.h.0.crossattention.q_attn.weight"
    assert_equal_tensors(one.model, again.model)
    assert not torch.equal(one.model.state_dict()[fresh], other.model.state_dict()[fresh])


def test_a_dual_encoder_starts_from_the_pretrained_towers(
    dual_encoder_spec: DualEncoderSpec, checkpoints: dict[str, str]
) -> None:
    vit = ViTForImageClassification.from_pretrained(checkpoints["vit"].removeprefix("path:"))
    bert = BertForPreTraining.from_pretrained(checkpoints["bert"].removeprefix("path:"))
    one = untrained_pixel_dual_encoder(dual_encoder_spec, seed=0)
    assert_equal_tensors(one.model.vision_model, vit.vit, missing=("pooler",))  # a classifier has none
    assert_equal_tensors(one.model.text_model, bert.bert)
    assert one.tokenizer("a red square").input_ids[0] == one.tokenizer.cls_token_id
    assert_equal_tensors(one.model, untrained_pixel_dual_encoder(dual_encoder_spec, seed=0).model)


Train = Callable[..., PixelCaptioner | PixelDualEncoder]


@pytest.fixture(params=["captioner", "dual_encoder"])
def pretrained(
    request: pytest.FixtureRequest, captioner_spec: CaptionerSpec, dual_encoder_spec: DualEncoderSpec
) -> tuple[Train, Any, Callable[..., Any]]:
    """How to train, the specification, and the untrained model."""
    if request.param == "captioner":
        return train_pixel_captioner, captioner_spec, untrained_pixel_captioner
    return train_pixel_dual_encoder, dual_encoder_spec, untrained_pixel_dual_encoder


def test_every_training_set_starts_from_the_same_weights(pretrained: tuple[Train, Any, Callable[..., Any]]) -> None:
    """With a learning rate of zero a training ends where it began."""
    train, spec, untrained = pretrained
    for captions in (WORLD, WORLD[:5] * 3):
        still = replace(spec, learning_rate=0.0)
        trained = train(still, Pictures(captions), captions, samples_seen=8, seed=3)
        assert_equal_tensors(trained.model, untrained(spec, 3).model)


def test_a_checkpoint_of_other_images_is_not_taken_up(
    pretrained: tuple[Train, Any, Callable[..., Any]], tmp_path: Path
) -> None:
    train, spec, _ = pretrained

    def run(**options: Any) -> tuple[PixelCaptioner | PixelDualEncoder, list[int]]:
        done: list[int] = []
        facts = {"samples_seen": 24, "seed": 2, "checkpoint": tmp_path / "training.safetensors"}
        trained = train(spec, Pictures(TRAINING), TRAINING, progress=done.append, **facts, **options)
        return trained, done

    (whole, _), (again, done) = run(), run()
    assert done == [6]
    assert_equal_tensors(again.model, whole.model)
    assert run(images_digest="others")[1] == [1, 2, 3, 4, 5, 6]


def test_pictures_of_any_mode_and_size_are_read(pretrained: tuple[Train, Any, Callable[..., Any]]) -> None:
    train, spec, _ = pretrained
    odd = [Image.new("L", (7, 90)), Image.new("RGBA", (300, 20)), Image.new("P", (32, 32)), Image.new("1", (1, 1))]
    model = train(spec, lambda positions: [odd[i] for i in positions], WORLD[:4], samples_seen=4, seed=0)
    assert np.isfinite(model.losses).all()


def test_bad_inputs_are_refused(pretrained: tuple[Train, Any, Callable[..., Any]]) -> None:
    train, spec, untrained = pretrained
    with pytest.raises(ValueError, match="at least one batch of 4 samples, got 3; lower batch_size"):
        train(spec, Pictures(WORLD), WORLD[:3], samples_seen=8, seed=0)
    with pytest.raises(ValueError, match=r"at least one batch \(4 samples\), got samples_seen=3"):
        train(spec, Pictures(WORLD), WORLD, samples_seen=3, seed=0)
    with pytest.raises(ValueError, match="one image per position, got 1 images for 4"):
        train(spec, lambda positions: Pictures(WORLD)(positions[:1]), WORLD, samples_seen=8, seed=0)
    with pytest.raises(ValueError, match="max_tokens is 999, but the language model has"):
        untrained(replace(spec, max_tokens=999), 0)
    with pytest.raises(ModelUnavailableError, match="give a folder of saved weights"):
        untrained(replace(spec, vision="path:/nowhere/at/all"), 0)
    with pytest.raises(ValueError, match="needs the address of a tokenizer"):
        replace(spec, language={"model_type": "gpt2"})
    with pytest.raises(ValueError, match="vision is no address and lacks image_size, model_type"):
        replace(spec, vision={"hidden_size": 8})
    with pytest.raises(ValueError, match="batch_size of at least 2"):
        replace(spec, batch_size=1)


def test_a_captioner_needs_a_tokenizer_with_bos_and_eos(
    captioner_spec: CaptionerSpec, checkpoints: dict[str, str]
) -> None:
    with pytest.raises(ValueError, match="no BOS or EOS token"):
        untrained_pixel_captioner(replace(captioner_spec, tokenizer=checkpoints["bert"]), 0)


@pytest.mark.parametrize(
    ("untrained", "spec"),
    [(untrained_pixel_captioner, CaptionerSpec()), (untrained_pixel_dual_encoder, DualEncoderSpec())],
    ids=["captioner", "dual encoder"],
)
def test_the_papers_models_without_a_hub_are_refused_with_what_to_do(
    untrained: Any, spec: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelUnavailableError, match="copy the model to a folder and use path:/folder"):
        untrained(spec, 0)
