"""curate diff: the same numbers as counting by hand, shifts, leave-one-signal-out, what-ifs that become policies."""

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curation_assets.audit.diff import (
    FITTED,
    FROZEN,
    RECORDED,
    Overlap,
    compare,
    iou_at,
    policy_comparison,
    recorded_difference,
    save_policy,
    what_if,
)
from curation_assets.audit.ledger import LedgerError, recorded_ledger
from curation_assets.audit.recorded import current_ledgers, cuts_in_force
from curation_assets.audit.shifts import dimensions_of, marks_of, shifts
from curation_assets.cli.what_ifs import prefilters_of
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import policies_of
from curation_assets.flow.freshness import materialise_table
from curation_assets.flow.graph import tables_of
from curation_assets.flow.own_declared import policies_folder
from curation_assets.numeric.identity import pack_uids
from curation_assets.numeric.selection import best, random_ranking, share_count
from curation_assets.selection.judging import judge_pool
from curation_assets.selection.leave_one_out import leave_one_out, recipe_weights
from curation_assets.selection.policy import Policy, Prefilter, load_policy, policy_content
from curation_assets.selection.rows import Pool
from curation_assets.stores.shard_store import ShardStore
from curation_assets.stores.subsets import write_sorted_subset
from tests.support.command import curate
from tests.support.id_lists import read_subset
from tests.support.lineage_pools import (
    bring_up_to_date,
    finished_photos,
    jpeg,
    score_by_hand,
    summarise,
    webdataset_pool,
    write_tar,
)
from tests.support.little_memory import little_memory
from tests.support.random_pools import policies, pools, store_duplicates, store_pool
from tests.support.slow_judge import NothingToCutError, slow_judge


@pytest.fixture(scope="module")
def ctx(tmp_path_factory: pytest.TempPathFactory) -> PoolContext:
    return finished_photos(tmp_path_factory.mktemp("home"), shards=5)


def verdicts(pool: Pool, policy: Policy) -> pl.DataFrame:
    return pl.concat(judge_pool(policy, pool))


def is_kept(pool: Pool, policy: Policy) -> np.ndarray:
    return (verdicts(pool, policy)["verdict"] == "kept").to_numpy()


def kept_ids(pool: Pool, policy: Policy) -> list[str]:
    return verdicts(pool, policy).filter(pl.col("verdict") == "kept")["sample_id"].to_list()


@pytest.mark.slow
@given(pool=pools(), left=policies(), right=policies(), part=st.integers(1, 9))
@settings(max_examples=60)
def test_overlap_equals_counting_by_hand(
    tmp_path_factory: pytest.TempPathFactory,
    pool: tuple[pl.DataFrame, dict[str, pl.DataFrame]],
    left: Policy,
    right: Policy,
    part: int,
) -> None:
    """With cuts fitted on the pool, in memory and part by part."""
    samples, tables = pool
    store = ShardStore(tmp_path_factory.mktemp("store"))
    texts = samples.with_columns(
        pl.format("http://h{}.example/x", pl.col("source_row") % 2).alias("url"),
        pl.lit("one two three").alias("caption"),
    )
    store_pool(store, texts, tables)
    store_duplicates(store, samples)
    rows = Pool(store)
    try:
        slow = [slow_judge(policy, samples, tables) for policy in (left, right)]
    except NothingToCutError:
        with pytest.raises(ValueError, match="no sample has a value"):
            compare(rows, left, right)
        return
    found = compare(rows, left, right)

    def shares(pool: Any) -> list[dict[str, Any]] | str:
        try:
            return iou_at(pool, left, right, [0.25, 0.5]).to_dicts()
        except ValueError as error:  # by share a compat policy needs a value, by threshold it does not
            return str(error)

    at_once = shares(rows)
    with little_memory(part):
        assert compare(rows, left, right).to_dict() == found.to_dict()
        assert shares(rows) == at_once
    kept = [set(judged.kept) for judged in slow]
    both, either = kept[0] & kept[1], kept[0] | kept[1]
    overlap = found.overlap
    assert (overlap.left, overlap.right, overlap.both) == (len(kept[0]), len(kept[1]), len(both))
    assert (overlap.only_left, overlap.only_right) == (len(kept[0] - kept[1]), len(kept[1] - kept[0]))
    assert overlap.iou == (len(both) / len(either) if either else None)
    verdicts = [[row["verdict"] for row in judged.verdicts] for judged in slow]
    pairs = list(zip(*verdicts, strict=True))
    output = {(row["left_verdict"], row["right_verdict"]): row["rows"] for row in found.transitions.to_dicts()}
    assert output == {pair: pairs.count(pair) for pair in set(pairs)}
    for dimension in ("domain", "caption length"):  # every judged row is in one group
        part = found.shifts.filter(pl.col("dimension") == dimension)
        assert part.select(pl.sum("pool", "left", "right")).row(0) == (
            int((pl.concat(rows.parts())["status"] == "kept").sum()),
            overlap.left,
            overlap.right,
        )
    for policy, judged in ((left, slow[0]), (right, slow[1])):
        assert sorted(kept_ids(rows, policy)) == judged.kept
    urls = {row["sample_id"]: row["url"] for row in texts.to_dicts()}
    for row in found.nearest.to_dicts():
        assert row["sample_id"] in urls
        assert row["margin"] is None or row["margin"] <= 0


