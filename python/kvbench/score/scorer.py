"""A model that decodes a prompt's last tokens over compressed caches, for kvbench-py score."""

import copy
import os

import numpy as np
import torch
from transformers import DynamicCache

from kvbench.dump.forward import cache_argument
from kvbench.score.prompts import Failed, check_model, check_prompts
from kvbench.score.states import copy_layer, keys_only, new_tokens
from kvbench.trace.writer import TraceError

ROWS = 32  # rows of logits compared at a time
LOGITS_BYTES = 1 << 29  # logits of the caches decoded together
CHECK_TOKENS = 16  # decoded by the short self-check
# Largest KL over a cache that holds everything, by the model's type, to which its attention is rounded and ours is
# not: SmolLM2-135M has 3e-12, 1e-5 and 9e-4.
SELF_CHECK = {"float32": 1e-6, "float16": 2e-3, "bfloat16": 5e-2}


def dot(a, b):
    """Returns [n]: products of rows of [n, m], without a temporary array."""
    return torch.bmm(a[:, None], b[:, :, None])[:, 0, 0]


class Scorer:
    """One model; `begin` reads a prompt, then `score` runs its last tokens over caches."""

    def __init__(self, args, model, attention, tokenizer, reader, endless=False):
        """endless: any number of tokens follows the prompt"""
        self.args, self.model, self.attention, self.endless = args, model, attention, endless
        self.tokenizer, self.queries = tokenizer, reader.queries
        self.sink, self.recent = reader.sink, reader.recent

    def read_prompt(self, prompt, question=None):
        """Runs a Prompt exactly, and checks that the model is that of its trace, and can be scored. Returns the keys'
        deviation, and the KL over a whole cache.
        """
        check_prompts(self.args, self.model, [prompt], self.queries)
        self.begin(prompt.ids, set(prompt.layers), question)
        deviation = check_model(self.args, prompt, self.attention.exact, self.prefix)
        return deviation, self.self_check(prompt.layers, self.args.self_check)

    def begin(self, ids, layers, question):
        """Runs a prompt exactly: token ids [n], layers of the caches, the Question or None."""
        attention, n = self.attention, len(ids)
        self.ids = torch.as_tensor(ids, device=self.model.device)[None]
        self.n, self.prefix, self.question = n, n - self.queries, question
        longest = len(question.tokens[0]) if question else 0
        self.capacity = self.queries + max(self.args.answer_tokens if question else 0, longest)
        attention.n, attention.prefix, attention.wanted_layers = n, self.prefix, layers
        attention.sink, attention.recent = self.sink, self.recent
        attention.exact, attention.caches = {}, []
        self.cache = DynamicCache(config=self.model.config)
        attention.windows = {
            at: layer.sliding_window for at, layer in enumerate(self.cache.layers)
            if getattr(layer, "is_sliding", False)
            and (self.endless or layer.sliding_window < self.prefix + self.capacity)}
        step = self.args.chunk or self.prefix
        attention.seen.clear()
        attention.mode = "plain"
        for start in range(0, self.prefix, step):
            attention.start = start
            self.read(self.ids[:, start:min(start + step, self.prefix)])
        if not attention.seen:
            raise TraceError(f"{self.args.model}: {type(self.model).__name__} does not use "
                             "transformers' attention interface: unsupported")
        absent = sorted(layers - attention.seen)
        if absent:
            raise TraceError(f"caches: layer {absent[0]}: {self.args.model} has no such attention "
                             f"layer, it has {', '.join(map(str, sorted(attention.seen)))}")
        logits, after = self.decode("exact", self.prefix, self.ids[:, self.prefix:])
        self.exact, self.next_ids = logits[0], self.ids[0, self.prefix + 1:]
        # Reference of each group's logits: in double, once.
        lse, chances, own = [], [], []
        for at in range(0, self.queries, ROWS):
            rows = self.exact[at:at + ROWS].double()
            lse.append(rows.logsumexp(-1))
            chances.append((rows - lse[-1][:, None]).exp())
            own.append(dot(chances[-1], rows))
        self.exact_lse, self.chances = torch.cat(lse), torch.cat(chances)
        self.neg_entropy = torch.cat(own) - self.exact_lse
        self.exact_top = self.exact.argmax(-1)
        self.loss_exact = self.loss(self.exact, self.exact_lse)
        self.nats_exact, = self.answer_nlls(logits[:, -1], after, "continued")
        self.said_exact, = self.continuations(logits[:, -1], after, "continued")

    def read(self, tokens):
        """Reads tokens of the prefix, with the base model, since they need no logits."""
        model = self.model.base_model
        try:
            model(input_ids=tokens, use_cache=True, **{cache_argument(model): self.cache})
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise TraceError(f"{self.args.model}: {type(self.model).__name__} does not run with transformers' "
                             f"DynamicCache: {error}: unsupported") from error

    def decode(self, mode, start, tokens, cache=None):
        """Returns logits [batch, tokens, vocabulary] of new tokens [batch, tokens] from position `start` on, and the
        extended cache. cache: None for a copy of the prefix's
        """
        if cache is None:
            cache = copy.copy(self.cache)
            cache.layers = self.layers(
                (lambda layer, prefix, _: new_tokens(layer, prefix)) if mode == "compressed" else None)
        self.attention.mode, self.attention.start = mode, start
        try:
            logits = self.model(input_ids=tokens, use_cache=True, **{cache_argument(self.model): cache}).logits
        finally:
            self.attention.mode = "plain"
        return logits, cache

    def layers(self, replace=None):
        """Returns copies of the prefix's layers. replace(layer, prefix, index): those that attend to caches."""
        return [replace(layer, self.prefix, at) if replace and at in self.attention.replaced else copy_layer(layer)
                for at, layer in enumerate(self.cache.layers)]

    def loss(self, logits, lse):
        """Returns the mean negative log likelihood of the text's own tokens, in nats; None without any."""
        if not len(self.next_ids):
            return None
        rows = torch.arange(len(self.next_ids), device=logits.device)
        return float((lse[:-1] - logits[rows, self.next_ids].double()).mean())

    def answer_nlls(self, logits, cache, mode):
        """Returns negative log likelihoods of the right answer and each wrong one, in nats: an array for each of
        logits [batch, vocabulary], None without a question. Does not change `cache`.
        """
        if self.question is None:
            return [None] * len(logits)
        out = []
        # Sequential: together they would copy the cache several times.
        for answer in torch.tensor(self.question.tokens, device=logits.device):
            rows = logits[:, None]
            if len(answer) > 1:
                own = copy.copy(cache)
                own.layers = [copy_layer(layer) for layer in cache.layers]
                more, _ = self.decode(mode, self.n, answer[None, :-1].expand(len(logits), -1), own)
                rows = torch.cat([rows, more], 1)
            rows = rows.double().log_softmax(-1)
            out.append(-rows[:, torch.arange(len(answer)), answer].sum(-1))
        return list(torch.stack(out, 1).cpu().numpy())

    def continuations(self, logits, cache, mode):
        """Returns the model's greedy continuations: texts for logits [batch, vocabulary], None without a question."""
        if self.question is None or not self.args.answer_tokens:
            return [None] * len(logits)
        said, position = [[] for _ in logits], self.n
        texts, going = [""] * len(said), set(range(len(said)))
        ends = self.model.generation_config.eos_token_id
        ends = set(ends if isinstance(ends, list) else [ends])
        while True:
            tokens = logits.argmax(-1)
            for i in sorted(going):
                token = int(tokens[i])
                if token not in ends:
                    said[i].append(token)
                    texts[i] = self.tokenizer.decode(said[i])
                if (token in ends or self.question.answer in texts[i] or len(said[i]) == self.args.answer_tokens):
                    going.discard(i)
            if not going:
                return texts
            # Finished ones are decoded too, and ignored.
            logits, cache = self.decode(mode, position, tokens[:, None], cache)
            logits, position = logits[:, -1], position + 1

    def batch(self, layers):
        """Returns how many caches can be decoded together. layers: those of the caches."""
        others = self.attention.seen.union(range(len(self.cache.layers))) - set(layers)
        if others or not all(map(keys_only, self.cache.layers)):
            return 1  # keys, values and states of the prefix are those of one prompt
        size = self.exact.numel() * self.exact.element_size()
        return max(1, min(self.args.batch, LOGITS_BYTES // size))

    def place(self, many):
        """Puts caches {layer: {KV head: CacheEntry}} in place. Raises TraceError if other layers need these keys."""
        seen = self.attention.seen
        own = {at for at, layer in enumerate(self.cache.layers) if getattr(layer, "keys", None) is not None}
        sharing = sorted(seen - own)
        if sharing and not all(entries.keys() == seen for entries in many):
            raise TraceError(f"{self.args.model}: layer {sharing[0]}: attends to another layer's keys and values; "
                             "expected caches of all layers at once")
        self.attention.caches = [{layer: self.attention.buckets(layer, heads, self.capacity)
                                  for layer, heads in entries.items()} for entries in many]

    def logits_over(self, many, tokens=None):
        """Returns logits [batch, tokens, vocabulary] of the first `tokens` (all) after the prefix, and the cache."""
        self.place(many)
        end = self.n if tokens is None else self.prefix + tokens
        return self.decode("compressed", self.prefix, self.ids[:, self.prefix:end].expand(len(many), -1))

    def score(self, many):
        """Returns [{column: value}, or Failed] of several groups' caches, decoded together."""
        logits, after = self.logits_over(many)
        out = []
        for one in logits:
            try:
                out.append(self.figures(one))
            except Failed as failed:
                out.append(failed)
        nats = self.answer_nlls(logits[:, -1], after, "compressed")
        said = self.continuations(logits[:, -1], after, "compressed")
        for at, figures in enumerate(out):
            if self.question is not None and not isinstance(figures, Failed):
                out[at] = self.answered(figures, nats[at], said[at])
        return out

    def answered(self, figures, nats, said):
        """Adds a cache's figures of the question, of answer_nlls() and continuations(); Failed if not finite."""
        answer = self.question.answer
        if not (np.isfinite(nats).all() and np.isfinite(self.nats_exact).all()):
            return Failed("degenerate: the likelihood of an answer is not finite")
        figures = figures | {"answer_expected": answer, "answer_nll": float(nats[0]),
                             "answer_nll_exact": float(self.nats_exact[0])}
        if len(nats) > 1:
            for end, right, own in (("_exact", "choice_exact_right", self.nats_exact), ("", "choice_right", nats)):
                figures["wrong_nll" + end] = float(own[1:].min())
                figures[right] = int(own[0] < own[1:].min())
        if said is not None:
            figures |= {"answer_exact": self.said_exact, "answer": said,
                        "answer_exact_right": int(answer in self.said_exact),
                        "answer_right": int(answer in said)}
        return figures

    def rows(self, prompt, groups):
        """Yields (group, its row) of each group of a prompt's caches, in order."""
        waiting = []  # [group, row, entries]; entries None if the row is complete
        size = self.batch(prompt.layers)
        for group in groups:
            row = self.row_of(prompt, group, len(prompt.layers))
            entries = None
            try:
                entries, degenerate = prompt.entries(group, self.attention)
                row["status"] = degenerate or "ok"
            except Failed as failed:
                row["status"] = str(failed)
            waiting.append((group, row, entries))
            if sum(one[2] is not None for one in waiting) == size:
                yield from self.finish(waiting)
                waiting = []
        yield from self.finish(waiting)

    def rows_of_layers(self, prompt, group):
        """Yields a row for each layer of a group: that layer's caches, all other layers exact."""
        for layer in prompt.layers:
            row = self.row_of(prompt, group, 1) | {"layer": layer}
            try:
                entries, degenerate = prompt.entries(group, self.attention, [layer])
                found, = self.score([entries])
                if isinstance(found, Failed):
                    raise found
                row |= {"status": degenerate or "ok"} | found
            except Failed as failed:
                row["status"] = str(failed)
            yield row

    def row_of(self, prompt, group, layers):
        """Returns the columns that identify a row."""
        return {"trace": os.path.basename(prompt.trace), "prompt": prompt.name,
                "algorithm": group.algorithm, "params": group.params,
                "budget_requested": group.budget, "seed": group.seed, "layers": layers,
                "n_tokens": len(prompt.ids), "n_queries": self.queries}

    def finish(self, waiting):
        """Yields the complete rows of rows()."""
        many = [entries for *_, entries in waiting if entries is not None]
        figures = iter(self.score(many) if many else ())
        for group, row, entries in waiting:
            if entries is not None:
                found = next(figures)
                row |= {"status": str(found)} if isinstance(found, Failed) else found
            yield group, row

    def divergence(self, logits):
        """Returns KL(exact || other), logsumexp(other), [tokens], of logits [tokens, vocabulary] after the prefix."""
        kl, lse = [], []
        for at in range(0, len(logits), ROWS):
            other = logits[at:at + ROWS].double()
            rows = slice(at, at + len(other))
            lse.append(other.logsumexp(-1))
            kl.append(self.neg_entropy[rows] - dot(self.chances[rows], other) + lse[-1])
        return torch.cat(kl).cpu().numpy(), torch.cat(lse)

    def figures(self, logits):
        """Returns {column: value} of logits [queries, vocabulary]. Raises Failed if they are not finite."""
        kl, lse = self.divergence(logits)
        if not np.isfinite(kl).all():
            raise Failed("degenerate: the model's logits are not finite: sums of weights overflow or vanish")
        # Negative values are rounding.
        kl = np.maximum(kl, 0.0)
        loss = self.loss(logits, lse)
        return {"loss": loss, "loss_exact": self.loss_exact,
                "loss_change": None if loss is None else loss - self.loss_exact,
                "kl": float(kl.mean()), "kl_p95": float(np.percentile(kl, 95)),
                "top_agreement": float((logits.argmax(-1) == self.exact_top).double().mean())}

    def self_check(self, layers, whole=False):
        """Returns the median KL over caches that hold everything, of some tokens or, with `whole`, of all
        queries. Raises TraceError if it is not that of rounding.
        """
        exact = {layer: {} for layer in layers}  # heads without an entry keep the model's middle
        (logits,), _ = self.logits_over([exact], None if whole else min(CHECK_TOKENS, self.queries))
        # Of a mixture of experts, rounding may route single tokens elsewhere: the median leaves them out.
        kl, limit = float(np.median(self.divergence(logits)[0])), SELF_CHECK[self.args.compute_dtype]
        if not kl <= limit:
            raise TraceError(f"{self.args.model}: self-check: KL over a cache that holds everything: got {kl:.2g}, "
                             f"expected at most {limit:g}: {type(self.model).__name__} is unsupported")
        return max(kl, 0.0)
