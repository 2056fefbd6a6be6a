"""Arrays in .npy files that people bring."""

import math
from pathlib import Path

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
