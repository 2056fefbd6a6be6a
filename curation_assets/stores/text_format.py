"""How a table of texts is written: kind, packing, encoding, line ends, separator, quotes; and its lines and records.

Separator and quotes follow from the file's suffix and its header, never from its rows: a line that does not fit is a
record with a reason, not a guess.
"""

import codecs
import csv
import gzip
import io
import re
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

from curation_assets.stores.file_hash import once_per_version

SUFFIXES = (".parquet", ".csv", ".tsv", ".jsonl")
Separator = Literal["comma", "tab", "semicolon", "bar"]
SEPARATORS: dict[Separator, str] = {"comma": ",", "tab": "\t", "semicolon": ";", "bar": "|"}
#: doubled: "" inside quotes is a quotation mark (RFC 4180); none: quotation marks are text.
Quoting = Literal["doubled", "none"]
QUOTINGS: tuple[Quoting, ...] = ("doubled", "none")

MAX_LINE = 16 << 20  # characters of a line, or of the lines of one record: what is longer is no row
MAX_INFLATION = 100  # a packed text may unpack to so many times its size (captions: 3 to 20 times) …
MIN_UNPACKED = 64 << 20  # … or to so many bytes
_HEAD = 1 << 16
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16's, with which it begins
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


@dataclass(frozen=True)
class TextFormat:
    """How csv and tsv files are read. Without a header the columns are column_0, column_1, …; None: as it is found."""

    has_header: bool = True
    encoding: str = "utf-8"
    separator: Separator | None = None
    quoting: Quoting | None = None

    def __post_init__(self) -> None:
        try:
            codecs.lookup(self.encoding)
        except LookupError as error:
            raise ValueError(
                f"no encoding {self.encoding!r}; usual ones are utf-8, utf-16, latin-1, cp1252, gb18030"
            ) from error
        for name, value, known in (("separator", self.separator, SEPARATORS), ("quoting", self.quoting, QUOTINGS)):
            if value is not None and value not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")

    def config(self) -> list[str | bool]:
        """What makes two readings differ; short where no dialect is given, as stored configurations have it."""
        more = [f"{self.separator}", f"{self.quoting}"] if self.separator or self.quoting else []
        return [self.has_header, self.encoding, *more]


@dataclass(frozen=True)
class Dialect:
    """How a csv or tsv file is written."""

    encoding: str
    line_end: str  # \\n (also for \\r\\n) or \\r
    separator: str
    quoting: Literal["doubled", "none", "by_cell"]  # by_cell: of a .tsv, see `dialect_of`

    def __str__(self) -> str:
        name = next(name for name, character in SEPARATORS.items() if character == self.separator)
        quotes = '"" in quotes' if self.quoting == "doubled" else "quotation marks are text"
        return f"separator {name}, {quotes}, {self.encoding.removesuffix('-sig')}"


def table_suffix(path: Path) -> str:
    """Kind of a table by its name: one of SUFFIXES, in either letter case, .ndjson as .jsonl, text with .gz behind.

    '' for what is no table.
    """
    name = path.name.lower()
    suffix = Path(name.removesuffix(".gz")).suffix
    suffix = ".jsonl" if suffix == ".ndjson" else suffix
    is_packed = name.endswith(".gz")
    return suffix if suffix in SUFFIXES and not (is_packed and suffix == ".parquet") else ""


# -- lines ------------------------------------------------------------------------------------------------------------


class _Unpacked(io.RawIOBase):
    """A gzip file's content, up to a bound."""

    def __init__(self, path: Path) -> None:
        self._path, self._file, self._read = path, gzip.open(path, "rb"), 0  # noqa: SIM115 closed with this one
        self._bound = max(MIN_UNPACKED, MAX_INFLATION * path.stat().st_size)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview") -> int:  # type: ignore[override]
        try:
            data = self._file.read(len(buffer))
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(
                f"{self._path} cannot be unpacked: {error}; fetch it again, or unpack what is whole"
            ) from None
        self._read += len(data)
        if self._read > self._bound:
            raise ValueError(
                f"{self._path} unpacks to more than {self._bound >> 20} MiB, over {MAX_INFLATION} times its size; "
                "unpack it yourself if it is meant so"
            )
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


def is_packed(path: Path) -> bool:
    """Whether a file is gzip's, by its first bytes."""
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


def _open(path: Path) -> BinaryIO:
    return io.BufferedReader(_Unpacked(path), 1 << 18) if is_packed(path) else path.open("rb")


@once_per_version(1024)
def layout_of(path: Path, encoding: str = "utf-8") -> tuple[str, str]:
    """(encoding, line end) of a text file. `encoding` is what it is said to have; the mark of another one, and UTF-16
    without a mark, are seen where that is UTF-8.
    """
    with _open(path) as file:
        head = file.read(_HEAD)
    if codecs.lookup(encoding).name == "utf-8":
        encoding = next((name for mark, name in _MARKS if head.startswith(mark)), _without_mark(head))
    text = codecs.getincrementaldecoder(encoding)("replace").decode(head)
    return encoding, "\r" if "\r" in text and "\n" not in text else "\n"


def _without_mark(head: bytes) -> str:
    """UTF-16 has a zero byte in every ASCII letter."""
    for start, name in ((1, "utf-16-le"), (0, "utf-16-be")):
        half = head[start::2]
        if len(half) > 3 and half.count(0) > len(half) / 2 and head[1 - start :: 2].count(0) < len(half) / 4:
            return name
    return "utf-8"


