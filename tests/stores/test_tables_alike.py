"""The same rows in every kind of table are the same samples, or have a reason; slow twins of `csv` and `json`."""

import codecs
import csv
import functools
import gzip
import io
import json
import tracemalloc
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import settings as checked_with
from hypothesis import strategies as st
from PIL import Image

from curation_assets.core.settings import Settings, load_settings
from curation_assets.methods import Example, Method, Values
from curation_assets.scoring.files import read_captions, score_file
from curation_assets.sources.all_options import PoolOptions
from curation_assets.sources.declaration import Pool, add_pool, load_pool
from curation_assets.sources.kinds.url_table import SOURCE
from curation_assets.sources.shards import build_samples, download, register_shard
from curation_assets.sources.split import Split
from curation_assets.sources.tables import read_as
from curation_assets.stores import text_format
from curation_assets.stores.caption_text import MAX_TEXT_BYTES, caption_text, is_blank
from curation_assets.stores.damaged_tables import ROW_REASON, read_sound_rows, schema_of
from curation_assets.stores.text_format import TextFormat, table_suffix
from curation_assets.stores.text_tables import read_rows
from tests.support.command import curate
from tests.support.hostile_sources import tar_bytes
from tests.support.tars import encoded

FUZZED = checked_with(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
HOSTILE = [
    'he said "hi", and left',
    '"quoted"',
    '"open',
    'a 5" pipe',
    "two\nlines",
    "a\ttab",
    "a, b; c | d",
    "\\",
    'back\\slash \\" here',
    "café 🪁 \u202eعربى\u202c",
    "zero\u200bwidth",
    "\ufeffmark",
    "=1+1",
    "007",
    " spaces ",
    "null",
    "NaN",
]
CAPTIONS = st.one_of(
    st.sampled_from(HOSTILE), st.text(st.sampled_from('ab",;\t\n\\ é🪁\u200b{}[]'), min_size=1, max_size=9)
)
ROWS = st.lists(CAPTIONS.filter(lambda text: text.strip("\n") != ""), min_size=1, max_size=8)


def _pixels() -> bytes:
    return encoded(Image.new("RGB", (40, 30), (200, 30, 30)), "PNG")


PIXELS = _pixels()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(tmp_path / "home", "embedded")


def table(captions: list[str]) -> dict[str, list[str]]:
    return {
        "url": [f"http://a.example/{number}" for number in range(len(captions))],
        "caption": captions,
        "more": ["x"] * len(captions),
    }


def as_csv(rows: dict[str, list[str]], **dialect: object) -> bytes:
    buffer = io.StringIO()
    writer = csv.writer(buffer, **{"lineterminator": "\n", **dialect})  # type: ignore[arg-type]
    writer.writerows([list(rows), *zip(*rows.values(), strict=True)])
    return buffer.getvalue().encode()


def as_json_lines(rows: dict[str, list[str]], **options: bool) -> bytes:
    lines = (json.dumps(dict(zip(rows, cells, strict=True)), **options) for cells in zip(*rows.values(), strict=True))  # type: ignore[arg-type]
    return "\n".join(lines).encode()


def as_parquet(rows: dict[str, list[str]], kind: pa.DataType | None = None) -> bytes:
    buffer = io.BytesIO()
    columns = {name: pa.array(cells).cast(kind or pa.string()) for name, cells in rows.items()}
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


WRITERS = {
    "quoted.csv": as_csv,
    "crlf.csv": functools.partial(as_csv, lineterminator="\r\n"),
    "all.csv": functools.partial(as_csv, quoting=csv.QUOTE_ALL),
    "semicolon.csv": functools.partial(as_csv, delimiter=";"),
    "open_clip.csv": functools.partial(as_csv, delimiter="\t"),
    "all.tsv": functools.partial(as_csv, delimiter="\t", quoting=csv.QUOTE_ALL),
    "rows.jsonl": as_json_lines,
    "unicode.ndjson": functools.partial(as_json_lines, ensure_ascii=False),
    "rows.parquet": as_parquet,
    "large.PARQUET": functools.partial(as_parquet, kind=pa.large_string()),
    "view.parquet": functools.partial(as_parquet, kind=pa.string_view()),
    "codes.parquet": functools.partial(as_parquet, kind=pa.dictionary(pa.int32(), pa.string())),
    "bytes.parquet": functools.partial(as_parquet, kind=pa.binary()),
}


def rows_of_split(folder: Path, name: str, data: bytes, text: TextFormat | None = None) -> pl.DataFrame:
    """Rows of a pool's one shard: sample_id, url, caption, source_reason."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    columns = {"caption": "caption", "url": "url" if "url" in schema_of(path, text) else None}
    split = split_of(folder / f"work-{name}", path, columns, text)
    return split.part("p-000000").select("sample_id", "url", "caption", "source_reason")


def split_of(home: Path, source: Path, columns: Mapping[str, str | None], text: TextFormat | None = None) -> Split:
    facts = {"name": "p", "source": str(source), "columns": columns, "shard_size": 1000, "implied_source": "p"}
    pool: Any = SimpleNamespace(**facts, text_format=text or TextFormat(), options=PoolOptions())
    return SOURCE.split(pool, load_settings(home, "embedded"))


@pytest.mark.slow
@FUZZED
@given(captions=ROWS)
def test_rows_are_the_same_samples_in_every_kind_of_table(tmp_path: Path, captions: list[str]) -> None:
    rows = table(captions)
    expected = [(url, caption_text(caption), None) for url, caption in zip(rows["url"], captions, strict=True)]
    ids = None
    for name, write in WRITERS.items():
        data = write(rows)
        for packed in (False, *([True] if table_suffix(Path(name)) != ".parquet" else [])):
            given_name, content = (f"{name}.gz", gzip.compress(data, 1)) if packed else (name, data)
            read = rows_of_split(tmp_path, given_name, content)
            assert read.drop("sample_id").rows() == expected, given_name
            ids = ids or read["sample_id"].to_list()
            assert read["sample_id"].to_list() == ids


# -- slow twins -------------------------------------------------------------------------------------------------------


def cells_of(frame: pl.DataFrame) -> list[tuple[object, ...]]:
    """Rows without reasons; every row has none."""
    assert frame[ROW_REASON].null_count() == frame.height, frame
    return frame.drop(ROW_REASON).rows()


@FUZZED
@given(content=st.text(st.sampled_from("ab,\t\n\r é"), max_size=40), suffix=st.sampled_from(["csv", "tsv"]))
@example(content="\na,,", suffix="csv")
def test_a_file_without_quotes_is_read_at_once_as_record_by_record(tmp_path: Path, content: str, suffix: str) -> None:
    path = tmp_path / f"rows.{suffix}"
    path.write_text(f"x,y\tz\n{content}", encoding="utf-8", newline="")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("curation_assets.stores.damaged_tables._is_plain", lambda *_: False)
        slow = read_sound_rows(path)
    assert read_sound_rows(path).rows() == slow.rows()


CELLS = st.one_of(
    st.text(st.sampled_from("a b;é"), max_size=3).map(lambda text: text + '"b' * (len(text) > 1)),
    st.text(st.sampled_from('ab,"\né'), max_size=6).map(lambda text: '"' + text.replace('"', '""') + '"'),
)


@FUZZED
@given(
    lines=st.lists(st.tuples(CELLS, CELLS).map(",".join), min_size=1, max_size=6), end=st.sampled_from(["\n", "\r\n"])
)
def test_sound_csv_is_what_the_csv_module_reads(tmp_path: Path, lines: list[str], end: str) -> None:
    text = end.join(["x,y", *lines, ""])
    expected = list(csv.reader(io.StringIO(text, newline=""), strict=True))[1:]
    path = tmp_path / "rows.csv"
    path.write_bytes(text.encode())
    assert cells_of(read_sound_rows(path)) == [tuple(cell or None for cell in row) for row in expected]


JSON_CELLS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(st.characters(), max_size=5),
    st.lists(st.text(st.characters(codec="utf-8"), max_size=4), max_size=3),
    st.dictionaries(st.just("a"), st.integers()),
)  # fmt: skip


@FUZZED
@given(
    cells=st.lists(JSON_CELLS, min_size=1, max_size=6),
    broken=st.lists(st.sampled_from(["{", "[1]", '{"a": 1}x', "{'a': 1}"]), max_size=2),
)
def test_json_lines_are_what_the_json_module_reads(tmp_path: Path, cells: list[object], broken: list[str]) -> None:
    path = tmp_path / "rows.jsonl"
    lines = [json.dumps({"caption": cell, "other": number}) for number, cell in enumerate(cells)]
    path.write_text("\n".join([*lines, *broken]) + "\n\n", encoding="utf-8")
    read = rows_of_split(tmp_path, "rows.jsonl", path.read_bytes())
    captions, reasons = read["caption"].to_list(), read["source_reason"].to_list()
    for cell, caption, reason in zip(map(first_text, cells), captions, reasons, strict=False):
        assert caption == (caption_text(str(cell)) if is_text(cell) else None)
        assert (reason is None) == (cell is None or is_text(cell)), (cell, reason)
    assert reasons[len(cells) :] == [f"json_malformed:line_{len(cells) + n}" for n in range(1, len(broken) + 1)]


def first_text(cell: object) -> object:
    """What should be taken of a cell of captions; NaN is pandas' null."""
    cell = cell[0] if isinstance(cell, list) and cell else None if cell in ([],) else cell
    return None if cell != cell else cell


def is_text(cell: object) -> bool:
    return isinstance(cell, str) and not any("\ud800" <= letter <= "\udfff" for letter in cell)


# -- damage and dialects ----------------------------------------------------------------------------------------------

URLS = [f"http://a.example/{number}" for number in range(200)]


@pytest.mark.parametrize(
    ("fault", "caption", "reason"),
    [
        ('{"url": "http://a.example/150", "caption": "cut', None, "json_malformed:line_151"),
        ("null", None, "json_malformed:line_151"),
        ('{"url": "u", "caption": 1e999999, "n": 1}', None, "cell_no_text:caption"),
        ('{"url": "http://a.example/150", "caption": {"en": "a dog"}}', None, "cell_no_text:caption"),
        ('{"url": "http://a.example/150", "caption": NaN, "meta": Infinity}', None, None),
        ('{"url": "http://a.example/150", "caption": ["first", "second"]}', "first", None),
        ('{"url": "http://a.example/150", "caption": "a", "caption_2": [[1], "x"], "meta": "varies"}', "a", None),
        ('{"url": "u"}{"url": "v"}', None, "json_malformed:line_151"),
    ],
)
@pytest.mark.parametrize("suffix", ["jsonl", "ndjson.gz"])
def test_a_line_of_json_costs_itself_alone(
    tmp_path: Path, suffix: str, fault: str, caption: str | None, reason: str | None
) -> None:
    lines = [json.dumps({"url": url, "caption": f"caption {n}", "meta": {"a": n}}) for n, url in enumerate(URLS)]
    lines[150] = fault
    data = codecs.BOM_UTF8 + "\r\n".join(lines).encode()
    rows = rows_of_split(tmp_path, f"rows.{suffix}", gzip.compress(data) if suffix.endswith("gz") else data)
    assert (rows["caption"][150], rows["source_reason"][150]) == (caption, reason)
    others = [row for n, row in enumerate(rows.drop("sample_id").rows()) if n != 150]
    assert others == [(url, f"caption {n}", None) for n, url in enumerate(URLS) if n != 150]


def test_columns_that_begin_late_are_read(tmp_path: Path, settings: Settings) -> None:
    lines = [json.dumps({"caption": f"caption {n}", **({"url": url} if n > 120 else {})}) for n, url in enumerate(URLS)]
    (tmp_path / "late.jsonl").write_text("\n".join(lines))
    pool = add_pool(settings, "late", tmp_path / "late.jsonl")
    assert pool.columns["url"] == "url"
    assert pool.source_kind.split(pool, settings).part("late-000000")["url"].to_list() == [None] * 121 + URLS[121:]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("is_quoted", [False, True])
@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{u}|a dog|a cat|and a bird|x", "csv_too_many_cells:line_4"),
        ("a dog|{u}| a cat, and a bird", "csv_too_many_cells:line_4"),
        ("{u}|a dog", "csv_too_few_cells:line_4"),
        ('"{u}|a dog|x', "csv_malformed:line_4"),
        ('{u}|"a "small" dog"|x', "csv_malformed:line_4"),
    ],
)
def test_an_odd_row_of_a_file_with_an_unused_column_fails(
    tmp_path: Path, separator: str, is_quoted: bool, line: str, reason: str
) -> None:
    rows = [[url, f'say "{n}"' if is_quoted else f"caption {n}", "x"] for n, url in enumerate(URLS[:8])]
    lines = as_csv({"url": [], "caption": [], "more": []}, delimiter=separator).decode().splitlines()
    for cells in rows:
        buffer = io.StringIO()
        csv.writer(buffer, delimiter=separator, lineterminator="").writerow(cells)
        lines.append(buffer.getvalue())
    odd = line.replace("|", separator).replace("{u}", URLS[2])
    lines[3] = odd if odd.count(separator) != 2 or '"' in odd else odd.replace(", ", separator)
    read = rows_of_split(tmp_path, "rows.csv", "\n".join(lines).encode())
    assert read.drop("sample_id").row(2) == (None, None, reason)
    expected = [(url, caption, None) for url, caption, _ in rows]
    assert [row for n, row in enumerate(read.drop("sample_id").rows()) if n != 2] == expected[:2] + expected[3:]


