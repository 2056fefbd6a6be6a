"""The denylist: what must never come (back) in, known by salted hashes only, so the list itself reveals nothing."""

import hashlib
import json
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import urlsplit, urlunsplit

import polars as pl

from curation_assets.core.json_files import read_json
from curation_assets.numeric.identity import sample_id_from
from curation_assets.stores.atomic import PRIVATE, write_text_atomically
from curation_assets.stores.manifest import utc_now
from curation_assets.stores.url_safety import ascii_host, ascii_url

_ADVICE = "nothing is let in or taken out by half a list: restore the file from a backup"
FOLDER = "takedown"  # under home; certificates lie there too
TAKEDOWN = "takedown"  # the reason of a dropped row
Kind = Literal["url", "uid", "sha256", "domain"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_SHA256 = re.compile(r"[0-9a-f]{64}")
_DOMAIN = re.compile(r"(?=.{1,253}$)([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*")


def normalised(kind: Kind, value: str) -> str:
    """The form that is hashed: URLs as browsers send them, scheme and host in lower case; domains in ASCII.

    Raises ValueError for a malformed value.
    """
    if kind == "url":
        return _plain_url(_sent(value))
    text = value.strip().lower()
    if kind == "domain" and not text.isascii():
        text = ascii_host(text)
    if kind == "uid":
        sample_id = sample_id_from(text)
        if sample_id is None:
            raise ValueError(f"expected a sample_id of 32 hex digits, got {value!r}")
        return sample_id
    if kind == "sha256" and not _SHA256.fullmatch(text):
        raise ValueError(f"expected the sha256 of an image file, 64 hex digits, got {value!r}")
    if kind == "domain" and not _DOMAIN.fullmatch(text):
        raise ValueError(f"expected a domain such as example.org (it covers its subdomains), got {value!r}")
    return text


def _sent(url: str) -> str:
    """A URL as browsers send it, or as it is where none would."""
    try:
        return ascii_url(url)
    except ValueError:
        return url.strip()


def _plain_url(url: str) -> str:
    """Without fragment, scheme and host in lower case: what was hashed before blanks and umlauts were encoded."""
    parts = urlsplit(url)
    if not parts.scheme or not parts.netloc:
        raise ValueError(f"expected a URL such as https://host/path, got {url!r}")
    return urlunsplit((parts.scheme.lower(), parts.netloc.lower(), parts.path, parts.query, ""))


@dataclass(frozen=True)
class Denylist:
    """Salted sha256 per kind. An empty list denies nothing and costs nothing."""

    salt: str
    hashes: dict[str, frozenset[str]]  # kind → hashes

    @classmethod
    def load(cls, home: Path) -> "Denylist":
        """The list of a home folder; empty where there is none."""
        path = home / FOLDER / "denylist.json"
        if not path.is_file():
            return cls("", {})
        return read_json(path, cls._of, advice=_ADVICE)

    @classmethod
    def _of(cls, content: dict[str, Any]) -> "Denylist":
        hashes: dict[str, set[str]] = {}
        for entry in content["entries"]:
            hashes.setdefault(entry["kind"], set()).add(entry["hash"])
        return cls(str(content["salt"]), {kind: frozenset(values) for kind, values in hashes.items()})

    def __bool__(self) -> bool:
        return any(self.hashes.values())

    @property
    def version(self) -> str:
        """16 hex digits that change with the list; empty for an empty one."""
        entries = sorted(f"{kind}:{value}" for kind, values in self.hashes.items() for value in values)
        return hashlib.sha256("\n".join(entries).encode()).hexdigest()[:16] if entries else ""

    def _hash(self, kind: str, value: str) -> str:
        return hashlib.sha256(f"{self.salt}\0{kind}\0{value}".encode("utf-8", "surrogatepass")).hexdigest()

    def has(self, kind: Kind, value: str | None) -> bool:
        """Whether a value is on the list. What is no URL (or uid, …) is on no list."""
        known = self.hashes.get(kind)
        if not known or value is None:
            return False
        try:
            forms = [normalised(kind, value), *([_plain_url(value.strip())] if kind == "url" else [])]
        except ValueError:
            return False
        return any(self._hash(kind, form) in known for form in forms)

    def has_domain_of(self, url: str | None) -> bool:
        """Whether the host of a URL, or a domain above it, is on the list."""
        if not self.hashes.get("domain") or url is None:
            return False
        try:
            host = urlsplit(_sent(url)).hostname or ""
        except ValueError:
            return False
        labels = host.split(".")
        return any(self.has("domain", ".".join(labels[start:])) for start in range(len(labels)))

    def denied(self, rows: pl.DataFrame) -> pl.Series:
        """(N,) bool: rows whose sample_id, url, domain or image (any column that ends in sha256) is on the list."""
        is_denied = [False] * rows.height
        if self:
            hash_columns = [name for name in rows.columns if name.endswith("sha256")]
            columns: list[tuple[Kind, str]] = [("uid", "sample_id"), ("url", "url")]
            columns += [("sha256", name) for name in hash_columns]
            for kind, name in columns:
                if self.hashes.get(kind) and name in rows.columns:
                    is_denied = [was or self.has(kind, value) for was, value in zip(is_denied, rows[name], strict=True)]
            if self.hashes.get("domain") and "url" in rows.columns:
                is_denied = [was or self.has_domain_of(url) for was, url in zip(is_denied, rows["url"], strict=True)]
        return pl.Series("is_denied", is_denied, dtype=pl.Boolean)


def add_to_denylist(home: Path, values: Iterable[tuple[Kind, str]]) -> int:
    """Add (kind, value) pairs; returns how many are new. The values themselves are not kept.

    Raises ValueError for a malformed value, and then adds nothing.
    """
    path = home / FOLDER / "denylist.json"
    pairs: Sequence[tuple[Kind, str]] = [(kind, normalised(kind, value)) for kind, value in values]
    content: dict[str, Any] = {"salt": secrets.token_hex(16), "entries": []}
    if path.is_file():
        Denylist.load(home)  # a damaged one is refused, and stays as it is
        content = read_json(path, dict, advice=_ADVICE)
    listed = Denylist(str(content["salt"]), {})
    known = {(entry["kind"], entry["hash"]) for entry in content["entries"]}
    new = {(kind, listed._hash(kind, value)) for kind, value in pairs} - known
    content["entries"] += [{"kind": kind, "hash": digest, "added_at": utc_now()} for kind, digest in sorted(new)]
    if new:
        write_text_atomically(path, json.dumps(content, indent=1), mode=PRIVATE)  # the salt protects the hashes
    elif path.is_file():
        path.chmod(PRIVATE)  # a copied home may have lost it
    return len(new)
