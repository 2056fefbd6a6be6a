"""What every export leaves: its files with hashes, what was left out and why, and a record of it in the home folder."""

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
from curation_assets.outputs.exports.card import CARD, card_text
from curation_assets.outputs.exports.credits import CREDITS, write_credits
from curation_assets.outputs.exports.subset import (
    MISSING_SCHEMA,
    NOTHING_MISSING,
    Subset,
    missing_counts,
    subset_facts,
)
from curation_assets.outputs.registry import SAMPLE_IDS, ExportRecord, record_export
from curation_assets.stores.atomic import check_new, writing_new
from curation_assets.stores.documents import save_json, save_text
from curation_assets.stores.file_hash import file_sha256
from curation_assets.stores.images import scored_image
from curation_assets.stores.lease import filling_folder
from curation_assets.stores.manifest import utc_now
from curation_assets.stores.mapped_rows import slices
from curation_assets.stores.parquet import write_as_frame
from curation_assets.stores.samples import OWN_ID
from curation_assets.stores.text_tables import write_text_table

MANIFEST = "manifest.json"
MISSING = "missing.tsv"
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
    card: dict[str, Any] = field(default_factory=dict)  # what `card_text` reads; none: no card
    _lost: list[pl.DataFrame] = field(default_factory=lambda: [NOTHING_MISSING])
    _without_image: list[tuple[str, int, str]] = field(default_factory=list)  # rows of MISSING_SCHEMA

    def image_of(self, row: Mapping[str, Any]) -> bytes | None:
        """Bytes of a sample's image as they were scored; None, with the reason noted, where they are not there."""
        reason: str | None = "no_image"
        if row["tar"] is not None and row["member"] is not None:
            tar = self.subset.ctx.store.root / row["tar"]
            data, reason, _ = scored_image(tar, row["member"], row["image_sha256"])
            if reason is None:
                return data
        assert reason is not None
        self._without_image.append((row["sample_id"], row["multiplicity"], reason))
        return None

    def lose(self, samples: pl.DataFrame) -> None:
        """Note samples of the subset that are not written. `samples`: MISSING_SCHEMA, and perhaps more."""
        self._lost.append(samples.select(list(MISSING_SCHEMA)))

    @property
    def lost(self) -> pl.DataFrame:
        """Samples of the subset that are not written, and why (MISSING_SCHEMA)."""
        without_image = pl.DataFrame(self._without_image, schema=MISSING_SCHEMA, orient="row")
        return pl.concat([*self._lost, without_image])

    @property
    def missing(self) -> pl.DataFrame:
        """Samples requested and not written (MISSING_SCHEMA)."""
        return pl.concat([self.subset.missing, self.lost])

    def is_written(self) -> pl.Series:
        """(N,) whether each row of the subset is in the export."""
        is_lost = self.subset.rows["sample_id"].is_in(self.lost["sample_id"].implode())
        return (~is_lost).alias("is_written")

    def written(self) -> Iterator[pl.DataFrame]:
        """Rows of the subset that are in the export, part by part."""
        marked = self.subset.rows.with_columns(self.is_written())
        return (part.filter("is_written").drop("is_written") for part in slices(marked))

    @property
    def counts(self) -> tuple[int, int]:
        """Samples and entries that are in the export."""
        lost = self.lost
        return self.subset.rows.height - lost.height, self.subset.entries - int(lost["multiplicity"].sum())

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
        if OWN_ID in subset.rows.columns:  # lists of ids and keys have no column for it
            own_ids = (part.select("sample_id", OWN_ID) for part in export.written())
            schema = pl.Schema({"sample_id": pl.String(), OWN_ID: pl.String()})
            write_as_frame(folder / OWN_IDS, own_ids, schema, samples)
        if missing.height:
            write_text_table(missing, folder / MISSING)
        lines = write_credits(export.written(), folder / CREDITS)
        manifest = plain(_manifest(export, samples, missing, entries) | {"credited": lines})
        if export.card:
            save_text(folder / CARD, card_text(manifest))
        save_json(folder / MANIFEST, {**manifest, "files": export.files()})
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


def _manifest(export: Export, written: int, missing: pl.DataFrame, entries: int) -> dict[str, Any]:
    requested = export.subset.rows.height + export.subset.missing.height
    assert requested == written + missing.height, (requested, written, missing.height)
    return {
        "format": export.format,
        "created_at": export.created_at,
        "software": f"curation_assets {__version__}",
        "subset": {**export.facts, "missing": missing_counts(missing)},
        "counts": {"asked": requested, "written": written, "missing": missing.height, "entries": entries},
        **({"reencoded": export.reencoded} if export.reencoded else {}),
        **({"card": export.card} if export.card else {}),
    }
