"""Freed memory, in processes of their own: the setting holds for good."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.paths import REPOSITORY

#: Prints the page faults of `churn` in this process or in a worker.
HERE = "print(churn())"
KEPT_HERE = "from curation_assets.core.allocator import keep_freed_memory; assert keep_freed_memory(); print(churn())"
IN_A_WORKER = """
import sys
from dataclasses import replace
from curation_assets.core.settings import load_settings
from curation_assets.flow.parallel import stop_workers, workers
settings = replace(load_settings(sys.argv[1], "embedded"), workers=2, threads=2)
print(workers(settings, []).submit(churn).result())
stop_workers()
"""


def churn() -> int:
    """Allocates, touches and frees 40 blocks of 1 MiB, twenty times. Returns the page faults of the last ten."""
    before = 0
    for turn in range(20):
        if turn == 10:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        blocks = [np.ones(1 << 17) for _ in range(40)]
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def page_faults(script: str, *arguments: str) -> int:
    """What a script prints, with the C library's own settings: `make` sets others."""
    command = [sys.executable, "-c", f"from tests.core.test_allocator import churn\n{script}", *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="glibc's parameters")
def test_freed_memory_is_taken_again_without_page_faults(tmp_path: Path) -> None:
    by_default = page_faults(HERE)
    if by_default < 10_000:
        pytest.skip(f"this C library keeps freed memory by itself: {by_default} page faults")
    assert page_faults(KEPT_HERE) < by_default / 20
    assert page_faults(IN_A_WORKER, str(tmp_path)) < by_default / 20
