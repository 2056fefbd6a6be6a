"""Declarations inside images: PLUS Data Mining in XMP, and C2PA's assertion, in every place and in hostile bytes."""

import importlib.util
import random
import struct
import time
import zlib

import pytest

from curation_assets.stores import c2pa_assertions
from curation_assets.stores.image_rights import MAX_PACKED, MAX_XMP, image_signals
from tests.support.marked_images import (
    SIGNED,
    VOCABULARY,
    avif_with_xmp,
    image,
    jpeg_with_xmp,
    png_with_chunk,
    webp_with_chunk,
    with_segment,
    xmp,
)

NO = f"{VOCABULARY}DMI-PROHIBITED-AIMLTRAINING"
ENTRIES = [
    ("cawg.ai_generative_training", "notAllowed"),
    ("cawg.ai_training", "allowed"),
    ("cawg.data_mining", "constrained"),
]


def raw_profile(name: bytes, content: bytes) -> bytes:
    """A profile as ImageMagick writes it into a text chunk of a PNG: lines of 72 hex digits."""
    digits = content.hex().encode()
    lines = [digits[start : start + 72] for start in range(0, len(digits), 72)]
    return b"\n" + name + b"\n%8d\n" % len(content) + b"\n".join(lines) + b"\n"


def found(data: bytes) -> list[tuple[str, bool]]:
    signals = image_signals(data)
    assert {(one.kind, one.where) for one in signals} <= {("image", "XMP"), ("image", "C2PA")}
    return [(one.value, one.is_no) for one in signals]


# PLUS LDF vocabulary of Data Mining, as IPTC Photo Metadata 2023.1 lists it.
@pytest.mark.parametrize(
    ("value", "is_no"),
    [
        ("DMI-UNSPECIFIED", False),
        ("DMI-ALLOWED", False),
        ("DMI-PROHIBITED", True),
        ("DMI-PROHIBITED-AIMLTRAINING", True),
        ("DMI-PROHIBITED-GENAIMLTRAINING", True),
        ("DMI-PROHIBITED-EXCEPTSEARCHENGINEINDEXING", True),
        ("DMI-PROHIBITED-SEECONSTRAINT", True),
        ("DMI-PROHIBITED-SEEEMBEDDEDRIGHTSEXPR", True),
        ("DMI-PROHIBITED-SEELINKEDRIGHTSEXPR", True),
        ("DMI-OTHER", False),
    ],
)
def test_values_of_the_vocabulary(value: str, is_no: bool) -> None:
    for written in (f"{VOCABULARY}{value}", value):
        assert found(jpeg_with_xmp(xmp(written))) == [(written, is_no)]


@pytest.mark.parametrize("form", ["attribute", "text", "resource"])
def test_every_place_of_xmp_in_every_format(form: str) -> None:
    packet = xmp(NO, form=form)
    text = b"XML:com.adobe.xmp\0" + b"\0\0" + b"en\0\0" + packet
    packed = b"XML:com.adobe.xmp\0" + b"\1\0" + b"\0\0" + zlib.compress(packet)
    segment = b"http://ns.adobe.com/xap/1.0/\0" + packet
    extension = b"http://ns.adobe.com/xmp/extension/\0" + b"0" * 32 + struct.pack(">I", len(packet))
    first, second = (extension + struct.pack(">I", start) + packet[start:end] for start, end in ((0, 90), (90, None)))
    for data in (
        jpeg_with_xmp(packet),
        with_segment(with_segment(image(), first), second),  # in two pieces, the later one first
        png_with_chunk(b"iTXt", text),
        png_with_chunk(b"iTXt", packed),
        png_with_chunk(b"tEXt", b"XML:com.adobe.xmp\0" + packet),
        png_with_chunk(b"tEXt", b"Raw profile type xmp\0" + raw_profile(b"xmp", packet)),
        png_with_chunk(b"zTXt", b"Raw profile type xmp\0\0" + zlib.compress(raw_profile(b"xmp", packet))),
        png_with_chunk(b"iTXt", b"Raw profile type xmp\0\0\0\0\0" + raw_profile(b"xmp", packet)),
        png_with_chunk(b"zTXt", b"Raw profile type APP1\0\0" + zlib.compress(raw_profile(b"generic profile", segment))),
        webp_with_chunk(b"XMP ", packet),
        image("GIF") + b"\x21\xff\x0bXMP DataXMP" + packet,
        image("BMP") + packet,
        avif_with_xmp(packet),
    ):
        assert found(data) == [(NO, True)]
    assert found(png_with_chunk(b"tEXt", b"Comment\0" + packet)) == []  # a text about XMP is none


