"""SQL models: one DuckDB statement per file; references, order, version and lineage come from the parsed statement."""

import functools
import hashlib
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import polars as pl
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.lineage import lineage

from curation_assets.core.settings import resource_path
from curation_assets.core.stages import STAGES, check_reads_forward
from curation_assets.core.table_names import table_of
from curation_assets.flow.graph import inputs_first
from curation_assets.flow.scaled import ALL_SCALED, OTHER_COLUMNS, scaled_views, signal_of
from curation_assets.numeric.metrics.separation import KINDS
from curation_assets.stores.parquet import scan_parquet

if TYPE_CHECKING:
    import duckdb

SQL_FOLDER = "dbt_like_sql"  # one sub-folder per stage, and COUNTS
COUNTS = "summary"  # statements over a ledger and its provenance, which make no table (outputs/summary/counts.py)
WHOLE_POOL = "pool"  # statements over a whole pool (stores/pool_queries.py)
DIALECT = "duckdb"
#: Kind of test → least and most words after it.
TESTS: dict[str, tuple[int, int]] = {"unique": (1, 8), "not_null": (1, 1), "range": (3, 3), "accepted_values": (2, 64)}


#: Of a whole pool lazy: they lie on disk.
Rows = TypeVar("Rows", pl.DataFrame, pl.LazyFrame)
PART_ROWS = 100_000  # of a whole pool's result, in memory at once


class SqlModelError(ValueError):
    """A SQL model file does not keep the rules of the folder."""


@dataclass(frozen=True)
class SqlTest:
    """One test of a model's header, of `TESTS`. Nulls pass every test but not_null."""

    kind: str
    columns: tuple[str, ...]  # several only for unique
    arguments: tuple[str, ...] = ()  # range: low, high; accepted_values: the values

    def __str__(self) -> str:
        return " ".join((self.kind, *self.columns, *self.arguments))

    def broken(self, frame: Rows) -> Rows:
        """The rows that break it."""
        column = pl.col(self.columns[0])
        if self.kind == "unique":
            is_sorted = _ascends(frame, self.columns)
            return frame.clear() if is_sorted else frame.filter(pl.struct(self.columns).is_duplicated())
        if self.kind == "not_null":
            return frame.filter(column.is_null())
        if self.kind == "accepted_values":
            return frame.filter(~column.cast(pl.String).is_in(self.arguments))
        low, high = map(float, self.arguments)
        # NaN is outside every range; comparisons alone would put it above.
        return frame.filter(column.is_nan() | (column < low) | (column > high))


@dataclass(frozen=True)
class SqlModel:
    """A parsed model file."""

    stage: str
    name: str
    path: Path
    text: str  # the file as it is
    grain: str  # its first comment, without "Grain:"
    tests: tuple[SqlTest, ...]
    references: tuple[str, ...]  # "stage.name" of the tables it reads, sorted
    columns: tuple[str, ...]  # output columns in order
    column_lineage: Mapping[str, list[tuple[str, str]]]  # output column → [("stage/name", column)]
    is_per_shard: bool  # '-- applied: per shard': row by row, so one shard needs no other
    parameters: Mapping[str, float]  # '-- parameter: alpha 0.5' → default of $alpha
    made_for: tuple[str, ...]  # '-- made for: caps': planted kinds of noise that it should tell from clean samples
    scaled: tuple[str, ...]  # signals whose scores it reads from fused.scaled, in order
    views: Mapping[str, str]  # of the scaled signals: 'fused.sieve_scaled' → select statement, each after what it reads
    code_version: str  # sha256 of the normalised syntax tree, views included; comments and white space do not count

    @property
    def key(self) -> str:
        """'stage.name', as other models refer to it."""
        return f"{self.stage}.{self.name}"

    @property
    def script(self) -> str:
        """All that DuckDB needs where the references are tables: the views, then the file."""
        return "\n\n".join([*(_create_view(name, sql) + ";" for name, sql in self.views.items()), self.text])


def load_models(root: Path | None = None) -> dict[str, SqlModel]:
    """Every `<stage>/<name>.sql` under `root` (None: those that ship) by 'stage.name', each after the models it reads.

    Raises SqlModelError for a file that breaks the rules or for a circle, BackwardsReadError for a read against the
    flow, FileNotFoundError when `root` is no folder.
    """
    root = resource_path(SQL_FOLDER) if root is None else root
    if not root.is_dir():
        raise FileNotFoundError(f"no folder of SQL models {root}")
    read = (
        parse_model(path.read_text(encoding="utf-8"), stage=path.parent.name, name=path.stem, path=path)
        for path in sorted(root.glob("*/*.sql"))
        if path.parent.name not in (COUNTS, WHOLE_POOL)
    )
    models = {model.key: model for model in read}
    reads = {key: [reference for reference in model.references if reference in models] for key, model in models.items()}
    try:
        return {key: models[key] for key in inputs_first(reads)}
    except CycleError as error:
        raise SqlModelError(f"SQL models read each other in a circle: {' → '.join(error.args[1])}") from error


