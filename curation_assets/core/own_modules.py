"""Modules of a user's own: files of a folder of the home and entry points of installed packages, found by their name.

Code is run from two places only: the home's own folder (`pools/sources/`), which is as trusted as the program, and
packages that somebody installed. Nothing that a pool, a table or a download brings is ever imported.
"""

import importlib.util
import stat
import sys
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any


@dataclass
class OwnModules:
    """What modules of a user's own define under one name, such as SOURCE, by the names of their files."""

    group: str  # of the entry points, such as curation_assets.sources
    attribute: str  # that a module defines
    expected: type  # what it is an instance of
    folders: list[Path] = field(default_factory=list)  # of homes, the one used last first

    def use(self, folder: Path) -> None:
        """Look into a folder, too. Nothing is imported before a name of it is asked for."""
        self.folders = [folder, *(known for known in self.folders if known != folder)]

    def names(self) -> list[str]:
        """Names of all that there is, sorted; nothing is imported."""
        in_folders = {path.stem for folder in self.folders for path in folder.glob("[!_]*.py")}
        return sorted(in_folders | {point.name for point in entry_points(group=self.group)})

    def get(self, name: str) -> Any | None:
        """What the module `name` defines; None where there is none.

        Raises ValueError for a module that cannot be imported or defines something else, and for two homes of one
        process whose files of that name differ.
        """
        paths = [path for folder in self.folders if (path := folder / f"{name}.py").is_file()]
        if len({path.read_bytes() for path in paths}) > 1:
            listed = " and ".join(map(str, paths))
            raise ValueError(f"{listed} differ; a process reads one {name}: rename one, or run the homes one by one")
        if paths:
            return self.load(paths[0])
        points = [point for point in entry_points(group=self.group) if point.name == name]
        if not points:
            return None
        where = f"entry point {name} of {points[0].dist.name if points[0].dist else 'a package'} ({points[0].value})"
        try:
            found = points[0].load()
        except Exception as error:
            raise ValueError(f"{where} cannot be loaded: {type(error).__name__}: {error}") from error
        return self._checked(getattr(found, self.attribute, found), where)

    def load(self, path: Path) -> Any:
        """What the module at a path defines. Raises ValueError that names the file and what is wrong with it."""
        state = path.stat()
        if stat.S_IMODE(state.st_mode) & stat.S_IWOTH:
            raise ValueError(f"{path} may be written by anybody, so its code is not run: chmod o-w {path}")
        module = _module_at(path, state.st_mtime_ns, state.st_size)
        return self._checked(getattr(module, self.attribute, None), str(path))

    def _checked(self, found: Any, where: str) -> Any:
        if not isinstance(found, self.expected):
            raise ValueError(
                f"{where}: expected {self.attribute} = a {self.expected.__module__}.{self.expected.__name__}, "
                f"got {'none' if found is None else type(found).__name__}"
            )
        return found


@lru_cache(maxsize=64)
def _module_at(path: Path, modified_ns: int, size: int) -> Any:
    """The module of a file in this state."""
    name = f"curation_assets_own_{path.parent.name}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, path
    assert spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ValueError(
            f"{path} cannot be imported: {type(error).__name__}: {error}; mend it or move it away"
        ) from error
    return module
