"""What an evaluation set is: images with captions, where each image lies, and what was left out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

from curation_assets.stores.images import DEFAULT_LIMITS, ImageLimits, ImageRejected, decode_image, read_member


@dataclass(frozen=True)
class EvaluationImage:
    """One image: a file (`path`), or a `member` of a `tar`; both absolute."""

    image_id: str
    captions: tuple[str, ...]
    path: str | None
    tar: str | None
    member: str | None


@dataclass(frozen=True)
class EvaluationSet:
    """The images of one split.

    `left_out`: reason → count, of images; of captions where the reason begins with `caption`, of tars where with `tar`.
    """

    name: str
    layout: str
    images: tuple[EvaluationImage, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)


def load_image(image: EvaluationImage, limits: ImageLimits = DEFAULT_LIMITS) -> Image.Image:
    """RGB image. Raises ImageRejected: not_found, or a reason of `stores.images.decode_image`."""
    if image.path is not None:
        try:
            with Path(image.path).open("rb") as stream:
                data = stream.read(limits.max_bytes + 1)
        except OSError as error:
            raise ImageRejected("not_found", f"{image.path}: {error.strerror}") from error
        return decode_image(data, limits)
    if image.tar is None or image.member is None:
        raise ImageRejected("not_found", f"image {image.image_id} has neither a file nor a member of a tar")
    try:
        data = read_member(Path(image.tar), image.member)
    except (KeyError, OSError) as error:
        raise ImageRejected("not_found", f"no member {image.member} in {image.tar}") from error
    return decode_image(data, limits)
