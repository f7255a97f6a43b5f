"""Selects and checks the prompts of kvbench-py score."""

import os

import numpy as np

from kvbench.dump.rope import rope_types
from kvbench.hashing import file_sha256
from kvbench.progress import note
from kvbench.trace.heads import open_trace, read_head
from kvbench.trace.values import read_values
from kvbench.trace.writer import TraceError

# Largest relative difference between a trace's keys and the model's due to rounding, another dump
# type or another device.
SAME_MODEL = {"float32": 1e-2, "float16": 5e-2, "bfloat16": 1e-1}


class Failed(Exception):
    """A row without figures; `status` has the reason."""


class TracePrompt:
    """One prompt of a trace: its token ids [n], and per layer the model's index of each KV head."""

    def __init__(self, trace, name, group):
        self.trace, self.name, self.where = trace, name, f"{trace}: prompts/{name}"
        if "token_ids" not in group:
            raise TraceError(f"{self.where}: token_ids: got none, expected the prompt's "
                             "tokens: dump the trace with kvbench-py dump")
        self.ids = read_values(group["token_ids"]).astype(np.int64)
        self.heads = {}
        for layer, part in group["layers"].items():
            own = np.arange(part["k"].shape[0])
            self.heads[int(layer)] = [int(h) for h in part.attrs.get("kv_head_indices", own)]

    def check_tokens(self, args, model):
        """Raises TraceError unless the model can read the tokens."""
        limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        vocabulary = model.get_input_embeddings().num_embeddings
        if limit and len(self.ids) > limit:
            raise TraceError(f"{self.where}: {len(self.ids)} tokens, the model is made for {limit}")
        if self.ids.min() < 0 or self.ids.max() >= vocabulary:
            raise TraceError(f"{self.where}: token id {self.ids.max()}, expected 0 to "
                             f"{vocabulary - 1}: not this model's tokens")

    def check_keys(self, args, layer, own, place, why=None):
        """Returns the relative deviation of the model's keys `own`, of the layer's first KV head, from the trace's
        at `place`, a slice. Raises TraceError if it is too large. why(deviate, limit): a reason; deviate: of slices
        """
        head = read_head(self.trace, self.name, layer, 0, with_q=False)
        own, there = own[self.heads[layer][0]].float().cpu().numpy(), head.k[place]
        if own.shape != there.shape:
            raise TraceError(f"{self.where}/layers/{layer}/k: got shape {head.k.shape}, the model {args.model} has "
                             f"{own.shape}: not the model of the trace")

        def deviation(some=slice(None)):
            return float(np.linalg.norm(own[some] - there[some]) / np.linalg.norm(there[some]))

        limit, found = max(SAME_MODEL[head.dtype], SAME_MODEL[args.compute_dtype]), deviation()
        if not found <= limit:
            raise TraceError(f"{self.where}/layers/{layer}/k: the keys of {args.model} differ from the trace's by "
                             f"{found:.2g} (relative), expected at most {limit:g}: "
                             + (why and why(deviation, limit) or "not the model of the trace"))
        return found


class Prompt(TracePrompt):
    """One prompt of a trace, and its entries in the caches. layers: of --layers, None for all"""

    def __init__(self, trace, name, group, groups, layers=None):
        super().__init__(trace, name, group)
        self.groups = groups
        # If any group has an entry, all must.
        self.held = sorted({place for one in groups for place in one.heads(name)})
        if layers is not None:
            there = {layer for layer, _ in self.held}
            absent = sorted(set(layers.named) - there)
            self.held = [place for place in self.held if place[0] in layers]
            if absent or not self.held:
                raise TraceError(f"--layers: no layer {(absent or layers)[0]} in the caches of {self.where}, they have "
                                 f"{', '.join(map(str, sorted(there)))}")
        self.layers = sorted({layer for layer, _ in self.held})
        for layer in self.layers:
            if layer not in self.heads:
                raise TraceError(f"{self.where}/layers/{layer}: not in the trace, but in the caches")

    def entries(self, group, attention, layers=None):
        """Returns {layer: {the model's KV head: CacheEntry}} of a group, and text on degenerate ones.

        attention: the CompressedAttention, whose keys and values have the widths of entries; layers: default all
        """
        out, degenerate = {layer: {} for layer in layers or self.layers}, None
        for layer, head in self.held:
            if layer not in out:
                continue
            where = f"layer {layer}, KV head {head}"
            keys, values = attention.exact[layer]
            if head >= len(self.heads[layer]):
                raise Failed(f"failed: {where}: the trace has {len(self.heads[layer])} KV heads")
            try:
                entry = group.read(self.name, layer, head, (keys.shape[2], values.shape[2]))
            except TraceError as error:
                raise Failed(f"failed: {error}") from None
            if entry is None:
                raise Failed(f"failed: {where}: no entry, but other groups have one")
            for word, reason in (("infeasible", entry.infeasible), ("failed", entry.failed)):
                if reason is not None:
                    raise Failed(f"{word}: {where}: {reason}")
            if layer in attention.windows:
                entry.token = positions_of(entry, attention.middle(layer), where)
            if entry.degenerate is not None and degenerate is None:
                degenerate = f"degenerate: {where}: {entry.degenerate}"
            out[layer][self.heads[layer][head]] = entry
        return out, degenerate


