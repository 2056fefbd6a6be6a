"""The verdict ledger: per policy one Parquet file with one row per input row, and why it ended as it did.

Folder `filtered/ledger` of a pool:

    icc.parquet                one file per policy, sorted by sample_id; its footer holds the policy and its cuts
    versions/versions.parquet  version_id → code, settings and models of every table upstream of a verdict
    versions/shards.parquet    data version and run of every table and shard

Which run judged is in the manifest of the folder: the same pool and policies give the same bytes in any run. A ledger
suffices to replay its policy: `replay` judges the recorded values again and gives the subset's `.npy`.
"""

import functools
import json
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from polars.io.plugins import register_io_source

from curation_assets.audit.versions import VersionBook
from curation_assets.core.plain_json import number, plain
from curation_assets.core.table_names import LEDGER, reference_of
from curation_assets.methods import oriented
from curation_assets.numeric.identity import packed_uids
from curation_assets.numeric.sorting import ordinals, stretches
from curation_assets.selection.cut import PolicyCut
from curation_assets.selection.judging import Judged, in_background, judge, multiplicity
from curation_assets.selection.left_out import recorded_left_out
from curation_assets.selection.part_by_part import JudgedPool, Pool, judge_pool
from curation_assets.selection.policy import RANDOM, Policy, Prefilter
from curation_assets.selection.rows import (
    KEPT,
    STATES,
    UID,
    PoolRows,
    Signal,
    Texts,
    enum_series,
    rows_sha256,
    uid_columns,
)
from curation_assets.stores.atomic import replacing
from curation_assets.stores.columns import uid_texts
from curation_assets.stores.external_sort import RUN_BYTES, ExternalSort
from curation_assets.stores.parquet import parquet_footer, parquet_rows, read_parquet, scan_parquet
from curation_assets.stores.shard_store import MissingTableError, ShardStore

FOOTER_KEY = "curation_ledger"
ROW_GROUP_ROWS = 100_000  # a look-up by id searches the ids of one of them,
PART_ROWS = 10 * ROW_GROUP_ROWS  # that are judged again together
PAGE_BYTES = 1 << 16  # and reads of its other columns only the page that holds the row

#: Columns before those of the signals. Grain: one row per row of raw/samples, sorted by id, shard, source_row.
LEDGER_SCHEMA: dict[str, Any] = {
    "uid_high": pl.UInt64,  # first 16 hex digits of the sample_id; with uid_low DataComp's u8,u8
    "uid_low": pl.UInt64,
    "shard": pl.Enum,
    "source_row": pl.Int64,
    "decided_by": pl.Enum,  # rank_by of the cut that decided; null for rows that no cut saw
    "rank": pl.UInt32,  # 1 is best, among the samples that reached that cut
    "threshold": pl.Float64,  # of that cut, in the unit of decided_by
    "margin": pl.Float64,  # how far the value is better than the threshold
    "verdict": pl.Enum,
    "reason": pl.Enum,  # null exactly when kept
    "policy_version": pl.Enum,
    "version_id": pl.UInt32,  # → versions/versions.parquet
}


class LedgerError(ValueError):
    """A ledger's verdicts are not those of its policy."""


def signal_column(reference: str, score: str | None = None) -> str:
    """Name of a signal's column: signals.icc → signals_icc, as its view in the catalogue."""
    return reference.replace(".", "_") + (f"_{score}" if score else "")


def recorded_columns(names: Iterable[str]) -> list[str]:
    """The columns of a ledger that hold signals."""
    return [name for name in names if name not in LEDGER_SCHEMA]


def recorded_signals(policy: Policy, recipes: Mapping[str, Sequence[str]]) -> list[str]:
    """References that a ledger of `policy` has a column for: what ranks, and the signals that its recipes fuse.

    `recipes`: recipe → references of its SQL, such as fused.sieve_clip → [raw.samples, signals.sieve, …].
    """
    ranked = {policy.rank_by, *(prefilter.rank_by for prefilter in policy.prefilters)}
    fused = {
        prefilter
        for reference in ranked
        for prefilter in recipes.get(reference, ())
        if not prefilter.startswith("raw.") and not prefilter.endswith("_range")
    }
    return sorted(ranked | fused)


