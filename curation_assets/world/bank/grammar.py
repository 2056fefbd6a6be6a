"""Captions of drawable scenes by a small grammar: things, people and animals × what they do × where × how shown."""

from collections.abc import Callable, Sequence

import numpy as np

from curation_assets.world.bank import vocabulary as words
from curation_assets.world.word_lists import pick

Rng = np.random.Generator

#: Kinds of scene and their shares of a bank.
KIND_SHARES = {"thing": 0.36, "things": 0.10, "person": 0.24, "group": 0.08, "animal": 0.10, "stock": 0.12}
#: Without these forms a noun alone, "a mug", would be far from every scene.
BARE_SHARE = 0.15
ADJECTIVE_SHARE, PLACE_SHARE = 0.5, 0.5


def build_scenes(size: int, seed: int = 0) -> list[str]:
    """`size` distinct captions, sorted; every noun of the vocabulary comes about equally often in its kind.

    Same size and seed, same scenes. Raises ValueError for a size below 1.
    """
    if size < 1:
        raise ValueError(f"a bank needs at least 1 scene, got size {size}")
    rng = np.random.default_rng(seed)
    kinds = list(KIND_SHARES)
    shares = np.array([KIND_SHARES[kind] for kind in kinds])
    decks = {kind: _Deck(_HEADS[kind], rng) for kind in kinds}
    scenes: set[str] = set()
    while len(scenes) < size:
        kind = kinds[int(rng.choice(len(kinds), p=shares / shares.sum()))]
        scenes.add(_WRITERS[kind](decks[kind].draw(), rng))
    return sorted(scenes)


class _Deck:
    """Draws every card once before any card twice."""

    def __init__(self, cards: Sequence[str], rng: Rng) -> None:
        self.cards = cards
        self.rng = rng
        self.left: list[str] = []

    def draw(self) -> str:
        if not self.left:
            self.left = [self.cards[i] for i in self.rng.permutation(len(self.cards))]
        return self.left.pop()


def with_article(phrase: str) -> str:
    """'an apple'; names of many things ('grapes', 'glass') keep none where they end in a single s."""
    if phrase.endswith("s") and not phrase.endswith(("ss", "us")):
        return phrase
    return f"an {phrase}" if phrase[0] in "aeiou" else f"a {phrase}"


def _described(noun: str, rng: Rng) -> str:
    """The noun, half of the time with an adjective, with its article."""
    adjective = f"{pick(rng, words.ADJECTIVES)} " if rng.random() < ADJECTIVE_SHARE else ""
    return with_article(adjective + noun)


def _placed(scene: str, rng: Rng, places: Sequence[str] = words.PLACES) -> str:
    return f"{scene} {pick(rng, places)}" if rng.random() < PLACE_SHARE else scene


def _thing(noun: str, rng: Rng) -> str:
    if rng.random() < BARE_SHARE:
        return pick(rng, (noun, with_article(noun), f"{pick(rng, words.ADJECTIVES)} {noun}"))
    return _placed(_described(noun, rng), rng, words.SPOTS + words.PLACES)


def _things(noun: str, rng: Rng) -> str:
    other = _described(pick(rng, _ALL_THINGS), rng)
    joint = pick(rng, ("and", "with", "next to", "on top of", "beside", "in front of", "full of"))
    return _placed(f"{_described(noun, rng)} {joint} {other}", rng, words.SPOTS + words.PLACES)


def _person(who: str, rng: Rng) -> str:
    return _placed(f"{pick(rng, (with_article(who), with_article(who), who))} {pick(rng, words.DEEDS)}", rng)


def _group(who: str, rng: Rng) -> str:
    return _placed(f"{who} {pick(rng, words.DEEDS)}", rng)


def _animal(noun: str, rng: Rng) -> str:
    if rng.random() < BARE_SHARE:
        return pick(rng, (noun, with_article(noun), f"two {pick(rng, words.ADJECTIVES)} {noun}"))
    return _placed(f"{_described(noun, rng)} {pick(rng, words.ANIMAL_DEEDS)}", rng)


def _stock(noun: str, rng: Rng) -> str:
    if noun in words.PEOPLE:  # no colours for people
        described = with_article(noun) + (f" {pick(rng, words.DEEDS)}" if rng.random() < 0.7 else "")
    else:
        described = _described(noun, rng)
    return pick(rng, words.STOCK_FORMS).format(x=described, n=noun)


_ALL_THINGS = tuple(noun for nouns in words.THINGS.values() for noun in nouns)
_HEADS: dict[str, tuple[str, ...]] = {
    "thing": _ALL_THINGS,
    "things": _ALL_THINGS,
    "person": words.PEOPLE,
    "group": words.GROUPS,
    "animal": words.ANIMALS,
    "stock": _ALL_THINGS + words.ANIMALS + words.PEOPLE,
}
_WRITERS: dict[str, Callable[[str, Rng], str]] = {
    "thing": _thing,
    "things": _things,
    "person": _person,
    "group": _group,
    "animal": _animal,
    "stock": _stock,
}
