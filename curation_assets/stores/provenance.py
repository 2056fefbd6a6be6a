"""raw/provenance: where each row comes from, under which licence, and what its owner's signals allow.

A table of its own beside raw/samples: what is learnt of a source later (a licence, a signal) makes no score stale.
"""

import polars as pl

#: What a source may bring along of a row, and raw/registered_shards carries; all null where unknown.
GIVEN = pl.Schema(
    {
        "source": pl.String(),  # name of a declared source
        "licence": pl.String(),
        "licence_url": pl.String(),
        "creator": pl.String(),
        "source_url": pl.String(),  # the page
        "language": pl.String(),
    }
)

#: An opt-out or licence signal of an owner, as found.
RIGHTS_SIGNALS = pl.List(
    pl.Struct(
        {
            "kind": pl.String(),
            "value": pl.String(),
            "where": pl.String(),
            "checked_at": pl.Datetime("us", "UTC"),
        }
    )
)

#: What fetching an image tells of it; raw/downloads has these. Null where nothing was fetched.
FETCHED = pl.Schema(
    {
        "fetched_at": pl.Datetime("us", "UTC"),  # when the image came, also after a rebuild from what was downloaded
        "content_type": pl.String(),
        "rights_signals": RIGHTS_SIGNALS,
    }
)

#: Grain of raw/provenance: one row per row of raw/samples, in its order.
PROVENANCE_SCHEMA = pl.Schema(
    {
        "sample_id": pl.String(),
        "shard": pl.String(),
        "source_row": pl.Int64(),
        "source": pl.String(),  # never null: as the row has it, else the pool's only declared source, else the pool
        "licence": pl.String(),  # SPDX id in lower case, else as given
        "licence_url": pl.String(),
        "creator": pl.String(),
        "source_url": pl.String(),
        "domain": pl.String(),  # registered domain (public suffix list) of the image's URL, else of source_url
        "language": pl.String(),  # as given, else ISO 639 code of lid.176
        **FETCHED,
        "image_bytes": pl.Int64(),
        "caption_words": pl.Int32(),  # between white space
    }
)

#: Columns that a row keeps whose sample was taken down or quarantined.
KEPT_OF_REMOVED = ("sample_id", "shard", "source_row", "source")
