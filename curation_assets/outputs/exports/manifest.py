"""What every export leaves: its files with hashes, what was left out and why, and a record of it in the home folder."""

import itertools
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from curation_assets.audit.ledger import subset_of
from curation_assets.core.plain_json import plain
from curation_assets.core.version import __version__
from curation_assets.outputs.exports.credits import CREDITS, credited, write_credits
from curation_assets.outputs.exports.subset import (
    MISSING_SCHEMA,
    Subset,
    missing_counts,
    subset_facts,
)
from curation_assets.outputs.registry import SAMPLE_IDS, ExportRecord, record_export
from curation_assets.selection.rows import ROW_KEY
from curation_assets.stores.atomic import check_new, writing_new
from curation_assets.stores.documents import save_json
from curation_assets.stores.file_hash import file_sha256
from curation_assets.stores.frame_file import PART_ROWS, FrameFile
from curation_assets.stores.images import scored_image
from curation_assets.stores.lease import filling_folder
from curation_assets.stores.manifest import utc_now
from curation_assets.stores.parquet import write_as_frame
from curation_assets.stores.samples import OWN_ID
from curation_assets.stores.text_tables import write_text_parts

MANIFEST = "manifest.json"
MISSING = "missing.tsv"
#: Samples of a subset that are not written.
LOST_SCHEMA = {"shard": pl.String, "source_row": pl.Int64, **MISSING_SCHEMA}
OWN_IDS = "own_ids.parquet"  # sample_id → own_id, of pools that have such


@dataclass
class Export:
    """One export while it is written."""

    subset: Subset
    folder: Path  # where to write; becomes `out` when all is done
    format: str
    out: Path
    created_at: str
    facts: dict[str, Any]
    samples_of: dict[str, int] = field(default_factory=dict)  # file → samples in it
    reencoded: dict[str, int] = field(default_factory=dict)  # "GIF to PNG" → images
    _lost: FrameFile = field(default_factory=lambda: FrameFile([pl.DataFrame(schema=LOST_SCHEMA)]))
    _without_image: list[tuple[Any, ...]] = field(default_factory=list)  # more of these, few

    def image_of(self, row: Mapping[str, Any]) -> bytes | None:
        """Bytes of a sample's image as they were scored; None, with the reason noted, where they are not there."""
        reason: str | None = "no_image"
        if row["tar"] is not None and row["member"] is not None:
            tar = self.subset.ctx.store.root / row["tar"]
            data, reason, _ = scored_image(tar, row["member"], row["image_sha256"])
            if reason is None:
                return data
        assert reason is not None
        self._without_image.append((*(row[name] for name in LOST_SCHEMA if name != "reason"), reason))
        if len(self._without_image) == PART_ROWS:
            self._note()
        return None

    def _note(self) -> None:
        self._lost.add(pl.DataFrame(self._without_image, schema=LOST_SCHEMA, orient="row"))
        self._without_image.clear()

    @property
    def lost(self) -> FrameFile:
        """Samples of the subset that are not written, and why (LOST_SCHEMA)."""
        if self._without_image:
            self._note()
        return self._lost

    @property
    def missing(self) -> FrameFile:
        """Samples requested and not written (MISSING_SCHEMA)."""
        return FrameFile(itertools.chain(self.subset.missing.parts(), self.lost.only(MISSING_SCHEMA).parts()))

    def rows_and_lost(self) -> Iterator[tuple[pl.DataFrame, pl.DataFrame]]:
        """Rows of the subset, part by part, each with the places (ROW_KEY) of those that are lost of its shards."""
        lost = self.lost.only(ROW_KEY).frame()
        of_shard = lost.partition_by("shard", as_dict=True)
        for part in self.subset.rows.parts():
            yield (
                part,
                pl.concat([lost.clear(), *(of_shard.get((one,), lost.clear()) for one in part["shard"].unique())]),
            )

    def written(self) -> Iterator[pl.DataFrame]:
        """Rows of the subset that are in the export, part by part."""
        if not self.lost.height:
            return self.subset.rows.parts()
        pairs = self.rows_and_lost()
        return (rows.join(lost, on=ROW_KEY, how="anti", maintain_order="left") for rows, lost in pairs)

    @property
    def counts(self) -> tuple[int, int]:
        """Samples and entries that are in the export."""
        lost = sum(int(part["multiplicity"].sum()) for part in self.lost.parts())
        return self.subset.rows.height - self.lost.height, self.subset.entries - lost

    def files(self) -> list[dict[str, Any]]:
        """Every file so far with hash and size, sorted by name."""
        return [
            {
                "path": (name := path.relative_to(self.folder).as_posix()),
                "sha256": file_sha256(path),
                "bytes": path.stat().st_size,
                **({"samples": self.samples_of[name]} if name in self.samples_of else {}),
            }
            for path in sorted(self.folder.rglob("*"))
            if path.is_file() and path.name != MANIFEST
        ]


