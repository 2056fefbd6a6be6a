"""Where a subset comes from: its shards, data versions, code and models, from manifests, checked against Dagster.

Every manifest names what its table was made from; walking them back gives the graph. Dagster records the same story on
its own: a materialisation carries its content hash and, per input, a pointer into the event log. The input that was
used is the newest materialisation of the parent's partition up to that pointer; it must have the hash that the
manifest names. (Dagster's own input_data_version is one value for all partitions of a run, and so cannot be used.)
"""

import hashlib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from curation_assets.core.table_names import stage_of
from curation_assets.stores.manifest import Manifest
from curation_assets.stores.shard_store import ShardStore

#: Grain: one row per table and shard (null: of the whole pool) upstream of the subset, inputs first.
NODES_SCHEMA = pl.Schema(
    {
        "table": pl.String(),
        "shard": pl.String(),
        "content_sha256": pl.String(),  # the data version
        "code_version": pl.String(),
        "config_hash": pl.String(),
        "models": pl.List(pl.Struct(dict.fromkeys(("address", "revision", "weights_sha256"), pl.String))),
        "run_id": pl.String(),  # Dagster's, of the run that computed it
        "row_count": pl.Int64(),
        "seconds": pl.Float64(),
        "written_at": pl.String(),
    }
)

#: Grain: one row per table, shard and input.
EDGES_SCHEMA = pl.Schema(
    {
        "table": pl.String(),
        "shard": pl.String(),
        "input_table": pl.String(),
        "input_shard": pl.String(),
        "content_sha256": pl.String(),  # of the input, as read
        "is_current": pl.Boolean(),  # the input stored now is the one that was read
    }
)

#: Grain: one row per materialisation that Dagster recorded.
RECORDS_SCHEMA = pl.Schema(
    {
        "table": pl.String(),
        "shard": pl.String(),
        "storage_id": pl.Int64(),  # position in Dagster's event log
        "run_id": pl.String(),
        "at": pl.Float64(),  # seconds since 1970, UTC
        "content_sha256": pl.String(),
        "code_version": pl.String(),
        "pointers": pl.List(pl.Struct({"table": pl.String(), "storage_id": pl.Int64()})),
    }
)

AGREES, DIFFERS, UNRECORDED = "agrees", "differs", "not recorded"


@dataclass(frozen=True)
class Lineage:
    """Everything upstream of one table."""

    pool: str
    target: str  # "stage/name"
    nodes: pl.DataFrame  # NODES_SCHEMA
    edges: pl.DataFrame  # EDGES_SCHEMA; after `checked` also dagster_sha256 and dagster

    @property
    def tables(self) -> list[str]:
        """Tables upstream of the target, itself included, inputs first."""
        return self.nodes["table"].unique(maintain_order=True).to_list()

    def links(self) -> list[tuple[str, str]]:
        """(input, table) of tables, shards taken together, sorted."""
        return sorted(set(self.edges.select("input_table", "table").iter_rows()))


def lineage_of(
    store: ShardStore, table: str, *, pool: str = "", known: dict[tuple[str, str | None], Manifest] | None = None
) -> Lineage:
    """Walk the manifests back from a table such as filtered/icc, filtered/ledger or (all shards) raw/samples.

    `known`: manifests read so far, which is added to; for several tables of one pool.
    Raises MissingTableError (through the store) where the table is not there.
    """
    waiting: list[tuple[str, str | None]] = [(table, shard) for shard in store.partitions(table)] or [(table, None)]
    if store.manifest(*waiting[0]) is None:
        store.scan(table)  # raises, with what to do
    manifests: dict[tuple[str, str | None], Manifest] = {}
    while waiting:
        node = waiting.pop()
        if node in manifests:
            continue
        manifest = (known or {}).get(node) or store.manifest(*node)
        if manifest is not None:
            manifests[node] = manifest
            if known is not None:
                known[node] = manifest
            waiting += [(version.asset, version.partition) for version in manifest.inputs]
    return _lineage(store, pool, table, manifests)


def lineage_of_tables(store: ShardStore, tables: Iterable[str], *, pool: str = "") -> Lineage:
    """The named tables, with all their shards, and what they read; nothing further back."""
    manifests: dict[tuple[str, str | None], Manifest] = {}
    for table in tables:
        shards: list[str | None] = [*store.partitions(table)] or [None]
        for shard in shards:
            manifest = store.manifest(table, shard)
            if manifest is not None:
                manifests[table, shard] = manifest
    return _lineage(store, pool, "", manifests)


