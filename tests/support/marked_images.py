"""Small images that declare inside whether they may be used for training: XMP in every place, and signed manifests."""

import struct
import zlib
from pathlib import Path

from PIL import Image

from tests.support.tars import encoded

PLUS = "http://ns.useplus.org/ldf/xmp/1.0/"
VOCABULARY = "http://ns.useplus.org/ldf/vocab/"
SIGNED = Path(__file__).parent / "c2pa"  # signed by c2pa-python 0.38 with a certificate of its own


def image(kind: str = "JPEG", colour: tuple[int, int, int] = (200, 80, 10), size: int = 16) -> bytes:
    """A plain image."""
    return encoded(Image.new("RGB", (size, size), colour), kind)


def xmp(value: str, *, form: str = "attribute") -> bytes:
    """A packet with plus:DataMining as an attribute, as an element's text or as a resource."""
    head = f'<rdf:Description rdf:about="" xmlns:plus="{PLUS}"'
    body = {
        "attribute": f'{head} plus:DataMining="{value}"/>',
        "text": f"{head}><plus:DataMining>{value}</plus:DataMining></rdf:Description>",
        "resource": f'{head}><plus:DataMining rdf:resource="{value}"/></rdf:Description>',
    }[form]
    packet = (
        f'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">{body}'
        "</rdf:RDF></x:xmpmeta>"
    )
    return b'<?xpacket begin="" id="W5M0MpCehiHzreSzNTczkc9d"?>' + packet.encode() + b'<?xpacket end="w"?>'


def with_segment(jpeg: bytes, content: bytes, kind: int = 0xE1, length: int | None = None) -> bytes:
    """A JPEG with a further segment at its beginning. `length`: what it states instead of its own."""
    stated = len(content) + 2 if length is None else length
    return jpeg[:2] + b"\xff" + bytes([kind]) + struct.pack(">H", stated) + content + jpeg[2:]


def jpeg_with_xmp(packet: bytes, **colour: tuple[int, int, int]) -> bytes:
    """A JPEG with an XMP segment."""
    return with_segment(image("JPEG", **colour), b"http://ns.adobe.com/xap/1.0/\0" + packet)


def avif_with_xmp(packet: bytes) -> bytes:
    """An AVIF with an item of XMP."""
    return encoded(Image.new("RGB", (16, 16)), "AVIF", xmp=packet)


def png_with_chunk(name: bytes, content: bytes, length: int | None = None) -> bytes:
    """A PNG with a further chunk before its pixels."""
    png = image("PNG")
    chunk = struct.pack(">I", len(content) if length is None else length) + name + content
    return png[:33] + chunk + struct.pack(">I", zlib.crc32(name + content)) + png[33:]


def webp_with_chunk(name: bytes, content: bytes, length: int | None = None) -> bytes:
    """A WebP with a further chunk at its end."""
    webp = image("WEBP")
    chunk = name + struct.pack("<I", len(content) if length is None else length) + content + b"\0" * (len(content) % 2)
    return b"RIFF" + struct.pack("<I", len(webp) - 8 + len(chunk)) + webp[8:] + chunk
