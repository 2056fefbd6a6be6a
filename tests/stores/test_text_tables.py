"""Tables of texts: what a spreadsheet would run is written so that it does not, and read back as it was."""

import csv
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curation_assets.scoring.files import read_captions
from curation_assets.stores.hash_lists import read_hash_lists
from curation_assets.stores.subsets import write_keys
from curation_assets.stores.tar_samples import key_of, sample_key
from curation_assets.stores.text_tables import escaped, read_lines, read_rows, read_table, unescaped, write_text_table
from tests.support.allow_list import AllowList, read_key_list

FORMULAS = [
    "=1+1",
    "+cmd|' /C calc'!A0",
    "-2+3",
    "@SUM(A1)",
    "\t=1",
    "\r=1",
    "＝1",
    "'=1",
    "''@x",
    '=HYPERLINK("http://x","y")',
]
HARMLESS = ["a red kite", "'quoted' caption", "-12.5", "+3e-4", "it's = fine", "", "007"]
TEXTS = st.text(alphabet=st.characters(exclude_categories=("Cc", "Cs")), max_size=12) | st.sampled_from(FORMULAS)


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_no_cell_is_a_formula_and_reading_gives_the_texts_back(tmp_path: Path, suffix: str) -> None:
    texts = [text for text in (*FORMULAS, *HARMLESS) if text and (suffix == ".csv" or not {*"\t\r"} & {*text})]
    table = pl.DataFrame({"caption": texts, "value": [-1.5] * len(texts), "tags": [["=x"]] * len(texts)})
    path = tmp_path / f"table{suffix}"
    write_text_table(table, path)
    with path.open(newline="", encoding="utf-8") as stream:
        quoting = {"quoting": csv.QUOTE_NONE, "quotechar": None} if suffix == ".tsv" else {}
        rows = list(csv.reader(stream, delimiter="\t" if suffix == ".tsv" else ",", **quoting))  # type: ignore[arg-type]
    shown = [row[0] for row in rows[1:]]
    assert [cell for cell in shown if cell[0] in "=@\t\r＝" or (cell[0] in "+-" and cell not in HARMLESS)] == []
    assert [cell for cell in shown if cell in HARMLESS] == [text for text in texts if text in HARMLESS]
    assert {row[1] for row in rows[1:]} == {"-1.5"}  # a number is no text
    assert read_table(path)["caption"].to_list() == texts
    write_text_table(table, path, raw=True)
    assert read_rows(path)["caption"].to_list() == texts


@given(texts=st.lists(TEXTS, min_size=1, max_size=5))
def test_escaping_is_undone_whatever_the_text(texts: list[str]) -> None:
    table = pl.DataFrame({"caption": texts, "n": [1] * len(texts)})
    assert unescaped(escaped(table)).equals(table)


def test_control_characters_are_shown_not_sent(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    write_text_table(pl.DataFrame({"caption": ["a\0b\x1b[31m\x7f", "two\nlines"]}), path)
    assert read_rows(path)["caption"].to_list() == ["a␀b␛[31m␡", "two\nlines"]
    with pytest.raises(ValueError, match="holds tabs or line breaks"):
        write_text_table(pl.DataFrame({"caption": ["two\nlines"]}), tmp_path / "table.tsv")


def test_names_with_tabs_and_line_breaks_survive_an_allow_list(tmp_path: Path) -> None:
    keys = ["plain", "a\tb", "a\nb", "c\\n", "line\u2028separator", "=cmd"]
    write_keys(tmp_path / "keys.tsv", [pl.DataFrame({"tar": ["0.tar"] * len(keys), "key": sorted(keys)})])
    assert set(AllowList.read(tmp_path / "keys.tsv").multiplicity["0.tar"]) == set(keys)


@given(st.lists(st.text(st.sampled_from("a/.é\n"), max_size=6), max_size=20))
def test_keys_of_a_column_are_those_of_its_members(members: list[str]) -> None:
    column = pl.DataFrame({"member": members}, schema={"member": pl.String})
    keys = column.select(sample_key(pl.col("member"))).to_series().to_list()
    assert keys == [key_of(member) or member for member in members]
    assert key_of("a.b/c.d.jpg") == "a.b/c"


@pytest.mark.parametrize(
    "written", [b"\xef\xbb\xbf%s\n%s\n", b"%s\r\n%s\r\n", b"%s\r%s", b"%s\n%s"], ids=["mark", "crlf", "cr", "no end"]
)
def test_lists_of_lines_are_read_however_an_editor_wrote_them(tmp_path: Path, written: bytes) -> None:
    def listed(first: str, second: str) -> Path:
        path = tmp_path / "list.txt"
        path.write_bytes(written % (first.encode(), second.encode()))
        return path

    assert read_lines(listed("é", "")) in (["é"], ["é", ""])
    assert read_hash_lists([listed(f"md5:{'0' * 32}", "1" * 64)]).sha256 == {"1" * 64}
    assert read_key_list(listed("0.tar\ta", "0.tar\tb")) == [("0.tar", "a"), ("0.tar", "b")]
    assert read_captions(listed("a dog", "a cat"))["caption"].to_list() == ["a dog", "a cat"]
