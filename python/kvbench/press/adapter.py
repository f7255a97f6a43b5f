"""kvbench's methods as presses of kvpress: kvbench.as_press."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from kvbench.caches import CacheEntry, CacheReader
from kvbench.dump.options import DTYPES
from kvbench.generate.chosen import Chosen, choose
from kvbench.press.expression import PressError
from kvbench.text import one_line
from kvbench.trace.parts import FUTURE_POSITIONS
from kvbench.trace.writer import TraceWriter, array_of

PROMPT = "p0"
Entries = dict[int, list[CacheEntry]]  # of a layer's KV heads


def as_press(algorithm: str | dict[str, dict[str, Any]] | None = None, compression_ratio: float | None = None, *,
             budget: float | None = None, policy: str | os.PathLike[str] | None = None, sink: int = 16,
             recent: int = 64, seed: int = 0, **params: Any) -> Any:
    """Returns a kvbench method, or a policy, as a press of kvpress, for its pipeline and evaluation.

        press = kvbench.as_press("snapkv", compression_ratio=0.5, window=32)
        press = kvbench.as_press("h2o@quant-kivi", budget=0.125)
        press = kvbench.as_press(policy="policy.json")
        pipe(context, question=question, press=press)["answer"]

    algorithm          one method of the prefill protocol, as of `--algorithm` without lists, or
                       {"snapkv": {"window": 32}}
    compression_ratio  the fraction of all tokens (windows included) to drop, as in kvpress; in [0, 1), 0: none
    budget             in its place: the fraction of the middle's bytes, as in kvbench
    policy             in place of an algorithm: a file (docs/policies.md)
    sink, recent       first and last tokens to keep; recent at least 1
    seed               of random methods
    params             the method's parameters: window=32, **{"h2o.reduce": "max"}

    `with press(model)` compresses what the model reads first, all layers at once. A temporary trace has as many bytes
    as its queries, keys and values; TMPDIR is its place. If all heads keep as many entries, of weight 1, these are the
    layers' keys and values, [1, heads, kept, d]: kept tokens bit by bit, in order of position, then made entries.
    Otherwise layers hold the caches beside new tokens (docs/generation.md): weights are added to the logits as log
    weights, codes are the values that they stand for, heads differ in length. All queries of the context score. Batch
    size 1.

    The press's `compress` takes one layer, for presses that wrap others, and returns its keys and values, or raises
    PressError if these need more.

    Raises PressError without kvpress, kvbench.ProgramError for unknown methods, parameters and values.
    """
    made = _press_class()
    ratio = compression_ratio
    if ratio is not None and not 0 <= ratio < 1:
        raise PressError(f"as_press: got compression_ratio {ratio}, expected 0 <= it < 1")
    if ratio is not None and budget is not None:
        raise PressError(f"as_press: got compression_ratio {ratio:g} and budget {budget:g}, expected one of them")
    chosen = choose(algorithm, policy, params, sink=sink, recent=recent, seed=seed,
                    budget=ratio if budget is None else budget)
    if ratio is None and budget is None and not chosen.sized:
        ratio = 0.0
    return made(chosen, ratio, budget, sink, recent)


@functools.cache
def _press_class() -> Any:
    """Returns the class, made on demand so that importing this module needs neither kvpress nor torch."""
    try:
        from kvpress import BasePress
    except ImportError as error:
        raise PressError(f"as_press: {sys.executable} cannot import {error.name}, expected kvpress "
                         "0.5.5 or newer: pip install 'kvpress>=0.5.5'") from None

    class KVBenchPress(BasePress):  # type: ignore[misc]
        """See as_press; `compression_ratio` may be changed, as kvpress's evaluation does, unless it is None."""

        def __init__(self, chosen: Chosen, compression_ratio: float | None, budget: float | None, sink: int,
                     recent: int):
            self.chosen, self.compression_ratio, self.budget = chosen, compression_ratio, budget
            self.sink, self.recent = sink, recent
            self.prefill: Prefill | None = None

        @contextlib.contextmanager
        def __call__(self, model: Any) -> Iterator[None]:
            with contextlib.closing(Prefill(self, model)) as self.prefill, super().__call__(model):
                yield

        def forward_hook(self, module: Any, input: Any, kwargs: dict[str, Any], output: Any) -> Any:
            from kvbench.score.states import keys_only

            own = kwargs["past_key_values"].layers[module.layer_idx]
            if self.compression_ratio == 0 or hasattr(own, "over"):  # a CompressedLayer
                return output
            if self.prefill is None or not keys_only(own):
                return super().forward_hook(module, input, kwargs, output)
            self.prefill.read(module, kwargs)
            return output

        def compress(self, module: Any, hidden_states: Any, keys: Any, values: Any, attentions: Any,
                     kwargs: dict[str, Any]) -> tuple[Any, Any]:
            if self.compression_ratio == 0:
                return keys, values
            return compress(self, module, hidden_states, keys, values, kwargs)

        def __repr__(self) -> str:
            size = ("" if self.chosen.sized else f", budget={self.budget:g}" if self.compression_ratio is None
                    else f", {self.compression_ratio:g}")
            return f"as_press({self.chosen.name}{size})"

    return KVBenchPress


