"""kvbench's methods as presses of kvpress: kvbench.as_press."""

from __future__ import annotations

import functools
import os
import sys
import tempfile
from typing import Any

import numpy as np

from kvbench.api.run import run
from kvbench.caches import CacheEntry, CacheReader
from kvbench.press.expression import PressError
from kvbench.text import one_line, parse_json
from kvbench.trace.parts import FUTURE_POSITIONS
from kvbench.trace.writer import TraceWriter, array_of

DTYPES = ("float16", "bfloat16", "float32")
PROMPT, QUERIES = "p0", 1


def as_press(algorithm: str, compression_ratio: float = 0.0, *, sink: int = 16, recent: int = 64,
             seed: int = 0, **params: Any) -> Any:
    """Returns a kvbench method as a press of kvpress, for its pipeline and evaluation.

        press = kvbench.as_press("snapkv", compression_ratio=0.5, window=32)
        pipe(context, question=question, press=press)["answer"]

    algorithm          a method of `kvbench list`, without parameters
    compression_ratio  the fraction of all tokens (windows included) to drop, as in kvpress; in [0, 1)
    sink, recent       first and last tokens to keep; recent at least 1
    seed               of random methods
    params             the method's parameters, without spaces or semicolons

    The press's `compress` takes a layer's hidden states [1, n, hidden], keys and values [1, heads, n, d], runs the
    program on a trace of that layer, and returns keys and values [1, heads, kept, d]: kept tokens bit by bit, in order
    of position, then entries that the method made. All queries of the context score. Batch size 1.

    Raises PressError without kvpress and for an unknown parameter, kvbench.ProgramError for an unknown method; and
    PressError on compression for what a cache of kvpress cannot hold: log weights, a separate denominator, codes,
    heads of different sizes, budgets shared by layers.
    """
    if not algorithm or any(sign in algorithm for sign in ":,;* @"):
        raise PressError(f"as_press: got the method `{algorithm}`, expected one name; parameters are arguments")
    if sink < 0 or recent < QUERIES:
        raise PressError(f"as_press: got sink {sink}, recent {recent}, expected sink >= 0 and recent >= {QUERIES}")
    if not 0 <= compression_ratio < 1:
        raise PressError(f"as_press: got compression_ratio {compression_ratio}, expected 0 <= it < 1")
    for name, value in params.items():
        if any(sign in str(value) for sign in ";,: \n"):
            raise PressError(f"as_press: {name}: got `{value}`, expected one value")
    made = _press_class()
    check_method(algorithm, params)
    return made(algorithm, compression_ratio, sink, recent, seed, params)


def check_method(algorithm: str, params: dict[str, Any]) -> None:
    """Raises ProgramError for an unknown method, PressError for another protocol or an unknown parameter."""
    [method] = parse_json(run("list", algorithm, "--json"))
    if "prefill" not in method["protocols"]:
        raise PressError(f"as_press: {algorithm}: is a method of {', '.join(method['protocols'])}, expected one of "
                         "prefill")
    known = [one["name"] for one in method["parameters"]]
    for name in params:
        if name not in known:
            raise PressError(f"as_press: {algorithm}: got the parameter `{name}`, expected one of {', '.join(known)}")


@functools.cache
def _press_class() -> Any:
    """Returns the class, made on demand so that importing this module needs neither kvpress nor torch."""
    try:
        from kvpress import BasePress
    except ImportError as error:
        raise PressError(f"as_press: {sys.executable} cannot import {error.name}, expected kvpress "
                         "0.5.5 or newer: pip install 'kvpress>=0.5.5'") from None

    class KVBenchPress(BasePress):  # type: ignore[misc]
        """See as_press; `compression_ratio` may be changed, as kvpress's evaluation does."""

        def __init__(self, algorithm: str, compression_ratio: float, sink: int, recent: int, seed: int,
                     params: dict[str, Any]):
            self.algorithm, self.compression_ratio = algorithm, compression_ratio
            self.sink, self.recent, self.seed, self.params = sink, recent, seed, params

        def compress(self, module: Any, hidden_states: Any, keys: Any, values: Any, attentions: Any,
                     kwargs: dict[str, Any]) -> tuple[Any, Any]:
            if self.compression_ratio == 0:
                return keys, values
            return compress(self, module, hidden_states, keys, values, kwargs)

        def __repr__(self) -> str:
            more = "".join(f", {name}={value!r}" for name, value in self.params.items())
            return f"as_press({self.algorithm!r}, {self.compression_ratio}{more})"

    return KVBenchPress


