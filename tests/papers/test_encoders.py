"""python -m benchmarks.papers retrieval and zero-shot, end to end with the embedded profile on drawn scenes."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from benchmarks.papers import encoder_measures
from benchmarks.papers.__main__ import app
from curation_assets.core.progress import Silent
from curation_assets.core.settings import load_profile
from curation_assets.engines import load_engine
from curation_assets.evaluation.sets.read_set import EvaluationImage, load_image, read_evaluation_set
from curation_assets.stores.images import ImageLimits
from curation_assets.world.grammar import concrete_caption
from curation_assets.world.scene import RADIUS_PX, PlacedObject, SceneSpec, draw_spec, render_scene
from curation_assets.world.shapes import OBJECTS
from tests.support.evaluation_folders import write_jpeg, write_json
from tests.support.paths import shared

SCENES, CAPTIONS = 20, 2
CLASSES = OBJECTS[:7]


def papers(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})


@pytest.fixture(scope="module")
def encoder() -> Any:
    return load_engine("image_text_encoder", load_profile("embedded"))


@pytest.fixture(scope="module")
def coco(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Drawn scenes as Karpathy's COCO, two captions each; a last image is cut, and one has no file."""
    root = tmp_path_factory.mktemp("coco")
    rng = np.random.default_rng(4)
    entries = []
    for number in range(SCENES + 2):
        spec = draw_spec(rng)
        path = root / "val2014" / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        if number <= SCENES:
            render_scene(spec).save(path, quality=95)
        if number == SCENES:
            path.write_bytes(path.read_bytes()[:400])
        texts = [{"raw": concrete_caption(spec, rng)} for _ in range(CAPTIONS)]
        entries.append({"filepath": "val2014", "filename": path.name, "cocoid": number, "split": "test"})
        entries[-1]["sentences"] = texts
    write_json(root / "dataset_coco.json", {"dataset": "coco", "images": entries})
    return root


def test_retrieval_equals_the_embeddings_sorted(coco: Path, encoder: Any, tmp_path: Path) -> None:
    result = papers("retrieval", coco, "--profile", "embedded", "--json", "--home", tmp_path)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    images = read_evaluation_set(coco).images[:SCENES]
    captions = [caption for image in images for caption in image.captions]
    scores = encoder.embed_texts(captions) @ encoder.embed_images([load_image(image) for image in images]).T  # (T, I)
    own = np.repeat(np.arange(SCENES), CAPTIONS)
    for k in (1, 5, 10):
        to_image = np.mean([own[t] in np.argsort(-scores[t])[:k] for t in range(len(captions))])
        to_text = np.mean([i in own[np.argsort(-scores[:, i])[:k]] for i in range(SCENES)])
        assert found["metrics"][f"text_to_image_recall@{k}"] == pytest.approx(to_image)
        assert found["metrics"][f"image_to_text_recall@{k}"] == pytest.approx(to_text)
        low, high = found["intervals"][f"text_to_image_recall@{k}"]
        assert low <= to_image <= high
    assert found["metrics"]["text_to_image_recall@1"] > 3 * found["chance"]["text_to_image_recall@1"]
    assert found["left_out"] == {"image_not_found": 1, "image_truncated": 1}
    assert found["n"] == {"images": SCENES, "captions": SCENES * CAPTIONS}
    assert found["model"] == vars(encoder.identity)
    assert (found["set"]["name"], found["set"]["layout"]) == ("coco_test", "karpathy")
    assert not list((tmp_path / "evaluation").rglob("*.parquet"))


def test_retrieval_for_people_names_the_model_the_number_and_what_is_left_out(coco: Path, tmp_path: Path) -> None:
    options = ("--profile", "embedded", "--limit", 5, "--captions-per-image", 1, "--home", tmp_path)
    result = papers("retrieval", coco, *options)
    assert result.exit_code == 0, result.output
    assert "coco_test (karpathy): 5 images, 5 captions" in result.stdout
    assert "Model: embedded:clip, revision shipped, weights sha256" in result.stdout
    assert "Left out: 16 over_limit" in result.stdout
    assert "Left out: 21 caption_over_count" in result.stdout
    assert "Only 5 images: too few to tell models apart" in result.stderr


def test_another_encoder_is_named_by_role(coco: Path, tmp_path: Path) -> None:
    options = ("--profile", "embedded", "--role", "image_text_encoder=path:/no/such/folder", "--home", tmp_path)
    result = papers("retrieval", coco, *options)
    assert result.exit_code == 1
    assert "/no/such/folder" in result.stderr


