"""curate plan: what a run would make again, and what that costs, before anything runs.

Every step is one operation on arrays over all shards; no partition is looked up by itself.
"""

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from curation_assets.audit.diff import judged_side
from curation_assets.audit.index import Index, StoredTable
from curation_assets.core.errors import ModelUnavailableError
from curation_assets.core.table_names import REGISTERED_SHARDS, SAMPLES
from curation_assets.engines.presence import Part, parts_of
from curation_assets.flow.context import PoolContext
from curation_assets.flow.freshness import config_of, is_up_to_date, upstream_code_digest
from curation_assets.flow.table import Table, Tables
from curation_assets.selection.cut import cut_of_frame
from curation_assets.selection.policy import Policy
from curation_assets.selection.rows import ROW_KEY, Pool
from curation_assets.stores.content_hash import config_sha256
from curation_assets.stores.manifest import DIFFERENCES, differences, model_records

#: Why a partition is stale, the first that holds.
REASONS = ("missing", *DIFFERENCES, "upstream")
MISSING, CODE, MODEL, SETTINGS, INPUT, UPSTREAM = range(6)
#: Stale because somebody changed something, not because rows came or went.
BY_A_PERSON = (CODE, MODEL, SETTINGS)
NOT_FETCHED = "not_fetched"  # in the models of a table: why they are not known


@dataclass(frozen=True)
class TableFacts:
    """What a table would be made of now."""

    name: str
    is_per_shard: bool
    inputs: tuple[str, ...]
    code_version: str
    models: str | None  # JSON, as the index has it; None: not there yet (a student to be distilled), not compared
    config: Mapping[str, Any] | None  # None: not compared
    is_frozen: bool = False
    uses_gpu: bool = False
    training_keys: tuple[str, ...] = ()  # partitions of a table of grain 'training'
    changed_sources: frozenset[str] = frozenset()  # shards whose source is not what was registered
    own_configs: Mapping[str, str] | None = None  # shard → hash of settings of its own; None: all shards have `config`

    @property
    def grain(self) -> str:
        """As the table's: 'shard', 'pool' or 'training'."""
        if self.is_per_shard:
            return "shard"
        return "training" if self.training_keys else "pool"

    def count(self, shards: int) -> int:
        """Partitions in a pool of so many shards."""
        return {"shard": shards, "pool": 1, "training": len(self.training_keys)}[self.grain]


@dataclass(frozen=True)
class Plan:
    """Stale partitions of every table, in flow order."""

    shards: list[str]
    reasons: dict[str, np.ndarray]  # table → (S,) or (1,) int8, index into REASONS, -1: up to date
    rows: dict[str, np.ndarray]  # table → (S,) or (1,): rows of each partition, as stored or to be expected
    # Per table: partitions, stale, rows and cpu_seconds, gpu_seconds (null where not known), and one count per reason.
    costs: pl.DataFrame
    training_keys: Mapping[str, Sequence[str]]  # of tables whose partitions are no shards
    outdated_fits: Sequence[str] = ()  # frozen tables that stay as they are although what they read is another

    def partitions(self, table: str) -> list[tuple[str | None, str]]:
        """(key, reason) of a table's stale partitions."""
        codes = self.reasons[table]
        is_pool = len(codes) == 1 and table in set(self.costs.filter(pl.col("grain") == "pool")["table"])
        keys = self.training_keys.get(table, self.shards)
        return [(None if is_pool else keys[at], REASONS[codes[at]]) for at in np.flatnonzero(codes >= 0).tolist()]


def facts_of(
    ctx: PoolContext, tables: Tables, code_changed: Sequence[str] = (), *, compare_sources: bool = True
) -> list[TableFacts]:
    """What every table of a pool would be made of now. `code_changed`: tables to treat as if their code had changed.

    `compare_sources` False: sources are not looked at, so a changed one shows when a run registers it. Raises
    ValueError for unknown tables.
    """
    unknown = sorted(set(code_changed) - set(tables))
    if unknown:
        raise ValueError(f"no tables {unknown}; known: {', '.join(tables)}")
    role_parts = functools.cache(lambda role: tuple(parts_of(role, ctx.profile, ctx.pool_models)))
    return [
        TableFacts(
            name=name,
            is_per_shard=table.grain == "shard",
            inputs=table.inputs,
            code_version=f"{table.version}, changed" if name in code_changed else table.version,
            models=_models(ctx, table, role_parts),
            config=None if name == REGISTERED_SHARDS else _config(ctx, table),
            own_configs=_own_configs(ctx, table),
            is_frozen=table.is_frozen,
            training_keys=table.keys,
            uses_gpu=bool(table.needs.roles) and ctx.profile.device != "cpu",
            changed_sources=_changed_sources(ctx, tables)
            if compare_sources and name == REGISTERED_SHARDS
            else frozenset(),
        )
        for name, table in tables.items()
    ]


