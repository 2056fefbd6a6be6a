"""Shipped methods with their direction turned round, for tests: no shipped method is of direction lower."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from curation_assets import methods
from curation_assets.flow.sql import recipes


@contextmanager
def lower_is_better(*names: str) -> Iterator[None]:
    """Within it the methods `names` have direction lower, wherever the package looks."""
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            module = importlib.import_module(f"curation_assets.methods.{name}")
            patch.setattr(module, "METHOD", replace(module.METHOD, direction="lower"))
        try:
            _forget()
            yield
        finally:
            patch.undo()
            _forget()


def _forget() -> None:
    for cached in (methods._method_in, methods.all_methods, recipes):
        cached.cache_clear()
