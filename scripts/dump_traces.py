#!/usr/bin/env python3
"""Dumps queries, keys and values of a Hugging Face causal language model as a kvbench trace.

The model runs with an attention function of ours, registered in transformers' attention interface:
it sees what every architecture hands to its attention (queries and keys after rotation, keys and
values before they are repeated over a group), writes it, and returns the model's own attention.
Layers whose attention is not exp(s <k, q>) over all earlier tokens are refused. See docs/dump.md.
"""

import logging
import os
import sys

try:
    import h5py  # noqa: F401  (checked here, so that one line says all that is missing)
    import numpy as np
    import torch
    import transformers
    from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
except ImportError as error:
    print(f"dump_traces.py: {sys.executable} cannot import {error.name}: expected torch, "
          "transformers 4.56 or newer, h5py and numpy, as in build/dump-venv of `make test-dump`",
          file=sys.stderr)
    sys.exit(2)

from dump_fisher import fisher_information
from dump_o_proj import OutputProjections
from dump_options import parse_arguments
from dump_prompts import load, read_prompts
from dump_rope import RotaryTables, Stop, rope_types
from kvbench_trace import TraceError, TraceWriter, run_main

ATTENTION = "kvbench_capture"
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
# Largest relative deviation of --attn-check that rounding explains, per type: the model rounds
# logits and probabilities to it, and logits of some tens cost that many units of the last place.
CHECK_LIMIT = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
# The default protocol: how many queries `kvbench replay` evaluates, and the most that a method's
# definition asks for before these (attention-matching's ref_queries; snapkv's window is 32).
DEFAULT_QUERIES = FEW_QUERIES = 256
CHECK_ROWS = 64  # queries that --attn-check recomputes per layer and chunk


# --- The model -------------------------------------------------------------------------------


def load_model(args):
    """The model in evaluation mode on its device, the cache's dtype by name, and who chose it."""
    if os.path.isabs(args.model) or args.model.startswith("."):
        if not os.path.isdir(args.model):
            raise TraceError(f"{args.model}: no such folder")
    dtype, chosen = args.dtype, "--dtype"
    if dtype is None:
        chosen = "the model's configuration"
        config = load(AutoConfig.from_pretrained, "configuration", args).get_text_config()
        dtype = str(getattr(config, "dtype", None)).removeprefix("torch.")
        if dtype not in DTYPES:
            raise TraceError(f"{args.model}: its configuration says dtype {dtype}; expected "
                             f"--dtype {', '.join(DTYPES)}")
    # Not `model.to(dtype)` later: that would round the rotation's frequencies as well.
    model = load(AutoModelForCausalLM.from_pretrained, "model", args,
                 dtype=DTYPES[args.compute_dtype or dtype], attn_implementation=ATTENTION)
    try:
        model = model.to(args.device)
    except (RuntimeError, AssertionError) as error:
        raise OSError(f"--device {args.device}: {str(error).splitlines()[0]}") from None
    return model.eval().requires_grad_(False), dtype, chosen


def model_name(args, config):
    """Model id and commit hash; for a folder its name, without the host's path."""
    commit = getattr(config, "_commit_hash", None)
    folder = os.path.isdir(args.model)
    name = os.path.basename(os.path.abspath(args.model)) if folder else args.model
    revision = commit or args.revision
    return args.name or (f"{name} @ {revision}" if revision else name)


# --- Capture ---------------------------------------------------------------------------------


