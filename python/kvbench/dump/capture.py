"""Attention function of the running model, which writes its inputs to the trace."""

import hashlib
import sys
from dataclasses import dataclass

import numpy as np
import torch
from transformers import DynamicCache
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from kvbench.dump import check
from kvbench.dump.forward import forward
from kvbench.dump.options import kept_heads
from kvbench.dump.rope import Stop, last_wanted
from kvbench.progress import note
from kvbench.trace.writer import TraceError, array_of

ATTENTION = "kvbench_capture"
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
CHECK_ROWS = 64  # queries recomputed by --attn-check per layer and chunk
# Arguments of the attention call: those that `bounds` reads, and those that change no attention.
ARGUMENTS = {"softcap", "position_bias", "s_aux", "is_causal", "sliding_window", "position_ids",
             "cache_position", "use_cache", "output_attentions", "output_hidden_states",
             "output_router_logits"}


@dataclass
class Bounds:
    """Describes a layer's causal attention.

    window  tokens that a query sees, itself included; None: all before it
    sinks   [Hq], a logit without key and value in each head's denominator; None: none
    reason  why it is not causal attention; None: it is
    """

    window: int | None = None
    sinks: torch.Tensor | None = None
    reason: str | None = None


def register(function=None):
    """Registers the attention function ATTENTION with transformers, by default SDPA's."""
    # SDPA's mask: None if causal, otherwise a boolean that can be examined.
    ALL_MASK_ATTENTION_FUNCTIONS.register(ATTENTION, sdpa_mask)
    ALL_ATTENTION_FUNCTIONS.register(ATTENTION, function or ALL_ATTENTION_FUNCTIONS["sdpa"])


