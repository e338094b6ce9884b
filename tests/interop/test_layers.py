"""What `ropectl model` says of a model's layers gives the bits of the model's own classes: of its norms, of x +
residual and the norm of it, and of the middle of its MLPs, in bfloat16. Where blocks are parallel the sum has three
operands. Eps are other numbers than the defaults, so that one that is read from another member of config.json shows.
What the order of a float32 sum shows is 40 elements in a million.

Each model_type for which transformers names a class that generates text is walked (layers.py). A model without a row is
said to be unknown; what a row says and is not so fails. With ROPED_INTEROP_MODELS=all every model is tried."""

import collections
import importlib
import json
import os
import re
import subprocess
import warnings
from pathlib import Path

import pytest
import requests

torch = pytest.importorskip("torch", reason="no torch (ROPED_INTEROP_TORCH=1 installs it)")
transformers = pytest.importorskip("transformers", reason="no transformers (ROPED_INTEROP_TORCH=1 installs it)")
safetensors = pytest.importorskip("safetensors.torch")

import layers  # noqa: E402 - torch may be missing
from test_configs import IS_ALL, SAMPLE  # noqa: E402
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_MAPPING_NAMES  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ["ROPED_INTEROP_BUILD"])
MOST = 40e-6  # of a model's elements, besides a few
A_FEW = 20
TAIL = -2.0  # below it PyTorch's float32 formula of gelu loses digits, and roped's does not
CHOSEN = os.environ.get("ROPED_INTEROP_CHOSEN", "").split()  # of these models alone
N_RIGHT = 0 if CHOSEN else 204 if IS_ALL else 20
ROPE = {"rope_theta": 1e4, "rope_type": "default"}
INDEXED = {"indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 256, "indexer_budget": 8, "indexer_compress_ratio": 4}
# What the defaults of some classes lack, without which their models cannot be made
FILLED = {
    "qwen4_exp": {"text_config": INDEXED},
    "qwen4_exp_text": INDEXED,
    "reformer": {"is_decoder": True},
    "cohere_compass_text": {"rope_parameters": {"full_attention": ROPE, "sliding_attention": ROPE}},
    "dbrx": {"attn_config": {"rope_theta": 1e4, "clip_qkv": 8.0}},
    "deepseek_v2": {"num_experts_per_tok": 2, "n_routed_experts": 8},
    "dots1": {"n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "glm4_moe": {"head_dim": 128},
    "glm4v_moe_text": {"head_dim": 128},
    "glm4v_text": {"rope_parameters": {**ROPE, "mrope_section": [16, 24, 24]}},
    "glm_image_text": {"rope_parameters": {**ROPE, "mrope_section": [16, 24, 24]}},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"] * 16},
    "hunyuan_vl_text": {"head_dim": 128, "rope_parameters": {**ROPE, "mrope_section": [16, 24, 24]}},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 16},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128, "moe_topk": 2, "num_experts": 8},
    "minicpm3": {"num_hidden_layers": 3},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8},
    "xmod": {"default_language": "en_XX"},
}


ROWS = (ROOT / "client/model_layers.def").read_text()
# model_type -> the member that says whether heads are normalised, and the one that names the activation
FLAGS = dict(re.findall(r'^LAYERS\("([\w-]+)".*heads_flag = "(\w+)"', ROWS, re.MULTILINE))
# model_type -> the member that says whether there are gated norms, and the one that says where the gate is
GATES = {found[0]: found[1:] for found in re.findall(r'^LAYERS\("([\w-]+)".* \.flag = "(\w+)", \.after = "(\w+)"', ROWS, re.MULTILINE)}
# -> the first member that says whether blocks are parallel, and whether they are without it
SUM_FLAGS = {name: (bool(plus), flag) for name, plus, flag in
             re.findall(r'^LAYERS\("([\w-]+)".*sum_flags = "(\+?)(\w+)', ROWS, re.MULTILINE)}  # fmt: skip
SCALES = re.findall(r'\.(?:x|residual|addend|sum) = "(\w+)(?:\.(\d))?', ROWS)
GATE_ACTIVATIONS = dict(re.findall(r'^LAYERS\("([\w-]+)".*\.activation = "(\w+)"', ROWS, re.MULTILINE))
ACTIVATIONS = dict(re.findall(r'^LAYERS\("([\w-]+)"(?:, [\w"=.-]+){5}, "(\w+)"', ROWS, re.MULTILINE))


