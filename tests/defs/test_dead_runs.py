"""Runs that are killed: they are reported as failed, and what they hold is freed."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster import EventLogEntry
from dagster._core.events import DagsterEvent, EngineEventData
from dagster._core.execution.plan.instance_concurrency_context import InstanceConcurrencyContext
from dagster._core.storage.event_log import SqlEventLogStorage

from curation_assets.defs.dead_runs import (
    HOST,
    PID,
    PROCESS_START,
    UNFINISHED,
    assign_free_slots,
    free_dead_runs,
    has_ended,
    process_tags,
)
from curation_assets.defs.launch import POOL, prepare_instance, run_pool
from curation_assets.defs.steps import OBSERVER, observer_resource
from curation_assets.foreign.dagster_runs import WAIT_SECONDS, sleep_while_waiting
from curation_assets.stores.waiting import PoolHeldError
from tests.support.command import curate
from tests.support.lineage_pools import webdataset_pool
from tests.support.paths import REPOSITORY

RAW = ["raw/registered_shards", "raw/downloads", "raw/samples"]
#: A run whose download of the first shard never comes back.
STUCK = """
import sys, time
from pathlib import Path
from curation_assets.core.settings import load_settings
from curation_assets.defs.launch import run_pool
from curation_assets.flow import run_table

def stuck(*args, **settings):
    Path(sys.argv[2]).touch()
    time.sleep(600)

run_table.materialise_partitions = stuck
run_pool(load_settings(sys.argv[1], "embedded"), "photos", tables=["raw/downloads"])
"""


def stuck_run(home: Path) -> subprocess.Popen[bytes]:
    """A process inside raw/downloads, with its slot."""
    inside = home / "inside"
    child = subprocess.Popen([sys.executable, "-c", STUCK, str(home), str(inside)], cwd=REPOSITORY)
    while not inside.exists():
        assert child.poll() is None, "the run ended before it was inside"
        time.sleep(0.1)
    inside.unlink()
    return child


@pytest.mark.slow
def test_a_run_killed_inside_a_download_holds_nothing_up(tmp_path: Path) -> None:
    settings = webdataset_pool(tmp_path)
    run_pool(settings, "photos", tables=RAW[:1])
    child = stuck_run(tmp_path)
    instance = prepare_instance(settings)
    assert instance.event_log_storage.get_concurrency_info("network").claimed_slots
    child.kill()
    child.wait()
    assert instance.get_runs(filters=dg.RunsFilter(statuses=[*UNFINISHED])), "Dagster takes it for alive"
    notices: list[str] = []
    reports = run_pool(settings, "photos", tables=RAW, on_notice=notices.append)
    assert {report.table for report in reports} == set(RAW)
    assert [notice for notice in notices if f"pid {child.pid}" in notice and "had ended" in notice]
    assert not instance.get_runs(filters=dg.RunsFilter(statuses=[*UNFINISHED]))
    assert not instance.event_log_storage.get_concurrency_info("network").claimed_slots


def test_a_run_of_this_process_that_left_no_end_holds_nothing_up(tmp_path: Path) -> None:
    """As after a full disk in a notebook: the record of the end could not be written."""
    settings = webdataset_pool(tmp_path)
    run_pool(settings, "photos", tables=RAW[:1])
    instance = prepare_instance(settings)
    left = instance.create_run_for_job(
        dg.Definitions(jobs=[dg.job(name="left")(lambda: None)]).resolve_job_def("left"),
        status=dg.DagsterRunStatus.STARTED,
        tags={**process_tags(), POOL: "photos"},
    )
    notices: list[str] = []
    run_pool(settings, "photos", tables=RAW, on_notice=notices.append)
    assert [notice for notice in notices if notice.startswith(f"run {left.run_id[:8]} of this process")]
    assert instance.get_run_by_id(left.run_id).status == dg.DagsterRunStatus.FAILURE  # type: ignore[union-attr]


@pytest.mark.infra
def test_a_run_says_what_it_waits_for_and_goes_on_when_that_dies(tmp_path: Path) -> None:
    settings = webdataset_pool(tmp_path)
    webdataset_pool(tmp_path, name="others")
    run_pool(settings, "photos", tables=RAW[:1])
    child = stuck_run(tmp_path)
    notices: list[str] = []

    def on_notice(sentence: str) -> None:
        notices.append(sentence)
        if "waits for" in sentence:
            os.kill(child.pid, signal.SIGKILL)
            child.wait()

    run_pool(settings, "others", tables=RAW, on_notice=on_notice)
    assert f"pid {child.pid}" in notices[0]
    assert "'network'" in notices[0]
    assert "had ended" in notices[1]


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_slot_that_is_freed_while_a_run_joins_those_that_wait_is_assigned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dagster looks for a free slot and joins the queue in two transactions: what is freed in between is nobody's."""
    settings = webdataset_pool(tmp_path)
    run_pool(settings, "photos", tables=RAW[:1])
    storage = prepare_instance(settings).event_log_storage
    assert isinstance(storage, SqlEventLogStorage)
    storage.set_concurrency_slots("network", 1)
    storage.claim_concurrency_slot("network", "another run", "its step")
    add = SqlEventLogStorage.add_pending_step

    def add_late(*args: Any, **settings: Any) -> None:
        monkeypatch.setattr(SqlEventLogStorage, "add_pending_step", add)
        storage.free_concurrency_slot_for_step("another run", "its step")
        add(*args, **settings)

    monkeypatch.setattr(SqlEventLogStorage, "add_pending_step", add_late)
    reports = run_pool(settings, "photos", tables=RAW)
    assert {report.table for report in reports} == set(RAW)
    info = storage.get_concurrency_info("network")
    assert (info.claimed_slots, info.pending_steps) == ([], [])


