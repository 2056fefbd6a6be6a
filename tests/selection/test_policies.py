"""Policies: one terminal verdict per row, exact counts, frozen cuts, DataComp's rule as an option."""

from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curation_assets.methods import all_methods
from curation_assets.numeric.selection import share_count
from curation_assets.selection.cut import PolicyCut
from curation_assets.selection.policy import Policy, Prefilter, load_policies, load_policy
from curation_assets.selection.verdicts import VERDICT_SCHEMA, apply_cut, apply_policy

POLICIES = load_policies()


def pool(values: dict[str, list[float | None]], status: list[str] | None = None, shards: int = 2):
    """A pool of as many samples as values; `values` by reference."""
    n = len(next(iter(values.values())))
    status = status or ["kept"] * n
    samples = pl.DataFrame(
        {
            "sample_id": [f"{(i * 7919) % 10_007:032x}" for i in range(n)],
            "shard": [f"scenes-{i % shards:06d}" for i in range(n)],
            "source_row": list(range(n)),
            "status": status,
            "reason": [None if state == "kept" else f"why_{state}" for state in status],
        },
        schema_overrides={"reason": pl.String},
    )
    tables = {
        reference: samples.select("sample_id", "shard", "source_row").with_columns(
            pl.Series("quality" if reference.startswith("fused") else "value", column, dtype=pl.Float64),
            pl.Series(
                "reason",
                [
                    f"upstream_{state}:x" if state != "kept" else ("no_image" if value is None else None)
                    for state, value in zip(status, column, strict=True)
                ],
                dtype=pl.String,
            ),
        )
        for reference, column in values.items()
    }
    return samples, tables


def test_shipped_policies() -> None:
    assert {"random", "clip", "icc", "icc_after_clip", "sieve", "sieve_clip"} <= set(POLICIES)
    default = {f"signals.{name}" for name, method in all_methods().items() if method.default}
    rankings = [one for one in POLICIES.values() if {r for r in one.references if r.startswith("signals.")} <= default]
    # an intersection cuts by threshold what its prefilter left
    sizes = {
        policy.fraction or policy.prefilters[-1].fraction for policy in rankings if policy.name != "conceptual_captions"
    }
    assert len(sizes) == 1, "policies of one size can be compared"
    assert POLICIES["random"].references == ()
    assert POLICIES["icc_after_clip"].references == ("signals.clip_score", "signals.icc")
    assert all(policy.description for policy in POLICIES.values())


def test_prefilters_by_threshold_intersect_with_predicates() -> None:
    """DataComp: the best by CLIPScore first, then whatever passes every predicate (METHODS §3.2)."""
    samples, tables = pool({"signals.clip_score": TENTHS, "signals.a": [1, 0] * 5, "signals.b": [1.0] * 8 + [0, 1]})
    policy = Policy(
        "p",
        "signals.a",
        threshold=1,
        prefilters=(Prefilter("signals.clip_score", 0.6), Prefilter("signals.b", threshold=1)),
    )
    verdicts = apply_policy(policy, samples, tables).verdicts
    # best six are positions 4–9; b drops 8; a keeps the even ones
    assert [i for i, verdict in enumerate(verdicts["verdict"]) if verdict == "kept"] == [4, 6]
    assert verdicts["reason"].to_list()[7:] == ["below_cut:signals.a", "prefilter:signals.b", "below_cut:signals.a"]
    for wrong in ({}, {"fraction": 0.5, "threshold": 1.0}):
        with pytest.raises(ValueError, match="needs fraction or threshold"):
            Prefilter("signals.a", **wrong)


def test_a_count_keeps_so_many_or_all() -> None:
    """Rao et al.'s amalgams are the best so many pairs of a union."""
    samples, tables = pool({"signals.icc": TENTHS})
    for count, kept in ((3, 3), (99, 10)):
        result = apply_policy(Policy("p", "signals.icc", count=count), samples, tables)
        assert (result.verdicts["verdict"] == "kept").sum() == kept
    with pytest.raises(ValueError, match="count must be an integer ≥ 1 or null, got 0"):
        Policy("p", "signals.icc", count=0)
    with pytest.raises(ValueError, match="one of them"):
        Policy("p", "signals.icc", count=3, fraction=0.5)


TENTHS: list[float | None] = [i / 10 for i in range(1, 11)]


def test_a_simple_cut_read_by_eye() -> None:
    samples, tables = pool({"signals.icc": TENTHS})
    result = apply_policy(Policy("p", "signals.icc", fraction=0.2), samples, tables)
    verdicts = result.verdicts
    assert list(verdicts.columns) == ["sample_id", "shard", "source_row", *list(VERDICT_SCHEMA)[2:]]
    assert verdicts["verdict"].to_list() == ["dropped"] * 8 + ["kept"] * 2
    assert verdicts["rank"].to_list() == list(range(10, 0, -1))
    assert verdicts["margin"].to_list() == pytest.approx([value - 0.9 for value in TENTHS if value])
    assert verdicts["reason"].to_list() == ["below_cut:signals.icc"] * 8 + [None] * 2
    assert (result.cut.k, result.cut.threshold, result.cut.pool_size) == (2, 0.9, 10)


