"""kvbench-study reference: what needs no program. Runs: test_reference.py."""

import fcntl
import os
import tempfile
import unittest
from types import SimpleNamespace
from unittest import mock

import study_case  # noqa: F401, the search path

from kvbench_study.reference import clock, commands
from kvbench_study.reference import plan as rp
from kvbench_study.reference.placeholders import braces
from kvbench_study.reference.reports import published


class PlanTest(unittest.TestCase):
    def test_one_run_at_a_time(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "lock"), "w", encoding="utf-8") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                with (mock.patch.object(commands, "LOCK_PATIENCE", 0.2),
                      self.assertRaisesRegex(rp.PlanError, "another run")):
                    commands.Commands().lock(folder)
            commands.Commands().lock(folder)

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
            self.assertEqual(commands.duration(seconds), text)


if __name__ == "__main__":
    unittest.main()
