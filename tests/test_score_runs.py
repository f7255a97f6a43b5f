"""kvbench-py score: rows without figures, refusals, resuming, generation.

Needs torch and transformers (`make test-dump`); without them every test is skipped. Figures against
twins: test_score_model.py.
"""

import json
import unittest

from dump_models import MISSING, TOKENS
from script_case import read_text, write_text
from score_case import (MIDDLE, QUERIES, ScoreCase, everything, keep, own_logits)

if not MISSING:
    import h5py
    import numpy as np
    import torch
    import transformers
    from kvbench import caches as kc


class ScoreRunsTest(ScoreCase):
    def test_entries_without_figures(self):
        model = self.model("llama")
        trace = self.trace(model)

        def infeasible(head, layer, kv_head):
            return {"infeasible": "needs 9 bytes"} if (layer, kv_head) == (1, 0) else everything(
                head)
        caches = self.caches(
            trace, ("exact", everything), ("tight", infeasible),
            ("lacks", lambda head, layer, kv: everything(head) if layer != 2 else None),
            ("unfair", lambda *a: everything(*a) | {"degenerate": "two cells"}),
            ("loud", lambda *a: everything(*a) | {"log_weight": np.full(len(MIDDLE), -np.inf)}))
        with h5py.File(caches, "r+") as file:
            file["0000-exact/prompts/p0/layers/0/1/k"][0, 3] = np.nan
        rows = {row["algorithm"]: row for row in self.score(model, trace, caches, code=1)}
        self.assertIn("0000-exact/prompts/p0/layers/0/1: k[0, 3]: got nan, expected a finite",
                      rows["exact"]["status"])
        self.assertEqual(rows["tight"]["status"], "infeasible: layer 1, KV head 0: needs 9 bytes")
        self.assertEqual(rows["lacks"]["status"], "failed: layer 2, KV head 0: no entry, but other "
                                                  "groups have one")
        for name in ("exact", "tight", "lacks"):
            self.assertEqual(rows[name]["kl"] + rows[name]["loss"], "")
        self.assertEqual(rows["unfair"]["status"], "degenerate: layer 0, KV head 0: two cells")
        self.assertTrue(0 <= float(rows["unfair"]["kl"]) <= 1e-8)
        self.assertEqual(rows["loud"]["status"], "ok")
        self.assertIn("2 rows failed", self.stderr)

    def test_refusals(self):
        model = self.model("llama")
        trace = self.trace(model)
        caches = self.caches(trace, ("exact", everything))
        other = self.trace(model, "--layers", "0")
        self.refused("SHA-256: got", "--model", model, "--trace", other, "--caches", caches)
        stream = self.caches(trace, ("exact", everything), protocol="stream")
        common = ("--model", model, "--trace", trace, "--caches")
        self.refused("protocol: got stream, expected prefill", *common, stream)
        self.refused("not an HDF5 file", *common, self.ids_file)
        self.refused("format: got kvbench-trace, expected kvbench-caches", *common, trace)
        self.refused("no such file", *common, caches + "none")
        self.refused("--algorithms: no group of nope", *common, caches, "--algorithms", "nope")
        self.refused("--prompts: no prompt nope", *common, caches, "--prompts", "nope")
        changed = self.model("llama-other", "llama", initializer_range=0.21)
        self.refused("not the model of the trace", "--model", changed, "--trace", trace, "--caches",
                     caches)
        self.refused("not the model of the trace", "--model", self.model("gpt2"), "--trace", trace,
                     "--caches", caches)
        few = self.model("llama2", "llama", num_hidden_layers=2)
        self.refused("layer 2: " + few + " has no such attention layer, it has 0, 1", "--model",
                     few, "--trace", trace, "--caches", caches)
        bare = self.path(".h5")
        with h5py.File(trace) as file, h5py.File(bare, "w") as copy:
            copy.attrs.update(file.attrs)
            file.copy("prompts", copy)
            del copy["prompts/p0/token_ids"], copy["prompts/p0"].attrs["members"]
        self.refused("token_ids: got none", "--model", model, "--trace", bare, "--caches",
                     self.caches(bare, ("exact", everything)))
        long = self.caches(trace, ("exact", lambda head, *_: keep([])(head)),
                           windows={"sink": 0, "recent": TOKENS, "queries": TOKENS})
        self.refused(f"got {TOKENS} tokens, expected more than the {TOKENS} queries", *common, long)
        result = self.script("--model", model, "--trace", trace)
        self.assertEqual(result.code, 2)

    def test_inexact_layers_are_refused_where_caches_replace_them(self):
        model = self.model("gemma16", "gemma3", sliding_window=16)
        trace = self.trace(model, "--inexact", "keep")
        self.refused("layer 0: a sliding window of 16 tokens", "--model", model, "--trace", trace,
                     "--caches", self.caches(trace, ("exact", everything)))
        # Layer 1 sees all tokens; the others stay the model's own.
        caches = self.caches(trace, ("exact", lambda head, layer, _: everything(head)
                                     if layer == 1 else None))
        self.score(model, trace, caches)
        self.assert_logits(self.logits[0], own_logits(model, self.ids))
        model = self.model("dynamic", "llama", rope_parameters={
            "rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0})
        trace = self.trace(model)
        self.refused("its rotation depends on the prompt's length (dynamic)", "--model", model,
                     "--trace", trace, "--caches", self.caches(trace, ("exact", everything)))

    def test_resume_does_what_is_missing(self):
        model = self.model("llama")
        ids = self.file("three.jsonl", "".join(json.dumps(np.roll(self.ids, i).tolist()) + "\n"
                                               for i in range(3)))
        trace = self.dump(model, "--dtype", "float32", prompts=("--token-ids", ids))
        caches = self.caches(trace, ("exact", everything), ("local", keep([9, 20])))
        out = self.path(".csv")
        self.score(model, trace, caches, out=out)
        whole = read_text(out)
        lines = whole.splitlines(keepends=True)
        self.assertEqual(len(lines), 7)
        manifest = json.loads(read_text(out + ".json"))
        self.assertEqual((manifest["rows"], manifest["failed"]), (6, 0))
        self.assertEqual(manifest["caches"], {caches: kc.file_sha256(caches)})
        self.refused_again(model, trace, caches, out)
        for kept in ("".join(lines[:1]), "".join(lines[:4]), "".join(lines[:4]) + lines[4][:30],
                     whole[:-1], whole):
            write_text(out, kept)
            self.logits = []
            self.score(model, trace, caches, "--resume", out=out)
            self.assertEqual(read_text(out), whole)
            self.assertEqual(len(self.logits), 7 - max(1, kept.count("\n")))
        # A failed row is tried again.
        write_text(out, "".join(lines[:6]) + lines[6].replace(",ok", ",failed: once"))
        self.score(model, trace, caches, "--resume", out=out)
        self.assertEqual(read_text(out), whole)
        write_text(out, "a,b\n1,2\n")
        result = self.script("--model", model, "--trace", trace, "--caches", caches, "-o", out,
                             "--resume")
        self.assertIn("its columns are not those", result.err)
        write_text(out, whole)
        result = self.script("--model", model, "--trace", trace, "--caches", caches, "-o", out,
                             "--resume", "--compute-dtype", "float16")
        self.assertIn("--resume: compute_dtype: got float16, the rows that are there have float32",
                      result.err)
        rows = self.score(model, trace, caches, "--overwrite", "--prompts", "p1", "--algorithms",
                          "local", out=out)
        self.assertEqual([(row["prompt"], row["algorithm"]) for row in rows], [("p1", "local")])

    def refused_again(self, model, trace, caches, out):
        result = self.script("--model", model, "--trace", trace, "--caches", caches, "-o", out)
        self.assertEqual(result.code, 2)
        self.assertIn("is there already", result.err)

    def test_generation_is_the_models_own(self):
        model = self.words_model()
        trace = self.trace(model)
        records = self.file("records.jsonl", json.dumps({"id": "p0", "answer": "w999"}) + "\n")
        caches = self.caches(trace, ("exact", everything), ("none", keep([])))
        rows = self.score(model, trace, caches, "--prompt-records", records, "--answer-tokens", 9)
        own = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(model)
        said = own.generate(torch.as_tensor(self.ids)[None], do_sample=False, max_new_tokens=9)
        said = [token for token in said[0, TOKENS:].tolist() if token != 2]
        self.assertGreater(len(said), 4)
        self.assertEqual(rows[0]["answer"], tokenizer.decode(said))
        self.assertEqual(rows[0]["answer_exact"], tokenizer.decode(said))
        # Greedy over the cache without a middle: each token by a run of the masked model.
        bias = np.zeros((4, TOKENS))
        bias[:, MIDDLE] = -np.inf
        ids, other = self.ids.tolist(), []
        while len(other) < 9:
            wide = np.concatenate([bias, np.zeros((4, len(other)))], 1)
            token = int(own_logits(model, ids + other, wide, QUERIES + len(other))[-1].argmax())
            if token == 2:
                break
            other.append(token)
        self.assertEqual(rows[1]["answer"], tokenizer.decode(other))
        self.assertNotEqual(other, said)
        self.assertEqual((rows[0]["answer_right"], rows[0]["answer_exact_right"]), ("0", "0"))
        word = tokenizer.decode(said[2:3])
        records = self.file("records.jsonl", json.dumps({"id": "p0", "answer": word}) + "\n")
        rows = self.score(model, trace, caches, "--prompt-records", records)
        self.assertEqual((rows[0]["answer"], rows[0]["answer_right"], rows[0]["answer_expected"]),
                         (tokenizer.decode(said[:3]), "1", word))
        # Without a record nothing is asked.
        records = self.file("records.jsonl", json.dumps({"id": "p1", "answer": "w9"}) + "\n")
        rows = self.score(model, trace, caches, "--prompt-records", records)
        self.assertEqual({row["answer"] + row["answer_right"] for row in rows}, {""})


if __name__ == "__main__":
    unittest.main()
