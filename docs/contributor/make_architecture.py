"""Draw the rooms of the package from its imports, docs/pictures/architecture.svg, and write the table of rooms into the
pages that show it. `python docs/contributor/make_architecture.py`.

A room is a folder of `curation_assets/`; an arrow says that some file of the upper room imports from the lower one. An
import that follows from others (a room imports b, b imports c, so the arrow from the room to c) is not drawn.
"""

import ast
import re
import tomllib
from collections.abc import Mapping
from graphlib import TopologicalSorter
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "curation_assets"
PICTURE = ROOT / "docs" / "pictures" / "architecture.svg"
# The pages with the table of rooms, between these lines.
PAGES = (ROOT / "CONTRIBUTING.md", Path(__file__).with_name("architecture.md"))
BEGIN, END = "<!-- rooms: written by docs/contributor/make_architecture.py -->", "<!-- end of rooms -->"
BOX_WIDTH, BOX_HEIGHT, GAP, LEVEL_HEIGHT, MARGIN = 118, 34, 34, 74, 24  # px


def imports_between_rooms(package: Path = PACKAGE) -> dict[str, set[str]]:
    """Room → the other rooms that its files import from, at the top of a file or inside a function."""
    rooms = {path.name for path in package.iterdir() if (path / "__init__.py").is_file()}
    found: dict[str, set[str]] = {room: set() for room in sorted(rooms)}
    for path in sorted(package.glob("*/**/*.py")):
        room = path.relative_to(package).parts[0]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            for name in names:
                parts = name.split(".")
                if parts[0] == package.name and len(parts) > 1 and parts[1] in rooms - {room}:
                    found[room].add(parts[1])
    return found


def reachable(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Room → every room below it. Raises graphlib.CycleError for rooms that import each other."""
    below: dict[str, set[str]] = {}
    for room in TopologicalSorter(graph).static_order():
        below[room] = set(graph[room]).union(*(below[other] for other in graph[room]))
    return below


def reduced(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The graph without the imports that follow from others."""
    below = reachable(graph)
    return {room: {one for one in to if not any(one in below[other] for other in to)} for room, to in graph.items()}


def levels(graph: Mapping[str, set[str]]) -> dict[str, int]:
    """Room → 0 for what imports nothing, else one above the highest that it imports."""
    level: dict[str, int] = {}
    for room in TopologicalSorter(graph).static_order():
        level[room] = max((level[other] + 1 for other in graph[room]), default=0)
    return level


def drawing(graph: Mapping[str, set[str]]) -> str:
    """The SVG: levels from the bottom up, arrows from a room to what it imports."""
    level = levels(graph)
    rows = [sorted(room for room in graph if level[room] == number) for number in range(max(level.values()) + 1)]
    width = max(len(row) for row in rows) * (BOX_WIDTH + GAP) - GAP + 2 * MARGIN
    height = len(rows) * LEVEL_HEIGHT + 2 * MARGIN - (LEVEL_HEIGHT - BOX_HEIGHT)
    place: dict[str, tuple[float, float]] = {}
    for number, row in enumerate(rows):
        left = (width - len(row) * (BOX_WIDTH + GAP) + GAP) / 2
        top = height - MARGIN - BOX_HEIGHT - number * LEVEL_HEIGHT
        for position, room in enumerate(row):
            place[room] = (left + position * (BOX_WIDTH + GAP), top)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" font-family="DejaVu Sans, Verdana, sans-serif" font-size="13">',
        "<title>The rooms of curation_assets and what each imports</title>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" fill="#5b6b7b"/></marker></defs>',
        f'<rect width="{width:g}" height="{height:g}" fill="#ffffff"/>',
    ]
    for room, others in reduced(graph).items():
        for other in sorted(others):
            lines.append(_arrow(place[room], place[other]))
    for room, (left, top) in place.items():
        lines.append(
            f'<rect x="{left:g}" y="{top:g}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6" fill="#eef3f8" '
            'stroke="#35506b"/>'
        )
        lines.append(
            f'<text x="{left + BOX_WIDTH / 2:g}" y="{top + BOX_HEIGHT / 2 + 4.5:g}" text-anchor="middle" '
            f'fill="#14273a">{escape(room)}</text>'
        )
    return "\n".join([*lines, "</svg>"]) + "\n"


def _arrow(upper: tuple[float, float], lower: tuple[float, float]) -> str:
    """A curve from the bottom of one box to the top of another, bent outwards where it passes levels."""
    start, end = (upper[0] + BOX_WIDTH / 2, upper[1] + BOX_HEIGHT), (lower[0] + BOX_WIDTH / 2, lower[1] - 1)
    passed = round((lower[1] - upper[1]) / LEVEL_HEIGHT) - 1
    bend = passed * 42 * (1 if start[0] >= end[0] else -1)
    middle = (start[1] + end[1]) / 2
    return (
        f'<path d="M{start[0]:g} {start[1]:g} C{start[0] + bend:g} {middle:g} {end[0] + bend:g} {middle:g} '
        f'{end[0]:g} {end[1]:g}" fill="none" stroke="#5b6b7b" stroke-width="1.2" marker-end="url(#head)"/>'
    )


def layers() -> list[str]:
    """Rooms and modules of pyproject.toml's contract, lowest first; those of one row in its order."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    rooms = next(one for one in project["tool"]["importlinter"]["contracts"] if one["id"] == "rooms")
    return [name.strip(" ()") for row in reversed(rooms["layers"]) for name in row.split("|")]


def rooms_table() -> str:
    """One row per room: its place is that of the contract, its sentence that of its docstring, its imports the drawn
    ones. Raises ValueError for a room without a docstring."""
    arrows = reduced(imports_between_rooms())
    lines = ["| room | holds | imports |", "|---|---|---|"]
    for name in layers():
        folder = PACKAGE / name / "__init__.py"
        file = folder if folder.is_file() else PACKAGE / f"{name}.py"
        if not file.is_file():
            continue  # weights alone
        documented = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))
        if not documented:
            raise ValueError(f"{file} has no docstring; its first paragraph is the room's row in {PAGES[0].name}")
        sentence = " ".join(documented.partition("\n\n")[0].split()).removesuffix(".")
        others = ", ".join(sorted(arrows.get(name, ()), key=layers().index)) or "–"
        lines.append(
            f"| `{name}/` | {sentence} | {others} |" if file is folder else f"| `{file.name}` | {sentence} | |"
        )
    return "\n".join(lines)


def with_table(page: str) -> str:
    """A page with the table of today. Raises ValueError for one without the lines that it stands between."""
    written, count = re.subn(
        f"{re.escape(BEGIN)}.*?{re.escape(END)}",
        lambda _: f"{BEGIN}\n\n{rooms_table()}\n\n{END}",
        page,
        flags=re.DOTALL,
    )
    if count != 1:
        raise ValueError(f"expected the lines {BEGIN!r} and {END!r} once, got them {count} times")
    return written


def main() -> None:
    """Write the picture and the tables."""
    PICTURE.write_text(drawing(imports_between_rooms()), encoding="utf-8")
    for page in PAGES:
        page.write_text(with_table(page.read_text(encoding="utf-8")), encoding="utf-8")
    print("written:", *(path.relative_to(ROOT) for path in (PICTURE, *PAGES)))


if __name__ == "__main__":
    main()
