"""What a model's own layers compute besides attention: its norms, the sums that they read, and the middle of its MLPs.

A model is made on PyTorch's meta device, where tensors have shapes and no memory, and runs there once. A Graph keeps
each operation that PyTorch does. Values then computes any of its tensors on the CPU, by the same operations in the same
types: what a matrix product or an attention gives is drawn at random, all that is between two of them is the model's."""

import contextlib
import copy
import dataclasses
import inspect
import re
import sys
import zlib
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map
from transformers.activations import XIELUActivation

aten = torch.ops.aten
N_TOKENS = 13
N_LAYERS = 4  # some layers differ from the first
N_ALIKE = 2  # of one place in the layers, so many are compared
MASKS = re.compile(r"^create_\w*mask")  # who may look at whom changes nothing here
NORM = re.compile(r"Norm(Gated)?$")
HEADS = re.compile(r"(^|\.|_)(q|k|query|key)_?(layer_?)?norm|qk_?norm")
OF_FLOATS = ("xlnet", "reformer")  # constructors make tensors of float32, wherever the others are; a file of bfloat16 has none
ATTENTION = re.compile(r"attn|attention|mixer|mamba|conv|recurrent|temporal|rwkv|xlstm|mlstm|delta|router|gate$|hyper_connection|_hc$", re.IGNORECASE)
VIEWS = re.compile(r"^(_unsafe_)?(view|reshape|squeeze|unsqueeze|clone|detach|alias|transpose|permute|expand|t|_reshape_alias)$")
# A tensor of these is drawn: the products of matrices, and what picks elements
DRAWN = re.compile(
    r"^(mm|bmm|addmm|baddbmm|convolution|embedding|_scaled_dot|_?softmax|index|gather|scatter|topk|sort|nonzero|one_hot"
    r"|native_batch_norm|_native_batch|cumsum|_grouped_mm|multinomial|bernoulli|_fused_moe|triu|tril|argmax|_fft|linalg)"
)
PRODUCT = re.compile(r"^(mm|bmm|addmm|baddbmm|_grouped_mm)$")
ACTIVATION = re.compile(r"^(silu|gelu|relu|sigmoid|tanh|erf|softplus|hardtanh|elu|leaky_relu|hardswish|mish|selu)_?$")
SUMS = re.compile(r"^(mean|rsqrt|native_layer_norm|_fused_rms|var|linalg_vector_norm|sum)")


@dataclasses.dataclass(frozen=True)
class Made:
    """Output j of node i."""

    i: int
    j: int


@dataclasses.dataclass(frozen=True)
class Given:
    """A tensor that no node made: a parameter."""

    tensor: torch.Tensor


@dataclasses.dataclass
class Node:
    name: str
    function: object
    args: tuple
    named: dict
    outs: list
    module: str


def of_all(index):
    """An index that does not depend on values: of truths, as if all were true."""
    if index is None or index.dtype != torch.bool:
        return [index]
    return [torch.zeros(index.numel(), dtype=torch.long, device=index.device) for _ in range(index.dim())]


