"""Compressed bodies, as clients offer them. Answers come as they are, which is
any client's second choice, unless the daemon has compress_answers."""

import asyncio
import gzip
import zlib

import numpy as np
import pytest
import requests
import safetensors.numpy
import tritonclient.http as triton
import tritonclient.http.aio as aio

from reference import assert_close, rmsnorm
from test_infer import rows, tensor, wanted

ALGORITHMS = {"gzip": gzip.compress, "deflate": zlib.compress}


@pytest.mark.parametrize("request_algorithm", [None, "gzip", "deflate"])
@pytest.mark.parametrize("response_algorithm", [None, "gzip", "deflate"])
@pytest.mark.parametrize("binary", [True, False])
def test_tritonclient(client, rng, request_algorithm, response_algorithm, binary):
    x = rows(rng, 100, 64)
    result = client.infer(
        "rmsnorm",
        [tensor("x", x, binary)],
        request_compression_algorithm=request_algorithm,
        response_compression_algorithm=response_algorithm,
    )
    assert_close(result.as_numpy("y"), rmsnorm(x))


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_asyncio_client(address, rng, algorithm):
    x = rows(rng, 100, 64)

    async def infer():
        async with aio.InferenceServerClient(address) as client:
            return await client.infer(
                "rmsnorm",
                [tensor("x", x)],
                request_compression_algorithm=algorithm,
                response_compression_algorithm=algorithm,
            )

    assert_close(asyncio.run(infer()).as_numpy("y"), rmsnorm(x))


@pytest.mark.parametrize("algorithm", [None, "gzip", "deflate"])
@pytest.mark.parametrize("binary", [True, False])
def test_answers(demo_address, rng, algorithm, binary):
    """The demo daemon has compress_answers; random bits would not shrink."""
    x = np.round(rows(rng, 100, 64))
    with triton.InferenceServerClient(demo_address) as client:
        result = client.infer(
            "rmsnorm",
            [tensor("x", x)],
            outputs=[wanted("y", binary)],
            response_compression_algorithm=algorithm,
        )
    assert_close(result.as_numpy("y"), rmsnorm(x))


@pytest.mark.parametrize("accept, expected", [("gzip", "gzip"), ("deflate", "deflate"), ("gzip;q=0", None), (None, None)])
def test_answers_say_how_they_are_encoded(demo_address, accept, expected):
    body = safetensors.numpy.save({"x": np.ones((100, 64), np.float32)})
    with requests.Session() as session:
        session.headers["Accept-Encoding"] = accept
        response = session.post(f"http://{demo_address}/v1/rmsnorm", data=body)
        assert response.headers.get("Content-Encoding") == expected
        assert response.headers.get("Vary") == ("Accept-Encoding" if expected else None)
        assert safetensors.numpy.load(response.content)["y"].shape == (100, 64)
        wire_bytes = int(response.headers["Content-Length"])
        assert (wire_bytes < len(response.content)) == (expected is not None)
        small = session.get(f"http://{demo_address}/v2/health/live")
        assert small.headers.get("Content-Encoding") is None


def test_answers_are_not_compressed_by_default(address):
    response = requests.get(f"http://{address}/openapi.json", headers={"Accept-Encoding": "gzip"})
    assert response.headers.get("Content-Encoding") is None


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
@pytest.mark.parametrize("n_rows", [1, 100_000])
def test_safetensors(address, rng, algorithm, n_rows):
    x = rows(rng, n_rows, 32)
    body = ALGORITHMS[algorithm](safetensors.numpy.save({"x": x}), 1)
    response = requests.post(
        f"http://{address}/v1/rmsnorm", data=body, headers={"Content-Encoding": algorithm}
    )
    assert response.status_code == 200, response.text
    assert_close(safetensors.numpy.load(response.content)["y"], rmsnorm(x))


def test_gzip_of_several_members(address):
    """As pigz and bgzip write it, and who appends one file to another."""
    body = safetensors.numpy.save({"x": np.ones((4, 64), np.float32)})
    members = b"".join(gzip.compress(body[at : at + 100]) for at in range(0, len(body), 100))
    response = requests.post(f"http://{address}/v1/rmsnorm", data=members, headers={"Content-Encoding": "gzip"})
    assert response.status_code == 200, response.text
    bomb = gzip.compress(bytes(1 << 20)) * 100
    response = requests.post(f"http://{address}/v1/rmsnorm", data=bomb, headers={"Content-Encoding": "gzip"})
    assert response.status_code == 413


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_a_bomb_is_refused(address, algorithm):
    body = ALGORITHMS[algorithm](safetensors.numpy.save({"x": np.zeros((65, 1 << 18), np.float32)}))
    assert len(body) < 1 << 20
    response = requests.post(
        f"http://{address}/v1/rmsnorm", data=body, headers={"Content-Encoding": algorithm}
    )
    assert response.status_code == 413
    assert "max_inflated_bytes" in response.json()["error"]


@pytest.mark.parametrize(
    "body, phrase",
    [
        (b"plain text", "is not"),
        (gzip.compress(b"{}")[:-4], "ends"),
        (gzip.compress(b"{}") + b"x", "follows"),
        (gzip.compress(b"{}") + gzip.compress(b"{}")[:-4], "ends"),
        (b"", "ends"),
    ],
)
def test_broken_bodies(address, body, phrase):
    response = requests.post(
        f"http://{address}/v2/models/rmsnorm/infer", data=body, headers={"Content-Encoding": "gzip"}
    )
    assert response.status_code == 400
    assert phrase in response.json()["error"] and "Content-Encoding" in response.json()["error"]


def test_unknown_encoding(address):
    response = requests.post(
        f"http://{address}/v2/models/rmsnorm/infer", data=b"{}", headers={"Content-Encoding": "br"}
    )
    assert response.status_code == 415
    assert "Content-Encoding" in response.json()["error"]
    assert response.headers["Accept-Encoding"] == "gzip, deflate"
