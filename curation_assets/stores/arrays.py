"""Arrays as .npy files: those that people bring, and long ones that are written stretch by stretch."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np


def load_npy(path: Path) -> np.ndarray:
    """The array of a file. Nothing is unpickled. Raises ValueError for a file that is not one array."""
    try:
        loaded = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path} cannot be read as .npy: {error}; write it by numpy.save") from error
    if not isinstance(loaded, np.ndarray):
        raise ValueError(f"{path} holds several arrays; expected one, written by numpy.save")
    return loaded


def write_npy(path: Path, stretches: Iterable[np.ndarray], dtype: np.dtype[Any]) -> int:
    """Write one axis of `dtype`, one stretch after the other: the bytes of numpy.save of all. Returns its length."""
    length = 0
    with path.open("wb") as file:
        for is_whole in (False, True):  # the header is as long for any length
            file.seek(0)
            header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (length,)}
            np.lib.format.write_array_header_1_0(file, header)
            for stretch in () if is_whole else stretches:
                file.write(np.ascontiguousarray(stretch, dtype=dtype).data)
                length += len(stretch)
    return length
