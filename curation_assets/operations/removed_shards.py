"""Stored shards that the source no longer has: they count until somebody removes them, as a folder may be unmounted."""

from collections.abc import Sequence

from curation_assets.core.table_names import SAMPLES
from curation_assets.flow.context import PoolContext
from curation_assets.flow.holder import all_holders
from curation_assets.stores.atomic import remove_path


def missing_shards(ctx: PoolContext, present: Sequence[str] | None = None) -> list[str]:
    """Stored shards that the pool's source no longer has, sorted. Raises what reading the source raises.

    `present`: the shards that it has, where they are known already.
    """
    return sorted(set(ctx.store.partitions(SAMPLES)) - set(ctx.shards() if present is None else present))


def remove_shards(ctx: PoolContext, shards: Sequence[str]) -> int:
    """Delete tables, downloads and notes of shards that the source no longer has. Returns the number of tables deleted.

    Raises ValueError for a shard that the source still has, since the next run would bring it back, or that is not
    stored; then nothing is deleted.
    """
    missing = missing_shards(ctx)
    wrong = sorted(set(shards) - set(missing))
    if wrong:
        raise ValueError(
            f"pool {ctx.pool.name!r}: {', '.join(wrong[:5])} cannot be removed; only stored shards that the source no "
            f"longer has can, which are: {', '.join(missing[:5]) or 'none'}. Take others out of the source first"
        )
    paths = [path for shard in shards for holder in all_holders() for path in holder.of_shard(ctx, shard)]
    for path in paths:
        remove_path(path)
    return sum(path.name.startswith("shard=") for path in paths)
