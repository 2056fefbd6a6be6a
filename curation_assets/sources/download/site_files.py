"""Files in which a server states its rules (robots.txt, tdmrep.json), fetched once a day and kept in the home."""

import hashlib
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from curation_assets.sources.download.guarded_http import Deadline, GuardedHttp
from curation_assets.sources.download.reasons import NotFetched
from curation_assets.stores.documents import save_text
from curation_assets.stores.images import ImageRejected
from curation_assets.stores.web_addresses import parsed_url

MAX_REDIRECTS = 5  # RFC 9309 §2.3.1.2
MAX_AGE_SECONDS = 24 * 3600.0  # §2.4
MAX_FAILURES = 2  # a first one may pass

RulesT = TypeVar("RulesT")


@dataclass
class _Origin(Generic[RulesT]):
    """One server: its rules once they are known, or why fetching them failed."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    rules: RulesT | None = None
    failures: list[Exception] = field(default_factory=list)


@dataclass(eq=False, repr=False)
class SiteFiles(Generic[RulesT]):
    """The file at `path` per origin (scheme, host, port), in memory and under `folder`; threads may share it.

    `parse` makes rules of its text, of '' where there is no file (4xx, or more than five redirects). One that cannot be
    read now (5xx, 429, no answer; two attempts) stays unread for as long as this object lives, unless an older copy is
    stored. `max_bytes`: more is not read. `max_seconds`: for a whole fetch. `max_age_seconds`: of a stored copy that is
    not fetched again.
    """

    http: GuardedHttp
    path: str
    parse: Callable[[str], RulesT]
    folder: Path | None
    max_bytes: int
    max_seconds: float
    max_age_seconds: float = MAX_AGE_SECONDS
    clock: Callable[[], float] = time.time
    origins: dict[str, _Origin[RulesT]] = field(default_factory=dict, init=False)

    def rules_for(self, url: str, deadline: Deadline) -> tuple[RulesT, str]:
        """The rules of a URL's server, and the URL of their file.

        Raises NotFetched (robots_txt_unreachable), or what ended the fetch.
        """
        origin = parsed_url(url).origin
        state = self.origins.setdefault(origin, _Origin())
        if not state.lock.acquire(timeout=max(deadline.left, 0)):
            raise TimeoutError(f"timed out: {origin}{self.path} not complete after {deadline.seconds:g} s")
        try:
            if len(state.failures) >= MAX_FAILURES:
                raise state.failures[-1].with_traceback(None)
            rules = state.rules
            if rules is None:
                # A fetch that got less than its time (redirects took the rest) must not decide for other rows.
                is_whole = deadline.left > 0.9 * self.max_seconds
                try:
                    rules = state.rules = self.parse(self._text(origin, deadline))
                except Exception as error:
                    if is_whole:
                        state.failures.append(error)
                    raise
            return rules, f"{origin}{self.path}"
        finally:
            state.lock.release()

    def _text(self, origin: str, deadline: Deadline) -> str:
        path = None
        if self.folder is not None:
            path = self.folder / f"{hashlib.sha256(origin.encode()).hexdigest()[:32]}.json"
        stored, age = self._stored(path, origin)
        if stored is not None and 0 <= age < self.max_age_seconds:
            return stored
        try:
            text = self._fetch(origin, deadline)
        except Exception:
            if stored is not None:
                return stored
            raise
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            content = {"origin": origin, "fetched_at": self.clock(), "text": text}
            save_text(path, json.dumps(content))
        return text

    def _stored(self, path: Path | None, origin: str) -> tuple[str | None, float]:
        """Text of the stored copy, and its age in seconds. A damaged copy is none."""
        if path is None or not path.is_file():
            return None, 0.0
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return (str(content["text"]) if content["origin"] == origin else None), self.clock() - content["fetched_at"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return None, 0.0

    def _fetch(self, origin: str, deadline: Deadline) -> str:
        url = f"{origin}{self.path}"
        for _ in range(MAX_REDIRECTS + 1):
            with self.http.get(url, deadline) as response:
                next_url = response.next_url
                if next_url is not None:
                    url = next_url
                elif 200 <= response.status < 300:
                    try:
                        return response.read_start(self.max_bytes).decode("utf-8", "replace")
                    except ImageRejected as error:
                        raise NotFetched("robots_txt_unreachable", f"{url} cannot be read: {error}") from error
                elif 300 <= response.status < 500 and response.status != 429:
                    return ""
                else:
                    raise NotFetched(
                        "robots_txt_unreachable",
                        f"{origin}{self.path} answers HTTP {response.status}; until it can be read nothing is fetched",
                    )
        return ""
