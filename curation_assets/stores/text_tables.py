"""Tables that people bring, read as a whole: csv, tsv, parquet, json lines, plain text; and the writer of csv and tsv.

A spreadsheet takes a cell that begins with = + - @, a tab or a line break for a formula, and a caption of the web may
be one (OWASP, CSV injection). Such a cell is written with an apostrophe before it, which spreadsheets do not show;
`unescaped` takes it away. Control characters are written as their pictures (␀ for NUL). Numbers stay numbers.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

import polars as pl

from curation_assets.numeric.caption_benchmark import WORD_COLUMNS
from curation_assets.stores.atomic import writing_new
from curation_assets.stores.damaged_tables import ROW_REASON, sound_parts
from curation_assets.stores.text_format import MAX_LINE, lines_of, table_suffix

TEXT_KEYS = ("caption", "word", "text")
TEXT_SUFFIXES = (".csv", ".tsv")
#: Also in their full-width forms. Apostrophes before: what began with one already stays apart from what is escaped.
_FORMULA = r"^'*[=+\-@\t\r\n＝＋－＠]"
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_PICTURES = {chr(code): chr(0x2400 + code) for code in range(32) if chr(code) not in "\t\n\r"} | {"\x7f": "␡"}


def read_rows(path: Path, *, empty_is_null: bool = False, suffix: str | None = None) -> pl.DataFrame:
    """Rows of a csv, tsv, parquet or jsonl file (`damaged_tables.sound_parts`), all of them sound.

    Of a text file every column is text: a caption such as "007" stays what it was, and an empty cell is "", or with
    `empty_is_null` null. Raises ValueError for another kind of file or one with a row that cannot be read,
    FileNotFoundError where there is none.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    return pl.concat(read_parts(path, suffix or table_suffix(path), empty_is_null=empty_is_null), rechunk=True)


def read_parts(path: Path, suffix: str, *, empty_is_null: bool = False) -> Iterator[pl.DataFrame]:
    """`read_rows` part by part, one at least; `empty_is_null`: an empty cell of a text file is null, not "". Raises
    after the last part, and gives none from the first on that has a damaged row.
    """
    count = damaged = 0
    first = ""
    for part in sound_parts(path, suffix=suffix):
        wrong, count = part[ROW_REASON].drop_nulls(), count + part.height
        first, damaged = first or next(iter(wrong), ""), damaged + len(wrong)
        if not damaged:
            is_text = suffix in TEXT_SUFFIXES and not empty_is_null
            yield part.drop(ROW_REASON).with_columns(pl.col(pl.String).fill_null("") if is_text else [])
    if damaged:
        raise ValueError(
            f"{path} cannot be read as {suffix[1:]}: {damaged} of its {count} rows are damaged, first {first}; repair "
            "it or leave it out"
        )


def escaped(table: pl.DataFrame) -> pl.DataFrame:
    """Texts as a spreadsheet shows them: no cell is a formula, no character controls anything."""
    names = [name for name, dtype in table.schema.items() if dtype == pl.String]
    return table.with_columns(_escaped(pl.col(name).str.replace_many(_PICTURES)).alias(name) for name in names)


def _escaped(text: pl.Expr) -> pl.Expr:
    is_formula = text.str.contains(_FORMULA) & ~text.str.contains(_NUMBER)
    return pl.when(is_formula).then(pl.concat_str(pl.lit("'"), text)).otherwise(text)


def unescaped(table: pl.DataFrame) -> pl.DataFrame:
    """The texts that `escaped` had; control characters stay pictures."""
    names = [name for name, dtype in table.schema.items() if dtype == pl.String]
    return table.with_columns(
        pl.when(pl.col(name).str.contains("^'" + _FORMULA[1:]))
        .then(pl.col(name).str.slice(1))
        .otherwise(pl.col(name))
        .alias(name)
        for name in names
    )


