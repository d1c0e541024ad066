"""A real browser without a screen, driven through Chromium's DevTools protocol.

Debian's package is enough: nothing is downloaded. A session is one page in one browser process.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import websocket

_SECONDS = 30


def chromium() -> str:
    """The program.

    Raises:
        AssertionError: there is none.
    """
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    assert found, "there is no Chromium to look at the report with; on Debian: apt install chromium"
    return found


@contextlib.contextmanager
def browser() -> Iterator[Page]:
    """A browser's only page."""
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        command = [chromium(), *options(profile), "--remote-debugging-port=0", "about:blank"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            port = _port(Path(profile) / "DevToolsActivePort", process)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=_SECONDS) as answer:
                targets = json.load(answer)
            address = next(each["webSocketDebuggerUrl"] for each in targets if each["type"] == "page")
            page = Page(websocket.create_connection(address, timeout=_SECONDS, suppress_origin=True))
            for domain in ("Page", "Runtime", "Log", "Network"):
                page.call(f"{domain}.enable")
            yield page
        finally:
            process.terminate()
            process.wait(_SECONDS)


def options(profile: str) -> list[str]:
    """Return how the browser is started."""
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # which root cannot have
    plain = ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run"]
    return [*plain, *sandbox, f"--user-data-dir={profile}"]


def _port(file: Path, process: subprocess.Popen[bytes]) -> int:
    end = time.monotonic() + _SECONDS
    while time.monotonic() < end:
        assert process.poll() is None, "Chromium ended at once"
        if file.exists() and (lines := file.read_text().splitlines()):
            return int(lines[0])
        time.sleep(0.05)
    raise AssertionError("Chromium did not open its DevTools port")


class Page:
    """The page: what the protocol says, in words of a test.

    Attributes:
        complaints: errors of scripts, of the page's policy, and what the page tried to fetch.
    """

    def __init__(self, connection: websocket.WebSocket) -> None:
        self._connection = connection
        self._numbers = itertools.count(1)
        self._loaded = False
        self.complaints: list[str] = []

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask for something and wait for the answer."""
        number = next(self._numbers)
        self._connection.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._connection.recv())
            self._note(message)
            if message.get("id") == number:
                assert "error" not in message, message
                return dict(message["result"])

    def open(self, path: Path, fragment: str = "") -> None:
        """Load a file, anew."""
        self._go("about:blank")  # or another fragment of the same file would not load it again
        self.complaints.clear()
        self._go(path.as_uri() + (f"#{fragment}" if fragment else ""))

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, as JSON has it."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def texts(self, selector: str) -> list[str]:
        """The text of all elements that are shown."""
        shown = f"[...document.querySelectorAll({json.dumps(selector)})].filter((e) => e.checkVisibility())"
        return list(self.evaluate(f"{shown}.map((e) => (e.innerText ?? e.textContent).trim())"))

    def click(self, selector: str) -> None:
        """Click on the first element with the mouse."""
        find = f"document.querySelector({json.dumps(selector)})"
        script = f"(() => {{ const e = {find}; e.scrollIntoView({{block: 'center', behavior: 'instant'}}); "
        script += "const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        x, y = self.evaluate(script)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str) -> None:
        """Press a key: a character, or ``ArrowDown``, ``Enter``, ``Escape``, ``Tab``."""
        codes = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowUp": 38, "ArrowDown": 40}
        written = {"text": "\r"} if key == "Enter" else {"text": key} if len(key) == 1 else {}
        common = {"key": key, "windowsVirtualKeyCode": codes.get(key, ord(key[0].upper()))}
        self.call("Input.dispatchKeyEvent", type="keyDown", **common, **written)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def write(self, text: str) -> None:
        """Type text into what has the focus."""
        self.call("Input.insertText", text=text)

    def show(self, width: int, height: int = 900, *, dark: bool = False) -> None:
        """Make the window so large, and the system light or dark."""
        phone = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def screenshot(self, path: Path, *, whole: bool = False) -> bytes:
        """The picture, as PNG."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))
        return path.read_bytes()

    def _go(self, url: str) -> None:
        self._loaded = False
        self.call("Page.navigate", url=url)
        while not self._loaded:
            self._note(json.loads(self._connection.recv()))

    def _note(self, message: dict[str, Any]) -> None:
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(parameters["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.complaints.append(parameters["entry"]["text"])
        elif method == "Network.requestWillBeSent" and not parameters["request"]["url"].startswith(("file:", "about:")):
            self.complaints.append(f"fetched {parameters['request']['url']}")
