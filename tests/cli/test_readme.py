"""What the README says can be done."""

import re
import subprocess

import duckdb
import pytest
from typer.testing import CliRunner

from curation_assets.cli import app
from curation_assets.cli.commands import GROUPS
from curation_assets.stores.catalog import rebuild_catalog
from tests.conftest import FinishedPool
from tests.support.paths import REPOSITORY

README = (REPOSITORY / "README.md").read_text()
COMMANDS = README + "".join((REPOSITORY / "docs" / name).read_text() for name in ("icc.md", "methods.md"))


def test_both_commands_are_named_and_ci_calls_the_test_command() -> None:
    assert "make demo" in README
    assert "make test" in README
    assert "make test" in (REPOSITORY / ".ci" / "run").read_text()


def test_every_make_target_in_the_readme_exists() -> None:
    named = set(re.findall(r"(?:^|`)make ([a-z][a-z-]*)", README, flags=re.MULTILINE))
    assert {"demo", "test"} <= named
    for target in named:
        dry = subprocess.run(["make", "-n", target], cwd=REPOSITORY, capture_output=True, text=True, check=False)
        assert dry.returncode == 0, (target, dry.stderr)


@pytest.mark.parametrize("line", sorted(set(re.findall(r"^curate ([^#\n]+)", COMMANDS, flags=re.MULTILINE))))
def test_every_curate_line_in_the_readme_parses(line: str) -> None:
    words = [word for word in line.split() if not word.startswith("-")]
    command = words[:2] if words[0] in GROUPS else words[:1]
    shown = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0, line
    for option in re.findall(r"(--[a-z-]+)", line):
        assert option in shown.output, (option, line)


def test_every_query_in_the_readme_runs(finished_pool: FinishedPool) -> None:
    queries = re.findall(r"```sql\n(.*?)```", README, flags=re.DOTALL)
    assert queries
    catalog = rebuild_catalog(finished_pool.settings.home)
    with duckdb.connect(str(catalog), read_only=True) as connection:
        for query in queries:
            for statement in filter(str.strip, query.replace("scenes.", "tiny.").split(";")):
                assert connection.sql(statement).fetchall() is not None


def test_linked_files_exist() -> None:
    for link in re.findall(r"\]\(((?!http)[^)#]+)\)", README):
        assert (REPOSITORY / link).exists(), link
