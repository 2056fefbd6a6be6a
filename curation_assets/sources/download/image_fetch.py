"""An image from a stranger's server: robots.txt, the domain's pace, opt-outs, redirects, and what is worth a retry."""

import contextlib
import http.client
import urllib.error
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from curation_assets.sources.download.domain_limits import TOO_MANY, DomainLimits
from curation_assets.sources.download.guarded_http import Deadline, GuardedHttp, Response
from curation_assets.sources.download.opt_outs import (
    OptOutName,
    Treatment,
    header_signals,
    standing,
    treatment_of,
)
from curation_assets.sources.download.reasons import NotFetched
from curation_assets.sources.download.robots import KIND as ROBOTS
from curation_assets.sources.download.robots import Rules
from curation_assets.sources.download.site_files import SiteFiles
from curation_assets.sources.download.tdmrep import TdmRules
from curation_assets.stores.image_rights import image_signals
from curation_assets.stores.rights_signals import LETTERS, Signal
from curation_assets.stores.web_addresses import domain_of

MAX_REDIRECTS = 10
MAX_REFUSALS = 5  # answers 429 or 503 to one row


@dataclass
class Found:
    """What a fetch learns besides the bytes, also where it ends without them."""

    signals: list[Signal] = field(default_factory=list)  # that are not ignored
    checked_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    content_type: str | None = None
    fetched_at: datetime | None = None  # when the last byte was there, UTC


