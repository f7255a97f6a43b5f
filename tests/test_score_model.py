"""scripts/score_model.py on small random models of many architectures.

Needs torch and transformers (`make test-dump`); without them every test is skipped. The twins run a
second copy of each model, which knows nothing of the script, over all tokens at once: transformers'
own eager attention with a mask that has a bias per query head and token, or a loop of ours.
"""

import contextlib
import csv
import io
import json
import os
import sys
import types
import unittest
from unittest import mock

from dump_models import ARCHITECTURES, MISSING, ROOT, TOKENS, DumpCase

if not MISSING:
    import h5py
    import numpy as np
    import torch
    import transformers
    from dump_models import kt
    import kvbench_caches as kc
    import score_model

REAL = os.path.join(ROOT, "build", "models", "smollm2-135m")
SINK, RECENT, QUERIES = 4, 12, 8
WINDOWS = {"sink": SINK, "recent": RECENT, "queries": QUERIES}
MIDDLE = range(SINK, TOKENS - RECENT)
# Float32 through three layers, logits of about 10, summed in another order.
TOLERANCE = 1e-4


@unittest.skipIf(MISSING, f"{sys.executable} lacks {', '.join(MISSING)}; see make test-dump")
class ScoreCase(DumpCase):
    """The script, run in this process, and the logits that it got over each group's caches."""

    def setUp(self):
        self.logits = []
        decode = score_model.Scorer.decode

        def recorded(scorer, mode, start, tokens, cache=None):
            out = decode(scorer, mode, start, tokens, cache)
            if mode == "compressed" and cache is None:
                self.logits.append(out[0].double().numpy())
            return out
        patch = mock.patch.object(score_model.Scorer, "decode", recorded)
        patch.start()
        self.addCleanup(patch.stop)

    def path(self, end):
        return os.path.join(self.folder, f"{self.id()}-{len(os.listdir(self.folder))}{end}")

    def trace(self, model, *options):
        return self.dump(model, "--dtype", "float32", *options)

    def caches(self, trace, *groups, path=None, windows=WINDOWS, protocol="prefill"):
        """A caches file. group: (name, f); f(head, layer, kv_head): what `put` takes, or None."""
        path = path or self.path(".caches.h5")
        with kc.CacheWriter(path, [trace], protocol=protocol, **windows) as writer:
            for name, entry in groups:
                group = writer.group(name)
                for prompt, layer, head in kc.trace_heads(trace):
                    held = entry(kc.read_head(trace, prompt, layer, head), layer, head)
                    if held is not None:
                        group.put(prompt, layer, head, **held)
        return path

    def script(self, *arguments):
        stderr, code = io.StringIO(), 0
        with mock.patch.object(sys, "argv", ["score_model.py", *map(str, arguments)]), \
                contextlib.redirect_stderr(stderr):
            try:
                kt.run_main(score_model.main)
            except SystemExit as error:
                code = error.code
        return types.SimpleNamespace(code=code, stderr=stderr.getvalue())

    def score(self, model, trace, caches, *options, code=0, out=None):
        """The rows, as dicts; self.logits has the logits of each."""
        out = out or self.path(".csv")
        result = self.script("--model", model, "--trace", trace, "--caches", caches, "-o", out,
                             *options)
        self.assertEqual(result.code, code, result.stderr)
        self.stderr = result.stderr
        with open(out, encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    def refused(self, text, *arguments, code=2):
        out = self.path(".csv")
        result = self.script("-o", out, *arguments)
        self.assertEqual(result.code, code, result.stderr)
        self.assertEqual([name for name in os.listdir(self.folder)
                          if name.startswith(os.path.basename(out))], [])
        last = result.stderr.strip().splitlines()[-1]
        self.assertTrue(last.startswith("score_model.py: "), result.stderr)
        self.assertIn(text, last)

    def assert_logits(self, got, expected, message=""):
        self.assertEqual(got.shape, expected.shape)
        worst = float(np.abs(got - expected).max())
        self.assertTrue(worst <= TOLERANCE, f"{message}: {worst}")


def keep(tokens, log_weight=None):
    """A cache of these tokens, for every head."""
    tokens = np.asarray(tokens, int)
    return lambda head, *_: {"k": head.k[tokens], "v": head.v[tokens], "token": tokens,
                             "log_weight": log_weight}


def everything(head, *_):
    return keep(MIDDLE)(head)


def own_logits(path, ids, bias=None, queries=QUERIES, attention="eager"):
    """Logits of the last rows of the model's own run over all tokens.

    bias  [Hq, n] on the logits of attention of the last rows, -inf: not seen
    """
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation=attention).eval()
    n = len(ids)
    options = {}
    if bias is not None:
        low = torch.finfo(torch.float32).min
        mask = torch.zeros(1, len(bias), n, n).masked_fill(
            torch.ones(n, n, dtype=torch.bool).triu(1), low)
        mask[0, :, n - queries:] += torch.as_tensor(np.maximum(bias, low / 2))[:, None].float()
        # OPT would count positions in the mask.
        options = {"attention_mask": mask.clamp(min=low), "position_ids": torch.arange(n)[None]}
    with torch.inference_mode():
        return model(input_ids=torch.as_tensor(ids)[None], **options).logits[0, -queries:].double(
            ).numpy()


