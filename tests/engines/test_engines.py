"""Engines: tiny random checkpoints in the real layouts go through the production loaders; so do the shipped weights."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertModel,
    Blip2ForConditionalGeneration,
    BlipForConditionalGeneration,
    BlipImageProcessor,
    CLIPModel,
    LogitsProcessorList,
    PreTrainedTokenizerFast,
    RobertaForSequenceClassification,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from curation_assets.core.roles import ROLES
from curation_assets.core.settings import load_profile
from curation_assets.engines import (
    ModelUnavailableError,
    clear_engines,
    identify_engine,
    load_engine,
    resolve_address,
)
from curation_assets.engines.addresses import HUB_IGNORED, HUB_PATTERNS, local_folder
from curation_assets.engines.batches import CHARACTERS_AT_ONCE, batches_by_length
from curation_assets.engines.nucleus import nucleus, row_uniforms, sample_nucleus
from curation_assets.engines.text_similarity import greedy_f1
from curation_assets.methods import get_method
from tests.support.tiny_models import (
    TEXTS,
    WIDTH,
    make_images,
    profile_of,
    save_encoder,
    save_generators,
    save_text_to_image,
    small_processor,
)

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of tiny random checkpoints, one sub-folder per layout."""
    torch.manual_seed(0)
    root = tmp_path_factory.mktemp("zoo")
    save_generators(root)
    save_text_to_image(root / "stable_diffusion", real_vae=True)
    save_encoder(root / "bert", BertModel)
    save_encoder(root / "roberta")
    return root


def captioner(folder: Path, batch_size: int = 3, **generation: Any) -> Any:
    """A captioner with SIEVE's sampling settings unless said otherwise."""
    settings = {"max_new_tokens": 8, "min_new_tokens": 2, "top_p": 0.9, "top_k": 50, **generation}
    return load_engine("captioner", profile_of("captioner", folder, batch_size, **settings))


def beam_captioner(folder: Path, **generation: Any) -> Any:
    """As `captioner`, for beams."""
    settings = {"max_new_tokens": 8, "min_new_tokens": 2, **generation}
    return load_engine("beam_captioner", profile_of("beam_captioner", folder, **settings))


# --- addresses and identities


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("hubb:a/b", r"unknown scheme 'hubb' \(did you mean 'hub'\?\)"),
        ("embedded:clipp", r"no embedded model 'clipp' \(did you mean 'clip'\?\)"),
        ("open_clip:ViT-B-32", r"expected open_clip:MODEL@TAG"),
        ("hub:a/b/c", r"expected hub:org/name"),
        ("pool:icc_student", r"needs a pool"),
        ("path:", r"names nothing"),
    ],
)
def test_a_bad_address_is_refused_with_the_way_out(address: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resolve_address(address)


def test_a_missing_folder_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailableError, match="give a folder of saved weights"):
        resolve_address(f"path:{tmp_path / 'absent'}")
    with pytest.raises(ModelUnavailableError, match="materialise the pool's model 'icc_student' first"):
        resolve_address("pool:icc_student", tmp_path)


def test_addresses_are_taken_apart(tmp_path: Path) -> None:
    pinned = resolve_address("hub:org/name@abc")
    assert (pinned.scheme, pinned.name, pinned.revision, pinned.folder) == ("hub", "org/name", "abc", None)
    assert resolve_address("hub:roberta-large").revision == "main"
    assert resolve_address(f"path:{tmp_path}").folder == tmp_path
    (tmp_path / "icc_student").mkdir()
    assert resolve_address("pool:icc_student", tmp_path).folder == tmp_path / "icc_student"


def test_batches_hold_few_long_texts_and_every_text_once() -> None:
    texts = ["x" * length for length in (5, 40_000, 3, 20_000, 900, 12, *[100] * 700)]
    batches = list(batches_by_length(texts, 256))
    assert sorted(position for batch in batches for position in batch) == list(range(len(texts)))
    lengths = [[len(texts[position]) for position in batch] for batch in batches]
    assert [length for batch in lengths for length in batch] == sorted((len(t) for t in texts), reverse=True)
    assert lengths[:2] == [[40_000], [20_000]]
    for batch in lengths:
        assert len(batch) <= 256
        assert len(batch) == 1 or len(batch) * batch[0] <= CHARACTERS_AT_ONCE
    assert max(len(batch) for batch in lengths) == 256
    with pytest.raises(ValueError, match="at least 1, got 0"):
        list(batches_by_length(texts, 0))