def test_a_slot_is_not_assigned_twice(tmp_path: Path) -> None:
    instance = prepare_instance(webdataset_pool(tmp_path))
    storage = instance.event_log_storage
    assert isinstance(storage, SqlEventLogStorage)
    storage.set_concurrency_slots("network", 1)
    assert storage.claim_concurrency_slot("network", "one", "step").is_claimed
    assert not storage.claim_concurrency_slot("network", "two", "step").is_claimed
    assign_free_slots(instance)
    assert storage.get_concurrency_info("network").assigned_run_ids == {"one"}
    assert not storage.claim_concurrency_slot("network", "two", "step").is_claimed


def test_a_run_that_waits_sleeps(tmp_path: Path) -> None:
    instance = prepare_instance(webdataset_pool(tmp_path))
    instance.event_log_storage.set_concurrency_slots("network", 1)
    instance.event_log_storage.claim_concurrency_slot("network", "another run", "its step")
    run = instance.create_run_for_job(dg.Definitions(jobs=[dg.job(name="it")(lambda: None)]).resolve_job_def("it"))
    sleep_while_waiting()
    with InstanceConcurrencyContext(instance, run) as waiting:
        assert not waiting.claim("network", "step")
        assert waiting.has_pending_claims()
        assert 0 < waiting.interval_to_next_pending_claim_check() <= WAIT_SECONDS


@pytest.mark.infra
def test_two_commands_of_one_pool_take_turns(tmp_path: Path) -> None:
    settings = webdataset_pool(tmp_path)
    run_pool(settings, "photos", tables=RAW[:1])
    child = stuck_run(tmp_path)
    held = rf"`run of photos` \(pid {child.pid} on .*, since 20.* holds pool 'photos'"
    with pytest.raises(PoolHeldError, match=held):
        run_pool(settings, "photos", tables=RAW, wait=False)
    refused = curate("run", "photos", "--no-wait", "--home", tmp_path, "--table", RAW[1])
    assert refused.exit_code == 1
    assert re.search(held, refused.stderr)
    notices: list[str] = []

    def on_notice(sentence: str) -> None:
        notices.append(sentence)
        if "waits for" in sentence:
            os.kill(child.pid, signal.SIGKILL)
            child.wait()

    run_pool(settings, "photos", tables=RAW, on_notice=on_notice)
    assert "`run of photos`" in notices[0]
    assert notices[1] == "goes on: pool 'photos' is free"
    assert "had ended" in notices[2]
    assert len(notices) == 3


