"""kvbench-py qfilters: filters against a slow definition, scores in a trace against the program, refusals."""

import os
import unittest
from unittest import mock

from script_case import FolderCase, call, missing, read_bytes, read_rows

NEEDED = missing("numpy", "h5py")
if not NEEDED:
    import h5py
    import numpy as np

    from kvbench import command, qfilters
    from kvbench.trace import writer as kt
    from kvbench.trace.extra_heads import read_scores
    from kvbench.trace.heads import read_head

N, D, HEADS, GROUP, LAYERS = 120, 8, 2, 3, (1, 4)
MODES = ("--sink", "4", "--recent", "24", "--queries", "8")
# Sums of products of float32 numbers in float64, and a filter rounded to float32.
ROUNDING = 1e-6


def slow_filters(queries):
    """[Hkv, d] of queries [Hq, n, d] of all prompts: the definition, by a singular value decomposition."""
    out = np.zeros((HEADS, D))
    for head, rows in enumerate(queries.astype(float)):
        u, _, vt = np.linalg.svd(rows, full_matrices=False)
        sign = 1 if u[:, 0].sum() > 0 else -1
        out[head // GROUP] += sign * vt[0] / GROUP
    return out


@unittest.skipIf(NEEDED, f"packages are missing: {NEEDED}")
class FiltersTest(FolderCase):
    def setUp(self):
        super().setUp()
        self.rng = np.random.default_rng(7)
        # Queries lie along a direction of each head, some against it.
        self.main = self.rng.normal(0, 1, (len(LAYERS), HEADS * GROUP, 1, D))

    def queries(self, count=N):
        along = self.rng.normal(1.0, 1.5, (len(LAYERS), HEADS * GROUP, count, 1))
        return along * self.main + self.rng.normal(0, 0.5, (len(LAYERS), HEADS * GROUP, count, D))

    def make(self, name, prompts=("a",), queries=None, dtype="float32", layers=LAYERS, model="m", d=D,
             heads=HEADS, with_q=True, ids=None):
        """A trace; its queries [prompt][layer, Hq, nq, d] as it holds them are left in self.stored."""
        path, self.stored = self.path(name), []
        with kt.TraceWriter(path, model, "s", created="2026-01-02", dtype=dtype) as writer:
            for prompt in prompts:
                q = self.queries() if queries is None else queries
                writer.begin_prompt(prompt, N, token_ids=ids)
                for at, layer in enumerate(layers):
                    writer.begin_layer(layer, HEADS * GROUP, heads, q.shape[2], d, 4, with_q=with_q)
                    if with_q:
                        writer.write("q", 0, 0, q[at][..., :d])
                    writer.write("k", 0, 0, self.rng.normal(0, 1, (heads, N, d)))
                    writer.write("v", 0, 0, self.rng.normal(0, 1, (heads, N, 4)))
        for prompt in prompts if with_q else ():
            self.stored.append(np.array([np.concatenate(
                [read_head(path, prompt, layer, head).q for head in range(heads)]) for layer in layers]))
        return path

    def run_it(self, *words, code=0):
        done = call(lambda: command.run_main(qfilters.main), "kvbench-py qfilters", *words)
        self.assertEqual(done.code, code, done.err)
        return done

    def fit(self, *paths, prompts=()):
        out = self.path("f.h5")
        self.run_it("fit", *paths, "-o", out, *(("--prompts", ",".join(prompts)) if prompts else ()))
        return out

    def test_filters_by_their_definition(self):
        for dtype in ("float32", "float16", "bfloat16"):
            one = self.make("1.h5", ("a", "b"), dtype=dtype)
            stored = self.stored
            two = self.make("2.h5", ("a",), self.queries(50), dtype)  # fewer queries are stored
            stored = np.concatenate([*stored, *self.stored], axis=2)
            found = qfilters.read_filters(self.fit(one, two))
            self.assertEqual((found["model"], found["queries"], [*found["layers"]]),
                             ("m", 2 * N + 50, [*LAYERS]))
            for at, layer in enumerate(LAYERS):
                np.testing.assert_allclose(found["layers"][layer], slow_filters(stored[at]),
                                           atol=ROUNDING)
                self.assertEqual(found["layers"][layer].dtype, np.float32)
        some = qfilters.read_filters(self.fit(one, prompts="b"))
        self.assertEqual(some["queries"], N)

    def scores_of(self, name, prompt, layer):
        with h5py.File(self.path(name)) as file:
            return sorted(file[f"prompts/{prompt}/layers/{layer}"].get("scores", {}))

    def test_a_trace_gets_scores(self):
        filters = self.fit(self.make("dev.h5"))
        trace = self.make("t.h5", ("a", "b"))
        before = read_bytes(trace)
        self.run_it("apply", filters, trace, "-o", self.path("q.h5"))
        self.assertEqual(read_bytes(trace), before)
        self.assertEqual(sorted(os.listdir(self.folder)), ["dev.h5", "f.h5", "q.h5", "t.h5"])
        found = qfilters.read_filters(filters)["layers"]
        for prompt in "ab":
            for layer in LAYERS:
                self.assertEqual(self.scores_of("q.h5", prompt, layer), ["q-filters"])
                for head in range(HEADS):
                    own, new = (read_head(path, prompt, layer, head) for path in (trace, self.path("q.h5")))
                    self.assertTrue((own.k == new.k).all() and (own.q == new.q).all())
                    scores = read_scores(self.path("q.h5"), prompt, layer, head, "q-filters")
                    self.assertEqual((scores.dtype, scores.shape), (np.float32, (N,)))
                    np.testing.assert_allclose(scores, own.k.astype(float) @ found[layer][head], atol=ROUNDING)
        self.run_it("apply", filters, trace, "-o", self.path("some.h5"), "--prompts", "b", "--name", "mine")
        self.assertEqual(self.scores_of("some.h5", "a", 1), [])
        self.assertEqual(self.scores_of("some.h5", "b", 1), ["mine"])
        # Another set beside it.
        self.run_it("apply", filters, self.path("some.h5"), "-o", self.path("more.h5"))
        self.assertEqual(self.scores_of("more.h5", "b", 4), ["mine", "q-filters"])

    def test_the_program_keeps_the_same_as_its_own_q_filters(self):
        # The same queries, other keys: filters of all queries are those of --scores all.
        queries = self.queries()
        filters = self.fit(self.make("dev.h5", queries=queries))
        self.run_it("apply", filters, self.make("t.h5", queries=queries), "-o", self.path("q.h5"))
        kept = {}
        for name in ("q-filters", "external-scores:name=q-filters"):
            self.done("replay", self.path("q.h5"), "-o", self.path("out.csv"), *MODES, "--kept", "--algorithm", name,
                      "--budget", "0.5,0.25", "--scores", "all", "--overwrite")
            kept[name] = sorted((row["layer"], row["kv_head"], row["budget_requested"], row["tokens"])
                                for row in read_rows(self.path("out.kept.csv")))
        one, two = kept.values()
        self.assertEqual(len(one), 2 * 2 * 2)  # layers, KV heads, budgets
        self.assertEqual(one, two)

    def refused(self, text, *words):
        before = sorted(os.listdir(self.folder))
        done = self.run_it(*words, code=2)
        self.assertIn(text, done.err)
        self.assertEqual(done.err.count("\n"), 1)
        self.assertEqual(sorted(os.listdir(self.folder)), before)

    def test_prompts_of_the_calibration_are_refused(self):
        ids = np.arange(N)
        dev = self.make("dev.h5", ("a", "b"), ids=None)
        filters = self.fit(dev, prompts="a")
        out = ("-o", self.path("q.h5"))
        self.refused("prompts/a: is among the prompts of", "apply", filters, dev, *out)
        self.run_it("apply", filters, dev, *out, "--prompts", "b")
        # Other numbers, the same tokens: another dump of one text.
        filters = self.fit(self.make("ids.h5", ids=ids))
        self.refused("(tokens), expected others", "apply", filters, self.make("again.h5", ids=ids), *out)
        self.run_it("apply", filters, self.make("other.h5", ids=ids + 1), *out)
        self.refused("prompts/a: duplicate prompt", "fit", dev, dev, "-o", self.path("g.h5"))

    def test_what_does_not_fit_is_refused(self):
        dev, trace = self.make("dev.h5"), self.make("t.h5")
        filters, out = self.fit(dev), ("-o", self.path("q.h5"))
        for text, words in (
                ("no such file", ("fit", self.path("none.h5"), *out)),
                ("--prompts: got `z`, expected some of a", ("fit", dev, *out, "--prompts", "z")),
                ("model: got `n`, expected `m`", ("fit", dev, self.make("n.h5", model="n"), *out)),
                ("layers/1: has no q", ("fit", self.make("k.h5", with_q=False), *out)),
                ("KV heads, d = 4, expected 6, 2, 8, as in other prompts",
                 ("fit", dev, self.make("d.h5", d=4), *out)),
                ("layer 4: got 120 queries, expected 240, as layer 1 has",
                 ("fit", dev, self.make("l.h5", layers=(1,)), *out)),
                ("model: got `n`, expected `m`", ("apply", filters, self.path("n.h5"), *out)),
                ("got 2 KV heads, d = 4, expected 2, 8", ("apply", filters, self.path("d.h5"), *out)),
                ("layers/2: not a layer of", ("apply", filters, self.make("2.h5", layers=(1, 2)), *out)),
                ("format: got kvbench-trace", ("apply", trace, trace, *out)),
                ("format: got kvbench-filters", ("apply", filters, filters, *out)),
                ("--name: got `a/b`", ("apply", filters, trace, *out, "--name", "a/b")),
                ("is the trace itself", ("apply", filters, trace, "-o", trace)),
                ("is not a trace: it is not replaced", ("apply", filters, trace, "-o", filters)),
                ("is not filters: it is not replaced", ("fit", dev, "-o", trace)),
                ("its folder does not exist", ("fit", dev, "-o", self.path("x", "f.h5")))):
            with self.subTest(text=text):
                self.refused(text, *words)
        self.run_it("apply", filters, trace, *out)
        self.refused("scores/q-filters: already exists, expected another --name", "apply", filters,
                     self.path("q.h5"), "-o", self.path("r.h5"))
        with h5py.File(filters, "r+") as file:
            file["layers/1"][0, 0] = np.nan
        self.refused("f.h5: layers/1: ", "apply", filters, trace, *out)

    def test_a_run_that_fails_leaves_what_was_there(self):
        filters, trace = self.fit(self.make("dev.h5")), self.make("t.h5")
        self.run_it("apply", filters, trace, "-o", self.path("q.h5"))
        before = read_bytes(self.path("q.h5"))
        with mock.patch.object(qfilters, "add_scores", side_effect=OSError("full")):
            done = self.run_it("apply", filters, trace, "-o", self.path("q.h5"), code=3)
        self.assertIn("full", done.err)
        self.assertEqual(read_bytes(self.path("q.h5")), before)
        self.assertEqual(sorted(os.listdir(self.folder)), ["dev.h5", "f.h5", "q.h5", "t.h5"])
