"""Disks that are full in the middle of a write, and homes that cannot be written."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from curation_assets.core.disk import DiskError
from curation_assets.core.settings import Settings, load_settings
from curation_assets.flow.context import PoolContext
from curation_assets.flow.freshness import materialise_table
from curation_assets.flow.graph import tables_of
from curation_assets.numeric.identity import pack_uids
from curation_assets.stores.catalog import rebuild_catalog
from curation_assets.stores.shard_store import ShardStore
from curation_assets.stores.subsets import write_keys, write_sorted_subset
from tests.support.id_lists import read_subset
from tests.support.lineage_pools import webdataset_pool
from tests.support.small_disk import SmallDisk, small_disk, why_no_disk
from tests.torture.outcome import Fault, Outcome

ROOM = 32 * 1024 * 1024  # bytes: more than any try needs
RAW = ("raw/registered_shards", "raw/downloads", "raw/samples", "raw/lookup")
SHARD = "toy-000000"


def _check_refused(write: Callable[[], object], disk: SmallDisk, outcome: Outcome) -> bool:
    """Whether the disk refused a write; it must say so by DiskError that names the path."""
    try:
        write()
    except DiskError as error:
        if str(disk.folder) not in str(error):
            outcome.faults_missed += 1
        return True
    return False


def _leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob(".*") if ".tmp-" in path.name]


def _full_store(folder: Path, rng: random.Random, outcome: Outcome) -> None:
    """Single writes of a store at a random amount of room: the old content, or the new; then the same write again."""
    with small_disk(folder / "disk", ROOM) as disk:
        home = disk.folder / "home"
        store = ShardStore(home / "work" / "toy")

        def frame(seed: int, rows: int) -> pl.DataFrame:
            values = np.random.default_rng(seed).random(rows)
            return pl.DataFrame({"sample_id": [f"{number:032x}" for number in range(rows)], "value": values})

        def write(seed: int, rows: int) -> Sequence[Callable[[], object]]:
            ids = frame(seed, rows)["sample_id"].to_list()
            keys = pl.DataFrame({"tar": ["0.tar"] * rows, "key": ids})

            def model(target: Path) -> None:
                (target / "weights.bin").write_bytes(np.random.default_rng(seed).bytes(rows * 8))

            return (
                lambda: store.write("signals/icc", frame(seed, rows), SHARD, code_version=str(seed)),
                lambda: store.write("fused/sieve_clip", frame(seed, rows), code_version=str(seed)),
                lambda: store.materialise_folder("distilled/student", model, code_version=str(seed), inputs=[]),
                lambda: write_sorted_subset(store.root / "ids.npy", store.root / "ids.parquet", pack_uids(ids)),
                lambda: write_keys(store.root / "keys.tsv", [keys.sort("tar", "key")]),
                lambda: rebuild_catalog(home),
            )

        def state() -> list[object]:
            manifests = [
                store.manifest("signals/icc", SHARD), store.manifest("fused/sieve_clip"),
                store.manifest("distilled/student"),
            ]  # fmt: skip
            store.read("signals/icc", SHARD)  # raises where the file is not what its manifest states
            store.read("fused/sieve_clip")
            return [
                *(None if one is None else one.content_sha256 for one in manifests),
                read_subset(store.root / "ids.parquet"),
                (store.root / "keys.tsv").read_text(encoding="utf-8"),
            ]

        old_rows, new_rows = rng.randrange(1, 200), rng.randrange(1_000, 6_000)
        for one in write(1, old_rows):
            one()
        old = state()
        new_writes = write(2, new_rows)
        disk.resize(disk.used + rng.randrange(0, new_rows * 30))
        refused = [_check_refused(one, disk, outcome) for one in new_writes]
        outcome.faults_reached += sum(refused)
        between = state()
        disk.resize(ROOM)
        for one, was_refused in zip(new_writes, refused, strict=True):
            if was_refused:
                one()
        new = state()
        for before, now, after, was_refused in zip(old, between, new, refused, strict=False):
            outcome.harmed_neighbours += now != (before if was_refused else after)
        outcome.count_rows(new_rows, store.read("signals/icc", SHARD).height)
        assert not (left := _leftovers(disk.folder)), left


def _materialise_raw(settings: Settings) -> None:
    ctx = PoolContext.open(settings, "photos", run_id="run")
    tables = tables_of(ctx)
    for name in RAW:
        for shard in ctx.shards() if tables[name].grain == "shard" else [None]:
            materialise_table(ctx, tables[name], shard, tables=tables)


def _content(settings: Settings) -> dict[str, object]:
    """Every file of the pool's tables by name, with the content hash of tables and the hash of other files' bytes."""
    store = ShardStore(settings.work("photos"))
    hashes: dict[str, object] = {}
    for name in RAW:
        for key in store.partitions(name) or [None]:
            manifest = store.manifest(name, key)
            hashes[f"{name} {key}"] = manifest and manifest.content_sha256
    files = (path.relative_to(store.root).as_posix() for path in (store.root / "raw").rglob("*") if path.is_file())
    return {**hashes, "files": sorted(name for name in files if ".version-" not in name)}


def _full_pool(folder: Path, rng: random.Random, outcome: Outcome) -> None:
    """A pool's raw tables on a disk that fills up, perhaps twice; then room, and the same command."""
    shards, per_shard = rng.randrange(1, 4), rng.randrange(3, 9)
    undisturbed = webdataset_pool(folder / "undisturbed", shards=shards, per_shard=per_shard)
    _materialise_raw(undisturbed)
    expected = _content(undisturbed)
    need = sum(path.stat().st_size // 4096 * 4096 + 4096 for path in undisturbed.work("photos").rglob("*"))
    with small_disk(folder / "disk", ROOM) as disk:
        settings = webdataset_pool(disk.folder / "home", shards=shards, per_shard=per_shard)
        begun = disk.used
        refusals = 0
        for share in sorted(rng.random() for _ in range(2)):
            disk.resize(begun + int(share * need))
            refusals += _check_refused(lambda: _materialise_raw(settings), disk, outcome)
            assert not (left := _leftovers(disk.folder)), left
        outcome.faults_reached += refusals
        disk.resize(ROOM)
        _materialise_raw(settings)
        found = _content(settings)
        outcome.harmed_neighbours += sum(found.get(name) != value for name, value in expected.items())
        samples = ShardStore(settings.work("photos")).scan("raw/samples").collect()
        accounted = samples.filter(pl.col("status").is_in(["kept", "dropped", "failed"])).height
        outcome.count_rows(shards * per_shard, accounted)
        assert found == expected, {name: (value, found.get(name)) for name, value in expected.items()}
        assert not (left := _leftovers(disk.folder)), left


def _read_only_home(folder: Path, rng: random.Random, outcome: Outcome) -> None:
    """A home that cannot be written, from a random table on; then it can, and the same command goes on."""
    shards = rng.randrange(1, 3)
    with small_disk(folder / "disk", ROOM) as disk:
        settings = webdataset_pool(disk.folder / "home", shards=shards, per_shard=4)
        ctx = PoolContext.open(settings, "photos", run_id="run")
        tables = tables_of(ctx)
        made = rng.randrange(0, len(RAW))
        for name in RAW[:made]:
            for shard in ctx.shards() if tables[name].grain == "shard" else [None]:
                materialise_table(ctx, tables[name], shard, tables=tables)
        before = _content(settings)
        disk.make_read_only()
        is_refused = _check_refused(lambda: _materialise_raw(settings), disk, outcome)
        outcome.faults_reached += is_refused
        outcome.faults_missed += not is_refused
        outcome.harmed_neighbours += _content(load_settings(settings.home, "embedded")) != before
        disk.resize(ROOM)
        _materialise_raw(settings)
        samples = ShardStore(settings.work("photos")).scan("raw/samples").collect()
        outcome.count_rows(shards * 4, samples.height)


#: None where no disk can be mounted: the table of docs/operator/reliability.md then has no line of them.
FAULTS = (
    []
    if why_no_disk()
    else [
        Fault(
            "disk full: writes of a store",
            "the old content stays or the new is whole; one sentence names path and room; the same write succeeds",
            _full_store,
            quick=4,
            full=300,
        ),
        Fault(
            "disk full: tables of a pool",
            "what is finished stays; with room again the same command ends as an undisturbed home",
            _full_pool,
            quick=2,
            full=60,
        ),
        Fault(
            "home read-only",
            "one sentence names the path; nothing changes; once it can be written the same command goes on",
            _read_only_home,
            quick=2,
            full=40,
        ),
    ]
)
