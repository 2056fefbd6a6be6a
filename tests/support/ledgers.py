"""A ledger judged again, whole."""

import numpy as np
import polars as pl

from curation_assets.audit.ledger import Ledger, replayed, subset_of
from curation_assets.selection.judging import multiplicity


def replay(ledger: Ledger) -> np.ndarray:
    """The subset that the recorded values give: u8,u8, (K,) sorted."""
    judged = (part.with_columns(multiplicity=pl.Series(multiplicity(ledger.policy, part))) for part in replayed(ledger))
    return subset_of(judged)
