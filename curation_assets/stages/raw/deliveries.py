"""What is wrong with a pool's source, in sentences for people: what of it is lost, is there twice, or holds no rows."""

import polars as pl

from curation_assets.core.errors import few
from curation_assets.core.table_names import REGISTERED_SHARDS
from curation_assets.flow.context import PoolContext
from curation_assets.stores.images import COMPRESSIONS

SHOWN = 3  # shards a reason

#: Kind of a source_reason → what is wrong; {detail} is what follows the kind in the reason, {rows} how many have it.
_SENTENCES = {
    "tar_truncated": "{tar} is cut ({detail}): rows after that are lost, one failed row stands for them. Copy it again",
    "tar_damaged": "{tar} is damaged ({detail}): rows there may be lost, one failed row stands for them. Copy it again",
    "tar_unreadable": "{tar} {what}: one failed row stands for its rows",
    "tar_table_unreadable": "{detail} beside {tar} cannot be read: what it lists is lost. Repair it or move it away",
    "member_repeated": "{tar} has {rows} samples under names that it has already, such as {detail}: they fail",
    "key_repeated": "the table beside {tar} has {rows} rows of keys that it has already, such as {detail}: they fail",
    "missing_in_tar": "{tar} lacks {rows} samples that the table beside it lists: they fail. Copy it again",
    "csv_malformed": "{rows} rows of {shard} are no csv, first {detail}: they fail. Mend their quotes",
    "csv_too_many_cells": "{rows} rows of {shard} have too many cells, first {detail}: they fail. Quote their commas",
    "cell_not_decodable": "{rows} rows of {shard} are not in the pool's encoding ({detail}): they fail. See --encoding",
    "cell_no_text": "{rows} rows of {shard} have no text in {detail}: they fail",
}
#: Detail of tar_unreadable → what the tar is; others are names of exceptions.
_UNREADABLE = {
    "no_tar": "is no tar; leave it out, or copy it again",
    **{name: f"is {name}-compressed; {tool} it" for name, tool in COMPRESSIONS.values()},
}


def shard_notes(ctx: PoolContext, shard: str) -> list[str]:
    """Sentences on one shard; none where all of it could be read."""
    rows = ctx.store.read(REGISTERED_SHARDS, shard, ["tar", "source_reason"])
    if not rows.height:
        return [f"{shard} has no rows"]
    return _sentences(rows.lazy().with_columns(shard=pl.lit(shard)))


def pool_notes(ctx: PoolContext) -> list[str]:
    """Sentences on the whole source, of each kind a few; none before its rows are registered."""
    stored = ctx.store.partitions(REGISTERED_SHARDS)
    sentences = ctx.pool.source_kind.doubts(ctx.pool.source_path(ctx.settings))
    counts = {
        shard: manifest.row_count for shard in stored if (manifest := ctx.store.manifest(REGISTERED_SHARDS, shard))
    }
    empty = [shard for shard, count in counts.items() if not count]
    if counts and len(empty) == len(counts):
        sentences.append(
            f"no shard has a row: nothing can be scored or selected. Expected samples in {ctx.pool.source or 'it'}"
        )
    elif empty:
        sentences.append(f"without rows: {few(empty, SHOWN)}")
    if stored:
        sentences += _sentences(ctx.store.scan(REGISTERED_SHARDS).select("shard", "tar", "source_reason"))
    return sentences


def _sentences(rows: pl.LazyFrame) -> list[str]:
    kind = pl.col("source_reason").str.split(":").list.first()
    detail = pl.col("source_reason").str.split_exact(":", 1).struct.field("field_1")
    found = (
        rows.filter(kind.is_in(list(_SENTENCES)))
        .select("shard", "tar", kind=kind, detail=detail)
        .group_by("kind", "shard", maintain_order=True)
        .agg(pl.col("tar").first(), pl.col("detail").first(), rows=pl.len())
        .sort("kind", "shard")
        .collect()
    )
    sentences = []
    for (kind_of_rows,), group in found.group_by("kind", maintain_order=True):
        for row in group.head(SHOWN).iter_rows(named=True):
            tar = str(row["tar"]).rpartition("/")[2]
            what = _UNREADABLE.get(row["detail"], f"cannot be read ({row['detail']})")
            where = str(row["detail"]).replace("byte_", "byte ").replace("line_", "line ")
            sentence = _SENTENCES[str(kind_of_rows)]
            sentences.append(sentence.format(**row | {"tar": tar, "what": what, "detail": where}))
        if group.height > SHOWN:
            sentences.append(f"… and {group.height - SHOWN:,} more shards with {kind_of_rows}")
    return sentences
