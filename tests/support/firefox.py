"""Firefox, driven by WebDriver BiDi over one websocket: it opens pages and evaluates scripts in them."""

import itertools
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

from tests.support.browser import WAIT_S

PREFERENCES = {
    "dom.disable_open_during_load": False,  # window.open without a click
    "browser.shell.checkDefaultBrowser": False,
    "datareporting.policy.dataSubmissionEnabled": False,
    "app.update.enabled": False,
    "security.warn_submit_secure_to_insecure": False,  # a dialog that nobody answers
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
}


class FirefoxPage:
    """One tab."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.send("session.new", capabilities={})
        self._tab = self.send("browsingContext.getTree")["contexts"][0]["context"]

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol and its result. Raises RuntimeError with the browser's words."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(timeout=WAIT_S))
            if message.get("id") == number:
                if message["type"] == "error":
                    raise RuntimeError(f"{method}: {message['error']}: {message['message']}")
                result: dict[str, Any] = message["result"]
                return result

    def open(self, url: str) -> None:
        """Go to a page; what it loads may come later."""
        self.send("browsingContext.navigate", context=self._tab, url=url, wait="none")

    def evaluate(self, script: str) -> Any:
        """Value of a JavaScript expression that gives a text, a number or a boolean (promises are awaited)."""
        target = {"context": self._tab}
        output = self.send("script.evaluate", expression=script, target=target, awaitPromise=True)
        assert output["type"] == "success", output["exceptionDetails"]["text"]
        return output["result"].get("value")

    def wait_for(self, script: str) -> Any:
        """The first true value of an expression. Raises AssertionError after WAIT_S seconds."""
        end = time.monotonic() + WAIT_S
        while True:
            try:
                value = self.evaluate(script)
            except RuntimeError:  # the page is being replaced
                value = None
            if value:
                return value
            assert time.monotonic() < end, f"{script} was not true within {WAIT_S} s"
            time.sleep(0.1)


@contextmanager
def open_firefox(folder: Path, *, local_names: Sequence[str] = ()) -> Iterator[FirefoxPage]:
    """A tab of a new Firefox with its profile in the new `folder`. Skips the test where there is none.

    `local_names`: names that resolve to 127.0.0.1.
    """
    program = shutil.which("firefox-esr") or shutil.which("firefox")
    if program is None:
        pytest.skip("firefox is not installed (Debian: apt-get install firefox-esr)")
    folder.mkdir(parents=True)
    preferences = {**PREFERENCES, "network.dns.localDomains": ",".join(local_names)}
    lines = [f"user_pref({json.dumps(name)}, {json.dumps(value)});\n" for name, value in preferences.items()]
    (folder / "user.js").write_text("".join(lines))
    log = folder / "stderr"
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [program, "--headless", "--no-remote", "--profile", str(folder), "--remote-debugging-port", "0"],
            env={**environment, "HOME": str(folder)}, stdout=subprocess.DEVNULL, stderr=stderr,
        )  # fmt: skip
    try:
        end = time.monotonic() + WAIT_S
        while not (match := re.search(r"WebDriver BiDi listening on (ws://\S+)", log.read_text(errors="replace"))):
            assert process.poll() is None, f"firefox ended with status {process.returncode}: {log.read_text()[-500:]}"
            assert time.monotonic() < end, f"firefox did not listen within {WAIT_S} s"
            time.sleep(0.1)
        with connect(f"{match[1]}/session", max_size=None, proxy=None) as socket:
            yield FirefoxPage(socket)
    finally:
        process.terminate()
        process.wait(timeout=30)
