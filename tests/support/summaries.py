"""Reading a summary, and pasting its statements into DuckDB."""

import json
from collections.abc import Iterator
from typing import Any

import duckdb
import pytest

from curation_assets.operations.summaries import SUMMARY_JSON, Summary
from curation_assets.stores.releases import Release


def answers_of(summary: Summary) -> Iterator[dict[str, Any]]:
    content = json.loads((summary.folder / SUMMARY_JSON).read_text())
    return (answer for section in content["sections"] for answer in section["answers"])


def answer(summary: Summary, asked: str) -> dict[str, Any]:
    (found,) = (one for one in answers_of(summary) if one["asked"] == asked)
    return found


def check_statements(release: Release, summary: Summary, monkeypatch: pytest.MonkeyPatch) -> int:
    """Paste every statement into a DuckDB started in the release's folder; returns how many numbers came out."""
    monkeypatch.chdir(release.folder)
    checked = 0
    for one in answers_of(summary):
        for number in one.get("numbers", []):
            assert duckdb.sql(number["sql"]).fetchall() == [(number["value"],)], number["name"]
            checked += 1
        for table in one.get("tables", []):
            rows = duckdb.sql(table["sql"]).pl().to_dicts()
            assert json.loads(json.dumps(rows)) == table["rows"], table["name"]
            checked += sum(isinstance(value, int | float) for row in rows for value in row.values())
    return checked
