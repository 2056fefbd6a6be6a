"""Captions for scenes: concrete, partly concrete, abstract, and the other things found next to images.

Length is independent of concreteness: every kind is built to a word count drawn from one common
distribution (`draw_word_count`), concrete captions by naming more of what is drawn, others by empty clauses.
"""

import re
from collections.abc import Callable
from functools import wraps

import numpy as np

from curation_assets.world import words
from curation_assets.world.scene import PlacedObject, SceneSpec
from curation_assets.world.word_lists import pick

Rng = np.random.Generator
WORD_COUNTS = np.arange(4, 18)
# A flat hump around 9-10 words, near the median 9 and mean 10.3 of Conceptual Captions (Sharma 2018, table 1).
WORD_COUNT_WEIGHTS = np.array([2, 3, 5, 7, 9, 10, 10, 10, 9, 8, 7, 5, 4, 3], dtype=float)


def draw_word_count(rng: Rng) -> int:
    """A target length in words, the same distribution for every kind of caption."""
    return int(rng.choice(WORD_COUNTS, p=WORD_COUNT_WEIGHTS / WORD_COUNT_WEIGHTS.sum()))


def of_drawn_length(write: Callable[[SceneSpec, Rng, int], str]) -> Callable[..., str]:
    """`write` of a word count that is drawn where none is given."""

    @wraps(write)
    def caption(scene: SceneSpec, rng: Rng, word_count: int | None = None) -> str:
        return write(scene, rng, draw_word_count(rng) if word_count is None else word_count)

    return caption


def nearest_in_length(draw: Callable[[], str], word_count: int, tries: int = 8) -> str:
    """The draw whose word count is nearest to the target; the first of equals."""
    candidates = [draw() for _ in range(tries)]
    return min(candidates, key=lambda text: abs(len(text.split()) - word_count))


def _article(phrase: str) -> str:
    return f"an {phrase}" if phrase[0] in "aeiou" else f"a {phrase}"


def object_phrase(placed: PlacedObject, rng: Rng, with_size: bool | None = None, plural: bool = False) -> str:
    """'small red mug'. The size is named half of the time unless requested; a medium size often has no word."""
    says_size = rng.random() < 0.5 if with_size is None else with_size
    size = pick(rng, words.SIZE_NAMES[placed.size]) if says_size else ""
    colour = pick(rng, words.COLOUR_NAMES[placed.colour])
    name = words.PLURALS[placed.name] if plural else pick(rng, words.OBJECT_NAMES[placed.name])
    return " ".join(part for part in (size, colour, name) if part)


def _subject(scene: SceneSpec, rng: Rng) -> str:
    """What the scene shows, without its place."""
    phrases = [_article(object_phrase(o, rng)) for o in scene.objects]
    if scene.arrangement == "three":
        many = object_phrase(scene.objects[0], rng, plural=True)
        return pick(rng, (f"three {many}", f"a group of three {many}", f"three {many} side by side"))
    if scene.arrangement == "row":
        a, b, c = phrases
        return pick(rng, (f"{a}, {b} and {c}", f"{a} , {b} and {c} in a row", f"{a} beside {b} and {c}"))
    if scene.arrangement == "beside":
        a, b = phrases
        orders = (
            f"{a} and {b}", f"{a} next to {b}", f"{a} to the left of {b}", f"{b} to the right of {a}",
            f"{b} beside {a}", f"{a} on the left and {b} on the right",
        )  # fmt: skip
        return pick(rng, orders)
    if scene.arrangement == "stacked":
        a, b = phrases
        return pick(
            rng,
            (
                f"{a} above {b}",
                f"{b} below {a}",
                f"{a} over {b}",
                f"{b} under {a}",
                f"{a} at the top and {b} below",
            ),
        )
    if scene.side == "middle" or rng.random() < 0.5:
        return phrases[0]
    where = (f"on the {scene.side}", f"on the {scene.side} side", f"at the {scene.side} of the picture")
    return f"{phrases[0]} {pick(rng, where)}"


def concrete_caption(scene: SceneSpec, rng: Rng) -> str:
    """What is drawn and where, and nothing else. Lower case, 3 to about 25 words."""
    subject = _subject(scene, rng)
    if scene.background is None:
        return subject
    where = pick(rng, words.PLACES[scene.background])
    detail = pick(rng, words.DETAILS[scene.background])
    forms = (
        f"{subject} {where}", f"{subject} {where}", f"{where} , {subject}", f"there is {subject} {where}",
        f"{subject} seen {where}", f"{subject} {where} {detail}", f"{subject} , {where}",
        f"{subject} {detail}", f"you can see {subject} {where}", subject,
    )  # fmt: skip
    return pick(rng, forms).replace(" ,", ",")


@of_drawn_length
def clean_caption(scene: SceneSpec, rng: Rng, target: int) -> str:
    """A concrete caption near a word count (drawn if not given)."""
    return nearest_in_length(lambda: concrete_caption(scene, rng), target)


