"""Ranked captions of scenes, made from what was planted, by the four criteria of Compress & Align (METHODS §9.1)."""

from dataclasses import dataclass, replace

import numpy as np

from curation_assets.world import words
from curation_assets.world.grammar import abstract_caption, pick
from curation_assets.world.scene import COLOURS, PlacedObject, SceneSpec, swap_object

Rng = np.random.Generator


@dataclass(frozen=True)
class Judged:
    """A caption with what the four criteria say of it, in the order in which they count."""

    caption: str
    accuracy: int  # minus the number of things it gets wrong
    completeness: float  # share of the scene's objects that it names
    vividness: float  # share of colours and sizes of the scene's objects that it names
    context: int  # 1 where it names the place

    @property
    def key(self) -> tuple[float, ...]:
        """Larger is better, criterion by criterion."""
        return (self.accuracy, self.completeness, self.vividness, self.context)


def rank_by_criteria(judged: list[Judged]) -> list[int]:
    """Rank of each caption, 1 is best; captions that the criteria cannot tell apart share a rank."""
    return [1 + sum(other.key > one.key for other in judged) for one in judged]


def draw_candidates(scene: SceneSpec, rng: Rng) -> list[Judged]:
    """Eight captions of a scene of one to three objects: what is there, part of it, and what is not."""
    place = scene.background
    first = scene.objects[:1]
    colour = pick(rng, tuple(name for name in COLOURS if name != scene.objects[0].colour))
    recoloured = replace(scene, objects=(replace(scene.objects[0], colour=colour), *scene.objects[1:]))
    swapped = swap_object(scene, rng)
    elsewhere = pick(rng, tuple(name for name in words.PLACES if name != place))
    return [
        _told(scene, scene, rng, size=True, colour=True, place=place),
        _told(scene, scene, rng, size=False, colour=True, place=place),
        _told(scene, scene, rng, size=False, colour=True, place=None),
        _told(scene, scene, rng, size=False, colour=False, place=place),
        _told(scene, replace(scene, objects=first), rng, size=False, colour=False, place=None),
        _told(scene, recoloured, rng, size=False, colour=True, place=place),
        _told(scene, swapped, rng, size=False, colour=True, place=elsewhere),
        Judged(abstract_caption(scene, rng), -2 * len(scene.objects) - 2, 0.0, 0.0, 0),
    ]


def _told(scene: SceneSpec, said: SceneSpec, rng: Rng, *, size: bool, colour: bool, place: str | None) -> Judged:
    """A caption that says what `said` shows, judged against `scene`."""
    wrong = 0
    named, vivid = 0, 0
    told: list[PlacedObject] = list(dict.fromkeys(said.objects) if said.arrangement != "three" else said.objects[:1])
    true = scene.objects if said.arrangement != "three" else scene.objects[:1]
    for other, there in zip(told, true, strict=False):
        is_there = other.name == there.name
        named += is_there
        wrong += not is_there
        wrong += colour and is_there and other.colour != there.colour
        vivid += is_there * (colour * (other.colour == there.colour) + size * (other.size == there.size))
    wrong += place is not None and place != scene.background
    phrases = [_phrase(one, rng, size=size, colour=colour, many=said.arrangement == "three") for one in told]
    text = " and ".join(phrases)
    if place is not None:
        text = f"{text} {pick(rng, words.PLACES[place])}"
    return Judged(text, -wrong, named / len(true), vivid / (2 * len(true)), int(place == scene.background))


def _phrase(placed: PlacedObject, rng: Rng, *, size: bool, colour: bool, many: bool) -> str:
    parts = [pick(rng, words.SIZE_NAMES[placed.size])] if size else []
    parts += [pick(rng, words.COLOUR_NAMES[placed.colour])] if colour else []
    name = words.PLURALS[placed.name] if many else pick(rng, words.OBJECT_NAMES[placed.name])
    phrase = " ".join(part for part in (*parts, name) if part)
    return f"three {phrase}" if many else f"{'an' if phrase[0] in 'aeiou' else 'a'} {phrase}"