def test_images_that_declare_nothing_have_no_signal() -> None:
    for kind in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "AVIF"):
        assert found(image(kind)) == []
    assert found(b"") == []
    assert found(jpeg_with_xmp(b"<x:xmpmeta xmlns:x='adobe:ns:meta/'></x:xmpmeta>")) == []


def test_hostile_xmp_ends_in_a_reason_soon() -> None:
    bomb = (
        b'<!DOCTYPE r [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>'
        + xmp("&b;").partition(b"?>")[2]
    )
    outside = b'<!DOCTYPE r SYSTEM "file:///etc/passwd">' + xmp(NO).partition(b"?>")[2]
    large = xmp(NO).replace(b"<rdf:RDF", b" " * (50 * 1024 * 1024) + b"<rdf:RDF")
    packed = png_with_chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + zlib.compress(large, 1))
    deep = xmp(NO).replace(b"<rdf:RDF", b"<a>" * 300_000 + b"<rdf:RDF")
    short = b"http://ns.adobe.com/xmp/extension/\0" + b"0" * 32 + b"\0\0\xff\xff" + bytes(4) + xmp(NO)
    began = time.process_time()
    cases = [
        (jpeg_with_xmp(bomb), "document type"),
        (jpeg_with_xmp(outside), "document type"),
        (webp_with_chunk(b"XMP ", large), f"at most {MAX_XMP} are parsed"),
        (packed, f"unpacks to more than {MAX_PACKED} bytes"),
        (webp_with_chunk(b"XMP ", deep), "no XML"),
        (png_with_chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0no zlib"), "cannot be unpacked"),
        (png_with_chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0"), "ends before its text"),
        (jpeg_with_xmp(xmp(NO)[:-60]), "no XML"),
        (with_segment(image(), b"http://ns.adobe.com/xap/1.0/\0" + xmp(NO), length=300), "no XML"),
        (webp_with_chunk(b"XMP ", xmp(NO), length=300), "no XML"),
        (png_with_chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + xmp(NO), length=300), "no XML"),
        (png_with_chunk(b"tEXt", b"Raw profile type xmp\0" + raw_profile(b"xmp", xmp(NO))[:-9]), "raw profile b'xmp'"),
        (png_with_chunk(b"tEXt", b"Raw profile type xmp\0\nxmp\n 12\nno hex"), "raw profile"),
        (png_with_chunk(b"zTXt", b"Raw profile type xmp\0"), "raw profile"),
        (image("GIF") + xmp(NO).replace(b"</x:xmpmeta>", b""), "does not end"),
        (with_segment(image(), short), "in pieces of"),
    ]  # fmt: skip
    for data, reason in cases:
        ((value, is_no),) = found(data)
        assert value.startswith("unreadable: "), value
        assert reason in value
        assert not is_no
    assert time.process_time() - began < 20


def test_a_packet_that_cannot_be_read_hides_no_other() -> None:
    data = with_segment(jpeg_with_xmp(xmp(NO)), b"http://ns.adobe.com/xap/1.0/\0" + xmp(NO)[:-60])  # before it
    (value, _), (reason, is_no) = found(data)
    assert (value, reason.partition(":")[0], is_no) == (NO, "unreadable", False)


def test_a_length_beyond_the_file_reads_what_is_there() -> None:
    whole = with_segment(image(), b"http://ns.adobe.com/xap/1.0/\0" + xmp(NO), length=0xFFFF)
    ((value, is_no),) = found(whole)  # the pixels follow the packet inside the segment
    assert ("no XML" in value, is_no) == (True, False)
    for cut in range(0, 400, 7):
        found(whole[:cut])  # no exception


# -- C2PA -------------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["own", "library"])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Reading without c2pa-python, and with it where it is installed."""
    if request.param == "own":
        monkeypatch.setattr(c2pa_assertions, "_by_library", lambda data: None)
    elif importlib.util.find_spec("c2pa") is None:
        pytest.skip("c2pa-python (extra c2pa) is not installed")
    return str(request.param)


def test_signed_images_state_their_entries(reader: str) -> None:
    expected = [(f"{name}={use}", use != "allowed") for name, use in ENTRIES]
    for suffix in ("jpeg", "png", "webp"):
        assert found((SIGNED / f"signed.{suffix}").read_bytes()) == expected
    ((value, is_no), *rest) = found((SIGNED / "signed.gif").read_bytes())
    if reader == "library":
        assert [(value, is_no), *rest] == expected
    else:
        assert (value, is_no) == (
            "unreadable: manifests of this format are read by c2pa-python: pip install 'curation_assets[c2pa]'",
            False,
        )


def box(kind: bytes, content: bytes, length: int | None = None) -> bytes:
    return struct.pack(">I", 8 + len(content) if length is None else length) + kind + content


def store(assertion: bytes, kind: bytes = b"cbor", label: bytes = b"cawg.training-mining") -> bytes:
    """A manifest store of one assertion, without a claim: nobody signed it."""

    def described(label: bytes) -> bytes:
        return box(b"jumd", bytes(16) + b"\x03" + label + b"\0")

    inner = box(b"jumb", described(label) + box(kind, assertion))
    assertions = box(b"jumb", described(b"c2pa.assertions") + inner)
    return box(b"jumb", described(b"c2pa") + box(b"jumb", described(b"urn:uuid:1") + assertions))


def text(value: str) -> bytes:
    """CBOR of a short string."""
    return bytes([0x60 + len(value)]) + value.encode()


def test_json_and_indefinite_cbor_and_repeated_labels_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c2pa_assertions, "_by_library", lambda data: None)
    entry = text("cawg.data_mining") + b"\xbf" + text("use") + b"\x7f" + text("not") + text("Allowed") + b"\xff\xff"
    loose = (
        b"\xd9\xd9\xf7\xbf"
        + text("entries")
        + b"\xbf"
        + entry
        + b"\xff"
        + text("x")
        + b"\x83\xf6\xfb"
        + bytes(8)
        + b"\x38\x63\xff"
    )
    plain = b'{"entries": {"c2pa.ai_training": {"use": "constrained"}, "c2pa.ai_inference": {"use": "notAllowed"}}}'
    assert found(webp_with_chunk(b"C2PA", store(loose, label=b"cawg.training-mining__2"))) == [
        ("cawg.data_mining=notAllowed", True)
    ]
    assert found(png_with_chunk(b"caBX", store(plain, b"json", b"c2pa.training-mining"))) == [
        ("c2pa.ai_training=constrained", True)
    ]
    assert found(png_with_chunk(b"caBX", store(plain, b"json", b"c2pa.actions"))) == []
    in_avif = bytes.fromhex("d8fec3d61b0e483c92975828877ec481") + bytes(4) + b"manifest\0" + bytes(8)
    assert found(image("AVIF") + box(b"uuid", in_avif + store(plain, b"json", b"c2pa.training-mining"))) == [
        ("c2pa.ai_training=constrained", True)
    ]


