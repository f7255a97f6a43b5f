"""kvbench-py reference with the real program on small synthetic traces: a run that nobody disturbs,
runs that are interrupted and resumed, what a change does again, refusals and failures."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import unittest

from script_case import KVBENCH, ROOT, FolderCase, missing, read_text

PROGRAM = os.path.join(ROOT, "scripts", "kvbench-py")
MISSING = missing("numpy", "pandas", "matplotlib", "scipy")
PATIENCE = 1200  # s; a run takes two on an idle machine

PLAN = """
title = "Small"
out = "unused"
work = "unused"
prompts = ["{folder}/prompts.jsonl"]
layers = [0, 1]
full_layers = [0, 1, 2]

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
replay = ["--config", "{folder}/again.toml", "--kept"]
prompts = ["a", "c"]
fewer = "An example."
seconds = 10

[[stage]]
name = "groups"
title = "Clusters."
cluster = ["--points", "csv", "--max-points", "64", "--kept-by", "{{again/rows.kept.csv}}"]
prompts = ["a"]
fewer = "It needs the other."
layers = [1]
seconds = 5

[[report]]
name = "table"
title = "A table"
run = ["kvbench summarize {{equal/rows.csv}} --metric rel_error --csv {{out}}/equal.summary.csv",
  "scripts/results_table.py x={{equal/rows.csv}} > {{out}}/table.md"]
seconds = 2

[[report]]
name = "both"
title = "Statistics"
run = ["kvbench-py compare {{equal/rows.csv}} --to h2o --resamples 100 --csv {{out}}/compare.csv",
  "kvbench summarize {{again/rows.csv}} --metric rel_error --csv {{out}}/again.summary.csv",
  "{groups}"]
