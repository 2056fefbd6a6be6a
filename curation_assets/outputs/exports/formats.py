"""The formats of exports: functions under `@export_format(NAME, DESCRIPTION)` in any file of this folder.

They are read from the files' text: importing them takes seconds, and `curate export --help` needs names only.
"""

import inspect
import pkgutil
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from curation_assets.core.validation import unknown_name

if TYPE_CHECKING:
    from curation_assets.outputs.exports.subset import Subset

Function = TypeVar("Function", bound=Callable[..., Path])


def export_format(name: str, description: str) -> Callable[[Function], Function]:
    """Declare a function (subset, folder, *, options) → path as the writer of this format."""
    return lambda function: function


@dataclass(frozen=True)
class ExportFormat:
    """A format: what it is, and the function (subset, folder, *, options) → path that writes it."""

    name: str
    description: str
    function: str  # "module:function" of this package: its libraries are loaded when it writes

    @cached_property
    def _write(self) -> Callable[..., Path]:
        function: Callable[..., Path] = pkgutil.resolve_name(f"{__package__}.{self.function}")
        return function

    @property
    def options(self) -> tuple[str, ...]:
        """Names of its options: the keyword-only parameters of the function."""
        parameters = inspect.signature(self._write).parameters.values()
        return tuple(parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY)

    def write(self, subset: "Subset", out: Path, **options: Any) -> Path:
        """Export `subset` to the new folder `out`; an option that is None keeps its default.

        Raises ValueError for an option that this format does not have, and as `exporting`.
        """
        given = {name: value for name, value in options.items() if value is not None}
        for name in given.keys() - set(self.options):
            others = [other.name for other in FORMATS.values() if name in other.options]
            raise ValueError(f"format {self.name!r} has no option {name!r}; formats that have it: {', '.join(others)}")
        return self._write(subset, out, **given)


_DECLARED = re.compile(r'^@export_format\("([^"]+)", "([^"]+)"\)\ndef (\w+)\(', re.MULTILINE)

FORMATS = {
    name: ExportFormat(name, description, f"{path.stem}:{function}")
    for path in sorted(Path(__file__).parent.glob("*.py"))
    for name, description, function in _DECLARED.findall(path.read_text(encoding="utf-8"))
}


def get_format(name: str) -> ExportFormat:
    """The format called `name`. Raises ValueError that names the nearest one and lists all."""
    if name not in FORMATS:
        raise ValueError(f"no export format {unknown_name(name, FORMATS)}")
    return FORMATS[name]