def configuration(model_type, **others):
    """The defaults, and every eps another number, and what x is multiplied by."""
    config = transformers.CONFIG_MAPPING[model_type](**FILLED.get(model_type, {}))
    text = layers.text_of(config)
    for name, value in others.items():
        setattr(text, name, value)
    for i, (name, index) in enumerate(sorted(set(SCALES))):
        old, scale = getattr(text, name, None), 0.22 + i / 64
        if isinstance(old, (float, int)) or (index and old):
            setattr(text, name, [scale if j == int(index) else one for j, one in enumerate(old)] if index else scale)
    for name in filter(re.compile("(alpha|beta)_factor$").search, vars(text)):
        setattr(text, name, 0.22 if "alpha" in name else 0.78)
    names = [name for name, value in sorted(text.to_dict().items()) if "eps" in name and isinstance(value, float)]
    for i, name in enumerate(names):
        setattr(text, name, round(1.1e-5 + i * 1e-6, 9))
    return config


def described(folder, config):
    """{what a layer is for: (operator, parameters)}, or the sentence that refuses the file."""
    path = folder / "config.json"
    path.write_text(config.to_json_string(use_diff=False))
    result = subprocess.run([BUILD / "bin/ropectl", "model", path, "--output", "json"], capture_output=True, text=True, timeout=60)
    if result.returncode:
        return result.stderr.strip()
    rows = {}
    for row in json.loads(result.stdout)["layers"]:
        words = row["parameters"].split()
        is_call = words[0].startswith("--")
        rows[row["for"]] = (row["operator"], dict(zip((word[2:] for word in words[::2]), words[1::2])) if is_call else None)
    return rows


def row_of(place, rows, width):
    """What rows say of a place: an operator and its parameters, or None and why not."""
    if ".indexer." in place.name and place.role != "MLP" and "norms of the indexer" in rows:
        return rows["norms of the indexer"]
    if place.role == "norm of heads":
        for what, (operator, params) in rows.items():
            if re.match("[qk],.*before it", what) and not place.is_rotated:  # heads with weights of their own
                if what[0] == re.search("(q|k)(uery|ey)?_?(layer_?)?norm", place.name)[1]:
                    return operator, params
            when = "after they" if place.is_rotated else "before they|not rotated"
            is_fused = operator.startswith("qk_rmsnorm") and not place.is_rotated
            if params and (is_fused or re.search(when, what)):
                return operator.replace("qk_rmsnorm_rope_append", "rmsnorm").replace("qk_rmsnorm_rope", "rmsnorm"), {
                    name: params[name] for name in params if name != "table"
                }
        is_said = any("q and k" in what and row[1] is None for what, row in rows.items())
        return None, "a norm of heads" if is_said else "WRONG"
    if place.role == "norm" and place.output.shape[-1] != place.inputs["x"].shape[-1]:
        return rows.get("norms of heads that become a row", (None, "norms of heads"))
    is_inner = place.role == "norm" and place.output.shape[-1] != width
    if is_inner and "norms inside attention" in rows:
        return rows["norms inside attention"]
    if place.is_behind and place.role == "norm" and "norms behind a block, and the residual" in rows:
        return "rmsnorm", rows["norms behind a block, and the residual"][1]
    if place.role == "norm" and ".N" not in place.name and "norms outside layers" in rows:
        return rows["norms outside layers"]
    if place.role == "MLP" and place.name.endswith("experts") and "middle of an expert's MLP" in rows:
        return rows["middle of an expert's MLP"]
    if place.role == "MLP" and "shared_experts" in place.name and "middle of a shared expert's MLP" in rows:
        return None, "middle of a shared expert's MLP"
    if place.role == "norm" and "weight" not in place.inputs and "norms without a weight" in rows:
        return rows["norms without a weight"]
    if place.role == "MLP" and re.search(r"norm(\.|$)", place.name) and "middle of an MLP in a norm" in rows:
        return rows["middle of an MLP in a norm"]
    start = {"norm": "norms", "MLP": "middle of a", "gated norm": "gated", "added norm": "norms behind"}[place.role]
    found = [row for what, row in rows.items() if what.startswith(start)]
    if not found or found[0][1] is None:
        return None, found[0][0] if found else f"a {place.role}"
    return found[0]


