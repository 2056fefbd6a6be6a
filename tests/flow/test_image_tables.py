"""Tables of a run that read the same images share one pass over them, and are those of a table computed alone."""

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from PIL import Image

from curation_assets.core.errors import ModelUnavailableError
from curation_assets.core.settings import load_settings
from curation_assets.flow import context, parallel
from curation_assets.flow.context import PoolContext
from curation_assets.flow.graph import tables_of, with_upstream
from curation_assets.flow.parallel import materialise_partitions, stop_workers, warm_up
from curation_assets.flow.run_table import keys_of, run_table
from curation_assets.flow.table import OfImages, Table
from curation_assets.scoring.batches import BrokenEngineError, LoadImage, Steps
from curation_assets.sources.declaration import add_pool
from curation_assets.stores.costs import read_attempts
from curation_assets.stores.shard_store import Materialised
from tests.support.lineage_pools import jpeg, write_tar
from tests.support.paths import REPOSITORY

SHARD = "photos-000000"
#: Batches of 128, 64 and 256: three windows of rows that do not end together.
TOGETHER = ("signals/clip_score", "signals/image_blur", "signals/detected_objects", "signals/perceptual_hash")


def open_pool(home: Path, source: Path, planned: tuple[str, ...], **more: Any) -> PoolContext:
    settings = load_settings(home, "embedded")
    if not (settings.pools_root / "photos.yaml").exists():
        methods = ["clip_score", "image_blur", "object_word_quality"]
        options = {"methods": methods, "duplicates": {"perceptual_bits": 4}, **more}
        add_pool(settings, "photos", source, options=options)
    return PoolContext.open(settings, "photos", planned=planned)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 images; one is no image, one is cut short."""
    folder = tmp_path_factory.mktemp("source")
    rows = []
    for i in range(300):
        data = jpeg(i)
        data = b"no image" if i == 70 else data[: len(data) // 2] if i == 131 else data
        rows.append((f"{i:06d}", f"https://example.org/{i}.jpg", f"a {i % 7} of boat {i}", data))
    write_tar(folder / "000000.tar", rows)
    return folder


class CountedLoads:
    """How often each image was decoded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loads: Counter[str] = Counter()
        decode = context.decode_image

        def counted(data: bytes, limits: Any) -> Image.Image:
            self.loads[data[:4000].hex() + str(len(data))] += 1
            return decode(data, limits)

        monkeypatch.setattr(context, "decode_image", counted)


def run(ctx: PoolContext, names: tuple[str, ...]) -> dict[str, str]:
    """Table → hash of its content."""
    tables = tables_of(ctx)
    for table in with_upstream(tables, names).values():
        result = run_table(ctx, table, keys_of(table, ctx.shards()), tables=tables)
        assert not result.problems, result.problems
    return {name: hash_of(ctx, name) for name in names}


def hash_of(ctx: PoolContext, name: str) -> str:
    manifest = ctx.store.manifest(name, SHARD)
    assert manifest is not None
    return manifest.content_sha256