@functools.cache
def recipes() -> dict[str, SqlModel]:
    """SQL models of the fused stage by 'fused.name', parsed once per process: half a second."""
    return {key: model for key, model in load_models().items() if model.stage == "fused"}


def parse_model(text: str, *, stage: str, name: str, path: Path = Path("<text>")) -> SqlModel:
    """A model from its text. The folder names the stage, the file the table. Raises as `load_models`."""
    try:
        return _parsed(text, stage, name, path)
    except SqlModelError as error:
        raise SqlModelError(f"{path}: {error}") from error.__cause__


def _parsed(text: str, stage: str, name: str, path: Path) -> SqlModel:
    _require(stage in STAGES, f"the folder must be a stage ({', '.join(STAGES)}), got {stage!r}")
    is_name = re.fullmatch(r"[a-z][a-z0-9_]*", name)
    _require(is_name, f"a model's name is lower-case letters, digits and _, got {name!r}")
    header = read_header(text)
    statement = _single_select(text)
    scaled = _named_signals(statement)
    views = scaled_views(scaled)
    statement = _expanded(statement, views)
    declared, used = sorted(header["parameters"]), sorted({one.name for one in statement.find_all(exp.Placeholder)})
    _require(declared == used, f"parameters in the header {declared}, in the statement {used}")
    references = _references(statement)
    for reference in references:
        _require(reference != f"{stage}.{name}", f"{name} reads itself")
        check_reads_forward(f"{stage}/{name}", table_of(reference))
    column_lineage = _column_lineage(statement)
    unknown = sorted({column for test in header["tests"] for column in test.columns} - set(column_lineage))
    _require(not unknown, f"tests name {unknown}, which is no output column; it has {list(column_lineage)}")
    return SqlModel(
        **header,
        stage=stage,
        name=name,
        path=path,
        text=text,
        references=references,
        columns=tuple(column_lineage),
        column_lineage=column_lineage,
        scaled=scaled,
        views=views,
        code_version=hashlib.sha256(statement.sql(dialect=DIALECT, comments=False).encode()).hexdigest(),
    )


def _require(holds: object, otherwise: str) -> None:
    if not holds:
        raise SqlModelError(otherwise)


# -- running ----------------------------------------------------------------------------------------------------------


def run_model(
    model: SqlModel, connection: "duckdb.DuckDBPyConnection", parameters: Mapping[str, float] | None = None
) -> pl.DataFrame:
    """The model's table, from a connection that has its references as `stage.name`; `parameters` replace defaults.

    The model's views are made on the connection, in place of any of an earlier model. Rows are sorted by the first
    `unique` test's columns, so that the same input gives the same bytes. Raises SqlModelError as `with_defaults`.
    """
    frame, keys = connection.sql(model.text, params=_prepared(model, connection, parameters)).pl(), _keys(model)
    return frame if _ascends(frame, keys) else frame.sort(keys)


def run_on_disk(
    model: SqlModel,
    connection: "duckdb.DuckDBPyConnection",
    folder: Path,
    parameters: Mapping[str, float] | None = None,
    *,
    part_rows: int = PART_ROWS,
) -> pl.LazyFrame:
    """What `run_model` gives, of a whole pool: DuckDB sorts it, and each part that comes is a file in `folder`.

    Raises SqlModelError as `with_defaults`.
    """
    given, keys = _prepared(model, connection, parameters), _keys(model)
    order = "".join(f"{', ' if at else ' order by '}{key} nulls first" for at, key in enumerate(keys))
    text = f"select * from (\n{model.text.rstrip().removesuffix(';')}\n){order}"
    reader: Any = connection.sql(text, params=given).to_arrow_reader(part_rows)
    paths: list[Path] = []
    for part in itertools.chain([reader.schema.empty_table()], reader):
        paths.append(folder / f"part-{len(paths):06d}.parquet")
        cast(pl.DataFrame, pl.from_arrow(part)).write_parquet(paths[-1], compression="lz4")
    return scan_parquet(paths)


def _prepared(
    model: SqlModel, connection: "duckdb.DuckDBPyConnection", parameters: Mapping[str, float] | None
) -> dict[str, float]:
    """The model's views are made; its parameters, with defaults."""
    given = with_defaults(model, parameters or {})
    for name, sql in model.views.items():
        connection.execute(_create_view(name, sql))
    return given