TEXTS = ["a red kite", 'he said "hi"', "two\nlines", "a, b; c", 'ends in "quotes"']


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("excel.csv", codecs.BOM_UTF8 + as_csv(table(TEXTS), delimiter=";", lineterminator="\r\n")),
        ("bar.csv", as_csv(table(TEXTS), delimiter="|")),
        ("open_clip.csv", as_csv(table(TEXTS), delimiter="\t")),
        ("quoted.tsv", as_csv(table(TEXTS), delimiter="\t", quoting=csv.QUOTE_ALL)),
        ("marked.csv", as_csv(table(TEXTS)).decode().encode("utf-16")),
        ("unmarked.csv", as_csv(table(TEXTS)).decode().encode("utf-16-le")),
        ("excel.tsv", as_csv(table(TEXTS[:2]), delimiter="\t").decode().encode("utf-16")),
        ("mac.csv", as_csv(table(TEXTS)).replace(b"\n", b"\r")),
    ],
)
def test_dialects_are_recognised_by_suffix_and_header(tmp_path: Path, name: str, data: bytes) -> None:
    for given_name, content in ((name, data), (f"{name}.gz", gzip.compress(data))):
        rows = rows_of_split(tmp_path, given_name, content).drop("sample_id").rows()
        assert rows == [(url, text, None) for url, text in zip(URLS, TEXTS[: len(rows)], strict=False)]


