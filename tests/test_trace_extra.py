"""Extra queries and scores in traces: what TraceWriter writes and refuses, what readers give back,
what `kvbench info` says, and a replay that scores with them.
Environment: KVBENCH, the program; without it, it is not run.
"""

import json
import os
import subprocess
import sys
import unittest

from script_case import KVBENCH, ROOT, FolderCase, missing, read_rows

MISSING = missing("h5py", "numpy")
if not MISSING:
    import h5py
    import numpy as np

    from kvbench.api.trace import read_trace
    from kvbench.trace import writer as kt

N, QUERIES, D = 60, 8, 8
PROMPT = N - QUERIES


@unittest.skipIf(MISSING, f"{sys.executable} lacks {', '.join(MISSING)}")
class TraceExtraTest(FolderCase):
    def setUp(self):
        super().setUp()
        self.trace = self.path("t.h5")
        self.random = np.random.default_rng(3)

    def normal(self, *shape):
        return self.random.normal(size=shape).astype(np.float32)

    def write(self, fill, dtype="float16", layers=(0, 2)):
        with kt.TraceWriter(self.trace, "m", "s", created="2026-01-02", dtype=dtype) as writer:
            writer.begin_prompt("a", N)
            for layer in layers:
                writer.begin_layer(layer, 4, 2, N, D, D)
                for name, heads in (("q", 4), ("k", 2), ("v", 2)):
                    writer.write(name, 0, 0, self.normal(heads, N, D))
                fill(writer, layer)

    def segment(self, m):
        return self.normal(4, m, D), self.normal(2, m, D), np.arange(PROMPT, PROMPT + m)

    def usual(self, writer, layer):
        norms = np.arange(1, 10, dtype=np.float64)
        writer.write_extra("repeat", *self.segment(9), PROMPT, (0, 30), norms)
        writer.write_extra("repeat", *self.segment(11), PROMPT, (30, PROMPT))
        if layer == 2:
            writer.write_extra("second", *self.segment(3), PROMPT)
        writer.write_scores("gate.v1", self.normal(2, N), PROMPT)

    def kvbench(self, *arguments):
        return subprocess.run([KVBENCH, *arguments], capture_output=True, text=True, check=False)

    def test_round_trip(self):
        for dtype in kt.STORED:
            parts = self.segment(9)
            scores = self.normal(2, N)

            def fill(writer, _, parts=parts, scores=scores):
                writer.write_extra("repeat", *parts, PROMPT, (0, 30), np.arange(9.0))
                writer.write_extra("repeat", *self.segment(2))
                writer.write_scores("gate", scores)
            self.write(fill, dtype)
            trace = read_trace(self.trace)
            for head in range(2):
                first, second = trace.extra("a", 2, head, "repeat")
                for got, expected in ((first.q, parts[0][2 * head:2 * head + 2]),
                                      (first.k, parts[1][head])):
                    if dtype == "bfloat16":
                        expected = kt.from_bfloat16(kt.to_bfloat16(expected))
                    np.testing.assert_array_equal(got, expected.astype(
                        np.float32 if dtype == "bfloat16" else dtype).astype(np.float32))
                np.testing.assert_array_equal(first.position, parts[2])
                np.testing.assert_array_equal(first.residual_norm, np.arange(9.0))
                self.assertEqual((first.prefix, first.about), (PROMPT, (0, 30)))
                self.assertEqual((second.prefix, second.about, second.residual_norm),
                                 (None, None, None))
                np.testing.assert_array_equal(trace.scores("a", 2, head, "gate"), scores[head])
            self.assertIn("not in the trace", str(self.caught(lambda: trace.extra("a", 0, 0, "x"))))
            if KVBENCH:
                self.assertEqual(self.kvbench("info", self.trace).returncode, 0)

    def caught(self, act):
        with self.assertRaises(kt.TraceError) as caught:
            act()
        return caught.exception

    def test_refusals(self):
        q, k, position = self.segment(4)

        def expect(text, *arguments, scores=False, **options):
            def fill(writer, _):
                (writer.write_scores if scores else writer.write_extra)(*arguments, **options)
            self.assertIn(text, str(self.caught(lambda: self.write(fill))))
        expect("name: got `a b`", "a b", q, k, position)
        expect("repeat/0/q: got shape", "repeat", q[:3], k, position)
        expect("repeat/0/k: got shape", "repeat", q, k[:, :3], position)
        expect("repeat/0/position: expected 4 integers", "repeat", q, k, position[:3])
        expect("repeat/0/position", "repeat", q, k, position[::-1])
        expect("repeat/0/position", "repeat", q, k, position - PROMPT - 1)
        expect("prefix: got 61", "repeat", q, k, position, N + 1)
        expect("about: got [3, 53)", "repeat", q, k, position, PROMPT, (3, PROMPT + 1))
        expect("residual_norm: got shape", "repeat", q, k, position, residual_norm=[1.0])
        expect("residual_norm: expected finite", "repeat", q, k, position,
               residual_norm=[1.0, -1.0, 1.0, 1.0])
        bad = q.copy()
        bad[1, 2, 3] = np.nan
        expect("repeat/0/q: head 1, row 2, element 3", "repeat", bad, k, position)
        expect("expected floating point of shape (2, 60)", "s", self.normal(2, N - 1), scores=True)
        wrong = self.normal(2, N)
        wrong[1, 5] = np.inf
        expect("head 1, token 5", "s", wrong, scores=True)
        expect("scores/x/y", "x/y", self.normal(2, N), scores=True)

    @unittest.skipIf(not KVBENCH, "KVBENCH is not set")
    def test_info_shows_sets_and_scores(self):
        self.write(self.usual)
        text = self.kvbench("info", self.trace)
        self.assertEqual(text.returncode, 0, text.stderr)
        self.assertIn("    extra repeat: 20 queries in 2 segments, prefix 52, about tokens [0, 52), "
                      "residual norms (1 of 2 segments)\n", text.stdout)
        self.assertIn("    extra second: 3 queries in 1 segment, prefix 52 (layer 2)\n", text.stdout)
        self.assertIn("    scores gate.v1: prefix 52\n", text.stdout)
        layers = json.loads(self.kvbench("info", "--json", self.trace).stdout)[0]["prompts"][0][
            "layers"]
        self.assertEqual([one["name"] for one in layers[1]["extra"]], ["repeat", "second"])
        self.assertEqual(layers[0]["extra"][0]["segments"][1], {
            "queries": 11, "prefix": 52, "first": 30, "last": 52, "residual_norm": False})
        self.assertEqual(layers[1]["extra"][1]["segments"][0]["first"], None)
        self.assertEqual(layers[0]["scores"], [{"name": "gate.v1", "prefix": 52}])

    @unittest.skipIf(not KVBENCH, "KVBENCH is not set")
    def test_replay(self):
        self.write(self.usual)
        windows = ("--sink", "4", "--recent", "12", "--queries", str(QUERIES))
        out = self.path("out.csv")
        run = self.kvbench("replay", self.trace, "-o", out, "--budget", "0.5", *windows,
                           "--algorithm", "kvzip:budget=head,layer,model",
                           "--algorithm", "external-scores", "--algorithm", "snapkv:ref=repeat",
                           "--memory-limit", "1G")
        self.assertEqual(run.returncode, 0, run.stderr)
        rows = read_rows(out)
        self.assertEqual({row["status"] for row in rows}, {"ok"})
        self.assertEqual({row["scores"] for row in rows}, {"past"})
        self.assertEqual({row["params"] for row in rows if row["algorithm"] == "external-scores"},
                         {"T=auto;name=gate.v1;threshold=auto;tokens=auto"})
        refused = self.kvbench("replay", self.trace, "-o", self.path("no.csv"), "--budget", "0.5",
                               *windows, "--algorithm", "snapkv:ref=second")
        self.assertEqual(refused.returncode, 2)
        self.assertIn("t.h5: prompt a layer 0: snapkv: the layer has no extra queries 'second', "
                      "has: repeat", refused.stderr)
        refused = self.kvbench("replay", self.trace, "-o", self.path("no.csv"), "--budget", "0.5",
                               "--sink", "4", "--recent", "12", "--queries", "9",
                               "--algorithm", "kvzip")
        self.assertEqual(refused.returncode, 2)
        self.assertIn("had read 52 tokens", refused.stderr)

    @unittest.skipIf(not KVBENCH, "KVBENCH is not set")
    def test_the_configuration_of_a_second_question(self):
        def fill(writer, _):
            writer.write_extra("repeat", *self.segment(9), PROMPT, (0, PROMPT))
            writer.write_extra("question-a", *self.segment(5), PROMPT)
        self.write(fill)
        out = self.path("out.csv")
        run = self.kvbench("replay", self.trace, "-o", out, "--sink", "4", "--recent", "12",
                           "--queries", str(QUERIES), "--config",
                           os.path.join(ROOT, "configs", "second_question.toml"))
        self.assertEqual(run.returncode, 0, run.stderr)
        rows = read_rows(out)
        self.assertEqual({row["status"] for row in rows}, {"ok"})
        self.assertEqual({row["scoring_queries"] for row in rows
                          if row["algorithm"] == "snapkv" and "ref=question-a" in row["params"]},
                         {"5"})

    @unittest.skipIf(not KVBENCH, "KVBENCH is not set")
    def test_a_set_that_lost_a_dataset_is_refused(self):
        self.write(self.usual)
        with h5py.File(self.trace, "r+") as file:
            del file["prompts/a/layers/2/extra/repeat/1/position"]
        got = self.kvbench("info", self.trace)
        self.assertEqual(got.returncode, 2)
        self.assertIn("layers/2/extra/repeat/1/position: is missing", got.stderr)


if __name__ == "__main__":
    unittest.main()
