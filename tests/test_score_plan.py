"""What kvbench-py score with a replay runs, and what it keeps of an earlier run; without torch.

With the model: test_score_replay.py.
"""

import contextlib
import io
import os
import platform
import subprocess
import unittest

from script_case import KVBENCH, FolderCase, missing, read_text

MISSING = missing("h5py", "numpy")
if not MISSING:
    from kvbench.score import options, plan, replay
    from kvbench.score.plan import Variant
    from kvbench.trace.writer import TraceError

@unittest.skipIf(MISSING, f"lacks {', '.join(MISSING)}")
class ScorePlanTest(FolderCase):
    def arguments(self, *more):
        return options.parse_arguments(["t.h5", "--model", "m", "-o", "s.csv", "--rows", "r.csv", *more])

    def test_arguments(self):
        caches = ("--caches", "c.h5", "d.h5", "--algorithm", "a,b", "--algorithm", "c")
        for text, *words in (
                ("expected --caches, or --algorithm, --policy, or --config",),
                ("got one file, expected two", "--algorithm", "a", "--rows", "./s.csv"),
                ("got `-1`, expected a whole number", "--algorithm", "a", "--sink=-1"),
                ("not allowed with", "--algorithm", "a", "--resume", "--overwrite"),
                ("--rows: got --caches too", *caches), ("--rows: expected a file", "--algorithm", "a", "--rows", "")):
            err = io.StringIO()
            with contextlib.redirect_stderr(err), self.assertRaises(SystemExit) as stop:
                self.arguments(*words)
            self.assertEqual(stop.exception.code, 2)
            self.assertIn(text, err.getvalue())
        parsed = options.parse_arguments(["t.h5", "u.h5", "--model", "m", "-o", "s.csv", *caches])
        self.assertEqual((parsed.trace, parsed.caches, parsed.algorithm),
                         (["t.h5", "u.h5"], ["c.h5", "d.h5"], ["a", "b", "c"]))
        got = self.arguments("--algorithm", "a", "--algorithm", "b:c=1", "--sink", "0", "--memory-limit", "4G",
                             "--scores", "all")
        self.assertEqual(got.algorithm, ["a", "b:c=1"])
        self.assertEqual(plan.common_options(got), ["--scores=all", "--sink=0", "--memory-limit=4G"])

    def test_what_rows_share(self):
        config = self.write_file("c.toml", "sink = 2\nlayers = '0:2'\nqueries = 8\n")
        got = plan.protocol_of(self.arguments("--config", config, "--queries", "9", "--scores", "all"))
        self.assertEqual(got, {"scores": "all", "sink": 2, "recent": 512, "queries": 9,
                               "precision": "float32", "layers": "0:2", "heads": "all"})
        for text in ("sink = 2\nsink = 3\n", "=", "a = " + "[" * 100_000):
            with self.assertRaisesRegex(TraceError, "--config: .*c.toml: "):
                plan.read_config(self.write_file("c.toml", text))
        with open(self.path("c.toml"), "wb") as file:
            file.write(b"\xff")
        with self.assertRaisesRegex(TraceError, "--config: .*c.toml: 'utf-8'"):
            plan.read_config(self.path("c.toml"))

    def test_lists_are_the_programs(self):
        self.assertEqual(plan.read_seeds("3"), (0, 1, 2))
        self.assertEqual(plan.read_seeds("3,5"), (3, 5))
        self.assertEqual(plan.read_seeds("4:8:2,1"), (1, 4, 6))
        self.assertEqual(plan.read_budgets("0.25,1e-1,.25,12.5%,1/4"), (0.25, 0.1, 0.125))
        for text in ("a", "1:2:3:4", "1:2:0", ""):
            with self.assertRaisesRegex(TraceError, "--seeds: got"):
                plan.read_seeds(text)
        self.assertEqual(plan.text_of([0.25, "1:3"]), "0.25,1:3")

    @unittest.skipUnless(KVBENCH, "KVBENCH names no program")
    def test_budgets_of_a_method(self):
        trace = self.path("t.h5")
        subprocess.run([KVBENCH, "synth", "-o", trace, "--layers", "1", "--n", "64"], check=True, capture_output=True)
        args = self.arguments("--algorithm", "h2o,exact", "--budget", "0,0.25", "--sink", "4", "--recent", "8",
                              "--queries", "4", "--program", KVBENCH)
        self.assertEqual([(one.algorithm, one.budgets) for one in plan.find_variants(args, trace, "p0")],
                         [("exact", (None,)), ("h2o", (0, 0.25))])
        # Seeds without a budget.
        args = self.arguments("--program", KVBENCH, "--algorithm", "uniform:tokens=8", "--seeds", "1:3", "--sink",
                              "4", "--recent", "8", "--queries", "4")
        self.assertEqual([(one.budgets, one.seeds) for one in plan.find_variants(args, trace, "p0")],
                         [((None,), (1, 2))])

@unittest.skipIf(MISSING, f"lacks {', '.join(MISSING)}")
class RunsTest(FolderCase):
    def test_what_the_program_says_is_told(self):
        script = self.write_file("fails", "#!/bin/sh\necho first >&2\necho 'kvbench: error: so' >&2\nexit 3\n")
        os.chmod(script, 0o755)
        args = options.parse_arguments(["t.h5", "--model", "m", "-o", "s.csv", "--rows", "r.csv",
                                        "--algorithm", "a", "--work", self.folder, "--program", script])
        part = plan.Part([Variant("a", "", (0.5,), (0,))], (0.5,), (0,))
        one = replay.Replay(args, "t.h5", "p0", part)
        with self.assertRaisesRegex(TraceError, "^kvbench: error: so$"):
            one.wait()
        one.close()
        slow = self.write_file("slow", "#!/bin/sh\nexec sleep 600\n")
        os.chmod(slow, 0o755)
        args.program = slow
        one = replay.Replay(args, "t.h5", "p0", part)
        one.close()
        self.assertIsNotNone(one.process.returncode)
        self.assertEqual(sorted(os.listdir(self.folder)), ["fails", "slow"])
        self.assertTrue(os.path.isdir(replay.work_folder(None)))

    def test_tables_of_others_are_refused(self):
        self.write_file("other.csv", "x,y\n1,2\n")
        self.write_file("r.csv", "schema,trace,prompt,layer,algorithm,params,seed,budget_requested\n")
        self.write_file("r.csv.json", "{}")
        for name, text in (("other.csv", "got no table of kvbench replay"), ("none/r.csv", "its folder does not exist"),
                           ("r.csv", "with its manifest: expected a name of its own")):
            with self.assertRaisesRegex(TraceError, text):
                replay.Tables(self.path(name), False, True)
        self.assertEqual(read_text(self.path("other.csv")), "x,y\n1,2\n")

    def test_folders_of_killed_runs_are_removed(self):
        ended = subprocess.Popen(["true"])
        ended.wait()
        start = f"kvbench-score-{platform.node()}-"
        orphan = f"{start}{ended.pid}-a"
        names = [orphan, f"{start}{os.getpid()}-a", f"{start}1-a", f"kvbench-score-elsewhere-{ended.pid}-a",
                 f"{start}{ended.pid}", f"{start}x", "other"]
        for name in names:
            os.mkdir(self.path(name))
            self.write_file(os.path.join(name, "caches.h5"), "")
        replay.remove_orphans(self.folder)
        names.remove(orphan)
        self.assertEqual(sorted(os.listdir(self.folder)), sorted(names))