def test_a_hub_out_of_reach_names_the_ways_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelUnavailableError, match=r"use path:/folder .* HF_HOME"):
        local_folder(resolve_address("hub:roberta-large@main"))


def test_of_a_hub_repository_one_copy_of_the_weights_is_fetched() -> None:
    """File names as in Stable Diffusion 2's repository, through the hub client's own filter."""
    wanted = ["model_index.json", "unet/config.json", "unet/diffusion_pytorch_model.safetensors"]
    wanted += ["text_encoder/model.safetensors", "tokenizer/merges.txt", "vae/diffusion_pytorch_model.safetensors"]
    spare = ["768-v-ema.ckpt", "768-v-ema.safetensors", "unet/diffusion_pytorch_model.bin", "README.md"]
    spare += ["unet/diffusion_pytorch_model.fp16.safetensors", "text_encoder/model.fp16.safetensors"]
    found = filter_repo_objects([*wanted, *spare], allow_patterns=HUB_PATTERNS, ignore_patterns=HUB_IGNORED)
    assert list(found) == wanted


def test_a_cached_hub_revision_is_used_and_pinned_by_its_commit(
    zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # what the hub's own cache looks like on disk
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "models--org--tiny"
    shutil.copytree(zoo / "captioner", repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    settings = {"max_new_tokens": 6, "min_new_tokens": 2}
    engine = load_engine("captioner", profile_of("captioner", "hub:org/tiny", **settings))
    local = load_engine("captioner", profile_of("captioner", zoo / "captioner", **settings))
    assert engine.identity.revision == commit
    assert engine.sample_captions(make_images(2), [1, 2], 2) == local.sample_captions(make_images(2), [1, 2], 2)


def test_quick_gelu_mismatch_is_an_error_before_any_download() -> None:
    with pytest.raises(ValueError, match=r"QuickGELU mismatch.*Use open_clip:ViT-B-32-quickgelu@openai"):
        identify_engine("image_text_encoder", profile_of("image_text_encoder", "open_clip:ViT-B-32@openai"))


@pytest.mark.parametrize(
    ("address", "message"), [("ViT-B-23@openai", "nearest: ViT-B-"), ("ViT-B-32-quickgelu@openia", "tags: .*openai")]
)
def test_unknown_open_clip_names_list_the_choices(address: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_engine("image_text_encoder", profile_of("image_text_encoder", f"open_clip:{address}"))


def test_open_clip_serves_one_role_only() -> None:
    with pytest.raises(ValueError, match="open_clip: fills image_text_encoder, pair_encoder only"):
        load_engine("captioner", profile_of("captioner", "open_clip:ViT-B-32-quickgelu@openai"))


def test_identity_follows_the_weights_and_reloads_the_engine(zoo: Path, tmp_path: Path) -> None:
    folder = tmp_path / "clip"
    shutil.copytree(zoo / "clip", folder)
    profile = profile_of("image_text_encoder", folder)
    before = load_engine("image_text_encoder", profile)
    assert identify_engine("image_text_encoder", profile) == before.identity
    assert load_engine("image_text_encoder", profile) is before
    old = before.embed_texts(["a red kite"])

    state = load_file(folder / "model.safetensors")
    state["text_projection.weight"][0] *= 3.0
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    after = load_engine("image_text_encoder", profile)
    assert after is not before
    assert after.identity.weights_sha256 != before.identity.weights_sha256
    assert not np.allclose(old, after.embed_texts(["a red kite"]))


def test_identity_covers_the_companions(zoo: Path, tmp_path: Path) -> None:
    for name in ("clip", "semantic_decoder"):
        shutil.copytree(zoo / name, tmp_path / name)
    profile = profile_of("semantic_decoder", tmp_path / "semantic_decoder")
    before = identify_engine("semantic_decoder", profile)
    state = load_file(tmp_path / "clip" / "model.safetensors")
    state["text_projection.weight"][0] *= 3.0
    save_file(state, tmp_path / "clip" / "model.safetensors", metadata={"format": "pt"})
    assert identify_engine("semantic_decoder", profile).weights_sha256 != before.weights_sha256


def test_an_unknown_role_lists_the_roles() -> None:
    with pytest.raises(ValueError, match="no role 'painter'; roles: image_text_encoder"):
        load_engine("painter", load_profile("embedded"))


# --- image_text_encoder


def test_one_set_of_weights_serves_both_clip_libraries(zoo: Path) -> None:
    engine = load_engine("image_text_encoder", profile_of("image_text_encoder", zoo / "clip"))
    from curation_assets.engines.image_text_encoder import ClipTextFeature

    projected = ClipTextFeature(zoo / "clip", 2, "cpu")(TEXTS).numpy()
    assert np.abs(np.linalg.norm(projected, axis=1) - 1).min() > 0.01  # not normalised, formulas.md §1.4
    unit = projected / np.linalg.norm(projected, axis=1, keepdims=True)
    np.testing.assert_allclose(engine.embed_texts(TEXTS), unit, atol=1e-5)

    images = make_images(3)
    pixels = small_processor()([image.convert("RGB") for image in images], return_tensors="pt").pixel_values
    with torch.inference_mode():
        output = CLIPModel.from_pretrained(zoo / "clip").eval().get_image_features(pixel_values=pixels)
    twin = torch.nn.functional.normalize(output.pooler_output, dim=-1).numpy()
    # the two resize implementations differ by a grey level here and there
    assert np.einsum("nd,nd->n", engine.embed_images(images), twin).min() > 0.999


def test_a_native_open_clip_folder_gives_the_same_embeddings(zoo: Path, tmp_path: Path) -> None:
    from curation_assets.engines.clip_conversion import to_open_clip_state_dict

    folder = tmp_path / "native"
    shutil.copytree(zoo / "clip", folder)
    state = to_open_clip_state_dict(load_file(folder / "model.safetensors"))
    (folder / "model.safetensors").unlink()
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, folder / "open_clip_model.safetensors")
    native = load_engine("image_text_encoder", profile_of("image_text_encoder", folder))
    converted = load_engine("image_text_encoder", profile_of("image_text_encoder", zoo / "clip"))
    np.testing.assert_array_equal(native.embed_texts(TEXTS), converted.embed_texts(TEXTS))


def test_embeddings_are_unit_and_do_not_see_their_neighbours(zoo: Path) -> None:
    engine = load_engine("image_text_encoder", profile_of("image_text_encoder", zoo / "clip"))
    images = make_images(5)
    for embed, inputs in ((engine.embed_images, images), (engine.embed_texts, TEXTS)):
        together = embed(inputs)
        assert together.shape == (5, 16)
        assert together.dtype == np.float32
        np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)
        alone = np.concatenate([embed([one]) for one in inputs])
        np.testing.assert_allclose(together, alone, atol=1e-5)
        assert embed([]).shape == (0, 16)
    repeated = engine.embed_texts(["two dogs", "a", "two dogs"])
    np.testing.assert_array_equal(repeated[0], repeated[2])


def test_a_folder_without_open_clip_config_is_refused(zoo: Path) -> None:
    with pytest.raises(ValueError, match=r"no open_clip_config\.json"):
        load_engine("image_text_encoder", profile_of("image_text_encoder", zoo / "bert"))


# --- nucleus sampling


def test_nucleus_keeps_the_smallest_set_that_reaches_p() -> None:
    # probabilities .5 .3 .15 .05 at tokens 2, 0, 3, 1; p = .7 keeps .5 and .3 → .625 and .375
    logits = torch.log(torch.tensor([[0.3, 0.05, 0.5, 0.15]]))
    tokens, probabilities = nucleus(logits, temperature=1.0, top_k=0, top_p=0.7)
    assert tokens.tolist() == [[0, 1, 2, 3]]
    np.testing.assert_allclose(probabilities.numpy(), [[0.375, 0.0, 0.625, 0.0]], atol=1e-7)
    tokens, probabilities = nucleus(logits, temperature=1.0, top_k=3, top_p=1.0)
    assert tokens.tolist() == [[0, 2, 3]]
    np.testing.assert_allclose(probabilities.numpy(), [[0.3 / 0.95, 0.5 / 0.95, 0.15 / 0.95]], atol=1e-7)


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), [(1.0, 50, 0.9), (0.7, 10, 0.5), (1.3, 0, 0.95)])
def test_nucleus_agrees_with_the_library(temperature: float, top_k: int, top_p: float) -> None:
    logits = 2 * torch.randn(6, 80, generator=torch.Generator().manual_seed(0))
    warpers = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k:
        warpers.append(TopKLogitsWarper(top_k))
    warpers.append(TopPLogitsWarper(top_p))
    twin = torch.softmax(warpers(None, logits.clone()).double(), dim=-1)
    tokens, probabilities = nucleus(logits, temperature, top_k, top_p)
    dense = torch.zeros(6, 80, dtype=torch.float64).scatter_(-1, tokens, probabilities)
    np.testing.assert_allclose(dense.numpy(), twin.numpy(), atol=1e-6)


