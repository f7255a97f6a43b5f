"""Writes what presses kept as groups of a caches file (docs/trace_format.md)."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from kvbench.caches.format import BYTES, params_text, round_to
from kvbench.press.classes import scores_of
from kvbench.press.expression import Expression, text_of
from kvbench.trace.heads import read_head

if TYPE_CHECKING:
    from kvbench.caches import CacheWriter
    from kvbench.press.run import Layer
    from kvbench.press.windows import Windows


def without_ratio(expression: Expression) -> Expression:
    """Returns the expression without its compression ratios, which the rows call budget_requested."""
    def stripped(value: Any) -> Any:
        if isinstance(value, Expression):
            return without_ratio(value)
        return tuple(map(stripped, value)) if isinstance(value, tuple) else value
    first = None if isinstance(expression.first, (int, float)) else stripped(expression.first)
    return Expression(expression.name, first, {
        name: stripped(value) for name, value in expression.named.items()
        if name != "compression_ratio"})


def params_of(expression: Expression, windows: str) -> str:
    """Returns `key=value;...` of a press: its arguments, and whether its windows were kept."""
    out = {name: text_of(value) for name, value in expression.named.items()}
    if expression.first is not None:
        number = isinstance(expression.first, (int, float))
        out["ratio" if number else "press"] = text_of(expression.first)
    # The format's separators can occur in texts only.
    return params_text({name: value.replace(";", ",").replace("\n", " ")
                        for name, value in (out | {"windows": windows}).items()})


@dataclasses.dataclass
class Size:
    """Bytes that one entry holds, and that it may hold."""

    held: int
    allowed: int


class PressGroup:
    """The group of one press. Call `put` per prompt, then `finish`.

    windows  "kept" or "as-is": whether the press was made to keep them
    budget   the requested fraction of the middle; None: none
    """

    def __init__(self, writer: CacheWriter, expression: Expression, windows: str,
                 budget: float | None, seed: int, versions: dict[str, str]):
        self.expression, self.windows, self.budget = expression, windows, budget
        self.dtype = writer.dtype
        self.group = writer.group(expression.name, params_of(expression, windows), seed=seed,
                                  scores=scores_of(expression))
        self.group.inner.attrs["press"] = str(expression)
        self.group.inner.attrs.update(versions)
        self.sizes: dict[tuple[str, int], list[Size]] = {}

    def put(self, trace: str, prompt: str, layers: dict[int, Layer], heads: dict[int, list[int]],
            windows: Windows) -> None:
        """Writes the entries of one prompt. heads: {layer of the trace: the model's index of each head}."""
        for layer, indices in heads.items():
            found = layers[layer]
            for head, index in enumerate(indices):
                own = read_head(trace, prompt, layer, head, with_q=False)
                held = found.heads[index]
                inside = (held.positions >= windows.sink) & (held.positions < windows.end)
                made = inside[held.changed]
                exact = held.positions[inside & ~held.changed]
                attributes: dict[str, Any] = {"diag": _diag(held, inside, windows)}
                if found.ms is not None:
                    attributes["compress_ms"] = found.ms / len(found.heads)
                k = np.concatenate([own.k[exact], round_to(held.k[made], self.dtype)])
                v = np.concatenate([own.v[exact], round_to(held.v[made], self.dtype)])
                token = np.concatenate([exact, np.full(int(made.sum()), -1)]).astype(int)
                size = BYTES[self.dtype] * (k.size + v.size)
                zero = int((k == 0).all(0).sum()) if len(k) and not len(exact) else 0
                if zero:  # Channels dropped from every key cost one bit each.
                    attributes["payload_bytes"] = size - BYTES[self.dtype] * zero * len(k)
                    attributes["aux_bytes"] = math.ceil(k.shape[1] / 8)
                    size = attributes["payload_bytes"] + attributes["aux_bytes"]
                self.group.put(prompt, layer, head, k, v, token=token, **attributes)
                pair = BYTES[self.dtype] * (own.k.shape[1] + own.v.shape[1])
                self.sizes.setdefault((prompt, layer), []).append(
                    Size(size, math.floor((self.budget or 0) * windows.middle * pair + 1e-6)))

    def finish(self) -> str:
        """Sets the narrowest scope of the budget that the entries meet: head, layer or layers; otherwise the group has
        no budget and keeps its ratio as a parameter. Returns a description.
        """
        if self.budget is None:
            return "no budget: the press is unchanged"
        prompts: dict[str, list[Size]] = {}
        for (prompt, _), sizes in self.sizes.items():
            prompts.setdefault(prompt, []).extend(sizes)
        for scope, parts in (("head", [[one] for sizes in self.sizes.values() for one in sizes]),
                             ("layer", list(self.sizes.values())),
                             ("layers", list(prompts.values()))):
            if all(sum(one.held for one in part) <= sum(one.allowed for one in part) for part in parts):
                attributes = self.group.inner.attrs
                attributes["budget"], attributes["scope"] = self.budget, scope
                attributes["params"] = params_of(without_ratio(self.expression), self.windows)
                return f"budget {self.budget:g}, scope {scope}"
        return f"no budget: the heads of the trace hold more than {self.budget:g} of the middle"


def _diag(held: Any, inside: np.ndarray, windows: Windows) -> str:
    """Returns what the press did to the windows, which are exact anyway."""
    lost = windows.tokens - windows.middle - int((~inside).sum())
    return f"windows_changed={int((held.changed & ~inside).sum())};windows_dropped={lost}"
