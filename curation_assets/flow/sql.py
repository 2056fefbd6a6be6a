"""SQL models: one DuckDB statement per file; references, order, version and lineage come from the parsed statement."""

import functools
import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import polars as pl
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.lineage import lineage

from curation_assets.core.settings import resource_path
from curation_assets.core.stages import STAGES, check_reads_forward
from curation_assets.core.table_names import table_of
from curation_assets.flow.graph import inputs_first
from curation_assets.flow.scaled import (
    ALL_SCALED,
    OTHER_COLUMNS,
    OUT_OF_STEP,
    SCALED,
    recipe_view,
    signal_of,
    signal_view,
)
from curation_assets.numeric.metrics.separation import KINDS

if TYPE_CHECKING:
    import duckdb

SQL_FOLDER = "dbt_like_sql"  # one sub-folder per stage
DIALECT = "duckdb"

TestKind = Literal["unique", "not_null", "range", "accepted_values"]
_ARGUMENT_COUNTS: dict[str, tuple[int, int]] = {  # least and most words after the kind
    "unique": (1, 8),
    "not_null": (1, 1),
    "range": (3, 3),
    "accepted_values": (2, 64),
}


class SqlModelError(ValueError):
    """A SQL model file does not keep the rules of the folder."""


@dataclass(frozen=True)
class SqlTest:
    """One test of a model's header. Nulls pass every test but not_null."""

    kind: TestKind
    columns: tuple[str, ...]  # several only for unique
    arguments: tuple[str, ...] = ()  # range: low, high; accepted_values: the values

    def __str__(self) -> str:
        return " ".join((self.kind, *self.columns, *self.arguments))


@dataclass(frozen=True)
class SqlTestResult:
    """How one test of one model ended."""

    model: str
    test: SqlTest
    failures: int  # rows that break it
    example: str  # a row that does, "" when none

    @property
    def passed(self) -> bool:
        """Whether no row breaks the test."""
        return self.failures == 0

    @property
    def message(self) -> str:
        """One sentence for a report."""
        if self.passed:
            return f"{self.model}: {self.test} holds"
        return f"{self.model}: {self.test} is broken by {self.failures} rows, such as {self.example}"


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
    views: Mapping[str, str]  # scaled signals that it reads: 'fused.sieve_scaled' → select statement, in order
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
    """Every `<stage>/<name>.sql` under `root` by 'stage.name', each after the models that it reads.

    `root`: None for the models that ship.

    Raises SqlModelError for a file that breaks the rules or for a circle, BackwardsReadError for a read against the
    flow, FileNotFoundError when `root` is no folder.
    """
    root = resource_path(SQL_FOLDER) if root is None else root
    if not root.is_dir():
        raise FileNotFoundError(f"no folder of SQL models {root}")
    models = {model.key: model for model in map(load_model, sorted(root.glob("*/*.sql")))}
    reads = {key: [reference for reference in model.references if reference in models] for key, model in models.items()}
    try:
        return {key: models[key] for key in inputs_first(reads)}
    except CycleError as error:
        raise SqlModelError(f"SQL models read each other in a circle: {' → '.join(error.args[1])}") from error


@functools.cache
def recipes() -> dict[str, SqlModel]:
    """SQL models of the fused stage by 'fused.name', parsed once per process: half a second."""
    return {key: model for key, model in load_models().items() if model.stage == "fused"}


def load_model(path: Path) -> SqlModel:
    """One model file. Raises SqlModelError and BackwardsReadError as `load_models`."""
    return parse_model(path.read_text(encoding="utf-8"), stage=path.parent.name, name=path.stem, path=path)


def parse_model(text: str, *, stage: str, name: str, path: Path = Path("<text>")) -> SqlModel:
    """A model from its text. The folder names the stage, the file the table."""
    if stage not in STAGES:
        raise SqlModelError(f"{path}: the folder must be a stage ({', '.join(STAGES)}), got {stage!r}")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise SqlModelError(f"{path}: a model's name is lower-case letters, digits and _, got {name!r}")
    header = _header(text, path)
    statement = _single_select(text, path)
    scaled = tuple(_named_signals(statement, path))
    views = _views(statement, scaled)
    statement = _expanded(statement, views)
    used = {parameter.name for parameter in statement.find_all(exp.Placeholder)}
    if used != set(header.parameters):
        raise SqlModelError(
            f"{path}: parameters in the header {sorted(header.parameters)}, in the statement {sorted(used)}"
        )
    references = _references(statement, path)
    for reference in references:
        if reference == f"{stage}.{name}":
            raise SqlModelError(f"{path} reads itself")
        check_reads_forward(f"{stage}/{name}", table_of(reference))
    column_lineage = _column_lineage(statement, path)
    tested = {column for test in header.tests for column in test.columns}
    if not tested <= set(column_lineage):
        raise SqlModelError(
            f"{path}: tests name {sorted(tested - set(column_lineage))}, which is no output column; "
            f"it has {list(column_lineage)}"
        )
    canonical = statement.sql(dialect=DIALECT, comments=False)
    return SqlModel(
        stage=stage,
        name=name,
        path=path,
        text=text,
        grain=header.grain,
        tests=header.tests,
        references=references,
        columns=tuple(column_lineage),
        column_lineage=column_lineage,
        is_per_shard=header.is_per_shard,
        parameters=header.parameters,
        made_for=header.made_for,
        scaled=scaled,
        views=views,
        code_version=hashlib.sha256(canonical.encode()).hexdigest(),
    )


