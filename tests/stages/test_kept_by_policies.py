"""Rows of a table with which policies keep their samples: part by part as from lists of ids in memory."""

from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.papers.text_methods import data_sets
from curation_assets.core.table_names import DUPLICATES, SAMPLES
from curation_assets.evaluation.tables import _text_in_images
from curation_assets.stages.filtered.tables import with_policies
from curation_assets.stores.shard_store import ShardStore
from tests.support.verdicts import kept_ids

POLICIES = ("first", "second")
MODULES = (
    "curation_assets.stages.filtered.tables", "curation_assets.evaluation.tables", "benchmarks.papers.text_methods",
)  # fmt: skip
ROWS = st.lists(
    st.tuples(
        st.integers(0, 9),  # sample: repeats, in one shard and in several
        st.sampled_from([None, 0.0, 0.25, 1.0]),
        st.sampled_from([None, 0, 3]),
        *[st.sampled_from(["kept", "dropped", "failed"])] * len(POLICIES),
    ),
    max_size=30,
)


def pool_of(rows: list[tuple[Any, ...]], folder: Path) -> Any:
    schema = {"value": pl.Float64, "text_count": pl.Int64, **dict.fromkeys(POLICIES, pl.String)}
    table = pl.DataFrame([row[1:] for row in rows], schema=schema, orient="row").with_columns(
        pl.Series("sample_id", [f"{number:032x}" for number, *_ in rows], dtype=pl.String),
        pl.Series("source_row", [at // 3 for at in range(len(rows))], dtype=pl.Int64),
    )
    store = ShardStore(folder)
    for shard in range(3):
        key, mine = f"toy-{shard:06d}", table.gather_every(3, shard) if table.height > shard else table.clear()
        ids = mine.select("sample_id", "source_row")
        store.write(SAMPLES, ids, key, code_version="1")
        for name in ("text_spotting", "relatedness"):
            values = ids.hstack(mine.select("value", "text_count"))
            store.write(f"signals/{name}", values, key, code_version="1")
        for policy in POLICIES:
            store.write(f"filtered/{policy}", ids.hstack([mine[policy].alias("verdict")]), key, code_version="1")
    repeats = table.filter(~pl.col("sample_id").is_first_distinct()).select("sample_id")
    store.write(DUPLICATES, repeats, code_version="1")
    return SimpleNamespace(store=store)


@pytest.mark.slow
@given(ROWS)
@settings(max_examples=25)
def test_counts_and_values_are_those_of_lists_in_memory(rows: list[tuple[Any, ...]]) -> None:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        for module in MODULES:
            patch.setattr(f"{module}.policies_of", lambda ctx: [SimpleNamespace(name=name) for name in POLICIES])
        ctx = pool_of(rows, Path(folder))
        subsets: dict[str, list[str] | None] = {name: kept_ids(ctx, name) for name in POLICIES}
        values = ctx.store.scan("signals/relatedness").select("sample_id", "value").collect().drop_nulls("value")
        expected = []
        for name, ids in ({"pool": None} | subsets).items():
            chosen = values if ids is None else values.filter(pl.col("sample_id").is_in(ids))
            expected.append((name, "relatedness", chosen["value"].mean(), chosen["value"].median(), chosen.height))
        found = data_sets(ctx, ["relatedness"])
        assert found.columns == ["data_set", "method", "mean", "median", "samples"]
        assert found.rows() == [pytest.approx(row) for row in expected]

        spotted = _text_in_images(ctx)
        for name, ids in ({"all": None} | subsets).items():
            chosen = values if ids is None else values.filter(pl.col("sample_id").is_in(ids))
            row = spotted.row(by_predicate=pl.col("subset") == name, named=True)
            assert row["n"] == chosen["sample_id"].n_unique()
            assert (row["with_text_share"] is None) == (not chosen.height)
        parts = list(with_policies(ctx, "signals/relatedness", ["value"]))
        assert sum(part.height for part in parts) == len(rows)
        assert sum(part["sample_id"].n_unique() for part in parts) == len({number for number, *_ in rows})
