"""Shards side by side: worker processes that keep their models loaded from table to table.

One process with two threads is slower than two processes with one thread each on small models (the threads wait for
each other at every layer), and collapses when something else runs on the machine.
"""

import atexit
import functools
import logging
import multiprocessing
import multiprocessing.util
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import forkserver
from types import ModuleType
from typing import Any, TypeVar

import polars as pl

from curation_assets.core.allocator import keep_freed_memory
from curation_assets.core.progress import Advance, Fraction, ProgressReporter, Silent
from curation_assets.core.roles import ROLES
from curation_assets.core.settings import Settings, environment_read
from curation_assets.core.stages import STAGES
from curation_assets.flow.context import PoolContext
from curation_assets.flow.freshness import is_up_to_date, materialise_table
from curation_assets.flow.graph import tables_of
from curation_assets.flow.image_tables import materialise_with_images
from curation_assets.flow.ray_workers import RayExecutor, TaskLostError
from curation_assets.flow.table import Compute, OfImages, Table, Tables, Together
from curation_assets.stores.costs import cpu_seconds, note_lent_cpu
from curation_assets.stores.shard_store import Materialised

Outcome = Materialised | Exception
Result = TypeVar("Result")

logger = logging.getLogger(__name__)

ROWS_AT_ONCE = 400_000  # of shards that are computed together: some 100 MB
SHARDS_PER_ROUND = 16  # of a table that waits for servers: what is known of them is forgotten after a round
PROGRESS_SECONDS = 1.0  # between two looks at what the workers have in hand
STOP_SECONDS = 0.2  # until a run that is stopped notices it

_executor: Executor | None = None
_executor_of: Any = None  # the settings that decide it


def materialise_partitions(
    ctx: PoolContext,
    table: Table,
    keys: Sequence[str] | None,
    *,
    tables: Tables,
    advance: Advance = lambda n: None,
) -> Iterator[tuple[str | None, Outcome]]:
    """Bring partitions of one table up to date (`keys`: None for a whole-pool table); yield each with its outcome as
    it finishes, a failure as its exception: one bad shard must not end its neighbours.

    `advance` hears of partitions that are finished, and of parts of those that workers have in hand.

    Tables that run models or read images go to `settings.workers` processes when at least two shards have work to do
    (with devices of their own: one), or to the nodes of a Ray cluster, and so do models that a pool trains: the
    workers have the libraries loaded, this process need not. Everything else happens here.
    """
    partitions: Sequence[str | None] = [None] if keys is None else keys
    if len(partitions) > 1 and STAGES[table.stage].is_derived:
        yield from _in_threads(ctx, table, partitions, tables, ctx.settings.threads, advance)
        return
    if len(partitions) > 1 and table.needs.at_once > 1:
        for start in range(0, len(partitions), SHARDS_PER_ROUND):
            of_round = partitions[start : start + SHARDS_PER_ROUND]
            yield from _in_threads(ctx, table, of_round, tables, table.needs.at_once, advance)
        return
    elsewhere = _of_workers(ctx, table, partitions, tables)
    for partition in partitions:
        if partition not in elsewhere:
            yield partition, _outcome(ctx, table, partition, tables)
            advance(1)
    if elsewhere:
        executor = workers(ctx.settings, _roles_of_run(ctx, table, tables))
        named = ctx.settings, ctx.pool.name, ctx.run_id, ctx.planned, table.name  # a worker gets names, no data
        jobs: dict[Future[Outcome], str | None] = {
            executor.submit(_in_worker, *named, partition): partition for partition in elsewhere
        }
        try:
            for job in _as_completed(executor, jobs, advance):
                yield jobs[job], _outcome_of_call(ctx, table, job)
        finally:
            for job in jobs:  # stopped in a process that lives on: what no worker has begun yet (Ray's tasks go on)
                job.cancel()


