"""Mismatch: does a method separate aligned image–caption pairs from mismatched ones?"""

from collections.abc import Sequence

import numpy as np

from curation_assets.numeric.separation import roc_auc


def mismatch_auc(values: np.ndarray, is_aligned: Sequence[bool] | np.ndarray) -> float:
    """AUC of aligned over mismatched pairs, in [0, 1]; 0.5 is what guessing gets. (N,) values, (N,) booleans.

    Values without a number (NaN) are left out: report their count beside it. Raises ValueError for an empty group.
    """
    return roc_auc(values, np.asarray(is_aligned))
