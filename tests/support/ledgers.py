"""A ledger judged again, whole."""

from pathlib import Path

import numpy as np

from curation_assets.audit.ledger import replayed_parts
from curation_assets.stores.shard_store import ShardStore


def replay(path: Path, store: ShardStore) -> np.ndarray:
    """The subset that the recorded values give: u8,u8, (K,) sorted."""
    return np.concatenate([*replayed_parts(path, store)])
