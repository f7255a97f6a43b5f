"""Runs a press in a model and finds what it kept.

A press drops rows of the cache, masks them (`masked_key_indices`) or changes them. Kept tokens are
found by comparing rows with the model's, which works for any press.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache, Gemma3ForConditionalGeneration

from kvbench.press.classes import known
from kvbench.press.expression import Expression, PressError
from kvbench.text import one_line


@dataclasses.dataclass
class Held:
    """What one KV head holds after the press.

    positions  [B], ascending: tokens whose rows are left
    changed    bool [B]: key or value differs from the model's
    k, v       float32 [changed, d], [changed, dv]: the changed rows
    """

    positions: np.ndarray
    changed: np.ndarray
    k: np.ndarray
    v: np.ndarray


@dataclasses.dataclass
class Layer:
    """What one layer computed and holds.

    keys, values  of the model, [Hkv, n, d] and [Hkv, n, dv]
    heads         [Held], by KV head
    ms            time of the press in the layer; None if it compresses elsewhere
    """

    keys: torch.Tensor
    values: torch.Tensor
    heads: list[Held] = dataclasses.field(default_factory=list)
    ms: float | None = None


def run_press(model: Any, press: Any, expression: Expression, ids: np.ndarray,
              wanted: Collection[int]) -> dict[int, Layer]:
    """Returns {layer: Layer} of the wanted layers after token ids [n] are read. Raises PressError for any error."""
    try:
        with _attention(model, expression), torch.no_grad():
            return _run(model, press, expression, ids, wanted)
    except (PressError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # a press may raise anything: assertions, downloads, shapes
        said = one_line(str(error).strip().split("\n")[0])[:300] or "no message"
        needs = next((known(one.name).downloads for one in expression.tree() if known(one.name).downloads), "")
        hint = f"; it loads {needs} for the models that it knows" if needs else ""
        raise PressError(f"{expression}: {type(error).__name__}: {said}{hint}") from None


@contextlib.contextmanager
def _attention(model: Any, expression: Expression) -> Iterator[None]:
    """Switches to eager attention if a press needs its weights."""
    before = model.config._attn_implementation
    eager = any(known(one.name).eager for one in expression.tree())
    if eager:
        model.set_attn_implementation("eager")
    try:
        yield
    finally:
        if eager:
            model.set_attn_implementation(before)


def attention_modules(model: Any) -> list[Any]:
    """Returns the attention of each layer, as kvpress finds it."""
    try:
        inner = getattr(model.model, "language_model", model.model)
        return [layer.self_attn for layer in inner.layers]
    except AttributeError:
        raise PressError(f"{type(model).__name__}: has no `model.layers` with `self_attn`: kvpress "
                         "does not know it") from None


def _run(model: Any, press: Any, expression: Expression, ids: np.ndarray, wanted: Collection[int]) -> dict[int, Layer]:
    modules = attention_modules(model)
    cache = DynamicCache(config=model.config)
    check_windows(model, cache, expression, len(ids), wanted)
    out: dict[int, Layer] = {}
    begun: dict[int, tuple[float, Any, Any]] = {}
    hooks = []

    def before(module: Any, args: Any, kwargs: Any, output: Any) -> None:
        layer = int(module.layer_idx)
        if layer not in wanted or layer in out:  # a press that reads the prompt again
            return
        own = cache.layers[layer]
        out[layer] = Layer(own.keys[0].detach().clone(), own.values[0].detach().clone())
        begun[layer] = time.perf_counter(), own.keys, _mask(module)

    def after(module: Any, args: Any, kwargs: Any, output: Any) -> None:
        layer = int(module.layer_idx)
        if layer in begun:
            start, keys, mask = begun.pop(layer)
            if cache.layers[layer].keys is not keys or _mask(module) is not mask:
                out[layer].ms = 1e3 * (time.perf_counter() - start)

    for module in modules:
        module.masked_key_indices = None
        hooks.append(module.register_forward_hook(before, with_kwargs=True))
    try:
        tokens = torch.as_tensor(ids, device=model.device)[None]
        with press(model):
            hooks += [module.register_forward_hook(after, with_kwargs=True) for module in modules]
            model.model(input_ids=tokens, past_key_values=cache)
        for layer, found in out.items():
            found.heads = held(found, cache.layers[layer], _mask(modules[layer]), expression, layer)
    finally:
        for hook in hooks:
            hook.remove()
        for module in modules:
            module.masked_key_indices = None
    return out


def check_windows(model: Any, cache: Any, expression: Expression, tokens: int, wanted: Collection[int]) -> None:
    """Raises PressError for layers that do not hold all tokens, if they are wanted or the press gets them."""
    skips = isinstance(model, Gemma3ForConditionalGeneration)  # kvpress runs presses on the others alone
    for layer, own in enumerate(cache.layers):
        if getattr(own, "is_sliding", False) and own.sliding_window <= tokens and (layer in wanted or not skips):
            raise PressError(f"{expression}: layer {layer} of {type(model).__name__} has a sliding window of "
                             f"{own.sliding_window} tokens, the press reads {tokens}: unsupported by kvpress"
                             + ("; dump the other layers (--layers)" if skips else ""))


def _mask(module: Any) -> Any:
    return getattr(module, "masked_key_indices", None)


def held(found: Layer, after: Any, mask: Any, expression: Expression, layer: int) -> list[Held]:
    """Returns [Held] of a layer. after: its cache; mask: (batch, heads, rows) that attention skips."""
    heads = found.keys.shape[0]
    left = np.ones((heads, after.keys.shape[2]), bool)
    if mask is not None:
        _, own, rows = (part.cpu().numpy() for part in mask)
        left[own, rows] = False
    out = []
    for head in range(heads):
        k, v = after.keys[0, head], after.values[0, head]
        at = positions(found.keys[head], k)
        if at is None:
            raise PressError(f"{expression}: layer {layer}, KV head {head}: it made keys that are no token's, and "
                             "dropped others: which of them lie in the windows cannot be told")
        changed = ((_bits(found.keys[head])[at] != _bits(k)).any(1)
                   | (_bits(found.values[head])[at] != _bits(v)).any(1))
        rows = np.flatnonzero(left[head])
        rows = rows[np.argsort(at[rows], kind="stable")]
        changed = changed[rows]
        made = torch.as_tensor(rows[changed], device=k.device)
        out.append(Held(at[rows], changed, k[made].float().cpu().numpy(), v[made].float().cpu().numpy()))
    return out


def _bits(rows: torch.Tensor) -> np.ndarray:
    """Returns rows as bytes, [rows, bytes]."""
    return rows.detach().contiguous().cpu().view(torch.uint8).numpy()


def positions(whole: torch.Tensor, left: torch.Tensor) -> np.ndarray | None:
    """Returns the position [B] of each key [B, d] among all keys [n, d] of a head, by equality.

    Equal keys are matched in order. If no key was dropped, a changed key has its own position. None
    if positions are unknown.
    """
    own, kept = _bits(whole), _bits(left)
    if own.shape == kept.shape and (own == kept).all():
        return np.arange(len(own))
    places: dict[bytes, list[int]] = {}
    for position in range(len(own) - 1, -1, -1):
        places.setdefault(own[position].tobytes(), []).append(position)
    out = np.empty(len(kept), int)
    for row, key in enumerate(kept):
        equal = places.get(key.tobytes())
        if not equal:
            return np.arange(len(own)) if len(own) == len(kept) else None
        out[row] = equal.pop()
    return out
