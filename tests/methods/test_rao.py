"""Rao et al.: object–word quality, relatedness, the detectors and word vectors behind them."""

import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from PIL import Image
from typer.testing import CliRunner

from curation_assets.cli import app
from curation_assets.core.settings import load_profile
from curation_assets.engines import load_engine
from curation_assets.methods import get_method
from curation_assets.numeric.metrics.comparison import data_set_scores
from curation_assets.numeric.object_word_quality import label_names, object_word_cosines, top_pair_sum, words_of
from curation_assets.numeric.relatedness import (
    WordWeights,
    add_document_frequencies,
    fit_word_weights,
    relatedness,
)
from curation_assets.numeric.separation import roc_auc
from curation_assets.scoring.derived import derive_column
from curation_assets.scoring.files import read_captions, score_file
from curation_assets.scoring.samples import score_samples
from curation_assets.world.pool import plant_pool, render
from curation_assets.world.scene import render_scene
from lab.common import draw_specs
from lab.object_detector import label_scores

PROFILE = load_profile("embedded")
POOL = ["red kite beach", "tractor barn", "red tractor", "kite kite sea"]
QUERIES = ["kite over the sea", "a red tractor"]


def fitted(pool: list[str], queries: list[str]) -> WordWeights:
    frequencies: Counter[str] = Counter()
    return fit_word_weights(frequencies, add_document_frequencies(frequencies, pool), queries)


def slow_relatedness(text: str, pool: list[str], queries: list[str]) -> list[float]:
    """Cosine with each query, by the formula, dense."""
    vocabulary = sorted({word for other in pool for word in other.split()})
    idf = {word: math.log(len(pool) / sum(word in other.split() for other in pool)) for word in vocabulary}
    vector = lambda t: np.array([t.split().count(word) * idf[word] for word in vocabulary])  # noqa: E731
    one = vector(text)
    found = []
    for query in queries:
        other = vector(query)
        norm = np.linalg.norm(one) * np.linalg.norm(other)
        found.append(float(one @ other / norm) if norm else 0.0)
    return found


def test_relatedness_is_the_papers_toy_and_the_formula() -> None:
    """formulas.md §13.10."""
    found = relatedness(POOL, fitted(POOL, QUERIES))
    np.testing.assert_allclose(found, [0.471249, 0.316228, 1.0, 0.948683], atol=1e-6)
    by_query = [[0.182574, 0.288675], [0, 0.316228], [0, 1], [0.948683, 0]]
    for text, cosines in zip(POOL, by_query, strict=True):
        assert slow_relatedness(text, POOL, QUERIES) == pytest.approx(cosines, abs=1e-6)
    rng = np.random.default_rng(0)
    pool = [" ".join(rng.choice(list("abcdefghij"), size=rng.integers(1, 8))) for _ in range(30)]
    queries = [" ".join(rng.choice(list("abcdefghijxyz"), size=4)) for _ in range(7)]
    slow = [sum(slow_relatedness(text, pool, queries)) for text in pool]
    np.testing.assert_allclose(relatedness(pool, fitted(pool, queries)), slow, atol=1e-12)


def test_relatedness_edges() -> None:
    weights = fitted(["the cat", "the dog"], ["the"])
    assert weights.idf[weights.words.index("the")] == 0
    assert relatedness(["the", "", "unknown words"], weights).tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match="needs downstream texts"):
        fitted(["a"], [])
    with pytest.raises(ValueError, match="count texts, not words"):
        fit_word_weights({"a": 3}, 2, ["a"])


def test_word_weights_command_feeds_the_method(tmp_path: Path) -> None:
    (tmp_path / "pool.txt").write_text("\n".join(POOL) + "\n")
    (tmp_path / "task.txt").write_text("\n".join(QUERIES) + "\n")
    weights, out = tmp_path / "weights.parquet", tmp_path / "scores.tsv"
    run = CliRunner().invoke
    made = run(
        app,
        [
            "pool",
            "word-weights",
            str(tmp_path / "pool.txt"),
            "--related-to",
            str(tmp_path / "task.txt"),
            "--out",
            str(weights),
        ],
    )
    assert made.exit_code == 0, made.output
    profile = tmp_path / "mine.yaml"
    profile.write_text(f"roles: {{}}\nmethods: {{relatedness: {{word_weights_file: {weights}}}}}\n")
    scored = run(
        app, ["score", "relatedness", str(tmp_path / "pool.txt"), "--out", str(out), "--profile", str(profile)]
    )
    assert scored.exit_code == 0, scored.output
    values = pl.read_csv(out, separator="\t")["relatedness"].to_list()
    assert values == pytest.approx([0.471249, 0.316228, 1.0, 0.948683], abs=1e-6)
    without = get_method("relatedness").function(caption=["a"])
    assert without.reason == ["no_word_weights"]


