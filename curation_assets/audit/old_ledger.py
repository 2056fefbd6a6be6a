"""The ledger of releases that a version before 0.4 made: one Parquet file, sorted by id. It is read, and never written.

Its ids are halves, its texts are coded, the value that decided stands in the column of its signal alone, and its footer
holds policy, cut and profile.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from curation_assets.audit.ledger import Ledger, LedgerError, policy_in, signal_column
from curation_assets.selection.cut import PolicyCut
from curation_assets.selection.judging import VERDICT_SCHEMA
from curation_assets.selection.rows import UID
from curation_assets.stores.columns import uid_texts
from curation_assets.stores.parquet import parquet_footer, parquet_parts, parquet_schema

FOOTER_KEY = "curation_ledger"
#: Columns that it has beside those of verdict tables and signals.
_OF_ITS_OWN = (*UID, "rank", "policy_version", "version_id")
#: What DuckDB reads of it in place of verdict tables. `{files}`: the file, as DuckDB reads it.
OLD_LEDGER_SQL = """(
    select format('{{:016x}}{{:016x}}', uid_high, uid_low) as sample_id, shard::varchar as shard, source_row,
        decided_by::varchar as decided_by, verdict::varchar as verdict, reason::varchar as reason
    from {files}
)"""


def old_ledger(path: Path) -> Ledger:
    """The ledger in a file. Raises LedgerError for a file that is none."""
    footer = parquet_footer(path)
    if FOOTER_KEY not in footer:
        raise LedgerError(f"{path} is no ledger: its footer has no {FOOTER_KEY!r}")
    content = json.loads(footer[FOOTER_KEY])
    signals = [name for name in parquet_schema(path) if name not in (*VERDICT_SCHEMA, *_OF_ITS_OWN)]
    policy = policy_in(content)
    columns = (*VERDICT_SCHEMA, *signals)
    deciding = {rank_by: signal_column(rank_by) for rank_by in dict.fromkeys(step.rank_by for step in policy.steps)}

    def read(path: Path, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
        needed = {"sample_id": UID, "value": ("decided_by", *deciding.values())}
        stored = list(dict.fromkeys(one for name in columns for one in needed.get(name, (name,))))
        for part in parquet_parts(path):
            yield _as_verdicts(part.select(stored).collect(), deciding).select(columns)

    return Ledger(policy, PolicyCut.from_dict(content["cut"]), content["profile"], (path,), columns, read)


def _as_verdicts(part: pl.DataFrame, deciding: dict[str, str]) -> pl.DataFrame:
    texts: list[Any] = [
        pl.col(name).cast(pl.String) for name in ("shard", "decided_by", "verdict", "reason") if name in part.columns
    ]
    part = part.with_columns(texts)
    if UID[0] in part.columns:
        part = part.with_columns(uid_texts(*(part[half] for half in UID)))
    if "decided_by" in part.columns and {*deciding.values()} <= {*part.columns}:
        by = [pl.when(pl.col("decided_by") == rank_by).then(pl.col(name)) for rank_by, name in deciding.items()]
        part = part.with_columns(pl.coalesce(by).cast(pl.Float64).alias("value"))
    return part
