"""kvbench-py dump on small random models of many architectures.

Fisher information: test_dump_fisher.py; the writer alone: test_kvbench_trace.py.

Needs torch and transformers (`make test-dump`); without them every test is skipped. The models'
own attention outputs come from transformers' own attention, in a second copy of each model that
knows nothing of the dump: what a hook finds at the input of the output projection.
Environment: KVBENCH, the program; without it, it is not run.
"""

import json
import os

from dump_models import ARCHITECTURES, CHUNK_TOLERANCE, MISSING, NO_ROTATION, TOKENS, TOLERANCE, DumpCase, read_trace
from script_case import read_bytes

if not MISSING:
    import h5py
    import numpy as np
    import torch
    from dump_models import added_to_stream, attention, dump_traces, own_run, read_projections

# (cache's type, model's type, attention of the reference). A model that runs in float16 is compared
# with SDPA, the attention that our run used: between SDPA and eager its layers' inputs drift apart
# by roundings (3e-3 here), which is no fault of the dump. Where a release of transformers has eager
# attention alone (Gemma 2), so has the reference.
RUNS = [("float32", "float32", "eager"), ("float16", "float32", "eager"), ("float16", "float16", "sdpa")]
# Beside that of q, k and v, the module's output is rounded.
OUTPUT_TOLERANCE = {name: 2 * value for name, value in TOLERANCE.items()}
# name: (configuration, what differs, what lies between the projection and the residual stream).
OTHERS = {
    "cohere": ("CohereConfig", {}, None),  # Parallel blocks.
    "stablelm": ("StableLmConfig", {"use_parallel_residual": True}, None),
    "optpost": ("opt", {"do_layer_norm_before": False}, None),  # Norms behind the sum.
    "glm4": ("Glm4Config", {"head_dim": 16}, "Glm4RMSNorm behind it is folded in"),
    "olmo2": ("Olmo2Config", {}, "Olmo2RMSNorm behind it is folded in"),
    "exaone4": ("Exaone4Config", {"sliding_window": 64}, "Exaone4RMSNorm behind it is folded in"),
    "granite": ("GraniteConfig", {"residual_multiplier": 0.22}, "a factor of 0.22 behind it divides residual_norm"),
}
NORMED = {name: f"{name.capitalize()}RMSNorm behind it is folded in" for name in ("gemma2", "gemma3")}
MODELS = {name: (name, {}, NORMED.get(name)) for name in ARCHITECTURES} | OTHERS


