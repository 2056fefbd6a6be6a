"""Row conservation: every input row ends as kept, dropped (reason) or failed (reason), and not too many fail.

Violations in words, for the blocking checks of every table and shard.
"""

from collections.abc import Mapping

import numpy as np
import polars as pl

from curation_assets.audit.ledger import ledger_policies, recorded_ledger
from curation_assets.core.stages import STAGES
from curation_assets.core.table_names import REGISTERED_SHARDS, SUBSETS
from curation_assets.flow.context import PoolContext
from curation_assets.flow.options import FlowOptions
from curation_assets.flow.table import Table
from curation_assets.scoring.upstream import UPSTREAM
from curation_assets.stores.tar_samples import TAR_REASONS

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
        repeated = _repeated_rows(frame)
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
        f"reasons: {_commonest_reasons(frame, ctx.pool.name)}. Remove their cause, or lower min_success_rate under "
        f"options: in {ctx.settings.pools_root / (ctx.pool.name + '.yaml')}"
    ]


def pool_succeeds(ctx: PoolContext, table: Table) -> bool:
    """Whether enough rows of all shards of a table that are stored succeed: a shard that fails stops no other then."""
    if table.grain != "shard":
        return False
    rate = success_rate(ctx.store.scan(table.name))
    return rate is not None and rate >= FlowOptions.of(ctx).min_success_rate


#: Reasons that begin so → the setting of the pool's declaration that changes how often they come.
_CURES = {
    "url_refused:private": "`curate pool set {pool} allow_hosts=HOST:PORT` (`pool add`: --allow-host)",
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


def _commonest_reasons(frame: Rows, pool: str, count: int = 3) -> str:
    """'404 120, timeout 30 (…)': the reasons of failed rows, the most frequent first, with what would change them."""
    reasons = frame.lazy().filter(pl.col("reason").is_not_null(), ~pl.col("reason").str.contains(_NOT_SCORABLE))
    if "status" in frame.collect_schema():
        reasons = reasons.filter(pl.col("status") == "failed")
    counted = reasons.group_by("reason").len().sort("len", "reason", descending=[True, False]).head(count)
    shown = []
    for reason, rows in counted.collect(engine="streaming").iter_rows():
        cure = next((text for begin, text in _CURES.items() if reason.startswith(begin)), None)
        shown.append(f"{reason} {rows:,}" + (f" ({cure.replace('{pool}', pool)})" if cure else ""))
    return ", ".join(shown) or "none given"


def _subset_violations(ctx: PoolContext) -> list[str]:
    """No npy holds more than its policy keeps (less, where samples were denied)."""
    sentences = []
    for name in ledger_policies(ctx.store):
        npy = ctx.store.folder_path(SUBSETS) / f"{name}.npy"
        if npy.is_file():
            chosen = len(np.load(npy, mmap_mode="r", allow_pickle=False))
            kept = sum(int(part["multiplicity"].sum()) for part in recorded_ledger(ctx.store, name).kept([]))
            if chosen > kept:
                sentences.append(f"{name} keeps {kept} entries, its npy {chosen}")
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


def _repeated_rows(frame: Rows) -> int:
    """Rows less distinct ones. A duplicate sample keeps its own row, distinguished by its position in the source."""
    key = [name for name in ("shard", "source_row", "sample_id") if name in frame.collect_schema()]
    if isinstance(frame, pl.LazyFrame):
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
