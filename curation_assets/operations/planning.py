"""curate run --dry-run: what a run would make again, and what that costs, before anything runs.

Every step is one operation on arrays over all shards; no partition is asked by itself.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from curation_assets.audit.index import Index, StoredTable
from curation_assets.core.errors import ModelUnavailableError
from curation_assets.flow.context import PoolContext
from curation_assets.flow.freshness import code_behind_digest, config_of
from curation_assets.flow.table import Table
from curation_assets.selection.cut import cut_of_frame
from curation_assets.selection.judging import judge
from curation_assets.selection.policy import Policy
from curation_assets.selection.rows import STATES, PoolRows
from curation_assets.stores.content_hash import config_sha256
from curation_assets.stores.manifest import model_records

#: Why a partition is stale, the first that holds.
REASONS = ("missing", "code", "model", "settings", "input changed", "upstream")
MISSING, CODE, MODEL, SETTINGS, INPUT, UPSTREAM = range(6)
_REMADE = (CODE, MODEL, SETTINGS)
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


@dataclass(frozen=True)
class Plan:
    """Stale partitions of every table, in flow order."""

    shards: list[str]
    reasons: dict[str, np.ndarray]  # table → (S,) or (1,) int8, index into REASONS, -1: up to date
    rows: dict[str, np.ndarray]  # table → (S,) or (1,): rows of each partition, as stored or to be expected
    costs: pl.DataFrame  # per table: partitions, stale, rows, cpu_seconds, gpu_seconds, and one count per reason

    def partitions(self, table: str, limit: int | None = None) -> list[tuple[str | None, str]]:
        """(shard, reason) of a table's stale partitions."""
        codes = self.reasons[table]
        places = np.flatnonzero(codes >= 0)[:limit]
        is_pool = len(codes) == 1 and table in _pool_tables(self)
        return [(None if is_pool else self.shards[at], REASONS[codes[at]]) for at in places]


def _pool_tables(plan: Plan) -> set[str]:
    return set(plan.costs.filter(pl.col("grain") == "pool")["table"])


def facts_of(ctx: PoolContext, tables: Mapping[str, Table], code_changed: Sequence[str] = ()) -> list[TableFacts]:
    """What every table of a pool would be made of now. `code_changed`: tables to treat as if their code had changed.

    Sources of shards are not read: a changed source shows when it is registered. Raises ValueError for unknown tables.
    """
    unknown = sorted(set(code_changed) - set(tables))
    if unknown:
        raise ValueError(f"no tables {unknown}; known: {', '.join(tables)}")
    return [
        TableFacts(
            name=name,
            is_per_shard=table.grain == "shard",
            inputs=table.inputs,
            code_version=f"{table.version}, changed" if name in code_changed else table.version,
            models=_models(ctx, table),
            config=None if name == "raw/registered_shards" else config_of(ctx, table, None),
            is_frozen=table.is_frozen,
            uses_gpu=bool(table.roles) and ctx.profile.device != "cpu",
        )
        for name, table in tables.items()
    ]


def _models(ctx: PoolContext, table: Table) -> str | None:
    address = ctx.profile.roles.get("student", "")
    own = "distilled/" + address.removeprefix("pool:") if address.startswith("pool:") else None
    if "student" in table.roles and own is not None and ctx.store.manifest(own) is None:
        return None
    try:
        identities = ctx.identities(table.roles)
    except ModelUnavailableError as error:  # a profile's weights are fetched when they are needed: no plan waits for it
        return json.dumps([{NOT_FETCHED: str(error)}])
    return json.dumps([dict(one) for one in model_records(identities)], sort_keys=True)


def not_fetched(facts: Sequence[TableFacts]) -> dict[str, str]:
    """Tables whose models are not on this disk, and why; a plan takes these models for changed ones."""
    told = {one.name: json.loads(one.models or "[]") for one in facts}
    return {name: models[0][NOT_FETCHED] for name, models in told.items() if models and NOT_FETCHED in models[0]}


