"""Which exports were made where: one line each, for people and so that a takedown can flag them."""

import functools
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from curation_assets.core.json_files import read_json, read_json_lines
from curation_assets.stores.atomic import append_line

_ADVICE = "correct it, or remove it and flag that export by hand: a takedown finds exports by what is written here"
EXPORTS_FILE = "exports.jsonl"  # under home: one line per export
SAMPLE_IDS = "sample_ids.npy"  # in every export: its ids, each as often as its multiplicity
#: Releases before 0.2 wrote a second note of every export into its pool; its format and counts stood there alone.
_NOTES = "work/*/exports/*.json"  # under home


@dataclass(frozen=True)
class ExportRecord:
    """An export that was made. It is never rewritten. Of exports from before 0.2 some facts may be unknown."""

    pool: str
    folder: str
    subset: str  # a `.npy` of its sample_ids (u8,u8)
    written_at: str  # UTC, ISO 8601
    format: str | None = None  # see `exports.formats`
    name: str | None = None  # of the policy or of the list of samples
    samples: int | None = None
    manifest_sha256: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The content of its line."""
        return asdict(self)


def record_export(home: Path, record: ExportRecord) -> None:
    """Remember an export; of one inside the home, its paths relative to it."""
    home.mkdir(parents=True, exist_ok=True)
    if Path(record.folder).is_relative_to(home):
        folder, subset = (str(Path(path).relative_to(home)) for path in (record.folder, record.subset))
        record = replace(record, folder=folder, subset=subset)
    append_line(home / EXPORTS_FILE, json.dumps(record.to_dict()))


def recorded_exports(home: Path, pool: str | None = None) -> list[ExportRecord]:
    """Every recorded export (of one pool), oldest first. Of a folder that was removed and filled again, the last one;
    of a command that was killed, the folder may be missing."""
    path = home / EXPORTS_FILE
    records = read_json_lines(path, lambda line: ExportRecord(**line), advice=_ADVICE)
    records = [
        replace(record, folder=str(home / record.folder), subset=str(home / record.subset)) for record in records
    ]
    records = list({record.folder: record for record in records}.values())  # of one folder the last lies there
    for note in _notes(home):
        same = [index for index, record in enumerate(records) if record.folder == note.folder]
        if not same:
            records.append(note)
        for index in same:
            if records[index].format is None:
                records[index] = replace(note, subset=records[index].subset, written_at=records[index].written_at)
    chosen = [record for record in records if pool is None or record.pool == pool]
    return sorted(chosen, key=lambda record: record.written_at)


def _notes(home: Path) -> Iterator[ExportRecord]:
    """What releases before 0.2 noted in the pools."""
    for path in sorted(home.glob(_NOTES)):
        yield read_json(path, functools.partial(_of_note, path.parent.parent.name), advice=_ADVICE)


def _of_note(pool: str, note: dict[str, Any]) -> ExportRecord:
    return ExportRecord(
        pool=pool,
        folder=note["path"],
        subset=str(Path(note["path"]) / SAMPLE_IDS),
        written_at=note["created_at"],
        format=note["format"],
        name=note["subset"],
        samples=note["samples"],
        manifest_sha256=note["manifest_sha256"],
    )