def _changed_sources(ctx: PoolContext, tables: Tables) -> frozenset[str]:
    stored = set(ctx.store.partitions(REGISTERED_SHARDS)).intersection(ctx.shards())
    return frozenset(key for key in stored if not is_up_to_date(ctx, tables[REGISTERED_SHARDS], key, tables=tables))


def _config(ctx: PoolContext, table: Table) -> dict[str, Any] | None:
    """Settings of a table; None where they are hashes of models, or of files of its options, that are not here."""
    try:
        return config_of(ctx, table, None)
    except ModelUnavailableError:
        return None
    except FileNotFoundError:
        if table.stage == "raw":  # the source itself
            raise
        return None


def _own_configs(ctx: PoolContext, table: Table) -> dict[str, str] | None:
    """Shard → hash of the settings that are its own; None of a table whose shards have the same."""
    if table.own_configs is None:
        return None
    return {shard: config_sha256(config_of(ctx, table, shard)) for shard in table.own_configs(ctx)}


def _models(ctx: PoolContext, table: Table, role_parts: Callable[[str], Sequence[Part]]) -> str | None:
    if any(ctx.store.manifest(name) is None for name in ctx.distilled(table.needs.roles)):
        return None
    parts = [part for role in table.needs.roles for part in role_parts(role)]
    if any(part.state == "made" for part in parts):
        return None
    absent = [part for part in parts if part.state != "here"]
    if absent:  # nothing is asked of a network
        reasons = [part.advice or f"{part.address} is not on this disk" for part in absent]
        return json.dumps([{NOT_FETCHED: "; ".join(dict.fromkeys(reasons))}])
    try:
        identities = ctx.identities(table.needs.roles)
    except ModelUnavailableError as error:  # a profile's weights are fetched when they are needed: no plan waits for it
        return json.dumps([{NOT_FETCHED: str(error)}])
    return json.dumps([dict(record) for record in model_records(identities)], sort_keys=True)


def not_fetched(facts: Sequence[TableFacts]) -> dict[str, str]:
    """Tables whose models are not on this disk, and why; a plan takes these models for changed ones."""
    models_of = {table.name: json.loads(table.models or "[]") for table in facts}
    return {name: models[0][NOT_FETCHED] for name, models in models_of.items() if models and NOT_FETCHED in models[0]}


def make_plan(facts: Sequence[TableFacts], index: Index, expected: float = np.nan) -> Plan:
    """Which partitions a run would make again. `facts` in flow order; `expected`: rows of a shard before the first run,
    where they are known.
    """
    size = len(index.shards)
    grain = {table.name: table.grain for table in facts}
    reasons: dict[str, np.ndarray] = {}
    stale_of: dict[str, np.ndarray] = {}
    remade_of: dict[str, np.ndarray] = {}  # because code, models or settings of it, or of what it rests on, changed
    rows_of: dict[str, np.ndarray] = {}
    costs, outdated = [], []
    for table in facts:
        n = table.count(size)
        stored = index.tables.get(table.name)
        code = np.full(n, -1, dtype=np.int8)
        upstream, remade = (_any_input(table, flags, grain, n) for flags in (stale_of, remade_of))
        if stored is None or len(stored.is_stored) != n:
            stored = None
            code[:] = MISSING
        else:
            changed = _changed_inputs(table, stored, index, grain) | _changed_settings(table, stored, index)
            recorded = (stored.code_version, stored.models, stored.config_hash, changed)
            code[remade if table.is_frozen else upstream] = UPSTREAM
            for reason, is_other in reversed(differences(recorded, _wanted(table, stored, index, remade)).items()):
                code[is_other & stored.is_stored] = REASONS.index(reason)
            code[~stored.is_stored] = MISSING
            is_other = upstream.any() or changed.any()
            if table.is_frozen and is_other and (code < 0).all():
                outdated.append(table.name)
        reasons[table.name] = code
        stale_of[table.name] = code >= 0
        remade_of[table.name] = remade | np.isin(code, BY_A_PERSON)
        rows_of[table.name] = _rows(table, stored, rows_of, grain, n, expected)
        costs.append(_cost(table, stored, code, rows_of[table.name]))
    may_be_null = {"rows": pl.Int64, "cpu_seconds": pl.Float64, "gpu_seconds": pl.Float64}  # in all rows, too
    table_of_costs = pl.DataFrame(costs, schema_overrides=may_be_null)
    return Plan(index.shards, reasons, rows_of, table_of_costs, trainings_of(facts), outdated)