def write_text_table(
    table: pl.DataFrame,
    path: Path | IO[bytes],
    *,
    raw: bool = False,
    suffix: str | None = None,
    has_header: bool = True,
) -> None:
    """A .csv (quoted) or .tsv (no quoting); lists are JSON. `raw`: texts as they are, formulas too.

    `suffix`: write it as if `path` ended so; of an open file it must be given. Raises ValueError for a .tsv where a
    text holds a tab or a line break.
    """
    suffix = suffix or (path.suffix if isinstance(path, Path) else "")
    nested = [name for name, dtype in table.schema.items() if dtype.is_nested()]
    as_json = {
        name: [None if cell is None else json.dumps(cell, ensure_ascii=False) for cell in table[name].to_list()]
        for name in nested
    }
    table = table.with_columns(pl.Series(name, cells, dtype=pl.String) for name, cells in as_json.items())
    if suffix == ".tsv":
        for name, dtype in table.schema.items():
            if dtype == pl.String and table[name].str.contains(r"[\t\n\r]").any():
                raise ValueError(
                    f"column {name!r} holds tabs or line breaks, which .tsv cannot; write .parquet or .jsonl"
                )
    written = table if raw else escaped(table)
    if suffix == ".tsv":
        written.write_csv(path, separator="\t", quote_style="never", include_header=has_header)
    else:
        written.write_csv(path, include_header=has_header)


def save_new_table(path: Path, table: pl.DataFrame, suffix: str | None = None) -> None:
    """A .csv, .tsv or .parquet at a path that a user gave, where nothing is overwritten.

    `suffix`: write it as if `path` ended so. Raises ValueError for another suffix, and as `write_text_table` and
    `writing_new`.
    """
    suffix = suffix or path.suffix
    if suffix not in (*TEXT_SUFFIXES, ".parquet"):
        raise ValueError(f"output must end in .tsv, .csv or .parquet, got {path.name!r}")
    with writing_new(path) as temporary:
        if suffix == ".parquet":
            table.write_parquet(temporary)
        else:
            write_text_table(table, temporary, suffix=suffix)


def write_text_parts(parts: Iterable[pl.DataFrame], path: Path, suffix: str, *, raw: bool = False) -> int:
    """As `write_text_table`, of rows that come part by part, one part at least. Returns how many rows."""
    count = 0
    with path.open("wb") as file:
        for number, part in enumerate(parts):
            write_text_table(part, file, raw=raw, suffix=suffix, has_header=number == 0)
            count += part.height
    return count


def read_lines(path: Path) -> list[str]:
    """All of `each_line`."""
    return list(each_line(path))


def each_line(path: Path) -> Iterator[str]:
    """Lines of a text file without their ends (LF, CRLF or CR) and its byte order mark; other separators belong to the
    text. Raises ValueError for a file that is not UTF-8 (or, with its mark, UTF-16).
    """
    try:
        for number, line in enumerate(lines_of(path), start=1):
            if line is None:
                raise ValueError(f"{path}, line {number}: longer than {MAX_LINE >> 20} million characters; cut it")
            line.encode()  # undecodable bytes are lone surrogates
            yield line[:-1].removesuffix("\r")
    except UnicodeError as error:
        raise ValueError(f"{path} is not UTF-8: {error}; write it in UTF-8") from error


def read_table(path: Path) -> pl.DataFrame:
    """A table of ratings or words: as `read_rows`, and a .txt with tabs in its first line is read as .tsv.

    Columns of files in the format of Brysbaert et al. 2014 get our names (Word → word, Conc.M → conc_mean).
    Raises ValueError for another kind of file, FileNotFoundError where there is none.
    """
    is_text = path.suffix == ".txt"
    if is_text and path.is_file() and "\t" not in (next(lines_of(path), None) or ""):
        raise ValueError(
            f"{path} is a list of captions without numbers; expected a tab-separated table with a header, or score it "
            "first: `curate score icc FILE --out SCORES.tsv`"
        )
    table = read_rows(path, suffix=".tsv" if is_text else None)
    table = unescaped(table) if is_text or table_suffix(path) in TEXT_SUFFIXES else table
    return table.rename({old: new for old, new in WORD_COLUMNS.items() if old in table.columns})
