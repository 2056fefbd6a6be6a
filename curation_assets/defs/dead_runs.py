"""Runs whose process has ended without a word: reported as failed, and what they hold of Dagster's limits is freed.

A run that is killed stays STARTED in Dagster's storage, with its slot of a concurrency pool and its place among the
runs that may go on at once: whatever needs them would wait for ever.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime

import dagster as dg
import psutil

from curation_assets.stores.processes import ProcessName

logger = logging.getLogger(__name__)

#: Dagster's UI shows no chips of tags that begin so.
HIDDEN = ".dagster/curation_"
HOST, PID, PROCESS_START = f"{HIDDEN}host", f"{HIDDEN}pid", f"{HIDDEN}process_start"
KILLED = "curation/killed"  # tag of a run whose process ended before it did
UNFINISHED = (dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING)
WATCH_SECONDS = 5.0
CLOCK_SLACK_SECONDS = 60.0  # between the start of a process and of its run


def process_tags() -> dict[str, str]:
    """Tags that name this process."""
    own = ProcessName.own()
    return {HOST: own.host, PID: str(own.pid), PROCESS_START: own.start}


def tag_run(instance: dg.DagsterInstance, run: dg.DagsterRun) -> None:
    """Name this process in the tags of its run: those that the UI and the daemon launch come without."""
    if PID not in run.tags:
        instance.add_run_tags(run.run_id, process_tags())


def has_ended(tags: Mapping[str, str]) -> bool | None:
    """Whether the process that tags name has ended; None where that cannot be seen from here (no tags, other host)."""
    if HOST not in tags or not tags.get(PID, "").isdigit():
        return None
    return ProcessName(tags[HOST], int(tags[PID]), tags.get(PROCESS_START, "")).has_ended()


def named_process(tags: Mapping[str, str]) -> str:
    """'pid 12 on host', as far as tags name it."""
    return f"pid {tags[PID]} on {tags[HOST]}" if PID in tags and HOST in tags else "an unknown process"


def free_dead_runs(instance: dg.DagsterInstance) -> list[str]:
    """Report runs as failed whose process has ended, and free their slots; a sentence for each. What waits for a slot
    that is free gets it.
    """
    sentences = []
    for run, process in dead_runs(instance):
        instance.add_run_tags(run.run_id, {KILLED: process})
        sentences.append(_freed(instance, run, process, f"Its process ({process}) ended without finishing the run."))
    assign_free_slots(instance)
    return sentences


def assign_free_slots(instance: dg.DagsterInstance) -> None:
    """Assign slots that are free to the steps that wait for them.

    Dagster assigns one when a step frees it. A step looks for a free slot and then, in another transaction, joins
    those that wait: where the slot is freed in between, nobody assigns it, and the step would wait for ever.
    """
    storage = instance.event_log_storage
    assign = getattr(storage, "assign_pending_steps", None)
    if assign is None:  # not in a database
        return
    for key, info in storage.get_concurrency_infos(sorted(storage.get_concurrency_keys())).items():
        free = info.slot_count - info.assigned_step_count  # a step that has its slot counts as assigned to the end
        if info.pending_step_count and free > 0:
            assign([key] * free)


def free_own_runs(instance: dg.DagsterInstance, tags: Mapping[str, str]) -> list[str]:
    """The same of runs of this process with these tags: for who knows that it runs none, as at the start of one.

    A disk that is full may leave a run unfinished although its process goes on, such as a notebook.
    """
    sentences = []
    filters = dg.RunsFilter(tags={**process_tags(), **tags}, statuses=list(UNFINISHED))
    for run in instance.get_runs(filters=filters):
        sentences.append(_freed(instance, run, "this process", "It ended without a record of it; its process goes on."))
    return sentences


def _freed(instance: dg.DagsterInstance, run: dg.DagsterRun, process: str, why: str) -> str:
    instance.report_run_failed(run, why)
    instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
    return f"run {run.run_id[:8]} of {process} had ended unfinished: reported as failed, slots freed"


def dead_runs(instance: dg.DagsterInstance) -> list[tuple[dg.DagsterRun, str]]:
    """Unfinished runs whose process has ended, each with that process in words."""
    dead = []
    for run in instance.get_runs(filters=dg.RunsFilter(statuses=list(UNFINISHED))):
        process = named_process(run.tags) if has_ended(run.tags) else _ended_without_tags(instance, run)
        if process is not None:
            dead.append((run, process))
    return dead


def slots(instance: dg.DagsterInstance) -> list[str]:
    """Who holds a slot of a concurrency pool, a sentence each."""
    storage = instance.event_log_storage
    held = []
    for info in storage.get_concurrency_infos(sorted(storage.get_concurrency_keys())).values():
        held += [
            f"{_holder(instance, run_id)} holds {info.concurrency_key!r}" for run_id in sorted(info.active_run_ids)
        ]
    return held


def _ended_without_tags(instance: dg.DagsterInstance, run: dg.DagsterRun) -> str | None:
    """The process of a run that ended before it came to `tag_run`; None while it may still come there.

    A run comes there as soon as its code is loaded, before it takes a slot. Dagster gives that as long as its
    `start_timeout_seconds`, and notes the pid of what it started; this goes by both.
    """
    if PID in run.tags:
        return None
    stats = instance.get_run_stats(run.run_id)
    began = stats.start_time or stats.launch_time
    if began is None or time.time() - began < instance.run_monitoring_start_timeout_seconds:
        return None
    events = instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ENGINE_EVENT)
    noted = [event.get_dagster_event().engine_event_data.metadata.get("pid") for event in events]
    pids = [int(str(pid.value)) for pid in noted if pid is not None and str(pid.value).isdigit()]
    if any(_lived_at(pid, began) for pid in pids):
        return None
    return f"pid {pids[-1]}" if pids else "a process that was never started"


def _lived_at(pid: int, began: float) -> bool:
    """Whether a process with this number runs that is not younger than a run."""
    try:
        return psutil.Process(pid).create_time() < began + CLOCK_SLACK_SECONDS
    except psutil.NoSuchProcess:
        return False


@contextmanager
def watched(instance: dg.DagsterInstance, on_notice: Callable[[str], None]) -> Iterator[None]:
    """While inside, say which run this process waits for, where another one holds a slot that it needs.

    Looks every WATCH_SECONDS, and frees what a run holds that dies meanwhile.
    """
    stop, known = threading.Event(), set[tuple[str, str]]()

    def watch() -> None:
        while not stop.wait(WATCH_SECONDS):
            try:
                look()
            except Exception:  # a storage that is locked for a moment: the next look may find it free
                logger.warning("cannot look for runs that have ended; trying again", exc_info=True)

    def look() -> None:
        for sentence in free_dead_runs(instance):
            on_notice(sentence)
        for key, run_id, sentence in _waits(instance):
            if (key, run_id) not in known:
                known.add((key, run_id))
                on_notice(sentence)

    thread = threading.Thread(target=watch, name="dead runs", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _waits(instance: dg.DagsterInstance) -> list[tuple[str, str, str]]:
    """(concurrency pool, run that holds it, sentence) for every slot that a run of this process waits for."""
    mine = {run.run_id for run in instance.get_runs(filters=dg.RunsFilter(tags=process_tags(), statuses=[*UNFINISHED]))}
    waits = []
    storage = instance.event_log_storage
    for info in storage.get_concurrency_infos(sorted(storage.get_concurrency_keys())).values() if mine else ():
        if not mine & info.pending_run_ids:
            continue
        for run_id in sorted(info.active_run_ids - mine):
            sentence = f"waits for {_holder(instance, run_id)}: it holds {info.concurrency_key!r}"
            waits.append((info.concurrency_key, run_id, sentence))
    return waits


def _holder(instance: dg.DagsterInstance, run_id: str) -> str:
    """'run 0123abcd of pid 12 on host, since 2026-11-22 12:30'."""
    record = instance.get_run_record_by_id(run_id)
    tags = record.dagster_run.tags if record else {}
    began = record.start_time if record else None
    since = f", since {datetime.fromtimestamp(began):%Y-%m-%d %H:%M}" if began else ""
    return f"run {run_id[:8]} of {named_process(tags)}{since}"
