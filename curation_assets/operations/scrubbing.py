"""Files that no table of the flow makes again: texts of samples are taken out of them as they lie.

Of tables (Parquet, tsv, csv, jsonl: labels, ratings) the rows go that have such a text as a value; a caption that only
contains it is another sample's. In Dagster's SQLite databases and in logs, where an error may quote it, it is replaced.
"""

import csv
import json
import sqlite3
from collections.abc import Collection
from contextlib import closing
from pathlib import Path

import polars as pl

from curation_assets.stores.atomic import replacing
from curation_assets.stores.parquet import read_parquet

MIN_TEXT = 8  # shorter texts are looked for as whole values only: "a dog" is part of many texts
GONE = "[taken down]"
DATABASES = (".db", ".sqlite")
TABLES = (".tsv", ".csv", ".jsonl")  # one row per line
LOGS = (".txt", ".log", ".out", ".err")


def forms_of(text: str) -> list[str]:
    """A text as it is and as Python shows it, inside JSON, and inside JSON inside JSON, longest first."""
    forms = written = {text, repr(text)[1:-1]}
    for _ in range(2):
        written = {json.dumps(form, ensure_ascii=ascii)[1:-1] for form in written for ascii in (True, False)}
        forms = forms | written
    return sorted(forms, key=len, reverse=True)


def is_database(path: Path) -> bool:
    """Whether a file is SQLite's by its name. Dagster's events that belong to no run lie in a file called `.db`."""
    return path.name.endswith(DATABASES)


def scrub(path: Path, texts: Collection[str]) -> bool:
    """Take texts out of a file of a kind named above; False for other files. One without them stays as it is."""
    if is_database(path):
        _scrub_database(path, [form for text in texts if len(text) >= MIN_TEXT for form in forms_of(text)])
    elif path.suffix == ".parquet":
        _scrub_parquet(path, texts)
    elif path.suffix in TABLES:
        if values_in(path) & set(texts):
            lines = path.read_bytes().split(b"\n")
            kept = [line for line in lines if not _values(line, path.suffix) & set(texts)]
            with replacing(path) as temporary:
                temporary.write_bytes(b"\n".join(kept))
    elif path.suffix in LOGS:
        before = after = path.read_bytes()
        for form in (form for text in texts if len(text) >= MIN_TEXT for form in forms_of(text)):
            after = after.replace(form.encode(), GONE.encode())
        if after != before:
            with replacing(path) as temporary:
                temporary.write_bytes(after)
    else:
        return False
    return True


def values_in(path: Path) -> set[str]:
    """Texts that are whole values of a table of lines."""
    return {value for line in path.read_bytes().split(b"\n") for value in _values(line, path.suffix)}


def _values(line: bytes, suffix: str) -> set[str]:
    text = line.decode("utf-8", "replace")
    if suffix == ".tsv":
        return {value.strip('"') for value in text.split("\t")}
    if suffix == ".csv":
        return {value for row in csv.reader([text]) for value in row}
    try:
        waiting, texts = [json.loads(text)] if text.strip() else [], set()
    except json.JSONDecodeError:  # cut short by a kill
        return {text}
    while waiting:
        node = waiting.pop()
        if isinstance(node, str):
            texts.add(node)
        elif isinstance(node, list | dict):
            waiting += node.values() if isinstance(node, dict) else node
    return texts


def _scrub_parquet(path: Path, texts: Collection[str]) -> None:
    frame = read_parquet(path)
    columns = [name for name, kind in frame.schema.items() if kind == pl.String]
    if not columns:
        return
    holds = pl.any_horizontal(pl.col(columns).is_in(list(texts)).fill_null(False))
    kept = frame.filter(~holds)
    if kept.height < frame.height:
        with replacing(path) as temporary:
            kept.write_parquet(temporary, compression="zstd")


def _scrub_database(path: Path, forms: list[str]) -> None:
    """Replace in every text of every row, then rewrite the file: SQLite leaves the bytes of old rows in free pages."""
    with closing(sqlite3.connect(path, timeout=60)) as connection:
        names = connection.execute("select name from sqlite_master where type = 'table' and name not like 'sqlite_%'")
        changed = 0
        for (table,) in names.fetchall():
            quoted = _quoted(table)
            columns = [row[1] for row in connection.execute(f"pragma table_info({quoted})")]
            for column in map(_quoted, columns):
                for form in forms:
                    changed += connection.execute(
                        f"update {quoted} set {column} = replace({column}, ?, ?) "
                        f"where typeof({column}) = 'text' and instr({column}, ?) > 0",
                        (form, GONE, form),
                    ).rowcount
        connection.commit()
        if changed or any(form.encode() in path.read_bytes() for form in forms):
            connection.execute("vacuum")
        connection.execute("pragma wal_checkpoint(truncate)")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
