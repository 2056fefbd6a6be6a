"""A file that is not what was written, and how a reader of recorded hashes names it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from curation_assets.core.errors import first_line
from curation_assets.core.json_files import DamagedFileError, read_json, read_json_lines
from curation_assets.stores.file_hash import sha256_now


@dataclass(frozen=True)
class Damage:
    """A file that is not what was written."""

    path: Path
    kind: str  # source, part of a source, download, table, manifest, folder, link, export, release, weights
    expected: str  # a hash, or in words
    got: str
    advice: str  # what to do
    tables: tuple[str, ...] = ()  # to be made again once it is removed
    repair: Callable[[], None] | None = field(default=None, compare=False)  # removes or rewrites it; None: no way

    def __str__(self) -> str:
        return f"{self.path} ({self.kind}): expected {self.expected}, got {self.got}"

    def to_dict(self) -> dict[str, Any]:
        """What is known of it, for other programs."""
        facts = {name: getattr(self, name) for name in ("kind", "expected", "got", "advice", "tables")}
        return {"path": str(self.path), **facts, "can_be_repaired": self.repair is not None}


#: One file, or a few that belong together.
Check = Callable[[], Iterable[Damage]]


def json_damages(path: Path, kind: str, advice: str, repair: Callable[[], None] | None = None) -> Iterator[Damage]:
    """A file of JSON, or of lines of it, that cannot be read or is not what was sealed."""
    read = read_json_lines if path.suffix == ".jsonl" else read_json
    try:
        if path.is_file():
            read(path, lambda content: None, advice="")
    except DamagedFileError as error:
        got = first_line(error.__cause__ or error)
        yield Damage(path, kind, "a file that holds its own sha256", got, advice, (), repair)


def changed_files(files: Mapping[Path, str], damage: Damage) -> Iterator[Damage]:
    """`damage` of each file whose sha256, read now, is not the recorded one. `files`: path → that sha256."""
    for path, expected in files.items():
        got = sha256_now(path) if path.is_file() else "no file"
        if got != expected:
            yield replace(damage, path=path, expected=expected, got=got)
