"""Row conservation: every input row ends as kept, dropped (reason) or failed (reason), and not too many fail.

Violations in words, for the blocking checks of every table and shard.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import polars as pl

from curation_assets.audit.ledger import PART_ROWS, ledger_parts, ledger_path, ledger_policies
from curation_assets.core.stages import STAGES
from curation_assets.core.table_names import LEDGER, REGISTERED_SHARDS, SAMPLES, SUBSETS
from curation_assets.flow.context import PoolContext
from curation_assets.flow.options import FlowOptions
from curation_assets.flow.table import Table
from curation_assets.numeric.sorting import stretches
from curation_assets.scoring.upstream import UPSTREAM
from curation_assets.stores.parquet import scan_parquet
from curation_assets.stores.tar_samples import TAR_REASONS

ROW_BITS = 40  # of a shard's rows; the rest of 64 tells the shards apart
TERMINAL_STATES = ("kept", "dropped", "failed")
Rows = pl.DataFrame | pl.LazyFrame


def rows_of(ctx: PoolContext, table: Table, shard: str | None) -> Rows:
    """A shard's rows in memory; those of a table of the whole pool, which may be larger, lazily."""
    return ctx.store.scan(table.name) if shard is None else ctx.store.read(table.name, shard)


def violations(ctx: PoolContext, table: Table, shard: str | None, frame: Rows | None = None) -> list[str]:
    """What is wrong with the rows of a materialised table, one sentence each; empty when all is well.

    Checked: as many rows as the table it continues has, no sample twice, terminal states with a reason where one
    is due, and no value missing without a reason. `frame`: what `rows_of` gives, where it is read already.
    """
    if table.name == LEDGER:
        return [*_ledger_violations(ctx), *_subset_violations(ctx)]
    if table.name == SUBSETS:
        return _subset_violations(ctx)
    if table.is_folder:
        return []
    frame = rows_of(ctx, table, shard) if frame is None else frame
    sentences = [*_state_violations(frame), *_value_violations(frame)]
    expected, (height,) = _expected_rows(ctx, table, shard), _aggregated(frame, pl.len())
    if expected is not None and height != expected[1]:
        sentences.append(f"{height} rows, but {expected[0]} has {expected[1]}")
    if "sample_id" in frame.collect_schema() and table.name != REGISTERED_SHARDS:
        repeated = _repeated_rows(ctx, table, frame)
        if repeated:
            sentences.append(f"{repeated} rows repeat an earlier row's identity")
    return sentences


#: Reasons that are no failure of the step: the row has nothing that the method could look at.
_NOT_SCORABLE = rf"^({UPSTREAM}|no_image$|no_caption$|not_applicable)"

#: Reasons of rows that stand for a tar: one that nobody can read stops no other.
_NO_SAMPLE = rf"^({'|'.join(TAR_REASONS)})(:|$)"


def _aggregated(frame: Rows, *of: pl.Expr, **named: pl.Expr) -> tuple[int, ...]:
    """Numbers of all rows, which are not held in memory for it."""
    return frame.lazy().select(*of, **named).collect(engine="streaming").row(0)


def success_rate(frame: Rows) -> float | None:
    """Share of the rows that could succeed and did; None where no row could, or the table knows no failures.

    Of raw tables the rows with a status, dropped ones and those that stand for a tar aside; of signals the rows that
    had something to look at.
    """
    columns = frame.collect_schema().names()
    if "reason" not in columns or "verdict" in columns:
        return None
    reason = pl.col("reason").fill_null("")
    if "status" in columns:
        could = (pl.col("status") != "dropped") & ~reason.str.contains(_NO_SAMPLE)
        did_not = pl.col("status") == "failed"
    else:
        value = next((name for name in ("value", "quality") if name in columns), None)
        if value is None:
            return None
        could = ~reason.str.contains(_NOT_SCORABLE)
        did_not = pl.col(value).is_null() | pl.col(value).is_nan()
    eligible, failed = _aggregated(frame, eligible=could.sum(), failed=(could & did_not).sum())
    return (eligible - failed) / eligible if eligible else None


def success_violations(ctx: PoolContext, table: Table, shard: str | None, frame: Rows | None = None) -> list[str]:
    """One sentence where too few rows of a shard succeed; empty when enough do. `frame`: as for `violations`."""
    if table.is_folder or not STAGES[table.stage].checks_success:
        return []
    frame = rows_of(ctx, table, shard) if frame is None else frame
    rate = success_rate(frame)
    floor = FlowOptions.of(ctx).min_success_rate
    if rate is None or rate >= floor:
        return []
    return [
        f"only {rate:.1%} of the rows succeeded, less than the pool's min_success_rate of {floor:.1%}. Most frequent "
        f"reasons: {_commonest_reasons(frame)}. Remove their cause, or lower min_success_rate under options: in "
        f"{ctx.settings.pools_root / (ctx.pool.name + '.yaml')}"
    ]


