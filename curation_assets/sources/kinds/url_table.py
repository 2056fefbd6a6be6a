"""Tables of captions, with or without URLs: one file or a folder of them; images are downloaded."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from curation_assets.sources.base import Found, Note, Offered
from curation_assets.sources.pool_facts import ColumnNames, PoolFacts
from curation_assets.sources.split import Reading, Split
from curation_assets.sources.table_files import partition_values, tables_of
from curation_assets.sources.tables import TableSource, rows_that_fail
from curation_assets.sources.text_columns import (
    COLUMN_NAMES,
    SIZES,
    carried_columns,
    columns_of,
    given_columns_of,
    own_id_column,
    table_files,
    text_column,
    text_parts,
)
from curation_assets.stores.damaged_tables import schema_of
from curation_assets.stores.samples import OWN_ID
from curation_assets.stores.text_format import TextFormat


class UrlTable(TableSource):
    """Captions and URLs, or captions alone."""

    order = 30

    def detect(self, offered: Offered) -> Found | None:
        source, text, given = offered.path, offered.text, offered.columns
        if not tables_of(source):
            return None
        schema = columns_of(table_files(source)[0], text)
        columns = {ours: text_column(source, ours, given, schema, COLUMN_NAMES[ours]) for ours in _READ}
        if columns["caption"] is None and "caption" not in given and not text.has_header and len(schema) == 1:
            columns["caption"] = next(iter(schema))
        if columns["caption"] is None:
            raise ValueError(
                f"{source}: no caption column; expected one of {list(COLUMN_NAMES['caption'])}, got {list(schema)}; "
                "name it with --caption-column NAME, or give --no-header where the first line is a caption already"
            )
        own_id = own_id_column(source, columns["uid"], text)
        carried = given_columns_of(source, given, schema, [*columns.values(), own_id])
        sizes = {} if columns["url"] is not None else size_columns(source, text)
        return Found(source, columns | ({OWN_ID: own_id} if own_id else {}) | carried | sizes)

    def has_images(self, pool: PoolFacts) -> bool:
        return pool.columns.get("url") is not None

    def reading(self, pool: PoolFacts, source: Path) -> Reading:
        return reading_of_columns(pool, source, self.numbers(pool))

    def describe_rows(self, pool: PoolFacts, split: Split) -> Iterator[Note]:
        if failing := rows_that_fail(split):
            yield Note(f"Rows that fail: {failing}", "warning")

    def collected(self, pool: PoolFacts) -> str:
        images = ", images were fetched from the URLs beside them." if pool.has_images else "; there are no images."
        return f"Captions came as a table of their owner{images}"


SOURCE = UrlTable()


_READ = ("caption", "url", "uid")


def reading_of_columns(pool: PoolFacts, source: Path, numbers: Mapping[str, str]) -> Reading:
    """`SplitSource.reading` of a table of captions. `numbers`: further columns, our name → the source's; a part has
    them as float64.
    """
    text = pool.text_format
    columns = {ours: pool.columns.get(ours) for ours in _READ}
    own_id = {OWN_ID: pool.columns[OWN_ID]} if pool.columns.get(OWN_ID) else {}
    carried, files = carried_columns(pool.columns), table_files(source)
    folders = [partition_values(path) for path in files]
    facts: dict[str, Any] = {"columns": [*columns.values(), *own_id.values()]}
    if any(folders):
        facts["folders"] = folders
    return Reading(files, facts, partial(_rows, files, columns | own_id | carried, text, numbers))


def size_columns(source: Path, text: TextFormat) -> dict[str, str]:
    """Columns of the images' sizes as DataComp names them, where every file of the source has both as numbers."""
    schemas = [schema_of(path, text) for path in table_files(source)]
    has_both = all(name in schema and schema[name].is_numeric() for schema in schemas for name in SIZES)
    return {name: name for name in SIZES} if has_both else {}


def _rows(
    files: Sequence[Path], columns: ColumnNames, text: TextFormat, numbers: Mapping[str, str]
) -> Iterator[pl.DataFrame]:
    """Grain: one row per source row, in source order."""
    more = [*numbers, *(ours for ours in columns if ours not in _READ)]
    for path in files:
        for rows in text_parts(path, columns, numbers, text):
            reasons = ["source_reason"] if rows["source_reason"].null_count() < rows.height else []
            yield rows.select(*_READ, *reasons, *more)
