"""kvbench-py convert: partial traces, rotary tables, saved .pt caches; what kvbench reads.

Environment: KVBENCH, the program; without it, it is not run.
"""

import sys
import types
import unittest
from unittest import mock

try:
    import torch
except ImportError:
    torch = None

from convert_case import DV, HKV, KEYS, PATTERNS, PLAIN, SHAPES, ConvertCase, D, N, h5py, layer, np
from script_case import read_rows, write_bytes

from kvbench.convert import rope as convert_rope


class ConvertPartsTest(ConvertCase):
    def test_partial_traces(self):
        keys = {index: {"k": layer(60 + index)["k"]} for index in range(2)}
        said = self.convert(self.npz(keys), *KEYS)
        self.assertIn("has no q and no v: `kvbench cluster` takes it", said)
        self.expect(keys)
        with h5py.File(self.out) as file:
            self.assertEqual(list(file["prompts/p0/layers/1"]), ["k"])
            self.assertEqual(file["prompts/p0/layers/1/k"].shape, SHAPES["k"])
        self.refuse("--key-only: got --q or --v as well", self.npz(keys), *PLAIN, "--key-only")
        tensors = {name: layer(62)[name] for name in "kv"}
        self.assertIn("has no q: ", self.convert(self.npz({0: tensors}), *PATTERNS[2:], "--axes", "head token dim"))
        self.expect({0: tensors})

    def test_rotary_tables(self):
        path = self.npz({0: layer(0), 5: layer(1)})
        tables = ["--rope-theta", "10000"]
        for dim, channels, kind in (([], D, "half"), (["--rope-dim", "4"], 4, "interleaved")):
            self.convert(path, *PLAIN, *tables, "--rope-layout", kind, *dim)
            self.expect({0: layer(0), 5: layer(1)})
            with h5py.File(self.out) as file:
                self.assertEqual(file.attrs["rope"], "post")
                self.assertEqual(sorted(file["rope"]), ["cos", "sin"])
                self.assertEqual(file["rope"].attrs["layout"], kind)
                for name, function in (("cos", np.cos), ("sin", np.sin)):
                    got = file["rope"][name][:]
                    self.assertEqual((got.dtype, got.shape), (np.float32, (N + 512, channels // 2)))
                    want = [[function(p * 10000.0**(-2 * i / channels))
                             for i in range(channels // 2)] for p in range(N + 512)]
                    # An angle of 522 in float32 is off by half a unit of its last place, 3e-5.
                    self.assertTrue(np.abs(got - want).max() <= 1e-4)
        self.convert(path, *PLAIN)
        with h5py.File(self.out) as file:
            self.assertNotIn("rope", file)

    @unittest.skipUnless(torch, "no torch")
    def test_rotary_tables_are_those_of_a_model(self):
        try:
            import transformers
        except ImportError:
            self.skipTest("no transformers")
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
        config = transformers.LlamaConfig(hidden_size=128, num_attention_heads=2, rope_theta=5e5)
        embedding = LlamaRotaryEmbedding(config)
        cos, sin = embedding(torch.zeros(1), torch.arange(4096)[None])
        got = convert_rope.rotary_tables(5e5, 64, 4096)
        for mine, theirs in zip(got, (cos, sin)):
            # A frequency may differ in the last place, 6e-8, which 4096 positions multiply.
            off = np.abs(mine - theirs[0, :, :32].numpy()).max()
            self.assertTrue(off <= 1e-3, off)

    def test_rotary_options_that_do_not_fit(self):
        path = self.npz({0: layer(0)})
        half = ["--rope-layout", "half"]
        for options, words in (
                (["--rope-theta", "1e4"], "--rope-theta: got no --rope-layout, expected half or"),
                (half, "got no --rope-theta"),
                (["--rope-theta", "inf", *half], "got `inf`, expected a number above 0"),
                (["--rope-theta", "1e4", *half, "--rope", "none"], "got it with --rope none"),
                *((["--rope-theta", "1e4", *half, "--rope-dim", dim], "an even number from 2 to 8")
                  for dim in ("0", "3", "10"))):
            self.refuse(words, path, *PLAIN, *options)
        one = self.path("one.npz")
        np.savez(one, **{"layer_0.k": np.ones((2, N, 8), np.float16), "layer_1.k": np.ones((2, N, 4), np.float16)})
        keys = ["--key-only", *KEYS]
        self.refuse("the layers' keys differ in dim, expected --rope-dim", one, *keys, "--rope-theta", "1e4", *half)
        self.convert(one, *keys, "--rope-theta", "1e4", *half, "--rope-dim", "4")

    def test_kvbench_reads_keys_alone(self):
        self.convert(self.npz({0: {"k": layer(65)["k"]}}), *KEYS)
        self.done("info", self.out)
        self.done("cluster", self.out, "-o", self.path("clusters"))
        self.assertEqual([row["what"] for row in read_rows(self.path("clusters/norms.csv"))], ["keys"] * HKV)
        self.done("replay", self.out, "-o", self.path("x.csv"), "--algorithm", "exact", code=2,
                  says="dataset is missing")

    @unittest.skipIf(torch is None, "no torch")
    def test_saved_past_key_values(self):
        layers = {index: {name: layer(70 + index)[name] for name in "kv"} for index in range(3)}
        pairs = [tuple(torch.from_numpy(tensors[name])[None] for name in "kv") for tensors in layers.values()]
        lists = {"key_cache": [k for k, _ in pairs], "value_cache": [v for _, v in pairs]}
        cache_layers = {"layers": [{"keys": k, "values": v} for k, v in pairs]}
        path = self.path("in.pt")
        for saved in (tuple(pairs), lists, cache_layers, {"past_key_values": tuple(pairs), "x": 1}):
            torch.save(saved, path)
            self.assertIn("has no q: ", self.convert(path))
            self.expect(layers)
        self.convert(path, "--key-only")
        self.expect({index: {"k": tensors["k"]} for index, tensors in layers.items()})
        torch.save(tuple(pairs), path, _use_new_zipfile_serialization=False)
        self.convert(path)
        self.expect(layers)
        # Queries beside them; and a file per prompt.
        queries = {index: layer(70 + index)["q"] for index in range(3)}
        torch.save({"past_key_values": tuple(pairs), "q": [torch.from_numpy(q)[None] for q in queries.values()]}, path)
        self.convert(path, "--q", "q.{layer}")
        self.expect({index: {**tensors, "q": queries[index]} for index, tensors in layers.items()})
        other = self.path("other.pt")
        torch.save(tuple(pairs[:1]), other)
        torch.save(tuple(pairs), path)
        self.convert(path, other)
        self.expect(layers, "in")
        self.expect({0: layers[0]}, "other")

    @unittest.skipIf(torch is None, "no torch")
    def test_bfloat16_tensors(self):
        values = torch.randn(1, HKV, N, D).to(torch.bfloat16)
        path = self.path("in.pt")
        torch.save(((values, values[..., :DV]),), path)
        self.convert(path)
        bits = values.view(torch.int16).numpy().view(np.uint16)[0]
        self.expect({0: {"k": bits, "v": bits[..., :DV]}}, dtype="bfloat16")

    @unittest.skipIf(torch is None, "no torch")
    def test_objects_are_not_unpickled(self):
        path = self.path("in.pt")
        torch.save({"k": torch.ones(1), "run": types.SimpleNamespace(a=1)}, path)
        self.refuse("`types.SimpleNamespace` that could run code on loading", path)
        write_bytes(path, b"nothing of the kind")
        self.refuse("in.pt: ", path)

    def test_torch_is_missed_in_one_line(self):
        path = self.path("in.pt")
        with open(path, "wb"):
            pass
        with mock.patch.dict(sys.modules, {"torch": None}):
            self.refuse("reading .pt needs PyTorch", path)
