"""How many calls are lost when of three daemons one is killed and one drained in the
middle: calls of roped.Client or of curl, directly or through a proxy of deploy/proxy.

    PYTHONPATH=PACKAGE ROPED_TEST_BIN=DAEMON tests/python/lost_calls.py curl|roped WAY CALLS [KIB [THREADS]]

WAY is direct, haproxy, nginx or envoy. Without KIB, sizes are 1 KiB to 4 MiB, small ones
more often. tests/python/run.sh makes PACKAGE."""

import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
from conftest import ROOT, start

import roped
from roped import _safetensors, ops

SIZES = [1, 4, 16, 64, 256, 1024, 4096]  # KiB
FLAGS = ("--drain_delay_seconds", "2")
BEFORE = ("daemon off; master_process off; pid pid;\nevents {{}}\nhttp {{ access_log off;\n"
          "client_body_temp_path body; proxy_temp_path proxy;\nfastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi;\n"
          "scgi_temp_path scgi;\n{}}}\n")  # fmt: skip
PROXIES = {
    "haproxy": ("haproxy.cfg", "{}", ["-db", "-f"]),
    "nginx": ("nginx.conf", BEFORE, ["-p", ".", "-e", "log", "-c"]),
    "envoy": ("envoy.yaml", "{}", ["--disable-hot-restart", "-l", "error", "-c"]),
}


def program(name):
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


class Proxy:
    """One with the file of deploy/proxy, in which the ports are those of this run."""

    def __init__(self, kind, urls, folder):
        file, whole, flags = PROXIES[kind]
        text, port = (ROOT / "deploy/proxy" / file).read_text(), free_port()
        for old, new in [*zip(("8000", "8001", "8002"), (url.rpartition(":")[2] for url in urls)), ("8080", str(port))]:
            text = re.sub(rf"(127\.0\.0\.1:|port_value: ){old}\b", rf"\g<1>{new}", text)
        (folder / file).write_text(whole.format(text))
        self.process = subprocess.Popen(
            [program(kind), *flags, file], cwd=folder, stdout=subprocess.DEVNULL, stderr=open(folder / "proxy.log", "w")
        )
        self.url = f"http://127.0.0.1:{port}"
        for _ in range(200):
            try:
                roped.Client(self.url).describe("rmsnorm")
                return
            except roped.Error:
                time.sleep(0.05)
        raise AssertionError((folder / "proxy.log").read_text())

    def stop(self):
        self.process.terminate()
        self.process.wait(20)


class Calls:
    """Of known results; each says whether it was lost."""

    def __init__(self, urls, folder):
        self.urls, self.folder = urls, folder
        self.client = roped.Client(urls if len(urls) > 1 else urls[0], timeout=120, shared_memory=False)
        rng = np.random.default_rng(1)
        self.x = {size: rng.standard_normal((size, 256), np.float32) for size in SIZES}
        self.y = {size: ops.rmsnorm(x) for size, x in self.x.items()}
        for size, x in self.x.items():
            pieces = _safetensors.pieces({"x": ("F32", x.shape, x.view(np.uint8).reshape(-1))})
            (folder / f"{size}.safetensors").write_bytes(b"".join(bytes(piece) for piece in pieces))

    def roped(self, size):
        try:
            return None if np.array_equal(self.client.rmsnorm(self.x[size]), self.y[size]) else "another result"
        except roped.Error as error:
            return str(error)

    def curl(self, size):
        """curl knows one address."""
        file = self.folder / f"{size}.safetensors"
        command = ["curl", "-sS", "--fail", "--data-binary", f"@{file}", "-H", "Expect:", f"{self.urls[0]}/v1/rmsnorm"]
        done = subprocess.run(command, capture_output=True)
        if done.returncode:
            return done.stderr.decode().strip()[:60]
        return None if self.y[size].tobytes() in done.stdout else "another result"


def count(who, way, n_calls, kib, folder, n_threads=6):
    """Calls that were lost, by what was said. At a third one daemon is killed, at two thirds one is drained."""
    made = []
    for i in range(3):
        (folder / str(i)).mkdir()
        made.append(start(folder / str(i), *FLAGS))
    urls = [url for _, url in made]
    proxy = Proxy(way, urls, folder) if way != "direct" else None
    calls = Calls([proxy.url] if proxy else urls, folder)
    lost, lock, left = Counter(), threading.Lock(), iter(range(n_calls))
    sizes = random.Random(1)

    def work():
        while True:
            with lock:
                i = next(left, None)
                size = kib or sizes.choices(SIZES, [size**-0.5 for size in SIZES])[0]
            if i is None:
                return
            if i == n_calls // 3:
                made[0][0].kill()
            if i == 2 * n_calls // 3:
                made[1][0].terminate()
            reason = getattr(calls, who)(size)
            if reason:
                with lock:
                    lost[reason] += 1

    threads = [threading.Thread(target=work) for _ in range(n_threads)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert made[0][0].wait(60) == -9 and made[1][0].wait(60) == 0
    finally:
        if proxy:
            proxy.stop()
        for process, _ in made:
            process.terminate()
            process.wait(60)
    return lost


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        begin = time.monotonic()
        who, way, n = sys.argv[1], sys.argv[2], int(sys.argv[3])
        kib, n_threads = [*map(int, sys.argv[4:]), 0, 0][:2]
        found = count(who, way, n, kib or None, Path(name), n_threads or 6)
        print(f"{who}, {way}: {found.total()} of {n} calls lost in {time.monotonic() - begin:.0f} s")
        for reason, times in found.most_common(5):
            print(f"  {times} {reason}")