def sum_row(place, rows):
    """The row whose operands and scales are those of the place; numbers that the file does not say are the model's."""
    found = {what: row for what, row in rows.items() if what.startswith("residual")}
    if not any(params for _, params in found.values()):
        return None, "a residual sum"
    if "residual, and a norm outside layers" in found:
        is_outside = ".N" not in place.name
        found = {what: row for what, row in found.items() if ("outside" in what) == is_outside}
    for operator, params in found.values():
        order, scales = params.get("sum_order"), place.parallel[2] if "sum_order" in params and place.parallel else place.scales
        if order in (None, *place.parallel[:1]) and {name for name in params if name.endswith("_scale")} == set(scales):
            return operator, params | {name: scale for name, scale in scales.items() if params[name].isupper()}
    return None, "ANOTHER"


def ask(address, operator, tensors, params):
    data = safetensors.save({name: tensor.contiguous() for name, tensor in tensors.items()})
    reply = requests.post(f"http://{address}/v1/{operator}", data=data, params=params)
    made = safetensors.load(reply.content) if reply.status_code == 200 else {}
    return made.get("y", made.get("residual")) if made else reply.json()["error"]


def inputs_of(place, operator, params):
    """Ports of the operator, in each way in which the model's tensors may be them."""
    if operator != "act_and_mul":
        wanted = ("x", "residual", "addend", "weight", "bias") if "layer_norm" in operator else ("x", "residual", "addend", "gate", "weight")
        inputs = place.inputs | (place.parallel[1] if "sum_order" in params else {})
        yield {name: inputs[name] for name in wanted if name in inputs}
        return
    parts, width = list(place.inputs.values()), place.output.shape[-1] * (1 if params.get("gated") == "false" else 2)
    yield from ({"x": part} for part in parts if part.shape == (len(place.output), width))
    same = [part for part in parts if part.shape == place.output.shape]
    if params.get("gated") != "false" and "gate_second" not in params:
        yield from ({"gate": gate, "up": up} for gate in same for up in same if gate is not up)


def differing(found, place, tensors, params):
    """How many elements differ in their bits, but for the row with the most: if its sum is a unit off, hundreds may."""
    wanted = place.output
    if isinstance(found, str) or found.dtype != wanted.dtype or found.numel() != wanted.numel():
        return wanted.numel()
    bits = torch.int16 if wanted.element_size() == 2 else torch.int32
    off = found.reshape(wanted.shape).view(bits) != wanted.view(bits)
    if wanted.dtype == torch.float32:  # where the order of a sum shows in every element
        off &= (found.reshape(wanted.shape) - wanted).abs() > 1e-6 * wanted.abs().amax(-1, keepdim=True)
    if params.get("activation", "").startswith("gelu"):
        gate = tensors.get("gate", tensors.get("x"))[..., : wanted.shape[-1]]
        off &= gate > TAIL
    if not off.any():
        return 0
    by_row = layers.rows(off).sum(dim=-1)
    return int(by_row.sum() - by_row.max())


class Model:
    """What was found of one: elements that were compared and that differ, and what no row gives."""

    def __init__(self, config):
        self.width = getattr(layers.text_of(config), "hidden_size", None)
        self.n, self.n_off, self.missing, self.where = 0, 0, set(), []

    def compare(self, address, place, rows):
        operator, params = sum_row(place, rows) if place.role == "sum" else row_of(place, rows, self.width)
        if place.role == "added norm" and operator is None:
            return  # it is a norm and a sum
        if params == "ANOTHER":
            self.where.append(f"{place.name}: a sum with {place.scales}, or with three operands {place.parallel[::2]}")
            return
        if operator is None and params == "WRONG":
            self.where.append(f"{place.name}: q and k are normalised")
        if operator is None:
            self.missing.add(params)
            return
        if place.role == "MLP":
            params = params | {name: place.scales[name] for name in params if params[name].isupper()}
        if "norms, by T(1 + weight)" in rows and "weight" in place.inputs:
            place.inputs["weight"] = place.inputs["weight"] + 1
        if "heads" in params and place.inputs["weight"].numel() != place.inputs["x"].shape[-1]:  # whose weights are those of a row
            x = place.inputs["x"]
            place.inputs = {key: value.flatten() for key, value in place.inputs.items()}
            place.inputs["x"] = x.reshape(-1, int(params["heads"]) * x.shape[-1])
        ways = list(inputs_of(place, operator, params))
        off = min((differing(ask(address, operator, way, params), place, way, params) for way in ways), default=place.output.numel())
        self.n += place.output.numel()
        self.n_off += off
        if off > max(A_FEW, place.output.numel() / 1000):
            self.where.append(f"{place.role} {place.name}: {off} of {place.output.numel()} elements of {operator} {params}")

    def is_wrong(self):
        return bool(self.where) or self.n_off > A_FEW + MOST * self.n


