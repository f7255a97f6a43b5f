"""kvbench-study reference: stages of two commands, with the real program and a stub of what runs
after it."""

import json
import os
import sys
import unittest

from reference_runs import KVBENCH, ReferenceCase

TRACE = """
import subprocess, sys
program, out, number, layers = sys.argv[1:]
subprocess.run([program, "synth", "-o", out, "--seed", number, "--layers", str(layers.count(",") + 1),
                "--n", "700", "--d", "16", "--dv", "16"], check=True, stdout=subprocess.DEVNULL)
"""
# As kvbench-py score: a row per row of the table, appended, from a file that the first command left.
SCORE = """
import os, sys
import score_part
trace, table, kept, out, stop = sys.argv[1:]
assert os.path.isfile(trace) and os.path.isfile(kept)
done = open(out).read().splitlines() if os.path.exists(out) else []
with open(out, "a") as file:
    for number, line in enumerate(open(table).read().splitlines()):
        if number >= len(done):
            file.write(score_part.score(line) + "\\n")
            file.flush()
        if number == 3 and os.path.exists(stop):
            sys.exit(int(open(stop).read()))
"""
STAGE = """
[[stage]]
name = "model"
title = "Two commands."
replay = ["--config", "{folder}/equal.toml", "--kept"]
then = ["{python}", "{folder}/score.py", "{{trace}}", "{{folder}}/rows.csv", "{{folder}}/rows.kept.csv",
  "{{folder}}/scores.csv", "{folder}/stop"]
drop = ["rows.kept.csv"]
seconds = 30

[[report]]
name = "scores"
title = "Scores"
run = ["cat {{model/scores.csv}} > {{out}}/scores.csv"]
seconds = 1
"""


class ThenTest(ReferenceCase):
    def setUp(self):
        super().setUp()
        self.write("trace.py", TRACE)
        self.write("score.py", SCORE)
        self.write("score_part.py", "def score(line):\n    return 'scored ' + line\n")
        self.two_commands()

    def two_commands(self, change=lambda text: text):
        stage, report = STAGE.format(folder=self.folder, python=sys.executable).split("[[report]]")
        program = os.path.abspath(KVBENCH)

        def both(text):
            begin, end = text.index('run = ["kvbench", "synth"'), text.index("seconds = 3\n")
            run = [sys.executable, self.path("trace.py"), program, "{trace}", "{number}",
                   "{layers}"]
            text = f"{text[:begin]}run = {json.dumps(run)}\n{text[end:]}"
            # `equal` and `model` are enough.
            stages, reports = text.index('[[stage]]\nname = "again"'), text.index("[[report]]")
            other = text.index('[[report]]\nname = "both"')
            return change(f"{text[:stages]}{stage}{text[reports:other]}[[report]]{report}")

        self.plan(both)

    def test_whole_run(self):
        said, _ = self.run_it("--dry-run")
        listed = [line.split("\t")[0] for line in said.splitlines() if "\t" in line]
        self.assertEqual(listed, [
            "a trace", "a equal", "a model", "b trace", "b equal", "b model", "report table",
            "report scores"])
        said, _ = self.run_it()
        self.assertEqual(self.did(said), listed)
        left = os.listdir(self.path("work", "model", "a"))
        self.assertIn("scores.csv", left)
        self.assertNotIn("rows.kept.csv", left)
        found = self.tables()
        want = "".join("scored " + line + "\n" for name in "ab" for line in
                       self.read("work", "model", name, "rows.csv").splitlines())
        self.assertEqual(found["scores.csv"], want)
        self.assertIn("score.py", found["README.md"])
        said, _ = self.run_it()
        self.assertEqual(self.did(said), [])

    def test_a_change_of_what_the_script_imports(self):
        self.run_it()
        self.write("score_part.py", "def score(line):\n    return 'again ' + line\n")
        said, _ = self.run_it()
        self.assertEqual(self.did(said), ["a trace", "a model", "b trace", "b model", "report scores"])
        self.assertIn("again ", self.tables()["scores.csv"])

    def test_interrupted_in_the_second_command(self):
        self.run_it(out=self.path("whole"), work="whole-work")
        whole = self.tables(self.path("whole"))["scores.csv"]
        self.write("stop", "3")
        _, errors = self.run_it(code=3)
        self.assertIn("score.py", errors)
        rows = self.path("work", "model", "a", "rows.csv")
        before = self.read("work", "model", "a", "rows.csv")  # Its times too.
        self.assertTrue(os.path.isfile(self.path("work", "model", "a", "rows.kept.csv")))
        half = self.read("work", "model", "a", "scores.csv")
        self.assertEqual(half.count("\n"), 4)
        os.remove(self.path("stop"))
        # What was written stays: the second command goes on.
        self.write("work/model/a/scores.csv", half.replace("scored", "before"))
        said, _ = self.run_it()
        self.assertEqual(self.did(said)[0], "a model")
        self.assertNotIn("begins anew", said)
        self.assertEqual(self.read("work", "model", "a", "rows.csv"), before)
        scores = self.read("work", "model", "a", "scores.csv")
        self.assertEqual((scores.count("before"), scores.count("\n")), (4, before.count("\n")))
        self.assertFalse(os.path.exists(rows.replace("rows.csv", "rows.kept.csv")))
        self.assertEqual(self.tables()["scores.csv"].count("\n"), whole.count("\n"))

    def test_failed_rows_of_the_second_command(self):
        self.write("stop", "1")
        said, _ = self.run_it(code=1)
        self.assertIn("rows failed (column `status` says why) in a model, b model", said)
        self.assertIn("scores.csv", self.tables())

    def test_refusals(self):
        for old, new, expected in (
                ('drop = ["rows', 'drop = ["x/rows', "stage model: drop: got `x/rows.kept.csv`"),
                ('"{trace}", "{folder}/rows.csv"', '"{trace}", "{equal/rows.csv}"',
                 "stage model: then: got `{equal/rows.csv}`, expected files in {folder}"),
                ('replay = ["--config", "{0}/equal.toml", "--kept"]', "cluster = []",
                 "expected with `replay` only"),
                ("seconds = 30", "seconds = true", "seconds: got True")):
            with self.subTest(new=new):
                old = old.replace("{0}", self.folder)
                self.two_commands(lambda text, old=old, new=new: text.replace(old, new))
                self.assertIn(new or "[trace]", self.read("plan.toml"))
                _, errors = self.run_it(code=2)
                self.assertIn(expected, errors)
        self.two_commands(lambda text: text.replace("score.py", "none.py"))
        _, errors = self.run_it(code=2)
        self.assertIn("none.py: cannot be read", errors)


if __name__ == "__main__":
    unittest.main()
