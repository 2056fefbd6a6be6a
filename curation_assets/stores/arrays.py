"""Arrays that people bring, as .npy files."""

from pathlib import Path

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
