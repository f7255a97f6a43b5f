"""Checks of kvbench-py dump: wrong attention is told from what rounding does (--attn-check), and the
captured run is the model's own.

Needs torch and transformers (`make test-dump`); without them every test is skipped.
"""

import os
import shutil
import sys
import unittest
import warnings
from unittest import mock

from dump_models import MISSING, TOKENS, DumpCase, attends_as, read_trace

if not MISSING:
    import torch
    from dump_models import dump_traces
    from transformers.models.llama.modeling_llama import LlamaAttention

    from kvbench.dump import check, forward

KEY_BIAS, QUERY_BIAS = 200.0, 2.0  # keys with norms in the hundreds, as Qwen 2.5's are
SLOW = (6, 7, 14, 15)  # channels of 16 that hardly turn: their part of the logits is all keys' alike
SHIFT = 0.01  # of a wrong attention's output, relative


def biased(model):
    """Large biases that make all logits large, and their differences what they were."""
    for layer in model.model.layers:
        for part, size in ((layer.self_attn.q_proj, QUERY_BIAS), (layer.self_attn.k_proj, KEY_BIAS)):
            part.bias.view(-1, 16)[:, list(SLOW)] = size


def tiny_values(model):
    for layer in model.model.layers:
        layer.self_attn.v_proj.weight *= 1e-7


class AttnCheckTest(DumpCase):
    def options(self, name, dtype="float16", compute="float32"):
        change = {"biased": biased, "tiny": tiny_values}.get(name)
        model = self.model(name, {"biased": "qwen2"}.get(name, "llama"), change)
        return ("--model", model, "--token-ids", self.ids_file, "--dtype", dtype,
                "--compute-dtype", compute, "--attn-check")

    def said(self, name, **types):
        """[(own deviation, deviation by rounding or None)] of a dump's layers."""
        _, model, _, _, *rest = self.options(name, **types)
        self.dump(model, *rest)
        lines = [line for line in self.stderr.splitlines() if "largest relative deviation" in line]
        self.assertEqual(len(lines), 3)
        return [(float(line.split("exact attention ")[1].split(";")[0]),
                 float(line.split(" by ")[1].split()[0]) if "; rounding to" in line else None)
                for line in lines]

    def test_biased_keys_are_dumped_and_rounding_is_reported(self):
        found = self.said("biased")
        for own, rounding in found:
            self.assertLess(own, 1e-4)
            self.assertGreater(rounding, own)
        # So large that a limit for all models would refuse it, or would let a wrong formula pass.
        self.assertGreater(max(rounding for _, rounding in found), 0.02)
        for own, rounding in self.said("biased", dtype="float32"):
            self.assertLess(own, 1e-4)
            self.assertIsNone(rounding)
        for own, rounding in self.said("plain"):
            self.assertLess(own, 1e-5)
            self.assertLess(rounding, 5e-3)
        for compute in ("float16", "bfloat16"):
            for _, rounding in self.said("biased", dtype=compute, compute=compute):
                self.assertIsNone(rounding)

    def test_wrong_attention_is_refused_whatever_the_types(self):
        class Shifted(dump_traces.Capture):
            def attend(self, *arguments):
                output, weights = super().attend(*arguments)
                return output + SHIFT * output.norm(dim=-1, keepdim=True) / 4, weights

        class Sharper(dump_traces.Capture):
            def attend(self, module, query, key, value, mask, scaling, options):
                return super().attend(module, query, key, value, mask, 1.01 * scaling, options)
        for capture, dtypes, text in ((Shifted, ("float32", "float16", "bfloat16"), "from exact attention by 0.01"),
                                      (Sharper, ("float16",), "it is not what kvbench computes")):
            for name in ("plain", "biased"):
                for dtype in dtypes:
                    with self.subTest(name=name, dtype=dtype), attends_as(capture):
                        self.expect_error(text, *self.options(name, dtype))

    def test_what_the_type_cannot_hold_is_called_that(self):
        self.expect_error("layer 0: queries, keys or values that float16 cannot hold", *self.options("tiny"))
        for _, rounding in self.said("tiny", dtype="bfloat16"):
            self.assertLess(rounding, 0.1)


class OwnAttentionTest(DumpCase):
    def attention(self, change):
        """Llama's attention with `change(module, kwargs)` before each call."""
        def changed(module, *args, own=LlamaAttention.forward, **kwargs):
            change(module, kwargs)
            return own(module, *args, **kwargs)
        return mock.patch.object(LlamaAttention, "forward", changed)

    def test_what_the_dump_cannot_follow_is_refused(self):
        def by_name(module, kwargs):
            own = module.config._attn_implementation in ("eager", "sdpa")
            module.scaling = 16**-0.5 / (2 if own else 1)

        def fails(module, kwargs):
            raise AttributeError("no such thing\nat all")

        def twice(module, *args, own=LlamaAttention.forward, **kwargs):
            own(module, *args, **kwargs)
            return own(module, *args, **kwargs)
        for forward, text in (
                (self.attention(by_name), "LlamaForCausalLM depends on the name of its attention function"),
                (self.attention(lambda module, kwargs: kwargs.update(indices=torch.arange(3))),
                 "LlamaAttention calls its attention with `indices`: unsupported"),
                (self.attention(fails), "LlamaForCausalLM does not run (AttributeError: no such thing): unsupported"),
                (mock.patch.object(LlamaAttention, "forward", twice),
                 "layer 0: LlamaAttention calls its attention more than once in a run: unsupported")):
            for options in ((), ("--inexact", "keep")):
                with self.subTest(text, options=options), forward:
                    self.expect_error(text, "--model", self.model("llama"), "--token-ids", self.ids_file, *options)
        with self.attention(lambda module, kwargs: kwargs.update(indices=None, use_cache=False)):
            self.dump(self.model("llama"))