class Capture:
    """The attention function of the running model; writes what it sees while a prompt is open.

    check: {layer: largest relative deviation} of --attn-check; skipped: {layer: reason}.
    """

    def __init__(self, args, model, dtype):
        self.args, self.model, self.dtype = args, model, dtype
        self.check, self.skipped, self.seen = {}, {}, set()
        self.prompt_skips = set()
        self.writer = self.fisher = self.rotary = self.projections = None
        self.n = self.start = 0

    def __call__(self, module, query, key, value, mask, scaling=None, dropout=0.0, **options):
        output, weights = self.attend(module, query, key, value, mask, scaling, options)
        layer = getattr(module, "layer_idx", None)
        if self.rotary is not None:
            self.rotary.saw(module, query, key)
        if self.projections is not None:
            self.projections.saw(module, output)
        if self.writer is None:
            return output, weights
        if layer is None:
            raise TraceError(f"{self.args.model}: {type(module).__name__} does not say which "
                             "layer it is: unsupported")
        self.seen.add(layer)
        if self.wanted(layer) and layer not in self.prompt_skips:
            scale = query.shape[-1]**-0.5 if scaling is None else float(scaling)
            reason = self.inexact(module, query, key, mask, options)
            if reason is None and self.args.attn_check:
                reason = self.check_layer(layer, query, key, value, scale, output)
            if reason is None or self.allow(layer, reason):
                self.write(layer, query, key, value, scale, reason)
        if self.args.layers is not None and layer >= max(self.args.layers):
            raise Stop
        return output, weights

    def wanted(self, layer):
        return self.args.layers is None or layer in self.args.layers

    def attend(self, module, query, key, value, mask, scaling, options):
        """The model's own attention: SDPA, or for what SDPA has not, the architecture's eager."""
        special = options.get("softcap") is not None or options.get("s_aux") is not None
        if self.model._supports_sdpa and not special:
            # No dropout, said aloud: libraries that wrap the interface (kvpress) insist on it.
            return ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, key, value, mask, dropout=0.0,
                                                   scaling=scaling, **options)
        eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
        if eager is None:
            raise TraceError(f"{self.args.model}: {type(module).__name__} has no eager attention: "
                             "unsupported")
        if mask is None:
            mask = causal(query.shape[2], key.shape[2], query.device)[None, None]
        if mask.dtype == torch.bool:
            bias = torch.zeros(mask.shape, dtype=query.dtype, device=query.device)
            mask = bias.masked_fill(~mask, torch.finfo(query.dtype).min)
        return eager(module, query, key, value, mask, scaling=scaling, **options)

    def inexact(self, module, query, key, mask, options):
        """Why plain causal attention is not what this layer computes here; None if it is."""
        rows, columns = query.shape[2], key.shape[2]
        for name, what in (("softcap", "soft capping of logits"), ("s_aux", "an attention sink"),
                           ("position_bias", "a bias by position")):
            if options.get(name) is not None:
                return f"{what} (`{name}`)"
        is_causal = options.get("is_causal")
        if not (getattr(module, "is_causal", True) if is_causal is None else is_causal):
            return "attention to later tokens"
        window = options.get("sliding_window") or getattr(module, "sliding_window", None)
        hidden = f"a sliding window of {window} tokens" if window else "a mask other than causal"
        if columns != self.start + rows:
            return f"{hidden}: {columns} of {self.start + rows} keys are left"
        if mask is None:
            return None if rows in (1, columns) else "no mask for a part of the prompt"
        plain = causal(rows, columns, mask.device)
        if mask.dtype != torch.bool:
            if bool((mask.masked_select(plain) != 0).any()):
                return "a bias on the logits"
            mask = mask > -1e4
        return None if bool((mask == plain).all()) else hidden

    def check_layer(self, layer, query, key, value, scale, output):
        """Attention recomputed in double from the values to be stored; a reason if it is off."""
        dtype = DTYPES[self.dtype]
        rows = np.unique(np.linspace(0, query.shape[2] - 1, CHECK_ROWS).astype(int))
        q = query[0, :, rows].to(dtype).double()
        group = query.shape[1] // key.shape[1]
        worst = 0.0
        last = torch.as_tensor(self.start + rows, device=q.device)[:, None]
        later = torch.arange(key.shape[2], device=q.device)[None] > last
        for head in range(query.shape[1]):
            k, v = (t[0, head // group].to(dtype).double() for t in (key, value))
            logits = (q[head] @ k.T * scale).masked_fill(later, -torch.inf)
            exact = logits.softmax(-1) @ v
            own = output[0, rows, head].double()
            deviation = float((exact - own).norm() / own.norm())
            # A NaN must win, as `max` would hide it.
            worst = deviation if not deviation <= worst else worst
        self.check[layer] = max(self.check.get(layer, 0.0), worst)
        compute = str(query.dtype).removeprefix("torch.")
        limit = max(CHECK_LIMIT[self.dtype], CHECK_LIMIT[compute])
        if worst <= limit:
            return None
        return f"attention that deviates from exact attention by {worst:.2g}, limit {limit:g}"

    def allow(self, layer, reason):
        """Whether an inexact layer is written; says so, or refuses it as --inexact has it."""
        text = f"{self.args.model}: layer {layer}: {reason}"
        if self.args.inexact == "refuse":
            raise TraceError(f"{text}; got {self.n} tokens, expected plain causal attention over "
                             "all of them (shorter prompts: --max-tokens; see --inexact)")
        if layer not in self.skipped:
            note(f"{text}; {'left out' if self.args.inexact == 'skip' else 'kept, and marked'}")
        self.skipped[layer] = reason
        if self.args.inexact == "keep":
            return True
        self.prompt_skips.add(layer)
        if self.start:
            self.writer.drop_layer(layer)  # Earlier chunks were within the window.
        return False

    def write(self, layer, query, key, value, scale, reason):
        """Appends this chunk's rows of one layer."""
        args, kv_heads = self.args, key.shape[1]
        if query.shape[1] % kv_heads or value.shape[1] != kv_heads:
            raise TraceError(f"{args.model}: layer {layer}: got {query.shape[1]} query, {kv_heads} "
                             f"key and {value.shape[1]} value heads: unsupported")
        group = query.shape[1] // kv_heads
        heads = list(range(kv_heads)) if args.heads is None else args.heads
        if max(heads) >= kv_heads:
            raise TraceError(f"{args.model}: --heads: got {max(heads)}, expected 0 to "
                             f"{kv_heads - 1}, the KV heads of layer {layer}")
        q_heads = [h * group + g for h in heads for g in range(group)]
        nq = min(args.last_queries or self.n, self.n)
        if self.start == 0:
            plain = query.shape[-1]**-0.5
            self.writer.begin_layer(
                layer, len(q_heads), len(heads), nq, query.shape[3], value.shape[3],
                scale=None if abs(scale - plain) <= 1e-12 * plain else scale,
                fisher=self.fisher_of(layer))
            if args.heads is not None:
                self.writer.set_attribute(layer, "kv_head_indices", np.asarray(heads, np.int64))
            if self.projections is not None:
                self.projections.write_weight(self.writer, layer, q_heads, value.shape[3])
        if reason:
            self.writer.set_attribute(layer, "inexact", reason)
        end = self.start + query.shape[2]
        first = max(self.start, self.n - nq)  # The first token of this chunk whose query is stored.
        if first < end:
            self.put("q", layer, first - (self.n - nq), query[0, q_heads, first - self.start:])
            if self.projections is not None:
                self.projections.write_norms(self.writer, layer, first - (self.n - nq),
                                             first - self.start)
        # A sliding cache holds fewer than all earlier tokens: count from the end.
        new = key.shape[2] - query.shape[2]
        self.put("k", layer, self.start, key[0, heads, new:])
        self.put("v", layer, self.start, value[0, heads, new:])

    def fisher_of(self, layer):
        if self.fisher is None:
            return None
        if layer not in self.fisher:
            raise TraceError(f"{self.args.model}: --fisher: layer {layer}: its key and value "
                             "weights are not known here: unsupported")
        return self.fisher[layer]

    def put(self, name, layer, row, tensor):
        tensor = tensor.detach().to("cpu", DTYPES[self.dtype]).contiguous()
        if self.dtype == "bfloat16":
            array = tensor.view(torch.int16).numpy().view(np.uint16)
        else:
            array = tensor.numpy()
        self.writer.write(name, 0, row, array, layer=layer)

    def run(self, writer, ids):
        """One prompt through the model, in chunks if so asked."""
        args, n = self.args, len(ids)
        step = args.chunk or n
        self.writer, self.n, self.start = writer, n, 0
        self.seen.clear()
        self.prompt_skips.clear()
        cache = DynamicCache(config=self.model.config) if step < n else None
        tokens = torch.as_tensor(ids, device=self.model.device)[None]
        try:
            with torch.inference_mode():
                for self.start in range(0, n, step):
                    try:
                        # The base model: logits of a long prompt would outweigh its cache.
                        self.model.base_model(
                            input_ids=tokens[:, self.start:self.start + step],
                            past_key_values=cache, use_cache=cache is not None)
                    except Stop:
                        pass
        finally:
            self.writer = None
        if not self.seen:
            raise TraceError(f"{args.model}: {type(self.model).__name__} does not use "
                             "transformers' attention interface: unsupported")
        absent = sorted(set(args.layers or ()) - self.seen)
        if absent:
            raise TraceError(f"{args.model}: --layers: no attention layer {absent[0]}, it has "
                             f"{', '.join(map(str, sorted(self.seen)))}")
        if self.seen <= self.prompt_skips:
            raise TraceError(f"{args.model}: no layer is left: none has plain causal attention")


def causal(rows, columns, device):
    """bool [rows, columns]: the last `rows` tokens see themselves and what is before them."""
    last = torch.arange(columns - rows, columns, device=device)
    return torch.arange(columns, device=device)[None] <= last[:, None]


# --- Command line ----------------------------------------------------------------------------


def note(text):
    print(text, file=sys.stderr)


def say_dtype(dtype, chosen):
    """Which element type the trace has, and what that means where it is not what caches have."""
    text = f"dtype {dtype} ({chosen})"
    if dtype == "float32":
        text += (": twice the bytes of float16 and bfloat16, in which models are served; byte "
                 "budgets and the trace's size follow it. --dtype float16 or bfloat16 says what "
                 "is served")
    note(text)


def say_scoring_queries(prompts, args):
    """Warns of a trace whose queries are all, or nearly all, evaluated: none is left to score."""
    short = [text_id for _, text_id, ids in prompts if args.last_queries < len(ids)]
    left = args.last_queries - DEFAULT_QUERIES
    if not short or left >= FEW_QUERIES:
        return
    what = (f"warning: --last-queries {args.last_queries}: kvbench evaluates the last "
            f"{DEFAULT_QUERIES} queries by default, and methods that look at queries score tokens "
            "with those before them (`--scores past`)")
    if left <= 0:
        what += ("; none is left, so rows of snapkv, h2o, expected-attention and the like will be "
                 "`degenerate: no scoring queries`")
    else:
        what += (f"; {left} are left, fewer than some methods ask for, so snapkv, h2o, "
                 "expected-attention and the like choose worse than they would")
    note(f"{what}. Dump all queries (no --last-queries), or at least "
         f"{DEFAULT_QUERIES + FEW_QUERIES}; or replay with fewer `--queries`")


def check_lengths(prompts, config, args, ropes):
    """Refuses prompts that the model or --chunk cannot serve, before anything is computed."""
    limit = getattr(config, "max_position_embeddings", None)
    for _, text_id, ids in prompts:
        if limit and len(ids) > limit:
            text = f"{text_id}: {len(ids)} tokens, the model is made for {limit}"
            if not ropes:
                raise TraceError(f"{text}; see --max-tokens")
            note(f"note: {text}")
        if args.chunk and args.chunk < len(ids) and ropes & {"longrope", "dynamic"}:
            raise TraceError(f"--chunk: {args.model}: its rotation depends on the prompt's length "
                             f"({', '.join(sorted(ropes))}); expected a run without --chunk")


def main():
    args = parse_arguments(__doc__.split("\n\n")[0])
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    logging.disable(logging.WARNING)
    # The mask that SDPA takes: none when it is the causal one, else a boolean that can be examined.
    ALL_MASK_ATTENTION_FUNCTIONS.register(ATTENTION, sdpa_mask)
    ALL_ATTENTION_FUNCTIONS.register(ATTENTION, ALL_ATTENTION_FUNCTIONS["sdpa"])
    model, dtype, chosen = load_model(args)
    config = model.config.get_text_config()
    ropes = rope_types(config)
    prompts = read_prompts(args, model.get_input_embeddings().num_embeddings)
    check_lengths(prompts, config, args, ropes)
    capture = Capture(args, model, dtype)
    capture.rotary = rotary = RotaryTables(model, args.layers,
                                           max(len(ids) for *_, ids in prompts))
    ALL_ATTENTION_FUNCTIONS.register(ATTENTION, capture)
    files = args.prompts or [args.token_ids]
    source = args.source or ", ".join(os.path.basename(path) for path in files)
    try:
        rotary.find(prompts[0][2])
        if args.o_proj:
            capture.projections = OutputProjections(model, args, dtype)
            capture.projections.find(prompts[0][2])
        rotates = bool(ropes) or rotary.reason is None
        with TraceWriter(args.output, model_name(args, model.config), source,
                         created=args.created, dtype=dtype,
                         rope="post" if rotates else "none", gzip=args.gzip) as writer:
            say_dtype(dtype, chosen)
            if args.last_queries:
                say_scoring_queries(prompts, args)
            if args.fisher:
                capture.fisher = fisher_information(model, prompts, args)
            for name, text_id, ids in prompts:
                writer.begin_prompt(name, len(ids), ids, text_id)
                rotary.prompt_begins(capture)
                capture.run(writer, ids)
                rotary.prompt_ends(name)
                if capture.projections is not None:
                    capture.projections.prompt_ends(name)
                layers = len(capture.seen - capture.prompt_skips)
                note(f"{name}: {len(ids)} tokens, {layers} layers")
            if capture.projections is not None:
                note(f"output projections: {capture.projections.said()}")
            if rotary.reason is None:
                note(f"rotary tables: {rotary.write(writer)}")
            elif rotates:
                note(f"warning: {args.model}: the trace gets no rotary tables (/rope): "
                     f"{rotary.reason}; methods that turn keys and queries back "
                     "(expected-attention) do without, or say that they cannot")
    except torch.OutOfMemoryError:
        raise MemoryError from None
    except RuntimeError as error:  # What torch raises for devices and for kernels that it lacks.
        raise OSError(f"{args.model}: {str(error).splitlines()[0]}") from None
    for layer, deviation in sorted(capture.check.items()):
        note(f"layer {layer}: largest relative deviation from exact attention {deviation:.2e}")


if __name__ == "__main__":
    run_main(main)