@dataclass(frozen=True)
class Ledger:
    """One policy's ledger, as read."""

    policy: Policy
    cut: PolicyCut
    profile: str
    counts: tuple[tuple[int, int, int], ...]  # per step: rows that reached it, have a value, pass
    frame: pl.DataFrame  # LEDGER_SCHEMA and one column per signal

    @property
    def is_kept(self) -> np.ndarray:
        """(N,) bool: the subset."""
        return (self.frame["verdict"] == "kept").to_numpy()

    @property
    def multiplicity(self) -> np.ndarray:
        """(N,) int64: how often each row is in the subset."""
        values = self.frame[signal_column(self.policy.rank_by)].to_numpy() if self.policy.repeats else None
        return multiplicity(self.is_kept, values)

    @property
    def packed(self) -> np.ndarray:
        """The subset as DataComp's sorted u8,u8, an entry per repeat."""
        times = self.multiplicity
        return packed_uids(*(np.repeat(self.frame[half].to_numpy(), times) for half in UID))


def recorded_subset(path: Path) -> Iterator[np.ndarray]:
    """The subset of a ledger as DataComp's sorted u8,u8, an entry per repeat, part by part."""
    return (part.packed for part in ledger_parts(path, [*UID, "verdict"]))


def _ledger_rows(
    judged: Judged, rows: PoolRows, signals: Sequence[str], version_ids: np.ndarray, whole: JudgedPool | None = None
) -> Callable[[slice], pl.DataFrame]:
    """Consecutive rows of the ledger of one judged policy. `version_ids` (S,) per shard of `rows`.

    `whole`: what `judged` is a part of.
    """
    cuts, used = [cut.rank_by for cut in judged.cut.cuts], {} if whole is None else whole.used
    decided_by = Texts(judged.step, cuts, used.get("decided_by"))
    verdict = Texts(judged.verdict, list(STATES), used.get("verdict"))
    policy_version = pl.Enum([judged.policy.version])
    ranked, seed = in_background(lambda: judged.rank), judged.policy.seed  # sorts while files are read
    recorded: dict[str, np.ndarray] = {}
    for reference in signals:
        recorded[signal_column(reference)] = rows.values(reference, seed)
        for name, scores in rows.scores(reference, np.float32).items():  # 7 digits are enough: no cut uses them
            recorded[signal_column(reference, name)] = scores.astype(np.float32, copy=False)
    rank = ranked.result()

    def rows_of(part: slice) -> pl.DataFrame:
        frame = pl.DataFrame(
            [
                pl.Series("uid_high", rows.uid_high[part]),
                pl.Series("uid_low", rows.uid_low[part]),
                rows.shard.series("shard", part),
                pl.Series("source_row", rows.source_row[part].astype(np.int64)),
                decided_by.series("decided_by", part),
                pl.Series("rank", rank[part]),
                pl.Series("threshold", judged.threshold_in(part)),
                pl.Series("margin", judged.margin_in(part)),
                verdict.series("verdict", part),
                judged.reason.series("reason", part),
                pl.Series("policy_version", np.zeros(part.stop - part.start, dtype=np.uint32)).cat.to(policy_version),
                pl.Series("version_id", version_ids[rows.shard.codes[part]]),
                *(pl.Series(name, values[part]) for name, values in recorded.items()),
            ]
        )
        return frame.with_columns(
            pl.col(pl.Float64, pl.Float32).fill_nan(None),
            pl.when(pl.col("rank") > 0).then(pl.col("rank")).alias("rank"),
        )

    return rows_of


def write_ledger(
    pool: Pool,
    policy: Policy,
    path: Path,
    book: VersionBook,
    *,
    recipes: Mapping[str, Sequence[str]],
    cut: PolicyCut | None = None,
) -> Judged | JudgedPool:
    """Judge a pool by `policy` (by a frozen `cut`, or one fitted now) and write its ledger, whole or not at all."""
    pool = pool.without_signals()  # frees those of an earlier policy
    digest = in_background(rows_sha256, pool)
    judged = judge_pool(policy, pool, cut)
    signals = recorded_signals(policy, recipes)
    read = {*signals, *map(reference_of, policy.tables)} - {RANDOM}
    version_ids = book.version_ids(sorted(read) or ["raw.samples"], next(pool.parts()).shard.words)

    rows_of: Callable[[slice], pl.DataFrame]
    if isinstance(judged, JudgedPool):

        def rows_of(part: slice) -> pl.DataFrame:
            some = judged.part(part)
            return _ledger_rows(some, some.rows, signals, version_ids, judged)(slice(0, len(some.rows)))
    else:
        assert isinstance(pool, PoolRows), policy
        rows_of = _ledger_rows(judged, pool, signals, version_ids)
    footer = {
        "policy": policy.recorded(),
        "cut": judged.cut.to_dict(),
        "profile": book.profile,
        "counts": judged.counts,
    }
    write_rows(rows_of, len(pool), footer | {"rows_sha256": digest.result()}, path)
    return judged


