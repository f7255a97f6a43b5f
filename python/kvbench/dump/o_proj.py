"""Output projections of kvbench-py dump, and norms of the residual stream.

W [hidden, Hq * dv] multiplies the concatenated head outputs in the attention module, without the bias. The norm is
that of the decoder layer's input, to which the attention output is added in every supported architecture.

Nothing relies on names. In short runs before the prompts, the projection is the module whose input is the output of
the attention function; its weight must reproduce its output, which must be the attention module's result. The inputs
and outputs of the layer's parts show how the result is added: most layers add it directly; Gemma 2 and 3, OLMo 2 and
GLM 4 apply a norm g x / rms(x), Granite a factor. W and the norms r then take what follows, so that W D_j / r_j is
still the change of the stream over its norm, with the divisor of the uncompressed run: rows of W times g and r_j times
rms_j, or r_j over the factor. An attribute of the layer says so, and names what else follows.
"""

from dataclasses import dataclass
from typing import Any

import torch
from transformers.pytorch_utils import Conv1D

from kvbench.dump.forward import forward
from kvbench.dump.rope import Stop, last_wanted
from kvbench.trace.writer import TraceError, array_of

PROBE_TOKENS = 32  # of the short runs
# Largest relative deviation of a sum of two or three numbers: two roundings (2^-24, 2^-11, 2^-8),
# with a factor of two to spare.
SUM_LIMIT = {torch.float32: 2.0**-22, torch.float16: 2.0**-9, torch.bfloat16: 2.0**-6}
# The same for products with a weight, whose partial sums may be rounded too.
PRODUCT_LIMIT = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}


@dataclass
class Follows:
    """What lies between a projection and the residual stream, `note`; a norm that is folded in, or a factor."""

    note: str | None = None
    norm: torch.nn.Module | None = None
    gain: Any = None  # [hidden] of the norm, or None
    eps: float = 0.0
    factor: float = 1.0

    def weight(self, weight):
        """Returns the projection with the norm's gain."""
        return weight if self.gain is None else (weight.double() * self.gain.to(weight.device)[:, None]).float()


