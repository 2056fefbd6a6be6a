"""What the pages say can be opened and is in one form."""

import re
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY

DOCS = REPOSITORY / "docs"
PATHS = ("user", "operator", "contributor")
FOLDERS = ("curation_assets", "lab", "tests", "benchmarks", "dbt_like_sql", "docs", "infra", "data/pools", ".ci")
PAGES = sorted(
    path
    for path in [*REPOSITORY.glob("*.md"), REPOSITORY / "data" / "README.md"]
    + [page for folder in FOLDERS for page in (REPOSITORY / folder).rglob("*.md")]
)
DECISIONS = sorted((DOCS / "decisions").glob("[0-9]*.md"))
SOURCES = [
    path
    for folder in FOLDERS
    for path in sorted((REPOSITORY / folder).rglob("*"))
    if path.suffix in (".py", ".sql", ".yaml", ".md", ".jinja") and "weights" not in path.parts
]
#: Files at the root that name pages, too.
AT_THE_ROOT = [*REPOSITORY.glob("*.md"), REPOSITORY / "Makefile", REPOSITORY / "pyproject.toml"]


def anchor(heading: str) -> str:
    """What GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_link_leads_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, fragment = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{page.name} links to {link}"
        if fragment:
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert fragment in {anchor(heading) for heading in headings}, f"{page.name} links to {link}"


def test_every_page_that_code_and_messages_name_exists() -> None:
    named = {
        (page, str(path.relative_to(REPOSITORY)))
        for path in [*SOURCES, *AT_THE_ROOT]
        for page in re.findall(r"(?<![\w./-])docs/[\w/]+\.(?:md|py|svg|png)\b", path.read_text(encoding="utf-8"))
    }
    assert len(named) > 40
    assert [(page, path) for page, path in sorted(named) if not (REPOSITORY / page).is_file()] == []


def test_every_file_that_pages_name_exists() -> None:
    """Between backticks, from the root or from the package; capitals stand for a name of the reader's own."""
    named = {
        (name, str(page.relative_to(REPOSITORY)))
        for page in PAGES
        if page.name != "CHANGELOG.md"  # which names what was there then
        for name in re.findall(r"`([a-z_.][\w./-]*/[\w./-]+\.(?:py|sql|yaml|jinja|toml|sh))`", page.read_text("utf-8"))
        if not re.search(r"\b[A-Z]{3,}", name) and not name.startswith("dagster/")  # of a home
    }
    assert len(named) > 60
    assert [
        (name, page)
        for name, page in sorted(named)
        if not any((folder / name).is_file() for folder in (REPOSITORY, REPOSITORY / "curation_assets"))
    ] == []


@pytest.mark.parametrize("path", PATHS)
def test_the_door_lists_every_page_in_its_path(path: str) -> None:
    door = (DOCS / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[[\w ]+\]\((\w+)/(\w+\.md)\) \| .+ \|$", door, flags=re.MULTILINE)
    listed = [page for folder, page in rows if folder == path]
    assert sorted(listed) == sorted(page.name for page in (DOCS / path).glob("*.md"))


def test_no_page_lies_beside_the_paths() -> None:
    assert [path.name for path in DOCS.iterdir() if path.is_file()] == ["README.md"]


def test_every_citation_of_a_formula_has_its_section() -> None:
    formulas = (DOCS / "user" / "formulas.md").read_text(encoding="utf-8")
    sections = set(re.findall(r"^##+ (\d+(?:\.\d+)?) ", formulas, flags=re.MULTILINE))
    worked = set(re.findall(r"^(\d+)\. \*\*", formulas.partition("\n## 13 ")[2], flags=re.MULTILINE))
    sections |= {f"13.{number}" for number in worked}
    cited = {
        (section, path.relative_to(REPOSITORY))
        for path in SOURCES
        for group in re.findall(r"formulas\.md\s+(§\d[\d.]*(?:, §\d[\d.]*)*)", path.read_text(encoding="utf-8"))
        for section in re.findall(r"\d+(?:\.\d+)?", group)
    }
    assert len(cited) > 80
    assert [(section, str(path)) for section, path in sorted(cited) if section not in sections] == []


def test_no_page_outside_the_repository_is_cited() -> None:
    lost = re.compile(r"\b(METHODS|EMBEDDED|DESIGN|PHOTOS|SCALE|FIELD|FORMATS|HOUSE|STYLE)(\.md)? ?§|\bHOUSE\.md\b")
    assert [str(path) for path in SOURCES if path != Path(__file__) and lost.search(path.read_text("utf-8"))] == []


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_decisions_have_one_form(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"# {page.name[:4]} · ")
    parts = ["**Situation.**", "**Options.**", "**Choice.**", "**What would change our mind.**"]
    places = [text.find(part) for part in parts]
    assert -1 not in places, [part for part, place in zip(parts, places, strict=True) if place < 0]
    assert places == sorted(places)


STATUS = re.compile(
    r"^\*\*Status\.\*\* (In force\b|Replaced by \[(\d{4})\]|Reason no longer true\b)", flags=re.MULTILINE
)


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_every_decision_has_one_status_and_the_index_has_it(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    found = list(STATUS.finditer(text))
    assert len(found) == text.count("**Status.**") == 1
    assert found[0].end() < text.index("**Situation.**")
    if newer := found[0].group(2):
        (other,) = (DOCS / "decisions").glob(f"{newer}-*.md")
        assert page.name[:4] in other.read_text(encoding="utf-8"), f"{other.name} does not name what it replaces"
    index = (DOCS / "decisions" / "README.md").read_text(encoding="utf-8")
    (row,) = [line for line in index.splitlines() if f"]({page.name})" in line]
    assert row.endswith(f"| {found[0].group(1).replace('[', '').replace(']', '').lower()} |")


def test_the_index_lists_every_decision_and_explains_the_gaps() -> None:
    index = (DOCS / "decisions" / "README.md").read_text(encoding="utf-8")
    assert {page.name for page in DECISIONS} == set(re.findall(r"\]\(([^)]+)\)", index))
    rows = re.findall(r"^\| (.*?) \|", index, flags=re.MULTILINE)
    listed = {int(number) for row in rows for number in re.findall(r"\b0\d{3}\b", row.partition("](")[0])}
    assert listed == set(range(1, max(listed) + 1))
