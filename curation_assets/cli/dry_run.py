"""curate run --dry-run: what a run would make again, how many verdicts flip and what it costs."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from graphlib import TopologicalSorter
from typing import Any

import polars as pl

from curation_assets.audit.diff import find_policy, what_if
from curation_assets.audit.index import Index, refresh_index
from curation_assets.cli.common import notice, show, show_json, show_table, warn
from curation_assets.core.progress import reporter_for
from curation_assets.core.settings import Settings, shard_key, shard_number
from curation_assets.core.table_names import DUPLICATES, SAMPLES
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import left_out, policies_of
from curation_assets.flow.graph import tables_of
from curation_assets.operations.pieces import cautions_of, pieces_of
from curation_assets.operations.planning import (
    REASONS,
    TableFacts,
    facts_of,
    make_plan,
    not_fetched,
    trainings_of,
    verdict_flips,
)
from curation_assets.operations.refit import unfinished
from curation_assets.selection.policy import Policy, Prefilter


@dataclass(frozen=True)
class WhatIf:
    """What would be changed before the run: a policy, the code of tables, shards."""

    policy: str | None = None
    fraction: float | None = None
    threshold: float | None = None
    rank_by: str | None = None
    prefilters: Sequence[Prefilter] | None = None
    code: Sequence[str] = ()
    add_shards: int = 0
    remove_shards: Sequence[str] = ()

    def __post_init__(self) -> None:
        changes = (self.fraction, self.threshold, self.rank_by, self.prefilters)
        if self.policy is None and any(change is not None for change in changes):
            raise ValueError("--fraction, --threshold, --rank-by and --prefilter need --policy NAME")


def dry_run(settings: Settings, pool: str, change: WhatIf, *, refresh: bool = False, as_json: bool = False) -> None:
    """Show what a run would make again now, or after `change`. `refresh`: look at every stored file first."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a plan fetches no weights; models that are not here count as changed
    ctx = PoolContext.open(settings, pool, progress=reporter_for())
    tables = tables_of(ctx)
    stopped = unfinished(ctx)
    if stopped is not None:
        raise ValueError(
            f"a refit of the cuts of pool {pool!r} was stopped ({stopped.folder}): `curate run {pool} --refit-cuts` "
            "goes on with it; then there is something to plan"
        )
    if refresh or not ctx.store.partitions(SAMPLES):  # of a pool that never ran there is no index to read
        refresh_index(ctx.store, tables)
    facts = facts_of(ctx, tables, change.code)
    policies = policies_of(ctx)
    if change.policy is not None:
        other = what_if(
            find_policy({policy.name: policy for policy in policies}, change.policy),
            fraction=change.fraction,
            threshold=change.threshold,
            rank_by=change.rank_by,
            prefilters=change.prefilters,
        )
        changed = replace(other, name=change.policy)
        policies = [changed if policy.name == change.policy else policy for policy in policies]
        facts = with_policy(facts, changed)
    stored = {*ctx.shards(), *ctx.store.partitions(SAMPLES)}  # a shard without a source counts until removed
    shards = _shards(sorted(stored), pool, change.add_shards, change.remove_shards)
    plan = make_plan(facts, Index.read(ctx.store.root / "index", shards, trainings_of(facts)))
    is_untimed = pl.any_horizontal(pl.col("cpu_seconds", "gpu_seconds").is_null())
    untimed = plan.costs.filter(is_untimed)["table"].to_list()
    has_timings = plan.costs.filter((pl.col("stale") > 0) & ~is_untimed).height > 0 or not untimed
    content: dict[str, Any] = {
        "pool": pool,
        "shards": len(shards),
        "tables": [{**row, "title": tables[row["table"]].title} for row in plan.costs.to_dicts()],
        "cpu_seconds": plan.costs["cpu_seconds"].sum() if has_timings else None,
        "gpu_seconds": plan.costs["gpu_seconds"].sum() if has_timings else None,
        "without_timing": untimed,
        "flips": verdict_flips(ctx, plan, policies).to_dicts(),
        "outdated_fits": list(plan.outdated_fits),
        "models_not_fetched": not_fetched(facts),
        "pieces": [asdict(piece) for piece in pieces_of(ctx, tables)],
        "cautions": cautions_of(ctx),
        "left_out": left_out(ctx),
    }
    if not as_json:
        _show(content)
        return
    stale = [row["table"] for row in content["tables"] if row["stale"]]
    content["stale"] = {name: [[shard, why] for shard, why in plan.partitions(name)] for name in stale}
    show_json(content)


