"""kvbench-py convert: every container and axis order against the arrays that went in, names,
values, files that are not what they say. Partial traces, rotary tables, .pt: test_convert_parts.py.
"""

import os
import zipfile

try:
    import safetensors.numpy
except ImportError:
    safetensors = None

import convert_case
from convert_case import DV, HKV, HQ, KEYS, NQ, PATTERNS, PLAIN, SHAPES, ConvertCase, D, N, h5py, layer, np
from script_case import KVBENCH, read_bytes, read_rows, write_bytes, write_text

HEADLESS = ["--k", "{layer}", "--axes", "token dim"]  # keys of one head


class ConvertTracesTest(ConvertCase):
    def test_npz(self):
        layers = {0: layer(0), 3: layer(1), 11: layer(2)}
        for save in (np.savez, np.savez_compressed):
            self.convert(self.npz(layers, save=save), *PLAIN, "--model", "m@1", "--source", "s",
                         "--scale", "0.25", "--rope", "none", "--created", "2020-01-02")
            self.expect(layers)
        with h5py.File(self.out) as file:
            self.assertEqual(
                {key: value for key, value in file.attrs.items() if key != "members"},
                {"format": "kvbench-trace", "version": 1, "dtype": "float16",
                                   "rope": "none", "scale": 0.25, "model": "m@1", "source": "s",
                                   "created": "2020-01-02"})
            self.assertEqual(file["prompts/p0"].attrs["n_tokens"], N)

    def test_npy_and_a_file_per_array(self):
        tensors = layer(4, np.float32)
        paths = []
        for name, order in (("q", "C"), ("k", "F"), ("v", "C")):
            paths.append(self.path(f"layer_2.{name}.npy"))
            np.save(paths[-1], np.asarray(tensors[name], order=order))
        np.save(paths[0], tensors["q"].astype(">f4"))
        self.convert(*paths, *PLAIN)
        self.expect({2: tensors}, dtype="float32")

    def test_hdf5(self):
        layers = {0: layer(5), 3: layer(6, np.float32).copy()}
        layers[3] = {name: a.astype(np.float16) for name, a in layers[3].items()}
        for path, options in ((self.path("in.h5"), {}), (self.path("in.hdf5"), {"compression": "gzip"})):
            with h5py.File(path, "w") as file:
                for i, tensors in layers.items():
                    for role, a in tensors.items():
                        file.create_dataset(f"some/layer_{i}.{role}", data=a.astype(">f2"), **options)
                file["names"] = ["a text"]
                file["link"] = h5py.ExternalLink("/etc/passwd", "/x")
            self.convert(path, "--q", "some/layer_{layer}.q", "--k", "some/layer_{layer}.k", "--v",
                         "some/layer_{layer}.v", "--axes", "head token dim")
            self.expect(layers)
        with h5py.File(self.path("out.bin.h5"), "w") as file:
            file.create_dataset("layer_0.k", (2, 3, 4), "f4", external=[(self.path("foreign"), 0, 96)])
        os.rename(self.path("out.bin.h5"), self.path("e.h5"))
        self.refuse("its values are in other files", self.path("e.h5"), *KEYS)
        write_text(self.path("t.h5"), "no HDF5")
        self.refuse("cannot be read as .h5", self.path("t.h5"), *PLAIN)

    def test_a_vector_search_set(self):
        """Keys and queries without heads and layers: `train`, `test` and `neighbors`."""
        tensors = {name: a[:1] for name, a in layer(8, np.float32).items() if name != "v"}
        path = self.path("llama-128-ip.hdf5")
        with h5py.File(path, "w") as file:
            file["train"], file["test"] = tensors["k"][0], tensors["q"][0]
            file["neighbors"] = np.zeros((NQ, 3), np.int32)
        words = [path, "--k", "train", "--q", "test", "--axes", "token dim"]
        self.convert(*words, "--layer", "5", "--rope", "none")
        self.expect({5: tensors}, dtype="float32")
        if KVBENCH:
            self.done("cluster", self.out, "-o", self.path("clusters"))
            self.assertEqual(len(read_rows(self.path("clusters/attention.csv"))), 1)
            # Recall of queries needs values, which may be the keys.
            self.convert(*words, "--v", "train", "--layer", "0", "--rope", "none")
            self.done("replay", self.out, "-o", self.path("r.csv"), "--protocol", "retrieval", "--algorithm", "topk",
                      "--budget", "0.5", "--sink", "0", "--recent", str(NQ), "--queries", str(NQ))
            self.assertEqual({row["recall"] for row in read_rows(self.path("r.csv"))}, {"1"})
        self.refuse("expected {layer} in it, a layer axis or --layer", *words)
        self.refuse("--layer: got -1", *words, "--layer", "-1")

    def test_safetensors(self):
        path = self.path("in.safetensors")
        for dtype in (np.float16, np.float32):
            layers = {0: layer(5, dtype), 1: layer(6, dtype)}
            arrays = {f"layer_{i}.{role}": a for i, tensors in layers.items() for role, a in tensors.items()}
            convert_case.write_safetensors(path, {name: (f"F{8 * a.itemsize}", a) for name, a in arrays.items()})
            self.convert(path, *PLAIN)
            self.expect(layers, dtype=np.dtype(dtype).name)
            if safetensors:
                safetensors.numpy.save_file(arrays, path, {"k": "v"})
                self.convert(path, *PLAIN)
                self.expect(layers, dtype=np.dtype(dtype).name)

    def test_bfloat16_bits_survive(self):
        # Every finite bit pattern, subnormals and both zeros included, as one key head.
        every = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
        every = every[(every & 0x7F80) != 0x7F80].reshape(1, -1, 8)
        path = self.path("in.safetensors")
        convert_case.write_safetensors(path, {"layer_0.k": ("BF16", every)})
        self.convert(path, *KEYS)
        self.expect({0: {"k": every}}, dtype="bfloat16")
        # Integers are taken for bits on request only; ml_dtypes' arrays come back from .npy as V2.
        for stored in (every, every.view("V2")):
            source = self.npz({0: {"k": stored}})
            self.refuse("if they are the bits of bfloat16, say --dtype bfloat16", source, *KEYS)
            self.convert(source, *KEYS, "--dtype", "bfloat16")
            self.expect({0: {"k": every}}, dtype="bfloat16")
        # As float32: exact.
        self.convert(path, *KEYS, "--dtype", "float32")
        wide = (every.astype(np.uint32) << 16).view(np.float32)
        self.expect({0: {"k": wide}}, dtype="float32")

    def test_conversions(self):
        tensors = layer(7, np.float64)
        path = self.npz({0: tensors})
        self.refuse("or --dtype with the one that the model's cache has", path, *PLAIN)
        self.assertEqual(self.convert(path, *PLAIN, "--dtype", "float16"), "note: float64 is rounded to float16\n")
        self.expect({0: {name: a.astype(np.float16) for name, a in tensors.items()}})
        mixed = {"q": tensors["q"].astype(np.float16), "k": tensors["k"].astype(np.float32),
                 "v": tensors["v"].astype(np.float32)}
        path = self.npz({0: mixed})
        self.refuse("float16 (layer_0.q) and float32 (layer_0.k), expected one type", path, *PLAIN)
        self.assertEqual(self.convert(path, *PLAIN, "--dtype", "float32"), "")
        self.expect({0: {name: a.astype(np.float32) for name, a in mixed.items()}}, dtype="float32")
        # 1 + 2^-8 lies halfway between two bfloat16: to even, down; 1 + 3 * 2^-8: to even, up.
        halves = np.array([[[1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 1 + 2**-8 + 2**-20]]], np.float32)
        self.convert(self.npz({0: {"k": halves}}), *KEYS, "--dtype", "bfloat16")
        self.expect({0: {"k": np.array([[[0x3F80, 0x3F82, 0xBF80, 0x3F81]]], np.uint16)}}, dtype="bfloat16")

    def test_axes_in_any_order(self):
        letters = {"prompt": "p", "layer": "l", "head": "h", "token": "t", "dim": "d"}
        prompts = [{0: layer(10 + i), 1: layer(20 + i)} for i in range(3)]
        whole = {name: np.stack([np.stack([p[0][name], p[1][name]]) for p in prompts])
                 for name in "qkv"}  # [prompt, layer, head, token, dim]
        for order in ("prompt layer head token dim", "dim token head layer prompt",
                      "layer batch token head dim", "head,dim,layer,token,prompt"):
            to = "".join(letters[name.replace("batch", "prompt")] for name in order.replace(",", " ").split())
            path = self.path("in.npz")
            np.savez(path, **{name: np.einsum(f"plhtd->{to}", a) for name, a in whole.items()})
            self.convert(path, "--q", "q", "--k", "k", "--v", "v", "--axes", order)
            for index, layers in enumerate(prompts):
                self.expect(layers, f"p{index}")
        tensors = {name: a[:1] for name, a in layer(30).items()}
        path = self.npz({0: {"q": tensors["q"].transpose(1, 0, 2), "k": tensors["k"][0], "v": tensors["v"][None]}})
        self.convert(path, *PATTERNS, "--axes", "token dim", "--q-axes", "token head dim",
                     "--v-axes", "batch head token dim")
        self.expect({0: tensors})

    def test_what_is_refused(self):
        def broken(name, shape):
            return self.npz({0: {**layer(52), name: np.ones(shape, np.float16)}}, f"{name}{shape}.npz")
        path, axes = self.npz({0: layer(31)}), ("--axes", "head token dim")
        other = {name: np.ones((s[0], s[1] - (name != "q"), s[2]), np.float16) for name, s in SHAPES.items()}
        less = self.npz({0: layer(44), 1: {"q": layer(45)["q"], "k": layer(45)["k"]}}, "less.npz")
        for words, *arguments in (
                ("--axes is missing", path, *PATTERNS),
                ("got `width`, expected names among batch (or prompt), layer", path, *PATTERNS, "--axes",
                 "head token width"),
                ("expected every axis once", path, *PATTERNS, "--axes", "batch prompt token dim"),
                ("expected it to name `dim`", path, *PATTERNS, "--axes", "head token"),
                (f"in.npz: layer_0.q: got shape [{HQ}, {NQ}, {D}], expected 4 axes: prompt head", path, *PATTERNS,
                 "--axes", "batch head token dim"),
                (f"k has {N} heads, {HKV} tokens, dim {D}, v has {HKV} heads, {N} tokens", path, *PLAIN, "--k-axes",
                 "token head dim"),
                ("expected {layer} in it, a layer axis or --layer", path, "--k", "layer_0.k", *axes),
                ("no array matches --k `keys_{layer}`, got layer_0.q, layer_0.k", less, "--k", "keys_{layer}", *axes),
                ("prompt p0, layer 1 has no array for --v, got one for --q, --k", less, *PLAIN),
                ("got `{head}` in `{head}.k`, expected {prompt} or {layer}", path, "--k", "{head}.k", *axes),
                ("expected {layer} once", path, "--k", "{layer}{layer}", "--axes", "token dim"),
                ("no --k, and no array is called as in a saved past_key_values", path),
                ("expected the same dim", broken("q", (HQ, NQ, D + 1)), *PLAIN),
                ("expected no more queries than keys", broken("q", (HQ, N + 1, D)), *PLAIN),
                ("expected query heads to be a multiple", broken("q", (3, NQ, D)), *PLAIN),
                ("expected no axis of size 0", broken("v", (HKV, 0, DV)), *PLAIN),
                ("prompt p0: layer 1 has 10 tokens and layer 0 has 11, expected one length",
                 self.npz({0: layer(53), 1: other}, "two.npz"), *PLAIN),
                ("--rope: got pre, expected post or none", path, *PLAIN, "--rope", "pre"),
                ("argument --undo-repeat: got `0`", path, *PLAIN, "--undo-repeat", "0"),
                ("scale: got nan, expected a finite number", path, *PLAIN, "--scale", "nan"),
                ("prompt id: got `a/b`", path, *PLAIN, "--prompt-id", "a/b")):
            with self.subTest(words):
                self.refuse(words, *arguments)
        self.convert(path, *PLAIN)
        result = self.run_script(path, *PLAIN, "-o", self.out)
        self.assertEqual((result.code, result.err), (
            2, f"kvbench-py convert: {self.out}: exists, expected a new file or --overwrite\n"))
        self.expect({0: layer(31)})

    def test_prompts_from_names(self):
        prompts = {"a": {0: layer(40)}, "b-2": {0: layer(41)}}
        path = self.path("in.npz")
        np.savez(path, **{f"{p}/0/{role}": a for p, layers in prompts.items() for role, a in layers[0].items()})
        names = ["--q", "{prompt}/{layer}/q", "--k", "{prompt}/{layer}/k",
                 "--v", "{prompt}/{layer}/v", "--axes", "head token dim"]
        self.convert(path, *names)
        for prompt, layers in prompts.items():
            self.expect(layers, prompt)

    def test_a_file_per_prompt(self):
        paths = [self.npz({0: layer(42)}, "x.npz"), self.npz({0: layer(43)}, "y.npz")]
        self.refuse("layer 0 is also", *paths, *PLAIN)
        patterns = [a if a.startswith("--") else "{prompt}.npz::" + a for a in PATTERNS]
        self.convert(*paths, *patterns, "--axes", "head token dim")
        self.expect({0: layer(42)}, "x")
        self.expect({0: layer(43)}, "y")
        self.convert(paths[0], *PLAIN, "--prompt-id", "doc")
        self.expect({0: layer(42)}, "doc")

    def test_last_queries(self):
        tensors = layer(50)
        path = self.npz({0: tensors})
        self.convert(path, *PLAIN, "--last-queries", "3")
        self.expect({0: {**tensors, "q": tensors["q"][:, -3:]}})
        self.convert(path, *PLAIN, "--last-queries", "99")
        self.expect({0: tensors})

    def test_undo_repeat(self):
        tensors = layer(51)
        repeated = {**tensors, "k": np.repeat(tensors["k"], 2, 0), "v": np.repeat(tensors["v"], 2, 0)}
        path = self.npz({0: repeated})
        self.assertIn("neighbouring KV heads are equal", self.convert(path, *PLAIN))
        self.expect({0: repeated})
        self.assertEqual(self.convert(path, *PLAIN, "--undo-repeat", "2"), "")
        self.expect({0: tensors})
        self.refuse("k has 4 heads, 11 tokens, dim 8, expected a multiple of --undo-repeat 3", path,
                    *PLAIN, "--undo-repeat", "3")
        repeated["v"][3, 7, 2] += 1
        self.refuse("layer_0.v: layer 0: heads 2 and 3 differ at token 7, element 2",
                    self.npz({0: repeated}), *PLAIN, "--undo-repeat", "2")

    def test_values_that_no_trace_holds(self):
        for value, dtype, said in ((np.nan, np.float16, "nan"), (-np.inf, np.float32, "-inf"),
                                   (1e5, np.float32, "100000.0")):
            tensors = layer(54, dtype)
            tensors["k"][1, 9, 4] = value
            self.refuse(f"in.npz: layer_6.k: {self.out}: prompts/p0/layers/6/k: head 1, row 9, "
                        f"element 4: got {said}, expected a finite float16",
                        self.npz({2: layer(55, dtype), 6: tensors}), *PLAIN, "--dtype", "float16")
        self.refuse("got elements of type int64, expected float16",
                    self.npz({0: {"k": np.ones((1, 2, 2), np.int64)}}), *KEYS)

    def test_files_that_are_not_what_they_say(self):
        self.refuse("none.npz: no such file", self.path("none.npz"), *HEADLESS)
        self.refuse("unknown kind of file `.csv`, expected .npz, .npy", "x.csv", *HEADLESS)
        for name in ("bad.npz", "bad.npy", "bad.safetensors"):
            for content in (b"", b"x" * 7, b"x" * 5000):
                write_bytes(self.path(name), content)
                self.refuse(f"{name}: ", self.path(name), *HEADLESS)
        objects = self.path("objects.npz")
        np.savez(objects, **{"0": np.array([[{"a": 1}]], object)})
        self.refuse("objects.npz: 0: got elements of type object", objects, *HEADLESS)
        path = self.path("in.safetensors")
        convert_case.write_safetensors(path, {"0": ("F16", np.ones((2, 2), np.float16))})
        whole = read_bytes(path)
        write_bytes(path, whole[:-1])
        self.refuse("0: data at [0, 8) reach past the file's 7 bytes", path, *HEADLESS)
        write_bytes(path, whole.replace(b"[2, 2]", b"[2, 3]"))
        self.refuse("0: 8 bytes, expected 12 for shape [2, 3]", path, *HEADLESS)

    def test_headers_that_no_parser_survives(self):
        path = self.path("in.safetensors")
        for text in ("[" * 100_000, '{"a":' * 100_000):
            write_bytes(path, len(text).to_bytes(8, "little") + text.encode())
            self.refuse("in.safetensors: cannot be read as .safetensors: nested too deeply", path, *HEADLESS)
        text = '{"0": {"dtype": "F16", "shape": [2, 2], "data_offsets": [0, Infinity]}}'
        write_bytes(path, len(text).to_bytes(8, "little") + text.encode() + bytes(8))
        self.refuse("in.safetensors: 0: damaged header entry", path, *HEADLESS)
        # A .npy file's header is a Python literal.
        npy, text = self.path("0.npy"), "-" * 9000 + "1"
        write_bytes(npy, b"\x93NUMPY\x01\0" + len(text).to_bytes(2, "little") + text.encode())
        self.refuse("0.npy: cannot be read as .npy: nested too deeply", npy, *HEADLESS)
        with zipfile.ZipFile(self.path("in.npz"), "w") as archive:
            archive.write(npy, "0.npy")
        self.refuse("in.npz: cannot be read as .npz: nested too deeply", self.path("in.npz"), *HEADLESS)

