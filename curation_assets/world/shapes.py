"""Silhouettes of the twenty objects, drawn with Pillow polygons around a centre."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from PIL import ImageDraw

Paint = tuple[int, int, int] | int
Point = tuple[float, float]


@dataclass(frozen=True)
class Brush:
    """Draws in object coordinates: x to the right and y down, both in [-1, 1] of the radius (in pixels)."""

    draw: ImageDraw.ImageDraw
    centre_x: float
    centre_y: float
    radius: float
    fill: Paint
    accent: Paint
    line: Paint

    def _to_px(self, points: list[Point]) -> list[Point]:
        return [(self.centre_x + x * self.radius, self.centre_y + y * self.radius) for x, y in points]

    def polygon(self, *points: Point, paint: Paint | None = None) -> None:
        corners = self._to_px(list(points))
        self.draw.polygon(corners, fill=self.fill if paint is None else paint)
        self.draw.line([*corners, corners[0]], fill=self.line, width=1)

    def ellipse(self, x0: float, y0: float, x1: float, y1: float, paint: Paint | None = None) -> None:
        (left, top), (right, bottom) = self._to_px([(x0, y0), (x1, y1)])
        self.draw.ellipse([left, top, right, bottom], fill=self.fill if paint is None else paint, outline=self.line)

    def stroke(self, *points: Point, width: float, paint: Paint | None = None) -> None:
        """A thick open line; `width` in radii."""
        width_px = max(2, round(width * self.radius))
        self.draw.line(self._to_px(list(points)), fill=self.fill if paint is None else paint, width=width_px)


def _turned(count: int, radius_at: Callable[[int], float], start: float = -math.pi / 2) -> list[Point]:
    return [
        (
            radius_at(i) * math.cos(start + 2 * math.pi * i / count),
            radius_at(i) * math.sin(start + 2 * math.pi * i / count),
        )
        for i in range(count)
    ]


def _ball(b: Brush) -> None:
    b.ellipse(-0.9, -0.9, 0.9, 0.9)
    b.polygon((-0.86, -0.2), (0.86, -0.2), (0.86, 0.2), (-0.86, 0.2), paint=b.accent)


def _box(b: Brush) -> None:
    b.polygon((-0.9, -0.45), (0.5, -0.45), (0.5, 0.9), (-0.9, 0.9))
    b.polygon((-0.9, -0.45), (-0.5, -0.9), (0.9, -0.9), (0.5, -0.45), paint=b.accent)
    b.polygon((0.5, -0.45), (0.9, -0.9), (0.9, 0.45), (0.5, 0.9), paint=b.accent)


def _tent(b: Brush) -> None:
    b.polygon((0, -0.8), (1.05, 0.8), (-1.05, 0.8))
    b.polygon((0, -0.3), (0.35, 0.8), (-0.35, 0.8), paint=b.line)


def _star(b: Brush) -> None:
    b.polygon(*_turned(10, lambda i: 1.0 if i % 2 == 0 else 0.42))


def _heart(b: Brush) -> None:
    outline = []
    for i in range(28):
        t = 2 * math.pi * i / 28
        x = 16 * math.sin(t) ** 3
        y = 13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)
        outline.append((x / 17, -y / 17))
    b.polygon(*outline)


def _tree(b: Brush) -> None:
    b.polygon((-0.15, 0.45), (0.15, 0.45), (0.15, 1.0), (-0.15, 1.0), paint=b.accent)
    b.polygon((0, -1.0), (0.5, -0.35), (0.25, -0.35), (0.8, 0.5), (-0.8, 0.5), (-0.25, -0.35), (-0.5, -0.35))


def _house(b: Brush) -> None:
    b.polygon((-0.7, -0.1), (0.7, -0.1), (0.7, 0.95), (-0.7, 0.95))
    b.polygon((-1.0, -0.1), (0, -0.95), (1.0, -0.1), paint=b.accent)
    b.polygon((-0.18, 0.35), (0.18, 0.35), (0.18, 0.95), (-0.18, 0.95), paint=b.line)


def _car(b: Brush) -> None:
    b.polygon((-1.1, 0.0), (-0.65, 0.0), (-0.4, -0.5), (0.35, -0.5), (0.65, 0.0), (1.1, 0.05), (1.1, 0.5), (-1.1, 0.5))
    b.polygon((-0.3, -0.38), (0.28, -0.38), (0.45, 0.0), (-0.48, 0.0), paint=b.accent)
    b.ellipse(-0.8, 0.25, -0.25, 0.8, paint=b.line)
    b.ellipse(0.25, 0.25, 0.8, 0.8, paint=b.line)


def _boat(b: Brush) -> None:
    b.polygon((-1.0, 0.35), (1.0, 0.35), (0.6, 0.9), (-0.6, 0.9))
    b.stroke((0, 0.35), (0, -1.0), width=0.1, paint=b.line)
    b.polygon((0.08, -0.95), (0.08, 0.2), (0.85, 0.2), paint=b.accent)
    b.polygon((-0.08, -0.6), (-0.08, 0.2), (-0.6, 0.2), paint=b.accent)


def _fish(b: Brush) -> None:
    b.polygon((0.35, 0.0), (1.1, -0.55), (1.1, 0.55), paint=b.accent)
    b.ellipse(-1.05, -0.5, 0.6, 0.5)
    b.ellipse(-0.8, -0.2, -0.58, 0.02, paint=b.line)


def _flower(b: Brush) -> None:
    b.stroke((0, 0.1), (0, 1.0), width=0.14, paint=(40, 120, 40) if isinstance(b.fill, tuple) else b.fill)
    for x, y in _turned(5, lambda i: 0.45):
        b.ellipse(x - 0.33, y - 0.3 - 0.33, x + 0.33, y - 0.3 + 0.33)
    b.ellipse(-0.22, -0.52, 0.22, -0.08, paint=b.accent)


def _mug(b: Brush) -> None:
    b.ellipse(0.15, -0.35, 1.05, 0.5, paint=b.line)
    b.ellipse(0.35, -0.15, 0.85, 0.3, paint=b.accent)
    b.polygon((-0.85, -0.75), (0.5, -0.75), (0.5, 0.85), (-0.85, 0.85))
    b.ellipse(-0.85, -0.95, 0.5, -0.55, paint=b.accent)


def _kite(b: Brush) -> None:
    b.stroke((0, 0.45), (0.3, 0.7), (0.0, 0.85), (0.3, 1.05), width=0.09, paint=b.line)
    b.polygon((0, -1.0), (0.65, -0.35), (0, 0.5), (-0.65, -0.35))
    b.stroke((0, -1.0), (0, 0.5), width=0.06, paint=b.line)
    b.stroke((-0.65, -0.35), (0.65, -0.35), width=0.06, paint=b.line)


def _balloon(b: Brush) -> None:
    b.stroke((0, 0.45), (0.12, 0.7), (-0.08, 1.05), width=0.07, paint=b.line)
    b.ellipse(-0.62, -1.0, 0.62, 0.4)
    b.polygon((-0.14, 0.55), (0.14, 0.55), (0, 0.36), paint=b.accent)


def _umbrella(b: Brush) -> None:
    b.stroke((0, -0.2), (0, 0.85), (0.25, 0.95), (0.4, 0.75), width=0.11, paint=b.line)
    dome = [(math.cos(math.pi + math.pi * i / 12), math.sin(math.pi + math.pi * i / 12)) for i in range(13)]
    scallops = [(0.66, -0.2), (0.33, 0.0), (0.0, -0.2), (-0.33, 0.0), (-0.66, -0.2)]
    b.polygon(*[(x * 1.05, y * 0.9 + 0.0) for x, y in dome], *scallops)


def _mushroom(b: Brush) -> None:
    b.polygon((-0.28, 0.0), (0.28, 0.0), (0.38, 0.95), (-0.38, 0.95), paint=b.accent)
    cap = [(math.cos(math.pi + math.pi * i / 12), math.sin(math.pi + math.pi * i / 12)) for i in range(13)]
    b.polygon(*[(x * 0.95, y * 0.95 + 0.15) for x, y in cap])
    for x, y in ((-0.45, -0.2), (0.1, -0.5), (0.5, -0.1)):
        b.ellipse(x - 0.13, y - 0.13, x + 0.13, y + 0.13, paint=b.accent)


def _chair(b: Brush) -> None:
    b.polygon((-0.75, -1.0), (-0.45, -1.0), (-0.45, 0.05), (0.75, 0.05), (0.75, 0.3), (-0.75, 0.3))
    b.polygon((-0.75, 0.3), (-0.55, 0.3), (-0.55, 1.0), (-0.75, 1.0), paint=b.accent)
    b.polygon((0.55, 0.3), (0.75, 0.3), (0.75, 1.0), (0.55, 1.0), paint=b.accent)


def _bottle(b: Brush) -> None:
    b.polygon(
        (-0.16, -0.8),
        (0.16, -0.8),
        (0.16, -0.35),
        (0.42, -0.05),
        (0.42, 1.0),
        (-0.42, 1.0),
        (-0.42, -0.05),
        (-0.16, -0.35),
    )
    b.polygon((-0.2, -1.0), (0.2, -1.0), (0.2, -0.78), (-0.2, -0.78), paint=b.accent)
    b.polygon((-0.42, 0.25), (0.42, 0.25), (0.42, 0.65), (-0.42, 0.65), paint=b.accent)


def _crown(b: Brush) -> None:
    b.polygon((-1.0, -0.6), (-0.5, 0.0), (0, -0.8), (0.5, 0.0), (1.0, -0.6), (0.8, 0.7), (-0.8, 0.7))
    b.polygon((-0.83, 0.4), (0.83, 0.4), (0.8, 0.7), (-0.8, 0.7), paint=b.accent)


def _ladder(b: Brush) -> None:
    for y in (-0.65, -0.2, 0.25, 0.7):
        b.stroke((-0.45, y), (0.45, y), width=0.17)
    b.stroke((-0.5, -1.0), (-0.5, 1.0), width=0.2)
    b.stroke((0.5, -1.0), (0.5, 1.0), width=0.2)


DRAW: dict[str, Callable[[Brush], None]] = {
    "ball": _ball,
    "box": _box,
    "tent": _tent,
    "star": _star,
    "heart": _heart,
    "tree": _tree,
    "house": _house,
    "car": _car,
    "boat": _boat,
    "fish": _fish,
    "flower": _flower,
    "mug": _mug,
    "kite": _kite,
    "balloon": _balloon,
    "umbrella": _umbrella,
    "mushroom": _mushroom,
    "chair": _chair,
    "bottle": _bottle,
    "crown": _crown,
    "ladder": _ladder,
}
OBJECTS: tuple[str, ...] = tuple(DRAW)
