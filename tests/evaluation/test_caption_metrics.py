"""Caption metrics equal to the packages that define them, and reasons where they cannot be had."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from curation_assets.core.settings import Profile
from curation_assets.engines import load_engine
from curation_assets.engines.addresses import resolve_address
from curation_assets.evaluation.caption_metrics import Measured, measure_captions, tokeniser_in_use, why_approximate
from curation_assets.methods.clip_score_metric import PROMPT
from tests.support.captioning import (
    CANDIDATES,
    GOLDEN,
    REFERENCES,
    coco_captions,
    needs_java,
    without_java,
)

TEXT_METRICS = ("bleu", "meteor", "rouge_l", "cider")


def values(measured: dict[str, Measured]) -> dict[str, float | None]:
    return {key: one.value for key, one in measured.items()}


def of_package(references: Sequence[Sequence[str]], candidates: Sequence[str]) -> dict[str, float]:
    """The same metrics by pycocoevalcap's own classes."""
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.meteor.meteor import Meteor
    from pycocoevalcap.rouge.rouge import Rouge
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    tokenise = PTBTokenizer().tokenize
    truth = tokenise({i: [{"caption": text} for text in texts] for i, texts in enumerate(references)})
    results = tokenise({i: [{"caption": text}] for i, text in enumerate(candidates)})
    bleu = Bleu(4).compute_score(truth, results, verbose=0)[0]
    found = {f"bleu_{n}": float(value) for n, value in enumerate(bleu, start=1)}
    for key, metric in (("meteor", Meteor()), ("rouge_l", Rouge()), ("cider", Cider())):
        found[key] = float(metric.compute_score(truth, results)[0])
    return found


@needs_java
def test_golden_set_and_several_systems() -> None:
    """formulas.md §13.14. A system's values do not depend on the others."""
    systems = {"good": CANDIDATES, "one for all": [CANDIDATES[0]] * 4, "empty": ["", " ", ".", ""]}
    measured = measure_captions(REFERENCES, systems, metrics=TEXT_METRICS)
    assert tokeniser_in_use() == "ptb"
    assert why_approximate() is None
    assert list(measured["good"]) == ["bleu_1", "bleu_2", "bleu_3", "bleu_4", "meteor", "rouge_l", "cider"]
    assert values(measured["good"]) == pytest.approx(GOLDEN, abs=1e-9)
    assert values(measured["one for all"]) == pytest.approx(of_package(REFERENCES, systems["one for all"]), abs=1e-9)
    assert values(measured["empty"]) == pytest.approx(dict.fromkeys(GOLDEN, 0.0), abs=1e-6)


@needs_java
def test_cider_is_of_the_whole_set() -> None:
    for count, cider in ((2, 1.1211078752), (1, 0.0)):
        measured = measure_captions(REFERENCES[:count], {"a": CANDIDATES[:count]}, metrics=["cider"])
        assert values(measured["a"]) == pytest.approx({"cider": cider}, abs=1e-9)


@pytest.mark.slow
@needs_java
def test_coco_equals_pycocoevalcap() -> None:
    """5,000 images: the first caption of each against its others, to 1e-6."""
    captions = list(coco_captions().values())
    references, candidates = [texts[1:] for texts in captions], [texts[0] for texts in captions]
    measured = values(measure_captions(references, {"people": candidates}, metrics=TEXT_METRICS)["people"])
    assert measured == pytest.approx(of_package(references, candidates), abs=1e-6)
    assert measured["cider"] == pytest.approx(0.886544, abs=1e-6)
    assert measured["meteor"] == pytest.approx(0.242096, abs=1e-6)


def test_without_java_meteor_and_spice_have_a_reason_and_the_rest_is_approximate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_java(tmp_path, monkeypatch)
    measured = measure_captions(REFERENCES, {"a": CANDIDATES}, metrics=["bleu", "meteor", "rouge_l", "cider", "spice"])
    assert tokeniser_in_use() == "approximate"
    assert "no Java on the PATH; install a Java runtime" in str(why_approximate())
    found = values(measured["a"])
    for key in ("meteor", "spice"):
        assert found.pop(key) is None, "what is not measured is never a zero"
        assert "no Java on the PATH; install a Java runtime" in str(measured["a"][key].reason)
    # our tokeniser gives the golden set the tokens of the original
    assert found == pytest.approx({key: GOLDEN[key] for key in found}, abs=1e-9)


