"""Images: bytes out of tars by member name, and pixels out of untrusted bytes."""

import hashlib
import io
import mmap
import os
import re
import struct
import tarfile
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from PIL import Image

from curation_assets.core.visible import visible
from curation_assets.stores.atomic import fetch
from curation_assets.stores.avif import BoxCutError, as_still, avif_sizes
from curation_assets.stores.file_hash import once_per_version
from curation_assets.stores.image_formats import DECODED, TRAINING_EXTENSIONS, format_of
from curation_assets.stores.tar_members import far_tar, put_places

MIB = 1024 * 1024


class ImageRejected(ValueError):  # noqa: N818 - names what happened to the image, as a reason does
    """An image we will not or cannot use. `reason` is one short machine word."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"image_rejected:{reason}: {detail}")
        self.reason = reason


@dataclass(frozen=True)
class ImageLimits:
    """What an image may cost before it is decoded."""

    max_bytes: int = 20 * MIB
    max_pixels: int = 50_000_000  # as RGB, 150 MB
    formats: tuple[str, ...] = tuple(kind.name for kind in DECODED)

    def __post_init__(self) -> None:
        if self.max_bytes < 1 or self.max_pixels < 1:
            raise ValueError(f"image limits must be at least 1, got {self.max_bytes} bytes, {self.max_pixels} pixels")
        known = set(Image.registered_extensions().values())
        if not set(self.formats) <= known:
            raise ValueError(f"unknown image formats {sorted(set(self.formats) - known)}; known: {sorted(known)}")


DEFAULT_LIMITS = ImageLimits()

# Second line of defence for every other open() in this process; ours checks the header against its own limits.
Image.MAX_IMAGE_PIXELS = DEFAULT_LIMITS.max_pixels


#: A JPEG of many scans is small and takes hours: each goes over all pixels (0.6 s of CPU per 1,000 scans of 1 Mpx).
MAX_SCANS = 100  # usual encoders write 1 to 12
MAX_SCANS_OF_LARGEST = 20  # scans × pixels: as many as so many scans of `max_pixels`
AVIF_LAYERS = 4  # times `max_pixels` that all AV1 frames of a file may have: colours, alpha, previews
#: What Pillow raises of damaged files: besides its own errors those of the parsers of their metadata.
_BROKEN = (
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    ArithmeticError,
    LookupError,
    TypeError,
    AttributeError,
    MemoryError,
    RuntimeError,
    struct.error,
    zlib.error,
)


def _open_checked(data: bytes, limits: ImageLimits) -> Image.Image:
    """Header only: no pixel is decoded before bytes, format, dimensions and scans pass."""
    if not data:
        raise ImageRejected("empty", "0 bytes")
    if len(data) > limits.max_bytes:
        raise ImageRejected("too_many_bytes", f"{len(data)} bytes; at most {limits.max_bytes} are read")
    known = format_of(data)
    if known is not None and known.name not in limits.formats:
        raise ImageRejected("format_not_allowed", f"{known.name}; expected {'/'.join(limits.formats)}")
    if known is not None and known.name == "AVIF":
        _check_avif(data, limits)
        data = as_still(data)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # our own limit decides, below; broken metadata is not our concern
            image = Image.open(io.BytesIO(data), formats=limits.formats)
    except Image.DecompressionBombError as error:
        raise ImageRejected("too_many_pixels", str(error)) from error
    except Image.UnidentifiedImageError as error:
        # Pillow's message names a memory address: not the same twice, so not for a stored table
        raise ImageRejected("undecodable", f"{len(data)} bytes that are no {'/'.join(limits.formats)} image") from error
    except _BROKEN as error:
        raise ImageRejected(_decoding_reason(error), f"{type(error).__name__}: {error}") from error
    width, height = image.size
    if width * height > limits.max_pixels:
        raise ImageRejected("too_many_pixels", f"{width} x {height}; at most {limits.max_pixels} pixels are decoded")
    if width < 1 or height < 1:
        raise ImageRejected("undecodable", f"{width} x {height} pixels")
    if known is not None and known.name == "JPEG":
        _check_scans(data, width * height, limits)
    if known is not None and known.name == "PNG" and "transparency" in image.info:
        image.info["transparency"] = _in_scale(image.info["transparency"], image.mode, png_bits(data))
    return image


def _in_scale(transparent: Any, mode: str, bits: int) -> Any:
    """A PNG's transparent grey or colour in the scale of the pixels: Pillow gives it as written, and them in 8 bits."""
    if mode == "L" and bits < 8:
        return transparent * 255 // (2**bits - 1)
    return tuple(channel >> 8 for channel in transparent) if mode == "RGB" and bits == 16 else transparent


