"""Small pools that are read part by part, as pools larger than memory are."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from curation_assets.numeric import selection as numeric_selection
from curation_assets.selection import judging, leave_one_out
from curation_assets.selection import rows as pool_rows


@contextmanager
def little_memory(rows: int) -> Iterator[None]:
    """Parts of one shard or of so many rows, none of whose values are held; buckets of two values."""
    limits = [
        (pool_rows, "ROWS_AT_ONCE", rows),
        (judging, "HELD_VALUES", 0),
        (judging, "SAMPLED", max(2, rows)),
        (leave_one_out, "FITTED_ROWS", 50),
        (numeric_selection, "SORTED_AT_ONCE", 2),
    ]
    with pytest.MonkeyPatch.context() as patch:
        for module, name, value in limits:
            patch.setattr(module, name, value)
        yield
