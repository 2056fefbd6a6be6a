"""Files that are no tables, each whole or not at all: JSON with its own hash, JSON for other programs, weights.

A note of work begun on a pool (a takedown, a retry, a repair) is such a document: it is written before the first change
and removed after the last, and who finds it finishes that work.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from curation_assets.core.json_files import read_json
from curation_assets.core.seal import sealed_json
from curation_assets.stores.atomic import reload, remove_path, replacing, writing_new
from curation_assets.stores.objects import ObjectChangedError

if TYPE_CHECKING:
    import polars as pl

T = TypeVar("T")


def save_text(path: Path, text: str, *, mode: int | None = None, is_new: bool = False) -> None:
    """`text` as UTF-8. `mode`: permissions, set before the file has any content. `is_new`: at a path that a user gave,
    and nothing is overwritten. Raises DiskError, ValueError as `writing_new`.
    """
    with writing_new(path) if is_new else replacing(path) as temporary:
        if mode is not None:
            temporary.touch(mode)
            temporary.chmod(mode)
        temporary.write_text(text, encoding="utf-8")


def save_document(path: Path, content: Mapping[str, Any] | list[Any], *, mode: int | None = None) -> None:
    """A JSON file of this program, with its own sha256 (core/seal.py).

    `mode`: permissions, set before the file has any content. Raises DiskError.
    """
    save_text(path, sealed_json(content), mode=mode)


def save_agreed(path: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """`save_document` of what `make` gives, and that content. Where another machine was first, `make` is called again,
    of what is there now. Raises DiskError, ObjectStoreError.
    """
    while True:
        content = make()
        try:
            save_document(path, content)
        except ObjectChangedError:
            reload(path)
        else:
            return content


def read_document(path: Path, build: Callable[[Any], T], *, advice: str) -> T | None:
    """What `build` makes of the content; None where there is no file. Raises what `read_json` raises."""
    return read_json(path, build, advice=advice) if path.is_file() else None


def remove_document(path: Path) -> None:
    """Delete a document, if it exists; it stays away after a power cut."""
    remove_path(path)


def save_json(path: Path, content: Mapping[str, Any] | list[Any]) -> None:
    """A JSON file that other programs read. Raises DiskError."""
    save_text(path, json.dumps(content, indent=1, ensure_ascii=False))


def save_frame(
    path: Path, frame: "pl.DataFrame", *, metadata: dict[str, str] | None = None, is_new: bool = False
) -> None:
    """A Parquet file that is no table of the store. `metadata`: of its footer; `is_new`: as of `save_text`.
    Raises DiskError, ValueError as `writing_new`.
    """
    with writing_new(path) if is_new else replacing(path) as temporary:
        frame.write_parquet(temporary, metadata=metadata)


def save_tensors(path: Path, tensors: Mapping[str, Any], metadata: dict[str, str] | None = None) -> None:
    """A safetensors file of arrays of NumPy or tensors of torch. Raises DiskError."""
    import numpy as np
    import safetensors.numpy

    with replacing(path) as temporary:
        if all(isinstance(tensor, np.ndarray) for tensor in tensors.values()):
            safetensors.numpy.save_file(dict(tensors), temporary, metadata)
        else:
            import safetensors.torch

            safetensors.torch.save_file(dict(tensors), temporary, metadata)
