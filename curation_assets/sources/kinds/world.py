"""Planted scenes with their captions, drawn by the program and served on this machine with the web's troubles."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from curation_assets.core.settings import Settings
from curation_assets.sources.base import Found, Offered
from curation_assets.sources.kinds.url_table import reading_of_columns
from curation_assets.sources.pool_facts import PoolFacts
from curation_assets.sources.split import Reading, Split
from curation_assets.sources.tables import SplitSource
from curation_assets.stores.atomic import remove_path, replacing
from curation_assets.stores.documents import save_frame
from curation_assets.stores.parquet import read_parquet

WORLD_SOURCE = "world/urls.parquet"  # both relative to the pool's work folder
WORLD_TRUTH = "truth/planted.parquet"


class World(SplitSource):
    """A pool of `size` scenes, made by `add_world_pool` and never found at a path."""

    order = 90
    is_planted = True

    def detect(self, offered: Offered) -> Found | None:
        return None

    def path(self, pool: PoolFacts, settings: Settings) -> Path:
        return settings.work(pool.name) / WORLD_SOURCE

    def split(self, pool: PoolFacts, settings: Settings) -> Split:
        plant(pool, settings)
        return super().split(pool, settings)

    def reading(self, pool: PoolFacts, source: Path) -> Reading:
        return reading_of_columns(pool, source, {})

    def allow_hosts(self, pool: PoolFacts) -> tuple[str, ...]:
        return ()

    @contextmanager
    def serving(self, pool: PoolFacts, requested: pl.DataFrame, settings: Settings) -> Iterator[Mapping[str, Any]]:
        from curation_assets.world import server

        size, seed = pool.planted
        with server.WorldServer(server.planted(size, seed), seed) as running:
            yield {
                "settings": replace(pool.download, connect_to=running.connect_to),
                "robots_folder": None,
                "note": None,
            }

    def collected(self, pool: PoolFacts) -> str:
        return "Captions and images were rendered by the program itself; no person or web page is behind them."

    def remove_samples(self, pool: PoolFacts, settings: Settings, sample_ids: Collection[str]) -> list[str]:
        """The source is a file of ours: its rows stay, with their ids only."""
        path = self.path(pool, settings)
        if not path.is_file():
            return []
        is_removed = pl.col("uid").is_in(list(sample_ids))
        emptied = (pl.when(is_removed).then(None).otherwise(pl.col(name)).alias(name) for name in ("url", "caption"))
        frame = read_parquet(path).with_columns(emptied)
        save_frame(path, frame)
        return []

    def restore(self, pool: PoolFacts, settings: Settings) -> Callable[[Path], None]:
        return partial(_plant_again, settings.work(pool.name) / WORLD_TRUTH)


SOURCE = World()


def plant(pool: PoolFacts, settings: Settings) -> None:
    """Write a world's source and truth where they are missing: both follow from size and seed."""
    from curation_assets.world import server

    work = settings.work(pool.name)
    if not (work / WORLD_SOURCE).is_file() or not (work / WORLD_TRUTH).is_file():
        size, seed = pool.planted
        samples = server.planted(size, seed)
        with replacing(work / WORLD_TRUTH) as truth:
            server.write_planted_truth(truth, samples, seed)
        with replacing(work / WORLD_SOURCE) as source:
            server.write_world_urls(source, samples, seed)


def _plant_again(truth: Path, path: Path) -> None:
    """Both are written at the next run."""
    remove_path(path)
    remove_path(truth)