def _keys(model: SqlModel) -> tuple[str, ...]:
    """Columns by which its rows are sorted."""
    return next((test.columns for test in model.tests if test.kind == "unique"), ())


def _create_view(name: str, sql: str) -> str:
    return f"create or replace view {name} as\n{sql}"


def _ascends(frame: pl.DataFrame | pl.LazyFrame, keys: Sequence[str]) -> bool:
    """Whether each row is above the one before by `keys`: then they are sorted and no two are alike. Without keys any
    order will do.
    """
    if not keys:
        return True
    above = pl.lit(False)
    for key in reversed(keys):
        now, before = pl.col(key), pl.col(key).shift(1)
        above = (now > before) | ((now == before) & above)
    return bool(frame.lazy().select(above.slice(1).fill_null(False).all()).collect().item())


def with_defaults(model: SqlModel, given: Mapping[str, float]) -> dict[str, float]:
    """Every parameter of the model. Raises SqlModelError for one that it has not, or that is no finite number."""
    unknown, known = sorted(set(given) - set(model.parameters)), sorted(model.parameters) or "none"
    _require(not unknown, f"{model.key} has no parameters {unknown}; it has {known}")
    for name, value in given.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        _require(is_number, f"{model.key}: parameter {name} must be a number, got {value!r}")
    return {**model.parameters, **{name: float(value) for name, value in given.items()}}


def broken_tests(model: SqlModel, frame: Rows) -> list[str]:
    """A sentence per test of the model's header that its table breaks, in order of the header."""
    sentences = []
    for test in model.tests:
        absent, columns = sorted(set(test.columns) - set(schema := frame.collect_schema())), list(schema)
        _require(not absent, f"{model.key}: test {test} names {absent}; the table has {columns}")
        if rows := (broken := test.broken(frame).lazy().collect()).height:
            sentences.append(f"{model.key}: {test} is broken by {rows} rows, such as {broken.row(0, named=True)}")
    return sentences


# -- reading a file ---------------------------------------------------------------------------------------------------


def read_header(text: str) -> dict[str, Any]:
    """What the comments before a statement declare, as fields of SqlModel. Raises SqlModelError."""
    lines = takewhile(lambda line: line.startswith("--"), filter(str.strip, text.splitlines()))
    comments = [line.removeprefix("--").strip() for line in lines]

    def of(key: str) -> list[str]:
        return [comment.partition(":")[2].strip() for comment in comments if comment.startswith(f"{key}:")]

    grain = of("Grain")
    is_first = bool(comments) and comments[0].startswith("Grain:") and grain[0]
    _require(is_first, "the first comment must state the grain ('-- Grain: one row per …')")
    made_for = tuple(word for line in of("made for") for word in line.split())
    unknown = sorted(set(made_for) - set(KINDS))
    _require(not unknown, f"made for {unknown}; planted kinds are {', '.join(KINDS)}")
    applied = set(of("applied"))
    _require(applied <= {"per shard"}, f"the only word on how it is applied is 'applied: per shard', got {applied}")
    return {
        "grain": grain[0],
        "tests": tuple(_parse_test(line.split()) for line in of("test")),
        "is_per_shard": bool(applied),
        "parameters": dict(map(_parse_parameter, of("parameter"))),
        "made_for": made_for,
    }


def _parse_parameter(line: str) -> tuple[str, float]:
    match = re.fullmatch(r"([a-z][a-z0-9_]*) (-?[0-9]*\.?[0-9]+)", line)
    if match is None:
        raise SqlModelError(f"a parameter reads '-- parameter: NAME NUMBER', got {line!r}")
    return match[1], float(match[2])


def _parse_test(words: list[str]) -> SqlTest:
    kind, rest = (words[0] if words else ""), words[1:]
    _require(kind in TESTS, f"no test {kind!r}; there are {', '.join(TESTS)}")
    least, most = TESTS[kind]
    _require(least <= len(rest) <= most, f"test {kind} takes {least} to {most} words, got {rest}")
    if kind == "range":
        are_numbers = all(re.fullmatch(r"-?[0-9]*\.?[0-9]+(e-?[0-9]+)?", word) for word in rest[1:])
        _require(are_numbers, f"test range takes a column and two numbers, got {rest}")
    count = len(rest) if kind == "unique" else 1
    return SqlTest(kind, tuple(rest[:count]), tuple(rest[count:]))


