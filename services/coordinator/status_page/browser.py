"""A headless Chromium, driven by its DevTools protocol over a pipe. The standard library is all it needs."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time

PATIENCE_S = 30


def program():
    """Returns the path of Chromium, or None."""
    names = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)


class Browser:
    """One browser with one tab."""

    def __init__(self):
        self._profile = tempfile.mkdtemp(prefix="muster-browser-")
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()

        def at_three_and_four():  # the browser expects its pipes at these numbers
            low, high = os.dup(commands), os.dup(answers)
            os.dup2(low, 3)
            os.dup2(high, 4)

        self._process = subprocess.Popen(
            [program(), "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--no-first-run", "--hide-scrollbars", "--disable-extensions", f"--user-data-dir={self._profile}", "about:blank"],
            preexec_fn=at_three_and_four, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(commands)
        os.close(answers)
        self._unread = b""
        self._next = 0
        self._session = None
        self.messages = []  # the page's console messages and uncaught errors
        page = next(t for t in self._call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self._session = self._call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def close(self):
        os.close(self._commands)  # the browser exits
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._answers)
        shutil.rmtree(self._profile, ignore_errors=True)

    def _call(self, method, **parameters):
        self._next += 1
        message = {"id": self._next, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._next:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            if answer.get("method") == "Runtime.exceptionThrown":
                self.messages.append(answer["params"]["exceptionDetails"].get("exception", {}).get("description", "exception"))
            elif answer.get("method") == "Log.entryAdded":
                self.messages.append(answer["params"]["entry"]["text"])

    def _receive(self):
        while b"\0" not in self._unread:
            piece = os.read(self._answers, 1 << 16)
            if not piece:
                raise RuntimeError("the browser is gone")
            self._unread += piece
        message, self._unread = self._unread.split(b"\0", 1)
        return json.loads(message)

    def look(self, width=1280, height=900, dark=False, phone=False):
        """Sets the size of the screen and its color scheme."""
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2 if phone else 1, mobile=phone)
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
                                                            {"name": "prefers-reduced-motion", "value": "reduce"}])

    def leave(self):
        """Goes to an empty page and drops the messages of the previous one."""
        self._call("Page.navigate", url="about:blank")
        self.wait("location.href == 'about:blank'")
        self.messages.clear()

    def open(self, url):
        self._call("Page.navigate", url="about:blank")
        self._call("Page.navigate", url=url)

    def value(self, expression):
        result = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait(self, expression):
        """Waits until the expression is true. Returns its value."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                value = self.value(expression)
            except RuntimeError as error:  # the page is still loading
                value = None
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{expression}: {error}") from error
            if value:
                return value
            if time.monotonic() > deadline:
                raise TimeoutError(f"{expression} is not true; the page: {self.value('document.body.innerText')!r}; it says: {self.messages}")
            time.sleep(0.05)

    def picture(self, path, whole=False):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self._call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]))
