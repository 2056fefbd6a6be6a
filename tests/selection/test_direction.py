"""Of a method of direction lower the lowest values are the best: in cuts, recipes, what-ifs, ledgers and reports."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
import yaml
from hypothesis import given, settings

from curation_assets.audit.diff import Comparison, compare, iou_at, judged_side, what_if
from curation_assets.audit.ledger import recorded_ledger
from curation_assets.audit.why import explain, sentence
from curation_assets.core.progress import Silent
from curation_assets.core.settings import load_settings
from curation_assets.flow.context import PoolContext
from curation_assets.flow.options import DuplicateSettings
from curation_assets.flow.own_declared import policies_folder
from curation_assets.flow.run_table import run_with_upstream
from curation_assets.methods import all_methods, oriented
from curation_assets.outputs.exports.formats import get_format
from curation_assets.outputs.exports.subset import find_subset
from curation_assets.outputs.report.report import GALLERY_SIZE, _ranked
from curation_assets.selection.cut import PolicyCut, cut_frame, cut_of_frame
from curation_assets.selection.judging import fit_cut, judge_pool
from curation_assets.selection.kinds.votes import Voter
from curation_assets.selection.policy import Policy, Prefilter, load_policies
from curation_assets.selection.rows import Pool
from curation_assets.sources.declaration import add_pool
from curation_assets.stages.fused.duplicates import _duplicates
from curation_assets.stores.shard_store import ShardStore
from tests.support.directions import lower_is_better
from tests.support.id_lists import unpack_uids
from tests.support.ledgers import replay
from tests.support.random_pools import Tables, can_be_cut, policies, pools, store_pool

LOWER = ("icc", "clip_score")
REFERENCES = tuple(f"signals.{name}" for name in LOWER)


def mirrored_policy(policy: Policy) -> Policy:
    """The policy that keeps the same of negated values."""

    def turned(step: Any) -> Any:
        is_turned = step.rank_by in REFERENCES and step.threshold is not None
        return replace(step, threshold=-step.threshold) if is_turned else step

    return turned(replace(policy, prefilters=tuple(turned(prefilter) for prefilter in policy.prefilters)))


def mirrored_cut(cut: PolicyCut, policy: Policy) -> PolicyCut:
    turned = (
        replace(one, threshold=-one.threshold) if one.rank_by in REFERENCES and one.threshold is not None else one
        for one in cut.cuts
    )
    return replace(cut, policy_version=policy.version, cuts=tuple(turned))


@pytest.mark.slow
@given(pool=pools(), policy=policies())
@settings(max_examples=30, deadline=None)
def test_judging_lower_values_is_judging_their_negatives(
    tmp_path_factory: pytest.TempPathFactory, pool: tuple[pl.DataFrame, Tables], policy: Policy
) -> None:
    """Every kind of policy: verdicts, margins, quantiles; values stay in their unit."""
    samples, tables = pool
    negated = {
        reference: table.with_columns(-pl.col("value")) if reference in REFERENCES else table
        for reference, table in tables.items()
    }
    here, there = (ShardStore(tmp_path_factory.mktemp("store")) for _ in range(2))
    store_pool(here, samples, tables)
    store_pool(there, samples, negated)
    mirrored = mirrored_policy(policy)
    other = Pool(there)
    if not can_be_cut(mirrored, other):
        return
    expected, cut = pl.concat(judge_pool(mirrored, other)), fit_cut(mirrored, other)
    compared = ["sample_id", "decided_by", "margin", "verdict", "reason"]
    with lower_is_better(*LOWER):
        found = fit_cut(policy, Pool(here))
        again = cut_of_frame(cut_frame(found))
        assert pl.concat(judge_pool(policy, Pool(here), again)).select(compared).equals(expected.select(compared))
    turned = mirrored_cut(found, mirrored)
    assert [(one.threshold, one.boundary_id, one.kept) for one in turned.cuts] == [
        (one.threshold, one.boundary_id, one.kept) for one in cut.cuts
    ]
    for one, other_way in zip(found.cuts, cut.cuts, strict=True):
        sign = -1 if one.rank_by in REFERENCES else 1
        assert [sign * value for value in one.quantiles] == list(other_way.quantiles), "from the worst"


def test_no_shipped_method_is_of_direction_lower_and_none_is_turned_round() -> None:
    """Thresholds of shipped policies and voters are written for these directions: turning a method turns them."""
    assert {name for name, method in all_methods().items() if method.direction == "lower"} == set()
    assert oriented("signals.icc", 0.25) == 0.25


def test_only_policies_that_read_such_a_signal_change_their_version() -> None:
    before = {name: policy.version for name, policy in load_policies().items()}
    with lower_is_better("sieve"):
        changed = {name for name, policy in load_policies().items() if policy.version != before[name]}
    assert changed == {"sieve", "sieve_image_based", "sieve_text_spotting"}


# -- a pool, from given values to subsets ------------------------------------------------------------------------------

COUNT = 20
WORST, BEST = "12345 67890", "plain words here"
OWN = (
    Policy(name="half", rank_by="signals.sieve", fraction=0.5),
    Policy(name="three", rank_by="signals.sieve", count=3),
    Policy(name="compat", rank_by="signals.sieve", fraction=0.25, semantics="compat"),
    Policy(name="up_to", rank_by="signals.sieve", threshold=0.3),
    Policy(
        name="second", rank_by="signals.clip_score", fraction=0.25,
        prefilters=(Prefilter(rank_by="signals.sieve", threshold=0.5),),
    ),
    Policy(name="mixed", rank_by="fused.sieve_clip", fraction=0.5),
    Policy(name="voted", rank_by="fused.ballot", fraction=0.5),
    Policy(name="drawn", rank_by="fused.draws", threshold=1, repeats=True),
)  # fmt: skip
BALLOT = """name: ballot
kind: votes
voters:
  - {signal: signals.sieve, keep_from: 0.3, drop_below: 0.6}
  - {signal: signals.clip_score, keep_from: 0.5, drop_below: 0.5}
