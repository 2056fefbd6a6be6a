"""Bars of several threads on one terminal; lines in a log: at once, calm, and while nothing moves."""

import io
import re
import threading
import time
from contextlib import ExitStack
from itertools import pairwise

import pytest
from rich.console import Console

from curation_assets.core.progress import MAX_PAUSE_SECONDS, Bars, Fraction, LogLines, reporter_for, span


class Clock:
    """Seconds, moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_work_is_announced_at_once_and_estimated_before_its_first_piece_has_ended() -> None:
    clock, lines = Clock(), list[str]()
    with LogLines(lines.append, clock=clock).task("trainings", 80) as advance:
        assert lines == ["trainings: 0/80"]
        clock.now += 20
        advance(0.5)
        assert lines[1:] == ["trainings: 0/80 in 20 s, about 53 min left"]
        clock.now += 14
        advance(0.5)
        assert len(lines) == 2
        clock.now += 6
        advance(1)
        assert lines[2:] == ["trainings: 2/80 in 40 s, about 26 min left"]


def test_lines_come_while_no_step_ends() -> None:
    """A model is loaded, or a batch takes minutes: 158 seconds were silent."""
    clock, lines = Clock(), list[str]()
    reporter = LogLines(lines.append, clock=clock)
    with reporter.task("signals/icc, shards", 1), reporter.task("icc photos-000000", 500):
        for _ in range(158):
            clock.now += 1
            reporter.tick()
    assert len(lines) == 11
    assert lines[-1] == "signals/icc, shards: 0/1 in 150 s; icc photos-000000: 0/500 in 150 s".replace("150 s", "2 min")


def test_a_thread_of_its_own_asks_for_lines_while_there_is_work() -> None:
    clock, said = Clock(), threading.Event()
    lines: list[str] = []

    def log(line: str) -> None:
        lines.append(line)
        if len(lines) == 2:
            said.set()

    with LogLines(log, clock=clock, beats=True).task("a model is loaded", 1):
        thread = next(thread for thread in threading.enumerate() if thread.name == "progress")
        clock.now += 20
        assert said.wait(60), "no line came of itself"
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize("step_seconds", [0.001, 0.1, 1, 7, 100])
def test_steps_are_no_flood_and_pauses_have_an_end(step_seconds: float) -> None:
    clock, times = Clock(), list[float]()
    steps = min(20_000, int(4 * 3600 / step_seconds))
    with LogLines(lambda line: times.append(clock.now), clock=clock).task("steps", steps) as advance:
        for _ in range(steps):
            clock.now += step_seconds
            advance(1)
    pauses = [after - before for before, after in pairwise(times)]
    assert len(times) <= 2 + steps * step_seconds / 15
    assert min(pauses, default=15) >= 15 - 1e-6
    assert max(pauses, default=0) <= MAX_PAUSE_SECONDS + step_seconds
    assert len(times) < 330  # of four hours


def test_many_tasks_share_the_lines() -> None:
    clock, lines = Clock(), list[str]()
    reporter = LogLines(lines.append, clock=clock)
    with ExitStack() as stack:
        advances = [stack.enter_context(reporter.task(f"download {shard}", 10)) for shard in range(64)]
        assert lines == ["download 0: 0/10"]
        clock.now += 15
        for advance in advances:
            advance(5)
        assert len(lines) == 2
        assert lines[1].startswith("download 0: 5/10 in 15 s, about 15 s left; download 1: 0/10")
        assert lines[1].endswith("; and 61 more")
    for shard in range(1000):  # one after another, each over at once
        with reporter.task(f"table {shard}", 1) as advance:
            advance(1)
    assert len(lines) == 2


def test_work_of_nothing_says_nothing() -> None:
    lines: list[str] = []
    with LogLines(lines.append).task("nothing", 0):
        assert lines == []


def test_off_a_terminal_lines_come_by_themselves() -> None:
    written = io.StringIO()
    with reporter_for(Console(file=written)).task("shards [a]", 3):
        assert written.getvalue() == "shards [a]: 0/3\n"
        assert any(thread.name == "progress" for thread in threading.enumerate())


def test_a_bar_has_its_label_and_total_before_anything_is_done() -> None:
    written = io.StringIO()
    with Bars(Console(file=written, force_terminal=True, width=100)).task("models [a]", 80) as advance:
        advance(0.5)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written.getvalue())
    assert "models [a]" in plain
    assert "0/80" in plain


def test_a_fraction_is_of_all_tasks_of_a_call() -> None:
    shares: list[float] = []
    reporter = Fraction(shares.append)
    with reporter.task("one", 4) as one, reporter.task("two", 4) as two:
        one(2)
        two(4)
        one(2)
    assert shares == [0.25, 0.75, 1.0]


def test_durations_are_short() -> None:
    assert [span(seconds) for seconds in (0.4, 45, 119, 150, 3600, 9000)] == [
        "0 s",
        "45 s",
        "119 s",
        "2 min",
        "60 min",
        "2.5 h",
    ]


def test_tasks_of_several_threads_are_lines_of_one_display() -> None:
    written = io.StringIO()
    bars = Bars(Console(file=written, force_terminal=True, width=80))
    both_begun = threading.Barrier(2, timeout=60)

    def work(label: str, total: int) -> None:
        with bars.task(label, total) as advance:
            both_begun.wait()
            advance(1)
            bars.note(f"{label} waits")
            until = time.monotonic() + 60
            while not is_drawn(label) and time.monotonic() < until:  # by a timer, ten times a second
                time.sleep(0.02)
            both_begun.wait()

    def is_drawn(label: str) -> bool:
        return any(label in frame and "1/2" in frame for frame in written.getvalue().split("\x1b[2K"))

    threads = [threading.Thread(target=work, args=(label, 2)) for label in ("shard 0", "shard 1")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    text = written.getvalue()
    assert "shard 0 waits" in text
    assert "shard 1 waits" in text
    assert is_drawn("shard 0")
    assert is_drawn("shard 1")
    assert text.endswith("\x1b[2K") or text.endswith("\x1b[?25h")  # nothing of it stays
    with bars.task("later", 1) as advance:
        advance(1)
    assert "later" in written.getvalue()
