"""A late shard adds its own tables, and its rows to the files of the whole pool, which are as if made anew."""

from pathlib import Path

import pytest

from curation_assets.core.stages import STAGES
from curation_assets.core.table_names import DUPLICATES, LOOKUP, OVERLAPS, SAMPLES, SUBSETS
from curation_assets.flow.context import PoolContext
from curation_assets.flow.freshness import materialise_table
from curation_assets.flow.graph import tables_of
from curation_assets.stores.shard_store import ShardStore
from tests.operations.test_refit import late_tar
from tests.support.lineage_pools import finished_photos, score_by_hand, summarise

RAW = ("raw/registered_shards", "raw/downloads", SAMPLES, "raw/provenance")
WHOLE = (SUBSETS, LOOKUP, DUPLICATES, OVERLAPS)


def bring(ctx: PoolContext, *shards: str) -> PoolContext:
    """Make raw tables and signals of these shards, and all that follows from them."""
    ctx = PoolContext.open(ctx.settings, "photos", run_id="run-7")
    tables = tables_of(ctx)
    for shard in shards:
        for name in RAW:
            materialise_table(ctx, tables[name], shard, tables=tables)
        score_by_hand(ctx, shard)
    summarise(ctx)
    materialise_table(ctx, tables[LOOKUP], tables=tables)
    return ctx


def whole_files(ctx: PoolContext) -> dict[str, bytes]:
    """Subset files and look-up."""
    folders = [ctx.store.folder_path(name) for name in (SUBSETS, LOOKUP)]
    return {path.name: path.read_bytes() for folder in folders for path in folder.iterdir() if path.is_file()}


def made_anew(ctx: PoolContext) -> dict[str, bytes]:
    for name in (SUBSETS, LOOKUP):
        ctx.store.remove(name)
    return whole_files(bring(ctx))


def written(ctx: PoolContext) -> dict[Path, tuple[int, int]]:
    """File of a table → when it was written, and which file it is."""
    paths = (path for stage in STAGES for path in (ctx.store.root / stage).rglob("*") if path.is_file())
    return {path: ((stat := path.stat()).st_mtime_ns, stat.st_ino) for path in paths}


@pytest.mark.slow
def test_files_of_the_whole_pool_grow_by_what_came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a late shard; after one between others, which repeats a sample; after one changed too."""
    ctx = bring(finished_photos(tmp_path))
    before, files = written(ctx), whole_files(ctx)
    late_tar(tmp_path, "000007.tar", range(100, 130))
    read: list[str | None] = []
    original = ShardStore.read

    def reading(self: ShardStore, asset: str, partition: str | None = None, *args: object, **more: object) -> object:
        if asset == SAMPLES:
            read.append(partition)
        return original(self, asset, partition, *args, **more)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(ShardStore, "read", reading)
        ctx = bring(ctx, "photos-000007")
    assert set(read) == {"photos-000007"}, "no other shard's rows are read again"
    changed = {path for path, state in written(ctx).items() if before.get(path) != state}
    assert changed
    folders = [ctx.store.asset_path(name).resolve() for name in WHOLE]
    others = [
        path
        for path in changed
        if "shard=photos-000007" not in path.parts
        and not any(folder in path.parents or path.parent == folder.parent for folder in folders)
    ]
    assert others == []
    grown = whole_files(ctx)
    assert all(len(grown[name]) >= len(files[name]) for name in files)
    assert len(grown["keys.npy"]) > len(files["keys.npy"])
    assert grown["icc.keys.tsv"].startswith(files["icc.keys.tsv"])
    assert grown == made_anew(ctx)

    late_tar(tmp_path, "000005.tar", range(200, 230), repeat_of=9)  # comes between those that there are
    ctx = bring(ctx, "photos-000005")
    assert (again := whole_files(ctx)) != grown
    assert again == made_anew(ctx)

    late_tar(tmp_path, "000001.tar", range(300, 340))  # other samples than it had, and one more shard
    late_tar(tmp_path, "000009.tar", range(400, 420))
    ctx = bring(ctx, "photos-000001", "photos-000009")
    assert whole_files(ctx) == made_anew(ctx) != again
