"""Planted noise among photographs of one's own: which photograph gets which fault, its caption, and its pixels."""

import hashlib
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from PIL import Image

from curation_assets.world import photo_damage
from curation_assets.world.grammar import text_only_caption
from curation_assets.world.pool import draw_scene_of_kind
from curation_assets.world.scene import SceneSpec, render_scene
from curation_assets.world.web_texts import NoiseTexts

Rng = np.random.Generator

#: Share of the pool's rows.
PHOTO_MIX: Mapping[str, float] = MappingProxyType(
    {
        "clean": 0.40, "mismatched": 0.12, "abstract": 0.10, "boilerplate": 0.06, "file_name": 0.06, "text_only": 0.06,
        "duplicate": 0.06, "odd_size": 0.04, "dark": 0.05, "blurred": 0.05,
    }
)  # fmt: skip
#: Does the caption describe what the image shows? None: the caption makes no claim that a picture could meet.
IS_ALIGNED: Mapping[str, bool | None] = MappingProxyType(
    {
        "clean": True, "mismatched": False, "abstract": None, "boilerplate": None, "file_name": None, "text_only": None,
        "duplicate": True, "odd_size": True, "dark": True, "blurred": True,
    }
)  # fmt: skip
WITHOUT_OWN_PHOTO = ("text_only", "duplicate")  # drawn, and copied from a clean photograph of the pool
TEXT_SCALE = 2  # images of words are drawn at 128 px
QUALITY = 90  # JPEG quality of a damaged image
PLAN_STREAM, PIXEL_STREAM, ORDER_STREAM = 1, 2, 3  # keep the random numbers of one seed apart


@dataclass(frozen=True)
class Photo:
    """A clean photograph: its key, and the captions that people gave it."""

    key: str
    captions: tuple[str, ...]


@dataclass(frozen=True)
class NoisyPhoto:
    """One row of the pool and the truth about it. No method may read more than the caption and the picture."""

    index: int  # position in the pool
    kind: str
    caption: str
    photo: str | None  # key of the photograph that is shown; None: no photograph
    caption_of: str | None  # key of the photograph that the caption was given to; None: to none
    scene: SceneSpec | None  # of an image of words
    seed: tuple[int, int, int]  # of its pixels


def counts_of(size: int, mix: Mapping[str, float]) -> dict[str, int]:
    """Rows of each kind, largest remainders rounded up: they sum to `size`."""
    total = sum(mix.values())
    exact = {kind: size * share / total for kind, share in mix.items()}
    counts = {kind: int(share) for kind, share in exact.items()}
    by_remainder = sorted(mix, key=lambda kind: (counts[kind] - exact[kind], kind))
    for kind in by_remainder[: size - sum(counts.values())]:
        counts[kind] += 1
    return counts


def largest_size(photos: int, mix: Mapping[str, float] = PHOTO_MIX) -> int:
    """Rows of the largest pool that shows each of so many photographs once at most, copies aside."""
    size = int(photos / (1 - sum(mix.get(kind, 0) for kind in WITHOUT_OWN_PHOTO) / sum(mix.values()))) + len(mix)
    while _photos_needed(counts_of(size, mix)) > photos:
        size -= 1
    return size


def _photos_needed(counts: Mapping[str, int]) -> int:
    return sum(count for kind, count in counts.items() if kind not in WITHOUT_OWN_PHOTO)


