"""curate plan: what a run would make again, how many verdicts flip and what it costs, before anything runs."""

import json as json_format
import os
from dataclasses import replace
from graphlib import TopologicalSorter
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from curation_assets.audit.diff import find_policy, what_if
from curation_assets.audit.index import Index, refresh_index
from curation_assets.cli.common import HomeOption, ProfileOption, console, errors_as_sentences, settings_from
from curation_assets.cli.diff import prefilters_of
from curation_assets.core.settings import shard_key
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import policies_of
from curation_assets.flow.graph import tables_of
from curation_assets.operations.planning import REASONS, TableFacts, facts_of, make_plan, not_fetched, verdict_flips
from curation_assets.selection.policy import Policy
from curation_assets.selection.rows import DUPLICATES


@errors_as_sentences
def plan(
    pool: Annotated[str, typer.Argument(help="A pool that has run.")],
    policy: Annotated[str | None, typer.Option("--policy", help="The policy that the next four are of.")] = None,
    fraction: Annotated[float | None, typer.Option("--fraction", help="What if it kept this share?")] = None,
    threshold: Annotated[float | None, typer.Option("--threshold", help="What if it cut at this value?")] = None,
    rank_by: Annotated[
        str | None, typer.Option("--rank-by", metavar="STAGE.TABLE", help="What if it ranked by this signal?")
    ] = None,
    prefilter: Annotated[
        list[str] | None,
        typer.Option(
            "--prefilter", metavar="STAGE.TABLE=SHARE", help="What if it first kept this share by it? (repeat; 'none')"
        ),
    ] = None,
    code: Annotated[
        list[str] | None, typer.Option("--code", help="What if the code of this table changed? (repeat)")
    ] = None,
    add_shards: Annotated[int, typer.Option("--add-shards", help="What if so many shards came?")] = 0,
    remove_shard: Annotated[
        list[str] | None, typer.Option("--remove-shard", help="What if this one went? (repeat)")
    ] = None,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Look at every stored file first, not at the last run's index.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Everything, as JSON on standard output.")] = False,
    home: HomeOption = None,
    profile: ProfileOption = None,
) -> None:
    """Say what `curate run` would do now, or after a change of profile, policy, code or shards."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a plan fetches no weights; models that are not here count as changed
    settings = settings_from(home, profile)
    ctx = PoolContext.open(settings, pool)
    tables = tables_of(ctx)
    if refresh:
        refresh_index(ctx.store, tables)
    facts = facts_of(ctx, tables, code or ())
    policies = policies_of(ctx)
    if policy is not None:
        other = what_if(
            find_policy({one.name: one for one in policies}, policy),
            fraction=fraction,
            threshold=threshold,
            rank_by=rank_by,
            prefilters=None if not prefilter else prefilters_of(prefilter),
        )
        changed = replace(other, name=policy)
        policies = [changed if one.name == policy else one for one in policies]
        facts = with_policy(facts, changed)
    elif any(one is not None for one in (fraction, threshold, rank_by)) or prefilter:
        raise ValueError("--fraction, --threshold, --rank-by and --prefilter need --policy NAME")
    there = {*ctx.shards(), *ctx.store.partitions("raw/samples")}  # a shard whose source is gone counts until removed
    shards = _shards(sorted(there), pool, add_shards, remove_shard or [])
    found = make_plan(facts, Index.read(ctx.store.root / "index", shards))
    flips = verdict_flips(ctx, found, policies)
    told = {
        "pool": pool,
        "shards": len(shards),
        "tables": found.costs.to_dicts(),
        "cpu_seconds": found.costs["cpu_seconds"].sum(),
        "gpu_seconds": found.costs["gpu_seconds"].sum(),
        "without_timing": found.costs.filter(found.costs["cpu_seconds"].is_null())["table"].to_list(),
        "flips": flips.to_dicts(),
        "models_not_fetched": not_fetched(facts),
    }
    if json:
        told["stale"] = {
            row["table"]: [[shard, why] for shard, why in found.partitions(row["table"])]
            for row in found.costs.to_dicts()
            if row["stale"]
        }
        typer.echo(json_format.dumps(told, indent=1))
        return
    _show(told)


def with_policy(facts: list[TableFacts], policy: Policy) -> list[TableFacts]:
    """The facts, had the policy changed. Raises ValueError where it reads a table that the pool does not make."""
    cut, read = f"filtered/{policy.name}_cut", tuple(one.replace(".", "/") for one in policy.references)
    unknown = sorted(set(read) - {one.name for one in facts})
    if unknown:
        raise ValueError(f"the pool has no tables {unknown}; it has {', '.join(one.name for one in facts)}")
    base = ("raw/samples", DUPLICATES, *read)
    inputs = {cut: base, f"filtered/{policy.name}": (*base, cut)}
    changed = {one.name: one for one in facts}
    for name, names in inputs.items():
        changed[name] = replace(changed[name], code_version=policy.version, inputs=names)
    graph = {name: [one for one in fact.inputs if one in changed] for name, fact in changed.items()}
    return [changed[name] for name in TopologicalSorter(graph).static_order()]


def _shards(shards: list[str], pool: str, added: int, removed: list[str]) -> list[str]:
    unknown = sorted(set(removed) - set(shards))
    if unknown:
        raise ValueError(f"pool {pool!r} has no shards {unknown[:5]}; it has {len(shards)}, such as {shards[:3]}")
    first = max((int(key.rsplit("-", 1)[1]) for key in shards), default=-1) + 1
    return [key for key in shards if key not in removed] + [shard_key(pool, first + n) for n in range(added)]


def _show(told: dict[str, Any]) -> None:
    stale = [row for row in told["tables"] if row["stale"]]
    if not stale:
        console.print(f"Pool {told['pool']}, {told['shards']} shards: everything is up to date.", highlight=False)
    else:
        table = Table(title=f"Stale in pool {told['pool']}, {told['shards']} shards", title_justify="left", box=None)
        for heading in ("table", "partitions", "rows", "CPU s", "GPU s", "why"):
            table.add_column(heading, justify="left" if heading in ("table", "why") else "right")
        for row in stale:
            seconds = ["?" if row[name] is None else f"{row[name]:,.1f}" for name in ("cpu_seconds", "gpu_seconds")]
            why = ", ".join(f"{reason} {row[reason]:,}" for reason in REASONS if row[reason])
            table.add_row(row["table"], f"{row['stale']:,} of {row['partitions']:,}", f"{row['rows']:,}", *seconds, why)
        console.print(table)
        console.print(
            f"About {told['cpu_seconds']:,.0f} CPU s and {told['gpu_seconds']:,.0f} GPU s, from recorded timings"
            + (f"; no timing yet of {', '.join(told['without_timing'])}" if told["without_timing"] else ""),
            highlight=False,
        )
    absent = told["models_not_fetched"]
    if absent:
        console.print(f"[yellow]warning[/] models of {len(absent)} tables are not on this disk and count as changed:")
        for reason in dict.fromkeys(absent.values()):
            tables = ", ".join(name for name, why in absent.items() if why == reason)
            console.print(f"  {tables}: {escape(reason)}", highlight=False, soft_wrap=True)
    for row in told["flips"]:
        what = (
            f"{row['flips']:,} verdicts flip"
            if row["flips"] is not None
            else ("–" if row["at_most"] is None else f"at most {row['at_most']:,} verdicts flip")
        )
        console.print(f"  {row['policy']:<16} {what}{'; ' + row['note'] if row['note'] else ''}", highlight=False)
