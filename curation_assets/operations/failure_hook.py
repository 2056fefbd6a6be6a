"""Who hears of a failed run: a command that reads JSON, or a webhook. It never changes how the run ends."""

import contextlib
import http.client
import json
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from curation_assets.core.settings import Settings
from curation_assets.core.version import __version__
from curation_assets.sources.download.guarded_http import Deadline, GuardedHttp
from curation_assets.stores.manifest import utc_now
from curation_assets.stores.processes import ProcessName
from curation_assets.stores.url_safety import UrlRefused

MAX_SECONDS = 10.0  # that the command or the server may take
SHOWN = 50  # problems in a message, and characters of what a command said
EXPECTED = 'a JSON list of words (["/usr/bin/notify", "--pool"]) or an http(s) URL'


@dataclass(frozen=True)
class FailureHook:
    """A command (words, no shell) or a URL."""

    words: tuple[str, ...] = ()
    url: str | None = None
    allow_hosts: tuple[str, ...] = ()  # of the URL, that may be private

    @classmethod
    def of(cls, settings: Settings) -> "FailureHook | None":
        """What CURATION_ON_FAILURE names; None for nothing. Raises ValueError for what cannot be one.

        A private or loopback host of a URL must be named in CURATION_ON_FAILURE_HOSTS, as 'host' or 'host:port'.
        """
        text = settings.on_failure
        if text is None:
            return None
        if text.startswith(("http://", "https://")):
            hook = cls(url=text, allow_hosts=settings.on_failure_hosts)
            try:
                hook._http().vet(text)
            except UrlRefused as refusal:
                raise ValueError(
                    f"CURATION_ON_FAILURE: its URL is refused ({refusal.reason}); a private host is allowed where "
                    "CURATION_ON_FAILURE_HOSTS names it (host or host:port)"
                ) from None  # the refusal shows the URL, which may hold a secret
            return hook
        try:
            words = json.loads(text)
        except json.JSONDecodeError:
            words = None
        if not isinstance(words, list) or not words or not all(isinstance(word, str) and word for word in words):
            raise ValueError(f"CURATION_ON_FAILURE must be {EXPECTED}, got {text!r}")
        return cls(words=tuple(words))

    def report(self, pool: str | None, problems: Sequence[str], **facts: Any) -> str | None:
        """Tell of a failed run; a sentence where that could not be done. Takes MAX_SECONDS at most.

        What is sent: event, pool, problems (sentences that name tables and shards), at, host, pid, and `facts`.
        """
        process = ProcessName.own()
        shown = [*problems[:SHOWN], *([f"and {len(problems) - SHOWN} more"] if len(problems) > SHOWN else [])]
        content = {"event": "run_failed", "pool": pool, "problems": shown, "at": utc_now()}
        message = json.dumps({**content, "host": process.host, "pid": process.pid, **facts}).encode()
        try:
            return self._call(message) if self.words else self._post(message)
        except UrlRefused as refusal:
            return self._sentence(f"its address is refused ({refusal.reason})")
        except (OSError, http.client.HTTPException) as error:
            return self._sentence(f"{type(error).__name__}: {error}")

    def _call(self, message: bytes) -> str | None:
        process = subprocess.Popen(
            self.words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(message, timeout=MAX_SECONDS)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return self._sentence(f"not done after {MAX_SECONDS:g} s")
        said = output.decode("utf-8", "replace").strip()[-SHOWN * 4 :]
        return self._sentence(f"exit status {process.returncode}; {said}") if process.returncode else None

    def _post(self, message: bytes) -> str | None:
        assert self.url is not None, "a hook has words or a URL"
        with self._http().post(self.url, message, "application/json", Deadline(MAX_SECONDS)) as response:
            return None if 200 <= response.status < 300 else self._sentence(f"HTTP {response.status} {response.phrase}")

    def _http(self) -> GuardedHttp:
        return GuardedHttp(self.allow_hosts, user_agent=f"curation_assets/{__version__}")

    def _sentence(self, what: str) -> str:
        """A URL may hold a secret: its host is all that is shown."""
        name = self.words[0] if self.words else urlsplit(self.url or "").hostname
        return f"warning: {name} (CURATION_ON_FAILURE) could not be reached about the failed run: {what}"
