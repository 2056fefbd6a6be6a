"""In which order the entries of an export are written: row by row, or as batches chosen by their concepts."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from curation_assets.numeric.concept_batches import batches_of
from curation_assets.numeric.concepts import concepts_of, nouns_of
from curation_assets.numeric.identity import draw_keys
from curation_assets.outputs.exports.manifest import Export

BATCH_SIZE, KEPT_OF_SUPER_BATCH = 1024, 0.2  # the paper keeps a fifth of each super-batch

#: A row of the subset, and which of its copies to write.
Copies = tuple[dict[str, Any], Sequence[int]]


def rows_with_copies(export: Export) -> Iterator[Copies]:
    """Every row of the subset, with all its copies."""
    for row in export.subset.rows.iter_rows(named=True):
        yield row, range(row["multiplicity"])


def rows_in_batches(export: Export, size: int, keep: float, seed: int) -> Iterator[Copies]:
    """The entries of concept batches one by one; the export's subset then has their multiplicities."""
    if not 0 < keep <= 1:
        raise ValueError(f"keep must be in (0, 1], got {keep}")
    subset = export.subset
    with subset.ctx.progress.task("images", subset.rows.height) as advance:
        for row in subset.rows.iter_rows(named=True):
            export.image_of(row)  # notes those that are not there
            advance(1)
    rows = export.written
    entries = np.repeat(np.arange(rows.height), rows["multiplicity"].to_numpy())
    if len(entries) < size:
        raise ValueError(
            f"{subset.name!r} has {len(entries):,} entries, and a batch {size:,}; give a smaller batch_size"
        )
    nouns = nouns_of(subset.ctx.engines(("wordnet",))["wordnet"].lemmas("n"))
    concepts = concepts_of(rows["caption"].fill_null("").to_list(), nouns)
    ids = rows["sample_id"].to_list()
    orders = []
    for number in range(max(1, round(1 / keep))):
        keys = draw_keys(ids, f"concept_batches:{seed}:{number}")
        orders.append(entries[np.argsort(keys[entries], kind="stable")].tolist())
    chosen = batches_of(concepts, orders, size, keep)
    times = np.bincount([row for batch in chosen for row in batch], minlength=rows.height)
    export.lost += [(ids[row], rows["multiplicity"][row], "in_no_batch") for row in np.flatnonzero(times == 0).tolist()]
    counted = pl.DataFrame({"sample_id": ids, "times": times})
    joined = subset.rows.join(counted, on="sample_id", how="left", maintain_order="left")
    multiplicity = pl.when(pl.col("times") > 0).then("times").otherwise("multiplicity").alias("multiplicity")
    export.subset = replace(subset, rows=joined.with_columns(multiplicity).drop("times"))
    export.facts["batches"] = {
        "by": "concept", "size": size, "keep": keep, "seed": seed, "batches": len(chosen), "passes": len(orders),
        "samples_in_no_batch": int((times == 0).sum()),
    }  # fmt: skip
    written: Counter[int] = Counter()
    for place in (place for batch in chosen for place in batch):
        yield rows.row(place, named=True), [written[place]]
        written[place] += 1
