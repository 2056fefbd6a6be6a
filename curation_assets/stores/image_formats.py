"""The formats of images, listed once: those that are decoded, those that are refused, how their files end and begin."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class ImageFormat:
    """A format of image files."""

    name: str  # Pillow's, where Pillow has it
    extensions: tuple[str, ...]  # lower case, without the dot; the first is the usual one
    begins: bytes  # a regular expression of the first bytes


def _format(name: str, extensions: str, begins: bytes) -> ImageFormat:
    return ImageFormat(name, tuple(extensions.split()), begins)


DECODED = (
    _format("JPEG", "jpg jpeg jfif jpe", rb"\xff\xd8\xff"),
    _format("PNG", "png apng", rb"\x89PNG\r\n\x1a\n"),
    _format("WEBP", "webp", rb"RIFF.{4}WEBP"),
    _format("GIF", "gif", rb"GIF8"),
    _format("BMP", "bmp dib", rb"BM"),
    # the brand in front may be that of any HEIF, with AVIF's among those that follow
    _format("AVIF", "avif avifs", rb".{4}ftyp(avi[fs]|(mif1|msf1)(.{4}){1,9}?avi[fs])"),
)
#: Images as well: their rows fail as format_not_allowed.
REFUSED = (
    _format("TIFF", "tif tiff", rb"II[*+]\0|MM\0[*+]"),
    _format("HEIF", "heic heif hif", rb".{4}ftyp(hei[cmsx]|hev[cmsx]|mif1|msf1)"),
    _format("JPEG2000", "jp2 j2k jpf jpx", rb"\0\0\0\x0cjP  \r\n\x87\n|\xff\x4f\xff\x51"),
    _format("JPEGXL", "jxl", rb"\xff\x0a|\0\0\0\x0cJXL \r\n\x87\n"),
    _format("SVG", "svg svgz", rb"(\xef\xbb\xbf)?\s*(<[?!].{0,1500}?)?<svg\b"),
    _format("ICO", "ico cur", rb"\0\0[\x01\x02]\0"),
    _format("PPM", "ppm pgm pbm pnm pam pfm", rb"P[1-7fF]\s"),
    _format("PSD", "psd", rb"8BPS"),
    _format("QOI", "qoi", rb"qoif"),
    _format("EXR", "exr", rb"v/1\x01"),
    _format("TGA", "tga", rb".[\x00\x01][\x01-\x03\x09-\x0b].{5}\0{4}.{4}[\x08\x0f\x10\x18\x20]"),
)  # fmt: skip

#: What readers of tars for training look for (open_clip, webdataset), in order of preference.
TRAINING_EXTENSIONS = ("jpg", "jpeg", "png", "webp")
#: Extensions of all images, decoded or refused, in the order in which one of several files of a sample is taken.
IMAGE_EXTENSIONS = tuple(
    dict.fromkeys(
        [*TRAINING_EXTENSIONS, *(extension for kind in (*DECODED, *REFUSED) for extension in kind.extensions)]
    )
)
IMAGE_SUFFIXES = tuple(f".{extension}" for extension in IMAGE_EXTENSIONS)


def format_of(data: bytes) -> ImageFormat | None:
    """The format of a file, by its first bytes; None for what is no image, or none that is known here."""
    head = bytes(data[:2048])
    return next((kind for kind in (*DECODED, *REFUSED) if re.match(kind.begins, head, re.DOTALL)), None)
