"""Selects the arrays, and their parts, that are the queries, keys and values of a prompt's layer."""

import os
import re
from dataclasses import dataclass

from kvbench.convert.arrays import Array, open_arrays
from kvbench.trace.writer import TraceError

AXES = ("prompt", "layer", "head", "token", "dim")
CACHE_AXES = "batch head token dim"
# Names in a saved past_key_values: the tuple of pairs, DynamicCache's two lists and its layers.
CACHES = [(prefix + k, prefix + v) for prefix in ("", "past_key_values.") for k, v in (
    ("{layer}.0", "{layer}.1"), ("key_cache.{layer}", "value_cache.{layer}"),
    ("layers.{layer}.keys", "layers.{layer}.values"))]


@dataclass(frozen=True)
class View:
    """One prompt's and layer's q, k or v in an array. axes: of the array; at: the index along prompt and layer."""

    array: Array
    axes: tuple
    at: dict

    def extent(self, axis):
        return self.array.shape[self.axes.index(axis)] if axis in self.axes else 1

    def head(self, values, head):
        """Returns rows [token, dim] of one head. values: the loaded array."""
        index = tuple(head if axis == "head" else self.at.get(axis, slice(None)) for axis in self.axes)
        rows = values[index]
        return rows if self.axes.index("token") < self.axes.index("dim") else rows.T

    def sizes(self):
        return f"{self.extent('head')} heads, {self.extent('token')} tokens, dim {self.extent('dim')}"


def parse_axes(text, option):
    axes = tuple("prompt" if name == "batch" else name for name in text.replace(",", " ").split())
    for name in axes:
        if name not in AXES:
            raise TraceError(f"{option}: got `{name}`, expected names among batch (or prompt), {', '.join(AXES[1:])}")
    if len(set(axes)) != len(axes):
        raise TraceError(f"{option}: got `{text}`, expected every axis once")
    for name in ("token", "dim"):
        if name not in axes:
            raise TraceError(f"{option}: got `{text}`, expected it to name `{name}`")
    return axes


def pattern_regex(pattern, option):
    """Returns a compiled regular expression over FILE::NAME."""
    file_part, separator, name_part = pattern.rpartition("::")
    out = "" if separator else ".*::"
    for part in re.split(r"(\{[^{}]*\})", (file_part + "::" if separator else "") + name_part):
        if part in ("{prompt}", "{layer}"):
            group = part[1:-1]
            if f"(?P<{group}>" in out:
                raise TraceError(f"{option}: got `{pattern}`, expected {part} once")
            out += f"(?P<{group}>" + (r"[^/]+?" if group == "prompt" else r"[0-9]+") + ")"
        elif part[:1] == "{" and part[-1:] == "}":
            raise TraceError(f"{option}: got `{part}` in `{pattern}`, expected {{prompt}} or "
                             "{layer}")
        else:
            out += re.escape(part)
    return re.compile(out)


def names_of(arrays):
    names = [array.name for array in arrays]
    return ", ".join(names[:8]) + (f", ... ({len(names)} in all)" if len(names) > 8 else "")


def find_views(arrays, pattern, axes, option, default_prompt, default_layer=None):
    """Returns {(prompt id, layer): View} of arrays whose names match. default_layer: if name and axes give none."""
    regex = pattern_regex(pattern, option)
    views = {}
    for array in arrays:
        match = regex.fullmatch(f"{os.path.basename(array.path)}::{array.name}")
        if not match:
            continue
        if len(array.shape) != len(axes):
            raise TraceError(f"{array.where()}: got shape {list(array.shape)}, expected "
                             f"{len(axes)} axes: {' '.join(axes)}")
        if 0 in array.shape:
            raise TraceError(f"{array.where()}: got shape {list(array.shape)}, expected no axis of size 0")
        sizes = dict(zip(axes, array.shape))
        found = match.groupdict()
        if "layer" in found and sizes.get("layer", 1) > 1:
            raise TraceError(f"{array.where()}: got {sizes['layer']} layers along an axis, "
                             "expected 1 where the name says {layer}")
        if "layer" not in found and "layer" not in sizes:
            if default_layer is None:
                raise TraceError(f"{option}: got `{pattern}`, expected {{layer}} in it, a layer axis or --layer")
            found["layer"] = default_layer
        for prompt in range(sizes.get("prompt", 1)):
            prompt_id = found.get("prompt", default_prompt if sizes.get("prompt", 1) == 1 else "p")
            if sizes.get("prompt", 1) > 1:
                prompt_id += f"{'-' if 'prompt' in found else ''}{prompt}"
            for layer in range(sizes.get("layer", 1)):
                key = prompt_id, int(found.get("layer", layer))
                if key in views:
                    raise TraceError(
                        f"{array.where()}: prompt {key[0]}, layer {key[1]} is also "
                        f"{views[key].array.where()}, expected one; `FILE::NAME` tells files apart")
                views[key] = View(array, axes, {"prompt": prompt, "layer": layer})
    if not views:
        files = sorted({array.path for array in arrays})
        raise TraceError(f"{', '.join(files[:3])}: no array matches {option} `{pattern}`, got {names_of(arrays)}")
    return views