def test_shifts_and_nearest_read_by_eye(ctx: PoolContext) -> None:
    rows = Pool(ctx.store)
    known = {policy.name: policy for policy in policies_of(ctx)}
    found = compare(rows, known["icc"], known["sieve_clip"])
    samples = ctx.store.scan("raw/samples").filter(pl.col("status") == "kept").collect()
    kept = {
        name: set(ctx.store.scan(f"filtered/{name}").collect().filter(pl.col("verdict") == "kept")["sample_id"])
        for name in ("icc", "sieve_clip")
    }
    domains = {row["group"]: row for row in found.shifts.filter(pl.col("dimension") == "domain").to_dicts()}
    for host in ("host0.example", "host1.example", "host2.example"):
        mine = set(samples.filter(pl.col("url").str.contains(host))["sample_id"])
        assert domains[host]["pool"] == len(mine)
        assert (domains[host]["left"], domains[host]["right"]) == (
            len(mine & kept["icc"]), len(mine & kept["sieve_clip"]),
        )  # fmt: skip
    verdicts = ctx.store.scan("filtered/icc").collect().filter(pl.col("reason") == "below_cut:signals.icc")
    expected = verdicts.sort("value", "sample_id", descending=[True, False]).head(10)
    nearest = found.nearest.filter(pl.col("policy") == "icc")
    assert nearest["sample_id"].to_list() == expected["sample_id"].to_list()
    assert nearest["margin"].to_list() == expected["margin"].to_list()


def test_leaving_out_the_only_signal_with_values_is_not_defined(tmp_path: Path) -> None:
    store, name = ShardStore(tmp_path), "photos-000000"
    samples = pl.DataFrame({"sample_id": [f"{row:032x}" for row in range(4)], "shard": name, "source_row": range(4)})
    values = samples.with_columns(value=pl.lit(0.5), reason=pl.lit(None, pl.String))
    none = values.with_columns(value=pl.lit(None, pl.Float64), reason=pl.lit("x"))
    kept = samples.with_columns(status=pl.lit("kept"), reason=pl.lit(None, pl.String))
    store_pool(store, kept, {"signals.icc": values, "signals.clip_score": none})
    rows = Pool(store)
    policy = Policy(
        "p", "signals.icc", fraction=0.5, prefilters=(Prefilter("signals.clip_score", threshold=0.25),),
        semantics="compat",
    )  # fmt: skip
    found = leave_one_out(rows, policy, lambda: iter([pl.Series(is_kept(rows, policy))])).to_dicts()
    assert [(row["without"], row["kept"]) for row in found] == [("signals.clip_score", 4), ("signals.icc", None)]


