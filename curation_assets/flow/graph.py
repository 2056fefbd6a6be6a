"""Every table of a pool, each after its inputs."""

from collections.abc import Mapping

from curation_assets.core.stages import STAGES, stage_position
from curation_assets.flow.context import PoolContext
from curation_assets.flow.table import Table


def tables_of(ctx: PoolContext) -> dict[str, Table]:
    """Every table of the pool by name, in an order in which each comes after its inputs.

    Raises ValueError for an input that no table provides, or a circle.
    """
    import importlib

    declared: dict[str, Table] = {}
    for stage in STAGES:
        for table in importlib.import_module(f"curation_assets.stages.{stage}.tables").tables(ctx):
            if table.name in declared:
                raise ValueError(f"table {table.name!r} is declared twice")
            declared[table.name] = table
    return _sorted_by_inputs(declared)


def _sorted_by_inputs(declared: Mapping[str, Table]) -> dict[str, Table]:
    for table in declared.values():
        missing = [name for name in table.inputs if name not in declared]
        if missing:
            raise ValueError(f"table {table.name!r} reads {missing}, which no stage of this pool provides")
    done: dict[str, Table] = {}
    waiting = sorted(declared.values(), key=lambda table: stage_position(table.stage))
    while waiting:
        ready = [table for table in waiting if all(name in done for name in table.inputs)]
        if not ready:
            raise ValueError(f"tables read each other in a circle: {sorted(table.name for table in waiting)}")
        for table in ready:
            done[table.name] = table
        waiting = [table for table in waiting if table.name not in done]
    return done
