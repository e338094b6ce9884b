"""tritonclient.http: one call after the other, over one connection."""

import numpy as np
import pytest
import tritonclient.http as triton

from reference import assert_close, rope


def test_rope_binary(client, rng):
    q = rng.standard_normal((5, 4, 64), dtype=np.float32)
    positions = np.array([0, 1, 7, 100, 3], np.int32)
    inputs = [triton.InferInput("q", q.shape, "FP32"), triton.InferInput("positions", positions.shape, "INT32")]
    inputs[0].set_data_from_numpy(q)
    inputs[1].set_data_from_numpy(positions)
    result = client.infer("rope", inputs)
    assert_close(result.as_numpy("q"), rope(q, positions))