def test_sampled_tokens_follow_the_nucleus_distribution() -> None:
    draws = 20_000
    logits = torch.log(torch.tensor([[0.3, 0.05, 0.5, 0.15]])).expand(draws, -1)
    uniforms = torch.from_numpy(row_uniforms(range(draws), 1, 1)[:, 0])
    chosen = sample_nucleus(logits, uniforms, temperature=1.0, top_k=0, top_p=0.9).numpy()
    shares = np.bincount(chosen, minlength=4) / draws
    # .5 + .3 + .15 reaches .9: token 1 is out; three standard errors of .5 are .011
    np.testing.assert_allclose(shares, [0.3 / 0.95, 0, 0.5 / 0.95, 0.15 / 0.95], atol=0.011)
    assert shares[1] == 0


def test_row_uniforms_depend_on_seed_and_caption_number_only() -> None:
    rows = row_uniforms([7, 8], count=3, steps=4)
    assert rows.shape == (6, 4)
    np.testing.assert_array_equal(rows[3:], row_uniforms([8], 3, 4))
    np.testing.assert_array_equal(rows[0], row_uniforms([7], 1, 4)[0])
    assert len({tuple(row) for row in rows}) == 6
    with pytest.raises(ValueError, match="non-negative"):
        row_uniforms([-1], 1, 1)


