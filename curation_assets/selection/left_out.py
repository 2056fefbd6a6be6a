"""Rows that a policy leaves out before its first cut, each with its reason; they count as if raw had not kept them.

docs/decisions/0073: shares are of the rows that remain.
"""

import polars as pl

from curation_assets.core.table_names import CONTAMINATION, PROVENANCE
from curation_assets.selection.policy import Policy, is_licence_id
from curation_assets.selection.rows import DROP_REASON, dropped

BENCHMARK, LICENCE = "benchmark:", "licence:"  # how the reasons begin
UNKNOWN, OTHER = "unknown", "other"  # licences that are null, and texts that are no id


def remaining(policy: Policy, rows: pl.DataFrame) -> pl.DataFrame:
    """Rows, read as `Wanted.of(policy)` names, as the policy's cuts see them: those left out count as dropped."""
    if policy.decontaminate:  # a row of a benchmark is one whatever its licence
        rows = dropped(rows, pl.col(f"{CONTAMINATION}:{DROP_REASON}"))
    if policy.licences:
        rows = dropped(rows, _unlisted(policy, rows))
    return rows


def left_out_words(reason: str) -> str:
    """What a reason of a row that is left out says; '' for any other reason."""
    if reason.startswith(BENCHMARK):
        return f"its image or caption is in benchmark {reason.removeprefix(BENCHMARK)} (signals/contamination)"
    if reason.startswith(LICENCE):
        return f"licence {reason.removeprefix(LICENCE)} is none that the policy lists"
    return ""


def _unlisted(policy: Policy, rows: pl.DataFrame) -> pl.Expr:
    """(N,) licence:ID of rows under a licence that the policy does not name; null for others."""
    column = f"{PROVENANCE}:licence"
    listed = {licence.lower() for licence in policy.licences}
    reasons: dict[str | None, str | None] = {}
    for licence in rows[column].unique():
        name = OTHER
        if licence is None:
            name = UNKNOWN
        elif is_licence_id(licence):
            name = licence.lower()
        reasons[licence] = None if name in listed else f"{LICENCE}{name}"
    return pl.col(column).replace_strict(reasons, return_dtype=pl.String)