def _load_checked(data: bytes, limits: ImageLimits, *, draft: bool = False) -> tuple[Image.Image, "ImageFacts"]:
    """An image with its pixels. `draft`: of a JPEG an eighth of its size.

    Metadata that Pillow refuses (a text chunk of megabytes, a broken colour profile) does not make the pixels bad: such
    a PNG is read without it.
    """
    try:
        return _loaded(data, limits, draft)
    except ImageRejected as rejection:
        bare = _without_metadata(data) if rejection.reason in ("undecodable", "truncated") else data
        if bare == data:
            raise
        try:
            image, facts = _loaded(bare, limits, draft)
        except ImageRejected:
            raise rejection from None
        return image, replace(facts, is_plain=False)


def _loaded(data: bytes, limits: ImageLimits, draft: bool) -> tuple[Image.Image, "ImageFacts"]:
    image = _open_checked(data, limits)
    facts = ImageFacts(*image.size, is_plain=_is_plain(image, data))
    if draft and image.format == "JPEG":
        image.draft(None, (max(1, facts.width // 8), max(1, facts.height // 8)))
    _load_pixels(image)
    return image, facts


def _is_plain(image: Image.Image, data: bytes) -> bool:
    """Whether OpenCV decodes a file to what we see in it; else, say, grey of 16 bits is stored as white."""
    is_plain = orientation_of(image) == 1
    if image.format == "PNG":
        is_plain &= png_bits(data) <= 8 and not ("transparency" in image.info and image.mode in ("1", "L"))
    elif image.format == "BMP":
        is_plain &= int.from_bytes(data[28:30], "little") not in (16, 32)  # bits of a pixel
    if image.format in ("PNG", "WEBP"):
        return is_plain and not getattr(image, "is_animated", False)
    return is_plain and image.format not in ("GIF", "AVIF")


def _check_scans(data: bytes, pixels: int, limits: ImageLimits) -> None:
    allowed = max(1, min(MAX_SCANS, MAX_SCANS_OF_LARGEST * limits.max_pixels // pixels))
    # the markers' bytes are counted first: only where there are too many it matters which of them are markers
    if data.count(b"\xff\xda") > allowed and jpeg_scans(data, allowed + 1) > allowed:
        raise ImageRejected("too_many_scans", f"more than {allowed} scans over {pixels} pixels")


def _check_avif(data: bytes, limits: ImageLimits) -> None:
    try:
        sizes = avif_sizes(data)
    except ValueError as error:
        raise ImageRejected("truncated" if isinstance(error, BoxCutError) else "undecodable", str(error)) from error
    most, allowed = max(sizes.stated, default=0), AVIF_LAYERS * limits.max_pixels
    if most > limits.max_pixels:
        raise ImageRejected("too_many_pixels", f"parts of {most} pixels; at most {limits.max_pixels} are decoded")
    if sum(sizes.frames) > allowed:
        raise ImageRejected(
            "too_many_pixels",
            f"{len(sizes.frames)} frames of {sum(sizes.frames)} pixels; at most {allowed} are decoded",
        )


_MARKER = re.compile(rb"\xff([^\x00\xff\xd0-\xd7])", re.DOTALL)  # 0 is a stuffed byte, d0–d7 restart a scan
_SCAN = 0xDA


def jpeg_scans(data: bytes, most: int) -> int:
    """How many scans a JPEG has before its end, counted up to `most`: bytes inside a segment are no markers."""
    scans, position = 0, 0
    while scans < most and (marker := _MARKER.search(data, position)) is not None:
        kind, position = marker[1][0], marker.end()
        if kind == 0xD9:  # end of image
            break
        scans += kind == _SCAN
        if kind not in (0xD8, 0x01):  # those have no length
            position += int.from_bytes(data[position : position + 2], "big")
    return scans


_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PNG_PIXELS = (b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND", b"eXIf")


def png_bits(data: bytes) -> int:
    """Bits per channel of a PNG: 1, 2, 4, 8 or 16."""
    return data[24]


def is_deep_grey(data: bytes) -> bool:
    """Whether a file is grey of 16 bits, which `Image.convert` turns white."""
    return data.startswith(_PNG_SIGNATURE) and data[24:26] == b"\x10\0"


def _png_places(data: bytes) -> Iterator[tuple[int, int]]:
    """(start, end) of every chunk."""
    start = len(_PNG_SIGNATURE)
    while data.startswith(_PNG_SIGNATURE) and start + 12 <= len(data):
        end = start + 12 + int.from_bytes(data[start : start + 4], "big")
        yield start, end
        start = end


_AVIF_EXIF = re.compile(rb"(infe[\2\3].{7,9})Exif", re.DOTALL)  # an AVIF's orientation is in another place


def _without_metadata(data: bytes) -> bytes:
    """A PNG or JPEG with the parts alone that pixels and orientation need, an AVIF without EXIF; others as they are."""
    if data.startswith(_PNG_SIGNATURE):
        kept = [data[start:end] for start, end in _png_places(data) if data[start + 4 : start + 8] in _PNG_PIXELS]
        return b"".join([_PNG_SIGNATURE, *kept])
    if not data.startswith(b"\xff\xd8"):
        return _AVIF_EXIF.sub(rb"\1skip", data) if data[4:8] == b"ftyp" else data
    kept, position = [b"\xff\xd8"], 2
    while (marker := _MARKER.match(data, position)) is not None and (kind := marker[1][0]) != _SCAN:  # no fill bytes
        length = int.from_bytes(data[marker.end() : marker.end() + 2], "big")
        is_adobe = kind == 0xEE and length >= 14  # how colours are written; of the other segments EXIF (E1) counts
        if is_adobe or kind == 0xE1 or not (0xE0 <= kind <= 0xEF or kind == 0xFE):
            kept.append(data[position : marker.end() + length])
        position = marker.end() + max(length, 2)
    return b"".join([*kept, data[position:]])


def _load_pixels(image: Image.Image) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image.load()
    except _BROKEN as error:
        raise ImageRejected(_decoding_reason(error), f"{type(error).__name__}: {error}") from error


def _decoding_reason(error: Exception) -> str:
    """Pillow reports 'truncated' in its message only."""
    is_truncated = "truncated" in str(error).lower() or isinstance(error, EOFError)
    return "truncated" if is_truncated else "undecodable"


def decode_image(data: bytes, limits: ImageLimits = DEFAULT_LIMITS) -> Image.Image:
    """Bytes → RGB image, turned upright (EXIF), alpha laid on white, first frame of an animation.

    Raises ImageRejected with reason empty, too_many_bytes, too_many_pixels, too_many_scans, format_not_allowed,
    undecodable, truncated or transparent.
    """
    return as_rgb(_load_checked(data, limits)[0])


def as_rgb(image: Image.Image) -> Image.Image:
    """An opened image as RGB, turned upright (EXIF), alpha laid on white. Raises ImageRejected for broken pixels, and
    with range_unknown for numbers that are no grey (see `_in_8_bits`), with transparent where nothing can be seen (an
    empty alpha of a BMP is none)."""
    _load_pixels(image)
    orientation = orientation_of(image)
    upright = _in_8_bits(image)
    if orientation != 1:
        upright = upright.transpose(_TURNS[orientation])
    if upright.mode == "La":
        upright = upright.convert("LA")
    if upright.has_transparency_data:
        alpha = upright.convert("RGBA")
        is_invisible = alpha.getchannel("A").getextrema()[1] == 0
        if is_invisible and image.format != "BMP":
            raise ImageRejected("transparent", "alpha is 0 everywhere: nothing of it can be seen")
        if is_invisible:  # a channel that was left empty, as browsers see it
            return alpha.convert("RGB")
        paper = Image.new("RGBA", alpha.size, (255, 255, 255, 255))
        return Image.alpha_composite(paper, alpha).convert("RGB")
    if upright.mode == "RGB" and upright is not image:
        return upright  # a copy already
    return upright.convert("RGB")


#: EXIF's orientation → how to turn the pixels.
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_EXIF_ORIENTATION = 0x0112


def orientation_of(image: Image.Image) -> int:
    """EXIF's orientation, 1 (upright) to 8; 1 where there is none, or a broken one."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            orientation = image.getexif().get(_EXIF_ORIENTATION, 1)
    except _BROKEN:
        return 1  # a broken EXIF block does not make the pixels bad
    return orientation if orientation in _TURNS else 1


def _in_8_bits(image: Image.Image) -> Image.Image:
    """Grey of 16 or 32 bits, or of fractions, as 8 bits; other images as they are.

    16 bits give their upper half, as in PNGs of 16-bit colours. Of the others the range decides: fractions within 0 to
    1 are shares of white, numbers within 0 to 255 are grey as it is, and those within 0 to 65535 are 16 bits.
    """
    if image.mode not in ("I", "F") and not image.mode.startswith("I;"):
        return image
    values = np.asarray(image)  # (H, W)
    lowest, highest = values.min(), values.max()
    if not (lowest >= 0 and highest <= 0xFFFF):  # NaN is neither
        raise ImageRejected(
            "range_unknown", f"mode {image.mode}: {lowest} to {highest}; expected 0–1, 0–255 or 0–65535"
        )
    if image.mode.startswith("I;"):
        grey = values >> 8
    elif image.mode == "F" and highest <= 1:
        grey = np.rint(values * 255)
    else:
        grey = np.rint(values) if highest <= 0xFF else values // 256
    eight = Image.fromarray(grey.astype(np.uint8))
    transparent = image.info.get("transparency")
    if transparent is not None:
        eight.putalpha(Image.fromarray(np.where(values == transparent, 0, 255).astype(np.uint8)))
    return eight


@dataclass(frozen=True)
class ImageFacts:
    """What a check learns about an image: size in pixels as stored (before EXIF rotation)."""

    width: int
    height: int
    is_plain: bool = True  # OpenCV decodes it to the same pixels


def check_image(data: bytes, limits: ImageLimits = DEFAULT_LIMITS) -> ImageFacts:
    """Decode cheaply to learn whether `decode_image` will succeed. Raises ImageRejected as it does.

    JPEGs are decoded at an eighth of their size: every byte is still entropy-decoded, so truncation shows.
    """
    image, facts = _load_checked(data, limits, draft=True)
    if image.has_transparency_data:
        as_rgb(image)
    return facts


@dataclass(frozen=True)
class TarMember:
    """Where one file lies in a tar."""

    name: str
    offset: int  # bytes from the start of the tar to the file's data
    size: int


@dataclass(frozen=True)
class TarDamage:
    """Where a tar could not be followed. `reason`: tar_truncated:byte_N, tar_damaged:byte_N or tar_unreadable:WHAT."""

    reason: str
    sentence: str  # for people; names the tar


#: What a compressed file begins with → (its name, what unpacks it).
COMPRESSIONS = {
    b"\x1f\x8b": ("gzip", "gunzip"),
    b"BZh": ("bzip2", "bunzip2"),
    b"\xfd7zXZ\x00": ("xz", "unxz"),
    b"\x28\xb5\x2f\xfd": ("zstd", "unzstd"),
}
BLOCK = tarfile.BLOCKSIZE
_MAGIC, _MAGIC_OFFSET = b"ustar", 257  # in a header
MAX_RESTARTS = 100  # places where a tar is damaged: headers can be made so that each costs seconds
NAME_LETTERS = 80  # of a member's name in a reason
#: What `tarfile` raises of headers that no writer makes: sizes below zero, numbers of 5,000 digits, chains of headers.
_HEADER_ERRORS = (
    tarfile.TarError,
    ValueError,
    IndexError,
    KeyError,
    OverflowError,
    EOFError,
    RecursionError,
    MemoryError,
)


def compression_of(head: bytes) -> tuple[str, str] | None:
    """('gzip', 'gunzip') for the first bytes of a compressed file; None for others."""
    return next((named for magic, named in COMPRESSIONS.items() if head.startswith(magic)), None)


class TarIndex:
    """The regular files of a tar by name, located once and read by offset.

    A tar that is cut or damaged is followed as far as it goes, and again from the next sound header on; `damage` then
    states where and why it broke off first. Of two members with one name the first counts, the others are in
    `repeated`; links and devices are in `irregular`, folders nowhere.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.members: dict[str, TarMember] = {}
        self.repeated: list[str] = []
        self.irregular: list[str] = []
        self.damage: TarDamage | None = None
        with self.path.open("rb") as file:
            self._read_headers(file, file.seek(0, os.SEEK_END))

    def _read_headers(self, file: BinaryIO, size: int) -> None:
        file.seek(0)
        head = file.read(BLOCK)  # raises OSError for a file that cannot be read, whatever its size
        compression = compression_of(head)
        if compression is not None:
            name, tool = compression
            self._note(f"tar_unreadable:{name}", f"{name}-compressed: unpack it with {tool}")
            return
        start: int | None = 0
        restarts = 0
        while start is not None:
            end = self._follow(file, start, size)
            if size - end >= BLOCK and _is_zero(file, end):
                return  # the end-of-archive block
            if end >= size:
                what = f"cut at byte {size}: no end-of-archive block is there" if size else "empty: it has 0 bytes"
                self._note(f"tar_truncated:byte_{size}", what)
                return
            restarts += 1
            start = _next_header(file, end + 1) if restarts <= MAX_RESTARTS else None
            if start is not None:
                self._note(
                    f"tar_damaged:byte_{end}", f"damaged at byte {end}; what follows is read from byte {start} on"
                )
            elif not (self.members or self.irregular):
                self._note("tar_unreadable:no_tar", f"no tar: it has {size} bytes and no header of one")
            elif size - end < BLOCK:
                self._note(f"tar_truncated:byte_{size}", f"cut at byte {size}, inside a header")
            else:
                self._note(f"tar_damaged:byte_{end}", f"damaged at byte {end}: nothing can be read from there on")

    def _note(self, reason: str, sentence: str) -> None:
        self.damage = self.damage or TarDamage(reason, f"{self.path.name} is {sentence}")

    def _follow(self, file: BinaryIO, start: int, size: int) -> int:
        """Take members from `start` on. Returns the byte where no further header can be read; `size` where one is cut.

        Headers come from whoever made the tar: one of a size below zero is none, or reading would never stop.
        """
        end = start
        file.seek(start)
        try:
            with tarfile.open(fileobj=file, mode="r:") as tar:
                while (info := tar.next()) is not None and tar.offset > end and info.size >= 0:
                    if info.offset_data + info.size > size:
                        self._note(
                            f"tar_truncated:byte_{size}",
                            f"cut at byte {size}: {printable(info.name)} reaches beyond it",
                        )
                    self._take(info)
                    end = tar.offset
                    if end > size:
                        return size
        except _HEADER_ERRORS:  # the caller notes where it happened
            pass
        return end

    def _take(self, info: tarfile.TarInfo) -> None:
        if info.isdir():
            return
        if not info.isreg() or info.issparse():
            self.irregular.append(info.name)
        elif info.name in self.members:
            self.repeated.append(info.name)
        else:
            self.members[info.name] = TarMember(info.name, info.offset_data, info.size)

    def read(self, name: str) -> bytes:
        """Bytes of a member. Raises KeyError for an unknown name, ImageRejected('truncated') where bytes lack."""
        if name not in self.members:
            raise KeyError(f"{self.path} has no member {name!r}; it has {len(self.members)} files")
        member = self.members[name]
        with self.path.open("rb") as file:
            file.seek(member.offset)
            data = file.read(member.size)
        if len(data) < member.size:
            raise ImageRejected("truncated", f"{name}: {len(data)} of {member.size} bytes are in {self.path.name}")
        return data

    def sha256(self, name: str) -> str | None:
        """sha256 of a member, 64 hex digits; None where bytes lack. Raises KeyError."""
        try:
            return hashlib.sha256(self.read(name)).hexdigest()
        except ImageRejected:
            return None


def _is_zero(file: BinaryIO, start: int) -> bool:
    """Whether nothing but zeros follows."""
    file.seek(start)
    return not any(chunk.strip(b"\0") for chunk in iter(lambda: file.read(MIB), b""))


def _next_header(file: BinaryIO, start: int) -> int | None:
    """The first byte from `start` on where a header with a right checksum lies; None where none does."""
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        at = data.find(_MAGIC, start + _MAGIC_OFFSET)
        while at >= 0:
            header = at - _MAGIC_OFFSET
            try:
                tarfile.TarInfo.frombuf(data[header : header + BLOCK], tarfile.ENCODING, "surrogateescape")
            except tarfile.HeaderError:
                at = data.find(_MAGIC, at + 1)
            else:
                return header
    return None


def printable(name: str) -> str:
    """A member's name for people and tables, 80 letters at most: `visible`, and what is no UTF-8 escaped.

    Example: the Latin-1 bytes of café.jpg, which `tarfile` gives as caf\\udce9.jpg, become caf\\xe9.jpg.
    """
    shown = visible(name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace"))
    return shown if len(shown) <= NAME_LETTERS else f"{shown[: NAME_LETTERS - 1]}…"


@once_per_version(64)
def _index(path: Path) -> TarIndex:
    index = TarIndex(path)
    if index.damage is None:
        put_places(path, {name: (member.offset, member.size) for name, member in index.members.items()})
    return index


def tar_index(path: Path) -> TarIndex:
    """Index of a tar, cached until the file changes. Raises FileNotFoundError with what to do, OSError where it cannot
    be read."""
    fetch(path)
    if not path.is_file():
        raise FileNotFoundError(f"no tar {path}; materialise raw/downloads again, or restore the pool's source")
    return _index(path.absolute())


def scored_image(tar: Path, member: str, sha256: str) -> tuple[bytes, None, str] | tuple[None, str, str]:
    """(bytes of an image, None, …), or (None, reason, what was found in a few words) where it is not the one that was
    scored: its tar or its name is missing, or its bytes are others.
    """
    try:
        data = tar_index(tar).read(member)
    except ImageRejected as rejection:
        return None, f"image_{rejection.reason}", str(rejection)
    except (FileNotFoundError, KeyError) as error:
        return None, "image_gone", str(error.args[0]) if isinstance(error, KeyError) else str(error)
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        return None, "image_changed", f"{len(data):,} bytes with sha256 {found}"
    return data, None, ""


def for_training(data: bytes, limits: ImageLimits = DEFAULT_LIMITS) -> tuple[bytes, str, str | None]:
    """(file, its extension, what it was or None) as trainings read it: open_clip leaves out GIF, BMP and AVIF, and
    takes 16-bit grey for white. Those become PNG with the pixels that were scored. Raises ImageRejected as
    `decode_image`.
    """
    kind = format_of(data)
    extension = "" if kind is None else kind.extensions[0]
    if extension in TRAINING_EXTENSIONS and not is_deep_grey(data):
        return data, extension, None
    pixels = io.BytesIO()
    decode_image(data, limits).save(pixels, "PNG")
    return pixels.getvalue(), "png", "unknown" if kind is None else kind.name


def read_member(path: Path, name: str) -> bytes:
    """Bytes of a member of a tar, for whoever wants a few: of a bucket, a tar that is not here stays there.

    Raises as `tar_index` and `TarIndex.read`.
    """
    far = far_tar(path)
    data = None if far is None else far.read(name)
    return tar_index(path).read(name) if data is None else data
