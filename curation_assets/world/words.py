"""The word lists of the captions: synonyms of what is drawn, and words for what cannot be drawn (`words.yaml`)."""

from pathlib import Path

from curation_assets.world.word_lists import read_word_lists

_LISTS = read_word_lists(Path(__file__).with_name("words.yaml"))

OBJECT_NAMES: dict[str, tuple[str, ...]] = _LISTS["object_names"]
PLURALS: dict[str, str] = _LISTS["plurals"]
COLOUR_NAMES: dict[str, tuple[str, ...]] = _LISTS["colour_names"]
SIZE_NAMES: dict[str, tuple[str, ...]] = _LISTS["size_names"]
PLACES: dict[str, tuple[str, ...]] = _LISTS["places"]
DETAILS: dict[str, tuple[str, ...]] = _LISTS["details"]
MEDIUM_PREFIXES: tuple[str, ...] = _LISTS["medium_prefixes"]
FLUFF: tuple[str, ...] = _LISTS["fluff"]
ABSTRACT: tuple[str, ...] = _LISTS["abstract"]
PARTIAL: tuple[str, ...] = _LISTS["partial"]
TAILS: tuple[str, ...] = _LISTS["tails"]
NOUNS: tuple[str, ...] = _LISTS["nouns"]
ADJECTIVES: tuple[str, ...] = _LISTS["adjectives"]
VERBS: tuple[str, ...] = _LISTS["verbs"]
AUDIENCES: tuple[str, ...] = _LISTS["audiences"]
BOILERPLATE: tuple[str, ...] = _LISTS["boilerplate"]
SALE_WORDS: tuple[str, ...] = _LISTS["sale_words"]
FOREIGN_OBJECTS: dict[str, dict[str, str]] = _LISTS["foreign_objects"]
FOREIGN_COLOURS: dict[str, dict[str, str]] = _LISTS["foreign_colours"]
FOREIGN_TEMPLATES: dict[str, tuple[str, ...]] = _LISTS["foreign_templates"]
