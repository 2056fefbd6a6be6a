"""How a table of texts is written: kind, packing, encoding, line ends, separator, quotes; and its lines and records.

Nothing is concluded from the first rows alone but encoding and line ends: which quotes a file has is counted over all
of it, and a line that does not fit is a record with a reason, not a guess.
"""

import codecs
import csv
import functools
import gzip
import io
import re
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple, TypeVar

SUFFIXES = (".parquet", ".csv", ".tsv", ".jsonl")
Separator = Literal["comma", "tab", "semicolon", "bar"]
SEPARATORS: dict[Separator, str] = {"comma": ",", "tab": "\t", "semicolon": ";", "bar": "|"}
#: doubled: "" inside quotes is a quotation mark (RFC 4180); backslash: \\" is; none: quotation marks are text.
Quoting = Literal["doubled", "backslash", "none"]
QUOTINGS: tuple[Quoting, ...] = ("doubled", "backslash", "none")

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
_Result = TypeVar("_Result")


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
    quoting: Quoting

    def __str__(self) -> str:
        name = next(name for name, character in SEPARATORS.items() if character == self.separator)
        quotes = {"doubled": '"" in quotes', "backslash": r"\" in quotes", "none": "quotation marks are text"}
        return f"separator {name}, {quotes[self.quoting]}, {self.encoding.removesuffix('-sig')}"


def table_suffix(path: Path) -> str:
    """Kind of a table by its name: one of SUFFIXES, in either letter case, .ndjson as .jsonl, text with .gz behind.

    '' for what is no table.
    """
    name = path.name.lower()
    suffix = Path(name.removesuffix(".gz")).suffix
    suffix = ".jsonl" if suffix == ".ndjson" else suffix
    is_packed = name.endswith(".gz")
    return suffix if suffix in SUFFIXES and not (is_packed and suffix == ".parquet") else ""


def once_per_version(function: Callable[..., _Result]) -> Callable[..., _Result]:
    """Results of `function(path, …)`, kept while the file is what it was."""

    @functools.lru_cache(maxsize=1024)
    def kept(path: Path, stamp: tuple[int, ...], *args: object) -> _Result:
        return function(path, *args)

    @functools.wraps(function)
    def call(path: Path, *args: object) -> _Result:
        stat = path.stat()
        return kept(path, (stat.st_size, stat.st_mtime_ns, stat.st_ino), *args)

    return call


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


@once_per_version
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

# what stands for an escaped quotation mark and backslash while a record is taken apart: no text may hold these
_QUOTE, _BACKSLASH = "\ufdd0", "\ufdd1"


class Record(NamedTuple):
    """One row of a csv or tsv file; `cells` None where it is none."""

    line: int  # its first, from 1
    cells: list[str] | None
    lines: Sequence[str | None] = ()  # that it was read from, where quotes mean something

    def needs_quotes(self, separator: str) -> bool:
        """Whether its quotes hold a separator, a line break or quotation marks."""
        raw = "".join(filter(None, self.lines))
        has_mark = len(self.lines) > 1 or '""' in raw or _QUOTE in raw
        return '"' in raw and (has_mark or any(separator in cell for cell in self.cells or ()))


class _Lines:
    """Lines for `csv`, which may be put back; a record takes at most MAX_LINE characters."""

    def __init__(self, lines: Iterator[str | None]) -> None:
        self._lines, self._back = lines, deque[str | None]()
        self.begin()

    def begin(self) -> None:
        """The next line is the first of a record."""
        self.taken: list[str | None] = []
        self._size = 0

    def put_back(self, kept: int) -> None:
        """All lines that were taken but the first `kept`."""
        self._back.extendleft(reversed(self.taken[kept:]))
        del self.taken[kept:]

    def __iter__(self) -> Iterator[str]:
        """Lines from here on; a generator, which costs half of what a method __next__ does."""
        while (line := self._back.popleft() if self._back else next(self._lines, "")) != "":
            self.taken.append(line)
            if line is None or (size := self._size + len(line)) > MAX_LINE:
                raise csv.Error("too long")
            self._size = size
            yield line


def records(path: Path, dialect: Dialect, width: int | None = None, *, with_lines: bool = False) -> Iterator[Record]:
    """Records of a csv or tsv file. After one that is none, or has more than `width` cells, the line after its first
    begins anew: a quotation mark that nobody closes costs its own line. `with_lines`: each with the lines it was.
    """
    lines = lines_of(path, dialect.encoding)
    if dialect.quoting == "none":
        for number, line in enumerate(lines, start=1):
            yield Record(number, None if line is None else _split(line, dialect.separator))
        return
    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE + 1))
    source = _Lines(map(_escapes_marked, lines) if dialect.quoting == "backslash" else lines)
    number, as_record = 1, Record if dialect.quoting == "doubled" else _unmarked
    while True:
        reader = csv.reader(iter(source), delimiter=dialect.separator, strict=True)
        try:
            for cells in reader:
                if width is not None and len(cells) > width:
                    source.put_back(1)
                yield as_record(number, cells or [""], source.taken if with_lines else ())
                number += len(source.taken)
                source.begin()
            return
        except csv.Error:  # no record, or one that is too long
            source.put_back(1)
            line = source.taken[0]
            # a carriage return in the middle of a line is a cell's like any character
            if line is None or '"' in line:
                yield Record(number, None)
            else:
                yield as_record(number, _split(line, dialect.separator), [line])
            number += 1
            source.begin()