@contextmanager
def exporting(subset: Subset, out: Path, kind: str) -> Iterator[Export]:
    """A folder to fill; on success it becomes `out` with its ids, missing samples and manifest, else it vanishes.

    Raises ValueError where `out` holds something already, or then, or where not one sample could be written;
    PoolHeldError where another command writes there.
    """
    out = Path(out).expanduser().absolute()
    if out.is_symlink():
        out = out.resolve()  # the folder that a link names is filled, the link stays
    is_of_pool = out.is_relative_to(
        subset.ctx.store.root.absolute()
    )  # tars of a training: the pool removes them itself
    with ExitStack() as stack:
        if not is_of_pool:
            stack.enter_context(filling_folder(out, f"curate export {kind}", on_notice=subset.ctx.progress.note))
        folder = stack.enter_context(writing_new(out, folder=True))
        folder.mkdir(parents=True)
        export = Export(subset, folder, kind, out, utc_now(), subset_facts(subset))
        yield export
        missing, (samples, entries) = export.missing, export.counts
        if not samples:
            raise ValueError(
                f"none of the {subset.rows.height + subset.missing.height} samples of {subset.name!r} could be "
                f"written: {missing_counts(missing)}"
            )
        _write_ids(export)
        if OWN_ID in subset.columns:  # lists of ids and keys have no column for it
            own_ids = (part.select("sample_id", OWN_ID) for part in export.written())
            schema = pl.Schema({"sample_id": pl.String(), OWN_ID: pl.String()})
            write_as_frame(folder / OWN_IDS, own_ids, schema, samples)
        if missing.height:
            write_text_parts(missing.parts(), folder / MISSING, ".tsv")
        lines = write_credits(map(credited, export.written()), folder / CREDITS)
        manifest = _manifest(export, samples, missing, entries) | {"credited": lines}
        save_json(folder / MANIFEST, plain(manifest))
        if is_of_pool:
            return
        check_new(out, folder=True)
        record = ExportRecord(
            pool=subset.ctx.pool.name,
            folder=str(out),
            subset=str(out / SAMPLE_IDS),
            written_at=export.created_at,
            format=export.format,
            name=subset.name,
            samples=samples,
            manifest_sha256=file_sha256(folder / MANIFEST),
        )
        # Before the folder is there: a kill between the two leaves a record of nothing, not an export that no
        # takedown knows.
        record_export(subset.ctx.settings.home, record)


def _write_ids(export: Export) -> None:
    """DataComp's `.npy` of what is in the export."""
    packed = subset_of(export.written())
    np.save(export.folder / SAMPLE_IDS, packed)
    assert len(packed) == export.counts[1], (len(packed), export.counts)


def _manifest(export: Export, written: int, missing: FrameFile, entries: int) -> dict[str, Any]:
    requested = export.subset.rows.height + export.subset.missing.height
    assert requested == written + missing.height, (requested, written, missing.height)
    return {
        "format": export.format,
        "created_at": export.created_at,
        "software": f"curation_assets {__version__}",
        "subset": {**export.facts, "missing": missing_counts(missing)},
        "counts": {"asked": requested, "written": written, "missing": missing.height, "entries": entries},
        **({"reencoded": export.reencoded} if export.reencoded else {}),
        "files": export.files(),
    }
