"""kvbench-study reference with the real program on small synthetic traces: a run that nobody disturbs,
what a change does again, refusals and failures. Interrupted runs: test_reference_resume.py."""

import os
import shutil
import sys
import unittest

from reference_runs import ReferenceCase


class ReferenceTest(ReferenceCase):
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
        self.assertLessEqual({"README.md", "equal.summary.csv", "table.txt", "compare.csv",
                              "compare.prompts.csv", "again.summary.csv", "again.txt"}, set(found))
        # Both prompts are in the table, and each under its own name.
        self.assertEqual(found["compare.prompts.csv"].count("a.h5"),
                         found["compare.prompts.csv"].count("b.h5"))
        self.assertGreater(found["compare.prompts.csv"].count("b.h5"), 0)
        self.assertIn("h2o", found["table.txt"])
        self.assertIn("replay", found["README.md"])
        self.assertIn("work/store/equal/rows.csv", found["README.md"])
        self.assertNotIn("Not made yet", found["README.md"])
        records = self.store().records()
        self.assertEqual({stage: sorted(some) for stage, some in records.items()},
                         {"equal": ["a", "b"], "again": ["a", "c"], "groups": ["a"]})
        self.assertEqual(records["equal"]["a"]["key"]["config"]["queries"], 32)
        self.assertIn("coverage", records["groups"]["a"]["files"])
        self.assertFalse(os.path.exists(self.path("work", "equal", "a")))
        self.assertFalse([n for n in os.listdir(self.path("work", "traces")) if n.endswith(".h5")])

        before = self.changed_times(self.out)
        said, _ = self.run_it()
        self.assertIn("done before: 5 steps, 2 reports", said)
        self.assertEqual(self.did(said), [])
        self.assertEqual(self.changed_times(self.out), before)
        # What somebody removed comes back from what is done.
        os.remove(os.path.join(self.out, "table.txt"))
        self.run_it()
        self.assertEqual(self.tables(), found)

    def test_a_change_does_its_own_steps_again(self):
        self.run_it()
        before = self.tables()
        self.write("again.toml", self.read("again.toml").replace('"2"', '"3"'))
        said, _ = self.run_it()
        self.assertEqual(self.did(said), ["a trace", "a again", "c trace", "c again", "report both"])
        after = self.tables()
        self.assertEqual(before["equal.summary.csv"], after["equal.summary.csv"])
        self.assertNotEqual(before["again.summary.csv"], after["again.summary.csv"])
        # A prompt's own text: its steps alone.
        records = self.read("prompts.jsonl")
        self.write("prompts.jsonl", records.replace('"text": "b"', '"text": "B"'))
        said, _ = self.run_it("--keep")
        self.assertEqual(self.did(said), ["b trace", "b equal", "report table", "report both"])
        self.assertTrue(os.path.isfile(self.path("work", "traces", "b.h5")))

    def test_parts(self):
        said, _ = self.run_it("--only", "groups")
        self.assertEqual(self.did(said), ["a trace", "a groups"])
        self.assertIn("Not made yet\n\nequal, again, table, both.", self.tables()["README.md"])
        said, _ = self.run_it("--max-minutes", "0.001")
        self.assertIn("stopped by --max-minutes before a trace", said)
        self.assertEqual(self.did(said), [])
        said, _ = self.run_it("--prompts", "b", out=self.path("b"))
        self.assertEqual(self.did(said), ["b trace", "b equal", "report table"])
        self.assertIn("Not made yet", self.tables(self.path("b"))["README.md"])
        said, _ = self.run_it("--layers", "1", "--only", "equal", "--prompts", "a", out=self.path("b"))
        self.assertTrue(os.path.isdir(self.path("work-layers-1", "traces")))
        self.assertEqual(self.store(self.path("b")).record("equal", "a")["key"]["layers"], [1])
        said, _ = self.run_it()
        self.assertEqual(self.did(said), ["a trace", "a equal", "a again", "b trace", "b equal", "c trace", "c again",
                                          "report table", "report both"])

    def test_failures_name_the_command_and_leave_results(self):
        self.run_it()
        before, times = self.tables(), self.changed_times(self.out)
        self.write("equal.toml", self.read("equal.toml").replace("h2o", "nosuch"))
        _, errors = self.run_it(code=2)
        self.assertIn("nosuch", errors)
        self.assertEqual((self.tables(), self.changed_times(self.out)), (before, times))
        self.write("equal.toml", self.read("equal.toml").replace("nosuch", "h2o,local"))
        self.plan(lambda text: text.replace("--to h2o", "--to nosuch"))
        _, errors = self.run_it(code=2)
        self.assertIn("of: scripts/kvbench-py compare", errors)
        self.assertEqual((self.tables(), self.changed_times(self.out)), (before, times))
        self.plan()
        self.run_it()
        self.assertIn("local", self.tables()["table.txt"])
        # kvbench had exit code 1: rows of status failed are results, and are not forgotten.
        found = self.store()
        found.put("equal", "b", {}, {**found.record("equal", "b"), "code": 1})
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
run = ["kvbench summarize {{chosen/rows.csv}} --metric rel_error > {{out}}/after.txt",
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

    def test_only_leaves_out_reports_that_read_those_of_other_stages(self):
        self.plan_with_choice()
        self.write("plan.toml", self.read("plan.toml").replace("{chosen/rows.csv}", "{equal/rows.csv}"))
        listed = [line.split("\t")[0] for line in self.run_it("--dry-run", "--only", "equal")[0].splitlines()]
        self.assertIn("b equal", listed)
        self.assertNotIn("report after", listed)
        self.assertNotIn("report choice", listed)

    def test_a_report_that_a_stage_reads_comes_first(self):
        self.plan_with_choice()
        said, _ = self.run_it("--dry-run", "--only", "chosen", "--prompts", "a")
        listed = [line.split("\t")[0] for line in said.splitlines() if "\t" in line]
        self.assertEqual(listed[:3], ["c trace", "c first", "report choice"])
        said, _ = self.run_it()
        self.assertEqual(self.did(said)[:3], ["c trace", "c first", "report choice"])
        self.assertLess(self.did(said).index("b chosen"), self.did(said).index("report after"))
        self.assertIn('"local"', self.tables()["chosen.toml"])
        self.assertIn("local", self.tables()["after.txt"])
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
        self.assertIn("h2o", self.tables()["after.txt"])
        # A choice made anew that comes out the same does no step again.
        self.write("plan.toml", self.read("plan.toml").replace(
            "{first/rows.csv} other", "{first/rows.csv} another"))
        self.run_it()
        records = self.store().records()["chosen"]
        self.write("plan.toml", self.read("plan.toml").replace(
            "{first/rows.csv} another", "{first/rows.csv} one-more"))
        self.run_it()
        self.assertEqual(self.store().records()["chosen"], records)

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
                (2, ["--layers", "0,x"], "expected numbers and ranges"),
                (2, ["--max-minutes", "0"], "above 0"),
                (3, ["--kvbench", self.path("nosuch")], "no such program"),
                (2, ["--plan", self.path("nosuch.toml")], "cannot be read")):
            with self.subTest(options=options):
                _, errors = self.run_it(*options, code=code)
                self.assertIn(expected, errors)
        for old, new, expected in (
                ("seconds = 20", "seconds = 0", "stage equal: seconds"),
                ('fewer = "An example."', "", "`fewer` must say why"),
                ("[0, 1]", "[0, 0]", "layers"),
                ('title = "Clusters."', 'titel = "Clusters."', "`title` is missing"),
                ('"--max-points", "64"', '"--kept-by", "{again/rows.kept.csv}"', "groups: {again/...} is no report"),
                ("seconds = 5", 'seconds = 5\nthen = ["x"]', "groups: unknown key `then`"),
                ("layers = [0, 1]", "layers = [0, 1]\nstore = true", "plan.toml: unknown key `store`"),
                ("summarize {again/rows.csv}", "summarize {nosuch/rows.csv}", "no such stage"),
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