def _of_workers(ctx: PoolContext, table: Table, partitions: Sequence[str | None], tables: Tables) -> list[str | None]:
    """Partitions that are not up to date, where workers make them; none where this process does."""
    settings = ctx.settings
    # hashes of images run no model, but take along the tables of the same images that do
    runs_models = bool(table.needs.roles) or table.needs.core or isinstance(table.compute, OfImages)
    trains = table.is_folder and bool(table.needs.roles)
    if not settings.has_workers or not (trains if table.grain == "pool" else runs_models):
        return []
    stale = _stale(ctx, table, partitions, tables)
    # a worker that owns a GPU takes a single shard too, or this process would load the same models beside it
    takes_one = trains or settings.ray is not None or bool(settings.devices)
    return stale if takes_one or len(stale) > 1 else []


def _stale(ctx: PoolContext, table: Table, shards: Sequence[str | None], tables: Tables) -> list[str | None]:
    """Shards that are not up to date, or of which that cannot be said: such as a shard that the source has not, whose
    own turn says so. Raises what all of them raise: then it is of no shard."""
    stale: list[str | None] = []
    errors = []
    for shard in shards:
        try:
            if is_up_to_date(ctx, table, shard, tables=tables):
                continue
        except Exception as error:
            errors.append(error)
        stale.append(shard)
    if errors and len(errors) == len(shards):
        raise errors[0]
    return stale


def _as_completed(executor: Executor, jobs: Collection[Future[Result]], advance: Advance) -> Iterator[Future[Result]]:
    """Jobs as they finish. `advance` hears of them, and of parts of those in hand: a training takes minutes."""
    waiting, shown = set(jobs), 0.0
    while waiting:
        done, waiting = wait(waiting, PROGRESS_SECONDS, FIRST_COMPLETED)
        in_hand = sum(executor.in_hand) if isinstance(executor, Workers) else 0.0
        # a job begun anew, or other jobs of the same workers, do not move it back or past its end
        now = max(shown, min(len(jobs) - len(waiting) + in_hand, len(jobs)))
        advance(now - shown)
        shown = now
        yield from done


def _roles_of_run(ctx: PoolContext, table: Table, tables: Tables) -> list[str]:
    """Roles of the table and of those that follow it in this process; all where models are trained."""
    if table.grain != "shard":
        return sorted(ROLES)
    return roles_of((table, *(tables[name] for name in ctx.planned if name in tables)))


def roles_of(tables: Iterable[Table]) -> list[str]:
    """Roles whose models the tables run, sorted."""
    return sorted({role for table in tables for role in table.needs.roles})


def _outcome_of_call(ctx: PoolContext, table: Table, job: Future[Outcome]) -> Outcome:
    try:
        outcome = job.result()
    except (WorkerEndedError, TaskLostError) as error:  # a shard may be what kills its worker: the others go on
        return error
    if ctx.settings.ray is not None:  # a node has a working copy of its own of a home in a bucket
        ctx.store.refresh(table.name)
    return outcome


def _in_threads(
    ctx: PoolContext, table: Table, shards: Sequence[str | None], tables: Tables, threads: int, advance: Advance
) -> Iterator[tuple[str | None, Outcome]]:
    """SQL and polars on small tables: milliseconds per shard, most of them outside Python's lock. Or downloads, which
    wait for servers.
    """
    ctx = replace(ctx, is_stopped=threading.Event())
    with ThreadPoolExecutor(threads) as executor:
        try:
            jobs = [executor.submit(_group, ctx, table, group, tables) for group in _groups(ctx, table, shards)]
            waiting = set(jobs)
            while waiting:  # with an end: while polars handles SIGINT, a wait without one does not hear of it
                done, waiting = wait(waiting, STOP_SECONDS, FIRST_COMPLETED)
                for outcome in (outcome for job in done for outcome in job.result()):
                    yield outcome
                    advance(1)
        finally:  # of a run that is stopped, only the shards in hand are finished
            ctx.is_stopped.set()
            executor.shutdown(wait=False, cancel_futures=True)


def _groups(ctx: PoolContext, table: Table, shards: Sequence[str | None]) -> Iterator[list[str | None]]:
    """Shards that are computed together: those of about ROWS_AT_ONCE rows, where a table can do that."""
    group: list[str | None] = []
    rows = 0
    for shard in shards:
        manifest = (
            ctx.store.manifest(table.continues, shard)
            if isinstance(table.compute, Together) and table.continues
            else None
        )
        size = ROWS_AT_ONCE if manifest is None else manifest.row_count
        if group and rows + size > ROWS_AT_ONCE:
            yield group
            group, rows = [], 0
        group.append(shard)
        rows += size
    if group:
        yield group


