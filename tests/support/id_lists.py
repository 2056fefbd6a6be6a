"""Lists of ids, whole."""

import io
from pathlib import Path

import numpy as np

from curation_assets.numeric.identity import UID_DTYPE
from curation_assets.stores.subsets import packed_ids


def read_subset(path: Path) -> list[str]:
    """All ids of a file that lists samples, sorted, each as often as it is listed."""
    return unpack_uids(packed_ids(path))


def unpack_uids(packed: np.ndarray) -> list[str]:
    """(N,) structured u8,u8 → N ids in the order given. Raises ValueError for another dtype."""
    if packed.dtype != UID_DTYPE:
        raise ValueError(f"expected dtype u8,u8 (high, low 64 bits), got {packed.dtype}")
    return [f"{int(high):016x}{int(low):016x}" for high, low in zip(packed["f0"], packed["f1"], strict=True)]


def npy_bytes(array: np.ndarray) -> bytes:
    """An array as numpy's own file."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()