class OutputProjections:
    """Finds and checks the projections of all wanted layers, then records the residual stream.

    Calls: `find`; per prompt `write_weight` and `write_norms` of each layer, and `prompt_ends`; `describe`.
    """

    def __init__(self, model, args, dtype):
        """dtype: the trace's."""
        self.model, self.args, self.dtype = model, args, dtype
        self.layers = {}  # layer -> (weight [hidden, columns], its Follows)
        self.norms = {}  # layer -> norms of the residual stream, by row of the current chunk
        self.waiting = {}  # layer -> what with_norms calls once the norm behind the projection runs
        self.stored = {}  # layer -> the last prompt with its projection
        self.new = set()  # layers of the current prompt
        self.outputs = None  # attention module -> output of the attention function, in a short run

    # --- Short runs

    def find(self, ids):
        """Finds the projection and residual stream of every wanted layer."""
        ids = (list(ids) * PROBE_TOKENS)[:PROBE_TOKENS]
        modules = dict(self.model.named_modules())
        names = {module: name for name, module in modules.items()}
        self._run(ids)  # which modules call the attention function
        runs = {}
        for attention in self.outputs:
            layer = getattr(attention, "layer_idx", None)
            if layer is not None and (self.args.layers is None or layer in self.args.layers):
                runs[layer] = LayerRun(modules[names[attention].rpartition(".")[0]], attention)
        try:
            self._run(ids)
        finally:
            for run in runs.values():
                run.end()
        owners = {}
        for layer, run in sorted(runs.items()):
            where = f"{self.args.model}: --o-proj: layer {layer}: "
            weight = run.projection(where, self.outputs[run.attention])
            other = owners.setdefault(weight.data_ptr(), layer)
            if other != layer:
                raise TraceError(f"{where}its output projection is also that of layer {other}: unsupported")
            follows = run.how_added(where)
            self.layers[layer] = weight, follows
            if follows.norm is not None:
                follows.norm.register_forward_pre_hook(
                    lambda _, args, layer=layer, follows=follows: self._divides(layer, follows, args[0]))
            run.block.register_forward_pre_hook(
                lambda _, args, kwargs, layer=layer: self._enters(layer, args, kwargs),
                with_kwargs=True)
        self.outputs = None

    def _run(self, ids):
        self.outputs = {}
        forward(self.model, ids)

    def observe(self, module, output):
        """Records the output of the attention function in a short run."""
        if self.outputs is not None:
            self.outputs[module] = output.detach().clone()

    # --- Prompts

    def _enters(self, layer, args, kwargs):
        stream = hidden_states(args, kwargs)[0].detach()
        self.norms[layer] = torch.linalg.vector_norm(stream, dim=-1, dtype=torch.float64).cpu()

    def _divides(self, layer, follows, added):
        """The norm behind the projection runs."""
        use = self.waiting.pop(layer, None)
        if use:
            use(self.norms[layer] * rms(added[0].detach(), follows.eps).cpu())
            if last_wanted(self.args.layers, layer):
                raise Stop

    def with_norms(self, layer, use):
        """Calls use(norms [tokens] of the run), now or when the norm behind the projection runs. Then a run ends in
        this class behind the last wanted layer.
        """
        follows = self.layers[layer][1]
        if follows.norm is not None:
            self.waiting[layer] = use
        else:
            use(self.norms[layer] / abs(follows.factor))

    def write_weight(self, writer, layer, q_heads, dv):
        """Writes the projection of an open layer: the columns of these query heads."""
        weight, follows = self.layers[layer]
        self.new.add(layer)
        if not (layer in self.stored and writer.share_o_proj(self.stored[layer], layer)):
            columns = [head * dv + i for head in q_heads for i in range(dv)]
            writer.write_o_proj(self._array(follows.weight(weight[:, columns])), layer)
        if follows.note:
            writer.set_attribute(layer, "o_proj_note", follows.note)

    def _array(self, weight):
        """Returns the weight in the trace's type if exact, otherwise as float32."""
        weight = weight.detach().cpu()
        narrow = weight.to(getattr(torch, self.dtype))
        return array_of(narrow if torch.equal(narrow.to(weight.dtype), weight) else weight.float())

    def write_norms(self, writer, layer, row, first):
        """Writes the norms of this chunk from token `first` on. row: of that token's stored query."""
        self.with_norms(layer, lambda norms: writer.write_residual_norm(row, norms[first:].numpy(), layer))

    def prompt_ends(self, prompt):
        self.stored.update(dict.fromkeys(self.new, prompt))
        self.new.clear()

    def describe(self):
        sizes = sorted({weight.shape[0] for weight, _ in self.layers.values()})
        text = f"hidden size {' and '.join(map(str, sizes))}"
        for note in sorted({follows.note for _, follows in self.layers.values() if follows.note}):
            layers = " ".join(str(layer) for layer, (_, own) in sorted(self.layers.items()) if own.note == note)
            text += f"; layers {layers}: {note}"
        return text


