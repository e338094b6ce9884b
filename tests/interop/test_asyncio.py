"""tritonclient.http.aio: asyncio, on aiohttp, which asks for gzip on every
request."""

import asyncio

import numpy as np
import pytest
import tritonclient.http.aio as triton
from tritonclient.utils import InferenceServerException

from reference import assert_close, rmsnorm
from test_infer import tensor


def run(address, body):
    async def main():
        client = triton.InferenceServerClient(address)
        try:
            await body(client)
        finally:
            await client.close()

    asyncio.run(main())


def test_infer(address, rng):
    arrays = [rng.standard_normal((n, 64), dtype=np.float32) for n in range(1, 17)]

    async def body(client):
        results = await asyncio.gather(*[client.infer("rmsnorm", [tensor("x", x)]) for x in arrays])
        for x, result in zip(arrays, results):
            assert_close(result.as_numpy("y"), rmsnorm(x))

    run(address, body)


def test_json_alone(address, rng):
    x = rng.standard_normal((3, 4), dtype=np.float32)

    async def body(client):
        result = await client.infer("rmsnorm", [tensor("x", x, False)], outputs=[triton.InferRequestedOutput("y", binary_data=False)])
        assert_close(result.as_numpy("y"), rmsnorm(x))

    run(address, body)


def test_management(address):
    async def body(client):
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready("rope")
        assert not await client.is_model_ready("rope", model_version="2")
        assert (await client.get_server_metadata())["name"] == "roped"
        assert (await client.get_model_metadata("rope"))["name"] == "rope"
        assert (await client.get_model_config("rope"))["name"] == "rope"
        assert "rope" in [model["name"] for model in await client.get_model_repository_index()]
        assert len((await client.get_inference_statistics("rope"))["model_stats"]) == 1
        assert (await client.get_trace_settings())["trace_level"] == ["OFF"]
        assert (await client.get_log_settings())["log_error"] is True

    run(address, body)


def test_error(address):
    async def body(client):
        with pytest.raises(InferenceServerException, match="^\\[404\\] Request for unknown model: 'none' is not found$"):
            await client.get_model_metadata("none")

    run(address, body)
