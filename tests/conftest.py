"""Shared fixtures: one tiny pool, run once through real Dagster, read by many tests."""

import json
import os
import shutil
import sys
from collections import defaultdict
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pytest
from absl import logging as absl_logging
from filelock import FileLock
from hypothesis import settings as hypothesis_settings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
os.environ.setdefault("DAGSTER_DISABLE_TELEMETRY", "1")
# A pool of a few rows is made before worker processes have loaded torch: those who test workers ask for them.
os.environ["CURATION_WORKERS"] = "1"
# The power stays on: what flushes to the disk is tested by tests/stores/test_power_cut.py.
os.environ.setdefault("CURATION_DURABILITY", "fast")
os.environ.pop("COLUMNS", None)  # processes of pytest-xdist have 80, and what is piped obeys it

from curation_assets.core.settings import Settings, load_settings
from curation_assets.flow.context import PoolContext
from curation_assets.flow.table import TableReport
from curation_assets.sources.declaration import add_world_pool

hypothesis_settings.register_profile("no deadline", deadline=None)  # a busy machine is no fault of the code
hypothesis_settings.load_profile("no deadline")

# absl (through mlcroissant) logs to the standard error of its import and closes that stream with its handler, as when
# Dagster sets up logging: under pytest that stream would be pytest's own.
absl_logging.get_absl_handler().python_handler.stream = sys.__stderr__

TINY_OPTIONS = {
    "distillation_size": 40,
    "labelled_captions": 40,
    "caption_count": 2,
    "fraction": 0.5,
    "evaluation_images": 12,
    "downstream_budget": {
        "captioning": {"samples_seen": 24, "batch_size": 8},
        "retrieval": {"samples_seen": 24, "batch_size": 8},
    },
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with the dearest tests first: what a process takes last, while the others have ended, is short."""
    dear: defaultdict[Path, float] = defaultdict(float)
    for item in items:
        longest = item.get_closest_marker("timeout")
        dear[item.path] += any(item.iter_markers("slow")) or any(item.iter_markers("infra"))
        dear[item.path] += 0 if longest is None else longest.args[0] / 60
    items.sort(key=lambda item: -dear[item.path])


@dataclass(frozen=True)
class FinishedPool:
    """A pool after `run_pool`."""

    settings: Settings
    ctx: PoolContext
    reports: list[TableReport]


def declare_tiny_pool(home: Path, *, size: int = 120, seed: int = 5) -> Settings:
    """Two shards of a scene pool small enough for seconds of model work."""
    settings = load_settings(home, "embedded")
    add_world_pool(settings, "tiny", size=size, seed=seed, shard_size=size // 2, options=TINY_OPTIONS)
    return settings


@pytest.fixture(scope="session")
def finished_pool(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> FinishedPool:
    """The tiny pool, fully materialised. Read it; do not change it.

    It is made once for all test processes (both cores are busy meanwhile); each reads a copy of its own.
    """
    from curation_assets.defs.launch import run_pool

    base = tmp_path_factory.getbasetemp()
    made = (base if worker_id == "master" else base.parent) / "finished_pool"
    written = made / "reports.json"
    with FileLock(f"{made}.lock"):
        if not written.is_file():
            reports = run_pool(replace(declare_tiny_pool(made / "home"), workers=2), "tiny")
            written.write_text(json.dumps([asdict(report) for report in reports]))
    home = tmp_path_factory.mktemp("finished") / "home"
    shutil.copytree(made / "home", home, symlinks=True)
    reports = [TableReport(**report) for report in json.loads(written.read_text())]
    settings = load_settings(home, "embedded")
    return FinishedPool(settings, PoolContext.open(settings, "tiny"), reports)
