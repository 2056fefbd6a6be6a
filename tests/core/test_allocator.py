"""Freed memory, in processes of their own: the setting holds for good."""

import subprocess
import sys

import pytest

#: Allocates, touches and frees 40 blocks of 1 MiB, twenty times; prints the page faults of the last ten.
CHURN = """
import resource
import numpy as np
from curation_assets.core.allocator import keep_freed_memory
{setting}
for turn in range(20):
    if turn == 10:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [np.ones(1 << 17) for _ in range(40)]
    del blocks
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(setting: str) -> int:
    """Of CHURN after `setting`."""
    command = [sys.executable, "-c", CHURN.format(setting=setting)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's parameters")
def test_freed_memory_is_taken_again_without_page_faults() -> None:
    by_default = page_faults("")
    if by_default < 10_000:
        pytest.skip(f"this C library keeps freed memory by itself: {by_default} page faults")
    assert page_faults("assert keep_freed_memory()") < by_default / 20
