"""curate evaluate captions: its table, its JSON, and a machine without Java."""

import json
from functools import partial
from pathlib import Path

import pytest
from PIL import Image

from tests.support.captioning import CANDIDATES, GOLDEN, REFERENCES, needs_java, without_java, write_coco
from tests.support.command import curate

evaluate = partial(curate, "evaluate", "captions")


@needs_java
def test_values_of_the_golden_set(tmp_path: Path) -> None:
    results, annotations = write_coco(tmp_path, REFERENCES, CANDIDATES)
    result = evaluate("--hypotheses", results, "--references", annotations, "--json")
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)
    assert (content["images"], content["references"], content["tokeniser"]) == (4, 11, "ptb")
    measured = content["metrics"]
    assert {key: measured[key]["value"] for key in GOLDEN} == pytest.approx(GOLDEN, abs=1e-9)
    assert 0.5 < measured["bert_score"]["value"] < 1
    assert content["models"] == {"text_similarity": "embedded:bertscore-minilm"}
    assert "clip_score" not in measured
    spice = measured["spice"]
    assert (spice["value"] is None) == bool(spice["reason"])


def test_without_java_the_table_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results, annotations = write_coco(tmp_path, REFERENCES, CANDIDATES)
    (tmp_path / "bin").mkdir()
    without_java(tmp_path / "bin", monkeypatch)
    metrics = "bleu, meteor,cider"
    result = evaluate("--hypotheses", results, "--references", annotations, "--metrics", metrics)
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["4", "images,", "11", "references"] in lines
    assert ["meteor", "–", "4"] in lines
    assert ["cider", "1.6294", "4"] in lines
    assert "meteor: not measured, no Java on the PATH; install a Java runtime" in result.stdout
    assert "tokens: approximate, no Java on the PATH" in result.stdout


def test_clip_scores_read_a_folder_of_images(tmp_path: Path) -> None:
    results, annotations = write_coco(tmp_path, REFERENCES, CANDIDATES)
    arguments = ["--hypotheses", results, "--references", annotations, "--metrics", "clip_score,ref_clip_score"]
    result = evaluate(*arguments)
    assert result.exit_code == 1
    assert "name their folder with --images" in result.stderr
    for i in range(1, 5):
        Image.new("RGB", (64, 64), (60 * i, 20, 90)).save(tmp_path / f"{i:012d}.png")
    result = evaluate(*arguments, "--images", tmp_path, "--role", "image_text_encoder=embedded:clip", "--json")
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)
    assert content["models"] == {"image_text_encoder": "embedded:clip"}
    for key in ("clip_score", "ref_clip_score"):
        assert 0 <= content["metrics"][key]["value"] <= 2.5


def test_wrong_words_are_sentences(tmp_path: Path) -> None:
    results, annotations = write_coco(tmp_path, REFERENCES, CANDIDATES)
    for metrics, sentence in (("bleu_4", "no caption metric 'bleu_4'"), (",", "--metrics names none")):
        result = evaluate("--hypotheses", results, "--references", annotations, "--metrics", metrics)
        assert result.exit_code == 1
        assert sentence in result.stderr
    result = evaluate("--hypotheses", tmp_path / "absent.json", "--references", annotations)
    assert result.exit_code == 1
    assert "no file" in result.stderr
