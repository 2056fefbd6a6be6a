"""Debian's chromium, driven by its DevTools protocol over one websocket: pages are drawn, measured and clicked."""

import base64
import itertools
import json
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-port=0",
)  # fmt: skip
WAIT_S = 120  # for whatever a page is waited for: this machine may be busy
DESKTOP, PHONE = 1280, 390  # px
#: Where to press, in px, on the innermost control or text that reads so; of several on the last, as a dialog's is.
PLACE_OF = """text => {
  const reads = [...document.querySelectorAll('button, a, label, input, span, div, [aria-label]')].filter(one => {
    const box = one.getBoundingClientRect();
    const words = [one.innerText, one.placeholder, one.ariaLabel];
    return words.some(word => word?.trim() === text) && box.width && box.height;
  });
  const last = reads.filter(one => !reads.some(other => other !== one && one.contains(other))).at(-1);
  if (!last || last.disabled || last.closest('button')?.disabled) return null;
  last.scrollIntoView({ block: 'center' });
  const box = last.getBoundingClientRect();
  return [box.x + Math.min(box.width, 40) / 2, box.y + box.height / 2];  // boxes may reach under others
}"""


def chromium() -> str:
    """Path of the browser; skips the test where there is none."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("chromium is not installed (Debian: apt-get install chromium)")
    return path


class Page:
    """One tab. `errors`: uncaught exceptions and console errors so far; `requests`: every address it requested."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._loaded = False
        self.errors: list[str] = []
        self.requests: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol and its result. Raises RuntimeError with the browser's words."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(timeout=WAIT_S))
            if message.get("id") != number:
                self._note(message)
            elif "error" in message:
                raise RuntimeError(f"{method}: {message['error']}")
            else:
                result: dict[str, Any] = message["result"]
                return result

    def _note(self, message: dict[str, Any]) -> None:
        event, content = message.get("method"), message.get("params", {})
        if event == "Page.loadEventFired":
            self._loaded = True
        elif event == "Network.requestWillBeSent":
            self.requests.append(content["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            details = content["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif event == "Runtime.consoleAPICalled" and content["type"] in ("error", "assert"):
            self.errors.append(" ".join(str(one.get("value", one.get("description"))) for one in content["args"]))
        elif event == "Log.entryAdded" and content["entry"]["level"] == "error":
            self.errors.append(f"{content['entry']['text']} {content['entry'].get('url', '')}")

    def open(self, url: str, width: int, height: int = 900) -> None:
        """Draw `url` in a window of `width` × `height` px; a narrow one is a phone's. Waits until it is loaded."""
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.send("Page.navigate", url="about:blank")  # else another fragment of the same page is no new page
        self.wait_for("document.URL === 'about:blank' && document.readyState === 'complete'")
        self._loaded, self.errors, self.requests = False, [], []
        self.send("Page.navigate", url=url)
        end = time.monotonic() + WAIT_S
        while not self._loaded:
            assert time.monotonic() < end, f"{url} was not loaded within {WAIT_S} s"
            self.evaluate("0")

    def evaluate(self, script: str) -> Any:
        """Value of a JavaScript expression (promises are awaited). Raises AssertionError where it throws."""
        output = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in output, output["exceptionDetails"]
        return output["result"].get("value")

    def wait_for(self, script: str) -> Any:
        """The first true value of an expression. Raises AssertionError after WAIT_S seconds."""
        end = time.monotonic() + WAIT_S
        while not (value := self.evaluate(script)):
            if time.monotonic() >= end:
                shown = self.evaluate("document.body?.innerText.slice(-800)")
                raise AssertionError(f"{script} was not true within {WAIT_S} s; errors: {self.errors}; shown: {shown}")
            time.sleep(0.1)
        return value

    def set_value(self, selector: str, value: str) -> None:
        """Set a control as its user does: with the events `input` and `change`."""
        self.evaluate(
            f"(() => {{ const one = document.querySelector({json.dumps(selector)}); one.value = {json.dumps(value)};"
            "for (const kind of ['input', 'change']) one.dispatchEvent(new Event(kind, { bubbles: true })); })()"
        )

    def shows(self, text: str) -> None:
        """Wait until the page has the text."""
        self.wait_for(f"document.body.innerText.includes({json.dumps(text)})")

    def click(self, text: str) -> None:
        """Press the mouse on the control or text that reads `text`, or whose icon is named so, once it is there."""
        place_of = f"({PLACE_OF})({json.dumps(text)})"
        place = self.wait_for(place_of)
        while True:
            time.sleep(0.5)  # what is still being drawn moves
            before, place = place, self.wait_for(place_of)
            if place == before:
                break
        x, y = place
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for event in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=event, x=x, y=y, button="left", clickCount=1)
        time.sleep(0.5)  # menus and dialogs move until they are open

    def type(self, text: str) -> None:
        """Write where the last click was, and press Enter."""
        self.send("Input.insertText", text=text)
        self.press("Enter")

    def press(self, key: str) -> None:
        """Press a key: Enter or Escape."""
        code = {"Enter": 13, "Escape": 27}[key]
        for event in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=event, key=key, code=key, windowsVirtualKeyCode=code)

    def screenshot(self, path: Path, *, whole: bool = True) -> Path:
        """PNG of the page, or of what its window shows."""
        picture = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(picture["data"]))
        return path


@contextmanager
def open_browser(folder: Path, *flags: str) -> Iterator[Page]:
    """A tab of a new browser whose profile is the new folder `folder`. Skips the test where chromium is missing."""
    program = chromium()
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    process = subprocess.Popen(
        [program, *FLAGS, *flags, f"--user-data-dir={folder}", "about:blank"],
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        port = _port(folder, process)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=WAIT_S) as answer:
            address = next(one["webSocketDebuggerUrl"] for one in json.load(answer) if one["type"] == "page")
        with connect(address, max_size=None, proxy=None, ping_interval=None) as socket:  # it may be left for minutes
            yield Page(socket)
    finally:
        process.terminate()
        process.wait(timeout=30)


def _port(folder: Path, process: subprocess.Popen[bytes]) -> str:
    """The port of DevTools, which the browser writes once it listens."""
    path, end = folder / "DevToolsActivePort", time.monotonic() + WAIT_S
    while True:
        lines = path.read_text().splitlines() if path.is_file() else []
        if len(lines) == 2:
            return lines[0]
        assert process.poll() is None, f"chromium ended with status {process.returncode}"
        assert time.monotonic() < end, f"chromium did not listen within {WAIT_S} s"
        time.sleep(0.1)
