"""What a user adds to a home: modules, policies and recipes in folders beside the pools' declarations.

Code is run from two places only: the home's own folders (`pools/methods/`, `pools/sources/`), which are as trusted as
the program, and packages that somebody installed. Nothing that a pool, a table or a download brings is ever imported.
"""

import functools
import hashlib
import importlib.util
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

#: Folders beside the declarations; no new pool is called like one.
FOLDERS = ("methods", "policies", "recipes", "sources")

_homes: list[Path] = []  # folders of declarations that this process read, the last one first


def own_folder(pools: Path, name: str) -> Path | None:
    """The folder `name` of what a user adds to all pools; None where a pool declared by an earlier version is called so
    and the folder holds what is its alone."""
    return None if (pools / f"{name}.yaml").is_file() else pools / name


def own_files(pools: Path) -> list[Path]:
    """All that a user added to all pools of a home, sorted."""
    folders = (folder for name in FOLDERS if (folder := own_folder(pools, name)) is not None)
    return sorted(path for folder in folders for path in folder.glob("[!_.]*.*") if path.is_file())


def use_home(pools: Path) -> None:
    """Look into the folders of a home, too. Nothing is imported before a name of it is asked for."""
    if pools not in _homes[:1] and any((pools / name).is_dir() for name in FOLDERS):
        _homes[:] = [pools, *(known for known in _homes if known != pools)]


@contextmanager
def no_other_home() -> Iterator[None]:
    """Inside, homes used before are not looked into; afterwards those used inside are not."""
    before, _homes[:] = list(_homes), []
    try:
        yield
    finally:
        _homes[:] = before


@dataclass(frozen=True)
class Own:
    """What a module defines, where, and the content of that file."""

    value: Any = field(compare=False)
    where: str  # the file, or the entry point
    sha256: str  # of the file; of a package without files, of its name and version


def own_version(version: str, own: Own) -> str:
    """The version of what a user wrote: who edits the file and forgets to raise it gets no values of before."""
    return f"{version}+{own.sha256[:12]}"


@dataclass(frozen=True)
class OwnModules:
    """What modules of a user's own define under one name, such as SOURCE, by the names of their files."""

    name: str  # of the folder beside the declarations, and of the entry points curation_assets.NAME
    attribute: str  # that a module defines
    expected: type  # what it is an instance of

    @property
    def folders(self) -> list[Path]:
        """Folders of the homes that this process read, the last used one first."""
        return [folder for home in _homes if (folder := own_folder(home, self.name)) is not None]

    def names(self) -> list[str]:
        """Names of all that there is, sorted; nothing is imported."""
        in_folders = {path.stem for folder in self.folders for path in folder.glob("[!_.]*.py")}
        return sorted(in_folders | {point.name for point in self._entry_points()})

    def contents(self) -> tuple[tuple[str, str], ...]:
        """(file, its sha256) of all in folders: equal where their code is; nothing is imported."""
        paths = [path for folder in self.folders for path in sorted(folder.glob("[!_.]*.py"))]
        return tuple((str(path), hashlib.sha256(path.read_bytes()).hexdigest()) for path in paths)

    def get(self, name: str) -> Own | None:
        """What the module `name` defines; None where there is none.

        Raises ValueError for a module that cannot be imported or defines something else, and for two homes of one
        process whose files of that name differ.
        """
        if not re.fullmatch(r"[\w-]+", name):  # no path leads out of the folder
            return None
        paths = [path for folder in self.folders if (path := folder / f"{name}.py").is_file()]
        if len({path.read_bytes() for path in paths}) > 1:
            listed = " and ".join(map(str, paths))
            raise ValueError(f"{listed} differ; a process reads one {name}: rename one, or run the homes one by one")
        if paths:
            return self.load(paths[0])
        point = next((point for point in self._entry_points() if point.name == name), None)
        return None if point is None else self._load_point(point)

    def load(self, path: Path) -> Own:
        """What the module at a path defines. Raises ValueError that names the file and what is wrong with it."""
        if stat.S_IMODE(path.stat().st_mode) & stat.S_IWOTH:
            raise ValueError(f"{path} may be written by anybody, so its code is not run: chmod o-w {path}")
        code = path.read_bytes()
        module = _module_of(path, code)
        return self._checked(getattr(module, self.attribute, None), str(path), hashlib.sha256(code).hexdigest())

    def _load_point(self, point: "EntryPoint") -> Own:
        package = f"{point.dist.name} {point.dist.version}" if point.dist else "a package"
        where = f"entry point {point.name} of {package} ({point.value})"
        try:
            found = point.load()
        except (Exception, SystemExit) as error:
            raise ValueError(f"{where} cannot be loaded: {type(error).__name__}: {error}") from error
        file = getattr(sys.modules.get(point.module), "__file__", None)
        content = Path(file).read_bytes() if file and Path(file).is_file() else package.encode()
        return self._checked(getattr(found, self.attribute, found), where, hashlib.sha256(content).hexdigest())

    def _entry_points(self) -> "tuple[EntryPoint, ...]":
        return _entry_points(f"curation_assets.{self.name}", tuple(sys.path))

    def _checked(self, found: Any, where: str, sha256: str) -> Own:
        if not isinstance(found, self.expected):
            raise ValueError(
                f"{where}: expected {self.attribute} = a {self.expected.__module__}.{self.expected.__name__}, "
                f"got {'none' if found is None else type(found).__name__}"
            )
        return Own(found, where, sha256)


@functools.lru_cache(maxsize=16)
def _entry_points(group: str, path: tuple[str, ...]) -> "tuple[EntryPoint, ...]":
    """Entry points of the packages on `path`; reading them takes some 20 ms."""
    from importlib.metadata import entry_points

    return tuple(entry_points(group=group))


@functools.lru_cache(maxsize=64)
def _module_of(path: Path, code: bytes) -> Any:
    """The module of a file with this content: compiled from what was read, so that no cache of Python's lags behind."""
    name = f"curation_assets_own_{path.parent.name}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, path
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(name)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        exec(compile(code, path, "exec"), vars(module))
    except (Exception, SystemExit) as error:
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before
        raise ValueError(
            f"{path} cannot be imported: {type(error).__name__}: {error}; mend it or move it away"
        ) from error
    return module