def test_leaving_a_signal_out_equals_the_policy_without_it(ctx: PoolContext) -> None:
    rows = Pool(ctx.store)
    fused = Policy("f", "fused.sieve_clip", fraction=0.25)
    assert recipe_weights(rows, "fused.sieve_clip") == pytest.approx({"sieve_score": 0.5, "clip_score": 0.5})
    found = compare(
        rows, fused, Policy("g", "signals.icc", fraction=0.25, prefilters=(Prefilter("signals.clip_score", 0.5),))
    )
    output = {(row["policy"], row["without"]): row for row in found.leave_one_out.to_dicts()}
    whole = is_kept(rows, fused)
    # min–max keeps the order, so without clip_score the recipe ranks as signals.sieve does.
    sieve = is_kept(rows, Policy("s", "signals.sieve", fraction=0.25))
    assert output["f", "clip"]["iou"] == Overlap.of(whole, sieve).iou
    assert output["f", "clip"]["kept"] == sieve.sum()
    prefiltered = is_kept(rows, found.right)
    icc = is_kept(rows, Policy("i", "signals.icc", fraction=0.25))
    clip = is_kept(rows, Policy("c", "signals.clip_score", fraction=0.25))
    assert output["g", "signals.clip_score"]["iou"] == Overlap.of(prefiltered, icc).iou
    assert output["g", "signals.icc"]["iou"] == Overlap.of(prefiltered, clip).iou


def test_ledgers_compare_without_judging(ctx: PoolContext, tmp_path: Path) -> None:
    rows = Pool(ctx.store)
    known = {policy.name: policy for policy in policies_of(ctx)}
    for left, right in (("icc", "clip"), ("sieve_clip", "icc_after_clip"), ("random", "icc")):
        ledgers = recorded_ledger(ctx.store, left), recorded_ledger(ctx.store, right)
        found = recorded_difference(*ledgers, ctx.store).to_dict()
        whole = compare(rows, known[left], known[right]).to_dict()
        assert found == {name: whole[name] for name in found}
        assert found["nearest_dropped"]
    other = finished_photos(tmp_path)
    icc, clip = recorded_ledger(other.store, "icc"), recorded_ledger(other.store, "clip")
    other.store.remove("filtered/clip", "photos-000001")
    with pytest.raises(LedgerError, match="different rows"):
        recorded_difference(icc, clip, other.store)
    run = curate("diff", "icc", "clip", "--recorded", "--json", "--home", ctx.settings.home, "--pool", "photos")
    assert json.loads(run.stdout)["iou"] == compare(rows, known["icc"], known["clip"]).overlap.iou
    run = curate("diff", "icc", "clip", "--recorded", home=ctx.settings.home)
    assert "Nearest dropped" in run.output
    run = curate("diff", "icc", "clip", "--recorded", "--fraction", "0.1", home=ctx.settings.home)
    assert run.exit_code == 1


