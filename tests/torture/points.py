"""Moments at which a command can be killed, counted in an undisturbed run and met again in another.

A point is where a file or folder gets its final name (before and after the rename), where something is removed, and
where a table begins and ends. It is named by its path relative to the home, numbered where a path comes up again, so
that it is met in a run that goes on from another kill, too.
"""

import inspect
import itertools
import os
import re
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

_VERSION = re.compile(r"\.version-[0-9a-f]{12}")
VERSION = re.compile(r"^\.[a-z0-9_]+\.version-[0-9a-f]{12}$")  # name of a folder
_TEMPORARY = re.compile(r"\.(?P<target>[^/]+)\.tmp-[^/]+")
_CERTIFICATE = re.compile(r"(certificates/[a-z0-9_]+)-[^/]+\.json")
_REFIT = re.compile(r"recuts/[0-9]+")  # a refit that is begun again once it is done has the next number


def name_of(path: Path, home: Path) -> str:
    """A path relative to the home, without what is drawn anew each time."""
    try:
        text = str(path.relative_to(home))
    except ValueError:
        return str(path)
    text = _CERTIFICATE.sub(r"\1-*.json", _VERSION.sub(".version-*", _REFIT.sub("recuts/*", text)))
    return _TEMPORARY.sub(r".\g<target>.tmp-*", text)


class Points:
    """What a command passes through, from `watch` on. It kills its process group at the first of `kill_at`.

    The point's name is in the file `killed_at` then.
    """

    def __init__(self, home: Path, kill_at: Collection[str], killed_at: Path) -> None:
        self.home = home
        self.kill_at = frozenset(kill_at)
        self.killed_at = killed_at
        self.passed: list[str] = []
        self._counts: Counter[str] = Counter()

    def watch(self) -> None:
        """Wrap what renames and removes files, and what brings a table up to date, in this process."""
        os.replace = self._renaming(os.replace)  # type: ignore[assignment]
        os.rename = self._renaming(os.rename)  # type: ignore[assignment]
        os.unlink = self._removing(os.unlink)  # type: ignore[assignment]
        shutil.rmtree = self._removing_tree(shutil.rmtree)  # type: ignore[assignment]
        from curation_assets.defs import steps

        steps.run_table = self._running(steps.run_table)

    def _at(self, words: str) -> None:
        self._counts[words] += 1
        name = f"{words} #{self._counts[words]}"
        self.passed.append(name)
        if name in self.kill_at:
            self.killed_at.write_text(name, encoding="utf-8")
            os.killpg(os.getpgrp(), signal.SIGKILL)

    def _is_ours(self, path: Any) -> bool:
        text = os.fspath(path)
        return isinstance(text, str) and Path(text).is_relative_to(self.home) and "/dagster/" not in text

    def _renaming(self, rename: Callable[..., None]) -> Callable[..., None]:
        def renamed(source: Any, target: Any, **more: Any) -> None:
            if not self._is_ours(target):
                return rename(source, target, **more)
            name = name_of(Path(os.fspath(target)), self.home)
            self._at(f"before the rename to {name}")
            rename(source, target, **more)
            return self._at(f"after the rename to {name}")

        return renamed

    def _removing(self, remove: Callable[..., None]) -> Callable[..., None]:
        def removed(path: Any, *, dir_fd: int | None = None) -> None:
            if dir_fd is None and self._is_ours(path) and os.path.lexists(path):
                self._at(f"before the removal of {name_of(Path(os.fspath(path)), self.home)}")
            remove(path, dir_fd=dir_fd)
            if dir_fd is not None and self._tree is not None:
                name, self._tree = self._tree, None
                self._at(f"inside the removal of {name}")

        return removed

    _tree: str | None = None  # under removal, none of its files removed yet

    def _removing_tree(self, remove: Callable[..., None]) -> Callable[..., None]:
        def removed(path: Any, *given: Any, **more: Any) -> None:
            if not self._is_ours(path):
                return remove(path, *given, **more)
            name = name_of(Path(os.fspath(path)), self.home)
            self._at(f"before the removal of {name}")
            self._tree = name
            try:
                return remove(path, *given, **more)
            finally:
                self._tree = None

        return removed

    def _running(self, run_table: Callable[..., Any]) -> Callable[..., Any]:
        def ran(ctx: Any, table: Any, shards: Sequence[str] | None, **more: Any) -> Any:
            self._at(f"before the table {table.name}")
            result = run_table(ctx, table, shards, **more)
            self._at(f"after the table {table.name}")
            return result

        return ran


def count_events(kill_at: int) -> Callable[[], int]:
    """From now on, count what Python audits (files opened, connections, imports …); kill the process group at the
    `kill_at`-th (0: never). Returns what tells the count."""
    counter = itertools.count(1)
    latest = 0

    def counted(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal latest
        latest = next(counter)
        if latest == kill_at:
            os.killpg(os.getpgrp(), signal.SIGKILL)

    sys.addaudithook(counted)
    return lambda: latest


def save_every_step() -> None:
    """Trainings write a checkpoint after every step, not once a minute."""
    from curation_assets.evaluation.models import fitting, miniature, pixel_models

    for module in (fitting, miniature, pixel_models):
        for function in vars(module).values():
            if inspect.isfunction(function) and "checkpoint_seconds" in (function.__kwdefaults__ or {}):
                function.__kwdefaults__["checkpoint_seconds"] = 0.0