def write_rows(rows_of: Callable[[slice], pl.DataFrame], size: int, footer: Mapping[str, Any], path: Path) -> None:
    """Write `size` rows and the footer of a ledger, whole or not at all.

    `rows_of` gives consecutive rows: they are written one stretch after the other, and few are in memory.
    """

    def batches(columns: list[str] | None, *_: object) -> Iterator[pl.DataFrame]:
        for part in stretches(size, 4 * ROW_GROUP_ROWS):
            frame = rows_of(part)
            yield frame if columns is None else frame.select(columns)

    with replacing(path) as temporary:
        register_io_source(batches, schema=rows_of(slice(0, 0)).schema).sink_parquet(
            temporary,
            compression="zstd",
            compression_level=1,  # most of it is random: more effort gains two bytes in a hundred
            row_group_size=ROW_GROUP_ROWS,
            data_page_size=PAGE_BYTES,
            metadata={FOOTER_KEY: json.dumps(plain(footer), sort_keys=True)},
        )


def write_versions(book: VersionBook, folder: Path) -> None:
    """Write the tables that the ledgers' version_id and shard point to."""
    for name, frame in (("versions", book.versions()), ("shards", book.shard_versions())):
        with replacing(folder / "versions" / f"{name}.parquet") as temporary:
            frame.write_parquet(temporary, compression="zstd")


def ledger_path(store: ShardStore, policy: str) -> Path:
    """Where the ledger of a policy lies, whose content is what was written.

    Raises MissingTableError that lists the policies there are, CorruptTableError for a damaged one.
    """
    known = ledger_policies(store)
    if policy not in known:
        shown = ", ".join(known) or "none: run the pool first"
        raise MissingTableError(f"no ledger of policy {policy!r} under {store.root}; ledgers: {shown}")
    return store.checked_file(LEDGER, f"{policy}.parquet")


def ledger_policies(store: ShardStore) -> list[str]:
    """Policies that have a ledger, sorted."""
    return sorted(path.stem for path in store.folder_path(LEDGER).glob("*.parquet"))


def ledger_facts(path: Path) -> tuple[Policy, PolicyCut, str, tuple[tuple[int, int, int], ...]]:
    """Policy, cuts, profile and counts of a ledger, from its footer. Raises LedgerError for a file that is none."""
    state = path.stat()
    return _facts_in(path, state.st_ino, state.st_mtime_ns, state.st_size)


@functools.lru_cache(maxsize=256)
def _facts_in(
    path: Path, inode: int, modified_ns: int, size: int
) -> tuple[Policy, PolicyCut, str, tuple[tuple[int, int, int], ...]]:
    footer = parquet_footer(path)
    if FOOTER_KEY not in footer:
        raise LedgerError(f"{path} is no ledger: its footer has no {FOOTER_KEY!r}")
    content = json.loads(footer[FOOTER_KEY])
    for step in (content["policy"], *content["policy"]["prefilters"]):
        step["threshold"] = number(step["threshold"])
    prefilters = tuple(Prefilter(**fields) for fields in content["policy"].pop("prefilters"))
    policy = Policy(prefilters=prefilters, **content["policy"])
    counts = tuple((reached, valued, passing) for reached, valued, passing in content["counts"])
    return policy, PolicyCut.from_dict(content["cut"]), content["profile"], counts


def ledger_rows_sha256(path: Path) -> str:
    """Which rows, in which order, a ledger is of. Raises LedgerError for one of a version that did not record it."""
    digest = json.loads(parquet_footer(path).get(FOOTER_KEY, "{}")).get("rows_sha256")
    if digest is None:
        raise LedgerError(f"{path} does not record its rows: a version before 0.3 wrote it; run the pool again")
    return str(digest)