class PartsTest(DumpCase):
    """Models whose parts are not a whole run: --chunk and --extra refuse them."""

    def test_recurrent_layers(self):
        model = self.model(
            "jamba", "JambaConfig", attn_layer_period=3, attn_layer_offset=1, num_experts=1,
            expert_layer_period=2, mamba_d_state=8, mamba_dt_rank=4, use_mamba_kernels=False)
        whole = read_trace(self.dump(model))
        self.assertEqual(sorted(whole), [1])
        self.assert_same(read_trace(self.dump(model, "--chunk", TOKENS))[1]["k"], whole[1]["k"])
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(os.path.join(self.words_model(), name), model)
        for option, *more in (("--chunk", 8), ("--extra", "repeat", "--evaluated", "8")):
            self.expect_error(f"{option}: JambaForCausalLM ", "--model", model, "--token-ids", self.ids_file, option,
                              *more)

    def test_the_cache_has_the_name_of_the_models_argument(self):
        def both(input_ids, past_key_values=None, cache=None):
            pass

        def new(input_ids, cache=None, **kwargs):
            pass
        for function, name in ((both, "past_key_values"), (new, "cache")):
            model = mock.Mock(forward=function)
            self.assertEqual(forward.cache_argument(model), name)
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)  # the name will be dropped
            self.dump(self.model("llama"), "--chunk", "8")

    def test_a_wrong_cache_is_refused(self):
        class Forgets(dump_traces.DynamicCache):
            def get_seq_length(self, *args, **named):
                return max(0, super().get_seq_length(*args, **named) - 1)
        with mock.patch.object(dump_traces, "DynamicCache", Forgets):
            self.expect_error("in parts deviates from a whole run by", "--model", self.model("llama"),
                              "--token-ids", self.ids_file, "--chunk", "8")


@unittest.skipIf(MISSING, f"{sys.executable} lacks {', '.join(MISSING)}; see make test-dump")
class CompareTest(unittest.TestCase):
    """Random heads with keys of all sizes, without a model."""

    def compare(self, size, change=lambda out: out, compute="float32", stored="float16", offset=0.0):
        torch.manual_seed(2)
        q, k, v = torch.randn(4, 8, 16), size * torch.randn(2, 30, 16), torch.randn(2, 30, 8)
        k[..., 0] += offset
        q, k, v = (part.to(getattr(torch, compute)) for part in (q, k, v))
        last = torch.arange(22, 30)
        seen = torch.arange(30)[None] <= last[:, None]
        out = torch.nn.functional.scaled_dot_product_attention(
            q, k.repeat_interleave(2, 0), v.repeat_interleave(2, 0), seen, scale=0.25)
        return check.compare(q, k, v, 0.25, last, change(out), compute, stored)

    def test_limits_grow_with_the_logits(self):
        for size in (1e-3, 1.0, 30.0, 100.0, 1000.0):
            for types in (("float32", "float16"), *((one, one) for one in ("float32", "float16", "bfloat16"))):
                found = self.compare(size, compute=types[0], stored=types[1])
                self.assertIsNone(check.reason(found, *types), (size, types, found))
        # A part of the logits that all keys have alike: sums of float32 are off by more than the usual limit.
        found = self.compare(1.0, stored="float32", offset=1e4)
        self.assertGreater(found.own, check.CHECK_LIMIT["float32"])
        self.assertIsNone(check.reason(found, "float32", "float32"))
        self.assertGreater(self.compare(100.0).rounding_limit, self.compare(1.0).rounding_limit)
        self.assertEqual(self.compare(1.0).own_limit, check.CHECK_LIMIT["float32"])

    def test_one_wrong_head_or_query_or_nan_is_enough(self):
        def one(change):
            def wrong(out):
                out = out.clone()
                change(out)
                return out
            return wrong

        def head(out):
            out[3] *= 1.01

        def query(out):
            out[2, 7] = out[2, 6]

        def nan(out):
            out[0, 0, 0] = torch.nan
        for change in (head, query, nan):
            found = self.compare(1.0, change=one(change))
            self.assertIn("deviates from exact attention", check.reason(found, "float32", "float16"))
        for first, second in ((torch.nan, 0.0), (0.0, torch.nan)):
            joined = check.Deviation(own=first, own_limit=1.0).join(check.Deviation(own=second, own_limit=1.0))
            self.assertIsNotNone(check.reason(joined, "float32", "float16"))
