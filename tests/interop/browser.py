"""A headless Chromium, driven over its DevTools pipe: no driver, no library."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """One page. complaints: what its console and its policy said."""

    def __init__(self, width=1440, height=900):
        self.profile = tempfile.mkdtemp(prefix="roped_chromium_")
        to_browser, self.commands = os.pipe()
        self.answers, from_browser = os.pipe()
        arguments = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                     "--disable-background-networking", f"--user-data-dir={self.profile}", f"--window-size={width},{height}",
                     "--remote-debugging-pipe", "about:blank"]

        def give_pipes():  # the browser reads from 3 and writes to 4
            read, write = os.dup(to_browser), os.dup(from_browser)
            os.dup2(read, 3)
            os.dup2(write, 4)

        self.process = subprocess.Popen(arguments, preexec_fn=give_pipes, pass_fds=(3, 4), stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self.n, self.rest, self.session, self.complaints = 0, b"", None, []
        targets = self.send("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self.session = self.send("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def receive(self):
        while b"\0" not in self.rest:
            piece = os.read(self.answers, 1 << 16)
            assert piece, "the browser has ended"
            self.rest += piece
        message, self.rest = self.rest.split(b"\0", 1)
        message = json.loads(message)
        if message.get("method") == "Log.entryAdded":
            self.complaints.append(message["params"]["entry"]["text"])
        if message.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(message["params"]["exceptionDetails"]))
        return message

    def send(self, method, **parameters):
        self.n += 1
        message = {"id": self.n, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.n:
                assert "error" not in answer, answer
                return answer["result"]

    def run(self, script):
        """The value of an expression in the page."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def text(self, selector="body"):
        return self.run(f"document.querySelector({json.dumps(selector)}).innerText")

    def holds(self, script):
        """Is it true? Not while one page takes the place of another."""
        try:
            return self.run(script)
        except AssertionError as error:
            if "navigated" not in str(error):
                raise
            return False

    def wait(self, script, seconds=30):
        """Until an expression is true."""
        end = time.monotonic() + seconds
        while not self.holds(script):
            assert time.monotonic() < end, f"{script} does not come true; the page says: {self.text()}"
            time.sleep(0.1)

    def open(self, url):
        self.send("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def screenshot(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))

    def close(self):
        self.session = None
        try:
            self.send("Browser.close")
        except (AssertionError, OSError):
            pass
        self.process.wait(30)
        os.close(self.commands)
        os.close(self.answers)
        shutil.rmtree(self.profile, ignore_errors=True)
