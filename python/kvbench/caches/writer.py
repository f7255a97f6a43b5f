"""Writer of caches files (docs/trace_format.md)."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from kvbench.caches import format as cf
from kvbench.hashing import file_sha256
from kvbench.own import whole_file
from kvbench.trace.heads import open_trace, trace_dtype
from kvbench.trace.writer import TraceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import ArrayLike


class CacheWriter:
    """Context manager that writes one caches file: PATH.part, renamed to PATH on success. An
    exception removes PATH.part and keeps the previous PATH.

    path     caches file
    traces   source traces, all of one element type
    sink, recent, queries, protocol    windows of the protocol in tokens, and its name

        with kvbench.write_caches("c.h5", "t.h5") as writer:
            group = writer.group("mine", budget=0.25)
            group.put("p0", 0, 0, head.k[kept], head.v[kept], token=kept)

    Raises TraceError for data that the format does not allow.
    """

    def __init__(self, path: str | os.PathLike[str],
                 traces: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], sink: int = 16,
                 recent: int = 512, queries: int = 256, protocol: str = "prefill"):
        self.path = os.fspath(path)
        self.traces = [os.fspath(t) for t in ([traces] if isinstance(traces, (str, os.PathLike)) else traces)]
        self.sink, self.recent, self.queries = sink, recent, queries
        if protocol not in cf.PROTOCOLS:
            raise self.error("", f"protocol: got `{protocol}`, expected {' or '.join(cf.PROTOCOLS)}")
        if sink < 0 or queries < 1 or recent < (queries if protocol == "prefill" else 0):
            raise self.error("", f"got sink {sink}, recent {recent}, queries {queries}, expected "
                                 "sink >= 0, queries >= 1, recent >= queries")
        if not self.traces:
            raise self.error("", "traces: got none, expected at least one")
        dtypes = {trace_dtype(trace) for trace in self.traces}
        if len(dtypes) > 1:
            raise self.error("", f"traces: got {', '.join(sorted(dtypes))}, expected one type")
        self.dtype = dtypes.pop()
        # (prompt, layer) -> (n, KV heads, d, dv)
        self.sizes: dict[tuple[str, int], tuple[int, int, int, int]] = {}
        for trace in self.traces:
            with open_trace(trace) as file:
                for prompt, group in file["prompts"].items():
                    for layer, parts in group["layers"].items():
                        place = prompt, int(layer)
                        if place in self.sizes:
                            raise self.error("", f"traces: prompt {prompt} is in two of them")
                        heads, n, d = parts["k"].shape
                        self.sizes[place] = n, heads, d, parts["v"].shape[2]
        self.root = {"format": cf.FORMAT, "version": cf.VERSION, "protocol": protocol, "sink": sink,
                     "recent": recent, "queries": queries,
                     "trace_sha256": [file_sha256(trace) for trace in self.traces]}
        self.file: Any = None  # an h5py.File inside `with`
        self.names: dict[tuple[str, str, float | None, int], str] = {}

    def __enter__(self) -> CacheWriter:
        self.whole = whole_file(self.path, self.path + ".part", "a caches file", cf.FORMAT)
        self.file = self.whole.__enter__()
        self.file.attrs.update(self.root)
        return self

    def __exit__(self, *error: Any) -> None:
        self.whole.__exit__(*error)

    def error(self, where: str, what: str) -> TraceError:
        return TraceError(": ".join(part for part in (self.path, where, what) if part))

    def group(self, algorithm: str, params: str | Mapping[str, Any] = "",
              budget: float | None = None, seed: int = 0, scores: str = "past",
              scope: str = "head") -> GroupWriter:
        """Adds a group: one method with one setting.

        algorithm  letters, digits and . _ + -
        params     dict, or `key=value;key=value`
        budget     requested fraction of the middle's bytes, in [0, 1]; None: none
        scores     queries visible to the method: past, all or none
        scope      heads that share the budget: head, layer or layers
        """
        if not re.fullmatch(r"[A-Za-z0-9._+@-]+", algorithm):
            raise self.error("", f"algorithm: got `{algorithm}`, expected letters, digits and . _ + - @")
        try:
            params = cf.params_text(params)
        except TraceError as error:
            raise self.error(algorithm, str(error)) from None
        if budget is not None and not 0 <= budget <= 1:
            raise self.error(algorithm, f"budget: got {budget}, expected a number in [0, 1]")
        for name, got, expected in (("scores", scores, cf.SCORES), ("scope", scope, cf.SCOPES)):
            if got not in expected:
                raise self.error(algorithm, f"{name}: got `{got}`, expected {', '.join(expected)}")
        key = algorithm, params, budget, int(seed)
        if key in self.names:
            raise self.error(algorithm, f"params `{params}`, budget {budget}, seed {seed}: duplicate group")
        name = self.names[key] = f"{len(self.names):04d}-{algorithm}"
        group = self.file.create_group(name)
        group.attrs.update({"algorithm": algorithm, "params": params, "seed": int(seed),
                            "scores": scores, "scope": scope})
        if budget is not None:
            group.attrs["budget"] = float(budget)
        return GroupWriter(self, group)


class GroupWriter:
    """Writes the entries of one group; created by CacheWriter.group."""

    def __init__(self, writer: CacheWriter, group: h5py.Group):
        self.writer, self.inner = writer, group

    def put(self, prompt: str, layer: int, kv_head: int, k: ArrayLike | None = None,
            v: ArrayLike | None = None, log_weight: ArrayLike | None = None,
            token: ArrayLike | None = None, k_den: ArrayLike | None = None,
            log_weight_den: ArrayLike | None = None, counted: ArrayLike | None = None,
            **attributes: Any) -> None:
        """Writes the entry of one KV head.

        k, v, k_den    [B, d], [B, dv], [B2, d], any float type; rounded to the trace's element type unless
                       payload_bytes is given
        log_weight, log_weight_den    [B], [B2]: log of the weights; None: weight 1
        token          [B]: position that the row holds exactly, -1 for made rows; None: all -1
        counted        [C], ascending: positions among the quantised tokens that `mass_kept` and amnesia count as held;
                       `quantised` is at least C
        attributes     those of docs/trace_format.md; infeasible=REASON or failed=REASON excludes arrays
        """
        writer = self.writer
        where = f"{self.inner.name[1:]}/prompts/{prompt}/layers/{layer}/{kv_head}"
        n, heads, d, dv = self.place(where, prompt, layer)
        if not 0 <= kv_head < heads:
            raise writer.error(where, f"KV head: got {kv_head}, expected 0 to {heads - 1}")
        if where in writer.file:
            raise writer.error(where, "duplicate entry")
        for name, value in attributes.items():
            if name not in cf.ATTRIBUTES:
                raise writer.error(where, f"attribute: got `{name}`, expected {', '.join(cf.ATTRIBUTES)}")
            if name in cf.COUNTS and not (value == int(value) and value >= 0):
                raise writer.error(where, f"{name}: got {value}, expected an integer >= 0")
        given = {"k": k, "v": v, "log_weight": log_weight, "token": token, "k_den": k_den,
                 "log_weight_den": log_weight_den,
                 "counted": None if counted is None or not np.size(counted) else counted}
        arrays = {name: np.asarray(a) for name, a in given.items() if a is not None}
        absent = next((name for name in cf.ABSENT if attributes.get(name) is not None), None)
        if absent:
            if arrays:
                raise writer.error(where, f"got {', '.join(arrays)}, expected nothing where the entry is {absent}")
        else:
            arrays = self.checked(f"{writer.path}: {where}", arrays, (d, dv), n,
                                  "payload_bytes" in attributes, int(attributes.get("quantised", 0)))
        group = writer.file.create_group(where)
        for name, array in arrays.items():
            group.create_dataset(name, data=array)
        for name, value in attributes.items():
            kind = int if name in cf.COUNTS else float if name in cf.NUMBERS else str
            group.attrs[name] = kind(value)

    def place(self, where: str, prompt: str, layer: int) -> tuple[int, int, int, int]:
        try:
            return self.writer.sizes[prompt, layer]
        except KeyError:
            traces = ", ".join(self.writer.traces)
            raise self.writer.error(where, f"not in the trace ({traces})") from None

    def checked(self, where: str, arrays: dict[str, np.ndarray], sizes: tuple[int, int], n: int,
                own_bytes: bool, quantised: int) -> dict[str, np.ndarray]:
        """Returns the arrays as stored. Raises TraceError if the format does not allow them."""
        def check() -> None:
            cf.check_entry(where, sizes, quantised, *(arrays.get(name) for name in cf.DATASETS))

        check()
        writer = self.writer
        for name in cf.POSITIONS:
            if name not in arrays:
                continue
            held = arrays[name][arrays[name] >= 0]
            outside = held[(held < writer.sink) | (held >= n - writer.recent)]
            if writer.root["protocol"] == "prefill" and len(outside):
                raise TraceError(f"{where}: {name}: got {outside[0]}, expected a position of the "
                                 f"middle, {writer.sink} to {n - writer.recent - 1}")
            arrays[name] = arrays[name].astype(np.int32)
        for name in ("k", "v", "k_den"):
            if name in arrays:
                arrays[name] = cf.round_to(arrays[name], "float32" if own_bytes else writer.dtype)
        for name in ("log_weight", "log_weight_den"):
            if name in arrays:
                arrays[name] = arrays[name].astype(np.float32)
        check()  # Rounding may overflow.
        return arrays
