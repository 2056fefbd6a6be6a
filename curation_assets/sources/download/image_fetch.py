"""An image from a stranger's server: robots.txt, the domain's pace, opt-outs, redirects, and what is worth a retry."""

import contextlib
import http.client
import urllib.error
from collections.abc import Collection

from curation_assets.sources.download.domain_limits import TOO_MANY, DomainLimits, domain_of
from curation_assets.sources.download.guarded_http import Deadline, GuardedHttp, Response
from curation_assets.sources.download.opt_outs import opt_out_of
from curation_assets.sources.download.reasons import NotFetched
from curation_assets.sources.download.robots import RobotsFiles

MAX_REDIRECTS = 10
MAX_REFUSALS = 5  # answers 429 or 503 to one row


class ImageFetcher:
    """Fetches images for the threads of a download.

    A row may take `max_seconds` for all its attempts and redirects together, and as long again for the robots.txt of
    the servers that it leads to; waiting for the turn of its domain does not count. `robots`: None reads no robots.txt.
    """

    def __init__(
        self,
        http: GuardedHttp,
        robots: RobotsFiles | None,
        limits: DomainLimits,
        *,
        opt_out_words: Collection[str],
        obey_tdm_reservation: bool,
        agents: Collection[str],
        max_bytes: int,
        max_seconds: float,
        idle_seconds: float,
        retries: int,
    ) -> None:
        self._http = http
        self._robots = robots
        self._limits = limits
        self._opt_out_words = opt_out_words
        self._obey_tdm_reservation = obey_tdm_reservation
        self._agents = agents
        self._max_bytes = max_bytes
        self._max_seconds = max_seconds
        self._idle_seconds = idle_seconds
        self._retries = retries

    def fetch(self, url: str) -> bytes:
        """The image's bytes.

        Raises UrlRefused, NotFetched, ImageRejected, urllib.error.HTTPError, OSError (TimeoutError among them),
        http.client.HTTPException; `reason_of` their texts is the row's reason.
        """
        return self._attempts(url, _Row(self._max_seconds, self._idle_seconds))

    def check(self, url: str) -> None:
        """Look whether the image may be used: robots.txt and the headers of its answer; the body is not read.

        Raises what `fetch` raises.
        """
        self._attempts(url, _Row(self._max_seconds, self._idle_seconds, is_read=False))

    def _attempts(self, url: str, row: "_Row") -> bytes:
        for attempts_left in range(self._retries, -1, -1):
            try:
                return self._follow(url, row)
            except (OSError, http.client.HTTPException) as error:
                is_final = isinstance(error, urllib.error.HTTPError) and (error.code < 500 or error.code in TOO_MANY)
                if is_final or not attempts_left or row.deadline.left <= 0:
                    raise
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _follow(self, url: str, row: "_Row") -> bytes:
        visited: set[str] = set()
        while url not in visited and len(visited) <= MAX_REDIRECTS:
            visited.add(url)
            outcome = self._hop(url, row)
            if isinstance(outcome, bytes):
                return outcome
            url = outcome
        raise NotFetched("download_redirect_loop", f"redirected {len(visited)} times, then to {url[:200]}")

    def _hop(self, url: str, row: "_Row") -> bytes | str:
        """The body, or the URL that a redirect leads to."""
        url = self._http.vet(url)
        if self._http.is_own(url):
            with self._http.get(url, row.deadline) as response:
                return self._body_or_next(response, row)
        if self._robots is not None:
            deadline = Deadline(row.robots_seconds, self._idle_seconds)
            with row.deadline.paused():
                self._robots.check(url, deadline)
            row.robots_seconds = deadline.left
        domain, refusal = domain_of(url), None
        for refusals in range(1, MAX_REFUSALS + 1):
            with contextlib.ExitStack() as held:
                try:
                    with row.deadline.paused():
                        sent_at = held.enter_context(self._limits.turn(domain))
                except NotFetched as given_up:
                    raise refusal or given_up from None
                response = held.enter_context(self._http.get(url, row.deadline))
                if response.status not in TOO_MANY:
                    self._limits.served(domain, sent_at)
                    return self._body_or_next(response, row)
                refusal = _http_error(response)
                retry_after = response.headers.get("Retry-After")
            if response.status == 429 or retry_after is not None:
                self._limits.refused(domain, sent_at, response.status, retry_after)
            elif refusals < MAX_REFUSALS:  # perhaps this URL alone: its neighbours need not wait
                with row.deadline.paused():
                    self._limits.back_off(domain, refusals, response.status)
        assert refusal is not None, "MAX_REFUSALS is at least 1"
        raise refusal

    def _body_or_next(self, response: Response, row: "_Row") -> bytes | str:
        if response.next_url is not None:
            return response.next_url
        if not 200 <= response.status < 300:
            raise _http_error(response)
        opt_out = opt_out_of(
            response.headers,
            words=self._opt_out_words,
            agents=self._agents,
            obey_tdm_reservation=self._obey_tdm_reservation,
        )
        if opt_out is not None:
            raise NotFetched("opt_out", f"forbidden by {opt_out}")
        return response.read(self._max_bytes) if row.is_read else b""


class _Row:
    """What a row has left of its time, and whether its image is read."""

    def __init__(self, max_seconds: float, idle_seconds: float, *, is_read: bool = True) -> None:
        self.is_read = is_read
        self.deadline = Deadline(max_seconds, idle_seconds)
        self.robots_seconds = max_seconds


def _http_error(response: Response) -> urllib.error.HTTPError:
    return urllib.error.HTTPError(response.url, response.status, response.phrase[:100], response.headers, None)
