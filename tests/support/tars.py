"""Tars of given bytes, and images as bytes."""

import io
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from PIL import Image


def tar_of(path: Path, members: Mapping[str, bytes] | Iterable[tuple[str, bytes]]) -> Path:
    """Write a tar of these members, in order, with its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tar_bytes(members))
    return path


def tar_bytes(members: Mapping[str, bytes] | Iterable[tuple[str, bytes]], form: int = tarfile.DEFAULT_FORMAT) -> bytes:
    """As `tar_of`, in memory."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for name, data in members.items() if isinstance(members, Mapping) else members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def encoded(image: Image.Image, form: str = "JPEG", **options: Any) -> bytes:
    """An image as the bytes of a file."""
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()
