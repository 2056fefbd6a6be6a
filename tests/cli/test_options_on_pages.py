"""Every option of a command stands on the page of its task: a page that names the command."""

import re

import pytest
import typer

from curation_assets.cli.commands import Entry, entries, load
from curation_assets.core.validation import fields_of
from docs.contributor.make_options import TABLES
from tests.support.paths import REPOSITORY

#: Made from the code: that an option is there says nothing of a task.
GENERATED = {"options.md", "reliability.md"}
PAGES = {
    path.name: path.read_text(encoding="utf-8")
    for path in [
        REPOSITORY / "README.md",
        *(REPOSITORY / "docs").glob("user/*.md"),
        *(REPOSITORY / "docs").glob("operator/*.md"),
    ]
    if path.name not in GENERATED
}
#: Options that most commands have: one page explains each for all.
COMMON = {"--home", "--profile", "--json", "--wait", "--no-wait", "--open", "--no-open"}


def options_of(entry: Entry) -> list[list[str]]:
    """Spellings of each option of a command."""
    single = typer.Typer(add_completion=False)
    single.command()(load(entry))
    params = typer.main.get_command(single).params
    return [[*param.opts, *param.secondary_opts] for param in params if param.param_type_name == "option"]


def names(page: str, words: str) -> bool:
    return re.search(re.escape(words) + r"(?![\w-])", page) is not None


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.name)
def test_every_option_is_on_a_page_that_names_its_command(entry: Entry) -> None:
    pages = [page for page in PAGES.values() if names(page, f"curate {entry.name}")]
    assert pages, f"no page names curate {entry.name}"
    missing = [
        spellings
        for spellings in options_of(entry)
        if not COMMON & set(spellings) and not any(names(page, one) for page in pages for one in spellings)
    ]
    assert missing == []


def test_options_of_all_commands_are_explained_once() -> None:
    for option in sorted(COMMON - {"--no-wait", "--open"}):
        assert any(names(page, option) for page in PAGES.values()), option


@pytest.mark.parametrize("heading", [heading for heading, _, _ in TABLES])
def test_every_option_of_a_pool_is_on_a_page_of_a_task(heading: str) -> None:
    (described,) = (cls for title, _, cls in TABLES if title == heading)
    written = r"(?<!\w){name}(`|:|=|, `)"
    missing = [
        name
        for name in fields_of(described)
        if not any(re.search(written.format(name=name), page, re.MULTILINE) for page in PAGES.values())
    ]
    assert missing == []
