"""Blocks of code of a page, and a reader who does what they say: runs them in order, writes the files that they show.

What a block needs beside its text stands in HTML comments right before it, which nobody who reads the page sees:

| comment | what the reader does |
|---|---|
| `<!-- not run: REASON -->` | leaves the block out |
| `<!-- file: PATH -->` | writes the block to PATH of the working folder |
| `<!-- into: PATH -->` | merges a block of YAML into a file, such as options into a pool's declaration |
| `<!-- first: LINES -->` | runs these lines of bash before it |
| `<!-- then: LINES -->` | runs these lines of bash after it |
| `<!-- where: ID=words … -->` | from here on reads a word of capitals as these words |

Without one, bash, python and sql are run; text is what was printed: each of its lines, in order.
"""

import io
import os
import re
import shlex
import subprocess
import sys
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import duckdb
import polars as pl
import yaml

from curation_assets.core.roles import ROLES
from curation_assets.core.stages import STAGES
from tests.support.forking import SOCKET, ForkServer
from tests.support.paths import REPOSITORY

RUN = ("bash", "python", "sql")
KEYS = ("not run", "file", "into", "first", "then", "where")
_COMMENT = r"<!--(?:(?!-->).)*-->\n"
_BLOCK = re.compile(rf"((?:^ *{_COMMENT}\n?)*)^( *)```([^\n]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
#: What a reader's shell has besides: commands that serve until Ctrl+C are stopped once they have shown their address.
_SHELL = f"""
set -eo pipefail
curate() {{
    case " $* " in
        *" --help "*) command curate "$@" ;;
        " explore "* | " ui "* | *" --web "* | *" --http "*)
            "$PYTHON" -m tests.support.until_served curate "$@" ;;
        *) "$PYTHON" -m tests.support.forking "$@" < <(yes $'1\\n2\\n3' 2>/dev/null) ;; # answers to questions
    esac
}}
make() {{ [ "$1" = test ] || command make -C {shlex.quote(str(REPOSITORY))} -o .venv/.installed "$@"; }} # test: this
PS4='$ '
set -x
"""
#: Pages have a hundred commands, each of which would load for seconds what it needs.
SERVER = ForkServer(
    [
        *(f"curation_assets.{name}" for name in ("cli", "definitions", "defs.launch")),
        *(f"curation_assets.{stage.package}.tables" for stage in STAGES.values()),
        *(f"curation_assets.engines.{role}" for role in sorted(ROLES)),
    ]
)


@dataclass(frozen=True)
class Block:
    """A block of code of a page. `line`: of its fence. `marks`: by key."""

    page: str
    line: int
    language: str
    text: str
    marks: dict[str, str] = field(default_factory=dict)

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    def fault(self) -> str | None:
        """Why nobody could do what it says, or None."""
        unknown = [key for key in self.marks if key not in KEYS]
        if unknown:
            return f"{self.place}: no mark is called {unknown[0]!r}; known: {', '.join(KEYS)}"
        if self.language in (*RUN, "text") or {"not run", "file", "into"} & self.marks.keys():
            return None if self.marks.get("not run", "why") else f"{self.place}: `not run` states no reason"
        return f"{self.place}: a block of {self.language or 'no language'} needs a mark: not run, file or into"


def blocks_of(path: Path) -> list[Block]:
    """The blocks of a page in order."""
    text = path.read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        comments, indent, language, content = match.groups()
        marks = dict(re.findall(r"<!-- ([a-z ]+):\s+(.*?)\s*-->", comments, flags=re.DOTALL))
        content = re.sub(rf"^{indent}", "", content, flags=re.MULTILINE)
        line = text.count("\n", 0, match.start(3)) + 1
        found.append(Block(path.relative_to(REPOSITORY).as_posix(), line, language, content, marks))
    return found


class Reader:
    """Who does what a page says in a folder. `data`: what stands for /data in it; its home is `folder`/data."""

    def __init__(self, folder: Path, data: Path, **words: str) -> None:
        self.folder, self.data, self.home = folder, data, folder / "data"
        self.words = {"DIR": "out", "PYTHON": sys.executable, **words}
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.printed = ""
        self.environment = {
            **{name: value for name, value in os.environ.items() if name != "DAGSTER_HOME"},
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": str(REPOSITORY),
            "PYTHON": sys.executable,
            "CURATION_HOME": str(self.home),
            SOCKET: SERVER.socket(),
            "BROWSER": "true",
            "COLUMNS": "200",
        }

    def read(self, page: list[Block]) -> list[str]:
        """Do all of it; what failed, one text a block."""
        failed = []
        for block in page:
            if "where" in block.marks:
                self.words |= dict(word.split("=", 1) for word in shlex.split(block.marks["where"]))
            if "not run" in block.marks:
                continue
            try:
                self.do(block)
            except Exception as error:
                failed.append(f"{block.place}: {type(error).__name__}: {error}")
        return failed

    def do(self, block: Block) -> None:
        """One block with what stands before and after it. Raises whatever is wrong with it."""
        if "first" in block.marks:
            self.bash(block.marks["first"])
        if "file" in block.marks:
            path = self.folder / block.marks["file"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.filled(block.text), encoding="utf-8")
        elif "into" in block.marks:
            path = self.folder / block.marks["into"]
            merged = _merged(yaml.safe_load(path.read_text("utf-8")), yaml.safe_load(self.filled(block.text)))
            path.write_text(yaml.safe_dump(merged), encoding="utf-8")
        else:
            getattr(self, block.language)(block.text)
        if "then" in block.marks:
            self.bash(block.marks["then"])

    def filled(self, text: str) -> str:
        """The text with what the page leaves to the reader: names in capitals, where the data lies."""
        if "ID" not in self.words and re.search(r"\bID\b", text):
            samples = pl.scan_parquet(self.home / "work" / "*" / "raw" / "samples" / "*" / "data.parquet")
            kept = samples.filter(pl.col("status") == "kept").select("sample_id").head(1).collect()
            self.words["ID"] = kept["sample_id"][0]
        for word, value in self.words.items():
            text = re.sub(rf"(?<![\w$/]){word}(?!\w|=)", value.replace("\\", r"\\"), text)
        return re.sub(r"(?<![\w.$/-])/data/", f"{self.data}/", text)

    def bash(self, text: str) -> None:
        """Run the lines, and the commands that comments name, as `then: curate verify`."""
        text = re.sub(r"(#.*: )(curate [a-z ]+)$", r"\1\n\2", text, flags=re.MULTILINE)
        text = re.sub(r"^([^#\n]+?)( +# exits? 1\b)", r"\1 || [ $? = 1 ]\2", text, flags=re.MULTILINE)
        done = subprocess.run(
            ["bash", "-c", _SHELL + self.filled(text)],
            cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        self.printed += done.stdout
        if done.returncode:
            raise ValueError(f"status {done.returncode}: {done.stdout[-400:]}\n{done.stderr[-1500:]}")

    def python(self, text: str) -> None:
        """Run a block in the namespace of the page's other blocks."""
        printed = io.StringIO()
        with chdir(self.folder), redirect_stdout(printed), patch.dict(os.environ, self.environment):
            exec(compile(self.filled(text), "a block of python", "exec"), self.names)
        self.printed += printed.getvalue()

    def sql(self, text: str) -> None:
        """Query the catalogue; no row is a fault."""
        with duckdb.connect(str(self.home / "catalog.duckdb"), read_only=True) as connection:
            if not connection.sql(text).fetchall():
                raise ValueError("gives no row")

    def text(self, text: str) -> None:
        """Compare with what was printed."""
        place = 0
        lines = [line.rstrip() for line in self.printed.splitlines()]
        for line in filter(None, map(str.rstrip, text.splitlines())):
            if line not in lines[place:]:
                raise ValueError(f"nothing printed {line!r}; the end of what was printed:\n{self.printed[-1500:]}")
            place += lines[place:].index(line) + 1


def _merged(old: Any, new: Any) -> Any:
    if isinstance(old, dict) and isinstance(new, dict):
        return old | {key: _merged(old.get(key), value) for key, value in new.items()}
    return new