# --- captioner

PROMPTS = {"captioner": {}, "blip": {"prompt": "a red kite"}, "blip2": {"prompt": "a red kite"}}


@pytest.mark.parametrize("name", PROMPTS)
def test_captions_depend_on_their_own_image_and_seed_only(zoo: Path, name: str) -> None:
    images, seeds = make_images(5), [11, 12, 2**62, 14, 15]
    engine = captioner(zoo / name, repetition_penalty=1.1, **PROMPTS[name])
    together = engine.sample_captions(images, seeds, 3)
    assert [len(captions) for captions in together] == [3] * 5
    for i in (4, 2):
        assert engine.sample_captions([images[i]], [seeds[i]], 3) == [together[i]]
    wide = captioner(zoo / name, batch_size=64, repetition_penalty=1.1, **PROMPTS[name])
    torch.manual_seed(99)  # the global generator has no say
    assert wide.sample_captions(images[::-1], seeds[::-1], 3) == together[::-1]
    # a smaller count is a prefix; another seed gives other captions
    assert engine.sample_captions(images, seeds, 1) == [captions[:1] for captions in together]
    assert engine.sample_captions(images, [s + 1 for s in seeds], 3) != together
    assert len({caption for captions in together for caption in captions}) > 5


@pytest.mark.parametrize("name", PROMPTS)
def test_all_beams_come_back_best_first_without_the_prompt(zoo: Path, name: str) -> None:
    images = make_images(4)
    engine = beam_captioner(zoo / name, **PROMPTS[name])
    together = engine.beam_captions(images, 3)
    assert [len(captions) for captions in together] == [3] * 4
    assert [engine.beam_captions([image], 3)[0] for image in images] == together
    assert not any(caption.startswith("a red kite") for captions in together for caption in captions)
    assert not any("<" in caption and ">" in caption for captions in together for caption in captions)