def read_ledger(path: Path, columns: Iterable[str] | None = None, part: slice | None = None) -> Ledger:
    """A ledger, all columns or those named (and what multiplicities of a policy that repeats take), or `part` of its
    rows."""
    policy, cut, profile, counts = ledger_facts(path)
    repeated = [signal_column(policy.rank_by)] if policy.repeats else []
    chosen = None if columns is None else list(dict.fromkeys([*columns, *repeated]))
    if part is None:
        return Ledger(policy, cut, profile, counts, read_parquet(path, columns=chosen))
    rows = scan_parquet(path).slice(part.start, part.stop - part.start)
    return Ledger(policy, cut, profile, counts, (rows if chosen is None else rows.select(chosen)).collect())


def rows_of_ledger(ledger: Ledger, store: ShardStore) -> PoolRows:
    """The pool as a ledger, or a part of it, recorded it: rows, states and the values that its policy ranked by,
    nothing else, not even in which order they are stored."""
    frame, policy = ledger.frame, ledger.policy
    is_left_out = frame.select(recorded_left_out(policy)).to_series()
    judged = frame["decided_by"].is_not_null() | is_left_out
    verdict = frame["verdict"].cast(pl.String).cast(pl.Enum(STATES)).to_physical().cast(pl.Int8).to_numpy()
    reason = frame["reason"].cast(pl.String)
    raw_reason = Texts.of(pl.select(pl.when(~judged).then(reason).alias("reason")).to_series())
    shard = Texts.of(frame["shard"])
    rows = PoolRows(
        store,
        frame["uid_high"].to_numpy(),
        frame["uid_low"].to_numpy(),
        shard,
        frame["source_row"].to_numpy(),
        np.where(judged.to_numpy(), np.int8(KEPT), verdict),
        raw_reason,
        np.zeros(0, dtype=np.uint32),
    )
    if is_left_out.any():
        left_out = pl.select(pl.when(is_left_out).then(reason).alias("reason")).to_series()
        rows = replace(rows, recorded_left_out=Texts.of(left_out))
    elif policy.licences or policy.decontaminate:
        rows = replace(rows, recorded_left_out=Texts.none(frame.height))
    why = pl.select(pl.when(reason.str.starts_with("no_value:")).then(reason.str.slice(9)).alias("why")).to_series()
    for reference in {policy.rank_by, *(prefilter.rank_by for prefilter in policy.prefilters)}:
        values = frame[signal_column(reference)].fill_null(float("nan")).to_numpy()
        detail = reason.str.extract(rf"(?s)^(?:below_cut|prefilter):{re.escape(reference)}:(.*)$", 1)
        drop_reasons = Texts.of(detail) if detail.null_count() < len(detail) else None
        rows.provide(reference, Signal(values, Texts.of(why), drop_reasons=drop_reasons), policy.seed)
    return rows


def ledger_parts(path: Path, columns: Iterable[str] | None = None) -> Iterator[Ledger]:
    """A ledger as `read_ledger` gives it, PART_ROWS rows after the other; one part at least."""
    whole, rows = read_ledger(path, columns, slice(0, 0)), parquet_rows(path)
    yield from (read_ledger(path, whole.frame.columns, part) for part in stretches(rows, PART_ROWS))


