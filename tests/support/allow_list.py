"""Training on tars as they are: the samples that a `keys.tsv` lists."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from curation_assets.stores.text_tables import read_lines


def read_key_list(path: Path) -> list[tuple[str, str]]:
    """(tar, key) of `write_keys`, in its order. Raises ValueError for a line that is not `tar<TAB>key`."""
    entries = []
    for number, line in enumerate(read_lines(path), 1):
        tar, tab, key = line.partition("\t")
        if not (tar and tab and key):
            raise ValueError(f"{path}, line {number}: expected tar<TAB>key, got {line!r}")
        entries.append((_as_named(tar), _as_named(key)))
    return entries


def _as_named(cell: str) -> str:
    back = {mark: character for character, mark in (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r"))}
    return re.sub(r"\\[\\tnr]", lambda mark: back[mark[0]], cell)


class AllowList:
    """Samples to train on, by tar and key, read from `keys.tsv`.

        allowed = AllowList.read("keys.tsv")
        dataset = wds.WebDataset(urls).compose(allowed.samples)

    A tar is found by the end of its path, so it may have moved together with its folder.
    """

    def __init__(self, multiplicity: Mapping[str, Mapping[str, int]]) -> None:
        self.multiplicity = multiplicity  # tar → key → how often
        self._by_name: dict[str, list[str]] = defaultdict(list)
        for tar in multiplicity:
            self._by_name[tar.rpartition("/")[2]].append(tar)

    @classmethod
    def read(cls, path: Path | str) -> "AllowList":
        """The list of `export_keys`. Raises ValueError for a line that is not `tar<TAB>key`."""
        entries: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for tar, key in read_key_list(Path(path)):
            entries[tar][key] += 1
        return cls(entries)

    def tar_of(self, url: str) -> str | None:
        """The listed tar that `url` is: the one whose path shares the longest end with it; None where none does.

        Raises ValueError where two listed tars fit equally well.
        """
        parts = url.split("/")
        fits = [(_shared_end(parts, tar.split("/")), tar) for tar in self._by_name.get(parts[-1], ())]
        if not fits:
            return None
        best = max(length for length, _ in fits)
        tied = [tar for length, tar in fits if length == best]
        if len(tied) > 1:
            raise ValueError(f"{url!r} may be {tied[0]!r} or {tied[1]!r} of the list; give more of its path")
        return tied[0]

    def count(self, url: str, key: str) -> int:
        """How often the sample `key` of the tar at `url` is to be seen; 0 where it is not listed."""
        tar = self.tar_of(url)
        return self.multiplicity[tar].get(key, 0) if tar is not None else 0

    def samples(self, samples: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Samples of a webdataset pipeline, each as often as listed."""
        for sample in samples:
            for _ in range(self.count(sample["__url__"], sample["__key__"])):
                yield dict(sample)


def _shared_end(left_parts: list[str], right_parts: list[str]) -> int:
    length = 0
    for left, right in zip(reversed(left_parts), reversed(right_parts), strict=False):
        if left != right:
            break
        length += 1
    return length
