"""Boxes and items of an AVIF, and how many pixels its AV1 frames may have, known before a decoder allocates them.

The size in front is not what is decoded: an item that is said to have 64 x 64 pixels may hold frames of
16,384 x 16,384, and thousands of them. Sources: ISO/IEC 14496-12 (boxes, items), AV1 §5.3 to 5.5 (units, headers of
sequences).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

MOST_PARTS = 100_000  # boxes in a box, parts of items, AV1 units: a picture has four, a grid as many per cell
_SEQUENCE, _FRAMES = 1, (3, 6)  # types of AV1 units; 3 is the header of a frame without its tiles
_OF_ITEMS = (b"iinf", b"iloc", b"iprp", b"idat")


class BoxCutError(ValueError):
    """A box or an item that reaches beyond the bytes that are there."""


def boxes(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """(type, content) of each box. Raises ValueError where there are more than MOST_PARTS, BoxCutError."""
    position = 0
    for _ in range(MOST_PARTS):
        if position == len(data):
            return
        length, kind, start = int.from_bytes(data[position : position + 4], "big"), data[position + 4 : position + 8], 8
        if length == 1:  # the length follows, in 8 bytes
            length, start = int.from_bytes(data[position + 8 : position + 16], "big"), 16
        length = length or len(data) - position  # 0: to the end
        if length < start or position + length > len(data):
            raise BoxCutError(f"a box of {length} bytes where {len(data) - position} are left")
        yield kind, data[position + start : position + length]
        position += length
    raise ValueError(f"more than {MOST_PARTS} boxes")


def as_still(data: bytes) -> bytes:
    """The file with a still picture's brand in front: of a sequence, too, its picture is decoded."""
    return data[:8] + b"avif" + data[12:]