def replayed_parts(path: Path, store: ShardStore) -> Iterator[np.ndarray]:
    """Judge the recorded values again: the subset as DataComp's u8,u8, sorted, part by part; (k,) each.

    Ranks are compared in sorted files in the system's temporary folder, where the ledger is long. Raises LedgerError
    after the last part when verdicts, reasons or ranks come out otherwise than recorded.
    """
    policy, cut, *_ = ledger_facts(path)
    differing, start = [np.zeros(0, dtype=np.int64)], 0
    with tempfile.TemporaryDirectory(prefix="ranks-", ignore_cleanup_errors=True) as scratch:
        ranked = [ExternalSort(["worse", "position"], Path(scratch), RUN_BYTES // len(cut.cuts)) for _ in cut.cuts]
        for ledger in ledger_parts(path):
            frame, judged = ledger.frame, judge(policy, rows_of_ledger(ledger, store), cut)
            again = pl.DataFrame([enum_series("verdict", judged.verdict, STATES), judged.reason.series("reason")])
            both = [one.select(pl.col("verdict", "reason").cast(pl.String)) for one in (again, frame)]
            if not both[0].equals(both[1]):
                differing.append(start + (both[0].hash_rows() != both[1].hash_rows()).arg_true().to_numpy())
            for rows in _ranked_rows(judged, frame["rank"].fill_null(0).to_numpy(), start):
                ranked[rows[0]].add(rows[1])
            unranked = np.flatnonzero(frame["rank"].is_not_null().to_numpy() & np.isnan(judged.value))
            differing.append(start + unranked)
            times = judged.multiplicity
            yield packed_uids(*(np.repeat(frame[half].to_numpy(), times) for half in UID))
            start += frame.height
        differing += [_misranked(rows) for rows in ranked]
    wrong = np.unique(np.concatenate(differing))
    if len(wrong):
        first = read_ledger(path, UID, slice(int(wrong[0]), int(wrong[0]) + 1)).frame
        raise LedgerError(
            f"{path}: policy {policy.name!r} gives {len(wrong)} rows another verdict, reason or rank than recorded, "
            f"first sample {uid_texts(first['uid_high'], first['uid_low'])[0]}; the file was changed, or the code: "
            "write the ledger anew"
        )


def _ranked_rows(judged: Judged, rank: np.ndarray, start: int) -> Iterator[tuple[int, pl.DataFrame]]:
    """Per cut, the rows that reached it and have a value: how bad it is, position, and the recorded rank (N,) of those
    that the cut decided on (-1 for others). `start`: position of the first row."""
    for step, cut in enumerate(judged.cut.cuts):
        values = oriented(cut.rank_by, judged.rows.signal(cut.rank_by, judged.policy.seed).values)
        reached = np.flatnonzero((judged.step >= step) & ~np.isnan(values))
        recorded = np.where(judged.step[reached] == step, rank[reached].astype(np.int64), -1)
        yield step, pl.DataFrame({"worse": ~ordinals(values[reached]), "position": start + reached, "rank": recorded})


def _misranked(rows: ExternalSort) -> np.ndarray:
    """(M,) positions of rows whose recorded rank is not the one that their value gives them."""
    wrong, seen = [np.zeros(0, dtype=np.int64)], 0
    for stretch in rows.stretches():
        rank = stretch["rank"].to_numpy()
        is_wrong = (rank >= 0) & (rank != np.arange(seen + 1, seen + 1 + len(rank)))
        wrong.append(stretch["position"].to_numpy()[is_wrong])
        seen += len(rank)
    return np.concatenate(wrong)


def check_against_verdicts(
    policy: Policy, judged: Iterable[Judged], verdicts_of: Callable[[str], pl.DataFrame]
) -> None:
    """Compare with the verdict table of each shard, which was judged by itself: stale tables come to light.

    `judged`: verdicts of whole shards. `verdicts_of`: shard → sample_id, source_row, verdict, reason. Raises
    LedgerError.
    """
    differing = sum(_differing(one, shard, verdicts_of(shard)) for one in judged for shard in one.rows.shard.words)
    if differing:
        raise LedgerError(
            f"ledger and filtered/{policy.name} disagree in {differing} rows; the table was made from other "
            f"values: materialise it again"
        )


def _differing(judged: Judged, shard: str, verdicts: pl.DataFrame) -> int:
    """In how many rows of a shard a verdict table disagrees."""
    rows = judged.rows
    mine = np.sort(rows.of_shard(shard))  # by id
    here = pl.DataFrame(
        [
            pl.Series("uid_high", rows.uid_high[mine]),
            pl.Series("uid_low", rows.uid_low[mine]),
            enum_series("verdict", judged.verdict[mine], STATES),
            Texts(judged.reason.codes[mine], judged.reason.words).series("reason"),
        ]
    ).with_columns(pl.col("verdict", "reason").cast(pl.String))
    written = verdicts.select(*uid_columns(), "source_row", "verdict", "reason")
    written = written.sort("uid_high", "uid_low", "source_row").drop("source_row")
    if written.height == here.height and not written.equals(here):
        return int((written.hash_rows() != here.hash_rows()).sum())
    return abs(written.height - here.height)