def pool_succeeds(ctx: PoolContext, table: Table) -> bool:
    """Whether enough rows of all shards of a table that are stored succeed: a shard that fails stops no other then."""
    if table.grain != "shard":
        return False
    rate = success_rate(ctx.store.scan(table.name))
    return rate is not None and rate >= FlowOptions.of(ctx).min_success_rate


#: Reasons that begin so → the setting of the pool's declaration that changes how often they come.
_CURES = {
    "url_refused:private": "`curate pool set POOL allow_hosts=HOST:PORT` (`pool add`: --allow-host)",
    "download_timeout": "download: {timeout_seconds: …, retries: …}",
    "download_dns": "is there a network? download: {retries: …}",
    "download_connection": "download: {threads: …, retries: …}",
    "image_too_many_pixels": "download: {max_pixels: …}",
    "download_rate_limited": "later: the domain wants no more requests now; download: {max_wait_seconds: …}",
    "download_http_429": "later: the server wants fewer requests; download: {max_wait_seconds: …}",
    "opt_out": "the owner forbids training, raw/downloads has the words; download: {opt_outs: …}",
    "robots_txt_unreachable": "later: the site's robots.txt cannot be read now",
    "robots_txt": "the site forbids it",
}


def _commonest_reasons(frame: Rows, count: int = 3) -> str:
    """'404 120, timeout 30 (…)': the reasons of failed rows, the most frequent first, with what would change them."""
    reasons = frame.lazy().filter(pl.col("reason").is_not_null(), ~pl.col("reason").str.contains(_NOT_SCORABLE))
    if "status" in frame.collect_schema():
        reasons = reasons.filter(pl.col("status") == "failed")
    counted = reasons.group_by("reason").len().sort("len", "reason", descending=[True, False]).head(count)
    shown = []
    for reason, rows in counted.collect(engine="streaming").iter_rows():
        cure = next((text for begin, text in _CURES.items() if reason.startswith(begin)), None)
        shown.append(f"{reason} {rows:,}" + (f" ({cure})" if cure else ""))
    return ", ".join(shown) or "none given"


def _ledger_violations(ctx: PoolContext) -> list[str]:
    """Every ledger has every row of raw/samples once, in a terminal state."""
    shards = ctx.store.partitions(SAMPLES)
    expected, sentences = _fingerprint(_stored_positions(ctx, shards)), []
    for name in ledger_policies(ctx.store):
        rows = scan_parquet(ledger_path(ctx.store, name))
        if _fingerprint(_recorded_positions(rows, shards)) != expected:
            sentences.append(f"ledger of {name}: {_lost(ctx, rows, shards)}")
        sentences += [f"ledger of {name}: {sentence}" for sentence in _state_violations(rows)]
    return sentences


def _stored_positions(ctx: PoolContext, shards: Sequence[str]) -> Iterator[np.ndarray]:
    """`_positions` of raw/samples, shard by shard."""
    for number, shard in enumerate(shards):
        frame = ctx.store.read(SAMPLES, shard, ["source_row"])
        yield _positions(np.full(frame.height, number), frame)


def _positions(shard: np.ndarray, frame: pl.DataFrame) -> np.ndarray:
    """(n,) numbers of shards and their source_row → (n,) uint64, both in one number."""
    return shard.astype(np.uint64) << np.uint64(ROW_BITS) | frame["source_row"].to_numpy().astype(np.uint64)


def _recorded_positions(rows: pl.LazyFrame, shards: Sequence[str]) -> Iterator[np.ndarray]:
    """`_positions` of a table of all rows, part by part; an unknown shard counts as one more."""
    number = pl.col("shard").cast(pl.String).replace_strict(shards, range(len(shards)), default=len(shards))
    (height,) = _aggregated(rows, pl.len())
    for part in stretches(height, PART_ROWS):
        frame = rows.select("shard", "source_row").slice(part.start, part.stop - part.start).collect()
        yield _positions(frame.select(number.fill_null(len(shards))).to_series().to_numpy(), frame)


def _fingerprint(parts: Iterable[np.ndarray]) -> tuple[int, int]:
    """How many numbers, and the sum of a hash of each: in any order, and the same for others once in 2^64."""
    count = total = 0
    for numbers in parts:
        mixed = numbers + np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):  # as SplitMix64
            mixed = (mixed ^ mixed >> np.uint64(shift)) * np.uint64(factor)
        count, total = count + len(mixed), total + int(mixed.sum(dtype=np.uint64)) & 2**64 - 1
    return count, total


def _lost(ctx: PoolContext, rows: pl.LazyFrame, shards: Sequence[str]) -> str:
    """How the rows of a ledger differ from those of raw/samples, all in memory."""
    expected = np.concatenate(list(_stored_positions(ctx, shards)))
    recorded = np.concatenate(list(_recorded_positions(rows, shards)))
    lost = len(np.setdiff1d(expected, recorded))
    return f"{len(recorded)} rows for {len(expected)} samples, {lost} samples have none"


