"""curate plan: what a run would make again, how many verdicts flip and what it costs."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from graphlib import TopologicalSorter
from typing import Annotated, Any

import numpy as np
import polars as pl
import typer

from curation_assets.audit.diff import find_policy, what_if
from curation_assets.audit.index import Index, refresh_index
from curation_assets.cli.commands import command
from curation_assets.cli.common import (
    HomeOption,
    JsonOption,
    PoolArgument,
    ProfileOption,
    notice,
    settings_from,
    show,
    show_json,
    show_table,
    warn,
)
from curation_assets.cli.what_ifs import (
    CHANGES,
    FractionOption,
    PrefilterOption,
    RankByOption,
    ThresholdOption,
    prefilters_of,
)
from curation_assets.core.errors import few
from curation_assets.core.progress import reporter_for
from curation_assets.core.settings import shard_key, shard_number
from curation_assets.core.table_names import DUPLICATES, REGISTERED_SHARDS, SAMPLES
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
from curation_assets.selection.policy import Policy

PolicyOption = Annotated[
    str | None, typer.Option("--policy", help="The policy that the next four change.", rich_help_panel=CHANGES)
]
CodeOption = Annotated[
    list[str] | None,
    typer.Option("--code", help="The code of this table changed (repeat).", rich_help_panel=CHANGES),
]
AddShardsOption = Annotated[int, typer.Option("--add-shards", help="So many shards came.", rich_help_panel=CHANGES)]
RemoveShardOption = Annotated[
    list[str] | None, typer.Option("--remove-shard", help="This shard went (repeat).", rich_help_panel=CHANGES)
]
RefreshOption = Annotated[bool, typer.Option("--refresh", help="Look at every stored file, not at the index.")]


@command("plan", "Pools")
def plan(
    pool: PoolArgument,
    policy: PolicyOption = None,
    fraction: FractionOption = None,
    threshold: ThresholdOption = None,
    rank_by: RankByOption = None,
    prefilter: PrefilterOption = None,
    code: CodeOption = None,
    add_shards: AddShardsOption = 0,
    remove_shard: RemoveShardOption = None,
    refresh: RefreshOption = False,
    as_json: JsonOption = False,
    home: HomeOption = None,
    profile: ProfileOption = None,
) -> None:
    """Show what a run would make again, what it costs and which verdicts flip; run nothing.

    With a what-if: after such a change.
    """
    if policy is None and any(change is not None for change in (fraction, threshold, rank_by, prefilter)):
        raise ValueError("--fraction, --threshold, --rank-by and --prefilter need --policy NAME")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a plan fetches no weights; models that are not here count as changed
    ctx = PoolContext.open(settings_from(home, profile), pool, progress=reporter_for())
    tables = tables_of(ctx)
    stopped = unfinished(ctx)
    if stopped is not None:
        raise ValueError(
            f"a refit of the cuts of pool {pool!r} was stopped ({stopped.folder}): `curate refit {pool}` "
            "goes on with it; then there is something to plan"
        )
    if refresh or not (ctx.store.root / "index/tables.parquet").is_file():  # there is none before the first run ends
        refresh_index(ctx.store, tables)
    facts = facts_of(ctx, tables, code or ())
    policies = policies_of(ctx)
    if policy is not None:
        other = what_if(
            find_policy({one.name: one for one in policies}, policy),
            fraction=fraction,
            threshold=threshold,
            rank_by=rank_by,
            prefilters=prefilters_of(prefilter) if prefilter else None,
        )
        changed = replace(other, name=policy)
        policies = [changed if one.name == policy else one for one in policies]
        facts = with_policy(facts, changed)
    stored = {*ctx.shards(), *ctx.store.partitions(SAMPLES)}  # a shard without a source counts until removed
    shards = _shards(sorted(stored), pool, add_shards, remove_shard or ())
    index = Index.read(ctx.store.root / "index", shards, trainings_of(facts))
    is_new = stored and not ctx.store.partitions(REGISTERED_SHARDS)
    planned = make_plan(facts, index, ctx.pool.expected_rows(ctx.settings) / len(stored) if is_new else np.nan)
    is_untimed = pl.any_horizontal(pl.col("cpu_seconds", "gpu_seconds").is_null())
    untimed = planned.costs.filter(is_untimed)["table"].to_list()
    has_timings = planned.costs.filter((pl.col("stale") > 0) & ~is_untimed).height > 0 or not untimed
    content: dict[str, Any] = {
        "pool": pool,
        "shards": len(shards),
        "tables": [{**row, "title": tables[row["table"]].title} for row in planned.costs.to_dicts()],
        "cpu_seconds": planned.costs["cpu_seconds"].sum() if has_timings else None,
        "gpu_seconds": planned.costs["gpu_seconds"].sum() if has_timings else None,
        "without_timing": untimed,
        "flips": verdict_flips(ctx, planned, policies).to_dicts(),
        "outdated_fits": list(planned.outdated_fits),
        "models_not_fetched": not_fetched(facts),
        "pieces": [asdict(piece) for piece in pieces_of(ctx, tables)],
        "cautions": cautions_of(ctx),
        "left_out": left_out(ctx),
    }
    if not as_json:
        _show(content)
        return
    stale = [row["table"] for row in content["tables"] if row["stale"]]
    content["stale"] = {name: [[shard, why] for shard, why in planned.partitions(name)] for name in stale}
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
        rows.append((piece["name"], piece["address"] or "–", state, size, few(piece["tables"], 2)))
    headings = ("model or file", "address", "state", "MB", "for")
    show_table(headings, rows, left=("model or file", "address", "state", "for"), title="Models and files")
    for piece in pieces:
        if piece["advice"]:
            warn(f"{piece['name']} is {STATES[piece['state']]}: {piece['advice']}")


def cost_sentence(plan: Mapping[str, Any]) -> str:
    """What a plan costs, and which tables have no timing yet."""
    if plan["cpu_seconds"] is None:
        return "No table that would be made has a recorded timing: what stands as ? is known after its first run"
    untimed = plan["without_timing"]
    return f"About {plan['cpu_seconds']:,.0f} CPU s and {plan['gpu_seconds']:,.0f} GPU s, from recorded timings" + (
        f"; no timing yet of {few(untimed, 5)}" if untimed else ""
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
            f"`curate refit {plan['pool']}` fits cuts again, with --fits the others, too"
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