class LayersTrace:
    """A temporary trace of layers that a model has read, and their keys and values."""

    def __init__(self, press: Any, model: str):
        self.press, self.model, self.n = press, model, 0
        self.folder = tempfile.TemporaryDirectory()
        self.path, self.caches = (os.path.join(self.folder.name, name) for name in ("t.h5", "c.h5"))
        self.writer: TraceWriter | None = None  # of an incomplete trace
        self.layers: dict[int, tuple[Any, Any]] = {}

    def add(self, module: Any, hidden_states: Any, keys: Any, values: Any, kwargs: dict[str, Any]) -> None:
        """Writes q [Hq, n, d], k, v, and if there are any rotary tables and the output projection."""
        name, n = self.press.chosen.name, keys.shape[2]
        if keys.shape[0] != 1:
            raise PressError(f"{name}: got a batch of {keys.shape[0]}, expected one prompt at a time")
        if hidden_states.shape[1] != n:
            raise PressError(f"{name}: got {hidden_states.shape[1]} hidden states for {n} keys, expected the "
                             "whole context at once: the press is for prefilling")
        layer = int(module.layer_idx)
        dtype = str(keys.dtype).removeprefix("torch.")
        if dtype not in DTYPES:
            raise PressError(f"layer {layer}: keys are {dtype}, expected {', '.join(DTYPES)}")
        if self.writer is None:
            self.budget, self.n = budget_of(self.press, n), n
            self.writer = TraceWriter(self.path, self.model, "kvpress", dtype=dtype, gzip=0).__enter__()
            self.writer.begin_prompt(PROMPT, n)
            tables = rotary_tables(module, keys, n + FUTURE_POSITIONS)
            if tables is not None:
                self.writer.write_rope(*tables, "half")
        self.layers[layer] = keys, values
        q, scale = rotated_queries(module, hidden_states, keys, kwargs), getattr(module, "scaling", None)
        self.writer.begin_layer(layer, q.shape[1], keys.shape[1], n, keys.shape[3], values.shape[3],
                                scale=None if scale is None else float(scale))
        for part, tensor in (("q", q), ("k", keys), ("v", values)):
            self.writer.write(part, 0, 0, array_of(tensor[0]))
        weight = getattr(getattr(module, "o_proj", None), "weight", None)
        if weight is not None and weight.shape[1] == q.shape[1] * values.shape[3]:
            self.writer.write_o_proj(weight.detach().float().cpu().numpy())

    def entries(self) -> Entries:
        """Runs the method. Raises PressError for heads without entries."""
        writer, self.writer = self.writer, None
        assert writer is not None
        writer.__exit__(None, None, None)
        self.press.chosen.replay(self.path, self.caches, self.budget, "all")
        out: Entries = {layer: [] for layer in self.layers}
        with CacheReader(self.caches) as reader:
            (group,) = reader.groups
            for layer, (keys, _) in self.layers.items():
                for head in range(keys.shape[1]):
                    entry = group.read(PROMPT, layer, head)
                    if entry is None or entry.k is None or entry.degenerate is not None:
                        why = entry and (entry.infeasible or entry.failed or entry.degenerate) or "no entry"
                        raise PressError(f"{self.press.chosen.name}: layer {layer}, KV head {head}: {why}")
                    out[layer].append(entry)
        return out

    def close(self) -> None:
        if self.writer is not None:
            self.writer.__exit__(PressError, PressError(), None)
        self.folder.cleanup()