def _group(
    ctx: PoolContext, table: Table, group: Sequence[str | None], tables: Tables
) -> list[tuple[str | None, Outcome]]:
    """Shards of one thread, until a stop."""
    of_group = table
    if isinstance(table.compute, Together) and len(group) > 1:
        of_group = replace(table, compute=_ahead(table, table.compute, group, tables))
    return [(key, _outcome(ctx, of_group, key, tables)) for key in group if not ctx.is_stopped.is_set()]


def _ahead(table: Table, together: Together, group: Sequence[str | None], tables: Tables) -> Compute:
    """How a group of shards is computed: the first stale one computes all stale ones, at its cost."""
    ahead: dict[str, pl.DataFrame] | None = None

    def compute(ctx: PoolContext, shard: str) -> pl.DataFrame:
        nonlocal ahead
        if ahead is None:
            try:
                stale = [key for key in group if key and not is_up_to_date(ctx, table, key, tables=tables)]
                ahead = together.many(ctx, stale) if len(stale) > 1 else {}
            except Exception:  # any shard's fault: computed one by one, it fails alone, and the others are kept
                logger.warning(
                    "%s: computing %d shards at once failed; computing them one by one", table.name, len(group),
                    exc_info=True,
                )  # fmt: skip
                ahead = {}
        return ahead.pop(shard) if shard in ahead else together.one(ctx, shard)

    return compute


def warm_up(settings: Settings, roles: Collection[str] = tuple(ROLES)) -> None:
    """Begin loading the libraries of `roles` in the background, before the first shard needs them.

    A server process loads them once (some 15 s) and forks the workers, which share its memory; without roles it loads
    no library of models. On systems without fork servers each worker loads its own. A Ray cluster is joined now:
    raises RayUnavailableError where it cannot be.
    """
    if settings.ray is not None:
        workers(settings)
        return
    if settings.workers > 1 and _START_METHOD == "forkserver":
        preload = [f"curation_assets.{stage.package}.tables" for stage in STAGES.values()]
        preload = ["curation_assets.flow.fork_server", *preload, "curation_assets.flow.parsed_recipes"]
        if roles:
            preload.append("curation_assets.evaluation.models.miniature")
            preload += [f"curation_assets.engines.{role}" for role in sorted(roles)]
        multiprocessing.set_forkserver_preload(preload)
        with _thread_environment(settings.threads_of_worker), _without_interrupts():
            forkserver.ensure_running()


_START_METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
_CONTEXT: Any = multiprocessing.get_context(_START_METHOD)


class _Worker(_CONTEXT.Process):  # type: ignore[misc]
    """A process that does not import the caller's script: nothing that workers call is defined there, and a script
    that runs a pool without `if __name__ == "__main__"` would run again in each of them."""

    def start(self) -> None:
        """As every process; meanwhile `__main__` has no path that could be imported."""
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            super().start()
        finally:
            sys.modules["__main__"] = main


class _WorkerContext(type(_CONTEXT)):  # type: ignore[misc]
    Process = _Worker


class WorkerEndedError(RuntimeError):
    """A worker process was killed in the middle of its work, twice."""


