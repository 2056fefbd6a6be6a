"""The storage at the address that every home's dagster.yaml names; events in batches (docs/decisions/0035)."""

import os
from typing import Any

from curation_assets.foreign.dagster_storage import own_sqlite_storage
from curation_assets.foreign.guards import EVENT_BATCHES

BATCH_SIZE = 1000  # events of some 5 kB each

BatchedSqliteStorage: Any
if EVENT_BATCHES.is_on():
    from curation_assets.foreign.dagster_event_log import BatchedSqliteStorage
else:
    BatchedSqliteStorage = own_sqlite_storage()


def write_events_in_batches() -> None:
    """Have Dagster hand over events together, in this process and in those that it starts; a size that is set stays.

    Batches are those of a table that is done and of a run that begins: no event waits for a later one to happen.
    """
    os.environ.setdefault("DAGSTER_EVENT_BATCH_SIZE", str(BATCH_SIZE))
