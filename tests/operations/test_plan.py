"""curate plan: what is stale is what a run would make again; flips, costs and what-ifs, by arrays over all shards."""

import contextlib
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curation_assets.audit.diff import what_if
from curation_assets.audit.index import Index, refresh_index
from curation_assets.cli.plan import cost_sentence, with_policy
from curation_assets.core.settings import load_settings
from curation_assets.defs.launch import run_pool
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import policies_of
from curation_assets.flow.freshness import is_up_to_date
from curation_assets.flow.frozen import frozen_notes
from curation_assets.flow.graph import tables_of
from curation_assets.operations.planning import (
    REASONS,
    Plan,
    TableFacts,
    facts_of,
    make_plan,
    trainings_of,
    verdict_flips,
)
from curation_assets.selection.judging import judge_pool
from curation_assets.selection.policy import Policy, Prefilter
from curation_assets.selection.rows import ROW_KEY, Pool
from curation_assets.sources.declaration import add_pool, load_pool
from curation_assets.stores.shard_store import MissingInputError, ShardStore
from tests.conftest import FinishedPool
from tests.support.command import curate
from tests.support.killing import Killed, killed_at_rename
from tests.support.lineage_pools import finished_photos, jpeg, summarise, webdataset_pool, write_tar
from tests.support.little_memory import little_memory
from tests.support.paths import PROFILES
from tests.support.slow_judge import slow_judge

RAW = ("raw/registered_shards", "raw/downloads", "raw/samples")


def hand_facts(ctx: PoolContext) -> list[TableFacts]:
    """Facts of the tables up to filtered; of the signals, those that `score_by_hand` tells."""
    tables = {
        name: table
        for name, table in tables_of(ctx).items()
        if ctx.store.partitions(name) or ctx.store.manifest(name) is not None
    }
    models = {
        name: json.dumps(
            [{"address": f"embedded:{name.split('/')[1]}", "revision": "shipped", "weights_sha256": "ab" * 32}]
        )
        for name in tables
        if name.startswith("signals/")
    }
    rest = {one.name: one for one in facts_of(ctx, {name: tables[name] for name in tables if name not in models})}
    by_hand = {name: TableFacts(name, True, ("raw/samples",), "7", output, {}) for name, output in models.items()}
    return [(rest | by_hand)[name] for name in tables]


def plan_of(ctx: PoolContext, facts: list[TableFacts], shards: list[str] | None = None) -> Plan:
    refresh_index(ctx.store, [one.name for one in facts])
    return make_plan(facts, Index.read(ctx.store.root / "index", shards or ctx.shards(), trainings_of(facts)))


def test_nothing_is_stale_after_a_run_and_a_plan_agrees_with_the_flow(finished_pool: FinishedPool) -> None:
    ctx = finished_pool.ctx
    tables = tables_of(ctx)
    facts = facts_of(ctx, tables)
    found = make_plan(facts, Index.read(ctx.store.root / "index", ctx.shards(), trainings_of(facts)))
    assert found.costs.filter(pl.col("stale") > 0).is_empty(), found.costs.filter(pl.col("stale") > 0)
    assert found.costs.filter(pl.col("cpu_seconds").is_null()).is_empty()
    output = json.loads(curate("plan", "tiny", "--json", home=ctx.settings.home).stdout)
    assert output["cpu_seconds"] == 0
    assert {row["flips"] for row in output["flips"]} == {0}

    facts = facts_of(ctx, tables, ["signals/sieve"])
    changed = make_plan(facts, Index.read(ctx.store.root / "index", ctx.shards(), trainings_of(facts)))
    reasons = {name: {REASONS[code] for code in codes if code >= 0} for name, codes in changed.reasons.items()}
    assert reasons["signals/sieve"] == {"code"}
    assert reasons["fused/sieve_range"] == reasons["filtered/sieve_cut"] == reasons["filtered/sieve"] == {"upstream"}
    assert not reasons["signals/icc"]
    assert not reasons["filtered/icc_cut"]
    cost = changed.costs.filter(pl.col("table") == "signals/sieve").to_dicts()[0]
    recorded = [ctx.store.manifest("signals/sieve", shard) for shard in ctx.shards()]
    assert cost["cpu_seconds"] == pytest.approx(sum(one.seconds for one in recorded if one is not None))
    assert cost["rows"] == 120
    flips = {row["policy"]: row for row in verdict_flips(ctx, changed, policies_of(ctx)).to_dicts()}
    assert flips["sieve"]["at_most"] == 120
    assert flips["icc"]["flips"] == 0


