"""kvbench-py score on small random models of many architectures: logits and figures by references.

Needs torch and transformers (`make test-dump`); without them every test is skipped. The references:
score_case.py; refusals, resuming and generation: test_score_runs.py.
"""

import os
import unittest

from dump_models import ARCHITECTURES, MISSING, TOKENS
from score_case import MIDDLE, QUERIES, RECENT, SINK, TOLERANCE, WINDOWS, ScoreCase, everything, keep, own_logits
from script_case import ROOT

if not MISSING:
    import h5py
    import numpy as np
    import torch
    import transformers

    from kvbench import caches as kc

REAL = os.path.join(ROOT, "build", "models", "smollm2-135m")


class ScoreModelTest(ScoreCase):
    def test_a_cache_of_everything_is_the_model(self):
        for name in ARCHITECTURES:
            with self.subTest(name=name):
                model, self.logits = self.model(name), []
                trace = self.trace(model)
                rows = self.score(model, trace, self.caches(trace, ("exact", everything)),
                                  "--self-check")
                expected = own_logits(model, self.ids)
                self.assert_logits(*self.logits, expected, name)
                chances = torch.as_tensor(expected).log_softmax(-1).numpy()
                loss = -np.mean([chances[i, self.ids[TOKENS - QUERIES + i + 1]]
                                 for i in range(QUERIES - 1)])
                row, = rows
                self.assertEqual((row["status"], row["layers"], row["n_tokens"], row["n_queries"]),
                                 ("ok", "3", str(TOKENS), str(QUERIES)))
                for column in ("loss", "loss_exact"):
                    self.assertTrue(abs(float(row[column]) - loss) <= TOLERANCE, row)
                self.assertTrue(abs(float(row["loss_change"])) <= TOLERANCE, row)
                self.assertTrue(0 <= float(row["kl"]) <= 1e-8, row)
                self.assertEqual(row["top_agreement"], "1.0")
                self.assertIn("3 of 3 layers replaced", self.stderr)

    def test_dropped_and_weighted_tokens_are_a_mask_of_the_model(self):
        # Every head keeps other tokens, and another number of them.
        rng = np.random.default_rng(3)
        for name, (_, sizes) in ARCHITECTURES.items():
            with self.subTest(name=name):
                model, self.logits = self.model(name), []
                trace = self.trace(model)
                heads = sizes.get("num_key_value_heads", 4)
                kept = [np.sort(rng.choice(MIDDLE, 5 + 3 * head, replace=False))
                        for head in range(heads)]
                weights = [rng.normal(0, 1, len(tokens)) for tokens in kept]
                weights[0][1] = -np.inf
                bias = np.zeros((4, TOKENS))
                plain = np.zeros((4, TOKENS))
                for q_head in range(4):
                    head = q_head * heads // 4
                    for table, values in ((bias, weights[head]), (plain, 0)):
                        table[q_head, MIDDLE] = -np.inf
                        table[q_head, kept[head]] = values
                caches = self.caches(
                    trace, ("dropped", lambda head, _, h: keep(kept[h])(head)),
                    ("weighted", lambda head, _, h: keep(kept[h], weights[h])(head)))
                rows = self.score(model, trace, caches)
                exact = own_logits(model, self.ids)
                for row, logits, own in zip(rows, self.logits, (plain, bias), strict=True):
                    expected = own_logits(model, self.ids, own)
                    self.assert_logits(logits, expected, f"{name} {row['algorithm']}")
                    # A mask that did nothing would agree as well.
                    self.assertGreater(np.abs(expected - exact).max(), 100 * TOLERANCE)
                    self.check_figures(row, exact, expected)

    def check_figures(self, row, exact, other):
        """The row's figures against loops over the reference's logits."""
        exact, other = (torch.as_tensor(x).log_softmax(-1).numpy() for x in (exact, other))
        kl = [float(sum(np.exp(a) * (a - b) for a, b in zip(p, q))) for p, q in zip(exact, other)]
        loss = [-other[i, self.ids[TOKENS - QUERIES + 1 + i]] for i in range(QUERIES - 1)]
        expected = {"kl": np.mean(kl), "kl_p95": np.percentile(kl, 95), "loss": np.mean(loss),
                    "top_agreement": np.mean([p.argmax() == q.argmax()
                                              for p, q in zip(exact, other)])}
        for column, value in expected.items():
            self.assertTrue(abs(float(row[column]) - value) <= TOLERANCE, (column, row, value))
        self.assertTrue(abs(float(row["loss"]) - float(row["loss_exact"])
                            - float(row["loss_change"])) <= 1e-12)

    def test_without_the_sink(self):
        for name in ARCHITECTURES:
            with self.subTest(name=name):
                model, self.logits = self.model(name), []
                trace = self.trace(model)
                caches = self.caches(trace, ("local", keep(range(1, TOKENS - RECENT))),
                                     windows=WINDOWS | {"sink": 0})
                self.score(model, trace, caches)
                bias = np.zeros((4, TOKENS))
                bias[:, 0] = -np.inf
                self.assert_logits(self.logits[0], own_logits(model, self.ids, bias), name)

    def test_layers_that_the_caches_lack_stay_exact(self):
        model = self.model("llama")
        trace = self.trace(model, "--layers", "1", "--kv-heads", "1")
        rows = self.score(model, trace, self.caches(trace, ("local", keep([9, 20]))))
        self.assertEqual(rows[0]["layers"], "1")
        self.assertIn("1 of 3 layers replaced", self.stderr)
        own = transformers.AutoModelForCausalLM.from_pretrained(
            model, dtype=torch.float32, attn_implementation="eager").eval()

        def masked(_, arguments, options):
            mask = torch.zeros(1, 4, TOKENS, TOKENS).masked_fill(
                torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1), -1e30)
            hidden = [t for t in MIDDLE if t not in (9, 20)]
            mask[0, 2:, TOKENS - QUERIES:, hidden] = -1e30  # KV head 1 serves query heads 2 and 3.
            return arguments, options | {"attention_mask": mask}
        own.model.layers[1].self_attn.register_forward_pre_hook(masked, with_kwargs=True)
        with torch.inference_mode():
            expected = own(input_ids=torch.as_tensor(self.ids)[None]).logits[0, -QUERIES:]
        self.assert_logits(self.logits[0], expected.double().numpy())

    def test_made_entries_and_separate_denominators_against_a_loop(self):
        rng = np.random.default_rng(4)

        def made(head, layer, kv_head, den):
            count, other = 6 + kv_head, 3
            out = {"k": rng.normal(0, 1, (count, head.k.shape[1])),
                   "v": rng.normal(0, 1, (count, head.v.shape[1])),
                   "log_weight": rng.normal(0, 1, count)}
            if den == "keys":
                out |= {"k_den": rng.normal(0, 1, (other, head.k.shape[1])),
                        "log_weight_den": rng.normal(2, 1, other)}
            if den == "keys without weights":
                out |= {"k_den": rng.normal(0, 1, (other, head.k.shape[1]))}
            if den == "weights":
                out["log_weight_den"] = rng.normal(1, 1, count)
            if den == "nothing":
                out["k_den"] = np.zeros((0, head.k.shape[1]))
            return out

        kinds = ("one set", "keys", "keys without weights", "weights", "nothing")
        for name in ("llama", "qwen3", "gpt2", "gemma3"):
            model, self.logits = self.model(name), []
            trace = self.trace(model)
            caches = self.caches(trace, *(
                (kind.replace(" ", "-"), lambda *a, kind=kind: made(*a, kind)) for kind in kinds))
            self.score(model, trace, caches)
            self.assertEqual(len(self.logits), len(kinds))
            with kc.CacheReader(caches) as reader:
                for group, logits in zip(reader.groups, self.logits):
                    expected = self.loop_logits(model, trace, group)
                    self.assert_logits(logits, expected, f"{name} {group.algorithm}")

    def loop_logits(self, path, trace, group):
        """The model with an attention of loops, in double, over the entries of a group."""
        def attention(module, query, key, value, mask, scaling=None, **_):
            scale = query.shape[3]**-0.5 if scaling is None else scaling
            q, k, v = (t[0].double().numpy() for t in (query, key, value))
            out = np.empty((TOKENS, len(q), v.shape[2]))
            for h in range(len(q)):
                head = h * len(k) // len(q)
                entry = group.read("p0", module.layer_idx, head)
                for row in range(TOKENS):
                    tail = row >= TOKENS - QUERIES
                    top, bottom = np.zeros(v.shape[2]), 0.0
                    for t in range(row + 1):
                        if not tail or t < SINK or t >= TOKENS - RECENT:
                            weight = np.exp(scale * (k[head, t] @ q[h, row]))
                            top, bottom = top + weight * v[head, t], bottom + weight
                    if tail:
                        entry_k, entry_v = entry.k.astype(float), entry.v.astype(float)
                        weights = entry.log_weight
                        for i in range(len(entry_k)):
                            weight = np.exp(scale * (entry_k[i] @ q[h, row]) + weights[i])
                            top = top + weight * entry_v[i]
                        below, biases = entry_k, weights
                        if entry.k_den is not None:
                            below, biases = entry.k_den.astype(float), np.zeros(len(entry.k_den))
                        if entry.log_weight_den is not None:
                            biases = entry.log_weight_den
                        for i in range(len(below)):
                            bottom += np.exp(scale * (below[i] @ q[h, row]) + biases[i])
                    out[row, h] = top / bottom
            return torch.as_tensor(out)[None].float(), None
        transformers.AttentionInterface.register("kvbench_loop", attention)
        transformers.masking_utils.ALL_MASK_ATTENTION_FUNCTIONS.register(
            "kvbench_loop", transformers.masking_utils.eager_mask)
        return own_logits(path, self.ids, attention="kvbench_loop")

    def test_chunks_and_types(self):
        model = self.model("llama")
        trace = self.trace(model)
        caches = self.caches(trace, ("exact", everything))
        self.score(model, trace, caches, "--chunk", "7")
        self.assert_logits(self.logits[0], own_logits(model, self.ids))
        rows = self.score(model, trace, caches, "--compute-dtype", "bfloat16")
        # The cache has float32's keys where the model has rounded them to 8 bits.
        self.assertTrue(0 < float(rows[0]["kl"]) <= 0.1, rows)


