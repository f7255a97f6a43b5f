"""kvbench-py score on models whose layers have a sliding window shorter than the prompt, beside layers without.

The reference is attention in double precision, a token at a time, over the entries of a group and the exact
tokens, each seen by position. Needs torch and transformers (`make test-dump`); without them every test is skipped.
"""

import json
import subprocess
import unittest

from dump_models import MISSING, TOKENS
from score_case import MIDDLE, QUERIES, RECENT, SINK, TOLERANCE, ScoreCase, keep
from script_case import KVBENCH, call, read_rows

if not MISSING:
    import h5py
    import numpy as np
    import torch
    import transformers
    from dump_models import command

    from kvbench import caches as kc
    from kvbench.score import main as score_model

PREFIX = TOKENS - QUERIES
KINDS = ["sliding_attention", "full_attention", "sliding_attention"]
WINDOWED = (0, 2)  # layers
# Shorter than the queries; the sinks and a part of the middle are hidden; only the sinks of the last queries are.
WIDTHS = (5, 16, TOKENS - 2)


def middle_of(window):
    """Positions of a windowed layer's middle (docs/methods.md)."""
    first = max(SINK, PREFIX - window + 1)
    return range(first, max(first, TOKENS - RECENT))


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
                self.assert_logits(logits, self.loops(model, group, positions), group.algorithm)
        return rows

    def loops(self, path, group=None, positions=None, ids=None):
        """Logits of the last queries of the model with an attention of loops: the model's own without a group.

        positions  of the group's entries without one in layers with a window
        ids        default self.ids; the group is of the first TOKENS of them
        """
        def attention(module, query, key, value, mask, scaling=None, **_):
            q, k, v = (t[0].double().numpy() for t in (query, key, value))
            n, window = q.shape[1], module.sliding_window or q.shape[1]
            out = np.empty((n, len(q), v.shape[2]))
            for h in range(len(q)):
                head = h * len(k) // len(q)
                held = tokens_of(group, positions, module, head, k[head], v[head])
                for row in range(n):
                    tokens = held if group and row >= PREFIX else [(t, k[head, t], v[head, t], 0, 0) for t in range(n)]
                    # (position, key, value, log weight, log weight of the denominator)
                    seen = [one for one in tokens if row - window < one[0] <= row]
                    logits = np.array([scaling * (one[1] @ q[h, row]) for one in seen])
                    top = np.exp(logits + [one[3] for one in seen])
                    out[row, h] = top @ [one[2] for one in seen] / np.exp(logits + [one[4] for one in seen]).sum()
            return torch.as_tensor(out)[None].float(), None

        transformers.AttentionInterface.register("kvbench_windows", attention)
        transformers.masking_utils.ALL_MASK_ATTENTION_FUNCTIONS.register(
            "kvbench_windows", transformers.masking_utils.eager_mask)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, attn_implementation="kvbench_windows").eval()
        with torch.inference_mode():
            return model(input_ids=torch.as_tensor(self.ids if ids is None else ids)[None]).logits[
                0, PREFIX:].double().numpy()

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
                expected = self.loops(model)
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
                        logits = torch.as_tensor(self.loops(model, ids=[*self.ids, *ids]))
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

    @unittest.skipUnless(KVBENCH, "KVBENCH names no program")
    def test_caches_of_the_program(self):
        for window in WIDTHS:
            with self.subTest(window=window):
                model = self.gemma(window)
                trace, caches = self.trace(model), self.path(".h5")
                subprocess.run([KVBENCH, "replay", trace, "-o", self.path(".csv"), "--export-caches", caches,
                                "--algorithm", "exact,h2o,quant-rotated,snapkv@quant-kivi", "--budget", "0.6",
                                "--sink", str(SINK), "--recent", str(RECENT), "--queries", str(QUERIES)],
                               check=True, capture_output=True)
                rows = self.check(model, trace, caches, {"quant-rotated": np.array(middle_of(window), int)})
                self.assertTrue(0 <= float(rows[0]["kl"]) <= 1e-8, rows[0])

    @unittest.skipUnless(KVBENCH, "KVBENCH names no program")
    def test_a_replay_takes_such_layers(self):
        model = self.gemma(16)
        trace, out = self.trace(model), self.path(".csv")
        done = call(lambda: command.run_main(score_model.main), "kvbench-py score", trace, "--model", model, "-o", out,
                    "--rows", self.path(".rows.csv"), "--program", KVBENCH, "--algorithm", "exact,h2o",
                    "--budget", "0.5", "--each-layer", "--sink", SINK, "--recent", RECENT, "--queries", QUERIES)
        self.assertEqual(done.code, 0, done.err)
        for path in (out, out.removesuffix(".csv") + ".layers.csv"):
            for row in read_rows(path):
                self.assertEqual(float(row["kl"]) <= 1e-8, row["algorithm"] == "exact", row)


def tokens_of(group, positions, module, head, keys, values):
    """[(position, key, value, log weight, log weight of the denominator)] that queries of the group's head may see."""
    if group is None:
        return []
    entry = group.read("p0", module.layer_idx, head)
    window = module.sliding_window
    middle = middle_of(window) if window else MIDDLE
    held = np.full(len(entry.k), -1) if entry.token is None else entry.token
    if (held < 0).any():  # all queries see them in layers without a window
        held[held < 0] = 0 if not window else entry.counted if positions is None else positions
    weights = np.zeros(len(held)) if entry.log_weight is None else entry.log_weight
    below = weights if entry.log_weight_den is None else entry.log_weight_den
    own = [t for t in range(len(keys)) if t < middle.start or t >= middle.stop]
    return [(t, keys[t], values[t], 0, 0) for t in own] + [
        (t, k.astype(float), v.astype(float), w, w_den)
        for t, k, v, w, w_den in zip(held, entry.k, entry.v, weights, below, strict=True)]


if __name__ == "__main__":
    unittest.main()
