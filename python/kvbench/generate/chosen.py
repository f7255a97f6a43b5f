"""One method, or a policy, with its setting."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from typing import Any

import numpy as np

from kvbench.api.run import ProgramError, run, spec_of
from kvbench.press.expression import PressError
from kvbench.records import read_json
from kvbench.score.plan import read_plan_table
from kvbench.trace.parts import FUTURE_POSITIONS
from kvbench.trace.writer import TraceWriter

QUERIES = 1  # the last query is evaluated: a prompt's cache is compressed, and the next token decoded
PROBED = 64  # tokens of the middle of the trace that checks a setting
NO_SIZE = ": no size, "  # the program's message without a budget


@dataclasses.dataclass(frozen=True)
class Chosen:
    """One method that runs at a prompt's end.

    options  of `kvbench replay`: algorithm or policy, sink, recent, seeds
    name     for messages
    sized    whether the parameters or the policy set its size, without a budget
    """

    options: dict[str, Any]
    name: str
    sized: bool

    def replay(self, trace: str, caches: str, budget: float | None, scores: str) -> None:
        """Writes the caches of a trace. Raises ProgramError, PressError."""
        table = caches + ".csv"
        run("replay", trace, output=table, queries=QUERIES, scores=scores, export_caches=caches,
            budget=budget, **self.options)


def one_method(algorithm: str | dict[str, dict[str, Any]], params: dict[str, Any]) -> str:
    """Returns `NAME:KEY=VALUE;...` of a name, a specification or {name: {parameter: value}}, and more parameters."""
    if isinstance(algorithm, dict):
        if len(algorithm) != 1:
            raise PressError(f"algorithm: got {len(algorithm)} methods, expected one")
        [(algorithm, own)] = algorithm.items()
        params = {**own, **params}
    name = algorithm.partition(":")[0]
    if not name or name.startswith("@") or any(sign in algorithm for sign in ",* \n"):
        raise PressError(f"algorithm: got `{algorithm}`, expected one method such as snapkv or h2o@quant-kivi")
    for key, value in params.items():
        if any(sign in str(value) for sign in ";,: \n"):
            raise PressError(f"{name}: {key}: got `{value}`, expected one value")
    return spec_of(algorithm, params)


def choose(algorithm: str | dict[str, dict[str, Any]] | None, policy: str | os.PathLike[str] | None,
           params: dict[str, Any], *, sink: int, recent: int, seed: int, budget: float | None, later: int = 0
           ) -> Chosen:
    """Returns the method of the arguments of kvbench.as_press and kvbench.compress, checked by a plan of the program.

    budget  None: it comes later, if the method needs one
    later   tokens of the prompt after the recent ones
    Raises PressError for bad arguments, ProgramError with the program's message, which suggests names.
    """
    if (algorithm is None) == (policy is None):
        raise PressError("got algorithm and policy, expected one of them" if algorithm else
                         "got neither algorithm nor policy, expected one of them")
    if policy is not None and params:
        raise PressError(f"policy: got the parameter {next(iter(params))}, expected those of the file")
    if sink < 0 or recent < QUERIES:
        raise PressError(f"got sink {sink}, recent {recent}, expected sink >= 0 and recent >= {QUERIES}")
    options: dict[str, Any] = {"sink": sink, "recent": recent + later, "seeds": f"{seed}:{seed + 1}"}
    if policy is not None:
        options["policy"] = os.fspath(policy).replace(",", "\\,")
        name = os.path.basename(os.fspath(policy))
    else:
        options["algorithm"] = one_method(algorithm or "", params)
        name = options["algorithm"].partition(":")[0]
    with tempfile.TemporaryDirectory() as folder:
        trace = os.path.join(folder, "t.h5")
        write_probe(trace, policy, sink + recent + later + PROBED)
        given = {"output": os.path.join(folder, "t.csv"), "dry_run": True, "queries": QUERIES, **options}
        try:
            plan = read_plan_table(run("replay", trace, **given))
            sized = True
        except ProgramError as error:
            if NO_SIZE not in str(error):
                raise
            plan = read_plan_table(run("replay", trace, budget=0.5 if budget is None else budget, **given))
            sized = False
    if [entries for *_, entries in plan] != [1]:
        raise PressError(f"{name}: got {sum(entries for *_, entries in plan)} methods, expected one")
    if sized and budget is not None:
        raise PressError(f"{name}: got a budget or compression ratio, expected none: its size is that of "
                         f"{'its parameters' if policy is None else 'the file'}")
    return Chosen(options, name, sized)


def write_probe(path: str, policy: str | os.PathLike[str] | None, n: int) -> None:
    """Writes a trace of zeros, of the layers, KV heads and model of a policy, to plan runs with."""
    content = read_json(os.fspath(policy)) if policy is not None else {}
    content = content if isinstance(content, dict) else {}
    parts = content.get("layers")
    found = [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    layers = {int(part["layer"]): len(part.get("heads") or ()) or 1 for part in found
              if isinstance(part.get("layer"), int)} or {0: 1}
    with TraceWriter(path, str(content.get("model", "probe")), "probe", dtype="float32", gzip=0) as writer:
        writer.begin_prompt("p0", n)
        for layer, heads in layers.items():
            writer.begin_layer(layer, heads, heads, n, 2, 2)
            for part in ("q", "k", "v"):
                writer.write(part, 0, 0, np.zeros((heads, n, 2), np.float32))
            writer.write_o_proj(np.zeros((2, 2 * heads), np.float32))
        table = np.ones((n + FUTURE_POSITIONS, 1), np.float32)
        writer.write_rope(table, 0 * table, "half")
