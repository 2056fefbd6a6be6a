"""The formats of exports: one line each, beside the file with the function. Nothing else lists them."""

import difflib
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from curation_assets.outputs.exports.subset import Subset


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


FORMATS = {
    entry.name: entry
    for entry in (
        ExportFormat("npy", "DataComp's ids", "lists:export_npy"),
        ExportFormat("keys", "allow-list of tar and key", "lists:export_keys"),
        ExportFormat("webdataset", "new tars", "webdataset:export_webdataset"),
        ExportFormat("hf", "Parquet with images and a dataset card", "huggingface:export_huggingface"),
    )
}


def get_format(name: str) -> ExportFormat:
    """The format called `name`. Raises ValueError that names the nearest one and lists all."""
    if name not in FORMATS:
        near = difflib.get_close_matches(name, FORMATS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"no export format {name!r}{hint} Available: {', '.join(FORMATS)}")
    return FORMATS[name]