def _wanted(table: TableFacts, stored: StoredTable, index: Index, remade: np.ndarray) -> tuple[Any, ...]:
    """What the recorded codes of a table are compared with. Rows that come, change or go are no reason to make a frozen
    one again; what it rests on is in its settings, which nobody knows before that is made.
    """
    config = None if remade.any() or table.own_configs is not None else _config_hash(table, index)
    codes = (
        None if word is None else stored.words[column].code_of.get(word, -2)
        for column, word in (("code_version", table.code_version), ("models", table.models), ("config_hash", config))
    )
    return (*codes, None if table.is_frozen else False)


def trainings_of(facts: Iterable[TableFacts]) -> dict[str, tuple[str, ...]]:
    """Tables whose partitions are no shards → their keys, as `Index.read` takes them."""
    return {table.name: table.training_keys for table in facts if table.training_keys}


def _any_input(table: TableFacts, flags: Mapping[str, np.ndarray], grain: Mapping[str, str], n: int) -> np.ndarray:
    """(n,) whether something holds of any partition that each partition reads."""
    result = np.zeros(n, dtype=bool)
    for name in table.inputs:
        result |= flags[name] if grain[name] == table.grain else flags[name].any()
    return result


def _changed_inputs(table: TableFacts, stored: StoredTable, index: Index, grain: Mapping[str, str]) -> np.ndarray:
    """(n,) stored partitions that were made from other contents than are stored now, from other shards, or from a
    source that has changed."""
    changed = np.isin(index.shards, list(table.changed_sources)) if table.changed_sources else np.False_
    changed = changed & stored.is_stored
    for name in table.inputs:
        now = index.tables.get(name)
        if now is None:
            continue
        contents, counts = stored.inputs.get(name, (np.zeros(1, np.uint64), np.zeros(1, np.int64)))
        is_read = counts > 0 if table.training_keys else np.ones_like(changed)  # a training reads one policy's tables
        if grain[name] == table.grain and table.grain != "pool":
            changed |= (contents != now.content) & is_read
        else:
            contents_now = now.content[now.is_stored]
            changed |= ((contents != contents_now.sum(dtype=np.uint64)) | (counts != len(contents_now))) & is_read
    return changed & stored.is_stored


def _changed_settings(table: TableFacts, stored: StoredTable, index: Index) -> np.ndarray:
    """(n,) stored partitions whose own settings are others: what each reads of a table of the whole pool."""
    if table.own_configs is None or table.config is None:
        return np.zeros(len(stored.is_stored), dtype=bool)
    code_of = stored.words["config_hash"].code_of
    wanted = np.full(len(stored.is_stored), code_of.get(config_sha256(table.config), -2))
    for at in np.flatnonzero(np.isin(index.shards, list(table.own_configs))):
        wanted[at] = code_of.get(table.own_configs[index.shards[at]], -2)
    return (stored.config_hash != wanted) & stored.is_stored


def _config_hash(facts: TableFacts, index: Index) -> str | None:
    if facts.config is None:
        return None
    if not facts.is_frozen:
        return config_sha256(facts.config)
    waiting, upstream = list(facts.inputs), dict[str, list[str]]()
    while waiting:
        name = waiting.pop()
        table = index.tables.get(name)
        if table is None or name in upstream:
            continue
        made = _distinct(table.code_version, table.config_hash, table.models, where=table.is_stored)
        texts = {column: words.texts for column, words in table.words.items()}
        upstream[name] = [
            json.dumps(
                [texts["code_version"][code], texts["config_hash"][config], json.loads(texts["models"][models])],
                sort_keys=True,
            )
            for code, config, models in made
        ]
        waiting += table.inputs
    return config_sha256({**facts.config, "behind": upstream_code_digest(upstream)})


def _distinct(*columns: np.ndarray, where: np.ndarray) -> list[tuple[int, ...]]:
    """Different combinations of codes (each ≥ 0) in the rows chosen."""
    sizes = [int(column.max(initial=0)) + 1 for column in columns]
    combinations = np.unique(np.ravel_multi_index([column[where] for column in columns], sizes))
    return [tuple(int(code) for code in codes) for codes in zip(*np.unravel_index(combinations, sizes), strict=True)]


