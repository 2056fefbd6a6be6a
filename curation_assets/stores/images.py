"""Images: bytes out of tars by member name, and pixels out of untrusted bytes."""

import functools
import io
import mmap
import os
import tarfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from PIL import Image, ImageOps, UnidentifiedImageError

from curation_assets.stores.atomic import fetch
from curation_assets.stores.file_hash import FileState
from curation_assets.stores.tar_members import put_places, read_range

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
    formats: tuple[str, ...] = ("JPEG", "PNG", "WEBP", "GIF", "BMP")

    def __post_init__(self) -> None:
        if self.max_bytes < 1 or self.max_pixels < 1:
            raise ValueError(f"image limits must be at least 1, got {self.max_bytes} bytes, {self.max_pixels} pixels")
        known = set(Image.registered_extensions().values())
        if not set(self.formats) <= known:
            raise ValueError(f"unknown image formats {sorted(set(self.formats) - known)}; known: {sorted(known)}")


DEFAULT_LIMITS = ImageLimits()

# Second line of defence for every other open() in this process; ours checks the header against its own limits.
Image.MAX_IMAGE_PIXELS = DEFAULT_LIMITS.max_pixels


def _open_checked(data: bytes, limits: ImageLimits) -> Image.Image:
    """Header only: no pixel is decoded before bytes, format and dimensions pass."""
    if not data:
        raise ImageRejected("empty", "0 bytes")
    if len(data) > limits.max_bytes:
        raise ImageRejected("too_many_bytes", f"{len(data)} bytes; at most {limits.max_bytes} are read")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our own limit decides, below
            image = Image.open(io.BytesIO(data), formats=limits.formats)
    except Image.DecompressionBombError as error:
        raise ImageRejected("too_many_pixels", str(error)) from error
    except UnidentifiedImageError as error:
        # Pillow's message names a memory address: not the same twice, so not for a stored table
        raise ImageRejected(
            _unidentified_reason(data, limits), f"{len(data)} bytes that are no {'/'.join(limits.formats)} image"
        ) from error
    except (OSError, ValueError, SyntaxError, EOFError, OverflowError) as error:
        raise ImageRejected(_decoding_reason(error), f"{type(error).__name__}: {error}") from error
    width, height = image.size
    if width * height > limits.max_pixels:
        raise ImageRejected("too_many_pixels", f"{width} x {height}; at most {limits.max_pixels} pixels are decoded")
    if width < 1 or height < 1:
        raise ImageRejected("undecodable", f"{width} x {height} pixels")
    return image


def _unidentified_reason(data: bytes, limits: ImageLimits) -> str:
    """Tell a sound image of a format we refuse from bytes that are no image."""
    others = [name for name in ("TIFF", "AVIF", "ICO", "PPM", "TGA", "PSD") if name not in limits.formats]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            Image.open(io.BytesIO(data), formats=others)
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError, KeyError):
        return "undecodable"
    return "format_not_allowed"


def _load_pixels(image: Image.Image) -> None:
    try:
        image.load()
    except (OSError, ValueError, SyntaxError, EOFError, IndexError, OverflowError, MemoryError) as error:
        raise ImageRejected(_decoding_reason(error), f"{type(error).__name__}: {error}") from error


def _decoding_reason(error: Exception) -> str:
    """Pillow reports 'truncated' in its message only."""
    is_truncated = "truncated" in str(error).lower() or isinstance(error, EOFError)
    return "truncated" if is_truncated else "undecodable"


def decode_image(data: bytes, limits: ImageLimits = DEFAULT_LIMITS) -> Image.Image:
    """Bytes → RGB image, turned upright (EXIF), alpha laid on white, first frame of an animation.

    Raises ImageRejected with reason empty, too_many_bytes, too_many_pixels, format_not_allowed, undecodable or
    truncated.
    """
    return as_rgb(_open_checked(data, limits))


def as_rgb(image: Image.Image) -> Image.Image:
    """An opened image as RGB, turned upright (EXIF), alpha laid on white. Raises ImageRejected for broken pixels."""
    _load_pixels(image)
    try:
        upright = ImageOps.exif_transpose(image)
    except (OSError, ValueError, SyntaxError, KeyError, TypeError, ZeroDivisionError, EOFError):
        upright = image  # a broken EXIF block does not make the pixels bad
    if upright.mode in ("RGBA", "LA", "PA") or "transparency" in upright.info:
        alpha = upright.convert("RGBA")
        paper = Image.new("RGBA", alpha.size, (255, 255, 255, 255))
        return Image.alpha_composite(paper, alpha).convert("RGB")
    if upright.mode == "RGB" and upright is not image:
        return upright  # a copy already
    return upright.convert("RGB")


@dataclass(frozen=True)
class ImageFacts:
    """What a check learns about an image: size in pixels as stored (before EXIF rotation)."""

    width: int
    height: int


def check_image(data: bytes, limits: ImageLimits = DEFAULT_LIMITS) -> ImageFacts:
    """Decode cheaply to learn whether `decode_image` will succeed. Raises ImageRejected as it does.

    JPEGs are decoded at an eighth of their size: every byte is still entropy-decoded, so truncation shows.
    """
    image = _open_checked(data, limits)
    width, height = image.size
    if image.format == "JPEG":
        image.draft(None, (max(1, width // 8), max(1, height // 8)))
    _load_pixels(image)
    return ImageFacts(width, height)


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
    """A member's name for people and tables, 80 letters at most: what is no UTF-8 and control characters escaped.

    Example: the Latin-1 bytes of café.jpg, which `tarfile` gives as caf\\udce9.jpg, become caf\\xe9.jpg.
    """
    text = name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return shown if len(shown) <= NAME_LETTERS else f"{shown[: NAME_LETTERS - 1]}…"


@functools.lru_cache(maxsize=64)
def _index(path: Path, state: FileState) -> TarIndex:
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
    return _index(path.absolute(), FileState.of(path))


def read_member(path: Path, name: str) -> bytes:
    """Bytes of a member of a tar, for whoever wants a few: of a bucket, a tar that is not here stays there.

    Raises as `tar_index` and `TarIndex.read`.
    """
    data = read_range(path, name)
    return tar_index(path).read(name) if data is None else data


class ImageStore:
    """Images of a pool by the `tar` and `member` columns of raw/samples.

    `root`: the pool's work folder, from which relative `tar` paths count (absolute ones stand for themselves).
    """

    def __init__(self, root: Path, limits: ImageLimits = DEFAULT_LIMITS) -> None:
        self.root = Path(root)
        self.limits = limits

    def read_bytes(self, tar: str, member: str) -> bytes:
        """Bytes of an image file. Raises KeyError, FileNotFoundError, ImageRejected."""
        return read_member(self.root / tar, member)  # root / absolute path is the absolute path

    def load(self, row: Mapping[str, Any]) -> Image.Image:
        """RGB image of a row of raw/samples. Raises ImageRejected, with reason no_image where the row has none."""
        if row.get("tar") is None or row.get("member") is None:
            raise ImageRejected("no_image", f"sample {row.get('sample_id')} has no image")
        return decode_image(self.read_bytes(row["tar"], row["member"]), self.limits)
