"""A table of the flow, declared once: what it reads and how it is computed. No Dagster here."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import polars as pl

from curation_assets.core.stages import check_reads_forward
from curation_assets.flow.context import PoolContext

Grain = Literal["shard", "pool"]


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


@dataclass(frozen=True)
class TableCheck:
    """A check of a finished table, shown beside it in Dagster. It warns; it stops nothing."""

    name: str
    description: str
    violations: Callable[[PoolContext, str | None], list[str]]  # one sentence each; empty when all is well


@dataclass(frozen=True)
class Table:
    """One table of the flow. `grain` 'shard': one Parquet per shard; 'pool': one for the whole pool."""

    name: str  # "stage/name"
    grain: Grain
    inputs: tuple[str, ...]
    version: str  # bump when the numbers change
    description: str  # Markdown; first sentence states the grain
    compute: Compute | None = None
    compute_folder: ComputeFolder | None = None  # instead of `compute`: a folder of files (a model)
    compute_shards: ComputeShards | None = None  # the same as `compute` for several shards at once, where that is less
    roles: tuple[str, ...] = ()
    config: Callable[[PoolContext, str | None], Any] | None = None  # settings that change the numbers
    is_frozen: bool = (
        False  # a fit: made once, and again only when code, settings or models change, or by `curate run --refit-cuts`
    )
    continues: str | None = None  # the table whose rows this one carries on, one for one
    kinds: tuple[str, ...] = ("polars",)
    column_lineage: Mapping[str, list[tuple[str, str]]] | None = None  # column → [(table, column)]
    warning_column: str | None = None  # sentences that a person should read, null where all is well
    checks: tuple[TableCheck, ...] = ()  # besides the conservation of rows, which every table is checked for

    def __post_init__(self) -> None:
        if self.grain not in ("shard", "pool"):
            raise ValueError(f"table {self.name!r}: grain must be 'shard' or 'pool', got {self.grain!r}")
        if (self.compute is None) == (self.compute_folder is None):
            raise ValueError(f"table {self.name!r} needs either compute or compute_folder")
        if self.is_frozen and self.grain != "pool":
            raise ValueError(f"table {self.name!r}: only a whole-pool table can be frozen")
        for upstream in self.inputs:
            check_reads_forward(self.name, upstream)

    @property
    def stage(self) -> str:
        """First half of the name."""
        return self.name.split("/")[0]
