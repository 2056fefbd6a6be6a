"""Captions, URLs, sources, creators and names with control characters: no command prints one, no line is forged."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from mcp.client import Client

from curation_assets.cli.commands import takes_home
from curation_assets.core.settings import load_settings
from curation_assets.core.visible import visible
from curation_assets.operations.agents.server import make_server
from curation_assets.stores.shard_store import ShardStore
from tests.support.command import curate as in_process
from tests.support.hostile_texts import CONTROL, FORGED, HOSTILE

#: Texts of a run's and a release's folders that people read in a terminal.
READ_BY_PEOPLE = ("*.md", "*.html", "*.json", "*.tsv")


def harmless(text: str) -> str:
    """The text itself. Fails where a terminal would do something else with it than show it."""
    assert not CONTROL.search(text), CONTROL.search(text)
    assert not re.search(rf"^\W*{FORGED}", text, re.MULTILINE), text
    return text


def curate(home: Path, *words: object, status: int = 0) -> str:
    where = ["--home", str(home)] if takes_home(list(map(str, words))) else []
    shown = in_process(*words, *where)
    assert shown.exit_code == status, shown.output
    return harmless(shown.stdout) + harmless(shown.stderr)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [{"caption": f"a brown dog runs over green grass {n}", "source_name": "plain"} for n in range(24)]
    rows += [{"caption": text, "source_name": f"source {text}"} for text in HOSTILE]
    for number, row in enumerate(rows):
        text = HOSTILE[number % len(HOSTILE)]
        row |= {"page": f"https://host.example/{text}", "license": f"of {text}", "creator": text}
    path = tmp_path_factory.mktemp("table") / "captions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, table: Path) -> Path:
    """A pool of such texts that has run, and what the run printed."""
    home = tmp_path_factory.mktemp("hostile") / "home"
    columns = ("--source-column", "source_name", "--licence-column", "license", "--creator-column", "creator")
    curate(home, "pool", "add", "texts", table, "--url-column", "none", *columns, "--source-url-column", "page")
    curate(home, "pool", "set", "texts", "downstream=false")
    curate(home, "run", "texts")
    return home


@pytest.mark.slow
def test_no_command_prints_them(home: Path, table: Path, tmp_path: Path) -> None:
    samples = ShardStore(home / "work" / "texts").scan("raw/samples").select("sample_id", "caption").collect()
    for sample_id, caption in samples.filter(pl.col("caption").is_in(HOSTILE)).iter_rows():
        assert visible(caption) in curate(home, "why", sample_id)
        assert json.loads(curate(home, "why", sample_id, "--json"))[0]["caption"] == caption
    for words in (
        ("diff", "icc", "random"),
        ("release", "create", "icc", "v1"),
        ("release", "show", "v1"),
        ("release", "diff", "v1", "v1"),
        ("release", "list"),
        ("summary", "v1"),
        ("summary", "v1", "--template", "croissant-rai"),
        ("show", "lineage", "icc"),
        ("show", "cost", "texts"),
        ("export", "hf", "icc", "--out", tmp_path / "hf"),
        ("verify", "texts"),
        ("plan", "texts"),
        ("score", "icc", table, "--out", tmp_path / "scores.parquet"),
        ("look", table, "--into", tmp_path / "look.html"),
    ):
        curate(home, *words)
    for words in (
        ("diff", "icc", "random", "--json"),
        ("release", "show", "v1", "--json"),
        ("show", "lineage", "icc", "--json"),
    ):
        json.loads(curate(home, *words))
    for text in HOSTILE:
        curate(home, "icc", "explain", text, "--scenes", 0)
        for refused in (("why", text), ("pool", "add", text, table), ("run", text), ("release", "show", text)):
            curate(home, *refused, status=1)
    folders = (home / "work" / "texts" / "downstream", home / "releases", tmp_path)
    texts = [path for folder in folders for pattern in READ_BY_PEOPLE for path in folder.rglob(pattern)]
    assert {"report.html", "card.md", "summary.md", "README.md", "look.html"} <= {path.name for path in texts}
    for path in texts:
        harmless(path.read_text(encoding="utf-8"))


@pytest.mark.slow
def test_agents_get_them_visible(home: Path) -> None:
    answers: list[Any] = []

    async def ask() -> None:
        async with Client(make_server(load_settings(home))) as client:
            rows = "select caption, creator from texts.raw_samples join texts.raw_provenance using (shard, source_row)"
            for tool, arguments in (
                ("sql", {"query": rows}),
                ("sql", {"query": f"select {HOSTILE[0]!r}"}),
                ("diff", {"pool": "texts", "left": "icc", "right": "random"}),
                ("pools", {}),
                ("why", {"sample": f"https://{HOSTILE[0]}"}),
            ):
                result = await client.call_tool(tool, arguments)
                answers.append([one.text for one in result.content])  # type: ignore[union-attr]
                answers.append(result.structured_content)

    asyncio.run(ask())
    assert visible(HOSTILE[0]) in json.dumps(answers[1]).replace("\\\\", "\\")
    for answer in answers:
        for text in re.findall(r"(?s).+", str(answer)):
            assert not CONTROL.search(text)
