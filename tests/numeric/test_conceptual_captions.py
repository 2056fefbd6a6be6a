"""Conceptual Captions' text filter: each rule at its edge, the cascade, and the real parser and lexicon."""

import numpy as np
import polars as pl
import pytest

from curation_assets.core.roles import Lexicon
from curation_assets.core.settings import load_profile
from curation_assets.engines import load_engine
from curation_assets.methods import get_method
from curation_assets.numeric.conceptual_captions import Candidate, Limits
from curation_assets.numeric.conceptual_captions.boilerplate import check_boilerplate, crop_boilerplate
from curation_assets.numeric.conceptual_captions.rules import (
    capitalised_ratio,
    check_capitalisation,
    check_classes,
    check_length,
    check_noun_ratio,
    check_polarity,
    check_profanity,
    check_repetition,
    check_vocabulary,
    first_drop,
    repetition,
    unique_ratio,
)
from curation_assets.numeric.dependency import Token
from tests.support.paths import SHARED_DATA, shared

RULES = (
    *("boilerplate", "too_short", "too_long", "no_determiner", "no_noun", "no_preposition", "no_verb"),
    *("high_noun_ratio", "low_unique_ratio", "repetition", "first_word_lower_case", "capitalised"),
    *("rare_word", "extreme_polarity", "profanity"),
)
LIMITS = Limits()
DETERMINERS, PREPOSITIONS, VERBS = {"a", "the"}, {"on", "of", "over", "by"}, {"runs", "sits"}


def candidate(text: str, *, zipf: dict[str, float] | None = None, polarity: float = 0.0, bad: tuple[str, ...] = ()):
    """A candidate whose parts of speech come from four short lists: determiners, prepositions, verbs, else nouns."""

    def pos(word: str) -> str:
        kinds = {"DET": DETERMINERS, "ADP": PREPOSITIONS, "VERB": VERBS}
        return next((name for name, words in kinds.items() if word.lower() in words), "NOUN")

    words = [Token(word, pos(word), "", "dep", 0) for word in text.split()]
    return Candidate(text, words, [(zipf or {}).get(word.text, 5.0) for word in words], polarity, list(bad))


@pytest.mark.parametrize(
    ("text", "cropped"),
    [
        ("Red kite - Stock Photo", "Red kite"),
        ("Stock photo: red kite", "red kite"),
        ("Click to enlarge picture Red kite", "Red kite"),
        ("Red kite, royalty free stock photo.", "Red kite"),
        ("Stock photographer at work", "Stock photographer at work"),
        ("A stock photo of a kite", "A stock photo of a kite"),
        ("  Red kite ", "Red kite"),
        ("stock photo", ""),
        ("stock photo stock photo", ""),
    ],
)
def test_boilerplate_is_cropped_at_the_ends(text, cropped):
    assert crop_boilerplate(text) == cropped


def test_boilerplate_drops():
    drop = check_boilerplate("Embedded image permalink", "Embedded image permalink")
    assert drop == ("boilerplate", 0.0, "Embedded image permalink")
    assert check_boilerplate("My profile photo.", "My profile photo.").rule == "boilerplate"
    assert check_boilerplate("stock photo", "") == ("boilerplate", 1.0, "stock photo")
    assert check_boilerplate("Red kite - Stock Photo", "Red kite") is None
    assert check_boilerplate("A profile photograph on a wall", "A profile photograph on a wall") is None


def test_length():
    assert check_length(candidate("red kite"), LIMITS) == ("too_short", 2, "")
    assert check_length(candidate("a red kite"), LIMITS) is None
    assert check_length(candidate("kite " * 256), LIMITS) is None
    assert check_length(candidate("kite " * 257), LIMITS) == ("too_long", 257, "")
    assert check_length(candidate(""), Limits(min_words=None)) is None


