"""The store of kvbench-study reference, the real program on small synthetic traces and a fake score: what
another machine takes from it, what a new method runs, samples, stale rows, interrupted runs."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import types
import unittest
from unittest import mock

from reference_runs import ProgramCase
from study_case import KVBENCH, STUDY, FolderCase, missing, read_text

from kvbench_study.reference import plan as rp
from kvbench_study.reference import store
from kvbench_study.reference.samples import Differs, Samples
from kvbench_study.reference.steps import Steps
from kvbench_study.reference.variants import Variants

PROGRAM = os.path.join(STUDY, "kvbench-study")
PATIENCE = 1200

# As the dump: a trace of a prompt. The second run sees another machine where the file `bits` is.
TRACE = """
import os, subprocess, sys
program, out, number, folder = sys.argv[1:]
number = str(int(number) + (100 if os.path.exists(folder + "/bits") else 0))
subprocess.run([program, "synth", "-o", out, "--seed", number, "--layers", "2", "--n", "700", "--d",
                "16", "--dv", "16"], check=True, stdout=subprocess.DEVNULL)
with open(folder + "/environment", "w") as file:
    file.write(os.environ.get("ONEDNN_MAX_CPU_ISA", "") + " " + os.environ.get("OMP_NUM_THREADS", ""))
"""
# As kvbench-py score: rows and scores.
SCORE = """
import csv, os, subprocess, sys
program, trace, rows, scores = sys.argv[1:5]
words = sys.argv[5:]
layers = rows.replace(".csv", ".layers.csv")
if os.path.exists(layers):  # of a run that was killed behind this: the program would not replace it
    os.remove(layers)
subprocess.run([program, "replay", trace, *words, "--sink", "4", "--recent", "64", "--queries", "32", "-o", rows,
                "--overwrite"], check=True, stdout=subprocess.DEVNULL)
key = ("trace", "prompt", "algorithm", "params", "budget_requested", "seed")
with open(rows) as file:
    points = {tuple(row[name] for name in key): row for row in csv.DictReader(file)}
settings = ("layer", "protocol", "sink", "recent", "scores", "device", "n_queries")
with open(rows) as file:
    lines = {tuple(row[name] for name in (*key, *settings)): row for row in csv.DictReader(file)}
with open(layers, "w") as file:
    write = csv.writer(file, lineterminator="\\n").writerow
    write([*key, *settings, "out_rel_error", "residual_rel_error"])
    for line, row in lines.items():
        write([*line, row["rel_error"], float(row["rel_error"]) / 2])
with open(scores, "w") as file:
    write = csv.writer(file, lineterminator="\\n").writerow
    write([*key, "kl", "loss_change", "top_agreement", "answer_exact_right", "answer_right", "status"])
    for point, row in points.items():
        write([*point, float(row["rel_error"]) ** 2, 0.125, 0.5, 1, 0, "ok"])