def run_model(
    model: SqlModel,
    connection: "duckdb.DuckDBPyConnection",
    parameters: Mapping[str, float] | None = None,
    *,
    in_step: bool = False,
) -> pl.DataFrame:
    """The model's table, from a connection that has its references as `stage.name`; `parameters` replace defaults.

    The model's views are made on the connection, in place of any of an earlier model. Rows are sorted by the first
    `unique` test's columns, so that the same input gives the same bytes. `in_step`: each shard has as many rows in
    every table that the model reads, so they are probably the same rows in the same order, which is then found out.
    Raises SqlModelError as `with_defaults`.
    """
    _create_views(model, connection)
    defaults = with_defaults(model, parameters or {})
    frame = _run_in_step(model, connection, defaults) if in_step and model.scaled else None
    if frame is None:
        frame = connection.sql(model.text, params=defaults).pl()
    keys = next((test.columns for test in model.tests if test.kind == "unique"), None)
    return frame if keys is None or _ascends(frame, keys) else frame.sort(keys)


def _run_in_step(
    model: SqlModel, connection: "duckdb.DuckDBPyConnection", parameters: Mapping[str, float]
) -> pl.DataFrame | None:
    """The model's table, from tables whose rows follow each other alike; None where they do not."""
    import duckdb

    connection.execute(_create_view(ALL_SCALED, recipe_view(model.scaled, in_step=True)))
    try:
        return connection.sql(model.text, params=dict(parameters)).pl()
    except duckdb.Error as error:
        if OUT_OF_STEP not in str(error):
            raise
        connection.execute(_create_view(ALL_SCALED, model.views[ALL_SCALED]))
        return None


def _ascends(frame: pl.DataFrame, keys: Sequence[str]) -> bool:
    """Whether each row is above the one before by `keys`: then they are sorted and no two are alike."""
    above = pl.lit(False)
    for key in reversed(keys):
        now, before = pl.col(key), pl.col(key).shift(1)
        above = (now > before) | ((now == before) & above)
    return bool(frame.select(above.slice(1).fill_null(False).all()).item())


def with_defaults(model: SqlModel, given: Mapping[str, float]) -> dict[str, float]:
    """Every parameter of the model. Raises SqlModelError for one that it has not, or that is no finite number."""
    unknown = sorted(set(given) - set(model.parameters))
    if unknown:
        raise SqlModelError(f"{model.key} has no parameters {unknown}; it has {sorted(model.parameters) or 'none'}")
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise SqlModelError(f"{model.key}: parameter {name} must be a number, got {value!r}")
    return {**model.parameters, **{name: float(value) for name, value in given.items()}}


def check_tests(model: SqlModel, frame: pl.DataFrame) -> list[SqlTestResult]:
    """The result of every test of the model's header on its table, in order of the header."""
    return [_check(model, test, frame) for test in model.tests]


def _create_views(model: SqlModel, connection: "duckdb.DuckDBPyConnection") -> None:
    for name, sql in model.views.items():
        connection.execute(_create_view(name, sql))


def _create_view(name: str, sql: str) -> str:
    return f"create or replace view {name} as\n{sql}"


@dataclass(frozen=True)
class _Header:
    """What the comments before the statement declare."""

    grain: str
    tests: tuple[SqlTest, ...]
    is_per_shard: bool
    parameters: dict[str, float]
    made_for: tuple[str, ...]