def _rows(
    table: TableFacts,
    stored: StoredTable | None,
    rows_of: Mapping[str, np.ndarray],
    grain: Mapping[str, str],
    n: int,
    expected: float,
) -> np.ndarray:
    """(n,) rows that each partition has or, where it is missing, will have: as many as its first input, or the mean.

    NaN where nothing tells: of the whole pool before the first run.
    """
    rows = np.zeros(n)
    if stored is not None:
        rows[:] = stored.row_count
        if stored.is_stored.all():
            return rows
    is_missing = np.ones(n, dtype=bool) if stored is None else ~stored.is_stored
    first = next((rows_of[name] for name in table.inputs if grain[name] == table.grain), None)
    unknown = expected if table.name == REGISTERED_SHARDS else np.nan
    guess = rows[~is_missing].mean() if stored is not None and stored.is_stored.any() else unknown
    rows[is_missing] = first[is_missing] if first is not None and stored is None else guess
    return rows


def _cost(table: TableFacts, stored: StoredTable | None, code: np.ndarray, rows: np.ndarray) -> dict[str, Any]:
    """One row of `Plan.costs`. Seconds follow from recorded ones. What nothing tells is null."""
    stale = code >= 0
    seconds, stale_rows = None, rows[stale].sum()
    if stored is not None and stored.is_stored.any():
        recorded = stored.row_count[stored.is_stored].sum()
        per_row = stored.seconds[stored.is_stored].sum() / max(int(recorded), 1)
        seconds = float(per_row * stale_rows)
    elif not stale.any():
        seconds = 0.0
    return {
        "table": table.name,
        "grain": table.grain,
        "partitions": len(code),
        "stale": int(stale.sum()),
        "rows": None if np.isnan(stale_rows) else int(stale_rows),
        "cpu_seconds": 0.0 if table.uses_gpu else seconds,
        "gpu_seconds": seconds if table.uses_gpu else 0.0,
        **{reason: int((code == number).sum()) for number, reason in enumerate(REASONS)},
    }


# -- verdicts ---------------------------------------------------------------------------------------------------------


def verdict_flips(ctx: PoolContext, plan: Plan, policies: Sequence[Policy]) -> pl.DataFrame:
    """One row per policy: how many verdicts a run would flip, or may flip.

    `exact`: the values stay, so that the cut alone decides (a changed policy, or none). `at_most`: rows whose values
    would be computed again; what they will be, only the run shows.
    """
    records: list[dict[str, object]] = []
    for policy in policies:
        name, at_most, exact = f"filtered/{policy.name}", 0, 0
        recomputed = [plan.reasons[table] for table in (SAMPLES, *policy.tables) if table in plan.reasons]
        stale = np.zeros(len(plan.shards), dtype=bool)
        for codes in recomputed:
            stale |= (codes >= 0) & (codes != MISSING)
        if not ctx.store.partitions(name):
            records.append({"policy": policy.name, "flips": None, "at_most": None, "note": "has not run yet"})
            continue
        if stale.any():
            at_most = int(plan.rows[name][stale].sum())
            records.append(
                {"policy": policy.name, "flips": None, "at_most": at_most, "note": "values are computed again"}
            )
            continue
        before = cut_of_frame(ctx.store.read(f"{name}_cut"))
        if (before.policy_version, before.policy) != (policy.version, policy.name):
            exact = _flips(ctx, name, policy)
        records.append({"policy": policy.name, "flips": exact, "at_most": exact, "note": ""})
    schema = {"policy": pl.String, "flips": pl.Int64, "at_most": pl.Int64, "note": pl.String}
    return pl.DataFrame(records, schema=schema)


def _flips(ctx: PoolContext, table: str, policy: Policy) -> int:
    """How many rows have another verdict in their table than by a cut fitted now. New shards have none."""
    flips, pool, there = 0, Pool(ctx.store, ctx.progress), set(ctx.store.partitions(table))
    side = judged_side(pool, policy)
    for group in pool.groups():
        judged = [shard for shard in group if shard in there]
        if judged:
            columns = [*ROW_KEY, "verdict"]
            before = ctx.store.scan(table, judged).select(columns).collect()
            both = side.read(judged, columns).join(before, on=ROW_KEY, suffix="_before")
            flips += int((both["verdict"] != both["verdict_before"]).sum())
    return flips
