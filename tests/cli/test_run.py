"""What `curate run` begins before its first table."""

from collections.abc import Collection
from pathlib import Path

import pytest

from curation_assets.cli.run import _computes_models
from curation_assets.core.settings import Settings, load_profile
from curation_assets.flow.context import PoolContext
from curation_assets.flow.graph import tables_of
from curation_assets.flow.table import Phase
from curation_assets.sources.declaration import add_world_pool


@pytest.mark.parametrize(
    ("stored", "names", "phase", "expected"),
    [
        ((), None, None, True),
        ((), None, "shards", True),
        ((), None, "pool", False),
        ((), ["signals/clip_score"], None, True),
        ((), ["raw/samples", "fused/sieve_clip"], None, False),
        (("signals/clip_score",), ["signals/clip_score"], None, False),  # maybe stale, maybe not: no libraries yet
        (("signals/clip_score",), None, None, True),
        (None, None, None, False),
    ],
)
def test_libraries_of_models_are_loaded_early_where_a_run_is_sure_to_need_them(
    tmp_path: Path,
    stored: Collection[str] | None,
    names: list[str] | None,
    phase: Phase | None,
    expected: bool,
) -> None:
    """A second run, which computes nothing, must not pay for them."""
    settings = Settings(home=tmp_path, profile=load_profile("embedded"), threads=1)
    add_world_pool(settings, "scenes", size=8, seed=1, shard_size=4)
    ctx = PoolContext.open(settings, "scenes")
    declared = tables_of(ctx)
    for name in declared if stored is None else stored:
        folder = ctx.store.asset_path(name) / "shard=scenes-000000"
        folder.mkdir(parents=True)
        (folder / "data.parquet").touch()
    assert _computes_models(ctx, declared, names, phase) is expected
