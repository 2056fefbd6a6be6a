"""Tables that people bring of data sets and their numbers: a name in the first column, a number in every other."""

import re
from pathlib import Path

import polars as pl

from curation_assets.stores.text_tables import read_rows

_REPEATED = re.compile(r"(.+)_duplicated_\d+")  # polars' name for a heading that comes again


def read_numbers_by_name(path: Path, *, gaps: bool = False) -> pl.DataFrame:
    """csv, tsv, parquet or jsonl: first column (any heading) → text `dataset`, all others → Float64.

    `gaps`: an empty cell is null; else it is refused. Raises ValueError that names row and column for text where a
    number should be, a gap, a name that is missing or comes twice, no column of numbers, or fewer than two rows.
    """
    table = read_rows(path, empty_is_null=True)
    names = table.columns
    repeated = [match[1] for name in names if (match := _REPEATED.fullmatch(name)) and match[1] in names]
    if repeated:
        raise ValueError(f"{path}: two columns are named {repeated[0]!r}; name each differently")
    if len(names) < 2:
        raise ValueError(f"{path}: expected a column of names and at least one of numbers, got only {names}")
    if table.height < 2:
        raise ValueError(f"{path}: expected at least two rows below the headings, got {table.height}")
    datasets = table[names[0]].cast(pl.String).str.strip_chars()
    nameless = (datasets.is_null() | (datasets == "")).arg_true()
    if len(nameless):
        raise ValueError(f"{path}: row {nameless[0] + 1} has no name in the column {names[0]!r}")
    if datasets.is_duplicated().any():
        twice = datasets.filter(datasets.is_duplicated())[0]
        raise ValueError(f"{path}: {twice!r} has two rows in the column {names[0]!r}; give each data set one")
    numbers = [_numbers(table[name], datasets, path, gaps) for name in names[1:]]
    return pl.DataFrame([datasets.alias("dataset"), *numbers])


def _numbers(column: pl.Series, datasets: pl.Series, path: Path, gaps: bool) -> pl.Series:
    if column.dtype.is_nested() or column.dtype.is_temporal():
        raise ValueError(f"{path}: the column {column.name!r} holds {column.dtype}; expected numbers")
    text = column.cast(pl.String).str.strip_chars()
    numbers = text.cast(pl.Float64, strict=False)
    is_gap = text.is_null() | (text == "") | (text.str.to_lowercase() == "nan")
    is_text = ~is_gap & ~numbers.is_finite().fill_null(False)
    for wrong, problem in (
        (is_text, "expected a number such as 0.5"),
        (is_gap, "expected a number, got an empty cell"),
    ):
        if wrong.any() and not (gaps and wrong is is_gap):
            row = int(wrong.arg_true()[0])
            got = "" if wrong is is_gap else f", got {text[row]!r}"
            raise ValueError(f"{path}: {datasets[row]!r}, column {column.name!r}: {problem}{got}")
    return numbers.set(is_gap, None).alias(column.name)
