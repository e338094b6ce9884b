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


def test_numbers_of_numpy_are_those_of_documents(client, rng):
    x = rng.standard_normal((3, 64), dtype=np.float32)
    recorder = client.record()
    eps, dynamic = recorder.parameter("eps", np.float32(0.5)), recorder.parameter("dynamic", np.bool_(True))
    h = recorder.rmsnorm(recorder.input("x", "F32", (np.int64(3), 64)), eps=eps, heads=np.int64(2))
    recorder.output(**recorder.rmsnorm_quantize(h, eps=np.float32(0.25), dynamic=dynamic)._asdict())
    program = client.program("numbers", recorder.document)
    want = client.rmsnorm_quantize(client.rmsnorm(x, eps=0.5, heads=2), eps=0.25, dynamic=True)
    for made in [program(x=x), program(x=x, eps=np.float64(0.5), dynamic=np.bool_(True))]:
        np.testing.assert_array_equal(made["scales"], want.scales)
    program.delete()
    table = {"theta": np.float32(1e4), "rotary_dim": np.int64(64), "truncate": np.bool_(False), "mrope_section": np.array([16, 8, 8])}
    assert client.put_table("numbers", table)["tables"][0]["mrope_section"] == [16, 8, 8]
    client.delete_table("numbers")


def test_steps_are_timed(client, rng):
    x, residual = rng.standard_normal((2, 3, 64), dtype=np.float32)
    program = client.program("norms", NORMS)
    expected = program(x=x, residual=residual)
    assert program.step_seconds == []
    made = program(x=x, residual=residual, timing="steps")
    np.testing.assert_array_equal(made["y"], expected["y"])
    assert len(program.step_seconds) == 2 and all(0 < seconds < 1 for seconds in program.step_seconds)


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


def test_a_recording_is_a_document(client, rng):
    with client.record() as p:
        x, residual = p.input("x"), p.input("residual")
        h, total = p.add_rmsnorm(x, residual, eps=p.parameter("eps", 1e-5))
        y = p.rmsnorm(h)
        p.output(y=y, sum=total)
    assert p.document == {
        "inputs": ["x", "residual"],
        "parameters": {"eps": 1e-5},
        "steps": [
            {
                "op": "add_rmsnorm",
                "in": {"x": "x", "residual": "residual"},
                "out": {"y": "add_rmsnorm1.y", "residual": "sum"},
                "params": {"eps": "$eps"},
            },
            {"op": "rmsnorm", "in": {"x": "add_rmsnorm1.y"}, "out": {"y": "y"}},
        ],
        "outputs": ["y", "sum"],
    }
    x, residual = rng.standard_normal((2, 3, 64), dtype=np.float32)
    made = client.program("recorded", p.document)(x=x, residual=residual, eps=0.5)
    expected = client.program("norms", NORMS)(x=x, residual=residual, eps=0.5)
    np.testing.assert_array_equal(made["y"], expected["y"])
    np.testing.assert_array_equal(made["sum"], expected["sum"])


def test_a_recording_with_regions_updates_them(client, rng):
    q, k, v = rng.standard_normal((3, 2, 1, 16), dtype=np.float32)
    with client.zeros((8, 1, 16), name="keys") as keys, client.zeros((8, 1, 16), name="values") as values:
        with client.record() as p:
            result = p.rope_append(
                p.input("q", "F32", ["n", 1, 16]), p.input("k"), p.input("v"), keys, p.region("values"),
                slots=p.input("slots"), positions=p.input("positions"), theta=500000.0,
            )  # fmt: skip
            assert result.k_cache.name == "@keys"
            p.output(rotated=result.q)
        program = client.program("append", p.document)
        assert program.regions == ["keys", "values"]
        slots, positions = np.array([3, 5]), np.array([7, 8])
        made = program(q=q, k=k, v=v, slots=slots, positions=positions)
        np.testing.assert_array_equal(made["rotated"], client.rope(q, positions=positions, theta=500000.0)[0])
        np.testing.assert_array_equal(values.get()[slots], v)
        assert keys.get()[slots].any() and not keys.get()[0].any()


def test_a_step_leaves_its_output_in_a_region(client, rng):
    x = rng.standard_normal((3, 64), dtype=np.float32)
    with client.zeros((3, 64)) as there:
        with client.record() as p:
            h = p.rmsnorm(p.input("x"), out=there)
            p.output(y=p.rmsnorm(h))
        made = client.program("left", p.document)(x=x)
        np.testing.assert_array_equal(there.get(), client.rmsnorm(x))
        np.testing.assert_array_equal(made["y"], client.rmsnorm(client.rmsnorm(x)))


def test_what_cannot_be_recorded_says_why(client):
    p, other = client.record(), client.record()
    x = p.input("x")
    with pytest.raises(ValueError, match="'x' is there already"):
        p.input("x")
    with pytest.raises(TypeError, match=r"rmsnorm\(\): tensor 'x' is ndarray, expected a value of the recording"):
        p.rmsnorm(np.ones((2, 4)))
    with pytest.raises(ValueError, match="is 'x' of another recording"):
        other.rmsnorm(x)
    with pytest.raises(TypeError, match="unexpected argument 'epz'; did you mean 'eps'"):
        p.rmsnorm(x, epz=1)
    with pytest.raises(ValueError, match="output 'y' is 'x', expected what a step makes"):
        p.output(y=x)
    with pytest.raises(ValueError, match=r"output 'y' is 'x', expected a region"):
        p.rmsnorm(x, out=x)
    h = p.rmsnorm(x)
    p.output(y=h)
    with pytest.raises(ValueError, match="output 'z' is output 'y' already"):
        p.output(z=h)
    with pytest.raises(ValueError, match="parameter 'e' is there already"):
        p.parameter("e"), p.parameter("e")


def test_the_asynchronous_client_records(server, rng):
    x = rng.standard_normal((3, 64), dtype=np.float32)

    async def run():
        async with roped.AsyncClient(server) as client:
            with await client.record() as p:
                p.output(y=p.rmsnorm(p.input("x")))
            program = await client.program("alone", p.document)
            return await program(x=x), await client.rmsnorm(x)

    made, expected = asyncio.run(run())
    np.testing.assert_array_equal(made["y"], expected)
