"""Images: bytes out of tars by member name, and pixels out of untrusted bytes."""

import functools
import io
import tarfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps, UnidentifiedImageError

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


class TarIndex:
    """The regular files of a tar by name, found once and read by offset.

    A truncated or damaged tar is indexed as far as it can be followed; `damage` then states where and why it stopped.
    Of two members with one name the first counts. Links, devices and folders are ignored.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.members: dict[str, TarMember] = {}
        self.damage: str | None = None
        self.repeated: list[str] = []
        tar_bytes = self.path.stat().st_size
        try:
            with tarfile.open(self.path, "r:") as tar:
                for info in tar:
                    if not info.isreg() or info.issparse():
                        continue
                    if info.name in self.members:
                        self.repeated.append(info.name)
                        continue
                    self.members[info.name] = TarMember(info.name, info.offset_data, info.size)
                    if info.offset_data + info.size > tar_bytes:
                        self.damage = f"{info.name} reaches beyond the end of the file"
                end = tar.offset
        except tarfile.TarError as error:
            self.damage = self.damage or f"{type(error).__name__}: {error}"
            end = 0
        if self.damage is None and end >= tar_bytes and tar_bytes > 0:
            self.damage = "no end-of-archive block: the file was cut between two members"

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


@functools.lru_cache(maxsize=64)
def _index(path: Path, modified_ns: int, size: int) -> TarIndex:
    return TarIndex(path)


def tar_index(path: Path) -> TarIndex:
    """Index of a tar, cached until the file changes. Raises FileNotFoundError with what to do."""
    if not path.is_file():
        raise FileNotFoundError(f"no tar {path}; materialise raw/downloads again, or restore the pool's source")
    stat = path.stat()
    return _index(path.absolute(), stat.st_mtime_ns, stat.st_size)


class ImageStore:
    """Images of a pool by the `tar` and `member` columns of raw/samples.

    `root`: the pool's work folder, from which relative `tar` paths count (absolute ones stand for themselves).
    """

    def __init__(self, root: Path, limits: ImageLimits = DEFAULT_LIMITS) -> None:
        self.root = Path(root)
        self.limits = limits

    def read_bytes(self, tar: str, member: str) -> bytes:
        """Bytes of an image file. Raises KeyError, FileNotFoundError, ImageRejected."""
        return tar_index(self.root / tar).read(member)  # root / absolute path is the absolute path

    def load(self, row: Mapping[str, Any]) -> Image.Image:
        """RGB image of a row of raw/samples. Raises ImageRejected, with reason no_image where the row has none."""
        if row.get("tar") is None or row.get("member") is None:
            raise ImageRejected("no_image", f"sample {row.get('sample_id')} has no image")
        return decode_image(self.read_bytes(row["tar"], row["member"]), self.limits)
