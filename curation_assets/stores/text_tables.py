"""The one reader of tables that people bring: csv, tsv, parquet, json lines, plain text."""

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from curation_assets.numeric.caption_benchmark import WORD_COLUMNS

TEXT_KEYS = ("caption", "word", "text")


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
                return pl.read_parquet(path, columns=chosen, n_rows=rows, glob=False, hive_partitioning=False)
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
                return pl.read_ndjson(path)
    except (pl.exceptions.PolarsError, UnicodeError) as error:
        problem = str(error).splitlines()[0]  # the rest is advice for callers of polars
        cure = "repair it or leave it out"
        if isinstance(error, UnicodeError) or "utf" in problem.lower():
            cure = f"it was read as {text.encoding}; name another with --encoding (latin-1, cp1252, utf-16 …)"
        raise ValueError(f"{path} cannot be read as {suffix[1:]}: {problem}; {cure}") from error
    raise ValueError(f"{path}: expected .tsv, .csv, .parquet, .jsonl or a tab-separated .txt")


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
    return table.rename({old: new for old, new in WORD_COLUMNS.items() if old in table.columns})


def _first_line(path: Path) -> str:
    with path.open(encoding="utf-8") as stream:
        return stream.readline()