def compress(press: Any, module: Any, hidden_states: Any, keys: Any, values: Any,
             kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Returns keys and values [1, heads, kept, d] of one layer; see as_press."""
    import torch

    name, n = press.algorithm, keys.shape[2]
    if keys.shape[0] != 1:
        raise PressError(f"{name}: got a batch of {keys.shape[0]}, expected one prompt at a time")
    if hidden_states.shape[1] != n:
        raise PressError(f"{name}: got {hidden_states.shape[1]} hidden states for {n} keys, expected the "
                         "whole context at once: the press is for prefilling")
    middle = n - press.sink - press.recent
    wanted = max(1, int(n * (1 - press.compression_ratio))) - press.sink - press.recent
    if middle < 1 or wanted < 0:
        raise PressError(f"{name}: a compression ratio of {press.compression_ratio:g} leaves "
                         f"{wanted + press.sink + press.recent} of {n} tokens, expected at least sink "
                         f"{press.sink} and recent {press.recent}")
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        trace, caches = (os.path.join(folder, end) for end in ("t.h5", "c.h5"))
        write_layer(trace, module, hidden_states, keys, values, kwargs)
        chosen = name + ":" * bool(press.params) + ";".join(f"{key}={value}" for key, value in press.params.items())
        run("replay", trace, output=os.path.join(folder, "t.csv"), algorithm=chosen,
            budget=min(1.0, (wanted + 1e-6) / middle), sink=press.sink, recent=press.recent,
            queries=QUERIES, scores="all", seeds=f"{press.seed}:{press.seed + 1}",
            export_caches=caches)
        with CacheReader(caches) as reader:
            entries = read_entries(name, reader, int(module.layer_idx), keys.shape[1])
        held = len(entries[0].k)  # type: ignore[arg-type]
        if held > wanted:
            raise PressError(f"{name}: holds {held} tokens of the middle, expected at most {wanted}, "
                             f"what a compression ratio of {press.compression_ratio:g} leaves")
    return assembled(entries, keys, values, press)


def write_layer(path: str, module: Any, hidden_states: Any, keys: Any, values: Any, kwargs: dict[str, Any]) -> None:
    """Writes a trace of one layer: q [Hq, n, d], k, v, and if there are any rotary tables and the output projection."""
    layer, n = int(module.layer_idx), keys.shape[2]
    dtype = str(keys.dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        raise PressError(f"layer {layer}: keys are {dtype}, expected {', '.join(DTYPES)}")
    q = rotated_queries(module, hidden_states, keys, kwargs)
    scale = getattr(module, "scaling", None)
    with TraceWriter(path, type(module).__name__, "kvpress", dtype=dtype, gzip=0,
                     scale=None if scale is None else float(scale)) as writer:
        writer.begin_prompt(PROMPT, n)
        writer.begin_layer(layer, q.shape[1], keys.shape[1], n, keys.shape[3], values.shape[3])
        for part, tensor in (("q", q), ("k", keys), ("v", values)):
            writer.write(part, 0, 0, array_of(tensor[0]))
        weight = getattr(getattr(module, "o_proj", None), "weight", None)
        if weight is not None and weight.shape[1] == q.shape[1] * values.shape[3]:
            writer.write_o_proj(weight.detach().float().cpu().numpy())
        tables = rotary_tables(module, keys, n + FUTURE_POSITIONS)
        if tables is not None:
            writer.write_rope(*tables, "half")


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


def read_entries(name: str, reader: CacheReader, layer: int, heads: int) -> list[CacheEntry]:
    """Returns the entries of a layer's heads. Raises PressError if a cache of kvpress cannot hold them."""
    (group,) = reader.groups
    if group.scope == "layers":
        raise PressError(f"{name}: its layers share a budget, and a press gets one layer at a time")
    out = []
    for head in range(heads):
        entry = group.read(PROMPT, layer, head)
        if entry is None or entry.k is None:
            raise PressError(f"{name}: KV head {head}: {'no entry' if entry is None else entry.infeasible or 'failed'}")
        if entry.degenerate is not None:
            raise PressError(f"{name}: KV head {head}: {entry.degenerate}")
        weights = entry.log_weight
        what = ("a denominator of its own" if entry.k_den is not None or entry.log_weight_den is not None
                else "log weights" if weights is not None and bool((weights != 0).any())
                else "keys and values in fewer bits" if "payload_bytes" in entry.attributes else None)
        if what is not None:
            raise PressError(f"{name}: holds {what}, which a cache of kvpress cannot")
        out.append(entry)
    sizes = sorted({len(entry.k) for entry in out})  # type: ignore[arg-type]
    if len(sizes) > 1:
        raise PressError(f"{name}: its heads hold {sizes[0]} to {sizes[-1]} entries, and a cache of "
                         "kvpress as many in each")
    return out


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