def test_compat_keeps_one_more() -> None:
    """METHODS §13.6."""
    samples, tables = pool({"signals.clip_score": TENTHS})
    compat = Policy("p", "signals.clip_score", fraction=0.2, semantics="compat")
    result = apply_policy(compat, samples, tables)
    assert (result.cut.k, result.cut.threshold) == (3, 0.8)


def test_threshold_policy() -> None:
    samples, tables = pool({"signals.clip_score": [0.29, 0.3, None, 0.31]})
    verdicts = apply_policy(Policy("p", "signals.clip_score", threshold=0.3), samples, tables).verdicts
    assert verdicts["verdict"].to_list() == ["dropped", "kept", "failed", "kept"]
    assert verdicts["reason"][2] == "no_value:no_image"


def test_prefilter_then_rank() -> None:
    """Half of eight by CLIP (rows 4–7), then the best quarter of the pool (2) by ICC among those."""
    clip: list[float | None] = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]
    icc: list[float | None] = [0.9, 0.9, 0.9, 0.9, 0.1, 0.4, None, 0.3]
    samples, tables = pool({"signals.clip_score": clip, "signals.icc": icc})
    result = apply_policy(POLICIES["icc_after_clip"], samples, tables)
    verdicts = result.verdicts
    assert verdicts["verdict"].to_list() == ["dropped"] * 5 + ["kept", "failed", "kept"]
    assert verdicts["reason"].to_list() == [
        *["prefilter:signals.clip_score"] * 4,
        "below_cut:signals.icc",
        None,
        "no_value:no_image",
        None,
    ]
    assert verdicts["decided_by"].to_list() == ["signals.clip_score"] * 4 + ["signals.icc"] * 4
    assert verdicts["value"].to_list() == [0.1, 0.2, 0.3, 0.4, 0.1, 0.4, None, 0.3]
    assert verdicts["threshold"].to_list() == [0.5] * 4 + [0.3] * 4
    assert [(cut.candidates, cut.valued, cut.kept) for cut in result.cut.cuts] == [(8, 8, 4), (4, 3, 2)]


def test_what_raw_did_not_keep_keeps_its_reason() -> None:
    samples, tables = pool({"signals.icc": [0.9, None, None, 0.8]}, ["kept", "dropped", "failed", "kept"])
    verdicts = apply_policy(Policy("p", "signals.icc", fraction=0.5), samples, tables).verdicts
    assert verdicts["verdict"].to_list() == ["kept", "dropped", "failed", "dropped"]
    assert verdicts["reason"].to_list() == [None, "why_dropped", "why_failed", "below_cut:signals.icc"]


@pytest.mark.parametrize("has_source_row", [True, False])
def test_a_dropped_duplicate_does_not_silence_the_kept_row(has_source_row: bool) -> None:
    samples, tables = pool({"signals.icc": [0.9, None, 0.2]}, ["kept", "dropped", "kept"])
    same = pl.Series("sample_id", ["a" * 32, "a" * 32, "b" * 32])
    samples, table = samples.with_columns(same), tables["signals.icc"].with_columns(same)
    if not has_source_row:
        samples, table = samples.drop("source_row"), table.drop("source_row")
    verdicts = apply_policy(Policy("p", "signals.icc", fraction=1), samples, {"signals.icc": table}).verdicts
    assert verdicts["verdict"].to_list() == ["kept", "dropped", "kept"]


def test_two_kept_rows_of_one_id_are_refused() -> None:
    samples, tables = pool({"signals.icc": [0.9, 0.8]})
    same = samples.with_columns(pl.lit("a" * 32).alias("sample_id"))
    with pytest.raises(ValueError, match="two kept rows share"):
        apply_policy(Policy("p", "signals.icc", fraction=1), same, tables)


def test_two_values_of_one_row_are_refused() -> None:
    samples, tables = pool({"signals.icc": TENTHS})
    twice = pl.concat([tables["signals.icc"], tables["signals.icc"].head(1)])
    with pytest.raises(ValueError, match=r"signals\.icc has several rows for one row of raw/samples"):
        apply_policy(POLICIES["icc"], samples, {"signals.icc": twice})


def test_a_missing_row_is_a_failure_with_a_reason() -> None:
    samples, tables = pool({"signals.icc": [0.9, 0.8, 0.7]})
    verdicts = apply_policy(Policy("p", "signals.icc", fraction=1), samples, {"signals.icc": tables["signals.icc"][:2]})
    assert verdicts.verdicts["reason"].to_list() == [None, None, "no_value:no_row"]


numbers = st.none() | st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]) | st.floats(-1, 1)
row = st.tuples(st.sampled_from(["kept", "kept", "kept", "dropped", "failed"]), numbers, numbers)
policies = st.sampled_from(
    [
        Policy("plain", "signals.icc", fraction=0.3),
        Policy("all", "signals.icc", fraction=1.0),
        Policy("cut", "signals.icc", threshold=0.5),
        Policy("two", "signals.icc", fraction=0.25, prefilters=(Prefilter("signals.clip_score", 0.5),)),
        Policy("random", "random", fraction=0.4, seed=3),
        Policy("mixed", "random", fraction=0.2, prefilters=(Prefilter("signals.icc", 0.7),)),
    ]
)


