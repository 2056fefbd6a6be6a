"""Dagster's records of old runs: removed with their logs, as far as nothing that is shown or checked rests on them."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import dagster as dg

from curation_assets.core.settings import Settings
from curation_assets.defs.records import events_of, pointers_of
from curation_assets.flow.graph import sound_and_broken
from curation_assets.operations.retention import DAY_SECONDS, Removed, remove_old_files

FINISHED = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)


@dataclass(frozen=True)
class _Made:
    """One materialisation."""

    storage_id: int
    run_id: str
    pointers: Mapping[dg.AssetKey, int]  # parent → newest event of it that was there


def remove_old(settings: Settings, instance: dg.DagsterInstance, now: float) -> list[Removed]:
    """Remove what is older than `settings.keep_days`; none at 0. `now`: seconds since 1970.

    Runs stay that hold the newest materialisation of a table or shard, or one that such a one read: without them
    Dagster would take the table for missing, and lineage could not be checked against its log.
    """
    if settings.keep_days == 0:
        return []
    before = now - settings.keep_days * DAY_SECONDS
    needed = needed_runs(instance)
    runs = logs = 0
    filters = dg.RunsFilter(statuses=list(FINISHED), created_before=datetime.fromtimestamp(before, UTC))
    for record in instance.get_run_records(filters):
        if record.end_time is not None and record.end_time >= before:
            continue
        run_id = record.dagster_run.run_id
        instance.compute_log_manager.delete_logs(prefix=[run_id])
        logs += 1
        if run_id not in needed:
            instance.delete_run(run_id)
            runs += 1
    return [
        Removed("runs", runs),
        Removed("runs' logs", logs),
        *remove_old_files(settings, sound_and_broken(settings)[0], before),
    ]


def needed_runs(instance: dg.DagsterInstance) -> set[str]:
    """Runs whose materialisations are the newest of their partition, or were the newest when such a one read them."""
    made = {key: _materialisations(instance, key) for key in instance.get_asset_keys()}
    waiting = [versions[-1] for partitions in made.values() for versions in partitions.values()]
    needed: set[str] = set()
    looked_up: set[tuple[dg.AssetKey, int]] = set()
    while waiting:
        version = waiting.pop()
        needed.add(version.run_id)
        for pointer in set(version.pointers.items()) - looked_up:
            looked_up.add(pointer)
            parent, newest = pointer
            for versions in made.get(parent, {}).values():
                position = bisect_right([known.storage_id for known in versions], newest)
                if position:
                    waiting.append(versions[position - 1])
    return needed


def _materialisations(instance: dg.DagsterInstance, key: dg.AssetKey) -> dict[str | None, list[_Made]]:
    """Partition → its materialisations, oldest first."""
    made: dict[str | None, list[_Made]] = defaultdict(list)
    for record, event in events_of(instance, key):
        made[record.partition_key].append(_Made(record.storage_id, record.run_id, pointers_of(event)))
    return made
