"""Captions of a pool that people rated: tables made of a file of ratings alone, which rest on no row of the pool."""

from collections.abc import Iterator
from pathlib import Path

from curation_assets.core.table_names import BENCHMARK_CAPTIONS, LABELLED_CAPTIONS
from curation_assets.flow.context import PoolContext
from curation_assets.flow.holder import Holder, Left, Takedown, files_in
from curation_assets.flow.options import FlowOptions
from curation_assets.flow.table import Tables
from curation_assets.stages.teachers.options import TeachersOptions


class RatedCaptions(Holder):
    """The two tables leave where they quote a sample's caption, and are made again from their files. A file in the
    home loses the caption with the other loose files; one elsewhere is its owner's, and is named.
    """

    turn = 1

    def purge(self, ctx: PoolContext, tables: Tables, takedown: Takedown) -> None:
        for name in (LABELLED_CAPTIONS, BENCHMARK_CAPTIONS):
            if any(takedown.needles.matches_in(path) for path in _files_of(ctx, name)):
                ctx.store.remove(name)

    def searched(self, ctx: PoolContext, tables: Tables, takedown: Takedown) -> Iterator[Path]:
        for name in (LABELLED_CAPTIONS, BENCHMARK_CAPTIONS):
            yield from _files_of(ctx, name)

    def left(self, ctx: PoolContext, takedown: Takedown) -> Left:
        given = (FlowOptions.of(ctx).labels, TeachersOptions.of(ctx).caption_benchmark)
        files = [path for path in map(Path, filter(None, given)) if path.is_file()]
        return Left(with_owners=[(str(path), what) for path in files for what in takedown.needles.matches_in(path)])


def _files_of(ctx: PoolContext, name: str) -> list[Path]:
    return files_in(ctx.store.asset_path(name).resolve())
