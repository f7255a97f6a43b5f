"""What kvbench-py score with a replay runs, and what it keeps of an earlier run; without torch.

With the model: test_score_replay.py.
"""

import contextlib
import io
import os
import subprocess
import unittest

from script_case import KVBENCH, FolderCase, missing, read_text, write_text

MISSING = missing("h5py", "numpy")
if not MISSING:
    from kvbench.score import options, plan, replay
    from kvbench.score.plan import Variant
    from kvbench.trace.writer import TraceError

HEADER = "schema,trace,prompt,layer,algorithm,params,seed,budget_requested,rel_error\n"


def line(algorithm, budget, seed=0, layer=0, prompt="p0"):
    return f"1.4,t.h5,{prompt},{layer},{algorithm},a=1;b=2,{seed},{budget},0.5\n"


def key(algorithm, budget, seed=0, prompt="p0"):
    return "t.h5", prompt, algorithm, "a=1;b=2", budget, str(seed)


@unittest.skipIf(MISSING, f"lacks {', '.join(MISSING)}")
class ScorePlanTest(FolderCase):
    def arguments(self, *more):
        return options.parse_arguments(["t.h5", "--model", "m", "-o", "s.csv", "--rows", "r.csv", *more])

    def refused(self, *more):
        err = io.StringIO()
        with contextlib.redirect_stderr(err), self.assertRaises(SystemExit) as stop:
            self.arguments(*more)
        self.assertEqual(stop.exception.code, 2)
        return err.getvalue()

    def test_arguments(self):
        self.assertIn("expected --caches, or --algorithm, --policy, or --config", self.refused())
        self.assertIn("got one file, expected two", self.refused("--algorithm", "a", "--rows", "./s.csv"))
        self.assertIn("got `-1`, expected a whole number", self.refused("--algorithm", "a", "--sink=-1"))
        self.assertIn("not allowed with", self.refused("--algorithm", "a", "--resume", "--overwrite"))
        got = self.arguments("--algorithm", "a", "--algorithm", "b:c=1", "--prompts", "x,y")
        self.assertEqual((got.algorithm, got.prompts), (["a", "b:c=1"], ["x", "y"]))
        with_caches = ("--caches", "c.h5", "d.h5", "--algorithm", "a,b", "--algorithm", "c")
        parsed = options.parse_arguments(["t.h5", "u.h5", "--model", "m", "-o", "s.csv", *with_caches])
        self.assertEqual((parsed.trace, parsed.caches, parsed.algorithm),
                         (["t.h5", "u.h5"], ["c.h5", "d.h5"], ["a", "b", "c"]))
        self.assertIn("--rows: got --caches too", self.refused(*with_caches))
        self.assertIn("--rows: expected a file", self.refused("--algorithm", "a", "--rows", ""))
        self.assertGreater(min(got.replay_threads, got.model_threads), 0)
        got = self.arguments("--algorithm", "a", "--sink", "0", "--memory-limit", "4G", "--scores", "all")
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
        with self.assertRaisesRegex(TraceError, "--budget: got `0.5,x`"):
            plan.read_budgets("0.5,x")
        self.assertEqual(plan.text_of([0.25, "1:3"]), "0.25,1:3")

    def test_the_plans_table(self):
        text = ("plan: 2\n\nalgorithm  entries  jobs  rows  job MiB  parameters\n"
                "exact            1    90   270      3.1   \n"
                "a+b              3   270   810      3.2   T=auto;x=1\n\nKV heads\n")
        self.assertEqual(plan.read_plan_table(text), [("exact", "", 1), ("a+b", "T=auto;x=1", 3)])
        with self.assertRaisesRegex(TraceError, "no table of algorithms"):
            plan.read_plan_table("plan: 2\n")

    def test_parts_are_what_is_missing(self):
        a, b = (Variant(name, "", (0.5, 0.25), (0,)) for name in "ab")
        drawn, fixed = Variant("c", "x=1", (0.5, 0.25), (0, 1)), Variant("f", "", (None,), (0,))
        all_of = [a, fixed, drawn, b]
        for groups in (1, 4, 99):
            parts = plan.parts_of(all_of, set(), groups)
            made = [one for part in parts for one in part.keys]
            self.assertEqual(sorted(made, key=str), sorted((k for v in all_of for k in v.keys()), key=str))
        # One call for all with equal seeds, and what has no budget goes with them.
        self.assertEqual([[v.algorithm for v in part.variants] for part in plan.parts_of(all_of, set(), 99)],
                         [["f", "a", "b"], ["c"]])
        done = {*a.keys(), *fixed.keys(), ("b", "", 0.5, 0), *drawn.keys()[:3]}
        parts = plan.parts_of(all_of, done, 99)
        self.assertEqual({k for part in parts for k in part.keys},
                         {("b", "", 0.25, 0), ("c", "x=1", 0.25, 1)})
        self.assertEqual([part.options() for part in parts],
                         [["--algorithm", "c:x=1", "--budget=0.25", "--seeds=1:2"],
                          ["--algorithm", "b", "--budget=0.25", "--seeds=0:1"]])
        first = plan.shorten_first(plan.parts_of([a, b, *[Variant("d", str(i), (0.5, 0.25), (0,))
                                                           for i in range(6)]], set(), 99))
        self.assertEqual([len(part.variants) for part in first], [2, 6])
        self.assertEqual(plan.shorten_first([]), [])
        self.assertEqual(plan.parts_of(all_of, {k for v in all_of for k in v.keys()}, 9), [])
        self.assertEqual(plan.parts_of([fixed], set(), 9)[0].options(),
                         ["--algorithm", "f", "--seeds=0:1"])

    def test_what_auto_became(self):
        planned = [("e", "T=auto;n=1;rope=auto", 0.5, 0), ("e", "T=auto;n=2;rope=auto", 0.5, 0),
                   ("u", "T=auto", 0.5, 0)]
        made = {("e", "T=auto;n=1;rope=tables", 0.5, 0), ("e", "T=auto;n=2;rope=tables", 0.5, 0),
                ("u", "T=auto", 0.5, 0)}
        self.assertEqual(plan.resolve(planned, made), {
            ("e", f"T=auto;n={n};rope=auto"): f"T=auto;n={n};rope=tables" for n in (1, 2)})
        self.assertEqual(plan.resolve(planned, set(planned)), {})
        self.assertEqual(plan.resolve(planned, {("e", "T=auto;n=3;rope=tables", 0.5, 0)}), {})

    def test_variants_are_the_programs(self):
        if not KVBENCH:
            self.skipTest("KVBENCH names no program")
        trace = self.path("t.h5")
        made = self.program("synth", "-o", trace, "--n", "96", "--layers", "1", "--seed", "1")
        self.assertEqual(made.returncode, 0, made.stderr)
        config = self.write_file("c.toml", "seeds = 2\nbudget = [0.5, 0.25]\nsink = 2\nrecent = 16\n"
                                           "queries = 8\n")
        args = options.parse_arguments([
            "--model", "m", trace, "--rows", self.path("r.csv"), "-o", self.path("s.csv"),
            "--config", config, "--algorithm", "exact,uniform", "--algorithm", "uniform:T=1",
            "--algorithm", "h2o:heavy_ratio=0.5,0.25"])
        args.program = KVBENCH
        prompt = self.prompt_of(trace)
        got = [(v.algorithm, v.budgets, v.seeds) for v in plan.find_variants(args, trace, prompt)]
        both, seeds = (0.5, 0.25), (0, 1)
        self.assertEqual(sorted(got, key=str), sorted([
            ("exact", (None,), (0,)), ("uniform", both, seeds), ("uniform", (None,), seeds),
            ("h2o", both, (0,)), ("h2o", both, (0,))], key=str))
        args.budget, args.seeds = "0.125", "7:9"
        got = {(v.algorithm, v.budgets, v.seeds) for v in plan.find_variants(args, trace, prompt)}
        self.assertIn(("uniform", (0.125,), (7, 8)), got)
        args.algorithm = ["snap-kv"]
        with self.assertRaisesRegex(TraceError, "snapkv"):
            plan.find_variants(args, trace, prompt)
        args.program = self.path("none")
        with self.assertRaisesRegex(TraceError, "--program: .*none: No such file"):
            plan.find_variants(args, trace, prompt)
        self.assertEqual(sorted(os.listdir(self.folder)), ["c.toml", "t.h5"])

    def prompt_of(self, trace):
        import h5py
        with h5py.File(trace) as file:
            return next(iter(file["prompts"]))


