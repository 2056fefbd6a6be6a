"""Ranked captions of scenes, made from what was planted, by the four criteria of Compress & Align (formulas.md
§9.1)."""

from dataclasses import dataclass, replace

import numpy as np

from curation_assets.world import words
from curation_assets.world.grammar import abstract_caption
from curation_assets.world.scene import COLOURS, PlacedObject, SceneSpec
from curation_assets.world.word_lists import pick
from lab.scenes import swap_object

Rng = np.random.Generator


@dataclass(frozen=True)
class Judged:
    """A caption with its values by the four criteria, in the order in which they count."""

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
    """Rank of each caption, 1 is best; captions that are equal by the criteria share a rank."""
    return [1 + sum(other.key > candidate.key for other in judged) for candidate in judged]


def draw_candidates(scene: SceneSpec, rng: Rng) -> list[Judged]:
    """Eight captions of a scene of one to three objects: all that it shows, a part, and what it does not show."""
    place = scene.background
    first = scene.objects[:1]
    colour = pick(rng, tuple(name for name in COLOURS if name != scene.objects[0].colour))
    recoloured = replace(scene, objects=(replace(scene.objects[0], colour=colour), *scene.objects[1:]))
    swapped = swap_object(scene, rng)
    elsewhere = pick(rng, tuple(name for name in words.PLACES if name != place))
    return [
        _judged_caption(scene, scene, rng, size=True, colour=True, place=place),
        _judged_caption(scene, scene, rng, size=False, colour=True, place=place),
        _judged_caption(scene, scene, rng, size=False, colour=True, place=None),
        _judged_caption(scene, scene, rng, size=False, colour=False, place=place),
        _judged_caption(scene, replace(scene, objects=first), rng, size=False, colour=False, place=None),
        _judged_caption(scene, recoloured, rng, size=False, colour=True, place=place),
        _judged_caption(scene, swapped, rng, size=False, colour=True, place=elsewhere),
        Judged(abstract_caption(scene, rng), -2 * len(scene.objects) - 2, 0.0, 0.0, 0),
    ]


def _judged_caption(
    scene: SceneSpec, described: SceneSpec, rng: Rng, *, size: bool, colour: bool, place: str | None
) -> Judged:
    """A caption of `described`, judged against `scene`."""
    wrong = 0
    named, vivid = 0, 0
    mentioned: list[PlacedObject] = list(
        dict.fromkeys(described.objects) if described.arrangement != "three" else described.objects[:1]
    )
    true = scene.objects if described.arrangement != "three" else scene.objects[:1]
    for other, drawn in zip(mentioned, true, strict=False):
        is_drawn = other.name == drawn.name
        named += is_drawn
        wrong += not is_drawn
        wrong += colour and is_drawn and other.colour != drawn.colour
        vivid += is_drawn * (colour * (other.colour == drawn.colour) + size * (other.size == drawn.size))
    wrong += place is not None and place != scene.background
    phrases = [
        _phrase(thing, rng, size=size, colour=colour, many=described.arrangement == "three") for thing in mentioned
    ]
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
