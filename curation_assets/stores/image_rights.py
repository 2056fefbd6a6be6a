"""What an image file declares inside: PLUS "Data Mining" in its XMP, and C2PA's training and data mining assertion.

Read from untrusted bytes, without decoding a pixel. What cannot be read becomes a signal `unreadable: …` that forbids
nothing, so that it is counted.
"""

import re
import zlib
from collections.abc import Iterator
from typing import Any
from xml.parsers import expat

from curation_assets.stores.c2pa_assertions import training_entries
from curation_assets.stores.image_parts import image_parts
from curation_assets.stores.rights_signals import Signal

MIB = 1024 * 1024
MAX_XMP = 4 * MIB  # of one packet; an editing history takes some 100 KB
MAX_PACKETS = 16
KIND, XMP, C2PA = "image", "XMP", "C2PA"
_PLUS = "http://ns.useplus.org/ldf/xmp/1.0/"  # PLUS LDF, namespace of the property
_DATA_MINING = f"{_PLUS} DataMining"
_RESOURCE = "http://www.w3.org/1999/02/22-rdf-syntax-ns# resource"
_NO = "DMI-PROHIBITED"  # PLUS LDF vocabulary: begins all values that forbid; others are DMI-ALLOWED, DMI-UNSPECIFIED
_JPEG_XMP = b"http://ns.adobe.com/xap/1.0/\0"  # XMP part 3, §1.1.3
_JPEG_MORE_XMP = b"http://ns.adobe.com/xmp/extension/\0"  # §1.1.3.1: 32 digits of its MD5, its length, an offset
_PNG_XMP = b"XML:com.adobe.xmp\0"
_PACKET = re.compile(rb"<([\w.-]{1,20}:)?xmpmeta[\s>]")


class Unreadable(ValueError):  # noqa: N818 - names what the declaration is
    """Why a declaration inside an image cannot be read."""


def image_signals(data: bytes) -> list[Signal]:
    """What the bytes of an image declare about training; kind `image`, in the order of the file."""
    return [*_xmp_signals(data), *_c2pa_signals(data)]


def _c2pa_signals(data: bytes) -> list[Signal]:
    try:
        entries = training_entries(data)
    except (ValueError, RecursionError) as error:
        return [Signal(KIND, f"unreadable: {error}", C2PA, is_no=False)]
    return [Signal(KIND, f"{name}={use}", C2PA, is_no=use in ("notAllowed", "constrained")) for name, use in entries]


# -- XMP --------------------------------------------------------------------------------------------------------------


def _xmp_signals(data: bytes) -> list[Signal]:
    signals, values = [], list[str]()
    try:
        for packet in _packets(data):
            if _PLUS.encode() in packet:  # few files have it, and parsing is what costs
                values += _data_mining(packet)
    except ValueError as error:
        signals = [Signal(KIND, f"unreadable: {error}", XMP, is_no=False)]
    return [
        *(Signal(KIND, value, XMP, is_no=value.rpartition("/")[2].upper().startswith(_NO)) for value in values),
        *signals,
    ]


def _data_mining(packet: bytes) -> list[str]:
    """Values of plus:DataMining, written as an attribute, as text or as a resource. Raises Unreadable."""
    if len(packet) > MAX_XMP:
        raise Unreadable(f"XMP of {len(packet)} bytes, at most {MAX_XMP} are parsed")
    values: list[str] = []
    texts: list[str] | None = None

    def begin(name: str, attributes: dict[str, str]) -> None:
        nonlocal texts
        if name == _DATA_MINING:
            texts = [attributes.get(_RESOURCE, "")]
        elif _DATA_MINING in attributes:
            values.append(attributes[_DATA_MINING].strip())

    def end(name: str) -> None:
        nonlocal texts
        if name == _DATA_MINING and texts is not None:
            values.append("".join(texts).strip())
            texts = None

    def refuse(*arguments: Any) -> None:
        raise Unreadable("XMP with a document type, which could declare entities")

    parser = expat.ParserCreate(namespace_separator=" ")
    parser.StartElementHandler, parser.EndElementHandler = begin, end
    parser.CharacterDataHandler = lambda text: None if texts is None else texts.append(text)
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(packet.rstrip(b"\0"), True)
    except expat.ExpatError as error:
        raise Unreadable(f"XMP that is no XML: {error}") from None
    return values


def _packets(data: bytes) -> Iterator[bytes]:
    """XMP of a file: of JPEG, PNG, WebP and AVIF from its parts, of others where a packet begins in the bytes."""
    parts = image_parts(data)
    if parts is None:
        yield from _packets_in(data)
        return
    more: dict[bytes, dict[int, bytes]] = {}  # MD5 and length of an extension → its pieces by offset
    for name, part in parts:
        if name == "APP1" and part.startswith(_JPEG_XMP):
            yield part.removeprefix(_JPEG_XMP)
        elif name == "APP1" and part.startswith(_JPEG_MORE_XMP):
            start = len(_JPEG_MORE_XMP)
            offset = int.from_bytes(part[start + 36 : start + 40], "big")
            more.setdefault(part[start : start + 36], {})[offset] = part[start + 40 :]
        elif name == "iTXt" and part.startswith(_PNG_XMP):
            yield _png_text(part.removeprefix(_PNG_XMP))
        elif name == "XMP ":
            yield part
    for announced, pieces in more.items():
        yield _joined(int.from_bytes(announced[32:], "big"), pieces)


def _joined(length: int, pieces: dict[int, bytes]) -> bytes:
    whole = b"".join(pieces[offset] for offset in sorted(pieces))
    starts = sorted(pieces)
    ends = [start + len(pieces[start]) for start in starts]
    if len(whole) != length or starts != [0, *ends[:-1]]:
        raise Unreadable(f"extended XMP of {length} bytes in pieces of {len(whole)}")
    return whole


def _png_text(part: bytes) -> bytes:
    """Text of an iTXt chunk after its keyword: whether it is compressed, how, and language and keyword to skip."""
    fields = part[2:].split(b"\0", 2)
    if len(fields) < 3:
        raise Unreadable("an iTXt chunk of XMP that ends before its text")
    if part[0] == 0:
        return fields[2]
    unpacked = zlib.decompressobj()
    try:
        text = unpacked.decompress(fields[2], MAX_XMP + 1)
    except zlib.error as error:
        raise Unreadable(f"XMP that cannot be unpacked: {error}") from None
    if len(text) > MAX_XMP:
        raise Unreadable(f"XMP that unpacks to more than {MAX_XMP} bytes")
    return text


def _packets_in(data: bytes) -> Iterator[bytes]:
    position = 0
    for _ in range(MAX_PACKETS):
        begin = _PACKET.search(data, position)
        if begin is None:
            return
        closing = b"</" + (begin[1] or b"") + b"xmpmeta>"
        end = data.find(closing, begin.end())
        if end < 0:
            raise Unreadable("XMP that begins and does not end")
        position = end + len(closing)
        yield data[begin.start() : position]