def lines_of(path: Path, encoding: str = "utf-8") -> Iterator[str | None]:
    """Lines of a text file, each with \\n at its end; None for one longer than MAX_LINE. Undecodable bytes of UTF-8 are
    lone surrogates.

    Raises UnicodeError where another encoding cannot be decoded, ValueError for a packed file that cannot be unpacked.
    """
    encoding, line_end = layout_of(path, encoding)
    errors = "strict" if encoding.startswith(("utf-16", "utf-32")) else "surrogateescape"
    with _open(path) as file, io.TextIOWrapper(file, encoding, errors, newline=line_end) as stream:
        while line := stream.readline(MAX_LINE):
            if len(line) < MAX_LINE or line.endswith(line_end):
                yield line if line.endswith("\n") else line.removesuffix(line_end) + "\n"
                continue
            while (rest := stream.readline(MAX_LINE)) and not rest.endswith(line_end):
                pass
            yield None


# -- records ----------------------------------------------------------------------------------------------------------


class Record(NamedTuple):
    """One row of a csv or tsv file; `cells` None where it is none."""

    line: int  # its first, from 1
    cells: list[str] | None


class _Lines:
    """Lines for `csv`, which may be put back; a record takes at most MAX_LINE characters."""

    def __init__(self, lines: Iterator[str | None]) -> None:
        self._lines, self._back = lines, deque[str | None]()
        self.begin()

    def begin(self) -> None:
        """The next line is the first of a record."""
        self.taken: list[str | None] = []
        self._size = 0

    def put_back(self) -> None:
        """All lines that were taken but the first."""
        self._back.extendleft(reversed(self.taken[1:]))
        del self.taken[1:]

    def __iter__(self) -> Iterator[str]:
        """Lines from here on; a generator, which costs half of what a method __next__ does."""
        while (line := self._back.popleft() if self._back else next(self._lines, "")) != "":
            self.taken.append(line)
            if line is None or (size := self._size + len(line)) > MAX_LINE:
                raise csv.Error("too long")
            self._size = size
            yield line


def records(path: Path, dialect: Dialect, width: int | None = None) -> Iterator[Record]:
    """Records of a csv or tsv file. After one that is none, or has more than `width` cells, the line after its first
    begins anew: a quotation mark that nobody closes costs its own line.
    """
    lines = lines_of(path, dialect.encoding)
    if dialect.quoting != "doubled":
        for number, line in enumerate(lines, start=1):
            cells = None if line is None else _split(line, dialect.separator)
            if cells is not None and dialect.quoting == "by_cell":
                cells = list(map(_unquoted, cells))
            yield Record(number, cells)
        return
    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE + 1))
    source = _Lines(lines)
    number = 1
    while True:
        reader = csv.reader(iter(source), delimiter=dialect.separator, strict=True)
        try:
            for cells in reader:
                if width is not None and len(cells) > width:
                    source.put_back()
                yield Record(number, cells or [""])
                number += len(source.taken)
                source.begin()
            return
        except csv.Error:  # no record, or one that is too long
            source.put_back()
            line = source.taken[0]
            # a carriage return in the middle of a line is a cell's like any character
            if line is None or '"' in line:
                yield Record(number, None)
            else:
                yield Record(number, _split(line, dialect.separator))
            number += 1
            source.begin()


def _split(line: str, separator: str) -> list[str]:
    return line[:-1].removesuffix("\r").split(separator)


_QUOTED = re.compile('"((?:[^"]|"")*)"')


def _unquoted(cell: str) -> str:
    """A cell that a writer of csv quoted for the quotation marks inside it; any other as it is."""
    quoted = _QUOTED.fullmatch(cell) if '""' in cell[1:-1] else None
    return quoted[1].replace('""', '"') if quoted else cell


@once_per_version(1024)
def dialect_of(path: Path, text: TextFormat, suffix: str) -> Dialect:
    """How a csv or tsv file is written: as `text` says where it speaks, else as its suffix and its header show.

    The separator is the header's. Quotes are doubled, but in a .tsv whose header is not quoted: there
    quotation marks are text, but for a whole cell in quotes with "" inside, as writers of csv make it.
    """
    encoding, line_end = layout_of(path, text.encoding)
    usual = "\t" if suffix == ".tsv" else ","
    first = next(lines_of(path, encoding), None) or ""
    separator = SEPARATORS[text.separator] if text.separator else _separator(first, usual, text)
    heading = first.rstrip("\r\n").split(separator)
    is_quoted = all(len(cell) > 1 and cell[0] == cell[-1] == '"' for cell in heading)
    if text.quoting is not None:
        return Dialect(encoding, line_end, separator, text.quoting)
    is_plain_tsv = suffix == ".tsv" and separator == "\t" and not is_quoted
    return Dialect(encoding, line_end, separator, "by_cell" if is_plain_tsv else "doubled")


def _separator(first: str, usual: str, text: TextFormat) -> str:
    """The separator of a header: the usual one of its suffix, where that separates anything, else the most frequent."""
    unquoted = re.sub('"[^"]*"', "", first)
    counts = {character: unquoted.count(character) for character in SEPARATORS.values()}
    if not text.has_header or counts[usual]:
        return usual
    best = max(counts, key=lambda character: counts[character])
    return best if counts[best] else usual
