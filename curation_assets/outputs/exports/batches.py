"""In which order the entries of an export are written: row by row, or as batches chosen by their concepts."""

from array import array
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
    return ((row, range(row["multiplicity"])) for row in export.subset.rows.iter_rows(named=True))


def rows_in_batches(export: Export, size: int, keep: float, seed: int) -> Iterator[Copies]:
    """The entries of concept batches one by one; the export's subset then has their multiplicities."""
    if not 0 < keep <= 1:
        raise ValueError(f"keep must be in (0, 1], got {keep}")
    subset = export.subset
    with subset.ctx.progress.task("images", subset.rows.height) as advance:
        for row in subset.rows.iter_rows(named=True):
            export.image_of(row)  # notes those that are not there
            advance(1)
    nouns = nouns_of(subset.ctx.engines(("wordnet",))["wordnet"].lemmas("n"))
    passes = max(1, round(1 / keep))
    concepts = _Concepts()
    keys: list[list[np.ndarray]] = [[] for _ in range(passes)]
    for part in export.written():
        ids = part["sample_id"].to_list()
        concepts.extend(concepts_of(part["caption"].fill_null("").to_list(), nouns))
        for number, found in enumerate(keys):
            found.append(draw_keys(ids, f"concept_batches:{seed}:{number}"))
    numbers = export.is_written().arg_true().to_numpy()  # of the rows that have an image
    multiplicity = subset.rows["multiplicity"].to_numpy()
    entries = np.repeat(np.arange(len(numbers), dtype=np.int32), multiplicity[numbers])
    if len(entries) < size:
        raise ValueError(
            f"{subset.name!r} has {len(entries):,} entries, and a batch {size:,}; give a smaller batch_size"
        )
    orders = (entries[np.argsort(np.concatenate(found)[entries], kind="stable")] for found in keys)
    chosen = [np.array(batch, dtype=np.int32) for batch in batches_of(concepts, orders, size, keep)]
    times = np.bincount(np.concatenate([entries[:0], *chosen]), minlength=len(numbers))
    in_none = subset.rows.select("sample_id", "multiplicity")[numbers[times == 0]]
    export.lose(in_none.with_columns(reason=pl.lit("in_no_batch")))
    multiplicity = multiplicity.copy()
    multiplicity[numbers[times > 0]] = times[times > 0]
    export.subset = replace(subset, rows=subset.rows.with_columns(multiplicity=pl.Series(multiplicity)))
    export.facts["batches"] = {
        "by": "concept", "size": size, "keep": keep, "seed": seed, "batches": len(chosen), "passes": passes,
        "samples_in_no_batch": in_none.height,
    }  # fmt: skip
    written: Counter[int] = Counter()
    for batch in chosen:
        places = np.unique(batch)
        of_place = dict(zip(places.tolist(), subset.rows[numbers[places]].iter_rows(named=True), strict=True))
        for place in batch.tolist():
            yield of_place[place], [written[place]]
            written[place] += 1


class _Concepts(Sequence[list[str]]):
    """Concepts of rows, as numbers."""

    def __init__(self) -> None:
        self._code_of: dict[str, int] = {}
        self._names: list[str] = []
        self._codes, self._ends = array("i"), array("q", [0])

    def extend(self, rows: Sequence[Sequence[str]]) -> None:
        for names in rows:
            self._codes.extend(self._code_of.setdefault(name, len(self._code_of)) for name in names)
            self._ends.append(len(self._codes))
        self._names = list(self._code_of)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, row: Any) -> Any:
        return [self._names[code] for code in self._codes[self._ends[row] : self._ends[row + 1]]]
