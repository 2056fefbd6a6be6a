"""Which texts of the web are names of files or boiler-plate: explicit rules, and the lists that they pick."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from curation_assets.world import grammar
from curation_assets.world.scene import draw_spec

MAX_WORDS = 30  # longer texts are left out: their length alone would give them away

_EXTENSION = r"\.(jpe?g|png|gif|bmp|tiff?|webp|psd|svg)"
#: A text is the name of a file if one of these matches all of it.
FILE_NAME_RULES: tuple[re.Pattern[str], ...] = (
    re.compile(rf"(file:|name:)?[^/\\]{{1,80}}{_EXTENSION}", re.IGNORECASE),  # 'Balloon flying over town7.jpg'
    re.compile(r"(img|dsc[nf]?|cimg|pict?|sam|scan|screenshot|image|photo)[ _-]?\d{3,}", re.IGNORECASE),  # 'DSC_0294'
    re.compile(r"[a-z0-9]+([_-]+[a-z0-9]+){2,}", re.IGNORECASE),  # 'climbing-holidays-on-a-beach', no space in it
)
#: A text is boiler-plate if it is not the name of a file and one of these is in it.
BOILERPLATE_RULES: tuple[re.Pattern[str], ...] = tuple(
    re.compile(rf"\b{phrase}", re.IGNORECASE)
    for phrase in (
        r"click (here|on|to|image|for)\b", r"(view|see|display) (a )?(larger|full)", r"enlarge\b", r"read more\b",
        r"stock (photo|image|vector|illustration|picture|footage|video)", r"royalty[- ]free\b", r"image results? for\b",
        r"free shipping\b", r"add to cart\b", r"buy .*\bonline\b", r"price:", r"coupons?\b",
        r"(free|instant) .*downloads?\b", r"download (now|free)\b",
        r"thumbnail\b", r"wallpapers?\b", r"(image|photo|picture) \d+ of\b", r"load image into gallery",
        r"all rights reserved\b", r"copyright\b", r"photo credit", r"(on|ideas about) pinterest\b",
        r"(sign up|subscribe)\b", r"no (image|description) available\b",
    )
)  # fmt: skip
CAMERA_PREFIXES = ("IMG_", "DSC_", "DSCN", "P10", "image-", "photo_")


def is_file_name(text: str) -> bool:
    """Whether a text is the name of a file and nothing else, by FILE_NAME_RULES."""
    return any(rule.fullmatch(text.strip()) for rule in FILE_NAME_RULES)


def is_boilerplate(text: str) -> bool:
    """Whether a text holds a phrase of shops, stock agencies or content systems (BOILERPLATE_RULES)."""
    return not is_file_name(text) and any(rule.search(text) for rule in BOILERPLATE_RULES)


@dataclass(frozen=True)
class NoiseTexts:
    """Texts that stand in place of captions. An empty list: the grammar of the scene world writes them."""

    abstract: tuple[str, ...] = ()
    boilerplate: tuple[str, ...] = ()
    file_name: tuple[str, ...] = ()

    def draw(self, kind: str, count: int, rng: np.random.Generator) -> list[str]:
        """`count` texts of a kind in random order; a list is begun anew only when all of it is used.

        Raises ValueError for a kind without such texts.
        """
        if kind not in ("abstract", "boilerplate", "file_name"):
            raise ValueError(f"expected the kind abstract, boilerplate or file_name, got {kind!r}")
        given = getattr(self, kind)
        if not given:
            return [_written(kind, rng) for _ in range(count)]
        rounds = -(-count // len(given))
        return [given[i] for _ in range(rounds) for i in rng.permutation(len(given))][:count]


def noise_texts(alt_texts: Iterable[str], abstract: Iterable[str] = ()) -> NoiseTexts:
    """The file names and the boiler-plate among alt-texts, and abstract sentences as given.

    Distinct, sorted, blanks stripped, at most MAX_WORDS words.
    """
    texts = _distinct(alt_texts)
    return NoiseTexts(
        abstract=_distinct(abstract),
        boilerplate=tuple(text for text in texts if is_boilerplate(text)),
        file_name=tuple(text for text in texts if is_file_name(text)),
    )


def _distinct(texts: Iterable[str]) -> tuple[str, ...]:
    stripped = {" ".join(text.split()) for text in texts}
    return tuple(sorted(text for text in stripped if text and len(text.split()) <= MAX_WORDS))


def _written(kind: str, rng: np.random.Generator) -> str:
    if kind == "abstract":
        return grammar.abstract_caption(draw_spec(rng), rng)
    if kind == "boilerplate":
        text = grammar.boilerplate_caption(draw_spec(rng), rng)
        return f"{text} - all rights reserved" if is_file_name(text) else text
    return f"{CAMERA_PREFIXES[int(rng.integers(len(CAMERA_PREFIXES)))]}{int(rng.integers(10_000)):04d}.jpg"
