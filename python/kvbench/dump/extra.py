"""Extra queries of kvbench-py dump: runs of the model after a prompt's prefix.

The model reads all but the evaluated tokens of a prompt again, with a cache, then each segment after them; the cache
is cropped between segments. The trace gets the segment's queries and keys after rotation.
"""

import numpy as np
from transformers import AutoTokenizer, DynamicCache

from kvbench.dump.extra_texts import REPEAT, StoredScores, Tokens, parse_extra, repeat_segments
from kvbench.dump.forward import forward
from kvbench.dump.options import kept_heads
from kvbench.dump.prompts import check_tokenizer, load
from kvbench.dump.rope import Stop
from kvbench.trace.writer import TraceError


class ExtraQueries:
    """Requested sets and scores. The attention function calls `observe`, dump_prompts calls `run` prompt by prompt."""

    def __init__(self, args, model, capture):
        self.args, self.model, self.capture = args, model, capture
        self.sets = [parse_extra(text) for text in args.extra or ()]
        self.scores = [StoredScores(text) for text in args.add_scores or ()]
        names = [REPEAT if one == REPEAT else one.name for one in self.sets]
        for kind, own in (("--extra", names), ("--add-scores", [one.name for one in self.scores])):
            twice = sorted({name for name in own if own.count(name) > 1})
            if twice:
                raise TraceError(f"{kind}: the name {twice[0]} comes twice, expected each once")
        self.prefix = 0
        self.rows = None  # layer -> (q [heads, m, d], k, norms or None) of the current run
        self.windowed = set()  # layers without extra queries
        self.tokenizer = None
        if self.sets:
            check_tokenizer(args)
            self.tokenizer = load(AutoTokenizer.from_pretrained, "tokenizer", args)

    def encode(self, text):
        """Returns token ids of a continuation, without special tokens."""
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def segments(self, at, name, text_id, ids):
        """Returns [(set's name, [Tokens])] of prompt number `at`."""
        out = []
        for one in self.sets:
            if one == REPEAT:
                out.append((REPEAT, repeat_segments(ids, self.prefix, self.encode)))
            else:
                texts = one.texts(at, name, text_id)
                out.append((one.name, [Tokens(np.asarray(self.encode(t), np.int64)) for t in texts]))
        for set_name, segments in out:
            if any(not len(segment.ids) for segment in segments):
                raise TraceError(f"{self.args.model}: --extra: {set_name}: prompt {name}: a text has no tokens")
        return out

    def run(self, writer, at, name, text_id, ids):
        """Writes all sets and scores of one prompt, after its layers."""
        layers = sorted(self.capture.seen - self.capture.prompt_skips)
        if self.args.layers is not None:
            layers = [layer for layer in layers if layer in self.args.layers]
        for one in self.scores:
            one.write(writer, name, layers)
        if not self.sets:
            return
        self.prefix = len(ids) - self.args.evaluated
        if self.prefix < 1:
            raise TraceError(f"{self.args.model}: --extra: prompt {name} has {len(ids)} tokens, expected "
                             f"more than the {self.args.evaluated} evaluated ones (--evaluated)")
        sets = self.segments(at, name, text_id, ids)
        self.check_lengths(name, sets)
        cache = DynamicCache()  # unconfigured: whole layers, which can be cropped
        step = self.args.chunk or self.prefix
        for start in range(0, self.prefix, step):
            self.forward(ids[start:min(start + step, self.prefix)], cache)
        for set_name, segments in sets:
            for segment in segments:
                self.rows = {}
                try:
                    self.forward(segment.ids, cache)
                    rows = self.rows
                finally:
                    self.rows = None
                cache.crop(-len(segment.ids))  # negative: of all releases
                self.write(writer, set_name, segment, rows, layers)

    def check_lengths(self, name, sets):
        limit = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        longest = max(len(segment.ids) for _, segments in sets for segment in segments)
        if limit and self.prefix + longest > limit:
            self.capture.log(f"note: {name}: extra queries reach position {self.prefix + longest}, the "
                             f"model is made for {limit}")

    def forward(self, ids, cache):
        try:
            forward(self.model, ids, cache)
        except Stop:
            pass

    def observe(self, module, query, key, mask, options):
        """Records a layer of the current run. Raises Stop after the last wanted layer."""
        layer = getattr(module, "layer_idx", None)
        wanted = self.capture.wanted(layer) and layer not in self.capture.prompt_skips
        if self.rows is not None and wanted:
            self.capture.start = self.prefix  # bounds() counts the tokens before these
            bounds = self.capture.bounds(module, query, key, mask, options)
            if bounds.reason is not None:
                raise TraceError(f"{self.args.model}: --extra: layer {layer}: {bounds.reason}; expected "
                                 "causal attention (--inexact skip leaves the layer out)")
            if bounds.window is not None:
                if layer not in self.windowed:
                    self.capture.log(f"{self.args.model}: layer {layer}: a sliding window of "
                                     f"{bounds.window} tokens: without extra queries")
                self.windowed.add(layer)
            rows, kv_heads = query.shape[2], key.shape[1]
            group = query.shape[1] // kv_heads
            heads = kept_heads(self.args, kv_heads)
            q_heads = [h * group + g for h in heads for g in range(group)]
            found = [self.capture.array(query[0, q_heads]), self.capture.array(key[0, heads, -rows:]), None]
            if self.capture.projections is not None:
                self.capture.projections.with_norms(
                    layer, lambda norms: found.__setitem__(2, norms[-rows:].numpy()))
            self.rows[layer] = found
        if layer is not None and self.capture.is_last(layer):
            raise Stop

    def write(self, writer, set_name, segment, rows, layers):
        positions = np.arange(self.prefix, self.prefix + len(segment.ids))
        for layer in layers:
            if layer in self.windowed:
                continue
            if layer not in rows:
                raise TraceError(f"{self.args.model}: --extra: layer {layer} took no part in the run of "
                                 f"{set_name}: unsupported")
            q, k, norms = rows[layer]
            writer.write_extra(set_name, q, k, positions, self.prefix, segment.about, norms, layer)
