"""The difference between two releases: which samples came in and went out, why, from which groups, with examples."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from curation_assets.audit.diff import Overlap
from curation_assets.audit.ledger import ledger_facts
from curation_assets.audit.shifts import Progress, shifts
from curation_assets.core.errors import StoreError
from curation_assets.core.table_names import SAMPLES
from curation_assets.selection.cut import PolicyCut
from curation_assets.selection.judging import reason_kind
from curation_assets.selection.rows import PoolRows
from curation_assets.stores.columns import uid_texts
from curation_assets.stores.parquet import scan_parquet
from curation_assets.stores.releases import Release
from curation_assets.stores.shard_store import ShardStore

SAMPLE_COUNT = 5
NOT_IN_POOL = "not_in_pool"  # the reason where a release's ledger has no row of the sample
_UID = ["uid_high", "uid_low"]


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
) -> ReleaseDifference:
    """Two releases, of one policy or two, of the same pool at whatever size. `store`: the pool, where it is here.

    Captions, domains and languages are the pool's of now: a sample that it no longer has is in no group. Raises
    MissingReleaseError for a withdrawn release.
    """
    ledgers = {"left": _states(left), "right": _states(right)}
    kept = {side: states.filter("is_kept").select(_UID) for side, states in ledgers.items()}
    came = _changed("in", kept["right"], kept["left"], ledgers["left"])
    went = _changed("out", kept["left"], kept["right"], ledgers["right"])
    changed = pl.concat([came, went])
    samples = pl.concat([states.select(_UID) for states in ledgers.values()]).n_unique()
    overlap = Overlap(samples, kept["left"].height, kept["right"].height, kept["left"].height - went.height)
    reasons = changed.group_by("change", reason_kind(pl.col("reason")).alias("reason")).len("samples")
    groups, texts = None, changed.clear().select("change", *_UID)
    if store is not None and store.partitions(SAMPLES):
        rows = PoolRows.read(store)
        marks = {change: _marks(rows, part) for change, part in (("in", came), ("out", went))}
        table = shifts(rows, marks["out"], marks["in"], on_progress).rename({"left": "out", "right": "in"})
        is_touched = (pl.col("out") > 0) | (pl.col("in") > 0)
        groups = table.filter(is_touched).select("dimension", "group", "pool", "out", "in")
        texts = _texts(store, rows, {change: np.flatnonzero(mark)[:examples] for change, mark in marks.items()})
    return ReleaseDifference(
        left,
        right,
        overlap,
        reasons.sort("change", "samples", "reason", descending=[False, True, False]),
        {"left": ledger_facts(left.ledger)[1], "right": ledger_facts(right.ledger)[1]},
        _models(left, right),
        groups,
        _examples(changed, texts, examples),
    )


def _states(release: Release) -> pl.DataFrame:
    """One row per sample of a ledger: uid_high, uid_low, is_kept, reason. Of a repeated sample, the row that counts."""
    scan = scan_parquet(release.ledger).select(
        *_UID,
        (pl.col("verdict").cast(pl.String) == "kept").alias("is_kept"),
        pl.col("decided_by").is_not_null().alias("is_judged"),
        pl.col("reason").cast(pl.String),
    )
    rows = scan.sort("is_judged", descending=True, maintain_order=True).unique(_UID, keep="first", maintain_order=True)
    return rows.sort(_UID).drop("is_judged").collect()


def _changed(change: str, mine: pl.DataFrame, other: pl.DataFrame, states: pl.DataFrame) -> pl.DataFrame:
    """Samples that are in `mine` alone: change, uid_high, uid_low and the reason that the other's ledger has."""
    alone = mine.join(other, on=_UID, how="anti", maintain_order="left")
    with_reason = alone.join(states, on=_UID, how="left", maintain_order="left")
    return with_reason.select(pl.lit(change).alias("change"), *_UID, pl.col("reason").fill_null(NOT_IN_POOL))


def _marks(rows: PoolRows, samples: pl.DataFrame) -> np.ndarray:
    """(N,) bool: rows of the pool that are of one of the samples, as far as raw keeps them."""
    ids = pl.DataFrame({"uid_high": rows.uid_high, "uid_low": rows.uid_low}).with_row_index("position")
    marks = np.zeros(len(rows), dtype=bool)
    marks[ids.join(samples, on=_UID, how="semi")["position"].to_numpy()] = True
    return marks & rows.is_kept


def _texts(store: ShardStore, rows: PoolRows, chosen: Mapping[str, np.ndarray]) -> pl.DataFrame:
    """Caption and URL of some rows: change, uid_high, uid_low, caption, url."""
    schema = {"change": pl.String, "uid_high": pl.UInt64, "uid_low": pl.UInt64, "caption": pl.String, "url": pl.String}
    texts = []
    for change, positions in chosen.items():
        for position in positions.tolist():
            shard, source_row = rows.shard.words[rows.shard.codes[position]], int(rows.source_row[position])
            columns = store.read(SAMPLES, shard, ["source_row", "caption", "url"])
            found = columns.filter(pl.col("source_row") == source_row)
            if found.height != 1:
                raise StoreError(f"raw/samples of shard {shard} changed meanwhile; run it again")
            texts.append((change, rows.uid_high[position], rows.uid_low[position], *found.row(0)[1:]))
    return pl.DataFrame(texts, schema=schema, orient="row")


def _examples(changed: pl.DataFrame, texts: pl.DataFrame, count: int) -> pl.DataFrame:
    """Samples with texts where there are any, else the first of each change."""
    keys = ["change", *_UID]
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
