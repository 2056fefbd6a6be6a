"""One scene: a small specification, and the picture, labels and boxes that follow from it."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from curation_assets.world.backgrounds import BACKGROUNDS, PAINT
from curation_assets.world.shapes import DRAW, OBJECTS, Brush
from curation_assets.world.word_lists import pick

NATIVE_PX = 128

Rgb = tuple[int, int, int]
Box = tuple[int, int, int, int]  # left, top, right, bottom in native pixels

COLOURS: dict[str, Rgb] = {
    "red": (214, 38, 38),
    "orange": (244, 130, 24),
    "yellow": (246, 218, 40),
    "green": (40, 160, 60),
    "blue": (40, 84, 216),
    "purple": (136, 52, 176),
    "pink": (248, 140, 190),
    "brown": (124, 74, 38),
    "black": (28, 28, 30),
    "white": (248, 248, 248),
}
RADIUS_PX: dict[str, int] = {"small": 17, "medium": 23, "large": 31}
ARRANGEMENTS: tuple[str, ...] = ("single", "beside", "stacked", "three", "row", "plain")
SIDES: tuple[str, ...] = ("left", "right", "middle")


@dataclass(frozen=True)
class PlacedObject:
    """One object. Centre and radius in native pixels of a 128 x 128 canvas."""

    name: str
    colour: str
    size: str
    x_px: float
    y_px: float
    radius_px: float


@dataclass(frozen=True)
class OverlayText:
    """A line of text over the picture. Position is its top-left corner in native pixels."""

    text: str
    x_px: int
    y_px: int
    font_px: int
    ink: Rgb
    paper: Rgb | None  # a filled box behind the text; None writes straight on the picture


@dataclass(frozen=True)
class SceneSpec:
    """All that the picture depends on. `objects` are in reading order (left to right or top to bottom)."""

    background: str | None  # None: a plain surface of colour `paper`
    arrangement: str
    objects: tuple[PlacedObject, ...]
    overlays: tuple[OverlayText, ...] = ()
    side: str = "middle"
    paper: Rgb = (250, 250, 250)
    texture_seed: int = 0
    width_px: int = NATIVE_PX
    height_px: int = NATIVE_PX


@dataclass(frozen=True)
class TextBox:
    """Where an overlay was drawn."""

    text: str
    box: Box


@lru_cache(maxsize=64)
def _font(size_px: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size=size_px)


def _accent(colour: Rgb) -> Rgb:
    """A darker relative of the colour (a lighter one for dark colours), for roofs, sails, labels."""
    if sum(colour) < 150:
        return 90, 90, 96
    r, g, b = (int(c * 0.72) for c in colour)
    return r, g, b


def _brush(draw: ImageDraw.ImageDraw, placed: PlacedObject, is_dark_place: bool) -> Brush:
    fill = COLOURS[placed.colour]
    line = (220, 220, 224) if is_dark_place or placed.colour == "black" else (30, 26, 26)
    return Brush(draw, placed.x_px, placed.y_px, placed.radius_px, fill, _accent(fill), line)


def render_scene(spec: SceneSpec) -> Image.Image:
    """RGB picture, width_px x height_px. The same specification always gives the same pixels."""
    image = Image.new("RGB", (spec.width_px, spec.height_px), spec.paper)
    draw = ImageDraw.Draw(image)
    if spec.background is not None:
        rng = np.random.default_rng(spec.texture_seed)
        PAINT[spec.background](draw, spec.width_px, spec.height_px, rng)
    is_dark_place = spec.background in ("night", "forest")
    for placed in spec.objects:
        DRAW[placed.name](_brush(draw, placed, is_dark_place))
    for overlay, drawn in zip(spec.overlays, text_boxes(spec), strict=True):
        if overlay.paper is not None:
            draw.rectangle(drawn.box, fill=overlay.paper)
        draw.text((overlay.x_px, overlay.y_px), overlay.text, font=_font(overlay.font_px), fill=overlay.ink)
    return image


def text_boxes(spec: SceneSpec) -> list[TextBox]:
    """Boxes of the overlays in native pixels, two pixels of margin included."""
    boxes = []
    for overlay in spec.overlays:
        left, top, right, bottom = _font(overlay.font_px).getbbox(overlay.text)
        box = (
            int(overlay.x_px + left - 2),
            int(overlay.y_px + top - 2),
            int(overlay.x_px + right + 2),
            int(overlay.y_px + bottom + 2),
        )
        boxes.append(TextBox(overlay.text, box))
    return boxes


def object_mask(spec: SceneSpec) -> np.ndarray:
    """(H, W) uint8: 0 where no object is, else 1 + position in `spec.objects`."""
    image = Image.new("L", (spec.width_px, spec.height_px), 0)
    draw = ImageDraw.Draw(image)
    for number, placed in enumerate(spec.objects, start=1):
        shape = Brush(draw, placed.x_px, placed.y_px, placed.radius_px, number, number, number)
        DRAW[placed.name](shape)
    return np.asarray(image)


def object_boxes(spec: SceneSpec) -> list[tuple[str, Box]]:
    """(object name, visible box) for every object of which at least one pixel shows."""
    mask = object_mask(spec)
    boxes = []
    for number, placed in enumerate(spec.objects, start=1):
        rows, columns = np.nonzero(mask == number)
        if rows.size:
            box = (int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1)
            boxes.append((placed.name, box))
    return boxes


def draw_spec(rng: np.random.Generator) -> SceneSpec:
    """A random scene: one object (.45), two beside or above one another (.35), three alike (.1), a row (.1)."""
    arrangement = _choice_weighted(rng, ARRANGEMENTS[:5], (0.45, 0.22, 0.13, 0.10, 0.10))
    count = {"single": 1, "beside": 2, "stacked": 2, "three": 3, "row": 3}[arrangement]
    names = [OBJECTS[i] for i in rng.choice(len(OBJECTS), size=count, replace=False)]
    palette = tuple(COLOURS)
    colours = [palette[i] for i in rng.choice(len(palette), size=count, replace=False)]
    sizes = [pick(rng, ("small", "medium", "large")) for _ in range(count)]
    if arrangement == "three":
        names, colours, sizes = names[:1] * 3, colours[:1] * 3, ["small"] * 3
    elif arrangement == "row":
        sizes = ["small"] * 3
    elif arrangement == "stacked":  # two large ones would not fit above one another
        sizes = [s if s != "large" else "medium" for s in sizes]
    side = pick(rng, SIDES) if arrangement == "single" else "middle"
    centres = _centres(arrangement, side, rng)
    objects = tuple(
        PlacedObject(n, c, s, x, y, RADIUS_PX[s] * float(rng.uniform(0.95, 1.05)))
        for n, c, s, (x, y) in zip(names, colours, sizes, centres, strict=True)
    )
    return SceneSpec(
        background=pick(rng, BACKGROUNDS),
        arrangement=arrangement,
        objects=objects,
        side=side,
        texture_seed=int(rng.integers(2**31)),
    )


def _choice_weighted(rng: np.random.Generator, options: tuple[str, ...], weights: tuple[float, ...]) -> str:
    return options[int(rng.choice(len(options), p=np.asarray(weights) / sum(weights)))]


def _centres(arrangement: str, side: str, rng: np.random.Generator) -> list[tuple[float, float]]:
    def near(x: float, y: float) -> tuple[float, float]:
        return x + float(rng.uniform(-4, 4)), y + float(rng.uniform(-4, 4))

    middle = 74.0  # a little below the centre, where the ground is
    if arrangement == "single":
        return [near({"left": 36.0, "right": 92.0, "middle": 64.0}[side], middle + float(rng.uniform(-12, 8)))]
    if arrangement == "beside":
        return [near(33, middle), near(95, middle)]
    if arrangement == "stacked":
        return [near(64, 34), near(64, 94)]
    return [near(23, middle), near(64, middle), near(105, middle)]
