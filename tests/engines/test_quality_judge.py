"""The judges on a tiny LLaVA in the real layout: answers as numbers, a head, one pair as among others."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import (
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
)

from curation_assets.core.settings import load_profile
from curation_assets.engines import load_engine
from curation_assets.engines.quality_judge import HEAD, PROMPTS, score_in
from tests.support.tiny_models import VISION, WIDTH, make_images, make_tokenizer, of_texts, small_processor

CAPTIONS = ["a red kite over the sea", "two dogs", "the wet beach"]


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llava")
    tokenizer = make_tokenizer(folder)
    tokenizer.model_max_length = 512
    torch.manual_seed(0)
    text = LlamaConfig(**of_texts(tokenizer, 512))
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(**VISION), text_config=text, vision_feature_layer=-1,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
    )  # fmt: skip
    LlavaForConditionalGeneration(config).save_pretrained(folder)
    LlavaProcessor(
        small_processor(), tokenizer, patch_size=VISION["patch_size"], vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    ).save_pretrained(folder)  # fmt: skip
    return folder


def judge(folder: Path, **settings: object):
    profile = load_profile("embedded").with_roles(quality_judge=f"path:{folder}")
    return load_engine("quality_judge", profile.with_generation("quality_judge", **settings) if settings else profile)


def test_answers_are_numbers_or_nothing() -> None:
    answers = ["85", "Score: 85/100", " 7.5.", "none", "-3", "185", "0"]
    np.testing.assert_array_equal([score_in(one) for one in answers], [85, 85, 7.5, np.nan, np.nan, np.nan, 0])


@pytest.mark.parametrize("criterion", PROMPTS)
def test_every_criterion_gives_a_number_or_nan(llava: Path, criterion: str) -> None:
    scores = judge(llava, criterion=criterion).judge_pairs(make_images(3), CAPTIONS)
    assert scores.shape == (3,)
    assert scores.dtype == np.float64
    assert (np.isnan(scores) | ((scores >= 0) & (scores <= 100))).all()


def test_what_the_model_writes_is_what_counts(llava: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random weights write no number; with the digits' token always likeliest they do."""
    engine = judge(llava)
    seven = engine.processor.tokenizer.convert_tokens_to_ids("7")
    head = engine.model.lm_head
    bias = torch.zeros(head.out_features)
    bias[seven] = 1e4
    monkeypatch.setattr(head, "bias", torch.nn.Parameter(bias))
    monkeypatch.setattr(engine, "max_new_tokens", 2)
    assert engine.judge_pairs(make_images(2), CAPTIONS[:2]).tolist() == [77, 77]


def test_a_head_beside_the_model_scores_each_pair_by_itself(llava: Path) -> None:
    path = llava / HEAD
    save_file({"weight": torch.ones(1, WIDTH), "bias": torch.tensor([1.5])}, path)
    try:
        engine = judge(llava, criterion="caption_text_quality")
        images = make_images(3)
        together = engine.judge_pairs(images, CAPTIONS)
        alone = [engine.judge_pairs([image], [text])[0] for image, text in zip(images, CAPTIONS, strict=True)]
        np.testing.assert_allclose(together, alone, atol=1e-4)
        assert len(set(together.round(5))) > 1
        save_file({"weight": torch.ones(1, WIDTH + 1), "bias": torch.zeros(1)}, path)
        with pytest.raises(ValueError, match=rf"expected weight \(1, {WIDTH}\)"):
            judge(llava, criterion="semantic_understanding")
    finally:
        path.unlink()


def test_settings_are_checked(llava: Path) -> None:
    with pytest.raises(ValueError, match="did you mean 'caption_text_quality'"):
        judge(llava, criterion="caption_quality")
    with pytest.raises(ValueError, match=r"must hold \{caption\}"):
        judge(llava, prompt="Is it good?")
