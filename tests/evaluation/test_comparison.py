"""Training sets side by side, on frames whose answers can be checked by eye."""

from collections.abc import Mapping

import numpy as np
import polars as pl
import pytest

from curation_assets.evaluation.comparison import (
    COMPARISON_SCHEMA,
    METRIC_SCHEMA,
    compare_training_sets,
    comparisons_in_words,
    score_training_sets,
    written,
)
from curation_assets.numeric.metrics.comparison import estimate, holm, independent_units, paired_differences

T_975 = {1: 12.7062, 2: 4.30265, 3: 3.18245}  # Student's t, from a printed table


def metrics(*rows: Mapping[str, object]) -> pl.DataFrame:
    """Rows of `downstream/<trainer>` with what they do not name: one pool, one seed, one size, 100 samples."""
    default = {
        "pool": "a", "trainer": "captioning", "kind": "policy", "size": 0.25, "n": 100, "seed": 0, "metric": "cider",
        "reason": None,
    }  # fmt: skip
    return pl.DataFrame([{**default, **row} for row in rows], schema=dict(METRIC_SCHEMA), orient="row")


def runs(policy: str, values: Mapping[str, list[float]], **more: object) -> list[dict[str, object]]:
    """Rows of one training set: pool → value per seed."""
    return [
        {"policy": policy, "pool": pool, "seed": seed, "value": value, **more}
        for pool, of_pool in values.items()
        for seed, value in enumerate(of_pool)
    ]


def row_of(table: pl.DataFrame, policy: str, **where: object) -> dict[str, object]:
    conditions = [pl.col(name) == value for name, value in {"policy": policy, **where}.items()]
    return table.row(by_predicate=pl.all_horizontal(conditions), named=True)


def test_estimate_of_three_units() -> None:
    three = estimate(np.array([1.0, 2.0, 3.0]))
    half = T_975[2] / np.sqrt(3)  # sd 1
    assert (three.mean, three.sd) == (2.0, 1.0)
    assert (three.low, three.high) == pytest.approx((2 - half, 2 + half), rel=1e-5)
    assert three.excludes_zero is False  # 2.48 below 2
    # t = 2 / (1/√3) = 3.4641 with 2 degrees of freedom: p = 1 − t/√(2 + t²) = 1 − 3.4641/√14
    assert three.p == pytest.approx(1 - np.sqrt(12 / 14))


def test_estimate_without_spread() -> None:
    one, equal = estimate(np.array([0.4])), estimate(np.array([0.4, 0.4]))
    assert (one.sd, one.low, one.excludes_zero) == (None, None, None)
    assert (equal.sd, equal.low, equal.excludes_zero) == (0.0, None, None)
    with pytest.raises(ValueError, match="at least one"):
        estimate(np.array([]))


def test_a_pool_is_the_unit_where_there_are_several() -> None:
    one_pool = {"a": {0: 0.1, 1: 0.3}}
    assert independent_units(one_pool).tolist() == [0.1, 0.3]
    assert independent_units({**one_pool, "b": {0: 0.6, 1: 0.8}}) == pytest.approx([0.2, 0.7])


def test_pairs_share_pool_and_seed() -> None:
    differences = paired_differences(
        {"a": {0: 0.5, 1: 0.7}, "b": {0: 0.4}, "c": {5: 1.0}}, {"a": {1: 0.2}, "c": {0: 1}}
    )
    assert differences == {"a": {1: pytest.approx(0.5)}}


def test_holm() -> None:
    # sorted .01 .02 .04 → × 3, × 2, × 1 = .03 .04 .04
    assert holm(np.array([0.04, 0.01, 0.02])) == pytest.approx([0.04, 0.03, 0.04])
    assert holm(np.array([0.9, 0.6])).tolist() == [1.0, 1.0]
    assert holm(np.array([])).tolist() == []


def test_three_pools() -> None:
    table = compare_training_sets(
        metrics(
            *runs("random", {"a": [0.10, 0.20], "b": [0.30, 0.40], "c": [0.50, 0.60]}, kind="control"),
            *runs("icc", {"a": [0.20, 0.30], "b": [0.41, 0.51], "c": [0.62, 0.72]}),
        )
    )
    assert dict(table.schema) == dict(COMPARISON_SCHEMA)
    icc = row_of(table, "icc")
    # means of the pools .25 .46 .67; differences .10 .11 .12, whose sd is .01
    assert (icc["pools"], icc["seeds"], icc["n"], icc["rank"]) == (3, 2, 100, 1)
    assert (icc["mean"], icc["sd"]) == pytest.approx((0.46, 0.21))
    half = T_975[2] * 0.21 / np.sqrt(3)
    assert (icc["low"], icc["high"]) == pytest.approx((0.46 - half, 0.46 + half), rel=1e-4)
    half = T_975[2] * 0.01 / np.sqrt(3)  # .0248
    assert (icc["difference"], icc["difference_low"], icc["difference_high"]) == pytest.approx(
        (0.11, 0.11 - half, 0.11 + half), rel=1e-4
    )
    assert icc["is_clear"] is True
    assert icc["reading"] == "above random by .110 (.085 to .135)"
    random = row_of(table, "random")
    assert (random["rank"], random["difference"], random["is_clear"]) == (2, None, None)
    assert random["reading"] == "what the others are compared with"