def recognise_cache(arrays, files):
    """Returns the patterns of k and v in a saved past_key_values."""
    names = [array.name for array in arrays]
    for k, v in CACHES:
        if any(pattern_regex(k, "--k").fullmatch("::" + name) for name in names):
            # Prompts are named by file.
            file = "{prompt}" + os.path.splitext(files[0])[1] + "::" if len(files) > 1 else ""
            return file + k, file + v
    raise TraceError(f"{files[0]}: no --k, and no array is called as in a saved past_key_values "
                     f"(0.0, key_cache.0, layers.0.keys), got {names_of(arrays)}")


def gather(options):
    """Returns {(prompt id, layer): {"q"|"k"|"v": View}}, complete and with matching shapes."""
    arrays = [array for path in options.inputs for array in open_arrays(path)]
    patterns = {"q": options.q, "k": options.k, "v": options.v}
    axes_text = options.axes
    if not options.k:
        patterns["k"], cache_v = recognise_cache(arrays, options.inputs)
        patterns["v"] = options.v or (None if options.key_only else cache_v)
        axes_text = axes_text or CACHE_AXES
    found = {}
    for role, pattern in patterns.items():
        if not pattern:
            continue
        own = getattr(options, f"{role}_axes")
        option = f"--{role}-axes" if own else "--axes"
        if not (own or axes_text):
            raise TraceError(f"--axes is missing, expected the axes of --{role}, e.g. '{CACHE_AXES}'")
        views = find_views(arrays, pattern, parse_axes(own or axes_text, option), f"--{role}",
                           options.prompt_id, options.layer)
        for key, view in views.items():
            found.setdefault(key, {})[role] = view
    roles = [role for role, pattern in patterns.items() if pattern]
    for (prompt, layer), views in found.items():
        absent = [role for role in roles if role not in views]
        if absent:
            have = next(iter(views.values()))
            raise TraceError(f"{have.array.where()}: prompt {prompt}, layer {layer} has no array "
                             f"for --{absent[0]}, got one for --{', --'.join(views)}")
        check_shapes(views, f"prompt {prompt}, layer {layer}", options.undo_repeat)
    check_lengths(found)
    return found


def kv_heads(views, undo_repeat):
    return views["k"].extent("head") // undo_repeat


def check_shapes(views, where, undo_repeat):
    k = views["k"]
    at = f"{k.array.where()}: {where}"
    if k.extent("head") % undo_repeat:
        raise TraceError(f"{at}: k has {k.sizes()}, expected a multiple of --undo-repeat {undo_repeat} heads")
    if "v" in views:
        v = views["v"]
        if any(k.extent(axis) != v.extent(axis) for axis in ("head", "token")):
            raise TraceError(f"{at}: k has {k.sizes()}, v has {v.sizes()}, expected as many heads "
                             "and tokens; do --axes name them rightly?")
    if "q" in views:
        q = views["q"]
        both = f"{at}: q has {q.sizes()}, k has {k.sizes()}"
        if q.extent("dim") != k.extent("dim"):
            raise TraceError(f"{both}, expected the same dim")
        if q.extent("token") > k.extent("token"):
            raise TraceError(f"{both}, expected no more queries than keys")
        if q.extent("head") % kv_heads(views, undo_repeat):
            raise TraceError(f"{both}, expected query heads to be a multiple of the KV heads")


def check_lengths(found):
    first = {}
    for (prompt, layer), views in found.items():
        n = views["k"].extent("token")
        other_layer, other_n = first.setdefault(prompt, (layer, n))
        if n != other_n:
            raise TraceError(
                f"{views['k'].array.where()}: prompt {prompt}: layer {layer} has {n} tokens and layer {other_layer} "
                f"has {other_n}, expected one length (a sliding window's cache is not the whole prompt)")
