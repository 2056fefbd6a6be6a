"""img2dataset's resizing and its writer of tars, without what its package loads besides (docs/decisions/0005).

`import img2dataset` is its command line: wandb, fire, pandas, torch (by webdataset), Ray where it is installed. That
took 6 s of two cores, and none of it is used in a download.
"""

import contextlib
import functools
import importlib
import importlib.util
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from curation_assets.foreign.guards import BARE_IMG2DATASET, RESIZING

_WITHOUT_INIT = ("img2dataset", "webdataset")  # packages whose modules are loaded, and not their __init__
_ON_FIRST_USE = ("albumentations", "wandb")  # resizing takes the first; the second is for its command line alone

_LOADING = threading.Lock()  # two threads that load at once would have modules of their own
_DECODING = threading.Lock()  # standard error is the process's


class Img2datasetParts(NamedTuple):
    """Modules of their own: an `import img2dataset` elsewhere is not touched."""

    resizer: Any
    writer: Any


def img2dataset_parts() -> Img2datasetParts:
    """Loaded once in a process. Raises ImportError where img2dataset is not installed."""
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # else its import looks for a newer version on the network
    with _LOADING:
        return _loaded()


@functools.cache
def _loaded() -> Img2datasetParts:
    names = [f"img2dataset.{name}" for name in Img2datasetParts._fields]
    if not BARE_IMG2DATASET.is_on():
        return Img2datasetParts(*map(importlib.import_module, names))
    written_by = tar_writer()
    with _stand_ins():
        sys.modules["webdataset"].TarWriter = written_by  # type: ignore[attr-defined]
        parts = Img2datasetParts(*map(importlib.import_module, names))
    # Its own sends standard output to nowhere as well, of all threads.
    parts.resizer.SuppressStdoutStderr = _without_standard_error
    return parts


@functools.cache
def tar_writer() -> Any:
    """The class webdataset.TarWriter, without the torch that its package loads."""
    if not BARE_IMG2DATASET.is_on():
        return importlib.import_module("webdataset").TarWriter
    with _stand_ins():
        return importlib.import_module("webdataset.writer").TarWriter


def new_resizer(image_size_px: int, encode_quality: int) -> Callable[..., tuple[Any, ...]]:
    """Stream of an image → bytes, width, height, original width and height, error or None; one call at a time.

    A JPEG that need not be scaled keeps its bytes.
    """
    RESIZING.is_on()  # a line in the log where another version of albumentations is installed
    resize = img2dataset_parts().resizer.Resizer(
        image_size=image_size_px,
        resize_mode="keep_ratio_largest",
        resize_only_if_bigger=True,
        encode_quality=encode_quality,
        encode_format="jpg",
        skip_reencode=True,
    )

    def alone(stream: Any) -> tuple[Any, ...]:
        with _DECODING:  # what a second thread finds of standard error, and puts back, would be nowhere
            resized: tuple[Any, ...] = resize(stream)
        return resized

    return alone


def new_writer(base: Path, schema: Any) -> Any:
    """Its writer of `base`.tar and `base`.parquet: `write(image or None, key, caption, row)`, `close()`.

    `base`: a shard's number as the name; `schema`: pyarrow's, of the rows.
    """
    number = base.name
    writer = img2dataset_parts().writer.WebDatasetSampleWriter(
        int(number), str(base.parent), True, len(number), schema, "jpg"
    )
    writer.tarwriter.mtime = int(time.time())  # a fraction of a second takes a header of its own, 1 KB a member
    return writer


@contextlib.contextmanager
def _without_standard_error() -> Iterator[None]:
    """Sends standard error of the whole process to nowhere: libjpeg and libpng print warnings there."""
    with open(os.devnull, "wb") as nowhere:
        before = os.dup(2)
        os.dup2(nowhere.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(before, 2)
            os.close(before)


class _OnFirstUse(ModuleType):
    """Loads the module of its name when something of it is used."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)


@contextlib.contextmanager
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
