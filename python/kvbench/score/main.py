"""`kvbench-py score`; its command line is options.py.

The model reads each prompt up to its last tokens exactly, once. These last tokens are then decoded
over what each compression method left of the cache: what they cost the model in likelihood, how far
its predictions move, and whether it still answers the prompt's question. See docs/score.md.
"""

import copy
import logging
import os
import sys
import time

import numpy as np
import torch
import transformers
from transformers import AutoTokenizer, DynamicCache
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from kvbench.caches.reader import CacheEntry, CacheReader
from kvbench.dump.capture import ATTENTION, note
from kvbench.dump.main import load_model, model_name
from kvbench.dump.prompts import check_tokenizer, load
from kvbench.progress import Progress
from kvbench.score.attention import CompressedAttention, NewTokens
from kvbench.score.options import parse_arguments
from kvbench.score.prompts import Failed, check_model, check_prompts, read_answers, read_plan
from kvbench.score.table import Manifest, Table, key_of
from kvbench.trace.writer import TraceError

ROWS = 32  # logits are compared this many rows at a time


# --- The running model -----------------------------------------------------------------------


class Scorer:
    """One model; `begin` reads a prompt, then `score` runs its last tokens over caches."""

    def __init__(self, args, model, attention, tokenizer, reader):
        self.args, self.model, self.attention = args, model, attention
        self.tokenizer, self.queries = tokenizer, reader.queries
        self.sink, self.recent = reader.sink, reader.recent

    def begin(self, ids, layers, answer):
        """The exact run of a prompt: token ids [n], layers that caches hold, the answer or None."""
        attention, n = self.attention, len(ids)
        self.ids = torch.as_tensor(ids, device=self.model.device)[None]
        self.n, self.prefix, self.answer = n, n - self.queries, answer
        attention.n, attention.prefix, attention.wanted_layers = n, self.prefix, layers
        attention.exact, attention.caches = {}, {}
        self.cache = DynamicCache(config=self.model.config)
        step = self.args.chunk or self.prefix
        attention.seen.clear()
        attention.mode = "plain"
        for start in range(0, self.prefix, step):
            attention.start = start
            # The base model: the prefix needs no logits.
            self.model.base_model(input_ids=self.ids[:, start:min(start + step, self.prefix)],
                                  past_key_values=self.cache, use_cache=True)
        if not attention.seen:
            raise TraceError(f"{self.args.model}: {type(self.model).__name__} does not use "
                             "transformers' attention interface: unsupported")
        absent = sorted(layers - attention.seen)
        if absent:
            raise TraceError(f"caches: layer {absent[0]}: {self.args.model} has no such attention "
                             f"layer, it has {', '.join(map(str, sorted(attention.seen)))}")
        self.exact, after = self.decode("exact", self.prefix, self.ids[:, self.prefix:])
        self.exact_lse = torch.cat([self.exact[at:at + ROWS].double().logsumexp(-1)
                                    for at in range(0, self.queries, ROWS)])
        self.next_ids = self.ids[0, self.prefix + 1:]
        self.loss_exact = self.loss(self.exact, self.exact_lse)
        self.said_exact = self.say(self.exact[-1], after, "goes on")

    def decode(self, mode, start, tokens, cache=None):
        """Logits [tokens, vocabulary] of new tokens, and the cache with them.

        start: position of the first; cache: None for the prefix's, which stays as it is
        """
        if cache is None:
            cache = copy.copy(self.cache)
            cache.layers = [
                NewTokens(self.prefix, layer.is_sliding)
                if mode == "compressed" and at in self.attention.caches else copy.copy(layer)
                for at, layer in enumerate(self.cache.layers)]
        self.attention.mode, self.attention.start = mode, start
        try:
            logits = self.model(input_ids=tokens, past_key_values=cache, use_cache=True).logits[0]
        finally:
            self.attention.mode = "plain"
        return logits, cache

    def loss(self, logits, lse):
        """Mean negative log likelihood of the text's own tokens, in nats; None without any."""
        if not len(self.next_ids):
            return None
        rows = torch.arange(len(self.next_ids), device=logits.device)
        return float((lse[:-1] - logits[rows, self.next_ids].double()).mean())

    def say(self, logits, cache, mode):
        """What the model goes on with after the prompt, greedily; None where nothing is asked."""
        if self.answer is None:
            return None
        said, position, text = [], self.n, ""
        ends = self.model.generation_config.eos_token_id
        ends = set(ends if isinstance(ends, list) else [ends])
        while len(said) < self.args.answer_tokens:
            token = int(logits.argmax())
            if token in ends:
                break
            said.append(token)
            text = self.tokenizer.decode(said)
            if self.answer in text or len(said) == self.args.answer_tokens:
                break
            logits, cache = self.decode(mode, position, self.ids.new_tensor([[token]]), cache)
            logits, position = logits[-1], position + 1
        return text

    def place(self, entries):
        """Puts entries, {layer: {KV head: CacheEntry}}, into the attention's layers."""
        sink = min(self.sink, self.prefix)
        recent = max(self.n - self.recent, sink)
        room = self.queries + self.args.answer_tokens
        self.attention.caches = {layer: self.attention.buckets(layer, heads, sink, recent, room)
                                 for layer, heads in entries.items()}

    def score(self, entries):
        """{column: value} of one group's caches."""
        self.place(entries)
        logits, after = self.decode("compressed", self.prefix, self.ids[:, self.prefix:])
        kl, lse = [], []
        for at in range(0, self.queries, ROWS):
            rows = slice(at, at + ROWS)
            own, other = self.exact[rows].double(), logits[rows].double()
            lse.append(other.logsumexp(-1))
            chances = (own - self.exact_lse[rows, None]).exp()
            kl.append((chances * (own - other)).sum(-1) - self.exact_lse[rows] + lse[-1])
        kl, lse = torch.cat(kl).cpu().numpy(), torch.cat(lse)
        if not np.isfinite(kl).all():
            raise Failed("degenerate: the model's logits are not finite: sums of weights overflow "
                         "or vanish")
        # Nothing that is below zero is more than rounding.
        kl = np.maximum(kl, 0.0)
        loss = self.loss(logits, lse)
        said = self.say(logits[-1], after, "compressed")
        out = {"loss": loss, "loss_exact": self.loss_exact,
               "loss_change": None if loss is None else loss - self.loss_exact,
               "kl": float(kl.mean()), "kl_p95": float(np.percentile(kl, 95)),
               "top_agreement": float((logits.argmax(-1) == self.exact.argmax(-1)).double().mean())}
        if self.answer is not None:
            out |= {"answer_exact": self.said_exact, "answer": said,
                    "answer_expected": self.answer,
                    "answer_exact_right": int(self.answer in self.said_exact),
                    "answer_right": int(self.answer in said)}
        return out

    def self_check(self, layers):
        """Largest difference of logits, relative to their largest, over caches that hold all."""
        sink, recent = min(self.sink, self.prefix), max(self.n - self.recent, self.sink)
        entries = {}
        for layer in layers:
            keys, values = (t[:, sink:recent].float().cpu().numpy()
                            for t in self.attention.exact[layer])
            entries[layer] = {head: CacheEntry(keys[head], values[head], None, None, None, None, {})
                              for head in range(len(keys))}
        self.place(entries)
        logits, _ = self.decode("compressed", self.prefix, self.ids[:, self.prefix:])
        return float((logits - self.exact).abs().max() / self.exact.abs().max())


