"""Pools and policies drawn at random, as tables and as a store: ties, gaps, repeated samples, several shards."""

from typing import Any

import polars as pl
from hypothesis import strategies as st

from curation_assets.core.table_names import DUPLICATES
from curation_assets.selection.left_out import remaining
from curation_assets.selection.policy import Policy, Prefilter
from curation_assets.selection.rows import Rows, Wanted
from curation_assets.stores.shard_store import ShardStore
from tests.support.slow_judge import mark_duplicates

Tables = dict[str, pl.DataFrame]

REFERENCES = ("signals.icc", "signals.clip_score", "fused.sieve_clip")
_TEXTS = ("reason", "licence", "drop_reason")
VALUES = st.one_of(
    st.none(), st.just(float("nan")), st.sampled_from([0.0, -0.0, 0.25, 0.5, 1.0]), st.floats(-2, 2),
    st.sampled_from([float("inf"), float("-inf")]),
)  # fmt: skip


@st.composite
def pools(draw: st.DrawFn) -> tuple[pl.DataFrame, Tables]:
    """Rows of raw/samples of up to three shards, and a table per reference, some of whose rows are missing."""
    n = draw(st.integers(1, 24))
    numbers = draw(st.lists(st.integers(0, 12), min_size=n, max_size=n))  # repeats: a sample in several rows
    rows = []
    for index, number in enumerate(numbers):
        status = draw(st.sampled_from(("kept", "kept", "kept", "dropped", "failed")))
        rows.append(
            {
                "sample_id": f"{(number * 2_654_435_761) % 2**32:08x}" + "f0" * 11 + f"{number % 3:02x}",
                "shard": f"photos-{index % 3:06d}",
                "source_row": index // 3,
                "status": status,
                "reason": None if status == "kept" else draw(st.sampled_from(("a", "b", None))),
                "licence": draw(st.sampled_from((None, "cc0-1.0", "CC-BY-4.0", "all rights reserved"))),
                "drop_reason": draw(st.sampled_from((None, None, "benchmark:coco"))),
            }
        )
    samples = pl.DataFrame(rows, schema_overrides={"source_row": pl.Int64, **dict.fromkeys(_TEXTS, pl.String)})
    tables = {}
    for reference in REFERENCES:
        values = [draw(VALUES) for _ in rows]
        is_missing = [value is None or value != value for value in values]
        reasons = [draw(st.sampled_from(("x", "y", None))) if missing else None for missing in is_missing]
        table = samples.select("sample_id", "shard", "source_row").with_columns(
            pl.Series("quality" if reference.startswith("fused") else "value", values, dtype=pl.Float64),
            pl.Series("reason", reasons, dtype=pl.String),
        )
        lost = draw(st.sets(st.integers(0, n - 1), max_size=2))
        tables[reference] = table.filter(~pl.int_range(pl.len()).is_in(list(lost)))
    return samples, tables


@st.composite
def policies(draw: st.DrawFn, name: str = "p") -> Policy:
    """Every kind of policy: by fraction (exact or compat), threshold or count, after up to three prefilters; half of
    them leave out rows by licence or as part of a benchmark."""
    rank_by = draw(st.sampled_from((*REFERENCES, "random")))
    seed = draw(st.integers(0, 2))
    final: dict[str, Any] = draw(
        st.sampled_from(
            (
                *({"fraction": fraction} for fraction in (0.01, 0.2, 0.285, 0.5, 0.9, 1.0)),
                *({"threshold": threshold} for threshold in (0.0, 0.25, 0.7, float("inf"), float("-inf"))),
                *({"count": count} for count in (1, 4, 30)),
            )
        )
    )
    fraction = final.get("fraction", 0.0)
    is_compat = fraction < 1 and "count" not in final and draw(st.booleans())
    amounts = (0.3, 0.5, 0.9) if is_compat else tuple(share for share in (0.3, 0.5, 0.9, 1.0) if share >= fraction)
    shares = [{"fraction": share} for share in amounts]
    cuts = st.sampled_from([*shares, {"threshold": 0.25}, {"threshold": float("-inf")}])
    signals = st.sampled_from((*REFERENCES, "random"))
    prefilters = draw(
        st.lists(st.tuples(signals, cuts).map(lambda drawn: Prefilter(rank_by=drawn[0], **drawn[1])), max_size=3)
    )
    semantics = "compat" if is_compat else "exact"
    left_out: dict[str, Any] = {
        "licences": draw(st.sampled_from(((), (), ("cc0-1.0",), ("cc-by-4.0", "unknown"), ("other",)))),
        "decontaminate": draw(st.sampled_from((False, False, True))),
    }
    return Policy(
        name=name, rank_by=rank_by, prefilters=tuple(prefilters), seed=seed, semantics=semantics, **final, **left_out
    )


def store_pool(store: ShardStore, samples: pl.DataFrame, tables: Tables) -> None:
    """Write the pool as the flow stores it, rows of a shard in the order given."""
    for (shard,), part in samples.group_by("shard", maintain_order=True):
        store.write("raw/samples", part, str(shard), code_version="1")
        for table, column in (("raw/provenance", "licence"), ("signals/contamination", "drop_reason")):
            if column in part.columns:
                store.write(table, part.select("sample_id", "source_row", column), str(shard), code_version="1")
        for reference, table in tables.items():
            if not reference.startswith("fused"):
                mine = table.filter(pl.col("shard") == shard).sort("source_row").drop("shard")
                store.write(reference.replace(".", "/"), mine, str(shard), code_version="1")
    if "fused.sieve_clip" in tables:
        shuffled = tables["fused.sieve_clip"].sample(fraction=1.0, shuffle=True, seed=3)
        store.write("fused/sieve_clip", shuffled, code_version="1")


def store_duplicates(store: ShardStore, samples: pl.DataFrame) -> None:
    """Write which rows repeat another shard's sample, as the flow's table of them."""
    marked = mark_duplicates(samples).filter(pl.col("reason") == "duplicate_across_shards")
    store.write(DUPLICATES, marked.select("sample_id", "shard", "source_row"), code_version="1")


def can_be_cut(policy: Policy, pool: Rows) -> bool:
    """DataComp's rule needs a value at least."""
    cut = [step.rank_by for step in policy.steps if policy.semantics == "compat" and step.fraction is not None]
    parts = [remaining(policy, rows).filter(pl.col("status") == "kept") for rows in pool.parts(Wanted.of(policy))]
    return all(pl.concat(parts)[rank_by].count() > 0 for rank_by in cut)