def _header(text: str, path: Path) -> _Header:
    grain: str | None = None
    tests: list[SqlTest] = []
    parameters: dict[str, float] = {}
    made_for: tuple[str, ...] = ()
    is_per_shard = False
    for line in text.splitlines():
        if not line.strip():
            continue
        if not line.startswith("--"):
            break
        comment = line.removeprefix("--").strip()
        if grain is None:
            if not comment.startswith("Grain:"):
                raise SqlModelError(f"{path}: the first comment must state the grain ('-- Grain: one row per …')")
            grain = comment.removeprefix("Grain:").strip()
        elif comment.startswith("test:"):
            tests.append(_parse_test(comment.removeprefix("test:").split(), path))
        elif comment.startswith("parameter:"):
            match = re.fullmatch(r"parameter: ([a-z][a-z0-9_]*) (-?[0-9]*\.?[0-9]+)", comment)
            if match is None:
                raise SqlModelError(f"{path}: a parameter reads '-- parameter: NAME NUMBER', got {comment!r}")
            parameters[match.group(1)] = float(match.group(2))
        elif comment.startswith("made for:"):
            made_for = tuple(comment.removeprefix("made for:").split())
            if unknown := sorted(set(made_for) - set(KINDS)):
                raise SqlModelError(f"{path}: made for {unknown}; planted kinds are {', '.join(KINDS)}")
        elif comment.startswith("applied:"):
            if comment != "applied: per shard":
                raise SqlModelError(
                    f"{path}: the only word on how it is applied is 'applied: per shard', got {comment!r}"
                )
            is_per_shard = True
    if not grain:
        raise SqlModelError(f"{path}: the file must begin with a comment '-- Grain: one row per …'")
    return _Header(grain, tuple(tests), is_per_shard, parameters, made_for)


def _parse_test(words: list[str], path: Path) -> SqlTest:
    kind, rest = (words[0] if words else ""), words[1:]
    if kind not in _ARGUMENT_COUNTS:
        raise SqlModelError(f"{path}: no test {kind!r}; there are {', '.join(_ARGUMENT_COUNTS)}")
    least, most = _ARGUMENT_COUNTS[kind]
    if not least <= len(rest) <= most:
        raise SqlModelError(f"{path}: test {kind} takes {least} to {most} words, got {rest}")
    if kind == "range":
        try:
            float(rest[1]), float(rest[2])
        except ValueError:
            raise SqlModelError(f"{path}: test range takes a column and two numbers, got {rest}") from None
    if kind == "unique":
        return SqlTest("unique", tuple(rest))
    return SqlTest(kind, (rest[0],), tuple(rest[1:]))  # type: ignore[arg-type]


def _single_select(text: str, path: Path) -> exp.Select:
    try:
        statements = [statement for statement in sqlglot.parse(text, dialect=DIALECT) if statement is not None]
    except SqlglotError as error:
        raise SqlModelError(f"{path}: not a DuckDB statement: {error}") from error
    if len(statements) != 1 or not isinstance(statements[0], exp.Select):
        kinds = [type(statement).__name__ for statement in statements]
        raise SqlModelError(f"{path}: expected one select statement, got {kinds}")
    statement = statements[0]
    tail = statement.copy()
    tail.set("with_", None)
    if tail.sql(dialect=DIALECT, comments=False).lower() != "select * from final":
        raise SqlModelError(f"{path}: the statement must end with 'select * from final'")
    return statement


def _views(statement: exp.Select, scaled: Sequence[str]) -> dict[str, str]:
    """The scaled signals that a statement reads: 'fused.sieve_scaled' → select statement, each after what it reads."""
    read = {f"{table.db}.{table.name}" for table in statement.find_all(exp.Table)}
    signals = {name.removeprefix("fused.").removesuffix(SCALED) for name in read if _is_scaled_signal(name)}
    views = {}
    if scaled:
        signals |= set(scaled)
        views[ALL_SCALED] = recipe_view(scaled)
    return {**{f"fused.{signal}{SCALED}": signal_view(signal) for signal in sorted(signals)}, **views}


def _is_scaled_signal(name: str) -> bool:
    return name.startswith("fused.") and name.endswith(SCALED)


def _named_signals(statement: exp.Select, path: Path) -> list[str]:
    """Signals whose scores a statement names where it selects from `fused.scaled`, in the order of the text."""
    columns: dict[str, None] = {}
    if ALL_SCALED not in {f"{table.db}.{table.name}" for table in statement.find_all(exp.Table)}:
        return []
    for select in statement.find_all(exp.Select):
        source = select.args["from_"].this if select.args.get("from_") else None
        if not isinstance(source, exp.Table) or f"{source.db}.{source.name}" != ALL_SCALED:
            continue
        if select.args.get("joins"):
            raise SqlModelError(f"{path}: select from {ALL_SCALED} in a CTE of its own, without a join")
        own = select.find_all(exp.Column, bfs=False)
        columns |= {column.name: None for column in own if column.find_ancestor(exp.Select) is select}
    try:
        signals = [signal_of(name) for name in columns if name not in OTHER_COLUMNS]
    except ValueError as error:
        raise SqlModelError(f"{path}: {error}") from None
    if not signals:
        raise SqlModelError(f"{path} reads {ALL_SCALED} and names no score, such as icc_score")
    return signals