class Graph(TorchDispatchMode):
    """Each operation of a run on the meta device."""

    def __init__(self):
        super().__init__()
        self.nodes, self.made, self.path = [], {}, []

    def reference(self, value):
        if not torch.is_tensor(value):
            return value
        return self.made.get(id(value)) or Given(value)

    def __torch_dispatch__(self, function, types, args=(), named=None):
        named = named or {}
        if function is aten._local_scalar_dense.default:  # a number that a model looks at
            return False if args[0].dtype == torch.bool else 1.0 if args[0].is_floating_point() else 0
        if function is aten.equal.default:
            return True
        references = tree_map(self.reference, (args, named))
        if function in (aten.index.Tensor, aten.index_put.default, aten.index_put_.default):
            chosen = [one for index in args[1] for one in of_all(index)]
            out = function(args[0], chosen, *args[2:], **named)
        elif function is aten.nonzero.default:
            out = torch.empty(args[0].numel(), args[0].dim(), dtype=torch.long, device="meta")
        else:
            out = function(*args, **named)
        outs = list(out) if isinstance(out, (tuple, list)) else [out]
        name = function.__name__.split(".")[0]
        self.nodes.append(Node(name, function, *references, outs, self.path[-1] if self.path else ""))
        for j, one in enumerate(outs):
            if torch.is_tensor(one):
                self.made[id(one)] = Made(len(self.nodes) - 1, j)
        return out

    def shape(self, reference):
        return (reference.tensor if isinstance(reference, Given) else self.nodes[reference.i].outs[reference.j]).shape

    def dtype(self, reference):
        return (reference.tensor if isinstance(reference, Given) else self.nodes[reference.i].outs[reference.j]).dtype

    def behind_views(self, reference):
        while isinstance(reference, Made) and VIEWS.match(self.nodes[reference.i].name):
            reference = self.nodes[reference.i].args[0]
        return reference


class Values:
    """Values of a graph's tensors."""

    def __init__(self, graph):
        self.graph, self.known, self.given = graph, {}, {}

    def draw(self, like, key):
        generator = torch.Generator().manual_seed(zlib.crc32(repr(key).encode()))
        if not like.dtype.is_floating_point:
            return torch.zeros(like.shape, dtype=like.dtype)
        return (torch.randn(like.shape, generator=generator) * 1.5).to(like.dtype)

    def parameter(self, tensor):
        if tensor.device.type != "meta":
            return tensor
        if id(tensor) not in self.given:
            generator = torch.Generator().manual_seed(len(self.given))
            drawn = torch.randn(tensor.shape, generator=generator) * 0.3 + (tensor.numel() < 1e5)
            self.given[id(tensor)] = drawn.to(tensor.dtype)
        return self.given[id(tensor)]

    def __getitem__(self, reference):
        if isinstance(reference, Given):
            return self.parameter(reference.tensor)
        wanted, todo = set(), [reference.i]
        while todo:
            i = todo.pop()
            if i in wanted or i in self.known:
                continue
            wanted.add(i)
            node = self.graph.nodes[i]
            if not DRAWN.match(node.name):
                todo += [one.i for one in tree_flatten((node.args, node.named))[0] if isinstance(one, Made)]
        for i in sorted(wanted):
            self.known[i] = self.compute(i)
        return self.known[reference.i][reference.j]

    def compute(self, i):
        node = self.graph.nodes[i]
        if DRAWN.match(node.name):
            return [self.draw(out, (i, j)) if torch.is_tensor(out) else out for j, out in enumerate(node.outs)]

        def value(one):
            if isinstance(one, Given):
                return self.parameter(one.tensor)
            if isinstance(one, Made):
                return self.known[one.i][one.j]
            return torch.device("cpu") if isinstance(one, torch.device) else one

        args, named = tree_map(value, (node.args, node.named))
        if node.name.endswith("_"):  # changes its operand, which others may read
            args = (args[0].clone(), *args[1:])
        out = node.function(*args, **named)
        return list(out) if isinstance(out, (tuple, list)) else [out]


# ------------------------------------------------------------------- the run


def text_of(config):
    """The part of a file that is the model of text: of one that makes music of text, its decoder."""
    return config.decoder if hasattr(config, "audio_encoder") and hasattr(config, "decoder") else config.get_text_config()


def smaller(kind, config):
    config = copy.deepcopy(config)
    if isinstance(text_of(config), kind.config_class):  # a text model of a file for more
        config = text_of(config)
    for one in {id(part): part for part in (config, text_of(config))}.values():
        with contextlib.suppress(Exception):
            one.vocab_size = one.vocab_size or 128
        with contextlib.suppress(Exception):
            one.num_hidden_layers = min(one.num_hidden_layers, N_LAYERS)
        with contextlib.suppress(Exception):  # no loop over who goes to which expert
            one._experts_implementation = "batched_mm"
        with contextlib.suppress(Exception):
            one._attn_implementation = "eager"
    return config