# --- Command line ----------------------------------------------------------------------------


def score_prompt(scorer, prompt, answer, missing, table, progress):
    """All missing groups of one prompt."""
    args, begin = scorer.args, time.monotonic()
    scorer.begin(prompt.ids, set(prompt.layers), answer)
    deviation = check_model(args, prompt, scorer.attention.exact)
    read = time.monotonic() - begin
    said = ""
    if args.self_check:
        said = f", logits over a whole cache within {scorer.self_check(prompt.layers):.1e}"
    for group in missing:
        row = {"trace": os.path.basename(prompt.trace), "prompt": prompt.name,
               "algorithm": group.algorithm, "params": group.params,
               "budget_requested": group.budget, "seed": group.seed, "layers": len(prompt.layers),
               "n_tokens": len(prompt.ids), "n_queries": scorer.queries}
        try:
            entries, degenerate = prompt.entries(group, scorer.attention.exact)
            row |= scorer.score(entries) | {"status": degenerate or "ok"}
        except Failed as failed:
            row["status"] = str(failed)
        table.write(row)
        progress.step(1, f"{progress.done + 1}/{progress.total} rows  {prompt.name} {group}")
    layers = len(scorer.attention.seen)
    progress.say(f"{prompt.name}: {len(missing)} rows in {time.monotonic() - begin:.0f} s "
                 f"({read:.0f} s to read the prompt); {len(prompt.layers)} of {layers} layers "
                 f"replaced; keys within {deviation:.1e} of the trace's{said}")


def main():
    args = parse_arguments()
    args.dtype, args.name = args.compute_dtype, None  # What load_model and model_name look at.
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    logging.disable(logging.WARNING)
    ALL_MASK_ATTENTION_FUNCTIONS.register(ATTENTION, sdpa_mask)
    ALL_ATTENTION_FUNCTIONS.register(ATTENTION, ALL_ATTENTION_FUNCTIONS["sdpa"])
    with CacheReader(args.caches) as reader:
        if reader.protocol != "prefill":
            raise TraceError(f"{', '.join(args.caches)}: protocol: got {reader.protocol}, expected "
                             "prefill: the model decodes over caches of a prompt's end")
        prompts, answers = read_plan(args, reader), read_answers(args)
        model, dtype, _ = load_model(args)
        check_prompts(args, model, prompts, reader)
        tokenizer = None
        if any(prompt.name in answers for prompt in prompts):
            check_tokenizer(args)
            tokenizer = load(AutoTokenizer.from_pretrained, "tokenizer", args)
        attention = CompressedAttention(args, model, dtype)
        ALL_ATTENTION_FUNCTIONS.register(ATTENTION, attention)
        scorer = Scorer(args, model, attention, tokenizer, reader)
        settings = {"model": model_name(args, model.config), "compute_dtype": args.compute_dtype,
                    "answer_tokens": args.answer_tokens, "sink": reader.sink,
                    "recent": reader.recent, "queries": reader.queries}
        manifest = Manifest(args, settings, {
            "torch": torch.__version__, "transformers": transformers.__version__,
            "device": args.device, "threads": torch.get_num_threads()})
        with Table(args.output, args.resume, args.overwrite) as table, torch.inference_mode():
            manifest.write()
            plan = [(prompt, [group for group in prompt.groups if key_of(
                os.path.basename(prompt.trace), prompt.name, group) not in table.done])
                for prompt in prompts]
            progress = Progress(sum(len(missing) for _, missing in plan))
            try:
                for prompt, missing in plan:
                    if missing:
                        score_prompt(scorer, prompt, answers.get(prompt.name), missing, table,
                                     progress)
            except torch.OutOfMemoryError:
                raise MemoryError from None
            except RuntimeError as error:
                raise OSError(f"{args.model}: {str(error).splitlines()[0]}") from None
        manifest.write(rows=progress.done, failed=table.failed)
    if table.failed:
        note(f"kvbench-py score: {table.failed} rows failed: {args.output}")
        return 1