@pytest.mark.slow
def test_one_pass_gives_the_tables_of_many(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = TOGETHER
    alone, together = open_pool(tmp_path / "alone", source, ()), open_pool(tmp_path / "together", source, names)
    counted = CountedLoads(monkeypatch)
    expected = run(alone, names)
    assert set(counted.loads.values()) == {len(TOGETHER)}
    counted.loads.clear()
    assert run(together, names) == expected
    assert len(counted.loads) > 290
    assert set(counted.loads.values()) == {1}, "each image is decoded once"
    rejected = together.store.read("signals/clip_score", SHARD).filter(pl.col("reason").is_not_null())
    assert rejected.height == 2, "an image that cannot be decoded costs its own row"
    attempts = read_attempts(together.store.root).filter(pl.col("asset").is_in(TOGETHER))
    assert attempts.height == len(TOGETHER)
    assert (attempts["cpu_seconds"] > 0).all(), "each table has its own CPU time"


def test_only_planned_tables_are_made(tmp_path: Path, source: Path) -> None:
    ctx = open_pool(tmp_path, source, ("signals/clip_score", "signals/image_blur"))
    run(ctx, ("signals/clip_score",))
    assert ctx.store.manifest("signals/image_blur", SHARD) is not None
    assert ctx.store.manifest("signals/perceptual_hash", SHARD) is None


@pytest.mark.slow
def test_seconds_are_booked_on_the_table_that_spent_them(tmp_path: Path, source: Path) -> None:
    """Whichever table takes the others along: wall time, CPU time and the manifest's seconds are its own."""

    def slow(ctx: PoolContext, shard: str, load_image: LoadImage) -> Steps[pl.DataFrame]:
        time.sleep(1)
        yield 300
        return pl.DataFrame({"value": [1.0], "reason": [None]}, schema={"value": pl.Float64, "reason": pl.String})

    def broken(ctx: PoolContext, shard: str, load_image: LoadImage) -> Steps[pl.DataFrame]:
        time.sleep(1)
        yield 256
        raise BrokenEngineError("as it were")

    ctx = open_pool(tmp_path, source, TOGETHER)
    tables = tables_of(ctx)
    tables["signals/perceptual_hash"] = replace(tables["signals/perceptual_hash"], compute=OfImages(slow))
    tables["signals/detected_objects"] = replace(tables["signals/detected_objects"], compute=OfImages(broken))
    for name in with_upstream(tables, ["signals/clip_score"]):
        began = time.perf_counter()
        assert isinstance(dict(materialise_partitions(ctx, tables[name], [SHARD], tables=tables))[SHARD], Materialised)
        took = time.perf_counter() - began
    attempts = read_attempts(ctx.store.root).filter(pl.col("asset").is_in(TOGETHER))
    seconds = dict(zip(attempts["asset"], attempts["seconds"], strict=True))
    assert seconds.keys() == set(TOGETHER)
    assert min(seconds["signals/perceptual_hash"], seconds["signals/detected_objects"]) >= 1
    assert seconds["signals/clip_score"] <= took - 2
    assert sum(seconds.values()) <= took
    manifest = ctx.store.manifest("signals/perceptual_hash", SHARD)
    assert manifest is not None
    assert manifest.seconds >= 1


def test_a_table_that_fails_harms_no_other_and_is_reported_in_its_turn(tmp_path: Path, source: Path) -> None:
    def fails(ctx: PoolContext, shard: str, load_image: LoadImage) -> Steps[pl.DataFrame]:
        yield 256
        raise BrokenEngineError("as it were")

    def no_model(ctx: PoolContext) -> None:
        raise ModelUnavailableError("not on this disk")

    ctx = open_pool(tmp_path, source, TOGETHER)
    tables = tables_of(ctx)
    tables["signals/image_blur"] = replace(tables["signals/image_blur"], compute=OfImages(fails))
    tables["signals/detected_objects"] = replace(tables["signals/detected_objects"], config=no_model)
    for name in with_upstream(tables, ["signals/clip_score"]):
        outcome = dict(materialise_partitions(ctx, tables[name], [SHARD], tables=tables))[SHARD]
        assert isinstance(outcome, Materialised), outcome
    assert ctx.store.manifest("signals/perceptual_hash", SHARD) is not None
    assert ctx.store.manifest("signals/image_blur", SHARD) is None
    outcome = dict(materialise_partitions(ctx, tables["signals/image_blur"], [SHARD], tables=tables))[SHARD]
    assert isinstance(outcome, BrokenEngineError)


@pytest.mark.slow
def test_hashes_of_images_are_made_by_the_workers(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They run no model, and come first: computed in this process, they would take the other tables along."""
    shutil.copytree(source, tmp_path / "source")
    shutil.copy(source / "000000.tar", tmp_path / "source" / "000001.tar")
    names = ("signals/perceptual_hash", "signals/image_blur")
    ctx = open_pool(tmp_path / "home", tmp_path / "source", names)
    ctx = replace(ctx, settings=replace(ctx.settings, workers=2))
    counted = CountedLoads(monkeypatch)
    try:
        run(ctx, names)
    finally:
        stop_workers()
    assert not counted.loads, "this process decodes nothing"
    for name in names:
        for shard in ctx.shards():
            assert ctx.store.read(name, shard).filter(pl.col("reason").is_null()).height > 250


#: Computes signals/image_blur of the pool in sys.argv[1] and kills itself, as the kernel would, after so many rows.
KILLED = """
import os, signal, sys
from curation_assets.core.errors import ModelUnavailableError
from curation_assets.core.settings import load_settings
from curation_assets.flow.context import PoolContext
from curation_assets.flow.run_table import run_with_upstream
from curation_assets.scoring import batches
score = batches._score_batch
rows = [0]
def counted(batch, call, run, label):
    if label == "method 'image_blur'":
        rows[0] += len(batch)
        if rows[0] > int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
    score(batch, call, run, label)
batches._score_batch = counted
ctx = PoolContext.open(load_settings(sys.argv[1], "embedded"), "photos")
run_with_upstream(ctx, "signals/image_blur", "signals/perceptual_hash")
print(rows[0])
"""


@pytest.mark.slow
def test_a_signal_goes_on_inside_its_shard_after_a_kill(tmp_path: Path, source: Path) -> None:
    names = ("signals/image_blur", "signals/perceptual_hash")
    expected = run(open_pool(tmp_path / "whole", source, ()), names)
    open_pool(tmp_path / "killed", source, (), save_every_seconds=0.0)

    def run_killed_after(rows: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", KILLED, str(tmp_path / "killed"), str(rows)]
        return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=300)

    killed = run_killed_after(260)  # in the second batch of 256
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    finished = run_killed_after(1000)
    assert finished.returncode == 0, finished.stderr
    assert int(finished.stdout.split()[-1]) == 298 - 254, "254 of the first batch's rows are kept, and were saved"
    ctx = open_pool(tmp_path / "killed", source, ())
    assert {name: hash_of(ctx, name) for name in names} == expected
    assert not list(ctx.store.root.glob("signals/.*.unfinished/*")), "nothing is left beside a finished table"


@pytest.mark.slow
def test_two_workers_make_the_tables_of_one_process_though_they_are_killed(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both workers die in the middle of their shards, and go on from what was saved."""
    names = ("signals/clip_score", "signals/detected_objects")
    shutil.copytree(source, tmp_path / "source")
    shutil.copy(source / "000000.tar", tmp_path / "source" / "000001.tar")
    alone = open_pool(tmp_path / "alone", tmp_path / "source", names)
    alone = replace(alone, settings=replace(alone.settings, workers=1))
    monkeypatch.setenv("CURATION_DEVICES", "0,1")
    monkeypatch.delenv("CURATION_WORKERS")
    together = open_pool(tmp_path / "together", tmp_path / "source", names, save_every_seconds=0.0)
    assert together.settings.workers == 2
    killed: list[int] = []
    is_over = threading.Event()
    warm_up(together.settings, ["image_text_encoder", "object_detector"])

    def kill_workers() -> None:
        root = together.store.root
        while not list(root.glob("signals/.clip_score.unfinished/*/*/part-000000.parquet")):
            if is_over.wait(0.005):
                return
        for worker in multiprocessing.active_children():
            assert worker.pid is not None
            os.kill(worker.pid, signal.SIGKILL)
            killed.append(worker.pid)

    killer = threading.Thread(target=kill_workers, daemon=True)
    killer.start()
    try:
        assert run(together, names) == run(alone, names)
    finally:
        stop_workers()
        is_over.set()
    killer.join()
    assert len(killed) == 2
    for name in names:
        first, second = (ctx.store.manifest(name, "photos-000001") for ctx in (alone, together))
        assert first is not None
        assert second is not None
        assert first.content_sha256 == second.content_sha256
    attempts = read_attempts(together.store.root).filter(pl.col("asset").is_in(names))
    assert "killed" in attempts["outcome"].to_list(), "a worker died in the middle of its shard"


class OneDone(Executor):
    """The first call has ended, the others wait."""

    def __init__(self) -> None:
        self.jobs: list[Future[Any]] = []

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        job: Future[Any] = Future()
        if not self.jobs:
            job.set_result(BrokenEngineError("as it were"))
        self.jobs.append(job)
        return job


def test_a_run_that_is_stopped_leaves_no_shard_in_the_queue(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a notebook, workers went on with all shards that were waiting."""
    for number in range(3):
        write_tar(tmp_path / "three" / f"{number:06d}.tar", [("0", "http://h/0.jpg", f"thing {number}", jpeg(number))])
    ctx = open_pool(tmp_path, tmp_path / "three", ())
    ctx = replace(ctx, settings=replace(ctx.settings, workers=2, threads=2))
    run(ctx, ("raw/samples",))
    tables, executor = tables_of(ctx), OneDone()
    monkeypatch.setattr(parallel, "workers", lambda settings, roles: executor)
    working = materialise_partitions(ctx, tables["signals/perceptual_hash"], ctx.shards(), tables=tables)
    next(working)
    assert not any(job.cancelled() for job in executor.jobs)
    working.close()  # type: ignore[attr-defined]
    assert [job.cancelled() for job in executor.jobs] == [False, True, True]


def test_a_run_that_is_stopped_computes_no_derived_table_that_no_thread_has_begun(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl+C while recipes were fused waited for all shards: seconds per million rows."""
    ctx = open_pool(tmp_path, source, ())
    ctx = replace(ctx, settings=replace(ctx.settings, threads=1))
    first, *_ = shards = [f"photos-{number:06d}" for number in range(3)]
    is_shut_down = threading.Event()
    jobs: list[Future[Any]] = []

    class Watched(ThreadPoolExecutor):
        def submit(self, *args: Any, **keywords: Any) -> Future[Any]:
            jobs.append(super().submit(*args, **keywords))
            return jobs[-1]

        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            is_shut_down.set()
            super().shutdown(wait=wait)

    def group(ctx: PoolContext, table: Table, shards: Sequence[str], *rest: Any) -> list[tuple[str, None]]:
        if shards != [first]:
            is_shut_down.wait(60)
        return [(shard, None) for shard in shards]

    monkeypatch.setattr(parallel, "ThreadPoolExecutor", Watched)
    monkeypatch.setattr(parallel, "_group", group)
    tables = tables_of(ctx)
    derived = next(table for table in tables.values() if table.name.startswith("filtered/") and table.grain == "shard")
    working = materialise_partitions(ctx, derived, shards, tables=tables)
    assert next(working) == (first, None)
    working.close()  # type: ignore[attr-defined]
    assert jobs[2].cancelled()


def test_shards_of_one_thread_end_when_the_run_is_stopped(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = tables_of(ctx := open_pool(tmp_path, source, ()))
    monkeypatch.setattr(parallel, "materialise_table", lambda *args, **keywords: ctx.is_stopped.set())
    shards = [f"photos-{number:06d}" for number in range(3)]
    derived = next(table for table in tables.values() if table.name.startswith("filtered/") and table.grain == "shard")
    assert parallel._group(ctx, derived, shards, tables) == [(shards[0], None)]