def _lineage(store: ShardStore, pool: str, target: str, manifests: dict[tuple[str, str | None], Manifest]) -> Lineage:
    stored = dict(manifests)
    edges: list[dict[str, Any]] = []
    for (table, shard), manifest in manifests.items():
        for version in manifest.inputs:
            node = (version.asset, version.partition)
            if node not in stored and (upstream := store.manifest(*node)) is not None:
                stored[node] = upstream
            edges.append(
                {
                    "table": table,
                    "shard": shard,
                    "input_table": version.asset,
                    "input_shard": version.partition,
                    "content_sha256": version.content_sha256,
                    "is_current": node in stored and stored[node].content_sha256 == version.content_sha256,
                }
            )
    order = _inputs_first(manifests, edges)
    nodes = [
        _node(manifests[node])
        for node in sorted(manifests, key=lambda version: (order[version[0]], version[0], version[1] or ""))
    ]
    return Lineage(
        pool or store.root.name,
        target,
        pl.DataFrame(nodes, schema=NODES_SCHEMA, orient="row"),
        pl.DataFrame(edges, schema=EDGES_SCHEMA, orient="row").sort("table", "shard", "input_table", "input_shard"),
    )


def _node(manifest: Manifest) -> dict[str, Any]:
    facts = {name: getattr(manifest, name) for name in NODES_SCHEMA if name not in ("table", "shard", "models")}
    return facts | {
        "table": manifest.asset,
        "shard": manifest.partition,
        "models": [dict(model) for model in manifest.models],
    }


def _inputs_first(nodes: Iterable[tuple[str, str | None]], edges: list[dict[str, Any]]) -> dict[str, int]:
    """Table → length of the longest way to it from a table without inputs."""
    inputs: dict[str, set[str]] = {table: set() for table, _ in nodes}
    for edge in edges:
        inputs[edge["table"]].add(edge["input_table"])
    depth: dict[str, int] = {}

    def depth_of(table: str) -> int:
        if table not in depth:
            depth[table] = 1 + max((depth_of(name) for name in inputs.get(table, ())), default=-1)
        return depth[table]

    return {table: depth_of(table) for table in inputs}


def combined_version(versions: Iterable[str]) -> str:
    """One data version for all shards of a table: the only one as it is, else sha256 over the sorted ones."""
    known = sorted(versions)
    return known[0] if len(known) == 1 else hashlib.sha256("".join(known).encode()).hexdigest()


def summary(lineage: Lineage) -> pl.DataFrame:
    """Grain: one row per table: table, shards, rows, data_version, code, models, runs, stale_inputs, dagster."""
    stale = dict(lineage.edges.filter(~pl.col("is_current")).group_by("table").len().iter_rows())
    words = _dagster_words(lineage.edges)
    rows = []
    for (table,), part in lineage.nodes.group_by("table", maintain_order=True):
        models = {model["address"]: model["weights_sha256"] for row in part["models"].to_list() for model in row}
        rows.append(
            {
                "table": table,
                "shards": part["shard"].drop_nulls().len(),
                "rows": int(part["row_count"].sum()),
                "data_version": combined_version(part["content_sha256"].to_list()),
                "code": ", ".join(sorted({str(version)[:12] for version in part["code_version"]})),
                "models": ", ".join(
                    f"{address} {(digest or '')[:8]}".strip() for address, digest in sorted(models.items())
                ),
                "runs": part["run_id"].n_unique(),
                "stale_inputs": stale.get(table, 0),
                "dagster": words.get(str(table), ""),
            }
        )
    return pl.DataFrame(rows)


def _dagster_words(edges: pl.DataFrame) -> dict[str, str]:
    if "dagster" not in edges.columns:
        return {}
    counted: dict[str, list[str]] = defaultdict(list)
    for table, word, count in edges.group_by("table", "dagster").len().sort("table", "dagster").iter_rows():
        counted[table].append(f"{word} {count}")
    return {table: ", ".join(words) for table, words in counted.items()}


# -- Dagster's word ---------------------------------------------------------------------------------------------------


def checked(lineage: Lineage, records: pl.DataFrame) -> Lineage:
    """The lineage with what Dagster's event log records about each edge.

    New columns of `edges`: dagster_sha256, the input's version that the log points to, and dagster: agrees, differs or
    not recorded.
    """
    events: dict[tuple[str, str | None], list[dict[str, Any]]] = defaultdict(list)
    for record in records.sort("storage_id").iter_rows(named=True):
        events[record["table"], record["shard"]].append(record)
    made = {(row["table"], row["shard"]): row for row in lineage.nodes.iter_rows(named=True)}
    recorded = []
    for edge in lineage.edges.iter_rows(named=True):
        child = (edge["table"], edge["shard"])
        pointer = _pointer(events[child], made[child], edge["input_table"])
        recorded.append(_version_at(events[edge["input_table"], edge["input_shard"]], pointer))
    edges = lineage.edges.with_columns(pl.Series("dagster_sha256", recorded, dtype=pl.String)).with_columns(
        pl.when(pl.col("dagster_sha256").is_null())
        .then(pl.lit(UNRECORDED))
        .when(pl.col("dagster_sha256") == pl.col("content_sha256"))
        .then(pl.lit(AGREES))
        .otherwise(pl.lit(DIFFERS))
        .alias("dagster")
    )
    return Lineage(lineage.pool, lineage.target, lineage.nodes, edges)


