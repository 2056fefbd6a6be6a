"""What the folders of the package declare in files of one name: found by these files, listed nowhere."""

import importlib
from typing import TypeVar

from curation_assets.core.settings import PACKAGE_ROOT
from curation_assets.core.stages import STAGES

T = TypeVar("T")

_FIRST = ("sources", "flow", "scoring", "training", *(stage.package for stage in STAGES.values()), "outputs")


def found_classes(name: str, base: type[T]) -> list[type[T]]:
    """Subclasses of `base` that the files `name`.py of rooms and stages declare: lower rooms first, stages in the order
    of the flow, and each file's in its own order."""
    files = [path for pattern in (f"*/{name}.py", f"stages/*/{name}.py") for path in PACKAGE_ROOT.glob(pattern)]
    folders = {".".join(path.parent.relative_to(PACKAGE_ROOT).parts) for path in files}
    found: list[type[T]] = []
    for folder in [*(one for one in _FIRST if one in folders), *sorted(folders - set(_FIRST))]:
        module = importlib.import_module(f"curation_assets.{folder}.{name}")
        own = (value for value in vars(module).values() if getattr(value, "__module__", None) == module.__name__)
        found += [value for value in own if isinstance(value, type) and issubclass(value, base) and value is not base]
    return found
