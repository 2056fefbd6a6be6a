"""C2PA manifests: what their assertions `cawg.training-mining` and `c2pa.training-mining` state.

c2pa-python, where it is installed (extra `c2pa`), reads all formats and compressed manifests; without it the boxes of
a JPEG, PNG, WebP or AVIF are followed here. Signatures decide nothing: a declaration that forbids counts whoever signed
it.
Sources: C2PA 2.x §11 (JUMBF boxes); CAWG Training and Data Mining Assertion 1.1; RFC 8949 (CBOR).
"""

import io
import json
import re
from collections.abc import Iterator
from typing import Any

from curation_assets.core.errors import install_extra
from curation_assets.stores.avif import boxes
from curation_assets.stores.image_formats import format_of
from curation_assets.stores.image_parts import image_parts

LABELS = ("cawg.training-mining", "c2pa.training-mining")
USES = ("ai_training", "ai_generative_training", "data_mining")  # of an entry's name; `ai_inference` is no training
MAX_DEPTH = 32  # of boxes and of values inside values
MAX_BYTES = 16 * 1024 * 1024  # of all manifests of a file
_MIME = {"JPEG": "jpeg", "PNG": "png", "WEBP": "webp", "GIF": "gif", "TIFF": "tiff", "AVIF": "avif", "HEIF": "heif"}
_STORE = re.compile(rb"jumb.{4}jumd", re.DOTALL)  # how every manifest store begins
#: Nothing is fetched for a manifest: neither a remote one, nor whether a certificate was revoked.
_OFFLINE = {"verify": {"remote_manifest_fetch": False, "ocsp_fetch": False, "verify_trust": False}}


def training_entries(data: bytes) -> list[tuple[str, str]]:
    """(name, use) of every entry about training of a file's manifests, such as ('cawg.ai_training', 'notAllowed').

    Raises ValueError, with a reason, for manifests that cannot be followed.
    """
    manifests = _manifests(data)
    if not _STORE.search(data if manifests is None else manifests):
        return []
    assertions = _by_library(data)
    if assertions is None:
        if manifests is None:
            raise ValueError(f"manifests of this format are read by c2pa-python: {install_extra('c2pa')}")
        assertions = list(_assertions(manifests))
    return [entry for assertion in assertions for entry in _entries(assertion)]


def _entries(assertion: Any) -> Iterator[tuple[str, str]]:
    entries = assertion.get("entries") if isinstance(assertion, dict) else None
    if not isinstance(entries, dict):
        raise ValueError("a training and data mining assertion without entries")
    for name, entry in entries.items():
        use = entry.get("use") if isinstance(entry, dict) else entry
        if isinstance(name, str) and isinstance(use, str) and name.rpartition(".")[2] in USES:
            yield name, use


def _by_library(data: bytes) -> list[Any] | None:
    """Assertions as c2pa-python reads them; None where it is not installed, or does not know the file's format."""
    known = format_of(data)
    if known is None or known.name not in _MIME:
        return None
    try:
        import c2pa
    except ImportError:
        return None
    mime, context = f"image/{_MIME[known.name]}", c2pa.Context(c2pa.Settings.from_dict(_OFFLINE))
    try:
        with context, c2pa.Reader(mime, io.BytesIO(data), context=context) as reader:
            store = json.loads(reader.json())
    except (c2pa.C2paError, ValueError) as error:
        raise ValueError(str(error)[:200]) from None
    return [
        one["data"]
        for manifest in store.get("manifests", {}).values()
        for one in manifest.get("assertions", [])
        if _label(one["label"]) in LABELS
    ]


# -- without the library ----------------------------------------------------------------------------------------------


def _manifests(data: bytes) -> bytes | None:
    """The JUMBF boxes of a file: of a JPEG joined from its APP11 segments (ISO 19566-5, §D.2); None where its format is
    not followed here.
    """
    parts = image_parts(data)
    if parts is None:
        return None
    joined: list[bytes] = []
    for name, part in parts:
        if name == "APP11" and part.startswith(b"JP") and len(part) >= 16:
            is_first = int.from_bytes(part[4:8], "big") == 1
            joined.append(part[8:] if is_first else part[16:])  # each repeats the length and type of the box
        elif name in ("caBX", "C2PA"):
            joined.append(part)
    return b"".join(joined)[:MAX_BYTES]