def _expanded(statement: exp.Select, views: Mapping[str, str]) -> exp.Select:
    """A copy with the views' statements substituted, as columns are traced and versions are made."""
    if not views:
        return statement

    def with_views_expanded(node: exp.Expression) -> exp.Expression:
        name = f"{node.db}.{node.name}" if isinstance(node, exp.Table) else ""
        if name not in views:
            return node
        view = _expanded(cast(exp.Select, sqlglot.parse_one(views[name], dialect=DIALECT)), views)
        return view.subquery(node.alias_or_name)

    return cast(exp.Select, statement.transform(with_views_expanded))


def _references(statement: exp.Select, path: Path) -> tuple[str, ...]:
    """Tables that the statement reads, CTEs aside."""
    ctes = {cte.alias for cte in statement.find_all(exp.CTE)}
    references = set()
    for table in statement.find_all(exp.Table):
        if not table.db and table.name in ctes:
            continue
        if not table.db or table.catalog or not table.name:
            raise SqlModelError(
                f"{path}: tables are named stage.name, got {table.sql(dialect=DIALECT)!r}; no files, no functions"
            )
        references.add(f"{table.db}.{table.name}")
    if not references:
        raise SqlModelError(f"{path} reads no table")
    return tuple(sorted(references))


def _column_lineage(statement: exp.Select, path: Path) -> dict[str, list[tuple[str, str]]]:
    """Output column → source columns that its value is computed from (conditions of joins and filters aside)."""
    try:
        nodes = lineage(None, _with_qualified_columns(statement), {}, dialect=DIALECT)
    except SqlglotError as error:
        raise SqlModelError(
            f"{path}: columns cannot be traced: {error}; name every column, with its table in joins"
        ) from error
    columns_read = {}
    for column, node in nodes.items():
        sources = set()
        for leaf in node.walk():
            if isinstance(leaf.expression, exp.Placeholder):
                raise SqlModelError(f"{path}: column {column!r} cannot be traced at {leaf.name!r}; qualify it")
            if isinstance(leaf.expression, exp.Table) and leaf.expression.db:
                source = f"{leaf.expression.db}/{leaf.expression.name}"
                sources.add((source, leaf.name.rpartition(".")[2].strip('"')))
        if column == "*" or any(name == "*" for _, name in sources):
            raise SqlModelError(f"{path}: 'select *' from a table outside the file hides its columns; name them")
        columns_read[column] = sorted(sources)
    return columns_read


def _with_qualified_columns(statement: exp.Select) -> exp.Select:
    """A copy in which a select from one table names it in its columns.

    Without a schema the library does this for the first CTE only, and loses the trace in the others.
    """
    copy = statement.copy()
    for select in copy.find_all(exp.Select):
        source = select.args["from_"].this if select.args.get("from_") else None
        if isinstance(source, exp.Table) and not select.args.get("joins"):
            for column in select.find_all(exp.Column):
                if not column.table and column.find_ancestor(exp.Select) is select:
                    column.set("table", exp.to_identifier(source.alias_or_name))
    return copy


def _check(model: SqlModel, test: SqlTest, frame: pl.DataFrame) -> SqlTestResult:
    absent = [column for column in test.columns if column not in frame.columns]
    if absent:
        raise SqlModelError(f"{model.key}: test {test} names {absent}; the table has {frame.columns}")
    column = pl.col(test.columns[0])
    if test.kind == "unique" and _ascends(frame, test.columns):
        broken = frame.clear()
    elif test.kind == "unique":
        broken = frame.filter(pl.struct(test.columns).is_duplicated())
    elif test.kind == "not_null":
        broken = frame.filter(column.is_null())
    elif test.kind == "range":
        low, high = map(float, test.arguments)
        # NaN is outside every range; comparisons alone would put it above.
        broken = frame.filter(column.is_nan() | (column < low) | (column > high))
    else:
        broken = frame.filter(~column.cast(pl.String).is_in(test.arguments))
    example = "" if broken.is_empty() else str(broken.row(0, named=True))
    return SqlTestResult(model.key, test, broken.height, example)