@unittest.skipIf(MISSING, f"lacks {', '.join(MISSING)}")
class TablesTest(FolderCase):
    def tables(self, resume=False, overwrite=False):
        return replay.Tables(self.path("r.csv"), resume, overwrite)

    def part(self, *lines, layers=()):
        os.makedirs(self.path("part"), exist_ok=True)
        if layers:
            write_text(self.path("part", "rows.layers.csv"), HEADER + "".join(layers))
        return write_text(self.path("part", "rows.csv"), HEADER + "".join(lines))

    def test_rows_stay_as_they_are_and_only_what_is_done_stays(self):
        a, b, c = line("a", "0.5"), line("a", "0.0625"), line("b", "0.5", 3)
        with self.tables() as tables:
            tables.begin(set())
            tables.load(self.part(a, b, a, c, layers=[b]))
            tables.write(key("a", "0.0625"))
            tables.write(key("a", "0.5"))
            with self.assertRaisesRegex(TraceError, "t.h5 p0 x a=1;b=2 0.5 0: got no row"):
                tables.write(key("x", "0.5"))
        self.assertEqual(read_text(self.path("r.csv")), HEADER + b + a + a)
        self.assertEqual(read_text(self.path("r.layers.csv")), HEADER + b)
        with self.assertRaisesRegex(TraceError, "r.csv: already exists; use --resume"):
            self.tables()
        # A run that was killed in a row, and before the scores had the last key.
        write_text(self.path("r.csv"), HEADER + b + a + a + c + a[:20])
        tables = self.tables(resume=True)
        self.assertEqual(tables.held, {key("a", "0.5")})
        with tables:
            tables.begin({key("a", "0.0625"), key("b", "0.5", 3)})
            self.assertEqual(read_text(self.path("r.csv")), HEADER + b + c)
            tables.load(self.part(a))
            tables.write(key("a", "0.5"))
        self.assertEqual(read_text(self.path("r.csv")), HEADER + b + c + a)
        # Of heads that are missing, the whole key is.
        write_text(self.path("r.csv"), HEADER + a + a + b + b + c)
        self.assertEqual(self.tables(resume=True).held, {key("a", "0.5"), key("a", "0.0625")})
        with self.tables(overwrite=True) as tables:
            tables.begin(set())
        self.assertEqual(os.listdir(self.folder), ["part"])

    def test_tables_of_others_are_refused(self):
        write_text(self.path("r.csv"), "x,y\n1,2\n")
        for how in ({"resume": True}, {"overwrite": True}):
            with self.assertRaisesRegex(TraceError, "got no table of kvbench replay"):
                self.tables(**how)
        self.assertEqual(read_text(self.path("r.csv")), "x,y\n1,2\n")
        write_text(self.path("r.csv"), HEADER)
        self.write_file("r.csv.json", "{}")
        with self.assertRaisesRegex(TraceError, "with its manifest: expected a name of its own"):
            self.tables(overwrite=True)
        os.remove(self.path("r.csv.json"))
        with self.tables(resume=True) as tables:
            tables.begin(set())
            part = self.part(line("a", "0.5"))
            write_text(part, read_text(part).replace("rel_error", "other"))
            tables.load(part)
            with self.assertRaisesRegex(TraceError, "its columns are not those"):
                tables.write(key("a", "0.5"))
        with self.assertRaisesRegex(TraceError, "its folder does not exist"):
            replay.Tables(self.path("none", "r.csv"), False, False)

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
        with self.assertRaisesRegex(TraceError, "--work: .*none: no such folder"):
            replay.work_folder(self.path("none"))
        self.assertTrue(os.path.isdir(replay.work_folder(None)))

    def test_folders_of_killed_runs_are_removed(self):
        ended = subprocess.Popen(["true"])
        ended.wait()
        names = [f"kvbench-score-{os.getpid()}-a", "kvbench-score-1-a", f"kvbench-score-{ended.pid}-a",
                 f"kvbench-score-{ended.pid}", "kvbench-score-x", "other"]
        for name in names:
            os.mkdir(self.path(name))
            self.write_file(os.path.join(name, "caches.h5"), "")
        replay.remove_orphans(self.folder)
        names.remove(f"kvbench-score-{ended.pid}-a")
        self.assertEqual(sorted(os.listdir(self.folder)), sorted(names))


if __name__ == "__main__":
    unittest.main()
