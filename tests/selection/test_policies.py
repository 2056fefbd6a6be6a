"""Policies: the shipped ones, their files, and what is refused."""

from pathlib import Path

import pytest

from curation_assets.methods import all_methods
from curation_assets.selection.fitted import load_recipes
from curation_assets.selection.policy import Policy, Prefilter, load_policies, load_policy

POLICIES = load_policies()


def test_shipped_policies() -> None:
    assert {"random", "clip", "icc", "icc_after_clip", "sieve", "sieve_clip"} <= set(POLICIES)
    default = {f"signals.{name}" for name, method in all_methods().items() if method.default}
    fitted = {recipe.key for recipe in load_recipes().values()}  # run where a pool names them
    rankings = [
        policy
        for policy in POLICIES.values()
        if {reference for reference in policy.references if reference.startswith("signals.")} <= default
        and not fitted & set(policy.references)
    ]
    # an intersection cuts by threshold what its prefilter left
    sizes = {
        policy.fraction or policy.prefilters[-1].fraction for policy in rankings if policy.name != "conceptual_captions"
    }
    assert len(sizes) == 1, "policies of one size can be compared"
    assert POLICIES["random"].references == ()
    assert POLICIES["icc_after_clip"].references == ("signals.clip_score", "signals.icc")
    assert all(policy.description for policy in POLICIES.values())


def test_a_prefilter_has_one_cut() -> None:
    for wrong in ({}, {"fraction": 0.5, "threshold": 1.0}):
        with pytest.raises(ValueError, match="needs fraction or threshold"):
            Prefilter("signals.a", **wrong)


def test_a_policy_has_one_cut() -> None:
    with pytest.raises(ValueError, match="count must be an integer ≥ 1 or null, got 0"):
        Policy("p", "signals.icc", count=0)
    with pytest.raises(ValueError, match="one of them"):
        Policy("p", "signals.icc", count=3, fraction=0.5)


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