@dataclass(eq=False, repr=False)
class ImageFetcher:
    """Fetches images for the threads of a download.

    A row may take `max_seconds` for all its attempts and redirects together, and as long again for robots.txt and
    tdmrep.json of the servers that it leads to; waiting for the turn of its domain does not count. `robots`, `tdm`:
    None reads no such file. `treatments`: what is done about a signal of each name. A row that signals forbid ends with
    the first of them, after all were read; only an image whose path robots.txt disallows is not requested.
    """

    http: GuardedHttp
    robots: SiteFiles[Rules] | None
    tdm: SiteFiles[TdmRules] | None
    limits: DomainLimits
    treatments: Mapping[OptOutName, Treatment]
    opt_out_words: Collection[str]
    agents: Collection[str]
    max_bytes: int
    max_seconds: float
    idle_seconds: float
    retries: int

    def fetch(self, url: str, found: Found | None = None) -> bytes:
        """The image's bytes. `found` receives what else is learnt.

        Raises UrlRefused, NotFetched, ImageRejected, urllib.error.HTTPError, OSError (TimeoutError among them),
        http.client.HTTPException; `reason_of` their texts is the row's reason.
        """
        return self._looked_at(url, _Row(self.max_seconds, self.idle_seconds, Found() if found is None else found))

    def check(self, url: str) -> None:
        """Look whether the image may be used: robots.txt, tdmrep.json, the headers of its answer, and the image itself,
        which is read only where its declarations are not ignored.

        Raises what `fetch` raises.
        """
        is_read = self.treatments["image"] != "ignore"
        self._looked_at(url, _Row(self.max_seconds, self.idle_seconds, Found(), is_read=is_read))

    def _looked_at(self, url: str, row: "_Row") -> bytes:
        try:
            data = self._attempts(url, row)
        except Exception:
            if row.refusal is None:
                raise
        if row.refusal is not None:  # goes before whatever else became of it
            raise row.refusal
        return data

    def _attempts(self, url: str, row: "_Row") -> bytes:
        for attempts_left in range(self.retries, -1, -1):
            row.found.signals.clear()
            try:
                return self._follow(url, row)
            except (OSError, http.client.HTTPException) as error:
                is_final = isinstance(error, urllib.error.HTTPError) and (error.code < 500 or error.code in TOO_MANY)
                if is_final or not attempts_left or row.deadline.left <= 0 or row.refusal is not None:
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
        url = self.http.vet(url)
        if self.http.is_own(url):
            with self.http.get(url, row.deadline) as response:
                return self._body_or_next(response, row, [])
        deadline = Deadline(row.site_seconds, self.idle_seconds)
        with row.deadline.paused():
            of_robots, reserved = self._of_robots_txt(url, deadline), self._of_tdmrep(url, deadline)
        row.site_seconds = deadline.left
        self._take(of_robots, row)
        if self.treatments[ROBOTS] == "refuse" and any(one.kind == ROBOTS for one in of_robots):
            self._take(reserved, row)  # the image itself is not requested
            assert row.refusal is not None, "a Disallow forbids"
            raise row.refusal
        domain, refusal = domain_of(url) or "", None
        for refusals in range(1, MAX_REFUSALS + 1):
            with contextlib.ExitStack() as held:
                try:
                    with row.deadline.paused():
                        sent_at = held.enter_context(self.limits.turn(domain))
                except NotFetched as given_up:
                    raise refusal or given_up from None
                response = held.enter_context(self.http.get(url, row.deadline))
                if response.status not in TOO_MANY:
                    self.limits.served(domain, sent_at)
                    return self._body_or_next(response, row, reserved)
                refusal = _http_error(response)
                retry_after = response.headers.get("Retry-After")
            if response.status == 429 or retry_after is not None:
                self.limits.refused(domain, sent_at, response.status, retry_after)
            elif refusals < MAX_REFUSALS:  # perhaps this URL alone: its neighbours need not wait
                with row.deadline.paused():
                    self.limits.back_off(domain, refusals, response.status)
        assert refusal is not None, "MAX_REFUSALS is at least 1"
        raise refusal

    def _body_or_next(self, response: Response, row: "_Row", reserved: list[Signal]) -> bytes | str:
        """`reserved`: what the server's tdmrep.json says, which counts unless the headers say otherwise."""
        if response.next_url is not None:
            self._take(reserved, row)
            return response.next_url
        if not 200 <= response.status < 300:
            raise _http_error(response)
        row.found.content_type = (response.headers.get("Content-Type") or "")[:LETTERS] or None
        of_headers = header_signals(response.headers, words=self.opt_out_words, agents=self.agents)
        self._take([*of_headers, *reserved], row)
        if not row.is_read:
            return b""
        data = response.read(self.max_bytes)
        if row.refusal is None:
            row.found.fetched_at = datetime.now(UTC)
        if self.treatments["image"] != "ignore":
            self._take(image_signals(data), row)
        return data

    def _of_robots_txt(self, url: str, deadline: Deadline) -> list[Signal]:
        if self.robots is None:
            return []
        try:
            rules, where = self.robots.rules_for(url, deadline)
        except (NotFetched, OSError, http.client.HTTPException):
            if self.treatments[ROBOTS] == "refuse":
                raise
            return []
        return rules.signals(url, where)

    def _of_tdmrep(self, url: str, deadline: Deadline) -> list[Signal]:
        if self.tdm is None:
            return []
        try:
            rules, where = self.tdm.rules_for(url, deadline)
        except (NotFetched, OSError, http.client.HTTPException):
            return []  # the report, § TDM File: a server that gives no file does not take part
        return rules.signals(url, where)

    def _take(self, signals: Iterable[Signal], row: "_Row") -> None:
        """Record what is not ignored; the first that forbids and is refused is the row's refusal."""
        signals = [one for one in signals if treatment_of(one, self.treatments) != "ignore"]
        row.found.signals += signals
        for one in standing(signals):
            if one.is_no and treatment_of(one, self.treatments) == "refuse":
                is_robots = one.kind == ROBOTS
                words = ("robots_txt", f"{one.where} {one.value}") if is_robots else ("opt_out", f"forbidden by {one}")
                row.refusal = row.refusal or NotFetched(*words)


class _Row:
    """What a row has left of its time, whether its image is read, what was found, and what forbids its use."""

    def __init__(self, max_seconds: float, idle_seconds: float, found: Found, *, is_read: bool = True) -> None:
        self.is_read = is_read
        self.found = found
        self.refusal: NotFetched | None = None  # all other declarations are read before it ends the row
        self.deadline = Deadline(max_seconds, idle_seconds)
        self.site_seconds = max_seconds


def _http_error(response: Response) -> urllib.error.HTTPError:
    return urllib.error.HTTPError(response.url, response.status, response.phrase[:100], response.headers, None)
