"""robots.txt of every server that images come from (RFC 9309), fetched once a day and kept in the home."""

import hashlib
import json
import re
import threading
import time
import urllib.parse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from protego import Protego

from curation_assets.sources.download.guarded_http import Deadline, GuardedHttp
from curation_assets.sources.download.reasons import NotFetched
from curation_assets.stores.atomic import write_text_atomically
from curation_assets.stores.images import ImageRejected

MAX_BYTES = 500 * 1024  # RFC 9309 §2.5: more is not read
MAX_REDIRECTS = 5  # §2.3.1.2
MAX_AGE_SECONDS = 24 * 3600.0  # §2.4
MAX_FAILURES = 2  # a first one may pass
OTHER_AGENT = "another-agent"
_AGENT_LINE = re.compile(r"\s*user[-\s]*agent\b[\s:]*([^#]*)", re.IGNORECASE)


class Rules:
    """What a robots.txt allows to the first of `agents` that it has a group for, else to `*`."""

    def __init__(self, text: str, agents: Sequence[str]) -> None:
        names: set[str] = set()
        lines = []
        for line in text.removeprefix("\ufeff").splitlines():
            match = _AGENT_LINE.match(line)
            if match:
                name = match[1].strip().lower()
                # Groups of others become one: thousands of agents with thousands of rules each would fill the memory
                name = name if name == "*" or name in agents else OTHER_AGENT
                names.add(name)
                line = f"User-agent: {name}"
            lines.append(line)
        self.agent = next((agent for agent in agents if agent in names), "*")
        self._rules = Protego.parse("\n".join(lines))

    def allow(self, url: str) -> bool:
        """Whether the URL may be fetched: the longest matching rule decides."""
        return bool(self._rules.can_fetch(url, self.agent))


@dataclass
class _Origin:
    """One server: its rules once they are known, or why fetching them failed."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    rules: Rules | None = None
    failures: list[Exception] = field(default_factory=list)


class RobotsFiles:
    """Rules per origin (scheme, host, port), in memory and under `folder`; threads may share it.

    No robots.txt (4xx, or more than five redirects): everything is allowed. One that cannot be read now (5xx, 429, no
    answer; two attempts): nothing is, for as long as this object lives, unless an older copy is stored. `agents`: our
    names in lower case, the most telling first. `max_seconds`: for a whole fetch.
    """

    def __init__(
        self,
        http: GuardedHttp,
        agents: Sequence[str],
        folder: Path | None,
        *,
        max_seconds: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._http = http
        self._agents = agents
        self._folder = folder
        self._max_seconds = max_seconds
        self._clock = clock
        self._origins: dict[str, _Origin] = {}

    def check(self, url: str, deadline: Deadline) -> None:
        """Raises NotFetched (robots_txt, robots_txt_unreachable), or what ended the fetch of robots.txt."""
        parts = urllib.parse.urlsplit(url)
        origin = f"{parts.scheme}://{parts.netloc.lower()}"
        state = self._origins.setdefault(origin, _Origin())
        if not state.lock.acquire(timeout=max(deadline.left, 0)):
            raise TimeoutError(f"timed out: {origin}/robots.txt not complete after {deadline.seconds:g} s")
        try:
            if len(state.failures) >= MAX_FAILURES:
                raise state.failures[-1].with_traceback(None)
            if state.rules is None:
                # A fetch that got less than its time (redirects took the rest) must not decide for other rows.
                is_whole = deadline.left > 0.9 * self._max_seconds
                try:
                    state.rules = Rules(self._text(origin, deadline), self._agents)
                except Exception as error:
                    if is_whole:
                        state.failures.append(error)
                    raise
            rules = state.rules
        finally:
            state.lock.release()
        if not rules.allow(url):
            shown = (parts.path or "/")[:100]
            raise NotFetched("robots_txt", f"{origin}/robots.txt disallows {shown} for the agent {rules.agent}")

    def _text(self, origin: str, deadline: Deadline) -> str:
        path = None
        if self._folder is not None:
            path = self._folder / f"{hashlib.sha256(origin.encode()).hexdigest()[:32]}.json"
        stored, age = self._stored(path, origin)
        if stored is not None and 0 <= age < MAX_AGE_SECONDS:
            return stored
        try:
            text = self._fetch(origin, deadline)
        except Exception:
            if stored is not None:
                return stored
            raise
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            content = {"origin": origin, "fetched_at": self._clock(), "text": text}
            write_text_atomically(path, json.dumps(content))
        return text

    def _stored(self, path: Path | None, origin: str) -> tuple[str | None, float]:
        """Text of the stored copy, and its age in seconds. A damaged copy is none."""
        if path is None or not path.is_file():
            return None, 0.0
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return (str(content["text"]) if content["origin"] == origin else None), self._clock() - content[
                "fetched_at"
            ]
        except (ValueError, KeyError, TypeError):
            return None, 0.0

    def _fetch(self, origin: str, deadline: Deadline) -> str:
        url = f"{origin}/robots.txt"
        for _ in range(MAX_REDIRECTS + 1):
            with self._http.get(url, deadline) as response:
                next_url = response.next_url
                if next_url is not None:
                    url = next_url
                elif 200 <= response.status < 300:
                    try:
                        return response.read_start(MAX_BYTES).decode("utf-8", "replace")
                    except ImageRejected as error:
                        raise NotFetched("robots_txt_unreachable", f"{url} cannot be read: {error}") from error
                elif 300 <= response.status < 500 and response.status != 429:
                    return ""
                else:
                    raise NotFetched(
                        "robots_txt_unreachable",
                        f"{origin}/robots.txt answers HTTP {response.status}; until it can be read nothing is fetched",
                    )
        return ""