def test_required_classes():
    assert check_classes(candidate("kite on beach"), LIMITS) == ("no_determiner", 1, "determiner")
    assert check_classes(candidate("the kite runs"), LIMITS) == ("no_preposition", 1, "preposition")
    assert check_classes(candidate("on the"), LIMITS) == ("no_noun", 1, "noun")
    assert check_classes(candidate("runs"), LIMITS).value == 3
    assert check_classes(candidate("kite"), Limits(required_classes=("noun",))) is None
    with pytest.raises(ValueError, match="required_classes must be of determiner"):
        check_classes(candidate("kite"), Limits(required_classes=("pronoun",)))


def test_noun_ratio():
    assert check_noun_ratio(candidate("kite beach sea on"), LIMITS) is None  # 3/4
    assert check_noun_ratio(candidate("kite beach sea sand wave on"), LIMITS) == ("high_noun_ratio", 5 / 6, "")
    assert check_noun_ratio(candidate("kite beach sea sand on"), LIMITS) is None  # .8 is not above .8


def test_repetition():
    assert unique_ratio(candidate("Kite kite on")) == pytest.approx(2 / 3)
    assert repetition(candidate("a kite on a beach by a sea")) == 0.0
    assert repetition(candidate("kite beach kite Kite on")) == pytest.approx(2 / 5)
    assert check_repetition(candidate("kite beach kite kite on"), LIMITS) == ("repetition", 0.4, "kite")
    assert check_repetition(candidate("kite kite kite"), LIMITS) == ("low_unique_ratio", 1 / 3, "")
    assert check_repetition(candidate("kite beach sea sand kite"), LIMITS) is None  # .2 is not above .2


def test_capitalisation():
    assert check_capitalisation(candidate("red kite on"), LIMITS) == ("first_word_lower_case", 0.0, "red")
    assert check_capitalisation(candidate("Red kite on"), LIMITS) is None
    assert check_capitalisation(candidate("2 kites on"), LIMITS) is None
    assert check_capitalisation(candidate("“Red kite"), LIMITS) is None
    assert check_capitalisation(candidate("RED KITE"), LIMITS) == ("capitalised", 1.0, "")
    assert capitalised_ratio(candidate("Red 2 kites Ab")) == 0.5
    assert check_capitalisation(candidate("red kite"), Limits(first_word_capitalised=False)) is None


def test_vocabulary():
    zipf = {"zyx": 0.0, "kite": 3.5, "12": 0.0}
    assert check_vocabulary(candidate("the zyx kite", zipf=zipf), LIMITS) == ("rare_word", 0.0, "zyx")
    assert check_vocabulary(candidate("12 kite", zipf=zipf), LIMITS) is None
    assert check_vocabulary(candidate("the zyx", zipf=zipf), Limits(min_zipf=None)) is None
    assert check_vocabulary(candidate(""), LIMITS) is None


def test_polarity_and_profanity():
    assert check_polarity(candidate("a", polarity=-0.81), LIMITS) == ("extreme_polarity", -0.81, "")
    assert check_polarity(candidate("a", polarity=0.8), LIMITS) is None
    assert check_profanity(candidate("a", bad=("darn", "heck")), LIMITS) == ("profanity", 2, "darn")
    assert check_profanity(candidate("a", bad=("darn",)), Limits(profanity=False)) is None


def test_the_first_rule_in_order_is_told():
    both = candidate("kite kite kite", polarity=0.9)
    assert first_drop(both, LIMITS).rule == "no_determiner"
    assert first_drop(both, Limits(required_classes=(), max_noun_ratio=None)).rule == "low_unique_ratio"
    assert first_drop(candidate("The kite on the beach"), LIMITS) is None


def test_limits_are_checked():
    method = get_method("conceptual_captions")
    with pytest.raises(ValueError, match=r"max_noun_ratio must be in \[0, 1\]"):
        Limits(max_noun_ratio=80)
    with pytest.raises(ValueError, match="limits must be of min_words"):
        method.function(["a"], **method.example.roles, limits={"min_word": 3})


