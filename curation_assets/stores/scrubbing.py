"""Files that no table of the flow makes again: texts of samples are taken out of them as they lie.

Of tables (Parquet, tsv, csv, jsonl: labels, ratings) the rows go that have such a text as a value; a caption that only
contains it is another sample's. In Dagster's SQLite databases and in logs, where an error may quote it, it is replaced.
"""

import csv
import hashlib
import json
import logging
import sqlite3
import tarfile
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import polars as pl

from curation_assets.core.disk import is_busy, is_damage
from curation_assets.core.errors import StoreError
from curation_assets.stores.atomic import replacing
from curation_assets.stores.documents import save_frame
from curation_assets.stores.parquet import read_parquet

logger = logging.getLogger(__name__)
T = TypeVar("T")

BUSY_SECONDS = 600.0  # how long a database that others use is waited for
TRY_SECONDS = 2.0  # of one try: before the first line, and between two
HASHES = ("image_sha256", "original_sha256")  # of a sample's image, as stored and as downloaded
MIN_TEXT = 8  # shorter texts are looked for as whole values only: "a dog" is part of many texts
GONE = "[taken down]"
UNREAD = "something that cannot be read, and so was not searched"
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


def is_part_of_database(path: Path) -> bool:
    """Whether a file is one that SQLite keeps beside a database while it is used."""
    name, _, part = path.name.rpartition("-")
    return part in ("wal", "shm", "journal") and is_database(path.with_name(name))


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
        save_frame(path, kept)


def _scrub_database(path: Path, forms: Collection[str]) -> None:
    """Replace in every text of every row; rewrite the file where that leaves bytes of old rows in free pages."""

    def replace(connection: sqlite3.Connection) -> None:
        connection.execute("pragma secure_delete = on")
        if found := _forms_in_rows(connection, forms):
            connection.execute("begin immediate")
            for table, columns in _tables(connection):
                for column in columns:
                    for form in found:
                        connection.execute(
                            f"update {table} set {column} = replace({column}, ?, ?) "
                            f"where typeof({column}) = 'text' and instr({column}, ?) > 0",
                            (form, GONE, form),
                        )
            connection.execute("commit")
        data = _bytes_of(connection)
        if any(form.encode() in data for form in forms):
            connection.execute("vacuum")
        _empty_log(connection)

    _with_database(path, replace)


class _BusyError(Exception):
    """Somebody reads an older state of a database."""


def _with_database(path: Path, act: Callable[[sqlite3.Connection], T]) -> T:
    """What `act` gives of an SQLite file, once no other process is in its way; it may be called again.

    Only SQLite opens such a file and those beside it: who reads one as bytes and closes it takes all locks that this
    process has on it, and another process may then remove the log that connections of ours work on. Raises StoreError
    where it stays busy, sqlite3.DatabaseError.
    """
    ends, is_named = time.monotonic() + BUSY_SECONDS, False
    while True:
        try:
            uri = f"{path.absolute().as_uri()}?mode=rw"  # one that was removed is not made again
            with closing(sqlite3.connect(uri, uri=True, timeout=TRY_SECONDS, isolation_level=None)) as connection:
                return act(connection)
        except (_BusyError, sqlite3.OperationalError) as error:
            if isinstance(error, sqlite3.OperationalError) and not is_busy(error):
                raise
            if time.monotonic() > ends:
                raise StoreError(
                    f"{path} was in use by another process for {BUSY_SECONDS:g} s; end it (`fuser {path}` names it), "
                    "and run the same command again"
                ) from error
        if not is_named:
            logger.warning("waits for %s, which another process uses", path)
            is_named = True
        time.sleep(TRY_SECONDS / 10)


def _empty_log(connection: sqlite3.Connection) -> None:
    """Bring what the log beside a database has into it, and cut it to nothing: it has older states of rows."""
    [is_busy, *_] = connection.execute("pragma wal_checkpoint(truncate)").fetchone()
    if is_busy:
        raise _BusyError


def _bytes_of(connection: sqlite3.Connection) -> bytes:
    """The bytes of all pages of a database, free ones too."""
    [page_count] = connection.execute("pragma page_count").fetchone()
    return connection.serialize() if page_count else b""


