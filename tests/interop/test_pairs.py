"""Which elements of a head rotate together: a table of a model's config.json
knows it. What the model's own attention does with q and k (attention.py) is
the reference: q times k must be that of a call of rope with the table, which
says no style. Products are compared, because a model may return q and k
permuted alike (DeepSeek V3).

Prints the models that are right, refused, wrong, and those whose attention
could not be run, by name. Which models: test_configs.py."""

import collections
import copy
import json
import warnings

import numpy as np
import pytest
import requests

torch = pytest.importorskip("torch", reason="no torch (ROPED_INTEROP_TORCH=1 installs it)")
transformers = pytest.importorskip("transformers", reason="no transformers (ROPED_INTEROP_TORCH=1 installs it)")

import attention  # noqa: E402 - both may be missing
from test_configs import (  # noqa: E402
    IS_ALL,
    classes,
    references_of,
    rope_dictionaries,
    rotary_modules,
    submodules,
    text_of,
)
from test_safetensors import call, load  # noqa: E402

# Models that rotate in another way, so that no table is theirs, and the words that say so.
REFUSED = {"nanochat": "rotates backwards"}


def scores(address, table, rotation, **params):
    """q times k of a rotation's heads, rotated as a table says."""
    width = rotation.q.shape[-1]
    if width not in (table["head_dim"], table["rotary_dim"]):  # the rotated part stands behind another
        params["rotary_offset"] = width - table["rotary_dim"]
    tensors = {name: getattr(rotation, name)[:, None].numpy().copy() for name in ("q", "k")}
    tensors["positions"] = rotation.positions
    out = load(call(address, "rope", tensors, table=table["name"], **params))
    return out["q"][:, 0].astype(np.float64) @ out["k"][:, 0].astype(np.float64).T


def agree(address, table, rotation, **params):
    try:
        found = scores(address, table, rotation, **params)
    except AssertionError:  # refused: a table of other heads
        return False
    expected = rotation.scores()
    return bool(np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max())


def compare(address, tables, rotations):
    """None, or what is rotated otherwise. What comes out of attention may be rotated back (DeepSeek V4)."""
    has_right = False
    for rotation in rotations:
        is_right = any(agree(address, table, rotation) for table in tables)
        if not is_right and has_right:
            is_right = any(agree(address, table, rotation, inverse="true") for table in tables)
        if not is_right:
            ways = [{"style": style, "inverse": inverse} for style in ("neox", "gptj") for inverse in ("false", "true")]
            fit = [way for way in ways for table in tables if agree(address, table, rotation, **way)]
            style, width = tables[0].get("style", "neox"), rotation.q.shape[-1]
            return f"{rotation.function} of width {width}: {style}, expected {fit or 'another'}"
        has_right = True
    return None


def fitted(config, modules):
    """Sections that fill the rotary width: the defaults of some classes do not."""
    for reference in references_of(config, modules):
        section = getattr(reference.module, "mrope_section", None)
        n_pairs = max((kind.shape[-1] for kind in reference.types.values()), default=0)
        if isinstance(section, (list, tuple)) and n_pairs and sum(section) != n_pairs:
            side = n_pairs * 3 // 8
            config.rope_parameters["mrope_section"] = [n_pairs - 2 * side, side, side]
    return config


def completed(config, modules=({}, {})):
    """With what some classes leave open, or have of another size."""
    config = copy.deepcopy(config)
    text = json.loads(config.to_json_string(use_diff=False))
    heads, hidden = text.get("num_attention_heads"), text.get("hidden_size")
    if text.get("head_dim", 0) is None and heads and hidden:
        config.head_dim = hidden // heads
    if text.get("num_key_value_heads", 0) is None and heads:
        config.num_key_value_heads = heads
    for rope in rope_dictionaries({"rope_parameters": getattr(config, "rope_parameters", None)}):
        if "rope_theta" in rope and rope["rope_theta"] is None:
            rope["rope_theta"] = 10000.0
    return fitted(config, modules)


def forms(config, modules):
    config = completed(config, modules)
    yield config
    if hasattr(config, "rope_interleave"):
        config = copy.deepcopy(config)
        config.rope_interleave = False
        yield config


def put(address, document):
    for table in requests.get(f"http://{address}/v1/tables").json()["tables"]:
        requests.delete(f"http://{address}/v1/tables/{table['name']}")
    return requests.put(f"http://{address}/v1/tables/t", data=json.dumps(document))


def judge(address, config):
    """right, refused, wrong, or untested, and why."""
    reply = put(address, json.loads(config.to_json_string(use_diff=False)))
    if reply.status_code == 400:
        return "refused", reply.json()["error"]
    assert reply.status_code in (200, 201), reply.text
    tables = reply.json()["tables"]
    n_axes = len(tables[0]["mrope_section"]) if tables[0]["scaling"].startswith("axial") else 0
    rotations, why = attention.rotations(config, n_axes)
    if not rotations:
        return "untested", why
    found = compare(address, tables, rotations)
    return ("wrong", found) if found else ("right", rotations[0].function)


def configs():
    for package in submodules("configuration"):
        for kind in classes(package, transformers.PretrainedConfig):
            try:
                config = kind()
            except Exception:  # classes without defaults
                continue
            if kind.model_type and text_of(config) is config:
                yield config


def has_rotary(config):
    return getattr(config, "rope_parameters", None) is not None


def test_pairs(address):
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    names, wrong, modules = collections.defaultdict(set), [], rotary_modules()
    for config in filter(has_rotary, configs()):
        for form in forms(config, modules):
            outcome, why = judge(address, form)
            names[outcome].add(config.model_type)
            print(outcome, config.model_type, why.split("\n")[0][:240], sep="\t")
            if outcome == "wrong":
                wrong.append(f"{config.model_type}: {why}")
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    names["untested"] -= names["right"]  # a class of the same model could be run
    for outcome, found in sorted(names.items()):
        print(f"{outcome}: {len(found)}:", *sorted(found))
    assert not wrong, "\n".join(wrong)
    assert len(names["right"]) >= (150 if IS_ALL else 25)


@pytest.mark.parametrize("model_type", ["chatglm", *REFUSED])
def test_what_is_not_known_is_refused(address, model_type):
    document = {"model_type": model_type, "head_dim": 64, "rope_theta": 1e4}
    reply = put(address, document)
    assert reply.status_code == 400 and model_type in reply.text
    assert REFUSED.get(model_type, "'style'") in reply.text
