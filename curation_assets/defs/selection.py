"""Tables by Dagster's selection syntax, as the UI and `dg` take it: +raw/samples, signals/icc+, tag:stage=raw."""

import re
import warnings
from collections.abc import Iterable
from difflib import get_close_matches

import dagster as dg

from curation_assets.core.errors import first_line
from curation_assets.core.settings import Settings
from curation_assets.defs.assets import pool_assets
from curation_assets.defs.names import asset_key, pool_and_table
from curation_assets.flow.table import Tables
from curation_assets.sources.declaration import load_pool

_TABLE = re.compile(r"(\d*\+)?([a-z0-9_/]+)(\+\d*)?")  # a name, with what it reads or what reads it


def select_tables(settings: Settings, pool_name: str, tables: Tables, wanted: Iterable[str]) -> list[str]:
    """Names of `tables`, those of a pool, that any of the expressions selects; inputs first.

    A table goes by its name, without pool and prefix. Raises ValueError for a name that is none, with the nearest ones,
    and for what is no selection, or selects nothing.
    """
    found = set[str]()
    for expression in wanted:
        named = _TABLE.fullmatch(expression)
        if named and named[2] not in tables:
            same = [name for name in tables if name.endswith(f"/{named[2]}")]
            near = same or get_close_matches(named[2], tables, n=3) or list(tables)
            raise ValueError(f"pool {pool_name!r} has no table {named[2]!r}; did you mean {', '.join(near)}?")
        found |= {expression} if expression in tables else _selected(settings, pool_name, expression, named)
    return [name for name in tables if name in found]


def _selected(settings: Settings, pool_name: str, expression: str, named: re.Match[str] | None) -> set[str]:
    if named:
        key = asset_key(load_pool(settings, pool_name), named[2]).to_user_string()
        dagsters = f'{named[1] or ""}key:"{key}"{named[3] or ""}'
    else:
        dagsters = expression
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", category=dg.BetaWarning)  # of its own parser
            keys = dg.AssetSelection.from_string(dagsters).resolve(pool_assets(settings, pool_name))
    except dg.DagsterError as error:
        raise ValueError(
            f"{expression!r} is neither a table of pool {pool_name!r} nor a selection such as +signals/icc (and all "
            f"that it reads), signals/icc+ (and all that reads it), tag:stage=raw, tag:policy=icc: {first_line(error)}"
        ) from error
    if not keys:
        raise ValueError(f"{expression!r} selects no table of pool {pool_name!r}")
    return {pool_and_table(key.path)[1] for key in keys}
