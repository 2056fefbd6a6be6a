"""Row conservation: every input row ends as kept, dropped (reason) or failed (reason). Violations in words."""

from collections.abc import Mapping

import polars as pl

from curation_assets.flow import PoolContext, Table

TERMINAL_STATES = ("kept", "dropped", "failed")


def violations(ctx: PoolContext, table: Table, shard: str | None) -> list[str]:
    """What is wrong with the rows of a materialised table, one sentence each; empty when all is well.

    Checked: as many rows as the table it continues has, no sample twice, terminal states with a reason where one
    is due, and no value missing without a reason.
    """
    if table.compute is None:
        return []
    frame = ctx.store.read(table.name, shard)
    found = [*_state_violations(frame), *_value_violations(frame)]
    expected = _expected_rows(ctx, table, shard)
    if expected is not None and frame.height != expected[1]:
        found.append(f"{frame.height} rows, but {expected[0]} has {expected[1]}")
    if "sample_id" in frame.columns and table.name != "raw/registered_shards":
        repeated = frame.height - frame.select(_row_key(frame)).n_unique()
        if repeated:
            found.append(f"{repeated} rows repeat an earlier row's identity")
    return found


def counts_by_state(frame: pl.DataFrame) -> dict[str, int]:
    """Rows per terminal state ('kept', 'dropped', 'failed'), from `verdict`, `status` or `reason`; else only 'rows'."""
    for column in ("verdict", "status"):
        if column in frame.columns:
            counted: Mapping[str, int] = dict(frame[column].value_counts().iter_rows())
            return {state: int(counted.get(state, 0)) for state in TERMINAL_STATES if state in counted}
    return {"rows": frame.height}


def _row_key(frame: pl.DataFrame) -> list[str]:
    """A duplicate sample keeps its own row, told apart by its place in the source."""
    return [name for name in ("shard", "source_row", "sample_id") if name in frame.columns]


def _state_violations(frame: pl.DataFrame) -> list[str]:
    found = []
    for column in ("verdict", "status"):
        if column not in frame.columns or "reason" not in frame.columns:
            continue
        odd = frame.filter(~pl.col(column).is_in(TERMINAL_STATES) | pl.col(column).is_null())
        if odd.height and column == "verdict":
            found.append(f"{odd.height} rows have no terminal {column}")
        kept_with_reason = frame.filter((pl.col(column) == "kept") & pl.col("reason").is_not_null()).height
        if kept_with_reason:
            found.append(f"{kept_with_reason} rows are kept and yet carry a reason")
        without_reason = frame.filter(pl.col(column).is_in(["dropped", "failed"]) & pl.col("reason").is_null()).height
        if without_reason:
            found.append(f"{without_reason} rows are dropped or failed without a reason")
    return found


def _value_violations(frame: pl.DataFrame) -> list[str]:
    if "reason" not in frame.columns or "verdict" in frame.columns:
        return []
    found = []
    for column in ("value", "quality"):
        if column in frame.columns:
            missing = pl.col(column).is_null() | pl.col(column).is_nan()
            silent = frame.filter(missing & pl.col("reason").is_null()).height
            if silent:
                found.append(f"{silent} rows have no {column} and no reason")
    return found


def _expected_rows(ctx: PoolContext, table: Table, shard: str | None) -> tuple[str, int] | None:
    """The table whose rows this one must carry on, with its row count."""
    if table.continues is None:
        return None
    shards = [shard] if shard is not None else ctx.store.partitions(table.continues)
    manifests = [ctx.store.manifest(table.continues, key) for key in shards]
    return table.continues, sum(manifest.row_count for manifest in manifests if manifest is not None)
