"""Whether a table is up to date, and bringing it up to date: what its content depends on, hashed."""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from curation_assets.core.table_names import DOWNLOADS, REGISTERED_SHARDS
from curation_assets.flow.context import PoolContext
from curation_assets.flow.table import Folder, Table, Tables, key_of
from curation_assets.stores.content_hash import config_sha256, with_file_hashes
from curation_assets.stores.manifest import model_records
from curation_assets.stores.shard_store import Materialised, OvertakenError


def is_up_to_date(ctx: PoolContext, table: Table, shard: str | None = None, *, tables: Tables) -> bool:
    """Whether `materialise_table` would reuse what is there."""
    return ctx.store.is_fresh(table.name, shard, **_made_from(ctx, table, shard, tables))


def materialise_table(ctx: PoolContext, table: Table, shard: str | None = None, *, tables: Tables) -> Materialised:
    """Bring one table (of one shard) up to date, reusing what is there when nothing it depends on changed.

    Where another process stores the table meanwhile, what it rests on is looked at again: its inputs may be newer.
    """
    while True:
        made_from, facts = _made_from(ctx, table, shard, tables), _facts(ctx, table, shard)
        if table.is_frozen:
            _keep_fit(ctx, table, made_from, facts, tables)
        try:
            if isinstance(table.compute, Folder):
                write = partial(table.compute.write, ctx)
                return ctx.store.materialise_folder(table.name, write, run_id=ctx.run_id, **made_from)
            return ctx.store.materialise(
                table.name,
                partial(table.compute, ctx, *key_of(shard)),
                partition=shard,
                run_id=ctx.run_id,
                facts=facts,
                changes=table.changes,
                **made_from,
            )
        except OvertakenError:
            continue


def warnings_of(ctx: PoolContext, table: Table) -> list[str]:
    """What a materialised table itself wants a person to read."""
    column = table.shown.warning_column
    if column is None:
        return []
    return ctx.store.read(table.name)[column].drop_nulls().to_list()


def _made_from(ctx: PoolContext, table: Table, shard: str | None, tables: Tables) -> dict[str, Any]:
    """Everything that decides a table's content: code version, inputs, models, settings."""
    if (shard is None) != (table.grain == "pool"):
        raise ValueError(f"{table.name} has grain {table.grain!r}; got shard {shard!r}")
    inputs: list[tuple[str, str | None]] = []
    read: Sequence[tuple[str, str | None]] = [(name, shard) for name in table.inputs]
    if table.trainings is not None and table.trainings.inputs is not None and shard is not None:
        read = table.trainings.inputs(ctx, shard)
    for name, key in read:
        grain = tables[name].grain
        if grain == "pool":
            inputs.append((name, None))
        elif grain == table.grain:
            inputs.append((name, key))
        elif grain == "training":
            inputs.extend((name, key) for key in tables[name].keys)
        else:
            inputs.extend((name, key) for key in ctx.store.partitions(name))
    config = config_of(ctx, table, shard)
    if table.is_frozen:
        config["behind"] = _upstream_code(ctx, table)
    return {
        "code_version": table.version,
        "inputs": inputs,
        "models": ctx.identities(table.needs.roles),
        "config": config,
        "is_frozen": table.is_frozen,
    }


def _facts(ctx: PoolContext, table: Table, shard: str | None) -> dict[str, Any]:
    """What a manifest states beside (Manifest.facts); of a frozen fit its settings, apart from what is behind it."""
    if table.is_frozen and table.config is not None:
        return {"settings": config_sha256(config_of(ctx, table, shard))}
    return dict(table.facts(ctx)) if table.facts else {}


def config_of(ctx: PoolContext, table: Table, shard: str | None) -> dict[str, Any]:
    """Settings that decide a table's content, as its manifest hashes them. Raises OSError for a file that is absent."""
    own = table.config_by_key(ctx, shard) if table.config_by_key else None
    config = {
        "table": table.config(ctx) if table.config else own,
        "method": ctx.method_config(table.name.split("/")[1]),
        "generation": {role: dict(ctx.profile.generation.get(role, {})) for role in table.needs.roles},
    }
    return with_file_hashes(config)


def _keep_fit(
    ctx: PoolContext,
    table: Table,
    made_from: Mapping[str, Any],
    facts: Mapping[str, Any],
    tables: Tables,
) -> None:
    """Store a frozen fit as made by today's code where only what is behind it is other code, and every value that it
    was fitted on is as it was when it was last applied: a fit moves only where its values did.
    """
    fit = ctx.store.manifest(table.name)
    if fit is None or ctx.store.is_fresh(table.name, **made_from):
        return
    if table.config is not None and dict(fit.facts) != dict(facts):  # other settings, or those of a version before 0.4
        return
    own = (fit.code_version, tuple(map(dict, fit.models)))
    if own != (made_from["code_version"], model_records(made_from["models"])):
        return
    values = fit.contents_read
    appliers = [one.name for one in tables.values() if table.name in one.inputs and one.grain == "shard"]
    applied = [ctx.store.manifest(name, shard) for name in appliers for shard in ctx.store.partitions(name)]
    for manifest in (one for one in applied if one is not None):  # a row may have been taken down since the fit
        values |= {key: content for key, content in manifest.contents_read.items() if key in values}
    if any(ctx.store.content(*key) != content for key, content in values.items()):
        return
    ctx.store.write(
        table.name,
        ctx.store.read(table.name),
        code_version=fit.code_version,
        inputs=fit.inputs,
        models=made_from["models"],
        config=made_from["config"],
        run_id=ctx.run_id,
        facts=facts,
    )


def _upstream_code(ctx: PoolContext, table: Table) -> str:
    """Hash over code, settings and models of everything stored that a fit rests on: when they change, so does the fit.

    Rows that come, change or go are no part of it, so the registered rows (whose settings are their source) are not.
    """
    waiting, upstream = list(table.inputs), dict[str, set[str]]()
    while waiting:
        asset = waiting.pop()
        if asset in upstream:
            continue
        upstream[asset] = set()
        keys: list[str | None] = [*ctx.store.partitions(asset)]
        for key in keys or [None]:
            if (manifest := ctx.store.manifest(asset, key)) is not None:
                made_by = [manifest.code_version, manifest.config_hash, [dict(model) for model in manifest.models]]
                upstream[asset].add(json.dumps(made_by, sort_keys=True))
                waiting += {read.asset for read in manifest.inputs}
    return upstream_code_digest(upstream)


#: Table → how the JSON of a version begins that only added columns which no fit reads, and of the version before it:
#: what was fitted before stays frozen.
_SAME_VALUES: Mapping[str, tuple[str, str]] = {DOWNLOADS: ('["2"', '["1"')}


def upstream_code_digest(upstream: Mapping[str, Iterable[str]]) -> str:
    """`upstream`: table → the different (code version, settings, models) of its partitions, as JSON."""
    versions = {}
    for name, made in upstream.items():
        if name != REGISTERED_SHARDS:
            now, before = _SAME_VALUES.get(name, ("", ""))
            versions[name] = sorted({one.replace(now, before, 1) for one in made})  # half a pool may be of either
    return config_sha256(versions)