def _single_select(text: str) -> exp.Select:
    try:
        statements = [statement for statement in sqlglot.parse(text, dialect=DIALECT) if statement is not None]
    except SqlglotError as error:
        raise SqlModelError(f"not a DuckDB statement: {error}") from error
    if len(statements) != 1 or not isinstance(statements[0], exp.Select):
        raise SqlModelError(f"expected one select statement, got {[type(one).__name__ for one in statements]}")
    tail = statements[0].copy()
    tail.set("with_", None)
    is_final = tail.sql(dialect=DIALECT, comments=False).lower() == "select * from final"
    _require(is_final, "the statement must end with 'select * from final'")
    return statements[0]


def _named(table: exp.Table) -> str:
    return f"{table.db}.{table.name}"


def _selects_of_one_table(statement: exp.Select) -> list[tuple[exp.Select, exp.Table, list[exp.Column]]]:
    """Every select whose FROM is a table, the table, and its own columns in the order of the text."""
    found = []
    for select in statement.find_all(exp.Select):
        source = select.args["from_"].this if select.args.get("from_") else None
        if isinstance(source, exp.Table):
            columns = select.find_all(exp.Column, bfs=False)
            found.append((select, source, [one for one in columns if one.find_ancestor(exp.Select) is select]))
    return found


def _named_signals(statement: exp.Select) -> tuple[str, ...]:
    """Signals whose scores a statement names where it selects from `fused.scaled`, in the order of the text."""
    columns: dict[str, None] = {}
    if ALL_SCALED not in map(_named, statement.find_all(exp.Table)):
        return ()
    for select, source, own in _selects_of_one_table(statement):
        if _named(source) == ALL_SCALED:
            is_alone = not select.args.get("joins")
            _require(is_alone, f"select from {ALL_SCALED} in a CTE of its own, without a join")
            columns |= {column.name: None for column in own}
    try:
        signals = tuple(signal_of(name) for name in columns if name not in OTHER_COLUMNS)
    except ValueError as error:
        raise SqlModelError(str(error)) from None
    _require(signals, f"it reads {ALL_SCALED} and names no score, such as icc_score")
    return signals


def _expanded(statement: exp.Select, views: Mapping[str, str]) -> exp.Select:
    """A copy with the views' statements substituted, as columns are traced and versions are made."""

    def with_view(node: exp.Expression) -> exp.Expression:
        if not isinstance(node, exp.Table) or _named(node) not in views:
            return node
        view = cast(exp.Select, sqlglot.parse_one(views[_named(node)], dialect=DIALECT))
        return _expanded(view, views).subquery(node.alias_or_name)

    return cast(exp.Select, statement.transform(with_view)) if views else statement


def _references(statement: exp.Select) -> tuple[str, ...]:
    """Tables that the statement reads, CTEs aside."""
    ctes = {cte.alias for cte in statement.find_all(exp.CTE)}
    tables = [table for table in statement.find_all(exp.Table) if table.db or table.name not in ctes]
    for table in tables:
        is_plain = table.db and table.name and not table.catalog
        shown = table.sql(dialect=DIALECT)
        _require(is_plain, f"tables are named stage.name, got {shown!r}; no files, no functions")
    _require(tables, "it reads no table")
    return tuple(sorted(set(map(_named, tables))))


def _column_lineage(statement: exp.Select) -> dict[str, list[tuple[str, str]]]:
    """Output column → source columns that its value is computed from (conditions of joins and filters aside)."""
    # Without a schema the library names the table of columns for the first CTE only, and loses the trace in the others.
    qualified = statement.copy()
    for select, source, own in _selects_of_one_table(qualified):
        for column in own if not select.args.get("joins") else ():
            if not column.table:
                column.set("table", exp.to_identifier(source.alias_or_name))
    try:
        nodes = lineage(None, qualified, {}, dialect=DIALECT)
    except SqlglotError as error:
        raise SqlModelError(f"columns cannot be traced: {error}; name every column, with its table in joins") from error
    columns_read = {}
    for output, node in nodes.items():
        sources = set()
        for leaf in node.walk():
            is_lost = isinstance(leaf.expression, exp.Placeholder)
            _require(not is_lost, f"column {output!r} cannot be traced at {leaf.name!r}; qualify it")
            if isinstance(leaf.expression, exp.Table) and leaf.expression.db:
                origin = f"{leaf.expression.db}/{leaf.expression.name}"
                sources.add((origin, leaf.name.rpartition(".")[2].strip('"')))
        is_hidden = output == "*" or any(name == "*" for _, name in sources)
        _require(not is_hidden, "'select *' from a table outside the file hides its columns; name them")
        columns_read[output] = sorted(sources)
    return columns_read
