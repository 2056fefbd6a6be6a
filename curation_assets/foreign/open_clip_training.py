"""open_clip's trainer with another reader of tars and a shuffle that has a seed (docs/decisions/0026)."""

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from curation_assets.foreign.guards import OPEN_CLIP_DATA, WEBDATASET_SHUFFLE

Sample = dict[str, Any]


def read_tars_with(
    read_tars: Callable[[Iterable[Sample]], Iterator[Sample]], report: Callable[[Exception], bool]
) -> None:
    """Have open_clip_train read tars by `read_tars`, hand errors to `report`, and shuffle by its seed.

    Raises ValueError for versions that were not tried: what it does itself breaks on the markers that webdataset puts
    between tars, and unpickles members.
    """
    for guard in (OPEN_CLIP_DATA, WEBDATASET_SHUFFLE):
        if not guard.is_on():
            raise ValueError(
                f"{guard.library} reads tars in a way that our reader was not tried with; install "
                f"{guard.library}{guard.tried}"
            )
    import open_clip_train.data
    import webdataset

    open_clip_train.data.tarfile_to_samples_nothrow = read_tars
    open_clip_train.data.log_and_continue = report
    # Seeded by the worker (-1), as its draw of tars is: one seed, one order, and another one in every worker.
    webdataset.shuffle = partial(open_clip_train.data.detshuffle2, seed=-1)


def leave_out(names: Iterable[str]) -> None:
    """Make the import of these modules an ImportError, which open_clip_train expects of what it can do without."""
    for name in names:
        sys.modules[name] = None  # type: ignore[assignment]
