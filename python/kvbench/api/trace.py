"""Traces (docs/trace_format.md): reading by head, writing from arrays."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from kvbench.text import counted
from kvbench.trace.extra_heads import Segment, read_extra, read_scores
from kvbench.trace.heads import Head, read_head, trace_dtype, trace_heads
from kvbench.trace.writer import TraceError, TraceWriter

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


class Trace:
    """A trace file. Arrays are read on demand, one KV head at a time.

    path    of the file
    dtype   element type of the cache: float16, bfloat16 or float32
    heads   [(prompt, layer, KV head)] in order
    """

    def __init__(self, path: str | os.PathLike):
        self.path = os.fspath(path)
        self.dtype: str = trace_dtype(path)
        self.heads: list[tuple[str, int, int]] = trace_heads(path)

    @property
    def prompts(self) -> list[str]:
        return list(dict.fromkeys(prompt for prompt, _, _ in self.heads))

    @property
    def layers(self) -> list[int]:
        return sorted({layer for _, layer, _ in self.heads})

    def head(self, prompt: str, layer: int, kv_head: int) -> Head:
        """Returns keys, values and queries of one KV head, float32. Raises TraceError if absent."""
        return read_head(self.path, prompt, layer, kv_head)

    def extra(self, prompt: str, layer: int, kv_head: int, name: str) -> list[Segment]:
        """Returns the segments of a set of extra queries for one KV head."""
        return read_extra(self.path, prompt, layer, kv_head, name)

    def scores(self, prompt: str, layer: int, kv_head: int, name: str) -> np.ndarray:
        """Returns the external scores of one KV head's tokens, float32 [n]."""
        return read_scores(self.path, prompt, layer, kv_head, name)

    def __iter__(self) -> Iterator[tuple[tuple[str, int, int], Head]]:
        """Yields ((prompt, layer, KV head), Head)."""
        for place in self.heads:
            yield place, self.head(*place)

    def __len__(self) -> int:
        return len(self.heads)

    def __repr__(self) -> str:
        return (f"Trace({self.path!r}: {counted(len(self.prompts))}, {counted(len(self.layers), 'layer')}, "
                f"{len(self.heads)} KV heads, {self.dtype})")


def read_trace(path: str | os.PathLike) -> Trace:
    """Opens a trace. Raises kvbench.TraceError if the file is not a trace."""
    return Trace(path)


def write_trace(path: str | os.PathLike,
                prompts: Mapping[str, Mapping[int, Sequence[np.ndarray]] | Sequence[Any]],
                model: str, source: str, dtype: str = "float16", rope: str = "post",
                scale: float | None = None) -> None:
    """Writes arrays as a trace; use TraceWriter for data that does not fit in memory.

        kvbench.write_trace("t.h5", {"p0": {0: (q, k, v)}}, model="my-model", source="random")

    prompts  {id: {layer: (q, k, v)}}, or a sequence of layers 0, 1, ...: q [q_heads, nq, d], the last nq queries;
             k [kv_heads, n, d] and v [kv_heads, n, dv], any float type; the same n in all layers
    dtype    float16, bfloat16 or float32: type of the model's cache; values are rounded to it
    rope     "post": rotated keys and queries; "none": no rotation
    scale    s in exp(s <k, q>); None: 1 / sqrt(d)
    """
    with TraceWriter(path, model, source, dtype=dtype, rope=rope, scale=scale) as writer:
        for prompt, layers in prompts.items():
            numbered: Any = layers.items() if hasattr(layers, "items") else enumerate(layers)
            arrays = {layer: _checked(path, prompt, layer, parts) for layer, parts in numbered}
            lengths = sorted({k.shape[1] for _, k, _ in arrays.values()})
            if len(lengths) != 1:
                raise TraceError(f"{os.fspath(path)}: prompts/{prompt}: got layers of "
                                 f"{', '.join(map(str, lengths)) or 'no'} tokens, expected as many in all")
            writer.begin_prompt(prompt, lengths[0])
            for layer, (q, k, v) in arrays.items():
                writer.begin_layer(layer, len(q), len(k), q.shape[1], k.shape[2], v.shape[2])
                for name, array in (("q", q), ("k", k), ("v", v)):
                    for head, rows in enumerate(array):
                        writer.write(name, head, 0, rows)


def _checked(path: str | os.PathLike, prompt: str, layer: int, parts: Sequence[Any]) -> list[np.ndarray]:
    where = f"{os.fspath(path)}: prompts/{prompt}/layers/{layer}"
    if len(parts) != 3:
        raise TraceError(f"{where}: got {len(parts)} arrays, expected q, k and v")
    q, k, v = arrays = [np.asarray(part) for part in parts]
    for name, array in zip("qkv", arrays):
        if array.ndim != 3:
            raise TraceError(f"{where}/{name}: got shape {array.shape}, expected [heads, tokens, channels]")
    if k.shape[:2] != v.shape[:2] or q.shape[2] != k.shape[2]:
        raise TraceError(f"{where}: got q {q.shape}, k {k.shape}, v {v.shape}, expected "
                         "[q_heads, nq, d], [kv_heads, n, d], [kv_heads, n, dv]")
    return arrays