class DumpTracesTest(DumpCase):
    def check_outputs(self, name, dtype, compute, implementation):
        """A dump's attention is the model's own, and its projections and norms those of the model."""
        config, changes, between = MODELS[name]
        model = self.model(name, config, **changes)
        path = self.dump(model, "--o-proj", "--dtype", dtype, "--compute-dtype", compute, "--attn-check")
        heads, outputs, weights, norms = own_run(model, self.ids, compute, implementation)
        behind = added_to_stream(model, self.ids, compute, implementation)
        factor = changes.get("residual_multiplier", 1.0)
        self.assertEqual(sorted(behind), [0, 1, 2] if "RMSNorm" in str(between) else [])
        layers, projections = read_trace(path), read_projections(path)
        for found in (layers, projections, heads, outputs):
            self.assertEqual(sorted(found), [0, 1, 2])
        for index, layer in layers.items():
            where, out = f"{name} layer {index}", attention(layer)
            expected = heads[index].reshape(TOKENS, 4, -1).transpose(1, 0, 2)
            for head in range(4) if name in ARCHITECTURES else ():
                self.assert_close(out[head], expected[head], TOLERANCE[dtype], f"{where} head {head}")
            # The first token attends to itself alone: v is what it should be, not only its sums.
            self.assert_close(np.repeat(layer["v"][:, 0], 4 // len(layer["v"]), 0), expected[:, 0], TOLERANCE[dtype])
            weight, norm, note = projections[index]
            added = out.transpose(1, 0, 2).reshape(TOKENS, -1) @ weight.T
            if index in behind:  # the norm's weight is in W, its divisor in the norms; its output is rounded too
                self.assert_close(added * (norms[index] / norm)[:, None], behind[index], 3 * TOLERANCE[dtype], where)
            else:
                self.assert_close(added, outputs[index], OUTPUT_TOLERANCE[dtype], where)
                self.assert_same(weight, weights[index])
                self.assert_close(norm.astype(float) * factor, norms[index], TOLERANCE[compute], where)
            self.assertIn(between or "None", str(note), where)
            if note:
                self.assertIn(note, self.stderr)
            if name in ARCHITECTURES:
                kv_heads = 2 if "num_key_value_heads" in ARCHITECTURES[name][1] else 4
                self.assertEqual([len(layer[part]) for part in "qkv"], [4, kv_heads, kv_heads])
        with h5py.File(path) as file:
            self.assertEqual(file.attrs["rope"], "none" if config in NO_ROTATION else "post")
            self.assertEqual(file.attrs["dtype"], dtype)
            self.assertEqual(file["prompts/p0/token_ids"][:].tolist(), self.ids.tolist())
        self.assertEqual(self.stderr.count("largest relative deviation"), 3)

    def test_attention_and_projections_are_the_models_own(self):
        for name in MODELS:
            for run in RUNS:
                with self.subTest(name=name, run=run):
                    self.check_outputs(name, *run)

    def test_bfloat16_is_the_models_bits(self):
        model = self.model("llama")
        bits = read_trace(self.dump(model, "--dtype", "bfloat16", "--compute-dtype", "float32"))
        full = read_trace(self.dump(model))
        for index, layer in full.items():
            for name in "qkv":
                self.assert_same(bits[index][name], torch.from_numpy(layer[name]).float().bfloat16().double().numpy())
        self.check_outputs("llama", "bfloat16", "bfloat16", "sdpa")

    def test_the_cpu_computes_in_float32(self):
        # That it does so is seen in the tables of test_dump_rope.py.
        for device, dtype, asked, expected in (
                ("cpu", "bfloat16", None, "float32"), ("cpu", "float16", "bfloat16", "bfloat16"),
                ("cuda:1", "float16", None, "float16"), ("cuda", "float16", "float32", "float32")):
            self.assertEqual(dump_traces.compute_dtype(device, dtype, asked), expected)

    def test_only_dumped_layers_are_counted(self):
        self.dump(self.model("llama"), "--layers", "0,2")
        self.assertIn(f"p0: {TOKENS} tokens, 2 layers, ", self.stderr)

    def test_unknown_devices(self):
        for device in ("gpu", "cuda:x"):
            for more in ((), ("--compute-dtype", "float32")):
                self.expect_error(f"--device: got `{device}`, expected cpu, cuda", "--model", self.model("llama"),
                                  "--token-ids", self.ids_file, "--device", device, *more)

    def test_a_trace_that_is_there_needs_overwrite(self):
        path = self.dump(self.model("llama"))
        before = read_bytes(path)
        common = ("--model", self.model("llama"), "--token-ids", self.ids_file, "-o", path)
        result = self.run_script(*common, "--layers", "0")
        self.assertEqual((result.code, result.err),
                         (2, f"kvbench-py dump: {path}: exists, expected a new file or --overwrite\n"))
        self.assertEqual(read_bytes(path), before)
        self.assertEqual(self.run_script(*common, "--layers", "0", "--overwrite").code, 0)
        self.assertEqual(list(read_trace(path)), [0])

    def test_chunks_make_the_same_trace(self):
        for name in ARCHITECTURES:
            whole = read_trace(self.dump(self.model(name)))
            single = [["--chunk", "1", "--last-queries", "5"]] if name in ("llama", "opt") else []
            for options in (*single, ["--chunk", "16"]):
                path = self.dump(self.model(name), "--attn-check", *options)
                for index, layer in read_trace(path).items():
                    for part in "qkv":
                        rows = layer[part].shape[1]
                        self.assert_close(layer[part], whole[index][part][:, TOKENS - rows:],
                                          CHUNK_TOLERANCE, f"{name} {index} {part} {options}")

    def test_selections_are_slices(self):
        for name, group in (("llama", 2), ("gpt_neox", 1), ("gpt2", 1), ("gemma2", 2)):
            path = self.dump(self.model(name), "--o-proj")
            whole, projections = read_trace(path), read_projections(path)
            for options in ((), ("--chunk", "7")):
                path = self.dump(self.model(name), "--o-proj", "--layers", "2,0", "--kv-heads", "1", "--last-queries",
                                 "9", *options)
                part, same = read_trace(path), self.assert_close if options else self.assert_same
                more = [CHUNK_TOLERANCE] if options else []
                self.assertEqual(sorted(part), [0, 2])
                for index, layer in part.items():
                    same(layer["q"], whole[index]["q"][group:2 * group, TOKENS - 9:], *more)
                    for role in "kv":
                        same(layer[role], whole[index][role][1:2], *more)
                    self.assertEqual(list(layer["kv_head_indices"]), [1])
                for index, (weight, norms, note) in read_projections(path).items():
                    columns, all_norms, all_note = projections[index]
                    width = columns.shape[1] // 4
                    self.assert_same(weight, columns[:, group * width:2 * group * width])
                    self.assert_close(norms, all_norms[TOKENS - 9:], CHUNK_TOLERANCE)
                    self.assertEqual(note, all_note)

    def prompts(self, *options, prompts, kind=(), model=None):
        """({name: (token ids, text_id)} of a new trace, its root attributes)."""
        prompts = [prompts] if isinstance(prompts, str) else prompts
        path = self.dump(model or self.words_model(), *options, prompts=(*kind, *prompts))
        with h5py.File(path) as file:
            return {name: (p["token_ids"][:].tolist(), p.attrs["text_id"])
                    for name, p in file["prompts"].items()}, dict(file.attrs)

    def test_a_text_is_one_prompt(self):
        found, root = self.prompts(prompts=self.file("words.txt", "w5 w6\n\nw7 nothing"))
        self.assertEqual(found, {"p0": ([1, 5, 6, 7, 2], "words.txt")})
        # The folder's name, and not where it stands on this machine.
        self.assertEqual((root["source"], root["model"]), ("words.txt", "words"))

    def test_a_dated_dump_can_be_made_again(self):
        texts = []
        for _ in range(2):
            path = self.dump(self.model("llama"), "--created", "2020-01-02", "--name", "m", "--source", "s")
            texts.append(read_bytes(path))
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
        context = list(range(10, 30))
        for options, expected in (
                ([], [[1, *context, 3, 4], [1, 50]]), (["--field", "context"], [[1, *context], [1, 50]]),
                (["--template", "@" + template], [[1, 8, 3, 4, 9, *context, 2], [1, 8, 9, 50, 2]]),
                (["--max-tokens", 5], [[1, 10, 29, 3, 4], [1, 50]]),
                (["--max-tokens", 4, "--truncate", "right"], [[1, 10, 11, 12], [1, 50]]),
                (["--max-prompts", 1, "--max-tokens", 1], [[3 + 1]])):
            found, _ = self.prompts("--max-prompts", 2, *options, prompts=data)
            self.assertEqual([ids for ids, _ in found.values()], expected)
            self.assertEqual(found["p0" if "p0" in found else "a"][1], "a")
        for text, *options in (("long.jsonl:5: no field `text`, it has _id",),
                               ("long.jsonl:1: no field `nope`", "--field", "nope"),
                               ("long.jsonl:1: no field `nope`", "--template", "{nope}")):
            self.expect_error(text, "--model", self.words_model(), data, *options)

    def test_names_sets_and_ids(self):
        def records(name, *entries):
            return self.file(name, "".join(json.dumps(
                {"id": id, "set": of, "text": text}) + "\n" for id, of, text in entries))
        one = records("one.jsonl", ("prose-1", "dev", "w5"), ("prose-2", "test", "w6 w7"))
        two = records("two.jsonl", ("code-1", "test", "w8"), ("code-2", "dev", "w9 w10 w11"))
        again = records("again.jsonl", ("prose-1", "test", "w12"))
        slash = records("slash.jsonl", ("a/b", "test", "w13"))
        found, root = self.prompts(prompts=(one, two))
        self.assertEqual(found, {"prose-1": ([1, 5], "prose-1"), "prose-2": ([1, 6, 7], "prose-2"),
                                 "code-1": ([1, 8], "code-1"), "code-2": ([1, 9, 10, 11], "code-2")})
        self.assertEqual(root["source"], "one.jsonl, two.jsonl")
        for options, names in ((["--set", "test"], {"prose-2", "code-1"}),
                               (["--prompts", "code-2,prose-1"], {"code-2", "prose-1"}),
                               (["--max-prompts", 3, "--set", "test"], {"prose-2", "code-1"}),
                               (["--max-prompts", 1, "--set", "test"], {"prose-2"})):
            self.assertEqual(set(self.prompts(*options, prompts=(one, two))[0]), names)
        # Names that clash or that HDF5 cannot have: numbers for all.
        self.assertEqual(self.prompts(prompts=(again, two))[0].keys(), {"prose-1", "code-1", "code-2"})
        self.assertEqual(self.prompts(prompts=(one, again))[0]["p2"], ([1, 12], "prose-1"))
        self.assertEqual(self.prompts(prompts=(two, slash))[0]["p2"], ([1, 13], "a/b"))
        for text, *options in (
                ("--prompts: no record prose-9", one, two, "--prompts", "prose-1,prose-9"),
                ("--prompts: no record prose-1 in set test", one, two, "--prompts", "prose-1,prose-2", "--set", "test"),
                ("--set: no record has the set tset", one, two, "--set", "tset"),
                *((f"plain.txt: {option} needs a .jsonl file", self.file("plain.txt", "w5"), option, "dev")
                  for option in ("--set", "--prompts")),
                ("--set and --prompts need PROMPTS", "--token-ids", self.ids_file, "--prompts", "a")):
            self.expect_error(text, "--model", self.words_model(), *options)

    def test_records_that_are_no_text_are_refused(self):
        model = ("--model", self.words_model())
        for record, expected in (
                ({"text": None}, "field `text` is null, expected a text"),
                ({"text": ["w5", "w6"]}, 'field `text` is ["w5", "w6"], expected a text'),
                ({"text": "bad \ud800 w5"}, "its text has half of a surrogate pair"),
                ({"context": "w5", "input": None}, "field `input` is null, expected a text")):
            bad = self.file("BAD.JSONL", json.dumps({"text": "w5"}) + "\n" + json.dumps(record) + "\n")
            self.expect_error(f"BAD.JSONL:2: {expected}", *model, bad)
        lines = self.file("list.jsonl", json.dumps({"text": "w5", "answers": ["w6"]}) + "\n")
        self.expect_error("list.jsonl:1: field `answers` is", *model, lines, "--template", "{text} {answers}")

    def test_ids_with_commas(self):
        data = self.file("comma.jsonl", "".join(json.dumps({"id": id, "text": text}) + "\n" for id, text in (
            ("law, 3", "w5"), ("law", "w6"), (" 3", "w7"), ("b", "w8"), ("half \udc00", "w9"))))
        for ids, expected in ((r"law\, 3", [5]), ("b,law", [6, 8]), (r"law\, 3,b,law", [5, 6, 8]),
                              (None, [5, 6, 7, 8, 9])):  # an id that no group can have: p0, p1, ...
            found, _ = self.prompts(*(["--prompts", ids] if ids else []), prompts=data)
            self.assertEqual(sorted(tokens[1] for tokens, _ in found.values()), expected)

    def test_padding_is_no_prompt(self):
        model = self.model("llama")
        for expected, record in (
                ([5, 6, 7], {"input_ids": [0, 0, 5, 6, 7], "attention_mask": [0, 0, 1, 1, 1]}),
                ([5, 6, 7], {"input_ids": [5, 6, 7, 0], "attention_mask": [1, 1, 1, 0], "position_ids": [0, 1, 2, 1]}),
                ([0, 5, 6], {"input_ids": [0, 5, 6], "attention_mask": None, "position_ids": [0, 1, 2]})):
            found, _ = self.prompts(prompts=self.file("padded.jsonl", json.dumps(record) + "\n"), kind=("--token-ids",),
                                    model=model)
            self.assertEqual(found["p0"][0], expected)
        ones = "`attention_mask`: expected ones with zeros before or"
        for name, value, expected in (
                *(("attention_mask", mask, ones) for mask in ([1, 0, 1], [0, 0, 0], [2, 1, 1])),
                *(("attention_mask", mask, "`attention_mask`: expected 3 integers") for mask in ([1, 1], [[1, 1, 1]])),
                ("position_ids", [5, 6, 7], "`position_ids`: expected 0 to 2"),
                ("position_ids", "012", "`position_ids`: expected 3 integers")):
            lines = self.file("bad.jsonl", json.dumps({"input_ids": [5, 6, 7], name: value}) + "\n")
            self.expect_error(f"bad.jsonl:1: {expected}", "--model", model, "--token-ids", lines)

    def test_what_is_not_plain_attention_is_refused(self):
        ids = ("--token-ids", self.ids_file)
        model = self.model("capped", "gemma2", attn_logit_softcapping=5.0)
        self.expect_error("layer 0: soft capping of logits", "--model", model, *ids)
        # The model itself must still run as it is: the last layer's input depends on the others.
        kept = read_trace(self.dump(model, "--inexact", "keep"))
        reference = own_run(model, self.ids)[0]
        first = reference[2].reshape(TOKENS, 4, -1)[0]
        self.assert_close(np.repeat(kept[2]["v"][:, 0], 2, 0), first, 1e-5)
        self.assertIn("soft capping", kept[2]["inexact"])
        model = self.model("falcon", "FalconConfig")
        self.expect_error("falcon: it does not use transformers' attention interface", "--model", model, *ids)

    def test_errors_are_one_line(self):
        model, ids = ("--model", self.model("llama")), ("--token-ids", self.ids_file)
        absent, empty = os.path.join(self.folder, "none"), os.path.join(self.folder, "empty")
        os.makedirs(empty, exist_ok=True)
        dynamic = self.model("dynamic", "llama", rope_parameters={
            "rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0})
        for text, *arguments in (
                (f"{absent}: no such folder", "--model", absent, *ids),
                ("its configuration cannot be loaded", "--model", empty, *ids),
                ("expected either PROMPTS or --token-ids", *model),
                ("200 tokens, the model is made for 128", "--model", self.model("opt"), "--token-ids",
                 self.file("many.jsonl", json.dumps([5] * 200))),
                ("its rotation depends on the prompt's length (dynamic)", "--model", dynamic, *ids, "--chunk", "8"),
                ("its tokenizer cannot be loaded", *model, self.file("a.txt", "w5")),
                ("cannot be read", *model, "--token-ids", absent),
                ("--layers: no attention layer 7, it has 0, 1, 2", *model, *ids, "--layers", "1,7"),
                ("--kv-heads: got 2, expected 0 to 1", *model, *ids, "--kv-heads", "2"),
                ("--layers: got `x`", *model, *ids, "--layers", "x"), ("--chunk", *model, *ids, "--chunk", "0")):
            self.expect_error(text, *arguments)
        for text, message in (('[5]\n[6', "bad.jsonl:2: not JSON"), ("[5]\n\n{}", "bad.jsonl:3: "),
                              ("[5, true]", "bad.jsonl:1: "), ("", "bad.jsonl: no prompts"),
                              ("[97]", "token id 97, expected 0 to 96"), ("[-1]", "token id -1")):
            self.expect_error(message, *model, "--token-ids", self.file("bad.jsonl", text))
        result = self.run_script(*model, *ids, "-o", os.path.join(absent, "t.h5"))
        self.assertEqual((result.code, result.err.count("\n")), (2, 1))
        if not torch.cuda.is_available():
            self.expect_error("--device cuda", *model, *ids, "--device", "cuda", code=3)
