"""config.json of every model of transformers: the table that PUT makes of it is
the one that the model computes, or PUT refuses and names the key. The models'
own rotary modules are the reference of its angles; test_pairs.py asks which
elements they rotate.

For each configuration class the defaults are written as transformers writes
them, whole and as save_pretrained does (without what is default in parts), and
without what config files of older releases left out, and each key that is
read. A configuration without a rotary module must be refused.

Three dozen models are tried; with ROPED_INTEROP_MODELS=all all of them."""

import collections
import importlib
import inspect
import json
import os
import pathlib
import re
import warnings

import numpy as np
import pytest
import requests

from test_safetensors import call, load

torch = pytest.importorskip("torch", reason="no torch (ROPED_INTEROP_TORCH=1 installs it)")
transformers = pytest.importorskip("transformers", reason="no transformers (ROPED_INTEROP_TORCH=1 installs it)")

IS_ALL = os.environ.get("ROPED_INTEROP_MODELS") == "all"
SAMPLE = set(
    "cohere cohere2 deepseek_v2 deepseek_v3 deepseek_v4 ernie4_5 ernie4_5_vl_moe falcon gemma gemma2 gemma3 glm glm4 "
    "glm4v gpt_neox gpt_oss gptj granite helium llama llama4 minimax_m2 mistral mistral4 moonshine nanochat olmo2 phi "
    "phi3 pixtral qwen2 qwen2_vl qwen3 qwen3_vl stablelm".split()
)
# Forms that no file has, because a class writes what these lack, and that would be another model's: widths that follow
# from others in a way of its own, and heads that rotate whole.
UNLIKELY = {
    ("Zamba2Config", "without attention_head_dim"),
    ("DeepseekV4Config", "without partial_rotary_factor"),
}
N_TOKENS = 64
# Keys that a refusal may name although the file lacks them: it says so.
MISSING = {"model_type", "rope_theta", "rope_parameters", "head_dim", "num_attention_heads", "factor", "original_max_position"}
# What config files left out before transformers 5 wrote it.
OLDER = {
    "without rope": ("rope_parameters", "rope_theta", "rope_scaling", "rope_local_base_freq", "global_rope_theta"),
    "without head": ("head_dim",),
    **{
        f"without {key}": (key,)
        for key in (
            "rope_theta qk_rope_head_dim rotary_dim rotary_pct partial_rotary_factor mrope_section mrope_interleaved "
            "attention_head_dim kv_channels global_head_dim swa_head_dim rotary_emb_base"
        ).split()
    },
}


def submodules(kind):
    """transformers.models.*.{kind}_*, imported; one that needs other packages is left out."""
    for package in sorted(pathlib.Path(transformers.__file__).parent.glob(f"models/*/{kind}_*.py")):
        name = f"transformers.models.{package.parent.name}.{package.stem}"
        if not IS_ALL and package.parent.name not in SAMPLE:
            continue
        try:
            yield importlib.import_module(name)
        except (ImportError, RuntimeError):
            continue


def classes(module, base):
    for _, found in inspect.getmembers(module, inspect.isclass):
        if issubclass(found, base) and found.__module__ == module.__name__:
            yield found


def rotary_modules():
    """Configuration class -> its rotary modules, told by the annotation of `config`; package -> those that it uses."""
    of_class, of_package = collections.defaultdict(list), collections.defaultdict(list)
    for module in submodules("modeling"):
        for _, one in inspect.getmembers(module, inspect.isclass):
            if not (issubclass(one, torch.nn.Module) and re.search(r"(Rotary|Rope)\w*Embedding$", one.__name__)):
                continue
            of_package[module.__package__].append(one)
            config = inspect.signature(one.__init__).parameters.get("config")
            kind = getattr(config, "annotation", None)
            kind = getattr(module, kind, None) if isinstance(kind, str) else kind
            if inspect.isclass(kind) and issubclass(kind, transformers.PretrainedConfig) and one not in of_class[kind]:
                of_class[kind].append(one)
    return of_class, of_package