def test_a_row_with_escaped_quotation_marks_fails(tmp_path: Path) -> None:
    """Quotes are doubled or text: a backslash escapes nothing, and no caption is cut at one."""
    path = tmp_path / "escaped.csv"
    path.write_text('caption,n\n"he said \\"hi\\"",1\na dog,2\n')
    assert read_sound_rows(path).rows() == [(None, None, "csv_malformed:line_2"), ("a dog", "2", None)]
    with pytest.raises(ValueError, match="quoting must be one of doubled, none, got 'backslash'"):
        TextFormat(quoting="backslash")  # type: ignore[arg-type]


def test_quotation_marks_of_a_tsv_are_text_but_in_cells_that_were_quoted(tmp_path: Path, settings: Settings) -> None:
    captions = ['"hello" said the man', '"open', 'a 5" pipe', '"whole"', 'the ""best"" dog', '"a ""b" c"']
    path = tmp_path / "cc3m.tsv"
    rows = "".join(f"{c}\t{u}\n" for c, u in zip([*captions, '"he said ""hi"""'], URLS, strict=False))
    path.write_text("caption\turl\n" + rows)
    assert read_rows(path)["caption"].to_list() == [*captions, 'he said "hi"']
    unquoted = read_sound_rows(path, text=TextFormat(quoting="none"))
    assert unquoted["caption"].to_list() == [*captions, '"he said ""hi"""']
    pool = add_pool(settings, "quoted", path, quoting="doubled")
    reasons = pool.source_kind.split(pool, settings).part("quoted-000000")["source_reason"]
    assert reasons.to_list() == [
        "csv_malformed:line_2", "csv_malformed:line_3", None, None, None, "csv_malformed:line_7", None,
    ]  # fmt: skip
    assert any("--quoting" in sentence for sentence in read_as(pool))
    with pytest.raises(ValueError, match="separator must be one of comma, tab"):
        TextFormat(separator="x")  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_packed_table_is_unpacked_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_format, "MIN_UNPACKED", 1 << 20)
    path = tmp_path / "rows.csv.gz"
    path.write_bytes(gzip.compress(b"caption\n" + b"a dog\n" * 1_000_000))
    with pytest.raises(ValueError, match="unpacks to more than"):
        read_sound_rows(path)
    path.write_bytes(gzip.compress(b"caption\n" + b"a dog\n" * 1000)[:-20])
    with pytest.raises(ValueError, match=r"rows.csv.gz cannot be unpacked"):
        read_sound_rows(path)


