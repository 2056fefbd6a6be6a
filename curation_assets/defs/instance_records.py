"""What Dagster's instance has written, wherever it keeps it: texts of samples that are taken down leave it.

Files under the home are `LooseFiles`' (operations/holders.py). Here is what lies elsewhere: the tables of a database
server, files of an instance outside the home, and what only its owner can reach, which is named.
"""

import contextlib
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import sqlalchemy as sa

from curation_assets.core.settings import Settings, home_name, is_in_bucket
from curation_assets.flow.context import PoolContext
from curation_assets.flow.holder import Holder, Left, Takedown
from curation_assets.flow.table import Tables
from curation_assets.foreign.dagster_storage import records_of
from curation_assets.stores.scrubbing import GONE, MIN_TEXT, forms_of, scrub

LOCK_SECONDS = 30  # how long the rewriting of a table waits for those that read it


class InstanceRecords(Holder):
    """The records of an instance: `files` outside the home, tables of a server, and `not_done`, in sentences."""

    turn = 2

    def __init__(self, settings: Settings, instance: dg.DagsterInstance) -> None:
        self.not_done: list[str] = []
        records = records_of(instance)
        self._servers = records.servers
        for what in records.unknown:
            self._leave(what)
        if not isinstance(instance.run_launcher, dg.DefaultRunLauncher):
            self._leave(f"output of the containers, pods or jobs that {type(instance.run_launcher).__name__} started")
        if settings.ray is not None:
            self._leave("output of tasks on the nodes of the Ray cluster (its logs, /tmp/ray)")
        if is_in_bucket(settings.home) and not self._servers:
            self._leave(f"Dagster's records on other machines that ran this pool of {home_name(settings.home)}")
        if any(engine.dialect.name == "postgresql" for engine, _ in self._servers):
            self._leave("the write-ahead log and the backups of the Postgres server")
        home = settings.home.resolve()
        folders = (settings.dagster_home, *sorted(records.folders))
        self._folders = [folder for folder in folders if not folder.resolve().is_relative_to(home)]

    def purge(self, ctx: PoolContext, tables: Tables, takedown: Takedown) -> None:
        texts = takedown.texts
        for path in self.files():
            scrub(path, texts)
        self.scrub(texts)

    def searched(self, ctx: PoolContext, tables: Tables, takedown: Takedown) -> list[Path]:
        return self.files()

    def left(self, ctx: PoolContext, takedown: Takedown) -> Left:
        matches = self.matches(takedown.needles.texts)
        return Left([(place, what) for place, texts in matches.items() for what in texts], not_done=list(self.not_done))

    def _leave(self, what: str) -> None:
        self.not_done.append(f"{what}: errors there may quote a sample; its owner has to look")

    def files(self) -> list[Path]:
        """Files of the instance that do not lie under the home, sorted."""
        found = {path for folder in self._folders for path in folder.rglob("*") if path.is_file()}
        return sorted(path for path in found if not path.is_symlink())

    def scrub(self, texts: Collection[str]) -> None:
        """Replace texts in the tables of a server, and have it write them anew: old rows linger in its files.

        Shorter ones than MIN_TEXT are part of many texts and stay, as in files.
        """
        forms = _forms(texts)
        for engine, table, columns in self._tables():
            changed = 0
            with engine.begin() as connection:
                for column in columns:
                    for form in forms:
                        replaced = sa.update(table).where(column.contains(form, autoescape=True))
                        values = {column: sa.func.replace(column, form, GONE)}
                        changed += connection.execute(replaced.values(values)).rowcount
            if changed:
                self._rewrite(engine, table)

    def _rewrite(self, engine: sa.Engine, table: sa.Table) -> None:
        if engine.dialect.name != "postgresql":
            self._leave(f"bytes of removed rows of {table.name} in the files of {engine.dialect.name}")
            return
        try:
            with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                connection.execute(sa.text(f"set lock_timeout = '{LOCK_SECONDS}s'"))
                connection.execute(sa.text(f"vacuum full {engine.dialect.identifier_preparer.format_table(table)}"))
        except sa.exc.SQLAlchemyError as error:
            self._leave(f"bytes of removed rows in Postgres (`vacuum full {table.name}`: {type(error).__name__})")

    def matches(self, texts: Collection[str]) -> dict[str, set[str]]:
        """Place in a server → texts that it still holds."""
        forms = {form: text for text in texts for form in _forms([text])}
        found: dict[str, set[str]] = {}
        for engine, table, columns in self._tables():
            place = f"{engine.dialect.name} {engine.url.database}: {table.name}"
            with engine.connect() as connection:
                for column in columns:
                    for form, text in forms.items():
                        holds = column.contains(form, autoescape=True)
                        if connection.execute(sa.select(column).where(holds).limit(1)).first():
                            found.setdefault(place, set()).add(text)
                for column in (one for one in table.columns if isinstance(one.type, sa.LargeBinary)):
                    for (data,) in connection.execute(sa.select(column)).yield_per(100):
                        content = _unpacked(data)
                        matching = {text for form, text in forms.items() if form.encode() in content}
                        if matching:
                            found.setdefault(place, set()).update(matching)
        return found

    def _tables(self) -> Iterator[tuple[sa.Engine, sa.Table, list[Any]]]:
        """Dagster's own tables of every server, with their columns of texts; nobody else's tables."""
        seen = set()
        for engine, metadata in self._servers:
            present = set(sa.inspect(engine).get_table_names())
            for table in metadata.sorted_tables:
                if table.name in present and (engine.url, table.name) not in seen:
                    seen.add((engine.url, table.name))
                    yield engine, table, [column for column in table.columns if isinstance(column.type, sa.String)]


def _forms(texts: Collection[str]) -> list[str]:
    """What is looked for: Postgres has no text with a NUL."""
    return [form for text in texts if len(text) >= MIN_TEXT for form in forms_of(text) if "\0" not in form]


def _unpacked(data: Any) -> bytes:
    content = bytes(data or b"")
    with contextlib.suppress(zlib.error):
        return zlib.decompress(content)
    return content
