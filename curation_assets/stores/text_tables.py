"""The one reader of tables that people bring: csv, tsv, parquet, json lines."""

from pathlib import Path

import polars as pl

from curation_assets.numeric.caption_benchmark import WORD_COLUMNS

TEXT_KEYS = ("caption", "word", "text")


def read_table(path: Path) -> pl.DataFrame:
    """A .tsv (no quoting), .csv, .parquet or .jsonl file; .txt with tabs in its first line is read as .tsv.

    Columns of files in the format of Brysbaert et al. 2014 get our names (Word → word, Conc.M → conc_mean).
    Raises ValueError for another kind of file, FileNotFoundError where there is none.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    if path.suffix == ".parquet":
        table = pl.read_parquet(path, glob=False)
    elif path.suffix == ".jsonl":
        table = pl.read_ndjson(path)
    elif path.suffix in (".tsv", ".csv", ".txt"):
        separator = "," if path.suffix == ".csv" else "\t"
        if path.suffix == ".txt" and "\t" not in _first_line(path):
            raise ValueError(
                f"{path} is a list of captions without numbers; expected a tab-separated table with a header, or score "
                "it first: curate score icc FILE --out SCORES.tsv"
            )
        table = pl.read_csv(
            path,
            separator=separator,
            quote_char='"' if separator == "," else None,
            infer_schema=False,  # a caption such as "007" stays the text it was
            empty_string_is_null=False,
            glob=False,
        )
    else:
        raise ValueError(f"{path}: expected .tsv, .csv, .parquet, .jsonl or a tab-separated .txt")
    return table.rename({old: new for old, new in WORD_COLUMNS.items() if old in table.columns})


def _first_line(path: Path) -> str:
    with path.open(encoding="utf-8") as stream:
        return stream.readline()
