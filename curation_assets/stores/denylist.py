"""The denylist: what must never come (back) in, known by salted hashes only, so the list itself reveals nothing."""

import contextlib
import hashlib
import re
import secrets
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args
from urllib.parse import urlsplit, urlunsplit

import polars as pl

from curation_assets.core.json_files import read_json
from curation_assets.numeric.identity import sample_id_from
from curation_assets.stores.atomic import PRIVATE
from curation_assets.stores.documents import save_document
from curation_assets.stores.file_hash import once_per_version
from curation_assets.stores.manifest import utc_now
from curation_assets.stores.url_safety import ascii_url
from curation_assets.stores.web_addresses import canonical_host, canonical_name, canonical_url, host_of, is_address

_ADVICE = "nothing is let in or taken out by half a list: restore the file from a backup"
FOLDER = "takedown"  # under home; certificates lie there too
TAKEDOWN = "takedown"  # the reason of a dropped row
Kind = Literal["url", "uid", "sha256", "domain", "creator", "source"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Reason = Literal["opt_out", "copyright", "privacy", "illegal", "other"]
REASONS: tuple[Reason, ...] = get_args(Reason)
#: Columns of registered rows and samples that the list is compared with.
COLUMNS = ("sample_id", "url", "source_url", "creator", "source", "image_sha256", "original_sha256")

_SHA256 = re.compile(r"[0-9a-f]{64}")
_DOMAIN = re.compile(r"(?=.{1,253}$)([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*")


def normalised(kind: Kind, value: str) -> str:
    """The form that is hashed: of addresses, hosts and names the one form (stores/web_addresses.py).

    Raises ValueError for a malformed value.
    """
    if kind == "url":
        return canonical_url(value)
    if kind in ("creator", "source"):
        if not (name := canonical_name(value)):
            raise ValueError(f"expected the name of a {kind}, got {value!r}")
        return name
    text = canonical_host(value) if kind == "domain" else value.strip().lower()
    if kind == "uid":
        sample_id = sample_id_from(text)
        if sample_id is None:
            raise ValueError(f"expected a sample_id of 32 hex digits, got {value!r}")
        return sample_id
    if kind == "sha256" and not _SHA256.fullmatch(text):
        raise ValueError(f"expected the sha256 of an image file, 64 hex digits, got {value!r}")
    if kind == "domain" and not (_DOMAIN.fullmatch(text) or is_address(text)):
        raise ValueError(f"expected a domain such as example.org (it covers its subdomains), got {value!r}")
    return text


def _older_forms(kind: Kind, value: str) -> list[str]:
    """Forms of a value that earlier versions hashed, and lists may hold. Of a domain they had the same."""
    if kind in ("creator", "source"):
        return [" ".join(unicodedata.normalize("NFKC", value).casefold().split())]
    forms = []
    for given in (ascii_url, str.strip) if kind == "url" else ():
        with contextlib.suppress(ValueError):
            parts = urlsplit(given(value))
            forms.append(urlunsplit((parts.scheme.lower(), parts.netloc.lower(), parts.path, parts.query, "")))
    return forms


def _forms(kind: Kind, value: str) -> list[str]:
    """What a list may have hashed of a value: its form first, then older ones. None of what is no URL (or uid, …)."""
    with contextlib.suppress(ValueError):
        form = normalised(kind, value)
        if form == value:  # written so, it was hashed so by every version
            return [form]
        return list(dict.fromkeys([form, *_older_forms(kind, value)]))
    return _older_forms(kind, value)


@dataclass(frozen=True)
class Entry:
    """What is kept of a value on the list. Of entries that came by another home's feed the salt is that home's."""

    kind: str
    hash: str  # sha256 of salt, kind and value, 64 hex digits
    added_at: str | None = None  # UTC, ISO 8601
    reason: str | None = None  # one of REASONS; None: not stated
    is_found: bool | None = None  # whether it has named a row that a pool held; None: of an earlier version, or a feed


@dataclass(frozen=True)
class Denylist:
    """Salted sha256 per kind. An empty list denies nothing and costs nothing."""

    salts: tuple[str, ...]  # of this home, then of those whose feeds were applied
    hashes: Mapping[str, Mapping[str, str | None]]  # kind → hash → reason
    implied_source: str | None = None  # of rows that name none

    @classmethod
    def load(cls, home: Path, implied_source: str | None = None) -> "Denylist":
        """The list of a home folder, read again only when its file changed; empty where there is none.
        `implied_source`: of the pool whose rows are asked about."""
        try:
            return replace(_loaded(_path(home)), implied_source=implied_source)
        except FileNotFoundError:
            return cls((), {})

    @classmethod
    def _of(cls, content: dict[str, Any]) -> "Denylist":
        hashes: dict[str, dict[str, str | None]] = {}
        for entry in content["entries"]:
            hashes.setdefault(entry["kind"], {})[entry["hash"]] = entry.get("reason")
        salts = dict.fromkeys(
            [str(content["salt"]), *(entry["salt"] for entry in content["entries"] if "salt" in entry)]
        )
        return cls(tuple(salts), hashes)

    def __bool__(self) -> bool:
        return any(self.hashes.values())

    @property
    def version(self) -> str:
        """16 hex digits that change with the list; empty for an empty one."""
        entries = sorted(f"{kind}:{value}" for kind, values in self.hashes.items() for value in values)
        entries += [self.implied_source] if self.implied_source and self.hashes.get("source") else []
        return hashlib.sha256("\n".join(entries).encode()).hexdigest()[:16] if entries else ""

    def has(self, kind: Kind, value: str | None) -> bool:
        """Whether a value is on the list. What is no URL (or uid, …) is on no list."""
        return bool(self._entries(kind, value))

    def _entries(self, kind: Kind, value: str | None) -> list[str]:
        """The hashes by which the list knows a value."""
        known = self.hashes.get(kind)
        forms = _forms(kind, value) if known and value is not None else []
        return [one for form in forms for salt in self.salts if known and (one := _hash(salt, kind, form)) in known]

    def entry_of(self, kind: Kind, value: str) -> str | None:
        """The hash of the entry by which the list knows a value; None where it does not."""
        return next(iter(self._entries(kind, value)), None)

    def _of_host(self, host: str | None) -> list[str]:
        """The hashes by which the list knows a host, or a domain above it."""
        if host is None or is_address(host):
            return self._entries("domain", host)
        labels = host.split(".")
        return [one for start in range(len(labels)) for one in self._entries("domain", ".".join(labels[start:]))]

    def denied(self, rows: pl.DataFrame) -> pl.Series:
        """(N,) bool: rows of which the list has the sample_id, url, creator, source, the domain of the url or of the
        page (source_url), or an image's hash (any column that ends in sha256).
        """
        return self.reasons(rows).is_not_null().alias("is_denied")

    def reasons(self, rows: pl.DataFrame) -> pl.Series:
        """(N,) text: null for rows that are not denied; '' where no reason was stated."""
        found = pl.Series("reason", [None] * rows.height, dtype=pl.String)
        for kind, values, entries in self._matches(rows):
            denied = {value: self.hashes[kind][of_value[0]] or "" for value, of_value in entries.items()}
            mapped = values.replace_strict(denied, default=None, return_dtype=pl.String)
            found = found.zip_with(found.is_not_null(), mapped)
        return found

    def entries_of(self, rows: pl.DataFrame) -> set[tuple[str, str]]:
        """(kind, hash) of every entry by which the list knows one of the rows; `rows` as for `denied`."""
        return {
            (kind, one) for kind, _, entries in self._matches(rows) for of_value in entries.values() for one in of_value
        }

    def _matches(self, rows: pl.DataFrame) -> Iterator[tuple[Kind, pl.Series, dict[str, list[str]]]]:
        """(kind, a column that is compared with entries of that kind, its values that the list knows → their hashes)"""
        columns: list[tuple[Kind, str]] = [
            ("uid", "sample_id"),
            ("url", "url"),
            ("domain", "url"),
            ("domain", "source_url"),
        ]
        columns += [("creator", "creator"), ("source", "source")]
        columns += [("sha256", name) for name in rows.columns if name.endswith("sha256")]
        if self.implied_source is not None and self.hashes.get("source"):
            source = rows["source"] if "source" in rows.columns else pl.Series([None] * rows.height, dtype=pl.String)
            rows = rows.with_columns(source=source.fill_null(self.implied_source))
        look_up: dict[Kind, Callable[[str | None], list[str]]] = {kind: partial(self._entries, kind) for kind in KINDS}
        of_host = cache(self._of_host)  # many addresses have one host
        look_up["domain"] = lambda url: [] if url is None else of_host(host_of(url))
        for kind, name in columns:
            known = self.hashes.get(kind)
            if known and name in rows.columns:
                entries = {value: of_value for value in rows[name].unique() if (of_value := look_up[kind](value))}
                if entries:
                    yield kind, rows[name], entries


@once_per_version(4)
def _loaded(path: Path) -> Denylist:
    return read_json(path, Denylist._of, advice=_ADVICE)


def _path(home: Path) -> Path:
    return home / FOLDER / "denylist.json"


def _hash(salt: str, kind: str, value: str) -> str:
    return hashlib.sha256(f"{salt}\0{kind}\0{value}".encode("utf-8", "surrogatepass")).hexdigest()


def own_entries(home: Path) -> tuple[str, list[Entry]]:
    """(salt, entries of this home without those of feeds), sorted by kind and hash."""
    content = _content(home)
    own = [Entry(**entry) for entry in content["entries"] if "salt" not in entry]
    return str(content["salt"]), sorted(own, key=lambda entry: (entry.kind, entry.hash))


def add_to_denylist(
    home: Path,
    values: Iterable[tuple[Kind, str]],
    reasons: Mapping[tuple[Kind, str], str | None] = MappingProxyType({}),
    *,
    is_found: bool = False,
) -> int:
    """Add (kind, value) pairs; returns how many are new. The values themselves are not kept.

    `reasons`: of pairs where one is stated; `is_found`: whether they name rows that a pool held. Raises ValueError for
    a malformed value, and then adds nothing.
    """
    forms = {(kind, normalised(kind, value)): reasons.get((kind, value)) or None for kind, value in values}
    content = _content(home)
    hashes = sorted((kind, _hash(str(content["salt"]), kind, form), why) for (kind, form), why in forms.items())
    return _add(home, content, [Entry(kind, digest, utc_now(), why, is_found) for kind, digest, why in hashes])


def note_found(home: Path, entries: Iterable[Sequence[str]]) -> None:
    """Note that entries (kind, hash) have named rows that a pool held."""
    content, found = _content(home), set(map(tuple, entries))
    new = [one for one in content["entries"] if one.get("is_found") is False and (one["kind"], one["hash"]) in found]
    for entry in new:
        entry["is_found"] = True
    if new:
        _write(home, content)


def entries_without_rows(home: Path) -> list[Entry]:
    """Entries of this home's own that have named no row so far, sorted by kind and hash."""
    return [entry for entry in own_entries(home)[1] if entry.is_found is False]


def add_entries(home: Path, salt: str, entries: Iterable[Entry]) -> int:
    """Add what another home's feed lists, hashed with that home's salt; returns how many are new."""
    content = _content(home)
    return _add(home, content, entries, {} if salt == content["salt"] else {"salt": salt})


def _content(home: Path) -> dict[str, Any]:
    """What the file holds, or a new salt. A damaged file is refused, and stays as it is."""
    if not _path(home).is_file():
        return {"salt": secrets.token_hex(16), "entries": []}
    Denylist.load(home)
    return read_json(_path(home), dict, advice=_ADVICE)


def _write(home: Path, content: dict[str, Any]) -> None:
    save_document(_path(home), content, mode=PRIVATE)  # the salt protects the hashes


def _add(
    home: Path, content: dict[str, Any], entries: Iterable[Entry], origin: Mapping[str, str] = MappingProxyType({})
) -> int:
    salt = origin.get("salt", content["salt"])
    known = {(entry.get("salt", content["salt"]), entry["kind"], entry["hash"]) for entry in content["entries"]}
    new = [entry for entry in entries if (salt, entry.kind, entry.hash) not in known]
    content["entries"] += [
        {name: value for name, value in vars(entry).items() if value is not None} | dict(origin) for entry in new
    ]
    if new:
        _write(home, content)
    elif _path(home).is_file():
        _path(home).chmod(PRIVATE)  # a copied home may have lost it
    return len(new)