def test_blip_families_answer_as_the_library_does(zoo: Path) -> None:
    """One greedy beam, against the stock `generate` of the two classes."""
    image = make_images(1)[0].convert("RGB")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(zoo / "blip2")
    pixels = small_processor(BlipImageProcessor)([image], return_tensors="pt").pixel_values

    blip = BlipForConditionalGeneration.from_pretrained(zoo / "blip").eval()
    words = tokenizer("a red kite", add_special_tokens=False).input_ids
    # the library replaces the first id by BOS and drops the last one
    ids = torch.tensor([[0, *words, 0]])
    out = blip.generate(pixel_values=pixels, input_ids=ids, max_new_tokens=8, min_new_tokens=2, num_beams=1)
    expected = tokenizer.decode(out[0][1 + len(words) :], skip_special_tokens=True).strip().split("\n")[0].strip()
    assert beam_captioner(zoo / "blip", prompt="a red kite").beam_captions([image], 1) == [[expected]]

    blip2 = Blip2ForConditionalGeneration.from_pretrained(zoo / "blip2").eval()
    ids = torch.tensor([[1, 1, 1, 1, *tokenizer("a red kite").input_ids]])
    out = blip2.generate(pixel_values=pixels, input_ids=ids, max_new_tokens=8, min_new_tokens=2, num_beams=1)
    expected = tokenizer.decode(out[0][ids.shape[1] :], skip_special_tokens=True).strip().split("\n")[0].strip()
    assert beam_captioner(zoo / "blip2", prompt="a red kite").beam_captions([image], 1) == [[expected]]


def test_captioner_errors_name_got_and_expected(zoo: Path) -> None:
    engine = captioner(zoo / "captioner")
    with pytest.raises(ValueError, match="one seed per image, got 2 images and 1 seeds"):
        engine.sample_captions(make_images(2), [1], 1)
    with pytest.raises(ValueError, match="beams must be at least 1, got 0"):
        beam_captioner(zoo / "captioner").beam_captions(make_images(1), 0)
    with pytest.raises(ValueError, match="takes no prompt"):
        captioner(zoo / "captioner", prompt="a photo of")
    with pytest.raises(ValueError, match=r"takes model_type vision-encoder-decoder, blip, blip-2; .* has 'bert'"):
        captioner(zoo / "bert")
    assert engine.sample_captions([], [], 2) == []