def classes():
    """model_type -> the class that generates text; of the text model inside another, its own."""
    text = {name: kind for name, kind in MODEL_MAPPING_NAMES.items() if re.search("_text(_model)?$", name)}
    return {**text, **MODEL_FOR_CAUSAL_LM_MAPPING_NAMES}


def class_of(kind, config):
    """Not every class is one of the package's names."""
    if hasattr(transformers, kind):
        return getattr(transformers, kind)
    module = importlib.import_module(type(config).__module__.replace("configuration_", "modeling_"))
    return getattr(module, kind)


def forms():
    """(model_type, class, what its file says besides), of those that are tried."""
    for model_type, names in classes().items():
        if model_type in CHOSEN or (not CHOSEN and (IS_ALL or model_type in SAMPLE)):
            kind = names if isinstance(names, str) else names[0]
            yield model_type, kind, {}
            if model_type in FLAGS:
                yield model_type, kind, {FLAGS[model_type]: True}
            if model_type in GATES:
                flag, after = GATES[model_type]
                yield from ((model_type, kind, {flag: True, after: is_after}) for is_after in (True, False))
            if model_type in SUM_FLAGS:
                yield model_type, kind, {SUM_FLAGS[model_type][1]: not SUM_FLAGS[model_type][0]}
            if model_type in GATE_ACTIVATIONS:
                yield model_type, kind, {GATE_ACTIVATIONS[model_type]: "sigmoid"}
            if model_type in ACTIVATIONS:
                gate = {GATE_ACTIVATIONS[model_type]: "silu"} if model_type in GATE_ACTIVATIONS else {}
                yield model_type, kind, {ACTIVATIONS[model_type]: "relu"} | gate


def walk(address, folder):
    for model_type, kind, others in forms():
        try:
            config = configuration(model_type, **others)
            rows = described(folder, config)
            if isinstance(rows, str) or rows.get("norms", ("",))[0] == "not known":
                yield model_type, "unknown", rows if isinstance(rows, str) else ""
                continue
            found = layers.run(class_of(kind, config), config)
        except Exception as error:  # a class without defaults, or that wants other packages
            yield model_type, "not run", f"{type(error).__name__}: {error}"
            continue
        name = " ".join([model_type, *others])
        model = Model(config)
        if rows.get("residual, and a norm of the sum", ("",))[0] == "not known":  # nor is it always found
            model.missing.add("a residual sum")
        for place in layers.places(found):
            model.compare(address, place, rows)
        if model.is_wrong():
            yield name, "wrong", "; ".join(model.where[:3]) or f"{model.n_off} of {model.n} elements"
        elif found.error or not model.n:
            yield name, "not run", found.error
        else:
            yield name, "partly" if model.missing else "right", ", ".join(sorted(model.missing))


def test_layers(address, tmp_path):
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    count, wrong, seen = collections.Counter(), [], set()
    for name, outcome, why in walk(address, tmp_path):
        count[outcome] += name not in seen and " " not in name  # a model is counted once
        seen.add(name)
        print(outcome, name, why.split("\n")[0][:200], sep="\t")
        if outcome == "wrong":
            wrong.append(f"{name}: {why}")
    print(f"transformers {transformers.__version__}:", dict(count))
    assert not wrong, "\n".join(wrong)
    assert count["right"] >= N_RIGHT


def test_another_row_shows(address, tmp_path):
    """A walk that finds nothing is no test: with Gemma's row Llama is wrong, and with another eps."""
    config = configuration("llama")
    rows = described(tmp_path, config)
    found = layers.run(transformers.LlamaForCausalLM, config)
    operator, params = rows["norms"]
    changes = ({"weight_bias": 1, "rounding": "once"}, {"eps": 1e-3})
    for change in changes:
        model = Model(config)
        for place in layers.places(found):
            model.compare(address, place, {**rows, "norms": (operator, {**params, **change})})
        assert model.is_wrong() and re.search("norm .*layernorm", model.where[0])
