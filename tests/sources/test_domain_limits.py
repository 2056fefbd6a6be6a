"""The pace of requests to one domain, and what becomes of it after 429 and 503."""

import math
import random
import threading
import time
from email.utils import formatdate
from itertools import pairwise

import pytest

from curation_assets.sources.download.domain_limits import DomainLimits, retry_after_seconds
from curation_assets.sources.download.reasons import NotFetched


class Clock:
    """A clock that a test moves."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def limits_at(clock: Clock, **changed: object) -> tuple[DomainLimits, list[str]]:
    lines: list[str] = []
    settings: dict = {"per_second": None, "at_once": 2, "max_wait_seconds": 60.0} | changed
    return DomainLimits(**settings, note=lines.append, clock=clock, rng=random.Random(1)), lines


def ask(limits: DomainLimits, domain: str = "a.example") -> float:
    with limits.turn(domain) as sent_at:
        return sent_at


def test_retry_after_is_a_number_or_a_date() -> None:
    now = 1_800_000_000.0
    assert retry_after_seconds("120", now) == 120
    assert retry_after_seconds(formatdate(now + 30, usegmt=True), now) == 30
    assert retry_after_seconds(formatdate(now - 30, usegmt=True), now) == 0
    assert retry_after_seconds("9" * 5000, now) == math.inf
    for value in (None, "", "soon", "-3", "1.5", "٣", "Fri, 99 Foo 2020"):
        assert retry_after_seconds(value, now) is None


def test_requests_of_one_domain_keep_their_distance() -> None:
    limits, _ = limits_at(Clock(), per_second=None)
    assert [ask(limits) for _ in range(3)] == [1000.0] * 3
    paced = DomainLimits(per_second=50, at_once=9, max_wait_seconds=1)
    times = [ask(paced) for _ in range(4)]
    assert all(later - earlier >= 0.02 for earlier, later in pairwise(times))


def test_so_many_run_side_by_side_and_other_domains_do_not_wait() -> None:
    limits, _ = limits_at(Clock())
    entered: list[float] = []
    with limits.turn("a.example"), limits.turn("a.example"):
        third = threading.Thread(target=lambda: entered.append(ask(limits)), daemon=True)
        third.start()
        assert ask(limits, "b.example") == 1000
        assert not entered
    third.join(60)
    assert entered == [1000.0]


def test_a_refusal_blocks_the_domain_until_retry_after() -> None:
    clock = Clock()
    limits, lines = limits_at(clock)
    with limits.turn("a.example") as early:
        limits.refused("a.example", ask(limits), 429, "20")
        limits.refused("a.example", early, 429, "30")  # was under way: only the longer wait counts
    assert lines == ["waits 20 s for a.example (Retry-After)"]
    asked: list[float] = []
    waiting = threading.Thread(target=lambda: asked.append(ask(limits)), daemon=True)
    waiting.start()
    assert ask(limits, "b.example") == 1000
    clock.now = 1029.0
    waiting.join(0.1)
    assert not asked
    clock.now = 1030.5
    waiting.join(60)
    assert asked == [1030.5]


def test_back_off_doubles_with_jitter_and_ends() -> None:
    clock = Clock()
    limits, lines = limits_at(clock)
    assert all(2 ** (n - 1) / 2 <= limits.back_off_seconds(n) <= 2 ** (n - 1) for n in range(1, 9))
    limits.refused("a.example", ask(limits), 429, None)
    for _ in range(5):
        clock.now += 40.0
        if clock.now - 1000 > 60:
            break
        limits.refused("a.example", ask(limits), 429, "0")  # no time at all is no answer: back-off
    assert all(line.endswith("s for a.example (back-off after HTTP 429)") for line in lines)
    limits.refused("a.example", ask(limits), 429, None)  # refused since 1000: more than a minute
    assert "its rows fail" in lines[-1]
    with pytest.raises(NotFetched, match="download_rate_limited"):
        ask(limits)
    assert ask(limits, "b.example") == clock.now
    clock.now += 40.0  # the time that it demanded is over: asked once more
    limits.served("a.example", ask(limits))
    clock.now += 10.0
    limits.refused("a.example", ask(limits), 429, "5")
    assert lines[-1] == "waits 5 s for a.example (Retry-After)"


def test_more_than_we_wait_fails_at_once() -> None:
    limits, lines = limits_at(Clock())
    limits.refused("a.example", ask(limits), 503, "3600")
    begun = time.monotonic()
    for _ in range(1000):
        with pytest.raises(NotFetched, match=r"a\.example wants no request for another 3600 s \(Retry-After\)"):
            ask(limits)
    assert time.monotonic() - begun < 60
    assert len(lines) == 1


def test_long_waits_for_our_own_pace_are_said() -> None:
    clock = Clock()
    limits, lines = limits_at(clock, per_second=0.01)
    ask(limits)
    waiting = threading.Thread(target=lambda: ask(limits), daemon=True)
    waiting.start()
    while not lines:
        assert waiting.is_alive()
        time.sleep(0.01)
    assert lines == ["waits 100 s for a.example (one request every 100 s)"]
    clock.now += 101
    waiting.join(60)
    assert not waiting.is_alive()
