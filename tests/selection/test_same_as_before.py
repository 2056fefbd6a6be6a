"""Cuts, verdicts and subsets are those that 1c8839ef gave, whose ledgers were one sorted file per policy."""

import json
from pathlib import Path

import pytest

from tests.same_verdicts import differing, make

BEFORE = Path(__file__).with_name("verdicts_before.json")


@pytest.mark.slow
def test_a_pool_and_its_late_shards_have_the_verdicts_of_before(tmp_path: Path) -> None:
    """Ten policies: repeats, soft caps, compat, prefilters, counts, licences, random and fused rankings; ties, rows
    without a value, samples that come again. Of captions alone, and of links of which more than half are dead."""
    assert differing(json.loads(BEFORE.read_text()), make(tmp_path)) == []
