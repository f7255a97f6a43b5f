"""Generation over compressed caches (kvbench.load_cache, kvbench.compress): its likelihoods are those of kvbench-py
score, which tests/test_score_*.py compare with attention of loops.

Run by a python that has torch, as that of `make test-dump`. Presses of kvpress: test_press.py.
"""

import copy
import json
import os
from unittest import mock

from dump_models import MISSING
from score_case import ScoreCase
from script_case import read_rows, read_text, write_text

if not MISSING:
    import numpy as np
    import torch
    import transformers

    import kvbench
    from kvbench.caches import CacheReader
    from kvbench.convert import main as convert
    from kvbench.errors import TraceError

NEW = 64
TOKENS, SINK, RECENT, QUERIES = 260, 4, 80, NEW + 1
WINDOWS = ("--sink", str(SINK), "--recent", str(RECENT), "--queries", str(QUERIES))
BUDGET = 0.25
# One of each family: selections of equal, of unequal size and with a budget shared by layers; merges; a denominator of
# its own; codes; A@Q.
METHODS = ("snapkv", "adakv", "pyramidkv", "kmeans", "attention-matching", "clustergen", "quant-rotated",
           "h2o@quant-kivi")
POLICY = {"format": "kvbench-policy", "version": 1, "budget": 0.2, "layers": [
    {"layer": 0, "algorithm": "h2o@quant-kivi", "budget": 0.25}, {"layer": 1, "algorithm": "kmeans", "budget": 0.2},
    {"layer": 2, "heads": [{"kv_head": 0, "algorithm": "snapkv", "budget": 0.2},
                           {"kv_head": 1, "algorithm": "uniform", "budget": 0.1}]}]}
# generate decodes rows of one token and score 65 at once: float32 sums in another order. A logit of about 10 has 6e-7
# of rounding, a few times that after three layers; the mean over 64 tokens averages it (at most 4e-7 was seen).
TOLERANCE = 5e-6