"""
DRAWS = "name: draws\nkind: soft_cap\nscore_by: signals.sieve\nbudget: 0.4\nscale: 20\npenalty: 100\n"


@pytest.fixture(scope="module")
def ctx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolContext]:
    """20 captions; sieve, of direction lower here, rises from 0 to .95; clip_score is .6, .1 of the last."""
    home = tmp_path_factory.mktemp("home")
    captions = [f"{BEST} {number}" if number < COUNT // 2 else f"{WORST} {number}" for number in range(COUNT)]
    table = pl.DataFrame(
        {
            "caption": captions,
            "digits": [number / COUNT for number in range(COUNT)],
            "cosine": [0.6] * (COUNT - 1) + [0.1],
        }
    )
    table.write_parquet(home / "captions.parquet")
    own = load_settings(home, "embedded")
    given_signals = {"sieve": "digits", "clip_score": "cosine"}
    add_pool(
        own, "texts", home / "captions.parquet",
        options={"given_signals": given_signals, "distil": False, "downstream": False, "policies": ["sieve"]},
    )  # fmt: skip
    with lower_is_better("sieve"):
        ctx = PoolContext.open(own, "texts")
        folder = policies_folder(ctx)
        (folder / "recipes").mkdir(parents=True)
        (folder / "recipes" / "ballot.yaml").write_text(BALLOT)
        (folder / "recipes" / "draws.yaml").write_text(DRAWS)
        for policy in OWN:
            content = {
                key: value
                for key, value in vars(policy).items()
                if value not in (None, (), "", 0, False, "exact") and key != "prefilters"
            }
            content["prefilters"] = [{"rank_by": one.rank_by, "threshold": one.threshold} for one in policy.prefilters]
            (folder / f"{policy.name}.yaml").write_text(yaml.safe_dump(content))
        run_with_upstream(ctx, "filtered/subsets")
        yield ctx


def kept_numbers(ctx: PoolContext, policy: str) -> list[int]:
    """Numbers at the ends of the captions that a policy keeps."""
    verdicts = ctx.store.scan(f"filtered/{policy}").filter(pl.col("verdict") == "kept").collect()
    samples = ctx.store.scan("raw/samples").select("sample_id", "caption").collect()
    captions = verdicts.join(samples, on="sample_id")["caption"]
    return sorted(int(caption.rpartition(" ")[2]) for caption in captions)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("sieve", range(5)),
        ("half", range(10)),
        ("three", range(3)),
        ("compat", range(6)),  # DataComp's rule keeps one more
        ("up_to", range(7)),  # 0, .05, … .3
        ("second", range(5)),  # clip_score is equal: ties by id among 0 to 10; see below
        ("mixed", range(10)),
        ("voted", range(7)),
        ("drawn", range(8)),
    ],
)
def test_a_policy_keeps_the_lowest(ctx: PoolContext, policy: str, expected: range) -> None:
    kept = kept_numbers(ctx, policy)
    if policy == "second":
        assert len(kept) == 5
        assert max(kept) <= 10, "the prefilter lets .5 and less through"
    elif policy == "voted":
        assert set(expected) <= set(kept), "those that both vote to keep come first"
        assert COUNT - 1 not in kept
    else:
        assert kept == list(expected)


def test_verdicts_are_in_the_unit_of_the_method(ctx: PoolContext) -> None:
    verdicts = ctx.store.scan("filtered/half").sort("value").collect()
    assert verdicts["value"].to_list() == [number / COUNT for number in range(COUNT)]
    assert set(verdicts["threshold"]) == {0.45}
    assert verdicts["margin"].to_list() == pytest.approx([0.45 - number / COUNT for number in range(COUNT)])
    shown = _ranked(ctx, [verdicts.lazy()], OWN[0])
    assert shown["value"].to_list() == verdicts["value"].to_list()[:GALLERY_SIZE], "galleries begin with the best"
    (answer,) = explain(ctx.settings, verdicts["sample_id"][0])
    half = next(one for one in answer["policies"] if one["policy"] == "half")
    assert sentence(half).startswith("kept: signals.sieve 0, cut at 0.45, margin +0.45; better than 95.0% of those")


def test_a_recipe_in_sql_gets_a_score_of_which_higher_is_better(ctx: PoolContext) -> None:
    fused = ctx.store.scan("fused/sieve_clip").sort("sieve_score", descending=True).collect()
    assert fused["sieve_score"].to_list() == pytest.approx([1 - number / (COUNT - 1) for number in range(COUNT)])


def test_what_ifs_and_differences_follow_it(ctx: PoolContext) -> None:
    pool = Pool(ctx.store)
    half, quarter = OWN[0], replace(OWN[0], name="quarter", fraction=0.25)

    def kept(policy: Policy) -> list[float]:
        return pl.concat(judge_pool(policy, pool)).filter(pl.col("verdict") == "kept")["value"].sort().to_list()

    assert kept(what_if(half, fraction=0.1)) == [0, 0.05]
    assert max(kept(what_if(half, threshold=0.2))) == 0.2
    found = compare(pool, half, what_if(half, fraction=0.1))
    assert found.overlap.both == 2
    nearest = found.nearest.filter(pl.col("policy") == "half")
    assert nearest["value"].to_list() == [number / COUNT for number in range(10, 20)]
    assert nearest["margin"].max() < 0
    assert iou_at(pool, half, quarter, [0.5])["iou"].item() == 1
    second = next(policy for policy in OWN if policy.name == "second")
    side = judged_side(pool, second)
    left = Comparison(ctx.store, side, side, pool).whole().leave_one_out
    without_ranking = left.filter(pl.col("without") == "signals.clip_score")
    assert without_ranking["kept"].item() == 5, "the prefilter's signal ranks instead: 0 to 4"


def test_ledgers_replay_and_exports_publish_the_direction(ctx: PoolContext, tmp_path: Path) -> None:
    for policy in OWN:
        ids = set(unpack_uids(replay(recorded_ledger(ctx.store, policy.name))))
        verdicts = ctx.store.scan(f"filtered/{policy.name}").filter(pl.col("verdict") == "kept").collect()
        assert ids == set(verdicts["sample_id"]), policy.name
    get_format("hf").write(find_subset(ctx, "half"), tmp_path / "out")
    published = "".join(path.read_text() for path in (tmp_path / "out").glob("*.json"))
    assert '"direction": "lower"' in published


def test_voters_of_such_a_signal_keep_low_values_and_the_bounds_are_checked_so() -> None:
    with lower_is_better("sieve"):
        assert Voter(signal="signals.sieve", keep_from=0.1, drop_below=0.4).band == (-0.1, -0.4)
        with pytest.raises(ValueError, match=r"keep_from must be at most drop_below 0.1, got 0.4"):
            Voter(signal="signals.sieve", keep_from=0.4, drop_below=0.1)


def test_of_near_duplicates_the_lower_value_is_kept(tmp_path: Path) -> None:
    store = ShardStore(tmp_path)
    rows = {"sample_id": ["0" * 32, "1" * 32], "shard": "s-000000", "source_row": [0, 1]}
    plant = {"code_version": "1", "inputs": [], "config": {}}
    samples = pl.DataFrame(
        {**rows, "image_sha256": "a" * 64, "width": [9, 9], "height": [9, 9], "status": "kept", "reason": None},
        schema_overrides={"reason": pl.String},
    )
    store.write("raw/samples", samples, "s-000000", **plant)
    store.write("signals/clip_score", pl.DataFrame({**rows, "value": [0.9, 0.1]}), "s-000000", **plant)
    wanted = DuplicateSettings(perceptual_bits=None, prefer="signals.clip_score")
    ctx: Any = SimpleNamespace(store=store, progress=Silent())
    assert _duplicates(ctx, wanted).collect()["quality"].to_list() == [1, 0]
    with lower_is_better("clip_score"):
        assert _duplicates(ctx, wanted).collect()["quality"].to_list() == [0, 1]
