"""The one reader of tables that people bring: csv, tsv, parquet, json lines, plain text; and the writer of csv and tsv.

A spreadsheet takes a cell that begins with = + - @, a tab or a line break for a formula, and a caption of the web may
be one (OWASP, CSV injection). Such a cell is written with an apostrophe before it, which spreadsheets do not show;
`unescaped` takes it away. Control characters are written as their pictures (␀ for NUL). Numbers stay numbers.
"""

import codecs
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from curation_assets.numeric.caption_benchmark import WORD_COLUMNS
from curation_assets.stores.parquet import read_parquet

TEXT_KEYS = ("caption", "word", "text")
TEXT_SUFFIXES = (".csv", ".tsv")
#: Also in their full-width forms. Apostrophes before: what began with one already stays apart from what is escaped.
_FORMULA = r"^'*[=+\-@\t\r\n＝＋－＠]"
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_PICTURES = {chr(code): chr(0x2400 + code) for code in range(32) if chr(code) not in "\t\n\r"} | {"\x7f": "␡"}


@dataclass(frozen=True)
class TextFormat:
    """How csv and tsv files are read. Without a header the columns are column_0, column_1, …"""

    has_header: bool = True
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        try:
            codecs.lookup(self.encoding)
        except LookupError as error:
            raise ValueError(
                f"no encoding {self.encoding!r}; usual ones are utf-8, utf-16, latin-1, cp1252, gb18030"
            ) from error


def read_rows(
    path: Path,
    columns: Sequence[str] | None = None,
    *,
    rows: int | None = None,
    empty_is_null: bool = False,
    suffix: str | None = None,
    text: TextFormat | None = None,
) -> pl.DataFrame:
    """Rows of a .csv (quoted), .tsv (no quoting), .parquet or .jsonl file, as they are.

    Of a text file every column is text: a caption such as "007" stays what it was. `columns`: these only, `rows`: so
    many from the top; both for csv, tsv and parquet. `empty_is_null`: an empty cell of a text file is null, not "".
    `suffix`: read it as if it ended so. `text`: header and encoding of a text file; default: UTF-8 with a header.
    Raises ValueError for another kind of file or one that cannot be parsed, FileNotFoundError where there is none.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    chosen = None if columns is None else list(columns)
    suffix, text = suffix or path.suffix, text or TextFormat()
    try:
        match suffix:
            case ".parquet":
                return read_parquet(path, columns=chosen, n_rows=rows)
            case ".csv" | ".tsv":
                is_tsv = suffix == ".tsv"
                return pl.read_csv(
                    path,
                    separator="\t" if is_tsv else ",",
                    quote_char=None if is_tsv else '"',
                    infer_schema=False,
                    empty_string_is_null=empty_is_null,
                    columns=chosen,
                    n_rows=rows,
                    glob=False,
                    has_header=text.has_header,
                    encoding="utf8" if codecs.lookup(text.encoding).name == "utf-8" else text.encoding,
                )
            case ".jsonl":
                return pl.read_ndjson(path.read_bytes())  # of a path it would read `[ ] * ?` as a pattern
    except (pl.exceptions.PolarsError, UnicodeError) as error:
        problem = str(error).splitlines()[0]  # the rest is advice for callers of polars
        cure = "repair it or leave it out"
        if isinstance(error, UnicodeError) or "utf" in problem.lower():
            cure = f"it was read as {text.encoding}; name another with --encoding (latin-1, cp1252, utf-16 …)"
        raise ValueError(f"{path} cannot be read as {suffix[1:]}: {problem}; {cure}") from error
    raise ValueError(f"{path}: expected .tsv, .csv, .parquet, .jsonl or a tab-separated .txt")


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


def write_text_table(table: pl.DataFrame, path: Path, *, raw: bool = False, suffix: str | None = None) -> None:
    """A .csv (quoted) or .tsv (no quoting); lists are JSON. `raw`: texts as they are, formulas too.

    `suffix`: write it as if `path` ended so. Raises ValueError for a .tsv where a text holds a tab or a line break.
    """
    suffix = suffix or path.suffix
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
        written.write_csv(path, separator="\t", quote_style="never")
    else:
        written.write_csv(path)


def read_lines(path: Path) -> list[str]:
    """Lines of a text file without their ends (LF or CRLF); other separators belong to the text."""
    lines = path.read_text(encoding="utf-8").split("\n")
    lines = lines[:-1] if lines[-1] == "" else lines
    return [line.removesuffix("\r") for line in lines]


def read_table(path: Path) -> pl.DataFrame:
    """A table of ratings or words: as `read_rows`, and a .txt with tabs in its first line is read as .tsv.

    Columns of files in the format of Brysbaert et al. 2014 get our names (Word → word, Conc.M → conc_mean).
    Raises ValueError for another kind of file, FileNotFoundError where there is none.
    """
    if path.suffix == ".txt" and path.is_file() and "\t" not in _first_line(path):
        raise ValueError(
            f"{path} is a list of captions without numbers; expected a tab-separated table with a header, or score it "
            "first: curate score icc FILE --out SCORES.tsv"
        )
    table = read_rows(path, suffix=".tsv" if path.suffix == ".txt" else None)
    table = unescaped(table) if path.suffix in (".txt", *TEXT_SUFFIXES) else table
    return table.rename({old: new for old, new in WORD_COLUMNS.items() if old in table.columns})


def _first_line(path: Path) -> str:
    with path.open(encoding="utf-8") as stream:
        return stream.readline()