def test_every_candidate_shows_rule_value_and_words():
    method = get_method("conceptual_captions")
    values = method.function(**method.example.columns, **method.example.roles)
    rules = [None, "no_determiner", "rare_word", "extreme_polarity", "boilerplate", "profanity"]
    assert values.details["rule"] == rules
    assert values.details["rule_value"] == [None, 2.0, 0.0, 0.9, 1.0, 1.0]
    assert values.details["rule_about"][1:3] == ["determiner, preposition", "zyx"]
    assert values.details["text"][0] == "A red kite flies over the beach"


# --- the real parser and lexicon ---


@pytest.fixture(scope="module")
def engines():
    profile = load_profile("embedded")
    return {role: load_engine(role, profile) for role in ("parser", "lexicon")}


def test_the_lexicon_fills_its_role(engines):
    lexicon = engines["lexicon"]
    assert isinstance(lexicon, Lexicon)
    the, kite, zyx = lexicon.zipf_frequencies(["the", "kite", "zyxwvq"])
    assert the > 7 > kite > 3 > zyx == 0.0  # 'the' is every 20th word
    good, neutral, bad = lexicon.polarities(["a wonderful, lovely day", "a table and a chair", "a horrible murder"])
    assert bad < -0.5 < neutral == 0.0 < 0.5 < good
    assert lexicon.profanities(["a red kite", "Holy SHIT!", "Scunthorpe"]) == [[], ["shit"], []]
    assert lexicon.profanities([]) == []


def test_own_profanity_list(tmp_path):
    words = tmp_path / "words.txt"
    words.write_text("Kite\nred barn\n\n")
    profile = load_profile("embedded")
    own = {**profile.generation, "lexicon": {"profanity": f"path:{words}"}}
    lexicon = load_engine("lexicon", type(profile)(profile.name, profile.roles, own, device="cpu"))
    assert lexicon.profanities(["a kite by a Red  Barn", "redbarn", "shit"]) == [["kite", "red barn"], [], []]
    assert lexicon.identity != load_engine("lexicon", profile).identity
    words.write_text("\n")
    with pytest.raises(ValueError, match="expected one word or phrase a line"):
        load_engine("lexicon", type(profile)(profile.name, profile.roles, own, device="cpu"))
    off = {**profile.generation, "lexicon": {"profanity": None}}
    assert load_engine("lexicon", type(profile)(profile.name, profile.roles, off, device="cpu")).profanities(
        ["shit"]
    ) == [[]]


@pytest.mark.parametrize(
    ("caption", "rule"),
    [
        ("A man rides a brown horse on the beach.", None),
        ("A group of people sits around a table with a cake - Stock Photo", None),
        ("IMG_2034", "too_short"),
        ("red shoes sale shop now", "no_determiner"),
        ("The Man Rides A Brown Horse On The Beach", "capitalised"),
        ("A photo of a qwrtzpl on a table in the kitchen", "rare_word"),
        ("profile photo", "boilerplate"),
    ],
)
def test_real_rules(engines, caption, rule):
    values = get_method("conceptual_captions").function([caption], **engines)
    assert values.details["rule"] == [rule], values.details


def test_real_captions_pass_more_often_than_web_text(engines):
    path = shared("captions/alt_texts.parquet")
    coco = pl.read_parquet(SHARED_DATA / "captions/coco_val2017_captions.parquet")["caption"].head(300).to_list()
    web = pl.read_parquet(path).filter(pl.col("source") == "img2dataset_test_10000")["text"].drop_nulls().head(300)
    method = get_method("conceptual_captions")
    coco_values, web_values = (method.function(texts, **engines) for texts in (coco, web.to_list()))
    assert coco_values.value.mean() > 0.6
    assert web_values.value[~np.isnan(web_values.value)].mean() < 0.2  # the paper: about 3 %
    assert len(web_values.details["rule"]) == 300
    assert set(web_values.details["rule"]) <= {None, *RULES}
