"""The picture and the table of the rooms are those that the imports and the contract give."""

import sys
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "docs" / "contributor"))

from make_architecture import PAGES, PICTURE, drawing, imports_between_rooms, layers, levels, reduced, with_table


@pytest.mark.slow
def test_the_picture_is_up_to_date() -> None:
    assert PICTURE.read_text(encoding="utf-8") == drawing(imports_between_rooms()), "run make docs"


@pytest.mark.slow
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_table_of_rooms_is_that_of_the_contract(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    assert page == with_table(page), "run docs/contributor/make_architecture.py"
    rows = [line.split("`")[1].rstrip("/") for line in page.splitlines() if line.startswith("| `") and "/`" in line]
    assert set(imports_between_rooms()) <= set(rows)


@pytest.mark.slow
def test_a_room_imports_from_rows_above_its_own() -> None:
    places = layers()
    for room, others in imports_between_rooms().items():
        assert all(places.index(other) < places.index(room) for other in others), room


def test_a_page_without_a_place_for_the_table_is_an_error() -> None:
    with pytest.raises(ValueError, match="got them 0 times"):
        with_table("# A page")


def test_what_follows_from_other_imports_is_not_drawn() -> None:
    graph = {"top": {"middle", "low"}, "middle": {"low"}, "low": set()}
    assert reduced(graph) == {"top": {"middle"}, "middle": {"low"}, "low": set()}
    assert levels(graph) == {"low": 0, "middle": 1, "top": 2}
