"""Reads traces (docs/trace_format.md) by KV head.

    for prompt, layer, kv_head in trace_heads("t.h5"):
        head = read_head("t.h5", prompt, layer, kv_head)
        head.k, head.v, head.q  # float32 [n, d], [n, dv], [group, nq, d]

Raises TraceError: file, path inside it, got, expected.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Collection, Iterator

import h5py
import numpy as np

from kvbench.text import list_parts
from kvbench.trace.digest import check_members
from kvbench.trace.values import read_values
from kvbench.trace.writer import FORMAT, STORED, VERSION, TraceError, from_bfloat16


@dataclasses.dataclass
class Head:
    """One KV head of one layer of one prompt; exact float32.

    k, v     [n, d], [n, dv]: rotated keys, and values
    q        [group, nq, d]: the last nq queries of the group's query heads; None if not requested
    scale    s in exp(s <k, q>)
    dtype    the trace's element type: float16, bfloat16 or float32
    window   tokens that a query sees, itself included; None: all before it
    """

    k: np.ndarray
    v: np.ndarray
    q: np.ndarray | None
    scale: float
    dtype: str
    window: int | None = None


def text_of(value: object) -> str:
    """Returns an attribute as str; h5py gives bytes for strings of fixed length."""
    return value.decode() if isinstance(value, bytes) else str(value)


def open_hdf5(path: str | os.PathLike[str]) -> h5py.File:
    """Opens an h5py.File for reading. Raises TraceError."""
    if not os.path.exists(path):
        raise TraceError(f"{path}: no such file")
    try:
        return h5py.File(path, "r")
    except OSError:
        raise TraceError(f"{path}: not an HDF5 file, or cut off") from None


def check_format(file: h5py.File, path: str, name: str, version: int) -> None:
    """Raises TraceError unless the file is of this format and version."""
    for attribute, expected in (("format", name), ("version", version)):
        got = file.attrs.get(attribute, "nothing")
        if (text_of(got) if attribute == "format" else got) != expected:
            raise TraceError(f"{path}: {attribute}: got {text_of(got)}, expected {expected}")


def read_rows(data: h5py.Dataset, dtype: str, first: int, count: int) -> np.ndarray:
    """Returns float32 [count, rows, width] of heads of a trace's q, k or v. dtype: the trace's."""
    values = read_values(data, slice(first, first + count))
    return from_bfloat16(values) if dtype == "bfloat16" else values.astype(np.float32)


def layer_of(file: h5py.File, prompt: str, layer: int, kv_head: int = 0) -> tuple[h5py.Group, int]:
    """Returns a layer's group and its number of KV heads. Raises TraceError without the layer or the head."""
    where = f"prompts/{prompt}/layers/{layer}"
    if where not in file:
        raise TraceError(f"{file.filename}: {where}: not in the trace")
    heads = file[where]["k"].shape[0]
    if not 0 <= kv_head < heads:
        raise TraceError(f"{file.filename}: {where}: KV head: got {kv_head}, expected 0 to {heads - 1}")
    return file[where], heads


@contextlib.contextmanager
def open_trace(trace: str | os.PathLike[str] | h5py.File) -> Iterator[h5py.File]:
    """Yields the trace as an open h5py.File. `trace`: its path, or an open file, which stays open."""
    if isinstance(trace, h5py.File):
        yield trace
        return
    path = os.fspath(trace)
    with open_hdf5(path) as file:
        check_format(file, path, FORMAT, VERSION)
        if text_of(file.attrs.get("dtype")) not in STORED:
            raise TraceError(f"{path}: dtype: got {text_of(file.attrs.get('dtype'))}, expected {', '.join(STORED)}")
        yield file


def trace_dtype(trace: str | os.PathLike[str] | h5py.File) -> str:
    """Returns the element type of a trace's cache."""
    with open_trace(trace) as file:
        return text_of(file.attrs["dtype"])


def trace_heads(trace: str | os.PathLike[str] | h5py.File,
                prompts: Collection[str] | None = None,
                layers: Collection[int] | None = None) -> list[tuple[str, int, int]]:
    """Returns [(prompt, layer, KV head)] of a trace, in order; `prompts` (`a,b`, or a list), `layers`: only these."""
    out: list[tuple[str, int, int]] = []
    if isinstance(prompts, str):
        prompts = list_parts(prompts)
    with open_trace(trace) as file:
        check_members(file["prompts"])
        for prompt, group in file["prompts"].items():
            check_members(group["layers"])
            if prompts is not None and prompt not in prompts:
                continue
            for layer in sorted(map(int, group["layers"])):
                if layers is None or layer in layers:
                    heads = group[f"layers/{layer}/k"].shape[0]
                    out.extend((prompt, layer, head) for head in range(heads))
    return out


def read_head(trace: str | os.PathLike[str] | h5py.File, prompt: str, layer: int, kv_head: int,
              with_q: bool = True) -> Head:
    """Returns a Head of a trace: a path, or an open h5py.File. with_q=False leaves q None.

    Raises TraceError if the trace has no such head, or its values are unreadable, incomplete or do
    not match their attribute `sha256`.
    """
    with open_trace(trace) as file:
        group, heads = layer_of(file, prompt, layer, kv_head)
        dtype, q = text_of(file.attrs["dtype"]), None
        if with_q:
            size = group["q"].shape[0] // heads
            q = read_rows(group["q"], dtype, kv_head * size, size)
        scale = group.attrs.get("scale", file.attrs.get("scale", group["k"].shape[2]**-0.5))
        k, v = (read_rows(group[name], dtype, kv_head, 1)[0] for name in "kv")
        window = group.attrs.get("window")
        return Head(k, v, q, float(scale), dtype, None if window is None else int(window))
