"""Tensors as slices of the rows of one region: q, k and v of a projection, x before padding."""

import numpy as np
import requests
import safetensors.numpy
from test_safetensors import load


def fuse(address, written, **parts):
    """Puts the parts [n, ...] side by side into region fused; returns the parameters that name its
    slices. Parts in written are outputs too; _name is a part that the call does not know."""
    rows = np.concatenate([part.reshape(len(part), -1) for part in parts.values()], axis=1)
    body = safetensors.numpy.save({"rows": rows})
    assert requests.put(f"http://{address}/v1/regions/fused", data=body).ok
    params, at = {}, 0
    for name, part in parts.items():
        place = f"fused:{at * rows.itemsize}"
        at += part[0].size
        if name.startswith("_"):
            continue
        params |= {f"from.{name}": place, f"stride.{name}": rows.shape[1]}
        params[f"shape.{name}"] = ",".join(map(str, part.shape))
        params |= {f"into.{name}": place} if name in written else {}
    return params


def fused(address, *parts):
    """What the region now has of such parts."""
    (rows,) = load(requests.get(f"http://{address}/v1/regions/fused").content).values()
    pieces = np.split(rows, np.cumsum([part[0].size for part in parts]), axis=1)
    assert pieces[-1].size == 0
    return [piece.reshape(part.shape) for piece, part in zip(pieces, parts)]
