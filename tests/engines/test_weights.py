"""The shipped weights: as the manifest says, small, and the same model in every library."""

import hashlib
import json

import numpy as np
import pytest
import torch
from PIL import Image

from curation_assets.engines.addresses import WEIGHTS_ROOT
from curation_assets.engines.clip_conversion import to_open_clip_state_dict
from curation_assets.world.scene import draw_spec, render_scene
from lab.scenes import model_view

WEIGHTS = WEIGHTS_ROOT
MANIFEST = json.loads((WEIGHTS / "manifest.json").read_text())


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def clip():
    from transformers import CLIPModel

    return CLIPModel.from_pretrained(WEIGHTS / "clip", dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(WEIGHTS / "clip")


@pytest.mark.parametrize("model", sorted(MANIFEST["models"]))
def test_files_match_the_manifest(model):
    listed = MANIFEST["models"][model]["files"]
    present = {
        str(p.relative_to(WEIGHTS / model)) for p in (WEIGHTS / model).rglob("*") if p.is_file() and p.name[0] != "."
    }
    assert present == set(listed)
    for name, facts in listed.items():
        data = (WEIGHTS / model / name).read_bytes()
        assert len(data) == facts["bytes"], name
        assert hashlib.sha256(data).hexdigest() == facts["sha256"], name


def test_all_weights_fit_in_60_mb():
    assert sum(p.stat().st_size for p in WEIGHTS.rglob("*") if p.is_file()) <= 60e6


def test_open_clip_and_transformers_agree(clip, tokenizer):
    import open_clip

    settings = json.loads((WEIGHTS / "clip/open_clip_config.json").read_text())
    twin = open_clip.model.CLIP(**settings["model_cfg"]).eval()
    twin.load_state_dict(to_open_clip_state_dict(clip.state_dict()), strict=True)
    pixels = torch.randn(4, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    texts = ["a red mug", "THREE BLUE BOATS IN THE SEA", "hope and trust", "ça, 中文 🎈", ""]
    ids = tokenizer(texts, padding="max_length", truncation=True, return_tensors="pt")["input_ids"]
    assert ids.max(dim=1).values.tolist() == [clip.config.text_config.eos_token_id] * 5
    with torch.no_grad():
        image = clip.visual_projection(clip.vision_model(pixels).pooler_output)
        text = clip.text_projection(clip.text_model(input_ids=ids).pooler_output)
        assert (image - twin.encode_image(pixels)).abs().max() < 1e-4 * image.abs().max()
        assert (text - twin.encode_text(ids)).abs().max() < 1e-4 * text.abs().max()
        unit = torch.nn.functional.normalize
        assert (unit(image) - unit(twin.encode_image(pixels))).abs().max() < 1e-5
        assert (unit(text) - unit(twin.encode_text(ids))).abs().max() < 1e-5


def test_both_preprocessings_agree_to_a_grey_level():
    from open_clip.transform import PreprocessCfg, image_transform_v2
    from transformers import CLIPImageProcessor

    settings = json.loads((WEIGHTS / "clip/open_clip_config.json").read_text())
    transform = image_transform_v2(PreprocessCfg(**settings["preprocess_cfg"]), is_train=False)
    processor = CLIPImageProcessor.from_pretrained(WEIGHTS / "clip")
    noise = np.random.default_rng(0).integers(0, 256, (90, 200, 3), dtype=np.uint8)
    for image in (render_scene(draw_spec(np.random.default_rng(1))), Image.fromarray(noise)):
        by_transformers = processor([image], return_tensors="pt")["pixel_values"][0]
        by_open_clip = transform(image)
        by_us = torch.from_numpy(model_view(image).copy()).permute(2, 0, 1).float() / 127.5 - 1
        assert (by_transformers - by_open_clip).abs().mean() < 0.5 / 127.5
        assert (by_us - by_open_clip).abs().max() < 1e-6


@pytest.mark.parametrize("text", ["a red mug", "A  RED\tMUG!\n", "ÀÉÎ çß", "中文 한국어 🎈👩‍🚀", "\u0000 \u200b", ""])
def test_tokenizer_gives_any_text_back(tokenizer, text):
    ids = tokenizer(text)["input_ids"]
    assert ids[0] == tokenizer.bos_token_id
    assert ids[-1] == tokenizer.eos_token_id == len(tokenizer) - 1
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
