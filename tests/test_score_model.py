"""kvbench-py score on small random models of many architectures: logits and figures by references.

Needs torch and transformers (`make test-dump`); without them every test is skipped. The references:
score_case.py; refusals, resuming and generation: test_score_runs.py.
"""

from dump_models import ARCHITECTURES, MISSING, TOKENS
from score_case import MIDDLE, QUERIES, TOLERANCE, ScoreCase, everything, held_by, keep, loop_logits, own_logits

if not MISSING:
    import numpy as np
    import torch
    import transformers

    from kvbench import caches as kc

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

        def made(head, layer, kv_head, kind):
            count, (d, dv) = 6 + kv_head, (head.k.shape[1], head.v.shape[1])
            more = {"one-set": {}, "nothing": {"k_den": np.zeros((0, d))},
                    "weights": {"log_weight_den": rng.normal(1, 1, count)},
                    "keys-without-weights": {"k_den": rng.normal(0, 1, (3, d))},
                    "keys": {"k_den": rng.normal(0, 1, (3, d)), "log_weight_den": rng.normal(2, 1, 3)}}
            return {"k": rng.normal(0, 1, (count, d)), "v": rng.normal(0, 1, (count, dv)),
                    "log_weight": rng.normal(0, 1, count)} | more[kind]

        kinds = ("one-set", "keys", "keys-without-weights", "weights", "nothing")
        for name in ("llama", "qwen3", "gpt2", "gemma3"):
            model, self.logits = self.model(name), []
            trace = self.trace(model)
            caches = self.caches(trace, *((kind, lambda *a, kind=kind: made(*a, kind)) for kind in kinds))
            self.score(model, trace, caches)
            with kc.CacheReader(caches) as reader:
                for group, logits in zip(reader.groups, self.logits, strict=True):
                    expected = loop_logits(model, self.ids, held_by(group))
                    self.assert_logits(logits, expected, f"{name} {group.algorithm}")

    def test_chunks_and_types(self):
        model = self.model("llama")
        trace = self.trace(model)
        caches = self.caches(trace, ("exact", everything))
        self.score(model, trace, caches, "--chunk", "7")
        self.assert_logits(self.logits[0], own_logits(model, self.ids))
        # Without a sink: the middle begins with the first token.
        self.score(model, trace, self.caches(trace, ("local", keep(range(1, MIDDLE.stop))),
                                             windows={"sink": 0, "recent": TOKENS - MIDDLE.stop, "queries": QUERIES}))
        bias = np.zeros((4, TOKENS))
        bias[:, 0] = -np.inf
        self.assert_logits(self.logits[1], own_logits(model, self.ids, bias))
        rows = self.score(model, trace, caches, "--compute-dtype", "bfloat16")
        # The cache has float32's keys where the model has rounded them to 8 bits.
        self.assertTrue(0 < float(rows[0]["kl"]) <= 0.1, rows)
