"""Ranking on a local page: an image, its captions, best first; several raters, nothing loaded from elsewhere."""

import html
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from curation_assets.annotation.ranking import CRITERIA, RankingLog, parse_order
from curation_assets.annotation.ratings_log import check_rater
from curation_assets.annotation.web import ASK, LocalPageServer
from curation_assets.numeric.identity import sample_id_of, unit_interval_of
from curation_assets.stores.rankings import load_ranked_image

LONGER_SIDE_PX = 900  # of the picture that is shown

Candidates = Sequence[tuple[str, Sequence[str]]]


class RankingSession:
    """Images left for one rater. The log is the only state: a new session goes on where the last one stopped."""

    def __init__(self, candidates: Candidates, rater: str, log: RankingLog) -> None:
        """Every rater sees images and captions in an order of their own, so that no order effect adds up."""
        self.rater = check_rater(rater)
        self.log = log
        self.total = len(candidates)
        own = sorted(candidates, key=lambda pair: _order_of(pair[0], rater))
        shuffled = [(image, sorted(texts, key=lambda text: _order_of(image + text, rater))) for image, texts in own]
        self._captions = dict(shuffled)
        self._waiting = [image for image, _ in log.left_for(rater, shuffled)]
        left = set(self._waiting)
        self._done = [image for image in log.ranked_by(rater) if image in self._captions and image not in left]

    @property
    def current(self) -> tuple[str, list[str]] | None:
        """The image to rank now with its captions, None when all are done."""
        return (self._waiting[0], list(self._captions[self._waiting[0]])) if self._waiting else None

    @property
    def done_count(self) -> int:
        """Images that this rater has ranked."""
        return len(self._done)

    def rank(self, order: str) -> None:
        """Write the ranks of the current image, `order` as in `parse_order`. Raises ValueError for another text."""
        if self.current is None:
            raise ValueError("every image is ranked")
        image, captions = self.current
        self.log.append(image, captions, parse_order(order, len(captions)), self.rater)
        self._done.append(self._waiting.pop(0))

    def skip(self) -> None:
        """Put the current image last; nothing is written."""
        if self._waiting:
            self._waiting.append(self._waiting.pop(0))

    def go_back(self) -> None:
        """Put the image ranked last in front again; its next ranks replace the old ones."""
        if self._done:
            self._waiting.insert(0, self._done.pop())


def _order_of(text: str, rater: str) -> float:
    return unit_interval_of(sample_id_of(None, text), f"ranking by {rater}")