seconds = 4
"""


class ReferenceTest(FolderCase):
    @classmethod
    def setUpClass(cls):
        if not KVBENCH:
            raise unittest.SkipTest("KVBENCH names no program")
        if MISSING:
            raise unittest.SkipTest(f"{sys.executable} lacks {', '.join(MISSING)}")

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
        last = "scripts/results_table.py y={{again/rows.csv}} > {{out}}/again.md"
        text = PLAN.replace("{groups}", last).format(folder=self.folder,
                                                     model=self.path("make.sh"))
        self.write("plan.toml", change(text))

    def words(self, *options, out=None, work="work"):
        return [sys.executable, PROGRAM, "reference", "--plan", self.path("plan.toml"), "--work",
                self.path(work), "--output", out or self.out, "--kvbench", KVBENCH, *options]

    def run_it(self, *options, code=0, **more):
        """stdout and stderr."""
        done = subprocess.run(self.words(*options, **more), capture_output=True, text=True,
                              timeout=PATIENCE, check=False)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertNotIn("Traceback", done.stderr)
        return done.stdout, done.stderr

    def tables(self, out=None):
        """{file: text} of a results folder, times left out, no half file in it."""
        found = {}
        for folder, _, files in os.walk(out or self.out):
            for name in files:
                path = os.path.join(folder, name)
                self.assertFalse(name.endswith(".part"), path)
                inside = os.path.relpath(path, out or self.out)
                if inside != "times.csv" and not inside.startswith("manifests"):
                    with open(path, encoding="utf-8") as file:
                        text = file.read()
                    found[inside] = text.replace(out or self.out, "OUT")
        return found

    def did(self, said):
        """What a run did, in order: `a equal`, `report table`, ..."""
        return [line.split("] ")[1].split(":")[0] for line in said.splitlines() if "] " in line]

    def test_whole_run(self):
        said, _ = self.run_it("--dry-run")
        listed = [line.split("\t")[0] for line in said.splitlines() if "\t" in line]
        self.assertEqual(listed, [
            "a trace", "a equal", "a again", "a groups", "b trace", "b equal", "c trace", "c again",
            "report table", "report both"])
        self.assertIn("left: 5 of 5 steps, 3 traces, 2 reports; about 80 s", said)  # By hand.
        self.assertEqual(sorted(os.listdir(self.folder)),
                         ["again.toml", "equal.toml", "make.sh", "plan.toml", "prompts.jsonl"])

        said, _ = self.run_it()
        self.assertEqual(self.did(said), listed)
        self.assertIn("left: 5 of 5 steps", said)
        found = self.tables()
        self.assertLessEqual({"README.md", "equal.summary.csv", "table.md", "compare.csv",
                              "compare.prompts.csv", "again.summary.csv", "again.md"}, set(found))
        # Both prompts are in the table, and each under its own name.
        self.assertEqual(found["compare.prompts.csv"].count("a.h5"),
                         found["compare.prompts.csv"].count("b.h5"))
        self.assertGreater(found["compare.prompts.csv"].count("b.h5"), 0)
        self.assertIn("h2o", found["table.md"])
        self.assertIn("replay", found["README.md"])
        self.assertIn("equal/{a,b}/rows.csv", found["README.md"])
        self.assertNotIn("Not made yet", found["README.md"])
        manifest = json.loads(self.read("out", "manifests", "equal.json"))
        self.assertEqual(set(manifest["prompts"]), {"a", "b"})
        self.assertEqual(manifest["shared"]["configuration"]["queries"], 32)
        self.assertNotIn("queries", manifest["prompts"]["a"]["configuration"])
        self.assertIn("a.h5", manifest["prompts"]["a"]["traces"][0]["path"])
        self.assertTrue(os.path.getsize(self.path("work", "groups", "a", "points.csv")))
        self.assertFalse([n for n in os.listdir(self.path("work", "traces")) if n.endswith(".h5")])

        before = self.changed_times(self.out)
        said, _ = self.run_it()
        self.assertIn("done before: 5 steps, 2 reports", said)
        self.assertEqual(self.did(said), [])
        self.assertEqual(self.changed_times(self.out), before)
        # What somebody removed comes back from what is done.
        os.remove(os.path.join(self.out, "table.md"))
        self.run_it()
        self.assertEqual(self.tables(), found)

    def changed_times(self, folder):
        return {os.path.join(at, name): os.stat(os.path.join(at, name)).st_mtime_ns
                for at, _, files in os.walk(folder) for name in files}

    def test_a_change_does_its_own_steps_again(self):
        self.run_it()
        before = self.tables()
        self.write("again.toml", self.read("again.toml").replace('"2"', '"3"'))
        said, _ = self.run_it()
        # `groups` reads what `again` keeps.
        self.assertEqual(self.did(said), ["a trace", "a again", "a groups", "c trace", "c again",
                                          "report both"])
        after = self.tables()
        self.assertEqual(before["equal.summary.csv"], after["equal.summary.csv"])
        self.assertNotEqual(before["again.summary.csv"], after["again.summary.csv"])
        # A prompt's own text: its steps alone.
        records = self.read("prompts.jsonl")
        self.write("prompts.jsonl", records.replace('"text": "b"', '"text": "B"'))
        said, _ = self.run_it("--keep")
        self.assertEqual(self.did(said), ["b trace", "b equal", "report table", "report both"])
        self.assertTrue(os.path.isfile(self.path("work", "traces", "b.h5")))

    def test_the_former_name_of_the_output(self):
        words = ["--out" if word == "--output" else word for word in self.words("--dry-run")]
        done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, "note: --out is now --output\n"))

    def test_parts(self):
        said, _ = self.run_it("--only", "groups")
        self.assertEqual(self.did(said), ["a trace", "a again", "a groups", "c trace", "c again"])
        self.assertEqual(self.tables(), {})
        said, _ = self.run_it("--max-minutes", "0.001")
        self.assertIn("stopped by --max-minutes before a trace", said)
        self.assertEqual(self.did(said), [])
        said, _ = self.run_it("--prompts", "b", out=self.path("b"))
        self.assertEqual(self.did(said), ["b trace", "b equal", "report table"])
        self.assertIn("Not made yet", self.tables(self.path("b"))["README.md"])
        said, _ = self.run_it("--layers", "1", "--only", "equal", "--prompts", "a")
        self.assertTrue(os.path.isdir(self.path("work-layers-1", "equal", "a")))
        said, _ = self.run_it()
        self.assertEqual(self.did(said), ["a trace", "a equal", "report table", "report both"])

    def disturbed(self, number, work):
        """A run that gets a signal in a replay, one that gets it in a report, one to the end."""
        out = self.path("out-" + work)
        did = []
        for moment in (("again", "a", "rows.csv"), ("reports", "both.part")):
            run = subprocess.Popen(self.words(out=out, work=work), stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
            while run.poll() is None and not os.path.exists(self.path(work, *moment)):
                time.sleep(0.002)
            run.send_signal(number)
            said, errors = run.communicate(timeout=PATIENCE)
            self.assertEqual(run.returncode, 130 if number == signal.SIGINT else -signal.SIGKILL,
                             said + errors)
            self.assertNotIn("Traceback", errors)
            self.assertEqual(self.tables(out), {})
            did.append(self.did(said))
        said, _ = self.run_it(out=out, work=work)
        did.append(self.did(said))
        # At most the step at which the signal came is done again; traces of a prompt at work stay.
        self.assertEqual(did, [
            ["a trace", "a equal"],
            ["a again", "a groups", "b trace", "b equal", "c trace", "c again", "report table"],
            ["report both"]])
        return self.tables(out)

    def test_interrupted_runs_give_the_same_tables(self):
        # Long enough that a signal comes before its end.
        self.write("again.toml", self.read("again.toml").replace('"2"', '"100"'))
        self.run_it()
        whole = {name: text.replace("/work/", "/W/") for name, text in self.tables().items()}
        for number, work in ((signal.SIGINT, "int"), (signal.SIGKILL, "kill")):
            with self.subTest(number=number):
                found = self.disturbed(number, work)
                self.assertEqual({n: t.replace(f"/{work}/", "/W/") for n, t in found.items()},
                                 whole)

    def test_a_step_that_stopped_half_way_goes_on(self):
        """What kvbench has in the middle of a step: some rows, and begun.json."""
        self.run_it("--keep")
        whole = self.tables()
        folder = self.path("work", "again", "a")
        with open(os.path.join(folder, "done.json"), encoding="utf-8") as file:
            done = json.load(file)
        os.remove(os.path.join(folder, "done.json"))
        with open(os.path.join(folder, "begun.json"), "w", encoding="utf-8") as file:
            json.dump({key: done[key] for key in ("inputs", "program")}, file)
        rows = self.read("work", "again", "a", "rows.csv").splitlines(keepends=True)
        self.write("work/again/a/rows.csv", "".join(rows[:5]) + rows[5][:9])  # Cut in a line.
        said, _ = self.run_it()
        self.assertIn("a again", self.did(said))
        self.assertNotIn("begins anew", said)
        self.assertEqual(self.tables(), whole)
        again = self.read("work", "again", "a", "rows.csv").splitlines(keepends=True)
        self.assertEqual(again[:5], rows[:5])  # These were kept, their times too.
        self.assertIsNone(json.loads(self.read("work", "again", "a", "done.json"))["seconds"])
        # Half a file of another configuration is no beginning.
        self.write("again.toml", self.read("again.toml").replace('"2"', '"1"'))
        self.run_it()
        self.assertLess(len(self.read("work", "again", "a", "rows.csv").splitlines()), len(rows))

    def test_failures_name_the_command_and_leave_results(self):
        self.run_it()
        before, times = self.tables(), self.changed_times(self.out)
        self.write("equal.toml", self.read("equal.toml").replace("h2o", "nosuch"))
        _, errors = self.run_it(code=2)
        self.assertIn("exit code 2 of: build/kvbench replay", errors)
        self.assertIn("nosuch", errors)
        self.assertEqual((self.tables(), self.changed_times(self.out)), (before, times))
        self.write("equal.toml", self.read("equal.toml").replace("nosuch", "h2o,local"))
        self.plan(lambda text: text.replace("--to h2o", "--to nosuch"))
        _, errors = self.run_it(code=2)
        self.assertIn("of: scripts/kvbench-py compare", errors)
        self.assertEqual((self.tables(), self.changed_times(self.out)), (before, times))
        self.plan()
        self.run_it()
        self.assertIn("local", self.tables()["table.md"])
        # kvbench had exit code 1: rows of status failed are results, and are not forgotten.
        done = self.read("work", "equal", "b", "done.json")
        self.write("work/equal/b/done.json", done.replace('"code": 0', '"code": 1'))
        said, _ = self.run_it("--only", "equal", code=1)
        self.assertIn("rows failed (column `status` says why) in b equal", said)

    def plan_with_choice(self):
        """`first`, on the development prompt, makes a configuration that the stage `chosen` runs."""
        self.write("choose.py", "import sys\nrows = open(sys.argv[1], encoding='utf-8').read()\n"
                   "name = 'local' if 'seed' in rows and sys.argv[2] == 'local' else 'h2o'\n"
                   "print(f'algorithm = [\"{name}\"]')\n")
        new = f"""
