"""kvbench-py dump of layers that see a window, and of heads with a sink logit (GPT-OSS).

Needs torch and transformers (`make test-dump`); without them every test is skipped.
Environment: KVBENCH, the program; without it, it is not run.
"""

import math

from dump_models import CHUNK_TOLERANCE, MISSING, TOKENS, TOLERANCE, DumpCase, attention, own_run, read_trace

if not MISSING:
    import torch
    import transformers


class DumpBoundsTest(DumpCase):
    def gpt_oss(self):
        return self.model("sinks", "GptOssConfig", head_dim=16, num_local_experts=2,
                          num_experts_per_tok=1, sliding_window=16)

    def assert_outputs(self, model, trace):
        expected = own_run(model, self.ids)[0]
        for index, layer in trace.items():
            own = expected[index].reshape(TOKENS, len(layer["q"]), -1).transpose(1, 0, 2)
            self.assert_close(attention(layer), own, TOLERANCE["float16"], f"layer {index}")
            self.assertNotIn("inexact", layer)

    def test_windows(self):
        model = self.model("mistral16", "mistral", sliding_window=16)
        whole = read_trace(self.dump(model, "--attn-check"))
        self.assertEqual({layer["window"] for layer in whole.values()}, {16})
        self.assert_outputs(model, whole)
        for chunk in (1, 8, 20):
            parts = read_trace(self.dump(model, "--attn-check", "--chunk", chunk))
            for index, layer in whole.items():
                self.assertEqual(parts[index]["window"], 16)
                for name in "qkv":
                    self.assert_close(parts[index][name], layer[name], CHUNK_TOLERANCE)
        for tokens, window in ((16, False), (17, True)):  # within it there is nothing to say
            short = read_trace(self.dump(model, "--max-tokens", tokens, "--attn-check"))
            self.assertEqual("window" in short[0], window)

    def test_shared_caches(self):
        model = self.model("shared", "Gemma3nTextConfig", intermediate_size=[96] * 4, num_hidden_layers=4,
                           num_kv_shared_layers=2, head_dim=16, laurel_rank=8, altup_num_inputs=2,
                           hidden_size_per_layer_input=8, vocab_size_per_layer_input=97,
                           activation_sparsity_pattern=[0.0] * 4, sliding_window=64,
                           layer_types=["sliding_attention", "full_attention"] * 2)
        loaded = transformers.AutoModelForCausalLM.from_pretrained(model)
        with torch.inference_mode():
            cache = loaded(input_ids=torch.as_tensor(self.ids)[None], use_cache=True).past_key_values
        for options, owners in (([], {2: 0, 3: 1}), (["--chunk", 16], {2: 0, 3: 1}),
                                (["--layers", "1,2,3", "--kv-heads", 1], {3: 1})):
            trace = read_trace(self.dump(model, *options))
            self.assertEqual({i: layer["shares_cache_of"] for i, layer in trace.items()
                              if "shares_cache_of" in layer}, owners)
            for layer, owner in owners.items():
                self.assertIn(f"layer {layer} shares the cache of layer {owner}", self.stderr)
                self.assert_same(trace[layer]["k"], trace[owner]["k"])
            for part, tensor in (("k", "keys"), ("v", "values")):
                own = getattr(cache.layers[1], tensor)[0].numpy()[-len(trace[1][part]):]
                self.assert_close(trace[1][part], own, TOLERANCE["float16"])
        self.assertFalse([layer for layer in read_trace(self.dump(self.model("llama"))).values()
                          if "shares_cache_of" in layer])

    def test_sink_logits(self):
        model = self.gpt_oss()
        for options in ([], ["--chunk", 8], ["--o-proj"]):
            trace = read_trace(self.dump(model, "--attn-check", *options))
            self.assertEqual([trace[i].get("window") for i in range(3)], [16, None, 16])
            for index in range(3):
                self.assertEqual(trace[index]["sink_logit"].shape, (4,))
                self.assertEqual(len(set(trace[index]["sink_logit"])), 4)
            self.assert_outputs(model, trace)
        head = read_trace(self.dump(model, "--kv-heads", 1))
        self.assertEqual(list(head[0]["sink_logit"]), list(trace[0]["sink_logit"][2:]))

    def test_the_program_replays_them(self):
        rows = self.replay(self.dump(self.gpt_oss()), "--algorithm", "exact,h2o,snapkv", "--budget", "0.5")
        self.assertEqual(len(rows), 3 * 3 * 4)
        for row in rows:
            # Of a window of 16 the last 8 queries see 23 tokens, keys and values of 16 at 4 bytes.
            seen = TOKENS if row["layer"] == "1" else 23
            self.assertEqual(int(row["full_bytes"]), seen * 128)
            self.assertEqual(row["status"], "ok")
            self.assertTrue(math.isfinite(float(row["rel_error"])), row)
            if row["algorithm"] == "exact":
                self.assertTrue(float(row["rel_error"]) <= 1e-12, row)
                self.assertTrue(abs(float(row["mass_kept"]) - 1) <= 1e-12, row)
