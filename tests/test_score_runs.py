"""kvbench-py score: rows without figures, refusals, resuming, generation, likelihoods of answers.

Needs torch and transformers (`make test-dump`); without them every test is skipped. Figures against
references: test_score_model.py.
"""

import json

from dump_models import MISSING, TOKENS
from score_case import MIDDLE, QUERIES, TOLERANCE, ScoreCase, everything, keep, own_logits
from script_case import read_text, write_text

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
        common, of = ("--model", model, trace, "--caches"), (trace, "--caches", caches)
        few = self.model("llama2", "llama", num_hidden_layers=2)
        long = self.caches(trace, ("exact", lambda head, *_: keep([])(head)),
                           windows={"sink": 0, "recent": TOKENS, "queries": TOKENS})
        bare = self.path(".h5")
        with h5py.File(trace) as file, h5py.File(bare, "w") as copy:
            copy.attrs.update(file.attrs)
            file.copy("prompts", copy)
            del copy["prompts/p0/token_ids"], copy["prompts/p0"].attrs["members"]
        for text, *arguments in (
                ("SHA-256: got", "--model", model, self.trace(model, "--layers", "0"), "--caches", caches),
                ("protocol: got stream, expected prefill", *common,
                 self.caches(trace, ("exact", everything), protocol="stream")),
                ("not an HDF5 file", *common, self.ids_file),
                ("format: got kvbench-trace, expected kvbench-caches", *common, trace),
                ("no such file", *common, caches + "none"),
                ("--algorithm: no group of nope", *common, caches, "--algorithm", "nope"),
                ("--prompts: no prompt nope", *common, caches, "--prompts", "nope"),
                ("not the model of the trace", "--model", self.model("llama-other", "llama", initializer_range=0.21),
                 *of),
                ("not the model of the trace", "--model", self.model("gpt2"), *of),
                (f"layer 2: {few} has no such attention layer, it has 0, 1", "--model", few, *of),
                ("token_ids: got none", "--model", model, bare, "--caches", self.caches(bare, ("exact", everything))),
                (f"got {TOKENS} tokens, expected more than the {TOKENS} queries", *common, long)):
            with self.subTest(text):
                self.refused(text, *arguments)
        dynamic = {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}}
        for text, name, changes, *options in (
                ("layer 0: soft capping of logits", "gemma2", {"attn_logit_softcapping": 30.0}, "--inexact", "keep"),
                ("its rotation depends on the prompt's length (dynamic)", "llama", dynamic)):
            model = self.model("inexact " + name, name, **changes)
            trace = self.trace(model, *options)
            self.refused(text, "--model", model, trace, "--caches", self.caches(trace, ("exact", everything)))

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
        self.assertIn("already exists", self.script("--model", model, trace, "--caches", caches, "-o", out).err)
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
        for held, text, *options in (
                ("a,b\n1,2\n", "its columns are not those"),
                (whole, "compute_dtype: got float16, existing rows have float32", "--compute-dtype", "float16")):
            write_text(out, held)
            self.assertIn(text, self.script("--model", model, trace, "--caches", caches, "-o", out, "--resume",
                                            *options).err)
        rows = self.score(model, trace, caches, "--overwrite", "--prompts", "p1", "--algorithm",
                          "local", out=out)
        self.assertEqual([(row["prompt"], row["algorithm"]) for row in rows], [("p1", "local")])

    def test_generation_is_the_models_own(self):
        model = self.words_model()
        trace = self.trace(model)
        caches = self.caches(trace, ("exact", everything), ("none", keep([])))
        rows = self.score(model, trace, caches, "--records", self.records_of(answer="w999"), "--answer-tokens", 9)
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
        rows = self.score(model, trace, caches, "--records", self.records_of(answer=word))
        self.assertEqual((rows[0]["answer"], rows[0]["answer_right"], rows[0]["answer_expected"]),
                         (tokenizer.decode(said[:3]), "1", word))
        # Without a record nothing is asked.
        rows = self.score(model, trace, caches, "--records", self.records_of(id="p1", answer="w9"))
        self.assertEqual({row["answer"] + row["answer_right"] + row["answer_nll"] for row in rows}, {""})

    def nats(self, model, answer, bias=None):
        """Of `w7 w9` after the prompt: one run of the model over prompt and answer, without a cache."""
        tokens = [int(word[1:]) for word in answer.split()]
        wide = None if bias is None else np.concatenate([bias, np.zeros((4, len(tokens)))], 1)
        logits = own_logits(model, self.ids.tolist() + tokens, wide, QUERIES + len(tokens))
        chances = torch.as_tensor(logits[QUERIES - 1:-1]).log_softmax(-1).numpy()
        return -sum(chances[at, token] for at, token in enumerate(tokens))

    def records_of(self, **record):
        return self.file("records.jsonl", json.dumps({"id": "p0", **record}) + "\n")

    def check_nats(self, model, row, answer, wrong, bias):
        expected = {}
        for end, own in (("_exact", None), ("", bias)):
            others = [self.nats(model, one, own) for one in wrong]
            expected["answer_nll" + end] = self.nats(model, answer, own)
            expected["wrong_nll" + end] = min(others)
        for column, value in expected.items():
            self.assertTrue(abs(float(row[column]) - value) <= 3 * TOLERANCE, (column, row, value))
        self.assertEqual((row["choice_right"], row["choice_exact_right"]), tuple(
            str(int(expected["answer_nll" + end] < expected["wrong_nll" + end])) for end in ("", "_exact")))

    def test_likelihoods_of_answers(self):
        model = self.words_model()
        trace = self.trace(model)
        kept = [list(MIDDLE)[at::5] for at in range(3)]
        caches = self.caches(trace, ("exact", everything), *(
            (f"some{at}", keep(tokens)) for at, tokens in enumerate(kept)))
        biases = [np.zeros((4, TOKENS)) for _ in range(4)]
        for bias, tokens in zip(biases[1:], kept):
            bias[:, MIDDLE] = -np.inf
            bias[:, tokens] = 0
        said = self.said(model)
        # Of several tokens and of one; right by far (the model's own words), and by choice.
        cases = ((said[0] + " " + said[1] + " w17", ["w31 w8 w9", "w8 w31 w9"]),
                 ("w40", ["w41", "w42", "w43"]), (said[0], ["w41"]), ("w41", [said[0]]))
        for answer, wrong in cases:
            with self.subTest(answer=answer):
                rows = self.score(model, trace, caches, "--records",
                                  self.records_of(answer=answer, wrong=wrong), "--batch", "3")
                for row, bias in zip(rows, biases, strict=True):
                    self.check_nats(model, row, answer, wrong, bias)
                self.assertEqual(rows[0]["answer_nll_exact"], rows[3]["answer_nll_exact"])
                self.assertGreater(abs(float(rows[3]["answer_nll"]) - float(rows[0]["answer_nll"])),
                                   30 * TOLERANCE)
                alone = self.score(model, trace, caches, "--records",
                                   self.records_of(answer=answer, wrong=wrong), "--answer-tokens", "0")
                for row, other in zip(rows, alone, strict=True):
                    self.assertNotEqual(row["answer_right"], "")
                    self.assertEqual(other["answer"] + other["answer_exact"] + other["answer_right"]
                                     + other["answer_exact_right"], "")
                    self.assertEqual(other["answer_expected"], answer)
                    self.assertTrue(abs(float(other["answer_nll"]) - float(row["answer_nll"])) <= TOLERANCE)
                    self.assertEqual(other["choice_right"], row["choice_right"])

    def said(self, model):
        """What the model says next, as words of its tokenizer; none of them `<...>`."""
        order = np.argsort(-own_logits(model, self.ids)[-1])
        return [f"w{token}" for token in order if 2 < token != 41][:2]

    def test_answers_without_wrong_ones_and_refusals(self):
        model = self.words_model()
        trace = self.trace(model)
        caches = self.caches(trace, ("exact", everything))
        row, = self.score(model, trace, caches, "--records", self.records_of(answer="w40 w7"))
        self.assertTrue(abs(float(row["answer_nll"]) - self.nats(model, "w40 w7")) <= 3 * TOLERANCE)
        for column in ("wrong_nll", "wrong_nll_exact", "choice_right", "choice_exact_right"):
            self.assertEqual(row[column], "")
        common = ("--model", model, trace, "--caches", caches, "--records")
        for wrong, text in (
                ("w7", "records.jsonl:1: wrong: got 'w7', expected a list of texts"),
                ([3], "wrong: got [3], expected a list of texts"),
                (["w40", "w9"], "wrong: got w40, w9 beside the answer w40, expected different texts"),
                (["w7 w8"], "p0: wrong answer `w7 w8`: got 2 tokens, expected 1 as `w40` has")):
            self.refused(text, *common, self.records_of(answer="w40", wrong=wrong))
        self.refused("p0: ``: got no token", *common, self.records_of(answer=""))