def items(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """(type, content) of each item: pixels are `av01`; of type `mime` its content type stands for it.

    Raises ValueError for items that cannot be followed or have more bytes than two such files, BoxCutError for a file
    that ends before them.
    """
    found = _boxes_of_items(data)
    types = dict(_types(found[b"iinf"]))
    contents: dict[int, list[bytes]] = {}
    left = 2 * len(data)  # equal cells of a grid may be written once
    for count, (item, is_inside, start, length) in enumerate(_parts(found[b"iloc"])):
        source = found.get(b"idat", b"") if is_inside else data
        length = length or max(0, len(source) - start)  # 0: to the end
        if start + length > len(source):
            raise BoxCutError(f"an item ends at byte {start + length} of {len(source)}")
        left -= length
        if left < 0 or count == MOST_PARTS:
            raise ValueError(f"items of more than {2 * len(data)} bytes or {MOST_PARTS} parts")
        contents.setdefault(item, []).append(source[start : start + length])
    for item, parts in contents.items():
        yield types.get(item, b""), b"".join(parts)


@dataclass(frozen=True)
class AvifSizes:
    """What a decoder of an AVIF may allocate, in pixels."""

    stated: list[int] = field(default_factory=list)  # of its items, and of the sequences in them
    frames: list[int] = field(default_factory=list)  # the most of each frame; it may state a size of its own in a video


def avif_sizes(data: bytes) -> AvifSizes:
    """Raises as `items`."""
    sizes = AvifSizes()
    properties = dict(boxes(_boxes_of_items(data)[b"iprp"])).get(b"ipco", b"")
    for kind, content in boxes(properties):
        if kind == b"ispe":
            bits = _Bits(content)
            bits.take(32)
            sizes.stated.append(bits.take(32) * bits.take(32))
    count = 0
    for kind, content in items(data):
        largest = 0
        for unit, inside in _units(content) if kind == b"av01" else ():
            count += 1
            if count > MOST_PARTS:
                raise ValueError(f"more than {MOST_PARTS} AV1 units")
            if unit == _SEQUENCE:
                stated, largest = _sequence(inside)
                sizes.stated.append(stated)
            elif unit in _FRAMES:
                if not largest:
                    raise ValueError("an AV1 frame before the sequence that it is of")
                sizes.frames.append(largest)
    return sizes


# -- items ------------------------------------------------------------------------------------------------------------


class _Bits:
    """Numbers out of bytes, most significant bit first."""

    def __init__(self, data: bytes) -> None:
        self.data, self.position = data, 0  # in bits

    def take(self, width: int) -> int:
        """The next `width` bits. Raises ValueError where they lack."""
        start, self.position = self.position, self.position + width
        if self.position > 8 * len(self.data):
            raise ValueError(f"{len(self.data)} bytes that end too early")
        last = -(-self.position // 8)
        whole = int.from_bytes(self.data[start // 8 : last], "big")
        return whole >> (8 * last - self.position) & ((1 << width) - 1)


def _boxes_of_items(data: bytes) -> dict[bytes, bytes]:
    metas = [content for kind, content in boxes(data) if kind == b"meta"]
    if len(metas) != 1:  # a sequence need not have one
        raise ValueError(f"{len(metas)} boxes of items; a still picture has one")
    inside = list(boxes(metas[0][4:]))
    kinds = [kind for kind, _ in inside if kind in _OF_ITEMS]
    if len(kinds) != len(set(kinds)) or not {*_OF_ITEMS[:3]} <= set(kinds):
        raise ValueError("the boxes of its items lack or are repeated")
    return dict(inside)


def _types(iinf: bytes) -> Iterator[tuple[int, bytes]]:
    """(id, type) of each item."""
    for kind, content in boxes(iinf[6 if iinf[:1] == b"\0" else 8 :]):
        if kind == b"infe" and content[:1] in (b"\2", b"\3"):
            bits = _Bits(content)
            bits.take(32)
            item = bits.take(16 if content[0] == 2 else 32)
            bits.take(16)
            written = content[bits.position // 8 :]
            name_and_content_type = written[4:].split(b"\0")
            is_mime = written[:4] == b"mime" and len(name_and_content_type) > 1
            yield item, name_and_content_type[1] if is_mime else written[:4]


def _parts(iloc: bytes) -> Iterator[tuple[int, bool, int, int]]:
    """(item, whether in the box `idat`, start, length) of each part of each item."""
    bits = _Bits(iloc)
    version = bits.take(8)
    bits.take(24)
    of_start, of_length, of_base, of_index = (8 * bits.take(4) for _ in range(4))
    of_item = 32 if version == 2 else 16
    if version > 2:
        raise ValueError(f"places of items as of version {version}")
    for _ in range(min(bits.take(of_item), MOST_PARTS)):
        item = bits.take(of_item)
        method = bits.take(16) & 15 if version else 0
        if method > 1:
            raise ValueError("an item that is made of other items")
        bits.take(16)
        base = bits.take(of_base)
        for _ in range(bits.take(16)):
            bits.take(of_index if version else 0)
            yield item, method == 1, base + bits.take(of_start), bits.take(of_length)


# -- AV1 --------------------------------------------------------------------------------------------------------------


def _units(item: bytes) -> Iterator[tuple[int, bytes]]:
    """(type, content) of each AV1 unit of an item."""
    position = 0
    while position < len(item):
        head = item[position]
        position += 2 if head & 4 else 1
        size = len(item) - position
        if head & 2:
            size, position = _leb128(item, position)
        yield head >> 3 & 15, item[position : position + size]
        position += size


def _leb128(data: bytes, position: int) -> tuple[int, int]:
    """(number, position after it): 7 bits a byte, the lowest first."""
    number = 0
    for place in range(8):
        byte = data[position + place : position + place + 1] or b"\0"
        number |= (byte[0] & 127) << 7 * place
        if byte[0] < 128:
            return number, position + place + 1
    raise ValueError("an AV1 unit whose length has no end")


def _sequence(header: bytes) -> tuple[int, int]:
    """(pixels of a frame, most that one may have) by a sequence header."""
    bits = _Bits(header)
    bits.take(4)
    is_still = bits.take(1)
    if is_still:
        bits.take(5)
    else:
        if bits.take(1):
            raise ValueError("AV1 frames with times")
        has_delay = bits.take(1)
        for _ in range(bits.take(5) + 1):
            bits.take(12)
            if bits.take(5) > 7:
                bits.take(1)
            if has_delay and bits.take(1):
                bits.take(4)
    of_width, of_height = bits.take(4) + 1, bits.take(4) + 1
    stated = (bits.take(of_width) + 1) * (bits.take(of_height) + 1)
    return stated, stated if is_still else 1 << of_width + of_height