def test_every_kind_of_change_is_seen_where_it_is(tmp_path: Path) -> None:
    ctx = finished_photos(tmp_path)
    facts = hand_facts(ctx)
    assert plan_of(ctx, facts).costs["stale"].sum() == 0
    assert plan_of(ctx, facts).outdated_fits == []
    first, second, _ = ctx.shards()

    def changed(name: str, **what: object) -> dict[str, dict[str, str]]:
        found = plan_of(ctx, [replace(one, **what) if one.name == name else one for one in facts])  # type: ignore[arg-type]
        return {one.name: {str(shard): why for shard, why in found.partitions(one.name)} for one in facts}

    assert set(changed("signals/icc", models="[]")["signals/icc"].values()) == {"model"}
    assert set(changed("signals/icc", config={"a": 1})["signals/icc"].values()) == {"settings"}
    assert changed("signals/icc", models="[]")["filtered/clip"] == {}
    assert set(changed("signals/icc", models="[]")["filtered/icc_cut"].values()) == {"upstream"}

    frame = ctx.store.read("signals/clip_score", first)
    old = ctx.store.manifest("signals/clip_score", first)
    assert old is not None
    ctx.store.write(
        "signals/clip_score", frame.with_columns(pl.col("value") + 1), first, code_version="7",
        inputs=old.inputs, models=[dict(one) for one in old.models],
    )  # fmt: skip
    found = changed("raw/samples")
    assert found["signals/clip_score"] == {}
    assert found["filtered/clip"] == {first: "input changed"}
    assert found["filtered/clip_cut"] == {}, "frozen: other rows are no reason"
    assert found["filtered/icc"] == {}
    outdated = plan_of(ctx, facts).outdated_fits
    assert {"filtered/clip_cut", "fused/clip_score_range"} <= set(outdated)
    assert "filtered/icc_cut" not in outdated
    (note,) = [note for note in frozen_notes(ctx) if "clip" in note.partition(":")[0].split(", ")]
    assert "as many as the pool has; since then 1 shards changed" in note
    ctx.store.remove("signals/icc", second)
    assert changed("raw/samples")["signals/icc"] == {second: "missing"}
    late = plan_of(ctx, facts, [*ctx.shards(), "photos-000009"])
    assert late.partitions("raw/samples") == [("photos-000009", "missing")]
    assert late.rows["raw/samples"].tolist() == [8, 8, 8, 8]
    gone = plan_of(ctx, facts, [first])
    assert gone.partitions("filtered/subsets")[0][1] in ("input changed", "upstream")


def test_flips_of_a_changed_policy_are_exact(tmp_path: Path) -> None:
    ctx = finished_photos(tmp_path, shards=4)
    before = ctx.store.scan("filtered/icc").collect()
    icc = next(one for one in policies_of(ctx) if one.name == "icc")
    wider = replace(what_if(icc, fraction=0.6), name="icc")
    found = verdict_flips(ctx, plan_of(ctx, hand_facts(ctx)), [wider, icc])
    samples, icc_table = (ctx.store.scan(table).collect() for table in ("raw/samples", "signals/icc"))
    after = pl.DataFrame(slow_judge(wider, samples, {"signals.icc": icc_table}).verdicts)
    flipped = before.sort(ROW_KEY)["verdict"] != after.sort(ROW_KEY)["verdict"]
    assert found["flips"].to_list() == [int(flipped.sum()), 0]
    with little_memory(7):
        assert verdict_flips(ctx, plan_of(ctx, hand_facts(ctx)), [wider, icc]).equals(found)
    first = ctx.shards()[0]
    ctx.store.remove("filtered/icc", first)  # as of a shard that is new
    others = before.sort(ROW_KEY)["shard"] != first
    left = verdict_flips(ctx, plan_of(ctx, hand_facts(ctx)), [wider])["flips"].to_list()
    assert left == [int((flipped & others).sum())]
    assert flipped.any()


