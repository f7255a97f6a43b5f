"""Methods written as Python functions, measured by the program."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
import os
import re
import tempfile
import time
import warnings
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from kvbench.api.replay import rows_of
from kvbench.api.run import path_list
from kvbench.caches import CacheWriter
from kvbench.caches.format import BYTES
from kvbench.progress import progress_bar
from kvbench.text import list_parts, one_line
from kvbench.trace.heads import read_head, trace_heads
from kvbench.trace.writer import TraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import pandas as pd

    from kvbench.caches.writer import GroupWriter
    from kvbench.trace.heads import Head


class MethodError(Exception):
    """A method raised or returned an invalid result: function, place and reason in one line."""


class Infeasible(Exception):
    """Raise it if a method cannot meet the budget; the text becomes the row's reason."""


@dataclasses.dataclass(frozen=True)
class Task:
    """Request to a method for one head.

    prompt, layer, kv_head   the head
    budget                   fraction of the middle's bytes
    bytes                    the same in bytes: limit for everything held of the middle
    tokens                   number of uncompressed tokens that fit
    middle                   compressible positions, ascending: all but sinks and recent, and without those that
                             head.window hides from all evaluated queries
    query_positions          position of each row of head.q: stored queries before the evaluated ones; with
                             scores="all" these too
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
    """Entries made by a method, held in place of the middle's tokens.

    k, v        [B, d], [B, dv]; rounded to the trace's element type unless payload_bytes is given
    log_weight  [B]: log of the weight in numerator and denominator, 4 bytes each; None: weight 1
    token       [B]: position that an entry holds exactly, -1 for made entries
    others      as in kvbench.caches.GroupWriter.put: k_den, log_weight_den, aux_bytes, payload_bytes, diag, ...
    """

    def __init__(self, k: np.ndarray, v: np.ndarray, log_weight: np.ndarray | None = None,
                 token: np.ndarray | None = None, **others: Any):
        self.parts: dict[str, Any] = {"k": k, "v": v, "log_weight": log_weight, "token": token, **others}


def evaluate(traces: str | os.PathLike | Iterable[str | os.PathLike],
             method: Callable[[Head, Task], np.ndarray | Sequence[int] | Made],
             budget: float | Sequence[float] = (0.5, 0.25, 0.125), *, name: str | None = None,
             params: str | dict[str, Any] = "", seeds: int = 1, scores: str = "past",
             sink: int = 16, recent: int = 512, queries: int = 256,
             prompts: str | Sequence[str] | None = None, layers: Sequence[int] | None = None,
             output: str | os.PathLike | None = None, caches: str | os.PathLike | None = None,
             errors: str = "row", progress: bool | None = None, **options: Any) -> pd.DataFrame:
    """Returns the rows of `kvbench evaluate` for a method written as a Python function.

        def newest(head, task):
            return task.middle[len(task.middle) - task.tokens:]

        rows = kvbench.evaluate("t.h5", newest, budget=[0.25])

    method    called per KV head and budget with copies. Returns the positions to keep, a boolean mask over task.middle
              or over all tokens, or a Made; raises Infeasible if it cannot. `compress_ms` is the time of the call
    budget    one or several fractions of the middle's bytes, in [0, 1]
    name      in the rows; None: the function's name. params: `key=value;...` or a dict
    seeds     number of seeds: 0, 1, ...
    scores    past: head.q holds the queries before the evaluated ones; all: the evaluated too; none: head.q is None
    sink, recent, queries   windows of the protocol in tokens: first and last tokens kept, last queries evaluated
    prompts, layers   only these
    output    result table to write; None: temporary. caches: caches file to keep
    errors    "row": a failing head gives rows with status `failed` and a warning; "raise": the first failure raises.
              If every head fails, MethodError is raised in both cases
    progress  progress bar (tqdm); None: on a terminal or in a notebook
    options   others of `kvbench evaluate`: kept=True, per_query=True, threads=2
    Raises kvbench.TraceError, kvbench.ProgramError or kvbench.MethodError; the cause of a
    MethodError is the exception of `method`.
    """
    if errors not in ("row", "raise"):
        raise ValueError(f"errors: got {errors!r}, expected 'row' or 'raise'")
    paths, budgets = path_list(traces), [budget] if isinstance(budget, (int, float)) else [*budget]
    if name is None:
        name = getattr(method, "__name__", type(method).__name__).strip("<>")
    with contextlib.ExitStack() as stack:
        if caches is None:
            caches = os.path.join(stack.enter_context(tempfile.TemporaryDirectory()), "caches.h5")
        with CacheWriter(caches, paths, sink, recent, queries) as writer:
            settings = [(one, seed) for one in budgets for seed in range(seeds)]
            groups = {setting: writer.group(name, params, *setting, scores) for setting in settings}
            _check_chosen(writer, prompts, layers)
            places = [(path, place) for path in paths for place in trace_heads(path, prompts, layers)]
            failures: list[MethodError] = []
            bar = stack.enter_context(progress_bar(len(places) * len(settings), name, progress))
            for path, place in places:
                stored = read_head(path, *place)
                for setting in settings:
                    task, head = _task(place, copy.deepcopy(stored), *setting, writer, scores)
                    try:
                        _put(groups[setting], name, task, head, method)
                    except MethodError as error:
                        if errors == "raise":
                            raise
                        failures.append(error)
                        groups[setting].put(*place, failed=_reason(error))
                    bar.update()
            if failures and len(failures) == len(places) * len(settings):
                raise failures[0]
        if failures:
            warnings.warn(f"{len(failures)} of {len(places) * len(settings)} calls failed, the first: "
                          f"{failures[0]}", RuntimeWarning, stacklevel=2)
        return rows_of("evaluate", paths, output, {"caches": os.fspath(caches), **options})


def _check_chosen(writer: CacheWriter, prompts: str | Sequence[str] | None, layers: Sequence[int] | None) -> None:
    """Raises TraceError for a prompt or layer that no trace has. As in --layers, a range may exceed them."""
    named = list_parts(prompts) if isinstance(prompts, str) else prompts or ()
    numbers = () if layers is None or isinstance(layers, range) else layers
    checks: list[tuple[str, Sequence[Any], set[Any]]] = [
        ("prompts", named, {prompt for prompt, _ in writer.sizes}),
        ("layers", numbers, {layer for _, layer in writer.sizes})]
    for what, wanted, known in checks:
        absent = [str(one) for one in wanted if one not in known]
        if absent:
            raise TraceError(f"{', '.join(writer.traces)}: {what}: got {absent[0]}, expected some of "
                             + ", ".join(map(str, sorted(known))))


def budget_bytes(budget: float, full: int) -> int:
    """As lib/replay/windows.cpp: 0.29 * 100 is 28.999999999999996 in float64."""
    held = budget * full
    return round(held) if abs(held - round(held)) <= 4e-16 * full else math.floor(held)


def _task(place: tuple[str, int, int], head: Head, budget: float, seed: int, writer: CacheWriter,
          scores: str) -> tuple[Task, Head]:
    """Returns the task of a head, and the head with the visible queries."""
    assert head.q is not None  # a trace has queries
    n, stored = len(head.k), head.q.shape[1]
    if n < writer.sink + writer.recent or stored < writer.queries:
        raise TraceError(f"{', '.join(writer.traces)}: prompts/{place[0]}/layers/{place[1]}: has {n} tokens and "
                         f"{stored} queries, expected at least {writer.sink} + {writer.recent} and {writer.queries}")
    seen = 0 if scores == "none" else stored - (writer.queries if scores == "past" else 0)
    head.q = None if scores == "none" else head.q[:, :seen]
    pair = BYTES[head.dtype] * (head.k.shape[1] + head.v.shape[1])
    # As lib/replay/windows.cpp.
    first = max(0, n - writer.queries - head.window + 1) if head.window else 0
    middle = np.arange(max(writer.sink, first), n - writer.recent)
    may_hold = budget_bytes(budget, pair * len(middle))
    prompt, layer, kv_head = place
    return Task(prompt, layer, kv_head, budget, may_hold, may_hold // pair, middle,
                np.arange(n - stored, n - stored + seen),
                np.random.default_rng([seed, zlib.crc32(prompt.encode()), layer, kv_head])), head


def _put(group: GroupWriter, name: str, task: Task, head: Head, method: Any) -> None:
    """Calls the method and writes its result. Raises MethodError."""
    place = task.prompt, task.layer, task.kv_head
    where = f"{name}, prompt {task.prompt}, layer {task.layer}, KV head {task.kv_head}, budget {task.budget:g}"
    keys, values, start = head.k.copy(), head.v.copy(), time.perf_counter()
    try:
        result = method(head, task)
    except Infeasible as error:
        group.put(*place, infeasible=one_line(error) or "the method says so")
        return
    except Exception as error:
        raise MethodError(f"{where}: {type(error).__name__}: {one_line(error)}") from error
    spent = 1e3 * (time.perf_counter() - start)
    try:
        if isinstance(result, Made):
            parts: dict[str, Any] = {"compress_ms": spent, **result.parts}
            _check_tokens(parts, task, head.window)
            _check_bytes(parts, task, BYTES[head.dtype], len(head.k[0]), len(head.v[0]))
            group.put(*place, **parts)
        else:
            kept = _positions(result, task, len(keys))
            group.put(*place, keys[kept], values[kept], token=kept, compress_ms=spent)
    except (TraceError, TypeError, ValueError) as error:
        # Drop the temporary file and group from the message.
        text = re.sub(r"^.*?/prompts/.*?/layers/\d+/\d+: ", "", one_line(error))
        raise MethodError(f"{where}: {text}") from error


def _positions(result: Any, task: Task, n: int) -> np.ndarray:
    """Returns a method's positions, ascending. Raises TypeError or ValueError."""
    if result is None:
        raise TypeError("returned None, expected positions or kvbench.Made: is a `return` missing?")
    kept = np.asarray(result)
    if kept.dtype == bool:
        if kept.shape == task.middle.shape:
            kept = task.middle[kept]
        elif kept.shape == (n,):
            kept = task.middle[kept[task.middle]]  # sinks and recent tokens are kept anyway
        else:
            raise ValueError(f"returned a mask of shape {list(kept.shape)}, expected "
                             f"[{len(task.middle)}], the middle, or [{n}], all tokens")
    if kept.size == 0:
        kept = kept.astype(int)
    if kept.ndim != 1 or kept.dtype.kind not in "iu":
        raise TypeError(f"returned {kept.dtype} of shape {list(kept.shape)}, expected positions "
                        "(whole numbers, one dimension), a boolean mask or kvbench.Made")
    outside = kept[(kept < task.middle[0]) | (kept > task.middle[-1])] if len(task.middle) else kept
    if len(outside):
        raise ValueError(f"returned position {outside[0]}, expected those of task.middle"
                         + (f", {task.middle[0]} to {task.middle[-1]}" if len(task.middle) else ""))
    if len(kept) > task.tokens:
        raise ValueError(f"returned {len(kept)} tokens, expected at most task.tokens: {task.tokens} fit")
    return np.sort(kept)


