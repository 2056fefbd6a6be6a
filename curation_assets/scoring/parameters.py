"""Settings of a method: keywords, and files that they name."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from curation_assets.methods import Columns, Method
from curation_assets.stores.file_hash import file_sha256, once_per_version
from curation_assets.stores.text_tables import read_lines, read_table


def with_parameters(method: Method, **parameters: Any) -> Method:
    """The same method with keyword settings fixed, e.g. `with_parameters(get_method("sieve"), masking="repo")`.

    A setting that names a file (the method's `file_settings`) is read here. Raises ValueError for a keyword that the
    function lacks, or that is a column or a role; what `ratings.read_table` raises for a file.
    """
    names = set(inspect.signature(method.function).parameters) - set(method.columns) - set(method.roles)
    names = names - {file.parameter for file in method.file_settings.values()} | set(method.file_settings)
    unknown = sorted(set(parameters) - names)
    if unknown:
        raise ValueError(f"method {method.name!r} has no settings {unknown}; it has {sorted(names) or 'none'}")
    for setting, file in method.file_settings.items():
        if setting in parameters:
            path = Path(str(parameters.pop(setting))).expanduser()
            if not path.is_file():
                raise FileNotFoundError(f"no file {path}")
            parameters[file.parameter] = _parsed_file(path, file.parse, file.is_list)
    return replace(method, function=partial(method.function, **parameters))


def described_settings(method: Method, settings: Mapping[str, Any]) -> dict[str, Any]:
    """`settings` of a method, and the sha256 of every file that they name: equal where the values must be equal."""
    files = {f"{name}_sha256": file_sha256(Path(str(settings[name])).expanduser())
             for name in method.file_settings if name in settings}  # fmt: skip
    return {**settings, **files}


@once_per_version(8)
def _parsed_file(path: Path, parse: Callable[[Columns], Any], is_list: bool) -> Any:
    """What `parse` makes of a file."""
    if is_list:
        return parse({"line": [line.strip() for line in read_lines(path) if line.strip()]})
    return parse(read_table(path).to_dict(as_series=False))