def test_the_index_reads_again_only_what_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ctx = finished_photos(tmp_path)
    names = [one.name for one in hand_facts(ctx)]
    refresh_index(ctx.store, names)
    read: list[tuple[str, str | None]] = []
    manifest = ShardStore.manifest

    def counting(self: ShardStore, asset: str, partition: str | None = None) -> object:
        read.append((asset, partition))
        return manifest(self, asset, partition)

    monkeypatch.setattr(ShardStore, "manifest", counting)
    refresh_index(ctx.store, names)
    assert read == []
    ctx.store.write("signals/icc", ctx.store.read("signals/icc", "photos-000001"), "photos-000001", code_version="9")
    read.clear()
    refresh_index(ctx.store, names)
    assert read == [("signals/icc", "photos-000001")]


# -- property: set-based = asked one by one ----------------------------------------------------------------------------

NAMES = ("raw/samples", "signals/icc", "fused/x", "filtered/icc_cut", "filtered/icc")


@given(
    changed=st.sets(st.sampled_from(NAMES)),
    rewritten=st.sets(st.tuples(st.sampled_from(NAMES[:2]), st.integers(0, 2))),
    removed=st.sets(st.tuples(st.sampled_from(("signals/icc", "fused/x")), st.integers(0, 2))),
)
@settings(max_examples=25)
def test_a_plan_is_what_asking_every_partition_gives(
    tmp_path_factory: pytest.TempPathFactory,
    changed: set[str],
    rewritten: set[tuple[str, int]],
    removed: set[tuple[str, int]],
) -> None:
    store = ShardStore(tmp_path_factory.mktemp("store"))
    shards = [f"p-{number:06d}" for number in range(3)]
    inputs = {
        "raw/samples": (),
        "signals/icc": ("raw/samples",),
        "fused/x": ("signals/icc", "raw/samples"),
        "filtered/icc_cut": ("fused/x",),
        "filtered/icc": ("fused/x", "filtered/icc_cut"),
    }

    def write(name: str, shard: str | None, value: float) -> None:
        read = [(one, None if one == "filtered/icc_cut" else shard) for one in inputs[name]]
        versions = store.input_versions(name, read)
        store.write(name, pl.DataFrame({"x": [value]}), shard, code_version="1", inputs=versions)

    for name in NAMES:
        for number, shard in enumerate([None] if name.endswith("_cut") else shards):
            write(name, shard, number)
    for name, number in sorted(rewritten):
        old = store.manifest(name, shards[number])
        assert old is not None
        store.write(name, pl.DataFrame({"x": [9.5]}), shards[number], code_version="1", inputs=old.inputs)
    for name, number in removed:
        store.remove(name, shards[number])
    facts = [
        TableFacts(name, not name.endswith("_cut"), inputs[name], "2" if name in changed else "1", "[]", None)
        for name in NAMES
    ]
    refresh_index(store, NAMES)
    found = make_plan(facts, Index.read(store.root / "index", shards))
    stale: dict[tuple[str, str | None], bool] = {}
    for one in facts:
        for shard in shards if one.is_per_shard else [None]:
            read = [(name, shard) for name in one.inputs if name != "filtered/icc_cut"]
            if shard is None:
                read = [(name, key) for name in one.inputs for key in shards]
            elif "filtered/icc_cut" in one.inputs:
                read.append(("filtered/icc_cut", None))
            upstream = any(stale[name, key] for name, key in read)
            try:
                fresh = store.is_fresh(one.name, shard, code_version=one.code_version, inputs=read)
            except MissingInputError:
                fresh = False
            stale[one.name, shard] = upstream or not fresh
    output = {(one.name, shard): True for one in facts for shard, _ in found.partitions(one.name)}
    assert output == {key: True for key, is_stale in stale.items() if is_stale}


