"""Methods that are Python functions, judged by the program like its own."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
import time
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from kvbench.api.run import path_list, rows_of
from kvbench.api.trace import read_trace
from kvbench.caches import CacheWriter
from kvbench.trace.writer import TraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import pandas as pd

    from kvbench.trace.heads import Head

BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}


class Infeasible(Exception):
    """Raised by a method that cannot meet a budget; its text is the row's reason."""


@dataclasses.dataclass(frozen=True)
class Task:
    """What a method is asked for, beside the head.

    prompt, layer, kv_head   where the head is
    budget                   fraction of the middle's bytes
    bytes                    that fraction in bytes: what may be held of the middle in all
    tokens                   how many tokens of the middle fit into it as they are
    middle                   positions that may be compressed, ascending: all but sinks and recent
    query_positions          position of each row of head.q: the trace's queries before those that
                             are evaluated; with scores="all" these too
    rng                      seeded by the seed and the head
    """

    prompt: str
    layer: int
    kv_head: int
    budget: float
    bytes: int
    tokens: int
    middle: np.ndarray
    query_positions: np.ndarray
    rng: np.random.Generator


class Made:
    """Entries that a method made: what is held in place of the middle's tokens.

    k, v        [B, d], [B, dv]; rounded to the trace's element type unless payload_bytes is given
    log_weight  [B]: log of the weight in numerator and denominator, 4 bytes each; None: weight 1
    token       [B]: position that an entry is held exactly of, -1 where it was made
    others      as kvbench.caches.GroupWriter.put takes them: k_den, log_weight_den, aux_bytes,
                payload_bytes, diag, ... (docs/caches.md)
    """

    def __init__(self, k: np.ndarray, v: np.ndarray, log_weight: np.ndarray | None = None,
                 token: np.ndarray | None = None, **others: Any):
        self.parts: dict[str, Any] = {"k": k, "v": v, "log_weight": log_weight, "token": token, **others}


def evaluate(traces: str | os.PathLike | Iterable[str | os.PathLike],
             method: Callable[[Head, Task], np.ndarray | Sequence[int] | Made],
             budgets: Sequence[float] = (0.5, 0.25, 0.125), *, name: str | None = None,
             params: str | dict[str, Any] = "", seeds: int = 1, scores: str = "past",
             sink: int = 16, recent: int = 512, queries: int = 256,
             prompts: Sequence[str] | None = None, layers: Sequence[int] | None = None,
             output: str | os.PathLike | None = None, caches: str | os.PathLike | None = None,
             **options: Any) -> pd.DataFrame:
    """The rows of `kvbench evaluate` for a method that is a Python function.

        def newest(head, task):
            return task.middle[len(task.middle) - task.tokens:]

        rows = kvbench.evaluate("t.h5", newest, budgets=[0.25])

    method    called with each KV head and each budget. It returns the positions that stay as they
              are, or a Made, or raises Infeasible. All it gets are copies. `compress_ms` is the
              time of the call
    budgets   fractions of the middle's bytes, in [0, 1]
    name      in the rows; None: the function's. params: `key=value;...` or a dict, likewise
    seeds     how many: 0, 1, ...
    scores    past: head.q holds the queries before the evaluated ones; all: the evaluated too, for
              methods that may look at them; none: head.q is None
    sink, recent, queries   the protocol's windows in tokens: those that stay at the beginning and
              at the end, and how many of the last queries are evaluated
    prompts, layers   only these
    output    result table to write; None: none stays. caches: caches file to keep
    options   others of `kvbench evaluate`: kept=True, per_query=True, threads=2
    Raises kvbench.TraceError or kvbench.ProgramError, one line; what `method` raises goes through.
    """
    paths = path_list(traces)
    if name is None:
        name = getattr(method, "__name__", type(method).__name__).strip("<>")
    with contextlib.ExitStack() as stack:
        if caches is None:
            caches = os.path.join(stack.enter_context(tempfile.TemporaryDirectory()), "caches.h5")
        with CacheWriter(caches, paths, sink, recent, queries) as writer:
            for budget in budgets:
                for seed in range(seeds):
                    group = writer.group(name, params, budget, seed, scores)
                    for path in paths:
                        for place, head in _heads(path, prompts, layers):
                            task = _task(place, head, budget, seed, writer, scores)
                            _put(group, place, head, task, method)
        return rows_of("evaluate", paths, output, {"caches": os.fspath(caches), **options})


def _heads(path: str, prompts: Sequence[str] | None, layers: Sequence[int] | None) -> Any:
    trace = read_trace(path)
    for place in trace.places:
        if (prompts is None or place[0] in prompts) and (layers is None or place[1] in layers):
            yield place, trace.head(*place)


def _task(place: tuple[str, int, int], head: Head, budget: float, seed: int, writer: CacheWriter,
          scores: str) -> Task:
    """The task of a head, whose queries become those that the method may see."""
    assert head.q is not None  # a trace has queries
    n, stored = len(head.k), head.q.shape[1]
    if n < writer.sink + writer.recent or stored < writer.queries:
        raise TraceError(f"{', '.join(writer.traces)}: prompts/{place[0]}/layers/{place[1]}: has {n} "
                         f"tokens and {stored} queries, expected at least {writer.sink} + "
                         f"{writer.recent} and {writer.queries}")
    seen = 0 if scores == "none" else stored - (writer.queries if scores == "past" else 0)
    head.q = None if scores == "none" else head.q[:, :seen]
    pair = BYTES[head.dtype] * (head.k.shape[1] + head.v.shape[1])
    middle = np.arange(writer.sink, n - writer.recent)
    may_hold = int(np.floor(budget * pair * len(middle)))
    prompt, layer, kv_head = place
    return Task(prompt, layer, kv_head, budget, may_hold, may_hold // pair, middle,
                np.arange(n - stored, n - stored + seen),
                np.random.default_rng([seed, zlib.crc32(prompt.encode()), layer, kv_head]))


def _put(group: Any, place: tuple[str, int, int], head: Head, task: Task, method: Any) -> None:
    keys, values = head.k.copy(), head.v.copy()
    start = time.perf_counter()
    try:
        result = method(head, task)
    except Infeasible as error:
        group.put(*place, infeasible=str(error) or "the method says so")
        return
    spent = 1e3 * (time.perf_counter() - start)
    if isinstance(result, Made):
        group.put(*place, **{"compress_ms": spent, **result.parts})
        return
    kept = np.asarray(result)
    if kept.size == 0:
        kept = kept.astype(int)
    if kept.ndim != 1 or kept.dtype.kind not in "iu":
        raise TypeError(f"{place}: the method returned {kept.dtype} of shape {kept.shape}, expected "
                        "positions (whole numbers, one dimension) or kvbench.Made")
    outside = kept[(kept < task.middle[0]) | (kept > task.middle[-1])] if len(task.middle) else kept
    if len(outside):
        raise ValueError(f"{place}: the method returned position {outside[0]}, expected those of "
                         "task.middle")
    kept = np.sort(kept)
    group.put(*place, keys[kept], values[kept], token=kept, compress_ms=spent)
