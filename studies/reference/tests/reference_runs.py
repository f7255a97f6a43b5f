"""What tests of kvbench-study reference share: a small plan on synthetic traces, run by the real program."""

import json
import os
import subprocess
import sys
import unittest

from study_case import KVBENCH, STUDY, FolderCase, missing, read_text

from kvbench_study.reference import store

PROGRAM = os.path.join(STUDY, "kvbench-study")
MISSING = missing("numpy", "pandas", "matplotlib", "scipy", "h5py")
PATIENCE = 1200  # s; a run takes two on an idle machine

PLAN = """
title = "Small"
out = "unused"
work = "unused"
prompts = ["{folder}/prompts.jsonl"]
layers = [0, 1]

[model]
folder = "{folder}/model"
files = ["config.json"]
run = ["{model}", "{folder}/model", "{folder}/model/config.json"]

[trace]
run = ["kvbench", "synth", "-o", "{{trace}}", "--seed", "{{number}}", "--layers", "2", "--n", "700",
  "--d", "16", "--dv", "16"]
seconds = 3

[[stage]]
name = "equal"
title = "Two methods."
replay = ["--config", "{folder}/equal.toml"]
seconds = 20

[[stage]]
name = "again"
title = "Methods with seeds."
replay = ["--config", "{folder}/again.toml"]
prompts = ["a", "c"]
fewer = "An example."
seconds = 10

[[stage]]
name = "groups"
title = "Clusters."
cluster = ["--points", "csv", "--max-points", "64"]
prompts = ["a"]
fewer = "An example."
layers = [1]
seconds = 5

[[report]]
name = "table"
title = "A table"
run = ["kvbench summarize {{equal/rows.csv}} --metric rel_error --csv {{out}}/equal.summary.csv",
  "kvbench summarize {{equal/rows.csv}} --metric rel_error > {{out}}/table.txt"]
seconds = 2

[[report]]
name = "both"
title = "Statistics"
run = ["kvbench-py compare {{equal/rows.csv}} --to h2o --resamples 100 --csv {{out}}/compare.csv",
  "kvbench summarize {{again/rows.csv}} --metric rel_error --csv {{out}}/again.summary.csv",
  "{groups}"]
seconds = 4
"""


class ProgramCase(FolderCase):
    """Skipped without the program, or without what its scripts need."""

    missing = MISSING

    @classmethod
    def setUpClass(cls):
        if not KVBENCH:
            raise unittest.SkipTest("KVBENCH names no program")
        if cls.missing:
            raise unittest.SkipTest(f"{sys.executable} lacks {', '.join(cls.missing)}")


class ReferenceCase(ProgramCase):
    """A plan, its files, and runs of it."""

    def setUp(self):
        super().setUp()
        self.out = os.path.join(self.folder, "out")
        self.made = self.path("model", "config.json")
        with open(self.path("prompts.jsonl"), "w", encoding="utf-8") as file:
            for name, group in (("a", "test"), ("b", "test"), ("c", "dev")):
                file.write(json.dumps({"id": name, "set": group, "text": name}) + "\n")
        self.write("make.sh", '#!/bin/sh\nmkdir -p "$1" && echo "{}" > "$2"\n')
        os.chmod(self.path("make.sh"), 0o755)
        self.write("equal.toml", 'algorithm = ["h2o", "uniform"]\nbudget = [0.5, 0.25]\n'
                   'sink = 4\nrecent = 64\nqueries = 32\n')
        self.write("again.toml", 'algorithm = ["balancekv", "uniform"]\nbudget = [0.5, 0.25]\n'
                   'seeds = "2"\nsink = 4\nrecent = 64\nqueries = 32\n')
        self.plan()

    def write(self, name, text):
        self.write_file(name, text)

    def read(self, *parts):
        return read_text(self.path(*parts))

    def plan(self, change=lambda text: text):
        last = "kvbench summarize {{again/rows.csv}} --metric rel_error > {{out}}/again.txt"
        text = PLAN.replace("{groups}", last).format(folder=self.folder,
                                                     model=self.path("make.sh"))
        self.write("plan.toml", change(text))

    def words(self, *options, out=None, work="work"):
        return [sys.executable, PROGRAM, "reference", "--plan", self.path("plan.toml"), "--work",
                self.path(work), "--output", out or self.out, "--kvbench", KVBENCH, "--samples", "0", *options]

    def run_it(self, *options, code=0, **more):
        """stdout and stderr."""
        done = subprocess.run(self.words(*options, **more), capture_output=True, text=True,
                              timeout=PATIENCE, check=False)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertNotIn("Traceback", done.stderr)
        return done.stdout, done.stderr

    def tables(self, out=None):
        """{file: text} of a results folder without its store, no half file in it."""
        found = {}
        for folder, _, files in os.walk(out or self.out):
            for name in files:
                path = os.path.join(folder, name)
                self.assertFalse(name.endswith(".part"), path)
                inside = os.path.relpath(path, out or self.out)
                if not inside.startswith("store"):
                    with open(path, encoding="utf-8") as file:
                        text = file.read()
                    found[inside] = text.replace(out or self.out, "OUT")
        return found

    def did(self, said):
        """What a run did, in order: `a equal`, `report table`, ..."""
        return [line.split("] ")[1].split(":")[0] for line in said.splitlines() if "] " in line]

    def changed_times(self, folder):
        """Of all files but the store's."""
        return {os.path.join(at, name): os.stat(os.path.join(at, name)).st_mtime_ns
                for at, _, files in os.walk(folder) for name in files if os.path.basename(at) != "store"}

    def store(self, out=None):
        return store.Store(os.path.join(out or self.out, "store"))