def with_policy(facts: list[TableFacts], policy: Policy) -> list[TableFacts]:
    """The facts, had the policy changed. Raises ValueError where it reads a table that the pool does not make."""
    cut, read = f"filtered/{policy.name}_cut", policy.tables
    unknown = sorted(set(read) - {table.name for table in facts})
    if unknown:
        raise ValueError(f"the pool has no tables {unknown}; it has {', '.join(table.name for table in facts)}")
    base = (SAMPLES, DUPLICATES, *read)
    inputs = {cut: base, f"filtered/{policy.name}": (*base, cut)}
    changed = {table.name: table for table in facts}
    for name, names in inputs.items():
        changed[name] = replace(changed[name], code_version=policy.version, inputs=names)
    graph = {name: [table for table in fact.inputs if table in changed] for name, fact in changed.items()}
    return [changed[name] for name in TopologicalSorter(graph).static_order()]


def _shards(shards: list[str], pool: str, added: int, removed: Sequence[str]) -> list[str]:
    unknown = sorted(set(removed) - set(shards))
    if unknown:
        raise ValueError(f"pool {pool!r} has no shards {unknown[:5]}; it has {len(shards)}, such as {shards[:3]}")
    first = max((shard_number(key) for key in shards), default=-1) + 1
    return [key for key in shards if key not in removed] + [shard_key(pool, first + n) for n in range(added)]


STATES = {"here": "here", "fetch": "to be fetched", "gated": "gated", "made": "made by the run", "missing": "missing"}


def _show_pieces(pieces: Sequence[Mapping[str, Any]]) -> None:
    rows = []
    for piece in pieces:
        size = f"{piece['size'] / 1e6:,.1f}" if piece["size"] is not None else "unknown"
        state = STATES[piece["state"]] + ("" if piece["is_required"] else ", something stands in")
        users = ", ".join(piece["tables"][:2]) + (" …" if len(piece["tables"]) > 2 else "")
        rows.append((piece["name"], piece["address"] or "–", state, size, users))
    headings = ("model or file", "address", "state", "MB", "for")
    show_table(headings, rows, left=("model or file", "address", "state", "for"), title="Models and files")
    for piece in pieces:
        if piece["advice"]:
            warn(f"{piece['name']} is {STATES[piece['state']]}: {piece['advice']}")


def cost_sentence(plan: Mapping[str, Any]) -> str:
    """What a plan costs, and which tables have no timing yet."""
    if plan["cpu_seconds"] is None:
        return "No table that would be made has a recorded timing: what it costs is known after its first run"
    untimed = plan["without_timing"]
    names = ", ".join(untimed[:5]) + (f" and {len(untimed) - 5} more" if len(untimed) > 5 else "")
    return f"About {plan['cpu_seconds']:,.0f} CPU s and {plan['gpu_seconds']:,.0f} GPU s, from recorded timings" + (
        f"; no timing yet of {names}" if untimed else ""
    )


def _show(plan: dict[str, Any]) -> None:
    stale = [row for row in plan["tables"] if row["stale"]]
    if not stale:
        show(f"Pool {plan['pool']}, {plan['shards']} shards: everything is up to date.")
    else:
        rows = []
        for row in stale:
            seconds = ("?" if row[name] is None else f"{row[name]:,.1f}" for name in ("cpu_seconds", "gpu_seconds"))
            rows_of = "?" if row["rows"] is None else f"{row['rows']:,}"
            why = ", ".join(f"{reason} {row[reason]:,}" for reason in REASONS if row[reason])
            parts = f"{row['stale']:,} of {row['partitions']:,}"
            rows.append((row["title"], parts, rows_of, *seconds, why))
        headings = ("table", "partitions", "rows", "CPU s", "GPU s", "why")
        title = f"Stale in pool {plan['pool']}, {plan['shards']} shards"
        show_table(headings, rows, left=("table", "why"), title=title)
        show(cost_sentence(plan))
    if plan["outdated_fits"]:
        show(
            f"Frozen, fitted on other rows than will be there: {', '.join(plan['outdated_fits'])}. They stay; "
            f"`curate run {plan['pool']} --refit-cuts` fits cuts again, with --fits the others, too"
        )
    _show_pieces(plan["pieces"])
    for sentence in plan["cautions"]:
        warn(sentence)
    for sentence in plan["left_out"]:
        notice(sentence)
    absent = plan["models_not_fetched"]
    if absent:
        warn(f"models of {len(absent)} tables are not on this disk and count as changed:")
        for reason in dict.fromkeys(absent.values()):
            show(f"  {', '.join(name for name, why in absent.items() if why == reason)}: {reason}")
    for row in plan["flips"]:
        at_most = "–" if row["at_most"] is None else f"at most {row['at_most']:,} verdicts flip"
        flips = at_most if row["flips"] is None else f"{row['flips']:,} verdicts flip"
        show(f"  {row['policy']:<16} {flips}{'; ' + row['note'] if row['note'] else ''}")
