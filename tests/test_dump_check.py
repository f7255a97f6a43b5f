"""--attn-check of kvbench-py dump: wrong attention is told from what rounding does.

Needs torch and transformers (`make test-dump`); without them every test is skipped.
"""

import sys
import unittest
from unittest import mock

from dump_models import MISSING, DumpCase

if not MISSING:
    import torch
    from dump_models import dump_traces

    from kvbench.dump import check

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


@unittest.skipIf(MISSING, f"{sys.executable} lacks {', '.join(MISSING)}; see make test-dump")
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
        self.assertIn("; rounding to float16 moves it by", self.stderr)
        self.assertIn("by logits of size", self.stderr)
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
        with mock.patch.object(dump_traces, "Capture", Shifted):
            for name in ("plain", "biased"):
                for dtype in ("float32", "float16", "bfloat16"):
                    with self.subTest(name=name, dtype=dtype):
                        self.expect_error("layer 0: attention that deviates from exact attention by "
                                          "0.01", *self.options(name, dtype))
                        self.expect_error("it is not what kvbench computes",
                                          *self.options(name, dtype))

    def test_another_scale_is_refused(self):
        class Sharper(dump_traces.Capture):
            def attend(self, module, query, key, value, mask, scaling, options):
                return super().attend(module, query, key, value, mask, 1.01 * scaling, options)
        with mock.patch.object(dump_traces, "Capture", Sharper):
            for name in ("plain", "biased"):
                self.expect_error("attention that deviates", *self.options(name))

    def test_what_the_type_cannot_hold_is_called_that(self):
        self.expect_error("layer 0: queries, keys or values that float16 cannot hold",
                          *self.options("tiny"))
        self.expect_error("expected --dtype bfloat16 or float32", *self.options("tiny"))
        for _, rounding in self.said("tiny", dtype="bfloat16"):
            self.assertLess(rounding, 0.1)


@unittest.skipIf(MISSING, f"{sys.executable} lacks {', '.join(MISSING)}; see make test-dump")
class CompareTest(unittest.TestCase):
    """Random heads with keys of all sizes, without a model."""

    def compare(self, size, compute="float32", stored="float16", change=lambda out: out):
        torch.manual_seed(2)
        q, k, v = torch.randn(4, 8, 16), size * torch.randn(2, 30, 16), torch.randn(2, 30, 8)
        q, k, v = (part.to(getattr(torch, compute)) for part in (q, k, v))
        last = torch.arange(22, 30)
        seen = torch.arange(30)[None] <= last[:, None]
        out = torch.nn.functional.scaled_dot_product_attention(
            q, k.repeat_interleave(2, 0), v.repeat_interleave(2, 0), seen, scale=0.25)
        return check.compare(q, k, v, 0.25, last, change(out), compute, stored)

    def test_rounding_stays_below_its_limit_whatever_the_logits_are(self):
        before = 0.0
        for size in (1e-3, 1.0, 30.0, 100.0, 1000.0):
            for stored in ("float16", "bfloat16"):
                found = self.compare(size, stored=stored)
                self.assertLessEqual(found.rounding, found.rounding_limit, (size, stored))
                self.assertIsNone(check.reason(found, "float32", stored))
            self.assertGreater(found.logits, before)  # and so the limit grows
            before = found.logits
        self.assertGreater(self.compare(100.0).rounding_limit, self.compare(1.0).rounding_limit)

    def test_the_models_own_rounding_stays_below_its_limit(self):
        for size in (1.0, 30.0, 1000.0):
            for compute in ("float32", "float16", "bfloat16"):
                found = self.compare(size, compute, compute)
                self.assertIsNone(check.reason(found, compute, compute), (size, compute, found))
                self.assertEqual(found.rounding_limit, 0.0)
        # Of plain logits, what the type has always been allowed.
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
            joined = check.Deviation(own=first, own_limit=1.0).join(
                check.Deviation(own=second, own_limit=1.0))
            self.assertIsNotNone(check.reason(joined, "float32", "float16"))


if __name__ == "__main__":
    unittest.main()