# ------------------------------------------------------------------ reference


def halves(values, n_pairs):
    """[n, pairs] of what a module returns: halves that repeat, pairs that do, or pairs alone."""
    values = values.reshape(N_TOKENS, -1).double().numpy()
    if values.shape[1] == n_pairs:
        return values
    if values.shape[1] == 2 * n_pairs and np.array_equal(values[:, :n_pairs], values[:, n_pairs:]):
        return values[:, :n_pairs]
    if values.shape[1] == 2 * n_pairs and np.array_equal(values[:, ::2], values[:, 1::2]):
        return values[:, ::2]
    return None


def blocks(values, sections):
    """Qwen2-VL's attention picks the row of positions by blocks of pairs."""
    parts = values.split(sections * 2, dim=-1)
    return torch.cat([part[i % 3] for i, part in enumerate(parts)], dim=-1)


class Reference:
    """One rotary module: the layer types it has, cos and sin of each."""

    def __init__(self, module):
        self.module = module
        self.types = {}
        for name, value in {**dict(module.named_buffers()), **vars(module)}.items():
            if name.endswith("inv_freq") and not re.search("(original|long)_inv_freq$", name) and torch.is_tensor(value):
                self.types[name.removesuffix("inv_freq").removesuffix("_")] = value

    def pairs(self, kind):
        return self.types[kind].shape[-1]

    def of_axes(self, positions, n_pairs):
        """Images: a position has as many coordinates as rows."""
        out = self.module(torch.zeros(1), torch.from_numpy(positions.T.copy()))
        return [halves(values, n_pairs) for values in out]

    def of_forward(self, kind, positions, sections):
        arguments = {"layer_type": kind} if kind else {}
        x = torch.zeros(1, N_TOKENS, 8)
        out = self.module(x, torch.from_numpy(positions)[..., None, :], **arguments)
        if torch.is_tensor(out) and out.is_complex():
            out = out.real, out.imag
        if out[0].dim() == 4:
            out = [blocks(values, sections) for values in out]
        return [halves(values, self.pairs(kind)) for values in out]

    def of_frequencies(self, kind, positions):
        scaling = getattr(self.module, f"{kind}_attention_scaling" if kind else "attention_scaling", 1.0)
        angles = torch.from_numpy(positions).float()[:, None] * self.types[kind].float()
        return [(f(angles) * scaling).double().numpy() for f in (torch.cos, torch.sin)]

    def angles(self, kind, positions, sections):
        """None: the module gives no cosine and sine per pair, such as those of images."""
        try:
            cos, sin = self.of_forward(kind, positions, sections)
        except Exception:  # whatever a module wants besides
            if positions.ndim > 1 or self.types[kind].dim() > 1:
                return None
            return self.of_frequencies(kind, positions)
        return None if cos is None or sin is None else (cos, sin)


# ----------------------------------------------------------------- the tables


def is_axial(table):
    return table["scaling"].startswith("axial")


