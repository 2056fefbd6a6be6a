"""Tables of captions, with or without URLs: one file or a folder of them; images are downloaded."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import polars as pl

from curation_assets.core.settings import Settings
from curation_assets.sources.base import Found, Note, Offered
from curation_assets.sources.pool_facts import PoolFacts
from curation_assets.sources.split import Split, split_once
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
from curation_assets.stores.content_hash import config_sha256
from curation_assets.stores.damaged_tables import schema_of
from curation_assets.stores.denylist import Denylist
from curation_assets.stores.file_hash import cached_sha256
from curation_assets.stores.samples import OWN_ID
from curation_assets.stores.text_format import TextFormat


class UrlTable(TableSource):
    """Captions and URLs, or captions alone."""

    order = 30

    def detect(self, offered: Offered) -> Found | None:
        source = offered.path
        if not tables_of(source):
            return None
        others = {ours: theirs for ours, theirs in offered.columns.items() if ours in COLUMN_NAMES}
        detected = detect_columns(source, others, offered.text)
        sizes = {} if detected.url is not None else size_columns(source, offered.text)
        named = {ours: theirs for ours, theirs in asdict(detected).items() if ours != OWN_ID}
        own_id = own_id_column(source, detected.uid, offered.text)
        schema = columns_of(table_files(source)[0], offered.text)
        carried = given_columns_of(source, offered.columns, schema, [*named.values(), own_id])
        return Found(source, named | ({OWN_ID: own_id} if own_id else {}) | carried | sizes)

    def has_images(self, pool: PoolFacts) -> bool:
        return pool.columns.get("url") is not None

    def split(self, pool: PoolFacts, settings: Settings) -> Split:
        return split_of_columns(pool, self.path(pool, settings), settings, self.numbers(pool))

    def describe_rows(self, pool: PoolFacts, split: Split) -> Iterator[Note]:
        if failing := rows_that_fail(split):
            yield Note(f"Rows that fail: {failing}. Cells in another encoding: --encoding names it", "warning")

    def collected(self, pool: PoolFacts) -> str:
        images = ", images were fetched from the URLs beside them." if pool.has_images else "; there are no images."
        return f"Captions came as a table of their owner{images}"


SOURCE = UrlTable()


@dataclass(frozen=True)
class ColumnMapping:
    """Which column of the source holds what. `url` None: captions only."""

    caption: str
    url: str | None = None
    uid: str | None = None
    own_id: str | None = None  # ids that are no sample_ids, carried along


def split_of_columns(pool: PoolFacts, source: Path, settings: Settings, numbers: Mapping[str, str]) -> Split:
    """Cut a source into shards of so many rows as the pool says, once per version of source and denylist.

    Duplicates are seen over the whole pool here: of several usable rows with one sample_id, the first in source
    order is not a duplicate. A changed source makes a new split. `numbers`: further columns, our name → the source's;
    a part has them as float64.
    """
    named, text, home = pool.columns, pool.text_format, settings.work(pool.name) / "source"
    columns = ColumnMapping(str(named.get("caption")), named.get("url"), named.get("uid"), named.get(OWN_ID))
    carried, denylist = carried_columns(named), Denylist.load(settings.home, pool.implied_source)
    files = table_files(source)
    hashes, folders = cached_sha256(files, home / "sha256.json"), [partition_values(path) for path in files]
    version = config_sha256(
        {
            "files": [hashes[str(path)] for path in files],
            "columns": [columns.caption, columns.url, columns.uid, *([columns.own_id] if columns.own_id else [])],
            "shard_size": pool.shard_size,
            "pool": pool.name,
            **({"denylist": denylist.version} if denylist else {}),
            **({} if text == TextFormat() else {"text": text.config()}),
            **({"numbers": dict(numbers)} if numbers else {}),
            **({"carried": carried} if carried else {}),
            **({"folders": folders} if any(folders) else {}),
        }
    )[:16]
    read = partial(_rows, files, columns, text, numbers, carried)
    return split_once(home / f"split-{version}", read, pool.name, pool.shard_size, denylist)


def detect_columns(
    source: Path, given: Mapping[str, str | None] | None = None, text: TextFormat | None = None
) -> ColumnMapping:
    """Find url, caption and uid columns by name; `given` decides where it speaks ({'url': None}: captions only).

    `text`: how csv and tsv files are read; default: UTF-8 with a header. Raises ValueError that lists the columns
    there are.
    """
    given, text = dict(given or {}), text or TextFormat()
    unknown = set(given) - set(COLUMN_NAMES)
    if unknown:
        raise ValueError(f"columns may name {sorted(COLUMN_NAMES)}, got {sorted(unknown)}")
    schema = columns_of(table_files(source)[0], text)
    columns = {ours: text_column(source, ours, given, schema, names) for ours, names in COLUMN_NAMES.items()}
    if columns["caption"] is None and "caption" not in given and not text.has_header and len(schema) == 1:
        columns["caption"] = next(iter(schema))
    if columns["caption"] is None:
        raise ValueError(
            f"{source}: no caption column; expected one of {list(COLUMN_NAMES['caption'])}, got {list(schema)}; "
            "name it with --caption-column NAME, or give --no-header where the first line is a caption already"
        )
    return ColumnMapping(caption=str(columns["caption"]), url=columns["url"], uid=columns["uid"])


def size_columns(source: Path, text: TextFormat) -> dict[str, str]:
    """Columns of the images' sizes as DataComp names them, where every file of the source has both as numbers."""
    schemas = [schema_of(path, text) for path in table_files(source)]
    has_both = all(name in schema and schema[name].is_numeric() for schema in schemas for name in SIZES)
    return {name: name for name in SIZES} if has_both else {}


def _rows(
    files: Sequence[Path],
    columns: ColumnMapping,
    text: TextFormat,
    numbers: Mapping[str, str],
    carried: Mapping[str, str],
) -> Iterator[pl.DataFrame]:
    """Grain: one row per source row, in source order."""
    names = {"caption": columns.caption, "url": columns.url, "uid": columns.uid}
    names |= {**({OWN_ID: columns.own_id} if columns.own_id else {}), **carried}
    more = [*numbers, *([OWN_ID] if columns.own_id else []), *carried]
    for path in files:
        for rows in text_parts(path, names, numbers, text):
            has_reasons = rows["source_reason"].null_count() < rows.height
            yield rows.select("caption", "url", "uid", *(["source_reason"] if has_reasons else []), *more)