def make_plan(facts: Sequence[TableFacts], index: Index) -> Plan:
    """Which partitions a run would make again. `facts` in flow order."""
    size = len(index.shards)
    grain = {one.name: one.is_per_shard for one in facts}
    reasons: dict[str, np.ndarray] = {}
    stale_of: dict[str, np.ndarray] = {}
    remade_of: dict[str, np.ndarray] = {}  # because code, models or settings of it, or of what it rests on, changed
    rows_of: dict[str, np.ndarray] = {}
    told = []
    for one in facts:
        n = size if one.is_per_shard else 1
        stored = index.tables.get(one.name)
        code = np.full(n, -1, dtype=np.int8)
        upstream, remade = (_any_input(one, found, grain, n) for found in (stale_of, remade_of))
        if stored is None or len(stored.is_there) != n:
            stored = None
            code[:] = MISSING
        else:
            if one.is_frozen:  # rows that come, change or go are no reason
                code[remade] = UPSTREAM
            else:
                code[upstream] = UPSTREAM
                code[_changed_inputs(one, stored, index, grain)] = INPUT
            config = _config_hash(one, index)
            if config is not None and not remade.any():
                code[stored.differs("config_hash", config)] = SETTINGS
            if one.models is not None:
                code[stored.differs("models", one.models)] = MODEL
            code[stored.differs("code_version", one.code_version)] = CODE
            code[~stored.is_there] = MISSING
        reasons[one.name] = code
        stale_of[one.name] = code >= 0
        remade_of[one.name] = remade | np.isin(code, _REMADE)
        rows_of[one.name] = _rows(one, stored, rows_of, grain, n)
        told.append(_cost(one, stored, code, rows_of[one.name]))
    return Plan(index.shards, reasons, rows_of, pl.DataFrame(told, infer_schema_length=None))


def _any_input(one: TableFacts, found: Mapping[str, np.ndarray], grain: Mapping[str, bool], n: int) -> np.ndarray:
    """(n,) whether something holds of any partition that each partition reads."""
    result = np.zeros(n, dtype=bool)
    for name in one.inputs:
        result |= found[name] if one.is_per_shard and grain[name] else found[name].any()
    return result


def _changed_inputs(one: TableFacts, stored: StoredTable, index: Index, grain: Mapping[str, bool]) -> np.ndarray:
    """(n,) stored partitions that were made from other contents than are stored now, or from other shards."""
    changed = np.zeros(len(stored.is_there), dtype=bool)
    for name in one.inputs:
        now = index.tables.get(name)
        if now is None:
            continue
        contents, counts = stored.inputs.get(name, (np.zeros(1, np.uint64), np.zeros(1, np.int64)))
        if one.is_per_shard and grain[name]:
            changed |= contents != now.content
        else:
            there = now.content[now.is_there]
            changed |= (contents != there.sum(dtype=np.uint64)) | (counts != len(there))
    return changed & stored.is_there


def _config_hash(one: TableFacts, index: Index) -> str | None:
    if one.config is None:
        return None
    if not one.is_frozen:
        return config_sha256(one.config)
    waiting, behind = list(one.inputs), dict[str, list[str]]()
    while waiting:
        name = waiting.pop()
        table = index.tables.get(name)
        if table is None or name in behind:
            continue
        made = _distinct(table.code_version, table.config_hash, table.models, where=table.is_there)
        texts = {column: words.texts for column, words in table.words.items()}
        behind[name] = [
            json.dumps(
                [texts["code_version"][code], texts["config_hash"][config], json.loads(texts["models"][models])],
                sort_keys=True,
            )
            for code, config, models in made
        ]
        waiting += table.inputs
    return config_sha256({**one.config, "behind": code_behind_digest(behind)})


def _distinct(*columns: np.ndarray, where: np.ndarray) -> list[tuple[int, ...]]:
    """Different combinations of codes (each ≥ 0) in the rows chosen."""
    sizes = [int(column.max(initial=0)) + 1 for column in columns]
    found = np.unique(np.ravel_multi_index([column[where] for column in columns], sizes))
    return [tuple(int(code) for code in one) for one in zip(*np.unravel_index(found, sizes), strict=True)]