class Workers(Executor):
    """Processes that each own a device, have the settings of this one's environment, and take a call at a time.

    One that is killed (the kernel does so when memory runs out) is replaced, and its call made once more: what saves
    its rows goes on from them. Calls of other workers are not touched.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._environment = environment_read()
        #: How much of the call that each worker has in hand is done, in [0, 1]; each writes its own place.
        self.in_hand = _CONTEXT.RawArray("d", settings.workers)
        self._idle: queue.SimpleQueue[tuple[int, ProcessPoolExecutor]] = queue.SimpleQueue()
        for number in range(settings.workers):
            self._idle.put((number, self._started(number)))
        self._calls = ThreadPoolExecutor(settings.workers, thread_name_prefix="worker")  # each waits for a process
        self.is_stopped = False  # a process that ends is not replaced

    def submit(self, function: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Future[Result]:
        """The result of an importable function, of the first worker that is idle.

        The future raises what the function raises, WorkerEndedError where it ended its worker twice.
        """
        return self._calls.submit(self._call, functools.partial(function, *args, **kwargs))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes once they have done what they have in hand, or what waits too."""
        self.is_stopped = True
        self._calls.shutdown(wait=wait, cancel_futures=cancel_futures)
        while not self._idle.empty():
            self._idle.get()[1].shutdown(wait=wait)

    def _started(self, number: int) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            1,
            mp_context=_WorkerContext(),
            initializer=_start_worker,
            initargs=(
                self.settings.threads_of_worker,
                self.settings.device_of_worker(number),
                self._environment,
                self.in_hand,
                number,
            ),
        )

    def _call(self, function: Callable[[], Result]) -> Result:
        number, process = self._idle.get()
        try:
            try:
                return process.submit(function).result()
            except BrokenProcessPool:
                if self.is_stopped:
                    raise
                logger.warning("a worker was killed; its work goes to a new one")
                process = self._started(number)
            try:
                return process.submit(function).result()
            except BrokenProcessPool as error:
                process = self._started(number)
                raise WorkerEndedError(
                    "a worker process was killed twice in the middle of this, as a rule because memory ran out; "
                    "run again with fewer workers (CURATION_WORKERS=1) or smaller batches (batch_size of the profile)"
                ) from error
        finally:
            self.in_hand[number] = 0.0
            self._idle.put((number, process))


def workers(settings: Settings, roles: Collection[str] = tuple(ROLES)) -> Executor:
    """The worker processes of this process, started on first use and kept; they end with it. Or a Ray cluster.

    `roles`: whose libraries they share, unless `warm_up` was there before. Other settings, or another environment of
    theirs (the address of a bucket, say), start new ones.
    """
    global _executor, _executor_of
    executor_of = _decides_workers(settings)
    if _executor is not None and _executor_of == executor_of:
        return _executor
    stop_workers()
    if settings.ray is not None:
        _executor = RayExecutor(settings, runs_models=True)
    else:
        warm_up(settings, roles)
        _executor = Workers(settings)
        multiprocessing.util.Finalize(None, _end_workers_of_child, exitpriority=0)
    _executor_of = executor_of
    return _executor


def _decides_workers(settings: Settings) -> Any:
    return (
        settings.ray,
        settings.workers,
        settings.threads,
        settings.devices,
        tuple(environment_read().items()),
    )


def stop_workers() -> None:
    """End the worker processes, if any, without waiting for queued work."""
    global _executor
    if _executor is not None:
        _executor.shutdown(wait=True, cancel_futures=True)
        _executor = None


def replace_no_worker() -> None:
    """Do not replace killed workers any more: this process is about to end them all."""
    if isinstance(_executor, Workers):
        _executor.is_stopped = True


def _end_workers_of_child() -> None:
    """A run of the UI is a child process: no atexit function runs there, and it would wait for its workers for ever."""
    if multiprocessing.parent_process() is not None:
        replace_no_worker()
        for worker in multiprocessing.active_children():
            worker.kill()


atexit.register(stop_workers)


