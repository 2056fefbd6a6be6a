"""Where tests find the repository's own files, and optional data from outside it."""

import os
from pathlib import Path

import pytest

from curation_assets.core.settings import PROFILES_ROOT
from curation_assets.engines.addresses import WEIGHTS_ROOT

REPOSITORY = Path(__file__).parents[2]
PROFILES = PROFILES_ROOT
WEIGHTS = WEIGHTS_ROOT
#: Real photographs, captions and judgements, which may not enter the project. Tests that read them skip without them.
SHARED_DATA = Path(os.environ.get("CURATION_TEST_DATA", REPOSITORY.parent / "shared" / "data"))


def shared(name: str) -> Path:
    """A file or folder of the shared data; skips the test where it is not at hand."""
    path = SHARED_DATA / name
    if not path.exists():
        pytest.skip(f"needs {path} (CURATION_TEST_DATA), which is not part of the project")
    return path
