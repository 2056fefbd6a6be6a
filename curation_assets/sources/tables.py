"""Sources that are tables of rows: cut into shards once per version of their files, and described to who adds them."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

import polars as pl

from curation_assets.core.settings import Settings
from curation_assets.sources.base import Note, Source
from curation_assets.sources.image_columns import FILE_NAMES, folder_of, tables_in
from curation_assets.sources.image_columns import unused_images as columns_of_images
from curation_assets.sources.options import SourceOptions, given_columns
from curation_assets.sources.pool_facts import ColumnNames, PoolFacts
from curation_assets.sources.split import Reading, Split, split_once
from curation_assets.sources.table_files import names_of_tables, split_notes
from curation_assets.sources.text_columns import COLUMN_OPTIONS, SIZES, carried_columns, columns_of, unused_ids
from curation_assets.stores.content_hash import config_sha256
from curation_assets.stores.damaged_tables import schema_of
from curation_assets.stores.denylist import Denylist
from curation_assets.stores.file_hash import cached_sha256
from curation_assets.stores.text_format import TextFormat, dialect_of, table_suffix


class SplitSource(Source):
    """Rows of one or more files, cut into shards of `shard_size` once per version of these files (`Split`)."""

    @abstractmethod
    def reading(self, pool: PoolFacts, source: Path) -> Reading:
        """What decides the rows, and how they are read."""

    def split(self, pool: PoolFacts, settings: Settings) -> Split:
        """The source cut into shards, once per version of its files and of the denylist.

        Duplicates are seen over the whole pool: of several usable rows with one sample_id, the first in source order is
        none. Raises FileNotFoundError where the source is missing.
        """
        source, home = self.path(pool, settings), settings.work(pool.name) / "source"
        if not source.exists():
            raise FileNotFoundError(f"source {source} is missing; put it back, or add the pool again with its new path")
        reading = self.reading(pool, source)
        hashes = cached_sha256(reading.files, home / "sha256.json")
        denylist = Denylist.load(settings.home, pool.implied_source)
        content = {
            "files": [hashes[str(path)] for path in reading.files],
            "shard_size": pool.shard_size,
            "pool": pool.name,
            **reading.facts,
        }
        further = {
            "denylist": denylist.version,
            "text": [] if pool.text_format == TextFormat() else pool.text_format.config(),
            "numbers": self.numbers(pool),
            "carried": carried_columns(pool.columns),
        }
        version = config_sha256(content | {name: fact for name, fact in further.items() if fact})[:16]
        return split_once(home, version, folder_of(source), reading, pool.name, pool.shard_size, denylist)

    def shards(self, pool: PoolFacts, settings: Settings) -> list[str]:
        return sorted(self.split(pool, settings).rows)

    def fingerprint(self, pool: PoolFacts, shard: str, settings: Settings) -> dict[str, str]:
        split = self.split(pool, settings)
        if shard not in split.rows:
            raise ValueError(f"pool {pool.name!r} has no shard {shard!r}; it has {len(split.rows)}")
        return {"rows": split.content_sha256[shard]}

    def rows(self, pool: PoolFacts, shard: str, settings: Settings) -> pl.DataFrame:
        return self.split(pool, settings).part(shard)

    def expected_rows(self, pool: PoolFacts, settings: Settings) -> int:
        return sum(self.split(pool, settings).rows.values())


class TableSource(SplitSource):
    """Tables with columns that the pool's declaration names."""

    shown_columns: ClassVar[tuple[str, ...]] = ("caption", "url", "uid")  # that `pool add` lists

    def has_columns(self, pool: PoolFacts) -> bool:
        return bool(pool.columns)

    def numbers(self, pool: PoolFacts) -> dict[str, str]:
        sizes = {ours: str(pool.columns[ours]) for ours in SIZES if pool.columns.get(ours)}
        given = given_columns(SourceOptions.of(pool).given_signals)
        return sizes | {f"given_{method}": column for method, (file, column) in given.items() if file is None}

    def check(self, pool: PoolFacts, settings: Settings) -> None:
        """Raise ValueError where the option `given_signals` names a column that the table lacks."""
        tables = tables_in(Path(pool.source)) if pool.columns else []
        known = list(columns_of(tables[0], pool.text_format)) if tables else []
        for ours, column in self.numbers(pool).items():
            if column not in known:
                method = ours.removeprefix("given_")
                raise ValueError(
                    f"{pool.source} has no column {column!r} with values of {method}; it has {known or 'none'}"
                )

    def doubts(self, path: Path) -> list[str]:
        return split_notes(names_of_tables(path))

    def describe(self, pool: PoolFacts, settings: Settings, given: ColumnNames) -> Iterator[Note]:
        yield from super().describe(pool, settings, given)
        are_refused = "image" in given and given["image"] is None
        for sentence in unused_images(pool) if pool.columns and not are_refused else ():
            yield Note(sentence, "warning")
        yield from self.describe_rows(pool, self.split(pool, settings))
        if not pool.columns:
            return
        shown = (f"{ours} {pool.columns.get(ours) or '–'} ({COLUMN_OPTIONS[ours]})" for ours in self.shown_columns)
        yield Note("Columns: " + ", ".join(shown), "fact")
        for sentence in read_as(pool):
            yield Note(sentence, "hint")

    @abstractmethod
    def describe_rows(self, pool: PoolFacts, split: Split) -> Iterator[Note]:
        """What the rows hold, and which of them fail."""