def _tables(connection: sqlite3.Connection) -> list[tuple[str, list[str]]]:
    """Tables with their columns, quoted."""
    named = "select name from sqlite_master where type = 'table' and name not like 'sqlite_%' and sql is not null"
    names = [_quoted(name) for (name,) in connection.execute(named)]
    return [(name, [_quoted(row[1]) for row in connection.execute(f"pragma table_info({name})")]) for name in names]


def _forms_in_rows(connection: sqlite3.Connection, forms: Collection[str]) -> set[str]:
    """Which of the forms the values of rows hold, also where a value is spread over pages."""
    found = set()
    for table, columns in _tables(connection):
        holds = " or ".join(f"instr(cast({column} as blob), ?1)" for column in columns) or "0"
        for form in forms:
            if connection.execute(f"select 1 from {table} where {holds} limit 1", (form.encode(),)).fetchone():
                found.add(form)
    return found


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True)
class Needles:
    """What must be found nowhere: texts, and hashes of images."""

    texts: frozenset[str]
    sha256: frozenset[str]

    @classmethod
    def of(cls, samples: pl.DataFrame, but: Iterable[str] = ()) -> "Needles":
        """Captions, URLs and image hashes of samples (columns url, caption and HASHES), without those in `but`."""
        texts = {text for name in ("url", "caption") for text in samples[name] if text and text.strip()}
        digests = {digest for name in HASHES for digest in samples[name] if digest}
        return cls(frozenset(texts.difference(but)), frozenset(digests.difference(but)))

    def matches_in(self, path: Path) -> set[str]:
        """What of it a file holds, looked at as what it is: Parquet by its values, tars by their members, SQLite and
        everything else by bytes. A file that is none, such as one that another program is writing, is looked at by
        bytes, and UNREAD is among the matches unless it is empty.
        """
        try:
            if path.suffix == ".parquet":
                return self._in_parquet(path)
            if path.suffix == ".tar":
                return self._in_tar(path)
            if path.suffix in TABLES:
                return values_in(path) & self.texts
            if is_database(path):
                return _with_database(path, self._in_database)
            if is_part_of_database(path):
                return set()  # searched with it
            return self._in_bytes(path.read_bytes())
        except (pl.exceptions.PolarsError, tarfile.TarError, sqlite3.DatabaseError, ValueError) as error:
            if isinstance(error, sqlite3.DatabaseError) and not is_damage(error):
                if not path.exists():
                    return set()
                raise
            return self._in_bytes(data := path.read_bytes()) | ({UNREAD} if data else set())
        except FileNotFoundError:  # a log, or a file of a run, that was removed meanwhile
            return set()

    def _in_parquet(self, path: Path) -> set[str]:
        frame = read_parquet(path)
        matches: set[str] = set()
        for name, kind in frame.schema.items():
            column = frame[name]
            while isinstance(kind, pl.List):
                column, kind = column.explode(), kind.inner  # type: ignore[assignment]
            if isinstance(kind, pl.Struct):
                column, kind = column.struct.json_encode(), pl.String()
                matches |= self._in_bytes("\n".join(column.drop_nulls().to_list()).encode())
            elif kind == pl.String:
                matches |= {text for text in column.drop_nulls().unique() if text in self.texts}
            elif kind == pl.Binary:
                matches |= {"image" for blob in column.drop_nulls() if hashlib.sha256(blob).hexdigest() in self.sha256}
        return matches

    def _in_tar(self, path: Path) -> set[str]:
        matches: set[str] = set()
        with tarfile.open(path) as tar:
            for member in tar:
                file = tar.extractfile(member)
                data = b"" if file is None else file.read()
                if hashlib.sha256(data).hexdigest() in self.sha256:
                    matches.add("image")
                if member.name.endswith((".txt", ".json")):
                    matches |= {text for text in self.texts if text.encode() == data} | self._in_bytes(data)
        return matches

    def _in_database(self, connection: sqlite3.Connection) -> set[str]:
        """Texts found in the rows of a database, and in its bytes, in which deleted rows linger."""
        _empty_log(connection)
        forms = {form: text for text in self.texts if len(text) >= MIN_TEXT for form in forms_of(text)}
        return self._in_bytes(_bytes_of(connection)) | {forms[form] for form in _forms_in_rows(connection, forms)}

    def _in_bytes(self, data: bytes) -> set[str]:
        return {
            text
            for text in self.texts
            if len(text) >= MIN_TEXT and any(form.encode() in data for form in forms_of(text))
        }
