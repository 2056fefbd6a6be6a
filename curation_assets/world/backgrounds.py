"""The ten places a scene can be in, painted on a native 128 x 128 canvas."""

from collections.abc import Callable

import numpy as np
from PIL import ImageDraw

Draw = ImageDraw.ImageDraw
Rng = np.random.Generator
Rgb = tuple[int, int, int]


def _shade(colour: Rgb, rng: Rng, spread: int = 10) -> Rgb:
    r, g, b = (int(np.clip(c + rng.integers(-spread, spread + 1), 0, 255)) for c in colour)
    return r, g, b


def _two_bands(d: Draw, w: int, h: int, horizon: int, sky: Rgb, ground: Rgb) -> None:
    d.rectangle([0, 0, w, horizon], fill=sky)
    d.rectangle([0, horizon, w, h], fill=ground)


def _grass(d: Draw, w: int, h: int, rng: Rng) -> None:
    horizon = int(h * rng.uniform(0.38, 0.5))
    _two_bands(d, w, h, horizon, _shade((160, 210, 250), rng), _shade((96, 168, 72), rng))
    for _ in range(24):
        x, y = int(rng.integers(0, w)), int(rng.integers(horizon + 4, h))
        d.line([x, y, x + 2, y - 5], fill=(60, 130, 50), width=1)


def _beach(d: Draw, w: int, h: int, rng: Rng) -> None:
    shore = int(h * rng.uniform(0.5, 0.6))
    _two_bands(d, w, h, int(h * 0.3), _shade((190, 228, 250), rng), _shade((70, 150, 200), rng))
    d.rectangle([0, shore, w, h], fill=_shade((236, 214, 160), rng))
    d.line([0, shore, w, shore], fill=(250, 250, 245), width=3)


def _night(d: Draw, w: int, h: int, rng: Rng) -> None:
    _two_bands(d, w, h, int(h * 0.8), _shade((24, 26, 64), rng, 6), _shade((34, 40, 48), rng, 6))
    for _ in range(22):
        x, y = int(rng.integers(0, w)), int(rng.integers(0, int(h * 0.75)))
        d.point([(x, y), (x + 1, y)], fill=(240, 240, 220))
    x = int(rng.integers(8, max(9, w - 20)))
    d.ellipse([x, 6, x + 14, 20], fill=(244, 236, 180))


def _snow(d: Draw, w: int, h: int, rng: Rng) -> None:
    _two_bands(d, w, h, int(h * 0.45), _shade((190, 200, 214), rng), _shade((240, 244, 250), rng, 4))
    for _ in range(40):
        x, y = int(rng.integers(0, w)), int(rng.integers(0, h))
        d.ellipse([x, y, x + 2, y + 2], fill=(255, 255, 255))


def _room(d: Draw, w: int, h: int, rng: Rng) -> None:
    floor = int(h * rng.uniform(0.68, 0.76))
    _two_bands(d, w, h, floor, _shade((226, 206, 190), rng), _shade((150, 104, 70), rng))
    for x in range(0, w, 18):
        d.line([x, floor, x - 8, h], fill=(120, 80, 52), width=1)
    x = 8 if rng.random() < 0.5 else w - 38
    d.rectangle([x, 10, x + 28, 38], fill=(180, 220, 240), outline=(110, 80, 60), width=2)
    d.line([x + 14, 10, x + 14, 38], fill=(110, 80, 60), width=2)


def _sea(d: Draw, w: int, h: int, rng: Rng) -> None:
    horizon = int(h * rng.uniform(0.25, 0.35))
    _two_bands(d, w, h, horizon, _shade((200, 226, 240), rng), _shade((30, 96, 160), rng))
    for y in range(horizon + 8, h, 14):
        shift = int(rng.integers(0, 16))
        for x in range(-shift, w, 24):
            d.arc([x, y, x + 16, y + 8], 0, 180, fill=(130, 180, 220), width=2)


def _desert(d: Draw, w: int, h: int, rng: Rng) -> None:
    _two_bands(d, w, h, int(h * 0.5), _shade((250, 200, 130), rng), _shade((214, 150, 84), rng))
    for _ in range(3):
        x, y = int(rng.integers(-20, w)), int(h * 0.5) + int(rng.integers(0, 30))
        d.pieslice([x, y - 14, x + 70, y + 22], 180, 360, fill=_shade((200, 136, 74), rng))


def _street(d: Draw, w: int, h: int, rng: Rng) -> None:
    d.rectangle([0, 0, w, h], fill=_shade((176, 190, 204), rng))
    x = int(rng.integers(-10, 0))
    while x < w:
        width, top = int(rng.integers(16, 30)), int(rng.integers(4, int(h * 0.35)))
        d.rectangle([x, top, x + width, h], fill=_shade((140, 132, 130), rng, 18))
        for y in range(top + 5, int(h * 0.55), 9):
            d.rectangle([x + 4, y, x + 7, y + 4], fill=(225, 215, 150))
        x += width + 2
    road = int(h * 0.62)
    d.rectangle([0, road, w, h], fill=_shade((84, 84, 90), rng, 6))
    for x in range(int(rng.integers(0, 12)), w, 26):
        d.rectangle([x, int(h * 0.84), x + 13, int(h * 0.84) + 3], fill=(240, 240, 235))


def _forest(d: Draw, w: int, h: int, rng: Rng) -> None:
    _two_bands(d, w, h, int(h * 0.78), _shade((28, 74, 46), rng, 6), _shade((70, 62, 40), rng, 6))
    for x in range(int(rng.integers(0, 10)), w, 20):
        width = int(rng.integers(5, 9))
        d.rectangle([x, 0, x + width, int(h * 0.82)], fill=_shade((64, 46, 32), rng, 6))


def _mountains(d: Draw, w: int, h: int, rng: Rng) -> None:
    base = int(h * 0.68)
    _two_bands(d, w, h, base, _shade((210, 222, 244), rng), _shade((132, 140, 110), rng))
    for x in range(int(rng.integers(-40, -10)), w, 46):
        top = int(rng.integers(10, max(11, int(h * 0.35))))  # tiny odd-sized pictures have room for one height only
        d.polygon([(x, base), (x + 34, top), (x + 68, base)], fill=_shade((122, 122, 136), rng))
        d.polygon([(x + 26, top + 12), (x + 34, top), (x + 42, top + 12)], fill=(250, 250, 252))


PAINT: dict[str, Callable[[Draw, int, int, Rng], None]] = {
    "grass": _grass,
    "beach": _beach,
    "night": _night,
    "snow": _snow,
    "room": _room,
    "sea": _sea,
    "desert": _desert,
    "street": _street,
    "forest": _forest,
    "mountains": _mountains,
}
BACKGROUNDS: tuple[str, ...] = tuple(PAINT)
