"""Hash lists: known-illegal images by hash, supplied by the operator. A match is quarantined and never shown.

Nothing of a list is stored but a digest of it, and no list is shipped. docs/operator/safety.md: what to do on a match.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from curation_assets.stores.images import ImageRejected, decode_image
from curation_assets.stores.text_tables import read_lines

QUARANTINED = "quarantined"  # the reason of a matched row in raw/samples
PDQ_DISTANCE = 31  # of 256 bits; what PDQ's authors (Facebook ThreatExchange) call a match
PDQ_QUALITY = 50  # of 100; hashes of images with less detail match by chance
_ENTRY = re.compile(r"(?:(md5|sha256|pdq):)?([0-9a-f]{32}|[0-9a-f]{64})")
_LENGTH = {"md5": 32, "sha256": 64, "pdq": 64}


@dataclass(frozen=True)
class HashList:
    """Hashes of image files (md5, sha256) and of what they show (PDQ)."""

    md5: frozenset[str] = frozenset()
    sha256: frozenset[str] = frozenset()
    pdq: np.ndarray = field(default_factory=lambda: np.zeros((0, 4), np.uint64))  # (M, 4), 256 bits each
    digest: str = ""  # identifies the list: a changed one is matched again

    def __bool__(self) -> bool:
        return bool(self.md5 or self.sha256 or len(self.pdq))

    def matches(self, data: bytes, sha256: Iterable[str | None] = ()) -> bool:
        """Whether an image file is listed: by its bytes, by further sha256 known of it, or by PDQ of its pixels.

        Bytes that cannot be decoded have no PDQ and match by their bytes only.
        """
        known = {hashlib.sha256(data).hexdigest(), *filter(None, sha256)}
        if self.sha256 & known or (self.md5 and hashlib.md5(data).hexdigest() in self.md5):
            return True
        return len(self.pdq) > 0 and self._matches_pdq(data)

    def _matches_pdq(self, data: bytes) -> bool:
        import pdqhash

        try:
            image = decode_image(data)
        except ImageRejected:
            return False
        found, quality = pdqhash.compute(np.asarray(image))
        if quality < PDQ_QUALITY:
            return False
        # of turned pixels: what `compute_dihedral` makes of the hash alone lies beyond PDQ_DISTANCE for one in four
        turned = [
            found,
            *(pdqhash.compute(np.asarray(image.transpose(turn)))[0] for turn in Image.Transpose),
        ]  # 8 × 256
        words = np.packbits(np.array(turned, dtype=np.uint8), axis=1).view(">u8").astype(np.uint64)  # (8, 4)
        distances = np.bitwise_count(self.pdq[:, None] ^ words).sum(axis=2)  # (M, 8)
        return bool((distances <= PDQ_DISTANCE).any())


def read_hash_lists(paths: Sequence[Path | str]) -> HashList:
    """All lists as one. A text file has a hash a line; blank lines and lines that begin with # are skipped.

    `md5:…`, `sha256:…` or `pdq:…`, hexadecimal in either case; without a prefix 32 digits are an md5, 64 a sha256.
    Raises FileNotFoundError for a missing file and ValueError for another kind of line (by number, not by content).
    """
    by_kind: dict[str, set[str]] = {name: set() for name in _LENGTH}
    for path in (Path(str(given)).expanduser() for given in paths):
        if not path.is_file():
            raise FileNotFoundError(f"no hash list {path}: nothing is scored without it; correct the option hash_lists")
        for number, line in enumerate(read_lines(path), start=1):
            text = line.strip().lower()
            if not text or text.startswith("#"):
                continue
            entry = _ENTRY.fullmatch(text)
            kind = (entry[1] or ("md5" if len(entry[2]) == 32 else "sha256")) if entry else ""
            if entry is None or len(entry[2]) != _LENGTH[kind]:
                raise ValueError(
                    f"{path}, line {number}: expected md5:, sha256: or pdq: and 32, 64 or 64 hexadecimal digits"
                )
            by_kind[kind].add(entry[2])
    lines = sorted(f"{kind}:{text}" for kind, texts in by_kind.items() for text in texts)
    words = b"".join(bytes.fromhex(text) for text in sorted(by_kind["pdq"]))
    return HashList(
        frozenset(by_kind["md5"]),
        frozenset(by_kind["sha256"]),
        np.frombuffer(words, dtype=">u8").astype(np.uint64).reshape(-1, 4),
        hashlib.sha256("\n".join(lines).encode()).hexdigest() if lines else "",
    )
