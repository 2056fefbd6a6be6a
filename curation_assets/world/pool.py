"""Planted pools: samples whose kind, concreteness and alignment we know, because we made them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from PIL import Image

from curation_assets.world import grammar, words
from curation_assets.world.scene import (
    OverlayText,
    SceneSpec,
    TextBox,
    draw_spec,
    object_boxes,
    render_scene,
    text_boxes,
)

Rng = np.random.Generator
CaptionFor = Callable[[SceneSpec, Rng, int | None], str]

# share of the pool; planted concreteness 0-3 (None: not rated); does the caption describe the image
WEB_MIX: Mapping[str, float] = MappingProxyType(
    {
        "clean": 0.34, "medium_phrase": 0.06, "caps": 0.03, "short": 0.04, "fluff": 0.08, "partial": 0.08,
        "abstract": 0.13, "mismatched": 0.08, "text_only": 0.06, "scene_text": 0.04, "boilerplate": 0.03,
        "foreign": 0.015, "repetition": 0.015, "odd_size": 0.02,
    }
)  # fmt: skip
CONCRETENESS: Mapping[str, int | None] = MappingProxyType(
    {
        "clean": 3, "medium_phrase": 3, "caps": 3, "short": 2, "fluff": 2, "partial": 1, "abstract": 0,
        "mismatched": 3, "text_only": 0, "scene_text": 3, "boilerplate": 0, "foreign": None, "repetition": None,
        "odd_size": 3,
    }
)  # fmt: skip
IS_ALIGNED: Mapping[str, bool | None] = MappingProxyType(
    {
        "clean": True, "medium_phrase": True, "caps": True, "short": True, "fluff": True, "partial": True,
        "abstract": None, "mismatched": False, "text_only": None, "scene_text": True, "boilerplate": None,
        "foreign": True, "repetition": True, "odd_size": True,
    }
)  # fmt: skip
CAPTION_FOR: Mapping[str, CaptionFor] = MappingProxyType(
    {
        "clean": grammar.clean_caption, "medium_phrase": grammar.medium_caption, "caps": grammar.caps_caption,
        "short": grammar.short_caption, "fluff": grammar.fluff_caption, "partial": grammar.partial_caption,
        "abstract": grammar.abstract_caption, "mismatched": grammar.clean_caption,
        "text_only": grammar.text_only_caption, "scene_text": grammar.overlay_caption,
        "boilerplate": grammar.boilerplate_caption, "foreign": grammar.foreign_caption,
        "repetition": grammar.repeated_caption, "odd_size": grammar.clean_caption,
    }
)  # fmt: skip
ODD_SIZES: tuple[tuple[int, int], ...] = ((24, 24), (400, 40), (40, 400), (12, 96), (600, 128), (30, 18))
EVALUATION_STREAM = 7  # keeps the seeds of evaluation scenes apart from those of pools
LABEL_STREAM = 11


@dataclass(frozen=True)
class PlantedSample:
    """One sample and the truth about it. No method may read more than the caption and the picture."""

    index: int
    caption: str
    scene: SceneSpec
    kind: str
    concreteness: int | None  # 0 (nothing can be drawn) to 3 (all of it can); None: not rated
    is_aligned: bool | None  # None: the caption makes no claim that a picture could meet
    text_boxes: tuple[TextBox, ...]  # native pixels


def _overlays(rng: Rng, count: int, on_picture: bool) -> tuple[OverlayText, ...]:
    """Lines of sale words, one below the other, big enough to read at 128 px."""
    chosen = [words.SALE_WORDS[i] for i in rng.choice(len(words.SALE_WORDS), size=count, replace=False)]
    lines, top = [], int(rng.integers(4, 14)) if count > 1 or not on_picture else int(rng.integers(4, 96))
    for word in chosen:
        font_px = int(rng.integers(18, 25)) if len(word) < 7 else int(rng.integers(15, 19))
        width = len(word) * font_px * 0.72
        left = int(rng.integers(4, max(5, int(124 - width))))
        dark = rng.random() < 0.5
        ink = (20, 20, 20) if dark else (250, 250, 250)
        paper = (250, 240, 120) if dark else (190, 20, 40)
        lines.append(OverlayText(word, left, top, font_px, ink, paper if on_picture else None))
        top += font_px + 12
    return tuple(lines)


def _text_only_scene(rng: Rng) -> SceneSpec:
    overlays = _overlays(rng, int(rng.integers(1, 4)), on_picture=False)
    light = rng.random() < 0.5
    paper = (
        tuple(int(v) for v in rng.integers(200, 256, 3)) if light else tuple(int(v) for v in rng.integers(10, 90, 3))
    )
    ink = (20, 20, 30) if light else (245, 245, 240)
    overlays = tuple(replace(line, ink=ink) for line in overlays)
    return SceneSpec(None, "plain", (), overlays, paper=(paper[0], paper[1], paper[2]))


def _odd_size(scene: SceneSpec, rng: Rng) -> SceneSpec:
    width, height = ODD_SIZES[int(rng.integers(len(ODD_SIZES)))]
    scale = min(width, height) / 128
    objects = tuple(
        replace(o, x_px=o.x_px * width / 128, y_px=o.y_px * height / 128, radius_px=max(3.0, o.radius_px * scale))
        for o in scene.objects
    )
    return replace(scene, objects=objects, width_px=width, height_px=height)


def draw_scene_of_kind(kind: str, rng: Rng) -> SceneSpec:
    """A scene as that kind of sample needs it: with overlays, of text alone, of odd size, or plain."""
    if kind == "text_only":
        return _text_only_scene(rng)
    scene = draw_spec(rng)
    if kind == "scene_text":
        return replace(scene, overlays=_overlays(rng, int(rng.integers(1, 4)), on_picture=True))
    return _odd_size(scene, rng) if kind == "odd_size" else scene


def _plant(index: int, seed: int, mix: Mapping[str, float]) -> PlantedSample:
    rng = np.random.default_rng([seed, index])
    shares = np.array(list(mix.values()))
    kind = list(mix)[int(rng.choice(len(shares), p=shares / shares.sum()))]
    scene = draw_scene_of_kind(kind, rng)
    described = draw_spec(rng) if kind == "mismatched" else scene
    caption = CAPTION_FOR[kind](described, rng, None)
    return PlantedSample(index, caption, scene, kind, CONCRETENESS[kind], IS_ALIGNED[kind], tuple(text_boxes(scene)))


def plant_pool(size: int, seed: int, mix: Mapping[str, float] = WEB_MIX) -> list[PlantedSample]:
    """`size` samples with indices 0 .. size-1. A sample depends on (seed, index, mix) alone."""
    if size < 0:
        raise ValueError(f"size must be 0 or more, got {size}")
    unknown = sorted(set(mix) - set(CAPTION_FOR))
    if unknown or not mix or min(mix.values()) < 0 or sum(mix.values()) <= 0:
        raise ValueError(f"mix must map kinds to shares >= 0 with a positive sum; unknown kinds: {unknown}; "
                         f"known kinds: {sorted(CAPTION_FOR)}")  # fmt: skip
    return [_plant(index, seed, mix) for index in range(size)]


def render(sample: PlantedSample) -> Image.Image:
    """The picture: RGB, 128 x 128, except for kind odd_size."""
    return render_scene(sample.scene)


def truth_rows(samples: list[PlantedSample]) -> list[dict[str, object]]:
    """Grain: one row per sample. What no method may read: index, kind, concreteness, is_aligned, ..."""
    return [
        {
            "index": s.index,
            "kind": s.kind,
            "concreteness": s.concreteness,
            "is_aligned": s.is_aligned,
            "has_overlay_text": bool(s.text_boxes),
            "objects": [name for name, _ in object_boxes(s.scene)],
        }
        for s in samples
    ]


RATED_KINDS: Mapping[int, tuple[str, ...]] = MappingProxyType(
    {
        0: ("abstract", "text_only", "boilerplate"),
        1: ("partial",),
        2: ("fluff", "short"),
        3: ("clean", "medium_phrase", "caps"),
    }
)


def plant_labelled_captions(size: int = 244, seed: int = 0) -> list[tuple[str, int]]:
    """(caption, concreteness 0-3), balanced over four lengths x four levels, for the logistic fusion.

    ICC (Noam-Reddy 2024) fits its fusion on 244 captions rated 0-3 and spread over the teachers' plane.
    """
    bins = ((4, 7), (7, 10), (10, 13), (13, 17))
    labelled = []
    for index in range(size):
        rng = np.random.default_rng([seed, LABEL_STREAM, index])
        level = index % 4
        low, high = bins[(index // 4) % 4]
        kinds = RATED_KINDS[level]
        shares = np.array([WEB_MIX[k] for k in kinds])  # within a level, as often as in the pool
        kind = kinds[int(rng.choice(len(kinds), p=shares / shares.sum()))]
        for _ in range(20):  # some kinds can hardly be short: try other scenes until the length fits
            caption = CAPTION_FOR[kind](draw_scene_of_kind(kind, rng), rng, int(rng.integers(low, high)))
            if low <= len(caption.split()) < high:
                break
        labelled.append((caption, level))
    return labelled


def plant_evaluation_scenes(size: int, seed: int) -> list[tuple[Image.Image, list[str]]]:
    """Clean scenes of a stream of their own, each with five paraphrases, as COCO has five references."""
    scenes = []
    for index in range(size):
        rng = np.random.default_rng([seed, EVALUATION_STREAM, index])
        scene = draw_spec(rng)
        references = [grammar.clean_caption(scene, rng, int(rng.integers(6, 12))) for _ in range(5)]
        scenes.append((render_scene(scene), references))
    return scenes