def lookup(words: Any) -> tuple[np.ndarray, np.ndarray]:
    vectors = {"stop": (1.0, 0.0), "sign": (0.0, 1.0), "stopsign": (-1.0, 0.0), "dog": (3.0, 4.0), "red": (0.0, 2.0)}
    known = np.array([word in vectors for word in words], dtype=bool)
    return np.array([vectors.get(word, (0.0, 0.0)) for word in words]).reshape(-1, 2), known


def test_labels_of_many_words_are_means_and_synonyms_take_the_nearest() -> None:
    assert label_names("stop sign,stopsign") == [["stop", "sign"], ["stopsign"]]
    assert words_of("A dog, a Dog's bowl") == ["A", "dog", "Dog's", "bowl"]
    cosines = object_word_cosines(["stop sign,stopsign", "unknown thing"], ["red", "dog", "zyx"], lookup)
    # mean of stop and sign is (.5, .5): cosine .7071 with red, 1.4/√2 ÷ 1 with dog (.6, .8); "zyx" has no vector
    np.testing.assert_allclose(cosines, [[0.70710678, 0.98994949]], atol=1e-8)
    assert object_word_cosines(["dog", "dog"], ["red"], lookup).shape == (1, 1)
    assert object_word_cosines([], ["red"], lookup).size == 0
    assert object_word_cosines(["dog"], [], lookup).size == 0


def test_pair_sums() -> None:
    cosines = np.array([[0.9, 0.8], [0.7, -0.2]])
    assert top_pair_sum(cosines) == pytest.approx(0.9 + 0.8 + 0.7)
    assert top_pair_sum(cosines, one_to_one=True) == pytest.approx(0.9 - 0.2)
    assert top_pair_sum(np.zeros((0, 3))) == 0
    assert top_pair_sum(np.zeros((0, 3)), one_to_one=True) == 0


def test_glove_file_fills_the_role(tmp_path: Path) -> None:
    (tmp_path / "glove.txt").write_text("dog 3 4\nkite 0 1\n")
    profile = PROFILE.with_roles(word_vectors=f"path:{tmp_path / 'glove.txt'}")
    samples = pl.DataFrame(
        {
            "sample_id": [f"{i:032x}" for i in range(2)],
            "caption": ["a Dog", "?"],
            "detected_objects": [["kite"], ["kite"]],
        }
    )
    scored = score_samples(
        get_method("object_word_quality"), samples, {"word_vectors": load_engine("word_vectors", profile)}
    )
    assert scored["value"].to_list() == pytest.approx([0.8, 0.0])  # as the paper: no pair is 0
    assert scored["pair_count"].to_list() == [1, 0]


def test_lists_in_text_files_are_read(tmp_path: Path) -> None:
    rows = [["a dog", json.dumps(["dog", "stop, sign"])], ["b", "kite"], ["c", ""], ["d", "[not json"]]
    text = "caption\tdetected_objects\n" + "".join("\t".join(row) + "\n" for row in rows)
    (tmp_path / "pairs.tsv").write_text(text)
    words = {"word_vectors": get_method("object_word_quality").example.roles["word_vectors"]}
    result = score_file(get_method("object_word_quality"), tmp_path / "pairs.tsv", tmp_path / "out.parquet", words)
    assert result["object_word_quality"].to_list() == [1.0, 0.0, None, 0.0]
    assert result["object_word_quality_reason"].to_list() == [None, None, "no_detected_objects", None]
    assert read_captions(tmp_path / "pairs.tsv").height == 4


def test_embedded_detector_names_what_a_scene_holds() -> None:
    specs = draw_specs(60, 777, group=1)
    detector = load_engine("object_detector", PROFILE)
    found = detector.detect_objects([render_scene(spec) for spec in specs])  # type: ignore[attr-defined]
    quality = label_scores([[one.label for one in objects] for objects in found], specs)
    assert quality["precision"] > 0.75
    assert quality["recall"] > 0.8
    for objects in found:
        assert [one.score for one in objects] == sorted((one.score for one in objects), reverse=True)
        assert all(0 <= one.box[0] < one.box[2] <= 128 and 0 <= one.box[1] < one.box[3] <= 128 for one in objects)


