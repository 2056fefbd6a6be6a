"""A policy's subset by three engines: NumPy (the package), DuckDB's window functions, polars' expressions.

The two queries are written from the words of `Policy`; of selection/ and numeric/ they use its steps alone.
"""

import math
from collections.abc import Callable
from decimal import Decimal

import duckdb
import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curation_assets.numeric.identity import unit_interval_of
from curation_assets.selection.judging import judge_pool
from curation_assets.selection.policy import RANDOM, Policy, Step
from curation_assets.selection.rows import Pool
from curation_assets.stores.shard_store import ShardStore
from tests.support.directions import lower_is_better
from tests.support.random_pools import REFERENCES, Tables, can_be_cut, policies, store_pool

LOWER = {"signals.icc", "signals.clip_score"}  # in half of the tries
Keys = set[tuple[str, int]]  # shard and source row


def drawn_pool(seed: int) -> tuple[pl.DataFrame, Tables]:
    """Up to 200 rows of three shards: repeated samples, ties, infinite values, rows without a value or a row."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 200))
    status = rng.choice(["kept", "kept", "kept", "kept", "dropped", "failed"], n).tolist()
    samples = pl.DataFrame(
        {
            "sample_id": [f"{number * 2_654_435_761 % 2**32:032x}" for number in rng.integers(0, 2 * n, n).tolist()],
            "shard": [f"photos-{place % 3:06d}" for place in range(n)],
            "source_row": [place // 3 for place in range(n)],
            "status": status,
            "reason": [None if one == "kept" else "why" for one in status],
            "licence": rng.choice(np.array([None, "cc0-1.0", "CC-BY-4.0", "all rights reserved"], object), n).tolist(),
            "drop_reason": rng.choice(np.array([None, None, None, "benchmark:coco"], object), n).tolist(),
        },
        schema_overrides=dict.fromkeys(("reason", "licence", "drop_reason"), pl.String),
    )
    tables = {}
    for reference in REFERENCES:
        values = np.round(rng.normal(0.3, 0.5, n), int(rng.integers(1, 4)))
        odd = rng.choice([0.0, 1.0, 2.0, 3.0], n, p=[0.8, 0.1, 0.05, 0.05])
        values = np.select([odd == 1, odd == 2, odd == 3], [np.nan, np.inf, -np.inf], values)
        table = samples.select("sample_id", "shard", "source_row").with_columns(
            pl.Series("quality" if reference.startswith("fused") else "value", values).fill_nan(None),
            pl.Series("reason", ["no_image" if one != one else None for one in values.tolist()], dtype=pl.String),
        )
        tables[reference] = table.filter(pl.Series(rng.random(n) > 0.03))
    return samples, tables


def one_table(policy: Policy, samples: pl.DataFrame, tables: Tables) -> pl.DataFrame:
    """raw/samples with a column per signal, null where there is no value."""
    ids = samples["sample_id"]
    frame = samples.with_columns(
        pl.Series(RANDOM, [unit_interval_of(one, f"random_ranking:{policy.seed}") for one in ids], dtype=pl.Float64)
    )
    for reference, table in tables.items():
        value = "quality" if "quality" in table.columns else "value"
        column = table.select("shard", "source_row", pl.col(value).fill_nan(None).alias(reference))
        frame = frame.join(column, on=["shard", "source_row"], how="left")
    return frame


def by_duckdb(policy: Policy, table: pl.DataFrame, lower: set[str]) -> Keys:
    """One query: a common table expression per step, ranks by row_number, ties by id."""
    left_out = ["true"]
    if policy.licences:
        allowed = ", ".join(f"'{one}'" for one in policy.licences)
        kind = "case when licence is null then 'unknown' when licence like '% %' then 'other' else lower(licence) end"
        left_out.append(f"{kind} in ({allowed})")
    if policy.decontaminate:
        left_out.append("drop_reason is null")
    steps = [
        f"""with firsts as (
            select *, row_number() over (partition by sample_id order by shard, source_row) as copy
            from pool where status = 'kept'
        ),
        step_0 as (select *, 0 as place from firsts where copy = 1 and {" and ".join(left_out)}),
        size as (select count(*) as n from step_0)"""
    ]
    for number, step in enumerate(policy.steps, start=1):
        better = "asc" if step.rank_by in lower else "desc"
        column = f'"{step.rank_by}"'
        place = f"row_number() over (order by {column} {better} nulls last, sample_id)"
        ranked = f"select * exclude (place), {place} as place from step_{number - 1}"
        steps.append(
            f"step_{number} as (select * from ({ranked}) where {column} is not null and {sql_of(policy, step, lower)})"
        )
    query = ",\n".join(steps) + f"\nselect shard, source_row from step_{len(policy.steps)}"
    with duckdb.connect() as connection:
        connection.register("pool", table.to_arrow())
        return set(connection.execute(query).fetchall())


def sql_of(policy: Policy, step: Step, lower: set[str]) -> str:
    """What a row of a step must fulfil; `place` is its rank among those that reached the step."""
    column, is_lower = f'"{step.rank_by}"', step.rank_by in lower
    if step.threshold is not None:
        return f"{column} {'<=' if is_lower else '>='} '{step.threshold}'::double"
    if step.count is not None:
        return f"place <= {step.count}"
    if policy.semantics == "exact":
        return f"place <= (select floor(n * {Decimal(str(step.fraction))}::decimal(18, 6) + 0.5) from size)"
    boundary = f"""(select list({column} order by {column} {"asc" if is_lower else "desc"})
        [floor(count(*)::double * {step.fraction}::double)::bigint + 1] from step_0 where {column} is not null)"""
    return f"{column} {'<=' if is_lower else '>='} {boundary}"


def by_polars(policy: Policy, table: pl.DataFrame, lower: set[str]) -> Keys:
    """A filter per step on frames sorted by value and id."""
    frame = table.filter(pl.col("status") == "kept").sort("shard", "source_row").unique("sample_id", keep="first")
    if policy.licences:
        named = pl.when(pl.col("licence").str.contains(" ")).then(pl.lit("other")).otherwise(pl.col("licence"))
        frame = frame.filter(named.str.to_lowercase().fill_null("unknown").is_in(policy.licences))
    if policy.decontaminate:
        frame = frame.filter(pl.col("drop_reason").is_null())
    pool = frame
    for step in policy.steps:
        is_lower, value = step.rank_by in lower, pl.col(step.rank_by)
        frame = frame.filter(value.is_not_null()).sort(value, "sample_id", descending=[not is_lower, False])
        if step.threshold is not None:
            boundary = step.threshold
        elif step.count is not None:
            frame = frame.head(step.count)
            continue
        elif policy.semantics == "exact":
            frame = frame.head(math.floor(Decimal(pool.height) * Decimal(str(step.fraction)) + Decimal("0.5")))
            continue
        else:
            ranked = pool[step.rank_by].drop_nulls().sort(descending=not is_lower)
            boundary = ranked[int(len(ranked) * float(step.fraction or 0))]
        frame = frame.filter(value <= boundary if is_lower else value >= boundary)
    return set(frame.select("shard", "source_row").rows())


def by_numpy(policy: Policy, pool: Pool) -> Keys:
    """Rows that the package keeps."""
    kept = (verdicts.filter(pl.col("verdict") == "kept") for verdicts in judge_pool(policy, pool))
    return set(pl.concat(kept).select("shard", "source_row").rows())


@pytest.mark.slow
@given(seed=st.integers(0, 2**32), policy=policies(), is_turned=st.booleans())
@settings(max_examples=60)
def test_duckdb_polars_and_numpy_keep_the_same_rows(
    tmp_path_factory: pytest.TempPathFactory, seed: int, policy: Policy, is_turned: bool
) -> None:
    samples, tables = drawn_pool(seed)
    store = ShardStore(tmp_path_factory.mktemp("store"))
    store_pool(store, samples, tables)
    names = [reference.rpartition(".")[2] for reference in LOWER] if is_turned else []
    with lower_is_better(*names):
        if not can_be_cut(policy, Pool(store)):
            return
        kept = by_numpy(policy, Pool(store))
    table = one_table(policy, samples, tables)
    engines: list[Callable[[Policy, pl.DataFrame, set[str]], Keys]] = [by_duckdb, by_polars]
    for engine in engines:
        assert engine(policy, table, LOWER if is_turned else set()) == kept, engine.__name__