class GenerateTest(ScoreCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.ids = np.random.default_rng(11).integers(3, 97, TOKENS)
        cls.ids_file = cls.file("ids.jsonl", json.dumps(cls.ids.tolist()) + "\n")
        cls.policy = write_text(os.path.join(cls.folder, "policy.json"), json.dumps(POLICY))

    def loaded(self, name="llama"):
        path = self.model(name, max_position_embeddings=512)
        return path, transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)

    def caches_of(self, path, *options):
        """(a trace, the caches of a replay, the rows of kvbench-py score over them)."""
        trace, caches = self.dump(path, "--dtype", "float32"), self.path(".h5")
        self.done("replay", trace, "-o", self.path(".csv"), "--budget", str(BUDGET), *options, *WINDOWS,
                  "--export-caches", caches)
        return trace, caches, self.score(path, trace, caches)

    def generated_loss(self, model, cache):
        """Mean negative log likelihood of the trace's last tokens, as `generate` is made to choose them."""
        first = TOKENS - NEW
        out = model.generate(cache.input_ids[:, :first], past_key_values=cache, max_new_tokens=NEW, do_sample=False,
                             eos_token_id=None, output_logits=True, return_dict_in_generate=True,
                             prefix_allowed_tokens_fn=lambda _, sent: [int(self.ids[len(sent)])])
        self.assertEqual(out.sequences[0].tolist(), self.ids.tolist())
        logits = torch.cat(out.logits).double()
        return float(torch.nn.functional.cross_entropy(logits, torch.as_tensor(self.ids[first:])))

    def check_rows(self, model, trace, caches, rows):
        for row in rows:
            with self.subTest(row["algorithm"]):
                self.assertEqual(row["status"], "ok")
                cache = kvbench.load_cache(model, trace, caches, algorithm=row["algorithm"],
                                           budget=float(row["budget_requested"]))
                self.assertEqual(cache.get_seq_length(), TOKENS - QUERIES)
                loss = self.generated_loss(model, cache)
                self.assertLessEqual(abs(loss - float(row["loss"])), TOLERANCE)
                self.assertGreater(abs(loss - float(row["loss_exact"])), 10 * TOLERANCE)

    def test_likelihoods_are_those_of_score(self):
        path, model = self.loaded()
        trace, caches, rows = self.caches_of(path, "--algorithm", ",".join(METHODS), "--policy", self.policy)
        self.assertEqual(sorted(row["algorithm"] for row in rows), sorted((*METHODS, "policy")))
        self.check_rows(model, trace, caches, rows)
        with self.assertRaisesRegex(TraceError, "got 9 groups, expected one"):
            kvbench.load_cache(model, trace, caches)
        # Of some layers; the others are exact.
        few = self.score(path, trace, caches, "--algorithm", "kmeans", "--layers", "1:3")
        self.assertEqual([row["layers"] for row in few], ["2"])
        self.assertNotEqual(few[0]["loss"], next(row["loss"] for row in rows if row["algorithm"] == "kmeans"))
        self.refused("--layers: no layer 7", trace, "--model", path, "--caches", caches, "--layers", "1,7")
        out, replayed = self.path(".csv"), self.path(".rows.csv")
        ran = self.script(trace, "--model", path, "-o", out, "--rows", replayed, "--algorithm", "kmeans", "--budget",
                          str(BUDGET), "--layers", "1:3", *WINDOWS)
        self.assertEqual(ran.code, 0, ran.err)
        self.assertEqual([row["loss"] for row in read_rows(out)], [few[0]["loss"]])

    def test_windows_hide_tokens(self):
        path, model = self.loaded("gemma3")
        trace, caches, rows = self.caches_of(path, "--algorithm", "snapkv,quant-rotated")
        self.check_rows(model, trace, caches, rows)

    def test_a_prompt_is_compressed_in_the_model(self):
        path, model = self.loaded()
        ids = torch.as_tensor(self.ids)
        with self.assertRaisesRegex(kvbench.ProgramError, "did you mean snapkv"):
            kvbench.compress(model, ids, "snapvk", BUDGET)
        with torch.no_grad():
            own = model(ids[None], use_cache=False).logits[0, -1]
        whole = kvbench.compress(model, ids, "exact")
        self.assertLess(float((self.next_logits(model, whole) - own).abs().max()), 1e-4)
        # The same caches by hand: the queries before the last token choose.
        trace, caches = self.dump(path, "--dtype", "float32"), self.path(".h5")
        self.done("replay", trace, "-o", self.path(".csv"), "--algorithm", "adakv", "--budget", "0.25", "--sink", "16",
                  "--recent", "65", "--queries", "1", "--export-caches", caches)
        cache = kvbench.compress(model, ids, {"adakv": {"window": 32}}, BUDGET)
        other = kvbench.load_cache(model, trace, caches)
        again = copy.deepcopy(cache)
        found = self.next_logits(model, cache)
        self.assertTrue(torch.equal(found, self.next_logits(model, other)))
        self.assertFalse(torch.equal(found, own))
        # A copy, and a cache cropped to its prompt, start again; and hold any number of tokens.
        self.assertEqual(cache.get_seq_length(), TOKENS)
        cache.crop(TOKENS - 1)
        self.assertTrue(torch.equal(found, self.next_logits(model, cache)))
        with self.assertRaisesRegex(ValueError, "tokens that are compressed"):
            cache.crop(9)
        texts = [model.generate(ids[None], past_key_values=copy.deepcopy(again), max_new_tokens=n, do_sample=False,
                                eos_token_id=None)[0].tolist() for n in (300, 20)]
        self.assertEqual(texts[0][:TOKENS + 20], texts[1])
        self.assertEqual(len(texts[0]), TOKENS + 300)

    def next_logits(self, model, cache):
        with torch.no_grad():
            return model(torch.as_tensor(self.ids[None, -1:]), past_key_values=cache).logits[0, -1]

    def test_what_would_be_silently_wrong_is_refused(self):
        path, model = self.loaded()
        ids = torch.as_tensor(self.ids[None])
        cache = kvbench.compress(model, ids, "kmeans", BUDGET)
        other = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        for words, run in (
                ("belongs to the model", lambda own: other(ids[:, -1:], past_key_values=own)),
                ("a batch of 2", lambda own: model(ids[:, -1:].expand(2, -1), past_key_values=own)),
                ("a mask hides tokens", lambda own: model(
                    ids[:, -1:], past_key_values=own, attention_mask=(torch.arange(TOKENS) > 2)[None].long())),
                ("one prompt", lambda _: kvbench.compress(model, ids.expand(2, -1), "kmeans", BUDGET)),
                ("expected more than 81", lambda _: kvbench.compress(model, ids[:, :81], "kmeans", BUDGET)),
                ("got no budget", lambda _: kvbench.compress(model, ids, "kmeans")),
                ("expected none: its size", lambda _: kvbench.compress(model, ids, policy=self.policy, budget=BUDGET)),
                ("expected one of them", lambda _: kvbench.compress(model, ids, "kmeans", policy=self.policy)),
                ("expected one method", lambda _: kvbench.compress(model, ids, "@eviction", BUDGET)),
                ("got 2 methods", lambda _: kvbench.compress(model, ids, "snapkv:window=8:40:16", BUDGET))):
            with self.assertRaisesRegex(TraceError, words):
                run(copy.deepcopy(cache))

    def test_judge_is_score_of_methods_and_functions(self):
        path, model = self.loaded()

        def newest(head, task):
            return task.middle[len(task.middle) - task.tokens:]

        windows = {"sink": SINK, "recent": RECENT, "queries": QUERIES}
        found = kvbench.judge(model, self.ids, ["local", newest, {"snapkv": {"window": [8, 16]}}], BUDGET, **windows)
        self.assertEqual(found.algorithm.tolist(), ["local", "newest", "snapkv", "snapkv"])
        self.assertEqual(found.kl[0], found.kl[1])
        self.assertEqual(found.kl.nunique(), 3)
        *_, rows = self.caches_of(path, "--algorithm", "snapkv:window=16")
        self.assertEqual(found.kl[3], float(rows[0]["kl"]))

    def test_kept_positions_as_json(self):
        _, caches, _ = self.caches_of(self.loaded()[0], "--algorithm", "adakv,kmeans")
        path = self.path(".json")
        out = kvbench.export_kept(caches, path, algorithm="adakv")
        self.assertEqual(json.loads(read_text(path)), out)
        every = self.path(".all.json")
        with mock.patch("sys.argv", ["convert", caches, "--kept", "-o", every]):
            convert.main()
        self.assertEqual(json.loads(read_text(every)), kvbench.export_kept(caches))
        self.assertEqual((out["sink"], out["recent"], out["queries"]), (SINK, RECENT, QUERIES))
        [group], [other] = out["groups"], kvbench.export_kept(caches, algorithm="kmeans")["groups"]
        with CacheReader(caches) as reader:
            own = next(one for one in reader.groups if one.algorithm == "adakv")
            for layer in group["prompts"]["p0"]:
                for head in layer["heads"]:
                    token = own.read("p0", layer["layer"], head["kv_head"]).token
                    self.assertEqual(head["positions"], sorted(token.tolist()))
                    self.assertEqual(head["entries"], len(token))
        sizes = {head["entries"] for layer in group["prompts"]["p0"] for head in layer["heads"]}
        self.assertGreater(len(sizes), 1)
        self.assertTrue(all(len(head["positions"]) < head["entries"] for head in other["prompts"]["p0"][0]["heads"]))