class RankingServer(LocalPageServer):
    """Serves the ranking page and keeps one session per rater."""

    def __init__(
        self, candidates: Candidates, source: Path, log: RankingLog, *, port: int = 0, rater: str | None = None
    ) -> None:
        """`candidates`: (image, captions), images named as `rankings.load_ranked_image` reads them from `source`."""
        super().__init__(port, rater)
        self.candidates = list(candidates)
        self.source = source
        self.log = log
        self._images = {image for image, _ in self.candidates}
        self._sessions: dict[str, RankingSession] = {}

    def session(self, rater: str) -> RankingSession:
        """The rater's session, from the log when first requested. Raises ValueError for a bad name."""
        if rater not in self._sessions:
            self._sessions[rater] = RankingSession(self.candidates, rater, self.log)
        return self._sessions[rater]

    def page(self) -> str:
        """A picture, the criteria, a button per caption."""
        rules = "".join(f"<li><b>{html.escape(name)}</b>: {html.escape(what)}</li>" for name, what in CRITERIA.items())
        return self.with_rater(_PAGE.replace("ASK", ASK).replace("NONCE", self.nonce).replace("CRITERIA", rules))

    def state(self, rater: str) -> dict[str, Any]:
        """image, captions (both None when all are done), done, total."""
        session = self.session(rater)
        image, captions = session.current or (None, None)
        return {"image": image, "captions": captions, "done": session.done_count, "total": session.total}

    def act(self, path: str, content: dict[str, Any]) -> dict[str, Any]:
        """/rank: {"rater", "image", "order"}; /skip and /back: {"rater"}."""
        rater = str(content.get("rater", ""))
        session = self.session(rater)
        if path == "/rank":
            if session.current is not None and content.get("image") == session.current[0]:  # not a second click
                session.rank(str(content.get("order", "")))
        elif path == "/skip":
            session.skip()
        elif path == "/back":
            session.go_back()
        else:
            raise ValueError(f"no action {path!r}")
        return self.state(rater)

    def picture(self, name: str) -> bytes | None:
        """The image of a candidate; None for any other name, and where it cannot be read."""
        if name not in self._images:
            return None
        try:
            image = load_ranked_image(self.source, name).convert("RGB")
        except (ValueError, OSError):
            return None
        image.thumbnail((LONGER_SIDE_PX, LONGER_SIDE_PX))
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=90)
        return buffer.getvalue()


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Rank captions</title>
<style nonce="NONCE">
body { font: 16px/1.5 system-ui, sans-serif; max-width: 900px; margin: 24px auto; padding: 0 16px; color: #1f2933; }
img { max-width: 100%; max-height: 46vh; display: block; border-radius: 8px; background: #f0f3f7; min-height: 40px; }
button { font: inherit; padding: 7px 12px; margin: 4px 0; cursor: pointer; border: 1px solid #d5dae0;
  border-radius: 6px; background: #f5f7fa; } #captions button { display: block; width: 100%; text-align: left; }
button:focus-visible, button:hover { border-color: #2f6fde; } button.chosen { background: #dfeafc; }
#progress, #status, ol { color: #616e7c; font-size: 14px; } .row { display: flex; gap: 8px; flex-wrap: wrap; }
#order { font-weight: 600; min-height: 1.5em; } input { font: inherit; padding: 6px; }
</style></head><body>
<form id="who"><label>Your name <input id="rater" value="RATER" maxlength="60" required autocomplete="off"></label>
<input type="submit" value="Start"></form>
<main id="work" hidden><h1>Which caption is better?</h1>
<p>Choose the captions best first; = makes the next one equal to the last. The first criterion that tells two apart
decides:</p><ol>CRITERIA</ol><p id="progress" aria-live="polite"></p><img id="picture" alt="the image">
<div id="captions"></div><p id="order" aria-live="polite"></p>
<div class="row"><button id="equal">= equal to the last</button><button id="undo">⌫ undo</button>
<button id="done">Enter – done</button><button id="skip">s – later</button><button id="back">← back</button></div>
</main>
<p id="status" role="status"></p>
<script nonce="NONCE">
const at = id => document.getElementById(id), letters = "abcdefghijklmnopqrstuvwxyz";
let rater = "", image = null, count = 0, groups = [], joins = false, busy = false;
function draw() {
  at("order").textContent = groups.map(g => g.join(" = ")).join("  >  ") + (joins ? " =" : "");
  document.querySelectorAll("#captions button").forEach((b, i) =>
    b.classList.toggle("chosen", groups.some(g => g.includes(letters[i]))));
}
function choose(letter) {
  if (image === null || letters.indexOf(letter) >= count || groups.some(g => g.includes(letter))) return;
  if (joins && groups.length) groups[groups.length - 1].push(letter); else groups.push([letter]);
  joins = false; draw();
}
function undo() {
  if (joins) joins = false;
  else if (groups.length) { groups[groups.length - 1].pop(); if (!groups[groups.length - 1].length) groups.pop(); }
  draw();
}
function show(state) {
  if (state.error) { at("status").textContent = state.error; return; }
  at("status").textContent = ""; image = state.image; groups = []; joins = false;
  at("who").hidden = true; at("work").hidden = false;
  at("progress").textContent = `${state.done} of ${state.total} done by ${rater}`;
  at("captions").replaceChildren(); count = state.captions ? state.captions.length : 0;
  at("picture").hidden = image === null;
  if (image === null) at("status").textContent = "All done. Thank you. You may close this page.";
  else {
    at("picture").src = "/picture?name=" + encodeURIComponent(image);
    state.captions.forEach((text, i) => {
      const b = document.createElement("button"); b.textContent = letters[i] + "  " + text;
      b.onclick = () => choose(letters[i]); at("captions").append(b);
    });
  }
  draw();
}
ASK
const finish = () => {
  if (image !== null) ask("/rank", { rater, image, order: groups.map(g => g.join("=")).join(" ") });
};
const equal = () => { if (groups.length) { joins = true; draw(); } };
at("who").onsubmit = event => { event.preventDefault(); rater = at("rater").value.trim();
  ask("/state?rater=" + encodeURIComponent(rater)); };
if (at("rater").defaultValue) at("who").requestSubmit();
at("equal").onclick = equal; at("undo").onclick = undo; at("done").onclick = finish;
at("skip").onclick = () => ask("/skip", { rater }); at("back").onclick = () => ask("/back", { rater });
document.onkeydown = event => {
  if (at("work").hidden || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Enter") { event.preventDefault(); finish(); }
  else if (event.key === "=") equal();
  else if (event.key === "Backspace") undo();
  else if (event.key === "ArrowLeft") ask("/back", { rater });
  else if (event.key === "s" && count < 19) ask("/skip", { rater });
  else if (event.key.length === 1 && letters.includes(event.key)) choose(event.key);
};
</script></body></html>
"""
