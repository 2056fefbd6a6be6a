"""Trainers: one file is all that a new one takes, and it leaves the stored results of the others alone."""

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from curation_assets.core.settings import Settings
from curation_assets.evaluation import trainers
from curation_assets.evaluation.subset_training import budget_of, trainers_of
from curation_assets.evaluation.trainers import all_trainers
from curation_assets.flow.context import PoolContext
from curation_assets.flow.freshness import config_of
from curation_assets.flow.graph import tables_of
from curation_assets.sources.declaration import add_world_pool
from curation_assets.stores.content_hash import config_sha256
from tests.conftest import declare_tiny_pool

NEAREST = '''
"""1-nearest neighbour."""

from curation_assets.evaluation.trainers import Trainer, metrics_frame


def nearest(task):
    return metrics_frame({"neighbours": float(task.budget["neighbours"])})


TRAINER = Trainer(
    name="nearest",
    train=nearest,
    gives="metrics",
    reads="images",
    budget={"neighbours": 1, "batch_size": 1},
    shown_metrics=("neighbours",),
    measures="the share of captions that a neighbour retrieves",
)
'''


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return declare_tiny_pool(tmp_path)


@pytest.fixture
def with_nearest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder = tmp_path / "more_trainers"
    folder.mkdir()
    (folder / "nearest.py").write_text(NEAREST)
    monkeypatch.setattr(trainers, "__path__", [*trainers.__path__, str(folder)])
    importlib.invalidate_caches()
    all_trainers.cache_clear()
    yield
    all_trainers.cache_clear()
    sys.modules.pop("curation_assets.evaluation.trainers.nearest", None)


def downstream_configs(ctx: PoolContext) -> dict[str, str]:
    tables = tables_of(ctx)
    return {name: config_sha256(config_of(ctx, tables[f"downstream/{name}_runs"], None)) for name in trainers_of(ctx)}


@pytest.mark.usefixtures("with_nearest")
def test_a_trainer_more_is_two_tables_and_input_of_the_report_and_changes_no_other(settings: Settings) -> None:
    ctx = PoolContext.open(settings, "tiny")
    assert list(trainers_of(ctx)) == ["captioning", "nearest", "retrieval"]
    tables = tables_of(ctx)
    assert "a neighbour retrieves" in tables["downstream/nearest"].description
    assert {"downstream/nearest", "downstream/nearest_runs"} <= set(tables["downstream/report"].inputs)
    assert budget_of(ctx, all_trainers()["nearest"]) == {"neighbours": 1, "batch_size": 1}
    with_it = downstream_configs(ctx)
    all_trainers.cache_clear()
    trainers.__path__.pop()
    assert downstream_configs(ctx) == {name: with_it[name] for name in ("captioning", "retrieval")}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"downstream_budget": {"captioning": {"sample_seen": 5}}}, "did you mean 'samples_seen'"),
        ({"downstream_budget": {"captionning": {"samples_seen": 5}}}, "did you mean 'captioning'"),
        ({"downstream_trainers": ["retrival"]}, "did you mean 'retrieval'"),
    ],
)
def test_misspelt_names_are_refused_with_the_nearest(settings: Settings, options: dict[str, Any], message: str) -> None:
    add_world_pool(settings, "odd", size=20, seed=1, options=options)
    ctx = PoolContext.open(settings, "odd")
    with pytest.raises(ValueError, match=message):
        budget_of(ctx, trainers_of(ctx)["captioning"])


def test_trainers_are_found_without_a_model_library() -> None:
    """The process that declares tables never loads torch: its workers do."""
    code = (
        "import sys; from curation_assets.evaluation.trainers import all_trainers; "
        "print(sorted(all_trainers()), [name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip().endswith(" []")