def test_quality_tells_mismatched_scenes_from_clean_ones() -> None:
    planted = [one for one in plant_pool(150, 3) if one.kind in ("clean", "mismatched")]
    samples = pl.DataFrame(
        {"sample_id": [f"{i:032x}" for i in range(len(planted))], "caption": [one.caption for one in planted]}
    )
    roles = {role: load_engine(role, PROFILE) for role in ("word_vectors", "object_detector")}
    scored = score_samples(
        get_method("object_word_quality"),
        samples,
        roles,
        load_image=lambda row: render(planted[int(row["sample_id"], 16)]),
    )
    is_clean = np.array([one.kind == "clean" for one in planted])
    assert roc_auc(scored["value"].to_numpy(), is_clean) > 0.8


def test_images_without_objects_and_without_pixels() -> None:
    samples = pl.DataFrame({"sample_id": ["0" * 32, "1" * 32], "has_image": [True, False]})
    found = derive_column(
        "detected_objects",
        samples,
        load_engine("object_detector", PROFILE),
        load_image=lambda row: Image.new("RGB", (40, 90), "white"),
    )
    assert found["detected_objects"].to_list() == [[], None]
    assert found["reason"].to_list() == [None, "no_image"]


def test_any_transformers_detector_loads_from_its_folder(tmp_path: Path) -> None:
    import torch
    from transformers import YolosConfig, YolosForObjectDetection, YolosImageProcessor

    torch.manual_seed(0)
    config = YolosConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=[32, 32],
        patch_size=8, num_detection_tokens=5, id2label={0: "dog", 1: "kite"}, use_mid_position_embeddings=False,
    )  # fmt: skip
    YolosForObjectDetection(config).save_pretrained(tmp_path / "yolos")
    YolosImageProcessor(size={"height": 32, "width": 32}).save_pretrained(tmp_path / "yolos")
    profile = replace(
        PROFILE.with_roles(object_detector=f"path:{tmp_path / 'yolos'}"),
        generation={"object_detector": {"threshold": 0.0, "max_boxes": 3}},
    )
    images = [Image.new("RGB", (60, 40), "red"), Image.new("RGB", (32, 32), "blue")]
    detector: Any = load_engine("object_detector", profile)
    found = detector.detect_objects(images)
    assert [len(objects) for objects in found] == [3, 3]
    assert {one.label for objects in found for one in objects} <= {"dog", "kite"}
    assert found[0][0].score >= found[0][2].score > 0
    strict = replace(profile, generation={"object_detector": {"threshold": 1.0, "min_boxes": 1}})
    assert [len(objects) for objects in load_engine("object_detector", strict).detect_objects(images)] == [1, 1]  # type: ignore[attr-defined]


def test_labels_of_a_list_by_clip(tmp_path: Path) -> None:
    (tmp_path / "nouns.txt").write_text("balloon\nmug\n\nfish\nhouse\n")
    settings = {"image_text_encoder": "embedded:clip", "count": 1, "prompt": "a {}"}
    profile = replace(
        PROFILE.with_roles(object_detector=f"path:{tmp_path / 'nouns.txt'}"), generation={"object_detector": settings}
    )
    wanted = ("balloon", "mug", "fish", "house")
    specs = [s for s in draw_specs(300, 5, group=1) if s.arrangement == "single" and s.objects[0].name in wanted]
    detector: Any = load_engine("object_detector", profile)
    found = detector.detect_objects([render_scene(spec) for spec in specs])
    right = [one[0].label == spec.objects[0].name for one, spec in zip(found, specs, strict=True)]
    assert len(right) >= 15
    assert np.mean(right) > 0.8
    with pytest.raises(ValueError, match="image_text_encoder"):
        load_engine("object_detector", replace(profile, generation={}))


def test_score_column_by_hand() -> None:
    """formulas.md §13.11: min–max per column over the rows, then the plain mean."""
    table = np.array([[10.0, 0.2, 5.0, 7.0], [20.0, 0.4, 5.0, 5.0], [15.0, 0.8, 5.0, 9.0]])
    # columns: 0, 1, .5 · 0, 1/3, 1 · constant, .5 each · .5, 0, 1
    expected = [(0 + 0 + 0.5 + 0.5) / 4, (1 + 1 / 3 + 0.5 + 0) / 4, (0.5 + 1 + 0.5 + 1) / 4]
    assert data_set_scores(table) == pytest.approx(expected)
    with pytest.raises(ValueError, match="without gaps"):
        data_set_scores(np.array([[1.0, np.nan], [1.0, 2.0]]))
