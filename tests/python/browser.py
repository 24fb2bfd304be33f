"""Debian's Chromium without a window, driven through its own protocol over two pipes (no package for it): pages as a person sees
and uses them."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
MISSING = "no Chromium: apt-get install chromium"
PATIENCE = 60.0  # seconds for one answer


class Browser:
    """One page. `errors`: what its scripts threw, or the console has of errors. `requested`: all that it loaded, by address."""

    def __init__(self, folder: Path):
        hears, self._out = os.pipe()
        self._in, speaks = os.pipe()
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]

        def as_3_and_4() -> None:  # where the protocol's pipes are
            a, b = os.dup(hears), os.dup(speaks)
            os.dup2(a, 3)
            os.dup2(b, 4)

        self._process = subprocess.Popen(
            [CHROMIUM, *options, "--remote-debugging-pipe", f"--user-data-dir={folder}"], preexec_fn=as_3_and_4, close_fds=False,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(hears)
        os.close(speaks)
        self._number, self._rest, self._session = 0, b"", None
        self.errors: list[str] = []
        self.requested: list[str] = []
        self._events: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._call(f"{domain}.enable")

    def open(self, page: Path, width: int, height: int = 900, dark: bool = False, script: bool = True) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self._call("Emulation.setScriptExecutionDisabled", value=not script)
        self.errors, self.requested, self._events = [], [], []
        self._call("Page.navigate", url=page.resolve().as_uri())
        self._until(lambda: "Page.loadEventFired" in self._events)

    def ask(self, expression: str) -> Any:
        """The value of some JavaScript."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"]["exception"].get("description", answer["exceptionDetails"]["text"]))
        return answer["result"].get("value")

    def press(self, key: str, code: int = 0) -> None:
        text = key if len(key) == 1 else "\r" if key == "Enter" else ""
        about = {"key": key, "windowsVirtualKeyCode": code or (ord(key.upper()) if len(key) == 1 else KEYS[key])}
        self._call("Input.dispatchKeyEvent", type="keyDown", text=text, **about)
        self._call("Input.dispatchKeyEvent", type="keyUp", **about)

    def type(self, text: str) -> None:
        self._call("Input.insertText", text=text)

    def move(self, x: float, y: float) -> None:
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x: float, y: float) -> None:
        self.move(x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def picture(self, file: Path, whole: bool = True) -> None:
        """As PNG: the whole page, or what is in the window."""
        answer = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(answer["data"]))

    def close(self) -> None:
        os.close(self._out)
        os.close(self._in)
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _call(self, method: str, **params: Any) -> dict:
        self._number += 1
        session = {"sessionId": self._session} if self._session else {}
        message = {"id": self._number, "method": method, "params": params, **session}
        os.write(self._out, json.dumps(message).encode() + b"\0")
        answers: list[dict] = []
        self._until(lambda: bool(answers), answers)
        if "error" in answers[0]:
            raise AssertionError(f"{method}: {answers[0]['error']}")
        return answers[0]["result"]

    def _until(self, done: Any, answers: list[dict] | None = None) -> None:
        end = time.monotonic() + PATIENCE
        while not done():
            message = self._message(end - time.monotonic())
            if message.get("id") == self._number and answers is not None:
                answers.append(message)
            else:
                self._see(message)

    def _message(self, seconds: float) -> dict:
        while b"\0" not in self._rest:
            if not select.select([self._in], [], [], max(0.0, seconds))[0]:
                raise AssertionError(f"Chromium does not answer in {PATIENCE:.0f} s")
            self._rest += os.read(self._in, 1 << 16)
        message, self._rest = self._rest.split(b"\0", 1)
        return json.loads(message)

    def _see(self, message: dict) -> None:
        params = message.get("params", {})
        self._events.append(message.get("method", ""))
        if message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(params["exceptionDetails"]["exception"].get("description", params["exceptionDetails"]["text"]))
        if message.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"])
        if message.get("method") == "Network.requestWillBeSent":
            self.requested.append(params["request"]["url"])


KEYS = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowRight": 39, "ArrowLeft": 37, "ArrowUp": 38, "ArrowDown": 40}
