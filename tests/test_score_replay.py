"""kvbench-py score with a replay, on a small random model: its rows are the program's, its scores those of
--caches, and a run goes on where it stopped.

Needs torch and transformers (`make test-dump`) and the program; without them every test is skipped.
"""

import json
import math
import os
import unittest
from unittest import mock

from dump_models import MISSING
from score_case import ScoreCase
from script_case import KVBENCH, call, read_rows, read_text, untimed, write_text

if not MISSING:
    import numpy as np
    from dump_models import command

    from kvbench.score import main as score_model
    from kvbench.score.scorer import Scorer

METHODS = "exact,snapkv,h2o,uniform,kmeans,quant-kivi,kvreviver,expected-attention"
WINDOWS = ("--sink", "2", "--recent", "10", "--queries", "8")
# Sums of float32 in another order, where the library of matrix products has one; nats.
CLOSE = 1e-6
CLOSE_SUM = 1e-5  # of single tokens, not means over many


@unittest.skipUnless(KVBENCH, "KVBENCH names no program")
class ScoreReplayTest(ScoreCase):
    def setUp(self):
        super().setUp()
        self.llama = self.model("llama")
        ids = self.file("two.jsonl", "".join(json.dumps(np.roll(self.ids, i).tolist()) + "\n"
                                             for i in range(2)))
        self.traces = self.dump(self.llama, "--dtype", "float16", "--o-proj",
                                prompts=("--token-ids", ids))
        self.out, self.scores = self.path(".rows.csv"), self.path(".scores.csv")

    def replayed(self, *options, code=0, budget="0.5,0.25", algorithm=METHODS):
        result = call(lambda: command.run_main(score_model.main), "kvbench-py score", self.traces, "--model",
                      self.llama, "-o", self.scores, "--rows", self.out, "--program", KVBENCH,
                      "--algorithm", algorithm, "--budget", budget, *WINDOWS, *options)
        self.assertEqual(result.code, code, result.err)
        return result.err

    def made(self, *options, budget="0.5,0.25", algorithm=METHODS):
        """(rows, caches) of the program."""
        out, caches = self.path(".csv"), self.path(".h5")
        self.done("replay", self.traces, "-o", out, "--export-caches", caches, "--algorithm", algorithm, "--budget",
                  budget, *WINDOWS, *options)
        return out, caches

    def replay(self, *options, scored=(), **more):
        """Tables of the program and of kvbench-py score --caches: rows, layers, scores."""
        out, caches = self.made(*options, **more)
        scores = self.score(self.llama, self.traces, caches, "--batch", "1", *scored)
        return out, out.removesuffix(".csv") + ".layers.csv", scores

    @staticmethod
    def bits(path):
        """Rows without times and which run they are of, in any order."""
        return sorted(sorted((name, value) for name, value in row.items() if name != "run_id")
                      for row in untimed(path))

    def check(self, expected):
        rows, layers, scores = expected
        self.assertEqual(self.bits(self.out), self.bits(rows))
        self.assertGreater(len(self.bits(layers)), 0)
        self.assertEqual(self.bits(self.out.removesuffix(".csv") + ".layers.csv"), self.bits(layers))
        got = {self.place(row): row for row in read_rows(self.scores)}
        self.assertEqual(sorted(got), sorted(map(self.place, scores)))
        for row in scores:
            other = got[self.place(row)]
            for name, value in row.items():
                if name.startswith(("loss", "kl", "answer_nll", "wrong_nll")) and value:
                    close = CLOSE_SUM if "nll" in name else CLOSE
                    self.assertTrue(abs(float(value) - float(other[name])) <= close, (name, row, other))
                elif name != "ratio":
                    self.assertEqual(other[name], value, (name, row))
        self.check_ratios(got)

    def check_ratios(self, scores):
        """The ratio of a row of scores is that of all heads' bytes; without a figure it is empty, as with --caches."""
        heads = {}
        for row in read_rows(self.out):
            heads.setdefault(self.place(row), []).append(row)
        for place, row in scores.items():
            if row["status"] != "ok":
                self.assertEqual(row["ratio"], "", row)
                continue
            held, full = (math.fsum(float(one[name]) for one in heads[place]) for name in ("bytes", "full_bytes"))
            self.assertEqual(float(row["ratio"]), held / full)

    @staticmethod
    def place(row):
        return tuple(row[name] for name in ("prompt", "algorithm", "params", "budget_requested", "seed"))

    def test_rows_and_scores_are_those_of_two_programs(self):
        expected = self.replay("--seeds", "2")
        self.assertIn("infeasible", {row["status"].split(":")[0] for row in expected[2]})
        for options in (("--groups", "3", "--batch", "3"), ("--batch", "1", "--groups", "99")):
            self.replayed("--seeds", "2", "--overwrite", *options)
            self.check(expected)
        # What the plan calls rope=auto is rope=tables in the rows.
        self.assertIn("0 groups to run", self.replayed("--seeds", "2", "--resume"))
        manifest = json.loads(read_text(self.scores + ".json"))
        self.assertEqual(manifest["failed"], 0)
        self.assertIn("kvbench", manifest["settings"]["program"])

    def test_a_run_goes_on_and_grows(self):
        algorithm = "snapkv,uniform"
        self.replayed("--groups", "2", algorithm=algorithm)
        whole, scores = read_text(self.out), read_text(self.scores)
        for _ in range(2):
            self.assertIn("already exists", self.replayed(algorithm=algorithm, code=2))
            self.assertEqual((read_text(self.out), read_text(self.scores)), (whole, scores))
        lines, rows = scores.splitlines(keepends=True), whole.splitlines(keepends=True)
        for kept, held, cut in ((3, len(rows), 30), (len(lines), 5 * 12, -1), (1, 1, 30), (4, 40, 30)):
            write_text(self.scores, "".join(lines[:kept]) + "half")
            write_text(self.out, "".join(rows[:held]) + rows[held % len(rows)][:cut])
            self.replayed("--resume", algorithm=algorithm)
            self.assertEqual(sorted(read_text(self.scores).splitlines()), sorted(scores.splitlines()))
            self.assertEqual(len(read_text(self.out).splitlines()), len(rows))
        with mock.patch.object(Scorer, "rows", side_effect=AssertionError):
            self.assertIn("0 groups to run in 0 parts, 8 done",
                          self.replayed("--resume", algorithm=algorithm))
        # More methods, budgets and seeds: what is there is not run again.
        first = {self.place(row): row for row in read_rows(self.scores)}
        said = self.replayed("--resume", "--seeds", "2", algorithm="snapkv,uniform,h2o", budget="0.5,0.25,0.125")
        self.assertIn("16 groups to run", said)
        later = {self.place(row): row for row in read_rows(self.scores)}
        self.assertEqual({place: later[place] for place in first}, first)
        self.check(self.replay("--seeds", "2", algorithm="snapkv,uniform,h2o", budget="0.5,0.25,0.125"))
        self.assertIn("--resume: sink: got 3, existing rows have 2",
                      self.replayed("--resume", "--sink", "3", code=2))

    def test_a_run_that_stops_leaves_no_caches(self):
        work = self.path(".work")
        os.mkdir(work)
        rows, count = Scorer.rows, []

        def stopping(scorer, prompt, groups):
            for one in rows(scorer, prompt, groups):
                count.append(one)
                if len(count) == 4:
                    raise KeyboardInterrupt
                yield one
        with mock.patch.object(Scorer, "rows", stopping):
            self.replayed("--work", work, "--groups", "2", "--batch", "1", code=130, algorithm="snapkv,h2o,uniform")
        self.assertEqual(os.listdir(work), [])
        self.assertEqual(len(read_rows(self.scores)), 3)
        self.replayed("--work", work, "--resume", algorithm="snapkv,h2o,uniform")
        self.assertEqual(os.listdir(work), [])
        self.check(self.replay(algorithm="snapkv,h2o,uniform"))

    def test_a_policy(self):
        """As the program runs it, beside an algorithm; a second run finds nothing to do."""
        policy = self.path(".json")
        write_text(policy, json.dumps({"format": "kvbench-policy", "version": 1, "budget": 0.5, "layers": [
            {"layer": 0, "algorithm": "snapkv", "budget": 0.5}, {"layer": 1, "algorithm": "uniform", "budget": 0.25},
            {"layer": 2, "algorithm": "h2o", "budget": 0.75}]}))
        options = ("--policy", policy, "--seeds", "2")
        self.replayed(*options, algorithm="snapkv")
        self.check(self.replay(*options, algorithm="snapkv"))
        seeds = [row["seed"] for row in read_rows(self.scores) if row["algorithm"] == "policy"]
        self.assertEqual(sorted(seeds), ["0", "0", "1", "1"])  # of two prompts
        self.assertIn("0 groups to run", self.replayed(*options, "--resume", algorithm="snapkv"))

    @property
    def of_layers(self):
        return self.scores.removesuffix(".csv") + ".layers.csv"

    def by_layer(self):
        return {(*self.place(row), row["layer"]): row for row in read_rows(self.of_layers)}

    def test_each_layer_alone(self):
        """The same as caches of that layer alone, which the program writes and kvbench-py score reads."""
        algorithm = "exact,snapkv,kmeans,quant-kivi,uniform"
        self.replayed("--each-layer", algorithm=algorithm)
        self.check(self.replay(algorithm=algorithm))
        found = self.by_layer()
        # The same from a file of caches.
        (_, caches), self.scores = self.made(algorithm=algorithm), self.path(".csv")
        self.score(self.llama, self.traces, caches, "--each-layer", out=self.scores)
        self.assertEqual(self.by_layer(), found)
        self.assertIn("already exists", self.script(self.traces, "--model", self.llama, "--caches", caches, "-o",
                                                    self.scores, "--each-layer").err)
        for layer in ("0", "1", "2"):
            _, _, scores = self.replay("--layers", layer, algorithm=algorithm)
            self.assertEqual({key[:-1] for key in found if key[-1] == layer}, set(map(self.place, scores)))
            for row in scores:
                got = found[(*self.place(row), layer)]
                self.assertEqual((got["layers"], got["status"]), ("1", row["status"]))
                for name in ("kl", "loss"):
                    if row[name]:
                        self.assertTrue(abs(float(row[name]) - float(got[name])) <= CLOSE, (name, row, got))
        self.assertEqual({key[-1] for key in found}, {"0", "1", "2"})

    def test_each_layer_goes_on(self):
        options = ("--each-layer", "--batch", "1")
        self.replayed(*options, algorithm="snapkv,h2o")
        whole, scores = self.by_layer(), sorted(read_text(self.scores).splitlines())
        layers = read_text(self.of_layers).splitlines(keepends=True)
        # Rows of layers without their group's row, a group's row without its layers, half a row, no file.
        for kept in (layers, layers[:3], layers[:4] + [layers[4][:20]], []):
            write_text(self.of_layers, "".join(kept))
            if not kept:
                os.remove(self.of_layers)
            lines = read_text(self.scores).splitlines(keepends=True)
            write_text(self.scores, "".join(lines[:-1] if kept == layers else lines))
            self.replayed("--resume", *options, algorithm="snapkv,h2o")
            self.assertEqual(self.by_layer(), whole)
            self.assertEqual(len(read_rows(self.of_layers)), len(whole))
            self.assertEqual(sorted(read_text(self.scores).splitlines()), scores)
        self.assertIn("0 groups to run", self.replayed("--resume", *options, algorithm="snapkv,h2o"))

    def test_refusals(self):
        for text, options in (
                ("--prompts: no prompt nope in the traces, they have p0, p1", ("--prompts", "nope")),
                ("got `0.5x`", ("--budget", "0.5x")), ("no such folder", ("--work", self.path("none"))),
                ("snapkvv", ("--algorithm", "snapkvv")), ("No such file", ("--program", "/none")),
                ("memory-limit", ("--memory-limit", "x"))):
            said = self.replayed(*options, code=2)
            self.assertIn(text, said)
            self.assertFalse(os.path.exists(self.out) or os.path.exists(self.scores), text)
        self.replayed("--prompts", "p1", algorithm="snapkv")
        self.assertEqual({row["prompt"] for row in read_rows(self.scores)}, {"p1"})

    def test_answers_of_a_batch(self):
        self.llama, algorithm = self.words_model(), "exact,snapkv,uniform"
        self.traces = self.trace(self.llama, "--o-proj")
        records = self.file("records.jsonl", json.dumps({
            "id": "p0", "answer": "w999 w8", "wrong": ["w30 w8", "w31 w8"]}) + "\n")
        options = ("--records", records, "--answer-tokens", "9")
        self.replayed(*options, algorithm=algorithm)
        self.check(self.replay(scored=options, algorithm=algorithm))
        rows = read_rows(self.scores)
        self.assertGreater(len({row["answer"] for row in rows}), 1)
        self.assertGreater(len({row["answer_nll"] for row in rows}), 3)
