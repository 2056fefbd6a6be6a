"""Watermarks: names, notices, stamps and repeats among text boxes."""

import numpy as np
import pytest

from curation_assets.numeric.text_masking import TextBox
from curation_assets.numeric.watermark_words import AGENCIES, PHRASES, STAMPS
from curation_assets.numeric.watermarks import find_watermark, off_line


def box(text: str, left: float = 0, top: float = 0, height: float = 10, confidence: float = 0.9) -> TextBox:
    right, bottom = left + 40, top + height
    return TextBox(text, confidence, (left, top, right, top, right, bottom, left, bottom))


def rule_of(*texts: str) -> str | None:
    found = find_watermark([box(text, left=97 * i**2) for i, text in enumerate(texts)])
    return None if found is None else found.rule


@pytest.mark.parametrize(
    ("texts", "rule"),
    [
        (["shutterstock"], "agency"),
        (["SHUTTERST0CK"], "agency"),  # one letter misread
        (["shuterstock"], "agency"),  # one lost
        (["shutferstocks"], "agency"),  # one misread, one after it
        (["shxtterstxck"], None),  # two
        (["getty images"], "agency"),
        (["getty", "images"], "agency"),  # two boxes
        (["www.alamy.com"], "agency"),
        (["alomy"], None),  # short names are not guessed
        (["livestock market"], None),
        (["big stick"], None),
        (["© 2014 Ann Lee"], "notice"),
        (["(c) 2014", "Ann Lee"], "notice"),
        (["Copyright: Lee"], "notice"),
        (["©"], None),  # nobody's
        (["Lens™"], None),  # a trademark
        (["(c) 4"], None),
        (["SAMPLE"], "stamp"),
        (["free sample"], None),
        (["For preview only!"], "stamp"),
        (["please do not copy this"], "stamp"),
        (["stop", "taxi", "bus lane"], None),
        ([], None),
    ],
)
def test_rules(texts: list[str], rule: str | None) -> None:
    assert rule_of(*texts) == rule


def test_what_was_not_read_well_does_not_count() -> None:
    assert find_watermark([box("shutterstock", confidence=0.4)]) is None
    assert find_watermark([box("shutterstock", confidence=0.5)]) is not None


def test_further_names() -> None:
    boxes = [box("Lee's"), box("Picture House")]
    assert find_watermark(boxes) is None
    found = find_watermark(boxes, ["Picture House"])
    assert found is not None
    assert (found.rule, found.text) == ("agency", "picture house")
    assert find_watermark(boxes, ["", "…"]) is None, "a name without letters is nowhere"


def test_a_text_all_over_an_image_is_repeated() -> None:
    tiled = [box("Lee Foto", 60 * column + 5 * row, 30 * row) for row in range(3) for column in range(3)]
    found = find_watermark(tiled)
    assert found is not None
    assert (found.rule, found.text) == ("repeated", "foto")
    assert find_watermark([tiled[0], tiled[4]]) is None, "twice is not all over"
    cut = [box(text, 60 * (i % 2), 30 * i) for i, text in enumerate(("kestrelpix", "trelpix", "kestrelplx", "kestr"))]
    found = find_watermark(cut)
    assert found is not None, "cut at the edges, one letter misread"
    assert found.rule == "repeated"
    assert find_watermark(cut[1:2] * 3 + cut[3:]) is None, "places on one line"
    assert find_watermark([box("Lee Foto", 60 * i) for i in range(5)]) is None, "a row of a menu"
    menu = [box(word, 9 * i, 20 * i) for i, word in enumerate(("settings", "network", "printers", "displays", "audio"))]
    assert find_watermark([*tiled[:4], *menu]) is None, "less than half of what is read"
    assert find_watermark([box(f"Lee {word}", 60 * i) for i, word in enumerate(("one", "two", "three"))]) is None


def test_a_mark_is_most_of_what_is_read() -> None:
    page = [box("settings of the network and its printers", top=40)]
    for mark in ("(c) 2014 Ann Lee", "Preview"):
        assert find_watermark([box(mark)]) is not None
        assert find_watermark([box(mark), *page]) is None
    assert find_watermark([box("shutterstock"), *page]) is not None, "a name counts anywhere"


def test_deviation_from_a_line() -> None:
    assert off_line(np.array([[0.0, 0.0], [10.0, 10.0], [30.0, 30.0]])) == pytest.approx(0, abs=1e-9)
    assert off_line(np.array([[0.0, 1.0], [10.0, -1.0], [20.0, -1.0], [30.0, 1.0]])) == pytest.approx(1)
    assert off_line(np.array([[0.0, 0.0], [5.0, 9.0]])) == 0


def test_word_lists_are_in_order_and_in_small_letters() -> None:
    for words in (AGENCIES, STAMPS, PHRASES):
        assert list(words) == sorted(set(words))
        assert all(word == " ".join(word.casefold().split()) for word in words)
