"""The takedown feed: what a home took down, as salted hashes in JSON lines, so that others who hold copies can follow.

The first line is a header: format, salt, software, time of the newest entry, number of the lines after it, and the
sha256 of the header without it and these lines. Then one entry per line, sorted by kind and hash: kind, hash, added_at,
reason (null where not stated). The same list gives the same bytes. See docs/decisions/0074.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from curation_assets.core.version import __version__
from curation_assets.stores.atomic import check_new
from curation_assets.stores.denylist import REASONS, Entry, own_entries
from curation_assets.stores.documents import save_text

FORMAT = "curation_takedown_feed/2"
_FORMAT_1 = "curation_takedown_feed/1"  # of versions whose sha256 was that of the lines, and not of their salt
#: What means the same in every home. Names of creators and sources do not, and can be guessed from their hashes: their
#: samples go by their ids.
FEED_KINDS = ("domain", "sha256", "uid", "url")
MAX_BYTES = 256 * 2**20  # some 1.5 million entries
MAX_LINE = 1024  # bytes; ours have 200

_SALT, _SHA256 = re.compile(r"[0-9a-f]{32}"), re.compile(r"[0-9a-f]{64}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00")
_HEADER = ("as_of", "entries", "format", "salt", "sha256", "software")
_ENTRY = ("added_at", "hash", "kind", "reason")


def write_feed(home: Path, path: Path) -> int:
    """Write the feed of a home; returns the number of its entries. What came by other homes' feeds is not passed on,
    but for the samples that were found here. An earlier feed is replaced; raises ValueError where something else lies,
    and where there is no entry.
    """
    if not _is_feed(path):
        check_new(path)
    salt, listed = own_entries(home)
    entries = [entry for entry in listed if entry.kind in FEED_KINDS]
    if not entries:
        raise ValueError(
            "nothing to tell: the denylist of this home has no id, URL, domain or image of its own; "
            "`curate takedown add` first"
        )
    body = "".join(f"{_line({name: getattr(entry, name) for name in _ENTRY})}\n" for entry in entries)
    header = {
        "format": FORMAT,
        "software": f"curation_assets {__version__}",
        "salt": salt,
        "as_of": max((entry.added_at for entry in entries if entry.added_at), default=None),
        "entries": len(entries),
    }
    digest = _digest(header, body.encode())
    save_text(path, f"{_line(header | {'sha256': digest})}\n{body}")
    return len(entries)


def _is_feed(path: Path) -> bool:
    if not path.is_file() or path.is_symlink():
        return False
    with path.open("rb") as file:
        first = file.readline(MAX_LINE)
    return FORMAT.encode() in first or _FORMAT_1.encode() in first


def _line(content: Any) -> str:
    return json.dumps(content, sort_keys=True)


def _digest(header: Mapping[str, Any], body: bytes) -> str:
    """sha256 of a header without its own, and of the lines after it."""
    covered = {name: value for name, value in header.items() if name != "sha256"}
    return hashlib.sha256(f"{_line(covered)}\n".encode() + body).hexdigest()


def read_feed(data: bytes, place: str) -> tuple[str, list[Entry]]:
    """(salt, entries) of a feed; `place` names it in errors. Raises ValueError for anything else than a whole feed."""
    if len(data) > MAX_BYTES:
        raise _refused(place, f"at most {MAX_BYTES:,} bytes", f"{len(data):,}")
    first, _, body = data.partition(b"\n")
    header = _parsed(first, f"{place}, line 1", _HEADER)
    if header["format"] not in (FORMAT, _FORMAT_1):
        raise _refused(f"{place}, line 1", f"format {FORMAT!r}", repr(header["format"])[:80])
    salt, count = header["salt"], header["entries"]
    if not (isinstance(salt, str) and _SALT.fullmatch(salt)):
        raise _refused(f"{place}, line 1", "a salt of 32 hex digits", repr(salt)[:80])
    lines = body.split(b"\n")
    if lines.pop() or len(lines) != count or type(count) is not int:
        raise _refused(place, f"{str(count)[:20]} whole lines after the first", f"{len(lines):,}; it may be cut short")
    is_older = header["format"] == _FORMAT_1
    if header["sha256"] != (hashlib.sha256(body).hexdigest() if is_older else _digest(header, body)):
        raise _refused(place, "a salt and lines of the sha256 that the first line states", "others; fetch it again")
    if not lines:
        raise _refused(place, "at least one entry", "none; ask its origin for one")
    entries = [_entry(line, f"{place}, line {number}") for number, line in enumerate(lines, 2)]
    keys = [(entry.kind, entry.hash) for entry in entries]
    if keys != sorted(set(keys)):
        raise _refused(place, "entries in the order of kind and hash, each once", "another order, or one twice")
    return salt, entries


def _entry(line: bytes, place: str) -> Entry:
    entry = Entry(**_parsed(line, place, _ENTRY))
    expected: dict[str, tuple[bool, Sequence[str]]] = {
        "kind": (entry.kind in FEED_KINDS, FEED_KINDS),
        "hash": (_is(_SHA256, entry.hash), ["64 hex digits"]),
        "added_at": (
            entry.added_at is None or _is(_TIME, entry.added_at),
            ["UTC as 2026-01-31T23:59:59+00:00", "null"],
        ),
        "reason": (entry.reason is None or entry.reason in REASONS, [*REASONS, "null"]),
    }
    for name, (is_right, what) in expected.items():
        if not is_right:
            raise _refused(place, f"{name} to be {' or '.join(what)}", repr(getattr(entry, name))[:80])
    return entry


def _is(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _parsed(line: bytes, place: str, keys: Sequence[str]) -> dict[str, Any]:
    if len(line) > MAX_LINE:
        raise _refused(place, f"at most {MAX_LINE} bytes", f"{len(line):,}")
    try:
        content = json.loads(line.decode())  # of bytes json would read other encodings and a byte order mark
    except (ValueError, RecursionError) as error:
        raise _refused(place, f"a JSON object with {', '.join(keys)}", repr(line)[:80]) from error
    if not isinstance(content, dict) or sorted(content) != list(keys):
        raise _refused(place, f"a JSON object with {', '.join(keys)}", repr(line)[:80])
    return content


def _refused(place: str, expected: str, got: str) -> ValueError:
    return ValueError(f"{place} is no takedown feed: expected {expected}, got {got}; nothing was applied")
