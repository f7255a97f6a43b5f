"""kvbench-py score on models whose layers have a sliding window shorter than the prompt, beside layers without.

The reference is attention in double precision, a token at a time, over the entries of a group and the exact
tokens, each seen by position. Needs torch and transformers (`make test-dump`); without them every test is skipped.
"""

import json

from dump_models import MISSING, TOKENS
from score_case import MIDDLE, QUERIES, RECENT, SINK, TOLERANCE, ScoreCase, held_by, keep, loop_logits, middle_of

if not MISSING:
    import h5py
    import numpy as np
    import torch

    from kvbench import caches as kc

KINDS = ["sliding_attention", "full_attention", "sliding_attention"]
WINDOWED = (0, 2)  # layers
# Shorter than the queries; the sinks and a part of the middle are hidden; only the sinks of the last queries are.
WIDTHS = (5, 16, TOKENS - 2)


class WindowsTest(ScoreCase):
    def gemma(self, window, **changes):
        return self.model(f"gemma{window}", "gemma3", sliding_window=window, layer_types=KINDS, **changes)

    def by_layer(self, window, entry, full=None):
        """A function for caches(): `entry` in layers with a window, `full`, or all tokens, in others."""
        return lambda head, layer, kv: (
            entry if layer in WINDOWED else full or keep(MIDDLE))(head, layer, kv)

    def check(self, model, trace, caches, tokens=None):
        """The logits of each group are the reference's. tokens: of entries without a position, by group"""
        self.logits = []
        rows = self.score(model, trace, caches)
        self.assertEqual({row["status"] for row in rows}, {"ok"})
        with kc.CacheReader(caches) as reader:
            self.assertEqual(len(self.logits), len(reader.groups))
            for group, logits in zip(reader.groups, self.logits):
                positions = (tokens or {}).get(group.algorithm)
                self.assert_logits(logits, loop_logits(model, self.ids, held_by(group, positions)), group.algorithm)
        return rows

    def test_an_exact_cache_is_the_model(self):
        for window in WIDTHS:
            with self.subTest(window=window):
                model, self.logits = self.gemma(window), []
                trace = self.trace(model)
                with h5py.File(trace) as file:
                    self.assertEqual([layer for layer, part in file["prompts/p0/layers"].items()
                                      if part.attrs.get("window") == window], ["0", "2"])
                caches = self.caches(trace, ("exact", self.by_layer(window, keep(middle_of(window)))),
                                     # Tokens that no query sees change nothing.
                                     ("more", self.by_layer(window, keep(MIDDLE))))
                for row in self.score(model, trace, caches, "--self-check"):
                    self.assertTrue(0 <= float(row["kl"]) <= 1e-8, row)
                expected = loop_logits(model, self.ids)
                for logits in self.logits:
                    self.assert_logits(logits, expected)

    def test_compressed_caches_against_loops(self):
        rng = np.random.default_rng(7)
        for window in WIDTHS:
            with self.subTest(window=window):
                model = self.gemma(window)
                trace, middle = self.trace(model), np.array(middle_of(window), int)
                kept = {(layer, head): np.sort(rng.permutation(middle)[:(1 + head) * len(middle) // 3])
                        for layer in WINDOWED for head in range(2)}
                weights = {place: rng.normal(0, 1, len(tokens)) for place, tokens in kept.items()}
                below = {place: rng.normal(1, 1, len(tokens)) for place, tokens in kept.items()}

                def some(head, layer, kv):
                    return keep(kept[layer, kv])(head)

                def weighted(head, layer, kv):
                    return keep(kept[layer, kv], weights[layer, kv])(head)

                def own_denominator(head, layer, kv):
                    return weighted(head, layer, kv) | {"log_weight_den": below[layer, kv]}

                self.check(model, trace, self.caches(
                    trace, *((name, self.by_layer(window, entry, keep([9, 20]))) for name, entry in (
                        ("some", some), ("weighted", weighted), ("own-denominator", own_denominator)))))

    def test_one_layer_at_a_time_and_answers(self):
        """Exact layers keep their own mask where others are replaced; answers go on in the window."""
        for window in (16, TOKENS + 1):  # the answer alone leaves the second
            model = self.words_model(f"words{window}", "gemma3", sliding_window=window, layer_types=KINDS)
            trace = self.trace(model)
            middle = middle_of(window)
            answer, wrong = "w40 w7 w9", "w7 w40 w9"
            records = self.file("records.jsonl", json.dumps({"id": "p0", "answer": answer, "wrong": [wrong]}) + "\n")
            for layer in (0, 1, 2, None):
                with self.subTest(window=window, layer=layer):
                    caches = self.caches(trace, ("exact", lambda head, at, _, layer=layer, middle=middle: None
                                                 if layer not in (None, at) else
                                                 keep(middle if at in WINDOWED else MIDDLE)(head)))
                    row, = self.score(model, trace, caches, "--records", records)
                    self.assertTrue(0 <= float(row["kl"]) <= 1e-8, row)
                    for text, end in ((answer, "answer_nll"), (wrong, "wrong_nll")):
                        ids = [int(word[1:]) for word in text.split()]
                        logits = torch.as_tensor(loop_logits(model, [*self.ids, *ids]))
                        chances = logits[QUERIES - 1:-1].log_softmax(-1)
                        nats = -float(sum(chances[at, token] for at, token in enumerate(ids)))
                        for column in (end, end + "_exact"):
                            self.assertTrue(abs(float(row[column]) - nats) <= 3 * TOLERANCE, (column, row, nats))

    def test_quantised_tokens_have_positions_and_made_ones_none(self):
        window = 16
        model = self.gemma(window)
        trace, middle = self.trace(model), np.array(middle_of(window), int)
        counted = middle[[1, 4]]

        def coded(tokens, exact=(), **more):
            def entry(head, layer, kv):
                rows = np.array([*exact, *tokens], int)
                held = np.array([*exact] + [-1] * len(tokens))
                return {"k": head.k[rows], "v": head.v[rows], "token": held, "quantised": len(tokens)} | more
            return self.by_layer(window, entry, keep([9, 20]))

        positions = {"all": middle, "rest": np.delete(middle, 2), "of-kept": counted}
        self.check(model, trace, self.caches(
            trace, ("all", coded(middle)), ("rest", coded(np.delete(middle, 2), [middle[2]])),
            ("of-kept", coded(counted, counted=counted))), positions)
        caches = self.caches(
            trace, ("made", self.by_layer(window, lambda head, *_: {"k": head.k[:3], "v": head.v[:3]})),
            ("two", coded(counted)), ("den", self.by_layer(window, lambda head, *_: keep(counted)(head) | {
                "k_den": head.k[:3]})), ("exact", self.by_layer(window, keep(middle))))
        rows = self.score(model, trace, caches, code=1)
        self.assertEqual([row["status"] for row in rows], [
            "failed: layer 0, KV head 0: token: got 3 made entries, which the layer's window cannot hide",
            "failed: layer 0, KV head 0: token: got 2 made entries, which the layer's window cannot hide",
            "failed: layer 0, KV head 0: k_den: got keys without positions, which the layer's window cannot hide",
            "ok"])

    def test_caches_of_the_program(self):
        for window in WIDTHS:
            with self.subTest(window=window):
                model = self.gemma(window)
                trace, caches = self.trace(model), self.path(".h5")
                self.done("replay", trace, "-o", self.path(".csv"), "--export-caches", caches, "--algorithm",
                          "exact,h2o,quant-rotated,snapkv@quant-kivi", "--budget", "0.6", "--sink", str(SINK),
                          "--recent", str(RECENT), "--queries", str(QUERIES))
                rows = self.check(model, trace, caches, {"quant-rotated": np.array(middle_of(window), int)})
                self.assertTrue(0 <= float(rows[0]["kl"]) <= 1e-8, rows[0])

