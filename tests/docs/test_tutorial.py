"""The tutorial prints what its page shows."""

import sys

import pytest

from tests.support.paths import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "docs"))

from render_tutorial import PAGE, SCRIPT, cells, run_cells


def test_the_page_has_the_script_s_texts_and_code() -> None:
    page = PAGE.read_text(encoding="utf-8")
    position = 0
    for _, content in cells(SCRIPT.read_text(encoding="utf-8")):
        position = page.find(content, position)
        assert position >= 0, f"run docs/render_tutorial.py: the page lacks\n{content}"


@pytest.mark.slow
def test_the_script_prints_what_the_page_shows() -> None:
    assert run_cells(SCRIPT.read_text(encoding="utf-8")) == PAGE.read_text(encoding="utf-8")
