"""The report and the compare page of a pool with pictures, in a browser of a desktop's and of a phone's width."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from curation_assets.audit.diff import compare, what_if
from curation_assets.core.settings import load_settings
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import policies_of
from curation_assets.flow.freshness import materialise_table
from curation_assets.flow.graph import tables_of
from curation_assets.outputs.report import compare as compare_page
from curation_assets.selection.rows import PoolRows
from curation_assets.stores.pools.declaration import add_pool
from tests.support.browser import DESKTOP, PHONE, Page, open_browser
from tests.support.lineage_pools import OPTIONS, bring_up_to_date, write_tar

COUNT = 48
#: What an unkind caption tries: markup, the end of the data, a word longer than a phone is wide.
CAPTIONS = ('<img src=x onerror="throw 1">', "</script><script>throw 2</script>", "w" * 140, "two men row a boat")

#: Pairs of texts that lie over each other; what scrolls by itself is cut off at its edge and left out.
OVERLAPPING = """(() => {
  const kinds = "h1,h2,h3,p,label,th,td,.tile,.card,summary,nav a,header a";
  const boxes = [...document.querySelectorAll(kinds)]
    .filter((one) => one.checkVisibility() && one.textContent.trim() && !one.closest("svg,.scroll"))
    .map((one) => [one, one.getBoundingClientRect()]).filter(([, box]) => box.width && box.height);
  const found = [];
  boxes.forEach(([a, x], i) => boxes.slice(i + 1).forEach(([b, y]) => {
    if (a.contains(b) || b.contains(a) || a.closest("nav") !== b.closest("nav")) return;
    const wide = Math.min(x.right, y.right) - Math.max(x.left, y.left);
    const high = Math.min(x.bottom, y.bottom) - Math.max(x.top, y.top);
    if (wide > 2 && high > 2) found.push([a.textContent.trim().slice(0, 40), b.textContent.trim().slice(0, 40)]);
  }));
  return found;
})()"""
#: What reaches beyond the window's right edge, or its section's, outside of what scrolls by itself.
TOO_WIDE = """(() => {
  const page = document.documentElement, found = page.scrollWidth > page.clientWidth ? ["the page"] : [];
  for (const one of document.querySelectorAll("body *:not(script)")) {
    if (one.parentElement.closest(".scroll,pre,svg") || !one.checkVisibility()) continue;
    const edge = Math.min(page.clientWidth, one.closest("section")?.getBoundingClientRect().right ?? Infinity);
    if (one.getBoundingClientRect().right <= edge + 1) continue;
    found.push(`${one.tagName}.${one.className} ${one.textContent.trim().slice(0, 40)}`);
  }
  return found;
})()"""
#: Everything that is folded away is opened, and pictures below the window are loaded too.
UNFOLD = """(async () => {
  for (const one of document.querySelectorAll("details")) one.open = true;
  for (const one of document.images) one.loading = "eager";
  await Promise.all([...document.images].map((one) => one.decode().catch(() => null)));
})()"""
IMAGES = "[...document.images].map((one) => [one.alt, one.naturalWidth])"


@pytest.fixture(scope="module")
def ctx(tmp_path_factory: pytest.TempPathFactory) -> PoolContext:
    """A pool of small pictures with a report; the signals are written by hand."""
    home = tmp_path_factory.mktemp("home")
    rows = []
    for number in range(COUNT):
        caption = CAPTIONS[number % len(CAPTIONS)] + f" {number}"
        rows.append((f"{number:06d}", f"http://host{number % 3}.example/{number}.jpg", caption, _picture(number)))
    write_tar(home / "tars" / "000000.tar", rows)
    settings = load_settings(home, "embedded")
    add_pool(settings, "photos", home / "tars", options=OPTIONS)
    return bring_up_to_date(settings)


def _picture(number: int) -> bytes:
    """A gradient of its own colours, 200 × 150 px or upright."""
    rng = np.random.default_rng(number)
    ends = rng.integers(0, 256, (2, 3))
    size = (200, 150) if number % 2 else (150, 200)
    slope = np.linspace(0, 1, size[0])[None, :, None]
    pixels = np.broadcast_to(ends[0] * (1 - slope) + ends[1] * slope, (size[1], size[0], 3))
    buffer = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(buffer, "JPEG")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with open_browser(tmp_path_factory.mktemp("browser") / "profile") as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(ctx: PoolContext) -> dict[str, str]:
    """Name → address of the two pages."""
    tables = tables_of(ctx)
    for name, table in tables.items():
        is_needed = name in ("filtered/overlaps", "downstream/report") or name.startswith("signals/")
        if is_needed and ctx.store.manifest(name) is None and not ctx.store.partitions(name):
            for shard in ctx.store.partitions("raw/samples") if table.grain == "shard" else [None]:
                materialise_table(ctx, table, shard, tables=tables)
    folder = ctx.store.root / "downstream" / "report"
    return {name: (folder / f"{name}.html").as_uri() for name in ("report", "compare")}


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
@pytest.mark.parametrize("name", ["report", "compare"])
def test_a_page_fits_its_window_and_draws_every_picture(
    page: Page, pages: dict[str, str], name: str, width: int, tmp_path: Path
) -> None:
    page.open(pages[name], width)
    page.evaluate(UNFOLD)
    page.screenshot(tmp_path / f"{name}-{width}.png")
    assert page.errors == []
    assert [one for one in page.requests if not one.startswith(("file:", "data:"))] == []
    assert page.evaluate("document.documentElement.clientWidth") == width
    assert page.evaluate(TOO_WIDE) == []
    images = page.evaluate(IMAGES)
    assert len(images) >= 10
    assert [alt for alt, drawn in images if not drawn] == []
    assert page.evaluate(OVERLAPPING) == []


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_the_controls_change_numbers_and_pictures(
    page: Page, pages: dict[str, str], ctx: PoolContext, width: int, tmp_path: Path
) -> None:
    known = {policy.name: policy for policy in policies_of(ctx)}
    rows = PoolRows.read(ctx.store)
    page.open(f"{pages['compare']}#a=icc&b=sieve_clip", width)
    before = _tiles(page)
    page.set_value("#slider", "0.5")
    after = _tiles(page)
    expected = compare(rows, known["icc"], what_if(known["sieve_clip"], fraction=0.5))
    assert before["kept by sieve_clip"] != after["kept by sieve_clip (what if)"] == str(expected.overlap.right)
    shown = page.evaluate(
        "Promise.all([...document.querySelectorAll('#nearest .card')].map(async (one) => {"
        " await one.querySelector('img')?.decode();"
        " return [one.querySelector('small:last-child').textContent, one.children[1].textContent,"
        " one.querySelector('img')?.naturalWidth ?? 0]; }))"
    )
    wanted = expected.nearest.select("sample_id", "caption").rows()
    assert [(sample_id, caption) for sample_id, caption, _ in shown] == wanted
    assert all(drawn for _, _, drawn in shown)
    page.set_value("#b", "icc_after_clip")
    assert "kept by icc_after_clip (what if)" in _tiles(page)
    assert page.errors == []
    assert page.evaluate(TOO_WIDE) == []
    page.screenshot(tmp_path / f"controls-{width}.png")


def _tiles(page: Page) -> dict[str, str]:
    tiles: dict[str, Any] = page.evaluate(
        "Object.fromEntries([...document.querySelectorAll('.tile')].map((one) =>"
        " [one.querySelector('span').textContent, one.querySelector('b').textContent]))"
    )
    return tiles


def test_pictures_come_nearest_to_a_cut_first_and_are_bounded(
    ctx: PoolContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, policies = PoolRows.read(ctx.store), policies_of(ctx)
    positions = compare_page.near_cuts(rows, policies, {})
    assert len(set(positions)) == len(positions) <= COUNT
    ids = rows.sample_ids.filter(rows.is_kept).to_list()
    first = {ids[position] for position in positions[: len(policies)]}
    for policy in policies:
        nearest = compare(rows, policy, policies[0]).nearest.filter(policy=policy.name)
        if nearest.height:
            assert nearest["sample_id"][0] in first
    whole = compare_page._pictures(ctx, rows, positions)
    monkeypatch.setattr(compare_page, "MAX_PICTURE_BYTES", 5000)
    few = compare_page._pictures(ctx, rows, positions)
    assert 0 < len(few) < len(whole)
    assert list(few) == positions[: len(few)]
    assert sum(len(text) for text in few.values()) <= 5000 * 4 / 3 + 4 * len(few)
