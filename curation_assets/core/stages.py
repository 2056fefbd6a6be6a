"""The flow: the one word per stage that names key prefix, asset group, schema, SQL folder and file alike."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from curation_assets.core.table_names import stage_of


@dataclass(frozen=True)
class Stage:
    """What the machinery must know of a stage. Nothing outside this file looks a stage up by its name."""

    name: str
    #: Rows may fail here (a download, a model): where too few of the pool succeed, what reads it stops.
    checks_success: bool = False
    #: Shards are made of stored numbers by SQL and polars alone: milliseconds each, in threads of this process, and
    #: for shards that the pool's source no longer has, too.
    is_derived: bool = False
    #: It judges subsets once they are chosen: nothing that decides over a sample reads it.
    is_evaluation: bool = False

    @property
    def package(self) -> str:
        """The folder of its tables, options and holders, as a module of curation_assets: 'stages.raw'."""
        return "evaluation" if self.is_evaluation else f"stages.{self.name}"


#: Stages by name, in the order in which data flows. Reading from a later stage is refused (see `check_reads_forward`).
STAGES: Mapping[str, Stage] = MappingProxyType(
    {
        stage.name: stage
        for stage in (
            Stage("raw", checks_success=True),
            Stage("teachers", checks_success=True),
            Stage("standardised"),
            Stage("distilled"),
            Stage("signals", checks_success=True),
            Stage("fused", is_derived=True),
            Stage("filtered", is_derived=True),
            Stage("downstream", is_evaluation=True),
        )
    }
)


class BackwardsReadError(ValueError):
    """An asset or SQL model reads from a stage that comes after its own."""


def stage_position(stage: str) -> int:
    """Place of `stage` in the flow, 0 is first. Raises ValueError for a word that is no stage."""
    if stage not in STAGES:
        raise ValueError(f"stage must be one of {', '.join(STAGES)}; got {stage!r}")
    return list(STAGES).index(stage)


def check_reads_forward(reader: str, upstream: str) -> None:
    """Refuse a read against the flow. Both are 'stage/name' (or just 'stage').

    Raises BackwardsReadError when `upstream` belongs to a later stage than `reader`.
    """
    reader_stage, upstream_stage = stage_of(reader), stage_of(upstream)
    if stage_position(upstream_stage) > stage_position(reader_stage):
        raise BackwardsReadError(
            f"{reader} reads {upstream}, against the flow {' → '.join(STAGES)}; "
            f"move the reader to stage {upstream_stage!r} or later, or read an earlier table"
        )
