"""Dagster's partitions of a pool: shards, or blocks of `shards_per_partition` shards whose numbers follow each other.

Blocks are Dagster's alone: tables, manifests and ledgers are per shard, whatever is a partition (decision 0085). A key
holds its range, so that one of another size is read like any other.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence

import dagster as dg

from curation_assets.core.options import HasOptions
from curation_assets.core.settings import check_shard_key, shard_key, shard_number
from curation_assets.defs.options import DagsterOptions
from curation_assets.flow.context import PoolContext
from curation_assets.operations.removed_shards import missing_shards
from curation_assets.operations.shard_ranges import RANGE


def size_of(pool: HasOptions) -> int:
    """Shards of one partition of a pool, as it is declared now."""
    return DagsterOptions.of(pool).shards_per_partition


def partition_of(shard: str, size: int) -> str:
    """Key of the partition of a shard: itself, or with a size of 20 photos-000033 → 'photos-000020..000039'.

    Raises ValueError for a shard's key that is none.
    """
    if size == 1:
        return check_shard_key(shard)
    first = shard_number(check_shard_key(shard)) // size * size
    return f"{shard_key(shard.rpartition('-')[0], first)}{RANGE}{first + size - 1:06d}"


def partitions_of_shards(shards: Iterable[str], size: int) -> list[str]:
    """Keys of the partitions of some shards, each once, in order."""
    return list(dict.fromkeys(partition_of(shard, size) for shard in shards))


def shards_of(partitions: Iterable[str], present: Callable[[], Collection[str]]) -> dict[str, list[str]]:
    """Partition → its shards, sorted: of a block those that are `present`, which is called where there is one."""
    found: dict[str, list[str]] = {}
    shards: Sequence[str] | None = None
    for key in sorted(partitions):
        first, is_block, last = key.partition(RANGE)
        if not is_block:
            found[key] = [key]
            continue
        shards = sorted(present(), key=shard_number) if shards is None else shards
        ends = (bisect_left(shards, number, key=shard_number) for number in (shard_number(first), int(last) + 1))
        found[key] = list(shards[slice(*ends)])
    return found


def new_and_old(known: Collection[str], shards: Iterable[str], size: int) -> tuple[list[str], list[str]]:
    """Partitions of `shards` that are not yet `known`, and known ones that hold none of them."""
    wanted = dict.fromkeys(partitions_of_shards(shards, size))
    return [key for key in wanted if key not in known], [key for key in known if key not in wanted]


def register(instance: dg.DagsterInstance, ctx: PoolContext, shards: Iterable[str]) -> None:
    """Have Dagster list the partitions of all shards, in order, and no others: those of another size, or added by hand,
    go, and their events stay."""
    known = set(instance.get_dynamic_partitions(ctx.pool.name))
    new, old = new_and_old(known, shards, size_of(ctx))
    for key in old:
        instance.delete_dynamic_partition(ctx.pool.name, key)
    instance.add_dynamic_partitions(ctx.pool.name, new)


def unregister(instance: dg.DagsterInstance, ctx: PoolContext, removed: Iterable[str]) -> None:
    """Have Dagster no longer list the partitions of shards that were removed, but for blocks that hold others."""
    present = ctx.shards()
    left = partitions_of_shards([*present, *missing_shards(ctx, present)], size_of(ctx))
    for key in set(partitions_of_shards(removed, size_of(ctx))).difference(left):
        instance.delete_dynamic_partition(ctx.pool.name, key)
