# SPDX-License-Identifier: Apache-2.0
"""Chromium without a window, driven through a pair of pipes: no package is needed for it."""
import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import time


def find():
    """The path of a Chromium, or None."""
    names = [os.environ.get("CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome"]
    return next((shutil.which(n) for n in names if n and shutil.which(n)), None)


class Navigated(AssertionError):
    """The page was left while it was asked."""


class Browser:
    """One page of one browser. Messages end with a zero byte (--remote-debugging-pipe)."""

    def __init__(self, profile):
        self.from_us, ours_out = os.pipe()
        ours_in, self.from_it = os.pipe()

        def take_pipes():  # the browser reads descriptor 3 and writes descriptor 4
            a, b = os.dup(self.from_us), os.dup(self.from_it)
            os.dup2(a, 3)
            os.dup2(b, 4)

        self.process = subprocess.Popen(
            [find(), "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu",
             "--no-first-run", "--disable-dev-shm-usage", "--disable-background-networking",
             "--disable-component-update", "--hide-scrollbars", f"--user-data-dir={profile}"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            close_fds=False, preexec_fn=take_pipes)
        os.close(self.from_us)
        os.close(self.from_it)
        self.out, self.inp = ours_out, ours_in
        self.buffer, self.ids, self.session = b"", itertools.count(1), None
        self.events = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Accessibility"):
            self.call(f"{domain}.enable")

    def read(self, seconds):
        until = time.monotonic() + seconds
        while b"\0" not in self.buffer:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.inp], [], [], left)[0]:
                raise TimeoutError("the browser does not answer")
            piece = os.read(self.inp, 1 << 20)
            if not piece:
                raise ConnectionError("the browser ended")
            self.buffer += piece
        text, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(text)

    def call(self, method, seconds=60, **params):
        message = {"id": next(self.ids), "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.out, data):]
        while True:
            answer = self.read(seconds)
            if answer.get("id") == message["id"]:
                if answer.get("error", {}).get("message") == "Inspected target navigated or closed":
                    raise Navigated(method)
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            if answer.get("method") == "Page.javascriptDialogOpening":
                self.answer_dialog()
            self.events.append(answer)

    def answer_dialog(self):
        """Says yes, without waiting for the answer: it comes among the events."""
        data = json.dumps({"id": next(self.ids), "sessionId": self.session,
                           "method": "Page.handleJavaScriptDialog", "params": {"accept": True}})
        os.write(self.out, data.encode() + b"\0")

    def js(self, expression):
        r = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in r, r["exceptionDetails"]
        return r["result"].get("value")

    def wait(self, expression, seconds=30):
        """A value that is true; also of the page that comes next, where this one is left meanwhile."""
        until = time.monotonic() + seconds
        while True:
            try:
                if value := self.js(expression):
                    return value
            except Navigated:
                pass
            assert time.monotonic() < until, f"not within {seconds} s: {expression}"
            time.sleep(0.05)

    def key(self, name, text="", alt=False, ctrl=False):
        """A key by its name, or a letter by itself."""
        known = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowUp": 38, "ArrowDown": 40, "?": 191}
        code = f"Key{name.upper()}" if len(name) == 1 and name.isalpha() else name
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=code, modifiers=1 * alt + 2 * ctrl,
                      windowsVirtualKeyCode=known.get(name) or ord(name.upper()),
                      **({"text": text} if text and kind == "keyDown" else {}))

    def type(self, text):
        self.call("Input.insertText", text=text)

    def look(self, width, height, dark=False, scale=1):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale,
                  mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def picture(self, path):
        data = self.call("Page.captureScreenshot", format="png")["data"]
        with open(path, "wb") as f:
            f.write(base64.b64decode(data))

    def complaints(self):
        """What the page logged: errors, warnings, broken security rules."""
        self.js("1")  # everything before has arrived then
        out = []
        for e in self.events:
            if e.get("method") == "Log.entryAdded" and e["params"]["entry"]["level"] in ("error", "warning"):
                out.append(e["params"]["entry"].get("text", "") + " " + e["params"]["entry"].get("url", ""))
            if e.get("method") == "Runtime.exceptionThrown":
                out.append(e["params"]["exceptionDetails"].get("exception", {}).get("description", "exception"))
            if e.get("method") == "Runtime.consoleAPICalled" and e["params"]["type"] in ("error", "warning"):
                out.append(str(e["params"]["args"]))
        return out

    def tree(self):
        """The accessibility tree, without what is ignored: [(role, name, node)]."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [(n["role"]["value"], n.get("name", {}).get("value", ""), n) for n in nodes if not n["ignored"]]

    def close(self):
        try:
            os.write(self.out, json.dumps({"id": next(self.ids), "method": "Browser.close"}).encode() + b"\0")
            self.process.wait(10)
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        os.close(self.out)
        os.close(self.inp)
