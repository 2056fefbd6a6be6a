"""Pixels out of untrusted bytes: modes and formats, both decoders, metadata, scans, animations."""

import random
import struct
import zlib
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import numpy as np
import pytest
from PIL import AvifImagePlugin, Image, ImageCms

from curation_assets.sources.download.resizing import guarded_resizer
from curation_assets.stores.image_formats import DECODED, IMAGE_EXTENSIONS, REFUSED, format_of
from curation_assets.stores.images import (
    DEFAULT_LIMITS,
    MAX_SCANS,
    MAX_SCANS_OF_LARGEST,
    ImageLimits,
    ImageRejected,
    as_rgb,
    check_image,
    decode_image,
)
from tests.support.tars import encoded

WIDTH, HEIGHT = 64, 48
_ACROSS = np.tile(np.linspace(20, 220, WIDTH), (HEIGHT, 1))
_DOWN = np.tile(np.linspace(20, 220, HEIGHT)[:, None], (1, WIDTH))
COLOURS = np.stack([_ACROSS, _DOWN, (_ACROSS + _DOWN) / 2], axis=-1).astype(np.uint8)  # (H, W, 3)
GREY = np.asarray(Image.fromarray(COLOURS).convert("L"))  # (H, W)
MARKED = np.where(np.arange(WIDTH) < WIDTH // 2, 30, GREY).astype(np.uint8)  # its left half is to be transparent
HALF = np.full((HEIGHT, WIDTH), 128, np.uint8)  # alpha
UPRIGHT = 6  # EXIF: turn by 90° to view


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(bits: int, colour_type: int, values: np.ndarray, *chunks: bytes) -> bytes:
    """A PNG of values (H, W) or (H, W, channels) written as they are, which Pillow writes in some modes only."""
    rows = values.reshape(len(values), -1)
    if bits == 16:
        lines = [row.astype(">u2").tobytes() for row in rows]
    else:
        digits = np.unpackbits(rows.astype(np.uint8)[:, :, None], axis=2)[:, :, 8 - bits :]
        lines = [np.packbits(row.reshape(-1)).tobytes() for row in digits]
    header = struct.pack(">IIBBBBB", values.shape[1], values.shape[0], bits, colour_type, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + line for line in lines))
    body = [chunk(b"IHDR", header), *chunks, chunk(b"IDAT", pixels), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(body)


def rgb(grey: np.ndarray) -> np.ndarray:
    return np.stack([grey] * 3, axis=-1)


def on_white(colours: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    share = alpha[..., None] / 255
    return colours * share + 255 * (1 - share)


def wide(values: np.ndarray) -> np.ndarray:
    return values.astype(np.uint16) * 257


def bmp16() -> bytes:
    """5 bits a channel, as old scanners write."""
    red, green, blue = (np.rint(COLOURS[..., channel] / 255 * 31).astype(np.uint16) for channel in range(3))
    pixels = (red << 10 | green << 5 | blue)[::-1].astype("<u2").tobytes()
    info = struct.pack("<IiiHHIIiiII", 40, WIDTH, HEIGHT, 1, 16, 0, len(pixels), 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54 + len(pixels), 0, 0, 54) + info + pixels


def bmp32(alpha: np.ndarray) -> bytes:
    """8 bits a channel and alpha, by a header that says where each lies."""
    pixels = np.dstack([COLOURS[..., ::-1], alpha])[::-1].tobytes()
    masks = struct.pack("<4I", 0xFF0000, 0xFF00, 0xFF, 0xFF000000)
    info = struct.pack("<IiiHHIIiiII", 108, WIDTH, HEIGHT, 1, 32, 3, len(pixels), 0, 0, 0, 0) + masks + bytes(52)
    return b"BM" + struct.pack("<IHHI", 122 + len(pixels), 0, 0, 122) + info + pixels


def files() -> dict[str, tuple[bytes, np.ndarray]]:
    """Name → (file, what is to be seen in it)."""
    colour, white_left = Image.fromarray(COLOURS), np.where(MARKED == 30, 255, MARKED)
    palette = colour.quantize(32)
    places, colours32 = np.asarray(palette), bytes((palette.getpalette() or [])[: 32 * 3])
    alphas = np.where(np.arange(32) < 8, 0, 255).astype(np.uint8)
    exif = Image.Exif()
    exif[0x0112] = UPRIGHT
    turned = Image.fromarray(255 - COLOURS)
    found = {
        "png 16-bit grey": (png(16, 0, wide(GREY)), rgb(GREY)),
        "png 16-bit grey, turned": (
            png(16, 0, wide(GREY), chunk(b"eXIf", exif.tobytes()[6:])), np.rot90(rgb(GREY), -1),
        ),
        "png 16-bit grey, one transparent": (
            png(16, 0, wide(MARKED), chunk(b"tRNS", struct.pack(">H", 30 * 257))), rgb(white_left),
        ),
        "png 16-bit colours": (png(16, 2, wide(COLOURS)), COLOURS),
        "png 16-bit grey with alpha": (png(16, 4, wide(np.stack([GREY, HALF], -1))), on_white(rgb(GREY), HALF)),
        "png 16-bit colours with alpha": (png(16, 6, wide(np.dstack([COLOURS, HALF]))), on_white(COLOURS, HALF)),
        "png 8-bit grey with alpha": (png(8, 4, np.stack([GREY, HALF], -1)), on_white(rgb(GREY), HALF)),
        "png 8-bit colours with alpha": (png(8, 6, np.dstack([COLOURS, HALF])), on_white(COLOURS, HALF)),
        "png 8-bit grey, one transparent": (
            png(8, 0, MARKED, chunk(b"tRNS", struct.pack(">H", 30))), rgb(white_left),
        ),
        "png 8-bit colours, one transparent": (
            png(8, 2, rgb(MARKED), chunk(b"tRNS", struct.pack(">HHH", 30, 30, 30))), rgb(white_left),
        ),
        "png 16-bit colours, one transparent": (
            png(16, 2, wide(rgb(MARKED)), chunk(b"tRNS", struct.pack(">HHH", *[30 * 257] * 3))), rgb(white_left),
        ),
        "png palette": (png(8, 3, places, chunk(b"PLTE", colours32)), np.asarray(palette.convert("RGB"))),
        "png palette with alphas": (
            png(8, 3, places, chunk(b"PLTE", colours32), chunk(b"tRNS", alphas.tobytes())),
            on_white(np.asarray(palette.convert("RGB")), alphas[places]),
        ),
        "jpeg cmyk of Adobe": (encoded(colour.convert("CMYK"), "JPEG", quality=95), COLOURS),
        "jpeg turned": (encoded(colour, "JPEG", quality=95, exif=exif), np.rot90(COLOURS, -1)),
        "jpeg progressive": (encoded(colour, "JPEG", quality=95, progressive=True), COLOURS),
        "webp with alpha": (
            encoded(Image.fromarray(np.dstack([COLOURS, HALF])), "WEBP", lossless=True, exact=True),
            on_white(COLOURS, HALF),
        ),
        "gif animated": (
            encoded(Image.fromarray(GREY), "GIF", save_all=True, append_images=[turned.convert("L")] * 3), rgb(GREY),
        ),
        "webp animated": (
            encoded(colour, "WEBP", lossless=True, save_all=True, append_images=[turned] * 3), COLOURS,
        ),
        "png animated": (encoded(colour, "PNG", save_all=True, append_images=[turned] * 3), COLOURS),
        "png animated, apart from its picture": (
            encoded(colour, "PNG", save_all=True, default_image=True, append_images=[turned] * 3), COLOURS,
        ),
        "bmp 16 bits a pixel": (bmp16(), COLOURS),
        "bmp with alpha": (bmp32(HALF), on_white(COLOURS, HALF)),
        "bmp with an alpha that was left empty": (bmp32(0 * HALF), COLOURS),
        "avif": (encoded(colour, "AVIF", quality=95), COLOURS),
        "avif of HEIF's brand": (encoded(colour, "AVIF", quality=95).replace(b"avif", b"mif1", 1), COLOURS),
        "avif grey": (encoded(Image.fromarray(GREY), "AVIF", quality=95), rgb(GREY)),
        "avif with alpha": (
            encoded(Image.fromarray(np.dstack([COLOURS, HALF])), "AVIF", quality=95), on_white(COLOURS, HALF),
        ),
        "avif turned": (encoded(colour, "AVIF", quality=95, exif=exif), np.rot90(COLOURS, -1)),
        "avif animated": (encoded(colour, "AVIF", quality=95, save_all=True, append_images=[turned] * 3), COLOURS),
    }  # fmt: skip
    for bits in (1, 2, 4):
        few = GREY.astype(int) * 2**bits // 256
        seen = few * 255 // (2**bits - 1)
        name, transparent = f"png {bits}-bit grey", chunk(b"tRNS", struct.pack(">H", min(bits, 2) - 1))
        found[name] = png(bits, 0, few), rgb(seen)
        found[f"{name}, one transparent"] = (
            png(bits, 0, few, transparent), rgb(np.where(few == min(bits, 2) - 1, 255, seen)),
        )  # fmt: skip
    for mode in ("1", "L", "P", "RGB", "RGBA"):
        for form in ("PNG", "GIF", "BMP", "WEBP", "JPEG"):
            if form == "JPEG" and mode in ("P", "RGBA"):
                continue
            image = colour.convert(mode)
            options = {"quality": 95} if form in ("WEBP", "JPEG") else {}
            found[f"{form.lower()} of mode {mode}"] = encoded(image, form, **options), np.asarray(image.convert("RGB"))
    return found


FILES = files()


def means(image: Image.Image) -> np.ndarray:
    return np.asarray(image, dtype=np.float64).mean(axis=(0, 1))  # (3,)


@pytest.mark.parametrize("name", FILES)
def test_both_decoders_see_what_a_file_shows(name: str) -> None:
    data, truth = FILES[name]
    expected = truth.astype(np.float64).mean(axis=(0, 1))
    read = decode_image(data)
    assert read.mode == "RGB"
    assert np.abs(means(read) - expected).max() < 3
    assert read.size == (truth.shape[1], truth.shape[0])
    for size in (512, 40):  # kept and scaled down
        stored, *_, message = guarded_resizer(size, 95, DEFAULT_LIMITS)(data)
        assert message is None
        assert np.abs(means(decode_image(stored)) - expected).max() < 3


def in_mode(mode: str) -> Image.Image:
    """COLOURS or GREY as an image in memory."""
    colour = Image.fromarray(COLOURS)
    match mode:
        case "I;16" | "I;16L" | "I;16B" | "I;16N":
            kind = ">u2" if mode == "I;16B" else "<u2"
            return Image.frombytes(mode, colour.size, wide(GREY).astype(kind).tobytes())
        case "LAB":
            profiles = ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB")
            lab = ImageCms.profileToProfile(colour, *profiles, outputMode="LAB")
            assert lab is not None
            return lab
        case "PA":
            return colour.convert("P").convert("PA")
        case "La":
            return Image.fromarray(GREY).convert("LA").convert("La")
        case "I of 16 bits":
            return Image.fromarray(wide(GREY).astype(np.int32))
        case "F of 0 to 1":
            return Image.fromarray((GREY / 255).astype(np.float32))
        case "F of 16 bits":
            return Image.fromarray(wide(GREY).astype(np.float32))
    return colour.convert(mode)


@pytest.mark.parametrize(
    "mode",
    [
        *("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV", "I", "F"),
        *("I;16", "I;16L", "I;16B", "I;16N", "I of 16 bits", "F of 0 to 1", "F of 16 bits"),
    ],
)
def test_every_mode_becomes_rgb_without_loss(mode: str) -> None:
    image = in_mode(mode)
    is_colour = mode in ("P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV")
    truth = COLOURS if is_colour else rgb(GREY)
    assert np.abs(means(as_rgb(image)) - truth.mean(axis=(0, 1))).max() < 3


@pytest.mark.parametrize("value", [-1.0, 70_000.0, float("nan"), float("inf")])
def test_numbers_that_are_no_grey_are_refused(value: float) -> None:
    with pytest.raises(ImageRejected) as rejection:
        as_rgb(Image.fromarray(np.array([[0.5, value]], dtype=np.float32)))
    assert rejection.value.reason == "range_unknown"


@pytest.mark.parametrize("form", ["PNG", "WEBP", "GIF", "AVIF", "16 bits", "palette"])
def test_an_image_of_which_nothing_can_be_seen_has_a_reason(form: str) -> None:
    nothing = 0 * HALF
    match form:
        case "16 bits":
            data = png(16, 0, wide(0 * GREY + 30), chunk(b"tRNS", struct.pack(">H", 30 * 257)))
        case "palette":
            data = png(8, 3, nothing, chunk(b"PLTE", bytes(3)), chunk(b"tRNS", b"\0"))
        case _:
            data = encoded(Image.fromarray(np.dstack([COLOURS, nothing])), form)
    for judge in judges():
        with pytest.raises(ImageRejected) as rejection:
            judge(data)
        assert rejection.value.reason == "transparent"


# -- metadata ---------------------------------------------------------------------------------------------------------


def segment(kind: int, data: bytes) -> bytes:
    return b"\xff" + bytes([kind]) + struct.pack(">H", len(data) + 2) + data


def with_metadata() -> dict[str, bytes]:
    """COLOURS with metadata of which Pillow refuses some."""
    whole, jpeg = png(8, 2, COLOURS), encoded(Image.fromarray(COLOURS), "JPEG", quality=95)
    large, profile = zlib.compress(b"x" * 5_000_000), zlib.compress(bytes(3000))
    chunks = {
        "compressed text of 5 MB": chunk(b"zTXt", b"prompt\0\0" + large),
        "international text of 5 MB": chunk(b"iTXt", b"prompt\0\1\0\0\0" + large),
        "plain text of 3 MB": chunk(b"tEXt", b"workflow\0" + b"y" * 3_000_000),
        "profile of 5 MB": chunk(b"iCCP", b"icc\0\0" + large),
        "cut profile": chunk(b"iCCP", b"icc\0\0" + profile[: len(profile) // 2]),
        "profile without a method": chunk(b"iCCP", b"icc\0"),
        "profile in an unknown method": chunk(b"iCCP", b"icc\0\5abc"),
        "cut gamma": chunk(b"gAMA", b"ab"),
        "cut density": chunk(b"pHYs", b"ab"),
        "cut EXIF": chunk(b"eXIf", b"II*\0\xff\xff\xff"),
        "text with a wrong checksum": b"\0\0\0\3tEXtk\0yXXXX",
    }
    segments = {
        "cut profile": segment(0xE2, b"ICC_PROFILE\0\1\3" + profile[:40]),
        "cut EXIF": segment(0xE1, b"Exif\0\0II*\0\x08\0\0\0\xff\xff"),
        "cut JFIF": segment(0xE0, b"JFIF\0"),
        "cut Adobe": segment(0xEE, b"Adobe\0"),
        "cut Photoshop": segment(0xED, b"Photoshop 3.0\x008BIM\4\4\x0babc"),
        "broken index of pictures": segment(0xE2, b"MPF\0II*\0\xff\xff\xff\xff"),
    }
    avif = encoded(Image.fromarray(COLOURS), "AVIF", quality=95, exif=b"Exif\0\0II*\0\x08\0\0\0\1\0abcdefghijkl")
    return {
        "avif, broken EXIF": avif.replace(b"II*\0", b"broken"[:4]),
        **{f"png, {name}": whole[:33] + part + whole[33:] for name, part in chunks.items()},
        **{f"png, {name} after the pixels": whole[:-12] + part + whole[-12:] for name, part in chunks.items()},
        **{f"jpeg, {name}": jpeg[:2] + part + jpeg[2:] for name, part in segments.items()},
    }


METADATA = with_metadata()


@pytest.mark.parametrize("name", METADATA)
def test_broken_metadata_does_not_fail_an_image_that_decodes(name: str) -> None:
    data = METADATA[name]
    assert (check_image(data).width, check_image(data).height) == (WIDTH, HEIGHT)
    assert np.abs(means(decode_image(data)) - COLOURS.mean(axis=(0, 1))).max() < 3
    stored, *_, message = guarded_resizer(512, 95, DEFAULT_LIMITS)(data)
    assert message is None
    assert np.abs(means(decode_image(stored)) - COLOURS.mean(axis=(0, 1))).max() < 3


def test_metadata_hides_no_damage_of_the_pixels() -> None:
    cut = METADATA["png, compressed text of 5 MB"][:-200]
    for judge in (check_image, decode_image):
        with pytest.raises(ImageRejected) as rejection:
            judge(cut)
        assert rejection.value.reason in ("truncated", "undecodable")


# -- work -------------------------------------------------------------------------------------------------------------


def progressive(size: int, more_scans: int, *, before: bytes = b"", after: bytes = b"") -> bytes:
    """A progressive JPEG whose last scan comes `more_scans` times again; `before` in a segment, `after` its end."""
    data = encoded(Image.new("L", (size, size), 128), "JPEG", progressive=True)
    last, end = data.rindex(b"\xff\xda"), data.rindex(b"\xff\xd9")
    head = data[:2] + (segment(0xE2, before) if before else b"")
    return head + data[2:end] + data[last:end] * more_scans + data[end:] + after


def judges() -> Iterable[Callable[[bytes], Any]]:
    def resized(data: bytes) -> None:
        *_, message = guarded_resizer(512, 95, DEFAULT_LIMITS)(data)
        if message is not None:
            raise ImageRejected(message.split(":")[1], message)

    return check_image, decode_image, resized


@pytest.mark.parametrize(("size", "more_scans"), [(8, MAX_SCANS), (64, 3000), (5000, 50)])
def test_a_jpeg_of_many_scans_is_refused_before_it_is_decoded(
    size: int, more_scans: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = progressive(size, more_scans)
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("decoded"))
    for judge in judges():
        with pytest.raises(ImageRejected) as rejection:
            judge(data)
        assert rejection.value.reason == "too_many_scans"


def test_the_more_pixels_the_fewer_scans() -> None:
    limits = ImageLimits(max_pixels=64 * 64)
    check_image(progressive(64, MAX_SCANS_OF_LARGEST - 6), limits)  # a grey picture has 6
    with pytest.raises(ImageRejected, match="more than 20 scans"):
        check_image(progressive(64, MAX_SCANS_OF_LARGEST - 5), limits)
    check_image(progressive(16, MAX_SCANS - 6), limits)


def test_bytes_that_are_no_markers_are_no_scans() -> None:
    looks = b"\xff\xda" * (MAX_SCANS + 1)
    for data in (progressive(16, 0, before=looks), progressive(16, 0, after=looks)):
        for judge in judges():
            judge(data)


def test_frames_after_the_first_are_not_decoded() -> None:
    first = Image.fromarray(COLOURS)
    for form, options in (("GIF", {}), ("PNG", {}), ("WEBP", {"lossless": True})):
        others = [Image.fromarray(np.roll(COLOURS, step, axis=1)) for step in range(1, 4)]
        data = encoded(first, form, save_all=True, append_images=others, **options)
        cut = data[: len(data) - 40] if form != "WEBP" else data  # of the last frame; a cut RIFF is refused whole
        if form == "PNG":
            cut = data[: data.index(b"fdAT")] + b"fdAT" + bytes(40) + data[-12:]
        assert np.abs(means(decode_image(cut)) - COLOURS.mean(axis=(0, 1))).max() < 3, form


# -- AVIF -------------------------------------------------------------------------------------------------------------


def avif(image: Image.Image, **options: Any) -> bytes:
    return encoded(image, "AVIF", speed=10, autotiling=False, **options)


def with_pixels(data: bytes, units: bytes, times: int) -> bytes:
    """An AVIF of one item with `units` in place of its AV1 units, which come `times` times."""
    start = data.index(b"mdat") + 4
    place, length = data.index(struct.pack(">II", start, len(data) - start)), times * len(units)
    head = data[:place] + struct.pack(">II", start, length) + data[place + 8 : start - 8]
    return head + struct.pack(">I", length + 8) + b"mdat" + units * times


def said_to_be(data: bytes, width: int, height: int) -> bytes:
    """An AVIF whose items are said to have another size."""
    start = data.index(b"ispe") + 8
    return data[:start] + struct.pack(">II", width, height) + data[start + 8 :]


@cache
def plain_avif(pixels: int) -> bytes:
    return avif(Image.new("RGB", (pixels, pixels)))


def units_of(data: bytes) -> bytes:
    """The AV1 units of an AVIF of one item."""
    return data[data.index(b"mdat") + 4 :]


def sequence() -> bytes:
    return avif(Image.new("RGB", (64, 64)), save_all=True, append_images=[Image.new("RGB", (64, 64))])


#: Name → reason, file.
HOSTILE_AVIFS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "too large": ("too_many_pixels", lambda: plain_avif(9000)),
    "larger than it says": ("too_many_pixels", lambda: said_to_be(plain_avif(9000), 64, 64)),
    "smaller than it says": ("too_many_pixels", lambda: said_to_be(plain_avif(64), 16_000, 16_000)),
    "of 4,000 frames": ("too_many_pixels", lambda: with_pixels(plain_avif(256), units_of(plain_avif(256)), 4000)),
    "of 300,000 units": ("undecodable", lambda: with_pixels(plain_avif(64), b"\x12\0", 300_000)),
    "of a frame in no sequence": ("undecodable", lambda: with_pixels(plain_avif(64), b"\x32\x01\0", 1)),
    "of many items": (
        "undecodable",
        lambda: plain_avif(64)[:4] + b"ftypavif" + plain_avif(64)[12:32] + (b"\0\0\0\x08free" * 200_000),
    ),
    "cut": ("truncated", lambda: plain_avif(64)[:-5]),
    "item behind the end": (
        "truncated",
        lambda: plain_avif(256).replace(units_of(plain_avif(256)), b"\0").replace(b"mdat", b"free"),
    ),
    "without a still picture": ("undecodable", lambda: sequence().replace(b"meta", b"free", 1)),
    "of places without end": (
        "undecodable",
        lambda: plain_avif(64).replace(b"iloc\0\0\0\0\x44\0", b"iloc\0\0\0\0\0\0"),
    ),
}


@pytest.mark.parametrize("name", HOSTILE_AVIFS)
def test_an_avif_is_bounded_before_it_is_decoded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reason, made = HOSTILE_AVIFS[name]
    data = made()
    decoder = AvifImagePlugin.AvifImageFile
    monkeypatch.setattr(decoder, "load", lambda self: pytest.fail("decoded"))
    if reason == "too_many_pixels":
        monkeypatch.setattr(decoder, "_open", lambda self: pytest.fail("opened"))
    assert format_of(data) is not None
    for judge in judges():
        with pytest.raises(ImageRejected) as rejection:
            judge(data)
        assert rejection.value.reason == reason


def test_damaged_avifs_have_a_reason() -> None:
    rng = random.Random(50)
    sound = avif(Image.fromarray(np.dstack([COLOURS, HALF])), exif=b"Exif\0\0II*\0\x08\0\0\0\0\0", xmp=b"<x/>")
    outcomes = set()
    for _ in range(1000):
        data = bytearray(sound)
        for _ in range(rng.randint(1, 8)):
            data[rng.randrange(8, len(data) if rng.random() < 0.5 else 400)] = rng.randrange(256)
        try:
            outcomes.add(decode_image(bytes(data)).mode)
        except ImageRejected as rejection:
            outcomes.add(rejection.reason)
    assert outcomes <= {"RGB", "undecodable", "truncated", "too_many_pixels", "format_not_allowed", "transparent"}
    assert {"RGB", "undecodable", "truncated"} <= outcomes


# -- formats ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("extension", "data"),
    [
        *(
            (form.lower(), encoded(Image.new("RGB", (9, 7)), form))
            for form in ("TIFF", "ICO", "PPM", "TGA", "QOI", "JPEG2000")
        ),
        ("psd", b"8BPS" + bytes(40)),
        ("heic", b"\0\0\0\x18ftypheic" + bytes(40)),
        ("heif", b"\0\0\0\x1cftypmif1" + bytes(4) + b"mif1heicmiaf" + bytes(40)),
        ("jxl", b"\xff\x0a" + bytes(40)),
        ("svg", b'<?xml version="1.0"?>\n<!-- drawn -->\n<svg xmlns="http://www.w3.org/2000/svg"/>'),
    ],
)  # fmt: skip
def test_a_format_that_is_refused_is_named(extension: str, data: bytes) -> None:
    for judge in judges():
        with pytest.raises(ImageRejected) as rejection:
            judge(data)
        assert rejection.value.reason == "format_not_allowed"
    kind = format_of(data)
    assert kind in REFUSED
    assert extension in (*IMAGE_EXTENSIONS, "jpeg2000")


def test_formats_that_are_decoded_are_known_by_their_first_bytes() -> None:
    for kind in DECODED:
        assert format_of(encoded(Image.new("RGB", (4, 4)), kind.name)) is kind
    assert set(ImageLimits().formats) == {kind.name for kind in DECODED}
    assert format_of(b"GARBAGE") is None