def launched_run(instance: dg.DagsterInstance, *, ago: float, pid: int | None) -> dg.DagsterRun:
    """A run as the UI launches it, so many seconds ago, before any code of ours is loaded."""
    job = dg.GraphDefinition(name="nothing").to_job()
    run = instance.create_run_for_job(job, status=dg.DagsterRunStatus.NOT_STARTED)
    for kind, data in (
        (dg.DagsterEventType.PIPELINE_STARTING, None),
        *([] if pid is None else [(dg.DagsterEventType.ENGINE_EVENT, EngineEventData.in_process(pid))]),
        (dg.DagsterEventType.PIPELINE_START, None),
    ):
        event = DagsterEvent(event_type_value=kind.value, job_name="nothing", event_specific_data=data)
        entry = EventLogEntry(
            error_info=None, level="debug", user_message="", run_id=run.run_id, timestamp=time.time() - ago,
            job_name="nothing", dagster_event=event,
        )  # fmt: skip
        instance.handle_new_event(entry)
    return run


def test_runs_that_died_before_they_could_name_their_process_are_reported(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        cases = {
            "dead": launched_run(instance, ago=1000, pid=ended.pid),
            "never begun": launched_run(instance, ago=1000, pid=None),
            "its number was given again": launched_run(instance, ago=100_000_000, pid=os.getpid()),
        }
        living = [
            launched_run(instance, ago=0, pid=os.getpid()),
            launched_run(instance, ago=0, pid=None),  # may still be loading
        ]
        assert len(free_dead_runs(instance)) == len(cases)
        states = {name: instance.get_run_by_id(run.run_id) for name, run in cases.items()}
        assert {name: run and run.status for name, run in states.items()} == dict.fromkeys(
            cases, dg.DagsterRunStatus.FAILURE
        )
        for run in living:
            record = instance.get_run_by_id(run.run_id)
            assert record is not None
            assert record.status == dg.DagsterRunStatus.STARTED


def test_a_run_of_the_ui_names_its_process_before_its_steps_wait(tmp_path: Path) -> None:
    seen: list[dict[str, str]] = []

    @dg.asset(required_resource_keys={OBSERVER})
    def first(context: dg.AssetExecutionContext) -> None:
        run = context.instance.get_run_by_id(context.run.run_id)
        assert run is not None
        seen.append(dict(run.tags))

    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        dg.materialize([first], instance=instance, resources=observer_resource())
    assert seen[0][PID] == str(os.getpid())
    assert has_ended(seen[0]) is False


def test_living_and_unknown_processes_are_left_alone(tmp_path: Path) -> None:
    assert has_ended(process_tags()) is False
    assert has_ended({}) is None
    assert has_ended({**process_tags(), HOST: "another"}) is None
    assert has_ended({**process_tags(), PROCESS_START: "another process of the same pid"}) is True
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert has_ended({**process_tags(), PID: str(ended.pid)}) is True
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        for tags in ({}, process_tags(), {**process_tags(), HOST: "another"}):
            instance.create_run_for_job(
                dg.GraphDefinition(name="nothing").to_job(), tags=tags, status=dg.DagsterRunStatus.STARTED
            )
        assert free_dead_runs(instance) == []
        assert len(instance.get_runs(filters=dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED]))) == 3


@pytest.mark.parametrize("status", UNFINISHED)
def test_a_dead_run_is_reported_in_every_state(tmp_path: Path, status: dg.DagsterRunStatus) -> None:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        tags = {**process_tags(), PROCESS_START: "long ago"}
        run = instance.create_run_for_job(dg.GraphDefinition(name="nothing").to_job(), tags=tags, status=status)
        assert len(free_dead_runs(instance)) == 1
        record = instance.get_run_by_id(run.run_id)
        assert record is not None
        assert record.status == dg.DagsterRunStatus.FAILURE
        assert free_dead_runs(instance) == []