def unused_images(pool: PoolFacts) -> list[str]:
    """Sentences on columns of images, or of their names, that a pool does not use."""
    table = tables_in(Path(pool.source))[0]
    schema, used = schema_of(table, pool.text_format), set(pool.columns.values())
    found = columns_of_images(table, schema, [name for name in used if name])
    notes = [f"Column {name} ({schema[name]}) holds images and is not used: --image-column names one" for name in found]
    if not pool.has_images:
        names = [name for name in schema if name.lower() in FILE_NAMES and name not in {*used, *found}]
        notes += [
            f"Column {name} is not used, and the pool has captions only: it names no file of "
            f"{folder_of(Path(pool.source))} (--image-column {name}, with the images beside the table)"
            for name in names
        ]
    return notes


def rows_that_fail(split: Split) -> str:
    """'csv_malformed 2, … (other quotes: --quoting)' of a source: its rows that cannot be read; empty where all can."""
    counts: Counter[str] = Counter()
    for part in split.columns("source_reason"):
        counts.update(kinds_of(part["source_reason"]))
    return listed(counts)


def kinds_of(reasons: pl.Series) -> dict[str, int]:
    """Kinds of reasons, which stand before the first colon, with their counts."""
    kinds = reasons.drop_nulls().cast(pl.String).str.split(":").list.first().alias("kind")
    return dict(kinds.value_counts().iter_rows())


def listed(counts: Mapping[str, int]) -> str:
    """'csv_malformed 2, … (other quotes: --quoting)', the most frequent first."""
    most_first = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    cures = "; ".join(_CURES[kind] for kind, _ in most_first if kind in _CURES)
    return ", ".join(f"{kind} {count}" for kind, count in most_first) + (cures and f" ({cures})")


_CURES = {
    "cell_not_decodable": "another encoding: --encoding",
    "csv_malformed": "other quotes: --quoting",
    "csv_too_few_cells": "separate the header and the rows alike",
}


def read_as(pool: PoolFacts) -> list[str]:
    """Sentences on how the tables of a pool are read: their dialect where it is none of the usual two, lists of
    captions, columns that are named as ids and hold none."""
    table = tables_in(Path(pool.source))[0]
    suffix, schema = table_suffix(table), schema_of(table, pool.text_format)
    notes = unused_ids(schema, pool.columns.get("uid"))
    if suffix in (".csv", ".tsv"):
        dialect = dialect_of(table, pool.text_format, suffix)
        is_usual = (dialect.separator, dialect.quoting) in USUAL
        if not is_usual or dialect.encoding not in ("utf-8", "utf-8-sig"):
            notes.append(f"{table.name} is read with {dialect}; otherwise: --separator, --quoting, --encoding")
    if "image" not in pool.columns and isinstance(schema.get(str(pool.columns["caption"])), pl.List):
        notes.append(f"Column {pool.columns['caption']} holds lists of captions: the first of each is taken")
    return notes


#: Separator and quotes of csv and tsv files in UTF-8 that need no word.
USUAL = ((",", "doubled"), ("\t", "by_cell"))
