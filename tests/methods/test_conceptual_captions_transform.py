"""Text transformation with a real entity recogniser: spaCy's en_core_web_sm, and a small WordNet."""

from pathlib import Path
from typing import Any

import pytest

from curation_assets.core.settings import load_profile
from curation_assets.engines import load_engine
from curation_assets.methods import Values, get_method
from curation_assets.numeric.dependency import Token, entity_spans
from tests.support.tiny_wordnet import write_wordnet

PROFILE = load_profile("embedded").with_roles(parser="spacy:en_core_web_sm")


@pytest.fixture(scope="module")
def roles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("wordnet")
    write_wordnet(folder)
    profile = PROFILE.with_roles(wordnet=f"path:{folder}")
    return {role: load_engine(role, profile) for role in ("parser", "wordnet")}


def transformed(roles: dict[str, Any], *captions: str, **settings: Any) -> Values:
    return get_method("conceptual_captions_transform").function(caption=list(captions), **roles, **settings)


@pytest.mark.parametrize(
    ("caption", "text"),
    [
        # formulas.md §7.4
        ("Crowd at a concert in Los Angeles", "crowd at a concert"),
        ("Italian cuisine", "cuisine"),
        ("Former Miss World Priyanka Chopra on the red carpet", "person on the red carpet"),
        # names of people, merged where they are equal
        ("Brad Pitt and Angelina Jolie attend the premiere of a film", "people attend the premiere of a film"),
        # dates, durations and measures
        ("Kites over the beach in Lagos on 5 January 2012", "kites over the beach"),
        ("The dog slept on the sofa for two hours", "the dog slept on the sofa"),
        ("A 5 year old boy plays in the park", "a boy plays in the park"),
        # times of the day can be seen
        ("A crowd in the street at night", "a crowd in the street at night"),
        ("Two dogs run on a sunny day", "two dogs run on a sunny day"),
        # a place with the place that it lies in
        ("A bridge over the river in San Francisco, California", "a bridge over the river"),
        # the dictionary's people
        ("Ada Stone attends the premiere of a film", "actor attends the premiere of a film"),
    ],
)
def test_worked_examples(roles: dict[str, Any], caption: str, text: str) -> None:
    assert transformed(roles, caption).details["text"] == [text]


def test_only_short_ones_of_them_are_dropped(roles: dict[str, Any]) -> None:
    found = transformed(roles, "Italian cuisine", "Former Miss World Priyanka Chopra on the red carpet")
    assert found.value.tolist() == [0.0, 1.0]
    assert found.details["rule"] == ["too_short_after", None]
    assert found.details["concepts"][1] == ["carpet", "person"]


def test_a_list_of_names_comes_before_labels(roles: dict[str, Any]) -> None:
    named = transformed(roles, "Brad Pitt attends a premiere", entities={"Brad Pitt": "film star"})
    assert named.details["text"] == ["film star attends a premiere"]


def test_a_text_does_not_depend_on_its_neighbours(roles: dict[str, Any]) -> None:
    captions = ["Crowd at a concert in Los Angeles", "Brad Pitt attends a premiere", "a red kite"]
    alone = [transformed(roles, caption).details["text"][0] for caption in captions]
    assert transformed(roles, *captions).details["text"] == alone
    assert transformed(roles, *captions[::-1]).details["text"] == alone[::-1]


def test_tokens_carry_entities_only_where_the_pipeline_recognises_them(roles: dict[str, Any]) -> None:
    text = "Crowd at a concert in Los Angeles"
    tokens = roles["parser"].parse_texts([text])[0]
    assert [token.entity for token in tokens] == ["", "", "", "", "", "B-GPE", "I-GPE"]
    assert entity_spans(tokens) == [("GPE", [5, 6])]
    embedded: Any = load_engine("parser", load_profile("embedded"))
    without: list[Token] = embedded.parse_texts([text])[0]
    assert {token.entity for token in without} == {None}
    assert entity_spans(without) == []


def test_neighbouring_entities_of_one_label_are_two() -> None:
    tokens = [Token(word, "PROPN", "NNP", "dep", 0, f"{place}-GPE") for word, place in (("Rome", "B"), ("Paris", "B"))]
    assert entity_spans(tokens) == [("GPE", [0]), ("GPE", [1])]


def test_the_pipeline_is_a_files_folder_with_a_revision(roles: dict[str, Any]) -> None:
    identity = roles["parser"].identity
    assert identity.address == "spacy:en_core_web_sm"
    assert Path(identity.revision).name.startswith("en_core_web_sm")
    assert identity.revision.endswith("-3.8.0")
