"""Members of tars by byte range: what lies close together is read in one go."""

import contextlib
import itertools
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from curation_assets.core.settings import is_in_bucket
from curation_assets.stores.objects import THREADS
from curation_assets.stores.tar_members import far_tar

MAX_GAP = 64 * 1024  # bytes between two members that are read along: less than another request or seek costs
MAX_SPAN = 8 * 1024 * 1024  # bytes of one read, unless one member is larger


@dataclass(frozen=True)
class Members:
    """(N,) members of tars: number of the tar, first byte, bytes."""

    tars: tuple[Path, ...]
    tar: np.ndarray
    offset: np.ndarray
    length: np.ndarray

    def read(self, chosen: np.ndarray) -> dict[int, bytes]:
        """Number of a member → its bytes, or what is left of them: fewer where the tar is cut, none of a missing one.

        Raises ObjectStoreError where a bucket does not answer.
        """
        spans = list(self._spans(np.unique(chosen)))
        if is_in_bucket(self.tars[0]):
            with ThreadPoolExecutor(THREADS) as threads:  # a bucket answers late, and many at a time
                return dict(one for read in threads.map(self._read_span, spans) for one in read)
        if hasattr(os, "posix_fadvise"):  # not on macOS
            self._announce(spans)
        return dict(one for span in spans for one in self._read_span(span))

    def _announce(self, spans: Sequence[np.ndarray]) -> None:
        """Have the system read ahead what comes: a disk serves many reads at a time, and we ask for one."""
        for tar, group in itertools.groupby(spans, key=lambda span: int(self.tar[span[0]])):
            with contextlib.suppress(OSError), self.tars[tar].open("rb") as file:
                for span in group:
                    first, size = self._bounds(span)
                    os.posix_fadvise(file.fileno(), first, size, os.POSIX_FADV_WILLNEED)

    def _bounds(self, span: np.ndarray) -> tuple[int, int]:
        """(first byte, bytes) of members that are read together."""
        first = int(self.offset[span[0]])
        return first, int((self.offset[span] + self.length[span]).max()) - first

    def _spans(self, chosen: np.ndarray) -> Iterator[np.ndarray]:
        """The members, in groups that are read together."""
        order = chosen[np.lexsort((self.offset[chosen], self.tar[chosen]))]
        tar, offset = self.tar[order], self.offset[order]
        end = offset + self.length[order]
        is_apart = (tar[1:] != tar[:-1]) | (offset[1:] - end[:-1] > MAX_GAP)
        for group in np.split(np.arange(len(order)), np.flatnonzero(is_apart) + 1):
            start = 0
            for place in range(1, len(group) + 1):
                if place == len(group) or end[group[place]] - offset[group[start]] > MAX_SPAN:
                    yield order[group[start:place]]
                    start = place

    def _read_span(self, span: np.ndarray) -> list[tuple[int, bytes]]:
        tar = self.tars[self.tar[span[0]]]
        first, size = self._bounds(span)
        far = far_tar(tar)
        data = None if far is None else far.read_span(first, size)
        if data is None:
            try:
                file = os.open(tar, os.O_RDONLY)
            except OSError:
                data = b""
            else:
                try:
                    data = os.pread(file, size, first)
                finally:
                    os.close(file)
        if len(span) == 1:
            return [(int(span[0]), data)]
        starts = self.offset[span] - first
        ends = starts + self.length[span]
        return [(int(n), data[a:b]) for n, a, b in zip(span, starts.tolist(), ends.tolist(), strict=True)]
