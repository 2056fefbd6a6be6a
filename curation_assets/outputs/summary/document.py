"""A filled-in form as files: summary.md for people, summary.json with every statement, domains.csv."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from curation_assets.core.plain_json import plain
from curation_assets.core.version import __version__
from curation_assets.outputs.pages import markdown_of
from curation_assets.outputs.summary.counts import statements
from curation_assets.outputs.summary.facts import Answer, Counted, Facts, Number, Section
from curation_assets.stores.releases import Release

FORMAT = "curation_summary/1"
VERSIONS = "the summary that stood here before, else release.json: name, created_at"
NOTICE = (
    "Made by a program from a release of a curation run, for whoever has to fill in the form. It is never legal advice "
    "and never an attestation: what it says is what the run recorded, and what the provider states is marked as such."
)
TO_BE_PROVIDED = "TO BE PROVIDED"
SHOWN_ROWS = 20  # of a table in summary.md
JSON_ROWS = 1_000  # of a table in summary.json: texts that come with samples, such as licences, may differ in each
_LONGEST_CELL = 160


@dataclass(frozen=True)
class Form:
    """A form that asks: its title, its source, and the date of the text that was followed."""

    name: str
    title: str
    source: str
    date: str
    sections: Callable[[Facts], list[Section]]


def first_version(release: Release, form: str) -> int:
    """Version of a release's first summary: 1 more than the last one of the release that it replaces."""
    takedowns = 0 if release.name == release.original else int(release.name.removeprefix(f"{release.original}."))
    return 1 + int(release.about.get("summary_versions", {}).get(form, takedowns))


def missing(sections: Sequence[Section]) -> list[str]:
    """A line for each answer that only the provider can give, and has not given or not confirmed."""
    return [
        f"{section.number} {answer.question}: {answer.key or 'sources of the pool'}"
        + (" (a draft is there, to be confirmed)" if answer.kind == "to confirm" else "")
        for section in sections
        for answer in section.answers
        if answer.kind in ("missing", "to confirm")
    ]


# -- JSON -------------------------------------------------------------------------------------------------------------


def to_json(form: Form, facts: Facts, sections: Sequence[Section]) -> str:
    """summary.json: every answer with its kind, its numbers and their statements, and versions of the tables."""
    release = facts.release
    content = {
        "format": FORMAT,
        "template": {"name": form.name, "title": form.title, "source": form.source, "date": form.date},
        "notice": NOTICE,
        "software": f"curation_assets {__version__}",
        "version": facts.version,
        "last_update": facts.updated_at,
        "earlier": release.previous,
        "release": {"pool": release.pool, "name": release.name, "sha256": release.sha256},
        "sections": [
            {"number": one.number, "title": one.title, "answers": [_answer(answer) for answer in one.answers]}
            for one in sections
        ],
        "to_be_provided": missing(sections),
        "files": _files(facts, sections),
    }
    return json.dumps(plain(content), indent=1, ensure_ascii=False) + "\n"


def _answer(answer: Answer) -> dict[str, Any]:
    content: dict[str, Any] = {"asked": answer.question, "kind": answer.kind, "text": answer.text}
    if answer.kind == "missing":
        content["text"] = TO_BE_PROVIDED
    content |= {name: value for name, value in (("key", answer.key), ("basis", answer.basis)) if value}
    if answer.numbers:
        content["numbers"] = [_number(number) for number in answer.numbers]
    if answer.tables:
        content["tables"] = [_table(table) for table in answer.tables]
    return content


def _number(number: Number) -> dict[str, Any]:
    return {"name": number.name, "value": number.value, "files": list(number.files), "sql": number.sql}


def _table(table: Counted) -> dict[str, Any]:
    rows = table.rows.head(JSON_ROWS).to_dicts()
    left = {"rows_left_out": table.rows.height - len(rows)} if table.rows.height > len(rows) else {}
    return {"name": table.name, "files": list(table.files), "sql": table.sql, "rows": rows, **left}


def _files(facts: Facts, sections: Sequence[Section]) -> dict[str, Any]:
    """Files of the release that a statement reads → their sha256 and the tables that they were made from."""
    read = sorted({file for one in _counted(sections) for file in one.files})
    return {file: facts.read_of(file) for file in read}


def _counted(sections: Sequence[Section]) -> list[Number | Counted]:
    """All numbers and tables of a form."""
    answers = [answer for section in sections for answer in section.answers]
    return [
        *(one for answer in answers for one in answer.numbers),
        *(one for answer in answers for one in answer.tables),
    ]


# -- Markdown ---------------------------------------------------------------------------------------------------------


def to_markdown(form: Form, facts: Facts, sections: Sequence[Section]) -> str:
    """summary.md: the form with its answers, then the statements behind the numbers."""
    used = {one.name.partition(".")[0] for one in _counted(sections)}
    return markdown_of(
        Path(__file__).with_name("summary.md.jinja"),
        form=form,
        facts=facts,
        release=facts.release,
        sections=sections,
        missing=missing(sections),
        files=_files(facts, sections),
        statements={name: statements()[name].text_of(facts.release) for name in sorted(used & statements().keys())},
        notice=NOTICE,
        to_be_provided=TO_BE_PROVIDED,
        shown_rows=SHOWN_ROWS,
        plain=_plain,
        table_cell=_cell,
    )


def _plain(text: str) -> str:
    """A text that names what came with samples, such as sources: one line, and no tags."""
    return " ".join(text.split()).replace("<", "&lt;")


def _cell(value: object) -> str:
    """A value in a table of Markdown; texts come with samples, and may hold anything."""
    if value is None:
        return "–"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    text = " ".join(str(value).split())
    text = text if len(text) <= _LONGEST_CELL else text[: _LONGEST_CELL - 1] + "…"
    return "".join(f"\\{letter}" if letter in "\\|`<>[]*" else letter for letter in text)