def test_retrieval_of_given_embeddings(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.save(tmp_path / "images.npy", 3 * np.eye(6, dtype=np.float32))
    np.save(tmp_path / "captions.npy", np.repeat(np.eye(6), 2, axis=0) + 0.1 * rng.normal(size=(12, 6)))
    np.save(tmp_path / "own.npy", np.repeat(np.arange(6), 2))
    arguments = [
        "retrieval", "--image-embeddings", tmp_path / "images.npy",
        "--caption-embeddings", tmp_path / "captions.npy", "--caption-image", tmp_path / "own.npy",
    ]  # fmt: skip
    result = papers(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["metrics"]["text_to_image_recall@1"] == 1.0
    assert set(found["model"]["files"]) == {"images", "captions", "caption_image"}
    assert "images.npy: rows are not of unit length (up to 3)" in result.stderr
    assert "Embeddings: 6 images, 12 captions" in papers(*arguments).stdout

    for name, content, sentence in (
        ("images.npy", np.zeros((6, 6)), "row 0 is zero or not finite (6 such rows)"),
        ("images.npy", np.ones((6, 5)), "of one width, got (6, 5), (12, 6)"),
        ("images.npy", np.array([{"a": 1}], dtype=object), "cannot be read as .npy"),
        ("own.npy", np.zeros(12), "expected whole numbers (T,), got float64"),
        ("own.npy", np.zeros(12, dtype=int), "every image 0 … 5 needs a caption"),
    ):
        before = (tmp_path / name).read_bytes()
        np.save(tmp_path / name, content, allow_pickle=True)
        result = papers(*arguments)
        (tmp_path / name).write_bytes(before)
        assert result.exit_code == 1
        assert sentence in result.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("retrieval",), "expected a SET, the folder of an evaluation set"),
        (("retrieval", "/no/such/set"), "no evaluation set at /no/such/set; nothing is downloaded"),
        (("retrieval", "--caption-image", "x.npy"), "expected a SET, or all of --image-embeddings"),
        (
            ("zero-shot", "COCO"),
            "coco_test has captions and no labels; measure it by `python -m benchmarks",
        ),
        (("retrieval", "CLASSES"), "has labels and no captions; measure it by `python -m benchmarks.papers zero-shot"),
        (("retrieval", "COCO", "--split", "val"), "has no split 'val'; it has test"),
        (("zero-shot", "BROKEN"), "none of 2 images can be decoded: image_undecodable 2"),
    ],
)
def test_wrong_calls_end_with_a_sentence(
    coco: Path, classes: Path, tmp_path: Path, arguments: Sequence[str], sentence: str
) -> None:
    for name in ("a", "b"):
        write_jpeg(tmp_path / "broken" / name / "1.jpg").write_bytes(b"no picture")
    places = {"COCO": coco, "CLASSES": classes, "BROKEN": tmp_path / "broken"}
    options = ("--profile", "embedded", "--home", tmp_path / "home")
    result = papers(*(places.get(word, word) for word in arguments), *options)
    assert result.exit_code == 1
    assert sentence in result.stderr


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Single objects in the middle, four of each class, in ImageNet's folders."""
    root = tmp_path_factory.mktemp("classes")
    for name in CLASSES:
        for number, colour in enumerate(("red", "blue", "green", "yellow")):
            placed = PlacedObject(name, colour, "large", 64.0, 64.0, RADIUS_PX["large"])
            spec = SceneSpec(background=None, arrangement="single", objects=(placed,))
            path = root / "val" / name / f"{number}.JPEG"
            path.parent.mkdir(parents=True, exist_ok=True)
            render_scene(spec).save(path, "JPEG", quality=95)
    return root


