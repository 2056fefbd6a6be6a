"""A table of captions that its owner edits, by the commands: what is planned, run, fitted again and reported."""

import html
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command import curate as in_process

pytestmark = pytest.mark.slow


def curate(*arguments: str, home: Path) -> str:
    result = in_process(*arguments, home=home)
    assert result.exit_code == 0, result.output
    return result.stdout


def stale_of(home: Path) -> dict[str, list[tuple[str, str]]]:
    stale: dict[str, list[tuple[str, str]]] = json.loads(curate("plan", "texts", "--json", home=home))["stale"]
    return stale


def test_an_edit_is_planned_and_a_refit_leaves_nothing_old(tmp_path: Path) -> None:
    source, home = tmp_path / "captions", tmp_path / "home"
    source.mkdir()
    rows = [f"a red car number {number} on a wet street" for number in range(12)]
    (source / "a.csv").write_text("\n".join(["caption", *rows]) + "\n", encoding="utf-8")
    curate("pool", "add", "texts", str(source), "--shard-size", "8", home=home)
    curate("run", "texts", home=home)
    page = (home / "work/texts/downstream/report/report.html").read_text(encoding="utf-8")
    query = html.unescape(page.partition("<h3>Look further</h3>\n  <pre>")[2].partition("</pre>")[0])
    shown = subprocess.run([sys.executable, "-c", query], capture_output=True, text=True, check=True)  # as pasted
    assert "sample_id" in shown.stdout
    assert "downstream/report" not in page.partition("Cost of every table")[2], "no row of itself, as a lost try"
    assert stale_of(home) == {}

    edited = [rows[0] + " at night", *rows[1:]]
    (source / "a.csv").write_text("\n".join(["caption", *edited]) + "\n", encoding="utf-8")
    assert stale_of(home)["raw/registered_shards"] == [["texts-000000", "input changed"]]
    (source / "b.csv").write_text("caption\na grey cat beside a blue door\n", encoding="utf-8")
    assert [key for key, _ in stale_of(home)["raw/registered_shards"]] == ["texts-000000", "texts-000001"]

    curate("run", "texts", home=home)
    curate("refit", "texts", home=home)
    assert stale_of(home) == {}, "the report is of the cuts that were fitted"
