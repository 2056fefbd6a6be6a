"""The parts of img2dataset that a download uses, without what its package loads besides.

`import img2dataset` is its command line: wandb, fire, pandas, torch (by webdataset), Ray where it is installed. That
took 6 s of two cores, and none of it is used in a download.
"""

import functools
import importlib
import importlib.util
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from curation_assets.foreign.guards import BARE_IMG2DATASET

_WITHOUT_INIT = ("img2dataset", "webdataset")  # packages whose modules are loaded, and not their __init__
_ON_FIRST_USE = ("albumentations", "wandb")  # resizing takes the first; the second is for its command line alone

_LOCK = threading.Lock()  # two threads that load at once would have modules of their own, and guard only one's


@dataclass(frozen=True)
class Img2datasetParts:
    """Modules of their own: what they hold can be replaced, and an `import img2dataset` elsewhere is not touched."""

    downloader: Any
    resizer: Any
    writer: Any


def img2dataset_parts() -> Img2datasetParts:
    """Loaded once in a process. Raises ImportError where img2dataset is not installed."""
    with _LOCK:
        return _loaded()


@functools.cache
def _loaded() -> Img2datasetParts:
    names = [f"img2dataset.{name}" for name in ("downloader", "resizer", "writer")]
    if not BARE_IMG2DATASET.is_on():
        return Img2datasetParts(*map(importlib.import_module, names))
    with _stand_ins():
        tar_writer = importlib.import_module("webdataset.writer").TarWriter
        sys.modules["webdataset"].TarWriter = tar_writer  # type: ignore[attr-defined]
        return Img2datasetParts(*map(importlib.import_module, names))


class _OnFirstUse(ModuleType):
    """Loads the module of its name when something of it is used."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)


@contextmanager
def _stand_ins() -> Iterator[None]:
    """While inside, four packages are not what they are; afterwards `sys.modules` is as it was before."""

    def names() -> list[str]:
        return [name for name in sys.modules if name.partition(".")[0] in (*_WITHOUT_INIT, *_ON_FIRST_USE)]

    before = {name: sys.modules.pop(name) for name in names()}
    try:
        for name in _WITHOUT_INIT:
            sys.modules[name] = _without_init(name)
        sys.modules.update({name: _OnFirstUse(name) for name in _ON_FIRST_USE})
        yield
    finally:
        for name in names():
            del sys.modules[name]
        sys.modules.update(before)


def _without_init(name: str) -> ModuleType:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.submodule_search_locations is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    package = ModuleType(name)
    package.__path__ = list(spec.submodule_search_locations)
    return package
