"""The report and the compare page of a pool with pictures, in a browser of a desktop's and of a phone's width."""

import base64
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from PIL import Image

from curation_assets.audit.diff import compare, what_if
from curation_assets.core.settings import load_settings
from curation_assets.evaluation.evaluation_set import untrained_reason
from curation_assets.evaluation.report_section import section_html
from curation_assets.flow import worth
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import policies_of
from curation_assets.flow.freshness import materialise_table
from curation_assets.flow.graph import tables_of
from curation_assets.flow.worth import engines_of
from curation_assets.outputs.report import compare as compare_page
from curation_assets.outputs.report.report import write_report
from curation_assets.selection.rows import Pool
from curation_assets.sources.declaration import add_pool
from tests.conftest import FinishedPool
from tests.support.browser import DESKTOP, PHONE, Page, open_browser
from tests.support.lineage_pools import OPTIONS, bring_up_to_date, write_tar
from tests.support.tars import encoded
from tests.support.trained_tables import CONTROLS, POLICIES, write_trained_tables

pytestmark = pytest.mark.slow

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
#: Tables that are cut at the edge of the paper, or of a box.
CUT_TABLES = """[...document.querySelectorAll("table")].filter((one) => {
  const box = one.closest(".scroll") ?? one, page = document.documentElement;
  return box.scrollWidth > box.clientWidth + 1 || one.getBoundingClientRect().right > page.clientWidth + 1;
}).map((one) => one.caption?.textContent ?? one.textContent.slice(0, 60))"""
#: Headings that skip a level, tables without a name or with headers of no direction, boxes that scroll by mouse alone.
STRUCTURE = """(() => {
  const found = [], levels = [...document.querySelectorAll("h1,h2,h3,h4,h5")].map((one) => Number(one.tagName[1]));
  levels.forEach((level, i) => { if (level > (levels[i - 1] ?? 0) + 1) found.push(`heading ${i} of level ${level}`); });
  for (const one of document.querySelectorAll("table")) {
    if (!one.caption?.textContent.trim()) found.push(`no caption: ${one.textContent.trim().slice(0, 40)}`);
    if (!one.querySelector("th[scope=col]")) found.push(`no column headers: ${one.caption?.textContent}`);
  }
  for (const one of document.querySelectorAll("th:not([scope])")) found.push(`no scope: ${one.textContent}`);
  for (const one of document.querySelectorAll(".scroll")) if (one.tabIndex !== 0) found.push("a box without keyboard");
  return found;
})()"""
#: Texts whose contrast with what lies behind them is below 4.5 (WCAG AA), by the formula of WCAG 2.
FAINT = """(() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const over = ([r, g, b, a = 1], under) => [r, g, b].map((one, i) => one * a + under[i] * (1 - a));
  const light = (rgb) => rgb.map((one) => (one /= 255) <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4)
    .reduce((sum, one, i) => sum + one * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (one) => one === null ? [255, 255, 255]
    : over(parse(getComputedStyle(one).backgroundColor), behind(one.parentElement));
  const found = new Set();
  for (const one of document.querySelectorAll("body *:not(script)")) {
    if (one.closest("svg") || !one.checkVisibility()) continue;
    if (![...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim())) continue;
    const back = behind(one), both = [over(parse(getComputedStyle(one).color), back), back];
    const [low, high] = both.map(light).sort((x, y) => x - y), name = `${one.tagName}.${one.className}`;
    if ((high + 0.05) / (low + 0.05) < 4.5) found.add(`${name} ${one.textContent.trim().slice(0, 30)}`);
  }
  return [...found];
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
    return encoded(Image.fromarray(pixels.astype(np.uint8)), "JPEG")


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


@pytest.mark.slow
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
    if name == "report":  # a plot of the three hosts; what all rows have alike is a table alone
        assert page.evaluate("document.querySelectorAll('#origins img').length") == 1
        assert page.evaluate("document.querySelector('#origins').innerText").count("host") >= 3


@pytest.mark.slow
@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_kinds_and_what_values_are_worth_there_are_shown(
    page: Page, pages: dict[str, str], ctx: PoolContext, width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a pool of web pairs: every kind there is, half of them without a measurement."""
    assert pages
    (shard,) = ctx.store.partitions("raw/samples")
    rows = ctx.store.read("raw/samples", shard).select("sample_id", "source_row")
    kinds = ("photo", "photo", "photo", "screenshot", "diagram", "drawing", "logo", "document")
    found = pl.Series("kind", [kinds[row % len(kinds)] for row in range(rows.height)])
    ctx.store.write("signals/image_kind", rows.with_columns(found), shard, code_version="1")
    measured = tmp_path / "web.csv"
    lines = [
        f"signals.{name},{engines_of(f'signals.{name}', ctx.profile)},{kind},en,own text,0.866,0.832,0.896,2150"
        for name in ("clip_score", "sieve")
        for kind in ("photo", "screenshot", "diagram")
    ]
    lines.append(f"signals.icc,{engines_of('signals.icc', ctx.profile)},all,en,descriptive,0.861,0.786,0.93,124")
    measured.write_text("\n".join(["reference,engines,kind,language,of,auc,low,high,n", *lines]))
    monkeypatch.setattr(worth, "MEASURED_ON_WEB", measured)
    worth._measured.cache_clear()
    options = replace(ctx.pool.options, image_domain="web", policies=("icc", "sieve"))
    as_web = PoolContext(ctx.settings, replace(ctx.pool, options=options), ctx.store)
    write_report(as_web, tmp_path / "report.html", section_html(as_web))
    worth._measured.cache_clear()
    page.open((tmp_path / "report.html").as_uri(), width)
    page.evaluate(UNFOLD)
    text = page.evaluate("document.querySelector('#holdings').innerText")
    for said in ("38 %", "12 %", "screenshot", "100 %", "0.87", "0.83–0.90,", "n 2,150", "not measured"):
        assert said in text, text
    assert "icc: AUC of descriptive texts against others, all kinds .86 [.79, .93], n 124 (100% of the rows)" in text
    assert page.errors == []
    assert page.evaluate(TOO_WIDE) == []
    assert page.evaluate(OVERLAPPING) == []
    assert page.evaluate(STRUCTURE) == []
    assert page.evaluate(FAINT) == []


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_the_slider_steps_through_what_was_computed(
    page: Page, pages: dict[str, str], ctx: PoolContext, width: int, tmp_path: Path
) -> None:
    """The first screen has the overlap; each step its numbers, and pictures on both sides of the cuts."""
    known = {policy.name: policy for policy in policies_of(ctx)}
    page.open(f"{pages['compare']}#a=icc&b=sieve_clip", width)
    assert page.evaluate("document.querySelector('#tiles').getBoundingClientRect().top < innerHeight")
    before = _tiles(page)
    page.set_value("#step", "10")
    after = _tiles(page)
    assert page.evaluate("document.querySelector('#share').textContent") == "50 %"
    halves = [what_if(known[name], fraction=0.5) for name in ("icc", "sieve_clip")]
    expected = compare(Pool(ctx.store), *halves)
    assert before["kept by sieve_clip"] != after["kept by sieve_clip"] == str(expected.overlap.right)
    assert after["kept by both"] == str(expected.overlap.both)
    shown = page.evaluate(
        "Promise.all([...document.querySelectorAll('#cut > div')].map(async (side) => {"
        " const cards = [...side.querySelectorAll('.cards')[1].children];"
        " return Promise.all(cards.map(async (one) => { await one.querySelector('img')?.decode();"
        " return [one.querySelector('small:last-child').textContent, one.querySelector('img')?.naturalWidth ?? 0]; }));"
        "}))"
    )
    for side, half in zip(shown, halves, strict=True):
        wanted = expected.nearest.filter(policy=half.name)["sample_id"].to_list()
        assert [sample_id for sample_id, _ in side] == wanted[: compare_page.AT_CUT]
        assert all(drawn for _, drawn in side)
    page.set_value("#b", "icc_after_clip")
    assert "kept by icc_after_clip" in _tiles(page)
    assert "--fraction 0.5" in page.evaluate("document.querySelector('#command').textContent")
    assert page.errors == []
    assert page.evaluate(TOO_WIDE) == []
    page.screenshot(tmp_path / f"controls-{width}.png")


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_the_first_screen_of_the_report_is_the_cut_in_pictures(
    page: Page, pages: dict[str, str], ctx: PoolContext, width: int
) -> None:
    """The chosen policy, how many it keeps in a line, pictures above and below its cut with value and reason."""
    page.open(pages["report"], width)
    shown = "[...document.querySelectorAll('.of-policy')].filter((one) => one.checkVisibility())"
    in_sight = f"{shown}[0].querySelectorAll('img')"
    assert page.evaluate(f"[...{in_sight}].filter((one) => one.getBoundingClientRect().top < innerHeight).length") >= 2
    for policy in [policy for policy in policies_of(ctx) if policy.name in ("icc", "sieve_clip")]:
        page.set_value("#chosen", policy.name)
        assert page.evaluate(f"{shown}.map((one) => one.dataset.policy)") == [policy.name]
        verdicts = ctx.store.scan(f"filtered/{policy.name}").collect()
        kept = int((verdicts["verdict"] == "kept").sum())
        assert f"{policy.name} keeps {kept} of {COUNT} rows" in page.evaluate(f"{shown}[0].innerText")
        tiles = page.evaluate(
            f"[...{shown}[0].querySelectorAll('.card')].map((one) =>"
            " [one.querySelector('.id').textContent, one.querySelector('small').textContent])"
        )
        ids = [sample_id for sample_id, _ in tiles]
        assert len(set(ids)) == len(ids) > 8, "no sample twice"
        by_id = {row["sample_id"]: row for row in verdicts.to_dicts()}
        for sample_id, note in tiles:
            row = by_id[sample_id]
            assert note == f"{row['value']:.3f}" + (f" · {row['reason']}" if row["reason"] else "")
    page.evaluate("document.querySelector('#policies a').click()")
    page.wait_for(f"{shown}[0].dataset.policy === document.querySelector('#policies a').textContent")
    assert page.errors == []


