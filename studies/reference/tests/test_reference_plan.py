"""kvbench-study reference: what needs no program. Runs: test_reference.py."""

import fcntl
import os
import shutil
import subprocess
import tempfile
import unittest
from types import SimpleNamespace
from unittest import mock

import study_case  # noqa: F401, the search path

from kvbench_study.reference import clock
from kvbench_study.reference import plan as rp
from kvbench_study.reference import steps as reference_steps
from kvbench_study.reference.placeholders import braces
from kvbench_study.reference.reports import published, split_shared


class PlanTest(unittest.TestCase):
    def test_which_programs_are_the_same(self):
        """Another commit's program counts where no source of it changed since."""
        if not shutil.which("git"):
            self.skipTest("no git")
        with tempfile.TemporaryDirectory() as folder:
            def git(*words):
                done = subprocess.run(["git", "-C", folder, "-c", "user.name=x", "-c",
                                       "user.email=x@x", *words], capture_output=True, text=True,
                                      check=True)
                return done.stdout.strip()

            git("init", "-q")
            commits = []
            for name in ("lib", "docs", "lib", "docs"):
                os.makedirs(os.path.join(folder, name), exist_ok=True)
                with open(os.path.join(folder, name, "file"), "a", encoding="utf-8") as file:
                    file.write("more\n")
                git("add", "-A")
                git("commit", "-q", "-m", name)
                commits.append(git("rev-parse", "HEAD"))
            program = reference_steps.Program.__new__(reference_steps.Program)
            program.known = {}
            program.now = {"version": f"kvbench 0.1.0 ({commits[3]})", "sha256": "now"}
            with mock.patch.object(rp, "ROOT", folder):
                for version, sum_, same in (
                        (f"kvbench 0.1.0 ({commits[2]})", "other", True),
                        (f"kvbench 0.1.0 ({commits[1]})", "other", False),
                        (f"kvbench 0.1.0 ({commits[2]}, modified)", "other", False),
                        (f"kvbench 0.1.0 ({40 * '0'})", "other", False),
                        ("kvbench 0.1.0 (unknown)", "other", False),
                        ("kvbench 0.1.0 (unknown)", "now", True)):
                    with self.subTest(version=version, sum=sum_):
                        self.assertIs(program.same({"version": version, "sha256": sum_}), same)
            self.assertFalse(program.same(None))

    def test_one_run_at_a_time(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "lock"), "w", encoding="utf-8") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                with (mock.patch.object(reference_steps, "LOCK_PATIENCE", 0.2),
                      self.assertRaisesRegex(rp.PlanError, "another run")):
                    reference_steps.Commands().lock(folder)
            reference_steps.Commands().lock(folder)

    def test_manifests_are_split(self):
        one = {"a": 1, "b": {"c": 2, "d": 3}, "e": {"f": 4}, "g": 5}
        two = {"a": 1, "b": {"c": 2, "d": 9}, "e": {"f": 4}, "g": [6]}
        self.assertEqual(split_shared([one, two]), (
            {"a": 1, "b": {"c": 2}, "e": {"f": 4}}, [{"b": {"d": 3}, "g": 5},
                                                     {"b": {"d": 9}, "g": [6]}]))
        self.assertEqual(split_shared([one])[1], [{}])

    def test_files_of_reports_that_are_published(self):
        self.assertEqual(published(["a.csv", "b.pdf", "b.png", "c.pdf", os.path.join("vim", "own-8.json")]),
                         ["a.csv", "b.png", "c.pdf"])

    def test_braces(self):
        self.assertEqual(braces(["x", "w/a/r.csv", "w/b/r.csv", "--to", "h/i", "w/a/r.csv"]),
                         ["x", "w/{a,b}/r.csv", "--to", "h/i", "w/a/r.csv"])
        self.assertEqual(braces(["l=w/a/", "l=w/b/"]), ["l=w/{a,b}/"])


class ClockTest(unittest.TestCase):
    def setUp(self):
        stages = {"judged": SimpleNamespace(layers=(), seconds=300), "cluster": SimpleNamespace(layers=(), seconds=12)}
        plan = SimpleNamespace(layers=(0, 4, 8, 12, 16, 20, 24, 29), stages=stages, reports={}, trace_seconds=20)
        self.clock = clock.Clock(plan, plan.layers)
        self.stage, self.seconds = "judged", 300

    def test_first_guesses(self):
        self.assertEqual(self.clock.expected(self.stage), self.seconds)
        half = clock.Clock(self.clock.plan, self.clock.layers[:4])
        self.assertEqual(half.expected(self.stage), self.seconds / 2)

    def test_what_was_measured_takes_their_place(self):
        self.clock.took(self.stage, 10.0)
        self.clock.took(self.stage, 30.0)
        self.clock.took(self.stage, None)  # Of a step that was interrupted nothing is known.
        self.assertEqual(self.clock.expected(self.stage), 20.0)

    def test_a_slow_machine_is_slow_in_other_stages_too(self):
        guess = self.clock.guess("cluster")
        for _ in range(1000):
            self.clock.took(self.stage, 3 * self.seconds)
        # A thousand steps at three times their guess against one guess at its own weight.
        expected = guess * (3000 * self.seconds + guess) / (1000 * self.seconds + guess)
        self.assertAlmostEqual(self.clock.expected("cluster"), expected, delta=1e-9 * expected)
        self.assertGreater(self.clock.expected("cluster"), 2.9 * guess)

    def test_durations(self):
        for seconds, text in ((0.4, "0 s"), (99, "99 s"), (119, "2 min"), (7500, "2 h 05 min")):
            self.assertEqual(reference_steps.duration(seconds), text)


if __name__ == "__main__":
    unittest.main()
