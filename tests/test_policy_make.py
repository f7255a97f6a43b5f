"""kvbench-py policy from a model and prompts, with stand-ins for dump and score: what is done again and what is not."""

import contextlib
import io
import json
import os
import sys
import unittest
from unittest import mock

from script_case import KVBENCH, CommandCase, missing, read_rows, read_text, write_rows, write_text

MISSING = missing("numpy", "pandas", "scipy", "h5py")
if not MISSING:
    import numpy as np

    import kvbench
    from kvbench.budgets import main as policy
    from kvbench.budgets import make, steps
    from kvbench.budgets.steps import StepFailed
    from kvbench.dump import options as dump_options
    from kvbench.score import options as score_options
    from kvbench.score.table import COLUMNS
    from kvbench.trace.writer import TraceWriter

N, D = 120, 8
SENSITIVITY = (4.0, 0.5)
WINDOWS = ("--sink", "2", "--recent", "16", "--queries", "8")


@unittest.skipIf(MISSING, f"lacks {', '.join(MISSING)}")
@unittest.skipUnless(KVBENCH, "KVBENCH names no program")
class MakeTest(CommandCase):
    def module(self):
        return policy

    def setUp(self):
        super().setUp()
        self.ran, self.stop = [], ""
        self.prompts = self.write_file("p.jsonl", "".join(json.dumps(
            {"id": name, "source": name.upper(), "text": "x"}) + "\n" for name in "ab"))
        os.mkdir(self.path("m"))
        for target, stand_in in (("kvbench_py", self.of_the_model), ("call", self.counted)):
            patch = mock.patch.object(make, target, stand_in)
            patch.start()
            self.addCleanup(patch.stop)

    def of_the_model(self, name, *words, table=""):
        """What dump and score would write, of a model whose layers cost SENSITIVITY."""
        parse = {"dump": dump_options, "score": score_options}[name].parse_arguments
        with mock.patch("sys.argv", [name, *words]):
            args = parse()
        self.ran.append(name + " --resume" * getattr(args, "resume", False))
        if self.stop == name:
            raise StepFailed("stopped", 130)
        (self.dump if name == "dump" else self.score)(args)

    def counted(self, *words, table=""):
        self.ran.append("replay" + " --resume" * ("--resume" in words))
        self.done(*words[1:])

    def dump(self, args):
        rng = np.random.default_rng(len(read_text(self.prompts)))
        with TraceWriter(args.output, "m", "s", created="2026-01-02") as writer:
            for prompt in "ab":
                writer.begin_prompt(prompt, N)
                for layer in range(2):
                    writer.begin_layer(layer, 2, 2, N, D, D)
                    if layer:
                        writer.set_attribute(layer, "window", np.int64(N - 20))
                    for part in "qkv":
                        writer.write(part, 0, 0, rng.normal(size=(2, N, D)).astype(np.float16), layer)
                    writer.write_o_proj(rng.normal(size=(D, 2 * D)).astype(np.float16), layer)
                    writer.write_residual_norm(0, np.full(N, 9.0), layer)

    def score(self, args):
        trace, = args.trace
        windows = [f"--{name}={getattr(args, name)}" for name in make.WINDOWS]
        self.done("replay", trace, f"--algorithm={args.algorithm[0]}", f"--budget={args.budget}", *windows, "-o",
                  args.rows, "--overwrite")
        of_layers = args.rows.removesuffix(".csv") + ".layers.csv"
        os.remove(args.rows + ".json")  # score's rows have no manifest
        alone, sums = [], {}
        for row in read_rows(of_layers):
            key = tuple(row[name] for name in ("trace", "prompt", "algorithm", "params", "budget_requested", "seed"))
            kl = SENSITIVITY[int(row["layer"])] * float(row["residual_rel_error"])**2
            sums[key] = sums.get(key, 0) + kl
            alone.append([*key, 1, *[""] * 5, kl, *[""] * 7, "ok", *[""] * 7, row["layer"]])
        write_rows(args.output.removesuffix(".csv") + ".layers.csv", (*COLUMNS, "layer"), alone)
        write_rows(args.output, COLUMNS, [[*key, 2, *[""] * 5, kl, *[""] * 7, "ok", *[""] * 7]
                                          for key, kl in sums.items()])
        write_text(args.output + ".json", json.dumps({"settings": {"model": "m"}}))

    def make(self, *more, budget="0.25", measure=True):
        """The steps that ran, and what was said."""
        self.ran = []
        done = self.call("--model", self.path("m"), "--prompts", self.prompts, "--budget", budget, *WINDOWS,
                         "--algorithm", "local,uniform", "-o", self.path("p.json"), *["--measure"] * measure, *more)
        self.code = done.code
        return self.ran, done.err

    def test_one_command_makes_a_policy(self):
        ran, said = self.make()
        self.assertEqual((ran, self.code), (["dump", "score", "replay", "replay"], 0), said)
        content = json.loads(read_text(self.path("p.json")))
        self.assertEqual((content["budget"], content["model"], len(content["layers"])), (0.25, "m", 2))
        found = json.loads(read_text(self.path("p.steps", "sensitivities.json")))
        np.testing.assert_allclose(found["sensitivity"], SENSITIVITY, rtol=1e-4)
        self.assertEqual(found["fitted"]["sources"], ["A", "B"])
        for at, name in enumerate(("dump", "score", "measure", "replay", "choose"), 1):
            self.assertIn(f"[{at}/5] {name}: ", said)
        self.done("replay", self.path("p.steps", "dev.h5"), "--policy", self.path("p.json"), "-o", self.path("o.csv"),
                  *WINDOWS)

    def test_without_sensitivities(self):
        ran, said = self.make("--max-prompts", "1", measure=False)
        self.assertEqual((ran, self.code), (["dump", "replay", "replay"], 0), said)
        text = read_text(self.path("p.json"))
        curves = [self.path("p.steps", f"dev-{at}.layers.csv") for at in range(2)]
        self.call("choose", "equal", *curves, "--budget", "0.25", "-o", self.path("q.json"))
        self.assertEqual(read_text(self.path("q.json")), text)
        self.assertEqual(json.loads(text)["model"], "m")
        # Sensitivities are measured once they are asked for, and nothing else is done again.
        self.assertEqual(self.make(measure=False)[0], ["dump"])  # of both prompts: the same trace from the stand-in
        self.assertEqual(self.make("--markdown", self.path("p.md"))[0], ["score"])
        self.assertIn("predicted KL", read_text(self.path("p.md")))

    def test_what_is_whole_is_not_done_again(self):
        self.make()
        policy_text = read_text(self.path("p.json"))
        ran, said = self.make()
        self.assertEqual((ran, said.count(": is there\n")), ([], 4))
        self.assertEqual(read_text(self.path("p.json")), policy_text)
        # A table that was damaged, other options, other prompts.
        for change, expected in (
                (lambda: os.truncate(self.path("p.steps", "alone.scores.csv"), 300), ["score"]),
                (lambda: os.remove(self.path("p.steps", "dev-1.layers.csv")), 2 * ["replay"]),
                (lambda: write_text(self.path("m", "weights"), "new"), ["dump", "score"]),
                (lambda: write_text(self.prompts, read_text(self.prompts) + "\n"), ["dump", "score", *2 * ["replay"]])):
            change()
            self.assertEqual(self.make()[0], expected)
        self.assertEqual(self.make(budget="0.125")[0], ["score", "replay", "replay"])
        self.assertEqual(self.make("--vary", "methods", budget="0.125")[0], [])

    def test_python_makes_the_same(self):
        self.make()
        text, self.ran = read_text(self.path("p.json")), []
        options = {"algorithm": ["local", "uniform"], "sink": 2, "recent": 16, "queries": 8, "measure": True}
        path = kvbench.policy(self.path("m"), self.prompts, 0.25, self.path("p.json"), **options)
        self.assertEqual((self.ran, path, read_text(path)), ([], self.path("p.json"), text))  # the steps are there
        with self.assertRaisesRegex(TypeError, "unexpected option 'colour'"):
            kvbench.policy(self.path("m"), self.prompts, 0.25, colour=1)

    def test_a_step_that_was_stopped_goes_on(self):
        self.stop = "score"
        ran, said = self.make()
        self.assertEqual((ran, self.code), (["dump", "score"], 130))
        self.assertIn("kvbench-py policy: stopped\n", said)
        self.stop = ""
        self.assertEqual(self.make()[0], ["score --resume", "replay", "replay"])

    def test_a_step_of_other_options_that_was_stopped_goes_on(self):
        """Its tables that it had not begun are of the earlier options, which --resume refuses."""
        self.make(measure=False)
        with mock.patch.object(make, "call", mock.Mock(side_effect=StepFailed("stopped", 130))):
            self.make("--recent", "20", measure=False)
        self.assertEqual(self.code, 130)
        ran, said = self.make("--recent", "20", measure=False)
        self.assertEqual((ran, self.code), (2 * ["replay --resume"], 0), said)

    def test_sources_that_some_records_lack(self):
        self.prompts = self.write_file("p.jsonl", json.dumps({"id": "a", "source": "A", "text": "x"}) + "\n"
                                       + json.dumps({"id": "b", "text": "x"}) + "\n")
        self.make()
        self.assertEqual(json.loads(read_text(self.path("p.steps", "sensitivities.json")))["fitted"]["sources"],
                         ["A", "b"])

    def test_exit_code_1_is_rows_that_failed(self):
        table = self.path("t.csv")
        end = sys.executable, "-c", "import sys; sys.exit(1)"
        with self.assertRaisesRegex(StepFailed, "the step ended with exit code 1") as caught:
            steps.call(*end, table=table)
        self.assertEqual(caught.exception.exit_code, 3)
        write_rows(table, ("prompt", "algorithm", "budget_requested", "status"),
                   [("a", "h2o", "0.5", "ok"), *[("a", "h2o", "0.25", "failed: memory")] * 2])
        with contextlib.redirect_stderr(io.StringIO()) as said:
            steps.call(*end, table=table)
        self.assertEqual(said.getvalue(), f"{table}: prompt a, h2o at 0.25: 2 rows: failed: memory\n")

    def test_refusals(self):
        whole = ["--model", "m", "--prompts", self.prompts, "--budget", "0.25", "-o", self.path("p.json")]
        for at, name in ((0, "model"), (2, "prompts"), (4, "budget"), (6, "output")):
            self.refused(f"-o: {name} is missing", *whole[:at], *whole[at + 2:])
        self.refused("choose: got --model before it, expected the step first", "--model", "m", "choose", "s", "l",
                     "--budget", "1", "-o", "p")
        self.refused("p.jsonl: got 1 source, expected at least 2", *whole, "--measure", "--max-prompts", "1")
        self.refused("no.jsonl: no such file", *whole[:3], "no.jsonl", *whole[4:])
        os.mkdir(self.path("p.steps"))
        self.write_file("p.steps/precious", "")
        self.refused("p.steps: got a folder without steps.json, expected that of an earlier run", *whole)
        self.write_file("p.steps/steps.json", "[]")
        self.refused("steps.json: got no record of steps", *whole)
        self.assertEqual(self.ran, [])
