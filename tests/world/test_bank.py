"""The scene bank: its grammar, its engine, and the two methods that stand in for the teachers on real text."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from curation_assets.core.progress import Silent
from curation_assets.core.roles import SceneBank, SentenceBottleneck
from curation_assets.core.settings import Profile
from curation_assets.engines import ModelUnavailableError, clear_engines, identify_engine, load_engine, resolve_address
from curation_assets.engines.addresses import WEIGHTS_ROOT
from curation_assets.engines.scene_bank import EMBEDDINGS_FILE, SHIPPED, embed_scenes, shipped_embeddings
from curation_assets.methods import get_method
from curation_assets.world.bank import vocabulary
from curation_assets.world.bank.captions import bank_captions, captions_sha256
from curation_assets.world.bank.grammar import build_scenes, with_article
from curation_assets.world.word_lists import read_word_lists
from tests.support.command import curate

SCENES = ["a red kite", "a dog on the grass", "two boats in the sea", "a woman reading a book"]
CONCRETE = ["a dog sitting on the beach", "a red car parked in front of a house", "two children eating ice cream"]
ABSTRACT = ["the importance of being earnest", "why values matter in theory", "our guide to a better future"]

needs_bottleneck = pytest.mark.skipif(
    not (WEIGHTS_ROOT / "sentence_bottleneck").is_dir(),
    reason="no sentence_bottleneck in curation_assets/embedded/weights",
)


def profile_of(role: str, address: str) -> Profile:
    return Profile("test", {role: address}, device="cpu", batch_size={role: 16})


@pytest.fixture
def bank_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CURATION_CACHE", str(tmp_path / "cache"))
    clear_engines()
    path = tmp_path / "captions.txt"
    path.write_text("\n".join([*SCENES[::-1], "", SCENES[0], "  "]) + "\n")
    return path


# --- the grammar


def test_same_size_and_seed_same_scenes() -> None:
    scenes = build_scenes(400)
    assert scenes == build_scenes(400) == sorted(set(scenes))
    assert scenes != build_scenes(400, seed=1)
    with pytest.raises(ValueError, match="at least 1 scene, got size 0"):
        build_scenes(0)


def test_every_noun_comes_up_about_equally_often() -> None:
    scenes = build_scenes(8_000)
    things = [noun for nouns in vocabulary.THINGS.values() for noun in nouns]
    counts = {noun: sum(noun in scene for scene in scenes) for noun in ("kettle", "violin", "zucchini", "windmill")}
    assert set(counts) <= set(things)
    assert 2 <= min(counts.values()) <= max(counts.values()) <= 30, counts


def test_no_abstract_noun_heads_a_scene() -> None:
    words = {word for scene in build_scenes(3_000) for word in scene.split()}
    assert not words & {"justice", "innovation", "loyalty", "hypothesis", "inflation"}
    assert {"justice", "innovation", "loyalty", "hypothesis", "inflation"} <= set(vocabulary.ABSTRACT)


def test_articles() -> None:
    assert [with_article(word) for word in ("apple", "mug", "grapes", "glass", "cactus")] == [
        "an apple", "a mug", "grapes", "a glass", "a cactus"
    ]  # fmt: skip


def test_no_list_of_the_bank_holds_a_phrase_twice() -> None:
    lists = {name: value for name, value in vars(vocabulary).items() if name.isupper() and name != "_LISTS"}
    lists |= {f"THINGS {kind}": phrases for kind, phrases in lists.pop("THINGS").items()}
    repeated = {name: [word for word, n in Counter(phrases).items() if n > 1] for name, phrases in lists.items()}
    assert len(lists) == 20
    assert {name: words for name, words in repeated.items() if words} == {}


def test_a_word_list_holds_text_only(tmp_path: Path) -> None:
    (tmp_path / "words.yaml").write_text("colours: {red: [red, crimson]}\nanswers: [yes, no]\n")
    with pytest.raises(ValueError, match=r"words.yaml: answers: .* got True; put it into quotes"):
        read_word_lists(tmp_path / "words.yaml")
    (tmp_path / "words.yaml").write_text("colours: {red: [red, crimson]}\nanswers: ['yes', 'no']\n")
    assert read_word_lists(tmp_path / "words.yaml") == {
        "colours": {"red": ("red", "crimson")}, "answers": ("yes", "no")
    }  # fmt: skip


def test_the_embedded_bank_is_the_one_the_student_was_made_with() -> None:
    captions = bank_captions(None)
    assert len(captions) == 24_000
    assert captions_sha256(captions).startswith("11e7f86830f7f104")


# --- the engine


def test_a_bank_of_ones_own(bank_file: Path) -> None:
    profile = profile_of("scene_bank", f"bank:{bank_file}")
    engine: Any = load_engine("scene_bank", profile)
    assert isinstance(engine, SceneBank)
    assert engine.identity == identify_engine("scene_bank", profile)
    assert engine.scenes == sorted(SCENES)
    scenes, cosines = engine.nearest_scenes(["a kite in the sky", "a dog on the grass", "a kite in the sky"], 2)
    assert [row[0] for row in scenes] == ["a red kite", "a dog on the grass", "a red kite"]
    assert cosines.shape == (3, 2)
    assert (np.diff(cosines, axis=1) <= 0).all()
    assert cosines[1, 0] == pytest.approx(1.0, abs=2e-3)  # the bank is kept in half precision
    np.testing.assert_array_equal(cosines[0], cosines[2])
    encoder: Any = load_engine("sentence_encoder", profile_of("sentence_encoder", "embedded:minilm"))
    by_hand = encoder.embed_sentences(["a kite in the sky"]) @ encoder.embed_sentences(engine.scenes).T
    np.testing.assert_allclose(cosines[0], -np.sort(-by_hand[0])[:2], atol=1e-3)
    assert engine.nearest_scenes(["kite"], 99)[1].shape == (1, 4)  # all that it has
    assert engine.nearest_scenes([], 2) == ([], pytest.approx(np.zeros((0, 2))))
    with pytest.raises(ValueError, match="k must be at least 1"):
        engine.nearest_scenes(["kite"], 0)


def test_embeddings_are_kept_and_made_again(bank_file: Path, tmp_path: Path) -> None:
    profile = profile_of("scene_bank", f"bank:{bank_file}")
    fresh: Any = load_engine("scene_bank", profile)
    first = fresh.nearest_scenes(["a kite"], 4)[1]
    (kept,) = (tmp_path / "cache" / "scene_bank").glob("*.safetensors")
    clear_engines()
    cached: Any = load_engine("scene_bank", profile)
    cached._compute = lambda: pytest.fail("the cache was there")
    np.testing.assert_array_equal(cached.nearest_scenes(["a kite"], 4)[1], first)
    kept.write_bytes(b"torn")
    clear_engines()
    with pytest.warns(UserWarning, match="embedded anew"):
        np.testing.assert_array_equal(load_engine("scene_bank", profile).nearest_scenes(["a kite"], 4)[1], first)  # type: ignore[attr-defined]
    assert kept.stat().st_size > 4


def shipped_bank() -> Any:
    return load_engine("scene_bank", profile_of("scene_bank", "bank:embedded"))


def test_the_embedded_bank_is_shipped_and_never_embedded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CURATION_CACHE", str(tmp_path / "cache"))
    clear_engines()
    engine = shipped_bank()
    monkeypatch.setattr(engine, "_compute", lambda: pytest.fail("the embeddings are shipped"))
    scenes, cosines = engine.nearest_scenes(["a dog on the grass", *engine.scenes[:2]], 3)
    assert "dog" in scenes[0][0]
    assert [row[0] for row in scenes[1:]] == engine.scenes[:2]
    np.testing.assert_allclose(cosines[1:, 0], 1.0, atol=1e-3)
    assert not (tmp_path / "cache").exists()
    clear_engines()


def test_shipped_embeddings_are_those_of_the_encoder() -> None:
    """A stretch of the bank, in the batches of the shipping script: other processors may round otherwise."""
    engine = shipped_bank()
    some = engine.scenes[5120:5632]
    made = embed_scenes(some, engine.encoder, Silent()).astype(np.int16)
    shipped = shipped_embeddings(*engine.made_of)
    assert shipped is not None
    difference = np.abs(shipped[5120:5632] - made)
    assert difference.max() <= 1  # a number halfway between two steps
    assert difference.mean() < 1e-3


@pytest.mark.slow
def test_the_nearest_scenes_are_those_of_exact_embeddings() -> None:
    """Eight bits move a cosine by less than 3e-3, and the score, the mean of the nearest ones, by less than 2e-4."""
    engine = shipped_bank()
    some = engine.scenes[::48]  # 500
    captions = [f"{CONCRETE[i % 3]} {ABSTRACT[i % 2]} {i}" for i in range(100)] + some[:200]
    exact = engine.encoder.embed_sentences(captions) @ engine.encoder.embed_sentences(some).T  # (N, 500)
    held = engine.encoder.embed_sentences(captions) @ engine.embeddings()[::48].T
    np.testing.assert_allclose(held, exact, atol=3e-3)
    score = [np.sort(cosines, axis=1)[:, -100:].mean(axis=1) for cosines in (exact, held)]
    np.testing.assert_allclose(*score, atol=2e-4)
    top = [np.argsort(-cosines, axis=1)[:, :10] for cosines in (exact, held)]
    recall = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(*top, strict=True)])
    assert recall > 0.99


def test_damaged_embeddings_are_refused(tmp_path: Path) -> None:
    card = json.loads((SHIPPED / "card.json").read_text())
    made_of = (card["captions_sha256"], card["sentence_encoder_sha256"])
    (tmp_path / "card.json").write_text(json.dumps(card))
    with pytest.raises(ModelUnavailableError, match="got no file; install the package again"):
        shipped_embeddings(*made_of, tmp_path)
    (tmp_path / EMBEDDINGS_FILE).write_bytes(b"other")
    with pytest.raises(ModelUnavailableError, match=rf"expected sha256 {card['embeddings_sha256']}, got "):
        shipped_embeddings(*made_of, tmp_path)
    assert shipped_embeddings("0" * 64, made_of[1], tmp_path) is None  # another bank: nothing is shipped for it
    assert shipped_embeddings(*made_of, tmp_path / "nowhere") is None


def test_other_captions_other_identity(bank_file: Path) -> None:
    profile = profile_of("scene_bank", f"bank:{bank_file}")
    before = identify_engine("scene_bank", profile)
    bank_file.write_text("\n".join(SCENES[:3]))
    after = identify_engine("scene_bank", profile)
    assert before.weights_sha256 != after.weights_sha256
    assert (after.address, after.revision) == (f"bank:{bank_file}", "local")
    assert identify_engine("scene_bank", profile_of("scene_bank", "bank:embedded")).revision == "shipped"


def test_mistakes_are_answered(bank_file: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailableError, match=r"no file .*nowhere.txt; give bank:"):
        resolve_address(f"bank:{tmp_path}/nowhere.txt")
    with pytest.raises(ValueError, match="bank: fills scene_bank only"):
        load_engine("student", profile_of("student", "bank:embedded"))
    with pytest.raises(ValueError, match="role 'scene_bank' takes bank: addresses"):
        load_engine("scene_bank", profile_of("scene_bank", "embedded:minilm"))
    bank_file.write_text("\n \n")
    with pytest.raises(ValueError, match="this file has none"):
        load_engine("scene_bank", profile_of("scene_bank", f"bank:{bank_file}"))
    bank_file.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ValueError, match="not UTF-8"):
        load_engine("scene_bank", profile_of("scene_bank", f"bank:{bank_file}"))


# --- the methods


def test_the_command_scores_against_a_bank(bank_file: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "in.txt", tmp_path / "out.tsv"
    source.write_text("a kite\n\nthe price of freedom\n")
    ran = curate("score", "scene_bank", source, "--out", out, "--role", f"scene_bank=bank:{bank_file}")
    assert ran.exit_code == 0, ran.output
    rows = [line.split("\t") for line in out.read_text().splitlines()]
    assert [row[0] for row in rows] == ["caption", "a kite", "", "the price of freedom"]
    place = rows[0].index("scene_bank")
    assert float(rows[1][place]) > float(rows[3][place]) + 0.1
    assert "empty_caption" in ran.output


def test_a_scene_at_least_is_compared() -> None:
    with pytest.raises(ValueError, match="k must be at least 1"):
        get_method("scene_bank").function(caption=["a"], scene_bank=None, k=0)


@needs_bottleneck
def test_the_bottleneck_is_the_projection_by_hand_and_orders_captions() -> None:
    from safetensors.numpy import load_file

    engine: Any = load_engine("sentence_bottleneck", profile_of("sentence_bottleneck", "embedded:sentence_bottleneck"))
    assert isinstance(engine, SentenceBottleneck)
    before, after = engine.reconstruct_embeddings([*CONCRETE, *ABSTRACT])
    np.testing.assert_allclose(np.linalg.norm(before, axis=1), 1.0, atol=1e-6)
    weights = load_file(WEIGHTS_ROOT / "sentence_bottleneck" / "bottleneck.safetensors")
    components = weights["components"].astype(np.float64)
    np.testing.assert_allclose(components @ components.T, np.eye(len(components)), atol=5e-3)
    expected = weights["mean"] + (before - weights["mean"]) @ components.T @ components
    np.testing.assert_allclose(after, expected, atol=1e-6)
    encoder: Any = load_engine("sentence_encoder", profile_of("sentence_encoder", "embedded:minilm"))
    np.testing.assert_allclose(before, encoder.embed_sentences([*CONCRETE, *ABSTRACT]), atol=1e-5)
    values = (
        get_method("sentence_bottleneck").function(caption=[*CONCRETE, *ABSTRACT], sentence_bottleneck=engine).value
    )
    assert values[:3].min() > values[3:].max()