@dataclasses.dataclass
class Run:
    graph: Graph
    norms: list  # (name, module, reference of what goes in, of what comes out)
    error: str


def watch(model, graph, norms):
    """Who does an operation, and what goes through a norm."""

    def enter(name):
        return lambda *_: graph.path.append(name)

    def leave(name, is_norm):
        def hook(module, args, named, out):
            graph.path.pop()
            inside = [value for value in [*args, *named.values()] if torch.is_tensor(value)]
            # one that returns 1 / rms alone is no norm
            if is_norm and inside and torch.is_tensor(out) and out.numel() == inside[0].numel():
                norms.append((name, module, [graph.reference(value) for value in inside], graph.reference(out)))

        return hook

    def is_norm(module):
        """One that has a norm inside does something besides it."""
        return bool(NORM.search(type(module).__name__)) and not any(map(is_norm, module.children()))

    for name, module in model.named_modules():
        module.register_forward_pre_hook(enter(name))
        module.register_forward_hook(leave(name, is_norm(module)), with_kwargs=True)


def inputs_of(model):
    """Tokens, unless a model reads something else, or besides."""

    def tokens(*shape):
        return torch.zeros(shape, dtype=torch.long)

    def values(*shape):
        return torch.zeros(shape, dtype=torch.bfloat16)

    config = model.config
    others = {
        "kyutai_speech_to_text": lambda: {"input_ids": tokens(1, N_TOKENS, config.num_codebooks + 1)},
        "musicgen_decoder": lambda: {"input_ids": tokens(config.num_codebooks, N_TOKENS)},
        "musicgen_melody_decoder": lambda: {"input_ids": tokens(config.num_codebooks, N_TOKENS)},
        "speech_to_text": lambda: {
            "input_features": values(1, 4 * N_TOKENS, config.input_feat_per_channel),
            "decoder_input_ids": tokens(1, N_TOKENS),
        },
        "voxtral_realtime_text": lambda: {"input_ids": tokens(1, N_TOKENS), "t_cond": values(1, 1, config.hidden_size)},
    }
    return others.get(config.model_type, lambda: {"input_ids": tokens(1, N_TOKENS)})()


def sizes_of(config):
    """How many tokens each expert gets, where a model reads it: the first gets all."""
    before, taken = torch.Tensor.tolist, N_TOKENS * (getattr(config, "num_experts_per_tok", None) or 1)

    def sizes(tensor):
        is_count = tensor.device.type == "meta" and tensor.dtype == torch.long and tensor.dim() == 1
        return [taken] + [0] * (len(tensor) - 1) if is_count else before(tensor)

    return sizes


def run_once(kind, config, mask):
    graph, norms, error = Graph(), [], ""
    module, before = sys.modules[kind.__module__], torch.get_default_dtype()
    with contextlib.ExitStack() as stack:
        for name, one in vars(module).copy().items():
            if inspect.isfunction(one) and MASKS.search(name):
                own = None if "recurrent" in name else mask  # the other kind has a row for each sequence
                stack.enter_context(mock.patch.object(module, name, lambda *_, own=own, **__: own))
        stack.enter_context(torch.device("meta"))
        stack.enter_context(torch.no_grad())
        torch.set_default_dtype(torch.bfloat16)
        try:
            model = kind(smaller(kind, config)).eval()
        finally:
            torch.set_default_dtype(before)
        if config.model_type in OF_FLOATS:
            model.to("meta", torch.bfloat16)
        for module in model.modules():
            if isinstance(module, XIELUActivation):  # numbers, which the meta device forgets
                module.beta, module.eps = (torch.tensor(number, device="cpu") for number in (0.5, -1e-6))
                module.to(torch.bfloat16)
        watch(model, graph, norms)
        names = inspect.signature(model.forward).parameters
        named = {"use_cache": False} if "use_cache" in names else {}
        named |= inputs_of(model)
        stack.enter_context(mock.patch.object(torch.Tensor, "tolist", sizes_of(text_of(config))))
        stack.enter_context(mock.patch.object(torch.distributions.Distribution, "_validate_args", False))  # no values
        with graph:
            try:
                model(**named)
            except Exception as why:  # whatever a model of somebody else's wants besides
                error = f"{type(why).__name__}: {(str(why).splitlines() or [''])[0]}"
    return Run(graph, norms, error)