def _rows(
    one: TableFacts, stored: StoredTable | None, rows_of: Mapping[str, np.ndarray], grain: Mapping[str, bool], n: int
) -> np.ndarray:
    """(n,) rows that each partition has or, where it is missing, will have: as many as its first input, or the mean."""
    rows = np.zeros(n)
    if stored is not None:
        rows[:] = stored.row_count
        if stored.is_there.all():
            return rows
    is_missing = np.ones(n, dtype=bool) if stored is None else ~stored.is_there
    first = next((rows_of[name] for name in one.inputs if grain[name] == one.is_per_shard), None)
    guess = rows[~is_missing].mean() if stored is not None and stored.is_there.any() else 0.0
    rows[is_missing] = first[is_missing] if first is not None and stored is None else guess
    return rows


def _cost(one: TableFacts, stored: StoredTable | None, code: np.ndarray, rows: np.ndarray) -> dict[str, Any]:
    """One row of `Plan.costs`. Seconds follow from recorded ones; null where none were recorded."""
    stale = code >= 0
    seconds = None
    if stored is not None and stored.is_there.any():
        recorded = stored.row_count[stored.is_there].sum()
        per_row = stored.seconds[stored.is_there].sum() / max(int(recorded), 1)
        seconds = float(per_row * rows[stale].sum())
    elif not stale.any():
        seconds = 0.0
    return {
        "table": one.name,
        "grain": "shard" if one.is_per_shard else "pool",
        "partitions": len(code),
        "stale": int(stale.sum()),
        "rows": int(rows[stale].sum()),
        "cpu_seconds": 0.0 if one.uses_gpu else seconds,
        "gpu_seconds": seconds if one.uses_gpu else 0.0,
        **{reason: int((code == number).sum()) for number, reason in enumerate(REASONS)},
    }


# -- verdicts ---------------------------------------------------------------------------------------------------------


def verdict_flips(ctx: PoolContext, plan: Plan, policies: Sequence[Policy]) -> pl.DataFrame:
    """One row per policy: how many verdicts a run would flip, or may flip.

    `exact`: the values stay, so that the cut alone decides (a changed policy, or none). `at_most`: rows whose values
    would be computed again; what they will be, only the run can say.
    """
    rows: PoolRows | None = None
    told: list[dict[str, object]] = []
    for policy in policies:
        name, at_most, exact = f"filtered/{policy.name}", 0, 0
        inputs = [reference.replace(".", "/") for reference in policy.references]
        recomputed = [plan.reasons[one] for one in ("raw/samples", *inputs) if one in plan.reasons]
        stale = np.zeros(len(plan.shards), dtype=bool)
        for codes in recomputed:
            stale |= (codes >= 0) & (codes != MISSING)
        if not ctx.store.partitions(name):
            told.append({"policy": policy.name, "flips": None, "at_most": None, "note": "has not run yet"})
            continue
        if stale.any():
            at_most = int(plan.rows[name][stale].sum())
            told.append({"policy": policy.name, "flips": None, "at_most": at_most, "note": "values are computed again"})
            continue
        before = cut_of_frame(ctx.store.read(f"{name}_cut"))
        if (before.policy_version, before.policy) != (policy.version, policy.name):
            rows = rows or PoolRows.read(ctx.store)
            after = judge(policy, rows).verdict
            kept = ctx.store.scan(name).select("sample_id", "shard", "source_row", "verdict").collect()
            verdicts = kept["verdict"].cast(pl.Enum(STATES)).to_physical().cast(pl.Int8)
            order = kept.select(pl.arg_sort_by("sample_id", "shard", "source_row")).to_series()
            exact = int((verdicts[order].to_numpy() != after).sum())
        told.append({"policy": policy.name, "flips": exact, "at_most": exact, "note": ""})
    schema = {"policy": pl.String, "flips": pl.Int64, "at_most": pl.Int64, "note": pl.String}
    return pl.DataFrame(told, schema=schema)