class Capture:
    """Attention function of the running model; writes its inputs while a prompt is open.

    check: {layer: Deviation} of --attn-check. skipped: {layer: reason}. Callbacks: log(text), and
    layer_done(layer, tokens) for each layer and chunk.
    """

    def __init__(self, args, model, dtype):
        self.args, self.model, self.dtype = args, model, dtype
        self.check, self.skipped, self.seen = {}, {}, set()
        self.prompt_skips = set()
        self.shared = set()  # layers that share another's cache
        self.called = set()  # layers of this run of the model
        self.digests = {}  # layer -> hash of the prompt's keys and values so far
        self.writer = self.fisher = self.rotary = self.projections = self.extra = None
        self.log, self.layer_done = note, lambda layer, tokens: None
        self.n = self.start = 0
        self.keeps_cache = False  # also while a prompt runs as a whole

    def __call__(self, module, query, key, value, attention_mask, scaling=None, dropout=0.0, **options):
        mask = attention_mask  # some models pass it by this name
        output, weights = self.attend(module, query, key, value, mask, scaling, options)
        layer = getattr(module, "layer_idx", None)
        if self.rotary is not None:
            self.rotary.observe(module, query, key)
        if self.projections is not None:
            self.projections.observe(module, output)
        if self.writer is None:
            if self.extra is not None:
                self.extra.observe(module, query, key, mask, options)
            return output, weights
        if layer is None:
            raise TraceError(f"{self.args.model}: {type(module).__name__} does not say which layer it is: unsupported")
        if layer in self.called:
            raise TraceError(f"{self.args.model}: layer {layer}: {type(module).__name__} calls its attention "
                             "more than once in a run: unsupported")
        self.called.add(layer)
        self.seen.add(layer)
        if self.wanted(layer) and layer not in self.prompt_skips:
            scale = query.shape[-1]**-0.5 if scaling is None else float(scaling)
            bounds = self.bounds(module, query, key, mask, options)
            reason = bounds.reason
            if reason is None and self.args.attn_check:
                reason = self.check_layer(layer, query, key, value, scale, output, bounds)
            if reason is None or self.allow(layer, reason):
                self.write(layer, query, key, value, scale, bounds, reason)
        self.layer_done(layer, query.shape[2])
        if self.is_last(layer):
            raise Stop
        return output, weights

    def is_last(self, layer):
        """Returns whether a run ends here: no later layer is wanted, and no norm behind this one."""
        waits = self.projections is not None and layer in self.projections.waiting
        return last_wanted(self.args.layers, layer) and not waits

    def wanted(self, layer):
        return self.args.layers is None or layer in self.args.layers

    def attend(self, module, query, key, value, mask, scaling, options):
        """Runs the model's own attention: SDPA, or the eager one where SDPA lacks a feature. Raises TraceError for
        arguments whose meaning is not known here.
        """
        unknown = sorted(name for name, given in options.items() if given is not None and name not in ARGUMENTS)
        if unknown:
            raise TraceError(f"{self.args.model}: {type(module).__name__} calls its attention with "
                             f"`{unknown[0]}`: unsupported")
        special = options.get("softcap") is not None or options.get("s_aux") is not None
        if self.model._supports_sdpa and not special:
            # Explicit, since libraries that wrap the interface (kvpress) require it.
            return ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, key, value, mask, dropout=0.0,
                                                   scaling=scaling, **options)
        eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
        if eager is None:
            raise TraceError(f"{self.args.model}: {type(module).__name__} has no eager attention: unsupported")
        if mask is None:
            mask = causal(query.shape[2], key.shape[2], query.device)[None, None]
        if mask.dtype == torch.bool:
            bias = torch.zeros(mask.shape, dtype=query.dtype, device=query.device)
            mask = bias.masked_fill(~mask, torch.finfo(query.dtype).min)
        return eager(module, query, key, value, mask, scaling=scaling, **options)

    def bounds(self, module, query, key, mask, options):
        rows, columns = query.shape[2], key.shape[2]
        for name, what in (("softcap", "soft capping of logits"), ("position_bias", "a bias by position")):
            if options.get(name) is not None:
                return Bounds(reason=f"{what} (`{name}`)")
        sinks = options.get("s_aux")
        if sinks is not None and sinks.numel() != query.shape[1]:
            return Bounds(reason=f"attention sinks (`s_aux`) of shape {tuple(sinks.shape)}, expected "
                                 f"one logit for each of the {query.shape[1]} query heads")
        is_causal = options.get("is_causal")
        # Some models (GPT-2 in transformers 4) set is_causal to False where a mask makes it causal.
        if mask is None and rows > 1 and not (getattr(module, "is_causal", True) if is_causal is None else is_causal):
            return Bounds(reason="attention to later tokens")
        window = options.get("sliding_window") or getattr(module, "sliding_window", None)
        hidden = f"a sliding window of {window} tokens" if window else "a mask other than causal"
        # A sliding cache keeps what the first of these queries sees.
        if columns != self.start + rows and not (window and columns >= rows + min(self.start, window - 1)):
            return Bounds(reason=f"{hidden}: {columns} of {self.start + rows} keys are left")
        whole = columns == self.start + rows
        if mask is None:
            if rows == 1 and not whole:
                return Bounds(window, sinks)
            return Bounds(None, sinks, None if rows in (1, columns) else "no mask for a part of the prompt")
        plain = causal(rows, columns, mask.device)
        if mask.dtype != torch.bool:
            if bool((mask.masked_select(mask > -1e4) != 0).any()):
                return Bounds(reason="a bias on the logits")
            mask = mask > -1e4
        if whole and bool((mask == plain).all()):
            return Bounds(None, sinks)
        if window and bool((mask == causal(rows, columns, mask.device, window)).all()):
            return Bounds(window, sinks)
        return Bounds(reason=hidden)

    def check_layer(self, layer, query, key, value, scale, output, bounds):
        """Recomputes attention in double for some queries; returns a reason if it deviates."""
        rows = np.unique(np.linspace(0, query.shape[2] - 1, CHECK_ROWS).astype(int))
        compute = str(query.dtype).removeprefix("torch.")
        last = torch.as_tensor(key.shape[2] - query.shape[2] + rows, device=query.device)
        found = check.compare(query[0, :, rows], key[0], value[0], scale, last,
                              output[0, rows].transpose(0, 1), compute, self.dtype,
                              bounds.window, bounds.sinks)
        self.check[layer] = self.check.get(layer, check.Deviation()).join(found)
        return check.reason(found, compute, self.dtype)

    def allow(self, layer, reason):
        """Returns whether to write an inexact layer, by --inexact; may raise TraceError."""
        text = f"{self.args.model}: layer {layer}: {reason}"
        if self.args.inexact == "refuse":
            raise TraceError(f"{text}; got {self.n} tokens, expected plain causal attention over "
                             "all of them (shorter prompts: --max-tokens; see --inexact)")
        if layer not in self.skipped:
            self.log(f"{text}; {'left out' if self.args.inexact == 'skip' else 'kept, and marked'}")
        self.skipped[layer] = reason
        if self.args.inexact == "keep":
            return True
        self.prompt_skips.add(layer)
        if self.start:
            self.writer.drop_layer(layer)  # Earlier chunks were within the window.
            self.digests.pop(layer, None)
        return False

    def write(self, layer, query, key, value, scale, bounds, reason):
        """Appends this chunk's rows of one layer."""
        args, kv_heads = self.args, key.shape[1]
        if query.shape[1] % kv_heads or value.shape[1] != kv_heads:
            raise TraceError(f"{args.model}: layer {layer}: got {query.shape[1]} query, {kv_heads} "
                             f"key and {value.shape[1]} value heads: unsupported")
        group = query.shape[1] // kv_heads
        heads = kept_heads(args, kv_heads)
        if not heads or max(args.kv_heads.named if args.kv_heads else (), default=0) >= kv_heads:
            raise TraceError(f"{args.model}: --kv-heads: got {max(args.kv_heads)}, expected 0 to "
                             f"{kv_heads - 1}, the KV heads of layer {layer}")
        q_heads = [h * group + g for h in heads for g in range(group)]
        nq = min(args.last_queries or self.n, self.n)
        if self.start == 0:
            plain = query.shape[-1]**-0.5
            self.writer.begin_layer(
                layer, len(q_heads), len(heads), nq, query.shape[3], value.shape[3],
                scale=None if abs(scale - plain) <= 1e-12 * plain else scale,
                fisher=self.fisher_of(layer),
                sink_logit=None if bounds.sinks is None
                else bounds.sinks.detach().float().flatten().cpu().numpy()[q_heads])
            if args.kv_heads is not None:
                self.writer.set_attribute(layer, "kv_head_indices", np.asarray(heads, np.int64))
            if self.projections is not None:
                self.projections.write_weight(self.writer, layer, q_heads, value.shape[3])
        if reason:
            self.writer.set_attribute(layer, "inexact", reason)
        if bounds.window is not None:  # the first chunks may lie within it
            self.writer.set_attribute(layer, "window", np.int64(bounds.window))
        end = self.start + query.shape[2]
        first = max(self.start, self.n - nq)  # first token of this chunk whose query is stored
        if first < end:
            self.put("q", layer, first - (self.n - nq), query[0, q_heads, first - self.start:])
            if self.projections is not None:
                self.projections.write_norms(self.writer, layer, first - (self.n - nq), first - self.start)
        # A sliding cache holds fewer than all earlier tokens: count from the end.
        new = key.shape[2] - query.shape[2]
        digest = self.digests.setdefault(layer, hashlib.blake2b())
        for name, rows in (("k", key), ("v", value)):
            digest.update(self.put(name, layer, self.start, rows[0, heads, new:]))

    def share_caches(self):
        """Marks layers whose keys and values are those of an earlier layer (Gemma 3n, Gemma 4)."""
        owners = {}
        for layer, digest in sorted(self.digests.items()):
            owner = owners.setdefault(digest.digest(), layer)
            if owner != layer:
                self.writer.share_cache(layer, owner)
                if layer not in self.shared:
                    self.log(f"{self.args.model}: layer {layer} shares the cache of layer {owner}")
                self.shared.add(layer)

    def fisher_of(self, layer):
        if self.fisher is None:
            return None
        if layer not in self.fisher:
            raise TraceError(f"{self.args.model}: --fisher: layer {layer}: its key and value "
                             "weights are not known here: unsupported")
        return self.fisher[layer]

    def put(self, name, layer, row, tensor):
        array = self.array(tensor)
        self.writer.write(name, 0, row, array, layer=layer)
        return array

    def array(self, tensor):
        """Converts to the trace's element type."""
        return array_of(tensor.to("cpu", DTYPES[self.dtype]).contiguous())

    def run(self, writer, ids):
        args, n = self.args, len(ids)
        step = args.chunk or n
        self.writer, self.n, self.start = writer, n, 0
        self.seen.clear()
        self.prompt_skips.clear()
        self.digests.clear()
        cache = DynamicCache(config=self.model.config) if step < n or self.keeps_cache else None
        try:
            for self.start in range(0, n, step):
                self.called.clear()
                try:
                    forward(self.model, ids[self.start:self.start + step], cache)
                except Stop:
                    pass
            self.share_caches()
        finally:
            self.writer = None
        if not self.seen:
            raise TraceError(f"{args.model}: {type(self.model).__name__} does not use "
                             "transformers' attention interface: unsupported")
        absent = [] if args.layers is None else sorted(set(args.layers.named) - self.seen)
        if absent or args.layers is not None and not self.seen & set(args.layers):
            raise TraceError(f"{args.model}: --layers: no attention layer {(absent or args.layers)[0]}, it has "
                             f"{', '.join(map(str, sorted(self.seen)))}")
        if self.seen <= self.prompt_skips:
            raise TraceError(f"{args.model}: no layer is left: none has plain causal attention")


def causal(rows, columns, device, window=None):
    """Returns bool [rows, columns]: the last `rows` tokens see themselves and earlier ones, at most `window` in all."""
    last = torch.arange(columns - rows, columns, device=device)[:, None]
    at = torch.arange(columns, device=device)[None]
    return at <= last if window is None else (at <= last) & (at > last - window)
