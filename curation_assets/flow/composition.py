"""Which kinds of images and which languages a pool holds, from its tables."""

from collections import Counter
from collections.abc import Sequence

import polars as pl

from curation_assets.core.table_names import SAMPLES
from curation_assets.flow.context import PoolContext
from curation_assets.flow.worth import ANY_KIND, ENGLISH, OTHER_LANGUAGE, Composition
from curation_assets.numeric.scripts import is_of_another_script

KINDS, LANGUAGES = "signals/image_kind", "signals/english"
SHARDS_AT_ONCE = 100  # whose rows are counted together


def composition_of(ctx: PoolContext) -> Composition | None:
    """The composition of the rows that raw kept, in shards whose tables are there; None without any.

    A row without a value of `image_kind` has a kind of its own, 'unknown'. Where the pool runs no `english`, the script
    of the text tells English from other languages.
    """
    if not ctx.store.partitions(SAMPLES):
        return None
    tables = [name for name in (KINDS, LANGUAGES) if ctx.store.partitions(name)]
    if not tables:
        return None
    shards = sorted(set.intersection(*(set(ctx.store.partitions(name)) for name in (SAMPLES, *tables))))
    if not shards:
        return None
    counts: Counter[tuple[str, str]] = Counter()
    for start in range(0, len(shards), SHARDS_AT_ONCE):
        for kind, language, count in _counted(ctx, shards[start : start + SHARDS_AT_ONCE], tables).iter_rows():
            counts[kind, language] += count
    return Composition(dict(counts)) if counts else None


def _counted(ctx: PoolContext, shards: Sequence[str], tables: Sequence[str]) -> pl.DataFrame:
    """kind, language, len of the rows that raw kept."""
    rows = ctx.store.scan(SAMPLES, shards).filter(pl.col("status") == "kept")
    is_other = pl.col("caption").map_elements(is_of_another_script, return_dtype=pl.Boolean)
    by_script = pl.when(is_other).then(pl.lit(OTHER_LANGUAGE)).otherwise(pl.lit(ENGLISH))  # English without a caption
    rows = rows.select("shard", "source_row", language=by_script, kind=pl.lit(ANY_KIND))
    if KINDS in tables:
        kinds = ctx.store.scan(KINDS, shards).select("shard", "source_row", shown=pl.col("kind").fill_null("unknown"))
        rows = rows.join(kinds, on=["shard", "source_row"], how="left").with_columns(kind="shown")
    if LANGUAGES in tables:
        is_english = pl.when(pl.col("value") == 1).then(pl.lit(ENGLISH)).when(pl.col("value") == 0)
        found = is_english.then(pl.lit(OTHER_LANGUAGE)).alias("found")  # null for a row without a value
        values = ctx.store.scan(LANGUAGES, shards).select("shard", "source_row", found)
        rows = rows.join(values, on=["shard", "source_row"], how="left")
        rows = rows.with_columns(language=pl.coalesce("found", "language"))
    return rows.group_by("kind", "language").len().collect()
