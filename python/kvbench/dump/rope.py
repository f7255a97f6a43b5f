"""Rotary tables of kvbench-py dump: cos and sin by position, from the model's own modules.

The module that made the (cos, sin) of a layer's attention is rerun over all positions of the trace. A short run checks
each layer: its attention runs again with the identity rotation, and the tables must map those queries and keys to the
model's. This also finds the paired channels (`layout`), and layers without rotation.
"""

import inspect
import math
from dataclasses import dataclass

import torch

from kvbench.dump.forward import forward
from kvbench.trace.parts import FUTURE_POSITIONS

PROBE_TOKENS = 32  # of the short run; layouts differ from the second position on
# Largest relative deviation of rotated queries and keys in the short run: one rounding per product
# and sum (2^-24, 2^-11, 2^-8), times a small factor. A wrong layout or table deviates by tenths.
PROBE_LIMIT = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}
# Largest difference between a table and a layer's inputs: vectorised cos may differ in the last place.
TABLE_LIMIT = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


class Stop(Exception):
    """The last wanted layer is done; skip the rest of the forward pass."""


def last_wanted(layers, layer):
    """Returns whether no layer behind this one is wanted. layers: those that are, None for all."""
    return layers is not None and layer >= max(layers)


class NoTables(Exception):
    """Why the rotation cannot be determined. One phrase."""


def rope_types(config):
    """Returns the kinds of rotary embedding in the configuration, such as {"default"}; empty: none."""
    found = set()
    for name in ("rope_parameters", "rope_scaling"):
        value = getattr(config, name, None)
        if isinstance(value, dict):
            # Models with two kinds of layers have a dictionary for each.
            for part in [v for v in value.values() if isinstance(v, dict)] or [value]:
                found.add(part.get("rope_type", part.get("type", "default")))
    for name in ("rope_theta", "rotary_dim", "rotary_pct", "rotary_emb_base"):
        if getattr(config, name, None):
            found.add("default")
    return found


def rotate(x, cos, sin, layout):
    """Rotates the first rope_dim channels of x [..., n, d] by the tables [n, rope_dim / 2]."""
    half = cos.shape[-1]
    if half == 0:
        return x
    out = x.clone()
    if layout == "half":
        first, second = slice(0, half), slice(half, 2 * half)
    else:
        first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., second] * cos + x[..., first] * sin
    return out


