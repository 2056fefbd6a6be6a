"""Policies and recipes of a user's own: of a home for all its pools, in `pools/policies` and `pools/recipes`, and of
one pool, in `pools/POOL` and `pools/POOL/recipes`.

A file of one pool that cannot be read is an error of that pool. One of the home is a sentence (`left_out`), and an
error only of pools that name it: it must not stop the others.
"""

import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from curation_assets.core.own_modules import own_folder
from curation_assets.flow.context import PoolContext
from curation_assets.flow.sql import SqlModel, parse_model, recipes
from curation_assets.methods import OWN
from curation_assets.selection.fitted import FittedRecipe, load_recipe, load_recipes
from curation_assets.selection.policy import Policy, load_policies, load_policy, shipped_policies
from curation_assets.stores.file_hash import FileState

T = TypeVar("T")
POLICIES, RECIPES = "policies", "recipes"


@dataclass(frozen=True)
class OfHome(Generic[T]):
    """What files of a home hold by their names, and what is wrong with the others."""

    sound: Mapping[str, T]
    faults: Mapping[str, str]

    def check(self, named: Collection[str]) -> None:
        """Raise ValueError for a broken file that a pool names."""
        for name in sorted(self.faults.keys() & set(named)):
            raise ValueError(self.faults[name])


def policies_folder(ctx: PoolContext) -> Path:
    """Where `curate diff A --save NAME` puts policies of this pool alone: pools/<pool>/, beside its declaration."""
    return ctx.settings.pools_root / ctx.pool.name


def saved_policies(ctx: PoolContext) -> dict[str, Policy]:
    """Policies of this pool alone, by name."""
    return load_policies(policies_folder(ctx))


def home_policies(ctx: PoolContext) -> OfHome[Policy]:
    """Policies of the home, by name; the pool's own of the same name go before them."""
    found = _of_home(ctx, POLICIES, ".yaml", load_policy, "policy", shipped_policies)
    own = saved_policies(ctx)
    return OfHome({name: policy for name, policy in found.sound.items() if name not in own}, found.faults)


def home_recipes(ctx: PoolContext) -> OfHome[SqlModel]:
    """Recipes in SQL of the home, by name."""
    return _of_home(ctx, RECIPES, ".sql", load_sql_recipe, "recipe", _names_of_the_package)


def home_fitted(ctx: PoolContext) -> OfHome[FittedRecipe]:
    """Fitted recipes of the home, by name."""
    return _of_home(
        ctx, RECIPES, ".yaml", load_recipe, "recipe", lambda: {*_names_of_the_package(), *home_recipes(ctx).sound}
    )


def pool_recipes(ctx: PoolContext) -> dict[str, SqlModel]:
    """Recipes in SQL of this pool alone, by name. Raises ValueError for one that is called as another."""
    folder = policies_folder(ctx) / RECIPES
    found = {path.stem: load_sql_recipe(path) for path in sorted(folder.glob("[!_.]*.sql"))}
    taken = {*_names_of_the_package(), *home_recipes(ctx).sound, *pool_fitted(ctx)} if found else set()
    for name in found.keys() & taken:
        raise ValueError(f"{folder / name}.sql: there is a recipe {name!r} already; give yours another name")
    return found


def pool_fitted(ctx: PoolContext) -> dict[str, FittedRecipe]:
    """Fitted recipes of this pool alone, by name."""
    return load_recipes(policies_folder(ctx) / RECIPES)


def load_sql_recipe(path: Path) -> SqlModel:
    """A recipe in SQL from a file of a user's own. Raises ValueError that names it and what is wrong."""
    return _parsed(path, FileState.of(path), OWN.contents())


@functools.lru_cache(maxsize=64)
def _parsed(path: Path, state: FileState, methods: Collection[tuple[str, str]]) -> SqlModel:
    """The model in a file, parsed (30 ms) once per state and methods, whose direction it contains."""
    return parse_model(path.read_text(encoding="utf-8"), stage="fused", name=path.stem, path=path)


def _names_of_the_package() -> set[str]:
    return {model.name for model in recipes().values()} | set(load_recipes())


def _of_home(
    ctx: PoolContext,
    folder: str,
    suffix: str,
    load: Callable[[Path], T],
    what: str,
    names_taken: Callable[[], Collection[str]],
) -> OfHome[T]:
    """Files of a folder that all pools share; none may be called as what there is already."""
    found = own_folder(ctx.settings.pools_root, folder)
    paths = [] if found is None else sorted(found.glob(f"[!_.]*{suffix}"))
    taken = names_taken() if paths else ()
    sound, faults = {}, {}
    for path in paths:
        try:
            if path.stem in taken:
                raise ValueError(f"{path}: there is a {what} {path.stem!r} already; give yours another name")
            sound[path.stem] = load(path)
        except (ValueError, OSError) as error:
            faults[path.stem] = str(error)
    return OfHome(sound, faults)
