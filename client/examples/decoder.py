#!/usr/bin/env python3
"""What a decoder layer does before attention, with everything but the token's
activations resident on the server.

    pip install requests safetensors numpy
    ./decoder.py [http://127.0.0.1:8000]

Once: the norms' weights and an empty KV cache become regions of the server.
Then, for each step of a batch of sequences, three calls:

    hidden -> rmsnorm ---------> back, because roped has no matrix product: the
                                 projection to q, k and v is this script's own
    q, k ---> qk_rmsnorm_rope -> regions q and k
    v ------> rope_append -----> reads q and k there, fills slots of the caches

A head is rotated once, together with its norm, and rounded once. rope_append
would rotate what it is given, too; at position 0 that changes no value, so it
reads its positions from a region of zeros. (A model without norms of q and k
needs no second call: rope_append with the tokens' positions does all of it.)

At the end caches and q are read back and checked against float64.
"""

import os
import sys

import numpy as np
import requests
from safetensors.numpy import load, save

# Qwen3 0.6B, one layer
HIDDEN, Q_HEADS, KV_HEADS, WIDTH = 1024, 16, 8, 128
EPS, THETA = 1e-6, 1e6
SEQUENCES, LONGEST, STEPS = 4, 1024, 16  # sequence i has slots i * LONGEST ...

URL = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("ROPED_URL", "http://127.0.0.1:8000")
session = requests.Session()
sent = received = 0  # bytes of bodies


def ask(method, path, params=None, tensors=None):
    """One request; the tensors of its answer."""
    global sent, received
    body = save(tensors) if tensors else b""
    answer = session.request(method, f"{URL}/v1/{path}", params=params, data=body)
    if not answer.ok:
        sys.exit(f"{method} {path}: {answer.status_code} {answer.json()['error']}")
    sent, received = sent + len(body), received + len(answer.content)
    is_file = answer.headers["Content-Type"] == "application/x-safetensors"
    return load(answer.content) if is_file else {}


def keep(name, tensor):
    ask("PUT", f"regions/layer0.{name}", tensors={name: tensor})


def keep_zeros(name, shape, dtype="F32"):
    """Made on the server: nothing is sent."""
    ask("PUT", f"regions/layer0.{name}", {"dtype": dtype, "shape": ",".join(map(str, shape))})


def read(name):
    (tensor,) = ask("GET", f"regions/layer0.{name}").values()
    return tensor


def resident():
    """Names and bytes of this script's regions."""
    regions = session.get(f"{URL}/v1/regions").json()["regions"]
    return {region["name"]: region["bytes"] for region in regions if region["name"].startswith("layer0.")}


def forget():
    for name in resident():
        ask("DELETE", f"regions/{name}")


def places(**where):
    """from_x="name" as the server has it: from.x=layer0.name"""
    return {tensor.replace("_", ".", 1): f"layer0.{name}" for tensor, name in where.items()}


def prepare(weights):
    for name in ["norm", "q_norm", "k_norm"]:
        keep(name, weights[name])
    for cache in ["k_cache", "v_cache"]:
        keep_zeros(cache, (SEQUENCES * LONGEST, KV_HEADS, WIDTH))
    keep_zeros("q", (SEQUENCES, Q_HEADS, WIDTH))
    keep_zeros("k", (SEQUENCES, KV_HEADS, WIDTH))
    keep_zeros("zeros", (SEQUENCES,), "I32")


def project(normed, weights):
    """The caller's own: normed [n, hidden] to heads of q, k and v."""
    rows = normed @ weights["qkv"].astype(normed.dtype)
    heads = rows.reshape(len(rows), Q_HEADS + 2 * KV_HEADS, WIDTH)
    return [np.ascontiguousarray(part) for part in np.split(heads, [Q_HEADS, Q_HEADS + KV_HEADS], axis=1)]


