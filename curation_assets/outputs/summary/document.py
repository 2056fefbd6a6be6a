"""A filled-in form as files: summary.md for people, summary.json with every statement, domains.csv."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from curation_assets.core.plain_json import plain
from curation_assets.core.version import __version__
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
    release = facts.release
    earlier = f"; the earlier one is that of release `{release.previous}`" if release.previous else ""
    lines = [
        f"# {form.title}",
        "",
        f"Template of {form.date} ({form.source}). {NOTICE}",
        "",
        f"Version {facts.version} of release `{release.name}` of pool `{release.pool}` "
        f"(sha256 `{release.sha256}`), last updated {facts.updated_at}{earlier}. "
        f"Made by curation_assets {__version__}.",
    ]
    for section in sections:
        lines += ["", f"## {section.number} {section.title}".rstrip()]
        for answer in section.answers:
            lines += ["", _markdown_answer(answer)]
            for table in answer.tables:
                lines += ["", *_markdown_table(table)]
    lines += ["", "## What is to be provided", ""]
    lines += [f"- {_plain(line)}" for line in missing(sections)] or ["Nothing."]
    return "\n".join([*lines, "", *_statements(facts, sections)]) + "\n"


def _markdown_answer(answer: Answer) -> str:
    question, text = _plain(answer.question), _plain(answer.text) if answer.kind != "declared" else answer.text
    if answer.kind == "missing":
        stated = f"(`{answer.key}` of summary.yaml)" if answer.key else text
        return f"**{question}.** **{TO_BE_PROVIDED}** {stated}"
    marks: list[str] = [answer.kind]
    if answer.kind == "to confirm":
        marks = [f"drafted, to be confirmed as `{answer.key}` of summary.yaml"]
    marks += [f"`{_plain(number.name)}`" for number in answer.numbers]
    marks += [answer.basis] if answer.basis else []
    return f"**{question}.** {text} ({'; '.join(marks)})"


def _markdown_table(table: Counted) -> list[str]:
    rows = table.rows.head(SHOWN_ROWS)
    lines = [
        "| " + " | ".join(rows.columns) + " |",
        "|" + "|".join("---:" if kind.is_numeric() else "---" for kind in rows.dtypes) + "|",
        *("| " + " | ".join(map(_cell, row)) + " |" for row in rows.iter_rows()),
    ]
    more = table.rows.height - rows.height
    return [*lines, "", f"(`{table.name}`{f'; {more:,} more rows in summary.json' if more else ''})"]


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


def _statements(facts: Facts, sections: Sequence[Section]) -> list[str]:
    used = {one.name.partition(".")[0] for one in _counted(sections)}
    lines = [
        "## Statements behind the numbers",
        "",
        "`totals.kept` is column `kept` of the table that statement `totals` gives; `reasons.rows where …` is the sum "
        "over the rows of `reasons` that fulfil the condition. Start DuckDB in the release's folder and paste a "
        "statement; summary.json has one for each number.",
        "",
        *(_file_line(name, content) for name, content in _files(facts, sections).items()),
    ]
    for name in sorted(used & statements().keys()):
        lines += ["", f"### {name}", "", "```sql", statements()[name].text_of(facts.release), "```"]
    return lines


def _file_line(name: str, content: Mapping[str, Any]) -> str:
    many = f" of the hashes of {content['files']} files" if "files" in content else ""
    line = f"- `{name}`: sha256{many} `{content.get('sha256') or content['sha256_of_their_sha256']}`"
    for table in content.get("made_from", []):
        version = table.get("content_sha256") or table["sha256_of_their_content_sha256"]
        line += f", of table `{table['table']}`" + (f" ({table['shards']} shards)" if table["shards"] > 1 else "")
        line += f" version `{version}`"
    return line