def plant_photo_noise(
    photos: Sequence[Photo],
    *,
    size: int | None = None,
    seed: int = 0,
    texts: NoiseTexts | None = None,
    mix: Mapping[str, float] = PHOTO_MIX,
) -> list[NoisyPhoto]:
    """`size` rows (null: as many as the photographs allow), in a random order, each photograph shown once at most.

    Copies (kind duplicate) show a photograph that a clean row shows too, with another caption of it where it has one.
    A mismatched caption is one of another photograph, none of whose captions this one has. The same arguments give
    the same rows, whatever the order of `photos`. Raises ValueError for unknown kinds, too few photographs, keys that
    repeat, or photographs without a caption.
    """
    _check(photos, mix)
    counts = counts_of(largest_size(len(photos), mix) if size is None else size, mix)
    if size is not None and (size < 1 or _photos_needed(counts) > len(photos)):
        raise ValueError(
            f"size must be between 1 and {largest_size(len(photos), mix)} for {len(photos)} photographs and this mix, "
            f"got {size}"
        )
    if counts.get("duplicate", 0) > counts.get("clean", 0):
        raise ValueError(f"every duplicate needs a clean row to copy; got counts {counts}")
    texts = NoiseTexts() if texts is None else texts
    rng = np.random.default_rng([seed, PLAN_STREAM])
    by_key = sorted(photos, key=lambda photo: photo.key)
    pile = [by_key[i] for i in rng.permutation(len(by_key))]
    with_photo = {kind: count for kind, count in counts.items() if kind not in WITHOUT_OWN_PHOTO}
    shown = {kind: [pile.pop() for _ in range(count)] for kind, count in with_photo.items()}
    # (kind, caption, photo, caption_of, scene)
    rows: list[tuple[str, str, str | None, str | None, SceneSpec | None]] = []
    clean_captions = {}
    for kind, chosen in shown.items():
        if kind in ("abstract", "boilerplate", "file_name"):
            captions = texts.draw(kind, len(chosen), rng)
            rows += [(kind, text, photo.key, None, None) for photo, text in zip(chosen, captions, strict=True)]
            continue
        for photo in chosen:
            described = _other_scene(photo, by_key, rng) if kind == "mismatched" else photo
            caption = described.captions[int(rng.integers(len(described.captions)))]
            rows.append((kind, caption, photo.key, described.key, None))
            if kind == "clean":
                clean_captions[photo.key] = caption
    for photo in shown.get("clean", [])[: counts.get("duplicate", 0)]:
        others = [text for text in photo.captions if text != clean_captions[photo.key]] or list(photo.captions)
        rows.append(("duplicate", others[int(rng.integers(len(others)))], photo.key, photo.key, None))
    for _ in range(counts.get("text_only", 0)):
        words = draw_scene_of_kind("text_only", rng)
        rows.append(("text_only", text_only_caption(words, rng), None, None, words))
    order = np.random.default_rng([seed, ORDER_STREAM]).permutation(len(rows))
    planted = []
    for index, position in enumerate(order):
        kind, caption, shown_photo, caption_of, scene = rows[position]
        seeds = (seed, PIXEL_STREAM, index)
        planted.append(NoisyPhoto(index, kind, caption, shown_photo, caption_of, scene, seeds))
    return planted


def _check(photos: Sequence[Photo], mix: Mapping[str, float]) -> None:
    unknown = sorted(set(mix) - set(PHOTO_MIX))
    if unknown or not mix or min(mix.values()) < 0 or mix.get("clean", 0) <= 0:
        raise ValueError(
            f"mix must map kinds to shares of 0 or more, clean above 0; unknown kinds: {unknown}; known: "
            f"{', '.join(PHOTO_MIX)}"
        )
    if not photos:
        raise ValueError("expected photographs, got none")
    if len({photo.key for photo in photos}) < len(photos):
        raise ValueError("expected photographs with distinct keys; some keys stand for several")
    blank = [photo.key for photo in photos if not photo.captions or not all(map(str.strip, photo.captions))]
    if blank:
        raise ValueError(f"{len(blank)} photographs have no caption or a blank one, such as {blank[0]!r}; leave it out")


def _other_scene(photo: Photo, photos: Sequence[Photo], rng: Rng) -> Photo:
    """A photograph none of whose captions is one of this photograph's, so that no copy of it is drawn."""
    own = {_normal(caption) for caption in photo.captions}
    for position in rng.permutation(len(photos)):
        other = photos[position]
        if other.key != photo.key and own.isdisjoint(map(_normal, other.captions)):
            return other
    raise ValueError(f"every other photograph has a caption that {photo.key!r} has too: none can be mismatched")


def _normal(caption: str) -> str:
    return " ".join(caption.lower().split()).rstrip(" .")


def noisy_sample_id(seed: int, index: int) -> str:
    """The id that a row brings along: it depends on (seed, index), and so shows nothing of its kind."""
    return hashlib.sha256(f"noisy_photos/{seed}/{index}".encode()).hexdigest()[:32]


def noisy_image(row: NoisyPhoto, photograph: Callable[[str], Image.Image]) -> tuple[bytes, str] | None:
    """(JPEG, what was done in words); None where the photograph is shown as it is, byte for byte.

    `photograph`: key → RGB image; called where it is changed.
    """
    if row.scene is not None:
        drawn = render_scene(row.scene)
        large = drawn.resize((drawn.width * TEXT_SCALE, drawn.height * TEXT_SCALE), Image.Resampling.BICUBIC)
        return _jpeg(large, QUALITY), " ".join(overlay.text for overlay in row.scene.overlays)
    damage = {
        "dark": photo_damage.darkened, "blurred": photo_damage.blurred, "odd_size": photo_damage.odd_sized,
    }.get(row.kind)  # fmt: skip
    if row.photo is None or (damage is None and row.kind != "duplicate"):
        return None
    image, rng = photograph(row.photo), np.random.default_rng(row.seed)
    if damage is None:
        copy, how, quality = photo_damage.copied(image, rng)
        return _jpeg(copy, quality), how
    damaged, how = damage(image, rng)
    return _jpeg(damaged, QUALITY), how


def _jpeg(image: Image.Image, quality: int) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()