def test_no_difference_and_below() -> None:
    random = runs("random", {"a": [0.5], "b": [0.5], "c": [0.5]})
    table = compare_training_sets(
        metrics(
            *random,
            *runs("clip", {"a": [0.49], "b": [0.50], "c": [0.51]}),
            *runs("reward", {"a": [0.39], "b": [0.40], "c": [0.41]}),
        )
    )
    assert row_of(table, "clip")["reading"] == "no difference from random shown: .000 (−.025 to .025)"
    assert row_of(table, "clip")["is_clear"] is False
    assert row_of(table, "reward")["reading"] == "below random by .100 (.075 to .125)"
    assert row_of(table, "reward")["is_clear"] is True
    assert [row_of(table, name)["rank"] for name in ("random", "clip", "reward")] == [1, 1, 3]


def test_one_pool_says_what_its_interval_lacks() -> None:
    table = compare_training_sets(
        metrics(*runs("random", {"a": [0.1, 0.2, 0.3]}), *runs("icc", {"a": [0.2, 0.31, 0.42]}))
    )
    icc = row_of(table, "icc")
    assert (icc["pools"], icc["seeds"], icc["is_clear"]) == (1, 3, True)
    assert icc["reading"] == "above random by .110 (.085 to .135); one pool: how pools vary is not in the interval"


def test_one_run() -> None:
    icc = row_of(compare_training_sets(metrics(*runs("random", {"a": [0.1]}), *runs("icc", {"a": [0.3]}))), "icc")
    assert [icc[name] for name in ("sd", "low", "high", "difference_low", "is_clear")] == [None] * 5
    assert icc["difference"] == pytest.approx(0.2)
    assert icc["reading"] == ".200 above random in one pair, so without an interval; one run shows no spread"


def test_equal_differences_give_no_interval() -> None:
    table = compare_training_sets(
        metrics(*runs("random", {"a": [0.1], "b": [0.2]}), *runs("icc", {"a": [0.2], "b": [0.3]}))
    )
    icc = row_of(table, "icc")
    assert (icc["difference_low"], icc["is_clear"]) == (None, None)
    assert icc["reading"] == ".100 above random in all 2 pairs alike, so without an interval"
    same = compare_training_sets(
        metrics(*runs("random", {"a": [0.1], "b": [0.2]}), *runs("icc", {"a": [0.1], "b": [0.2]}))
    )
    assert row_of(same, "icc")["reading"] == "the same as random in all 2 pairs"


def test_own_sizes_are_compared_where_counts_are_equal() -> None:
    own: dict[str, object] = {"size": None}
    values = {"a": [0.1, 0.2], "b": [0.3, 0.4]}
    table = compare_training_sets(
        metrics(
            *runs("random", values, n=1000, **own),
            *runs("near", {"a": [0.2, 0.3], "b": [0.5, 0.6]}, n=1010, **own),
            *runs("far", {"a": [0.2, 0.3], "b": [0.5, 0.6]}, n=1011, **own),
        )
    )
    assert row_of(table, "near")["difference"] == pytest.approx(0.15)
    far = row_of(table, "far")
    assert (far["difference"], far["is_clear"]) == (None, None)
    assert far["reading"] == "not compared: 1,011 samples against random's 1,000"
    sized = compare_training_sets(metrics(*runs("random", values), *runs("oracle", values, n=80, kind="control")))
    oracle = row_of(sized, "oracle")
    assert oracle["difference"] == 0
    assert "80 samples against random's 100" in str(oracle["reading"])


def test_what_is_not_there() -> None:
    missing = {"value": None, "reason": "METEOR needs Java"}
    table = compare_training_sets(
        metrics(
            {"policy": "icc", "metric": "meteor", **missing},
            *runs("icc", {"a": [0.1], "b": [0.2]}),
            *runs("reward", {"b": [0.3]}),
            {"policy": "reward", "pool": "b", "seed": 1, **missing},
        )
    )
    meteor = row_of(table, "icc", metric="meteor")
    assert (meteor["mean"], meteor["pools"], meteor["rank"]) == (None, 0, None)
    assert meteor["reading"] == "no value: METEOR needs Java"
    reward = row_of(table, "reward")
    assert reward["rank"] is None  # its pool b is the higher one for icc, too
    assert reward["reading"] == (
        "not compared: no random training set of this size; one run shows no spread; "
        "1 of 2 runs without a value: METEOR needs Java; 1 of 2 pools, so without a rank"
    )
    assert row_of(table, "icc", metric="cider")["rank"] == 1


