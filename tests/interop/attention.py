"""How a model's own attention rotates: its functions are found by running it.

A model is made of its configuration on PyTorch's meta device, where weights
and activations have shapes and no memory, so that one of any size runs in a
moment. Only its rotary modules are real. Functions of its module that rotate
are replaced by recorders: those that its attention calls, with what it gives
them, are what the model computes, whatever they are named."""

import contextlib
import copy
import dataclasses
import importlib
import inspect
import re
import sys
from unittest import mock

import numpy as np
import torch
import transformers

N_TOKENS = 31  # no head count and no width is 31: dims of tokens are told by it
N_LAYERS = 8  # some layers have no positions, or others
ROTARY = re.compile(r"(Rotary|Rope)\w*Embedding$")
MASKS = re.compile(r"^create_\w*mask")  # who may look at whom changes no rotation
ROTATES = re.compile(r"^_?(vision_)?apply_\w*(rot|rope)|^rotate_queries_or_keys$")


class Enough(Exception):
    """All that is wanted of a run was recorded."""


@dataclasses.dataclass
class Rotation:
    """One head of q and k [tokens, width], as a function of the model got and returned it."""

    function: str
    q: torch.Tensor
    k: torch.Tensor
    q_out: torch.Tensor
    k_out: torch.Tensor
    positions: np.ndarray  # [tokens], or [axes, tokens]

    def scores(self):
        return (self.q_out.double() @ self.k_out.double().T).numpy()


def is_tokens(value):
    return torch.is_tensor(value) and value.is_floating_point() and value.dim() > 2 and N_TOKENS in value.shape[:-1]


def head(tensor):
    """[tokens, width] of the first head of [..., heads, tokens, width] or [..., tokens, heads, width]."""
    at = [i for i, size in enumerate(tensor.shape[:-1]) if size == N_TOKENS][-1]
    tensor = tensor.movedim(at, -2)
    return tensor.reshape(-1, *tensor.shape[-2:])[0]


def to_meta(value):
    if torch.is_tensor(value):
        return value.to("meta")
    return type(value)(map(to_meta, value)) if isinstance(value, (tuple, list)) else value


class Recorder:
    """Runs what a model calls to rotate on real q and k, and keeps what it did."""

    def __init__(self, most):
        self.most, self.found, self.last, self.is_inside = most, [], (), False
        self.positions = np.arange(N_TOKENS)

    def real(self, value, generator):
        """q and k have no values, so any will do; cosines may have lost theirs on the way."""
        if not torch.is_tensor(value) or value.device.type != "meta":
            return value
        for known in self.last:
            if known.shape == value.shape and known.dtype == value.dtype:
                self.last = [one for one in self.last if one is not known]
                return known
        return torch.randn(value.shape, generator=generator, device="cpu")

    def recorded(self, name, function):
        def record(*args, **named):
            if self.is_inside:  # one of them calls another
                return function(*args, **named)
            generator = torch.Generator("cpu").manual_seed(1)
            known = self.last
            args = [self.real(value, generator) for value in args]
            named = {key: self.real(value, generator) for key, value in named.items()}
            self.last = known
            self.is_inside = True
            try:
                with torch.device("cpu"):
                    out = function(*args, **named)
            finally:
                self.is_inside = False
            given = [value for value in [*args, *named.values()] if is_tokens(value)]
            made = [value for value in (out if isinstance(out, (tuple, list)) else [out]) if is_tokens(value)]
            if made and len(given) >= len(made):
                q, k = given[0], given[len(made[:2]) - 1]
                self.found.append(Rotation(name, *map(head, (q, k, made[0], made[len(made[:2]) - 1])), self.positions))
            if len(self.found) == self.most:
                raise Enough
            return to_meta(out)

        return record

    def rotary(self, forward):
        """A rotary module's own forward, on real positions: 0, 1, 2, ..."""

        def run(module, *args, **named):
            def real(value):
                if not torch.is_tensor(value) or value.device.type != "meta":
                    return value
                if value.is_floating_point():
                    return torch.zeros(1)
                return torch.arange(value.shape[-1]).expand(value.shape)

            with torch.device("cpu"):
                out = forward(module, *map(real, args), **{key: real(value) for key, value in named.items()})
            self.last = list(filter(torch.is_tensor, out if isinstance(out, (tuple, list)) else [out]))
            return out

        return run


def made_on_cpu(init):
    def run(*args, **named):
        with torch.device("cpu"):
            init(*args, **named)

    return run


@contextlib.contextmanager
def recording(module, most):
    """Functions of module that rotate, and its rotary modules, are a recorder's."""
    recorder = Recorder(most)
    with contextlib.ExitStack() as stack:
        for name, one in vars(module).copy().items():
            if inspect.isfunction(one) and ROTATES.search(name):
                stack.enter_context(mock.patch.object(module, name, recorder.recorded(name, one)))
            if inspect.isfunction(one) and MASKS.search(name):
                stack.enter_context(mock.patch.object(module, name, lambda *args, **named: None))
            if inspect.isclass(one) and ROTARY.search(name):
                stack.enter_context(mock.patch.object(one, "__init__", made_on_cpu(one.__init__)))
                stack.enter_context(mock.patch.object(one, "forward", recorder.rotary(one.forward)))
        yield recorder


def smaller(config):
    config = copy.deepcopy(config)
    if getattr(config, "vocab_size", 0) is None:
        config.vocab_size = 128
    if isinstance(getattr(config, "num_hidden_layers", None), int):
        with contextlib.suppress(Exception):
            config.num_hidden_layers = min(config.num_hidden_layers, N_LAYERS)
    return config


