"""ropectl model: what it prints of the configurations of model families are calls that work, and what is not known is
said to be so."""

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

BUILD = Path(os.environ["ROPED_INTEROP_BUILD"])
# Families whose files have the members of SIZES; test_layers.py compares what is said of every model with its class
FAMILIES = (
    "cohere deepseek_v2 deepseek_v3 gemma gemma2 gemma3 gemma3_text gemma4_text glm glm4 glm4_moe gpt_oss llama ministral3 "
    "mistral mixtral olmo2 phi3 qwen2 qwen2_5_vl qwen2_5_vl_text qwen2_moe qwen2_vl qwen2_vl_text qwen3 qwen3_moe qwen3_next "
    "seed_oss smollm3"
).split()
SIZES = {"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
         "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "layer_norm_eps": 1e-5, "hidden_act": "silu"}  # fmt: skip
LAYERS = {"gemma3_text", "gemma3n_text", "gemma4_text"}  # with a table for each kind of layer


def ropectl(*arguments, **options):
    return subprocess.run([BUILD / "bin/ropectl", *arguments], capture_output=True, text=True, timeout=60, **options)


def describe(folder, config, name="config.json"):
    (folder / name).write_text(json.dumps(config))
    result = ropectl("model", name, "--output", "json", cwd=folder)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def config_of(model):
    config = {"model_type": model, **SIZES, "rope_theta": 10000.0}
    if model.startswith("deepseek"):
        config |= {"kv_lora_rank": 32, "qk_rope_head_dim": 64, "qk_nope_head_dim": 64, "v_head_dim": 64}
    if model.startswith("qwen2_") and "vl" in model:
        config["rope_scaling"] = {"type": "mrope", "mrope_section": [8, 12, 12]}
    if model in LAYERS:
        del config["rope_theta"]
        config["rope_parameters"] = {
            kind: {"rope_type": "default", "rope_theta": theta}
            for kind, theta in [("full_attention", 1e6), ("sliding_attention", 1e4)]
        }
    return config


@pytest.mark.parametrize("model", FAMILIES)
def test_what_it_prints_can_be_copied(address, tmp_path, model):
    """Every line, and every parameter of each operator that it names."""
    found = describe(tmp_path, config_of(model))
    assert found["model"] == model
    assert len(found["tables"]) == (2 if model in LAYERS or model == "gemma3" else 1)
    environment = dict(os.environ, ROPED_URL=f"http://{address}", PATH=f"{BUILD / 'bin'}:{os.environ['PATH']}")
    calls = [row["call"] for row in found["to_try_it"]]
    assert len(calls) == 3
    for call in calls:
        result = subprocess.run(["sh", "-c", call], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert result.returncode == 0, call + result.stderr
    for row in found["layers"]:
        if not row["parameters"].startswith("--"):  # the page that says why there is none
            continue
        sizes = ["hq=4", "hk=2", "d=64"] if "rope" in row["operator"] else ["h=256"]
        sample = ropectl("sample", row["operator"], "-o", "in.safetensors", *sizes, cwd=tmp_path)
        assert sample.returncode == 0, sample.stderr
        if "_vl" not in model:  # whose positions have three rows
            words = ["1" if word.isupper() else word for word in shlex.split(row["parameters"])]  # what the file does not say
            run = ropectl("run", row["operator"], "in.safetensors", *words, cwd=tmp_path, env=environment)
            assert run.returncode == 0, run.stderr


def test_what_is_not_known_is_said(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "nobody", **SIZES}))
    result = ropectl("model", "config.json", cwd=tmp_path)
    assert result.returncode == 1 and "model_type 'nobody' is not known" in result.stderr and not result.stdout
    (tmp_path / "config.json").write_text('{"theta": 5}')
    result = ropectl("model", "config.json", cwd=tmp_path)
    assert result.returncode == 1 and "no 'model_type'" in result.stderr
    (tmp_path / "config.json").write_text("{")
    assert ropectl("model", "config.json", cwd=tmp_path).returncode == 1
    found = describe(tmp_path, {"model_type": "evolla", **SIZES, "rope_theta": 1e4})
    assert found["layers"][0]["operator"] == "not known" and found["tables"][0]["style"] == "neox"
    sizes = {name: value for name, value in SIZES.items() if name != "rms_norm_eps"}
    found = describe(tmp_path, {"model_type": "llama", **sizes})
    assert "--eps EPS" in found["layers"][0]["parameters"]


def test_layers_without_a_table(tmp_path):
    """Of a file whose angles are not known the rest is said, and why they are not."""
    rows = describe(tmp_path, {"model_type": "gptj", **SIZES})["layers"]
    assert [row["operator"] for row in rows] == ["layer_norm", "add_layer_norm", "not known", "not known"]
    assert rows[2]["for"] == "q and k" and "missing 'rope_theta'" in rows[2]["parameters"]
    config = {"model_type": "qwen3", **SIZES, "rope_scaling": {"type": "nobody"}}
    rows = describe(tmp_path, config)["layers"]
    assert rows[2]["for"] == "q and k, before they are rotated" and rows[2]["operator"] == "rmsnorm"
    assert rows[3]["operator"] == "not known"


def test_a_text_model_inside_another(tmp_path):
    found = describe(tmp_path, {"model_type": "gemma3", "text_config": config_of("gemma3_text")})
    operators = [row["operator"] for row in found["layers"]]
    assert found["model"] == "gemma3_text" and operators[:4] == ["rmsnorm", "rmsnorm_add", "add_rmsnorm", "qk_rmsnorm_rope"]
    flagged = [describe(tmp_path, config_of("glm4_moe") | {"use_qk_norm": flag})["layers"][2]["operator"] for flag in (True, False)]
    assert flagged == ["qk_rmsnorm_rope", "rope"]


def test_gated_norms(tmp_path):
    """Groups are the quotient of sizes; where a file does not say these, neither does the command."""
    sizes = {"hidden_size": 64, "expand": 2, "n_groups": 4, "layer_norm_epsilon": 1e-5}
    rows = {row["for"]: row for row in describe(tmp_path, {"model_type": "mamba2", **sizes})["layers"]}
    assert rows["gated norms"]["operator"] == "gated_rmsnorm"
    assert rows["gated norms"]["parameters"] == "--eps 1e-05 --gate_first true --rounding hf --group_size 32"
    sizes["expand"] = None
    rows = {row["for"]: row for row in describe(tmp_path, {"model_type": "mamba2", **sizes})["layers"]}
    assert rows["gated norms"]["parameters"].endswith("--group_size GROUP_SIZE")