@pytest.mark.slow
@pytest.mark.parametrize("templates", [(), ("a drawing of a {c}", "a {c} in the picture")])
def test_zero_shot_equals_a_slow_twin(
    classes: Path, encoder: Any, tmp_path: Path, templates: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = classes / "zeroshot_classification_templates.txt"
    if templates:
        file.write_text("\n".join(templates) + "\n")
    result = papers("zero-shot", classes, "--profile", "embedded", "--json", "--home", tmp_path)
    shown = papers("zero-shot", classes, "--profile", "embedded", "--home", tmp_path)
    file.unlink(missing_ok=True)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    names = sorted(CLASSES)
    hits = []
    vectors = []
    for name in names:
        embedded = [encoder.embed_texts([text.replace("{c}", name)])[0] for text in templates or ("a photo of a {c}.",)]
        mean = np.mean(embedded, axis=0)
        vectors.append(mean / np.linalg.norm(mean))
    for name in names:
        for path in sorted((classes / "val" / name).iterdir()):
            image = encoder.embed_images([Image.open(path)])[0]
            hits.append(names[int(np.argmax([image @ vector for vector in vectors]))] == name)
    assert found["metrics"]["acc1"] == pytest.approx(np.mean(hits))
    assert found["metrics"]["acc1"] == pytest.approx(found["metrics"]["mean_per_class_recall"]), "classes of one size"
    assert found["metrics"]["acc5"] >= found["metrics"]["acc1"] > 2 / len(CLASSES)
    assert found["n"] == {"images": 28, "classes": 7, "classes_with_images": 7}
    assert found["templates_of_set"] == bool(templates)
    first = templates[0].replace("{c}", "{}") if templates else "a photo of a {}."
    assert repr(first) in shown.stdout
    assert ("the set has none; the simple one" in shown.stdout) == (not templates)


class _Stopped:
    """The real encoder, stopped by Ctrl+C at its second call."""

    def __init__(self, encoder: Any) -> None:
        self.encoder, self.identity, self.embedded = encoder, encoder.identity, 0

    def embed_images(self, images: Sequence[Image.Image]) -> np.ndarray:
        if self.embedded:
            raise KeyboardInterrupt
        self.embedded += len(images)
        return np.asarray(self.encoder.embed_images(images))

    def embed_texts(self, texts: Sequence[str]) -> np.ndarray:
        if self.embedded:
            raise KeyboardInterrupt
        self.embedded += len(texts)
        return np.asarray(self.encoder.embed_texts(texts))


def test_a_stopped_call_goes_on_where_it_was(
    coco: Path, encoder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder_measures, "AT_ONCE", 8)
    monkeypatch.setattr(encoder_measures, "DEFAULT_SECONDS", 0.0)
    images = read_evaluation_set(coco).images
    whole = encoder_measures.EmbeddingWork(encoder, Silent(), tmp_path / "whole").images(images)
    with pytest.raises(KeyboardInterrupt):
        encoder_measures.EmbeddingWork(_Stopped(encoder), Silent(), tmp_path / "work").images(images)
    loaded: list[str] = []

    def load(image: EvaluationImage, limits: ImageLimits) -> Image.Image:
        loaded.append(image.image_id)
        return load_image(image, limits)

    monkeypatch.setattr(encoder_measures, "load_image", load)
    work = encoder_measures.EmbeddingWork(encoder, Silent(), tmp_path / "work")
    kept, embeddings, rejected = work.images(images)
    assert loaded == [image.image_id for image in images[8:]]
    assert (kept, rejected) == (whole[0], whole[2])
    assert embeddings == pytest.approx(whole[1], abs=1e-6)
    work.finish()
    assert not list((tmp_path / "work").rglob("*.parquet"))


def test_stopped_texts_go_on_where_they_were(encoder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_measures, "TEXTS_AT_ONCE", 2)
    monkeypatch.setattr(encoder_measures, "DEFAULT_SECONDS", 0.0)
    texts = ["a red car", "a blue fish", "a tree", "a house", "a ball"]
    with pytest.raises(KeyboardInterrupt):
        encoder_measures.EmbeddingWork(_Stopped(encoder), Silent(), tmp_path).texts(texts, "captions")
    assert len(list(tmp_path.rglob("*.parquet"))) == 1
    work = encoder_measures.EmbeddingWork(encoder, Silent(), tmp_path)
    assert work.texts(texts, "captions") == pytest.approx(encoder.embed_texts(texts), abs=1e-6)
    assert work.texts(texts[:4], "captions").shape[0] == 4, "other texts are another work"
    work.finish()
    assert not list(tmp_path.rglob("*.parquet"))


def test_photographs_of_a_tar(tmp_path: Path) -> None:
    path = shared("photos/000005.tar")
    options = ("--profile", "embedded", "--limit", 40, "--home", tmp_path)
    result = papers("retrieval", path, *options, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["n"] == {"images": 40, "captions": 200}
    assert found["left_out"] == {"over_limit": 460}
    assert all(0 <= value <= 1 for value in found["metrics"].values())
