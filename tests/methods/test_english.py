"""Which captions are not English: scripts, few words, no letters; and what ICC says of them."""

import hashlib
import json
from typing import Any

import numpy as np
import polars as pl
import pytest

from curation_assets.core.settings import Profile, load_profile
from curation_assets.engines import load_engine
from curation_assets.engines.addresses import WEIGHTS_ROOT
from curation_assets.engines.student import RidgeStudent, _is_multilingual
from curation_assets.methods import get_method
from curation_assets.methods.english import likely_languages
from curation_assets.scoring.parameters import with_parameters
from tests.support.paths import SHARED_DATA, shared

PAIRS = SHARED_DATA / "web" / "pairs.parquet"
ENGLISH = [
    "a red kite",
    "Setup",
    "mahjong",
    "Git Cherry-Pick",
    "sedge warbler",
    "10.5 %",
    "🎉",
    "…",
    "R1",
    "lua header",
    "A hiker ascends a snowy hill .",
    "A biker races .",
    "A group of girls climb up a snowy hill .",
    "A child in a fuzzy blue hat on a tricycle .",
    "A boy slides down a snowy hill in an innertube .",
]
OTHER = ["красный змей", "凉拌莴笋-预览图-1", "リセットスイッチ", "鱼香茄子 3", "der rote Drachen steigt über dem Feld",
         "une femme avec un chapeau bleu"]  # fmt: skip


class Likeliest:
    """Says one language with one probability of every text, and another of texts in lower case."""

    def __init__(self, language: str, probability: float, lower: str | None = None) -> None:
        self.language, self.probability, self.lower = language, probability, lower or language

    def identify_languages(self, texts: list[str]) -> tuple[list[str], np.ndarray]:
        found = [self.lower if text == text.lower() else self.language for text in texts]
        return found, np.full(len(texts), self.probability)


@pytest.fixture(scope="module")
def identifier() -> Any:
    return load_engine("language_identifier", load_profile("embedded"))


def test_the_threshold_falls_with_what_the_words_tell() -> None:
    """.5 of another language is enough for two words and three, not for one and four; 'en' in lower case is English."""
    english = get_method("english").function
    captions = ["Wort", "Zwei Worte", "Nun drei Worte", "Hier sind vier Worte", "Und nun sind es fünf"]
    assert english(captions, Likeliest("de", 0.5)).value.tolist() == [1, 0, 0, 1, 0]
    assert english(captions, Likeliest("de", 0.99)).value.tolist() == [0] * 5
    assert english(captions, Likeliest("de", 0.99, lower="en")).value.tolist() == [1] * 5
    assert english(["Привет", "abc где", "42"], Likeliest("en", 0.9)).value.tolist() == [0, 1, 1]


def test_one_plain_word_makes_no_language() -> None:
    """Another language counts if it is still likeliest without any one word; words with marks are not left out."""

    class ByWord:
        def identify_languages(self, texts: list[str]) -> tuple[list[str], np.ndarray]:
            languages = ["de" if {"hat", "rot", "grün", "γ"} & set(text.split()) else "en" for text in texts]
            return languages, np.full(len(texts), 0.95)

    captions = [
        "a man in a hat",
        "hat rot",
        "a grün kite",
        "hat",
        "42 hat 42",
        "a γ hat",
        "красный",
        " ".join(["hat"] + ["a"] * 40),
    ]
    found = get_method("english").function(captions, ByWord())
    assert found.details["language"] == ["en", "de", "de", "de", "de", "de", "und", "de"]
    assert found.value.tolist() == [1, 0, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("name", ["coco_val2017", "flickr8k"])
def test_captions_of_photographs_are_english(identifier: Any, name: str) -> None:
    """At most 1 in 5,000 is taken for another language; by thresholds alone 17 of all 25,014 and 88 of 40,455 were."""
    path = shared(f"captions/{name}_captions.parquet")
    captions = pl.read_parquet(path)["caption"].gather_every(5).to_list()
    assert sum(language != "en" for language in likely_languages(captions, identifier)) <= len(captions) // 5000


@pytest.mark.skipif(not PAIRS.is_file(), reason="needs the web pairs in ../shared")
def test_foreign_captions_of_web_pages_are_caught_as_before(identifier: Any) -> None:
    """Of 199 that are guessed foreign thresholds alone caught 113; at most one in a hundred of those gets through."""
    pairs = pl.read_parquet(PAIRS).filter(~pl.col("language_guess").is_in(["en", "und"]))
    languages = likely_languages(pairs["alt"].to_list(), identifier)
    assert sum(language not in ("en", None) for language in languages) >= 112


def test_rare_words_are_english_and_other_scripts_are_not(identifier: Any) -> None:
    value = get_method("english").function([*ENGLISH, *OTHER], identifier).value
    assert value.tolist() == [1.0] * len(ENGLISH) + [0.0] * len(OTHER)


@pytest.mark.skipif(not PAIRS.is_file(), reason="needs the web pairs in ../shared")
def test_short_english_captions_of_web_pages_stay(identifier: Any) -> None:
    """Owners whose rows set no threshold: .26, .14 and .09 of one, two and three words were dropped before."""
    pairs = pl.read_parquet(PAIRS).filter(pl.col("language_guess") == "en", pl.col("alt").str.contains(r"\p{L}"))
    owners = pairs["owner"].to_list()
    is_other = [hashlib.sha256(owner.encode()).digest()[0] % 2 == 1 for owner in owners]
    others = pairs.filter(pl.Series(is_other))
    for words, most in ((1, 0.06), (2, 0.08), (3, 0.05)):
        captions = others.filter(pl.col("alt").str.split(" ").list.len() == words)["alt"].to_list()
        value = get_method("english").function(captions, identifier).value
        assert len(captions) > 200
        assert (value == 0).mean() < most


def test_icc_gives_another_language_a_reason_and_no_number(identifier: Any) -> None:
    student: Any = load_engine("student", Profile("test", {"student": "embedded:icc_student"}, device="cpu"))
    method, captions = get_method("icc"), [*ENGLISH, *OTHER]
    found = method.function(captions, student, identifier)
    assert found.reason == [None] * len(ENGLISH) + ["not_english"] * len(OTHER)
    assert np.isnan(found.value).tolist() == [reason is not None for reason in found.reason]
    np.testing.assert_array_equal(found.value[: len(ENGLISH)], student.score_captions(captions)[: len(ENGLISH)])
    every = with_parameters(method, english_only=False).function(captions, student, identifier)
    np.testing.assert_array_equal(every.value, student.score_captions(captions))
    assert every.reason == [None] * len(captions)


def test_a_multilingual_student_values_every_language(identifier: Any) -> None:
    class Encoder:
        def embed_sentences(self, captions: list[str]) -> np.ndarray:
            return np.ones((len(captions), 2))

    cards = {name: json.loads((WEIGHTS_ROOT / name / "card.json").read_text())
             for name in ("icc_student", "icc_student_multilingual")}  # fmt: skip
    assert [_is_multilingual(card) for card in cards.values()] == [False, True]
    student = RidgeStudent(None, np.ones(2), 0.5, Encoder(), is_multilingual=True)  # type: ignore[arg-type]
    found = get_method("icc").function(OTHER, student, identifier)
    assert found.value.tolist() == [2.5] * len(OTHER)
    assert found.reason == [None] * len(OTHER)
