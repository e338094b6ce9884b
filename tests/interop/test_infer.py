"""tritonclient.http: what an inference may look like, and what comes back."""

import ml_dtypes
import numpy as np
import pytest
import requests
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from reference import assert_close, assert_rounded_to, rmsnorm, rope

POSITIONS = np.array([0, 1, 7, 100, 3], np.int32)


def tensor(name, array, binary=True):
    value = triton.InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
    value.set_data_from_numpy(array, binary_data=binary)
    return value


def wanted(name, binary=True):
    return triton.InferRequestedOutput(name, binary_data=binary)


def heads(rng, dtype=np.float32, n_heads=4, width=64):
    return rng.standard_normal((len(POSITIONS), n_heads, width)).astype(dtype)


def rows(rng, n=2, width=8):
    return rng.standard_normal((n, width), dtype=np.float32)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("style", ["neox", "gptj"])
def test_rope(client, rng, dtype, style):
    q, k = heads(rng, dtype), heads(rng, dtype, n_heads=2)
    inputs = [tensor("q", q), tensor("k", k), tensor("positions", POSITIONS)]
    result = client.infer("rope", inputs, parameters={"style": style, "theta": 500000.0})
    assert result.as_numpy("q").dtype == dtype
    assert_close(result.as_numpy("q"), rope(q, POSITIONS, style, 500000.0))
    assert_close(result.as_numpy("k"), rope(k, POSITIONS, style, 500000.0))


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_tensors_as_json(client, rng, binary_in, binary_out):
    q = heads(rng)
    inputs = [tensor("q", q, binary_in), tensor("positions", POSITIONS, binary_in)]
    result = client.infer("rope", inputs, outputs=[wanted("q", binary_out)])
    assert ("data" in result.get_output("q")) == (not binary_out)
    assert_close(result.as_numpy("q"), rope(q, POSITIONS))


def test_one_input_as_json_one_as_binary(client, rng):
    q = heads(rng)
    result = client.infer("rope", [tensor("q", q), tensor("positions", POSITIONS, False)])
    assert_close(result.as_numpy("q"), rope(q, POSITIONS))


@pytest.mark.parametrize("format", ["e4m3", "e5m2"])
def test_fp8_is_uint8_with_a_hint(client, rng, format):
    q, k = heads(rng, ml_dtypes.bfloat16), heads(rng, ml_dtypes.bfloat16, n_heads=1)
    result = client.infer(
        "rope_quantize",
        [tensor("q_rope", q), tensor("k_rope", k), tensor("positions", POSITIONS)],
        parameters={"output_dtype": format, "scale_q": 2.0},
    )
    response, output = result.get_response(), result.get_output("q_rope")
    assert output["datatype"] == "UINT8"
    assert output["parameters"]["content_datatype"] == f"F8_{format.upper()}"
    assert response["parameters"]["content_datatype.q_rope"] == f"F8_{format.upper()}"
    codes = result.as_numpy("q_rope")
    dtype = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}[format]
    assert_rounded_to(codes.view(dtype), 2.0 * rope(q, POSITIONS))


SLOTS = np.array([4, -1, 0, 2, 3], np.int64)  # the second token is padding


def test_norm_rope_and_fp8_cache_in_one_call(client, rng):
    """vLLM's fused_qknorm_rope_cache: q keeps its type beside FP8 caches."""
    dtype, fp8 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
    q, k, v = (heads(rng, dtype, n_heads) for n_heads in [4, 2, 2])
    caches = np.full((6, *k.shape[1:]), 0x7E, np.uint8)
    positions = np.where(SLOTS < 0, -1, POSITIONS)
    inputs = {"q": q, "k": k, "v": v, "k_cache": caches, "v_cache": caches, "slots": SLOTS}
    inputs |= {"positions": positions, "scale_v": np.array([2.0], np.float32)}
    result = client.infer(
        "qk_rmsnorm_rope_append", [tensor(*i) for i in inputs.items()], parameters={"scale_k": 0.5}
    )
    written, found = SLOTS >= 0, {name: result.as_numpy(name) for name in ["q", "k_cache", "v_cache"]}
    assert (found["q"][~written] == q[~written]).all()
    assert_close(found["q"][written], rope(rmsnorm(q), POSITIONS)[written])
    for name, expected in [("k_cache", 0.5 * rope(rmsnorm(k), POSITIONS)), ("v_cache", 2.0 * v.astype(np.float64))]:
        assert_rounded_to(found[name][SLOTS[written]].view(fp8), expected[written])
        assert (np.delete(found[name], SLOTS[written], axis=0) == 0x7E).all()


def test_rope_and_mla_cache_in_one_call(client, rng):
    """vLLM's rotary embedding and concat_and_cache_mla: pages of one cache."""
    q, k, latent = heads(rng), heads(rng, n_heads=1)[:, 0], rng.standard_normal((5, 512)).astype(np.float32)
    cache = np.zeros((2, 3, 512 + 64), np.float32)  # pages of 3 entries
    inputs = {"q": q, "k": k, "v": latent, "k_cache": cache, "slots": SLOTS, "positions": POSITIONS}
    result = client.infer("rope_append", [tensor(*i) for i in inputs.items()])
    assert_close(result.as_numpy("q"), rope(q, POSITIONS))
    cells = result.as_numpy("k_cache").reshape(6, -1)
    assert (cells[SLOTS[SLOTS >= 0], :512] == latent[SLOTS >= 0]).all()
    assert_close(cells[SLOTS[SLOTS >= 0], 512:], rope(k[:, None], POSITIONS)[SLOTS >= 0, 0])
    assert not cells[[1, 5]].any()