def test_bertscore_over_several_references_equals_the_package() -> None:
    """The best reference of each image, mean over images; the same small model in both."""
    from bert_score.utils import bert_cos_score_idf, get_model, get_tokenizer

    folder = str(resolve_address("embedded:minilm").folder)
    roles = {"text_similarity": "embedded:bertscore-minilm"}
    chosen = Profile(name="test", roles=roles, generation={"text_similarity": {"layer": 6}}, device="cpu")
    engine = load_engine("text_similarity", chosen)
    measured = measure_captions(REFERENCES, {"a": CANDIDATES}, metrics=["bert_score"], similarity=engine)  # type: ignore[arg-type]
    tokenizer = get_tokenizer(folder)
    weights = {i: 0.0 if i in tokenizer.all_special_ids else 1.0 for i in range(len(tokenizer))}
    flat = [(text, caption) for texts, caption in zip(REFERENCES, CANDIDATES, strict=True) for text in texts]
    f1 = bert_cos_score_idf(get_model(folder, 6), *map(list, zip(*flat, strict=True)), tokenizer, weights, device="cpu")
    best, row = [], 0
    for texts in REFERENCES:  # as bert_score.score does for a list of references
        best.append(f1[row : row + len(texts), 2].max())
        row += len(texts)
    assert values(measured["a"])["bert_score"] == pytest.approx(float(np.mean(best)), abs=1e-5)


VECTORS = {"right": (1.0, 0.0), "up": (0.0, 1.0), "both": (0.6, 0.8), "left": (-1.0, 0.0)}


class PlaneEncoder:
    """Unit vectors in the plane: a red image points right, a black one up; texts by name."""

    identity = None

    def embed_images(self, images: Sequence[Image.Image]) -> np.ndarray:
        return np.array([(1.0, 0.0) if image.getpixel((0, 0))[0] else (0.0, 1.0) for image in images])  # type: ignore[index]

    def embed_texts(self, texts: Sequence[str]) -> np.ndarray:
        return np.array([VECTORS[text.removeprefix(PROMPT)] for text in texts if text.startswith(PROMPT)])


RED, BLACK = Image.new("RGB", (1, 1), "red"), Image.new("RGB", (1, 1))


def test_clip_scores_by_hand() -> None:
    """Hessel et al. 2021 §3: 2.5 · max(cos, 0), and the harmonic mean with max(best cosine to a reference, 0)."""
    references = [["up", "both"], ["right"], ["up", "left"], ["left"]]
    measured = measure_captions(
        references,
        {"a": ["right", "both", "up", "right"], "b": ["left", "left", "left", "left"]},
        metrics=["clip_score", "ref_clip_score"],
        encoder=PlaneEncoder(),  # type: ignore[arg-type]
        images=[RED, BLACK, RED, RED],
    )
    # a: cosines to the image 1, .8, 0, 1; best to a reference .6, .6, 1, −1 → 0
    clip_scores, nearest = np.array([2.5, 2.0, 0.0, 2.5]), np.array([0.6, 0.6, 1.0, 0.0])
    expected = (2 * clip_scores[:2] * nearest[:2] / (clip_scores[:2] + nearest[:2])).sum() / 4
    assert values(measured["a"]) == pytest.approx({"clip_score": 7.0 / 4, "ref_clip_score": expected})
    assert values(measured["b"]) == {"clip_score": 0.0, "ref_clip_score": 0.0}


def test_what_is_not_given_is_a_reason() -> None:
    chosen = {"metrics": ["bert_score", "clip_score"]}
    measured = measure_captions([["a"]], {"a": ["a"]}, **chosen)["a"]  # type: ignore[arg-type]
    assert measured["bert_score"] == Measured(None, "BERTScore needs a model of the role text_similarity")
    assert measured["clip_score"] == Measured(None, "CLIPScore needs a model of the role image_text_encoder")
    measured = measure_captions([["a"]], {"a": ["a"]}, metrics=["clip_score"], encoder=PlaneEncoder())["a"]  # type: ignore[arg-type]
    assert measured["clip_score"] == Measured(None, "CLIPScore needs the images")


def test_wrong_input_is_refused() -> None:
    with pytest.raises(ValueError, match="no caption metric 'bleu_4'; expected some of bleu, meteor"):
        measure_captions([["a"]], {"a": ["a"]}, metrics=["bleu_4"])
    with pytest.raises(ValueError, match="second: expected one candidate per list of references, got 2 and 1"):
        measure_captions([["a"]], {"first": ["a"], "second": ["a", "b"]}, metrics=["bleu"])
    with pytest.raises(ValueError, match="image 1 has no reference caption"):
        measure_captions([["a"], []], {"a": ["a", "b"]}, metrics=["bleu"])
    with pytest.raises(ValueError, match="one image per list of references, got 2 and 1"):
        measure_captions(
            [["up"]],
            {"a": ["up"]},
            metrics=["clip_score"],
            encoder=PlaneEncoder(),  # type: ignore[arg-type]
            images=[RED, RED],
        )
