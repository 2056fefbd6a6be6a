"""Arrow arrays as NumPy arrays over their own buffers, without loading pyarrow here.

Arrow's own to_numpy loads pandas, which takes longer than to read a hundred shards.
"""

from typing import Any

import numpy as np


def stored_numbers(array: Any) -> np.ndarray:
    """(N,) numbers as stored, not to be changed; where there is a null, anything."""
    stored = np.frombuffer(array.buffers()[1] or b"", dtype=array.type.to_pandas_dtype())
    return stored[array.offset : array.offset + len(array)]


def text_bytes(array: Any) -> tuple[np.ndarray, np.ndarray]:
    """Texts → (N + 1,) where each begins, and the bytes of all, from the first's on."""
    ends, data = array.buffers()[1:]
    kind = np.int64 if str(array.type) == "large_string" else np.int32
    offsets = np.frombuffer(ends or bytes(8), dtype=kind)[array.offset : array.offset + len(array) + 1]
    return offsets, np.frombuffer(data or b"", dtype=np.uint8)[offsets[0] : offsets[-1]]


def repeats_text(array: Any, text: str) -> bool:
    """Whether every one of N texts is `text`, none null."""
    offsets, letters = text_bytes(array)
    encoded = text.encode()
    is_length = bool((np.diff(offsets) == len(encoded)).all())
    return is_length and not array.null_count and letters.tobytes() == encoded * len(array)


def null_mask(array: Any) -> np.ndarray:
    """(N,) bool."""
    valid = array.buffers()[0]
    if valid is None or not array.null_count:
        return np.zeros(len(array), dtype=bool)
    bits = np.unpackbits(np.frombuffer(valid, dtype=np.uint8), bitorder="little")
    return np.asarray(bits[array.offset : array.offset + len(array)] == 0)
