"""python/kvbench/press: presses of kvpress in a small random model, and kvbench's methods as presses.

Every class of kvpress must be run here, or be refused with its reason. What `kvbench evaluate` makes of
the caches is checked, and which tokens a press keeps is compared with kvbench's method of that name.

Run by a python that has kvpress 0.5.5 and torch, as that of `make test-dump`; elsewhere it is skipped,
aloud. Environment: KVBENCH, the program. What needs no torch is in test_press_expression.py.
"""

import contextlib
import json
import os
import unittest

os.environ["HF_HUB_OFFLINE"] = "1"  # Nothing is asked of the network.

from peer_kvpress import MISSING, QUERIES, RECENT, TOKENS, PeerCase  # noqa: E402
from script_case import KVBENCH, call, read_rows, write_text  # noqa: E402

if not MISSING:
    import h5py
    import torch
    import transformers

    from kvbench.api.run import ProgramError
    from kvbench.caches import CacheReader
    from kvbench.command import run_main
    from kvbench.generate.functions import compress
    from kvbench.press import main as press
    from kvbench.press.adapter import as_press
    from kvbench.press.classes import CLASSES
    from kvbench.press.expression import PressError
    from kvbench.press.run import positions

SINK = 16
MIDDLE = range(SINK, TOKENS - RECENT)
HALF = len(MIDDLE) // 2
WINDOWS = ("--sink", str(SINK), "--recent", str(RECENT), "--queries", str(QUERIES))
SNAP = "SnapKVPress(0.5,window_size=32)"
# Of each class that runs: an expression, and whether its windows can be kept (its budget is then 0.5).
RUNS = {
    **{name: (f"{name}(0.5)", True) for name in (
        "CURPress", "CapPress", "CompactorPress", "ExpectedAttentionPress", "KeyDiffPress", "KnormPress",
        "LeverageScorePress", "NonCausalAttnPress", "ObservedAttentionPress", "StreamingLLMPress", "TOVAPress")},
    **{name: (f"{name}({SNAP})", True) for name in ("AdaKVPress", "CriticalKVPress")},
    # The press's own window is shorter than the recent tokens.
    "CriticalAdaKVPress": ("CriticalAdaKVPress(SnapKVPress(0.5,window_size=16))", True),
    **{name: (f"{name}({inner})", False) for name, inner in (
        ("BlockPress", "KeyDiffPress(0.5)"), ("ChunkKVPress", SNAP), ("ChunkPress", "KnormPress(0.5),chunk_length=100"),
        ("DMSPress", "KnormPress(),threshold=-7.0"), ("EntropyGatedChunkKVPress", SNAP), ("KVComposePress", "0.5"),
        ("KVgradPress", "0.5"), ("KVzipPress", "0.5"), ("SimLayerKVPress", "lazy_threshold=0.1,n_recent=128"),
        ("ThinKPress", "0.5"))},
    "ComposedPress": ("ComposedPress([KnormPress(0.3),ThinKPress(0.5)])", None),
    "LagKVPress": ("LagKVPress(0.5,lag_size=32)", True),
    "MergingPress": ("MergingPress(KnormPress(0.5))", True),
    "PerLayerCompressionPress": ("PerLayerCompressionPress(KnormPress(),compression_ratios=[0.25,0.5,0.75])", True),
    "PrefillDecodingPress": ("PrefillDecodingPress(prefilling_press=KnormPress(0.5))", True),
    "PyramidKVPress": ("PyramidKVPress(0.5,window_size=8,beta=4)", True),
    "RandomPress": ("RandomPress(0.5,seed=3)", True),
    "SnapKVPress": (SNAP, True),
}
# Kept tokens as kvbench's method has them: its name and parameters, and the least share of equal ones.
# Below 1, docs/python.md says why.
EQUAL = {
    "KnormPress": ("knorm", 1), "TOVAPress": ("tova", 1), "StreamingLLMPress": ("streamingllm:n_sink=0", 1),
    "SnapKVPress": ("snapkv", 0.97), "CURPress": ("curdkv", 0.95), "AdaKVPress": ("adakv", 0.95),
    "ExpectedAttentionPress": ("expected-attention", 0.97),
}


