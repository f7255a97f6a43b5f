"""kvbench.export_kept: what each head of a caches file holds, as JSON for an engine."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from kvbench.caches.reader import CacheReader
from kvbench.records import replace_text

if TYPE_CHECKING:
    from collections.abc import Iterable

FORMAT, VERSION = "kvbench-kept", 1


def export_kept(caches: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
                output: str | os.PathLike[str] | None = None, *, algorithm: str | None = None,
                budget: float | None = None, seed: int | None = None) -> dict[str, Any]:
    """Returns each head's number of entries and kept positions, and writes them as JSON (docs/generation.md).

        kvbench.export_kept("c.h5", "kept.json", algorithm="adakv", budget=0.125)

    caches  one caches file or the parts of one run; output: a JSON file, replaced; None: none
    algorithm, budget, seed   only these groups
    Raises kvbench.TraceError if a file is not a caches file.
    """
    with CacheReader(caches) as reader:
        groups = [{"algorithm": group.algorithm, "params": group.params, "budget": group.budget, "seed": group.seed,
                   "prompts": {prompt: _layers(group, prompt) for prompt in group.prompts()}}
                  for group in reader.groups if algorithm in (None, group.algorithm)
                  and budget in (None, group.budget) and seed in (None, group.seed)]
        out = {"format": FORMAT, "version": VERSION, "protocol": reader.protocol, "sink": reader.sink,
               "recent": reader.recent, "queries": reader.queries, "groups": groups}
    if output is not None:
        replace_text(os.fspath(output), json.dumps(out) + "\n")
    return out


def _layers(group: Any, prompt: str) -> list[dict[str, Any]]:
    """Returns the layers of a prompt in a group, with their heads."""
    layers: dict[int, list[dict[str, Any]]] = {}
    for layer, head in group.heads(prompt):
        entry = group.read(prompt, layer, head)
        own: dict[str, Any] = {"kv_head": head}
        if entry.k is None:
            own["status"] = f"infeasible: {entry.infeasible}" if entry.infeasible else f"failed: {entry.failed}"
        else:
            token = [] if entry.token is None else entry.token[entry.token >= 0]
            own |= {"entries": len(entry.k), "positions": sorted(map(int, token))}
        layers.setdefault(layer, []).append(own)
    return [{"layer": layer, "heads": heads} for layer, heads in layers.items()]