@given(st.lists(row, min_size=1, max_size=40), policies, st.randoms())
def test_every_row_ends_once_and_the_order_is_irrelevant(rows, policy: Policy, random) -> None:
    samples, tables = pool(
        {
            "signals.icc": [icc if state == "kept" else None for state, icc, _ in rows],
            "signals.clip_score": [clip if state == "kept" else None for state, _, clip in rows],
        },
        [state for state, _, _ in rows],
    )
    result = apply_policy(policy, samples, tables)
    verdicts = result.verdicts
    assert verdicts["sample_id"].to_list() == samples["sample_id"].to_list()
    assert set(verdicts["verdict"]) <= {"kept", "dropped", "failed"}
    assert (verdicts["verdict"] == "kept").to_list() == verdicts["reason"].is_null().to_list()

    kept = verdicts.filter(pl.col("verdict") == "kept")
    assert kept.height == result.cut.k
    pool_size = sum(state == "kept" for state, _, _ in rows)
    if policy.fraction is not None and not policy.prefilters and pool_size:
        valued = result.cut.cuts[-1].valued
        assert kept.height == min(share_count(pool_size, policy.fraction), valued)
    if policy.threshold is not None:
        assert kept.height == sum(state == "kept" and (icc or -1) >= policy.threshold for state, icc, _ in rows)

    order = list(range(len(rows)))
    random.shuffle(order)
    shuffled = apply_policy(policy, samples[order], {key: table[order[::-1]] for key, table in tables.items()})
    assert shuffled.verdicts.sort("source_row").equals(verdicts)
    assert shuffled.cut == result.cut

    frozen = PolicyCut.from_dict(result.cut.to_dict())
    assert frozen == result.cut
    parts = [apply_cut(policy, frozen, part, tables) for part in samples.partition_by("shard", maintain_order=True)]
    assert pl.concat(parts).sort("source_row").drop("rank").equals(verdicts.drop("rank"))


def test_a_frozen_cut_judges_a_later_shard() -> None:
    samples, tables = pool({"signals.icc": TENTHS})
    policy = Policy("p", "signals.icc", fraction=0.2)
    cut = apply_policy(policy, samples, tables).cut
    later, later_tables = pool({"signals.icc": [0.95, 0.85]})
    assert apply_cut(policy, cut, later, later_tables)["verdict"].to_list() == ["kept", "dropped"]
    with pytest.raises(ValueError, match="apply the policy anew"):
        apply_cut(policy.with_fraction(0.3), cut, later, later_tables)


def test_the_fingerprint_tells_pools_apart() -> None:
    policy = Policy("p", "signals.icc", fraction=0.5)
    first = apply_policy(policy, *pool({"signals.icc": [0.1, 0.2]})).cut.pool_fingerprint
    assert apply_policy(policy, *pool({"signals.icc": [0.1, 0.2]})).cut.pool_fingerprint == first
    assert apply_policy(policy, *pool({"signals.icc": [0.1, 0.3]})).cut.pool_fingerprint != first


def test_an_empty_pool_keeps_nothing() -> None:
    samples, tables = pool({"signals.icc": [None, None]}, ["failed", "dropped"])
    result = apply_policy(POLICIES["icc"], samples, tables)
    assert (result.cut.k, result.verdicts["verdict"].to_list()) == (0, ["failed", "dropped"])


def test_with_fraction_widens_prefilters_only_where_needed() -> None:
    policy = POLICIES["icc_after_clip"]
    assert policy.with_fraction(0.1).prefilters[0].fraction == 0.5
    assert policy.with_fraction(0.8).prefilters[0].fraction == 0.8
    assert policy.with_fraction(0.1).version != policy.version


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank_by": "signals.icc"}, "fraction, threshold or count, one of them"),
        ({"rank_by": "signals.icc", "fraction": 0.5, "threshold": 0.5}, "one of them"),
        ({"rank_by": "signals.icc", "fraction": 0}, r"fraction must be a number in \(0, 1\] or null, got 0"),
        ({"rank_by": "icc", "fraction": 0.5}, "stage.table or random"),
        ({"rank_by": "downstream.report", "fraction": 0.5}, "against the flow"),
        ({"rank_by": "signals.icc", "fraction": 1, "semantics": "compat"}, "compat takes a fraction below 1"),
        ({"rank_by": "signals.icc", "fraction": 0.5, "semantics": "fuzzy"}, "one of exact, compat"),
        ({"rank_by": "signals.icc", "fraction": 0.5, "prefilters": (Prefilter("random", 0.4),)}, "less than the final"),
    ],
)
def test_bad_policies_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Policy(name="p", **settings)


def test_bad_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("name: p\nrank_by: signals.icc\nfracton: 0.5\n")
    with pytest.raises(ValueError, match="did you mean 'fraction'"):
        load_policy(path)
    path.write_text("name: q\nrank_by: signals.icc\nfraction: 0.5\n")
    with pytest.raises(ValueError, match="expected name: p"):
        load_policy(path)
