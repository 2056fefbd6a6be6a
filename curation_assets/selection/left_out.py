"""Rows that a policy leaves out before its first cut, each with its reason; they count as if raw had not kept them.

docs/decisions/0073: shares are of the rows that remain.
"""

import numpy as np
import polars as pl

from curation_assets.core.table_names import CONTAMINATION, PROVENANCE
from curation_assets.selection.policy import Policy, is_licence_id
from curation_assets.selection.rows import DROP_REASON, PoolRows, Texts

BENCHMARK, LICENCE = "benchmark:", "licence:"  # how the reasons begin
UNKNOWN, OTHER = "unknown", "other"  # licences that are null, and texts that are no id


def remaining(policy: Policy, rows: PoolRows) -> PoolRows:
    """The rows as the policy's cuts see them; `rows` themselves where it leaves none out.

    Raises what reading raw/provenance or the table of benchmarks raises.
    """
    if not (policy.licences or policy.decontaminate):
        return rows
    if rows.recorded_left_out is not None:
        return rows.dropping(rows.recorded_left_out)
    if policy.decontaminate:  # a row of a benchmark is one whatever its licence
        rows = without_benchmarks(rows)
    return rows.dropping(_unlisted(policy, rows)) if policy.licences else rows


def without_benchmarks(rows: PoolRows) -> PoolRows:
    """The rows, of which those of a benchmark count as dropped."""
    return rows.dropping(rows.texts(CONTAMINATION, DROP_REASON))


def left_out_words(reason: str) -> str:
    """What a reason of a row that is left out says; '' for any other reason."""
    if reason.startswith(BENCHMARK):
        return f"its image or caption is in benchmark {reason.removeprefix(BENCHMARK)} (signals/contamination)"
    if reason.startswith(LICENCE):
        return f"licence {reason.removeprefix(LICENCE)} is none that the policy lists"
    return ""


def recorded_left_out(policy: Policy) -> pl.Expr:
    """Which rows of a ledger of the policy it left out before its first cut: bool, of decided_by and reason."""
    kinds = [BENCHMARK] * policy.decontaminate + [LICENCE] * bool(policy.licences)
    begins = pl.any_horizontal(
        pl.lit(False), *(pl.col("reason").cast(pl.String).str.starts_with(kind) for kind in kinds)
    )
    return pl.col("decided_by").is_null() & begins.fill_null(False)


def _unlisted(policy: Policy, rows: PoolRows) -> Texts:
    """(N,) licence:ID of rows under a licence that the policy does not name."""
    licences = rows.texts(PROVENANCE, "licence")
    listed = {licence.lower() for licence in policy.licences}
    named = [word.lower() if is_licence_id(word) else OTHER for word in licences.words]
    words = [f"{LICENCE}{name}" for name in sorted({*named, UNKNOWN})]
    codes = [
        -1 if name in listed else words.index(f"{LICENCE}{name}") for name in (*named, UNKNOWN)
    ]  # -1 takes the last
    return Texts(np.array(codes, dtype=np.int32)[licences.codes], words)
