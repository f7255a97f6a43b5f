"""kvbench-py dump on small random models of many architectures.

Fisher information: test_dump_fisher.py; the writer alone: test_kvbench_trace.py.

Needs torch and transformers (`make test-dump`); without them every test is skipped. The models'
own attention outputs come from transformers' own attention, in a second copy of each model that
knows nothing of the dump: what a hook finds at the input of the output projection.
Environment: KVBENCH, the program; without it, it is not run.
"""

import json
import os
import subprocess
import sys
import unittest

from dump_models import ARCHITECTURES, MISSING, NO_ROTATION, TOKENS, DumpCase, attends_as, read_trace
from script_case import KVBENCH, read_rows

if not MISSING:
    import h5py
    import numpy as np
    import torch
    import transformers
    from dump_models import dump_traces

OUTPUT_LAYERS = ("o_proj", "dense", "out_proj", "c_proj")
# (cache's type, model's type, attention of the reference). A model that runs in float16 is compared
# with SDPA, the attention that our run used: between SDPA and eager its layers' inputs drift apart
# by roundings (3e-3 here), which is no fault of the dump. Where a release of transformers has eager
# attention alone (Gemma 2), so has the reference.
RUNS = [("float32", "float32", "eager"), ("float16", "float32", "eager"),
        ("float16", "float16", "sdpa")]
# Rounding to 2^-11 (half an ulp) of q, k, v, and in the model of logits and probabilities: each
# 5e-4 at most and partly averaged out; bfloat16 has 3 bits less; 2^-24 in float32, over sums of 64
# and logits of about 10.
TOLERANCE = {"float16": 1e-3, "float32": 1e-5, "bfloat16": 8e-3}
# Chunks run through matrix products of other shapes, which sum in another order, in every layer.
CHUNK_TOLERANCE = 1e-5


