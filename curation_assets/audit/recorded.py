"""Which of a pool's ledgers and cuts are of its policies and tables as they are now."""

import functools
from collections.abc import Sequence

from curation_assets.audit.ledger import Ledger, LedgerError, ledger_policies, recorded_ledger
from curation_assets.core.table_names import SAMPLES
from curation_assets.selection.cut import PolicyCut, cut_of_frame
from curation_assets.selection.policy import Policy
from curation_assets.stores.shard_store import ShardStore


def current_ledgers(store: ShardStore, policies: Sequence[Policy]) -> dict[str, Ledger]:
    """Policy → its ledger, for those that are recorded as they are now, of the pool as it is now.

    A ledger is left out where the policy has changed since, a shard came or went, or the content of a table that it was
    made from.
    """
    recorded, shards = set(ledger_policies(store)), store.partitions(SAMPLES)
    content = functools.cache(store.content)
    current: dict[str, Ledger] = {}
    for policy in (one for one in policies if one.name in recorded):
        try:
            ledger = recorded_ledger(store, policy.name)
        except LedgerError:  # of an earlier version
            continue
        table = f"filtered/{policy.name}"
        is_same = store.partitions(table) == shards and ledger.policy.version == policy.version
        manifests = (store.manifest(table, shard) for shard in shards if is_same)
        read = (item for one in manifests if one is not None for item in one.contents_read.items())
        if is_same and all(content(*key) == was for key, was in read):
            current[policy.name] = ledger
    return current


def cuts_in_force(store: ShardStore, policies: Sequence[Policy]) -> dict[str, PolicyCut]:
    """Policy → its frozen cut, for those that were cut before as they are now."""
    cuts = {}
    for policy in policies:
        asset = f"filtered/{policy.name}_cut"
        if store.table_path(asset).is_file():
            cut = cut_of_frame(store.read(asset))
            if cut.policy_version == policy.version:
                cuts[policy.name] = cut
    return cuts
