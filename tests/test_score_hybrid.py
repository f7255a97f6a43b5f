"""kvbench-py score on models with recurrent layers, whose state no decode may change for the next; the self-check.

Needs torch and transformers (`make test-dump`); without them every test is skipped.
"""

from unittest import mock

import zoo_models as zoo
from dump_models import MISSING, SIZES
from score_case import ScoreCase, everything, keep

if not MISSING:
    import torch
    import transformers
    from transformers import cache_utils

    from kvbench.score import states
    from kvbench.score.attention import CompressedAttention

HYBRIDS = ("bamba", "falcon_h1", "granitemoehybrid", "lfm2", "qwen3_next")  # in falcon_h1 each layer has both
CONTINUED = {"bamba"}  # transformers reads a second part of a prompt with other results than a whole one
# Whether transformers' DynamicCache holds states; where it does not, such models have caches of their own.
STATES = not MISSING and hasattr(cache_utils, "LinearAttentionLayer")


class HybridTest(ScoreCase):
    def test_groups_do_not_change_each_other(self):
        for name in HYBRIDS:
            with self.subTest(name=name):
                kind = transformers.CONFIG_MAPPING[name].__name__
                model = self.model(name, kind, **zoo.SIZES | zoo.OVERRIDES[name])
                trace = self.trace(model)
                caches = self.caches(trace, ("some", keep([9, 20])), ("exact", everything), ("again", keep([9, 20])))
                options = "--model", model, trace, "--caches", caches
                if not STATES:
                    self.refused("does not run with transformers' DynamicCache", *options)
                elif name in CONTINUED:
                    self.refused("the model does not go on from a prefix as it reads a whole prompt", *options)
                else:
                    self.check(model, trace, caches)

    def check(self, model, trace, caches):
        for batch in ("1", "4"):
            some, exact, again = self.score(model, trace, caches, "--batch", batch)
            self.assertTrue(0 <= float(exact["kl"]) <= 1e-8, exact)
            self.assertGreater(float(some["kl"]), 1e-6)
            self.assertEqual(some["kl"], again["kl"])

    def test_copies_share_keys_and_values_alone(self):
        layer = cache_utils.DynamicLayer()
        layer.update(torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3, 4))
        layer.states = {0: torch.zeros(3)}
        for copied in (states.copy_layer(layer), states.new_tokens(layer, 3)):
            copied.states[0] += 1
            self.assertEqual(float(layer.states[0].sum()), 0)
            self.assertEqual(copied.get_seq_length(), 3)
            copied.update(torch.ones(1, 2, 5, 4), torch.ones(1, 2, 5, 4))
            self.assertEqual((copied.get_seq_length(), layer.get_seq_length()), (8, 3))
        self.assertIs(states.copy_layer(layer).keys, layer.keys)
        self.assertEqual(copied.keys.shape[2], 5)

    def test_layers_that_share_keys_are_replaced_together(self):
        model = self.model("gemma3n", "Gemma3nTextConfig", **SIZES | {
            "num_kv_shared_layers": 1, "head_dim": 16, "vocab_size_per_layer_input": 97, "laurel_rank": 4,
            "hidden_size_per_layer_input": 8, "intermediate_size": [96] * 3, "activation_sparsity_pattern": [0.0] * 3,
            "layer_types": ["full_attention"] * 3, "altup_num_inputs": 2})
        trace = self.trace(model)
        caches = self.caches(trace, ("some", lambda head, layer, _: everything(head) if layer == 1 else None))
        self.refused("layer 2: attends to another layer's keys and values", "--model", model, trace,
                     "--caches", caches)

    def test_a_failed_self_check_is_an_error(self):
        model = self.model("llama")
        trace = self.trace(model)
        caches = self.caches(trace, ("exact", everything))
        over_caches = CompressedAttention.over_caches
        for factor, got in ((1.1, "got "), (float("nan"), "got nan")):
            for options in ((), ("--self-check",)):
                with mock.patch.object(CompressedAttention, "over_caches",
                                       lambda *a, factor=factor: over_caches(*a) * factor):
                    self.refused("self-check: KL over a cache that holds everything: " + got, "--model", model,
                                 trace, "--caches", caches, *options)

