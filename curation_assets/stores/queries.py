"""One SELECT over the tables of pools, of someone whom nobody watches: it reads those tables, and nothing else.

DuckDB's own parser gives the statement; every table in it must be one of a pool, every function that gives a table one
of three. A process of its own (query_process.py) runs it: it opens files of these pools alone, its settings are locked,
its time and memory bounded (docs/decisions/0078).
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb
import polars as pl

from curation_assets.core.errors import ExpectedError
from curation_assets.stores import query_process
from curation_assets.stores.catalog import read_table_sql, stored_tables, view_sql
from curation_assets.stores.denied import denied_rows
from curation_assets.stores.denylist import Denylist
from curation_assets.stores.parquet import text_sql
from curation_assets.stores.shard_store import ShardStore

MAX_CHARACTERS = 200_000  # of an answer, some 50,000 tokens
TABLE_FUNCTIONS = ("unnest", "range", "generate_series")
#: Functions of time and chance. No other is called that gives more than follows from its arguments: those tell of
#: settings, statistics and statements, or write.
FREE_FUNCTIONS = (
    "ago", "current_date", "get_current_time", "get_current_timestamp", "now", "today", "transaction_timestamp",
    "random", "gen_random_uuid", "uuid", "uuidv4", "uuidv7",
)  # fmt: skip
_NOT_OF_ARGUMENTS = """
    select distinct function_name from duckdb_functions()
    where list_contains(?, lower(function_name)) and not list_contains(?, lower(function_name))
        and (coalesce(stability, 'CONSISTENT') <> 'CONSISTENT' or macro_definition ilike '%select%')
    order by all
"""
_PLACES = ("BASE_TABLE", "TABLE_FUNCTION", "SUBQUERY", "JOIN", "EMPTY", "EXPRESSION_LIST")
_WORD = re.compile(r"[a-z_][a-z0-9_]*")
_ONLY_SELECT = "only one SELECT is answered, over tables named as `tables` lists them, such as photos.signals_icc"


class QueryError(ExpectedError):
    """A query that is refused, fails or takes too long."""


@dataclass(frozen=True)
class Denied:
    """What a pool still holds of samples that are on the denylist: their ids and captions."""

    ids: list[str] = field(default_factory=list)
    captions: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, store: ShardStore, denylist: Denylist) -> "Denied":
        """Compared by all that the pool's tables say of them; nothing is read where the list is empty."""
        denied = denied_rows(store, denylist, ["caption"])
        return cls(denied["sample_id"].unique().to_list(), denied["caption"].drop_nulls().unique().to_list())

    def left_out(self, columns: Mapping[str, Any]) -> str:
        """The condition that rows with these columns (name → type) are of none of them; '' where there are none."""
        if not self.ids:
            return ""
        ids, captions = (f"[{', '.join(map(text_sql, texts))}]" for texts in (self.ids, self.captions))
        tests = [f"list_contains({ids}, sample_id::varchar)"] if "sample_id" in columns else []
        for name, kind in columns.items():
            if self.captions and kind == pl.String and "caption" in name:
                tests.append(f'list_contains({captions}, "{name}")')
            if self.captions and kind == pl.List(pl.String):
                tests.append(f'list_has_any({captions}, "{name}")')
        return "".join(f" and not coalesce({test}, false)" for test in tests)


def select(
    query: str,
    stores: Mapping[str, ShardStore],
    denied: Callable[[str], Denied],
    *,
    max_rows: int,
    seconds: float,
) -> tuple[list[str], list[list[Any]], bool]:
    """Names of columns, rows, and whether there are more than the limit or than fit into an answer.

    `stores`: of the pools that may be read. `denied`: pool → the samples whose rows are left out. Raises QueryError.
    """
    views = _views_in(query, stores)
    hidden = {pool: denied(pool) for pool, _ in views}
    setup = [f'create schema "{pool}"' for pool in hidden]
    for pool, asset in views:
        store = stores[pool]
        condition = hidden[pool].left_out(store.scan(asset).collect_schema())
        # A table where rows are left out: of a view, a cast that fails on such a row would show it in its message.
        kind = "table" if condition else "view"
        rows = f"select * from {read_table_sql(store, asset)} where true{condition}"
        setup.append(f"create {kind} {view_sql(pool, asset)} as {rows}")
    folders = ", ".join(text_sql(str(stores[pool].root.absolute())) for pool in hidden)
    setup += [f"set allowed_directories = [{folders}]", "set enable_external_access = false"]
    asked = {"setup": [*setup, "set lock_configuration = true"], "query": query}
    answer = _run({**asked, "max_rows": max_rows, "max_characters": MAX_CHARACTERS}, seconds)
    return answer["names"], answer["rows"], answer["more"]


