"""What a form is filled in from: counts of a release, each number with the statement that gives it, and its content."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import polars as pl

from curation_assets.audit.release_ledger import release_ledger
from curation_assets.core.table_names import PROVENANCE
from curation_assets.outputs.summary.counts import counts, statements
from curation_assets.outputs.summary.declared import Declared
from curation_assets.selection.policy import Policy
from curation_assets.stores.releases import (
    LEDGER_FILES,
    MANIFESTS,
    OLD_LEDGER_FILE,
    PROVENANCE_FILE,
    RELEASE_FILE,
    Release,
)

if TYPE_CHECKING:
    import duckdb

Kind = Literal["automatic", "to confirm", "declared", "missing"]


@dataclass(frozen=True)
class Number:
    """A number of a release. `sql` gives it where it is pasted into a DuckDB started in the release's folder."""

    name: str  # such as totals.kept
    value: int | float | str | None
    sql: str
    files: tuple[str, ...]  # of the release that the statement reads

    def __str__(self) -> str:
        return (
            "unknown" if self.value is None else f"{self.value:,}" if isinstance(self.value, int) else f"{self.value}"
        )


@dataclass(frozen=True)
class Counted:
    """A table of counts, shown under an answer."""

    name: str
    rows: pl.DataFrame
    sql: str
    files: tuple[str, ...]


@dataclass(frozen=True)
class Answer:
    """What is said to one question of a form."""

    question: str
    text: str
    kind: Kind
    key: str = ""  # of summary.yaml, which says it, or would
    numbers: tuple[Number, ...] = ()
    tables: tuple[Counted, ...] = ()
    basis: str = ""  # what of the release says it, where no statement does


@dataclass(frozen=True)
class Section:
    """A section of a form."""

    number: str
    title: str
    answers: tuple[Answer, ...]


def automatic(
    question: str,
    text: str,
    numbers: Mapping[str, Number] | None = None,
    *,
    basis: str = "",
    tables: Iterable[Counted] = (),
    **others: Number,
) -> Answer:
    """An answer whose text names its numbers in braces, where it has any."""
    named = {**(numbers or {}), **others}
    stated = text.format(**{name: str(number) for name, number in named.items()}) if named else text
    return Answer(question, stated, "automatic", numbers=tuple(named.values()), tables=tuple(tables), basis=basis)