def _assertions(manifests: bytes) -> Iterator[Any]:
    for label, kind, content in _boxes(manifests, "", 0):
        if _label(label) not in LABELS:
            continue
        if kind == b"json":
            yield json.loads(content)
        elif kind == b"cbor":
            value, end = _cbor(content, 0, 0)
            if end != len(content):
                raise ValueError(f"CBOR of {end} bytes in a box of {len(content)}")
            yield value


def _boxes(data: bytes, label: str, depth: int) -> Iterator[tuple[str, bytes, bytes]]:
    """(label, type, content) of every box that holds no boxes, with the label of the superbox around it."""
    if depth > MAX_DEPTH:
        raise ValueError(f"boxes inside boxes, more than {MAX_DEPTH} deep")
    for kind, content in boxes(data):
        if kind == b"jumb":
            yield from _boxes(content, "", depth + 1)
        elif kind == b"jumd":  # a type of 16 bytes, toggles, the label
            label = content[17:].partition(b"\0")[0].decode("utf-8", "replace") if content[16:17] else ""
        else:
            yield label, kind, content


def _label(label: str) -> str:
    """Without what tells several assertions of one kind apart (`__2`) and the version (`.v2`)."""
    return label.partition("__")[0].partition(".v")[0]


def _cbor(data: bytes, position: int, depth: int) -> tuple[Any, int]:
    """(value, position after it). Tags are dropped. Raises ValueError for what is cut, nested too deep or reserved."""
    if depth > MAX_DEPTH:
        raise ValueError(f"CBOR inside CBOR, more than {MAX_DEPTH} deep")
    head = _bytes_at(data, position, 1)[0]
    major, size = head >> 5, head & 31
    position += 1
    if size == 31 and major in (2, 3, 4, 5):
        return _cbor_until_break(data, position, depth, major)
    if size > 27:
        raise ValueError(f"CBOR with the reserved byte {head}")
    width = 0 if size < 24 else 1 << (size - 24)
    number = int.from_bytes(_bytes_at(data, position, width), "big") if width else size
    position += width
    if major in (0, 1):
        return (number if major == 0 else -1 - number), position
    if major in (2, 3):
        content = _bytes_at(data, position, number)
        return (content if major == 2 else content.decode("utf-8")), position + number
    if major in (4, 5):
        items = []
        for _ in range(number * (major - 3)):
            value, position = _cbor(data, position, depth + 1)
            items.append(value)
        return (items if major == 4 else _as_map(items)), position
    if major == 6:
        return _cbor(data, position, depth + 1)
    return {20: False, 21: True}.get(number if width == 0 else -1), position  # null, undefined, fractions: None


def _cbor_until_break(data: bytes, position: int, depth: int, major: int) -> tuple[Any, int]:
    items: list[Any] = []
    while _bytes_at(data, position, 1) != b"\xff":
        value, position = _cbor(data, position, depth + 1)
        items.append(value)
    if major in (4, 5):
        return (items if major == 4 else _as_map(items)), position + 1
    empty: Any = b"" if major == 2 else ""
    if not all(isinstance(item, type(empty)) for item in items):
        raise ValueError("a CBOR string of pieces that are none")
    return empty.join(items), position + 1


def _as_map(items: list[Any]) -> dict[Any, Any]:
    if len(items) % 2:
        raise ValueError("a CBOR map with a key and no value")
    keys = [key for key in items[::2] if isinstance(key, str)]
    if 2 * len(keys) != len(items):
        raise ValueError("a CBOR map with keys that are no text")
    return dict(zip(keys, items[1::2], strict=True))


def _bytes_at(data: bytes, position: int, count: int) -> bytes:
    if position + count > len(data):
        raise ValueError(f"CBOR that is cut after {len(data)} bytes")
    return data[position : position + count]