def _subset_violations(ctx: PoolContext) -> list[str]:
    """No npy holds more than its ledger keeps (less, where samples were denied), once both are made of the same tables.

    After a change one of the two is made first: the other is still of the tables before.
    """
    ledgers, subsets = ctx.store.manifest(LEDGER), ctx.store.manifest(SUBSETS)
    if ledgers is None or subsets is None:
        return []
    read = {(version.asset, version.partition): version.content_sha256 for version in subsets.inputs}
    assets = {asset for asset, _ in read}
    if read != {
        (version.asset, version.partition): version.content_sha256
        for version in ledgers.inputs
        if version.asset in assets
    }:
        return []
    sentences = []
    for name in ledger_policies(ctx.store):
        npy = ctx.store.folder_path(SUBSETS) / f"{name}.npy"
        chosen = len(np.load(npy, mmap_mode="r", allow_pickle=False)) if npy.is_file() else 0
        kept = sum(int(part.multiplicity.sum()) for part in ledger_parts(ledger_path(ctx.store, name), ["verdict"]))
        if chosen > kept:
            sentences.append(f"ledger of {name} keeps {kept} entries, its npy {chosen}")
    return sentences


def counts_by_state(frame: Rows) -> dict[str, int]:
    """Rows per terminal state ('kept', 'dropped', 'failed') by `verdict` or `status`; empty where there is neither."""
    for column in ("verdict", "status"):
        if column in frame.collect_schema():
            counted: Mapping[str, int] = dict(frame.lazy().group_by(column).len().collect().iter_rows())
            return {state: int(counted.get(state, 0)) for state in TERMINAL_STATES if state in counted}
    return {}


def rows_by_state(frame: Rows) -> pl.DataFrame:
    """Columns status, reason ('' for none), len of a table with status and reason; most frequent first."""
    reason = pl.col("reason").cast(pl.String).fill_null("")
    counted = frame.lazy().group_by(pl.col("status").cast(pl.String), reason).len().collect(engine="streaming")
    return counted.sort("len", "status", "reason", descending=[True, False, False])


def _repeated_rows(ctx: PoolContext, table: Table, frame: Rows) -> int:
    """Rows less distinct ones. A duplicate sample keeps its own row, distinguished by its position in the source."""
    key = [name for name in ("shard", "source_row", "sample_id") if name in frame.collect_schema()]
    if isinstance(frame, pl.LazyFrame):
        if table.continues == SAMPLES and len(key) == 3:
            shards = ctx.store.partitions(SAMPLES)
            if _fingerprint(_recorded_positions(frame, shards)) == _fingerprint(_stored_positions(ctx, shards)):
                return 0
        frame = frame.select(key).collect()
    if "source_row" in key and frame["source_row"].n_unique() == frame.height:  # of one shard: no text is hashed
        return 0
    return frame.height - frame.select(key).n_unique()


def _state_violations(frame: Rows) -> list[str]:
    sentences = []
    columns = frame.collect_schema().names()
    for column in ("verdict", "status"):
        if column not in columns or "reason" not in columns:
            continue
        state, has_reason = pl.col(column).cast(pl.String), pl.col("reason").is_not_null()
        odd, kept_with_reason, without_reason = _aggregated(
            frame,
            odd=(~state.is_in(TERMINAL_STATES) | state.is_null()).sum(),
            kept=((state == "kept") & has_reason).sum(),
            silent=(state.is_in(["dropped", "failed"]) & ~has_reason).sum(),
        )
        if odd and column == "verdict":
            sentences.append(f"{odd} rows have no terminal {column}")
        if kept_with_reason:
            sentences.append(f"{kept_with_reason} rows are kept and yet carry a reason")
        if without_reason:
            sentences.append(f"{without_reason} rows are dropped or failed without a reason")
    return sentences


def _value_violations(frame: Rows) -> list[str]:
    columns = frame.collect_schema()
    if "reason" not in columns or "verdict" in columns:
        return []
    sentences = []
    for column in ("value", "quality"):
        if column in columns:
            missing = pl.col(column).is_null() | pl.col(column).is_nan()
            (silent,) = _aggregated(frame, (missing & pl.col("reason").is_null()).sum())
            if silent:
                sentences.append(f"{silent} rows have no {column} and no reason")
    return sentences


def _expected_rows(ctx: PoolContext, table: Table, shard: str | None) -> tuple[str, int] | None:
    """The table whose rows this one must carry on, with its row count."""
    if table.continues is None:
        return None
    shards = [shard] if shard is not None else ctx.store.partitions(table.continues)
    manifests = [ctx.store.manifest(table.continues, key) for key in shards]
    return table.continues, sum(manifest.row_count for manifest in manifests if manifest is not None)