def run(kind, config):
    """What a model of this class and configuration does with some tokens, as far as it runs: some want a mask, and some
    none."""
    found = run_once(kind, config, torch.zeros(1, 1, N_TOKENS, N_TOKENS, dtype=torch.bfloat16, device="meta"))
    if not found.error:
        return found
    other = run_once(kind, config, None)
    return max(found, other, key=lambda one: (not one.error, len(one.norms)))


# ------------------------------------------------------------ what was computed


@dataclasses.dataclass
class Place:
    """Something that one call should give: tensors by the names of an operator's ports, and what the model makes."""

    role: str  # norm, norm of heads, gated norm, sum, added norm, MLP
    name: str
    inputs: dict
    output: torch.Tensor
    scales: dict = dataclasses.field(default_factory=dict)  # of a sum: what was multiplied, which is as it was before; of an MLP: numbers of xielu
    is_rotated: bool = False  # of heads: before they were normalised
    eps: float = None
    parallel: tuple = ()  # of a sum: what it is with three operands: the order, their tensors, and their scales
    is_behind: bool = False  # of a norm: it is added to something


def is_number(graph, reference):
    return not isinstance(reference, (Made, Given)) or graph.shape(reference).numel() == 1


def is_embedding(graph, reference):
    """Of tokens or positions."""
    reference = graph.behind_views(reference)
    return isinstance(reference, Made) and graph.nodes[reference.i].name in ("embedding", "index_select")


def unscaled(graph, values, reference, streams=()):
    """What is multiplied by a number, and the number: None where it is not. Nor is what norms read, a stream, taken
    apart, or what makes one of a token's embedding."""
    made = graph.behind_views(reference)
    node = graph.nodes[made.i] if isinstance(made, Made) else None
    if not node or made in streams or not re.match(r"(mul|div)_?$", node.name):
        return reference, None
    numbers = [one for one in node.args[:2] if is_number(graph, one)]
    others = [one for one in node.args[:2] if not is_number(graph, one)]
    if len(numbers) != 1 or len(others) != 1:
        return reference, None
    if is_embedding(graph, others[0]) and graph.behind_views(others[0]) not in streams:
        return reference, None
    number = float(values[numbers[0]]) if isinstance(numbers[0], (Made, Given)) else float(numbers[0])
    return others[0], 1 / number if node.name.startswith("div") else number


def sum_of(graph, reference):
    """The two tensors that it is the sum of, or None."""
    reference = graph.behind_views(reference)
    node = graph.nodes[reference.i] if isinstance(reference, Made) else None
    if not node or not re.match("add_?$", node.name) or len(node.args) != 2 or node.named.get("alpha", 1) != 1:
        return None
    if any(not isinstance(one, (Made, Given)) for one in node.args):
        return None
    a, b = node.args
    if graph.dtype(a) != graph.dtype(b):  # a residual of float32 beside what a block gives
        a, b = sorted((a, b), key=lambda one: -graph.dtype(one).itemsize)
    return (b, a) if graph.shape(a) == graph.shape(b) else None


def whole_sum(graph, values, reference):
    """The two operands of what a norm reads, and the number that their sum is multiplied by, or None: one that is
    float32 for its residual alone is rounded first."""
    inner, scale = unscaled(graph, values, reference)
    operands = sum_of(graph, inner)
    if operands:
        return operands, scale
    made = graph.behind_views(reference)
    if isinstance(made, Made) and graph.nodes[made.i].name == "_to_copy":
        operands = sum_of(graph, graph.nodes[made.i].args[0])
        if operands and graph.dtype(operands[0]) == graph.dtype(made) != graph.dtype(operands[1]):
            return operands, None
    return None, None


