"""Which exports were made where: one line each, for people and so that a takedown can flag them."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from curation_assets.core.json_files import read_json_lines
from curation_assets.core.seal import sealed_line
from curation_assets.stores.atomic import append_line, make_folder

_ADVICE = "correct it, or remove it and flag that export by hand: a takedown finds exports by what is written here"
EXPORTS_FILE = "exports.jsonl"  # under home: one line per export
SAMPLE_IDS = "sample_ids.npy"  # in every export: its ids, each as often as its multiplicity
#: Where versions before 0.2 noted an export a second time, some of them there alone.
_FORMER_NOTES = "work/*/exports/*.json"  # under home


@dataclass(frozen=True)
class ExportRecord:
    """An export that was made. It is never rewritten."""

    pool: str
    folder: str
    subset: str  # a `.npy` of its sample_ids (u8,u8)
    written_at: str  # UTC, ISO 8601
    format: str  # see `exports.formats`
    name: str  # of the policy or of the list of samples
    samples: int
    manifest_sha256: str
    pushed: tuple[str, ...] = ()  # hf://datasets/ORG/NAME@COMMIT; without a commit, one that may not have ended

    def to_dict(self) -> dict[str, Any]:
        """The content of its line."""
        return asdict(self)


def record_export(home: Path, record: ExportRecord) -> None:
    """Remember an export; of one inside the home, its paths relative to it."""
    make_folder(home)
    if Path(record.folder).is_relative_to(home):
        folder, subset = (str(Path(path).relative_to(home)) for path in (record.folder, record.subset))
        record = replace(record, folder=folder, subset=subset)
    append_line(home / EXPORTS_FILE, sealed_line(record.to_dict()))


def recorded_exports(home: Path, pool: str | None = None) -> list[ExportRecord]:
    """Every recorded export (of one pool), oldest first. Of a folder that was removed and filled again, the last one;
    of a command that was killed, the folder may be missing.

    Raises ValueError where a version before 0.2 noted exports, which a takedown would not find.
    """
    if former := sorted(home.glob(_FORMER_NOTES)):
        raise ValueError(
            f"{former[0]} is a note of an export by a version before 0.2, which is not read; flag what it names by "
            "hand, or export that subset again, then remove the note"
        )
    path = home / EXPORTS_FILE
    records = read_json_lines(path, lambda line: ExportRecord(**line), advice=_ADVICE)
    records = [
        replace(record, folder=str(home / record.folder), subset=str(home / record.subset), pushed=tuple(record.pushed))
        for record in records
    ]
    last = dict[str, ExportRecord]()  # of one folder the last lies there, and copies of earlier ones elsewhere
    for record in records:
        before = last.get(record.folder, record)
        last[record.folder] = replace(record, pushed=record.pushed or before.pushed)
    chosen = [record for record in last.values() if pool is None or record.pool == pool]
    return sorted(chosen, key=lambda record: record.written_at)
