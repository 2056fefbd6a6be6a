"""The difference between two releases: which samples came in and went out, why, from which groups, with examples."""

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from curation_assets.audit.diff import Overlap
from curation_assets.audit.release_ledger import ledger_sql, release_ledger
from curation_assets.audit.shifts import Progress, marks_of, shifts
from curation_assets.core.errors import StoreError
from curation_assets.core.progress import ProgressReporter, Silent
from curation_assets.core.table_names import SAMPLES
from curation_assets.selection.cut import PolicyCut
from curation_assets.selection.judging import reason_kind
from curation_assets.selection.rows import ROW_KEY, Pool
from curation_assets.stores.parquet import path_sql, table_sql
from curation_assets.stores.pool_queries import bounded, open_whole_pool
from curation_assets.stores.releases import SUBSET_PARQUET, Release
from curation_assets.stores.shard_store import ShardStore

if TYPE_CHECKING:
    import duckdb

SAMPLE_COUNT = 5
NOT_IN_POOL = "not_in_pool"  # the reason where a release's ledger has no row of the sample


@dataclass(frozen=True)
class ReleaseDifference:
    """What the release `right` has that `left` has not (in), and the other way round (out)."""

    left: Release
    right: Release
    overlap: Overlap  # rows: samples that either has
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
    """Two releases, of one policy or two, of the same pool at whatever size. `store`: the pool, where it is here.

    Captions, domains and languages are the pool's of now: a sample that it no longer has is in no group. Raises
    MissingReleaseError for a withdrawn release.
    """
    here = None if store is None or not store.partitions(SAMPLES) else Pool(store, progress or Silent())
    with _connected(here) as connection:
        overlap = _find_changed(connection, left, right)
        counted = connection.sql("select change, reason, count(*) as samples from changed group by change, reason").pl()
        reasons = counted.group_by("change", reason_kind(pl.col("reason")).alias("reason")).agg(pl.col("samples").sum())
        groups, rows = None, pl.DataFrame(schema=_HERE)
        if here is not None:
            found = _Marked(here, connection, examples)
            table = shifts(here, found.marks(), on_progress).rename({"left": "out", "right": "in"})
            is_touched = (pl.col("out") > 0) | (pl.col("in") > 0)
            groups, rows = table.filter(is_touched).select("dimension", "group", "pool", "out", "in"), found.first
        shown = _examples(connection, _texts(store, rows), examples)
    return ReleaseDifference(
        left,
        right,
        overlap,
        reasons.sort("change", "samples", "reason", descending=[False, True, False]),
        {"left": release_ledger(left).cut, "right": release_ledger(right).cut},
        _models(left, right),
        groups,
        shown,
    )


_HERE = {"change": pl.String, "sample_id": pl.String, "shard": pl.String, "source_row": pl.Int64}
#: The samples of one release alone, and the reason that the ledger of the other has: of a repeated sample that of the
#: row that counts.
_CHANGED = """
create temp table changed as
with alone as (
    select 'out' as change, sample_id from {left} as mine anti join {right} using (sample_id)
    union all
    select 'in' as change, sample_id from {right} as mine anti join {left} using (sample_id)
),
found as (
    select change, sample_id, arg_min(reason, row(decided_by is null, shard, source_row)) as reason
    from (
        select 'out' as change, sample_id, decided_by, shard, source_row, reason from {right_ledger}
        union all
        select 'in' as change, sample_id, decided_by, shard, source_row, reason from {left_ledger}
    )
    join alone using (change, sample_id)
    group by change, sample_id
)
select change, sample_id, coalesce(reason, {absent}) as reason from alone left join found using (change, sample_id)
"""


@contextmanager
def _connected(pool: Pool | None) -> Iterator["duckdb.DuckDBPyConnection"]:
    with contextlib.ExitStack() as stack:
        if pool is not None:
            yield stack.enter_context(open_whole_pool(pool.store, [SAMPLES]))
        else:
            scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="diff-", ignore_cleanup_errors=True))
            yield stack.enter_context(bounded(Path(scratch)))


