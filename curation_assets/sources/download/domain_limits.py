"""How fast one registered domain is asked, and how long it is left alone after 429 and 503."""

import contextlib
import email.utils
import math
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from curation_assets.sources.download.reasons import NotFetched

TOO_MANY = frozenset({429, 503})
FIRST_BACK_OFF_SECONDS = 1.0  # doubled with every further refusal
SLOWEST_SECONDS = 10.0  # between two requests, however often a domain refuses
EASING = 0.95  # of the time between two requests, after each that was served
NOTE_SECONDS = 5.0  # waits from here on are said
NOTE_EVERY_SECONDS = 15.0


def retry_after_seconds(value: str | None, now: float) -> float | None:
    """Seconds that a Retry-After header demands: a number, or a date compared with `now` (Unix time). None: neither."""
    text = (value or "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:12]) if len(text) <= 12 else math.inf
    try:
        return max(email.utils.parsedate_to_datetime(text).timestamp() - now, 0.0)
    except (ValueError, OverflowError, OSError):
        return None


@dataclass
class _Domain:
    """Times are those of the monotonic clock."""

    interval: float  # seconds between two requests
    running: int = 0
    next_at: float = -math.inf
    blocked_at: float = -math.inf
    blocked_until: float = -math.inf
    blocked_since: float | None = None  # the first refusal that no served request followed
    refusals: int = 0  # since then
    cause: str = ""
    noted_at: float = -math.inf


class DomainLimits:
    """Turns of requests, domain by domain; threads share it.

    Our own pace (`per_second`, `at_once`) makes requests wait, never fail. A domain that refuses (429, or 503 with
    Retry-After) is left alone for the time that it names, or 1, 2, 4, … s with jitter, and is asked at half the pace
    afterwards; when that adds up to more than `max_wait_seconds` its requests fail. `note` takes lines for people.
    """

    def __init__(
        self,
        *,
        per_second: float | None,
        at_once: int,
        max_wait_seconds: float,
        note: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self._interval = 0.0 if per_second is None else 1 / per_second
        self._at_once = at_once
        self._max_wait_seconds = max_wait_seconds
        self._note = note or (lambda line: None)
        self._clock = clock
        self._rng = rng or random.Random()
        self._domains: dict[str, _Domain] = {}
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def turn(self, domain: str) -> Iterator[float]:
        """Wait until the domain may be asked, and hold one of its places. Yields the time of the request.

        Raises NotFetched (download_rate_limited).
        """
        state, sent_at = self._take(domain)
        try:
            yield sent_at
        finally:
            with self._changed:
                state.running -= 1
                self._changed.notify_all()

    def _take(self, domain: str) -> tuple[_Domain, float]:
        while True:
            with self._changed:
                state = self._domains.setdefault(domain, _Domain(self._interval))
                now = self._clock()
                if self._has_given_up(state, now):
                    raise NotFetched(
                        "download_rate_limited",
                        f"{domain} wants no request for another {state.blocked_until - now:.0f} s ({state.cause}); "
                        f"at most {self._max_wait_seconds:g} s are waited (max_wait_seconds)",
                    )
                wait = max(state.next_at, state.blocked_until) - now
                if wait <= 0 and state.running < self._at_once:
                    state.running += 1
                    state.next_at = now + state.interval
                    return state, now
                line = self._due_note(domain, state, wait, now)
                if line is None:
                    # woken by whoever ends; the limit is for a clock that jumps
                    self._changed.wait(min(wait, 1.0) if wait > 0 else 1.0)
            if line is not None:
                self._note(line)

    def _has_given_up(self, state: _Domain, now: float) -> bool:
        """Left alone now, and since its first refusal for longer than we wait."""
        if state.blocked_since is None or now >= state.blocked_until:
            return False
        return state.blocked_until - state.blocked_since > self._max_wait_seconds

    def _due_note(self, domain: str, state: _Domain, wait: float, now: float) -> str | None:
        if wait < NOTE_SECONDS or now - state.noted_at < NOTE_EVERY_SECONDS:
            return None
        state.noted_at = now
        cause = state.cause if state.blocked_until > state.next_at else f"one request every {state.interval:.3g} s"
        return f"waits {wait:.0f} s for {domain} ({cause})"

    def served(self, domain: str, sent_at: float) -> None:
        """The domain answered the request of that time: slowly back to the full pace."""
        with self._changed:
            state = self._domains[domain]
            state.interval = max(state.interval * EASING, self._interval)
            if sent_at > state.blocked_at:
                state.blocked_since, state.refusals = None, 0

    def refused(self, domain: str, sent_at: float, status: int, retry_after: str | None) -> None:
        """The domain answered the request of that time with 429, or 503 and Retry-After."""
        with self._changed:
            state, now = self._domains[domain], self._clock()
            demanded = retry_after_seconds(retry_after, time.time())
            if sent_at <= state.blocked_at:  # one of several that were under way when it refused the first
                if demanded is not None:
                    state.blocked_until = max(state.blocked_until, now + demanded)
                return
            state.refusals += 1
            state.blocked_at = now
            state.blocked_since = now if state.blocked_since is None else state.blocked_since
            state.blocked_until = now + (demanded or self.back_off_seconds(state.refusals))
            state.interval = min(max(2 * state.interval, 0.1), max(SLOWEST_SECONDS, self._interval))
            state.cause = "Retry-After" if demanded else f"back-off after HTTP {status}"
            state.noted_at = now
            line = f"waits {state.blocked_until - now:.0f} s for {domain} ({state.cause})"
            if self._has_given_up(state, now):
                line = (
                    f"{domain} wants no request for {state.blocked_until - now:.0f} s ({state.cause}): its rows fail, "
                    f"for at most {self._max_wait_seconds:g} s are waited (max_wait_seconds)"
                )
        self._note(line)

    def back_off(self, domain: str, refusals: int, status: int) -> None:
        """Sleep after the n-th refusal of one URL."""
        seconds = self.back_off_seconds(refusals)
        if seconds >= NOTE_SECONDS:
            self._note(f"waits {seconds:.0f} s for {domain} (back-off after HTTP {status})")
        time.sleep(seconds)

    def back_off_seconds(self, refusals: int) -> float:
        """1, 2, 4, … s times a random number in [0.5, 1]."""
        return FIRST_BACK_OFF_SECONDS * 2.0 ** min(refusals - 1, 20) * self._rng.uniform(0.5, 1.0)
