"""The page that compares policies shows what the one judge computed, at every step."""

import json
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from curation_assets.audit.diff import Comparison, compare, judged_side, what_if
from curation_assets.audit.recorded import cuts_in_force
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import policies_of
from curation_assets.outputs.pages import inlined
from curation_assets.outputs.report import compare as page
from curation_assets.selection.judging import fit_cut
from curation_assets.selection.policy import Policy
from curation_assets.selection.rows import Pool
from curation_assets.stores.shard_store import ShardStore
from tests.support.directions import lower_is_better
from tests.support.lineage_pools import finished_photos
from tests.support.random_pools import can_be_cut, policies, pools, store_duplicates, store_pool


@pytest.fixture(scope="module")
def ctx(tmp_path_factory: pytest.TempPathFactory) -> PoolContext:
    return finished_photos(tmp_path_factory.mktemp("home"), shards=5)


def with_texts(samples: pl.DataFrame) -> pl.DataFrame:
    nothing = pl.lit(None, pl.String)
    return samples.with_columns(
        pl.format("http://h{}.example/x", pl.col("source_row") % 2).alias("url"),
        pl.lit("one two three").alias("caption"),
        nothing.alias("tar"),
        nothing.alias("member"),
    )


@pytest.mark.slow
@pytest.mark.parametrize("lower", [(), ("icc", "clip_score")], ids=["all higher", "lower is better"])
@given(pool=pools(), left=policies("left"), right=policies("right"), is_frozen=st.booleans(), place=st.integers(0, 19))
@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
def test_any_pool_and_policies_give_the_numbers_of_a_difference(
    lower: tuple[str, ...],
    tmp_path_factory: pytest.TempPathFactory,
    pool: tuple[pl.DataFrame, dict[str, pl.DataFrame]],
    left: Policy,
    right: Policy,
    is_frozen: bool,
    place: int,
) -> None:
    """Overlaps, shifts and what is nearest to a cut, as `curate diff` has them: as the policies are, and at a share."""
    samples, tables = pool
    store = ShardStore(tmp_path_factory.mktemp("store"))
    store_pool(store, with_texts(samples), tables)
    store_duplicates(store, samples)  # as every run does before it judges: a difference reads shards without others
    with lower_is_better(*lower):
        rows = Pool(store)
        first = Pool(store, shards=tuple(store.partitions("raw/samples")[:1]))
        frozen = (policy for policy in (left, right) if is_frozen and can_be_cut(policy, first))
        cuts = {policy.name: fit_cut(policy, first) for policy in frozen}
        found = page.compare_data(store, page.kept_rows(store, [left, right]), [left, right], cuts)
        json.dumps(found, allow_nan=False)
        share = page.STEPS[place]
        step = found["steps"][place]
        assert step["share"] == share
        changed = [one if share is None else what_if(one, fraction=share) for one in (left, right)]
        if any("error" in side for side in step["sides"].values()):  # compat on a pool without any value
            with pytest.raises(ValueError, match="no sample has a value"):
                compare(rows, *changed)
            return
        sides = [
            judged_side(rows, one, cuts.get(before.name) if share is None else None)
            for one, before in zip(changed, (left, right), strict=True)
        ]
        expected = Comparison(store, sides[0], sides[1], rows).whole()
    overlap = expected.overlap
    assert [step["sides"][name]["kept"] for name in ("left", "right")] == [overlap.left, overlap.right]
    assert step["pairs"]["left|right"] == [overlap.both, overlap.iou, overlap.chance_iou(expected.judged)]
    for row in expected.shifts.to_dicts():
        names = [group for group, _ in found["dimensions"][row["dimension"]]]
        where = names.index(row["group"])
        assert found["dimensions"][row["dimension"]][where][1] == row["pool"]
        shares = [step["sides"][name]["groups"][row["dimension"]][where] for name in ("left", "right")]
        assert shares[1] - shares[0] == pytest.approx(row["change"])
    for side, policy in zip(("left", "right"), changed, strict=True):
        nearest = expected.nearest.filter(policy=policy.name)
        shown = step["sides"][side]["at_cut"]["dropped"]
        ids = [found["samples"][one["row"]]["id"] for one in shown]
        assert ids == nearest["sample_id"].to_list()[: len(ids)]
        assert len(ids) == min(page.AT_CUT, nearest.height)


def test_the_page_counts_what_the_subsets_hold(ctx: PoolContext) -> None:
    known = policies_of(ctx)
    found = page.compare_data(ctx.store, page.kept_rows(ctx.store, known), known, cuts_in_force(ctx.store, known))
    for policy in known:
        verdicts = ctx.store.scan(f"filtered/{policy.name}").collect()["verdict"]
        assert found["steps"][0]["sides"][policy.name]["kept"] == (verdicts == "kept").sum()
    for step in found["steps"]:
        for side in step["sides"].values():
            for sample in (*side["at_cut"]["kept"], *side["at_cut"]["dropped"]):
                assert sample["row"] in found["samples"]
                assert (sample["reason"] is None) == (sample in side["at_cut"]["kept"])


@given(pool=pools())
@settings(max_examples=10)
def test_the_page_counts_a_repeated_sample_once(
    tmp_path_factory: pytest.TempPathFactory, pool: tuple[pl.DataFrame, dict[str, pl.DataFrame]]
) -> None:
    samples, _ = pool
    kept = samples.filter(pl.col("status") == "kept")
    store = ShardStore(tmp_path_factory.mktemp("store"))
    store_pool(store, with_texts(samples), {})
    store_duplicates(store, samples)
    assert page._kept_count(store) == page.kept_rows(store, []).height == kept["sample_id"].n_unique()


def test_captions_cannot_end_the_script_and_large_pools_say_what_to_do(
    ctx: PoolContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = inlined(json.dumps(["a </script> <!-- "]), is_json=True)
    assert "<" not in output
    assert json.loads(output) == ["a </script> <!-- "]
    monkeypatch.setattr(page, "MAX_ROWS", 3)
    judged = page.kept_rows(ctx.store, []).height
    monkeypatch.setattr(page, "kept_rows", None)  # no row of a large pool is read into memory
    page.write_compare_page(ctx, tmp_path / "compare.html")
    text = (tmp_path / "compare.html").read_text()
    assert "curate diff A B --pool photos" in text
    assert f"{judged:,} judged samples are more than this page holds" in text
    assert "<script" not in text