def _find_changed(connection: "duckdb.DuckDBPyConnection", left: Release, right: Release) -> Overlap:
    """Make the table `changed`: change (in, out), sample_id, reason."""
    listed = {
        side: table_sql(path_sql(one.folder / SUBSET_PARQUET)) for side, one in (("left", left), ("right", right))
    }
    connection.execute(
        _CHANGED.format(
            **listed, left_ledger=ledger_sql(left), right_ledger=ledger_sql(right), absent=f"'{NOT_IN_POOL}'"
        )
    )
    counts = ", ".join(f"(select count(*) from {one})" for one in listed.values())
    query = f"select {counts}, count(*) filter (where change = 'out') from changed"
    ((in_left, in_right, out),) = connection.sql(query).fetchall()
    return Overlap(in_right + out, in_left, in_right, in_left - out)


class _Marked:
    """The rows of a pool whose samples came or went."""

    def __init__(self, pool: Pool, connection: "duckdb.DuckDBPyConnection", examples: int) -> None:
        """`examples`: how many of each change are kept, in `first`."""
        self.pool, self.connection, self.examples = pool, connection, examples
        self.first = pl.DataFrame(schema=_HERE)

    def marks(self) -> Iterator[pl.DataFrame]:
        """The marks of each part of the pool, for `shifts`: left marks samples that went, right
        those that came."""
        found = self.connection.sql(
            "select shard, source_row, change from raw.samples join changed using (sample_id) order by shard"
        )
        stream = map(pl.DataFrame, found.to_arrow_reader())
        changed = pl.DataFrame(schema={name: _HERE[name] for name in (*ROW_KEY, "change")})
        for shards, part in zip(self.pool.groups(), self.pool.parts(), strict=True):
            changed = changed.filter(pl.col("shard") >= shards[0])
            while changed.is_empty() or changed["shard"][-1] <= shards[-1]:
                if (more := next(stream, None)) is None:
                    break
                changed = pl.concat([changed, more])
            rows = part.join(changed, on=ROW_KEY, how="left", maintain_order="left")
            here = rows.filter(pl.col("change").is_not_null() & (pl.col("status") == "kept"))
            ordered = pl.concat([self.first, here.select(_HERE.keys())]).sort("change", "sample_id")
            self.first = ordered.group_by("change", maintain_order=True).head(self.examples).select(_HERE.keys())
            is_kept = (rows["status"] == "kept").to_numpy()
            sides = ((rows["change"] == change).fill_null(False).to_numpy() & is_kept for change in ("out", "in"))
            yield marks_of(is_kept, *sides)


def _texts(store: ShardStore | None, rows: pl.DataFrame) -> pl.DataFrame:
    """Caption and URL of some rows, as _HERE → change, sample_id, caption, url."""
    texts = []
    for *key, shard, source_row in rows.rows():
        assert store is not None, rows
        columns = store.read(SAMPLES, shard, ["source_row", "caption", "url"])
        found = columns.filter(pl.col("source_row") == source_row)
        if found.height != 1:
            raise StoreError(f"raw/samples of shard {shard} changed meanwhile; run it again")
        texts.append((*key, *found.row(0)[1:]))
    return pl.DataFrame(texts, schema=dict.fromkeys(("change", "sample_id", "caption", "url"), pl.String), orient="row")


def _examples(connection: "duckdb.DuckDBPyConnection", texts: pl.DataFrame, count: int) -> pl.DataFrame:
    """Samples with texts where there are any, else the first of each change."""
    connection.register("texts", texts.to_arrow())
    query = """
        select changed.change, sample_id, reason, caption, url
        from changed left join texts using (change, sample_id)
        where changed.change = ? order by texts.change is null, sample_id limit ?
    """
    return pl.concat(connection.sql(query, params=[change, count]).pl() for change in ("in", "out"))


def _models(left: Release, right: Release) -> pl.DataFrame:
    """Models that only one of the releases rests on."""
    columns = ("table", "address", "weights_sha256")
    sides = [{tuple(model[name] for name in columns) for model in release.models} for release in (left, right)]
    rows = [("out", *model) for model in sides[0] - sides[1]] + [("in", *model) for model in sides[1] - sides[0]]
    return pl.DataFrame(rows, schema=dict.fromkeys(("change", *columns), pl.String), orient="row").sort(pl.all())