def positions_of(entry, middle, where):
    """Returns int64 [B]: the position of each token of an entry in a layer with a window, which hides tokens by
    position. Quantised tokens have none in the file: they are all of the middle's that are not held exactly,
    or those of `counted`. Raises Failed for other entries.
    """
    if entry.k_den is not None:
        raise Failed(f"failed: {where}: k_den: got keys without positions, which the layer's window cannot hide")
    token = np.full(len(entry.k), -1) if entry.token is None else entry.token.copy()
    made = token < 0
    coded = np.setdiff1d(middle, token) if len(token) == len(middle) else entry.counted
    if made.any():
        if coded is None or not len(coded) == made.sum() == entry.attributes.get("quantised", 0):
            raise Failed(f"failed: {where}: token: got {made.sum()} made entries, which the layer's window cannot hide")
        token[made] = coded
    return token


def find_prompts(args):
    """Returns [(trace, prompt)] in the traces' order. Raises TraceError for a duplicate prompt."""
    out, seen = [], {}
    for path in args.trace:
        with open_trace(path) as file:
            for name in file["prompts"]:
                if name in seen:
                    raise TraceError(f"{path}: prompts/{name}: is also in {seen[name]}")
                seen[name] = path
                if args.prompts is None or name in args.prompts:
                    out.append((path, name))
    absent = sorted(set(args.prompts or ()) - {*seen})
    if absent:
        raise TraceError(f"--prompts: no prompt {absent[0]} in the traces, they have {', '.join(sorted(seen))}")
    return out


def read_plan(args, reader):
    """Returns [Prompt] held by the caches, in the traces' order."""
    groups = [group for group in reader.groups if not args.algorithm or group.algorithm in args.algorithm]
    absent = sorted(set(args.algorithm) - {group.algorithm for group in groups})
    if absent:
        raise TraceError(f"--algorithm: no group of {absent[0]}, the caches have "
                         f"{', '.join(sorted({group.algorithm for group in reader.groups}))}")
    held = {prompt for group in groups for prompt in group.prompts()}
    out, seen = [], set()
    for path in args.trace:
        got = file_sha256(path) if os.path.exists(path) else None
        with open_trace(path) as file:
            if got not in reader.traces:
                sums = ", ".join(one[:12] + "..." for one in sorted(reader.traces))
                raise TraceError(f"{path}: SHA-256: got {got[:12]}..., expected one of those that "
                                 f"the caches were made from, {sums}")
            for name, group in file["prompts"].items():
                if name not in held or (args.prompts is not None and name not in args.prompts):
                    continue
                if name in seen:
                    raise TraceError(f"{path}: prompts/{name}: is in two traces")
                seen.add(name)
                out.append(Prompt(path, name, group, groups, args.layers))
    absent = sorted(set(args.prompts or held) - seen)
    if absent and args.prompts is not None:
        raise TraceError(f"--prompts: no prompt {absent[0]} in traces and caches, they have {', '.join(sorted(held))}")
    if absent and out:
        note(f"note: {len(absent)} prompts of the caches are in none of the traces: {', '.join(absent)}")
    if not out:
        raise TraceError(f"{', '.join(args.trace)}: got no prompt that the caches hold, expected at least one")
    return out


def check_prompts(args, model, prompts, queries):
    """Rejects prompts that the model cannot process. queries: of the caches"""
    config = model.config.get_text_config()
    ropes = rope_types(config)
    if ropes & {"longrope", "dynamic"}:
        raise TraceError(f"{args.model}: its rotation depends on the prompt's length "
                         f"({', '.join(sorted(ropes))}): the prefix alone would rotate differently")
    for prompt in prompts:
        if len(prompt.ids) <= queries:
            raise TraceError(f"{prompt.where}: got {len(prompt.ids)} tokens, expected more than the {queries} "
                             "queries of the caches")
        prompt.check_tokens(args, model)


def check_model(args, prompt, exact, prefix):
    """Returns the largest deviation of the model's keys from the trace's. Raises TraceError if too large. prefix:
    tokens that the model has read first
    """
    worst = 0.0
    for layer in {prompt.layers[0], prompt.layers[-1]}:
        own = exact[layer][0]
        first = prefix - (len(prompt.ids) - own.shape[1])

        def why(deviation, limit, first=first):
            if first > 0 and deviation(slice(first)) <= limit:
                return (f"only those behind token {prefix}: the model does not go on from a prefix as it reads a "
                        "whole prompt, unsupported")
            return None

        worst = max(worst, prompt.check_keys(args, layer, own, slice(-own.shape[1], None), why))
    return worst
