"""The table of methods: every method once, its facts, and the copy in docs/user/methods.md."""

from dataclasses import replace
from pathlib import Path

import pytest

from curation_assets.methods import all_methods, get_method
from curation_assets.outputs.report.method_table import (
    BEGIN,
    END,
    availability,
    markdown_table,
    method_rows,
    shipped_profiles,
    table_in,
    write_table,
)
from tests.support.command import curate
from tests.support.paths import REPOSITORY

PAGE = REPOSITORY / "docs" / "user" / "methods.md"


def test_the_page_has_the_generated_table() -> None:
    assert table_in(PAGE.read_text(encoding="utf-8")) == markdown_table(), (
        "the table of docs/user/methods.md is old; run `curate methods --into docs/user/methods.md`"
    )


def test_every_method_has_a_row_with_all_its_facts() -> None:
    rows = {row["method"]: row for row in method_rows()}
    assert list(rows) == list(all_methods())
    for name, row in rows.items():
        method = get_method(name)
        assert all(row.values()), row
        assert method.unit in row["unit"]
        assert row["source"] == method.source
    assert len(markdown_table().split("\n")) == 2 + len(rows)


def test_availability_says_what_a_profile_lacks() -> None:
    embedded, sieve = shipped_profiles()["embedded"], get_method("sieve")
    assert availability(sieve, embedded) is None
    bare = replace(embedded, roles={"captioner": "embedded:captioner"})
    assert availability(sieve, bare) == "needs sentence_encoder"
    assert availability(sieve, embedded.with_roles(sentence_encoder="debian:words")) == "with Debian's words"


def test_table_is_written_between_the_markers_only(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    assert write_table(page)
    assert not write_table(page)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert table_in(text) == markdown_table()
    with pytest.raises(ValueError, match="once each"):
        table_in("no markers")


def test_command_lists_and_prints_markdown() -> None:
    listed = curate("methods", width=400)
    assert listed.exit_code == 0
    assert "laion_filter" in listed.output
    assert "profiles" in listed.output
    printed = curate("methods", "--markdown")
    assert printed.output.strip() == markdown_table()
