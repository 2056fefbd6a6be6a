"""Which captions a bank holds: `bank:embedded` is written by the grammar, `bank:/captions.txt` is the user's own."""

import hashlib
from functools import lru_cache
from pathlib import Path

from curation_assets.world.bank.grammar import build_scenes

EMBEDDED_SIZE, EMBEDDED_SEED = 24_000, 0


def bank_captions(file: Path | None) -> tuple[str, ...]:
    """Distinct captions, sorted: those of a text file, one a line, or (None) those of the embedded bank.

    Raises ValueError for a file that is not UTF-8 or holds no caption.
    """
    if file is None:
        return _embedded()
    stat = file.stat()
    return _of_file(file, (stat.st_size, stat.st_mtime_ns))


def captions_sha256(captions: tuple[str, ...]) -> str:
    """sha256 over the captions, one a line."""
    return hashlib.sha256("\n".join(captions).encode("utf-8", "surrogatepass")).hexdigest()


@lru_cache(maxsize=1)
def _embedded() -> tuple[str, ...]:
    return tuple(build_scenes(EMBEDDED_SIZE, EMBEDDED_SEED))


@lru_cache(maxsize=4)
def _of_file(file: Path, stamp: tuple[int, int]) -> tuple[str, ...]:
    """`stamp` (size, modification time) identifies the version of a file."""
    try:
        lines = file.read_bytes().decode("utf-8-sig").split("\n")  # no other character ends a caption
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: not UTF-8 text ({error}); expected one caption a line") from error
    captions = tuple(sorted({line.strip() for line in lines if line.strip()}))
    if not captions:
        raise ValueError(f"{file}: a bank needs captions, one a line; this file has none")
    return captions
