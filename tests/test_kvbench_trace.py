"""python/kvbench/trace/writer.py: what TraceWriter refuses and leaves behind, parts, filters and
checksums, bfloat16 as in torch (`make test-dump`; skipped without it).
"""

import hashlib
import os
import sys
import unittest

from script_case import FolderCase, missing

MISSING = missing("h5py", "numpy")
if not MISSING:
    import h5py
    import numpy as np

    from kvbench.trace import digest
    from kvbench.trace import writer as kt


def sha256(values):
    return hashlib.sha256(values.tobytes()).hexdigest()


def filters(data):
    """Names of a dataset's filters, in the order in which they are written."""
    plist = data.id.get_create_plist()
    return [plist.get_filter(at)[3].decode() for at in range(plist.get_nfilters())]


@unittest.skipIf(MISSING, f"{sys.executable} lacks {', '.join(MISSING)}")
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
        self.expect_error("duplicate layer", lambda w: w.begin_layer(0, 2, 1, 3, 4, 6))
        self.expect_error("multiple of the 2 KV heads", lambda w: w.begin_layer(2, 3, 2, 3, 4, 6))
        self.expect_error("nq: got 6", lambda w: w.begin_layer(2, 2, 2, 6, 4, 6))
        self.expect_error("fisher", lambda w: w.begin_layer(2, 2, 2, 3, 4, 6, fisher=-1.0))
        self.expect_error("prompts/a: duplicate prompt", lambda w: w.begin_prompt("a", 5))
        self.expect_error("prompts/b: no layer was written", lambda w: w.begin_prompt("b", 5))
        for late in (lambda w: w.set_attribute(0, "a", 1), lambda w: w.share_cache(1, 0), lambda w: w.drop_layer(0)):
            self.expect_error("a layer before its prompt", lambda w, late=late: (w.end_prompt(), late(w)))
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

    # --- Filters and checksums -----------------------------------------------------------------

    def everything(self, dtype, gzip):
        """A trace with all datasets that there are; its open file."""
        rng = np.random.default_rng(3)
        table, weight = np.cos(np.ones((2000 + 512, 2))), rng.normal(size=(7, 12))
        weight = weight.astype({"bfloat16": np.float32}.get(dtype, dtype))
        with kt.TraceWriter(self.trace, "m", "s", dtype=dtype, gzip=gzip) as writer:
            writer.write_rope(table, -table, "half", [0, 5])
            for prompt in "ab":
                writer.begin_prompt(prompt, 2000, token_ids=np.arange(2000))
                for layer in (0, 5):
                    writer.begin_layer(layer, 2, 2, 1500, 4, 6)
                # In turns and in any order: a digest must not depend on it.
                for layer in (5, 0):
                    writer.write("k", 1, 700, rng.normal(size=(1300, 4)), layer)
                    writer.write("k", 0, 0, rng.normal(size=(2, 700, 4)), layer)
                    writer.write("k", 0, 700, rng.normal(size=(1300, 4)), layer)
                    writer.write("q", 0, 0, rng.normal(size=(2, 1500, 4)), layer)
                    writer.write("v", 0, 0, rng.normal(size=(2, 2000, 6)), layer)
                    writer.write_residual_norm(3, np.ones(1497), layer)
                    writer.write_residual_norm(0, np.ones(3), layer)
                    if prompt == "a":
                        writer.write_o_proj(weight, layer)
                    else:
                        self.assertTrue(writer.share_o_proj("a", layer))
        file = h5py.File(self.trace)
        self.addCleanup(file.close)
        return file

    def test_every_dataset_has_checksums(self):
        for dtype, gzip in (("float16", 4), ("bfloat16", 1), ("float32", 0)):
            found = {}

            def see(name, data, found=found):
                if isinstance(data, h5py.Dataset):
                    found[name] = data
            with self.everything(dtype, gzip) as file:
                file.visititems(see)
                # visititems sees one of several links: those of /rope, and of o_proj.
                self.assertEqual(len(found), 2 + 2 + 4 * 4 + 2)
                for name, data in found.items():
                    with self.subTest(dtype=dtype, name=name):
                        self.assertEqual(filters(data), ["shuffle", "deflate", "fletcher32"]
                                         if gzip else ["fletcher32"])
                        self.assertLessEqual(data.chunks[data.ndim == 3], 1024)
                        self.assertEqual(data.dtype.newbyteorder("<"), data.dtype)
                        if name[-1] in "qkv":
                            self.assertEqual(data.attrs["sha256"].tolist(),
                                             [sha256(head) for head in data[()]])
                        else:
                            self.assertEqual(data.attrs["sha256"], sha256(data[()]))
                            self.assertIsInstance(data.attrs["sha256"], str)
                self.assertEqual(file["prompts/b/layers/5/o_proj"].attrs["sha256"],
                                 file["prompts/a/layers/5/o_proj"].attrs["sha256"])
                kind = h5py.check_string_dtype(found["prompts/a/layers/0/k"].attrs.get_id(
                    "sha256").dtype)
                self.assertEqual((kind.encoding, kind.length), ("utf-8", None))

    def test_one_head_has_an_array_of_one_digest(self):
        self.write(lambda w: None)
        with h5py.File(self.trace) as file:
            self.assertEqual(file["prompts/a/layers/0/k"].attrs["sha256"].shape, (1,))
        # By hand: 20 times 1 as float16 is 00 3c.
        expected = hashlib.sha256(bytes.fromhex("003c") * 20).hexdigest()
        with h5py.File(self.trace) as file:
            self.assertEqual(file["prompts/a/layers/0/k"].attrs["sha256"].tolist(), [expected])

    def test_digests_are_those_of_little_endian_elements(self):
        values = np.arange(6, dtype="<f4").reshape(2, 3)
        self.assertEqual(digest.sha256_of(values), sha256(values))
        self.assertEqual(digest.sha256_of(values.astype(">f4")), sha256(values))
        self.assertEqual(digest.sha256_of(np.asfortranarray(values)), sha256(values))

    def test_more_heads_than_an_attribute_holds(self):
        with kt.TraceWriter(self.trace, "m", "s") as writer:
            writer.begin_prompt("a", 1)
            writer.begin_layer(0, 4500, 4500, 1, 1, 1, with_q=False, with_v=False)
            writer.write("k", 0, 0, np.ones((4500, 1, 1)))
        with h5py.File(self.trace) as file:
            self.assertNotIn("sha256", file["prompts/a/layers/0/k"].attrs)

    def test_a_layer_that_was_dropped(self):
        def drop(writer):
            writer.begin_layer(3, 1, 1, 1, 2, 2)
            writer.write("k", 0, 0, np.zeros((2, 2), np.float16))
            writer.drop_layer(3)
        self.write(drop)
        with h5py.File(self.trace) as file:
            self.assertEqual(list(file["prompts/a/layers"]), ["0"])
            self.assertIn("sha256", file["prompts/a/layers/0/v"].attrs)

    def test_the_program_reads_it(self):
        for dtype, gzip in (("float16", 4), ("bfloat16", 0)):
            self.everything(dtype, gzip).close()
            done = self.program("info", self.trace)
            self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_names_that_hdf5_cannot_hold(self):
        self.expect_error("expected UTF-8", lambda w: w.begin_prompt("a\udcff", 5))
        with kt.TraceWriter(self.trace, "m\udcff", "s\0") as writer:
            writer.begin_prompt("a", 1, text_id="\ud800")
            writer.begin_layer(0, 1, 1, 1, 1, 1, with_q=False, with_v=False)
            writer.write("k", 0, 0, np.ones((1, 1)))
        with h5py.File(self.trace) as file:
            self.assertEqual((file.attrs["model"], file.attrs["source"],
                              file["prompts/a"].attrs["text_id"]), ("m?", "s?", "?"))

    @unittest.skipIf(missing("torch"), f"{sys.executable} lacks torch; see make test-dump")
    def test_bfloat16_rounds_as_torch_does(self):
        import torch
        values = np.random.default_rng(1).standard_normal(4096).astype(np.float32)
        ties = np.arange(0x3F800000, 0x3F900000, 0x8000, dtype=np.uint32).view(np.float32)
        for array in (values, ties, values * 1e-39, -ties):
            expected = torch.from_numpy(array.copy()).bfloat16().view(torch.int16).numpy()
            self.assertTrue((kt.to_bfloat16(array) == expected.view(np.uint16)).all())


if __name__ == "__main__":
    unittest.main()
