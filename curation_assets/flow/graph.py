"""Every table of a pool, each after its inputs."""

import functools
import importlib
from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter

from curation_assets.core.errors import EXPECTED_ERRORS
from curation_assets.core.settings import PACKAGE_ROOT, Settings
from curation_assets.core.stages import STAGES, stage_position
from curation_assets.core.table_names import stage_of
from curation_assets.flow.context import PoolContext
from curation_assets.flow.table import Table, Tables
from curation_assets.sources.declaration import list_pools


def tables_of(ctx: PoolContext) -> dict[str, Table]:
    """Every table of the pool by name, stage after stage, in an order in which each comes after its inputs.

    Raises ValueError for an input that no table provides, or a circle.
    """
    declared: dict[str, Table] = {}
    for module in _table_modules():
        for table in importlib.import_module(module).tables(ctx):
            if table.name in declared:
                raise ValueError(f"table {table.name!r} is declared twice")
            declared[table.name] = table
    return _sorted_by_inputs(declared)


def readable_tables(ctx: PoolContext) -> tuple[dict[str, Table], list[str]]:
    """As `tables_of`, of a pool whose declaration may be broken: without the tables that cannot be listed, and what
    rests on them; and why they cannot, in sentences.
    """
    declared: dict[str, Table] = {}
    faults = []
    for module in _table_modules():
        try:
            for table in importlib.import_module(module).tables(ctx):
                declared.setdefault(table.name, table)
        except EXPECTED_ERRORS as error:
            faults.append(str(error))
    while lost := [name for name, table in declared.items() if not declared.keys() >= {*table.inputs}]:
        for name in lost:
            del declared[name]
    return _sorted_by_inputs(declared), list(dict.fromkeys(faults))


@functools.cache
def _table_modules() -> tuple[str, ...]:
    """Files of the stages with a function `tables`, stage after stage, each stage's tables.py first. Their text says
    so: the others need not be imported."""
    folders = {stage.package: PACKAGE_ROOT.joinpath(*stage.package.split(".")) for stage in STAGES.values()}
    return tuple(
        f"{PACKAGE_ROOT.name}.{package}.{path.stem}"
        for package, folder in folders.items()
        for path in sorted(folder.glob("*.py"), key=lambda path: path.stem != "tables")
        if "\ndef tables(" in path.read_text(encoding="utf-8")
    )


def why_broken(settings: Settings, pool: str) -> str | None:
    """Why the tables of a declared pool cannot be listed, in words; None where they can."""
    try:
        tables_of(PoolContext.open(settings, pool))
    except Exception as error:  # whatever its declaration does to whoever reads it: the other pools go on
        return (str(error).strip() or type(error).__name__).splitlines()[0]
    return None


def sound_and_broken(settings: Settings) -> tuple[list[str], dict[str, str]]:
    """Declared pools whose tables can be listed, and the others with the reason why not."""
    found = {name: why_broken(settings, name) for name in list_pools(settings)}
    return [name for name, why in found.items() if why is None], {name: why for name, why in found.items() if why}


def with_upstream(tables: Tables, names: Iterable[str]) -> dict[str, Table]:
    """The tables called `names` and all that they rest on, in the order of `tables`."""
    waiting, seen = list(names), set[str]()
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += tables[name].inputs
    return {name: table for name, table in tables.items() if name in seen}


def _sorted_by_inputs(declared: Tables) -> dict[str, Table]:
    for table in declared.values():
        missing = [name for name in table.inputs if name not in declared]
        if missing:
            is_student = any(stage_of(name) == "distilled" for name in missing)
            advice = "; option distil: true makes a student of its own, else take another one" if is_student else ""
            raise ValueError(f"table {table.name!r} reads {missing}, which no stage of this pool provides{advice}")
    try:
        order = inputs_first({name: table.inputs for name, table in declared.items()})
    except CycleError as error:
        raise ValueError(f"tables read each other in a circle: {' → '.join(error.args[1])}") from error
    # a table reads none of a later stage, so each stage is finished before the next begins
    return {name: declared[name] for name in sorted(order, key=lambda name: stage_position(declared[name].stage))}


def inputs_first(reads: Mapping[str, Iterable[str]]) -> list[str]:
    """Names so that each comes after what it reads: in waves, and within a wave in the order of `reads`.

    Raises graphlib.CycleError, whose second argument is the circle.
    """
    positions = {name: position for position, name in enumerate(reads)}
    sorter = TopologicalSorter(reads)
    sorter.prepare()
    order: list[str] = []
    while sorter.is_active():
        wave = sorted(sorter.get_ready(), key=positions.__getitem__)
        order += wave
        sorter.done(*wave)
    return order