def parallel_sum(graph, operands, streams):
    """The order of a sum of three, and which they are: x, addend, residual. What norms read is the residual."""

    def is_stream(one):
        one = graph.behind_views(one)
        return isinstance(one, Made) and one in streams

    for one, other in (operands, operands[::-1]):
        pair = sum_of(graph, one)
        if pair and is_stream(other) and not any(map(is_stream, pair)):
            return "addends_first", (*pair, other)
        if pair and not is_stream(other) and any(map(is_stream, pair)) and not is_stream(one):
            x, residual = pair if is_stream(pair[1]) else pair[::-1]
            return "residual_first", (x, other, residual)
    return None


def eps_of(module):
    for name in ("variance_epsilon", "eps", "epsilon", "norm_eps"):
        if isinstance(getattr(module, name, None), float):
            return getattr(module, name)
    return None


def segment(graph, reference, most=60):
    """Between products of matrices: the nodes that lead to a tensor, and what they begin with."""
    nodes, begin, todo = set(), {}, [reference]
    while todo and len(nodes) <= most:
        one = todo.pop()
        if isinstance(one, Given) or DRAWN.match(graph.nodes[one.i].name):
            begin[id(one.tensor) if isinstance(one, Given) else one] = one
        elif one.i not in nodes:
            nodes.add(one.i)
            node = graph.nodes[one.i]
            todo += [part for part in tree_flatten((node.args, node.named))[0] if isinstance(part, (Made, Given))]
    return nodes, list(begin.values())


def rotates(graph, reference):
    return any(graph.nodes[i].name in ("cos", "polar") for i in segment(graph, reference)[0])


def as_viewed(graph, reference, value):
    """Another value of what a reference is a view of, in the same way."""
    steps = []
    while isinstance(reference, Made) and VIEWS.match(graph.nodes[reference.i].name):
        steps.append(graph.nodes[reference.i])
        reference = steps[-1].args[0]
    for step in reversed(steps):
        value = step.function(value, *step.args[1:], **step.named)
    return value


def terms_of(graph, values, streams, reference, parts):
    """Tensors of a sum, as what it is a view of, and the numbers that they are multiplied by: none in a sum of
    embeddings."""
    is_first = any(is_embedding(graph, part) for part in parts.values())
    found = {key: (part, None) if is_first else unscaled(graph, values, part, streams) for key, part in parts.items()}
    scales = {f"{key}_scale": scale for key, (_, scale) in found.items() if scale is not None}
    return {key: as_viewed(graph, reference, values[one]) for key, (one, _) in found.items()}, scales


def norms_of(found, values):
    graph, count = found.graph, {}
    streams = {graph.behind_views(inside[0]) for *_, inside, _ in found.norms if not isinstance(inside[0], Given)}
    used = {id(one.tensor) for node in graph.nodes for one in tree_flatten((node.args, node.named))[0] if isinstance(one, Given)}
    added = {graph.behind_views(one) for i in range(len(graph.nodes)) for one in sum_of(graph, Made(i, 0)) or ()}
    for name, module, inside, out in found.norms:
        place = re.sub(r"\d+", "N", name)
        count[place] = count.get(place, 0) + 1
        if count[place] > N_ALIKE:
            continue
        gains = {key: values.parameter(getattr(module, key)) for key in ("weight", "bias")
                 if id(getattr(module, key, None)) in used}  # fmt: skip
        role = "norm" if len(inside) == 1 else "gated norm"
        role = "norm of heads" if HEADS.search(place) else role
        is_rotated = role == "norm of heads" and rotates(graph, inside[0])
        x = values[inside[0]]
        gate = {"gate": values[inside[1]].to(x.dtype)} if role == "gated norm" else {}  # Mamba's x is float32
        yield Place(role, place, {"x": x, **gains, **gate}, values[out], {}, is_rotated, eps_of(module), is_behind=graph.behind_views(out) in added)
        operands, scale = whole_sum(graph, values, inside[0])
        # the last norm of a residual of float32 is float32, and its own
        if operands and role == "norm" and graph.dtype(out) == graph.dtype(operands[0]):
            x, residual = operands
            if unscaled(graph, values, residual, streams)[1] is not None and unscaled(graph, values, x, streams)[1] is None:
                x, residual = residual, x
            scales = {} if scale is None else {"sum_scale": scale}
            terms, found_scales = terms_of(graph, values, streams, inside[0], {"x": x, "residual": residual})
            three = parallel_sum(graph, operands, streams)
            if three:
                order, parts = three
                parts = dict(zip(("x", "addend", "residual"), parts))
                parts, of_parts = terms_of(graph, values, streams, inside[0], parts)
                three = order, parts, scales | of_parts
            scales |= found_scales
            yield Place("sum", place, {**terms, **gains}, values[out], scales, eps=eps_of(module), parallel=three or ())