def table_angles(address, table, positions):
    """cos and sin of each pair that a table has, from a rotated (1, 0)."""
    rotated = table["head_dim"] if table["scaling"] == "proportional" else table["rotary_dim"]
    q = np.zeros((N_TOKENS, 1, table["head_dim"]), np.float32)
    q[..., : rotated // 2] = 1
    out = load(call(address, "rope", {"q": q, "positions": positions}, table=table["name"], style="neox"))["q"]
    return out[:, 0, : rotated // 2].astype(np.float64), out[:, 0, rotated // 2 : rotated].astype(np.float64)


def difference(found, expected, positions):
    """None, or what differs: 1e-6, and 1e-6 of a frequency, and PyTorch's power (README, Tolerances)."""
    if found[0].shape != expected[0].shape:
        return f"{found[0].shape[1]} pairs, expected {expected[0].shape[1]}"
    scale = np.hypot(*expected).max() or 1
    at = np.broadcast_to(positions.max(axis=0) if positions.ndim > 1 else positions, (N_TOKENS,))
    frequency = np.minimum(np.abs(expected[1][1]) / scale * 2, 1)
    for name, a, b in zip(("cos", "sin"), found, expected):
        bound = scale * (1e-6 + at[:, None] * 2.0**-23 * frequency)
        if (np.abs(a - b) > bound).any():
            i, j = np.argwhere(np.abs(a - b) > bound)[0]
            return f"{name} of pair {j} is {a[i, j]:.7g} at position {at[i]}, expected {b[i, j]:.7g}"
    if (np.abs(found[1][1] - expected[1][1]) > 2e-6 * np.abs(expected[1][1]) + 1e-12).any():
        return "a small frequency"
    return None


def compare(address, tables, reference):
    kinds = {table["name"].partition(".")[2] for table in tables}
    if not kinds >= set(reference.types) or len(kinds) > 1 and "" in reference.types:
        return f"layer types {sorted(kinds)}, expected {sorted(reference.types)}"
    tables = [table for table in tables if table["name"].partition(".")[2] in reference.types]  # others: of no layer
    for table in tables:
        kind = table["name"].partition(".")[2]
        sections = table.get("mrope_section")
        ask = [np.arange(N_TOKENS) % (table["rows"] or N_TOKENS)]
        if sections:
            ask.append(np.stack([ask[0], ask[0][::-1], ask[0][::2].repeat(2)][: len(sections)]))
            ask[1][:, 1] = 1
        for positions in ask[is_axial(table) :]:
            expected = (
                reference.of_axes(positions, table["rotary_dim"] // 2)
                if is_axial(table)
                else reference.angles(kind, positions, sections)
            )
            if expected is None:
                return f"{table['name']}: the module's angles are of another kind"
            found = difference(table_angles(address, table, positions), expected, positions)
            if found:
                return f"{table['name']}: {found}{' (three rows of positions)' if positions.ndim > 1 else ''}"
    return None


# ------------------------------------------------------------------- the walk


def keys_of(node):
    if isinstance(node, dict):
        return set(node).union(*map(keys_of, node.values()))
    return set().union(*map(keys_of, node)) if isinstance(node, list) else set()


def judge(address, document, references):
    """right, refused, unnamed (a refusal that names no key), silent (another table), and why."""
    for table in requests.get(f"http://{address}/v1/tables").json()["tables"]:
        requests.delete(f"http://{address}/v1/tables/{table['name']}")
    reply = requests.put(f"http://{address}/v1/tables/t?style=neox", data=json.dumps(document))
    if reply.status_code == 400:
        error = reply.json()["error"]
        named = set(re.findall(r"'([\w.]+)'", error)) & (keys_of(document) | MISSING)
        return ("refused" if named else "unnamed"), error
    assert reply.status_code in (200, 201), reply.text
    tables = requests.get(f"http://{address}/v1/tables").json()["tables"]
    if not references:
        return "silent", "a table, and no rotary module"
    for table in tables:
        if not table["head_dim"]:
            return "silent", "a table without widths"
    found = [compare(address, tables, reference) for reference in references]
    return ("right", "") if None in found else ("silent", found[0])


def with_sections(document, references):
    """M-RoPE's sections, where the model has a default for them: published files state it."""
    sections = [getattr(reference.module, "mrope_section", None) for reference in references]
    if not sections or not isinstance(sections[0], list):
        return document
    more = json.loads(json.dumps(document))
    text = more["text_config"] if isinstance(more.get("text_config"), dict) else more
    rope = text.get("rope_parameters") or {}
    for one in [value for value in rope.values() if isinstance(value, dict)] or [rope]:
        one.setdefault("mrope_section", sections[0])
    return more


def rope_dictionaries(text):
    rope = text.get("rope_parameters")
    inside = [one for one in rope.values() if isinstance(one, dict)] if isinstance(rope, dict) else []
    return inside or ([rope] if isinstance(rope, dict) else [])


def documents(config, references):
    whole = json.loads(config.to_json_string(use_diff=False))
    yield "whole", whole
    for name, other in (
        ("saved", json.loads(config.to_json_string(use_diff=True))),
        ("sections", with_sections(whole, references)),
    ):
        if other != whole:
            yield name, other
    for name, keys in OLDER.items():
        less = json.loads(json.dumps(whole))
        text = less["text_config"] if isinstance(less.get("text_config"), dict) else less
        for key in set(keys) & set(text):
            del text[key]
        for rope in rope_dictionaries(text):
            for key in set(keys) & set(rope):
                del rope[key]
        if "head_dim" in keys and "hidden_size" in text:  # a width that does not follow from it shows
            text["hidden_size"] *= 5
        if set(keys) & keys_of(whole):
            yield name, less


def text_of(config):
    """The configuration of the text model inside, or config itself. Speech models have two, which they do not rank."""
    try:
        return config.get_text_config()
    except ValueError:
        return config


def made(module, *configs):
    for config in configs:
        try:
            return Reference(module(config=config))
        except Exception:  # not its configuration
            continue
    return None


def package_of(config):
    """Of its model, which may be another's."""
    try:
        model = transformers.MODEL_MAPPING[type(config)]
    except (KeyError, ValueError):
        model = type(config)
    return (model[0] if isinstance(model, tuple) else model).__module__.rpartition(".")[0]


def references_of(config, modules):
    """What a file may describe: its own rotary modules, those of the text model inside, else those of its package."""
    of_class, of_package = modules
    text = text_of(config)
    found = [made(module, one, text) for one in (config, text) for module in of_class.get(type(one), ())]
    if not any(found):
        found = [made(module, config, text) for module in of_package.get(package_of(config), ())]
    return [reference for reference in found if reference]


def walk(address, modules):
    for package in submodules("configuration"):
        for kind in classes(package, transformers.PretrainedConfig):
            if not kind.model_type:
                continue
            try:
                config = kind()
            except Exception as error:  # classes without defaults
                yield "class", "skipped", kind.__name__, "", f"{type(error).__name__}: {error}", ()
                continue
            for form, document in documents(config, references_of(config, modules)):
                if (kind.__name__, form) in UNLIKELY:
                    continue
                try:  # what transformers itself makes of the file
                    read = kind.from_dict(json.loads(json.dumps(document)))
                except Exception as error:
                    if form in OLDER:
                        yield "file", "skipped", kind.__name__, form, f"{type(error).__name__}: {error}", ()
                        continue
                    read = config
                references = references_of(read, modules)
                if form in OLDER and not references and references_of(config, modules):
                    yield "file", "skipped", kind.__name__, form, "its class makes no rotary module of it", ()
                    continue
                outcome, why = judge(address, document, references)
                used = [type(reference.module) for reference in references]
                yield "rotary" if used else "other", outcome, kind.__name__, form, why, used


def test_configs(address):
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    modules = rotary_modules()
    count, wrong, by_module = collections.Counter(), [], collections.defaultdict(set)
    for group, outcome, name, form, why, used in walk(address, modules):
        count[group, form, outcome] += 1
        print(group, outcome, name, form, why.split("\n")[0][:240], sep="\t")
        if outcome in ("silent", "unnamed"):
            wrong.append(f"{name} ({form}): {why}")
        for module in used if form == "whole" else ():
            by_module[module].add(outcome)
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    for (group, form, outcome), n in sorted(count.items()):
        print(f"{group:8} {form:14} {outcome:8} {n}")
    every = {module for some in modules for of_one in some.values() for module in of_one}
    for outcome in ("right", "refused", "unnamed", "silent"):
        print(f"modules whole {outcome}: {sum(outcome in found for found in by_module.values())} of {len(every)}")
    print("modules not reached:", *sorted(module.__name__ for module in every - set(by_module)))
    assert count["rotary", "whole", "right"] >= (310 if IS_ALL else 30)  # refusing is right, and is not all
    assert not wrong, "\n".join(wrong)
