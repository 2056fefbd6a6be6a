"""What every place that holds samples brings along: how they are found, purged, looked for and verified there.

A holder lies in the `holders.py` of its folder, and is found by that file. `curate takedown` and `curate verify` are
loops over all of them.
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

#: Samples that are taken down, with what is looked for.
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
    """A takedown under way in one pool."""

    pool: str
    samples: pl.DataFrame  # SAMPLE_SCHEMA
    with_sources: bool = False
    sources: dict[str, str] = field(default_factory=dict)  # path of a source to be rewritten → sha256 as registered
    digests_before: dict[str, str] = field(default_factory=dict)  # path relative to home → sha256
    tables: list[str] = field(default_factory=list)  # that were materialised before, in flow order
    remaining_sources: list[str] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)  # sample_id → why it is taken down, where that was stated
    holding: list[str] = field(default_factory=list)  # frozen tables that held one of the samples
    entries: list[list[str]] = field(default_factory=list)  # kind and hash of those of the denylist that name samples
    shared: list[str] = field(default_factory=list)  # texts and image hashes of samples that other rows have, too
    is_purged: bool = False  # everything that held a sample is removed: what is made again since then stays

    @property
    def shards(self) -> list[str]:
        """Shards that hold a sample, sorted."""
        return sorted(self.samples["shard"].unique())

    def of_shard(self, shard: str) -> pl.DataFrame:
        """The samples of a shard."""
        return self.samples.filter(pl.col("shard") == shard)

    @property
    def sample_ids(self) -> list[str]:
        """Of the samples, each once."""
        return self.samples["sample_id"].unique().to_list()

    def add_entries(self, entries: Iterable[tuple[str, str]]) -> None:
        """Note entries of the denylist, (kind, hash), by which samples were found."""
        self.entries = sorted(map(list, {*map(tuple, self.entries), *entries}))

    @property
    def texts(self) -> frozenset[str]:
        """What leaves records and loose files, which nothing makes again: the texts of `needles`, and the ids."""
        return self.needles.texts | set(self.sample_ids)

    @property
    def needles(self) -> Needles:
        """What must be found nowhere afterwards."""
        return Needles.of(self.samples, but=self.shared)


@dataclass(frozen=True)
class Left:
    """What a takedown left: (place, what of a sample), and what could not be looked at, in sentences."""

    found: list[tuple[str, str]] = field(default_factory=list)  # the next takedown purges it
    with_owners: list[tuple[str, str]] = field(default_factory=list)  # in files that are not ours
    not_done: list[str] = field(default_factory=list)


class Holder:
    """A place of a pool that holds samples. A holder overrides what applies to it.

    Every step may be killed and is then made again with the same takedown: a purge of what is purged changes nothing.
    """

    #: When it is purged: 0 what registered rows lead to, 1 the tables (registered rows among them), 2 what only quotes.
    turn: int = 0

    def find(self, ctx: PoolContext, tables: Tables, takedown: Takedown, *, is_resumed: bool) -> None:
        """Add the samples that the denylist knows and that are still held here. Changes no file.

        `is_resumed`: a takedown that was begun with its settings goes on.
        """

    def artefacts(self, ctx: PoolContext, tables: Tables, takedown: Takedown) -> Iterable[Path]:
        """Files that hold, or may have held, a sample: the certificate has their hashes, and they are
        searched afterwards."""
        return ()

    def of_shard(self, ctx: PoolContext, shard: str) -> Iterable[Path]:
        """Files and folders that go with a shard which its owner removed (operations/removed_shards.py)."""
        return ()

    def purge(self, ctx: PoolContext, tables: Tables, takedown: Takedown) -> None:
        """Remove the samples; adds to `remaining_sources` what is its owner's and stays."""

    def searched(self, ctx: PoolContext, tables: Tables, takedown: Takedown) -> Iterable[Path]:
        """Further files to be searched afterwards."""
        return ()

    def left(self, ctx: PoolContext, takedown: Takedown) -> Left:
        """What is left elsewhere than in these files."""
        return Left()

    def certified(self, ctx: PoolContext, tables: Tables, takedown: Takedown) -> dict[str, Any]:
        """Entries of the certificate: what was flagged, what stays."""
        return {}

    def withdraw(self, ctx: PoolContext, takedown: Takedown, certificate: str) -> None:
        """Mark what listed the samples and stays. `certificate`: path of that of the takedown, below the home."""

    def checks(self, ctx: PoolContext, tables: Tables) -> Iterable[Check]:
        """What compares the files with what was recorded of them. Changes nothing."""
        return ()


def all_holders(*others: Holder) -> list[Holder]:
    """The holders of all folders and `others`, in the order in which they are purged."""
    return sorted([*(holder() for holder in found_classes("holders", Holder)), *others], key=lambda one: one.turn)


def files_in(folder: Path) -> list[Path]:
    """All files of a folder, without links, sorted."""
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()]
