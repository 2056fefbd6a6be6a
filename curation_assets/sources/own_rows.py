"""Sources that only name their paths and read their rows; shards, ids, images and takedown are done here."""

import hashlib
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Literal

import polars as pl

from curation_assets.core.settings import Settings
from curation_assets.sources.base import Found, Offered
from curation_assets.sources.local_images import IMAGE_SCHEMA, LocalImages
from curation_assets.sources.pool_facts import PoolFacts
from curation_assets.sources.split import Reading
from curation_assets.sources.tables import SplitSource
from curation_assets.sources.text_columns import MAX_GIVEN_CHARACTERS
from curation_assets.stores.caption_text import MAX_TEXT_BYTES, caption_text, is_encodable
from curation_assets.stores.provenance import GIVEN

PART_ROWS = 1 << 14  # of a part
_TEXTS = {"caption": pl.String, "url": pl.String, "uid": pl.String}


@dataclass(frozen=True)
class Row:
    """One input row, as its owner has it. One that cannot be read is a row too, with the reason: no row disappears."""

    caption: str | None
    url: str | None = None
    image: bytes | None = None  # as in its file; it is decoded later, and under limits
    uid: str | None = None  # becomes the sample_id where it is one (32 hex digits)
    reason: str | None = None  # why the row cannot be used: a short machine word
    source: str | None = None  # name of a declared source, where a pool has several
    licence: str | None = None  # an SPDX id where there is one
    licence_url: str | None = None
    creator: str | None = None
    source_url: str | None = None  # the page
    language: str | None = None


class RowSource(SplitSource):
    """Rows in a fixed order; the same files give the same rows."""

    #: Where images come from: `rows` bring their bytes, they are fetched from `urls`, or there are `none`.
    images: ClassVar[Literal["rows", "urls", "none"]] = "rows"

    @abstractmethod
    def recognises(self, path: Path) -> bool:
        """Whether what lies at a path is of this kind."""

    @abstractmethod
    def read(self, path: Path) -> Iterator[Row]:
        """All rows, in order. Raises ValueError for a source of which nothing can be read."""

    def files(self, path: Path) -> list[Path]:
        """The files whose content decides the rows: when one changes, the source is read again."""
        return [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file())

    def read_images(self, path: Path, wanted: Sequence[int]) -> Iterator[bytes | None]:
        """Images of the rows `wanted` (their numbers, ascending). Reads all rows; a source that can do with less
        should."""
        left = iter(wanted)
        following = next(left, None)
        for number, row in enumerate(self.read(path)):
            if number == following:
                yield row.image
                following = next(left, None)
                if following is None:
                    return

    # -- the contract of Source

    @property
    def opens_urls(self) -> bool:  # type: ignore[override]
        return self.images == "urls"

    def has_images(self, pool: PoolFacts) -> bool:
        return self.images != "none"

    def detect(self, offered: Offered) -> Found | None:
        if not self.recognises(offered.path):
            return None
        if offered.columns:
            raise ValueError(f"{offered.path} has no columns to name, got {dict(offered.columns)}")
        return Found(offered.path, {})

    def check(self, pool: PoolFacts, settings: Settings) -> None:
        """Raise ValueError for a source without rows."""
        if not self.split(pool, settings).rows:
            raise ValueError(f"{pool.source} holds no rows")

    def reading(self, pool: PoolFacts, source: Path) -> Reading:
        facts = {"kind": [pool.kind, self.version, self.images], "given": GIVEN.names()}
        return Reading(self.files(source), facts, partial(self._rows, source))

    def carried(self, pool: PoolFacts) -> Collection[str]:
        return GIVEN

    def schema(self, pool: PoolFacts) -> Mapping[str, pl.DataType | type[pl.DataType]]:
        return IMAGE_SCHEMA if self.images == "rows" else {}

    def download_config(self, pool: PoolFacts) -> dict[str, Any]:
        return super().download_config(pool) if self.opens_urls else {"max_bytes": pool.download.max_bytes}

    def serving(
        self, pool: PoolFacts, requested: pl.DataFrame, settings: Settings
    ) -> AbstractContextManager[Mapping[str, Any]]:
        if self.opens_urls:
            return super().serving(pool, requested, settings)
        return nullcontext({"local": LocalImages.of(pool, requested, partial(self._read, self.path(pool, settings)))})

    def collected(self, pool: PoolFacts) -> str:
        return f"Samples were read by {pool.kind}, a source of their owner's own, and registered as they are."

    def _read(self, path: Path, located: pl.DataFrame, max_bytes: int) -> Iterator[tuple[dict[str, Any], bytes]]:
        records = located.sort("image_row").to_dicts()
        images = self.read_images(path, [record["image_row"] for record in records])
        for record, data in zip(records, images, strict=True):
            yield record, (data or b"")[: max_bytes + 1]

    def _rows(self, path: Path) -> Iterator[pl.DataFrame]:
        """Grain: one row per row of the source, in order; no image is held."""
        schema: dict[str, Any] = {
            **_TEXTS,
            **(IMAGE_SCHEMA if self.images == "rows" else {}),
            "source_reason": pl.String,
            **GIVEN,
        }
        rows = (self._row(path, number, row) for number, row in enumerate(self.read(path)))
        while part := list(islice(rows, PART_ROWS)):
            yield pl.DataFrame(part, schema=schema, orient="row")

    def _row(self, path: Path, number: int, row: Row) -> dict[str, Any]:
        texts = {name: getattr(row, name) for name in _TEXTS}
        given = {name: getattr(row, name) for name in GIVEN}
        given = {
            name: text if text and is_encodable(text) and len(text) <= MAX_GIVEN_CHARACTERS else None
            for name, text in given.items()
        }
        reason = row.reason
        for name, text in texts.items():
            if text is not None and not is_encodable(text):
                texts[name], reason = None, reason or f"cell_not_decodable:{name}"
            elif text is not None and len(text.encode()) > MAX_TEXT_BYTES:
                texts[name], reason = None, reason or f"cell_too_long:{name}"
        if texts["caption"] is not None:
            texts["caption"] = caption_text(texts["caption"])
        if self.images != "rows":
            return {**texts, **given, "source_reason": reason}
        if row.image is None:
            return {**texts, **given, **dict.fromkeys(IMAGE_SCHEMA), "source_reason": reason or "missing_image"}
        where = {"image_file": path.name, "image_row": number, "image_sha256": hashlib.sha256(row.image).hexdigest()}
        return {**texts, **given, **where, "source_reason": reason}
