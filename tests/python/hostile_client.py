"""Everything that a client asks of a server, of each at these URLs, by a process of its own, which
begins with the modules read: prints a JSON list of [call, seconds, what was raised or null, its
text], and how far memory grew at its peak; what else the process says; and its exit status.

    python hostile_client.py TIMEOUT MAX_ANSWER URL...
"""

import json
import os
import resource
import signal
import sys
import time

import numpy as np

import roped

PATIENCE_SECONDS = 100  # whoever takes longer is killed


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def ask(url, timeout, max_answer):
    x = np.ones((1, 4), np.float32)
    client = roped.Client(url, timeout=timeout, max_answer=max_answer, retries=1000)
    region = roped.Region("r", "F32", (4,), client)
    calls = {
        "call": lambda: (client.rmsnorm(x).sum(), client.timing.wall),
        "large call": lambda: client.rmsnorm(np.ones((64, 1024), np.float32)),
        "regions": lambda: client.region("r"),
        "tables": lambda: client.tables(),
        "describe": lambda: client.describe("rope")["name"],
        "devices": lambda: client.devices(),
        "get": lambda: region.get().sum(),
        "put": lambda: client.put(x, "r"),
    }
    before, done = peak(), []
    for name, call in calls.items():
        start, raised, text = time.monotonic(), None, ""
        try:
            call()
        except Exception as error:
            raised, text = type(error).__name__, str(error)
        done.append([name, time.monotonic() - start, raised, text])
    print(json.dumps([done, peak() - before]), flush=True)


def main():
    timeout, max_answer = float(sys.argv[1]), int(sys.argv[2])
    for url in sys.argv[3:]:
        child = os.fork()
        if child == 0:
            os.dup2(1, 2)
            signal.alarm(PATIENCE_SECONDS)
            return ask(url, timeout, max_answer)
        print("exit", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


main()