def _fill(template: str, rng: Rng, obj: str = "") -> str:
    nouns = [words.NOUNS[i] for i in rng.choice(len(words.NOUNS), size=3, replace=False)]
    adjectives = [words.ADJECTIVES[i] for i in rng.choice(len(words.ADJECTIVES), size=2, replace=False)]
    number, number2 = int(rng.integers(100, 9999)), int(rng.integers(2, 31))
    filled = template.format(
        noun=nouns[0], noun2=nouns[1], noun3=nouns[2], adj=adjectives[0], adj2=adjectives[1], obj=obj,
        verb=pick(rng, words.VERBS), audience=pick(rng, words.AUDIENCES), number=number, number2=number2,
    )  # fmt: skip
    return re.sub(r"\ba (?=[aeio]|ul)", "an ", filled)  # 'a unique', but 'an ultimate'


def _with_tails(body: str, rng: Rng, word_count: int) -> str:
    """Empty clauses are added up to the word count, or two words over what would be nearest."""
    text = body
    while len(text.split()) < word_count:
        longer = f"{text} {_fill(pick(rng, words.TAILS), rng)}"
        if len(longer.split()) - word_count > word_count - len(text.split()) + 2:
            break
        text = longer
    return text


@of_drawn_length
def abstract_caption(scene: SceneSpec, rng: Rng, target: int) -> str:
    """Nothing in it can be drawn; the scene is ignored."""
    body = nearest_in_length(lambda: _fill(pick(rng, words.ABSTRACT), rng), target, tries=3)
    return _with_tails(body, rng, target)


@of_drawn_length
def partial_caption(scene: SceneSpec, rng: Rng, target: int) -> str:
    """An abstract statement that names one object of the scene."""
    obj = words.OBJECT_NAMES[scene.objects[0].name][0]
    body = nearest_in_length(lambda: _fill(pick(rng, words.PARTIAL), rng, obj), target, tries=3)
    return _with_tails(body, rng, target)


@of_drawn_length
def short_caption(scene: SceneSpec, rng: Rng, target: int) -> str:
    """Two or three bare words of the scene, then empty clauses up to the word count."""
    first = scene.objects[0]
    colour, name = pick(rng, words.COLOUR_NAMES[first.colour]), pick(rng, words.OBJECT_NAMES[first.name])
    body = pick(rng, (f"{colour} {name}", f"{name}, {colour}", f"{name} {colour}", f"the {colour} {name}"))
    return _with_tails(body, rng, min(target, 8))


@of_drawn_length
def fluff_caption(scene: SceneSpec, rng: Rng, target: int) -> str:
    """A concrete caption with a clause of praise before or after it."""
    praise = nearest_in_length(lambda: _fill(pick(rng, words.FLUFF), rng), max(3, target - 5), tries=3)
    body = clean_caption(scene, rng, max(3, target - len(praise.split())))
    return f"{body}, {praise}" if rng.random() < 0.7 else f"{praise}, {body}"


@of_drawn_length
def medium_caption(scene: SceneSpec, rng: Rng, target: int) -> str:
    """'a photo of ' and the like before a concrete caption."""
    prefix = pick(rng, words.MEDIUM_PREFIXES)
    return f"{prefix} {clean_caption(scene, rng, max(3, target - len(prefix.split())))}"


def caps_caption(scene: SceneSpec, rng: Rng, word_count: int | None = None) -> str:
    """A concrete caption in capitals."""
    return clean_caption(scene, rng, word_count).upper()


@of_drawn_length
def boilerplate_caption(scene: SceneSpec, rng: Rng, target: int) -> str:
    """What content systems write when nobody writes a caption."""
    text = _fill(pick(rng, words.BOILERPLATE), rng)
    while len(text.split()) < target - 2:
        text = f"{text} - {_fill(pick(rng, words.BOILERPLATE), rng)}"
    return text


def foreign_caption(scene: SceneSpec, rng: Rng, word_count: int | None = None) -> str:
    """The scene in French, German or Spanish."""
    language = pick(rng, ("fr", "de", "es"))
    first = scene.objects[0]
    return pick(rng, words.FOREIGN_TEMPLATES[language]).format(
        obj=words.FOREIGN_OBJECTS[language][first.name], colour=words.FOREIGN_COLOURS[language][first.colour]
    )


@of_drawn_length
def repeated_caption(scene: SceneSpec, rng: Rng, target: int) -> str:
    """One short phrase, again and again."""
    phrase = object_phrase(scene.objects[0], rng, with_size=False)
    return " ".join([phrase] * max(3, target // len(phrase.split())))


@of_drawn_length
def overlay_caption(scene: SceneSpec, rng: Rng, target: int) -> str:
    """A concrete caption that also quotes the text over the picture, half of the time."""
    quoted = " ".join(overlay.text for overlay in scene.overlays).lower()
    if rng.random() < 0.5:
        return clean_caption(scene, rng, target)
    return f"{clean_caption(scene, rng, max(3, target - len(quoted.split())))}, {quoted}"


@of_drawn_length
def text_only_caption(scene: SceneSpec, rng: Rng, target: int) -> str:
    """The words that are written in the picture, and empty clauses."""
    quoted = " ".join(overlay.text for overlay in scene.overlays)
    return _with_tails(quoted.lower() if rng.random() < 0.5 else quoted.capitalize(), rng, target)