[[stage]]
name = "first"
title = "A method on the development prompt."
replay = ["--algorithm", "uniform", "--budget", "0.5", "--recent", "64", "--queries", "32"]
prompts = "dev"
seconds = 1

[[stage]]
name = "chosen"
title = "What was chosen."
replay = ["--config", "{{choice/chosen.toml}}", "--budget", "0.5", "--recent", "64", "--queries", "32"]
seconds = 1

[[report]]
name = "after"
title = "Reads a report"
run = ["scripts/results_table.py z={{chosen/rows.csv}} --sort z:0.5 > {{out}}/after.md",
  "{sys.executable} {self.path("choose.py")} {{choice/chosen.toml}} local > {{out}}/again.toml"]
seconds = 1

[[report]]
name = "choice"
title = "A choice"
run = ["{sys.executable} {self.path("choose.py")} {{first/rows.csv}} local > {{out}}/chosen.toml"]
seconds = 1
"""
        self.plan(lambda text: self.in_order(text, new))

    def in_order(self, text, new):
        reports = text.index("[[report]]")
        stages, own = new.split("[[report]]", 1)
        after, choice = own.split("[[report]]")
        return f"{text[:reports]}{stages}[[report]]{choice}[[report]]{after}{text[reports:]}"

    def test_a_report_that_a_stage_reads_comes_first(self):
        self.plan_with_choice()
        said, _ = self.run_it("--dry-run", "--only", "chosen", "--prompts", "a")
        listed = [line.split("\t")[0] for line in said.splitlines() if "\t" in line]
        self.assertEqual(listed[:3], ["c trace", "c first", "report choice"])
        said, _ = self.run_it()
        self.assertEqual(self.did(said)[:3], ["c trace", "c first", "report choice"])
        self.assertLess(self.did(said).index("b chosen"), self.did(said).index("report after"))
        self.assertIn('"local"', self.tables()["chosen.toml"])
        self.assertIn("`local`", self.tables()["after.md"])
        self.assertIn("--config", self.tables()["README.md"])
        self.assertNotIn("work/reports", self.tables()["README.md"])
        said, _ = self.run_it()
        self.assertEqual(self.did(said), [])
        # Another choice: what reads it is done again, and nothing else.
        self.write("plan.toml", self.read("plan.toml").replace(
            "{first/rows.csv} local", "{first/rows.csv} other"))
        said, _ = self.run_it()
        self.assertEqual(self.did(said), ["report choice", "a trace", "a chosen", "b trace",
                                          "b chosen", "report after"])
        self.assertIn("`h2o`", self.tables()["after.md"])
        # A choice made anew that comes out the same does no step again.
        self.write("plan.toml", self.read("plan.toml").replace(
            "{first/rows.csv} other", "{first/rows.csv} another"))
        self.run_it("--keep")
        times = self.changed_times(self.path("work", "chosen"))
        self.write("plan.toml", self.read("plan.toml").replace(
            "{first/rows.csv} another", "{first/rows.csv} one-more"))
        self.run_it()
        self.assertEqual(self.changed_times(self.path("work", "chosen")), times)

    def test_folders_of_the_users_stay(self):
        for folder, name, expected in (("work", "equal", "equal is there"),
                                       ("out", "README.md", "nor a folder of reference results")):
            with self.subTest(folder=folder):
                os.mkdir(self.path(folder))
                self.write(os.path.join(folder, name), "precious")
                _, errors = self.run_it(code=2)
                self.assertIn(expected, errors)
                self.assertEqual(os.listdir(self.path(folder)), [name])
                self.assertEqual(self.read(folder, name), "precious")
                shutil.rmtree(self.path(folder))

    def test_refusals(self):
        for code, options, expected in (
                (2, ["--only", "nosuch"], "there are equal, again, groups"),
                (2, ["--prompts", "nosuch"], "there are a, b, c"),
                (2, ["--layers", "0,x"], "expected different layers"),
                (2, ["--layers", "0", "--full"], "expected one of them"),
                (2, ["--max-minutes", "0"], "above 0"),
                (3, ["--kvbench", self.path("nosuch")], "no such program"),
                (2, ["--plan", self.path("nosuch.toml")], "cannot be read")):
            with self.subTest(options=options):
                _, errors = self.run_it(*options, code=code)
                self.assertIn(expected, errors)
        for old, new, expected in (
                ("seconds = 20", "seconds = 0", "stage equal: seconds"),
                ('fewer = "An example."', "", "`fewer` must say why"),
                ("[0, 1, 2]", "[0, 0]", "full_layers"),
                ('title = "Clusters."', 'titel = "Clusters."', "`title` is missing"),
                ("{again/rows.kept.csv}", "{later/rows.kept.csv}", "no earlier stage"),
                ("y={again/rows.csv}", "y={nosuch/rows.csv}", "no such stage"),
                ('prompts = ["a"]', 'prompts = ["z"]', "no prompt `z`"),
                ("[model]", "[model", "plan.toml")):
            with self.subTest(new=new):
                self.plan(lambda text, old=old, new=new: text.replace(old, new))
                _, errors = self.run_it(code=2)
                self.assertIn(expected, errors)
        self.plan()
        shutil.rmtree(self.path("work"), ignore_errors=True)
        self.write("make.sh", "#!/bin/sh\nexit 3\n")
        _, errors = self.run_it(code=3)
        self.assertIn("exit code 3 of:", errors)


if __name__ == "__main__":
    unittest.main()
