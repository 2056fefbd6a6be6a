"""Arrays in files: .npy that people bring, and long ones, written stretch by stretch."""

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np


def load_npy(path: Path) -> np.ndarray:
    """The array of a file. Nothing is unpickled. Raises ValueError for a file that is not one array, or cut short."""
    try:
        _check_length(path)
        loaded = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path} cannot be read as .npy: {error}; write it by numpy.save") from error
    if not isinstance(loaded, np.ndarray):
        raise ValueError(f"{path} holds several arrays; expected one, written by numpy.save")
    return loaded


def _check_length(path: Path) -> None:
    """Raise ValueError for a file that is shorter than its header says: memory of that size would be requested."""
    with path.open("rb") as file:
        if file.read(len(np.lib.format.MAGIC_PREFIX)) != np.lib.format.MAGIC_PREFIX:
            return  # of several arrays, or of none
        file.seek(0)
        is_first = np.lib.format.read_magic(file) == (1, 0)
        read = np.lib.format.read_array_header_1_0 if is_first else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
        said, held = math.prod(shape) * dtype.itemsize, path.stat().st_size - file.tell()
        if said > held and not dtype.hasobject:
            raise ValueError(f"its header says {dtype} of shape {shape}, {said:,} bytes; {held:,} follow it")


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


def npy_stretches(path: Path, length: int = 1 << 20) -> Iterator[np.ndarray]:
    """The array of a file that `write_npy` or numpy.save wrote, one axis, in stretches of at most `length`."""
    with path.open("rb") as file:
        np.lib.format.read_magic(file)
        (size,), _, dtype = np.lib.format.read_array_header_1_0(file)
        for start in range(0, size, length):
            yield np.fromfile(file, dtype, min(length, size - start))