def test_a_line_without_end_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_format, "MAX_LINE", 1 << 16)
    lines = ["caption,more", "a,b", f"{'x' * (8 << 20)},b", 'c,"d', *["e,f"] * 40_000]
    for name, texts in (("rows.csv", lines), ("rows.jsonl", [json.dumps({"caption": line}) for line in lines])):
        (tmp_path / name).write_text("\n".join(texts) + "\n")
        tracemalloc.start()
        rows = read_sound_rows(tmp_path / name, ["caption"], rows=5)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 4 << 20
        place = 1 if name == "rows.csv" else 2
        assert rows["caption"][place] is None
        assert rows[ROW_REASON][place].startswith(("csv_malformed:line_3", "json_malformed:line_3"))


# -- texts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WRITERS)
def test_a_text_beyond_the_limit_fails_its_row(tmp_path: Path, name: str) -> None:
    captions = ["a dog", "é" * (MAX_TEXT_BYTES // 2 + 1), "x" * MAX_TEXT_BYTES]
    rows = rows_of_split(tmp_path, name, WRITERS[name](table(captions)))
    assert rows["caption"].to_list() == ["a dog", None, "x" * MAX_TEXT_BYTES]
    assert rows["source_reason"].to_list() == [None, "cell_too_long:caption", None]


@pytest.mark.parametrize(
    "text", ["", " \t\n", "\u200b", "\ufeff\u200d\u2060", "\u00ad\u2800", "\u3164", "\u202e\u202c"]
)
def test_what_shows_nothing_is_blank(text: str) -> None:
    assert is_blank(text)
    assert not is_blank(text + "é")


MARK = "\ufeff"
MARKED = f"{MARK}a dog\r\n".encode()


@pytest.mark.parametrize("name", WRITERS)
def test_a_byte_order_mark_is_one_at_the_beginning_of_a_file_alone(tmp_path: Path, name: str) -> None:
    captions = [f"{MARK}a dog", f"a{MARK}cat", f"{MARK}{MARK}a bird"]
    data = WRITERS[name](table(captions))
    is_text = table_suffix(Path(name)) != ".parquet"
    assert not data.startswith(MARKED[:3])
    for content in (data, MARKED[:3] + data) if is_text else (data,):
        read = rows_of_split(tmp_path, name, content)
        assert read.drop("sample_id").rows() == [(u, c, None) for u, c in zip(URLS, captions, strict=False)]


def test_marks_of_lists_and_of_tars(tmp_path: Path, settings: Settings) -> None:
    captions = [f"{MARK}a dog", "a cat", f"{MARK}a bird"]
    for mark in ("", MARK):
        (tmp_path / "list.txt").write_text("\n".join([mark + "a fish", *captions]), encoding="utf-8")
        (tmp_path / "bare.csv").write_text("\n".join([mark + "a fish", *captions]), encoding="utf-8")
        assert read_captions(tmp_path / "list.txt")["caption"].to_list() == ["a fish", *captions]
        bare = read_sound_rows(tmp_path / "bare.csv", text=TextFormat(has_header=False))
        assert bare["column_0"].to_list() == ["a fish", *captions]
    members = {"0.png": PIXELS, "0.txt": f"{MARK}{MARK}a dog\n".encode()}
    members |= {"1.png": PIXELS, "1.json": MARK.encode() + json.dumps({"caption": f"{MARK}a cat"}).encode()}
    (tmp_path / "tars").mkdir()
    (tmp_path / "tars" / "0.tar").write_bytes(tar_bytes(members))
    rows = register_shard(add_pool(settings, "marks", tmp_path / "tars"), "marks-000000", settings)
    assert rows["caption"].to_list() == [f"{MARK}a dog", f"{MARK}a cat"]


def test_a_text_file_has_a_mark_and_a_value_has_none(tmp_path: Path, settings: Settings) -> None:
    beside, tars, cells = (tmp_path / name for name in ("beside", "tars", "cells"))
    for folder in (beside, tars, cells):
        folder.mkdir()
    (beside / "0.png").write_bytes(PIXELS)
    (beside / "0.txt").write_bytes(MARKED)
    (tars / "0.tar").write_bytes(tar_bytes({"0.png": PIXELS, "0.txt": MARKED}))
    (cells / "0.png").write_bytes(PIXELS)
    pl.DataFrame({"file_name": ["0.png"], "caption": [MARKED.decode()]}).write_parquet(cells / "m.parquet")
    pl.DataFrame({"image": [PIXELS], "caption": [MARKED.decode()]}).write_parquet(tmp_path / "inside.parquet")
    rows = [
        register_shard(add_pool(settings, f"p{number}", source), f"p{number}-000000", settings).row(0, named=True)
        for number, source in enumerate((beside, tars, cells, tmp_path / "inside.parquet"))
    ]
    assert [row["caption"] for row in rows] == ["a dog", "a dog", f"{MARK}a dog", f"{MARK}a dog"]
    assert len({row["sample_id"] for row in rows}) == 2
    assert read_captions(tars)["caption"].to_list() == ["a dog"]


@pytest.mark.parametrize("blank", ["\u200b\u200d", "\ufeff", " \u2060 "])
def test_captions_of_no_width_are_empty(tmp_path: Path, settings: Settings, blank: str) -> None:
    pl.DataFrame({"caption": ["a dog", blank, blank]}).write_parquet(tmp_path / "texts.parquet")
    pool = add_pool(settings, "texts", tmp_path / "texts.parquet")
    assert samples_of(pool, settings)["reason"].to_list() == [None, "empty_caption", "empty_caption"]


def samples_of(pool: Pool, settings: Settings) -> pl.DataFrame:
    shard = f"{pool.name}-000000"
    registered = register_shard(pool, shard, settings)
    return build_samples(pool, shard, registered, download(pool, shard, registered, settings), settings)


# -- what lies in a source --------------------------------------------------------------------------------------------


def test_ids_of_another_kind_are_left_aside(tmp_path: Path, settings: Settings) -> None:
    path = tmp_path / "laion.parquet"
    kinds = {"SAMPLE_ID": [1, 2], "URL": URLS[:2], "TEXT": ["a", "b"], "LICENSE": [None, "?"], "similarity": ["x", "y"],
             "NSFW": [True, False], "original_width": ["wide", "8"], "original_height": [5, 6]}  # fmt: skip
    pl.DataFrame(kinds).write_parquet(path)
    output = curate("pool", "add", "laion", path, home=settings.home)
    assert output.exit_code == 0, output.output
    assert "Column SAMPLE_ID (Int64) is named as an id and left aside" in " ".join(output.output.split())
    assert load_pool(settings, "laion").columns["uid"] is None
    captions = tmp_path / "captions"
    captions.mkdir()
    for number, width in enumerate(([7], ["wide"])):
        columns = {"caption": ["a"], "uid": [[1.5]], "original_width": width, "original_height": [8]}
        pl.DataFrame(columns).write_parquet(captions / f"{number}.parquet")
    pool = add_pool(settings, "captions", captions)
    assert pool.source_kind.split(pool, settings).part("captions-000000")["caption"].to_list() == ["a", "a"]


def test_the_training_table_of_open_clip_is_a_pool(tmp_path: Path, settings: Settings) -> None:
    (tmp_path / "0.png").write_bytes(PIXELS)
    (tmp_path / "train.csv").write_bytes(
        as_csv({"filepath": ["0.png"], "title": ['a "red", small kite']}, delimiter="\t")
    )
    pool = add_pool(settings, "open_clip", tmp_path / "train.csv")
    assert (pool.columns["image"], pool.columns["caption"]) == ("filepath", "title")
    assert samples_of(pool, settings).select("caption", "status").row(0) == ('a "red", small kite', "kept")


def test_a_column_that_a_later_file_lacks_fails_its_rows(tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    for number, columns in enumerate(({"url": ["u"], "caption": ["a"], "uid": ["0" * 32]}, {"caption": ["b"]})):
        pl.DataFrame(columns).write_csv(tmp_path / "tables" / f"{number}.csv")
    split = split_of(tmp_path, tmp_path / "tables", {"caption": "caption", "url": "url", "uid": "uid"})
    assert split.part("p-000000")["source_reason"].to_list() == [None, "column_missing:url"]


def test_hive_folders_and_upper_case_names_are_read(tmp_path: Path, settings: Settings) -> None:
    for split, names in (("train", ["0.PARQUET", "1.PARQUET"]), ("val", ["0.PARQUET"])):
        folder = tmp_path / "hive" / "lang=en" / f"split={split}"
        folder.mkdir(parents=True)
        for name in names:
            pl.DataFrame({"image": [PIXELS], "text": [split + name]}).write_parquet(folder / name)
    pool = add_pool(settings, "hive", tmp_path / "hive")
    rows = pool.source_kind.split(pool, settings).part("hive-000000")
    assert rows["caption"].to_list() == ["train0.PARQUET", "train1.PARQUET", "val0.PARQUET"]
    assert rows["image_file"].to_list()[2] == "lang=en/split=val/0.PARQUET"
    assert samples_of(pool, settings)["status"].to_list() == ["kept"] * 3
    assert pool.columns["language"] == "lang"
    assert rows["language"].to_list() == ["en"] * 3


def test_folders_of_hive_are_columns(tmp_path: Path, settings: Settings) -> None:
    root = tmp_path / "root"
    for number, name in enumerate(("license=CC BY%2FSA 4.0/q=.5", "license=__HIVE_DEFAULT_PARTITION__/q=.75")):
        (root / name).mkdir(parents=True)
        table = pl.DataFrame({"caption": ["a dog"], "url": [URLS[number]]})
        table.write_parquet(root / name / "0.parquet")
    pool: Any = add_pool(settings, "root", root)
    pool = replace(pool, options={"given_signals": {"clip_score": "q"}})
    rows = register_shard(pool, "root-000000", settings).sort("url")
    assert rows.select("licence", "given_clip_score").rows() == [("CC BY/SA 4.0", 0.5), (None, 0.75)]
    (root / "license=__HIVE_DEFAULT_PARTITION__").rename(root / "license=mit")
    assert register_shard(pool, "root-000000", settings)["licence"].to_list() == ["CC BY/SA 4.0", "mit"]


@pytest.mark.parametrize(
    ("mark", "sentence"),
    [
        ("_delta_log/00000000000000000000.json", "a Delta table: .*delta_scan"),
        ("metadata/v1.metadata.json", "an Iceberg table: .*iceberg_scan"),
        (".hoodie/hoodie.properties", "a Hudi table: .*spark.read"),
        ("_versions/1.manifest", r"a Lance data set: .*lance.dataset\(FOLDER\)"),
    ],
)
def test_a_table_with_a_log_is_refused(tmp_path: Path, settings: Settings, mark: str, sentence: str) -> None:
    """Its folder has the files of rows that were deleted since, too."""
    lake = tmp_path / "lake"
    for name in (mark, "data/0.parquet", "lang=en/0.parquet", "0.parquet"):
        (lake / name).parent.mkdir(parents=True, exist_ok=True)
        pl.DataFrame({"caption": ["a dog"], "url": [URLS[0]]}).write_parquet(lake / name)
    for source in (lake, lake / "lang=en", lake / "data"):
        with pytest.raises(ValueError, match=f"is {sentence}"):
            add_pool(settings, "lake", source)
        shown = curate("look", source, "--no-open", "--into", tmp_path / "page.html")
        assert shown.exit_code == 1
        assert "its log says which rows of its files count" in " ".join(shown.output.split())
    for name in ("data/0.parquet", "lang=en/0.parquet"):
        (lake / name).unlink()
    (lake / "0.parquet").unlink()
    with pytest.raises(ValueError, match=f"is {sentence}"):  # of Lance there is no Parquet at all
        add_pool(settings, "lake", lake)


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        (
            ["train/0.tar", "train/1.tar", "val/0.tar"],
            "its tars lie in 2 folders below it: train (2 tars), val (1 tars)",
        ),
        (["a/0.csv", "b/c/0.csv"], "its tables lie in 2 folders below it: a (1 tables), b/c (1 tables)"),
        (["0.tar.gz", "1.tar.gz"], "0.tar.gz is a compressed tar: unpack it"),
        (["0.tgz"], "0.tgz is a compressed tar"),
        (["0.csv.zst"], "0.csv.zst is compressed: unpack it"),
        (["state.json", "dataset_info.json", "data-00000-of-00001.arrow"], "to_parquet"),
        (["dataset_dict.json", "train/data.arrow"], "to_parquet"),
        (["data.arrow"], "write it as Parquet"),
        (["captions.xlsx"], "save it as csv"),
        (["captions.json"], ".jsonl"),
        (["0.TAR"], "files that end in .tar"),
        (["notes.md"], "a pool is a folder of tars, of tables"),
    ],
)
def test_what_is_no_pool_is_named_with_what_to_do(
    tmp_path: Path, settings: Settings, files: list[str], sentence: str
) -> None:
    for name in files:
        path = tmp_path / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    with pytest.raises(ValueError, match="expected") as refusal:
        add_pool(settings, "source", tmp_path / "source")
    assert sentence in str(refusal.value)
    if len(files) == 1 and files != ["notes.md"]:
        with pytest.raises(ValueError, match="expected") as refusal:
            add_pool(settings, "source", tmp_path / "source" / files[0])
        assert sentence in str(refusal.value)


def letters(caption: list[str]) -> Values:
    return Values.of(np.array([len(text) for text in caption], dtype=float))


METHOD = Method(
    name="letters", function=letters, columns=("caption",), roles=(), unit="letters", bounds=(0, 1e9),
    direction="higher", source="this test", version="1", example=Example({"caption": ["ab"]}, [2]),
    blank_caption="empty_caption",
)  # fmt: skip


def test_a_damaged_row_of_a_scored_file_has_its_reason(tmp_path: Path) -> None:
    path, out = tmp_path / "rows.csv", tmp_path / "out.tsv"
    long = "x" * (MAX_TEXT_BYTES + 1)
    path.write_text(f"caption,n\na dog,1\na, b, c,2\n,3\n{long},4\n\u200b,5\na cat,6\n", encoding="utf-8")
    score_file(METHOD, path, out, {})
    reasons = read_rows(out)["letters_reason"].to_list()
    assert reasons == ["", "csv_too_many_cells:line_3", "empty_caption", "cell_too_long:caption", "empty_caption", ""]