def test_an_index_killed_between_its_files_is_mended_by_the_next(tmp_path: Path) -> None:
    """What a table had read stayed unknown for good: the plan took a stale table for up to date."""
    store = ShardStore(tmp_path)
    names, shard = ["raw/samples", "signals/icc"], "p-000000"
    store.write(names[0], pl.DataFrame({"x": [1]}), shard, code_version="1")
    refresh_index(store, names)
    versions = store.input_versions(names[1], [(names[0], shard)])
    store.write(names[1], pl.DataFrame({"x": [1]}), shard, code_version="1", inputs=versions)
    for number in range(3):
        with pytest.MonkeyPatch.context() as monkeypatch:
            killed_at_rename(number, monkeypatch)
            with pytest.raises(Killed) if number < 2 else contextlib.nullcontext():
                refresh_index(store, names)
    inputs = Index.read(tmp_path / "index", [shard]).tables[names[1]].inputs
    assert inputs[names[0]][1].tolist() == [1]


def test_costs_scale_with_rows_and_gpu_stands_apart(tmp_path: Path) -> None:
    store = ShardStore(tmp_path)
    for number in range(2):
        store.write("raw/samples", pl.DataFrame({"x": range(10)}), f"p-{number:06d}", code_version="1", seconds=4.0)
    refresh_index(store, ["raw/samples"])
    shards = [f"p-{number:06d}" for number in range(5)]
    index = Index.read(tmp_path / "index", shards)
    for uses_gpu in (False, True):
        fact = TableFacts("raw/samples", True, (), "1", "[]", None, uses_gpu=uses_gpu)
        cost = make_plan([fact], index).costs.to_dicts()[0]
        assert (cost["stale"], cost["rows"]) == (3, 30)
        assert cost["gpu_seconds" if uses_gpu else "cpu_seconds"] == pytest.approx(12.0)
        assert cost["cpu_seconds" if uses_gpu else "gpu_seconds"] == 0.0
    new = TableFacts("signals/new", True, ("raw/samples",), "1", "[]", None)
    costs = make_plan([replace(fact, uses_gpu=False), new], index).costs.to_dicts()
    assert costs[1]["cpu_seconds"] is None, "never run: nobody knows"
    assert costs[1]["rows"] == 50


def test_the_flow_agrees_on_frozen_tables(tmp_path: Path) -> None:
    ctx = finished_photos(tmp_path)
    for shard in ctx.shards():
        ctx.store.write("signals/icc", ctx.store.read("signals/icc", shard), shard, code_version="8")
    tables = tables_of(ctx)
    assert not is_up_to_date(ctx, tables["filtered/icc_cut"], tables=tables)
    found = plan_of(
        ctx,
        [replace(one, code_version="8", models="[]") if one.name == "signals/icc" else one for one in hand_facts(ctx)],
    )
    assert found.partitions("filtered/icc_cut") == [(None, "settings")]
    summarise(ctx)
    assert is_up_to_date(ctx, tables["filtered/icc_cut"], tables=tables)
    assert np.array_equal(found.reasons["filtered/clip_cut"], np.array([-1]))


