"""Reader of caches files (docs/trace_format.md)."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from kvbench.caches import format as cf
from kvbench.trace.heads import check_format, open_hdf5, text_of
from kvbench.trace.values import read_stored
from kvbench.trace.writer import TraceError

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclasses.dataclass
class CacheEntry:
    """Entries of one KV head for the middle (docs/trace_format.md).

    k, v, k_den                  float32 [B, d], [B, dv], [B2, d] or None
    log_weight, log_weight_den   float32 [B], [B2] or None
    token                        int64 [B] or None
    counted                      int64 [C] or None: positions among the quantised tokens that `mass_kept` and amnesia
                                 count as held
    attributes                   {name: value}
    All arrays are None if `infeasible` or `failed` is set.
    """

    k: np.ndarray | None
    v: np.ndarray | None
    log_weight: np.ndarray | None
    token: np.ndarray | None
    k_den: np.ndarray | None
    log_weight_den: np.ndarray | None
    attributes: dict[str, Any]
    counted: np.ndarray | None = None

    @property
    def infeasible(self) -> str | None:
        return self.attributes.get("infeasible")

    @property
    def failed(self) -> str | None:
        return self.attributes.get("failed")

    @property
    def degenerate(self) -> str | None:
        return self.attributes.get("degenerate")


class CacheGroup:
    """One method with one setting, from one or several files.

    algorithm, params, budget (None: none was requested), seed, scores, scope: docs/trace_format.md
    """

    def __init__(self, algorithm: str, params: str, budget: float | None, seed: int, scores: str, scope: str):
        self.algorithm, self.params, self.budget, self.seed = algorithm, params, budget, seed
        self.scores, self.scope = scores, scope
        # (prompt, layer, KV head) -> (file, path in it)
        self.locations: dict[tuple[str, int, int], tuple[h5py.File, str]] = {}

    @property
    def key(self) -> tuple[str, str, float | None, int]:
        return self.algorithm, self.params, self.budget, self.seed

    def __str__(self) -> str:
        budget = "" if self.budget is None else f" at {self.budget:g}"
        params = f":{self.params}" if self.params else ""
        return f"{self.algorithm}{params}{budget}, seed {self.seed}"

    def prompts(self) -> list[str]:
        return sorted({prompt for prompt, _, _ in self.locations})

    def heads(self, prompt: str) -> list[tuple[int, int]]:
        """Returns [(layer, KV head)] of a prompt, in order."""
        return sorted((layer, head) for p, layer, head in self.locations if p == prompt)

    def read(self, prompt: str, layer: int, kv_head: int,
             sizes: tuple[int | None, int | None] = (None, None)) -> CacheEntry | None:
        """Returns the CacheEntry, or None. sizes: expected (d, dv)."""
        if (prompt, layer, kv_head) not in self.locations:
            return None
        file, path = self.locations[prompt, layer, kv_head]
        where, found, inner = f"{file.filename}: {path[1:]}", {}, file[path]
        if not isinstance(inner, h5py.Group):
            raise TraceError(f"{where}: got a dataset, expected a group")
        for name in {*inner} & {*cf.DATASETS}:
            data = inner[name]
            if not isinstance(data, h5py.Dataset):
                raise TraceError(f"{where}/{name}: got a group, expected a dataset")
            found[name] = read_stored(data)
        attributes: dict[str, Any] = {
            name: number(where, name, value) if name not in cf.TEXTS else text_of(value)
            for name, value in inner.attrs.items() if name in cf.ATTRIBUTES}
        absent = next((name for name in cf.ABSENT if name in attributes), None)
        if absent:
            if found:
                raise TraceError(f"{where}: got {', '.join(found)}, expected no dataset where the entry is {absent}")
            return CacheEntry(None, None, None, None, None, None, attributes)
        arrays = [found.get(name) for name in cf.DATASETS]
        cf.check_entry(where, sizes, attributes.get("quantised", 0), *arrays)
        return CacheEntry(**{name: None if array is None else
                             array.astype(np.int64 if name in cf.POSITIONS else np.float32)
                             for name, array in zip(cf.DATASETS, arrays)}, attributes=attributes)


def number(where: str, name: str, value: Any) -> float:
    """Returns a numeric attribute."""
    try:
        out = int(value) if name in cf.COUNTS else float(value)
        if out != value or out < 0:
            raise ValueError
    except (TypeError, ValueError):
        raise TraceError(f"{where}: {name}: got {value}, expected "
                         f"{'an integer' if name in cf.COUNTS else 'a number'} >= 0") from None
    return out


class CacheReader:
    """Reads one caches file or the parts of one run; groups of equal (algorithm, params, budget,
    seed) are merged. Arrays are read on demand.

    protocol, sink, recent, queries    common to all files
    traces                             {SHA-256} of the source traces
    groups                             [CacheGroup] in file order

        with kvbench.read_caches("c.h5") as caches:
            for group in caches.groups:
                for prompt in group.prompts():
                    for layer, kv_head in group.heads(prompt):
                        entry = group.read(prompt, layer, kv_head)

    Raises TraceError if a file is not a caches file.
    """

    def __init__(self, paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]):
        paths = [paths] if isinstance(paths, (str, os.PathLike)) else [*paths]
        self.files: list[h5py.File] = []
        self.traces: set[str] = set()
        found: dict[tuple, CacheGroup] = {}
        first: tuple[str, dict[str, Any]] | None = None
        try:
            for path in [os.fspath(path) for path in paths]:
                file = self.open(path)
                root = self.root(path, file)
                self.traces |= root.pop("traces")
                if first is not None and root != first[1]:
                    name = next(name for name in root if root[name] != first[1][name])
                    raise TraceError(f"{path}: {name}: got {root[name]}, expected {first[1][name]}, as {first[0]} has")
                first = first or (path, root)
                for name, inner in file.items():
                    if isinstance(inner, h5py.Group):
                        self.add(f"{path}: {name}", inner, found)
        except BaseException:
            self.close()
            raise
        if first is None:
            raise TraceError("caches: got no file, expected at least one")
        self.protocol, self.sink, self.recent, self.queries = (
            first[1][name] for name in ("protocol", "sink", "recent", "queries"))
        self.groups = list(found.values())

    def __enter__(self) -> CacheReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for file in self.files:
            file.close()

    def open(self, path: str) -> h5py.File:
        self.files.append(open_hdf5(path))
        return self.files[-1]

    @staticmethod
    def root(path: str, file: h5py.File) -> dict[str, Any]:
        """Returns the checked attributes of the root."""
        check_format(file, path, cf.FORMAT, cf.VERSION)
        out: dict[str, Any] = {"protocol": text_of(file.attrs.get("protocol", "nothing"))}
        if out["protocol"] not in cf.PROTOCOLS:
            raise TraceError(f"{path}: protocol: got {out['protocol']}, expected {' or '.join(cf.PROTOCOLS)}")
        for name in ("sink", "recent", "queries"):
            try:
                value = file.attrs.get(name)
                out[name] = int(value)
                if out[name] != value or value < (name == "queries"):
                    raise ValueError
            except (TypeError, ValueError):
                raise TraceError(f"{path}: {name}: got {value}, expected an integer of at least "
                                 f"{int(name == 'queries')}") from None
        if out["protocol"] == "prefill" and out["recent"] < out["queries"]:
            raise TraceError(f"{path}: recent: got {out['recent']}, expected at least queries, {out['queries']}")
        sums = np.atleast_1d(np.asarray(file.attrs.get("trace_sha256", ()), object))
        out["traces"] = {text_of(one).lower() for one in sums}
        if not out["traces"]:
            raise TraceError(f"{path}: trace_sha256: got nothing, expected the traces' SHA-256")
        return out

    @staticmethod
    def add(where: str, inner: h5py.Group, found: dict[tuple, CacheGroup]) -> None:
        """Adds one group of a file to `found`, {key: CacheGroup}."""
        attributes = inner.attrs
        if "algorithm" not in attributes:
            raise TraceError(f"{where}: algorithm: got nothing, expected the method's name")
        try:
            params = cf.params_text(text_of(attributes.get("params", "")))
        except TraceError as error:
            raise TraceError(f"{where}: {error}") from None
        budget = attributes.get("budget")
        if budget is not None and not 0 <= budget <= 1:
            raise TraceError(f"{where}: budget: got {budget}, expected a number in [0, 1]")
        group = CacheGroup(text_of(attributes["algorithm"]), params,
                           None if budget is None else float(budget),
                           int(attributes.get("seed", 0)),
                           text_of(attributes.get("scores", "past")),
                           text_of(attributes.get("scope", "head")))
        for name, expected in (("scores", cf.SCORES), ("scope", cf.SCOPES)):
            if getattr(group, name) not in expected:
                raise TraceError(f"{where}: {name}: got {getattr(group, name)}, expected {', '.join(expected)}")
        group = found.setdefault(group.key, group)
        for prompt, part in inner.get("prompts", {}).items():
            for layer, heads in part.get("layers", {}).items():
                # Names only: opening every entry would take minutes.
                for head in heads:
                    if not (layer.isdigit() and head.isdigit()):
                        continue
                    place = prompt, int(layer), int(head)
                    if place in group.locations:
                        raise TraceError(f"{where}/prompts/{prompt}/layers/{layer}/{head}: is "
                                         f"also in {group.locations[place][0].filename}")
                    group.locations[place] = inner.file, f"{heads.name}/{head}"