def _run(asked: Mapping[str, Any], seconds: float) -> Any:
    """What the process of a query answers. Raises QueryError for its error, too much time, and where it died."""
    words = [sys.executable, "-I", query_process.__file__]
    try:
        done = subprocess.run(
            words, input=json.dumps(asked), capture_output=True, text=True, check=False, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        raise QueryError(f"the query took more than {seconds:g} s; ask for less, or for fewer shards") from None
    if done.returncode:
        raise QueryError(f"the query ended with status {done.returncode}: it took more memory than it is given")
    answer = json.loads(done.stdout)
    if "error" in answer:
        raise QueryError(f"DuckDB: {answer['error']}")
    return answer


def _views_in(query: str, stores: Mapping[str, ShardStore]) -> list[tuple[str, str]]:
    """(pool, asset) of the tables that a query reads. Raises QueryError for anything but a SELECT over such tables."""
    with duckdb.connect() as connection:
        [(text,)] = connection.execute("select json_serialize_sql(?::varchar)", [query]).fetchall()
        try:
            parsed = json.loads(text)
        except RecursionError:
            raise QueryError("the query has expressions inside expressions, hundreds deep; ask for less") from None
        if parsed["error"] or len(parsed["statements"]) != 1:
            reason = parsed.get("error_message", "got several statements")
            raise QueryError(f"{_ONLY_SELECT}; {reason}")
        nodes = list(_nodes(parsed))
        called = [str(node["function_name"]).lower() for node in nodes if "function_name" in node]
        refused = connection.execute(_NOT_OF_ARGUMENTS, [called, list(FREE_FUNCTIONS)]).fetchall()
    if refused:
        raise QueryError(f"{_ONLY_SELECT}; the function {refused[0][0]} tells of more than its arguments: not allowed")
    defined = {entry["key"].lower() for node in nodes if "cte_map" in node for entry in node["cte_map"]["map"]}
    if odd := sorted(name for name in defined if not _WORD.fullmatch(name)):  # one could be called as a file
        raise QueryError(f"a query after WITH is named by a plain word, got {odd[0]!r}")
    found: dict[tuple[str, str], None] = {}
    for node in nodes:
        kind = node.get("type")
        if "sample" in node and "alias" in node and kind not in _PLACES:  # what stands after FROM
            raise QueryError(f"{_ONLY_SELECT}; got {kind}")
        if kind == "TABLE_FUNCTION":
            name = node["function"]["function_name"]
            if name not in TABLE_FUNCTIONS:
                raise QueryError(f"{_ONLY_SELECT}; the function {name} gives a table, and is not allowed")
        elif kind == "BASE_TABLE":
            path = node["qualified_name"]["path"]
            if len(path) > 1 or path[0].lower() not in defined:
                found[_asset_of(path, stores)] = None
    return list(found)


def _asset_of(path: Sequence[str], stores: Mapping[str, ShardStore]) -> tuple[str, str]:
    if len(path) != 2 or path[0] not in stores:
        raise QueryError(f"{_ONLY_SELECT}; got {'.'.join(path)}; pools: {', '.join(stores)}")
    pool, table = path
    assets = {asset.replace("/", "_"): asset for asset in stored_tables(stores[pool])}
    if table not in assets:
        raise QueryError(f"pool {pool} has no table {table}; it has {', '.join(assets)}")
    return pool, assets[table]


def _nodes(value: Any) -> Iterator[dict[str, Any]]:
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            yield one
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
