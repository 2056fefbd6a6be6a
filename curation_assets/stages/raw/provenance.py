"""raw/provenance: where each row comes from, under which licence, and what its owner's signals allow."""

from collections.abc import Mapping
from typing import Any

import polars as pl

from curation_assets.core.roles import LanguageIdentifier
from curation_assets.core.table_names import DOWNLOADS, PROVENANCE, REGISTERED_SHARDS, SAMPLES
from curation_assets.flow.context import PoolContext
from curation_assets.flow.table import Needs, Shown, Table
from curation_assets.methods.english import likely_languages
from curation_assets.sources.declaration import Pool, declared_sources
from curation_assets.sources.licences import spdx_of
from curation_assets.stores.denylist import TAKEDOWN
from curation_assets.stores.hash_lists import QUARANTINED
from curation_assets.stores.provenance import FETCHED, GIVEN, KEPT_OF_REMOVED, PROVENANCE_SCHEMA
from curation_assets.stores.web_addresses import domain_of

ROLE = "language_identifier"
MAX_DOMAIN_CHARACTERS = 253  # RFC 1035


def provenance_table(ctx: PoolContext) -> Table:
    """The table. Of a profile without a language identifier, only languages that the source brings are known."""
    return Table(
        name=PROVENANCE,
        grain="shard",
        inputs=(REGISTERED_SHARDS, DOWNLOADS, SAMPLES),
        version="3",
        description="One row per row of raw/samples: source, licence, creator, page, domain, language, when it was "
        "fetched, and the opt-out signals of its owner.",
        compute=_rows,
        needs=Needs(roles=(ROLE,) if ROLE in ctx.profile.roles else ()),
        config=lambda ctx: [_of_source(source) for source in _sources(ctx.pool).values()],
        continues=SAMPLES,
        taken_down=_without_content,
        shown=Shown(kinds=("polars",)),
    )


def _sources(pool: Pool) -> dict[str, Mapping[str, Any]]:
    return {source["name"]: source for source in declared_sources(pool)}


def _of_source(source: Mapping[str, Any]) -> dict[str, Any]:
    """What of a declaration goes into rows."""
    return {name: source.get(name) for name in ("name", "licence", "licence_url")}


def _rows(ctx: PoolContext, shard: str) -> pl.DataFrame:
    registered, downloads = ctx.store.read(REGISTERED_SHARDS, shard), ctx.store.read(DOWNLOADS, shard)
    columns = ["sample_id", "shard", "source_row", "caption", "url", "image_bytes", "reason"]
    samples = ctx.store.read(SAMPLES, shard, columns)
    identifier = ctx.engines([ROLE])[ROLE] if ROLE in ctx.profile.roles else None
    return provenance_rows(ctx.pool, registered, downloads, samples, identifier)


def provenance_rows(
    pool: Pool,
    registered: pl.DataFrame,
    downloads: pl.DataFrame,
    samples: pl.DataFrame,
    identifier: LanguageIdentifier | None,
) -> pl.DataFrame:
    """Grain: one row per row of raw/samples, in its order (PROVENANCE_SCHEMA). The three tables have the same rows.

    What the row itself has comes before what is declared of its source. Of rows that were taken down or quarantined
    the source alone stays.
    """
    given = _columns(registered, {**GIVEN, "url": pl.String()}).hstack(_columns(downloads, FETCHED))
    declared = _sources(pool)
    source = pl.col("source").fill_null(pool.implied_source)
    of_source = {
        name: source.replace_strict(
            {key: one.get(name) for key, one in declared.items()}, default=None, return_dtype=pl.String
        )
        for name in ("licence", "licence_url")
    }
    has_own = pl.col("licence").is_not_null() | pl.col("licence_url").is_not_null()
    given = given.with_columns(
        pl.when(has_own).then(pl.col(name)).otherwise(of_source[name]).alias(name) for name in of_source
    ).with_columns(source=source)
    caption = samples["caption"].fill_null("")
    is_page = pl.col("licence").str.starts_with("http")
    given = given.with_columns(pl.coalesce("licence_url", pl.when(is_page).then("licence")).alias("licence_url"))
    rows = samples.select("sample_id", "shard", "source_row", "image_bytes").hstack(
        given.drop("url").with_columns(
            pl.struct("licence", "licence_url")
            .map_elements(lambda one: spdx_of(one["licence"], one["licence_url"]), return_dtype=pl.String)
            .alias("licence"),
            _domains(given).alias("domain"),
            pl.col("language").str.to_lowercase().fill_null(_languages(caption, identifier)).alias("language"),
            caption.str.count_matches(r"\S+").cast(pl.Int32).alias("caption_words"),
        )
    )
    rows = rows.select(PROVENANCE_SCHEMA.names()).cast(PROVENANCE_SCHEMA)
    is_removed = samples["reason"].is_in([TAKEDOWN, QUARANTINED]).fill_null(False)
    removed = _without_content(rows)
    return rows.with_columns(
        pl.when(is_removed).then(removed[name]).otherwise(pl.col(name)).alias(name) for name in rows.columns
    )


def _without_content(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows of samples that were taken down or quarantined."""
    return rows.with_columns(
        pl.lit(None, kind).alias(name) for name, kind in rows.schema.items() if name not in KEPT_OF_REMOVED
    )


def _columns(frame: pl.DataFrame, schema: Mapping[str, Any]) -> pl.DataFrame:
    """These columns; nulls for those that are not there."""
    absent = [pl.lit(None, dtype).alias(name) for name, dtype in schema.items() if name not in frame.columns]
    return frame.with_columns(absent).select(*schema)


def _domains(rows: pl.DataFrame) -> pl.Series:
    """Registered domain of each row's URL, else of its page; null without either."""
    urls = rows.select(pl.coalesce("url", "source_url")).to_series()
    known = {url: domain_of(url) for url in urls.drop_nulls().unique().to_list()}
    domains = urls.replace_strict(known, default=None, return_dtype=pl.String)
    return domains.set(domains.str.len_chars() > MAX_DOMAIN_CHARACTERS, None)


def _languages(captions: pl.Series, identifier: LanguageIdentifier | None) -> pl.Series:
    """ISO 639 code of each caption, by the rule of the method `english`; null for one without a letter, and without an
    identifier."""
    if identifier is None:
        return pl.Series([None] * len(captions), dtype=pl.String)
    return pl.Series(likely_languages(captions.to_list(), identifier), dtype=pl.String)