def step(hidden, positions, slots, weights):
    """A token of each sequence: hidden [n, hidden], positions and slots [n]."""
    x = {"x": hidden}
    normed = ask("POST", "rmsnorm", {"eps": EPS, **places(from_weight="norm")}, x)["y"]
    q, k, v = project(normed, weights)
    where = places(from_q_weight="q_norm", from_k_weight="k_norm", into_q="q", into_k="k")
    qk = {"q": q, "k": k, "positions": positions}
    ask("POST", "qk_rmsnorm_rope", {"eps": EPS, "theta": THETA, **where}, qk)
    where = places(from_q="q", from_k="k", from_positions="zeros", into_q="q")
    caches = places(from_k_cache="k_cache", from_v_cache="v_cache")
    ask("POST", "rope_append", {**where, **caches}, {"v": v, "slots": slots})


# The same in float64 ------------------------------------------------------


def norm64(x, weight):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + EPS) * weight.astype(np.float64)


def rope64(x, positions):
    """x [n, heads, width]; the angles are float32 numbers, as models have them."""
    exponents = (np.arange(0, WIDTH, 2, dtype=np.float32) / np.float32(WIDTH)).astype(np.float64)
    frequencies = np.float32(1) / np.power(THETA, exponents).astype(np.float32)
    angles = (positions.astype(np.float32)[:, None, None] * frequencies).astype(np.float64)
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)], axis=-1)


def step64(hidden, positions, weights):
    q, k, v = project(norm64(hidden.astype(np.float64), weights["norm"]), weights)
    return rope64(norm64(q, weights["q_norm"]), positions), rope64(norm64(k, weights["k_norm"]), positions), v


def check(name, found, expected):
    """Within 1e-5 of the largest magnitude of its head; zeros stay zeros."""
    bound = 1e-5 * np.abs(expected).max(axis=-1, keepdims=True)
    error = np.abs(found.astype(np.float64) - expected)
    if found.shape != expected.shape or not (error <= bound).all():
        sys.exit(f"{name} is WRONG: off by up to {error.max():.3g}")
    print(f"{name} {list(found.shape)}: largest error {error.max():.1e} beside values up to {np.abs(expected).max():.2f}")


def made_up_weights(rng):
    def normal(*shape):
        return rng.standard_normal(shape, np.float32)

    return {
        "norm": 1 + normal(HIDDEN) / 8,
        "q_norm": 1 + normal(WIDTH) / 8,
        "k_norm": 1 + normal(WIDTH) / 8,
        "qkv": normal(HIDDEN, (Q_HEADS + 2 * KV_HEADS) * WIDTH) / np.float32(np.sqrt(HIDDEN)),
    }


def decode():
    rng = np.random.default_rng(1)
    weights = made_up_weights(rng)
    lengths = np.array([0, 7, 100, LONGEST - STEPS], np.int32)  # before the first step
    first_slots = np.arange(SEQUENCES, dtype=np.int32) * LONGEST
    k_cache = np.zeros((SEQUENCES * LONGEST, KV_HEADS, WIDTH))
    v_cache = np.zeros_like(k_cache)

    prepare(weights)
    before = sent, received
    for i in range(STEPS):
        hidden = rng.standard_normal((SEQUENCES, HIDDEN), np.float32)
        positions = lengths + np.int32(i)
        slots = first_slots + positions
        step(hidden, positions, slots, weights)
        q, k_cache[slots], v_cache[slots] = step64(hidden, positions, weights)
    tokens = SEQUENCES * STEPS
    up, down = (sent - before[0]) / tokens, (received - before[1]) / tokens

    check("q of the last step", read("q"), q)
    check("k_cache", read("k_cache"), k_cache)
    check("v_cache", read("v_cache"), v_cache)
    print(f"per token {up:,.0f} bytes sent and {down:,.0f} received; {sum(resident().values()):,} stay on the server")


if __name__ == "__main__":
    try:
        try:
            decode()
        finally:
            forget()
    except requests.ConnectionError:
        sys.exit(f"no server at {URL}, or it went away")
