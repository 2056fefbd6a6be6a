"""A table of the flow, declared once: what it reads and how it is computed. No Dagster here."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import polars as pl

from curation_assets.core.stages import check_reads_forward
from curation_assets.core.table_names import stage_of
from curation_assets.flow.context import PoolContext
from curation_assets.scoring.batches import LoadImage, Steps, result_of
from curation_assets.stores.shard_store import Changes

Grain = Literal["shard", "pool", "training"]
#: What a run makes: per-shard tables alone ('shards'), or whole-pool tables and trainings alone ('pool').
Phase = Literal["shards", "pool"]


@dataclass(frozen=True)
class TableReport:
    """How bringing one table up to date went."""

    table: str
    seconds: float  # wall time, checks and metadata included
    row_count: int
    reused: int  # shards (or 1 for a whole-pool table) that needed no work
    computed: int


#: How every table but a folder is computed: (context) → the rows of the whole pool, (context, key) → of one partition.
Compute = Callable[..., pl.DataFrame]
ComputeOnDisk = Callable[[PoolContext], pl.LazyFrame]  # of a whole pool: rows that lie on disk


@dataclass(frozen=True)
class Together:
    """A `Compute` that makes several shards at once, too, where that is less work; the rows are the same."""

    one: Callable[[PoolContext, str], pl.DataFrame]
    many: Callable[[PoolContext, Sequence[str]], dict[str, pl.DataFrame]]

    def __call__(self, ctx: PoolContext, shard: str) -> pl.DataFrame:
        """The rows of one shard."""
        return self.one(ctx, shard)


@dataclass(frozen=True)
class OfImages:
    """A `Compute` of images that other tables read beside it: one pass decodes them for all."""

    #: (context, shard, loader of its images) → the table's rows, batch by batch in the order of raw/samples.
    steps: Callable[[PoolContext, str, LoadImage], Steps[pl.DataFrame]]

    def __call__(self, ctx: PoolContext, shard: str) -> pl.DataFrame:
        """The rows of one shard, of images that it decodes itself."""
        return result_of(self.steps(ctx, shard, ctx.image_loader()))


@dataclass(frozen=True)
class Folder:
    """What a table that is a folder of files (a model, subsets) is made by, instead of a `Compute`."""

    write: Callable[[PoolContext, Path], None]


@dataclass(frozen=True)
class Needs:
    """What computing a table takes, besides memory for its rows."""

    roles: tuple[str, ...] = ()  # models; they run on the profile's device, a GPU where it has one
    core: bool = False  # keeps a core busy for long even without a model: shards go to worker processes
    at_once: int = 1  # shards in threads of one process, where computing is for the most part waiting for a network


@dataclass(frozen=True)
class Trainings:
    """The partitions of a table of grain 'training': one per training set, size and seed."""

    keys: tuple[str, ...]  # such as icc_at0250-000000
    #: (context, key) → (table, partition or None for all of it), where a partition reads less than all inputs.
    inputs: Callable[[PoolContext, str], Sequence[tuple[str, str | None]]] | None = None


@dataclass(frozen=True)
class TableCheck:
    """A check of a finished table, shown beside it in Dagster. It warns; it stops nothing."""

    name: str
    description: str
    #: (context) of a whole-pool table, (context, key) of a partition → one sentence each; none when all is well.
    violations: Callable[..., list[str]]


@dataclass(frozen=True)
class Fit:
    """The fit of a table that is made once, and again only when code, settings or models change, or
    by `curate refit POOL`."""

    #: Whether what is stored holds something of one of these samples, by id; taking such a one down removes the table.
    #: None: numbers and weights of the whole pool (docs/decisions/0070).
    holds_any: Callable[[PoolContext, Collection[str]], bool] | None = None
    #: The stored rows without the ids of these samples, where they name one; else None. What is fitted stays.
    without: Callable[[PoolContext, Collection[str]], pl.DataFrame | None] | None = None


@dataclass(frozen=True)
class Ending:
    """What `curate run` writes about a table when all is made."""

    text: str
    is_warning: bool = False


@dataclass(frozen=True)
class Shown:
    """How people see a table, in Dagster and in words."""

    label: str = ""  # in two or three words what its rows are, where another stage has a table of the same name
    kinds: tuple[str, ...] = ("polars",)
    column_lineage: Mapping[str, list[tuple[str, str]]] | None = None  # column → [(table, column)]
    warning_column: str | None = None  # sentences that a person should read, null where all is well
    ending: Callable[[PoolContext], Ending | None] | None = None
    checks: tuple[TableCheck, ...] = ()  # besides the conservation of rows, which every table is checked for


@dataclass(frozen=True)
class Table:
    """One table of the flow. `grain` 'shard': one Parquet per shard; 'pool': one for the whole pool; 'training': one
    per training set, size and seed, whose keys `trainings` has."""

    name: str  # "stage/name"
    grain: Grain
    inputs: tuple[str, ...]
    version: str  # bump when the numbers change
    description: str  # Markdown; first sentence states the grain
    compute: Compute | ComputeOnDisk | Folder
    needs: Needs = Needs()
    #: Settings that change the numbers; a Path in them counts with the content of its file.
    config: Callable[[PoolContext], Any] | None = None
    #: The same of a table whose partitions have settings of their own; key None: what all have.
    config_by_key: Callable[[PoolContext, str | None], Any] | None = None
    #: Shards of which `config_by_key` is another than of None: what plans compare as an input that changed.
    own_configs: Callable[[PoolContext], Collection[str]] | None = None
    facts: Callable[[PoolContext], Mapping[str, Any]] | None = None  # what its manifest states beside (Manifest.facts)
    changes: Changes | None = None  # what its manifest remembers of the version before (Manifest.before)
    fit: Fit | None = None
    continues: str | None = None  # the table whose rows this one carries on, one for one
    trainings: Trainings | None = None
    #: Of a table of shards: rows → the same rows once their samples are taken down; None: as `emptied` has them
    #: (flow/taken_down.py).
    taken_down: Callable[[pl.DataFrame], pl.DataFrame] | None = None
    shown: Shown = Shown()

    def __post_init__(self) -> None:
        if self.grain not in get_args(Grain):
            raise ValueError(f"table {self.name!r}: grain must be one of {get_args(Grain)}, got {self.grain!r}")
        if (self.grain == "training") != bool(self.keys):
            raise ValueError(f"table {self.name!r} of grain {self.grain!r} has {len(self.keys)} keys of its own")
        if self.is_frozen and self.grain != "pool":
            raise ValueError(f"table {self.name!r}: only a whole-pool table can be frozen")
        for upstream in self.inputs:
            check_reads_forward(self.name, upstream)

    @property
    def is_frozen(self) -> bool:
        """Whether it is a fit."""
        return self.fit is not None

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder of files, and no rows."""
        return isinstance(self.compute, Folder)

    @property
    def keys(self) -> tuple[str, ...]:
        """Partitions of grain 'training'; none of the others."""
        return () if self.trainings is None else self.trainings.keys

    def rows(self, ctx: PoolContext, shard: str | None) -> pl.DataFrame:
        """Compute one partition. Raises TypeError for a folder."""
        if isinstance(self.compute, Folder):
            raise TypeError(f"table {self.name!r} is a folder of files and has no rows")
        return self.compute(ctx, *key_of(shard)).lazy().collect()

    def partitions(self, shards: Sequence[str]) -> Sequence[str | None]:
        """Keys of this table's partitions, of a pool with these shards; None alone for a whole-pool table."""
        return {"shard": shards, "pool": (None,), "training": self.keys}[self.grain]

    @property
    def title(self) -> str:
        """Its name as people read it: 'fused/duplicates (near-duplicates)'."""
        return f"{self.name} ({self.shown.label})" if self.shown.label else self.name

    @property
    def stage(self) -> str:
        """First half of the name."""
        return stage_of(self.name)


def key_of(partition: str | None) -> tuple[str, ...]:
    """What a table's functions take after the context: nothing for a whole pool, else the partition's key."""
    return () if partition is None else (partition,)


Tables = Mapping[str, Table]  # of a pool, by name, inputs first