@dataclass(frozen=True)
class Facts:
    """A release, as the forms ask for it."""

    release: Release
    declared: Declared
    is_sme: bool = False  # a small or medium-sized enterprise: the shorter list of domains
    version: int = 1  # of the summary
    updated_at: str = ""  # UTC, ISO 8601: its last change

    @cached_property
    def counts(self) -> dict[str, pl.DataFrame]:
        """The counts of the release (counts.py)."""
        provenance = self.release.folder / PROVENANCE_FILE
        return counts(self.release.ledger_paths, provenance, sources=self.about.get("sources") or [])

    @cached_property
    def _queried(self) -> "duckdb.DuckDBPyConnection":
        """The counts as tables of DuckDB."""
        import duckdb

        connection = duckdb.connect()
        for name, rows in self.counts.items():
            connection.register(name, rows.to_arrow())
        return connection

    @cached_property
    def manifests(self) -> list[dict[str, Any]]:
        """Manifests of the tables upstream, inputs first."""
        return [json.loads(line) for line in (self.release.folder / MANIFESTS).read_bytes().splitlines()]

    @property
    def about(self) -> Mapping[str, Any]:
        """What the release says of its pool."""
        return self.release.about

    @cached_property
    def policy(self) -> Policy:
        """The policy that chose."""
        return release_ledger(self.release).policy

    def number(self, column: str, of: str = "totals", where: str = "", *, per: float | None = None) -> Number:
        """A column of a table of counts over the rows that fulfil `where`: its sum, of dates the earliest or latest, of
        texts how many there are; of a single row its value.

        `per`: divided by it and rounded; of a single row.
        """
        kind = "min" if column.startswith("earliest") else "max"
        if per is not None:
            selected = f'select round("{column}" / {per})::bigint as "{column}"'
        elif of == "totals":
            selected = f'select "{column}"'
        elif self.counts[of].schema[column] != pl.String:
            selected = f'select coalesce(sum("{column}"), 0)::bigint as "{column}"'
        elif column.endswith("_at"):
            selected = f'select {kind}("{column}") as "{column}"'
        else:
            selected = f'select count("{column}") as "{column}"'
        rows, sql = self._asked(selected, of, where)
        name = f"{of}.{column}"
        if per is not None:
            name += f" / {per}"
        if where:
            name += f" where {where}"
        return Number(name, rows.item(), sql, self.files_of(of))

    def stated(self, *path: str | int, file: str = RELEASE_FILE) -> Number:
        """A number in a JSON file of the release, such as about, decontamination, 0, items. Raises KeyError, IndexError
        where it has none there.
        """
        is_own = file == RELEASE_FILE  # the file of a release that is being made comes last
        text = self.release.to_text() if is_own else (self.release.folder / file).read_text(encoding="utf-8")
        value: Any = json.loads(text)
        name = ""
        for part in path:
            value = value[part]
            name += f"[{part + 1}]" if isinstance(part, int) else f".{part}"  # DuckDB counts from 1
        name = name.removeprefix(".")
        return Number(f"{file} {name}", value, f"select {name} from '{file}'", (file,))

    def counted(self, name: str, *columns: str, where: str = "") -> Counted:
        """A table of counts with these columns, of the rows that fulfil `where`."""
        rows, sql = self._asked("select " + (", ".join(f'"{column}"' for column in columns) or "*"), name, where)
        text = statements()[name].text_of(self.release)
        return Counted(name, rows, sql if columns or where else text, self.files_of(name))

    def _asked(self, selected: str, of: str, where: str) -> tuple[pl.DataFrame, str]:
        """What is selected from a table of counts, and the statement that selects it from the release's files."""
        chosen = f" where {where}" if where else ""
        rows = self._queried.sql(f"{selected} from {of}{chosen}").pl()
        return rows, f"{selected} from (\n{statements()[of].text_of(self.release)}\n){chosen}"

    def declared_answer(self, question: str, key: str) -> Answer:
        """What summary.yaml says."""
        text = getattr(self.declared, key)
        return Answer(question, text or "", "declared" if text else "missing", key)

    def confirmed(self, draft: Answer, key: str) -> Answer:
        """What summary.yaml says, or the draft, which is to be confirmed there."""
        text = getattr(self.declared, key)
        if text:
            return Answer(draft.question, text, "declared", key)
        return replace(draft, kind="to confirm", key=key)

    @cached_property
    def kept_sources(self) -> pl.DataFrame:
        """`sources` of the counts, those with kept rows: what else the pool declares is not in the release."""
        return self.counts["sources"].filter(pl.col("kept") > 0)

    def sources(self, *obtained: str) -> list[Mapping[str, Any]]:
        """What the pool declares of the sources of the kept rows (of those obtained so), the most rows first."""
        declared = {one["name"]: one for one in self.about.get("sources") or []}
        kept = [declared[name] for name in self.kept_sources["source"] if name in declared]
        return [one for one in kept if not obtained or one.get("obtained") in obtained]

    def was_made(self, table: str) -> bool:
        """Whether a table is upstream of the verdicts."""
        return any(one["asset"] == table for one in self.manifests)

    def models_of(self, table: str) -> list[dict[str, Any]]:
        """address, revision and weights_sha256 of the models behind a table upstream, each once."""
        found = {json.dumps(model, sort_keys=True) for one in self.manifests if one["asset"] == table
                 for model in one["models"]}  # fmt: skip
        return [json.loads(model) for model in sorted(found)]

    def files_of(self, name: str) -> tuple[str, ...]:
        """Files of the release that a statement reads, as it names them."""
        text = statements()[name].text_of(self.release)
        return tuple(file for file in (self.release.ledger_name, PROVENANCE_FILE, RELEASE_FILE) if f"'{file}'" in text)

    def read_of(self, file: str) -> dict[str, Any]:
        """What a statement reads under a name: sha256, of several files one over all, and the tables behind them; of
        release.json, which holds its own hash, that."""
        if file == LEDGER_FILES:
            found = {path.relative_to(self.release.folder).as_posix() for path in self.release.ledger_paths}
            listed = "".join(f"{name} {self.release.files[name]['sha256']}\n" for name in sorted(found))
            content: dict[str, Any] = {"files": len(found), "sha256_of_their_sha256": sha256_of(listed)}
        elif file in self.release.files:
            content = dict(self.release.files[file])
        else:
            return {"sha256": self.release.sha256}
        tables = {LEDGER_FILES: f"filtered/{self.release.subset}", OLD_LEDGER_FILE: "filtered/ledger"}
        table = {**tables, PROVENANCE_FILE: PROVENANCE}.get(file)
        return {**content, "made_from": [] if table is None else [self._version(table)]}

    def _version(self, table: str) -> dict[str, Any]:
        parts = sorted((one["partition"] or "", one["content_sha256"]) for one in self.manifests
                       if one["asset"] == table)  # fmt: skip
        if len(parts) == 1:
            return {"table": table, "shards": 1, "content_sha256": parts[0][1]}
        digest = sha256_of("".join(f"{shard} {sha256}\n" for shard, sha256 in parts))
        return {"table": table, "shards": len(parts), "sha256_of_their_content_sha256": digest}


def sha256_of(text: str) -> str:
    """64 hex digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def braced(text: object) -> str:
    """A text inside a format: its braces stand for themselves."""
    return str(text).replace("{", "{{").replace("}", "}}")
