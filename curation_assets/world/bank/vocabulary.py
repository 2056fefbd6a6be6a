"""The words of the scene bank (`vocabulary.yaml`): things, people, animals, what they do and where."""

from pathlib import Path

from curation_assets.world.word_lists import read_word_lists

_LISTS = read_word_lists(Path(__file__).with_name("vocabulary.yaml"))

PEOPLE: tuple[str, ...] = _LISTS["people"]
GROUPS: tuple[str, ...] = _LISTS["groups"]
DEEDS: tuple[str, ...] = _LISTS["deeds"]
ANIMALS: tuple[str, ...] = _LISTS["animals"]
ANIMAL_DEEDS: tuple[str, ...] = _LISTS["animal_deeds"]
ADJECTIVES: tuple[str, ...] = _LISTS["adjectives"]
PLACES: tuple[str, ...] = _LISTS["places"]
SPOTS: tuple[str, ...] = _LISTS["spots"]
#: {x} a thing with its article, {n} its name alone.
STOCK_FORMS: tuple[str, ...] = _LISTS["stock_forms"]
#: Kind → names of things that can be drawn.
THINGS: dict[str, tuple[str, ...]] = _LISTS["things"]
#: What cannot be drawn: the counterpart of the things, for the bank of single words.
ABSTRACT: tuple[str, ...] = _LISTS["abstract"]