"""
# As a report that makes a policy of each prompt.
POLICIES = """#!/bin/sh
out=$1 folder=$2
for one in a:0.5 b:0.25 c:0.125; do
  prompt=${one%:*} budget=${one#*:}
  test -e "$folder/$prompt.budget" && budget=$(cat "$folder/$prompt.budget")
  mkdir "$out/$prompt"
  part='"algorithm": "h2o", "budget": '$budget
  echo '{"format": "kvbench-policy", "version": 1, "model": "kvbench synth", "budget": '$budget', "layers":' \\
    '[{"layer": 0, '$part'}, {"layer": 1, '$part'}]}' > "$out/$prompt/own.json"
done
"""
PLAN = """
title = "Small"
out = "unused"
work = "unused"
prompts = ["{folder}/prompts.jsonl"]
layers = [0, 1]

[model]
folder = "{folder}/model"
files = ["config.json"]
run = ["{folder}/make.sh", "{folder}/model", "{folder}/model/config.json"]

[trace]
run = ["dump", "{folder}/trace.py", "{program}", "{{trace}}", "{{number}}", "{folder}"]
threads = 2
seconds = 3

[[stage]]
name = "equal"
title = "Methods with seeds."
replay = ["--sink", "4", "--recent", "64", "--queries", "32", "--seeds", "2"]
algorithms = [{algorithms}]
budgets = [0.5, 0.25]
columns = ["log_z_error"]
seconds = 5

[[stage]]
name = "judged"
title = "What the model says."
score = ["dump", "{folder}/score.py", "{{kvbench}}", "{{trace}}", "{{folder}}/rows.csv", "{{folder}}/scores.csv"]
algorithms = ["h2o,uniform", "local"]
budgets = [0.5, 0.25]
seconds = 5

[[stage]]
name = "groups"
title = "Clusters."
cluster = ["--points", "none"]
prompts = ["a"]
fewer = "An example."
seconds = 5

[[report]]
name = "table"
title = "A table"
run = ["kvbench summarize {{equal/store}} --metric rel_error --csv {{out}}/equal.summary.csv",
  "kvbench summarize {{equal/rows.csv}} --metric rel_error --csv {{out}}/same.summary.csv",
  "kvbench-py compare {{equal/store}} --to h2o --by source --resamples 100 --csv {{out}}/compare.csv",
  "kvbench-study correlate {{judged/store}} --layer-table {{judged/store.layers}} \
--score-table {{judged/store.scores}} --resamples 9 --csv {{out}}/k.csv",
  "kvbench-py cluster {{groups/}} -o {{out}}/cluster.csv"]
seconds = 2
"""


class StoreTest(ProgramCase):
    missing = missing("numpy", "pandas", "matplotlib", "scipy", "h5py")

    def setUp(self):
        super().setUp()
        self.out = self.path("out")
        with open(self.path("prompts.jsonl"), "w", encoding="utf-8") as file:
            for name, source in (("a", "one"), ("b", "two"), ("c", "two")):
                file.write(json.dumps({"id": name, "set": "test", "source": source, "text": name})
                           + "\n")
        self.write("make.sh", '#!/bin/sh\nmkdir -p "$1" && echo "{}" > "$2"\n')
        os.chmod(self.path("make.sh"), 0o755)
        self.write("trace.py", TRACE)
        self.write("score.py", SCORE)
        self.plan()

    def write(self, name, text):
        self.write_file(name, text)

    def plan(self, algorithms='"h2o,balancekv", "uniform"', change=lambda text: text):
        self.write("plan.toml", change(PLAN.format(
            folder=self.folder, program=os.path.abspath(KVBENCH), algorithms=algorithms)))

    def words(self, *options, work="work", out=None):
        return [sys.executable, PROGRAM, "reference", "--plan", self.path("plan.toml"), "--work",
                self.path(work), "--output", out or self.out, "--kvbench", KVBENCH,
                "--dump-python", sys.executable, *options]

    def run_it(self, *options, code=0, **more):
        done = subprocess.run(self.words(*options, **more), capture_output=True, text=True,
                              timeout=PATIENCE, check=False)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertNotIn("Traceback", done.stderr)
        return done.stdout

    def did(self, said):
        return [line.split("] ")[1].split(":")[0] for line in said.splitlines() if "] " in line]

    def store(self, out=None):
        return store.Store(os.path.join(out or self.out, "store"))

    def files(self):
        """{name: bytes} of the store."""
        found = {}
        for name in os.listdir(os.path.join(self.out, "store")):
            with open(os.path.join(self.out, "store", name), "rb") as file:
                found[name] = file.read()
        return found

    def record(self, stage, prompt):
        return self.store().record(stage, prompt)

    def stored(self, stage, prompt, table=""):
        """Header and rows of a prompt."""
        found = self.store().packed(stage, table).table(prompt)
        return [found.header, *found.rows]

    def change(self, stage, prompt, change_record=lambda record: None, change_rows=lambda header, rows: None, table=""):
        """Changes a step in the store."""
        found = self.store()
        record, rows = found.record(stage, prompt), found.packed(stage, table).table(prompt)
        change_record(record)
        change_rows(rows.header, rows.rows)
        found.put(stage, prompt, {table: rows} if table in record["files"] else {}, record)

    def digests(self, out=None, times=False):
        """{(stage, prompt, table): SHA-256} of the store, columns of time left out unless `times`; no table: the
        record.
        """
        found, whole = {}, self.store(out)
        for name in os.listdir(whole.folder):
            self.assertFalse(name.endswith(".part"), name)
        for stage, records in whole.records().items():
            for prompt, record in records.items():
                data = record if times else [record["key"], record["variants"], record["source"],
                                             sorted({part["trace"] for part in record["parts"]})]
                found[stage, prompt] = json.dumps(data)
                for table in record["files"]:
                    packed = whole.packed(stage, table)
                    self.assertEqual((packed.parts[prompt][3], packed.parts[prompt][4:8]), (0, b"\0\0\0\0"),
                                     "a name or a time")
                    rows = packed.table(prompt)
                    text = store.csv_text([rows.header, *rows.rows])
                    found[stage, prompt, table] = text if times else self.untimed(text).decode()
        return {key: hashlib.sha256(text.encode()).hexdigest() for key, text in found.items()}

    @staticmethod
    def untimed(text):
        rows = [line.split(",") for line in text.splitlines()]
        kept = [i for i, name in enumerate(rows[0]) if "_ms" not in name and "_us_" not in name]
        return "\n".join(",".join(row[i] for i in kept if i < len(row)) for row in rows).encode()

    def test_another_machine_runs_nothing(self):
        said = self.run_it()
        self.assertEqual(len(self.did(said)), 3 + 7 + 1)  # Traces, steps, a report.
        self.assertIn("sample of equal: ", said)
        self.assertIn(": equal bits", said)
        self.assertIn("complete: 7 steps, samples of 3 stages agree", said)
        self.assertEqual(read_text(self.path("environment")), "AVX2 2")
        header, first, *_ = self.stored("equal", "b")
        row = dict(zip(header, first))
        self.assertEqual((row["source"], row["prompt"][:1] != "", row["seeds"] in "12"),
                         ("two", True, True))
        self.assertIn("log_z_error", header)
        self.assertNotIn("row_crc", header)
        # A mean over seeds, one row of each head.
        names = [dict(zip(header, cells)) for cells in self.stored("equal", "b")[1:]]
        keys = [(r["algorithm"], r["budget_requested"], r["layer"], r["q_head"]) for r in names]
        self.assertEqual(len(set(keys)), len(keys))
        self.assertEqual({r["seeds"] for r in names if r["algorithm"] == "balancekv"}, {"2"})
        self.assertEqual({r["seeds"] for r in names if r["algorithm"] == "h2o"}, {"1"})
        record = self.record("equal", "b")
        self.assertEqual((record["source"], record["set"], record["seeds"]), ("two", "test", "2"))
        self.assertEqual(sorted(record["variants"]), ["balancekv", "h2o", "uniform"])
        self.assertTrue(record["parts"][0]["cpu"] and record["parts"][0]["trace"])
        same = [read_text(os.path.join(self.out, n + ".summary.csv")) for n in ("equal", "same")]
        self.assertEqual(*same)
        self.assertIn("residual_rel_error", read_text(os.path.join(self.out, "k.csv")))
        compared = read_text(os.path.join(self.out, "compare.prompts.csv"))
        self.assertEqual({line.split(",")[2] for line in compared.splitlines()[1:]},
                         {"one", "two"})

        before = self.digests(times=True)
        said = self.run_it(work="other")
        self.assertEqual(self.did(said), ["report table"])
        self.assertIn("complete: 7 steps", said)
        self.assertEqual(self.digests(times=True), before)
        said = self.run_it(work="other")
        self.assertIn("checked before", said)

    def test_a_column_that_scores_have_since_makes_no_sample_stale(self):
        self.run_it("--samples", "0")
        score = SCORE.replace('*key, "kl"', '*key, "ratio", "kl"').replace("*point, float", "*point, 0.25, float")
        self.assertEqual(score.count("ratio"), 1)
        self.write("score.py", score)
        said = self.run_it()
        self.assertRegex(said, "sample of judged: .*, without ratio, newer than the store: equal bits")
        self.assertIn("complete: 7 steps", said)
        self.assertNotIn("ratio", self.stored("judged", "a", "scores")[0])

    def test_files_of_reports_that_a_run_does_not_make_stay(self):
        self.run_it("--samples", "0")
        made = set(os.listdir(self.out))
        self.plan(change=lambda text: text.replace("--resamples 9", "--resamples 8"))
        for work in ("work", "other"):  # `other` knows of no report
            self.assertEqual(self.did(self.run_it("--samples", "0", "--only", "groups", work=work)), [])
            self.assertEqual(set(os.listdir(self.out)), made)
            page = read_text(os.path.join(self.out, "README.md"))
            self.assertNotIn("Not made yet", page)
            self.assertIn("An earlier run made them", page)
        self.assertEqual(self.did(self.run_it("--samples", "0")), ["report table"])
        self.assertNotIn("An earlier run", read_text(os.path.join(self.out, "README.md")))
        self.plan(change=lambda text: text.partition("[[report]]")[0])
        self.run_it("--samples", "0")
        self.assertEqual(set(os.listdir(self.out)), {"README.md", "store"})

    def test_one_source_made_again_has_equal_bits(self):
        self.run_it("--samples", "0")
        before, files = self.digests(), self.files()
        for stage in ("equal", "judged", "groups"):
            record = self.record(stage, "a")
            self.store().put(stage, "a", {}, {**record, "files": []})
            self.store().forget(stage, "a")
        self.assertLess(len(self.digests()), len(before))
        self.assertNotEqual(self.files(), files)
        said = self.run_it("--samples", "0", work="other")
        self.assertEqual(self.did(said)[:4], ["a trace", "a equal", "a judged", "a groups"])
        self.assertEqual(self.digests(), before)

    def test_a_removed_table_is_made_again(self):
        self.run_it("--samples", "0")
        before = self.digests()
        os.remove(os.path.join(self.out, "store", "judged.layers.csv.gz"))
        said = self.run_it("--samples", "0")
        self.assertEqual([d for d in self.did(said) if "trace" not in d],
                         ["a judged", "b judged", "c judged", "report table"])
        self.assertEqual(self.digests(), before)

    def test_a_method_added_later_runs_alone(self):
        self.plan('"h2o,balancekv", "uniform", "local"')
        self.run_it("--samples", "0", out=self.path("whole"), work="whole-work")
        self.plan()
        self.run_it("--samples", "0")
        self.plan('"h2o,balancekv", "uniform", "local"')
        said = self.run_it("--samples", "0", "--only", "equal")
        self.assertEqual([d for d in self.did(said) if "trace" not in d],
                         ["a equal", "b equal", "c equal"])
        part = self.record("equal", "a")["parts"][1]
        self.assertEqual((part["variants"], part["budgets"]), (["local"], ["0.5", "0.25"]))
        self.assertEqual(self.digests(), self.digests(self.path("whole")))
        # A method that leaves the plan leaves the reports; its rows stay.
        self.plan('"h2o", "local"')
        said = self.run_it("--samples", "0")
        self.assertEqual(self.did(said), ["report table"])
        self.assertNotIn("balancekv", read_text(os.path.join(self.out, "compare.csv")))
        self.assertEqual(self.digests(), self.digests(self.path("whole")))
        # A budget more: that alone.
        self.plan('"h2o", "local"', lambda t: t.replace("budgets = [0.5, 0.25]\ncolumns",
                                                        "budgets = [0.5, 0.25, 0.125]\ncolumns"))
        self.run_it("--samples", "0")
        part = self.record("equal", "a")["parts"][-1]
        self.assertEqual((part["variants"], part["budgets"]), (["h2o", "local"], ["0.125"]))

    def test_a_policy_of_each_prompt(self):
        """Of files of a report; a changed file runs its own prompt again."""
        self.write("policies.sh", POLICIES)
        os.chmod(self.path("policies.sh"), 0o755)
        parts = f"""
[[report]]
name = "own"
title = "Policies"
run = ["{self.path('policies.sh')} {{out}} {self.folder} {{equal/store}} {{table/compare.csv}}"]
seconds = 1

[[stage]]
name = "policies"
title = "Policies in the model."
score = ["dump", "{self.folder}/score.py", "{{kvbench}}", "{{trace}}", "{{folder}}/rows.csv", "{{folder}}/scores.csv"]
algorithms = ["policy:{{own/}}{{prompt}}/own.json"]
seconds = 5
"""
        self.plan(change=lambda text: text + parts)
        said = self.run_it("--samples", "0")
        self.assertEqual([d for d in self.did(said) if "policies" in d], ["a policies", "b policies", "c policies"])
        budgets = {prompt: {row[head.index("budget_requested")] for row in rows} for prompt in "abc"
                   for head, *rows in [self.stored("policies", prompt)]}
        self.assertEqual(budgets, {"a": {"0.5"}, "b": {"0.25"}, "c": {"0.125"}})
        self.assertIn('"budget": 0.25', read_text(self.path("work", "reports", "own", "b", "own.json")))
        self.assertFalse(os.path.exists(os.path.join(self.out, "b")))  # nor are they published
        self.assertIn("Files: in the work folder, one per prompt.", read_text(os.path.join(self.out, "README.md")))
        self.assertEqual(self.did(self.run_it("--samples", "1")), [])
        self.write("b.budget", "0.3")
        self.plan(change=lambda text: text + parts.replace("policies.sh ", "policies.sh  "))
        said = self.run_it("--samples", "0")
        self.assertEqual(self.did(said), ["report own", "b trace", "b policies"])
        head, *rows = self.stored("policies", "b")
        self.assertEqual({row[head.index("budget_requested")] for row in rows}, {"0.3"})

    @staticmethod
    def checks(header, rows):
        """Makes rows differ behind the stored digits."""
        at = header.index("check")
        for row in rows:
            row[at] = row[at] and "00000000"

    def age(self, stage, prompt, table=""):
        """Makes rows those of another state of lib that differ behind the stored digits."""
        self.change(stage, prompt, lambda record: record["parts"][0].update(lib="another"), self.checks, table)

    def test_rows_of_the_same_lib_have_equal_bits(self):
        self.run_it("--samples", "0")
        for prompt in "abc":
            self.change("equal", prompt, change_rows=self.checks)
        said = self.run_it(code=1)
        self.assertIn("stale: equal: a, b, c: rows of this state of the program", said)
        self.assertIn("check: the store has 00000000, here it is", said)
        self.assertNotIn("complete", said)

    def test_samples_that_differ(self):
        self.run_it("--samples", "0")

        def other(header, rows):
            at = header.index("rel_error")
            for row in rows:
                row[at] = row[at] and repr(1.001 * float(row[at]))

        for prompt in "abc":
            self.age("equal", prompt)  # keeps five digits
            self.age("judged", prompt, "layers")  # keeps nine
        self.assertRegex(self.run_it(), "sample of equal: .*: equal bits, rows equal in 5 digits\n")
        for prompt in "abc":
            self.change("equal", prompt, change_rows=other)
        os.remove(self.path("work/samples.json"))
        said = self.run_it(code=1)
        self.assertIn("stale: equal: a, b, c: rows of another state of the program", said)
        self.assertRegex(said, "rel_error: the store has .*, here it is")
        self.assertNotIn("complete", said)
        self.assertRegex(said, "sample of judged: .*: equal bits, layers equal in 9 digits")
        said = self.run_it("--stale")
        self.assertEqual([d for d in self.did(said) if "trace" not in d],
                         ["a equal", "b equal", "c equal", "report table"])
        self.assertIn("complete: 7 steps", said)

    def test_scores_may_differ_in_last_digits(self):
        """The model reads other caches together. Rows of a replay may not."""
        def table(loss, kl="0.00018", answer="x", check="1"):
            return store.Table(["prompt", "algorithm", "params", "budget_requested", "loss", "kl", "answer", "check"],
                               [["p", "h2o", "", "0.5", loss, kl, answer, check]])

        def compare(new, scores=True):
            return Samples.compare("scores", table("2.95364479"), new, False, True, scores)

        self.assertEqual([compare(table("2.95364479")), compare(table("2.95364479", check="2")),
                          compare(table("2.9536454", "0.000181", check="2"))], ["bits", "digits", "rounding"])
        for new, scores in ((table("2.9541"), True), (table("2.95364479", "0.00019"), True),
                            (table("2.95364479", answer="y"), True), (table("nan"), True), (table("2.9536454"), False)):
            with self.assertRaises(Differs):
                compare(new, scores)

    def test_rows_of_another_lib_stay_while_they_agree(self):
        self.run_it("--samples", "0")
        self.change("equal", "b", lambda record: record["parts"][0].update(lib="another"))
        # The program writes a table more than it did.
        self.change("groups", "a", lambda record: record["files"].pop())
        said = self.run_it()
        self.assertIn("sample of groups: a: equal bits", said)
        self.assertEqual([d for d in self.did(said) if "report" not in d], [])
        self.assertEqual(said.count("sample of equal: "), 2)
        self.assertIn("complete", said)

    def test_a_machine_whose_traces_differ_in_last_digits(self):
        """Its figures are near, and it is said that no bits were compared."""
        def larger(header, rows):
            at = header.index("rel_error")
            for row in rows:
                row[at] = row[at] and repr(1.01 * float(row[at]))

        self.run_it("--samples", "0")
        for prompt in "abc":
            self.change("equal", prompt, lambda record: record["parts"][0].update(trace="another"), larger)
        said = self.run_it()
        self.assertIn("within 0.05, not compared bit by bit: the trace made here has other bits", said)
        self.assertIn("complete: 7 steps", said)

    def test_a_machine_whose_traces_differ(self):
        self.run_it("--samples", "0")
        self.write("bits", "")
        said = self.run_it(code=1, work="other")
        # Synthetic traces of other seeds are no last digits: the tolerance does not hide that.
        self.assertIn("which is further than 0.05", said)
        self.assertIn("stale: ", said)

    def test_killed_runs_leave_whole_files(self):
        self.run_it("--samples", "0", out=self.path("whole"), work="whole-work")
        whole = self.digests(self.path("whole"))
        for moment in (("work", "equal", "a", "rows.csv"), ("out", "store", "equal.csv.gz"),
                       ("work", "equal", "b", "rows.csv"), ("out", "store", "judged.scores.csv.gz.part")):
            run = subprocess.Popen(self.words("--samples", "0"), stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, text=True)
            while run.poll() is None and not os.path.exists(self.path(*moment)):
                time.sleep(0.002)
            run.send_signal(signal.SIGKILL)
            run.communicate(timeout=PATIENCE)
            found = self.store()  # without recover
            for stage, records in found.records().items():
                for prompt, record in records.items():
                    for table in record["files"]:
                        self.assertTrue(found.packed(stage, table).table(prompt).rows, (stage, prompt, table))
        self.write("out/store/equal.csv.gz.part", "half")
        self.run_it("--samples", "0")
        self.assertEqual(self.digests(), whole)

    def test_refusals(self):
        for old, new, expected in (
                ('cluster = ["--points", "none"]', 'cluster = ["--kept-by", "{equal/rows.kept.csv}"]',
                 "{equal/...} is no report"),
                ('algorithms = ["h2o,uniform", "local"]', "", "score: expected a command"),
                ("budgets = [0.5, 0.25]", "budgets = [2]", "expected shares above 0"),
                ('"--seeds", "2"]', '"--seeds", "2", "--budget", "0.5"]', "got --budget")):
            with self.subTest(new=new):
                self.plan(change=lambda text, old=old, new=new: text.replace(old, new))
                done = subprocess.run(self.words(), capture_output=True, text=True, check=False)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn(expected, done.stderr)
        self.plan()
        self.run_it("--samples", "0", "--only", "equal", "--prompts", "a")
        shutil.rmtree(self.path("work"))
        first = self.store()
        first.lock()
        done = subprocess.run(self.words(work="other"), capture_output=True, text=True, check=False)
        os.close(first.held)
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertIn("store: another run writes there", done.stderr)
        for name in ("equal.csv.gz", "records.json"):
            with self.subTest(name=name):
                path = os.path.join(self.out, "store", name)
                with open(path, "rb") as file:
                    data = file.read()
                with open(path, "wb") as file:
                    file.write(data[:200])
                done = subprocess.run(self.words("--only", "equal", "--prompts", "a"), capture_output=True, text=True,
                                      check=False)
                self.assertEqual(done.returncode, 3, done.stdout + done.stderr)
                self.assertRegex(done.stderr, f"/{name}: SHA-256 is [0-9a-f]{{16}}..., expected [0-9a-f]{{16}}... "
                                              "as in SHA256SUMS beside it; take it from the repository again")
                with open(path, "wb") as file:
                    file.write(data)


class RecordTest(FolderCase):
    """What a run adds to a record, without the program."""

    stage = types.SimpleNamespace(name="grids", kind="replay")
    prompt = types.SimpleNamespace(id="a", source="a", set="test")

    def test_rows_of_changed_settings_leave_the_store(self):
        steps = mock.Mock(store=store.Store(self.path("store")))
        steps.seeds.return_value, steps.key.return_value = "1", {}

        def merge(settings, budget, points, record, **other):
            table = store.Table(["trace", "algorithm", "params", "budget_requested", "check"],
                                [["a.h5", *point, budget, ""] for point in points])
            entry = {"points": points, "budgets": [budget], "settings": settings}
            Steps.merge(steps, self.stage, self.prompt, record, {"": table}, {"h2o:grid": entry, **other},
                              {"code": 0})
            found = steps.store.record("grids", "a")
            rows = steps.store.packed("grids", "").table("a").rows
            return found, [(row[2], row[3]) for row in rows]

        own = {"points": [["h2o", "r=0"]], "budgets": ["0.5"], "settings": ""}
        record, rows = merge("one", "0.5", [["h2o", "r=0"], ["h2o", "r=1"], ["h2o", "r=2"]], None, h2o=own)
        self.assertEqual(len(rows), 3)
        record, rows = merge("one", "0.25", [["h2o", "r=1"], ["h2o", "r=2"]], record)
        self.assertEqual((len(rows), record["variants"]["h2o:grid"]["budgets"]), (5, ["0.5", "0.25"]))
        # The rows of `h2o` stay, which the grid no longer has.
        record, rows = merge("two", "0.5", [["h2o", "r=2"], ["h2o", "r=3"]],
                             {**record, "variants": {**record["variants"], "h2o:grid": {
                                 "points": [["h2o", f"r={r}"] for r in range(3)], "budgets": ["0.5"],
                                 "settings": "one"}}})
        self.assertEqual(sorted(rows), [("r=0", "0.5"), ("r=2", "0.25"), ("r=2", "0.5"), ("r=3", "0.5")])
        self.assertEqual(record["variants"]["h2o:grid"]["budgets"], ["0.5"])

    def test_a_changed_policy_begins_a_step_anew(self):
        steps = mock.Mock()
        steps.missing.return_value = {"policy:x": False}, ["0.5"]
        steps.begin_or_go_on.side_effect = KeyboardInterrupt
        begun = []
        for settings in ("one", "one", "two"):
            steps.entries.return_value = {"policy:x": {"points": [], "budgets": ["0.5"], "settings": settings}}
            with self.assertRaises(KeyboardInterrupt):
                Steps.run(steps, self.stage, self.prompt)
            begun.append(steps.begin_or_go_on.call_args[0][-1])
        self.assertEqual(begun[0], begun[1])
        self.assertNotEqual(begun[0], begun[2])

    def test_samples_are_of_the_budgets_of_their_run(self):
        parts = ((["h2o", "local"], ["0.5", "0.25"], "old"), (["h2o", "local"], ["0.125"], "new"),
                 (["local", "policy:x"], ["0.5"], "newest"))
        record = {"parts": [{"variants": variants, "budgets": budgets, "lib": lib, "scripts": "", "trace": ""}
                            for variants, budgets, lib in parts],
                  "variants": {name: {"points": [], "budgets": ["0.5", "0.25", "0.125"]}
                               for name in ("h2o", "local", "policy:x")}}
        run = types.SimpleNamespace(plan=types.SimpleNamespace(stages={"grids": self.stage}), stages={"s": self.stage},
                                    prompts={"grids": [self.prompt]}, steps=mock.Mock(lib="newest"),
                                    placeholders=types.SimpleNamespace(work=self.folder))
        run.steps.record.return_value = record
        run.steps.stage_words.side_effect = KeyboardInterrupt
        samples = Samples(run, 9)
        groups = samples.groups()
        self.assertEqual({lib: members[0][3] for (_, lib, _), members in groups.items()}, {
            "old": {"h2o": ["0.5", "0.25"], "local": ["0.25"]}, "new": {"h2o": ["0.125"], "local": ["0.125"]},
            "newest": {"local": ["0.5"], "policy:x": ["0.5"]}})
        for group, members in groups.items():
            with self.assertRaises(KeyboardInterrupt):
                samples.check_group(group, members)
            *_, chosen, budgets = run.steps.stage_words.call_args[0]
            self.assertEqual(len(budgets), 1)
            self.assertEqual(sorted(chosen), [name for name, own in members[0][3].items() if budgets[0] in own])


class SetsTest(unittest.TestCase):
    def test_a_set_has_the_methods_of_the_protocol(self):
        variants = Variants(KVBENCH, types.SimpleNamespace())

        def named(*options):
            stage = rp.Stage("s", "", "replay", options, (), "", (), (), 1.0, algorithms=("all:grid", "topk"))
            found = variants.named(stage)
            self.assertFalse(found.pop("topk"))
            return set(found)

        usual, stream, reads = (named(*options) for options in
                                ((), ("--protocol", "stream"), ("--protocol=retrieval",)))
        self.assertTrue({"h2o:grid", "balancekv:grid"} < usual)
        self.assertFalse({"balancekv-stream:grid", "topk:grid"} & usual)
        self.assertTrue({"h2o:grid", "balancekv-stream:grid"} < stream)
        self.assertFalse({"balancekv:grid", "topk:grid"} & stream)
        self.assertTrue({"topk:grid", "exact:grid"} < reads)
        self.assertNotIn("h2o:grid", reads)


if __name__ == "__main__":
    unittest.main()