def _tiles(page: Page) -> dict[str, str]:
    tiles: dict[str, Any] = page.evaluate(
        "Object.fromEntries([...document.querySelectorAll('.tile')].map((one) =>"
        " [one.querySelector('span').textContent, one.querySelector('b').textContent]))"
    )
    return tiles


def test_pictures_are_bounded(ctx: PoolContext, monkeypatch: pytest.MonkeyPatch) -> None:
    policies = policies_of(ctx)
    rows = compare_page.kept_rows(ctx.store, policies)
    whole, few = (compare_page.compare_data(ctx.store, rows, policies)["samples"] for _ in range(2))
    compare_page._add_pictures(ctx, rows, whole)
    monkeypatch.setattr(compare_page, "MAX_PICTURE_BYTES", 5000)
    compare_page._add_pictures(ctx, rows, few)
    drawn = [one["picture"] for one in few.values() if "picture" in one]
    assert 0 < len(drawn) < len([one for one in whole.values() if "picture" in one]) <= COUNT
    assert sum(map(len, drawn)) <= 5000 * 4 / 3 + 4 * len(drawn)


PAPER = 703  # px: A4 within margins of 12 mm


def _trained_report(ctx: PoolContext, home: Path, **given: Any) -> str:
    """Address of the report of a copy of the pool with tables of trained models. `given`: to write them with."""
    shutil.copytree(ctx.settings.home, home, symlinks=True)
    copied = PoolContext.open(load_settings(home, "embedded"), ctx.pool.name)
    write_trained_tables(copied, **given)
    trains = {
        "downstream": True,
        "evaluation_set": "split:0.1",
        "downstream_budget": {"captioning": {"samples_seen": 7200}},
    }
    options = replace(copied.pool.options, **trains)
    section = section_html(PoolContext(copied.settings, replace(copied.pool, options=options), copied.store))
    write_report(copied, home / "report.html", section)
    return (home / "report.html").as_uri()


