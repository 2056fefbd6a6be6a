"""What the README and the pages say can be done."""

import re
import subprocess

import duckdb
import pytest
import typer

from curation_assets.cli import app
from curation_assets.stores.catalog import rebuild_catalog
from tests.conftest import FinishedPool
from tests.support.command import curate
from tests.support.paths import REPOSITORY

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
PAGES = [
    REPOSITORY / "README.md",
    REPOSITORY / "CONTRIBUTING.md",
    *sorted(path for path in (REPOSITORY / "docs").rglob("*.md") if not {"tutorial.md", "decisions"} & {*path.parts}),
]
MAX_WORDS, MAX_WIDTH = 900, 100


def command_lines(text: str) -> list[str]:
    """Every `curate …` of a page: lines of code blocks without their comments, and what stands between backticks."""
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)  # marks of tests/support/pages.py
    blocks = re.findall(r"```(?:bash)?\n(.*?)```", text, flags=re.DOTALL)
    lines = [line for block in blocks for line in re.findall(r"^curate ([^#\n]+)", block, flags=re.MULTILINE)]
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return lines + re.findall(r"`curate ([^`]+)`", prose)


LINES = sorted({" ".join(line.split()) for page in PAGES for line in command_lines(page.read_text(encoding="utf-8"))})


def test_both_commands_are_named_and_ci_calls_the_test_command() -> None:
    assert "make demo" in README
    assert "make test" in README
    assert "make test" in (REPOSITORY / ".ci" / "run").read_text()


def test_the_readme_is_short_and_fits_a_screen() -> None:
    assert len(README.split()) < MAX_WORDS
    assert [line for line in README.splitlines() if len(line) > MAX_WIDTH] == []


@pytest.mark.slow
def test_every_make_target_in_the_readme_exists() -> None:
    named = set(re.findall(r"(?:^|`)make ([a-z][a-z-]*)", README, flags=re.MULTILINE))
    assert {"demo", "test"} <= named
    for target in named:
        dry = subprocess.run(["make", "-n", target], cwd=REPOSITORY, capture_output=True, text=True, check=False)
        assert dry.returncode == 0, (target, dry.stderr)


@pytest.mark.slow
@pytest.mark.parametrize("line", LINES)
def test_every_curate_line_of_the_pages_parses(line: str) -> None:
    words = re.split(r" (?=-|\.\.\.)", line)[0].split()
    group = typer.main.get_command(app)
    command: list[str] = []
    while words and words[0] in getattr(group, "commands", {}):
        group = group.commands[words[0]]  # type: ignore[attr-defined]
        command.append(words.pop(0))
    assert command or words[0].startswith("--"), f"no command in {line!r}"
    shown = curate(*command, "--help")
    assert shown.exit_code == 0, line
    for option in re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", line):
        assert option in shown.output, (option, line)


def test_every_query_in_the_readme_runs(finished_pool: FinishedPool) -> None:
    queries = re.findall(r"```sql\n(.*?)```", README, flags=re.DOTALL)
    assert queries
    catalog = rebuild_catalog(finished_pool.settings.home)
    with duckdb.connect(str(catalog), read_only=True) as connection:
        for query in queries:
            for statement in filter(str.strip, query.replace("photos.", "tiny.").split(";")):
                assert connection.sql(statement).fetchall() is not None
