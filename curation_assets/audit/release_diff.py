"""The difference between two releases: which samples came in and went out, why, from which groups, with examples."""

import collections
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from curation_assets.audit.diff import Overlap
from curation_assets.audit.ledger import PART_ROWS, ledger_facts, ledger_parts
from curation_assets.audit.shifts import Progress, marks_of, shifts
from curation_assets.core.errors import StoreError
from curation_assets.core.progress import ProgressReporter
from curation_assets.core.table_names import SAMPLES
from curation_assets.numeric.sorting import stretches
from curation_assets.selection.cut import PolicyCut
from curation_assets.selection.judging import reason_kind
from curation_assets.selection.part_by_part import Pool
from curation_assets.selection.ranges import whole_pool
from curation_assets.selection.rows import UID
from curation_assets.stores.columns import uid_texts
from curation_assets.stores.external_sort import key_ranges
from curation_assets.stores.releases import Release
from curation_assets.stores.shard_store import ShardStore

SAMPLE_COUNT = 5
NOT_IN_POOL = "not_in_pool"  # the reason where a release's ledger has no row of the sample


@dataclass(frozen=True)
class ReleaseDifference:
    """What the release `right` has that `left` has not (in), and the other way round (out)."""

    left: Release
    right: Release
    overlap: Overlap  # rows: different samples of both ledgers
    reasons: pl.DataFrame  # change (in, out), reason, samples: why the other release does not have them
    cuts: Mapping[str, PolicyCut]  # left, right
    models: pl.DataFrame  # change (in, out), table, address, weights_sha256: behind one release alone
    groups: pl.DataFrame | None  # dimension, group, pool, out, in (rows); None where the pool is not here
    examples: pl.DataFrame  # change, sample_id, reason, caption, url: texts where the pool has them

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "left": {"name": self.left.name, "sha256": self.left.sha256, **self.left.counts},
            "right": {"name": self.right.name, "sha256": self.right.sha256, **self.right.counts},
            "is_same_policy": self.left.policy_version == self.right.policy_version,
            "both": self.overlap.both,
            "out": self.overlap.only_left,
            "in": self.overlap.only_right,
            "iou": self.overlap.iou,
            "reasons": self.reasons.to_dicts(),
            "cuts": {side: cut.to_dict()["cuts"] for side, cut in self.cuts.items()},
            "models": self.models.to_dicts(),
            "groups": None if self.groups is None else self.groups.to_dicts(),
            "examples": self.examples.to_dicts(),
        }


def compare_releases(
    left: Release,
    right: Release,
    store: ShardStore | None,
    *,
    examples: int = SAMPLE_COUNT,
    on_progress: Progress | None = None,
    progress: ProgressReporter | None = None,
) -> ReleaseDifference:
    """Two releases, of one policy or two, of the same pool at whatever size: their ledgers are read side by side, as
    they are sorted. `store`: the pool, where it is here.

    Captions, domains and languages are the pool's of now: a sample that it no longer has is in no group. Raises
    MissingReleaseError for a withdrawn release.
    """
    with ExitStack() as stack:
        pool = None
        if store is not None and store.partitions(SAMPLES):
            pool = stack.enter_context(whole_pool(store, progress))
        found, groups = _Found(examples), None
        streams = [_states(left), _states(right), _rows_of(pool)]
        marks = (found.add(*some) for some in key_ranges(streams, UID))
        if pool is None:
            collections.deque(marks, maxlen=0)
        else:
            table = shifts(pool, marks, on_progress).rename({"left": "out", "right": "in"})
            is_touched = (pl.col("out") > 0) | (pl.col("in") > 0)
            groups = table.filter(is_touched).select("dimension", "group", "pool", "out", "in")
    return ReleaseDifference(
        left,
        right,
        found.overlap,
        found.reasons.sort("change", "samples", "reason", descending=[False, True, False]),
        {"left": ledger_facts(left.ledger)[1], "right": ledger_facts(right.ledger)[1]},
        _models(left, right),
        groups,
        _examples(found.changed.sort("change", maintain_order=True), _texts(store, found.here), examples),
    )


class _Found:
    """What differs in the samples that were looked at, in order of sample_id."""

    def __init__(self, examples: int) -> None:
        """`examples`: how many samples of each change are kept."""
        self.examples = examples
        self.overlap = Overlap(0, 0, 0, 0)
        self.reasons = pl.DataFrame(schema={"change": pl.String, "reason": pl.String, "samples": pl.UInt32})
        ids = {"change": pl.String, **dict.fromkeys(UID, pl.UInt64)}
        self.changed = pl.DataFrame(schema={**ids, "reason": pl.String})  # the first, and those that are `here`
        self.here = pl.DataFrame(schema={**ids, "shard": pl.String, "source_row": pl.Int64})  # the first in the pool

    def add(self, left: pl.DataFrame, right: pl.DataFrame, rows: pl.DataFrame) -> np.ndarray:
        """All rows of a range of ids, of both ledgers (`_states`) and of the pool (`_rows_of`), (n,) → (n,) their marks
        for `shifts`: left for out, right for in."""
        ledgers = [_first_of_each(states) for states in (left, right)]
        kept = [states.filter("is_kept").select(UID) for states in ledgers]
        came, went = _changed("in", kept[1], kept[0], ledgers[0]), _changed("out", kept[0], kept[1], ledgers[1])
        samples = pl.concat([states.select(UID) for states in ledgers]).n_unique()
        self.overlap += Overlap(samples, kept[0].height, kept[1].height, kept[0].height - went.height)
        changed = pl.concat([came, went])
        reasons = changed.group_by("change", reason_kind(pl.col("reason")).alias("reason")).len("samples")
        self.reasons = pl.concat([self.reasons, reasons]).group_by("change", "reason").agg(pl.col("samples").sum())
        rows = rows.join(changed.select("change", *UID), on=UID, how="left", maintain_order="left")
        is_kept = rows["is_kept"].to_numpy()
        sides = ((rows["change"] == change).fill_null(False).to_numpy() & is_kept for change in ("out", "in"))
        here = rows.filter(pl.col("change").is_not_null() & pl.col("is_kept"))
        here = here.select(pl.col(name).cast(kind) for name, kind in self.here.schema.items())
        of_change = pl.concat([self.here, here]).group_by("change", maintain_order=True)
        self.here = of_change.head(self.examples).select(self.here.columns)
        known = self.here.select("change", *UID).with_columns(is_here=True)
        all_changed = pl.concat([self.changed, changed]).join(
            known, on=["change", *UID], how="left", maintain_order="left"
        )
        is_first = pl.int_range(pl.len()).over("change") < self.examples
        self.changed = all_changed.filter(is_first | pl.col("is_here")).drop("is_here")
        return marks_of(is_kept, *sides)