@pytest.fixture(scope="module")
def trained(ctx: PoolContext, pages: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """Address of a report with 15 training sets at three sizes, three seeds, 12 and 9 metrics."""
    return _trained_report(ctx, tmp_path_factory.mktemp("trained") / "home")


@pytest.mark.slow
@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_tables_of_trained_models_fit_the_window(page: Page, trained: str, width: int, tmp_path: Path) -> None:
    page.open(trained, width)
    page.evaluate(UNFOLD)
    page.screenshot(tmp_path / f"trained-{width}.png")
    assert page.errors == []
    assert page.evaluate(TOO_WIDE) == []
    assert page.evaluate(OVERLAPPING) == []
    assert page.evaluate("document.querySelectorAll('table.results').length") == 6
    assert page.evaluate("document.querySelectorAll('table.results tbody tr:not(.group)').length") == 6 * 15
    if width == DESKTOP:  # a phone scrolls the tables of all metrics in their boxes
        assert page.evaluate(CUT_TABLES) == []
    # every figure that the table of a size shows lies inside the window without scrolling
    cut = "[...document.querySelectorAll('table.results td, table.results th')].filter((one) => one.checkVisibility()"
    assert page.evaluate(f"{cut} && one.scrollWidth > one.clientWidth + 1).map((one) => one.textContent)") == []


def test_the_section_names_what_was_measured_and_what_differs(page: Page, trained: str) -> None:
    page.open(trained, DESKTOP)
    text = page.evaluate("document.querySelector('#downstream').textContent.replace(/\\s+/g, ' ')")
    assert "held out of training, a share of 0.1 by their hash: 8 images with 8 reference captions (1 each)." in text
    assert "7,200 samples seen in batches of 48, the same for every training set; 3 seeds." in text
    assert "no difference from random shown" in text
    assert "Not measured: SPICE (java is not installed)." in text
    assert "CIDEr-D, clearly different from random: " in text
    assert "inside the world" not in text, "the pool is no world"
    table = page.evaluate(
        "[...document.querySelectorAll('table.results')].map((one) => [...one.tBodies].map((body) =>"
        " [...body.rows].map((row) => row.cells[0].textContent.trim())))"
    )
    policies, controls = table[0]
    assert policies[0] == "Policies and given sets"
    assert sorted(policies[1:]) == sorted(POLICIES)
    assert controls[0] == "Controls"
    assert sorted(name.removesuffix(" control") for name in controls[1:]) == sorted(CONTROLS)


def test_captions_of_every_model_stand_beside_their_image(page: Page, trained: str) -> None:
    """Of the first seed and the largest size; the image's text is its reference."""
    page.open(trained, DESKTOP)
    samples = page.evaluate(
        "[...document.querySelectorAll('.written')].map((one) => [one.querySelector('img').alt,"
        " one.querySelector('p').textContent, [...one.querySelectorAll('tbody td')].map((cell) => cell.textContent)])"
    )
    assert len(samples) == 6
    for alt, reference, written in samples:
        assert alt == (reference if len(reference) <= 120 else f"{reference[:119].rstrip()}…")
        assert len(written) == len(POLICIES) + len(CONTROLS)
        assert all(" at at0250 with seed 0 sees image " in caption for caption in written)
        assert len({caption.rpartition(" ")[2] for caption in written}) == 1
        assert written[-1].startswith("random ")


@pytest.mark.parametrize("name", ["report", "compare", "trained"])
def test_pages_can_be_read_without_seeing_them(page: Page, pages: dict[str, str], trained: str, name: str) -> None:
    page.open({**pages, "trained": trained}[name], DESKTOP)
    page.evaluate(UNFOLD)
    assert page.evaluate("document.documentElement.lang") == "en"
    assert page.evaluate(STRUCTURE) == []
    assert page.evaluate(FAINT) == []
    page.send("Emulation.setEmulatedMedia", media="", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    try:
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(17, 23, 30)"
        assert page.evaluate(FAINT) == []
    finally:
        page.send("Emulation.setEmulatedMedia", media="", features=[])
    alts = [alt for alt, _ in page.evaluate(IMAGES)]
    assert [alt for alt in alts if not alt.strip()] == []
    plots = page.evaluate(
        "[...document.images].filter((one) => one.src.startsWith('data:image/png')).map((one) => one.alt)"
    )
    assert all(re.search(r"\d", alt) for alt in plots), "a plot's text has its figures"
    photos = page.evaluate(
        "[...document.images].filter((one) => !one.src.startsWith('data:image/png')).map((one) => one.alt)"
    )
    assert photos
    assert max(map(len, photos)) <= 120


@pytest.mark.slow
@pytest.mark.parametrize("name", ["report", "compare", "trained"])
def test_printed_tables_are_whole(page: Page, pages: dict[str, str], trained: str, name: str, tmp_path: Path) -> None:
    page.open({**pages, "trained": trained}[name], PAPER)
    page.send("Emulation.setEmulatedMedia", media="print")
    try:
        assert page.evaluate(CUT_TABLES) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= PAPER
        assert page.evaluate("[...document.querySelectorAll('nav')].filter((one) => one.checkVisibility()).length") == 0
        folded = "[...document.querySelectorAll('details > :not(summary)')].filter((one) => !one.checkVisibility())"
        assert page.evaluate(f"{folded}.length") == 0, "what is folded away is printed"
        pdf = page.send("Page.printToPDF", paperWidth=8.27, paperHeight=11.69, preferCSSPageSize=True)
    finally:
        page.send("Emulation.setEmulatedMedia", media="")
    data = base64.b64decode(pdf["data"])
    (tmp_path / f"{name}.pdf").write_bytes(data)
    assert data.startswith(b"%PDF")


@pytest.mark.slow
def test_one_seed_shows_no_spread(page: Page, ctx: PoolContext, pages: dict[str, str], tmp_path: Path) -> None:
    page.open(_trained_report(ctx, tmp_path / "home", seeds=(3,)), DESKTOP)
    text = page.evaluate("document.querySelector('#downstream').textContent.replace(/\\s+/g, ' ')")
    assert "One seed shows no spread" in text
    assert "±" not in text
    assert "95 % interval" not in text
    assert re.search(r"\(−?[\d.]+ to ", text) is None
    assert "random in one pair, so without an interval" in text
    alts = page.evaluate("[...document.querySelectorAll('#downstream .curves img')].map((one) => one.alt)")
    assert len(alts) == 6
    assert all("random 0." in alt for alt in alts)


@pytest.mark.slow
def test_a_pool_without_evaluation_set_has_the_sentence_why(
    page: Page, ctx: PoolContext, pages: dict[str, str], tmp_path: Path
) -> None:
    reason = untrained_reason(ctx)
    write_report(ctx, tmp_path / "report.html", section_html(ctx))
    page.open((tmp_path / "report.html").as_uri(), PHONE)
    assert page.evaluate("document.querySelector('#downstream p').textContent") == reason
    assert page.evaluate("document.querySelectorAll('#downstream table').length") == 0
    assert page.evaluate("document.querySelector('nav a[href=\"#downstream\"]').checkVisibility()")
    assert page.evaluate(TOO_WIDE) == []


@pytest.mark.infra
@pytest.mark.parametrize("width", [DESKTOP, PHONE, PAPER])
def test_the_report_of_a_world_fits_too(page: Page, finished_pool: FinishedPool, width: int) -> None:
    """Separation, teachers, agreement and costs, of a whole run."""
    page.open((finished_pool.ctx.store.folder_path("downstream/report") / "report.html").as_uri(), width)
    if width == PAPER:
        page.send("Emulation.setEmulatedMedia", media="print")
    try:
        page.evaluate(UNFOLD)
        assert page.evaluate(TOO_WIDE if width == PHONE else CUT_TABLES) == []
        assert page.evaluate(STRUCTURE) == []
        assert page.evaluate(FAINT) == []
        assert [alt for alt, _ in page.evaluate(IMAGES) if not alt.strip()] == []
        assert "inside the world" in page.evaluate("document.querySelector('#downstream').textContent")
    finally:
        page.send("Emulation.setEmulatedMedia", media="")
