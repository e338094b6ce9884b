#!/usr/bin/env python3
"""One decode step of a Llama layer up to its attention, with transformers' own
modules, with roped.ops in this process, and with a daemon that keeps the
weights and the KV cache.

    ./decoder.py [http://127.0.0.1:8000]
"""

import sys

import torch
from transformers.models.llama import modeling_llama as llama

import roped
from roped import ops

BATCH, SLOTS = 4, 64  # a sequence each; slots of the KV cache
CONFIG = llama.LlamaConfig(hidden_size=512, num_attention_heads=8, num_key_value_heads=2, rms_norm_eps=1e-5)
HEAD, THETA = 64, 10000.0

torch.manual_seed(1)
norm = llama.LlamaRMSNorm(CONFIG.hidden_size, CONFIG.rms_norm_eps)
norm.weight.data = torch.rand(CONFIG.hidden_size) + 0.5
qkv = torch.nn.Linear(CONFIG.hidden_size, (8 + 2 + 2) * HEAD, bias=False)
hidden = torch.randn(BATCH, CONFIG.hidden_size)
positions = torch.tensor([17, 3, 40, 0])
slots = torch.tensor([5, 60, 0, 33])


def heads(rows):
    """Of q, k and v: [tokens, heads, width]."""
    return rows.view(BATCH, -1, HEAD).split([8, 2, 2], dim=1)


def by_transformers():
    q, k, v = (part.transpose(0, 1)[None] for part in heads(qkv(norm(hidden))))
    cos, sin = llama.LlamaRotaryEmbedding(CONFIG)(v, positions[None])
    q, k = llama.apply_rotary_pos_emb(q, k, cos, sin)
    k_cache, v_cache = torch.zeros(SLOTS, 2, HEAD), torch.zeros(SLOTS, 2, HEAD)
    k_cache[slots], v_cache[slots] = k[0].transpose(0, 1), v[0].transpose(0, 1)
    return q[0].transpose(0, 1), k_cache, v_cache


def in_process():
    k_cache, v_cache = torch.zeros(SLOTS, 2, HEAD), torch.zeros(SLOTS, 2, HEAD)
    q, k, v = heads(qkv(ops.rmsnorm(hidden, norm.weight, eps=CONFIG.rms_norm_eps, rounding="hf")))
    q = ops.rope_append(q, k, v, k_cache, v_cache, slots, positions=positions, theta=THETA).q
    return q, k_cache, v_cache


def remote(url):
    with (
        roped.Client(url) as client,
        client.put(norm.weight) as weight,
        client.put(torch.zeros(SLOTS, 2, HEAD)) as k_cache,
        client.put(torch.zeros(SLOTS, 2, HEAD)) as v_cache,
    ):
        q, k, v = heads(qkv(client.rmsnorm(hidden, weight, eps=CONFIG.rms_norm_eps, rounding="hf")))
        q = client.rope_append(q, k, v, k_cache, v_cache, slots, positions=positions, theta=THETA).q
        return q, k_cache.get(), v_cache.get()


with torch.no_grad():
    want = by_transformers()
    results = {"in process": in_process()}
    if len(sys.argv) > 1:
        results["remote"] = remote(sys.argv[1])
for name, result in results.items():
    torch.testing.assert_close(result, want)
    print(f"{name}: q and both caches are those of transformers")
