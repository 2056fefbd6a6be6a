"""Shards that a person names: by key, by number, or as a range of either."""

import re
from collections.abc import Sequence

from curation_assets.core.settings import check_shard_key, shard_key

RANGE = ".."
_NUMBER = re.compile(r"[0-9]{1,8}")
SHOWN = 3


def shards_in(selections: Sequence[str], shards: Sequence[str]) -> list[str]:
    """The shards that `selections` name, sorted: 'photos-000003', '3', or '3..17' and 'photos-000003..17' with both
    ends. `shards`: all keys of the pool; an end of a range need not be among them.

    Raises ValueError for a selection that names none, or that cannot be read.
    """
    known = sorted(shards)
    if not known:
        raise ValueError(f"the pool has no shards, so {', '.join(selections)} names none")
    prefix = known[0].rpartition("-")[0]
    chosen: set[str] = set()
    for selection in selections:
        first, is_range, last = (part.strip() for part in selection.partition(RANGE))
        low = _key(first, prefix, selection)
        high = _key(last, prefix, selection) if is_range else low
        if low > high:
            raise ValueError(f"shards {selection!r}: the range ends before it begins; write {last}{RANGE}{first}")
        found = [key for key in known if low <= key <= high]
        if not found:
            raise ValueError(f"shards {selection!r}: the pool has none of them; it has {_shown(known)}")
        chosen.update(found)
    return sorted(chosen)


def _key(written: str, prefix: str, selection: str) -> str:
    if _NUMBER.fullmatch(written):
        return shard_key(prefix, int(written))
    try:
        key = check_shard_key(written)
    except ValueError:
        raise ValueError(
            f"shards take a key ({prefix}-000003), a number (3) or a range with both ends (3{RANGE}17), "
            f"got {selection!r}"
        ) from None
    if key.rpartition("-")[0] != prefix:
        raise ValueError(f"shards {selection!r}: keys of this pool begin with {prefix!r}")
    return key


def _shown(known: Sequence[str]) -> str:
    few = len(known) <= SHOWN
    return ", ".join(known) if few else f"{len(known)}, {known[0]} to {known[-1]}"
