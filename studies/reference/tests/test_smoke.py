"""The study in one test, part of `make test`: its commands, and that a step is made and known again."""

import glob
import json
import os
import subprocess
import sys
import unittest

from study_case import KVBENCH, STUDY, FolderCase, call, missing, read_text, run_study

from kvbench.__main__ import run
from kvbench_study import programs

PACKAGES = missing("numpy", "pandas", "matplotlib", "scipy", "sklearn", "h5py")
PLAN = """
title = "Small"
out = "unused"
work = "unused"
prompts = ["{folder}/p.jsonl"]
layers = [0]

[model]
folder = "{folder}"
files = ["p.jsonl"]
run = ["false"]

[trace]
run = ["kvbench", "synth", "-o", "{{trace}}", "--layers", "1", "--n", "700", "--d", "16", "--dv", "16"]
seconds = 1

[[stage]]
name = "equal"
title = "A method."
replay = ["--algorithm", "h2o", "--budget", "0.5"]
seconds = 1

[[report]]
name = "table"
title = "A table"
run = ["kvbench summarize {{equal/rows.csv}} --metric rel_error > {{out}}/table.txt"]
seconds = 1
"""


class SmokeTest(FolderCase):
    @unittest.skipIf(PACKAGES, f"{sys.executable} lacks {', '.join(PACKAGES)}")
    def test_every_command_says_its_help(self):
        for name in programs.PROGRAMS:
            done = call(lambda name=name: run([name, "--help"], programs.COMMANDS), "kvbench-study")
            self.assertEqual((done.code, done.err), (0, ""), name)
            self.assertIn(f"usage: kvbench-study {name}", done.out)
        done = run_study("--help")
        self.assertEqual(done.returncode, 0, done.stderr)
        for name, program in programs.PROGRAMS.items():
            self.assertRegex(done.stdout, rf"(?m)^  {name} +{program.about}$")

    def test_every_main_is_a_command(self):
        files = {os.path.relpath(path, os.path.join(STUDY, "kvbench_study")).removesuffix(".py").replace(os.sep, ".")
                 for path in glob.glob(os.path.join(STUDY, "kvbench_study", "**", "*.py"), recursive=True)
                 if "\ndef main(" in read_text(path)}
        self.assertEqual(files - {"__main__"}, {program.module for program in programs.PROGRAMS.values()})

    @unittest.skipIf(PACKAGES or not KVBENCH, "no packages, or KVBENCH names no program")
    def test_a_step_and_its_report_are_made_once(self):
        self.write_file("p.jsonl", json.dumps({"id": "a", "set": "test", "text": ""}) + "\n")
        self.write_file("plan.toml", PLAN.format(folder=self.folder))
        words = ["--plan", self.path("plan.toml"), "--work", self.path("work"), "--output", self.path("out"),
                 "--kvbench", KVBENCH, "--dump-python", sys.executable]
        for said in ("results: ", "done before: 1 step, 1 report"):
            done = subprocess.run([sys.executable, os.path.join(STUDY, "kvbench-study"), "reference", *words],
                                  capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(said, done.stdout)
        self.assertIn("h2o", read_text(self.path("out", "table.txt")))


if __name__ == "__main__":
    unittest.main()
