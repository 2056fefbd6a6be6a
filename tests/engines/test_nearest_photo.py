"""nearest_photo: a bank of photographs' vectors stands where VBA draws; the bank of captions reads what it found."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from curation_assets.core.errors import ModelUnavailableError
from curation_assets.core.roles import ModelIdentity, PhotoVector
from curation_assets.core.settings import Profile
from curation_assets.engines import load_engine
from curation_assets.engines.nearest_captions import NearestCaptions
from curation_assets.engines.nearest_photo import NearestPhoto, from_stored, to_stored, write_bank
from curation_assets.methods.vba import vba

ENCODER = "embedded:photo_pair"
CAPTIONS = ["a dog runs on a beach", "two men play football", "a red bus in a street", "a bowl of soup on a table"]


@pytest.fixture(scope="module")
def encoder() -> Any:
    return load_engine("image_text_encoder", Profile("test", {"image_text_encoder": ENCODER}, device="cpu"))


def bank(folder: Path, encoder: Any, vectors: np.ndarray, made_by: ModelIdentity | None = None) -> Profile:
    """A profile whose text_to_image is this bank, beside the shipped bank of captions."""
    folder.mkdir()
    write_bank(folder, vectors, made_by or encoder.identity)
    roles = {"text_to_image": f"path:{folder}", "beam_captioner": "embedded:nearest_captions"}
    return Profile("test", {**roles, "text_similarity": "embedded:bertscore-minilm"}, device="cpu")


@pytest.mark.slow
def test_the_nearest_vector_is_found_and_its_captions_are_read(tmp_path: Path, encoder: Any) -> None:
    """Photographs that lie exactly where a caption lies: each caption finds its own, and gets that caption's kin."""
    vectors = encoder.embed_texts(CAPTIONS)
    profile = bank(tmp_path / "bank", encoder, vectors)
    painter, captioner = (load_engine(role, profile) for role in ("text_to_image", "beam_captioner"))
    assert isinstance(painter, NearestPhoto)
    assert isinstance(captioner, NearestCaptions)
    found = painter.generate_images([*CAPTIONS, CAPTIONS[1]], [0] * 5)
    for photo, vector in zip(found, [*vectors, vectors[1]], strict=True):
        np.testing.assert_allclose(photo.vector, vector, atol=0.01)  # int8
    written = captioner.beam_captions(found, 3)
    assert [len(beams) for beams in written] == [3] * 5
    assert written[1] == written[4]
    cosines = vectors[0] @ captioner.vectors.T
    assert written[0][0] == captioner.captions[int(cosines.argmax())]


@pytest.mark.slow
def test_vba_by_retrieval_prefers_what_can_be_seen(tmp_path: Path, encoder: Any) -> None:
    profile = bank(tmp_path / "bank", encoder, encoder.embed_texts(CAPTIONS))
    engines = {role: load_engine(role, profile) for role in ("text_to_image", "beam_captioner", "text_similarity")}
    captions = ["a dog runs along the beach", "the best values of our company"]
    got = vba(captions, ["0" * 32, "1" * 32], beams=5, **engines)  # type: ignore[arg-type]
    assert got.reason == [None, None]
    assert got.value[0] > got.value[1] + 0.1
    assert all(len(beams) == 5 for beams in got.details["reconstructions"])


def test_one_caption_gets_one_photo_whatever_its_neighbours(tmp_path: Path, encoder: Any) -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(50, encoder.head.width))
    painter: Any = load_engine("text_to_image", bank(tmp_path / "bank", encoder, vectors))
    together = painter.generate_images(CAPTIONS, [0] * 4)
    alone = [painter.generate_images([caption], [7])[0] for caption in CAPTIONS]
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_array_equal(one.vector, other.vector)
    with pytest.raises(ValueError, match="expected one seed per caption, got 4 captions and 1 seeds"):
        painter.generate_images(CAPTIONS, [0])


def test_stored_vectors_keep_their_direction() -> None:
    vectors = np.random.default_rng(0).normal(size=(20, 64))
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert (from_stored(to_stored(unit)) * unit).sum(axis=1).min() > 0.9995


def test_banks_of_two_encoders_are_refused(tmp_path: Path, encoder: Any) -> None:
    vectors = encoder.embed_texts(CAPTIONS)
    other = bank(tmp_path / "bank", encoder, vectors, ModelIdentity(ENCODER, "shipped", "0" * 64))
    with pytest.raises(ValueError, match="fitted on embedded:photo_pair with weights 000000000000, got"):
        load_engine("text_to_image", other)
    captioner: Any = load_engine(
        "beam_captioner", Profile("test", {"beam_captioner": "embedded:nearest_captions"}, device="cpu")
    )
    with pytest.raises(ValueError, match="need banks of one encoder"):
        captioner.beam_captions([PhotoVector(vectors[0], "f" * 64)], 2)


def test_a_changed_bank_is_not_loaded(tmp_path: Path, encoder: Any) -> None:
    profile = bank(tmp_path / "bank", encoder, encoder.embed_texts(CAPTIONS))
    card = json.loads((tmp_path / "bank" / "card.json").read_text())
    (tmp_path / "bank" / "card.json").write_text(json.dumps({**card, "photos_sha256": "0" * 64}))
    with pytest.raises(ModelUnavailableError, match=r"photos\.safetensors: expected sha256 000000000000"):
        load_engine("text_to_image", profile)