@pytest.mark.parametrize(
    "asked",
    [
        ["icc", "clip"], ["icc", "clip", "--recorded"], ["sieve_clip", "icc_after_clip"], ["icc", "--fraction", "0.4"],
        ["sieve_clip", "--threshold", "0.5"], ["icc_after_clip", "--rank-by", "fused.sieve_clip"],
        ["icc", "sieve_clip", "--at", ".1,.5"], ["sieve_clip", "--against", "ids.parquet"],
        ["icc", "--against", "ids.npy"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_pool_larger_than_memory_has_the_same_answers(
    ctx: PoolContext, tmp_path: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Verdicts recorded and judged, groups, a recipe without each of its signals, samples nearest to the cut."""
    monkeypatch.chdir(tmp_path)
    listed = [*read_subset(ctx.store.folder_path("filtered/subsets") / "clip.npy"), *["f" * 32] * 2]
    write_sorted_subset(Path("ids.npy"), Path("ids.parquet"), pack_uids(listed))
    command = ["diff", *asked, "--json", "--home", str(ctx.settings.home)]
    expected = curate(*command)
    assert expected.exit_code == 0, expected.output
    with little_memory(7):
        assert json.loads(curate(*command).stdout) == json.loads(expected.stdout)


CAPTIONS = st.one_of(st.none(), st.text(st.sampled_from("ab \t\n\v\x1c\x85\xa0é\u2003\u3000漢"), max_size=50))
URLS = st.one_of(
    st.none(),
    st.text(st.sampled_from("aB:/@[]?#.-1"), max_size=12),
    st.builds(
        "http://{}{}".format, st.text(st.sampled_from("aB@:[]/?."), max_size=6), st.sampled_from(("", "/x", "?y/"))
    ),
)


@given(rows=st.lists(st.tuples(URLS, CAPTIONS, st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=60))
@settings(max_examples=12)
def test_shifts_equal_grouping_all_texts(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str | None, str | None, bool, bool, bool]]
) -> None:
    store = ShardStore(tmp_path_factory.mktemp("store"))
    n = len(rows)
    samples = pl.DataFrame(
        {
            "sample_id": [f"{(place * 2_654_435_761) % 2**32:08x}" + "f0" * 12 for place in range(n)],
            "shard": [f"photos-{place % 2:06d}" for place in range(n)],
            "source_row": [place * 3 for place in range(n)],
            "url": [row[0] for row in rows],
            "caption": [row[1] for row in rows],
            "status": ["kept" if row[2] else "failed" for row in rows],
            "reason": [None if row[2] else "x" for row in rows],
        },
        schema_overrides={"url": pl.String, "caption": pl.String, "reason": pl.String},
    )
    for (shard,), part in samples.group_by("shard"):
        store.write("raw/samples", part.reverse(), str(shard), code_version="1")
        said = part.select("sample_id", "source_row", value=0.5, language=pl.lit("en"), reason=pl.lit(None, pl.String))
        store.write("signals/datacomp_basic", said[1:], str(shard), code_version="1")
    pool = Pool(store)
    shards = store.partitions("raw/samples")
    read = store.scan("raw/samples", shards).select("shard", "source_row", "url", "caption", "status").collect()
    judged = (read["status"] == "kept").to_numpy()
    chosen = {(f"photos-{place % 2:06d}", place * 3): row for place, row in enumerate(rows)}
    keys = read.select("shard", "source_row").rows()
    left, right = (np.array([chosen[key][2] and chosen[key][side] for key in keys]) for side in (3, 4))
    found = shifts(pool, [marks_of(judged, left, right)])
    facts = read.filter(pl.Series(judged))
    for dimension, groups in dimensions_of(store, shards, facts).items():
        marked = pl.DataFrame([groups, pl.Series("left", left[judged]), pl.Series("right", right[judged])])
        slow = {
            (group, part.height, part["left"].sum(), part["right"].sum())
            for (group,), part in marked.group_by("group")
            if group is not None
        }
        output = found.filter(pl.col("dimension") == dimension)
        assert set(output.select("group", "pool", "left", "right").iter_rows()) == slow
        assert (
            output["change"] - (output["right"] / max(right.sum(), 1) - output["left"] / max(left.sum(), 1))
        ).abs().sum() < 1e-9


def test_recorded_policies_are_compared_without_judging(ctx: PoolContext) -> None:
    rows = Pool(ctx.store)
    known = {policy.name: policy for policy in policies_of(ctx)}
    assert set(current_ledgers(ctx.store, list(known.values()))) == set(known)
    for left, right in (("icc", "clip"), ("sieve_clip", "icc_after_clip"), ("random", "sieve_clip")):
        output: list[int] = []
        both = policy_comparison(ctx.store, known[left], known[right])
        assert (both.left.origin, both.right.origin) == (RECORDED, RECORDED)
        assert both.whole(output.append).to_dict() == compare(rows, known[left], known[right]).to_dict()
        assert sum(output) == both.shards == 5
    narrow = what_if(known["icc_after_clip"], fraction=0.1)
    half = policy_comparison(ctx.store, known["icc"], narrow)
    assert (half.left.origin, half.right.origin) == (RECORDED, FITTED)
    assert half.whole().to_dict() == compare(rows, known["icc"], narrow).to_dict()


def test_ledgers_are_current_by_contents_and_not_by_times(ctx: PoolContext, tmp_path: Path) -> None:
    home = tmp_path / "home"
    shutil.copytree(ctx.settings.home, home, symlinks=True)
    store, policies = ShardStore(home / "work" / "photos"), policies_of(ctx)
    names = {policy.name for policy in policies}
    shard = store.table_path("raw/samples", "photos-000001")
    later = time.time() + 1_000
    for path in (shard, shard.parent, shard.parent.parent):
        os.utime(path, (later, later))  # as a copy of a home has it
    assert set(current_ledgers(store, policies)) == names
    values = store.table_path("signals/icc", "photos-000001")
    frame = store.read("signals/icc", "photos-000001").with_columns(pl.col("value") / 2)
    store.write("signals/icc", frame, "photos-000001", code_version="7")
    for path in (values, values.parent, values.parent.parent):
        os.utime(path, (0, 0))  # as a backup brings it back
    reading = {policy.name for policy in policies if "signals.icc" in policy.references}
    assert reading
    assert set(current_ledgers(store, policies)) == names - reading


def test_a_late_shard_makes_ledgers_stale_and_the_frozen_cut_stays(tmp_path: Path) -> None:
    ctx = finished_photos(tmp_path)
    known = {policy.name: policy for policy in policies_of(ctx)}
    pair = [known["icc"], known["clip"]]
    before = cuts_in_force(ctx.store, pair)
    rows = [(f"{n:06d}", f"http://late.example/{n}.jpg", f"a late thing {n}", jpeg(n)) for n in range(100, 130)]
    write_tar(tmp_path / "tars" / "000003.tar", rows)
    ctx = PoolContext.open(ctx.settings, "photos", run_id="run-8")
    tables = tables_of(ctx)
    late = max(ctx.shards())
    for table in ("raw/registered_shards", "raw/downloads", "raw/samples"):
        materialise_table(ctx, tables[table], late, tables=tables)
    score_by_hand(ctx, late)
    assert current_ledgers(ctx.store, pair) == {}
    home = ["--home", str(tmp_path)]
    early = json.loads(curate("diff", "icc", "clip", "--json", *home).stdout)
    assert early["origin"] == {"left": FROZEN, "right": FROZEN}
    summarise(ctx)  # the ledgers are written again, by the cuts of before
    assert cuts_in_force(ctx.store, pair) == before
    output = json.loads(curate("diff", "icc", "clip", "--json", *home).stdout)
    assert output["origin"] == {"left": RECORDED, "right": RECORDED}
    assert {name: output[name] for name in early if name != "origin"} == {
        name: early[name] for name in early if name != "origin"
    }
    for side, name in (("left", "icc"), ("right", "clip")):
        assert output["kept"][side] == len(np.load(ctx.store.folder_path("filtered/subsets") / f"{name}.npy"))


@pytest.mark.parametrize(("fraction", "iou"), [(0.1, 0.0526), (0.2, 0.1111), (0.3, 0.1765)])
def test_two_random_rankings_overlap_as_chance_has_it(fraction: float, iou: float) -> None:
    """formulas.md §13.9: k / (2 − k), and what two random rankings really share."""
    ids = [f"{i:032x}" for i in range(4000)]
    rankings = [random_ranking(ids, seed) for seed in (1, 2)]
    overlap = Overlap.of(*(best(values, share_count(4000, fraction)) for values in rankings))
    assert overlap.chance_iou(4000) == pytest.approx(iou, abs=5e-5)
    assert overlap.iou == pytest.approx(iou, abs=0.02)


def test_overlap_read_by_eye() -> None:
    found = Overlap.of(np.array([1, 1, 0, 0, 0], bool), np.array([0, 1, 1, 0, 0], bool))
    assert (found.both, found.only_left, found.only_right, found.iou) == (1, 1, 1, 1 / 3)
    assert found.chance_iou(5) == pytest.approx(0.8 / 3.2)
    empty = Overlap.of(np.zeros(3, bool), np.zeros(3, bool))
    assert empty.iou is None
    assert empty.chance_iou(3) is None
    with pytest.raises(ValueError, match="same rows"):
        Overlap.of(np.zeros(3, bool), np.zeros(2, bool))


def test_what_ifs(ctx: PoolContext) -> None:
    policy = load_policy(Path("curation_assets/selection/policies/icc_after_clip.yaml").absolute())
    wider = what_if(policy, fraction=0.6)
    assert (wider.fraction, wider.prefilters[0].fraction, wider.name) == (0.6, 0.6, "icc_after_clip_0_6")
    cut = what_if(policy, threshold=-0.5)
    assert (cut.fraction, cut.threshold, cut.name) == (None, -0.5, "icc_after_clip_from_minus_0_5")
    with pytest.raises(ValueError, match="not both"):
        what_if(policy, fraction=0.1, threshold=0.1)
    with pytest.raises(ValueError, match=r"\(0, 1\]"):
        what_if(policy, fraction=1.5)


@given(policy=policies())
def test_a_saved_policy_is_the_policy(tmp_path_factory: pytest.TempPathFactory, policy: Policy) -> None:
    folder = tmp_path_factory.mktemp("policies")
    path = save_policy(folder, policy, "mine")
    assert load_policy(path).version == type(policy)(**{**vars(policy), "name": "mine"}).version
    assert set(policy_content(policy)) <= set(vars(policy))


def test_command_saves_a_what_if_that_the_pool_then_applies(tmp_path: Path) -> None:
    found = webdataset_pool(tmp_path)
    ctx = bring_up_to_date(found)
    home = ["--home", str(tmp_path)]
    run = curate("diff", "icc", "--fraction", "0.5", "--save", "icc_half", *home)
    assert run.exit_code == 0, run.output
    for expected in ("IoU", "By domain", "By caption length", "Nearest dropped", "Saved"):
        assert expected in run.output, expected
    ctx = PoolContext.open(found, "photos")
    assert (policies_folder(ctx) / "icc_half.yaml").is_file()
    summarise(ctx)
    kept = ctx.store.scan("filtered/icc_half").collect().filter(pl.col("verdict") == "kept").height
    judged = ctx.store.scan("raw/samples").filter(pl.col("status") == "kept").collect().height
    assert kept == round(judged / 2)
    output = json.loads(curate("diff", "icc", "icc_half", "--json", *home).stdout)
    assert output["kept"] == {"left": round(judged / 4), "right": kept, "both": round(judged / 4)}
    again = curate("diff", "icc", "--fraction", "0.4", "--save", "icc_half", *home)
    assert again.exit_code == 1
    assert "already" in again.output
    for bad in (
        ["diff", "icc"],
        ["diff", "icc", "nothing"],
        ["diff", "icc", "--fraction", "0.3", "--save", "Bad-Name"],
    ):
        assert curate(*bad, *home).exit_code == 1


def test_what_ifs_may_change_signal_and_prefilters(tmp_path: Path) -> None:
    policy = load_policy(Path("curation_assets/selection/policies/icc_after_clip.yaml").absolute())
    other = what_if(policy, rank_by="signals.sieve", prefilters=[])
    assert (other.rank_by, other.prefilters, other.fraction) == ("signals.sieve", (), policy.fraction)
    assert other.name == "icc_after_clip_by_signals_sieve_after_none"
    assert prefilters_of(["signals.icc=0.5", "random=0.9"]) == [Prefilter("signals.icc", 0.5), Prefilter("random", 0.9)]
    assert prefilters_of(["none"]) == []
    for bad in ("signals.icc", "signals.icc=half", "=0.5"):
        with pytest.raises(ValueError, match=r"STAGE\.TABLE=SHARE"):
            prefilters_of([bad])
    ctx = finished_photos(tmp_path)
    options = ["--rank-by", "signals.sieve", "--prefilter", "signals.icc=0.5", "--save", "mine", "--json"]
    run = curate("diff", "clip", *options, home=tmp_path)
    assert run.exit_code == 0, run.output
    saved = load_policy(policies_folder(ctx) / "mine.yaml")
    assert (saved.rank_by, saved.prefilters) == ("signals.sieve", (Prefilter("signals.icc", 0.5),))
    rows = Pool(ctx.store)
    assert json.loads(run.stdout)["kept"]["right"] == is_kept(rows, saved).sum()


@pytest.mark.parametrize("count", [1, 3, 1000])
@pytest.mark.parametrize("name", ["icc", "icc_after_clip", "sieve_clip"])
def test_the_nearest_of_some_shards_after_the_others_are_those_of_all_rows(
    ctx: PoolContext, name: str, count: int
) -> None:
    ledger, other = recorded_ledger(ctx.store, name), recorded_ledger(ctx.store, "random")
    with little_memory(1):
        found = recorded_difference(ledger, other, ctx.store, nearest=count).nearest.filter(policy=name)
    verdicts = ctx.store.scan("filtered/random").select("shard", "source_row", other_verdict="verdict")
    rows = ctx.store.scan(f"filtered/{name}").filter(reason=f"below_cut:{ledger.policy.rank_by}")
    expected = rows.join(verdicts, on=["shard", "source_row"]).collect()
    expected = expected.sort("value", "sample_id", descending=[True, False]).head(count)
    compared = ["sample_id", "value", "margin", "other_verdict"]
    assert expected.height
    assert found.select(compared).equals(expected.select(compared))
