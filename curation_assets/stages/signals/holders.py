"""The frozen samples that every build scores: a copy of captions and image hashes beside the pool."""

from pathlib import Path

import polars as pl

from curation_assets.core.table_names import CANARY
from curation_assets.flow.context import PoolContext
from curation_assets.flow.holder import Holder, Takedown
from curation_assets.flow.table import Tables
from curation_assets.scoring.canary import Canary, keep_builds
from curation_assets.stages.signals.options import SignalsOptions
from curation_assets.stores.documents import save_frame
from curation_assets.stores.parquet import read_parquet
from curation_assets.stores.scrubbing import HASHES


class FrozenSamples(Holder):
    """The pool's canary. Its rows leave; the scores that earlier builds gave to the others stay comparable."""

    def purge(self, ctx: PoolContext, tables: Tables, takedown: Takedown) -> None:
        path, samples = _canary_file(ctx), takedown.samples
        if path is None:
            return
        ids, captions = samples["sample_id"].implode(), samples["caption"].drop_nulls().implode()
        is_removed = pl.col("sample_id").is_in(ids) | pl.col("caption").is_in(captions)
        for name in HASHES:
            is_removed |= pl.col("image_sha256").is_in(samples[name].drop_nulls().implode()).fill_null(False)
        rows = read_parquet(path)
        if rows.filter(is_removed).is_empty():
            return
        before = Canary.read(path).sha256
        save_frame(path, rows.filter(~is_removed))
        if ctx.store.manifest(CANARY) is not None:
            keep_builds(ctx.store, before, Canary.read(path))

    def searched(self, ctx: PoolContext, tables: Tables, takedown: Takedown) -> list[Path]:
        path = _canary_file(ctx)
        return [] if path is None else [path]


def _canary_file(ctx: PoolContext) -> Path | None:
    path = ctx.settings.home / (SignalsOptions.of(ctx).canary or "")
    return path if path.is_file() else None
