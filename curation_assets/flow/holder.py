"""Holders: classes that find, purge, search and verify the samples in one kind of place.

A holder is a class in the `holders.py` of its folder, and is found there. `curate takedown` and
`curate verify` are loops over all holders.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from curation_assets.core.found import found_classes
from curation_assets.flow.context import PoolContext
from curation_assets.flow.table import Tables
from curation_assets.stores.damage import Check
from curation_assets.stores.scrubbing import HASHES, Needles

#: Samples that are taken down, with the texts and hashes by which they are searched.
SAMPLE_SCHEMA = pl.Schema(
    {
        "sample_id": pl.String(),
        "shard": pl.String(),
        "source_row": pl.Int64(),
        "url": pl.String(),
        "caption": pl.String(),
        **dict.fromkeys(HASHES, pl.String()),
    }
)


@dataclass
class Takedown:
    """A takedown in one pool, as far as it is done."""

    pool: str
    samples: pl.DataFrame  # SAMPLE_SCHEMA
    with_sources: bool = False
    sources: dict[str, str] = field(default_factory=dict)  # path of a source to be rewritten → sha256 as registered
    digests_before: dict[str, str] = field(default_factory=dict)  # file, relative to home → sha256 before the purge
    tables: list[str] = field(default_factory=list)  # tables that were materialised before, in flow order
    remaining_sources: list[str] = field(default_factory=list)  # files of owners that still hold samples
    reasons: dict[str, str] = field(default_factory=dict)  # sample_id → why it is taken down, where that was stated
    holding: list[str] = field(default_factory=list)  # frozen tables that held one of the samples
    entries: list[list[str]] = field(default_factory=list)  # entries of the denylist that name samples: [kind, hash]
    shared: list[str] = field(default_factory=list)  # texts and image hashes of samples that other rows have, too
    is_purged: bool = False  # all that held a sample is removed; files that are made after this stay

    @property
    def shards(self) -> list[str]:
        """Shards that hold a sample, sorted."""
        return sorted(self.samples["shard"].unique())

    def of_shard(self, shard: str) -> pl.DataFrame:
        """The samples of a shard."""
        return self.samples.filter(pl.col("shard") == shard)

    @property
    def sample_ids(self) -> list[str]:
        """Ids of the samples, each once."""
        return self.samples["sample_id"].unique().to_list()

    def add_entries(self, entries: Iterable[tuple[str, str]]) -> None:
        """Add entries of the denylist, (kind, hash), by which samples were found."""
        self.entries = sorted(map(list, {*map(tuple, self.entries), *entries}))

    @property
    def texts(self) -> frozenset[str]:
        """Texts to remove from records and loose files, which no run writes anew: `needles` and ids."""
        return self.needles.texts | set(self.sample_ids)

    @property
    def needles(self) -> Needles:
        """Texts and hashes that must be found nowhere after the takedown."""
        return Needles.of(self.samples, but=self.shared)


@dataclass(frozen=True)
class Left:
    """Traces of samples that a takedown left: each is a place and what of a sample it holds."""

    found: list[tuple[str, str]] = field(default_factory=list)  # the next takedown purges it
    with_owners: list[tuple[str, str]] = field(default_factory=list)  # in files that are not ours
    not_done: list[str] = field(default_factory=list)  # sentences on places that could not be searched


class Holder:
    """A kind of place in which a pool holds samples. A holder overrides the steps that apply to it.

    A step that was killed is done again with the same takedown. So a second purge changes nothing.
    """

    #: The order of purges: 0 files that registered rows lead to, 1 tables (those rows too), 2 files that only quote.
    turn: int = 0

    def find(self, ctx: PoolContext, tables: Tables, takedown: Takedown, *, is_resumed: bool) -> None:
        """Add the samples that the denylist names and that are still held here. Changes no file.

        `is_resumed`: the takedown was begun before, and goes on with its settings.
        """

    def artefacts(self, ctx: PoolContext, tables: Tables, takedown: Takedown) -> Iterable[Path]:
        """Files that hold or held a sample: they are hashed for the certificate, and searched later."""
        return ()

    def of_shard(self, ctx: PoolContext, shard: str) -> Iterable[Path]:
        """Files and folders that go with a shard which its owner removed (operations/removed_shards.py)."""
        return ()

    def purge(self, ctx: PoolContext, tables: Tables, takedown: Takedown) -> None:
        """Remove the samples. An owner's files stay, and are added to `remaining_sources`."""

    def searched(self, ctx: PoolContext, tables: Tables, takedown: Takedown) -> Iterable[Path]:
        """Further files to search after the purge."""
        return ()

    def left(self, ctx: PoolContext, takedown: Takedown) -> Left:
        """Traces that are left in other places than these files."""
        return Left()

    def certified(self, ctx: PoolContext, tables: Tables, takedown: Takedown) -> dict[str, Any]:
        """Entries of the certificate: what was marked, and what stays."""
        return {}

    def withdraw(self, ctx: PoolContext, takedown: Takedown, certificate: str) -> None:
        """Mark files that listed the samples and stay. `certificate`: its path below the home."""

    def checks(self, ctx: PoolContext, tables: Tables) -> Iterable[Check]:
        """Checks that compare the files with their records. Changes nothing."""
        return ()


def all_holders(*others: Holder) -> list[Holder]:
    """The holders of all folders and `others`, in the order in which they are purged."""
    return sorted([*(holder() for holder in found_classes("holders", Holder)), *others], key=lambda one: one.turn)


def files_in(folder: Path) -> list[Path]:
    """All files of a folder, without links, sorted."""
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()]
