"""Which of a pool's ledgers and cuts are of its policies and tables as they are now."""

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
    recorded, shards, contents = set(ledger_policies(store)), store.partitions(SAMPLES), _Contents(store)
    current: dict[str, Ledger] = {}
    for policy in (one for one in policies if one.name in recorded):
        try:
            ledger = recorded_ledger(store, policy.name)
        except LedgerError:  # of an earlier version
            continue
        table = f"filtered/{policy.name}"
        is_same = store.partitions(table) == shards and ledger.policy.version == policy.version
        if is_same and all(contents.are_those_of(table, shard) for shard in shards):
            current[policy.name] = ledger
    return current


class _Contents:
    """Contents of tables, each looked up once."""

    def __init__(self, store: ShardStore) -> None:
        self._store, self._known = store, dict[tuple[str, str | None], str | None]()

    def are_those_of(self, table: str, shard: str) -> bool:
        """Whether a table of a shard was made from what is stored now."""
        manifest = self._store.manifest(table, shard)
        return manifest is not None and all(
            self._of(read.asset, read.partition) == read.content_sha256 for read in manifest.inputs
        )

    def _of(self, asset: str, partition: str | None) -> str | None:
        key = (asset, partition)
        if key not in self._known:
            manifest = self._store.manifest(asset, partition)
            self._known[key] = None if manifest is None else manifest.content_sha256
        return self._known[key]


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
