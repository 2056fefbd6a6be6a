"""Subsets as lists: DataComp's `.npy`, and allow-lists of tar and key that let training skip without resharding."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl

from curation_assets.audit.ledger import subset_of
from curation_assets.outputs.exports.formats import export_format
from curation_assets.outputs.exports.manifest import exporting
from curation_assets.outputs.exports.subset import Subset
from curation_assets.outputs.registry import SAMPLE_IDS
from curation_assets.stores.mapped_rows import slices
from curation_assets.stores.parquet import write_as_frame
from curation_assets.stores.subsets import counted_ids, write_keys
from curation_assets.stores.tar_samples import sample_key

KEYS = "keys.tsv"


@export_format("npy", "DataComp's ids")
def export_npy(subset: Subset, out: Path) -> Path:
    """`out`/sample_ids.npy (sorted u8,u8, repeats kept) and sample_ids.parquet. Raises ValueError as `exporting`."""
    with exporting(subset, out, "npy") as export:
        ids = subset.rows.select("sample_id", "multiplicity")
        packed = subset_of(slices(ids))
        write_as_frame(export.folder / "sample_ids.parquet", counted_ids(packed), ids.schema, ids.height)
    return Path(out) / SAMPLE_IDS


@export_format("keys", "allow-list of tar and key")
def export_keys(subset: Subset, out: Path) -> Path:
    """`out`/keys.tsv: one line `tar<TAB>key` per entry, for the tars as they are.

    Samples without an image are missing (no_image), as are those whose key has a dot (key_has_dot): webdataset ends a
    key at the first dot, and puts all of them under one. Raises ValueError as `exporting`.
    """
    with exporting(subset, out, "keys") as export:
        reason = (
            pl.when(pl.col("tar").is_null() | pl.col("member").is_null())
            .then(pl.lit("no_image"))
            .when(pl.col("member").str.contains(r"[^/.][^/]*\.[^/]*\.[^/]*$"))
            .then(pl.lit("key_has_dot"))
        )

        def keys() -> Iterator[pl.DataFrame]:
            for part in slices(subset.rows):
                marked = part.with_columns(reason=reason)
                export.lose(marked.filter(pl.col("reason").is_not_null()))
                rows = marked.filter(pl.col("reason").is_null())
                times = np.repeat(np.arange(rows.height), rows["multiplicity"].to_numpy())
                yield rows.select("tar", sample_key(pl.col("member")).alias("key"))[times]

        write_keys(export.folder / KEYS, keys())
    return Path(out) / KEYS