def budget_of(press: Any, n: int) -> float | None:
    """Returns the budget for a context of n tokens, a fraction of the middle; None if the method sets its size."""
    name, middle = press.chosen.name, n - press.sink - press.recent
    ratio, held = press.compression_ratio, press.sink + press.recent
    if middle < 1:
        raise PressError(f"{name}: got {n} tokens, expected more than sink {press.sink} and recent {press.recent}")
    if ratio is None:
        return press.budget
    wanted = max(1, int(n * (1 - ratio))) - held
    if wanted < 0:
        raise PressError(f"{name}: a compression ratio of {ratio:g} leaves {wanted + held} of {n} tokens, "
                         f"expected at least sink {press.sink} and recent {press.recent}")
    return min(1.0, (wanted + 1e-6) / middle)


class Prefill:
    """The layers that a model reads in `with press(model)`, compressed when it has read the last one."""

    def __init__(self, press: Any, model: Any):
        from transformers import DynamicCache

        from kvbench.dump.main import model_of
        from kvbench.generate.cache import attach
        from kvbench.press.run import attention_modules

        attach(model)
        self.press, self.name = press, model_of(model)
        self.last = max(int(module.layer_idx) for module in attention_modules(model))
        self.windows = {at: layer.sliding_window for at, layer in enumerate(DynamicCache(config=model.config).layers)
                        if getattr(layer, "is_sliding", False)}
        self.trace: LayersTrace | None = None

    def read(self, module: Any, kwargs: dict[str, Any]) -> None:
        """Adds a layer that has read a context; compresses all at the last."""
        import torch

        cache, layer, n = kwargs["past_key_values"], int(module.layer_idx), kwargs["hidden_states"].shape[1]
        if self.windows.get(layer, n + 1) <= n:
            raise PressError(f"{self.press.chosen.name}: layer {layer} has a sliding window of {self.windows[layer]} "
                             f"tokens, the context {n}: unsupported by presses, expected kvbench.compress")
        own = cache.layers[layer]
        if own.keys.shape[2] != n:
            return  # decoding
        if self.trace is None or layer in self.trace.layers:
            self.close()
            self.trace = LayersTrace(self.press, self.name)
        with torch.no_grad():
            self.trace.add(module, kwargs["hidden_states"], own.keys, own.values, kwargs)
            if layer == self.last:
                self.compress(cache, self.trace)
                self.close()

    def compress(self, cache: Any, trace: LayersTrace) -> None:
        from kvbench.generate.cache import compressed_layer
        from kvbench.score.attention import OverCaches

        entries = trace.entries()
        if why_not_plain(entries) is None:
            for layer, (keys, values) in trace.layers.items():
                own = cache.layers[layer]
                own.keys, own.values = assembled(entries[layer], keys, values, self.press)
            return
        over = OverCaches(trace.n, trace.n, self.press.sink, self.press.recent)
        over.exact = {layer: (keys[0], values[0]) for layer, (keys, values) in trace.layers.items()}
        over.caches = [{layer: over.buckets(layer, dict(enumerate(own)), 0) for layer, own in entries.items()}]
        over.exact = {}
        for layer in entries:
            # Of length 0: after an answer kvpress crops each layer to its length before.
            cache.layers[layer] = compressed_layer(cache.layers[layer], 0, layer, over)

    def close(self) -> None:
        if self.trace is not None:
            self.trace.close()
            self.trace = None


