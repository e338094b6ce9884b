"""Programs of a daemon, from Python: made, called on tensors and regions, pinned to their document."""

import asyncio

import numpy as np
import pytest

import roped

NORMS = {
    "inputs": ["x", "residual"],
    "parameters": {"eps": 1e-5},
    "steps": [
        {
            "op": "add_rmsnorm",
            "in": {"x": "x", "residual": "residual"},
            "out": {"y": "h", "residual": "sum"},
            "params": {"eps": "$eps"},
        },
        {"op": "rmsnorm", "in": {"x": "h"}, "out": {"y": "y"}},
    ],
    "outputs": ["y", "sum"],
}


def test_a_program_gives_the_bits_of_calls(client, rng):
    x, residual = rng.standard_normal((2, 3, 64), dtype=np.float32)
    h, total = client.add_rmsnorm(x, residual, eps=0.5)
    program = client.program("norms", NORMS)
    assert repr(program) == "<Program norms: x, residual -> y, sum>"
    assert program.parameters == {"eps": "1e-05"}
    made = program(x=x, residual=residual, eps=0.5)
    assert set(made) == {"y", "sum"}
    np.testing.assert_array_equal(made["y"], client.rmsnorm(h))
    np.testing.assert_array_equal(made["sum"], total)
    assert client.timing.wall > 0
    assert "norms" in [row["name"] for row in client.programs()]
    assert client.program("norms").etag == program.etag
    program.delete()
    with pytest.raises(KeyError):
        client.program("norms")


def test_regions_are_inputs_and_outputs(client, rng):
    x, residual = rng.standard_normal((2, 3, 64), dtype=np.float32)
    program = client.program("norms", NORMS)
    expected = program(x=x, residual=residual)
    with client.put(x) as x_there, client.zeros((3, 64)) as sum_there:
        made = program(x=x_there, residual=residual, out={"sum": sum_there})
        assert made["sum"] is sum_there
        np.testing.assert_array_equal(made["y"], expected["y"])
        np.testing.assert_array_equal(sum_there.get(), expected["sum"])


def test_torch_comes_back_as_torch(client, rng):
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(rng.standard_normal((3, 64), dtype=np.float32)).bfloat16()
    made = client.program("norms", NORMS)(x=x, residual=x)
    assert made["y"].dtype == torch.bfloat16 and made["y"].shape == (3, 64)


def test_asynchronous_calls(server, rng):
    x, residual = rng.standard_normal((2, 3, 64), dtype=np.float32)

    async def run():
        async with roped.AsyncClient(server) as client:
            program = await client.program("norms", NORMS)
            made = await asyncio.gather(*(program(x=x, residual=residual) for _ in range(4)))
            assert program.inputs == ["x", "residual"] and "norms" in [row["name"] for row in await client.programs()]
            expected = await client.rmsnorm(await client.rmsnorm(made[0]["sum"], eps=1e-5))
            await program.delete()
            assert "norms" not in [row["name"] for row in await client.programs()]
            return made, expected

    made, expected = asyncio.run(run())
    assert all(np.array_equal(one["y"], made[0]["y"]) for one in made)
    np.testing.assert_allclose(made[0]["y"], expected, rtol=1e-5, atol=1e-6)


def test_what_is_wrong_says_where(client, rng):
    x = rng.standard_normal((3, 64), dtype=np.float32)
    program = client.program("norms", NORMS)
    with pytest.raises(roped.Error, match=r"step 1 \(add_rmsnorm\): tensor 'residual': ") as caught:
        program(x=x, residual=x[:2])
    assert caught.value.code == "bad_shape"
    with pytest.raises(roped.Error, match="unknown parameter 'epsilon'"):
        program(x=x, residual=x, epsilon=1)
    with pytest.raises(roped.Error, match="no operator 'norm'"):
        client.program("wrong", {"steps": [{"op": "norm"}]})
    client.program("norms", NORMS | {"outputs": ["y"]})
    with pytest.raises(roped.Error) as caught:  # another document has its place
        program(x=x, residual=x)
    assert caught.value.code == "mismatch" and caught.value.status == 412
