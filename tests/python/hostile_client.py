"""Everything that a client asks of a server, of the one at the URL: prints a JSON list of
[call, seconds, what was raised or null, its text], and how far memory grew at its peak.

    python hostile_client.py URL TIMEOUT MAX_ANSWER
"""

import json
import resource
import sys
import time

import numpy as np

import roped

url, timeout, max_answer = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
x = np.ones((1, 4), np.float32)
client = roped.Client(url, timeout=timeout, max_answer=max_answer, retries=1000)
region = roped.Region("r", "F32", (4,), client)
CALLS = {
    "call": lambda: (client.rmsnorm(x).sum(), client.timing.wall),
    "large call": lambda: client.rmsnorm(np.ones((64, 1024), np.float32)),
    "regions": lambda: client.region("r"),
    "tables": lambda: client.tables(),
    "describe": lambda: client.describe("rope")["name"],
    "devices": lambda: client.devices(),
    "get": lambda: region.get().sum(),
    "put": lambda: client.put(x, "r"),
}


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


before, done = peak(), []
for name, call in CALLS.items():
    start, raised, text = time.monotonic(), None, ""
    try:
        call()
    except Exception as error:
        raised, text = type(error).__name__, str(error)
    done.append([name, time.monotonic() - start, raised, text])
print(json.dumps([done, peak() - before]))
