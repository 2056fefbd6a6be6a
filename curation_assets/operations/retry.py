"""Rows that failed for a reason that may pass: which they are, and computing them, and them alone, again.

Downloads are fetched by the next run (`request_retry`); values of models are computed here.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import polars as pl

from curation_assets.core.table_names import DOWNLOADS, REGISTERED_SHARDS
from curation_assets.flow.context import PoolContext
from curation_assets.flow.freshness import is_up_to_date
from curation_assets.flow.table import Table, Tables
from curation_assets.scoring.batches import BrokenEngineError
from curation_assets.scoring.upstream import UPSTREAM
from curation_assets.sources.download.download import request_retry
from curation_assets.sources.shards import DOWNLOADS_FOLDER
from curation_assets.stores.content_hash import frame_sha256
from curation_assets.stores.costs import attempt
from curation_assets.stores.documents import read_document, remove_document, save_document
from curation_assets.stores.shard_store import ShardStore

PENDING = "retry.json"  # in the pool's folder, from before the first change until the last: what a killed retry was at
#: Reasons that may pass. Not among them: what a server or an owner refuses, and what the bytes of an image are.
MAY_PASS = (
    "timeout", "truncated", "dns_failure", "connection_*", "unreachable", "failed", "lost",
    "http_408", "http_425", "http_429", "http_5xx", "rate_limited", "robots_txt_unreachable", "missing_in_tar",
    "engine_error:*",
)  # fmt: skip
NOT_HERE = (UPSTREAM,)  # follows from another table's failure


@dataclass(frozen=True)
class FailedRows:
    """Rows of one shard of a table that failed, by their position in it."""

    table: str
    shard: str
    positions: tuple[int, ...]
    reasons: tuple[str, ...]


def reason_patterns(given: str | None) -> tuple[str, ...]:
    """'timeout,http_5xx' → its patterns; None: MAY_PASS. Raises ValueError where there is none."""
    patterns = MAY_PASS if given is None else tuple(part.strip() for part in given.split(",") if part.strip())
    if not patterns:
        raise ValueError(f"--reason takes reasons between commas, such as timeout,http_5xx; got {given!r}")
    return patterns


def is_meant(reason: str, patterns: Iterable[str]) -> bool:
    """Whether a pattern names a reason, with or without its `download_`. * is any text, http_5xx any of 500 to 599."""
    names = (reason, reason.removeprefix("download_"))
    digits = (re.sub(r"(?<=http_\d)xx$", "[0-9][0-9]", pattern) for pattern in patterns)
    return any(fnmatchcase(name, pattern) for pattern in digits for name in names)


def failed_rows(ctx: PoolContext, tables: Tables, patterns: Sequence[str]) -> list[FailedRows]:
    """Rows whose download failed, or to which a model gave no value, for one of these reasons; by table and shard."""
    found = []
    for table in tables.values():
        if table.name != DOWNLOADS and not _is_of_models(table):
            continue
        for shard in ctx.store.partitions(table.name):
            failed = _failed_of(ctx.store.read(table.name, shard), table.name, shard, patterns)
            found += [failed] if failed.positions else []
    return found


def _is_of_models(table: Table) -> bool:
    return bool(table.needs.roles) and table.grain == "shard" and not table.is_folder and table.continues is not None


def _failed_of(frame: pl.DataFrame, table: str, shard: str, patterns: Sequence[str]) -> FailedRows:
    if "reason" not in frame.columns:
        return FailedRows(table, shard, (), ())
    is_failed = frame["status"] == "failed" if "status" in frame.columns else frame["reason"].is_not_null()
    meant = [
        (position, reason)
        for position, (reason, failed) in enumerate(zip(frame["reason"], is_failed, strict=True))
        if failed and reason and not reason.startswith(NOT_HERE) and is_meant(reason, patterns)
    ]
    return FailedRows(table, shard, tuple(p for p, _ in meant), tuple(reason for _, reason in meant))


def with_pending(ctx: PoolContext, failed: Iterable[FailedRows]) -> list[FailedRows]:
    """`failed`, and what a retry that was killed was at, with the reasons that it found; by table and shard.

    Rows of a shard whose source changed since are left out: their positions are of other rows.
    """
    advice = "remove the file, and run `curate retry` again"
    pending = read_document(ctx.store.root / PENDING, _pending, advice=advice) or []
    merged: dict[tuple[str, str], dict[int, str]] = {}
    for registered, found in pending:
        if registered == ctx.store.content(REGISTERED_SHARDS, found.shard):
            merged[found.table, found.shard] = dict(zip(found.positions, found.reasons, strict=True))
    for part in failed:
        known = merged.setdefault((part.table, part.shard), {})
        merged[part.table, part.shard] = dict(zip(part.positions, part.reasons, strict=True)) | known
    return [
        FailedRows(table, shard, tuple(sorted(rows)), tuple(rows[position] for position in sorted(rows)))
        for (table, shard), rows in merged.items()
    ]


def _pending(parts: list[dict[str, Any]]) -> list[tuple[Any, FailedRows]]:
    """What `begin_retry` wrote: what was registered of a shard then, and its rows."""
    return [(part.pop("registered"), FailedRows(**part)) for part in parts]


def begin_retry(ctx: PoolContext, failed: Iterable[FailedRows]) -> None:
    """Write down what is retried, for the next call where this one is killed."""
    content = [asdict(part) | {"registered": ctx.store.content(REGISTERED_SHARDS, part.shard)} for part in failed]
    save_document(ctx.store.root / PENDING, content)


def end_retry(ctx: PoolContext) -> None:
    """Forget what was retried: all of it is done."""
    remove_document(ctx.store.root / PENDING)


def still_failed(ctx: PoolContext, failed: Iterable[FailedRows]) -> list[FailedRows]:
    """The rows that still have a reason. A table that a killed retry removed waits for the next run."""
    found = []
    for part in failed:
        if part.shard in ctx.store.partitions(part.table):
            now = ctx.store.read(part.table, part.shard)["reason"]
            positions = tuple(position for position in part.positions if now[position] is not None)
            found.append(replace(part, positions=positions, reasons=tuple(now[list(positions)])))
    return [part for part in found if part.positions]


def request_downloads(ctx: PoolContext, failed: Iterable[FailedRows]) -> None:
    """Have the next run fetch the failed downloads again."""
    for part in failed:
        if part.table == DOWNLOADS:
            ids = ctx.store.read(DOWNLOADS, part.shard)["sample_id"][list(part.positions)]
            request_retry(ctx.store.root / DOWNLOADS_FOLDER, part.shard, ids.to_list())
            ctx.store.remove(DOWNLOADS, part.shard)


def recompute_rows(
    ctx: PoolContext,
    tables: Tables,
    failed: Iterable[FailedRows],
    on_notice: Callable[[str], None] = lambda sentence: None,
) -> None:
    """Ask the models for the failed rows again, of tables that are up to date; the next run makes the others anyway.

    `on_notice` receives a sentence where an engine fails on all of them: their reasons stay.
    """
    for part in failed:
        if part.table == DOWNLOADS or part.table not in tables:
            continue
        table, shard = tables[part.table], part.shard
        assert not table.is_folder, table.name
        # rows of a source that changed are other rows: the run registers it anew
        if not all(is_up_to_date(ctx, one, shard, tables=tables) for one in (tables[REGISTERED_SHARDS], table)):
            continue
        before = ctx.store.read(table.name, shard)
        chosen = pl.Series([False] * before.height, dtype=pl.Boolean).scatter(list(part.positions), True)
        store = _RowsOfShard(ctx.store.root, shard, chosen)
        try:
            with attempt(ctx.store.root, table.name, shard, ctx.run_id) as record:
                rows = table.rows(replace(ctx, store=store), shard)
                after = _with_rows(before, chosen, rows)
                if not after.equals(before):
                    ctx.store.rewrite(table.name, after, shard)
                record["content_sha256"] = frame_sha256(after)
        except BrokenEngineError as error:
            on_notice(f"{table.name} of {shard}: {error}; its {len(part.positions)} rows keep their reasons")
        finally:
            ctx.store.discard_unfinished(table.name, shard)


def _with_rows(before: pl.DataFrame, chosen: pl.Series, rows: pl.DataFrame) -> pl.DataFrame:
    """`before` with `rows` in the places that are `chosen`, in order."""
    order = pl.concat([chosen.not_().arg_true(), chosen.arg_true()])
    parts = [before.filter(~chosen), rows.select(before.columns).cast(before.schema)]
    return pl.concat(parts)[order.arg_sort()]


class _RowsOfShard(ShardStore):
    """The store as a table sees it that is computed for some rows of a shard: tables of as many rows hold these."""

    def __init__(self, root: Path, shard: str, chosen: pl.Series) -> None:
        super().__init__(root)
        self._shard = shard
        self._chosen = chosen

    def read(self, asset: str, partition: str | None = None, columns: Sequence[str] | None = None) -> pl.DataFrame:
        frame = super().read(asset, partition, columns)
        is_same = partition == self._shard and frame.height == len(self._chosen)
        return frame.filter(self._chosen) if is_same else frame


def counts_after(ctx: PoolContext, failed: Iterable[FailedRows]) -> list[dict[str, object]]:
    """Per table and reason: rows that failed with it, how many have succeeded since, and reasons of the others now."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for part in failed:
        frame = ctx.store.read(part.table, part.shard)
        now = frame["reason"][list(part.positions)].to_list()
        for before, reason in zip(part.reasons, now, strict=True):
            counts.setdefault((part.table, before), Counter())[reason or ""] += 1
    return [
        {
            "table": table,
            "reason": reason,
            "before": sum(now.values()),
            "succeeded": now.pop("", 0),
            "still_failed": dict(sorted(now.items())),
        }
        for (table, reason), now in sorted(counts.items())
    ]
