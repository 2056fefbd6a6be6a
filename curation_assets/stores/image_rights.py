"""What an image file declares inside: PLUS "Data Mining" in its XMP, and C2PA's training and data mining assertion.

Read from untrusted bytes, without decoding a pixel. What cannot be read becomes a signal `unreadable: …` that forbids
nothing, so that it is counted.
"""

import re
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from xml.parsers import expat

from curation_assets.stores.c2pa_assertions import training_entries
from curation_assets.stores.image_parts import image_parts
from curation_assets.stores.rights_signals import Signal

MIB = 1024 * 1024
MAX_XMP = 4 * MIB  # of one packet; an editing history takes some 100 KB
MAX_PACKED = 3 * MAX_XMP  # of what a chunk unpacks to, which may be written in hex
MAX_PACKETS = 16
KIND, XMP, C2PA = "image", "XMP", "C2PA"
_PLUS = "http://ns.useplus.org/ldf/xmp/1.0/"  # PLUS LDF, namespace of the property
_DATA_MINING = f"{_PLUS} DataMining"
_RESOURCE = "http://www.w3.org/1999/02/22-rdf-syntax-ns# resource"
_NO = "DMI-PROHIBITED"  # PLUS LDF vocabulary: begins all values that forbid; others are DMI-ALLOWED, DMI-UNSPECIFIED
_JPEG_XMP = b"http://ns.adobe.com/xap/1.0/\0"  # XMP part 3, §1.1.3
_JPEG_MORE_XMP = b"http://ns.adobe.com/xmp/extension/\0"  # §1.1.3.1: 32 digits of its MD5, its length, an offset
_PNG_TEXTS = ("tEXt", "zTXt", "iTXt")
_PNG_XMP = b"XML:com.adobe.xmp"
_PNG_PROFILES = (b"Raw profile type xmp", b"Raw profile type APP1")  # of ImageMagick: name, length, bytes in hex
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
    signals, values = list[Signal](), list[str]()
    try:
        for read in _packets(data):
            try:
                packet = read()
                if _PLUS.encode() in packet:  # few files have it, and parsing is what costs
                    values += _data_mining(packet)
            except Unreadable as error:  # another packet may forbid
                signals.append(Signal(KIND, f"unreadable: {error}", XMP, is_no=False))
    except ValueError as error:
        signals.append(Signal(KIND, f"unreadable: {error}", XMP, is_no=False))
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


def _packets(data: bytes) -> Iterator[Callable[[], bytes]]:
    """What reads each XMP packet of a file, or raises Unreadable: of JPEG, PNG, WebP and AVIF from its parts, of others
    where a packet begins in the bytes."""
    parts = image_parts(data)
    if parts is None:
        yield from (partial(bytes, packet) for packet in _packets_in(data))
        return
    more: dict[bytes, dict[int, bytes]] = {}  # MD5 and length of an extension → its pieces by offset
    for name, part in parts:
        if name == "APP1" and part.startswith(_JPEG_XMP):
            yield partial(part.removeprefix, _JPEG_XMP)
        elif name == "APP1" and part.startswith(_JPEG_MORE_XMP):
            start = len(_JPEG_MORE_XMP)
            offset = int.from_bytes(part[start + 36 : start + 40], "big")
            more.setdefault(part[start : start + 36], {})[offset] = part[start + 40 :]
        elif name in _PNG_TEXTS and (keyword := part.partition(b"\0")[0]) in (_PNG_XMP, *_PNG_PROFILES):
            yield partial(_png_packet, name, keyword, part[len(keyword) + 1 :])
        elif name == "XMP ":
            yield partial(bytes, part)
    for announced, pieces in more.items():
        yield partial(_joined, int.from_bytes(announced[32:], "big"), pieces)


def _joined(length: int, pieces: dict[int, bytes]) -> bytes:
    whole = b"".join(pieces[offset] for offset in sorted(pieces))
    starts = sorted(pieces)
    ends = [start + len(pieces[start]) for start in starts]
    if len(whole) != length or starts != [0, *ends[:-1]]:
        raise Unreadable(f"extended XMP of {length} bytes in pieces of {len(whole)}")
    return whole


def _png_packet(chunk: str, keyword: bytes, part: bytes) -> bytes:
    text = _png_text(chunk, part)
    return text if keyword == _PNG_XMP else _profile(text)


def _png_text(chunk: str, part: bytes) -> bytes:
    """Text of a chunk after its keyword. In an iTXt follow whether it is compressed, how, and language and keyword to
    skip; in a zTXt how.
    """
    is_packed = chunk == "zTXt" or (chunk == "iTXt" and part[:1] != b"\0")
    fields = part[2:].split(b"\0", 2) if chunk == "iTXt" else [b"", b"", part[chunk == "zTXt" :]]
    if len(fields) < 3:
        raise Unreadable("an iTXt chunk of XMP that ends before its text")
    if not is_packed:
        return fields[2]
    unpacked = zlib.decompressobj()
    try:
        text = unpacked.decompress(fields[2], MAX_PACKED + 1)
    except zlib.error as error:
        raise Unreadable(f"XMP that cannot be unpacked: {error}") from None
    if len(text) > MAX_PACKED:
        raise Unreadable(f"XMP that unpacks to more than {MAX_PACKED} bytes")
    return text


def _profile(text: bytes) -> bytes:
    name, _, rest = text.lstrip(b"\n").partition(b"\n")
    length, _, digits = rest.strip().partition(b"\n")
    try:
        content = bytes.fromhex(digits.decode("ascii"))
    except ValueError:
        content = b""
    if not content or length != b"%d" % len(content):
        raise Unreadable(f"a raw profile {name[:20]!r} of {length[:20]!r} bytes that holds {len(content)}")
    return content.removeprefix(_JPEG_XMP)


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
