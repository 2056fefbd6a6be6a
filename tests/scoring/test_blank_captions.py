"""Blank captions are handled once, in scoring: the method's reason and no call, or the method's own value."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from PIL import Image

from curation_assets.core.settings import load_profile
from curation_assets.engines import load_engine
from curation_assets.methods import Values, all_methods, get_method
from curation_assets.scoring.batches import BrokenEngineError
from curation_assets.scoring.samples import score_samples
from tests.support.tiny_wordnet import write_wordnet

CAPTIONS = ["", " \t", "a dog runs near a red kite"]
EMPTY = ["empty_caption", "empty_caption", None]
VALUED: list[str | None] = [None, None, None]

#: Reasons of CAPTIONS by every method that reads them; settings are those of the worked example.
REASONS: dict[str, list[str | None]] = {
    "ave_clip": EMPTY,
    "clip_stroop": EMPTY,
    "complexity_action": EMPTY,
    "conceptual_captions": EMPTY,
    "conceptual_captions_overlap": EMPTY,
    "conceptual_captions_transform": EMPTY,
    "concreteness_lexicon": EMPTY,
    "icc": EMPTY,
    "reward": EMPTY,
    "sba": EMPTY,
    "scene_bank": EMPTY,
    "sentence_bottleneck": EMPTY,
    "vba": EMPTY,
    "clip_score": VALUED,
    "clip_score_metric": VALUED,
    "datacomp_basic": VALUED,
    "datacomp_caption": VALUED,
    "datacomp_text": VALUED,
    "english": VALUED,
    "image_based": VALUED,
    "laion_filter": VALUED,
    "object_word_quality": VALUED,
    "personal_data": VALUED,
    "relatedness": VALUED,
    "sieve": VALUED,
    "text_spotting": VALUED,
    "tmars": VALUED,
}
WITH_REASON = [method for method in all_methods().values() if method.blank_caption is not None]


def samples_of(captions: list[str | None]) -> pl.DataFrame:
    """Rows with every column that a method reads."""
    n = len(captions)
    box = {"text": "summer", "confidence": 0.9, "polygon": [0.0, 0.0, 9.0, 0.0, 9.0, 9.0]}
    return pl.DataFrame(
        {
            "sample_id": [f"{i:032x}" for i in range(n)],
            "caption": captions,
            "generated_captions": [["a dog", "a red kite"]] * n,
            "detected_objects": [["dog"]] * n,
            "text_boxes": [[box]] * n,
            "image_embedding": [[1.0, 0.0]] * n,
            "original_width": [300] * n,
            "original_height": [300] * n,
        }
    )


def red_image(row: dict[str, Any]) -> Image.Image:
    return Image.new("RGB", (64, 64), "red")


@pytest.mark.parametrize("name", REASONS)
def test_every_method_gives_blank_captions_the_reason_or_value_that_it_documents(name: str, tmp_path: Path) -> None:
    write_wordnet(tmp_path)
    profile = load_profile("embedded").with_roles(student="embedded:icc_student", wordnet=f"path:{tmp_path}")
    method = get_method(name)
    method = replace(method, function=partial(method.function, **method.example.settings))
    roles = {role: load_engine(role, profile) for role in method.roles}
    scored = score_samples(method, samples_of([*CAPTIONS]), roles, load_image=red_image)
    assert scored["reason"].to_list() == REASONS[name]
    assert scored["value"].is_null().to_list() == [reason is not None for reason in REASONS[name]]


@pytest.mark.parametrize("method", WITH_REASON, ids=lambda method: method.name)
def test_blank_captions_cost_no_model(method: Any) -> None:
    scored = score_samples(method, samples_of(["", " \n"]), dict.fromkeys(method.roles), load_image=red_image)
    assert scored["reason"].to_list() == [method.blank_caption] * 2
    assert scored.drop("sample_id", "reason").null_count().row(0) == (2,) * (scored.width - 2)


def test_a_blank_caption_is_the_last_reason_of_a_row() -> None:
    """Rows that upstream dropped, null captions and images that are absent keep their own reasons."""
    passed: list[str] = []

    def reward(image: list[Image.Image], caption: list[str], reward_model: None) -> Values:
        passed.extend(caption)
        return Values.of(np.ones(len(caption)))

    method = replace(get_method("reward"), function=reward)
    samples = samples_of([" ", None, " ", " ", "a dog"]).with_columns(
        status=pl.Series(["dropped", "kept", "kept", "kept", "kept"]),
        reason=pl.Series(["duplicate_sample_id", None, None, None, None]),
        has_image=pl.Series([True, True, False, True, True]),
    )
    scored = score_samples(method, samples, {"reward_model": None}, load_image=red_image)
    expected = ["upstream_dropped:duplicate_sample_id", "no_caption", "no_image", "empty_caption", None]
    assert scored["reason"].to_list() == expected
    assert set(passed) == {"a dog"} | set(method.example.columns["caption"]), "the example gives the types of details"


def test_a_blank_caption_is_no_answer_of_an_engine() -> None:
    def icc(caption: list[str], student: None, language_identifier: None) -> Values:
        if "boom" in caption:
            raise RuntimeError("a tensor of a strange shape")
        return Values.of(np.ones(len(caption)))

    method = replace(get_method("icc"), function=icc)
    with pytest.raises(BrokenEngineError, match="every sample"):
        score_samples(method, samples_of(["", "boom", " "]), {"student": None, "language_identifier": None})
