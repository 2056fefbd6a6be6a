"""Files that hold their own sha256, so that a file and its hash are written in one step and no bit can change unseen.

The seal is the 64 hex digits after the last `"seal": "` of a file: the sha256 of its bytes with zeros for these digits.
In a table it stands in the manifest of the Parquet footer, in JSON files, and in each line of a file of JSON lines, it
is a field (docs/decisions/0028).
"""

import hashlib
import json
import mmap
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FIELD = "seal"
LISTED = "listed"
_MARK = b'"seal": "'
UNSEALED = "0" * 64
SEAL_LINE = f'"{FIELD}": "{UNSEALED}"\n'  # of a text that is no JSON
_IS_SHA256 = re.compile("[0-9a-f]{64}")


def seal_file(path: Path) -> str:
    """Put the seal in place of `UNSEALED`, which the file must hold. Returns the seal."""
    with path.open("r+b") as stream:
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            at = _position(content)
            assert content[at : at + 64] == UNSEALED.encode(), f"{path} holds no {FIELD} of zeros to be replaced"
            digest = hashlib.sha256(content).hexdigest()
        stream.seek(at)
        stream.write(digest.encode())
    return digest


def sealed_text(text: str) -> str:
    """A text that holds `UNSEALED` with the seal in its place."""
    data = text.encode()
    at = _position(data)
    return (data[:at] + hashlib.sha256(data).hexdigest().encode() + data[at + 64 :]).decode()


def with_seal(text: str, seal: str) -> str:
    """A text that holds `UNSEALED`, as it stands in a file of that seal."""
    before, mark, after = text.rpartition(_MARK.decode())
    assert mark, f"the text holds no {FIELD}"
    assert after.startswith(UNSEALED), f"expected a {FIELD} of zeros, got {after[:64]!r}"
    return f"{before}{mark}{seal}{after[len(UNSEALED) :]}"


def sealed_json(content: Mapping[str, Any] | list[Any]) -> str:
    """JSON, indented and sorted, with a seal; a list becomes the one field of an object."""
    fields = {LISTED: content} if isinstance(content, list) else content
    return sealed_text(json.dumps({**fields, FIELD: UNSEALED}, indent=1, sort_keys=True, ensure_ascii=False))


def sealed_line(content: Mapping[str, Any]) -> str:
    """One line of JSON, with a seal."""
    return sealed_text(json.dumps({**content, FIELD: UNSEALED}))


def unsealed(content: Any, data: bytes) -> Any:
    """What `sealed_json` or `sealed_line` was given, of the JSON that `data` holds; without a seal, as it is: a version
    before wrote it. Raises ValueError where the seal is not that of the bytes.
    """
    if not isinstance(content, dict):
        return content
    names = [name for name in content if _is_nearly_the_field(name) and _IS_SHA256.fullmatch(str(content[name]))]
    if FIELD not in content and not names:
        return content
    if not is_sealed(data):
        got = _digest(data, at) if (at := _position(data)) >= 0 else "none"
        raise ValueError(f"its bytes are not those that were written: expected sha256 {content.get(FIELD)}, got {got}")
    del content[FIELD]
    return content[LISTED] if content.keys() == {LISTED} else content


def _is_nearly_the_field(name: str) -> bool:
    """With one letter changed: a file that was damaged there is none without a seal."""
    return len(name) == len(FIELD) and sum(a != b for a, b in zip(name, FIELD, strict=True)) == 1


def read_sealed_json(path: Path) -> dict[str, Any] | None:
    """Content of a file of `sealed_json`; None for one that is absent, damaged, or has no seal."""
    try:
        if not is_sealed(path.read_bytes()):
            return None
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return content


def is_sealed(data: bytes) -> bool:
    """Whether bytes hold their own sha256."""
    at = _position(data)
    return at >= 0 and _digest(data, at).encode() == data[at : at + 64]


def seal_now(path: Path) -> str:
    """The seal that the bytes of a file would have; '' where it holds none. Reads all of it. Raises OSError."""
    if not path.stat().st_size:
        return ""
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        at = _position(content)
        return _digest(content, at) if at >= 0 else ""


def _position(data: bytes | mmap.mmap) -> int:
    """Where the digits begin; -1 where there are none."""
    at = data.rfind(_MARK)
    return at + len(_MARK) if at >= 0 and at + len(_MARK) + 64 <= len(data) else -1


def _digest(data: bytes | mmap.mmap, at: int) -> str:
    digest = hashlib.sha256()
    with memoryview(data) as view:
        digest.update(view[:at])
        digest.update(UNSEALED.encode())
        digest.update(view[at + 64 :])
    return digest.hexdigest()
