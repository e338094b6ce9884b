#!/usr/bin/env python3
"""Time of a call from Python, p50, clients in turns: rope of 4 tokens and of 64
MiB. roped is beside requests with safetensors by hand, tritonclient, and the
same file sent with other HTTP libraries.

    PYTHONPATH=PACKAGE tests/bench/python_client.py BUILD_DIR [SECONDS]

PACKAGE is made by `cmake --install BUILD_DIR --component python --prefix PACKAGE`.
Clients that are not installed or built are left out.
"""

import ctypes
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import roped
from roped import _safetensors
from roped._tensors import dtype_name, host_bytes

BUILD = Path(sys.argv[1])
SECONDS = float(sys.argv[2]) if len(sys.argv) > 2 else 10.0
SIZES = {"4 tokens": 4, "64 MiB": 3277}
GOALS = {"4 tokens": {"roped": {"requests": 0.7, "tritonclient": 0.7}},
         "64 MiB": {"roped": {"requests": 0.9}, "roped, shared memory": {"requests": 0.5}}}  # fmt: skip


def start():
    folder = Path(tempfile.mkdtemp())
    command = [
        BUILD / "bin/roped",
        "--listen",
        "127.0.0.1:0",
        "--port_file",
        folder / "port",
        "--allow_client_shm",
        "1",
    ]
    process = subprocess.Popen(command, stderr=open(folder / "log", "w"))
    while not (folder / "port").exists() or not (folder / "port").read_text().strip():
        time.sleep(0.05)
    return process, f"127.0.0.1:{(folder / 'port').read_text().strip()}"


def file_of(tensors):
    """As roped sends it, but joined: these libraries take one piece."""
    sent = {name: (dtype_name(t.dtype), t.shape, host_bytes(t)) for name, t in tensors.items()}
    return b"".join(_safetensors.pieces(sent))


def q_of(answer):
    (_, shape), data = _safetensors.read(np.frombuffer(answer, np.uint8))["q"]
    return data.view(np.float32).reshape(shape)


def of_roped(address, **options):
    client = roped.Client(f"http://{address}", **options)
    return lambda tensors: client.rope(**tensors).q


def of_requests(address):
    import requests
    from safetensors.numpy import load, save

    session, url = requests.Session(), f"http://{address}/v1/rope"

    def call(tensors):
        answer = session.post(url, data=save(tensors))
        answer.raise_for_status()
        return load(answer.content)["q"]

    return call


def of_tritonclient(address):
    import tritonclient.http as triton

    client, names = triton.InferenceServerClient(address), {"F32": "FP32", "I64": "INT64"}

    def call(tensors):
        inputs = []
        for name, tensor in tensors.items():
            inputs.append(triton.InferInput(name, tensor.shape, names[dtype_name(tensor.dtype)]))
            inputs[-1].set_data_from_numpy(tensor)
        return client.infer("rope", inputs).as_numpy("q")

    return call


def of_urllib3(address):
    import urllib3

    pool, url = urllib3.PoolManager(), f"http://{address}/v1/rope"
    return lambda tensors: q_of(pool.request("POST", url, body=file_of(tensors)).data)


def of_httpx(address):
    import httpx

    client, url = httpx.Client(), f"http://{address}/v1/rope"
    return lambda tensors: q_of(client.post(url, content=file_of(tensors)).content)


def of_http_client(address):
    from http.client import HTTPConnection

    connection = HTTPConnection(address)

    def call(tensors):
        connection.request("POST", "/v1/rope", file_of(tensors))
        return q_of(connection.getresponse().read())

    return call


def of_libroped_client(address):
    """The C client, over libcurl."""
    library = ctypes.CDLL(str(BUILD / "lib/libroped_client.so"))
    options = (ctypes.c_char_p * 8)(f"http://{address}".encode())
    client, error = ctypes.c_void_p(), ctypes.create_string_buffer(1024)
    assert not library.roped_client_open(options, ctypes.byref(client), error)
    library.roped_client_request_bytes.argtypes = [
        ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p,
        ctypes.c_void_p, ctypes.c_void_p]  # fmt: skip
    free = ctypes.CDLL(None).free
    free.argtypes = [ctypes.c_void_p]

    def call(tensors):
        body, answer, n = file_of(tensors), ctypes.c_void_p(), ctypes.c_size_t()
        assert not library.roped_client_request_bytes(
            client, b"POST", b"/v1/rope", body, len(body), ctypes.byref(answer), ctypes.byref(n), error
        ), error.raw
        q = q_of((ctypes.c_uint8 * n.value).from_address(answer.value)).copy()
        free(answer)
        return q

    return call


CLIENTS = {
    "roped": lambda address: of_roped(address, shared_memory=False),
    "roped, shared memory": of_roped,
    "requests": of_requests,
    "tritonclient": of_tritonclient,
    "http.client": of_http_client,
    "urllib3": of_urllib3,
    "httpx": of_httpx,
    "libroped_client": of_libroped_client,
}


def made(address):
    clients = {}
    for name, make in CLIENTS.items():
        try:
            clients[name] = make(address)
        except (ImportError, OSError) as error:
            print(f"left out: {name}: {error}")
    return clients


def medians(clients, tensors):
    seconds = {name: [] for name in clients}
    want = next(iter(clients.values()))(tensors)
    for name, call in clients.items():
        assert np.array_equal(call(tensors), want), name
    end = time.monotonic() + SECONDS
    while time.monotonic() < end or len(seconds["roped"]) < 5:
        for name, call in clients.items():
            start = time.perf_counter()
            call(tensors)
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}, len(seconds["roped"])


def print_remote(clients):
    for size, n in SIZES.items():
        q, k = (np.random.randn(n, heads, 128).astype(np.float32) for heads in (32, 8))
        found, n_calls = medians(clients, {"q": q, "k": k, "positions": np.arange(n)})
        print(f"\n{size}, {n_calls} calls each: p50 us, roped's beside it")
        for name, seconds in found.items():
            print(f"  {name:<22}{seconds * 1e6:12.1f}{found['roped'] / seconds:8.2f}")
        for ours, peers in GOALS[size].items():
            for peer, goal in peers.items():
                if peer in found:
                    share = found[ours] / found[peer]
                    print(f"  {ours} / {peer}: {share:.2f}, goal {goal} {'met' if share <= goal else 'MISSED'}")


def main():
    process, address = start()
    try:
        print_remote(made(address))
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
