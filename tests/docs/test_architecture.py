"""The picture of the rooms is the one that the imports give."""

import sys

from tests.support.paths import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "docs"))

from make_architecture import PICTURE, drawing, imports_between_rooms, levels, reduced


def test_the_picture_is_up_to_date() -> None:
    assert PICTURE.read_text(encoding="utf-8") == drawing(imports_between_rooms()), "run docs/make_architecture.py"


def test_every_room_is_in_the_table() -> None:
    page = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    for room in imports_between_rooms():
        assert f"`{room}/" in page, room


def test_what_follows_from_other_imports_is_not_drawn() -> None:
    graph = {"top": {"middle", "low"}, "middle": {"low"}, "low": set()}
    assert reduced(graph) == {"top": {"middle"}, "middle": {"low"}, "low": set()}
    assert levels(graph) == {"low": 0, "middle": 1, "top": 2}