def test_other_seeds_are_no_pairs() -> None:
    table = compare_training_sets(
        metrics({"policy": "random", "value": 0.1}, {"policy": "icc", "value": 0.2, "seed": 3})
    )
    assert "no run with the pool and seed of a random one" in str(row_of(table, "icc")["reading"])


def test_holm_takes_back_what_many_comparisons_give() -> None:
    # differences .02 ± .005: t = 6.93 with 2 degrees of freedom, p = .0202; × 3 = .06
    rows = runs("random", {"a": [0.1], "b": [0.2], "c": [0.3]})
    for name in ("one", "two", "three"):
        rows += runs(name, {"a": [0.115], "b": [0.22], "c": [0.325]})
    plain, adjusted = compare_training_sets(metrics(*rows)), compare_training_sets(metrics(*rows), holm_adjusted=True)
    assert row_of(plain, "two")["is_clear"] is True
    assert row_of(adjusted, "two")["is_clear"] is False
    assert str(row_of(adjusted, "two")["reading"]).startswith("no difference from random shown: .020 (.008 to .032)")
    assert "one of 3 comparisons, after Holm's correction not clear" in str(row_of(adjusted, "two")["reading"])
    assert comparisons_in_words(plain).startswith("3 of 3 comparisons with random are clear")


def test_wrong_tables() -> None:
    with pytest.raises(ValueError, match="kind, size, n, reason lack"):
        compare_training_sets(metrics(*runs("icc", {"a": [0.1]})).drop("kind", "size", "n", "reason"))
    with pytest.raises(ValueError, match="two values of one metric for pool 'a' and seed 0"):
        compare_training_sets(metrics(*runs("icc", {"a": [0.1]}), *runs("icc", {"a": [0.1]})))
    with pytest.raises(ValueError, match="another type"):
        compare_training_sets(metrics(*runs("icc", {"a": [0.1]})).with_columns(value=pl.lit("high")))


def test_scores() -> None:
    rows = []
    for name, cider, spice, recall in (("random", 0.0, 0.2, 0.1), ("icc", 1.0, 0.4, 0.1), ("clip", 0.5, 0.2, 0.3)):
        rows += runs(name, {"a": [cider]})
        rows += runs(name, {"a": [spice]}, metric="spice")
        rows += runs(name, {"a": [recall]}, metric="mean_recall@1", trainer="retrieval")
    rows += runs("file", {"a": [0.7]}, kind="file")
    scores = score_training_sets(compare_training_sets(metrics(*rows)))
    captioning = scores.filter(pl.col("trainer") == "captioning")
    # cider 0 1 .5, spice 0 1 0
    assert captioning["policy"].to_list() == ["icc", "clip", "random", "file"]
    assert captioning["score"].to_list() == [1.0, 0.25, 0.0, None]
    assert captioning["reading"].to_list() == [None, None, None, "no score: without spice"]
    overall = scores.filter(pl.col("trainer") == "all").filter(pl.col("score").is_not_null())
    # with the recall 0 0 1: icc 2/3, clip (.5 + 0 + 1) / 3, random 0
    assert overall["policy"].to_list() == ["icc", "clip", "random"]
    assert overall["score"].to_list() == pytest.approx([2 / 3, 0.5, 0.0])


def test_written() -> None:
    assert written(0.041, -0.02, 1.25) == [".041", "−.020", "1.250"]
    assert written(0.0004, 0.1) == [".0004", ".1000"]


def test_intervals_over_pools_hold_the_true_difference() -> None:
    """1000 experiments of 4 pools × 3 seeds; the effect varies from pool to pool, seeds of a pool vary less."""
    rng, held, held_by_runs = np.random.default_rng(13), 0, 0
    for _ in range(1000):
        effects = 0.05 + 0.03 * rng.standard_normal((4, 1)) + 0.01 * rng.standard_normal((4, 3))  # (pools, seeds)
        pools = {str(pool): dict(enumerate(values)) for pool, values in enumerate(effects.tolist())}
        over_pools, over_runs = estimate(independent_units(pools)), estimate(effects.ravel())
        held += bool(over_pools.low is not None and over_pools.low <= 0.05 <= float(over_pools.high or 0))
        held_by_runs += bool(over_runs.low is not None and over_runs.low <= 0.05 <= float(over_runs.high or 0))
    assert 930 <= held <= 970
    assert held_by_runs < 850  # 12 runs taken as independent: what the interval over pools is there to avoid
