"""The parts of a JPEG, PNG, WebP or AVIF that hold no pixels, by the lengths that the file states."""

from collections.abc import Iterator

from curation_assets.stores.avif import boxes, items
from curation_assets.stores.image_formats import format_of

_SCAN, _END = 0xDA, 0xD9
_BARE = (0x01, *range(0xD0, 0xD9))  # JPEG markers without a length
_AVIF_C2PA = bytes.fromhex("d8fec3d61b0e483c92975828877ec481")  # of a box `uuid` (C2PA 2.x §A.5)
_PIXELS = ("IDAT", "VP8 ", "VP8L", "ALPH", "ANMF")


def image_parts(data: bytes) -> Iterator[tuple[str, bytes]] | None:
    """(name, content) of each: `APP0`–`APP15` of a JPEG before its first scan, chunks of a PNG or WebP by their names,
    XMP and C2PA manifests of an AVIF by those that a WebP has for them.

    A part that should be longer than the file is as long as the file; of an AVIF it raises ValueError. None for other
    formats.
    """
    known = format_of(data)
    walks = {"JPEG": _of_jpeg, "PNG": _of_png, "WEBP": _of_webp, "AVIF": _of_avif}
    walk = None if known is None else walks.get(known.name)
    return None if walk is None else walk(data)


def _of_jpeg(data: bytes) -> Iterator[tuple[str, bytes]]:
    position = 2
    while position + 4 <= len(data) and data[position] == 0xFF:
        kind = data[position + 1]
        if kind in (_SCAN, _END):
            return
        if kind == 0xFF or kind in _BARE:  # a fill byte
            position += 1 if kind == 0xFF else 2
            continue
        end = position + 2 + max(2, int.from_bytes(data[position + 2 : position + 4], "big"))
        if 0xE0 <= kind <= 0xEF:
            yield f"APP{kind - 0xE0}", data[position + 4 : end]
        position = end


def _of_png(data: bytes) -> Iterator[tuple[str, bytes]]:
    position = 8
    while position + 8 <= len(data):
        length, name = int.from_bytes(data[position : position + 4], "big"), data[position + 4 : position + 8]
        if name.decode("latin-1") not in _PIXELS:
            yield name.decode("latin-1"), data[position + 8 : position + 8 + length]
        position += 12 + length


def _of_webp(data: bytes) -> Iterator[tuple[str, bytes]]:
    position = 12
    while position + 8 <= len(data):
        name, length = data[position : position + 4], int.from_bytes(data[position + 4 : position + 8], "little")
        if name.decode("latin-1") not in _PIXELS:
            yield name.decode("latin-1"), data[position + 8 : position + 8 + length]
        position += 8 + length + length % 2


def _of_avif(data: bytes) -> Iterator[tuple[str, bytes]]:
    for kind, content in boxes(data):
        if kind == b"uuid" and content.startswith(_AVIF_C2PA):
            purpose, _, manifests = content[len(_AVIF_C2PA) + 4 :].partition(b"\0")  # after version and flags
            if purpose == b"manifest":
                yield "C2PA", manifests[8:]  # after the place of the box for hashes
    for kind, content in items(data):
        if kind == b"application/rdf+xml":
            yield "XMP ", content