def attention(q, k, v, scale):
    """Exact causal attention in double: q [Hq, nq, d], the last queries; out [Hq, nq, dv]."""
    n, nq, group = k.shape[1], q.shape[1], q.shape[0] // k.shape[0]
    out = np.empty((q.shape[0], nq, v.shape[2]))
    for head in range(q.shape[0]):
        for row in range(nq):
            last = n - nq + row
            logits = k[head // group, :last + 1] @ q[head, row] * scale
            weights = np.exp(logits - logits.max())
            out[head, row] = weights @ v[head // group, :last + 1] / weights.sum()
    return out


def own_outputs(path, ids, dtype, implementation="eager"):
    """[layer] -> the model's attention output [n, Hq * dv], by transformers' own attention."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=getattr(torch, dtype), attn_implementation="eager").eval()
    if model._supports_sdpa:
        model.set_attn_implementation(implementation)
    out = {}
    for module in model.modules():
        layer = getattr(module, "layer_idx", None)
        children = dict(module.named_children())
        names = [name for name in OUTPUT_LAYERS if name in children]
        if layer is not None and names and "Attention" in type(module).__name__:
            children[names[0]].register_forward_pre_hook(
                lambda _, inputs, layer=layer: out.update({layer: inputs[0][0].double().numpy()}))
    with torch.inference_mode():
        model(input_ids=torch.as_tensor(ids)[None])
    return out


@unittest.skipIf(MISSING, f"{sys.executable} lacks {', '.join(MISSING)}; see make test-dump")
class DumpTracesTest(DumpCase):
    def check_outputs(self, name, dtype, compute, implementation):
        model = self.model(name)
        path = self.dump(model, "--dtype", dtype, "--compute-dtype", compute, "--attn-check")
        expected = own_outputs(model, self.ids, compute, implementation)
        layers = read_trace(path)
        self.assertEqual(sorted(layers), [0, 1, 2])
        self.assertEqual(sorted(expected), [0, 1, 2])
        for index, layer in layers.items():
            q, k, v = (layer[part] for part in "qkv")
            kv_heads = 2 if "num_key_value_heads" in ARCHITECTURES[name][1] else 4
            self.assertEqual((len(q), len(k), len(v)), (4, kv_heads, kv_heads))
            out = attention(q, k, v, layer.get("scale", q.shape[2]**-0.5))
            expected_heads = expected[index].reshape(TOKENS, 4, -1).transpose(1, 0, 2)
            for head in range(4):
                self.assert_close(out[head], expected_heads[head], TOLERANCE[dtype],
                                  f"{name} layer {index} head {head}")
            # The first token attends to itself alone: v is what it should be, not only its sums.
            self.assert_close(np.repeat(v[:, 0], 4 // kv_heads, 0), expected_heads[:, 0],
                              TOLERANCE[dtype])
        with h5py.File(path) as file:
            self.assertEqual(file.attrs["rope"], "none" if name in NO_ROTATION else "post")
            self.assertEqual(file.attrs["dtype"], dtype)
            self.assertEqual(file["prompts/p0/token_ids"][:].tolist(), self.ids.tolist())
        self.assertEqual(self.stderr.count("largest relative deviation"), 3)

    def test_exact_attention_equals_the_models_own(self):
        for name in ARCHITECTURES:
            for run in RUNS:
                with self.subTest(name=name, run=run):
                    self.check_outputs(name, *run)

    def test_attention_is_not_uniform(self):
        # Otherwise the comparison above would say little of queries and keys.
        for name in ARCHITECTURES:
            for layer in read_trace(self.dump(self.model(name))).values():
                q, k, v = (layer[part] for part in "qkv")
                scale = layer.get("scale", q.shape[2]**-0.5)
                out, flat = attention(q, k, v, scale), attention(q, k, v, 0.0)
                self.assertGreater(np.linalg.norm(out - flat) / np.linalg.norm(out), 0.05, name)

    def test_bfloat16_is_the_models_bits(self):
        model = self.model("llama")
        bits = read_trace(self.dump(model, "--dtype", "bfloat16", "--compute-dtype", "float32"))
        full = read_trace(self.dump(model))
        for index, layer in full.items():
            for name in "qkv":
                self.assert_same(bits[index][name], torch.from_numpy(
                    layer[name]).float().bfloat16().double().numpy())
        self.check_outputs("llama", "bfloat16", "bfloat16", "sdpa")

    def test_the_cpu_computes_in_float32(self):
        model = self.model("llama")
        for dtype in ("float16", "bfloat16"):
            default, asked, own = (read_trace(self.dump(model, "--dtype", dtype, *options))
                                   for options in ((), ("--compute-dtype", "float32"),
                                                   ("--compute-dtype", dtype)))
            for index, layer in default.items():
                for part in "qkv":
                    self.assert_same(layer[part], asked[index][part])
            self.assertTrue((default[2]["k"] != own[2]["k"]).any(), dtype)
        for device, dtype, asked, expected in (
                ("cpu", "bfloat16", None, "float32"), ("cpu", "float16", "bfloat16", "bfloat16"),
                ("cuda:1", "float16", None, "float16"), ("cuda", "float16", "float32", "float32")):
            self.assertEqual(dump_traces.compute_dtype(device, dtype, asked), expected)

    def test_a_trace_that_is_there_needs_overwrite(self):
        path = self.dump(self.model("llama"))
        with open(path, "rb") as file:
            before = file.read()
        common = ("--model", self.model("llama"), "--token-ids", self.ids_file, "-o", path)
        result = self.run_script(*common, "--layers", "0")
        self.assertEqual((result.code, result.err),
                         (2, f"kvbench-py dump: {path}: exists, expected a new file or --overwrite\n"))
        with open(path, "rb") as file:
            self.assertEqual(file.read(), before)
        self.assertEqual(self.run_script(*common, "--layers", "0", "--overwrite").code, 0)
        self.assertEqual(list(read_trace(path)), [0])
        text = self.file("mine.txt", "precious")
        self.assertEqual(self.run_script(*common[:-1], text, "--overwrite").code, 2)
        with open(text, encoding="utf-8") as file:
            self.assertEqual(file.read(), "precious")

    def test_it_says_how_long_it_takes(self):
        lines = self.file("two.jsonl", "[5, 6]\n[7, 8, 9]\n")
        self.dump(self.model("llama"), prompts=("--token-ids", lines))
        self.assertRegex(self.stderr, r"p0: 2 tokens, 3 layers, \d+:\d\d; 1 more, about \d+:\d\d\n")
        self.assertRegex(self.stderr, r"p1: 3 tokens, 3 layers, \d+:\d\d\n")
        self.assertNotIn("\r", self.stderr)

    def test_chunks_make_the_same_trace(self):
        for name in ARCHITECTURES:
            whole = read_trace(self.dump(self.model(name)))
            single = [["--chunk", "1", "--last-queries", "5"]] if name in ("llama", "opt") else []
            for options in (*single, ["--chunk", "16"],
                            ["--chunk", "7", "--layers", "0,1", "--last-queries", "9"]):
                path = self.dump(self.model(name), "--attn-check", *options)
                for index, layer in read_trace(path).items():
                    for part in "qkv":
                        rows = layer[part].shape[1]
                        self.assert_close(layer[part], whole[index][part][:, TOKENS - rows:],
                                          CHUNK_TOLERANCE, f"{name} {index} {part} {options}")
        self.assertEqual(layer["q"].shape[1], 9)
        self.assertEqual(layer["k"].shape[1], TOKENS)

    def test_selections_are_slices(self):
        for name in ("llama", "gpt_neox"):
            group = 2 if name == "llama" else 1
            whole = read_trace(self.dump(self.model(name)))
            path = self.dump(self.model(name), "--layers", "2,0", "--heads", "1",
                             "--last-queries", "7")
            part = read_trace(path)
            self.assertEqual(sorted(part), [0, 2])
            for index, layer in part.items():
                self.assert_same(layer["q"],
                                 whole[index]["q"][group:2 * group, TOKENS - 7:])
                self.assert_same(layer["k"], whole[index]["k"][1:2])
                self.assert_same(layer["v"], whole[index]["v"][1:2])
                self.assertEqual(list(layer["kv_head_indices"]), [1])

    def test_kvbench_reads_and_replays(self):
        if not KVBENCH:
            self.skipTest("KVBENCH does not name the program")
        for name in ("gemma2", "gpt_neox", "opt"):
            for options in (["--dtype", "float16"], ["--chunk", "16", "--dtype", "bfloat16"]):
                path = self.dump(self.model(name), *options)
                subprocess.run([KVBENCH, "info", path], check=True, capture_output=True)
                table = path + ".csv"
                subprocess.run([KVBENCH, "replay", path, "-o", table, "--algorithm", "exact",
                                "--sink", "4", "--recent", "8", "--queries", "8", "--precision",
                                "float64"], check=True, capture_output=True)
                rows = read_rows(table)
                self.assertEqual(len(rows), 3 * 4)
                for row in rows:
                    # The uncompressed cache against itself: rounding of doubles and no more.
                    self.assertTrue(float(row["rel_error"]) <= 1e-12, row)

    def test_a_text_is_one_prompt(self):
        text = self.file("words.txt", "w5 w6\n\nw7 nothing")
        path = self.dump(self.words_model(), prompts=("--prompts", text))
        with h5py.File(path) as file:
            self.assertEqual(list(file["prompts"]), ["p0"])
            self.assertEqual(file["prompts/p0/token_ids"][:].tolist(), [1, 5, 6, 7, 2])
            self.assertEqual(file["prompts/p0"].attrs["text_id"], "words.txt")
            self.assertEqual(file.attrs["source"], "words.txt")
            # The folder's name, and not where it stands on this machine.
            self.assertEqual(file.attrs["model"], "words")

    def test_a_dated_dump_can_be_made_again(self):
        texts = []
        for _ in range(2):
            path = self.dump(self.model("llama"), "--created", "2020-01-02", "--name", "m",
                             "--source", "s")
            with open(path, "rb") as file:
                texts.append(file.read())
            with h5py.File(path) as file:
                self.assertEqual([file.attrs[name] for name in ("created", "model", "source")],
                                 ["2020-01-02", "m", "s"])
        self.assertEqual(texts[0], texts[1])

    def test_records_templates_and_truncation(self):
        records = [{"_id": "a", "context": " ".join(f"w{i}" for i in range(10, 30)),
                    "input": "w3 w4", "answers": ["w9"], "length": 20},
                   {"_id": "b", "context": "w50", "input": ""}, {"_id": "c"}]
        data = self.file("long.jsonl", "\n\n".join(map(json.dumps, records)))
        template = self.file("template.txt", "w8 {input} w9 {context} {w7")

        def ids(*options):
            path = self.dump(self.words_model(), *options, prompts=("--prompts", data))
            with h5py.File(path) as file:
                self.assertEqual(file["prompts/p0"].attrs["text_id"], "a")
                return [p["token_ids"][:].tolist() for p in file["prompts"].values()]
        context = list(range(10, 30))
        two = ("--max-prompts", 2)
        self.assertEqual(ids(*two), [[1, *context, 3, 4], [1, 50]])
        self.assertEqual(ids(*two, "--field", "context"), [[1, *context], [1, 50]])
        self.assertEqual(ids(*two, "--template", "@" + template),
                         [[1, 8, 3, 4, 9, *context, 2], [1, 8, 9, 50, 2]])
        self.assertEqual(ids(*two, "--max-tokens", 5), [[1, 10, 29, 3, 4], [1, 50]])
        self.assertEqual(ids(*two, "--max-tokens", 4, "--truncate", "right"),
                         [[1, 10, 11, 12], [1, 50]])
        self.assertEqual(ids("--max-prompts", 1, "--max-tokens", 1), [[3 + 1]])
        common = ("--model", self.words_model(), "--prompts", data)
        self.expect_error("long.jsonl:5: no field `text`, it has _id", *common)
        self.expect_error("long.jsonl:1: no field `nope`", *common, "--field", "nope")
        self.expect_error("long.jsonl:1: no field `nope`", *common, "--template", "{nope}")

    def test_names_sets_and_ids(self):
        def records(name, *entries):
            return self.file(name, "".join(json.dumps(
                {"id": id, "set": of, "text": text}) + "\n" for id, of, text in entries))
        one = records("one.jsonl", ("prose-1", "dev", "w5"), ("prose-2", "test", "w6 w7"))
        two = records("two.jsonl", ("code-1", "test", "w8"), ("code-2", "dev", "w9 w10 w11"))
        again = records("again.jsonl", ("prose-1", "test", "w12"))
        slash = records("slash.jsonl", ("a/b", "test", "w13"))

        def ids(*options, prompts=(one, two)):
            path = self.dump(self.words_model(), *options, prompts=("--prompts", *prompts))
            with h5py.File(path) as file:
                return {name: (p["token_ids"][1:].tolist(), p.attrs["text_id"])
                        for name, p in file["prompts"].items()}, file.attrs["source"]
        self.assertEqual(ids(), ({"prose-1": ([5], "prose-1"), "prose-2": ([6, 7], "prose-2"),
                                  "code-1": ([8], "code-1"), "code-2": ([9, 10, 11], "code-2")},
                                 "one.jsonl, two.jsonl"))
        self.assertEqual(set(ids("--set", "test")[0]), {"prose-2", "code-1"})
        self.assertEqual(set(ids("--ids", "code-2,prose-1")[0]), {"code-2", "prose-1"})
        self.assertEqual(set(ids("--max-prompts", 3, "--set", "test")[0]), {"prose-2", "code-1"})
        self.assertEqual(set(ids("--max-prompts", 1, "--set", "test")[0]), {"prose-2"})
        # Names that clash or that HDF5 cannot have: numbers for all.
        self.assertEqual(ids(prompts=(again, two))[0].keys(), {"prose-1", "code-1", "code-2"})
        self.assertEqual(ids(prompts=(one, again))[0]["p2"], ([12], "prose-1"))
        self.assertEqual(ids(prompts=(two, slash))[0]["p2"], ([13], "a/b"))
        common = ("--model", self.words_model(), "--prompts", one, two)
        self.expect_error("--ids: no record prose-9", *common, "--ids", "prose-1,prose-9")
        self.expect_error("--ids: no record prose-1 in set test", *common, "--ids",
                          "prose-1,prose-2", "--set", "test")
        self.expect_error("--set: no record has the set tset", *common, "--set", "tset")
        text = self.file("plain.txt", "w5")
        self.expect_error("plain.txt: --set needs a .jsonl file", "--model", self.words_model(),
                          "--prompts", text, "--set", "dev")
        self.expect_error("--set and --ids need --prompts", "--model", self.words_model(),
                          "--token-ids", self.ids_file, "--ids", "a")

    def test_records_that_are_no_text_are_refused(self):
        common = ("--model", self.words_model(), "--prompts")
        for record, expected in (
                ({"text": None}, "field `text` is null, expected a text"),
                ({"text": ["w5", "w6"]}, 'field `text` is ["w5", "w6"], expected a text'),
                ({"text": "bad \ud800 w5"}, "its text has half of a surrogate pair"),
                ({"context": "w5", "input": None}, "field `input` is null, expected a text")):
            for name in ("bad.jsonl", "BAD.JSONL"):
                bad = self.file(name, json.dumps({"text": "w5"}) + "\n" + json.dumps(record) + "\n")
                self.expect_error(f"{name}:2: {expected}", *common, bad)
        lines = self.file("list.jsonl", json.dumps({"text": "w5", "answers": ["w6"]}) + "\n")
        self.expect_error("list.jsonl:1: field `answers` is", *common, lines, "--template",
                          "{text} {answers}")

    def test_ids_with_commas(self):
        data = self.file("comma.jsonl", "".join(json.dumps({"id": id, "text": text}) + "\n" for id, text in (
            ("law, 3", "w5"), ("law", "w6"), (" 3", "w7"), ("b", "w8"), ("half \udc00", "w9"))))

        def ids(*texts):
            options = ["--ids", *texts] if texts else []
            path = self.dump(self.words_model(), *options, prompts=("--prompts", data))
            with h5py.File(path) as file:
                return [p["token_ids"][1] for p in file["prompts"].values()]
        self.assertEqual(ids(r"law\, 3"), [5])
        self.assertEqual(sorted(ids("b,law")), [6, 8])
        self.assertEqual(sorted(ids(r"law\, 3,b,law")), [5, 6, 8])
        self.assertEqual(sorted(ids()), [5, 6, 7, 8, 9])  # an id that no group can have: p0, p1, ...

    def test_padding_is_no_prompt(self):
        def dumped(**record):
            lines = self.file("padded.jsonl", json.dumps(record) + "\n")
            with h5py.File(self.dump(self.model("llama"), prompts=("--token-ids", lines))) as file:
                return file["prompts/p0/token_ids"][:].tolist()
        self.assertEqual(dumped(input_ids=[0, 0, 5, 6, 7], attention_mask=[0, 0, 1, 1, 1]), [5, 6, 7])
        self.assertEqual(dumped(input_ids=[5, 6, 7, 0], attention_mask=[1, 1, 1, 0],
                                position_ids=[0, 1, 2, 1]), [5, 6, 7])
        self.assertEqual(dumped(input_ids=[0, 5, 6], attention_mask=None, position_ids=[0, 1, 2]),
                         [0, 5, 6])
        for record, expected in (
                ({"attention_mask": [1, 0, 1]}, "`attention_mask`: expected ones with zeros before or"),
                ({"attention_mask": [0, 0, 0]}, "`attention_mask`: expected ones with zeros before or"),
                ({"attention_mask": [2, 1, 1]}, "`attention_mask`: expected ones with zeros before or"),
                ({"attention_mask": [1, 1]}, "`attention_mask`: expected 3 integers"),
                ({"attention_mask": [[1, 1, 1]]}, "`attention_mask`: expected 3 integers"),
                ({"position_ids": [5, 6, 7]}, "`position_ids`: expected 0 to 2"),
                ({"position_ids": "012"}, "`position_ids`: expected 3 integers")):
            lines = self.file("bad.jsonl", json.dumps({"input_ids": [5, 6, 7]} | record) + "\n")
            self.expect_error(f"bad.jsonl:1: {expected}", "--model", self.model("llama"),
                              "--token-ids", lines)

    def test_what_is_not_plain_attention_is_refused(self):
        ids = ("--token-ids", self.ids_file)
        model = self.model("capped", "gemma2", attn_logit_softcapping=5.0)
        self.expect_error("layer 0: soft capping of logits", "--model", model, *ids)
        # The model itself must still run as it is: the last layer's input depends on the others.
        kept = read_trace(self.dump(model, "--inexact", "keep"))
        reference = own_outputs(model, self.ids, "float32")
        first = reference[2].reshape(TOKENS, 4, -1)[0]
        self.assert_close(np.repeat(kept[2]["v"][:, 0], 2, 0), first, 1e-5)
        self.assertIn("soft capping", kept[2]["inexact"])
        model = self.model("bloom", "BloomConfig")
        self.expect_error("does not use transformers' attention interface", "--model", model, *ids)
        model = self.model("falcon", "FalconConfig")
        self.expect_error("falcon: it does not use transformers' attention interface", "--model", model,
                          *ids)

    def test_attn_check_sees_what_nothing_announces(self):
        class Shifted(dump_traces.Capture):
            def attend(self, *arguments):
                output, weights = super().attend(*arguments)
                return output + 0.01 * output.abs().mean(), weights
        with attends_as(Shifted):
            common = ("--model", self.model("llama"), "--token-ids", self.ids_file)
            self.expect_error("layer 0: attention that deviates", *common, "--attn-check")

    def test_errors_are_one_line(self):
        model, ids = self.model("llama"), ("--token-ids", self.ids_file)
        missing = os.path.join(self.folder, "none")
        self.expect_error(f"{missing}: no such folder", "--model", missing, *ids)
        empty = os.path.join(self.folder, "empty")
        os.makedirs(empty, exist_ok=True)
        self.expect_error("its configuration cannot be loaded", "--model", empty, *ids)
        self.expect_error("its tokenizer cannot be loaded", "--model", model, "--prompts",
                          self.file("a.txt", "w5"))
        for text, message in (('[5]\n[6', "bad.jsonl:2: not JSON"), ("[5]\n\n{}", "bad.jsonl:3: "),
                              ("[5, true]", "bad.jsonl:1: "), ("", "bad.jsonl: no prompts"),
                              ("[97]", "token id 97, expected 0 to 96"), ("[-1]", "token id -1")):
            bad = self.file("bad.jsonl", text)
            self.expect_error(message, "--model", model, "--token-ids", bad)
        self.expect_error("cannot be read", "--model", model, "--token-ids", missing)
        self.expect_error("--layers: no attention layer 7, it has 0, 1, 2", "--model", model, *ids,
                          "--layers", "1,7")
        self.expect_error("--heads: got 2, expected 0 to 1", "--model", model, *ids, "--heads", "2")
        self.expect_error("--layers: got `x`", "--model", model, *ids, "--layers", "x")
        self.expect_error("--chunk", "--model", model, *ids, "--chunk", "0")
        self.expect_error("one of the arguments", "--model", model)
        many = self.file("many.jsonl", json.dumps([5] * 200))
        self.expect_error("200 tokens, the model is made for 128", "--model", self.model("opt"),
                          "--token-ids", many)
        result = self.run_script("--model", model, *ids, "-o", os.path.join(missing, "t.h5"))
        self.assertEqual((result.code, result.err.count("\n")), (2, 1))
        if not torch.cuda.is_available():
            self.expect_error("--device cuda", "--model", model, *ids, "--device", "cuda", code=3)

    def test_a_rotation_by_length_needs_the_whole_prompt(self):
        model = self.model("dynamic", "llama", rope_parameters={
            "rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0})
        self.dump(model)
        self.expect_error("its rotation depends on the prompt's length (dynamic)", "--model", model,
                          "--token-ids", self.ids_file, "--chunk", "8")


if __name__ == "__main__":
    unittest.main()