def test_fp8_codes_as_json(client, rng):
    inputs = [tensor("q_rope", heads(rng)), tensor("k_rope", heads(rng, n_heads=1))]
    binary = client.infer("rope_quantize", inputs)
    text = client.infer("rope_quantize", inputs, outputs=[wanted("q_rope", False)])
    # the C++ client gives up on "parameters" without "binary_data_size"
    assert "parameters" not in text.get_output("q_rope")
    assert (text.as_numpy("q_rope") == binary.as_numpy("q_rope")).all()


def test_request_id_comes_back(client, rng):
    inputs = [tensor("x", rows(rng))]
    for request_id in ["call-7", "ü \"'\\"]:
        result = client.infer("rmsnorm", inputs, request_id=request_id)
        assert result.get_response()["id"] == request_id
    assert "id" not in client.infer("rmsnorm", inputs).get_response()


def test_response_names_model_and_version(client, rng):
    for version in ["", "1"]:
        result = client.infer("rmsnorm", [tensor("x", rows(rng))], model_version=version)
        response = result.get_response()
        assert (response["model_name"], response["model_version"]) == ("rmsnorm", "1")


def test_outputs_in_the_order_asked_for(client, rng):
    q, k = heads(rng), heads(rng, n_heads=2)
    inputs = [tensor("q", q), tensor("k", k), tensor("positions", POSITIONS)]
    result = client.infer("rope", inputs, outputs=[wanted("k"), wanted("q", False)])
    assert [output["name"] for output in result.get_response()["outputs"]] == ["k", "q"]
    assert_close(result.as_numpy("k"), rope(k, POSITIONS))
    assert_close(result.as_numpy("q"), rope(q, POSITIONS))


def test_subset_of_outputs(client, rng):
    q, k = heads(rng), heads(rng, n_heads=2)
    inputs = [tensor("q", q), tensor("k", k), tensor("positions", POSITIONS)]
    result = client.infer("rope", inputs, outputs=[wanted("k")])
    assert result.as_numpy("q") is None
    assert_close(result.as_numpy("k"), rope(k, POSITIONS))


def test_nan_and_infinity(client):
    x = np.array([[np.nan, 1, 2, 3], [np.inf, -np.inf, 0, 1], [1, 2, 3, 4]], np.float32)
    result = client.infer("rmsnorm", [tensor("x", x)], outputs=[wanted("y", True)])
    y = result.as_numpy("y")
    with np.errstate(all="ignore"):
        expected = rmsnorm(x)
    assert np.isnan(y[:2]).tolist() == np.isnan(expected[:2]).tolist()
    assert_close(y[2:], expected[2:])


def test_json_has_no_nan_and_no_infinity(client):
    x = np.array([[np.nan, 1, 1, 1]], np.float32)
    with pytest.raises(InferenceServerException, match="send the tensor binary"):
        client.infer("rmsnorm", [tensor("x", x, False)])
    with pytest.raises(InferenceServerException, match="which JSON cannot say"):
        client.infer("rmsnorm", [tensor("x", x)], outputs=[wanted("y", False)])


def test_zero_tokens(client):
    result = client.infer("rope", [tensor("q", np.zeros((0, 4, 64), np.float32))])
    assert result.as_numpy("q").shape == (0, 4, 64)


def test_priority_and_timeout_are_taken(client, rng):
    x = rows(rng)
    result = client.infer("rmsnorm", [tensor("x", x)], priority=1, timeout=5_000_000)
    assert_close(result.as_numpy("y"), rmsnorm(x))


def test_sequences_are_refused(client, rng):
    with pytest.raises(InferenceServerException, match="'sequence_id' is not supported"):
        client.infer("rmsnorm", [tensor("x", rows(rng))], sequence_id=3, sequence_start=True)


def test_classification_is_refused(client, rng):
    wants = triton.InferRequestedOutput("y", class_count=3)
    with pytest.raises(InferenceServerException, match="classification is not supported"):
        client.infer("rmsnorm", [tensor("x", rows(rng))], outputs=[wants])


def test_query_and_headers_are_ignored(client, rng):
    x = rows(rng)
    result = client.infer(
        "rmsnorm", [tensor("x", x)], query_params={"test_1": 1, "test_2": 2}, headers={"test": "1"}
    )
    assert_close(result.as_numpy("y"), rmsnorm(x))


def test_many_calls_of_changing_size_over_one_connection(client, rng):
    for n in [1, 1000, 3, 5000, 2]:
        x = rows(rng, n, 64)
        assert_close(client.infer("rmsnorm", [tensor("x", x)]).as_numpy("y"), rmsnorm(x))


def test_async_infer(address, rng):
    arrays = [rows(rng, n, 64) for n in range(1, 33)]
    with triton.InferenceServerClient(address, concurrency=8) as client:
        handles = [
            client.async_infer("rmsnorm", [tensor("x", x)], request_id=str(i))
            for i, x in enumerate(arrays)
        ]
        for i, (x, handle) in enumerate(zip(arrays, handles)):
            result = handle.get_result(timeout=30)
            assert result.get_response()["id"] == str(i)
            assert_close(result.as_numpy("y"), rmsnorm(x))


def test_body_made_and_read_by_the_client_library(address, rng):
    """generate_request_body and parse_response_body, as proxies use them."""
    x = rows(rng)
    body, json_bytes = triton.InferenceServerClient.generate_request_body([tensor("x", x)])
    response = requests.post(
        f"http://{address}/v2/models/rmsnorm/infer",
        data=body,
        headers={"Inference-Header-Content-Length": str(json_bytes)},
    )
    json_bytes = int(response.headers["Inference-Header-Content-Length"])
    result = triton.InferenceServerClient.parse_response_body(
        response.content, header_length=json_bytes
    )
    assert_close(result.as_numpy("y"), rmsnorm(x))
