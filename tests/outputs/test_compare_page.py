"""The interactive page: its JavaScript, run by node and by a browser, gives the numbers of curate diff."""

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from curation_assets.audit.diff import Comparison, compare, judged_side, what_if
from curation_assets.audit.recorded import cuts_in_force
from curation_assets.audit.why import explain
from curation_assets.core.plain_json import number
from curation_assets.core.table_names import DUPLICATES
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import policies_of
from curation_assets.outputs.report import compare as page
from curation_assets.outputs.report.page import inlined
from curation_assets.selection.cut import PolicyCut
from curation_assets.selection.judging import fit_cut, judge
from curation_assets.selection.policy import Policy, Prefilter
from curation_assets.selection.rows import PoolRows
from curation_assets.stores.shard_store import ShardStore
from tests.support.directions import lower_is_better
from tests.support.lineage_pools import finished_photos
from tests.support.random_pools import can_be_cut, policies, pools, store_pool

SCRIPT = Path(page.__file__).parent / "compare.js"
RUN = f"""
const {{ compare, unpack }} = require({json.dumps(str(SCRIPT))});
const input = JSON.parse(require("fs").readFileSync(0, "utf8")), data = unpack(input.data);
console.log(JSON.stringify(input.pairs.map(([a, b]) => {{
  try {{ return compare(a, b, data); }} catch (error) {{ return {{ error: error.message }}; }}
}}), (_, value) => Math.abs(value) === Infinity ? String(value) : value)); // which JSON has no number for
"""

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed (Debian: nodejs)")


@pytest.fixture(scope="module")
def ctx(tmp_path_factory: pytest.TempPathFactory) -> PoolContext:
    return finished_photos(tmp_path_factory.mktemp("home"), shards=5)


def in_javascript(
    rows: PoolRows, pairs: list[tuple[Policy, Policy]], cuts: Mapping[str, PolicyCut] | None = None
) -> list[dict[str, Any]]:
    content = {
        "data": page.compare_data(rows, list({one.name: one for pair in pairs for one in pair}.values())),
        "pairs": [[page._policy(one, rows, (cuts or {}).get(one.name)) for one in pair] for pair in pairs],
    }
    run = subprocess.run(["node", "-e", RUN], input=json.dumps(content), capture_output=True, text=True, check=True)
    found: list[dict[str, Any]] = json.loads(run.stdout)
    return found


def assert_same(
    rows: PoolRows, left: Policy, right: Policy, found: dict[str, Any], cuts: Mapping[str, PolicyCut] | None = None
) -> None:
    if cuts is None:
        expected = compare(rows, left, right)
    else:
        expected = Comparison(
            rows.store, *(judged_side(rows, one, cuts.get(one.name)) for one in (left, right)), lambda: rows
        ).whole()
    overlap = expected.overlap
    assert found["overlap"] == {
        "left": overlap.left, "right": overlap.right, "both": overlap.both, "only_left": overlap.only_left,
        "only_right": overlap.only_right, "iou": overlap.iou,
        "chance_iou": None if (chance := overlap.chance_iou(expected.judged)) is None else pytest.approx(chance),
    }  # fmt: skip
    assert found["transitions"] == expected.transitions.to_dicts()
    assert found["judged"] == expected.judged
    shifts = [{"dimension": one["dimension"], **row} for one in found["shifts"] for row in one["rows"]]
    output = expected.shifts.to_dicts()
    key = ("dimension", "group", "pool", "left", "right")
    assert sorted([tuple(row[name] for name in key) for row in shifts]) == sorted(
        [tuple(row[name] for name in key) for row in output]
    )
    changes = [{(row["dimension"], row["group"]): row["change"] for row in part} for part in (shifts, output)]
    assert changes[0] == pytest.approx(changes[1])
    assert found["leave_one_out"] == expected.leave_one_out.to_dicts()
    names = ("policy", "sample_id", "other_verdict", "value", "margin")
    nearest = [{**row, "value": number(row["value"])} for row in found["nearest"]]
    assert [tuple(row[name] for name in names) for row in nearest] == [
        tuple(row[name] for name in names) for row in expected.nearest.to_dicts()
    ]


@pytest.mark.slow
@needs_node
@pytest.mark.parametrize("lower", [(), ("icc", "clip_score")], ids=["all higher", "lower is better"])
@given(pool=pools(), left=policies("left"), right=policies("right"), is_frozen=st.booleans())
@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
def test_any_pool_and_policies_give_the_same_numbers(
    lower: tuple[str, ...],
    tmp_path_factory: pytest.TempPathFactory,
    pool: tuple[pl.DataFrame, dict[str, pl.DataFrame]],
    left: Policy,
    right: Policy,
    is_frozen: bool,
) -> None:
    """The port held against selection/judging.py: cuts fitted on the pool, or frozen on its first shard."""
    samples, tables = pool
    store = ShardStore(tmp_path_factory.mktemp("store"))
    texts = samples.with_columns(
        pl.format("http://h{}.example/x", pl.col("source_row") % 2).alias("url"),
        pl.lit("one two three").alias("caption"),
    )
    store_pool(store, texts, tables)
    with lower_is_better(*lower):
        rows = PoolRows.read(store)
        cuts = None
        if is_frozen:
            first = PoolRows.read(store, store.partitions("raw/samples")[:1])
            cuts = {policy.name: fit_cut(policy, first) for policy in (left, right) if can_be_cut(policy, first)}
        (compared,) = in_javascript(rows, [(left, right)], cuts)
        if "error" in compared:  # compat on a pool without any value
            with pytest.raises(ValueError, match="no sample has a value"):
                compare(rows, left, right)
            assert "no sample has a value" in compared["error"]
        else:
            assert_same(rows, left, right, compared, cuts)