def test_hostile_manifests_end_in_a_reason_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c2pa_assertions, "_by_library", lambda data: None)
    deep = b""
    for _ in range(2000):
        deep = box(b"jumb", box(b"jumd", bytes(17)) + deep)
    began = time.process_time()
    for manifests, reason in (
        (store(b"\x81" * 100_000), "CBOR inside CBOR"),
        (store(b"\xc0" * 100_000), "CBOR inside CBOR"),
        (store(b"\x9b" + b"\xff" * 8), "cut"),
        (store(b"\x7b" + b"\xff" * 8), "cut"),
        (store(b"\xbf" + text("entries") + b"\xff"), "a key and no value"),
        (store(b"\xa1\x01\x02"), "keys that are no text"),
        (store(b"\x1c"), "reserved"),
        (store(b"\xa0\xa0"), "in a box of 2"),
        (store(b"\xa0"), "without entries"),
        (store(b"[" * 200_000, b"json"), "recursion"),
        (store(b"\x61\xff"), "utf-8"),
        (deep, "boxes inside boxes"),
        (box(b"jumb", box(b"jumd", bytes(17)) + box(b"cbor", b"", length=4)), "a box of 4 bytes"),
        (store(b"\xa0").replace(b"\0\0\0\x09cbor", b"\0\0\xff\x09cbor"), "bytes where"),
    ):
        ((value, is_no),) = found(webp_with_chunk(b"C2PA", manifests))
        assert value.startswith("unreadable: "), value
        assert reason in value
        assert not is_no
    assert time.process_time() - began < 10


def test_damaged_files_raise_nothing(reader: str) -> None:
    """2,000 damaged copies of signed and of marked images, read to a list of signals each."""
    rng = random.Random(72)
    sound = [(SIGNED / f"signed.{suffix}").read_bytes() for suffix in ("jpeg", "png", "webp")]
    sound += [
        avif_with_xmp(xmp(NO)),
        jpeg_with_xmp(xmp(NO)),
        png_with_chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + xmp(NO)),
    ]
    for _ in range(2000):
        data = bytearray(rng.choice(sound))
        for _ in range(rng.randint(1, 12)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        found(bytes(data[: rng.randint(1, len(data))] if rng.random() < 0.3 else data))
