"""Runs of words that two texts share: how a text of a benchmark is found in others."""

import hashlib
import re
import unicodedata

import numpy as np

#: A word is a run of letters and digits; of scripts without blanks (kana, Han) each character.
_ALONE = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_ALONE}]|[^\W_{_ALONE}]+")


def ngram_hashes(text: str, words: int) -> np.ndarray:
    """(K,) uint64, sorted and distinct: a hash of every run of `words` words. Case, punctuation and the forms of a
    letter that look alike (NFKC) do not count; a text of fewer words has none."""
    found = _WORD.findall(unicodedata.normalize("NFKC", text).casefold())
    runs = {" ".join(found[start : start + words]) for start in range(len(found) - words + 1)}
    digests = b"".join(hashlib.blake2b(run.encode("utf-8", "replace"), digest_size=8).digest() for run in runs)
    return np.sort(np.frombuffer(digests, dtype="<u8").astype(np.uint64))