@pytest.mark.slow
@needs_node
@given(pool=pools(), policy=policies(), is_frozen=st.booleans())
@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
def test_every_row_has_the_verdict_rank_and_threshold_of_the_judge(
    tmp_path_factory: pytest.TempPathFactory,
    pool: tuple[pl.DataFrame, dict[str, pl.DataFrame]],
    policy: Policy,
    is_frozen: bool,
) -> None:
    samples, tables = pool
    store = ShardStore(tmp_path_factory.mktemp("store"))
    store_pool(store, samples.with_columns(url=pl.lit(None, pl.String), caption=pl.lit("x")), tables)
    rows = PoolRows.read(store)
    fitted_on = PoolRows.read(store, store.partitions("raw/samples")[:1]) if is_frozen else rows
    if not can_be_cut(policy, fitted_on):  # the property before this one
        return
    cut = fit_cut(policy, fitted_on)
    judged = judge(policy, rows, cut)
    data = page.compare_data(rows, [policy], cuts={policy.name: cut} if is_frozen else None)
    script = f"""const {{ judge, unpack }} = require({json.dumps(str(SCRIPT))});
    const data = unpack(JSON.parse(require("fs").readFileSync(0, "utf8")));
    const judged = judge(data.policies[0], data.values, data.n, data.ids, data.lower);
    const list = (column) => Array.from(column);
    console.log(JSON.stringify([list(judged.verdict), list(judged.step), list(judged.rank), judged.thresholds]));"""
    run = subprocess.run(["node", "-e", script], input=json.dumps(data), capture_output=True, text=True, check=True)
    verdict, step, rank, thresholds = json.loads(run.stdout)
    kept = rows.is_kept
    assert verdict == judged.verdict[kept].tolist()
    assert step == judged.step[kept].tolist()
    assert rank == judged.rank[kept].tolist()
    expected = [one.threshold for one in cut.cuts]
    assert thresholds == [None if one is None or np.isinf(one) else one for one in expected]  # as JSON writes them


@needs_node
def test_frozen_cuts_are_applied_as_the_pipeline_does(ctx: PoolContext) -> None:
    """A pool that has grown since its cuts: the page counts what the subsets hold."""
    rows, known = PoolRows.read(ctx.store), {one.name: one for one in policies_of(ctx)}
    few = PoolRows.read(ctx.store, ctx.store.partitions("raw/samples")[:2])
    pairs = [(known["icc"], known["icc_after_clip"]), (known["random"], known["clip"])]
    cuts = {one.name: judge(one, few).cut for pair in pairs for one in pair}
    for (left, right), found in zip(pairs, in_javascript(rows, pairs, cuts), strict=True):
        assert_same(rows, left, right, found, cuts)
    assert cuts_in_force(ctx.store, policies_of(ctx)).keys() == known.keys()
    *before, last = cuts["icc"].cuts
    assert last.threshold is not None
    made_again = replace(last, threshold=last.threshold + 4e-8)  # of the boundary's row alone
    cuts["icc"] = replace(cuts["icc"], cuts=(*before, made_again))
    (found,) = in_javascript(rows, pairs[:1], cuts)
    assert_same(rows, *pairs[0], found, cuts)


@needs_node
def test_shipped_policies_and_what_ifs_give_the_same_numbers(ctx: PoolContext) -> None:
    rows = PoolRows.read(ctx.store)
    known = policies_of(ctx)
    by_name = {policy.name: policy for policy in known}
    pairs = [(left, right) for left in known for right in known[:3]]
    pairs += [
        (by_name["icc"], what_if(by_name["icc_after_clip"], fraction=0.285)),
        (by_name["icc"], what_if(by_name["sieve_clip"], threshold=0.4)),
        (by_name["icc"], what_if(by_name["icc"], rank_by="signals.sieve", prefilters=[Prefilter("random", 0.7)])),
    ]
    for (left, right), found in zip(pairs, in_javascript(rows, pairs), strict=True):
        assert_same(rows, left, right, found)