def _check_tokens(parts: dict[str, Any], task: Task, window: int | None) -> None:
    """Raises ValueError if entries of a layer with a window are not tokens of the middle."""
    token = parts["token"]
    if window and len(parts["k"]) and (token is None or not np.isin(token, task.middle).all()):
        raise ValueError("returned entries that are no tokens of task.middle, expected only such tokens (`token`): "
                         f"the layer has a window of {window} tokens")


def _check_bytes(parts: dict[str, Any], task: Task, element: int, d: int, dv: int) -> None:
    """Raises ValueError if made entries exceed the budget (docs/trace_format.md, Bytes)."""
    rows = len(parts["k"])
    k_den = parts.get("k_den")
    weights = sum(map(_weight_bytes, (parts.get("log_weight"), parts.get("log_weight_den"))))
    aux = parts.get("aux_bytes")
    payload = parts.get("payload_bytes")
    if payload is None:
        payload = element * (rows * (d + dv) + (0 if k_den is None else len(k_den) * d))
    extra = weights if aux is None else int(aux)
    held = int(payload) + extra
    if held <= task.bytes:
        return
    text = f"returned {rows} rows of {held} bytes"
    if extra:
        text += f" ({extra} of them {'weights' if aux is None else 'aux_bytes'})"
    text += f", expected at most task.bytes = {task.bytes}"
    if rows and k_den is None and parts.get("payload_bytes") is None:
        each = element * (d + dv)
        # Equal weights cost one number, others one per row.
        fit = (task.bytes // (each + weights // rows) if aux is None and weights > 4 else
               max(0, task.bytes - extra) // each)
        text += f": {fit} rows fit"
    raise ValueError(text)


def _weight_bytes(log_weight: Any) -> int:
    if log_weight is None:
        return 0
    weights = np.asarray(log_weight, dtype=np.float32)
    if not len(weights) or not weights.any():
        return 0
    return 4 if (weights == weights[0]).all() else 4 * len(weights)


def _reason(error: MethodError) -> str:
    """The error without its place, which the row has."""
    return str(error).partition(": ")[2]