def added_norms_of(found, values):
    """Norms that are added to a residual: x, the residual, and the sum."""
    graph, seen = found.graph, set()
    made = {graph.behind_views(out): (name, module, inside) for name, module, inside, out in found.norms if len(inside) == 1}
    for i, node in enumerate(graph.nodes):
        operands = sum_of(graph, Made(i, 0)) or ()
        for norm, residual in zip(operands, reversed(operands)):
            if graph.behind_views(norm) not in made:
                continue
            name, module, inside = made[graph.behind_views(norm)]
            place = re.sub(r"\d+", "N", name)
            if place in seen or getattr(module, "weight", None) is None:
                continue
            seen.add(place)
            inputs = {"x": values[inside[0]], "residual": values[residual], "weight": values.parameter(module.weight)}
            yield Place("added norm", place, inputs, values[Made(i, 0)], eps=eps_of(module))


def rows(tensor):
    """[rows, width], of experts too, whose last dim is 1."""
    tensor = tensor.squeeze(-1) if tensor.dim() > 1 and tensor.shape[-1] == 1 else tensor
    return tensor.reshape(-1, tensor.shape[-1])


def numbers_of(graph, values, steps):
    """What xielu makes of its parameters."""
    made = [Made(i, 0) for i in steps if graph.nodes[i].name in ("softplus", "add") and graph.shape(Made(i, 0)).numel() == 1]
    return {"alpha_p": float(values[made[0]]), "alpha_n": float(values[made[-1]])} if len(made) == 3 else {}


def mlps_of(found, values):
    graph, seen = found.graph, set()
    for node in graph.nodes:
        if not PRODUCT.match(node.name):
            continue
        for one in node.args:
            if not isinstance(one, Made) or one in seen:
                continue
            seen.add(one)
            nodes, begin = segment(graph, one)
            steps = [graph.nodes[i] for i in sorted(nodes)]
            acts = [step for step in steps if ACTIVATION.match(step.name)]
            if not acts or any(SUMS.match(step.name) for step in steps) or ATTENTION.search(acts[0].module):
                continue
            kind = tuple(sorted(step.name for step in steps)) + (re.sub(r"\d+", "N", acts[0].module),)
            if kind in seen:
                continue
            seen.add(kind)
            out = rows(values[one])
            begin += [Made(i, 0) for i in nodes if re.match("add_?$", graph.nodes[i].name)]  # product and bias
            parts = [rows(values[part]) for part in begin if len(graph.shape(part)) > 1]
            large = [part for part in parts if part.numel() >= out.numel() and part.dtype == out.dtype]
            numbers = numbers_of(graph, values, sorted(nodes))
            yield Place("MLP", kind[-1], {str(i): part for i, part in enumerate(large)}, out, numbers)


def places(found):
    """Norms, sums and MLPs of a run."""
    values = Values(found.graph)
    with torch.no_grad():
        yield from norms_of(found, values)
        yield from added_norms_of(found, values)
        yield from mlps_of(found, values)
