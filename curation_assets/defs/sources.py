"""Where a pool's rows come from, and where a table's code lies, as Dagster shows them."""

import inspect
from pathlib import Path
from typing import Any

import dagster as dg

from curation_assets.core.settings import Settings
from curation_assets.defs.names import asset_key, group_of, tags_of
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import recipe_models
from curation_assets.flow.table import Table
from curation_assets.methods import get_method, method_names
from curation_assets.sources.declaration import Pool

_INSIDE = ("write", "steps", "one", "func")  # of a Folder, OfImages, Together, functools.partial: the function in it


def source_key(pool: Pool) -> dg.AssetKey:
    """Key of what a pool is made from: [pool, source], after its prefix."""
    return asset_key(pool, "source")


def source_asset(settings: Settings, pool: Pool) -> dg.AssetSpec:
    """The folder, bucket or table that the rows come from; nobody makes it here. Of a drawn world there is no URI."""
    address = pool.source if "://" in pool.source else pool.source_path(settings).absolute().as_uri()
    return dg.AssetSpec(
        source_key(pool),
        group_name=group_of(pool, "raw"),
        tags=tags_of(pool, stage="raw"),
        description=f"What the rows of pool {pool.name} are read from: {pool.kind_in_words}.",
        kinds={"source"},
        metadata={"dagster/uri": address} if pool.source else {},
    )


def code_references(ctx: PoolContext, table: Table) -> dg.CodeReferencesMetadataValue:
    """The file that says what a table holds (a recipe in SQL, a method), and the function that computes it."""
    name = table.name.split("/")[1]
    recipe = recipe_models(ctx).get(f"fused.{name}") if table.stage == "fused" else None
    paths = [recipe.path] if recipe else []
    if table.stage in ("signals", "teachers") and name in method_names():
        paths.append(Path(inspect.getfile(get_method(name).function)))
    found = [dg.LocalFileCodeReference(file_path=str(path), label=path.name) for path in paths]
    function: Any = table.compute
    while inside := next(filter(callable, (getattr(function, name, None) for name in _INSIDE)), None):
        function = inside
    if code := getattr(function, "__code__", None):
        found.append(
            dg.LocalFileCodeReference(
                file_path=code.co_filename, line_number=code.co_firstlineno, label=Path(code.co_filename).name
            )
        )
    return dg.CodeReferencesMetadataValue(code_references=[*found])
