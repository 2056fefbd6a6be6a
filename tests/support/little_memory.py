"""Small pools that are read part by part, as pools larger than memory are."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from curation_assets.audit import against, diff, ledger, release_diff
from curation_assets.numeric import selection as numeric_selection
from curation_assets.selection import part_by_part, ranges
from curation_assets.stores import subsets


@contextmanager
def little_memory(rows: int) -> Iterator[None]:
    """Parts of so many rows, groups of a shard, buckets of two values."""
    parts = [
        (module, "PART_ROWS", rows) for module in (ranges, part_by_part, diff, ledger, against, release_diff, subsets)
    ]
    of_pool = [(ranges, "ROWS_IN_MEMORY", 0), (ranges, "GROUP_ROWS", 1), (ranges, "SAMPLED", 1)]
    with pytest.MonkeyPatch.context() as patch:
        for module, name, value in (*parts, *of_pool, (numeric_selection, "SORTED_AT_ONCE", 2)):
            patch.setattr(module, name, value)
        yield
