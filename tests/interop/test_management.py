"""Everything that clients ask besides inference: health, metadata, config,
statistics, repository, trace and log settings."""

import json

import numpy as np
import pytest
import requests
from tritonclient.utils import InferenceServerException

from test_infer import tensor

STATISTICS = ["success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss"]


def test_health(client, address):
    assert client.is_server_live() and client.is_server_ready()
    assert requests.get(f"http://{address}/v2/health/live").json() == {"live": True}  # KServe's client parses it
    assert requests.get(f"http://{address}/v2/health/ready").json() == {"ready": True}


def test_model_ready(client, address):
    assert client.is_model_ready("rope") and client.is_model_ready("rope", "1")
    assert not client.is_model_ready("rope", "2") and not client.is_model_ready("none")
    assert requests.get(f"http://{address}/v2/models/rope/ready").json() == {"name": "rope", "ready": True}


def test_server_metadata(client):
    metadata = client.get_server_metadata(query_params={"test_1": 1})
    assert metadata["name"] == "roped"
    assert {"binary_tensor_data", "parameters", "statistics", "model_configuration"} <= set(metadata["extensions"])


@pytest.mark.parametrize("path", ["/v2", "/v2/"])
def test_trailing_slash(address, path):
    assert requests.get(f"http://{address}{path}").json()["name"] == "roped"


def models(client):
    return [model["name"] for model in client.get_model_repository_index()]


def test_metadata_and_config_agree(client):
    for name in models(client):
        metadata, config = client.get_model_metadata(name), client.get_model_config(name)
        assert metadata["name"] == config["name"] == name
        assert metadata["versions"] == ["1"]
        assert config["max_batch_size"] == 0
        for of_metadata, of_config in [("inputs", "input"), ("outputs", "output")]:
            assert [t["name"] for t in metadata[of_metadata]] == [t["name"] for t in config[of_config]]
            for stated, configured in zip(metadata[of_metadata], config[of_config]):
                assert configured["data_type"] == "TYPE_" + stated["datatype"]
                assert configured["dims"] == stated["shape"]
        assert all(isinstance(t["optional"], bool) for t in config["input"])


def test_statistics_count_what_ran(client, rng):
    def read():
        return client.get_inference_statistics("rmsnorm")["model_stats"][0]

    before = read()
    for _ in range(3):
        client.infer("rmsnorm", [tensor("x", rng.standard_normal((2, 8), dtype=np.float32))])
    with pytest.raises(InferenceServerException):
        client.infer("rmsnorm", [tensor("weight", rng.standard_normal((8,), dtype=np.float32))])
    after = read()
    assert after["inference_count"] - before["inference_count"] == 3
    assert after["execution_count"] - before["execution_count"] == 3
    of = {name: after["inference_stats"][name]["count"] - before["inference_stats"][name]["count"] for name in STATISTICS}
    assert of == {"success": 3, "fail": 1, "queue": 3, "compute_input": 3, "compute_infer": 3, "compute_output": 3, "cache_hit": 0, "cache_miss": 0}
    assert after["inference_stats"]["success"]["ns"] > before["inference_stats"]["success"]["ns"]
    assert after["last_inference"] > 1_700_000_000_000


def test_statistics_of_every_model(client):
    statistics = client.get_inference_statistics()["model_stats"]
    assert [model["name"] for model in statistics] == models(client)
    for model in statistics:
        assert model["version"] == "1"
        assert sorted(model["inference_stats"]) == sorted(STATISTICS)


def test_statistics_of_no_model(client):
    with pytest.raises(InferenceServerException, match="requested model 'none' is not available"):
        client.get_inference_statistics("none")


@pytest.mark.parametrize("body", [b"", b"{}", b'{"ready":true}', b'{"ready":false}'])
def test_repository_index(address, body):
    response = requests.post(f"http://{address}/v2/repository/index", data=body)
    assert response.status_code == 200
    assert {"name": "rope", "version": "1", "state": "READY", "reason": ""} in response.json()


def test_load_and_unload(client):
    client.load_model("rope")  # it is
    with pytest.raises(InferenceServerException, match="failed to load 'none'"):
        client.load_model("none")
    with pytest.raises(InferenceServerException, match="explicit model load / unload is not allowed"):
        client.unload_model("rope")
    assert client.is_model_ready("rope")


def test_trace_settings(client):
    expected = {"trace_file": "", "trace_level": ["OFF"], "trace_rate": "1000", "trace_count": "-1", "log_frequency": "0"}
    assert client.get_trace_settings().items() >= expected.items()
    assert client.get_trace_settings("rope").items() >= expected.items()
    assert client.update_trace_settings(settings={"trace_level": ["OFF"]}).items() >= expected.items()
    with pytest.raises(InferenceServerException, match="tracing is not supported"):
        client.update_trace_settings(settings={"trace_level": ["TIMESTAMPS"]})
    with pytest.raises(InferenceServerException, match="unknown model: 'none'"):
        client.get_trace_settings("none")


def test_log_settings(client):
    settings = client.get_log_settings()
    assert settings == {
        "log_file": "",
        "log_info": True,
        "log_warning": True,
        "log_error": True,
        "log_verbose_level": 0,
        "log_format": "default",
    }
    try:
        assert client.update_log_settings({"log_verbose_level": 1})["log_verbose_level"] == 1
        assert client.update_log_settings({"log_verbose_level": 0, "log_info": False})["log_info"] is False
        assert client.get_log_settings()["log_info"] is False
    finally:
        client.update_log_settings({"log_info": True, "log_warning": True, "log_verbose_level": 0})
    assert client.get_log_settings() == settings
    with pytest.raises(InferenceServerException, match="log_file"):
        client.update_log_settings({"log_file": "/tmp/roped.log"})


def test_json_of_python_is_read(address):
    """Spaces after ',' and ':', keys in any order."""
    body = json.dumps({"outputs": [{"name": "y"}], "inputs": [{"datatype": "FP32", "shape": [1, 2], "data": [[3.0, 4.0]], "name": "x"}]}, indent=2)
    response = requests.post(f"http://{address}/v2/models/rmsnorm/infer", data=body)
    assert response.json()["outputs"][0]["data"] == pytest.approx([0.848528, 1.131371], rel=1e-5)
