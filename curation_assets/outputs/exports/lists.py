"""Subsets as lists: DataComp's `.npy`, and allow-lists of tar and key that let training skip without resharding."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from curation_assets.audit.ledger import subset_of
from curation_assets.outputs.exports.formats import export_format
from curation_assets.outputs.exports.manifest import exporting
from curation_assets.outputs.exports.subset import Subset
from curation_assets.outputs.registry import SAMPLE_IDS
from curation_assets.stores.mapped_rows import slices
from curation_assets.stores.parquet import write_as_frame
from curation_assets.stores.subsets import counted_ids, read_key_list, write_keys
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
    """`out`/keys.tsv: one line `tar<TAB>key` per entry, for the tars as they are; see `AllowList`.

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


class AllowList:
    """Samples to train on, by tar and key, read from `keys.tsv`.

        allowed = AllowList.read("keys.tsv")
        dataset = wds.WebDataset(urls).compose(allowed.samples)

    A tar is found by the end of its path, so it may have moved together with its folder.
    """

    def __init__(self, multiplicity: Mapping[str, Mapping[str, int]]) -> None:
        self.multiplicity = multiplicity  # tar → key → how often
        self._by_name: dict[str, list[str]] = defaultdict(list)
        for tar in multiplicity:
            self._by_name[tar.rpartition("/")[2]].append(tar)

    @classmethod
    def read(cls, path: Path | str) -> "AllowList":
        """The list of `export_keys`. Raises ValueError for a line that is not `tar<TAB>key`."""
        entries: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for tar, key in read_key_list(Path(path)):
            entries[tar][key] += 1
        return cls(entries)

    def tar_of(self, url: str) -> str | None:
        """The listed tar that `url` is: the one whose path shares the longest end with it; None where none does.

        Raises ValueError where two listed tars fit equally well.
        """
        parts = url.split("/")
        fits = [(_shared_end(parts, tar.split("/")), tar) for tar in self._by_name.get(parts[-1], ())]
        if not fits:
            return None
        best = max(length for length, _ in fits)
        tied = [tar for length, tar in fits if length == best]
        if len(tied) > 1:
            raise ValueError(f"{url!r} may be {tied[0]!r} or {tied[1]!r} of the list; give more of its path")
        return tied[0]

    def count(self, url: str, key: str) -> int:
        """How often the sample `key` of the tar at `url` is to be seen; 0 where it is not listed."""
        tar = self.tar_of(url)
        return self.multiplicity[tar].get(key, 0) if tar is not None else 0

    def samples(self, samples: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Samples of a webdataset pipeline, each as often as listed."""
        for sample in samples:
            for _ in range(self.count(sample["__url__"], sample["__key__"])):
                yield dict(sample)


def _shared_end(left_parts: list[str], right_parts: list[str]) -> int:
    length = 0
    for left, right in zip(reversed(left_parts), reversed(right_parts), strict=False):
        if left != right:
            break
        length += 1
    return length
