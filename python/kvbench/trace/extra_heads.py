"""Reads a trace's extra queries and scores (docs/trace_format.md) by KV head.

    for segment in read_extra("t.h5", "p0", 4, 0, "repeat"):
        segment.q, segment.k, segment.about  # float32 [group, m, d], [m, d]; (first, last) or None
    read_scores("t.h5", "p0", 4, 0, "kvzap")  # float32 [n]

Raises TraceError.
"""

from __future__ import annotations

import dataclasses
import os

import h5py
import numpy as np

from kvbench.errors import TraceError
from kvbench.trace.digest import check_members
from kvbench.trace.heads import layer_of, open_trace, read_rows, text_of
from kvbench.trace.values import read_values


@dataclasses.dataclass
class Segment:
    """One segment of a set, for one KV head.

    q, k           float32 [group, m, d], [m, d]: rotated queries and their own keys
    position       [m]: positions of the rotation
    prefix         prompt tokens that the model had read; None: unknown
    about          (first, last): the tokens [first, last) that it is about; None: none
    residual_norm  float32 [m]; None: unknown
    """

    q: np.ndarray
    k: np.ndarray
    position: np.ndarray
    prefix: int | None
    about: tuple[int, int] | None
    residual_norm: np.ndarray | None


def read_extra(trace: str | os.PathLike[str] | h5py.File, prompt: str, layer: int, kv_head: int,
               name: str) -> list[Segment]:
    """Returns the segments of a set, in order. Raises TraceError if absent or unreadable."""
    with open_trace(trace) as file:
        group, heads = layer_of(file, prompt, layer, kv_head)
        where = f"extra/{name}"
        if where not in group:
            raise TraceError(f"{file.filename}: {group.name}/{where}: not in the trace")
        check_members(group[where])
        size = group["q"].shape[0] // heads
        dtype, out = text_of(file.attrs["dtype"]), []
        for at in range(len(group[where])):
            one = group[where][str(at)]
            check_members(one)
            about = (int(one.attrs["first"]), int(one.attrs["last"])) if "first" in one.attrs else None
            prefix = int(one.attrs["prefix"]) if "prefix" in one.attrs else None
            norm = read_values(one["residual_norm"]) if "residual_norm" in one else None
            out.append(Segment(read_rows(one["q"], dtype, kv_head * size, size),
                               read_rows(one["k"], dtype, kv_head, 1)[0],
                               read_values(one["position"]).astype(np.int64), prefix, about, norm))
        return out


def read_scores(trace: str | os.PathLike[str] | h5py.File, prompt: str, layer: int, kv_head: int,
                name: str) -> np.ndarray:
    """Returns scores of one KV head's tokens, float32 [n]."""
    with open_trace(trace) as file:
        group, _ = layer_of(file, prompt, layer, kv_head)
        if f"scores/{name}" not in group:
            raise TraceError(f"{file.filename}: {group.name}/scores/{name}: not in the trace")
        return read_values(group[f"scores/{name}"])[kv_head]
