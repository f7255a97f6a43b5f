"""python/kvbench/trace/writer.py: what TraceWriter refuses and leaves behind, parts, bfloat16 as in
torch.

Needs torch (`make test-dump`); without it every test is skipped.
"""

import os
import sys
import unittest

from dump_models import MISSING
from script_case import FolderCase

if not MISSING:
    import h5py
    import numpy as np
    import torch
    from dump_models import kt


@unittest.skipIf(MISSING, f"{sys.executable} lacks {', '.join(MISSING)}; see make test-dump")
class TraceWriterTest(FolderCase):
    def setUp(self):
        super().setUp()
        self.trace = self.path("t.h5")

    def write(self, fill, **options):
        with kt.TraceWriter(self.trace, "m", "s", created="2026-01-02", **options) as writer:
            writer.begin_prompt("a", 5)
            writer.begin_layer(0, 2, 1, 3, 4, 6)
            for name, shape in (("q", (2, 3, 4)), ("k", (1, 5, 4)), ("v", (1, 5, 6))):
                writer.write(name, 0, 0, np.ones(shape, np.float32))
            fill(writer)

    def expect_error(self, text, fill, **options):
        with self.assertRaises(kt.TraceError) as caught:
            self.write(fill, **options)
        self.assertIn(text, str(caught.exception))
        self.assertEqual(os.listdir(self.folder), [])

    def test_refusals(self):
        def rows(array, head=0, start=0):
            def fill(writer):
                writer.begin_layer(1, 2, 1, 3, 4, 6)
                writer.write("q", head, start, array)
            return fill
        self.expect_error("a/layers/1/q: head 0, row 1 was never written", rows(np.ones((1, 4))))
        self.expect_error("got shape (1, 3, 5), expected [heads, rows, 4]", rows(np.ones((3, 5))))
        self.expect_error("expected them within (2, 3, 4)", rows(np.ones((3, 4)), 0, 1))
        self.expect_error("expected them within", rows(np.ones((3, 3, 4))))
        self.expect_error("is written twice",
                          lambda w: w.write("k", 0, 2, np.ones((1, 4), np.float32)))
        for value in (np.nan, np.inf):
            bad = np.ones((2, 3, 4), np.float32)
            bad[1, 2, 3] = value
            for dtype in kt.STORED:
                self.expect_error(f"head 1, row 2, element 3: got {value}", rows(bad), dtype=dtype)
        self.expect_error("got 70000.0, expected a finite float16", rows(np.full((1, 4), 7e4)))
        self.expect_error("expected a finite bfloat16",
                          rows(np.full((1, 4), 3.4e38, np.float32)), dtype="bfloat16")
        self.expect_error("expected floating point", rows(np.ones((1, 4), int)))
        self.expect_error("stands twice", lambda w: w.begin_layer(0, 2, 1, 3, 4, 6))
        self.expect_error("multiple of the 2 KV heads", lambda w: w.begin_layer(2, 3, 2, 3, 4, 6))
        self.expect_error("nq: got 6", lambda w: w.begin_layer(2, 2, 2, 6, 4, 6))
        self.expect_error("fisher", lambda w: w.begin_layer(2, 2, 2, 3, 4, 6, fisher=-1.0))
        self.expect_error("prompts/a: stands twice", lambda w: w.begin_prompt("a", 5))
        self.expect_error("prompts/b: no layer was written", lambda w: w.begin_prompt("b", 5))
        self.expect_error("rope: got `pre`", lambda w: None, rope="pre")

    def test_a_failed_write_keeps_what_was_there(self):
        self.write(lambda w: None)
        with open(self.trace, "rb") as file:
            before = file.read()
        with self.assertRaises(ValueError):
            self.write(lambda w: int("x"))
        with open(self.trace, "rb") as file:
            self.assertEqual(file.read(), before)
        self.assertEqual(os.listdir(self.folder), ["t.h5"])

    def test_partial_layers(self):
        def keys_only(writer):
            writer.begin_layer(3, 1, 1, 1, 2, 2, with_q=False, with_v=False)
            writer.write("k", 0, 3, np.zeros((2, 2), np.float16))
            writer.write("k", 0, 0, np.zeros((3, 2), np.float16))
        self.write(keys_only)
        with h5py.File(self.trace) as file:
            self.assertEqual(list(file["prompts/a/layers/3"]), ["k"])
            self.assertEqual(file["prompts/a/layers/0/k"].chunks, (1, 5, 4))

    def test_bfloat16_rounds_as_torch_does(self):
        values = np.random.default_rng(1).standard_normal(4096).astype(np.float32)
        ties = np.arange(0x3F800000, 0x3F900000, 0x8000, dtype=np.uint32).view(np.float32)
        for array in (values, ties, values * 1e-39, -ties):
            expected = torch.from_numpy(array.copy()).bfloat16().view(torch.int16).numpy()
            self.assertTrue((kt.to_bfloat16(array) == expected.view(np.uint16)).all())


if __name__ == "__main__":
    unittest.main()
