"""The one registry of exports."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from curation_assets.core.json_files import DamagedFileError
from curation_assets.flow.holder import Takedown
from curation_assets.numeric.identity import pack_uids
from curation_assets.outputs.exports.formats import FORMATS
from curation_assets.outputs.holders import EXPORT_FLAG, flag_exports
from curation_assets.outputs.registry import EXPORTS_FILE, ExportRecord, record_export, recorded_exports

ID, OTHER = "0" * 31 + "1", "0" * 31 + "2"


def exported(folder: Path, *sample_ids: str) -> Path:
    folder.mkdir()
    np.save(folder / "sample_ids.npy", pack_uids(sample_ids))
    return folder


def test_exports_are_listed_oldest_first_and_flagged(tmp_path: Path) -> None:
    first, later, elsewhere = (exported(tmp_path / name, ids) for name, ids in zip("abc", (ID, ID, OTHER), strict=True))
    for folder, day in ((later, 2), (first, 1), (elsewhere, 3)):
        ids = str(folder / "sample_ids.npy")
        facts = (f"2026-02-0{day}T00:00:00Z", "npy", "icc", 1, "cd" * 32)
        record_export(tmp_path, ExportRecord("photos", str(folder), ids, *facts))
    records = recorded_exports(tmp_path, "photos")
    assert [Path(record.folder) for record in records] == [first, later, elsewhere]
    assert recorded_exports(tmp_path, "scenes") == []

    columns = dict.fromkeys(("shard", "url", "caption", "image_sha256", "original_sha256"), "x")
    takedown = Takedown("photos", pl.DataFrame([{"sample_id": ID, "source_row": 0, **columns}]))
    assert flag_exports(tmp_path, takedown) == [{"folder": str(folder), "samples": 1} for folder in (first, later)]
    assert not (elsewhere / EXPORT_FLAG).exists()
    flag = json.loads((first / EXPORT_FLAG).read_text())
    assert (flag["sample_ids"], flag["is_certain"], flag["name"]) == ([ID], True, "icc")


def test_a_note_of_a_version_before_0_2_is_refused_with_what_to_do(tmp_path: Path) -> None:
    """A takedown must not pass over an export that stands there alone."""
    note = tmp_path / "work" / "photos" / "exports" / "icc.json"
    note.parent.mkdir(parents=True)
    note.write_text("{}")
    with pytest.raises(ValueError, match=r"icc\.json is a note of an export by a version before 0\.2.*remove the note"):
        recorded_exports(tmp_path)
    note.unlink()
    (tmp_path / EXPORTS_FILE).write_text('{"pool": "p", "folder": "f", "subset": "s", "written_at": "2026"}\n')
    with pytest.raises(DamagedFileError, match="line 1, is damaged"):
        recorded_exports(tmp_path)


def test_every_format_names_a_function_that_is_there() -> None:
    assert {name: format.options for name, format in FORMATS.items()} == {
        "npy": (),
        "keys": (),
        "index": (),
        "webdataset": ("max_samples", "max_bytes", "batches", "batch_size", "keep", "seed"),
        "hf": ("license", "max_bytes"),
    }
