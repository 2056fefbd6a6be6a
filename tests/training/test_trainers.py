"""Trainers: one file is all that a new one takes, and it leaves the stored results of the others alone."""

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from curation_assets.core.settings import Settings
from curation_assets.flow.context import PoolContext
from curation_assets.flow.freshness import config_of
from curation_assets.flow.graph import tables_of
from curation_assets.stages.downstream.subset_training import run_settings
from curation_assets.stores.content_hash import config_sha256
from curation_assets.stores.pools.declaration import add_world_pool
from curation_assets.training import trainers
from curation_assets.training.trainers import all_trainers
from tests.conftest import declare_tiny_pool

NEAREST = '''
"""1-nearest neighbour."""

from curation_assets.training.trainers import Trainer


def nearest(task):
    return {"neighbours": float(task.budget["neighbours"])}


TRAINER = Trainer("nearest", nearest, {"neighbours": 1}, ("neighbours",), "the share of captions found by a neighbour")
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
    sys.modules.pop("curation_assets.training.trainers.nearest", None)


def downstream_configs(ctx: PoolContext) -> dict[str, str]:
    tables = tables_of(ctx)
    return {name: config_sha256(config_of(ctx, tables[f"downstream/{name}"], None)) for name in all_trainers()}


def test_budgets_are_stored_under_the_settings_that_they_always_had(settings: Settings) -> None:
    """Another hash would train every pool's models again."""
    ctx = PoolContext.open(settings, "tiny")
    expected = {
        "captioner_steps": 3, "captioner_batch": 8, "dual_encoder_steps": 3, "dual_encoder_batch": 8,
        "seeds": [0], "evaluation_scenes": 12,
    }  # fmt: skip
    for trainer in all_trainers().values():
        assert run_settings(ctx, trainer) == expected


@pytest.mark.usefixtures("with_nearest")
def test_a_trainer_more_is_a_table_and_input_of_the_report_and_changes_no_other(settings: Settings) -> None:
    ctx = PoolContext.open(settings, "tiny")
    assert list(all_trainers()) == ["captioning", "nearest", "retrieval"]
    table = tables_of(ctx)["downstream/nearest"]
    assert "found by a neighbour trained on the subset" in table.description
    assert "downstream/nearest" in tables_of(ctx)["downstream/report"].inputs
    assert run_settings(ctx, all_trainers()["nearest"]) == {"neighbours": 1, "seeds": [0], "evaluation_scenes": 12}
    with_it = downstream_configs(ctx)
    all_trainers.cache_clear()
    trainers.__path__.pop()
    assert downstream_configs(ctx) == {name: with_it[name] for name in ("captioning", "retrieval")}


def test_a_misspelt_budget_is_refused_with_the_nearest_name(settings: Settings) -> None:
    add_world_pool(settings, "odd", size=20, seed=1, options={"downstream_budget": {"captioner_step": 5}})
    ctx = PoolContext.open(settings, "odd")
    with pytest.raises(ValueError, match="did you mean 'captioner_steps'"):
        run_settings(ctx, all_trainers()["captioning"])


def test_trainers_are_found_without_a_model_library() -> None:
    """The process that declares tables never loads torch: its workers do."""
    code = (
        "import sys; from curation_assets.training.trainers import all_trainers; "
        "print(sorted(all_trainers()), [name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "['captioning', 'retrieval'] []"