def models_of(config):
    """The classes that may be made of a configuration, those that transformers names for it first."""
    named = ()
    with contextlib.suppress(ValueError):  # a class that is named and is not there
        named = transformers.MODEL_MAPPING.get(type(config), ())
    named = list(named) if isinstance(named, (tuple, list)) else [named]
    package = type(config).__module__.rpartition(".")[0]
    for one in list(named):
        package = one.__module__.rpartition(".")[0]
    module = importlib.import_module(f"{package}.modeling_{package.rpartition('.')[2]}")
    for _, one in inspect.getmembers(module, inspect.isclass):
        if issubclass(one, transformers.PreTrainedModel) and one.__module__ == module.__name__ and one not in named:
            if getattr(one, "config_class", None) is type(config) and not one.__name__.endswith("PreTrainedModel"):
                named.append(one)
    return named


def run(kind, most, try_it):
    """What is recorded while try_it(recorder) runs on the meta device, and why it is nothing."""
    why = "its functions that rotate are not called"
    with recording(sys.modules[kind.__module__], most) as recorder, torch.no_grad():
        try:
            with torch.device("meta"):
                try_it(recorder)
        except Enough:
            pass
        except Exception as error:  # whatever a model of somebody else's wants besides
            why = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    return recorder.found, why


def run_model(kind, config, most):
    def try_it(recorder):
        model = kind(config).eval()
        names = inspect.signature(model.forward).parameters
        named = {"use_cache": False} if "use_cache" in names else {}
        if next(iter(names)) == "input_ids":
            model(input_ids=torch.zeros(1, N_TOKENS, dtype=torch.long), **named)
        else:
            hidden = model.get_input_embeddings().weight.shape[-1]
            model(torch.zeros(1, N_TOKENS, hidden), **named)

    return run(kind, most, try_it)


# What an attention's forward may want, but hidden states and what its module's rotary embedding makes.
ARGUMENTS = {
    "cu_seqlens": torch.tensor([0, N_TOKENS], dtype=torch.int32),
    "max_seqlen": N_TOKENS,
    "position_ids": torch.arange(N_TOKENS)[None],
    "cache_position": torch.arange(N_TOKENS),
}


def attentions(module, names):
    """Its classes whose forward calls one of these functions."""
    for _, one in inspect.getmembers(module, inspect.isclass):
        if issubclass(one, torch.nn.Module) and one.__module__ == module.__name__ and "Attention" in one.__name__:
            source = inspect.getsource(one.forward)
            if any(re.search(rf"\b{name}\(", source) for name in names):
                yield one


def positions_of(n_axes):
    """[tokens], or of an image's or a film's axes [axes, tokens]."""
    at = np.arange(N_TOKENS)
    return at if n_axes < 2 else np.stack([at // 15, at // 5, at % 5][3 - n_axes :])


def embeddings(module, config, positions):
    """cos and sin of its rotary modules."""
    for name, one in vars(module).copy().items():
        if not (inspect.isclass(one) and ROTARY.search(name)):
            continue
        with contextlib.suppress(Exception), torch.device("cpu"):
            at = torch.from_numpy(positions.copy())
            yield one(config)(torch.zeros(1), at.T if at.dim() > 1 else at[None])
        if positions.ndim > 1:
            with contextlib.suppress(Exception), torch.device("cpu"):
                yield one(config)(torch.zeros(1), torch.from_numpy(positions.copy()))


def run_attention(kind, config, most, positions, cos_sin, has_batch):
    def try_it(recorder):
        recorder.positions = positions
        recorder.last = cos_sin if isinstance(cos_sin, tuple) else (cos_sin,)
        init = inspect.signature(kind.__init__).parameters
        attention = kind(config, **({"layer_idx": 0} if "layer_idx" in init else {}))
        width = next(one.in_features for one in attention.modules() if isinstance(one, torch.nn.Linear))
        hidden = torch.zeros(*([1] if has_batch else []), N_TOKENS, width)
        named = {}
        for name, parameter in inspect.signature(attention.forward).parameters.items():
            if name in ("position_embeddings", "rotary_pos_emb", "position_embedding"):
                named[name] = cos_sin
            elif name in ARGUMENTS:
                named[name] = ARGUMENTS[name]
            elif parameter.default is inspect.Parameter.empty and name not in ("args", "kwargs"):
                named[name] = None
        attention(**{**named, next(iter(named)): hidden})

    return run(kind, most, try_it)


def run_attentions(module, config, most, positions):
    """Of models that want more than tokens: images, sounds."""
    names = [name for name, one in vars(module).items() if inspect.isfunction(one) and ROTATES.search(name)]
    why = ""
    for kind in attentions(module, names):
        for cos_sin in embeddings(module, config, positions):
            for has_batch in (True, False):
                found, error = run_attention(kind, config, most, positions, cos_sin, has_batch)
                if found:
                    return found, ""
                why = why or f"{kind.__name__}: {error}"
    return [], why


def rotations(config, n_axes=0, most=8):
    """What the attention of a configuration's model does, and why not where it does nothing. Angles of images have
    axes."""
    why, modules = [], {}
    for kind in models_of(config):
        modules[kind.__module__] = sys.modules[kind.__module__]
        for one in (smaller(config), config):
            found, error = run_model(kind, one, most)
            if found:
                return found, ""
            why.append(f"{kind.__name__}: {error}")
    for module in modules.values():
        found, error = run_attentions(module, config, most, positions_of(n_axes))
        if found:
            return found, ""
        why += [error] * bool(error)
    return [], "; ".join(dict.fromkeys(why)) or "no model of this configuration"
