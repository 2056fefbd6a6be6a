"""curate look: one page on a file or folder, without a pool."""

import base64
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from PIL import Image

import curation_assets as ca
from curation_assets.numeric.identity import draw_keys, sample_id_of
from curation_assets.outputs import look
from tests.outputs.test_report_in_browser import (
    CAPTIONS,
    CUT_TABLES,
    FAINT,
    IMAGES,
    OVERLAPPING,
    STRUCTURE,
    TOO_WIDE,
)
from tests.support import command
from tests.support.browser import DESKTOP, PHONE, Page, open_browser
from tests.support.lineage_pools import write_tar

COUNT = 24
ENGLISH = ("a brown dog runs over the wet grass", "two men row a wooden boat", "the meaning of trust", *CAPTIONS)


def _picture(number: int) -> bytes:
    """Soft blotches that no other number gives, 160 × 120 px."""
    pixels, buffer = np.random.default_rng(number).integers(0, 256, (6, 8, 3), dtype=np.uint8), io.BytesIO()
    Image.fromarray(pixels).resize((160, 120), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def _with_metadata(picture: bytes) -> bytes:
    """The picture, upright only by its EXIF, with a place, a comment and a colour profile that a page must not hold."""
    image, buffer = Image.open(io.BytesIO(picture)), io.BytesIO()
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "SECRET PLACE"
    image.save(buffer, "JPEG", exif=exif, comment=b"SECRET COMMENT", icc_profile=b"SECRET PROFILE")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def tar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs, of which one is a copy, one has a broken image and one no words in its caption."""
    rows: list[Any] = []
    for number in range(COUNT):
        caption = f"{ENGLISH[number % len(ENGLISH)]} {number}"
        picture = _picture(1 if number == 2 else number)
        if number == 3:
            picture = _with_metadata(picture)
        if number == 4:
            picture = picture[:300]
        if number == 5:
            caption = "  "
        rows.append((f"{number:06d}", None, caption, picture))
    path = tmp_path_factory.mktemp("a folder of 'tars'") / "my pairs.tar"
    write_tar(path, rows)
    return path


curate = partial(command.curate, width=400)


@pytest.fixture(scope="module")
def page_file(tar: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "page.html"
    result = curate("look", tar, "--no-open", "--into", path, "--dear-rows", 20)
    assert result.exit_code == 0, result.output
    assert f"{COUNT} of {COUNT} rows: {path}" in result.stdout
    return path


def data_of(path: Path) -> dict[str, Any]:
    found = re.search(r'id="data">(.*?)</script>', path.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    content: dict[str, Any] = json.loads(found[1])
    return content


@pytest.mark.slow
def test_every_row_ends_and_values_are_those_of_a_scored_file(page_file: Path) -> None:
    data = data_of(page_file)
    rows = data["rows"]
    assert len(rows) == COUNT
    others = {row["state"]: row["reason"] for row in rows if row["state"] != "kept"}
    assert others == {"failed": "image_truncated", "dropped": "empty_caption"}
    text = page_file.read_text(encoding="utf-8")
    assert "image_truncated" in text
    assert "empty_caption" in text
    names = [one["name"] for one in data["signals"]]
    icc = names.index("icc")
    valued = [row for row in rows if row["values"][icc] is not None and "wwww" not in row["caption"]]
    assert len(valued) >= 10
    expected = ca.score_captions("icc", [row["caption"] for row in valued], profile="photos")["value"]
    assert [row["values"][icc] for row in valued] == pytest.approx(expected.to_list(), abs=1e-5)
    clip = names.index("clip_score")
    assert sum(row["values"][clip] is not None for row in rows[:20]) >= 18
    assert all(row["values"][clip] is None for row in rows[20:])  # --dear-rows 20
    blur = names.index("image_blur")
    assert sum(row["values"][blur] is not None for row in rows) >= COUNT - 2
    for number, policy in enumerate(data["policies"]):
        verdicts = [row["verdicts"][number] for row in rows]
        assert set(verdicts[20:]) == {None}
        assert set(verdicts[:20]) <= {"kept", "dropped", "failed"}, policy
    assert {"clip", "icc", "image_quality", "clip_deduplicated"} <= set(data["policies"])
    twins = [row["twin"] for row in rows if row["twin"]]
    assert len(twins) == 2
    assert len(set(twins)) == 1


@pytest.mark.slow
def test_pictures_are_small_and_hold_nothing_but_pixels(page_file: Path) -> None:
    pictures = [base64.b64decode(row["picture"]) for row in data_of(page_file)["rows"] if row["picture"]]
    assert len(pictures) == COUNT - 2
    for picture in pictures:
        assert b"SECRET" not in picture
        image = Image.open(io.BytesIO(picture))
        assert max(image.size) <= 112
        assert not image.getexif()
        assert "icc_profile" not in image.info
    assert "SECRET" not in page_file.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with open_browser(tmp_path_factory.mktemp("browser") / "profile") as opened:
        yield opened


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_the_page_fits_and_asks_nobody(page: Page, page_file: Path, width: int) -> None:
    page.open(page_file.as_uri(), width)
    assert page.errors == []
    assert [one for one in page.requests if not one.startswith(("file:", "data:"))] == []
    for script in (TOO_WIDE, OVERLAPPING, CUT_TABLES, STRUCTURE, FAINT):
        assert page.evaluate(script) == [], script
    images = page.evaluate(IMAGES)
    assert len(images) >= COUNT - 2
    assert [alt for alt, drawn in images if not drawn or not alt] == []
    assert page.evaluate("document.querySelectorAll('#cards .card').length") == COUNT
    assert '<img src=x onerror="throw 1">' in page.evaluate("document.querySelector('#cards').innerText")
    assert page.evaluate("document.querySelectorAll('#cards img[src=x]').length") == 0


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_the_first_screen_is_pictures_mismatches_first(page: Page, page_file: Path, width: int) -> None:
    page.open(page_file.as_uri(), width)
    in_sight = "[...document.querySelectorAll('#cards img')].filter((one) => one.getBoundingClientRect().bottom < 900)"
    assert page.evaluate(f"{in_sight}.length") >= 2
    clip = [float(text.split()[1]) for text in page.evaluate(SHOWN) if "–" not in text]
    assert clip == sorted(clip)
    views = page.evaluate("[...document.querySelectorAll('#views button')].map((one) => one.textContent)")
    assert views == ["image and text least alike", "near-duplicates", "least concrete", "most concrete", "as drawn"]
    ids = page.evaluate("[...document.querySelectorAll('#cards .card small:last-child')].map((one) => one.textContent)")
    assert set(ids) <= {row["id"] for row in data_of(page_file)["rows"]}
    page.evaluate("document.querySelectorAll('#views button')[1].click()")
    assert page.evaluate("document.querySelector('#count').textContent") == "2 of 2 rows"
    assert page.evaluate("document.querySelectorAll('details.warn').length") == 1
    assert page.evaluate("document.querySelectorAll('.warn:not(details):not(noscript *)').length") == 0
    both_ends = "[...document.querySelectorAll('.ends')].filter((one) => one.children.length === 2)"
    assert page.evaluate(f"{both_ends}.length") >= 2


SHOWN = "[...document.querySelectorAll('.card b')].map((one) => one.textContent)"


def test_rows_are_sorted_by_click_and_by_keyboard(page: Page, page_file: Path) -> None:
    page.open(page_file.as_uri(), DESKTOP)
    page.evaluate("document.querySelector('#sorts').closest('details').querySelector('summary').click()")
    page.evaluate("[...document.querySelectorAll('#sorts button')].find((one) => one.textContent === 'icc').click()")
    best_first = page.evaluate(SHOWN)
    numbers = [float(text.split()[1]) for text in best_first if "–" not in text]
    assert len(numbers) > 10
    assert numbers == sorted(numbers, reverse=True)
    assert ["–" in text for text in best_first] == sorted("–" in text for text in best_first)  # without a value: last
    page.evaluate("document.querySelector('#sorts [aria-pressed=true]').focus()")
    for kind in ("keyDown", "keyUp"):
        page.send("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r")
    page.wait_for("document.querySelector('#sorts [aria-pressed=true]').textContent === 'icc, worst first'")
    assert [float(text.split()[1]) for text in page.evaluate(SHOWN) if "–" not in text] == sorted(numbers)
    page.set_value("#which", "dropped or failed before any policy")
    assert page.evaluate("document.querySelector('#count').textContent") == "2 of 2 rows"
    page.set_value("#which", "near-duplicates, group by group")
    assert page.evaluate("document.querySelector('#count').textContent") == "2 of 2 rows"


def test_its_commands_make_a_pool(tar: Path, tmp_path: Path) -> None:
    commands, more = look.pool_commands(tar, {})
    add, run = map(shlex.split, commands)
    assert add == ["curate", "pool", "add", "my_pairs", str(tar)]
    result = curate(*add[1:], "--home", tmp_path)
    assert result.exit_code == 0, result.output
    result = curate(*shlex.split(more)[1:], "--home", tmp_path)
    assert result.exit_code == 0, result.output
    result = curate("plan", *run[2:], "--home", tmp_path)
    assert result.exit_code == 0, result.output
    assert "signals/image_blur" in result.output
    commands, _ = look.pool_commands(Path("/x/temp.csv"), {"caption": "a b", "image": None}, header=False)
    assert commands[0] == "curate pool add temp_pool /x/temp.csv --caption-column 'a b' --image-column none --no-header"


@pytest.mark.slow
def test_a_sample_is_drawn_by_hash_and_says_so(tmp_path: Path) -> None:
    """Addresses of images stand beside the captions: none is asked, the page is of captions, the ids are of both."""
    source = tmp_path / "rows.csv"
    texts = [f"a dog runs over grass number {number // 3}" for number in range(60)]
    urls = [f"http://127.0.0.1:9/{number}.jpg" for number in range(60)]
    pl.DataFrame({"caption": texts, "url": urls}).write_csv(source)
    ids = [sample_id_of(url, caption) for url, caption in zip(urls, texts, strict=True)]
    drawn = {}
    for name, options in (("a", ()), ("same", ()), ("fewer", ("--rows", 12)), ("other", ("--seed", 1))):
        path = tmp_path / f"{name}.html"
        result = curate("look", source, "--no-open", "--into", path, "--rows", 20, *options)
        assert result.exit_code == 0, result.output
        assert "addresses of servers" in result.stderr
        rows = data_of(path)["rows"]
        assert f"{len(rows)} of 60 rows" in result.stdout
        assert f"{len(rows)} of 60 rows, drawn by the hash of their ids" in path.read_text(encoding="utf-8")
        assert "clip_score" not in [one["name"] for one in data_of(path)["signals"]]
        assert {row["state"] for row in rows} == {"kept"}
        drawn[name] = [row["caption"] for row in rows]
    assert drawn["a"] == drawn["same"]
    assert drawn["fewer"] == drawn["a"][:12]
    assert drawn["other"] != drawn["a"]
    order = np.argsort(np.asarray(draw_keys(ids, "look-0")), kind="stable")
    assert drawn["a"] == [texts[place] for place in order[:20]]


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["folder", "parquet"])
def test_images_in_a_folder_and_in_parquet(layout: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    pictures = [_picture(number) for number in range(3)]
    Image.open(io.BytesIO(_picture(3))).save(avif := io.BytesIO(), "AVIF")
    pictures.append(avif.getvalue())
    captions = [f"a coloured gradient, number {number}" for number in range(4)]
    if layout == "folder":
        for number, picture in enumerate(pictures):
            (source / f"{number}.jpg").write_bytes(picture)
        pl.DataFrame({"file_name": [f"{n}.jpg" for n in range(4)], "caption": captions}).write_csv(source / "list.csv")
    else:
        source = source / "pairs.parquet"
        cells = [{"bytes": picture, "path": None} for picture in pictures]
        schema = {"image": pl.Struct({"bytes": pl.Binary, "path": pl.String}), "text": pl.String}
        pl.DataFrame({"image": cells, "text": captions}, schema=schema).write_parquet(source)
    path = tmp_path / "page.html"
    result = curate("look", source, "--no-open", "--into", path, "--dear-rows", 2)
    assert result.exit_code == 0, result.output
    rows = data_of(path)["rows"]
    assert sorted(row["caption"] for row in rows) == captions
    assert all(row["picture"] for row in rows)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("paper.pdf", b"%PDF-1.4", "expected a folder of tars or of images with captions, or a file that ends in"),
        ("empty.tar", b"", r"none of its 1 rows can be used \(tar_truncated"),
        (
            "one.jpg",
            b"\xff\xd8",
            r"one of \.parquet, \S+ \.tsv, \.jsonl; text also as \.gz; of images give the folder",
        ),
        ("others.csv", b"a,b\n1,2\n", "no caption column"),
        ("head.csv", b"caption\n", "holds no rows"),
        ("blank.csv", b'caption\n" "\n', r"none of its 1 rows can be used \(empty_caption 1\)"),
        ("folder", None, "expected .parquet, .csv, .tsv files, got none"),
        ("absent.tar", ..., "no such file or folder"),
    ],
)
def test_what_cannot_be_looked_at_is_a_sentence(name: str, content: Any, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if content is None:
        path.mkdir()
    elif content is not ...:
        path.write_bytes(content)
    result = curate("look", path, "--no-open", "--into", tmp_path / "page.html")
    assert result.exit_code == 1
    assert re.search(sentence, result.stderr), result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "page.html").exists()


def test_a_url_is_refused() -> None:
    result = curate("look", "https://images.example/a.tar", "--no-open")
    assert result.exit_code == 1
    assert "files of this machine" in result.stderr


@pytest.mark.slow
def test_a_stop_leaves_nothing(tar: Path, tmp_path: Path) -> None:
    temporary, page_file = tmp_path / "tmp", tmp_path / "page.html"
    temporary.mkdir()
    command = [
        sys.executable,
        "-c",
        "from curation_assets.cli import main; main()",
        "look",
        str(tar),
        "--no-open",
        "--into",
        str(page_file),
    ]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 120
    while not any(temporary.glob("curate-look-*/*/look/raw/samples/*")):
        assert process.poll() is None, process.stderr and process.stderr.read()
        assert time.monotonic() < end
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "nothing is kept" in errors
    assert list(temporary.iterdir()) == []
    assert not page_file.exists()