class LayerRun:
    """Inputs and outputs of a decoder layer and its attention in the short run."""

    def __init__(self, block, attention):
        self.block, self.attention = block, attention
        self.entered = self.left = None  # input and output of the layer, [tokens, hidden]
        self.parts = []  # (module, input, output) of the layer's children, in order
        self.leaves = []  # the same for the attention's innermost modules
        self.hooks = [block.register_forward_pre_hook(self._enters, with_kwargs=True),
                      block.register_forward_hook(self._leaves)]
        leaves = [m for m in attention.modules() if not any(True for _ in m.children())]
        for modules, record in ((block.children(), self.parts), (leaves, self.leaves)):
            for module in modules:
                self.hooks.append(module.register_forward_hook(
                    lambda module, args, kwargs, output, record=record: record.append(
                        (module, rows(hidden_states(args, kwargs)), rows(output))), with_kwargs=True))

    def end(self):
        for hook in self.hooks:
            hook.remove()

    def _enters(self, _, args, kwargs):
        self.entered = rows(hidden_states(args, kwargs))

    def _leaves(self, _, args, output):
        self.left = rows(output)

    def projection(self, where, output):
        """Returns the weight [hidden, Hq * dv] that maps `output` to the attention's result."""
        where += f"{type(self.attention).__name__}: "
        heads = output.reshape(-1, output.shape[-2] * output.shape[-1])
        found = [leaf for leaf in self.leaves if leaf[1] is not None
                 and leaf[1].shape == heads.shape and torch.equal(leaf[1], heads)
                 and not isinstance(leaf[0], (torch.nn.Dropout, torch.nn.Identity))]
        if len(found) != 1:
            raise TraceError(f"{where}no part of it is given what its heads give, as it is: unsupported")
        module, _, result = found[0]
        weight = getattr(module, "weight", None)
        if not isinstance(module, (torch.nn.Linear, Conv1D)) or weight.dtype not in PRODUCT_LIMIT:
            kind = f" of {weight.dtype}" if isinstance(weight, torch.Tensor) else ""
            raise TraceError(f"{where}its output projection is a {type(module).__name__}{kind}, "
                             "expected a plain matrix of floating point: unsupported")
        if isinstance(module, Conv1D):
            weight = weight.T
        own = heads.double() @ weight.double().T
        if module.bias is not None:
            own = own + module.bias.double()
        off = deviation(own - result.double(), own)
        if not off <= PRODUCT_LIMIT[weight.dtype]:
            raise TraceError(f"{where}its output projection does more than multiply by its weight "
                             f"(off by {off:.2g}, limit {PRODUCT_LIMIT[weight.dtype]:g})")
        returned = next((part[2] for part in self.parts if part[0] is self.attention), None)
        if returned is None or not torch.equal(returned, result):
            raise TraceError(f"{where}what it returns to its layer is not its output projection's output: unsupported")
        return weight

    def how_added(self, where):
        """Returns what lies between the projection and the addition to the layer's input."""
        refused = TraceError(f"{where}{type(self.block).__name__}: where it adds its attention's "
                             "output is not known here: unsupported")
        at = next(i for i, part in enumerate(self.parts) if part[0] is self.attention)
        stream, added = self.entered, self.parts[at][2]
        if stream is None or self.left is None or not stream.shape == self.left.shape == added.shape:
            raise refused  # several streams (Gemma 3n)
        stream, added = stream.double(), added.double()
        later = [part[1] for part in self.parts[at + 1:]] + [self.left]
        later = [s.double() for s in later if s is not None and s.shape == stream.shape
                 and not torch.equal(s, self.entered)]
        given_out = [(module, out.double()) for module, _, out in self.parts
                     if out is not None and out.shape == stream.shape]
        # (deviation, what is added or None: the projection's output itself) of all consistent explanations.
        ways = []
        for seen in later:
            for module, part in given_out:
                same = torch.equal(part, added)  # The attention, or a dropout after it.
                ways.append((deviation(seen - stream - part, stream, part), None if same else (module, part)))
        for _, part in given_out:  # A parallel block.
            rest = self.left.double() - stream - added - part
            ways.append((deviation(rest, stream, added, part), None))
        off, between = min(ways, key=lambda way: way[0])
        limit = SUM_LIMIT[self.entered.dtype]
        if off <= limit:
            return norm_between(added, *between, PRODUCT_LIMIT[self.entered.dtype]) if between else Follows()
        for seen in later:
            factor = float(((seen - stream) * added).sum() / added.square().sum())
            # The factor and its product are rounded as well.
            if deviation(seen - stream - factor * added, stream, added) <= 2 * limit:
                return Follows(f"a factor of {factor:.4g} behind it divides residual_norm", factor=factor)
        raise refused


def norm_between(added, module, part, limit):
    """Returns the Follows of a module that makes `part` of the projection's output. Only norms of the form
    g x / rms(x), where g is a parameter, 1 more than one, or 1, are folded in.
    """
    name = type(module).__name__
    eps = float(getattr(module, "eps", getattr(module, "variance_epsilon", None)) or 0.0)
    gains = [one.detach().double() for one in module.parameters() if one.shape == added.shape[-1:]]
    for gain in (*gains, *(1 + one for one in gains), torch.ones(added.shape[-1], dtype=torch.float64)):
        if deviation(added / rms(added, eps)[:, None] * gain.to(added.device) - part, part) <= limit:
            return Follows(f"{name} behind it is folded in: its weight in o_proj, its divisor in residual_norm", module,
                           gain, eps)
    return Follows(f"{name} lies between it and the residual stream")


def rms(x, eps):
    """Returns [rows]: the divisor of a norm."""
    return (x.double().square().mean(dim=-1) + eps).sqrt()


def hidden_states(args, kwargs):
    """Returns the hidden states among a module's arguments, or None."""
    return args[0] if args else kwargs.get("hidden_states")


def rows(value):
    """Returns a copy of a tensor, or of the first of a tuple, as [tokens, width]; None for other types."""
    if isinstance(value, tuple) and value:
        value = value[0]
    if not isinstance(value, torch.Tensor) or value.ndim < 2:
        return None
    return value.detach().clone().reshape(-1, value.shape[-1])


def deviation(difference, *parts):
    """Returns the largest row norm relative to the norms of the summands."""
    size = sum(part.norm(dim=-1) for part in parts)
    return float((difference.norm(dim=-1) / size.clamp(min=1e-30)).max())
