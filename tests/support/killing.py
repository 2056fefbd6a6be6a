"""Kills inside a test's own process: cheap, and good for code that starts no process of its own."""

import itertools
import os
from collections.abc import Callable
from typing import Any

import pytest


class Killed(BaseException):
    """What a process that is killed would never catch."""


def killed_at_rename(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the `number`-th rename (from 0) is not made, and ends what goes on; nothing is cleaned up then."""
    renames = itertools.count()
    is_dead = False

    def counted(change: Callable[..., Any], counts: bool) -> Callable[..., Any]:
        def made(*args: Any, **more: Any) -> Any:
            nonlocal is_dead
            is_dead = is_dead or (counts and next(renames) == number)
            if is_dead:
                raise Killed
            return change(*args, **more)

        return made

    for name in ("replace", "rename", "unlink", "rmdir"):
        monkeypatch.setattr(os, name, counted(getattr(os, name), name in ("replace", "rename")))