class ScoreModelTest(ScoreCase):
    def test_a_cache_of_everything_is_the_model(self):
        for name in ARCHITECTURES:
            with self.subTest(name=name):
                model, self.logits = self.model(name), []
                trace = self.trace(model)
                rows = self.score(model, trace, self.caches(trace, ("exact", everything)),
                                  "--self-check")
                expected = own_logits(model, self.ids)
                self.assertEqual(len(self.logits), 2)
                for logits in self.logits:
                    self.assert_logits(logits, expected, name)
                chances = torch.as_tensor(expected).log_softmax(-1).numpy()
                loss = -np.mean([chances[i, self.ids[TOKENS - QUERIES + i + 1]]
                                 for i in range(QUERIES - 1)])
                row, = rows
                self.assertEqual((row["status"], row["layers"], row["n_tokens"], row["n_queries"]),
                                 ("ok", "3", str(TOKENS), str(QUERIES)))
                for column in ("loss", "loss_exact"):
                    self.assertTrue(abs(float(row[column]) - loss) <= TOLERANCE, row)
                self.assertTrue(abs(float(row["loss_change"])) <= TOLERANCE, row)
                self.assertTrue(0 <= float(row["kl"]) <= 1e-8, row)
                self.assertEqual(row["top_agreement"], "1.0")
                self.assertIn("3 of 3 layers replaced", self.stderr)

    def test_dropped_and_weighted_tokens_are_a_mask_of_the_model(self):
        # Every head keeps other tokens, and another number of them.
        rng = np.random.default_rng(3)
        for name, (_, sizes) in ARCHITECTURES.items():
            with self.subTest(name=name):
                model, self.logits = self.model(name), []
                trace = self.trace(model)
                heads = sizes.get("num_key_value_heads", 4)
                kept = [np.sort(rng.choice(MIDDLE, 5 + 3 * head, replace=False))
                        for head in range(heads)]
                weights = [rng.normal(0, 1, len(tokens)) for tokens in kept]
                weights[0][1] = -np.inf
                bias = np.zeros((4, TOKENS))
                plain = np.zeros((4, TOKENS))
                for q_head in range(4):
                    head = q_head * heads // 4
                    for table, values in ((bias, weights[head]), (plain, 0)):
                        table[q_head, MIDDLE] = -np.inf
                        table[q_head, kept[head]] = values
                caches = self.caches(
                    trace, ("dropped", lambda head, _, h: keep(kept[h])(head)),
                    ("weighted", lambda head, _, h: keep(kept[h], weights[h])(head)))
                rows = self.score(model, trace, caches)
                exact = own_logits(model, self.ids)
                for row, logits, own in zip(rows, self.logits, (plain, bias), strict=True):
                    expected = own_logits(model, self.ids, own)
                    self.assert_logits(logits, expected, f"{name} {row['algorithm']}")
                    # A mask that did nothing would agree as well.
                    self.assertGreater(np.abs(expected - exact).max(), 100 * TOLERANCE)
                    self.check_figures(row, exact, expected)

    def check_figures(self, row, exact, other):
        """The row's figures against loops over the reference's logits."""
        exact, other = (torch.as_tensor(x).log_softmax(-1).numpy() for x in (exact, other))
        kl = [float(sum(np.exp(a) * (a - b) for a, b in zip(p, q))) for p, q in zip(exact, other)]
        loss = [-other[i, self.ids[TOKENS - QUERIES + 1 + i]] for i in range(QUERIES - 1)]
        expected = {"kl": np.mean(kl), "kl_p95": np.percentile(kl, 95), "loss": np.mean(loss),
                    "top_agreement": np.mean([p.argmax() == q.argmax()
                                              for p, q in zip(exact, other)])}
        for column, value in expected.items():
            self.assertTrue(abs(float(row[column]) - value) <= TOLERANCE, (column, row, value))
        self.assertTrue(abs(float(row["loss"]) - float(row["loss_exact"])
                            - float(row["loss_change"])) <= 1e-12)

    def test_without_the_sink(self):
        for name in ARCHITECTURES:
            with self.subTest(name=name):
                model, self.logits = self.model(name), []
                trace = self.trace(model)
                caches = self.caches(trace, ("local", keep(range(1, TOKENS - RECENT))),
                                     windows=WINDOWS | {"sink": 0})
                self.score(model, trace, caches)
                bias = np.zeros((4, TOKENS))
                bias[:, 0] = -np.inf
                self.assert_logits(self.logits[0], own_logits(model, self.ids, bias), name)

    def test_layers_that_the_caches_lack_stay_exact(self):
        model = self.model("llama")
        trace = self.trace(model, "--layers", "1", "--heads", "1")
        rows = self.score(model, trace, self.caches(trace, ("local", keep([9, 20]))))
        self.assertEqual(rows[0]["layers"], "1")
        self.assertIn("1 of 3 layers replaced", self.stderr)
        own = transformers.AutoModelForCausalLM.from_pretrained(
            model, dtype=torch.float32, attn_implementation="eager").eval()

        def masked(_, arguments, options):
            mask = torch.zeros(1, 4, TOKENS, TOKENS).masked_fill(
                torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1), -1e30)
            hidden = [t for t in MIDDLE if t not in (9, 20)]
            mask[0, 2:, TOKENS - QUERIES:, hidden] = -1e30  # KV head 1 serves query heads 2 and 3.
            return arguments, options | {"attention_mask": mask}
        own.model.layers[1].self_attn.register_forward_pre_hook(masked, with_kwargs=True)
        with torch.inference_mode():
            expected = own(input_ids=torch.as_tensor(self.ids)[None]).logits[0, -QUERIES:]
        self.assert_logits(self.logits[0], expected.double().numpy())

    def test_made_entries_and_separate_denominators_against_a_loop(self):
        rng = np.random.default_rng(4)

        def made(head, layer, kv_head, den):
            count, other = 6 + kv_head, 3
            out = {"k": rng.normal(0, 1, (count, head.k.shape[1])),
                   "v": rng.normal(0, 1, (count, head.v.shape[1])),
                   "log_weight": rng.normal(0, 1, count)}
            if den == "keys":
                out |= {"k_den": rng.normal(0, 1, (other, head.k.shape[1])),
                        "log_weight_den": rng.normal(2, 1, other)}
            if den == "keys without weights":
                out |= {"k_den": rng.normal(0, 1, (other, head.k.shape[1]))}
            if den == "weights":
                out["log_weight_den"] = rng.normal(1, 1, count)
            if den == "nothing":
                out["k_den"] = np.zeros((0, head.k.shape[1]))
            return out

        kinds = ("one set", "keys", "keys without weights", "weights", "nothing")
        for name in ("llama", "qwen3", "gpt2", "gemma3"):
            model, self.logits = self.model(name), []
            trace = self.trace(model)
            caches = self.caches(trace, *(
                (kind.replace(" ", "-"), lambda *a, kind=kind: made(*a, kind)) for kind in kinds))
            self.score(model, trace, caches)
            self.assertEqual(len(self.logits), len(kinds))
            with kc.CacheReader(caches) as reader:
                for group, logits in zip(reader.groups, self.logits):
                    expected = self.loop_logits(model, trace, group)
                    self.assert_logits(logits, expected, f"{name} {group.algorithm}")

    def loop_logits(self, path, trace, group):
        """The model with an attention of loops, in double, over the entries of a group."""
        def attention(module, query, key, value, mask, scaling=None, **_):
            scale = query.shape[3]**-0.5 if scaling is None else scaling
            q, k, v = (t[0].double().numpy() for t in (query, key, value))
            out = np.empty((TOKENS, len(q), v.shape[2]))
            for h in range(len(q)):
                head = h * len(k) // len(q)
                entry = group.read("p0", module.layer_idx, head)
                for row in range(TOKENS):
                    tail = row >= TOKENS - QUERIES
                    top, bottom = np.zeros(v.shape[2]), 0.0
                    for t in range(row + 1):
                        if not tail or t < SINK or t >= TOKENS - RECENT:
                            weight = np.exp(scale * (k[head, t] @ q[h, row]))
                            top, bottom = top + weight * v[head, t], bottom + weight
                    if tail:
                        entry_k, entry_v = entry.k.astype(float), entry.v.astype(float)
                        weights = entry.log_weight
                        for i in range(len(entry_k)):
                            weight = np.exp(scale * (entry_k[i] @ q[h, row]) + weights[i])
                            top = top + weight * entry_v[i]
                        below, biases = entry_k, weights
                        if entry.k_den is not None:
                            below, biases = entry.k_den.astype(float), np.zeros(len(entry.k_den))
                        if entry.log_weight_den is not None:
                            biases = entry.log_weight_den
                        for i in range(len(below)):
                            bottom += np.exp(scale * (below[i] @ q[h, row]) + biases[i])
                    out[row, h] = top / bottom
            return torch.as_tensor(out)[None].float(), None
        transformers.AttentionInterface.register("kvbench_loop", attention)
        transformers.masking_utils.ALL_MASK_ATTENTION_FUNCTIONS.register(
            "kvbench_loop", transformers.masking_utils.eager_mask)
        return own_logits(path, self.ids, attention="kvbench_loop")

    def test_chunks_and_types(self):
        model = self.model("llama")
        trace = self.trace(model)
        caches = self.caches(trace, ("exact", everything))
        self.score(model, trace, caches, "--chunk", "7")
        self.assert_logits(self.logits[0], own_logits(model, self.ids))
        rows = self.score(model, trace, caches, "--compute-dtype", "bfloat16")
        # The cache has float32's keys where the model has rounded them to 8 bits.
        self.assertTrue(0 < float(rows[0]["kl"]) <= 0.1, rows)

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
            del copy["prompts/p0/token_ids"]
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
        with open(out, encoding="utf-8") as file:
            whole = file.read()
        lines = whole.splitlines(keepends=True)
        self.assertEqual(len(lines), 7)
        with open(out + ".json", encoding="utf-8") as file:
            manifest = json.load(file)
        self.assertEqual((manifest["rows"], manifest["failed"]), (6, 0))
        self.assertEqual(manifest["caches"], {caches: kc.file_sha256(caches)})
        self.refused_again(model, trace, caches, out)
        for kept in ("".join(lines[:1]), "".join(lines[:4]), "".join(lines[:4]) + lines[4][:30],
                     whole[:-1], whole):
            with open(out, "w", encoding="utf-8") as file:
                file.write(kept)
            self.logits = []
            self.score(model, trace, caches, "--resume", out=out)
            with open(out, encoding="utf-8") as file:
                self.assertEqual(file.read(), whole)
            self.assertEqual(len(self.logits), 7 - max(1, kept.count("\n")))
        # A failed row is tried again.
        with open(out, "w", encoding="utf-8") as file:
            file.write("".join(lines[:6]) + lines[6].replace(",ok", ",failed: once"))
        self.score(model, trace, caches, "--resume", out=out)
        with open(out, encoding="utf-8") as file:
            self.assertEqual(file.read(), whole)
        with open(out, "w", encoding="utf-8") as file:
            file.write("a,b\n1,2\n")
        result = self.script("--model", model, "--trace", trace, "--caches", caches, "-o", out,
                             "--resume")
        self.assertIn("its columns are not those", result.stderr)
        with open(out, "w", encoding="utf-8") as file:
            file.write(whole)
        result = self.script("--model", model, "--trace", trace, "--caches", caches, "-o", out,
                             "--resume", "--compute-dtype", "float16")
        self.assertIn("--resume: compute_dtype: got float16, the rows that are there have float32",
                      result.stderr)
        rows = self.score(model, trace, caches, "--overwrite", "--prompts", "p1", "--algorithms",
                          "local", out=out)
        self.assertEqual([(row["prompt"], row["algorithm"]) for row in rows], [("p1", "local")])

    def refused_again(self, model, trace, caches, out):
        result = self.script("--model", model, "--trace", trace, "--caches", caches, "-o", out)
        self.assertEqual(result.code, 2)
        self.assertIn("is there already", result.stderr)

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