def once_per_frequency(cos):
    """Yields candidates for the columns that hold each frequency once, and their layouts."""
    width = cos.shape[-1]
    if width % 2 == 0:
        if torch.equal(cos[:, :width // 2], cos[:, width // 2:]):
            yield slice(0, width // 2), ("half", "interleaved")
        if torch.equal(cos[:, ::2], cos[:, 1::2]):
            yield slice(0, width, 2), ("interleaved", "half")
    yield slice(0, width), ("half", "interleaved")


def is_rotation(value):
    """Returns whether this is a (cos, sin) of one sequence: two real tensors [1, n, width]."""
    return (isinstance(value, (tuple, list)) and len(value) == 2
            and all(isinstance(t, torch.Tensor) and t.is_floating_point() for t in value)
            and value[0].shape == value[1].shape and value[0].ndim == 3 and value[0].shape[0] == 1)


class Source:
    """A rotary module with the arguments of one call; Gemma 3's has one per kind of layer."""

    def __init__(self, module, args, kwargs):
        self.module, self.args, self.kwargs = module, args, kwargs

    def tables(self, count):
        """Returns cos and sin [count, width] of positions 0 to count - 1, float32.

        Uses the frequencies of the model's last run: rotations by length (dynamic, longrope) would
        switch to those for `count` tokens.
        """
        def stretched(value):
            positions = (isinstance(value, torch.Tensor) and not value.is_floating_point() and value.ndim == 2)
            return torch.arange(count, device=value.device)[None] if positions else value
        # Bypasses the decorator `dynamic_rope_update`.
        forward = inspect.unwrap(type(self.module).forward)
        with torch.inference_mode():
            cos, sin = forward(self.module, *map(stretched, self.args),
                               **{key: stretched(value) for key, value in self.kwargs.items()})
        if cos.shape[:2] != (1, count):
            raise NoTables(f"{type(self.module).__name__} does not take positions")
        return cos[0].float().cpu(), sin[0].float().cpu()


@dataclass(frozen=True)
class Layer:
    """A layer's rotation: columns of its source's tables, and the layout. None: no rotation."""

    source: Source | None
    columns: slice
    layout: str


class RotaryTables:
    """Finds and checks the tables of all wanted layers.

    Call order: `find` once, per prompt `prompt_begins` and `prompt_ends`, then `write`. reason: why
    there are no tables; None if there are.
    """

    def __init__(self, model, layers, longest):
        """layers: of the trace, None: all. longest: tokens of the longest prompt."""
        self.model, self.wanted = model, layers
        self.count = longest + FUTURE_POSITIONS
        self.reason = None
        self.layers = {}  # layer -> Layer
        self.attention = {}  # attention module -> its Source
        self.tables = {}  # Source -> (cos, sin) [count, width] of the prompts so far
        self.got = {}  # (Source, first position) -> (cos, sin) of the current prompt
        self.made = {}  # id of a cos -> (Source, that cos), in the short run
        self.inputs = {}  # attention module -> its cos and sin, in the short run
        self.seen = None  # (attention module, query, key) of the last call
        self.finding = False
        self.hooks = []

    # --- Short run

    def find(self, ids):
        """Determines every layer's source and layout from a short run over the first token ids."""
        ids = (list(ids) * PROBE_TOKENS)[:PROBE_TOKENS]
        hooks = []
        for module in self.model.modules():
            if takes_rotation(module):
                hooks += [module.register_forward_pre_hook(self._before, with_kwargs=True),
                          module.register_forward_hook(self._after, with_kwargs=True)]
            else:
                hooks.append(module.register_forward_hook(self._made, with_kwargs=True))
        self.finding = True
        try:
            forward(self.model, ids)
        except Stop:
            pass
        except NoTables as error:
            self.reason = str(error)
        finally:
            for hook in hooks:
                hook.remove()
            self.finding = False
            self.made, self.inputs, self.seen = {}, {}, None
        if self.reason is None and not self.layers:
            self.reason = "no layer's attention takes cos and sin as `position_embeddings`"
        elif self.reason is None and not any(layer.source for layer in self.layers.values()):
            self.reason = "no layer rotates"

    def observe(self, module, query, key):
        """Records the arguments of the attention function in the short run."""
        if self.finding:
            self.seen = module, query, key

    def _made(self, module, args, kwargs, output):
        """Remembers a module's output if it may be a layer's cos and sin."""
        if is_rotation(output):
            self.made[id(output[0])] = Source(module, args, kwargs), output[0]

    def _before(self, module, args, kwargs):
        self.inputs[module] = bind(module, args, kwargs).arguments.get("position_embeddings")

    def _after(self, module, args, kwargs, output):
        """Reruns a layer's attention without rotation and compares."""
        if self.seen is None or self.seen[0] is not module:
            return  # a block that contains the attention and passes cos and sin on
        layer, given = module.layer_idx, self.inputs[module]
        if self.wanted is None or layer in self.wanted:
            self.layers[layer] = self._layer(module, given, bind(module, args, kwargs))
            self.attention[module] = self.layers[layer].source
        if last_wanted(self.wanted, layer):
            raise Stop

    def _layer(self, module, given, bound):
        where = f"layer {module.layer_idx}: {type(module).__name__}"
        if not is_rotation(given):
            raise NoTables(f"{where} is not given a cos and a sin of one sequence")
        source, _ = self.made.get(id(given[0]), (None, None))
        if source is None:
            raise NoTables(f"{where}: which module made its cos and sin is not known")
        turned = self.seen[1:]
        bound.arguments["position_embeddings"] = (torch.ones_like(given[0]), torch.zeros_like(given[1]))
        module.forward(*bound.args, **bound.kwargs)  # bypasses the module's hooks
        pairs = [(a.float(), b.float()) for a, b in zip(self.seen[1:], turned)]
        limit = PROBE_LIMIT[turned[0].dtype]
        cos, sin = (t[0].float() for t in given)
        best = math.inf
        for found in candidates(source, cos, min(a.shape[-1] for a, _ in pairs)):
            tables = [t[:, found.columns] for t in (cos, sin)]
            off = max(float((rotate(a, *tables, found.layout) - b).norm() / b.norm()) for a, b in pairs)
            if off <= limit:
                return found
            best = min(best, off)
        raise NoTables(f"{where} does not turn the first channels of queries and keys by its cos "
                       f"and sin alone (off by {best:.2g}, limit {limit:g})")

    # --- Prompts

    def prompt_begins(self, capture):
        """Records the layers' inputs while `capture` runs a prompt."""
        def watch(module, args, kwargs):
            self.got.setdefault((self.attention[module], capture.start), bind(
                module, args, kwargs).arguments["position_embeddings"])
        self.got.clear()
        if self.reason is None:
            self.hooks = [module.register_forward_pre_hook(watch, with_kwargs=True)
                          for module, source in self.attention.items() if source is not None]

    def prompt_ends(self, prompt):
        """Makes the tables, which must match the layers' inputs and those of other prompts."""
        for hook in self.hooks:
            hook.remove()
        self.hooks = []
        try:
            for source in {source for source, _ in self.got}:
                self._check(prompt, source)
        except NoTables as error:
            self.reason = str(error)
        self.got.clear()

    def _check(self, prompt, source):
        tables = source.tables(self.count)
        for (other, start), given in self.got.items():
            if other is not source:
                continue
            for table, got in zip(tables, given):
                off = (table[start:start + got.shape[1]] - got[0].float().cpu()).abs().max()
                if not float(off) <= TABLE_LIMIT[got.dtype]:
                    raise NoTables(f"{prompt}: {type(source.module).__name__} gave other cos and "
                                   f"sin when it ran again (off by {float(off):.2g})")
        before = self.tables.setdefault(source, tables)
        if not all(map(torch.equal, before, tables)):
            raise NoTables(f"{prompt}: the rotation depends on the prompt's length, and it is not "
                           "that of the prompts before; expected prompts of one length in a trace, "
                           "or none longer than the model was made for")

    def write(self, writer):
        """Writes tables of the trace's layers: one for all, or one each if layers differ. Returns a description."""
        kinds = []  # distinct [cos, sin, layout, layers]
        for index, layer in sorted(self.layers.items()):
            if layer.source is None:
                cos, sin = torch.ones(self.count, 1), torch.zeros(self.count, 1)
            else:
                cos, sin = (t[:, layer.columns] for t in self.tables[layer.source])
            for kind in kinds:
                if (kind[2] == layer.layout and torch.equal(kind[0], cos) and torch.equal(kind[1], sin)):
                    kind[3].append(index)
                    break
            else:
                kinds.append([cos, sin, layer.layout, [index]])
        for cos, sin, layout, layers in kinds:
            writer.write_rope(cos.numpy(), sin.numpy(), layout, layers if len(kinds) > 1 else None)
        return ", ".join(
            (f"{2 * cos.shape[1]} channels, {layout}" if sin.any() else "no rotation")
            + (f" (layers {' '.join(map(str, layers))})" if len(kinds) > 1 else "")
            for cos, sin, layout, layers in kinds) + f"; {self.count} positions"


def takes_rotation(module):
    """Returns whether this is an attention module, or a block around one, with cos and sin as arguments."""
    return (hasattr(module, "layer_idx") and "position_embeddings" in inspect.signature(module.forward).parameters)


def bind(module, args, kwargs):
    return inspect.signature(module.forward).bind_partial(*args, **kwargs)


def candidates(source, cos, width):
    """Yields the possible uses of cos and sin for queries and keys of this width."""
    yield Layer(None, slice(0, 0), "half")
    for columns, layouts in once_per_frequency(cos):
        if 2 * cos[:, columns].shape[1] <= width:
            for layout in layouts:
                yield Layer(source, columns, layout)
