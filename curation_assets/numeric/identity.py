"""The identity of a sample, and every number that is drawn from it.

A sample keeps one id through every stage, file and export, and anything random about it (seeds, hash sampling) follows
from that id: order, shard and neighbours never matter.
"""

import binascii
import hashlib
import re
from collections.abc import Sequence

import numpy as np

SAMPLE_ID = re.compile(r"[0-9a-f]{32}")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_HEX_DIGITS = re.compile(r"[0-9a-f]*")

#: DataComp's subset dtype: high and low 64 bits of the id (formulas.md §3.3).
UID_DTYPE = np.dtype("<u8,<u8")


def is_sample_id(text: object) -> bool:
    """True for 32 lower-case hex digits. Shorter ids are refused, never padded (formulas.md §3.3)."""
    return isinstance(text, str) and SAMPLE_ID.fullmatch(text) is not None


def sample_id_from(cell: object) -> str | None:
    """The id that people or other programs wrote down: in upper case, with a UUID's dashes, as bytes; None for no id.

    Example: sample_id_from("6BA7B810-9DAD-11D1-80B4-00C04FD430C8") is "6ba7b8109dad11d180b400c04fd430c8".
    """
    if isinstance(cell, bytes):
        cell = cell.hex() if len(cell) == 16 else cell.decode("ascii", "replace")
    if not isinstance(cell, str):
        return None
    text = cell.strip().lower()
    text = text.replace("-", "") if _UUID.fullmatch(text) else text
    return text if is_sample_id(text) else None


def sample_id_of(url: str | None, caption: str | None, own_uid: str | None = None) -> str:
    """The id of a sample: `own_uid` if it is valid, else the first 128 bits of sha256(url, zero byte, caption).

    An absent url or caption counts as empty. Two rows with one url and caption share an id: duplicates are meant
    to be seen. Example: sample_id_of("u", "c", "0" * 32) is 32 zeros.
    """
    if own_uid is not None and is_sample_id(own_uid):
        return own_uid
    return hashlib.sha256(f"{url or ''}\0{caption or ''}".encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _first_64_bits(sample_id: str, purpose: str) -> int:
    if not is_sample_id(sample_id):
        raise ValueError(f"sample_id must be 32 lower-case hex digits, got {sample_id!r}")
    return int.from_bytes(hashlib.sha256(f"{purpose}\0{sample_id}".encode()).digest()[:8], "big")


def seed_of(sample_id: str, purpose: str) -> int:
    """Seed in [0, 2^63) of one sample for one purpose ('vba', 'captions-0'); the same on every machine and run.

    Raises ValueError for a malformed id.
    """
    return _first_64_bits(sample_id, purpose) >> 1


def unit_interval_of(sample_id: str, purpose: str) -> float:
    """Uniform number in [0, 1) of one sample for one purpose: `< 0.1` draws a tenth, whatever else is in the pool.

    Raises ValueError for a malformed id.
    """
    return (_first_64_bits(sample_id, purpose) >> 11) / 2**53  # 53 bits are exact in a float64


def draw_keys(sample_ids: Sequence[str], purpose: str) -> np.ndarray:
    """(N,) ids → (N,) uint64, one key per sample and purpose, for noise that is made of it. As `unit_interval_of`."""
    return np.array([_first_64_bits(sample_id, purpose) for sample_id in sample_ids], dtype=np.uint64)


def u64_of_hex(letters: np.ndarray) -> np.ndarray:
    """(N, 16 K) uint8 codes of lower-case hex digits → (N, K) uint64. Raises ValueError for any other letter."""
    is_digit = (letters - np.uint8(48) < 10) | (letters - np.uint8(97) < 6)  # unsigned: what lies below wraps around
    if not is_digit.all():
        row = int(np.flatnonzero(~is_digit.all(axis=1))[0])
        raise ValueError(f"expected lower-case hex digits, got {letters[row].tobytes()!r}")
    packed = np.frombuffer(binascii.unhexlify(np.ascontiguousarray(letters).data), dtype=">u8")
    return packed.astype(np.uint64).reshape(len(letters), -1)


def pack_uids(sample_ids: Sequence[str]) -> np.ndarray:
    """(N,) ids → (N,) structured u8,u8, sorted as unsigned pairs, duplicates kept (formulas.md §3.3).

    Sorting must be unsigned: ffff… comes last. Raises ValueError naming the first malformed id.
    """
    texts = [sample_id for sample_id in sample_ids if isinstance(sample_id, str)]
    letters = "".join(texts)
    is_all_good = len(texts) == len(sample_ids) and set(map(len, texts)) <= {32} and _HEX_DIGITS.fullmatch(letters)
    if not is_all_good:
        wrong = next(sample_id for sample_id in sample_ids if not is_sample_id(sample_id))
        raise ValueError(f"sample_id must be 32 lower-case hex digits, got {wrong!r}")
    return sorted_uids(np.frombuffer(bytes.fromhex(letters), dtype=">u8").astype(np.uint64).reshape(-1, 2))


def sorted_uids(halves: np.ndarray) -> np.ndarray:
    """(N, 2) uint64, high and low halves of ids → (N,) structured u8,u8, as `pack_uids` gives.

    A sixteenth of their range after the other: ids are hashes, so that little is held beside what is
    given and returned.
    """
    packed, end = np.empty(len(halves), dtype=UID_DTYPE), 0
    digits = (halves[:, 0] >> np.uint64(60)).astype(np.uint8)
    for digit in range(16):
        part = halves[digits == digit]
        part = part[np.lexsort((part[:, 1], part[:, 0]))]
        start, end = end, end + len(part)
        packed[start:end] = packed_uids(part[:, 0], part[:, 1])
    return packed


def packed_uids(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    """(N,) and (N,) uint64 halves of ids that are sorted → (N,) structured u8,u8, as `pack_uids` gives."""
    packed = np.empty(len(high), dtype=UID_DTYPE)
    packed["f0"], packed["f1"] = high, low
    return packed


def as_pairs(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    """(N,) and (N,) whole numbers from 0 on → (N,) texts of 16 bytes, which NumPy sorts and searches as the pairs."""
    pairs = np.empty((len(high), 2), dtype=">u8")
    pairs[:, 0], pairs[:, 1] = high, low
    return pairs.view("S16").ravel()


def bits_of(values: np.ndarray) -> np.ndarray:
    """(N,) float64 → (N,) uint64: equal numbers have the same bits, and so has each NaN."""
    return np.where(np.isnan(values), np.nan, values + 0.0).view(np.uint64)


def row_hashes(columns: Sequence[np.ndarray]) -> np.ndarray:
    """(N,) uint64 each → (N,) uint64 hash of every row. Sums of it tell sets of rows apart, in any order."""
    mixed = np.zeros(len(columns[0]), dtype=np.uint64)
    for column in columns:
        mixed = (mixed ^ column) + np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):  # as SplitMix64
            mixed = (mixed ^ mixed >> np.uint64(shift)) * np.uint64(factor)
    return mixed