_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@contextmanager
def _thread_environment(threads: int) -> Iterator[None]:
    """Numeric libraries read these once, when they are loaded."""
    before = {name: os.environ.get(name) for name in _THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, str(threads)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Ctrl+C waits until the end of the block; a process that is started inside begins with SIGINT blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_put_share: Callable[[float], None] | None = None  # in a worker: writes how much of its call is done


def progress_of_call() -> ProgressReporter:
    """Where a call that a worker has in hand reports its progress; elsewhere nothing is shown."""
    return Silent() if _put_share is None else Fraction(_put_share)


def _start_worker(threads: int, device: str | None, environment: Mapping[str, str], in_hand: Any, number: int) -> None:
    global _put_share
    _put_share = functools.partial(in_hand.__setitem__, number)
    for name in environment_read():  # the fork server's, which may have been started for another home
        del os.environ[name]
    os.environ.update(environment)
    if device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = (
            device  # read when CUDA is first used: the fork server has only imported it
        )
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C is for the parent, which then ends us
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    keep_freed_memory()  # an image and its arrays are a megabyte, freed and taken again a dozen times
    from tqdm import tqdm

    # its own is a semaphore of the system, which a worker that is killed leaves behind: Python warns of it at Ctrl+C
    tqdm.set_lock(threading.RLock())
    if "torch" in sys.modules:  # of the fork server
        import torch

        torch.set_num_threads(threads)
    else:  # a worker that computes no model never loads it: 300 MB
        os.environ.update(dict.fromkeys(_THREAD_VARIABLES, str(threads)))


def _end_with_parent() -> None:
    """A run that is killed leaves no worker that goes on with its shard, and holds its models for good."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _in_worker(
    settings: Settings, pool_name: str, run_id: str, planned: frozenset[str], table_name: str, shard: str | None
) -> Outcome:
    ctx = PoolContext.open(settings, pool_name, run_id=run_id, planned=planned, progress=progress_of_call())
    tables = tables_of(ctx)
    return _outcome(ctx, tables[table_name], shard, tables)


def _outcome(ctx: PoolContext, table: Table, shard: str | None, tables: Tables) -> Outcome:
    """What was made, or the exception: a value, which `run_table` reports by the shard's name."""
    try:
        if isinstance(table.compute, OfImages) and shard is not None:
            return materialise_with_images(ctx, table, shard, tables=tables)
        return materialise_table(ctx, table, shard, tables=tables)
    except Exception as error:
        return error


def call_in_workers(
    settings: Settings,
    function: Callable[..., Result],
    calls: Sequence[tuple[Any, ...]],
    advance: Advance = lambda n: None,
) -> Iterator[Result]:
    """Results of an importable function, in the order of `calls`; computed here where there are no workers.

    `advance` hears of calls that are finished, and of parts of those in hand. Raises what the function raises.
    """
    if not settings.has_workers:
        for call in calls:
            yield function(*call)
            advance(1)
        return
    executor = workers(settings)
    jobs = [executor.submit(_metered, function, call) for call in calls]
    for job in _as_completed(executor, jobs, advance):
        job.result()  # what one raises, before others have ended
    for job in jobs:
        result, cpu = job.result()
        note_lent_cpu(cpu)
        yield result


def call_in_parts(
    settings: Settings,
    function: Callable[..., pl.DataFrame],
    pool_name: str,
    rows: pl.DataFrame,
    *further: Any,
    advance: Advance = lambda n: None,
) -> Iterator[pl.DataFrame]:
    """`function(settings, pool_name, part, *further)` of as many consecutive parts of `rows` as there are workers (one
    at least), in order; where and what it raises as `call_in_workers`. `advance` hears of rows.
    """
    size = -(-rows.height // min(settings.workers, max(1, rows.height))) or 1
    starts = range(0, max(1, rows.height), size)
    calls = [(settings, pool_name, rows.slice(start, size), *further) for start in starts]
    yield from call_in_workers(settings, function, calls, lambda n: advance(n * rows.height / len(calls)))


@contextmanager
def beside(settings: Settings, function: Callable[..., object], *call: Any) -> Iterator[None]:
    """Makes a call of an importable function beside the block: in a worker process of this machine that is there
    already, else in a thread. Ends when both have; raises what the function raises, unless the block does.
    """
    if isinstance(_executor, Workers) and _executor_of == _decides_workers(settings):
        job = _executor.submit(_metered, function, call)
        try:
            yield
        finally:
            wait([job])
        note_lent_cpu(job.result()[1])
        return
    with ThreadPoolExecutor(1) as executor:
        in_thread = executor.submit(function, *call)
        yield
    in_thread.result()


def _metered(function: Callable[..., Result], call: tuple[Any, ...]) -> tuple[Result, float]:
    """The result, and the CPU seconds that it took."""
    before = cpu_seconds()
    result = function(*call)
    return result, cpu_seconds() - before