class PressCase(PeerCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model("words", "llama", max_position_embeddings=2048)
        cls.folder_of_model = cls.words_model()
        cls.trace_file = os.path.join(cls.folder, "t.h5")

    def setUp(self):
        if not os.path.exists(self.trace_file):
            os.rename(self.dump(self.folder_of_model, "--dtype", "float32", "--o-proj"), self.trace_file)

    def press(self, out, *presses, options=(), code=0, model=None, trace=None):
        result = call(lambda: run_main(press.main), "kvbench-py press", "--model", model or self.folder_of_model,
                      trace or self.trace_file, "-o", out, *WINDOWS, *options,
                      *(word for one in presses for word in ("--press", one)))
        self.assertEqual(result.code, code, result.err)
        return result

    def caches(self, *presses, dtype="float32", count=300):
        """(a model, its cache of the prompt's first tokens, its caches of them under each press)."""
        model = transformers.AutoModelForCausalLM.from_pretrained(
            self.folder_of_model, dtype=getattr(torch, dtype), attn_implementation="sdpa")
        out = [transformers.DynamicCache() for _ in (None, *presses)]
        for own, cache in zip((contextlib.nullcontext, *presses), out):
            with torch.no_grad(), own(model):
                model(input_ids=torch.as_tensor(self.ids[:count])[None], past_key_values=cache)
        return model, *out

    def path(self, end):
        return os.path.join(self.folder, self.id() + end)

    @staticmethod
    def tokens(path):
        """{(algorithm, layer, head): (positions of the middle, attributes)} of a caches file."""
        with CacheReader(path) as reader:
            return {(group.algorithm, *place): (entry.token[entry.token >= 0], len(entry.k))
                    for group in reader.groups for place in group.heads("p0")
                    for entry in [group.read("p0", *place)]}


class ClassesTest(PressCase):
    def test_every_class_is_run_or_refused(self):
        there = {one.__name__ for one in self.all_classes(press.kvpress.BasePress)}
        self.assertEqual(there - set(CLASSES), set(), "not classified: press/classes.py, docs/python.md")
        self.assertEqual(set(press.press_classes()) - set(CLASSES), set())
        idle = {name for name, one in CLASSES.items() if one.refused or one.downloads}
        self.assertEqual(set(RUNS) | idle, set(CLASSES))
        self.assertEqual(set(RUNS) & idle, set())

    def all_classes(self, base):
        own = {one for one in base.__subclasses__() if one.__module__.startswith("kvpress.")}
        return {base}.union(*map(self.all_classes, own))

    def test_those_that_do_not_run_say_why(self):
        inner = {"CAMPress": "base_press=KnormPress()", "DecodingPress": "base_press=KnormPress()",
                 "CompressionRatioDecodingPress": "base_press=KnormPress()",
                 "KeyRerotationPress": "KnormPress(0.5)"}
        for name, known in CLASSES.items():
            if known.refused or known.downloads:
                plain = known.refused or "Duo" in name or "LUKV" in name
                out = self.path(".h5")
                result = self.press(out, f"{name}({inner.get(name, '' if plain else '0.5')})", code=2)
                self.assertIn(known.refused or known.downloads, result.err)
                self.assertEqual(len(result.err.splitlines()), 1, result.err)
                self.assertFalse(os.path.exists(out) or os.path.exists(out + ".part"))


class RunsTest(PressCase):
    def test_all_presses(self):
        out, table = self.path(".h5"), self.path(".csv")
        texts = {name: text for name, (text, _) in RUNS.items() if name != "ComposedPress"}
        said = self.press(out, *texts.values()).err
        self.assertEqual(len(said.strip().splitlines()), len(texts), said)
        # Keys that were changed and dropped both have no place.
        self.assertIn("which of them lie in the windows", self.press(
            self.path("2.h5"), "ComposedPress([ThinKPress(0.5),KnormPress(0.3)])", code=2).err)
        self.done("evaluate", self.trace_file, "--caches", out, "-o", table)
        rows = read_rows(table)
        self.assertEqual({row["status"] for row in rows}, {"ok"})
        self.assertEqual(len(rows), len(texts) * 3 * 4)
        for row in rows:
            kept = RUNS[row["algorithm"]][1]
            params = dict(part.split("=", 1) for part in row["params"].split(";"))
            self.assertEqual(params["windows"], "kept" if kept else "as-is")
            self.assertEqual(row["budget_requested"], "0.5" if kept else "", row)
        # As many as were asked for, where the budget is.
        scopes = {"AdaKVPress": "layer", "CriticalAdaKVPress": "layer", "PyramidKVPress": "layers",
                  "PerLayerCompressionPress": "layers"}
        with CacheReader(out) as reader:
            for group in reader.groups:
                sizes = {place: len(group.read("p0", *place).k) for place in group.heads("p0")}
                self.assertEqual(len(sizes), 6, group)
                if not RUNS[group.algorithm][1]:
                    continue
                per_layer = [sizes[layer, 0] + sizes[layer, 1] for layer in range(3)]
                if group.scope == "head":
                    self.assertEqual(set(sizes.values()), {HALF}, group)
                elif group.scope == "layer":
                    self.assertEqual(set(per_layer), {2 * HALF}, group)
                else:
                    self.assertLessEqual(sum(per_layer), 6 * HALF)
                    self.assertGreater(sum(per_layer), 6 * HALF - 12, group)
                self.assertEqual(group.scope, scopes.get(group.algorithm, "head"), group)

    def test_what_pyramidkvs_rounding_adds_is_taken_off(self):
        out = self.path(".h5")
        self.press(out, "PyramidKVPress(0.6,window_size=1,beta=2)")
        self.assertEqual(sum(size for _, size in self.tokens(out).values()), 6 * int(0.4 * len(MIDDLE)))

    def test_as_is_is_what_kvpress_keeps(self):
        out = self.path(".h5")
        self.press(out, SNAP, "AdaKVPress(KnormPress(0.5))", options=("--windows", "as-is"))
        from kvpress import AdaKVPress, KnormPress, SnapKVPress
        model, whole, cut, _ = self.caches(SnapKVPress(0.5, 32), AdaKVPress(KnormPress(0.5)), count=TOKENS - QUERIES)
        found = self.tokens(out)
        for layer in range(3):
            mask = model.model.layers[layer].self_attn.masked_key_indices
            for head in range(2):
                at = positions(whole.layers[layer].keys[0, head], cut.layers[layer].keys[0, head])
                want = sorted(set(at) & set(MIDDLE))
                self.assertEqual(found["SnapKVPress", layer, head][0].tolist(), want)
                gone = set(mask[2][mask[1] == head].tolist())
                self.assertEqual(found["AdaKVPress", layer, head][0].tolist(), sorted(set(MIDDLE) - gone))

    def test_think_pays_for_the_channels_it_keeps(self):
        out = self.path(".h5")
        self.press(out, "ThinKPress(0.5)")
        with h5py.File(out) as file:
            (group,) = file.values()
            entry = group["prompts/p0/layers/1/0"]
            b, d = entry["k"].shape
            self.assertEqual(b, len(MIDDLE))
            self.assertEqual(entry.attrs["payload_bytes"], 4 * b * (d // 2 + d))
            self.assertEqual(entry.attrs["aux_bytes"], d // 8)
            self.assertEqual(int((entry["k"][:] == 0).all(0).sum()), d // 2)

    def test_another_model_and_a_short_prompt_are_refused(self):
        other = self.model("other", "llama", max_position_embeddings=2048, rope_theta=500.0,
                           change=lambda model: model.model.embed_tokens.weight.neg_())
        windowed = self.model("gemma3", max_position_embeddings=2048)
        for words, more in (
                ("not the model of the trace", {"model": other}),
                ("there is no middle", {"options": ("--recent", "690")}),
                ("layer 0 of Gemma3ForCausalLM has a sliding window of 64 tokens, the press reads 636",
                 {"model": windowed, "trace": self.dump(windowed)})):
            self.assertIn(words, self.press(self.path(".h5"), SNAP, code=2, **more).err)

    def test_kept_tokens_against_the_methods_of_kvbench(self):
        mine, theirs = self.path(".h5"), self.path("-kvbench.h5")
        self.press(mine, *(RUNS[name][0] for name in EQUAL))
        found = self.tokens(mine)
        for name, (algorithm, least) in EQUAL.items():
            self.done("replay", self.trace_file, "-o", self.path(".csv"), "--overwrite", "--algorithm", algorithm,
                      "--budget", "0.5", *WINDOWS, "--export-caches", theirs)
            other = {place[1:]: token for place, (token, _) in self.tokens(theirs).items()}
            same = total = 0
            for place, token in other.items():
                same += len(set(token) & set(found[name, *place][0]))
                total += len(token)
            self.assertGreaterEqual(same / total, least, name)


@unittest.skipUnless(KVBENCH, "KVBENCH names no program")
class AsPressTest(PressCase):
    def test_kept_tokens_are_the_models_own(self):
        for dtype in ("float32", "bfloat16"):
            _, whole, out = self.caches(as_press("snapkv", 0.5, window=16, kernel=1), dtype=dtype)
            for before, after in zip(whole.layers, out.layers):
                self.assertEqual(after.keys.shape, (1, 2, 150, 16))
                self.assertEqual(after.keys.dtype, before.keys.dtype)
                for head in range(2):
                    at = positions(before.keys[0, head], after.keys[0, head])
                    self.assertEqual(list(at), sorted(set(at)))
                    self.assertEqual(set(at) & set(range(16)), set(range(16)))
                    self.assertTrue(torch.equal(after.values[0, head], before.values[0, head, at]))

    def test_methods_that_need_tables_and_projections_run(self):
        for name in ("expected-attention", "compactor", "criticalkv", "value-merge"):
            *_, out = self.caches(as_press(name, 0.5))
            self.assertEqual({layer.keys.shape[2] for layer in out.layers}, {150}, name)

    def test_every_method_is_that_of_compress(self):
        # The press has read the tokens that compress leaves to be decoded, and its windows begin one earlier.
        policy = write_text(self.path(".json"), json.dumps({
            "format": "kvbench-policy", "version": 1, "model": "words", "budget": 0.25, "layers": [
                {"layer": layer, "algorithm": name, "budget": 0.25}
                for layer, name in enumerate(("adakv", "quant-rotated", "h2o@quant-kivi"))]}))
        ids, context = torch.as_tensor(self.ids[None, :309]), 300
        for arguments in ({"algorithm": "adakv", "budget": 0.25}, {"algorithm": "pyramidkv", "budget": 0.25},
                          {"algorithm": "kmeans", "budget": 0.25}, {"algorithm": "clustergen", "budget": 0.25},
                          {"algorithm": "snapkv", "budget": 0.25}, {"policy": policy}):
            with self.subTest(arguments):
                model, cache = self.caches(as_press(**arguments))[0::2]
                with torch.no_grad():
                    found = model(ids[:, context:], past_key_values=cache,
                                  position_ids=torch.arange(context, 309)[None]).logits
                    expected = model(ids[:, context:], past_key_values=compress(
                        model, ids[:, :context + 1], **arguments)).logits
                self.assertLess(float((found - expected).abs().max()), 1e-4)  # logits of about 10 in float32

    def test_what_cannot_be_is_refused(self):
        for name, ratio, words in (("quant-kivi", 0.5, "needs .* bytes"), ("exact", 0.5, "expected none")):
            with self.assertRaisesRegex(PressError, f"^{name}: .*{words}"):
                self.caches(as_press(name, ratio))
        from kvpress import ComposedPress
        with self.assertRaisesRegex(PressError, "uniform: holds log weights"):
            self.caches(ComposedPress([as_press("uniform", 0.5)]))
        windowed = transformers.AutoModelForCausalLM.from_pretrained(
            self.model("gemma3", max_position_embeddings=2048), dtype=torch.float32)
        with self.assertRaisesRegex(PressError, "layer 0 has a sliding window of 64"), as_press("knorm", 0.5)(windowed):
            windowed(input_ids=torch.as_tensor(self.ids[None, :300]))
        with self.assertRaisesRegex(PressError, "expected at least sink 16 and recent 64"):
            self.caches(as_press("snapkv", 0.9))
        with self.assertRaisesRegex(PressError, "expected one prompt at a time"):
            as_press("snapkv", 0.5).compress(None, torch.zeros(2, 9, 4), torch.zeros(2, 1, 9, 4),
                                             torch.zeros(2, 1, 9, 4), None, {})
        for words, arguments, named in (
                ("got `snapkv:window=3,5`", ("snapkv:window=3,5", 0.5), {}), ("got ``", ("", 0.5), {}),
                ("compression_ratio 1.0", ("snapkv", 1.0), {}), ("recent", ("snapkv", 0.5), {"recent": 0}),
                ("expected one of them", ("snapkv", 0.5), {"budget": 0.5}), ("got 1.5, expected", ("snapkv",),
                                                                             {"budget": 1.5}),
                ("topk: does not run under --protocol prefill", ("topk", 0.5), {}),
                ("no parameter 'windows' .did you mean window", ("snapkv",), {"windows": 3}),
                ("window: got 'x', expected an integer", ("snapkv",), {"window": "x"}),
                ("snapvk.*did you mean snapkv", ("snapvk",), {})):
            with self.assertRaisesRegex((PressError, ProgramError), words):
                as_press(*arguments, **named)

    def test_the_pipeline_takes_it(self):
        from kvpress import KVPressTextGenerationPipeline
        model = transformers.AutoModelForCausalLM.from_pretrained(self.folder_of_model, dtype=torch.float32)
        tokenizer = transformers.AutoTokenizer.from_pretrained(self.folder_of_model)
        pipe = KVPressTextGenerationPipeline(model=model, tokenizer=tokenizer, device="cpu")
        text = " ".join(f"w{i}" for i in self.ids[:300])
        for own in (as_press("knorm", 0.5), as_press("kmeans", 0.5)):
            one, other, again = pipe(text, questions=["w5 w6", "w7", "w5 w6"], press=own, max_new_tokens=4)["answers"]
            self.assertEqual(one, again)  # without the answers between
            self.assertNotEqual(one, other)
