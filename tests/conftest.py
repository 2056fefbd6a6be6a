"""Shared fixtures: one tiny pool, run once through real Dagster, read by many tests."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from absl import logging as absl_logging
from hypothesis import settings as hypothesis_settings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
os.environ.setdefault("DAGSTER_DISABLE_TELEMETRY", "1")

from curation_assets.core.settings import Settings, load_settings
from curation_assets.flow.context import PoolContext
from curation_assets.flow.table import TableReport
from curation_assets.stores.pools.declaration import add_world_pool

hypothesis_settings.register_profile("no deadline", deadline=None)  # a busy machine is no fault of the code
hypothesis_settings.load_profile("no deadline")

# absl (through mlcroissant) logs to the standard error of its import and closes that stream with its handler, as when
# Dagster sets up logging: under pytest that stream would be pytest's own.
absl_logging.get_absl_handler().python_handler.stream = sys.__stderr__

TINY_OPTIONS = {
    "distillation_size": 60,
    "labelled_captions": 60,
    "caption_count": 2,
    "fraction": 0.5,
    "evaluation_scenes": 12,
    "downstream_budget": {
        "captioner_steps": 3,
        "captioner_batch": 8,
        "dual_encoder_steps": 3,
        "dual_encoder_batch": 8,
    },
}


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
def finished_pool(tmp_path_factory: pytest.TempPathFactory) -> FinishedPool:
    """The tiny pool, fully materialised. Read it; do not change it."""
    from curation_assets.defs.launch import run_pool

    settings = declare_tiny_pool(tmp_path_factory.mktemp("home"))
    reports = run_pool(settings, "tiny")
    return FinishedPool(settings, PoolContext.open(settings, "tiny"), reports)
