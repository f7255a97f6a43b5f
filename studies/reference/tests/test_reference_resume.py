"""kvbench-study reference with the real program: runs that are interrupted, and go on."""

import json
import os
import shlex
import signal
import subprocess
import time
import unittest

from reference_runs import PATIENCE, ReferenceCase
from study_case import KVBENCH


class ResumeTest(ReferenceCase):
    def disturbed(self, number, work):
        """A run that gets a signal in a replay, one that gets it in a report, one to the end."""
        out = self.path("out-" + work)
        did = []
        for moment in (("again", "a", "rows.csv.log"), ("reports", "both.part")):
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
        """What a kill leaves in the middle of a step: a part of the log, and begun.json."""
        self.run_it("--keep")
        whole = self.tables()
        folder = self.path("work", "again", "a")
        with open(os.path.join(folder, "done.json"), encoding="utf-8") as file:
            done = json.load(file)
        os.remove(os.path.join(folder, "done.json"))
        with open(os.path.join(folder, "begun.json"), "w", encoding="utf-8") as file:
            json.dump({key: done[key] for key in ("inputs", "program")}, file)
        words = [KVBENCH, *shlex.split(done["command"])[1:], "--overwrite", "--keep-log"]
        subprocess.run(words, cwd=self.folder, check=True, capture_output=True)
        rows = self.read("work", "again", "a", "rows.csv").splitlines(keepends=True)
        for name in ("rows.csv", "rows.csv.json"):
            os.remove(os.path.join(folder, name))
        os.truncate(os.path.join(folder, "rows.csv.log"), os.path.getsize(os.path.join(folder, "rows.csv.log")) // 2)
        said, _ = self.run_it()
        self.assertIn("a again", self.did(said))
        self.assertNotIn("begins anew", said)
        self.assertEqual(self.tables(), whole)
        again = self.read("work", "again", "a", "rows.csv").splitlines(keepends=True)
        self.assertGreater(len(set(again) & set(rows)), 1)  # Some were kept, their times too.
        self.assertIsNone(json.loads(self.read("work", "again", "a", "done.json"))["seconds"])
        # Half a file of another configuration is no beginning.
        self.write("again.toml", self.read("again.toml").replace('"2"', '"1"'))
        self.run_it()
        self.assertLess(len(self.read("work", "again", "a", "rows.csv").splitlines()), len(rows))


if __name__ == "__main__":
    unittest.main()
