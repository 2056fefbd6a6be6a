"""The role hyperbolic_text_encoder: a tiny CLIP of random weights, loaded by the production code, and the method."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from transformers import AutoTokenizer, CLIPModel

from curation_assets.core.roles import HyperbolicTextEncoder
from curation_assets.core.settings import load_profile
from curation_assets.engines import identify_engine, load_engine
from curation_assets.methods import get_method
from curation_assets.numeric.hyperbolic import entailment
from tests.support.tiny_models import TEXTS, profile_of, save_clip

WIDTH = 16  # of the tiny CLIP's projection


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    save_clip(tmp_path)
    save_space(tmp_path)
    return tmp_path


def save_space(folder: Path, width: int = WIDTH, **changed: np.ndarray) -> None:
    images = np.random.default_rng(0).normal(size=(40, width)).astype(np.float32) * 0.2
    space = {"reference_images": images, "curvature": np.array(0.7), "text_scale": np.array(0.25), **changed}
    save_file({name: np.asarray(value, np.float32) for name, value in space.items()}, folder / "hyperbolic.safetensors")


def test_vectors_are_the_projected_states_times_the_scale(folder: Path) -> None:
    engine = load_engine("hyperbolic_text_encoder", profile_of("hyperbolic_text_encoder", folder))
    assert isinstance(engine, HyperbolicTextEncoder)
    captions = [text for text in TEXTS if text.strip()]
    tokenizer, model = AutoTokenizer.from_pretrained(folder), CLIPModel.from_pretrained(folder).eval()
    expected = []
    for text in captions:
        with torch.inference_mode():
            inputs = tokenizer([text], truncation=True, return_tensors="pt")
            pooled = model.text_model(**inputs).pooler_output
            expected.append(0.25 * model.text_projection(pooled)[0].numpy())
    vectors = engine.embed_texts(captions)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    assert not np.allclose(np.linalg.norm(vectors, axis=1), 1.0)
    assert engine.embed_texts([]).shape == (0, WIDTH)
    assert engine.identity == identify_engine("hyperbolic_text_encoder", profile_of("hyperbolic_text_encoder", folder))
    values = get_method("text_specificity").function(captions, engine).value
    by_hand = [entailment(vectors[at : at + 1], engine.reference_images, 0.7).mean() for at in range(len(captions))]
    np.testing.assert_allclose(values, by_hand, atol=1e-9)
    assert len(set(values.round(6))) == len(captions)
    assert get_method("text_specificity").function([], engine).value.shape == (0,)


def test_other_reference_images_are_another_model(folder: Path) -> None:
    profile = profile_of("hyperbolic_text_encoder", folder)
    before = load_engine("hyperbolic_text_encoder", profile).identity
    save_space(folder, curvature=np.array(0.8))
    after = load_engine("hyperbolic_text_encoder", profile)
    assert after.identity != before
    assert after.curvature == pytest.approx(0.8)


@pytest.mark.parametrize(
    "changed",
    [
        {"curvature": np.array(0.0)}, {"text_scale": np.array([1.0, 2.0])},
        {"reference_images": np.zeros((0, WIDTH))}, {"reference_images": np.zeros((3, WIDTH + 1))},
    ],
    ids=["flat", "two scales", "no image", "another width"],
)  # fmt: skip
def test_another_space_is_refused(folder: Path, changed: dict[str, np.ndarray]) -> None:
    save_space(folder, **changed)
    with pytest.raises(ValueError, match=r"expected hyperbolic.safetensors with reference_images \(R, 16\)"):
        load_engine("hyperbolic_text_encoder", profile_of("hyperbolic_text_encoder", folder))


def test_a_plain_clip_and_an_empty_role_are_refused(folder: Path) -> None:
    (folder / "hyperbolic.safetensors").unlink()
    with pytest.raises(ValueError, match=r"got no file; docs/user/formulas.md"):
        load_engine("hyperbolic_text_encoder", profile_of("hyperbolic_text_encoder", folder))
    with pytest.raises(ValueError, match="fills no role 'hyperbolic_text_encoder'"):
        load_engine("hyperbolic_text_encoder", load_profile("embedded"))
