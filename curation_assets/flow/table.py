"""A table of the flow, declared once: what it reads and how it is computed. No Dagster here."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import polars as pl

from curation_assets.core.stages import check_reads_forward
from curation_assets.core.table_names import stage_of
from curation_assets.flow.context import PoolContext
from curation_assets.scoring.batches import LoadImage, Steps

Grain = Literal["shard", "pool", "training"]
#: What a run makes: per-shard tables alone ('shards'), or whole-pool tables and trainings alone ('pool').
Phase = Literal["shards", "pool"]

#: (context, partition key) → (table, partition or None for all of it): what one partition reads.
PartitionInputs = Callable[[PoolContext, str], Sequence[tuple[str, str | None]]]


@dataclass(frozen=True)
class TableReport:
    """How bringing one table up to date went."""

    table: str
    seconds: float  # wall time, checks and metadata included
    row_count: int
    reused: int  # shards (or 1 for a whole-pool table) that needed no work
    computed: int


Compute = Callable[[PoolContext, str | None], pl.DataFrame]
ComputeFolder = Callable[[PoolContext, Path], None]
ComputeShards = Callable[[PoolContext, Sequence[str]], dict[str, pl.DataFrame]]
#: (context, shard, loader of its images) → the table's rows, batch by batch in the order of raw/samples.
ComputeImages = Callable[[PoolContext, str, LoadImage], Steps[pl.DataFrame]]


@dataclass(frozen=True)
class TableCheck:
    """A check of a finished table, shown beside it in Dagster. It warns; it stops nothing."""

    name: str
    description: str
    violations: Callable[[PoolContext, str | None], list[str]]  # one sentence each; empty when all is well


@dataclass(frozen=True)
class Table:
    """One table of the flow. `grain` 'shard': one Parquet per shard; 'pool': one for the whole pool; 'training': one
    per training set, size and seed, whose keys the table knows."""

    name: str  # "stage/name"
    grain: Grain
    inputs: tuple[str, ...]
    version: str  # bump when the numbers change
    description: str  # Markdown; first sentence states the grain
    compute: Compute | None = None
    compute_folder: ComputeFolder | None = None  # instead of `compute`: a folder of files (a model)
    compute_shards: ComputeShards | None = None  # the same as `compute` for several shards at once, where that is less
    compute_images: ComputeImages | None = None  # the same as `compute`, of images that other tables read beside it
    shards_at_once: int = 1  # computed in threads of one process, where computing is for the most part waiting
    roles: tuple[str, ...] = ()
    config: Callable[[PoolContext, str | None], Any] | None = None  # settings that change the numbers
    # A fit: made once, and again only when code, settings or models change, or by `curate run POOL --refit-cuts`.
    is_frozen: bool = False
    #: Of a frozen table that holds something of single samples: their ids. Taking one down removes the table.
    held_samples: Callable[[PoolContext], Collection[str]] | None = None
    continues: str | None = None  # the table whose rows this one carries on, one for one
    kinds: tuple[str, ...] = ("polars",)
    column_lineage: Mapping[str, list[tuple[str, str]]] | None = None  # column → [(table, column)]
    warning_column: str | None = None  # sentences that a person should read, null where all is well
    keys: tuple[str, ...] = ()  # partitions of grain 'training', such as icc_at0250-000000
    partition_inputs: PartitionInputs | None = None  # where a partition of grain 'training' reads less than all inputs
    label: str = ""  # in two or three words what its rows are, where another stage has a table of the same name
    checks: tuple[TableCheck, ...] = ()  # besides the conservation of rows, which every table is checked for

    def __post_init__(self) -> None:
        if self.grain not in get_args(Grain):
            raise ValueError(f"table {self.name!r}: grain must be one of {get_args(Grain)}, got {self.grain!r}")
        if (self.grain == "training") != bool(self.keys):
            raise ValueError(f"table {self.name!r} of grain {self.grain!r} has {len(self.keys)} keys of its own")
        if (self.compute is None) == (self.compute_folder is None):
            raise ValueError(f"table {self.name!r} needs either compute or compute_folder")
        if self.is_frozen and self.grain != "pool":
            raise ValueError(f"table {self.name!r}: only a whole-pool table can be frozen")
        for upstream in self.inputs:
            check_reads_forward(self.name, upstream)

    def partitions(self, shards: Sequence[str]) -> Sequence[str | None]:
        """Keys of this table's partitions, of a pool with these shards; None alone for a whole-pool table."""
        return {"shard": shards, "pool": (None,), "training": self.keys}[self.grain]

    @property
    def title(self) -> str:
        """Its name as people read it: 'fused/duplicates (near-duplicates)'."""
        return f"{self.name} ({self.label})" if self.label else self.name

    @property
    def stage(self) -> str:
        """First half of the name."""
        return stage_of(self.name)
