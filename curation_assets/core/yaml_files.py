"""YAML files that people write: what cannot be read is an error that names the file."""

from pathlib import Path
from typing import Any

import yaml


def read_yaml(path: Path) -> Any:
    """The content of a file. Raises ValueError, with file and line, for what is no YAML or no UTF-8."""
    try:
        return yaml.safe_load(path.read_bytes())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no YAML: {' '.join(str(error).split())}; correct it") from error
