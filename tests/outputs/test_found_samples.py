"""Samples of a list, where raw keeps them, and what an export loses of them: in parts as in memory."""

from collections import Counter
from functools import partialmethod
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curation_assets.core.table_names import SAMPLES
from curation_assets.outputs.exports.manifest import Export
from curation_assets.outputs.exports.subset import SAMPLE_COLUMNS, Subset, subset_of_ids
from curation_assets.stores.samples import SAMPLES_SCHEMA
from curation_assets.stores.shard_store import ShardStore

SUBSET = "curation_assets.outputs.exports.subset"


def id_of(number: int) -> str:
    return f"{number * 2_654_435_761:032x}"


def pool_of(rows: list[tuple[int, str]], folder: Path) -> Any:
    store = ShardStore(folder / "toy")
    for shard in range(3):
        mine = [
            {
                "sample_id": id_of(number),
                "source_row": at,
                "status": status,
                "reason": None if status == "kept" else "bad",
                "caption": f"{shard} {at}",
            }
            for at, (number, status) in enumerate(rows[shard::3])
        ]
        frame = pl.DataFrame(mine, schema={"sample_id": pl.String, "source_row": pl.Int64, "status": pl.String,
                                           "reason": pl.String, "caption": pl.String})  # fmt: skip
        others = {name: kind for name, kind in SAMPLES_SCHEMA.items() if name not in (*frame.columns, "shard")}
        frame = frame.with_columns(pl.lit(None, kind).alias(name) for name, kind in others.items())
        store.write(SAMPLES, frame, f"toy-{shard:06d}", code_version="1")
    pool = SimpleNamespace(name="toy", sources=())
    return SimpleNamespace(store=store, settings=SimpleNamespace(home=folder), pool=pool)


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["kept", "kept", "dropped", "failed"])), max_size=30),
    st.lists(st.integers(0, 12), min_size=1, max_size=20),
    st.sets(st.integers(0, 9), max_size=3),
    st.sampled_from([1, 2, 100]),
)
@settings(max_examples=30)
def test_listed_samples_are_found_first_where_raw_keeps_them(
    rows: list[tuple[int, str]], listed: list[int], denied: set[int], size: int
) -> None:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{SUBSET}.ROWS_AT_ONCE", size)
        patch.setattr(
            f"{SUBSET}._denied_ids",
            lambda ctx: pl.DataFrame({"sample_id": map(id_of, denied)}, {"sample_id": pl.String}),
        )
        subset = subset_of_ids(pool_of(rows, Path(folder)), list(map(id_of, listed)), "mine")
        found, missing = [], []
        for number, times in Counter(listed).items():
            mine = [(f"toy-{at % 3:06d}", at // 3, status) for at, (one, status) in enumerate(rows) if one == number]
            kept = sorted(place for place in mine if place[2] == "kept" and number not in denied)
            if kept:
                found.append((id_of(number), *kept[0][:2], times))
            else:
                word = f"{min(mine)[2]}:bad" if mine else "not_in_pool"
                missing.append((id_of(number), times, "dropped:takedown" if mine and number in denied else word))
        columns = ["sample_id", "shard", "source_row", "multiplicity"]
        got = subset.rows
        assert got.select(columns).rows() == sorted(found, key=lambda row: row[1:3])
        assert got["caption"].to_list() == [f"{int(row[1][-1])} {row[2]}" for row in got.select(columns).rows()]
        assert subset.missing.rows() == sorted(missing)


@given(st.lists(st.sampled_from(["written", "lost", "no image"]), min_size=1, max_size=40), st.integers(1, 5))
@settings(max_examples=40)
def test_what_is_lost_is_not_written_and_listed_once(fates: list[str], size: int) -> None:
    rows = pl.DataFrame(
        {
            "sample_id": [id_of(number * 7 % 41) for number in range(len(fates))],
            "shard": [f"toy-{number // 10:06d}" for number in range(len(fates))],
            "source_row": [number % 10 for number in range(len(fates))],
            "multiplicity": [1 + number % 3 for number in range(len(fates))],
        }
    ).with_columns(pl.lit(None, SAMPLES_SCHEMA[name]).alias(name) for name in SAMPLE_COLUMNS[3:])
    before = pl.DataFrame({"sample_id": [id_of(100)], "multiplicity": [5], "reason": ["not_in_pool"]})
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(pl.DataFrame, "iter_slices", partialmethod(pl.DataFrame.iter_slices, size))
        ctx: Any = SimpleNamespace()
        subset = Subset(ctx, "mine", rows, before, Path("mine.npy"), "")
        export = Export(subset, Path(folder), "npy", Path(folder), "", {})
        for number, row in reversed(list(enumerate(rows.iter_rows(named=True)))):
            if fates[number] == "lost":
                export.lose(rows[number].select("shard", "source_row", "sample_id", "multiplicity", reason=pl.lit("x")))
            elif fates[number] == "no image":
                assert export.image_of(row) is None
        is_written = pl.Series([fate == "written" for fate in fates])
        assert pl.concat(export.written()).equals(rows.filter(is_written))
        lost = rows.filter(~is_written)
        reasons = pl.Series("reason", [{"lost": "x"}.get(fate, "no_image") for fate in fates if fate != "written"])
        expected = pl.concat([before, lost.select("sample_id", "multiplicity").with_columns(reasons)])
        assert export.missing.sort("sample_id").equals(expected.sort("sample_id"))
        kept = rows.filter(is_written)
        assert export.counts == (kept.height, kept["multiplicity"].sum())