def _pointer(events: list[dict[str, Any]], made: Mapping[str, Any], parent: str) -> int | None:
    """Up to which event of the log a version read `parent`: by the run that computed it, else its newest event.

    Later runs for which it was up to date, or frozen, point to what they would have read.
    """
    mine = [event for event in events if event["content_sha256"] == made["content_sha256"]]
    if mine:
        event = next((record for record in mine if record["run_id"] == made["run_id"]), mine[-1])
        return next((record["storage_id"] for record in event["pointers"] if record["table"] == parent), None)
    return None


def _version_at(events: list[dict[str, Any]], pointer: int | None) -> str | None:
    if pointer is None:
        return None
    position = bisect_right([event["storage_id"] for event in events], pointer)
    return events[position - 1]["content_sha256"] if position else None


# -- drawing ----------------------------------------------------------------------------------------------------------

_BOX_WIDTH, _BOX_HEIGHT, _GAP_X, _GAP_Y = 236, 58, 56, 18


def lineage_svg(lineage: Lineage, stages: Mapping[str, int]) -> str:
    """The tables as boxes, one column per stage, an arrow from each input. `stages`: stage → position in the flow."""
    from xml.sax.saxutils import escape

    summaries = {row["table"]: row for row in summary(lineage).to_dicts()}
    tip = "tip-" + lineage.target.replace("/", "-")  # several graphs may share a page
    columns: dict[str, list[str]] = defaultdict(list)
    for table in lineage.tables:
        columns[stage_of(table)].append(table)
    places: dict[str, tuple[int, int]] = {}
    for number, stage in enumerate(sorted(columns, key=lambda stage_name: stages[stage_name])):
        for row, table in enumerate(columns[stage]):
            places[table] = (number * (_BOX_WIDTH + _GAP_X) + 10, row * (_BOX_HEIGHT + _GAP_Y) + 34)
    width = max(x for x, _ in places.values()) + _BOX_WIDTH + 34  # arrows inside the last stage go round its right side
    height = max(y for _, y in places.values()) + _BOX_HEIGHT + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="system-ui, sans-serif" font-size="11">',
        f'<defs><marker id="{tip}" markerWidth="7" markerHeight="7" refX="6" refY="3.5" orient="auto">'
        '<path d="M0,0 L7,3.5 L0,7 z" fill="#7b8794"/></marker></defs>',
    ]
    for number, stage in enumerate(sorted(columns, key=lambda stage_name: stages[stage_name])):
        x = number * (_BOX_WIDTH + _GAP_X) + 10
        parts.append(f'<text x="{x}" y="20" fill="#616e7c" font-weight="600">{escape(stage)}</text>')
    for source, target in lineage.links():
        parts.append(_arrow(places[source], places[target], tip))
    for table, (x, y) in places.items():
        facts = summaries[table]
        edge = "#d64545" if facts["stale_inputs"] or DIFFERS in facts["dagster"] else "#2f6fde"
        lines = [
            f'<tspan font-weight="600">{escape(table.split("/")[1])}</tspan>',
            escape(
                f"{facts['shards']} shards, {facts['rows']:,} rows" if facts["shards"] else f"{facts['rows']:,} rows"
            ),
            escape(f"data {facts['data_version'][:10]} · code {facts['code'][:10]}"),
            escape(facts["models"][:38]),
        ]
        title = escape(
            f"{table}\ndata {facts['data_version']}\ncode {facts['code']}\nmodels {facts['models'] or 'none'}"
        )
        parts.append(
            f'<g><title>{title}</title><rect x="{x}" y="{y}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="6" '
            f'fill="#fff" stroke="{edge}"/>'
            + "".join(f'<text x="{x + 8}" y="{y + 14 + 13 * i}">{line}</text>' for i, line in enumerate(lines))
            + "</g>"
        )
    return "\n".join([*parts, "</svg>"])


def _arrow(source: tuple[int, int], target: tuple[int, int], tip: str) -> str:
    if source[0] == target[0]:  # within a stage: around the right side
        x, y0, y1 = source[0] + _BOX_WIDTH, source[1] + _BOX_HEIGHT // 2, target[1] + _BOX_HEIGHT // 2
        path = f"M{x},{y0} C{x + 30},{y0} {x + 30},{y1} {x + 2},{y1}"
    else:
        x0, y0 = source[0] + _BOX_WIDTH, source[1] + _BOX_HEIGHT // 2
        x1, y1 = target[0] - 1, target[1] + _BOX_HEIGHT // 2
        path = f"M{x0},{y0} C{x0 + 40},{y0} {x1 - 40},{y1} {x1},{y1}"
    return f'<path d="{path}" fill="none" stroke="#b3bcc6" marker-end="url(#{tip})"/>'
