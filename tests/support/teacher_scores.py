"""A pool whose teacher scores are planted, for what is distilled from them."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from scipy.special import expit

from curation_assets.core.settings import load_settings
from curation_assets.flow.context import PoolContext
from curation_assets.flow.freshness import materialise_table
from curation_assets.flow.graph import tables_of
from curation_assets.flow.table import Table
from curation_assets.sources.declaration import add_pool
from curation_assets.stores.shard_store import ShardStore
from tests.support.captions import ABSTRACT, CONCRETE

SHARD = "mine-000000"
CAPTIONS = [*CONCRETE, *ABSTRACT]


def with_teacher_scores(home: Path, **options: Any) -> tuple[PoolContext, dict[str, Table]]:
    """A pool of captions whose teachers are planted (VBA knows concreteness, SBA also likes short captions)."""
    home.mkdir(parents=True, exist_ok=True)
    pl.DataFrame({"caption": CAPTIONS}).write_csv(home / "captions.csv")
    rng = np.random.default_rng(0)
    is_concrete = np.array([text in CONCRETE for text in CAPTIONS])
    rating = np.where(is_concrete, rng.integers(2, 4, len(CAPTIONS)), rng.integers(0, 2, len(CAPTIONS)))
    pl.DataFrame({"caption": CAPTIONS[::2], "rating": rating[::2].astype(float)}).write_csv(
        home / "labels.tsv", separator="\t"
    )
    settings = load_settings(home, "embedded")
    declared = {"distil": True, "labels": str(home / "labels.tsv"), **options}
    add_pool(settings, "mine", home / "captions.csv", options=declared)
    ctx = PoolContext.open(settings, "mine")
    tables = tables_of(ctx)
    lengths = np.array([len(text.split()) for text in CAPTIONS])
    scores = {
        "vba": expit(2.0 * is_concrete - 1 + rng.normal(size=len(CAPTIONS)) * 0.5),
        "sba": expit(0.5 * is_concrete - 0.3 * (lengths - 4) + rng.normal(size=len(CAPTIONS)) * 0.5),
    }
    frame = pl.DataFrame(
        {"sample_id": [f"{i:032x}" for i in range(len(CAPTIONS))], "caption": CAPTIONS, "caption_length": lengths}
    ).with_columns(pl.Series(name, values) for name, values in scores.items())
    plant(ctx.store, "standardised/teacher_scores", frame, SHARD)
    return ctx, tables


def plant(store: ShardStore, name: str, frame: pl.DataFrame, shard: str | None) -> None:
    store.materialise(
        name, lambda: frame, partition=shard, run_id="", code_version="1", inputs=[], models=[], config={}
    )


def make(ctx: PoolContext, tables: dict[str, Table], *names: str) -> None:
    for name in names:
        table = tables[f"distilled/{name}"]
        materialise_table(ctx, table, SHARD if table.grain == "shard" else None, tables=tables)