def _split(line: str, separator: str) -> list[str]:
    return line[:-1].removesuffix("\r").split(separator)


def _unmarked(number: int, cells: list[str], lines: Sequence[str | None]) -> Record:
    """A record with the marks of escaped characters taken back."""
    return Record(number, [cell.replace(_QUOTE, '"').replace(_BACKSLASH, "\\") for cell in cells], lines)


def _escapes_marked(line: str | None) -> str | None:
    return None if line is None else line.replace("\\\\", _BACKSLASH).replace('\\"', _QUOTE)


def dialect_of(path: Path, text: TextFormat, suffix: str) -> Dialect:
    """How a csv or tsv file is written: as `text` says where it speaks, else as the file shows.

    The separator is the header's. Quotes are those under which the fewest records are refused; in a tab-separated file
    they are text unless more records need them than are refused.
    """
    dialect: Dialect = _dialect(path, text, suffix)
    return dialect


@once_per_version
def _dialect(path: Path, text: TextFormat, suffix: str) -> Dialect:
    encoding, line_end = layout_of(path, text.encoding)
    usual = "\t" if suffix == ".tsv" else ","
    first = next(lines_of(path, encoding), None) or ""
    separator = SEPARATORS[text.separator] if text.separator else _separator(first, usual, text)
    if text.quoting is not None:
        return Dialect(encoding, line_end, separator, text.quoting)
    unproved: Quoting = "none" if suffix == ".tsv" and separator == "\t" else "doubled"
    opens, has_backslash = _marks_of(lines_of(path, encoding), separator)
    if not opens:  # no cell begins with a quotation mark
        return Dialect(encoding, line_end, separator, unproved)
    if separator != "\t" and not has_backslash:
        return Dialect(encoding, line_end, separator, "doubled")
    tried: dict[Quoting, tuple[int, int]] = {}
    for quoting in QUOTINGS[: 1 + has_backslash]:
        tried[quoting] = _tried(path, Dialect(encoding, line_end, separator, quoting), text.has_header)
    best = min(tried, key=lambda quoting: tried[quoting][1])
    needed, refused = tried[best]
    heading = first.rstrip("\r\n").split(separator)
    if separator == "\t" and not all(len(cell) > 1 and cell[0] == cell[-1] == '"' for cell in heading):
        best = "none" if needed < refused or (needed == refused and unproved == "none") else best
    return Dialect(encoding, line_end, separator, best)


def _separator(first: str, usual: str, text: TextFormat) -> str:
    """The separator of a header: the usual one of its suffix, where that separates anything, else the most frequent."""
    unquoted = re.sub('"[^"]*"', "", first)
    counts = {character: unquoted.count(character) for character in SEPARATORS.values()}
    if not text.has_header or counts[usual]:
        return usual
    best = max(counts, key=lambda character: counts[character])
    return best if counts[best] else usual


def _marks_of(lines: Iterator[str | None], separator: str) -> tuple[bool, bool]:
    """(whether a cell begins with a quotation mark, whether one stands behind a backslash)."""
    opens = has_backslash = False
    inside = f'{separator}"'
    for line in lines:
        if line is not None and '"' in line:
            opens = opens or line[0] == '"' or inside in line
            has_backslash = has_backslash or '\\"' in line
            if opens and has_backslash:
                break
    return opens, has_backslash


def _tried(path: Path, dialect: Dialect, has_header: bool) -> tuple[int, int]:
    """(records that need their quotes, records that are none or have too many cells)."""
    width = width_of(path, dialect, has_header)
    needed = refused = 0
    for record in records(path, dialect, width, with_lines=True):
        is_refused = record.cells is None or len(record.cells) > width
        refused += is_refused
        needed += not is_refused and record.needs_quotes(dialect.separator)
    return needed, refused


def width_of(path: Path, dialect: Dialect, has_header: bool) -> int:
    """Cells of a row: the header's, or without one those that most of the first hundred records have."""
    widths = (len(record.cells) for record in records(path, dialect) if record.cells is not None)
    counted = Counter(islice(widths, 1 if has_header else 100))
    return counted.most_common(1)[0][0] if counted else 0