@unittest.skipIf(MISSING or not os.path.isdir(REAL), f"no {REAL}; see make model")
class RealModelTest(ScoreCase):
    """SmolLM2 on a real text, of which its own tokenizer makes the tokens."""

    def test_everything_and_all_but_the_first_token(self):
        texts = os.path.join(ROOT, "data", "prompts", "prose.jsonl")
        tokens, queries, recent = 600, 64, 128
        windows = {"sink": 0, "recent": recent, "queries": queries}
        for dtype, exact_kl in (("float32", 1e-9), ("float16", 1e-6)):
            self.logits = []
            trace = self.dump(REAL, "--dtype", dtype, "--compute-dtype", "float32", "--max-tokens",
                              tokens, prompts=(texts, "--prompts", "prose-2"))
            caches = self.caches(trace, ("exact", keep(range(tokens - recent))),
                                 ("no-first", keep(range(1, tokens - recent))), windows=windows)
            rows = self.score(REAL, trace, caches)
            with h5py.File(trace) as file:
                ids = file["prompts/prose-2/token_ids"][:]
            bias = np.zeros((9, tokens))
            exact = own_logits(REAL, ids, bias, queries)
            bias[:, 0] = -np.inf
            masked = own_logits(REAL, ids, bias, queries)
            # Thirty layers, logits up to 30; float16 has 2^-11 in keys and values.
            limit = {"float32": 1e-3, "float16": 0.1}[dtype]
            for _, logits, expected in zip(rows, self.logits, (exact, masked), strict=True):
                worst = float(np.abs(logits - expected).max())
                self.assertTrue(worst <= limit, worst)
            self.assertTrue(float(rows[0]["kl"]) <= exact_kl, rows[0])
            self.assertGreater(np.abs(masked - exact).max(), 10 * limit)


if __name__ == "__main__":
    unittest.main()