def compress(press: Any, module: Any, hidden_states: Any, keys: Any, values: Any,
             kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Returns keys and values [1, heads, kept, d] of one layer; see as_press."""
    import torch

    with torch.no_grad(), contextlib.closing(LayersTrace(press, type(module).__name__)) as trace:
        trace.add(module, hidden_states, keys, values, kwargs)
        entries = trace.entries()
    reason = why_not_plain(entries)
    if reason is not None:
        raise PressError(f"{press.chosen.name}: holds {reason}, which keys and values of one layer cannot: use "
                         "`with press(model)`, not within another press")
    return assembled(entries[int(module.layer_idx)], keys, values, press)


def why_not_plain(entries: Entries) -> str | None:
    """Returns what entries have beyond keys and values, as many in each head; None: nothing."""
    heads = [entry for own in entries.values() for entry in own]
    for entry in heads:
        if entry.k_den is not None or entry.log_weight_den is not None:
            return "a denominator of its own"
        if entry.log_weight is not None and bool((entry.log_weight != 0).any()):
            return "log weights"
        if "payload_bytes" in entry.attributes:
            return "keys and values in fewer bits"
    sizes = sorted({len(entry.k) for entry in heads})  # type: ignore[arg-type]
    return f"{sizes[0]} to {sizes[-1]} entries a head" if len(sizes) > 1 else None


def rotated_queries(module: Any, hidden_states: Any, keys: Any, kwargs: dict[str, Any]) -> Any:
    """Returns the queries [1, Hq, n, d] after rotation."""
    from kvpress.utils import get_prerope_query_states

    try:
        q = get_prerope_query_states(module, hidden_states)
        cos, sin = kwargs["position_embeddings"]
        turn = sys.modules[type(module).__module__].apply_rotary_pos_emb
    except (NotImplementedError, KeyError, TypeError, AttributeError) as error:
        raise PressError(f"{type(module).__name__}: its queries cannot be made again "
                         f"({one_line(error)}): unsupported") from None
    return turn(q, keys, cos, sin)[0].to(keys.dtype)


def rotary_tables(module: Any, keys: Any, count: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns cos and sin [count, rope_dim / 2] by position; None unless the module has each frequency in halves."""
    import torch

    if getattr(module, "rotary_emb", None) is None:
        return None
    at = torch.arange(count, device=keys.device)[None]
    tables = [table[0].float().cpu() for table in module.rotary_emb(keys, at)]
    half = tables[0].shape[1] // 2
    if not all(torch.equal(table[:, :half], table[:, half:]) for table in tables):
        return None
    return tables[0][:, :half].numpy(), tables[1][:, :half].numpy()


def assembled(entries: list[CacheEntry], keys: Any, values: Any, press: Any) -> tuple[Any, Any]:
    """Returns sinks, entries and recent tokens of every head, [1, heads, kept, d] and [1, heads, kept, dv]."""
    import torch

    n = keys.shape[2]
    out = []
    for whole, part in ((keys, "k"), (values, "v")):
        heads = []
        for head, entry in enumerate(entries):
            own = whole[0, head]
            token = np.full(len(getattr(entry, part)), -1) if entry.token is None else entry.token
            # Made entries have no position and come last.
            order = np.argsort(np.where(token < 0, n, token), kind="stable")
            at = torch.as_tensor(token[order], device=own.device)
            rows = torch.as_tensor(getattr(entry, part)[order], device=own.device).to(own.dtype)
            exact = own[at.clamp(min=0)]
            heads.append(torch.cat([own[:press.sink],
                                    torch.where((at >= 0)[:, None], exact, rows),
                                    own[n - press.recent:]]))
        out.append(torch.stack(heads)[None].contiguous())
    return out[0], out[1]