def _states(release: Release) -> Iterator[pl.DataFrame]:
    """Rows of a ledger, part by part: uid_high, uid_low, is_kept, is_judged, reason."""
    for part in ledger_parts(release.ledger, [*UID, "verdict", "decided_by", "reason"]):
        yield part.frame.select(
            *UID,
            (pl.col("verdict").cast(pl.String) == "kept").alias("is_kept"),
            pl.col("decided_by").is_not_null().alias("is_judged"),
            pl.col("reason").cast(pl.String),
        )


def _first_of_each(states: pl.DataFrame) -> pl.DataFrame:
    """One row per sample; of a repeated sample, the row that counts."""
    rows = states.sort("is_judged", descending=True, maintain_order=True)
    return rows.unique(UID, keep="first", maintain_order=True).sort(UID).drop("is_judged")


def _rows_of(pool: Pool | None) -> Iterator[pl.DataFrame]:
    """Rows of the pool, part by part: uid_high, uid_low, shard, source_row, is_kept (by raw). None of no pool."""
    ids = dict.fromkeys(UID, pl.UInt64)
    yield pl.DataFrame(schema={**ids, "shard": pl.String, "source_row": pl.Int64, "is_kept": pl.Boolean})
    for rows in () if pool is None else pool.parts():
        for part in stretches(len(rows), PART_ROWS):
            yield pl.DataFrame(
                [
                    pl.Series("uid_high", rows.uid_high[part]),
                    pl.Series("uid_low", rows.uid_low[part]),
                    rows.shard.series("shard", part).cast(pl.String),
                    pl.Series("source_row", rows.source_row[part], dtype=pl.Int64),
                    pl.Series("is_kept", rows.is_kept[part]),
                ]
            )


def _changed(change: str, mine: pl.DataFrame, other: pl.DataFrame, states: pl.DataFrame) -> pl.DataFrame:
    """Samples that are in `mine` alone: change, uid_high, uid_low and the reason that the other's ledger has."""
    alone = mine.join(other, on=UID, how="anti", maintain_order="left")
    with_reason = alone.join(states, on=UID, how="left", maintain_order="left")
    return with_reason.select(pl.lit(change).alias("change"), *UID, pl.col("reason").fill_null(NOT_IN_POOL))


def _texts(store: ShardStore | None, chosen: pl.DataFrame) -> pl.DataFrame:
    """Caption and URL of some rows, change, uid_high, uid_low, shard, source_row → change, uid_high, uid_low, caption,
    url."""
    schema = {"change": pl.String, **dict.fromkeys(UID, pl.UInt64), "caption": pl.String, "url": pl.String}
    texts = []
    for *key, shard, source_row in chosen.rows():
        assert store is not None, chosen
        columns = store.read(SAMPLES, shard, ["source_row", "caption", "url"])
        found = columns.filter(pl.col("source_row") == source_row)
        if found.height != 1:
            raise StoreError(f"raw/samples of shard {shard} changed meanwhile; run it again")
        texts.append((*key, *found.row(0)[1:]))
    return pl.DataFrame(texts, schema=schema, orient="row")


def _examples(changed: pl.DataFrame, texts: pl.DataFrame, count: int) -> pl.DataFrame:
    """Samples with texts where there are any, else the first of each change."""
    keys = ["change", *UID]
    if texts.is_empty():
        texts = texts.with_columns(pl.lit(None, pl.String).alias(name) for name in ("caption", "url"))
    with_texts = changed.join(texts.with_columns(has_text=True), on=keys, how="left", maintain_order="left")
    first = with_texts.sort(pl.col("has_text").is_null(), maintain_order=True).group_by("change", maintain_order=True)
    chosen = first.head(count)
    return chosen.select("change", uid_texts(chosen["uid_high"], chosen["uid_low"]), "reason", "caption", "url")


def _models(left: Release, right: Release) -> pl.DataFrame:
    """Models that only one of the releases rests on."""
    columns = ("table", "address", "weights_sha256")
    sides = [{tuple(model[name] for name in columns) for model in release.models} for release in (left, right)]
    rows = [("out", *model) for model in sides[0] - sides[1]] + [("in", *model) for model in sides[1] - sides[0]]
    return pl.DataFrame(rows, schema=dict.fromkeys(("change", *columns), pl.String), orient="row").sort(pl.all())