@needs_node
def test_the_page_explains_a_sample_as_its_ledger_does(ctx: PoolContext) -> None:
    rows, known = PoolRows.read(ctx.store), policies_of(ctx)
    data = page.compare_data(rows, known)
    script = f"""const {{ rowOf, unpack, whyOf }} = require({json.dumps(str(SCRIPT))});
    const output = JSON.parse(require("fs").readFileSync(0, "utf8")), data = unpack(output);
    console.log(JSON.stringify([rowOf("no such words", data), rowOf(data.ids[3].toUpperCase(), data),
      data.ids.map((id) => [id, whyOf(rowOf(id, data), data.policies, data)])]));"""
    run = subprocess.run(["node", "-e", script], input=json.dumps(data), capture_output=True, text=True, check=True)
    absent, third, output = json.loads(run.stdout)
    assert (absent, third, len(output)) == (-1, 3, data["n"])
    names = ("verdict", "decided_by", "value", "threshold", "margin", "rank")
    verdicts = set()
    for sample_id, by_policy in output:
        kept_row = next(one for one in explain(ctx.settings, sample_id) if one["raw"]["status"] == "kept")
        recorded = {one["policy"]: one for one in kept_row["policies"]}
        for one in by_policy:
            expected = recorded[one["policy"]]
            verdicts.add(one["verdict"])
            for name in names:
                wanted = expected[name]
                assert one[name] == (pytest.approx(wanted) if isinstance(wanted, float) else wanted), (one, expected)
    assert verdicts == {"kept", "dropped", "failed"}


@needs_node
def test_shares_round_as_the_pipeline_rounds(tmp_path: Path) -> None:
    from curation_assets.numeric.selection import share_count

    cases = [(n, f) for n in (0, 1, 3, 7, 100, 12_800_000) for f in (0.285, 0.5, 0.3, 1e-7, 1.0, 0.1 + 0.2, 1 / 3)]
    script = f"const {{ shareCount }} = require({json.dumps(str(SCRIPT))});"
    script += (
        "console.log(JSON.stringify(JSON.parse(require('fs').readFileSync(0)).map(([n, f]) => shareCount(n, f))));"
    )
    run = subprocess.run(["node", "-e", script], input=json.dumps(cases), capture_output=True, text=True, check=True)
    assert json.loads(run.stdout) == [share_count(n, f) for n, f in cases]


def test_a_browser_shows_the_numbers_of_the_state_in_its_address(ctx: PoolContext, tmp_path: Path) -> None:
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("chromium is not installed (Debian: apt-get install chromium)")
    page.write_compare_page(ctx, tmp_path / "compare.html")
    drawn = subprocess.run(
        [
            browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=5000", "--dump-dom",
            f"{(tmp_path / 'compare.html').as_uri()}#a=icc&b=sieve_clip&fraction=0.4&why=thing+9+",
        ],
        capture_output=True, text=True, timeout=120, check=True,
    ).stdout  # fmt: skip
    known = {policy.name: policy for policy in policies_of(ctx)}
    overlap = compare(PoolRows.read(ctx.store), known["icc"], what_if(known["sieve_clip"], fraction=0.4)).overlap
    tiles = dict(re.findall(r'data-name="([^"]+)"><b>([^<]+)</b>', drawn))
    assert tiles["kept by icc"] == str(overlap.left)
    assert tiles["kept by both"] == str(overlap.both)
    assert float(tiles["IoU"]) == pytest.approx(overlap.iou, rel=1e-3)
    assert "curate diff icc sieve_clip --pool photos --fraction 0.4 --save NEW_NAME" in drawn
    verdicts = re.search(r'id="verdicts">(.*?)</div>', drawn, re.DOTALL)
    assert verdicts is not None
    assert "signals.icc" in verdicts[1]


@given(pool=pools())
@settings(max_examples=10)
def test_the_page_counts_a_repeated_sample_once(
    tmp_path_factory: pytest.TempPathFactory, pool: tuple[pl.DataFrame, dict[str, pl.DataFrame]]
) -> None:
    samples, _ = pool
    kept = samples.filter(pl.col("status") == "kept")
    store = ShardStore(tmp_path_factory.mktemp("store"))
    store_pool(store, samples, {})
    repeats = kept.sort("shard", "source_row").filter(~pl.col("sample_id").is_first_distinct())
    store.write(DUPLICATES, repeats.select("sample_id", "shard", "source_row"), code_version="1")
    assert page._kept_count(store) == PoolRows.read(store).is_kept.sum() == kept["sample_id"].n_unique()


def test_captions_cannot_end_the_script_and_large_pools_say_what_to_do(
    ctx: PoolContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = inlined(json.dumps(["a </script> <!-- "]), is_json=True)
    assert "<" not in output
    assert json.loads(output) == ["a </script> <!-- "]
    monkeypatch.setattr(page, "MAX_ROWS", 3)
    judged = int(PoolRows.read(ctx.store).is_kept.sum())
    monkeypatch.setattr(page, "PoolRows", None)  # no row of a large pool is read into memory
    page.write_compare_page(ctx, tmp_path / "compare.html")
    text = (tmp_path / "compare.html").read_text()
    assert "curate diff A B --pool photos" in text
    assert f"{judged:,} judged samples are more than this page holds" in text
    assert "<script" not in text