def test_a_profile_whose_models_are_not_here_is_planned_without_fetching(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    ctx = finished_photos(tmp_path)
    profile = tmp_path / "other.yaml"
    shipped = (PROFILES / "embedded.yaml").read_text()
    profile.write_text(
        shipped.replace("name: embedded", "name: other").replace("embedded:clip\n", "path:/no/model\n", 1)
    )
    home = ["--home", str(tmp_path), "--profile", str(profile)]
    run = curate("plan", "photos", "--refresh", "--json", *home)
    assert run.exit_code == 0, run.output
    output = json.loads(run.stdout)
    assert list(output["models_not_fetched"]) == ["signals/clip_score"]
    assert "/no/model" in output["models_not_fetched"]["signals/clip_score"]
    other = PoolContext.open(load_settings(tmp_path, str(profile)), "photos")
    (fact,) = (one for one in facts_of(other, tables_of(other)) if one.name == "signals/clip_score")
    raw = [one for one in hand_facts(ctx) if one.name.startswith("raw/")]
    found = plan_of(ctx, [*raw, replace(fact, code_version="7", config={})])
    assert {REASONS[code] for code in found.reasons["signals/clip_score"]} == {"model"}
    shown = curate("plan", "photos", *home).output
    assert "count as changed" in shown


@pytest.mark.slow
def test_a_plan_promises_what_the_run_registers(tmp_path: Path) -> None:
    """Whatever happened to a source; one after the other in one pool."""
    tars, home = tmp_path / "tars", ["--home", str(tmp_path / "home")]
    target = tars / "train-0.tar"

    def overwrite_unseen() -> None:
        stat = target.stat()
        target.write_bytes(target.read_bytes().replace(b"a box 8", b"a box 9"))
        os.utime(target, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    def deliver(name: str, number: int) -> None:
        write_tar(tars / f"{name}.tar", [("0", f"http://h.example/{number}", f"a box {number}", jpeg(number))])

    changes: dict[str, tuple[Callable[[], object], int]] = {
        "nothing": (lambda: None, 0),
        "a tar whose number is taken": (lambda: deliver("test-0", 7), 1),
        "an overwritten tar": (lambda: deliver("train-0", 8), 1),
        "one of the same size and time": (overwrite_unseen, 1),
        "a table beside a tar": (
            lambda: pl.DataFrame({"key": ["5"], "status": ["failed"]}).write_parquet(target.with_suffix(".parquet")),
            1,
        ),
    }
    deliver("train-0", 0)
    deliver("val-0", 1)
    settings = load_settings(tmp_path / "home", "embedded")
    add_pool(settings, "p", tars, profile="embedded")
    ctx = PoolContext.open(settings, "p")
    run_pool(settings, "p", tables=RAW)
    for change, (make, expected) in changes.items():
        before = {(name, key): ctx.store.manifest(name, key) for name in RAW for key in ctx.store.partitions(name)}
        make()
        shown = curate("plan", "p", "--json", *home)
        stale = json.loads(shown.stdout)["stale"]
        run_pool(settings, "p", tables=RAW)
        for name in RAW:
            keys = ctx.store.partitions(name)
            made = [key for key in keys if ctx.store.manifest(name, key) != before.get((name, key))]
            assert [key for key, _ in stale.get(name, [])] == made, (change, name)
            assert len(made) == expected, (change, name)


def test_a_policy_that_would_rank_by_another_signal(tmp_path: Path) -> None:
    ctx = finished_photos(tmp_path)
    policy = next(one for one in policies_of(ctx) if one.name == "clip")
    facts = hand_facts(ctx)

    def verdicts(by: Policy) -> pl.Series:
        return pl.concat(judge_pool(by, Pool(ctx.store)))["verdict"]

    before = verdicts(policy)
    for rank_by in ("signals.clip_score", "fused.sieve_clip"):
        changed = replace(what_if(policy, rank_by=rank_by, prefilters=[Prefilter("signals.icc", 0.5)]), name="clip")
        found = plan_of(ctx, with_policy(facts, changed))
        flips = verdict_flips(ctx, found, [changed])
        assert flips["flips"].to_list() == [int((before != verdicts(changed)).sum())] != [0]
        order = found.costs["table"].to_list()
        assert order.index(rank_by.replace(".", "/")) < order.index("filtered/clip_cut") < order.index("filtered/clip")
        stale = set(found.costs.filter(pl.col("stale") > 0)["table"])
        assert stale == {"filtered/clip_cut", "filtered/clip", "filtered/subsets", "filtered/overlaps"}
    asked = ["plan", "photos", "--refresh", "--home", str(tmp_path), "--json", "--rank-by"]
    output = json.loads(curate(*asked, "fused.sieve_clip", "--policy", "clip").stdout)
    assert {row["table"]: row["code"] for row in output["tables"]}["filtered/clip"] == len(ctx.shards())
    assert curate(*asked, "signals.icc").exit_code == 1
    assert curate(*asked, "signals.nothing", "--policy", "clip").exit_code == 1


def _captions(folder: Path) -> Path:
    (folder / "captions.csv").write_text("caption\na red kite\na dog on a sofa\n")
    return folder / "captions.csv"


def _urls(folder: Path) -> Path:
    (folder / "urls.csv").write_text("url,caption\nhttp://host.example/1.jpg,a red kite\n")
    return folder / "urls.csv"


@pytest.mark.parametrize("source", [None, _captions, _urls])
@pytest.mark.parametrize("more", [(), ("--policy", "icc", "--fraction", ".2"), ("--add-shards", "3")])
def test_a_pool_that_never_ran_is_planned_and_nothing_is_made_up_of_its_cost(
    tmp_path: Path, source: Callable[[Path], Path] | None, more: tuple[str, ...]
) -> None:
    if source is None:
        webdataset_pool(tmp_path, name="fresh")
    else:
        add_pool(load_settings(tmp_path, "embedded"), "fresh", source(tmp_path))
    asked = ["plan", "fresh", *more, "--home", str(tmp_path)]
    shown = curate(*asked)
    assert shown.exit_code == 0, shown.output
    assert "No table that would be made has a recorded timing" in shown.output
    assert "About 0 CPU s" not in shown.output
    plan = json.loads(curate(*asked, "--json").stdout)
    assert (plan["cpu_seconds"], plan["gpu_seconds"]) == (None, None)
    assert plan["without_timing"] == [row["table"] for row in plan["tables"]]
    rows = {row["table"]: row["rows"] for row in plan["tables"]}
    shards = plan["shards"] - (3 if "--add-shards" in more else 0)
    settings = load_settings(tmp_path, "embedded")
    counted = load_pool(settings, "fresh").expected_rows(settings)
    assert rows["raw/registered_shards"] == rows["filtered/clip" if source is not _captions else "filtered/icc"]
    assert rows["raw/registered_shards"] == counted * plan["shards"] / shards
    assert rows["filtered/subsets"] is None, "its files are not known before"
    assert all(row["stale"] == row["partitions"] for row in plan["tables"])


def test_tables_without_a_timing_are_named_beside_the_sum_of_the_others(tmp_path: Path) -> None:
    ctx = finished_photos(tmp_path)
    facts = [*hand_facts(ctx), TableFacts("signals/new", True, ("raw/samples",), "1", None, {}, uses_gpu=True)]
    costs = {row["table"]: row for row in plan_of(ctx, facts).costs.to_dicts()}
    assert costs["signals/new"]["rows"] == sum(ctx.store.read("raw/samples", key).height for key in ctx.shards())
    assert (costs["signals/new"]["cpu_seconds"], costs["signals/new"]["gpu_seconds"]) == (0.0, None)
    plan = {"cpu_seconds": 12.0, "gpu_seconds": 0.0, "without_timing": [f"signals/{n}" for n in range(7)]}
    assert cost_sentence(plan).endswith("no timing yet of " + ", ".join(plan["without_timing"][:5]) + " and 2 more")  # type: ignore[index]
