"""Runs whose process has ended without a word: reported as failed, and what they hold of Dagster's limits is freed.

A run that is killed stays STARTED in Dagster's storage, with its slot of a concurrency pool and its place among the
runs that may go on at once: whatever needs them would wait for ever.
"""

import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import dagster as dg
import psutil

HOST, PID, PROCESS_START = "curation/host", "curation/pid", "curation/process_start"
UNFINISHED = (dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING)
WATCH_SECONDS = 5.0


def process_tags() -> dict[str, str]:
    """Tags that name this process: host, pid and when it began, since a pid is given again."""
    return {HOST: socket.gethostname(), PID: str(os.getpid()), PROCESS_START: _start_of(os.getpid()) or ""}


def _start_of(pid: int) -> str | None:
    """When a process began, equal for one process only; None where there is none.

    On Linux in ticks since a boot that is named: seconds since 1970 move when the clock is set.
    """
    stat = Path(f"/proc/{pid}/stat")
    if Path("/proc/self/stat").is_file():
        try:
            fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return None if fields[0] in "ZX" else f"{boot}:{fields[19]}"  # state and start time, fields 3 and 22 of proc(5)
    try:
        return f"{psutil.Process(pid).create_time():.0f}"
    except psutil.NoSuchProcess:
        return None


def has_ended(tags: Mapping[str, str]) -> bool | None:
    """Whether the process that tags name has ended; None where that cannot be seen from here (no tags, other host)."""
    if tags.get(HOST) != socket.gethostname() or not tags.get(PID, "").isdigit():
        return None
    return _start_of(int(tags[PID])) != tags.get(PROCESS_START)


def named_process(tags: Mapping[str, str]) -> str:
    """'pid 12 on host', as far as tags name it."""
    return f"pid {tags[PID]} on {tags[HOST]}" if PID in tags and HOST in tags else "an unknown process"


def free_dead_runs(instance: dg.DagsterInstance) -> list[str]:
    """Report runs as failed whose process has ended, and free their slots; a sentence for each."""
    sentences = []
    for run in instance.get_runs(filters=dg.RunsFilter(statuses=list(UNFINISHED))):
        if has_ended(run.tags):
            process = named_process(run.tags)
            instance.report_run_failed(run, f"Its process ({process}) ended without finishing the run.")
            instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
            sentences.append(f"run {run.run_id[:8]} of {process} had ended unfinished: reported as failed, slots freed")
    return sentences


@contextmanager
def watched(instance: dg.DagsterInstance, on_notice: Callable[[str], None]) -> Iterator[None]:
    """While inside, say which run this process waits for, where another one holds a slot that it needs.

    Looks every WATCH_SECONDS, and frees what a run holds that dies meanwhile.
    """
    stop, known = threading.Event(), set[tuple[str, str]]()

    def watch() -> None:
        while not stop.wait(WATCH_SECONDS):
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
            record = instance.get_run_record_by_id(run_id)
            tags = record.dagster_run.tags if record else {}
            began = record.start_time if record else None
            since = f", since {datetime.fromtimestamp(began):%Y-%m-%d %H:%M}" if began else ""
            holder = f"run {run_id[:8]} of {named_process(tags)}{since}"
            waits.append((info.concurrency_key, run_id, f"waits for {holder}: it holds {info.concurrency_key!r}"))
    return waits
