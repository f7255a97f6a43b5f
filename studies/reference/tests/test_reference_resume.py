"""kvbench-study reference with the real program: runs that are interrupted, and go on."""

import os
import signal
import subprocess
import time
import unittest

from reference_runs import PATIENCE, ReferenceCase

from kvbench_study.reference.store import TIMES


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
        """Killed with a part of the rows in the log."""
        self.write("again.toml", self.read("again.toml").replace('"2"', '"100"'))
        self.run_it(out=self.path("whole"), work="whole-work")
        wanted = self.store(self.path("whole")).packed("again", "").table("a")
        log = self.path("work", "again", "a", "rows.csv.log")

        def kill_it():
            run = subprocess.Popen(self.words("--only", "again"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            while run.poll() is None and not (os.path.exists(log) and os.path.getsize(log) > 50_000):
                time.sleep(0.002)
            run.kill()
            run.wait()

        kill_it()
        said, _ = self.run_it("--only", "again")
        self.assertIn("a again", self.did(said))
        self.assertNotIn("begins anew", said)
        self.assertIsNone(self.store().record("again", "a")["parts"][0]["seconds"])
        found = self.store().packed("again", "").table("a")
        times = [found.header.index(name) for name in TIMES if name in found.header]
        for table in (found, wanted):
            for row in table.rows:
                for at in times:
                    row[at] = ""
        self.assertEqual(found.rows, wanted.rows)
        # Half a file of another configuration is no beginning.
        self.store().forget("again", "a")
        kill_it()
        self.write("again.toml", self.read("again.toml").replace('"100"', '"1"'))
        self.run_it("--only", "again")
        found = self.store().packed("again", "").table("a")
        self.assertEqual({row[found.header.index("seeds")] for row in found.rows}, {"1"})


if __name__ == "__main__":
    unittest.main()