@pytest.mark.parametrize("size", [None, 48])
def test_clips_transform_in_front_of_blip(zoo: Path, size: int | None) -> None:
    """Bicubic to the shortest side, centre crop, CLIP's mean and deviation; BLIP reads other sizes than its own 32."""
    from torchvision.transforms import CenterCrop, Compose, InterpolationMode, Normalize, Resize, ToTensor

    settings = {} if size is None else {"image_size": size}
    engine = captioner(zoo / "blip", image_transform="clip", prompt="a red kite", **settings)
    side = size or 32
    clip = Compose([
        Resize(side, interpolation=InterpolationMode.BICUBIC), CenterCrop(side), ToTensor(),
        Normalize((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    ])  # fmt: skip
    images = [image.convert("RGB") for image in make_images(3)]
    expected = torch.stack([clip(image) for image in images])
    assert torch.equal(engine.loaded.image_transform(images), expected)
    states = engine.loaded.encode(images)
    assert states.shape == (3, (side // 8) ** 2 + 1, WIDTH)
    assert [len(captions) for captions in engine.sample_captions(images, [1, 2, 3], 2)] == [2, 2, 2]


def test_a_transform_that_does_not_fit_is_refused(zoo: Path) -> None:
    with pytest.raises(ValueError, match="image_transform must be one of own, clip, got 'squash'"):
        captioner(zoo / "blip", image_transform="squash")
    with pytest.raises(ValueError, match="image_size 48 needs image_transform: clip"):
        captioner(zoo / "blip", image_size=48)
    with pytest.raises(ValueError, match="reads images of 32 px, got image_size 48; only BLIP"):
        captioner(zoo / "captioner", image_transform="clip", image_size=48)


# --- text_to_image


#: What the package draws with: its own model as it was saved, others as ICC §4.1.
SCHEDULERS = {"text_to_image": "DDIMScheduler", "stable_diffusion": "DPMSolverMultistepScheduler"}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_an_image_depends_on_its_own_caption_and_seed_only(zoo: Path, name: str) -> None:
    settings = {"steps": 2, "guidance_scale": 4.0, "height": 32, "width": 32}
    engine: Any = load_engine("text_to_image", profile_of("text_to_image", zoo / name, **settings))
    assert type(engine.pipeline.scheduler).__name__ == SCHEDULERS[name]
    seeds = [3, 4, 2**62, 6, 7]
    together = engine.generate_images(TEXTS, seeds)
    assert all(image.size == (32, 32) and image.mode == "RGB" for image in together)
    for i in (1, 4):
        alone = np.asarray(engine.generate_images([TEXTS[i]], [seeds[i]])[0], dtype=int)
        assert np.abs(alone - np.asarray(together[i], dtype=int)).max() <= 1  # one grey level of rounding
    other = engine.generate_images(TEXTS[:1], [99])[0]
    assert np.abs(np.asarray(other, dtype=int) - np.asarray(together[0], dtype=int)).max() > 10
    with pytest.raises(ValueError, match="one seed per caption"):
        engine.generate_images(TEXTS, [1])


# --- semantic_decoder


def test_reconstructions_depend_on_their_own_caption_only(zoo: Path) -> None:
    settings = {"beams": 3, "no_repeat_ngram_size": 0, "max_new_tokens": 12}
    engine = load_engine("semantic_decoder", profile_of("semantic_decoder", zoo / "semantic_decoder", **settings))
    captions = [*TEXTS, TEXTS[0]]
    together = engine.reconstruct_captions(captions)
    assert [len(beams) for beams in together] == [3] * 6
    assert together[5] == together[0]
    assert [engine.reconstruct_captions([caption])[0] for caption in captions] == together
    assert not any("\n" in text for beams in together for text in beams)
    assert engine.reconstruct_captions([]) == []


def test_a_bridge_that_does_not_fit_is_refused(zoo: Path, tmp_path: Path) -> None:
    shutil.copytree(zoo / "semantic_decoder", tmp_path / "lm")
    profile = profile_of("semantic_decoder", tmp_path / "lm", text_encoder=f"path:{zoo / 'clip'}")
    (tmp_path / "lm" / "bridge.json").write_text(
        json.dumps({"prefix_length": 2, "input_dim": 16, "hidden_size": WIDTH})
    )
    with pytest.raises(ValueError, match=r"asks for a weight of shape \(64, 16\)"):
        load_engine("semantic_decoder", profile)
    (tmp_path / "lm" / "bridge.safetensors").unlink()
    with pytest.raises(ValueError, match=r"holds no bridge\.safetensors"):
        load_engine("semantic_decoder", profile)


def test_a_bridge_may_live_elsewhere(zoo: Path, tmp_path: Path) -> None:
    shutil.copytree(zoo / "semantic_decoder", tmp_path / "lm")
    (tmp_path / "bridge").mkdir()
    for name in ("bridge.json", "bridge.safetensors"):
        shutil.move(tmp_path / "lm" / name, tmp_path / "bridge" / name)
    settings = {"beams": 2, "no_repeat_ngram_size": 0, "max_new_tokens": 6}
    apart = profile_of(
        "semantic_decoder",
        tmp_path / "lm",
        text_encoder=f"path:{zoo / 'clip'}",
        bridge=f"path:{tmp_path / 'bridge'}",
        **settings,
    )
    beside = profile_of("semantic_decoder", zoo / "semantic_decoder", **settings)
    answers = [load_engine("semantic_decoder", p).reconstruct_captions(TEXTS) for p in (apart, beside)]
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("role", "name"),
    [
        ("captioner", "captioner"),
        ("captioner", "blip"),
        ("captioner", "blip2"),
        ("beam_captioner", "captioner"),
        ("beam_captioner", "blip2"),
        ("text_to_image", "text_to_image"),
        ("text_to_image", "stable_diffusion"),
        ("semantic_decoder", "semantic_decoder"),
    ],
)
def test_generative_engines_run_in_half_precision(zoo: Path, role: str, name: str) -> None:
    """What a GPU run does: no tensor of another precision meets the model's."""
    settings: dict[str, Any] = {"precision": "bfloat16"}
    settings |= {"steps": 1, "height": 32, "width": 32} if role == "text_to_image" else {"max_new_tokens": 5}
    if role == "semantic_decoder":
        settings["beams"] = 2
    engine: Any = load_engine(role, profile_of(role, zoo / name, batch_size=7, **settings))
    if role == "captioner":
        assert [len(captions) for captions in engine.sample_captions(make_images(2), [1, 2], 2)] == [2, 2]
    elif role == "beam_captioner":
        assert [len(captions) for captions in engine.beam_captions(make_images(2), 2)] == [2, 2]
    elif role == "text_to_image":
        assert [image.size for image in engine.generate_images(TEXTS[:2], [1, 2])] == [(32, 32)] * 2
    else:
        assert [len(beams) for beams in engine.reconstruct_captions(TEXTS[:2])] == [2, 2]


# --- sentence_encoder and text_similarity


def test_minilm_is_normalised_and_blind_to_neighbours() -> None:
    engine = load_engine("sentence_encoder", profile_of("sentence_encoder", "embedded:minilm"))
    together = engine.embed_sentences(TEXTS)
    assert together.shape == (5, 384)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)
    alone = np.concatenate([engine.embed_sentences([text]) for text in TEXTS])
    np.testing.assert_allclose(together, alone, atol=1e-5)
    dog, puppy, tax = engine.embed_sentences(
        ["a dog runs on the beach", "a puppy runs by the sea", "annual tax report"]
    )
    assert dog @ puppy > dog @ tax + 0.3
    assert engine.embed_sentences([]).shape == (0, 384)


@pytest.mark.parametrize("has_dense", [False, True], ids=["paraphrase-multilingual-MiniLM", "distiluse"])
def test_multilingual_encoders_by_address_are_normalised(tmp_path: Path, has_dense: bool) -> None:
    """The two layouts of SIEVE's multilingual encoders, neither of unit norm by itself (formulas.md §2.4)."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Dense, Pooling, Transformer
    from transformers import BertTokenizer, DistilBertConfig, DistilBertModel

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ein", "roter", "drachen", "a", "red", "kite"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    torch.manual_seed(0)
    sizes = {"vocab_size": len(words), "max_position_embeddings": 32}
    inner = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = (
        DistilBertModel(DistilBertConfig(dim=16, n_layers=1, n_heads=2, hidden_dim=16, **sizes))
        if has_dense
        else BertModel(BertConfig(**inner, **sizes))
    )
    model.save_pretrained(tmp_path / "words")
    BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path / "words")
    modules = [Transformer(str(tmp_path / "words")), Pooling(16)]
    if has_dense:
        modules.append(Dense(16, 8, activation_function=torch.nn.Tanh()))
    library = SentenceTransformer(modules=modules, device="cpu")
    library.save(str(tmp_path / "encoder"))
    engine = load_engine("sentence_encoder", profile_of("sentence_encoder", f"path:{tmp_path / 'encoder'}"))
    texts = ["ein roter drachen", "a red kite"]
    vectors = engine.embed_sentences(texts)
    assert vectors.shape == (2, 8 if has_dense else 16)
    plain = library.encode(texts)
    assert abs(np.linalg.norm(plain, axis=1) - 1).min() > 0.05, "what the model gives is not of unit length"
    np.testing.assert_allclose(vectors, plain / np.linalg.norm(plain, axis=1, keepdims=True), atol=1e-5)
    scored = get_method("sieve").function(
        caption=["ein roter drachen"], generated_captions=[["a red kite"]], sentence_encoder=engine
    )
    assert scored.value[0] == pytest.approx(float(vectors[0] @ vectors[1]), abs=1e-5)


BERTSCORE_FOLDERS: dict[str, Callable[[Path], tuple[str, str, int]]] = {
    "minilm": lambda zoo: ("embedded:bertscore-minilm", str(resolve_address("embedded:minilm").folder), 6),
    "roberta layer 1 of 2": lambda zoo: (f"path:{zoo / 'roberta'}", str(zoo / "roberta"), 1),
}


@pytest.mark.parametrize("which", BERTSCORE_FOLDERS)
def test_bertscore_equals_the_bert_score_package(zoo: Path, which: str) -> None:
    """The fast code against the slow, obvious twin; the package itself fails on empty strings."""
    from bert_score.utils import bert_cos_score_idf, get_model, get_tokenizer

    address, folder, layer = BERTSCORE_FOLDERS[which](zoo)
    engine = load_engine("text_similarity", profile_of("text_similarity", address, layer=layer))
    candidates = ["a red kite flies", "two men fix a tractor", "noodle soup", "a red kite over the sea"]
    references = ["a kite in the sky", "mechanics repair an old tractor", "a bowl of soup on a table", TEXTS[0]]
    tokenizer = get_tokenizer(folder)
    special_ids = set(tokenizer.all_special_ids)
    weights = {i: 0.0 if i in special_ids else 1.0 for i in range(len(tokenizer))}
    twin = bert_cos_score_idf(get_model(folder, layer), references, candidates, tokenizer, weights, device="cpu")
    np.testing.assert_allclose(engine.similarity(candidates, references), twin[:, 2].numpy(), atol=1e-5)


def test_bertscore_is_pairwise_batch_invariant_and_handles_empties() -> None:
    engine = load_engine("text_similarity", profile_of("text_similarity", "embedded:bertscore-minilm"))
    candidates = ["a red kite", "a  red \n kite", "", "   ", "two dogs on a very long and very wet beach", "a red kite"]
    references = ["a red kite", "a red kite", "a red kite", "kite", "dogs", ""]
    together = engine.similarity(candidates, references)
    np.testing.assert_allclose(together[:2], 1.0, atol=1e-5)  # blanks are collapsed
    assert together[[2, 3, 5]].tolist() == [0.0, 0.0, 0.0]
    assert 0 < together[4] < 1
    alone = [engine.similarity([c], [r])[0] for c, r in zip(candidates, references, strict=True)]
    np.testing.assert_allclose(together, alone, atol=1e-5)
    order = [3, 0, 5, 4, 2, 1]
    shuffled = engine.similarity([candidates[i] for i in order], [references[i] for i in order])
    np.testing.assert_allclose(shuffled, together[order], atol=1e-5)
    assert engine.similarity([], []).shape == (0,)
    with pytest.raises(ValueError, match="one reference per candidate, got 1 candidates, 2 references"):
        engine.similarity(["a"], ["a", "b"])


def test_greedy_matching_by_hand() -> None:
    right, up = [1.0, 0.0], [0.0, 1.0]
    diagonal = [0.6, 0.8]
    candidate = (torch.tensor([right, diagonal]), torch.tensor([True, True]))
    reference = (torch.tensor([up, right, up]), torch.tensor([True, True, False]))
    # precision: right → 1, diagonal → .8, mean .9; recall: up → .8, right → 1, the third does not count: .9
    assert greedy_f1([candidate], [reference]).tolist() == pytest.approx([0.9])


def test_a_layer_beyond_the_model_is_refused(zoo: Path) -> None:
    with pytest.raises(ValueError, match=r"layer must be in \[1, 2\], got 17"):
        load_engine("text_similarity", profile_of("text_similarity", zoo / "roberta", layer=17))


# --- student from elsewhere


def test_a_published_one_logit_classifier_is_a_student(zoo: Path, tmp_path: Path) -> None:
    save_encoder(tmp_path, RobertaForSequenceClassification, 24, num_labels=1)
    engine = load_engine("student", profile_of("student", tmp_path))
    together = engine.score_captions(TEXTS)
    assert together.dtype == np.float64
    alone = [engine.score_captions([text])[0] for text in TEXTS]
    np.testing.assert_allclose(together, alone, atol=1e-6)
    save_encoder(tmp_path, RobertaForSequenceClassification, 24, num_labels=3)
    with pytest.raises(ValueError, match="has one logit, this model has 3"):
        load_engine("student", profile_of("student", tmp_path))


# --- the shipped weights


@pytest.mark.slow
def test_every_embedded_role_answers() -> None:
    clear_engines()
    profile = load_profile("embedded")
    engines = {role: load_engine(role, profile) for role in profile.roles if role not in ("student", "wordnet")}
    for role, engine in engines.items():
        assert isinstance(engine, ROLES[role])
        assert engine.identity == identify_engine(role, profile)
        assert engine.identity.revision == "shipped"
    captions = ["a red kite on the left of a blue house", "two green boats in the sea"]
    images = engines["text_to_image"].generate_images(captions, [1, 2])
    assert [image.size for image in images] == [(64, 64)] * 2
    assert engines["image_text_encoder"].embed_images(images).shape == (2, 128)
    assert [len(beams) for beams in engines["beam_captioner"].beam_captions(images, 3)] == [3, 3]
    assert [len(texts) for texts in engines["captioner"].sample_captions(images, [1, 2], 4)] == [4, 4]
    assert [len(beams) for beams in engines["semantic_decoder"].reconstruct_captions(captions)] == [3, 3]
