"""The one registry of exports also knows what earlier releases wrote, in both places."""

import json
from pathlib import Path

import polars as pl

from curation_assets.flow.holder import Takedown
from curation_assets.outputs.exports.formats import FORMATS
from curation_assets.outputs.holders import EXPORT_FLAG, flag_exports
from curation_assets.outputs.registry import EXPORTS_FILE, ExportRecord, record_export, recorded_exports
from curation_assets.stores.subsets import write_subset_npy

ID, OTHER = "0" * 31 + "1", "0" * 31 + "2"


def old_line(home: Path, folder: Path, written_at: str) -> None:
    """As releases before 0.2 recorded an export under home."""
    line = {"pool": "photos", "folder": str(folder), "subset": str(folder / "sample_ids.npy"), "written_at": written_at}
    with (home / EXPORTS_FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def old_note(home: Path, folder: Path, created_at: str) -> None:
    """As releases before 0.2 noted an export in its pool."""
    notes = home / "work" / "photos" / "exports"
    notes.mkdir(parents=True, exist_ok=True)
    note = {
        "path": str(folder), "format": "hf", "subset": "icc", "created_at": created_at, "manifest_sha256": "ab" * 32,
        "samples": 1,
    }  # fmt: skip
    (notes / f"{folder.name}.json").write_text(json.dumps(note))


def exported(folder: Path, *sample_ids: str) -> Path:
    folder.mkdir()
    write_subset_npy(folder / "sample_ids.npy", sample_ids)
    return folder


def test_records_of_every_release_are_one_list_and_are_flagged(tmp_path: Path) -> None:
    both, line_only, note_only, new = (
        exported(tmp_path / name, ID) for name in ("both", "line_only", "note_only", "new")
    )
    elsewhere = exported(tmp_path / "elsewhere", OTHER)
    old_line(tmp_path, both, "2026-01-02T00:00:00Z")
    old_note(tmp_path, both, "2026-01-02T00:00:00Z")
    old_line(tmp_path, line_only, "2026-01-03T00:00:00Z")
    old_note(tmp_path, note_only, "2026-01-01T00:00:00Z")
    for folder in (new, elsewhere):
        ids = str(folder / "sample_ids.npy")
        record_export(
            tmp_path, ExportRecord("photos", str(folder), ids, "2026-02-01T00:00:00Z", "npy", "icc", 1, "cd" * 32)
        )
    records = recorded_exports(tmp_path, "photos")
    assert [(Path(record.folder).name, record.format, record.samples) for record in records] == [
        ("note_only", "hf", 1), ("both", "hf", 1), ("line_only", None, None), ("new", "npy", 1),
        ("elsewhere", "npy", 1),
    ]  # fmt: skip
    assert recorded_exports(tmp_path, "scenes") == []

    columns = dict.fromkeys(("shard", "url", "caption", "image_sha256", "original_sha256"), "x")
    takedown = Takedown("photos", pl.DataFrame([{"sample_id": ID, "source_row": 0, **columns}]))
    flagged = flag_exports(tmp_path, takedown)
    assert flagged == [{"folder": str(folder), "samples": 1} for folder in (note_only, both, line_only, new)]
    assert not (elsewhere / EXPORT_FLAG).exists()
    flag = json.loads((note_only / EXPORT_FLAG).read_text())
    assert (flag["sample_ids"], flag["is_certain"], flag["name"]) == ([ID], True, "icc")


def test_every_format_names_a_function_that_is_there() -> None:
    assert {name: format.options for name, format in FORMATS.items()} == {
        "npy": (),
        "keys": (),
        "webdataset": ("max_samples", "max_bytes"),
        "hf": ("license", "max_bytes"),
    }