@unittest.skipIf(MISSING or not os.path.isdir(REAL), f"no {REAL}; see make model")
class RealModelTest(ScoreCase):
    """SmolLM2 on a real text, of which its own tokenizer makes the tokens."""

    def test_everything_and_all_but_the_first_token(self):
        texts = os.path.join(ROOT, "data", "prompts", "prose.jsonl")
        tokens, queries, recent = 600, 64, 128
        windows = {"sink": 0, "recent": recent, "queries": queries}
        for dtype, exact_kl in (("float32", 1e-9), ("float16", 1e-6)):
            self.logits = []
            trace = self.dump(REAL, "--dtype", dtype, "--compute-dtype", "float32", "--max-tokens",
                              tokens, prompts=("--prompts", texts, "--ids", "prose-2"))
            caches = self.caches(trace, ("exact", keep(range(tokens - recent))),
                                 ("no-first", keep(range(1, tokens - recent))), windows=windows)
            rows = self.score(REAL, trace, caches)
            with h5py.File(trace) as file:
                ids = file["prompts/prose-2/token_ids"][:]
            bias = np.zeros((9, tokens))
            exact = own_logits(REAL, ids, bias, queries)
            bias[:, 0] = -np.inf
            masked = own_logits(REAL, ids, bias, queries)
            # Thirty layers, logits up to 30; float16 has 2^-11 in keys and values.
            limit = {"float32": 1e-3, "float16": 0.1}[dtype]
            for row, logits, expected in zip(rows, self.logits, (exact, masked), strict=True):
                worst = float(np.abs(logits - expected).max())
                self.assertTrue(worst <= limit, worst)
            self.assertTrue(float(rows[0]["kl"]) <= exact_kl, rows[0])
            self.assertGreater(np.abs(masked - exact).max(), 10 * limit)


if __name__ == "__main__":
    unittest.main()
