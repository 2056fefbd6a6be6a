"""The labelling pages in a browser, by keyboard."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Literal

import pytest
from PIL import Image

from curation_assets.annotation.ranking import JUDGEMENT_HEADER, RankingLog
from curation_assets.annotation.ratings_log import RatingsLog, read_ratings
from curation_assets.annotation.session import JudgingSession, LabellingSession, RankingSession, Session
from curation_assets.annotation.web import LabellingServer, picture_of
from curation_assets.stores.rankings import read_rankings
from tests.support.browser import Page, open_browser


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Page]:
    with open_browser(tmp_path / "profile") as page:
        yield page


@contextmanager
def served(
    kind: Literal["rating", "ranking", "judging"],
    session: Callable[[str], Session],
    picture: Callable[[str], bytes | None] = lambda name: None,
) -> Iterator[str]:
    with ExitStack() as stack:
        server = stack.enter_context(LabellingServer(kind, session, rater="ann", picture=picture))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        stack.callback(server.shutdown)
        yield server.url


def press(browser: Page, *keys: str) -> None:
    for key in keys:
        browser.wait_for("!busy")
        browser.evaluate(f"document.dispatchEvent(new KeyboardEvent('keydown', {{ key: {key!r} }}))")


def test_captions_are_rated_by_keys(browser: Page, tmp_path: Path) -> None:
    path = tmp_path / "r.tsv"
    session = partial(LabellingSession, ["a <b>dog</b>", "hope"], log=RatingsLog(path), in_order=True)
    with served("rating", session) as url:
        browser.send("Page.navigate", url=url)
        browser.wait_for("document.getElementById('caption')?.textContent === 'a <b>dog</b>'")
        assert browser.evaluate("document.getElementById('progress').textContent") == "0 of 2 done by ann"
        press(browser, "3", "s")
        browser.wait_for("document.getElementById('caption').textContent.startsWith('All done')")
        press(browser, "b", "0")
        browser.wait_for("document.getElementById('caption').textContent.startsWith('All done')")
    assert dict(read_ratings([path]).table.select("caption", "rating").iter_rows()) == {"a <b>dog</b>": 3, "hope": 0}
    assert [error for error in browser.errors if "favicon.ico" not in error] == []


def test_captions_are_ranked_by_keys(browser: Page, tmp_path: Path) -> None:
    Image.new("RGB", (40, 30), "red").save(tmp_path / "0.png")
    path = tmp_path / "ranks.tsv"
    session = partial(RankingSession, [("0.png", ["good", "fair", "bad"])], log=RankingLog(path))
    with served("ranking", session, partial(picture_of, tmp_path / "c.tsv", {"0.png"})) as url:
        browser.send("Page.navigate", url=url)
        browser.wait_for("document.getElementById('picture')?.naturalWidth === 40")
        press(browser, "b", "a", "Backspace", "=", "c", "a")
        assert browser.evaluate("document.getElementById('order').textContent") == "b = c  >  a"
        press(browser, "Enter")
        browser.wait_for("document.getElementById('status').textContent.startsWith('All done')")
        shown = browser.evaluate("[...document.querySelectorAll('#captions button')].length")
    (ranked,) = read_rankings(path)
    assert (ranked.image, ranked.ranks, shown) == ("0.png", (3.0, 1.0, 1.0), 0)
    assert [error for error in browser.errors if "favicon.ico" not in error] == []


def test_pairs_are_judged_by_keys(browser: Page, tmp_path: Path) -> None:
    Image.new("RGB", (40, 30), "red").save(tmp_path / "0.png")
    path = tmp_path / "judged.tsv"
    session = partial(JudgingSession, [("0.png", "a <b>dog</b>")], log=RankingLog(path, JUDGEMENT_HEADER))
    with served("judging", session, partial(picture_of, tmp_path / "c.tsv", {"0.png"})) as url:
        browser.send("Page.navigate", url=url)
        browser.wait_for("document.getElementById('picture')?.naturalWidth === 40")
        assert browser.evaluate("document.getElementById('caption').textContent") == "a <b>dog</b>"
        press(browser, "g")
        browser.wait_for("document.getElementById('caption').textContent.startsWith('All done')")
        press(browser, "ArrowLeft", "b")
        browser.wait_for("document.getElementById('caption').textContent.startsWith('All done')")
    lines = [line.split("\t")[:4] for line in path.read_text().splitlines()]
    assert lines[1:] == [["0.png", "a <b>dog</b>", "1", "ann"], ["0.png", "a <b>dog</b>", "0", "ann"]]
    assert [error for error in browser.errors if "favicon.ico" not in error] == []
