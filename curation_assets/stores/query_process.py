"""A query in a process of its own: JSON on standard input, an answer or an error as JSON on standard output.

DuckDB bounds neither the text that one function makes nor the time until it notices an interrupt; a process that may be
killed, and that the kernel gives no more memory, is bounded. Nothing of the package is imported: it starts in .1 s.
"""

import contextlib
import json
import resource
import sys
from typing import Any

import duckdb

FRAME = 100  # characters of an answer beside names and rows
MEMORY = 4 << 30  # bytes of addresses; tables and groups have a fourth
SETTINGS: dict[str, Any] = {
    "memory_limit": "1GB",
    "threads": 2,
    "temp_directory": "",
    "python_enable_replacements": False,
    "autoinstall_known_extensions": False,
}


def plain(value: Any) -> Any:
    """A cell for JSON: what JSON has no form for as text, bytes by their number."""
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


#: Errors that come before a row is read: their words quote the query and names of columns.
_OF_THE_QUERY = (
    duckdb.BinderException, duckdb.CatalogException, duckdb.ParserException, duckdb.SyntaxException,
    duckdb.OutOfMemoryException, duckdb.PermissionException,
)  # fmt: skip


def in_words(error: Exception) -> str:
    """The error without the value, of whatever sample, that another one quotes."""
    if isinstance(error, _OF_THE_QUERY):
        return str(error).strip()
    if isinstance(error, MemoryError):
        return "out of memory"
    kind = type(error).__name__.removesuffix("Exception")
    return (
        f"{kind} error at a value, which its words quote and which is left out here; try_cast(… as …) and try(…) give "
        "null for what cannot be converted or computed"
    )


def main() -> None:
    """Run `setup`, then `query`; give at most `max_rows` rows and `max_characters` of names and rows."""
    asked = json.load(sys.stdin)
    with contextlib.suppress(ValueError, OSError):  # macOS has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    try:
        with duckdb.connect(config=SETTINGS) as connection:
            for statement in asked["setup"]:
                connection.execute(statement)
            connection.execute(asked["query"])
            names = [column[0] for column in connection.description or ()]
            rows: list[Any] = []
            size, more = len(json.dumps(names)) + FRAME, False
            while (row := connection.fetchone()) is not None:
                cells = plain(row)
                size += len(json.dumps(cells)) + 1
                more = len(rows) == asked["max_rows"] or size > asked["max_characters"]
                if more:
                    break
                rows.append(cells)
        answer: dict[str, Any] = {"names": names, "rows": rows, "more": more}
    except (duckdb.Error, MemoryError) as error:
        answer = {"error": in_words(error)}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
