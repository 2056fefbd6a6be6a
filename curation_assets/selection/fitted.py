"""Fitted recipes: a kind and its settings, a small YAML file each (`selection/recipes/`, or a pool's own folder)."""

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from curation_assets.core.stages import check_reads_forward
from curation_assets.core.table_names import table_of
from curation_assets.core.validation import build, check_known, content_of
from curation_assets.core.yaml_files import read_yaml
from curation_assets.methods import lower_is_better
from curation_assets.selection.kinds import Kind, all_kinds
from curation_assets.stores.file_hash import FileState

RECIPES_ROOT = Path(__file__).parent / "recipes"


@dataclass(frozen=True)
class FittedRecipe:
    """A table `fused/<name>` whose quality is what its kind makes of a frozen fit, `fused/<name>_fit`."""

    name: str
    kind: str
    settings: Kind
    description: str = ""
    default: bool = False  # a shipped one that runs wherever its signals do: it learns nothing from the pool

    @property
    def key(self) -> str:
        """As policies name it."""
        return f"fused.{self.name}"

    @property
    def version(self) -> str:
        """Changes whenever its numbers may, but for the files that it names."""
        assert is_dataclass(self.settings)
        content = {field.name: content_of(getattr(self.settings, field.name)) for field in fields(self.settings)}
        content = {name: value for name, value in content.items() if value or name not in self.settings.later}
        named = {"kind": self.kind, "code": self.settings.version, "settings": content}
        if lower := [reference for reference in self.settings.signals if lower_is_better(reference)]:
            named["lower_is_better"] = lower
        return hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()

    def with_settings(self, given: Mapping[str, Any], where: str) -> "FittedRecipe":
        """The same recipe with other settings. Raises ValueError that begins with `where`."""
        changed = {**content_of(self.settings), **given}
        return replace(self, settings=build(type(self.settings), changed, where))


def load_recipes(root: Path = RECIPES_ROOT) -> dict[str, FittedRecipe]:
    """Every recipe file of a folder by name, sorted."""
    return {recipe.name: recipe for recipe in map(load_recipe, sorted(Path(root).glob("*.yaml")))}


def load_recipe(path: Path) -> FittedRecipe:
    """A recipe from its YAML file, which is named like it: `name`, `kind`, `description`, `default`, and the kind's
    settings.

    Raises ValueError for unknown kinds and settings, and where a signal is none of an earlier stage.
    """
    return _read_recipe(path, FileState.of(path))


@functools.lru_cache(maxsize=256)
def _read_recipe(path: Path, state: FileState) -> FittedRecipe:
    content = read_yaml(path)
    if not isinstance(content, dict) or not {"name", "kind"} <= set(content):
        raise ValueError(f"{path}: expected a mapping with name, kind and the settings of the kind, got {content!r}")
    name, kind, description = content.pop("name"), content.pop("kind"), content.pop("description", "")
    default = bool(content.pop("default", False))
    if name != path.stem:
        raise ValueError(f"{path}: expected name: {path.stem}, got {name!r}; file and recipe are named alike")
    check_known(str(path), "kind of recipe", [kind], all_kinds())
    settings = build(all_kinds()[kind], content, str(path))
    for reference in settings.signals:
        if reference.count(".") != 1 or reference.startswith("fused."):
            raise ValueError(f"{path}: a signal must read stage.table of a stage before fused, got {reference!r}")
        check_reads_forward(f"fused/{name}", table_of(reference))
    return FittedRecipe(name, kind, settings, str(description), default)
