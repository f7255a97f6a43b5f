"""The package `kvbench`: docs/python.md's method and examples as they stand there, tables, traces, errors."""

import os
import re
import subprocess
import sys
import unittest
import unittest.mock

import numpy as np
from script_case import KVBENCH, ROOT, FolderCase, missing, read_rows, read_text, run_program

import kvbench

if not missing("pandas"):
    import pandas as pd

TRACE = os.path.join(ROOT, "data", "sample.h5")
PAGE = os.path.join(ROOT, "docs", "python.md")
EXAMPLES = os.path.join(ROOT, "docs", "examples")
# Of an entry, as GroupWriter.put takes it.
PARTS = ("k", "v", "log_weight", "token", "k_den", "log_weight_den", "counted")
BUDGETS = {"0.25", "0.125"}
WINDOWS = {"sink": 4, "recent": 32, "queries": 16}
OF_SAMPLE = {"sink": 16, "recent": 64, "queries": 32}


def newest(head, task):
    """The middle's last tokens: what `local` keeps."""
    assert head.k.dtype == np.float32
    return task.middle[len(task.middle) - task.tokens:][::-1]  # any order


def run_python(folder, *words):
    """What a script says that imports kvbench; it must succeed."""
    return subprocess.run([sys.executable, *words], cwd=folder, stdout=subprocess.PIPE, text=True, check=True,
                          env={**os.environ, "PYTHONPATH": os.path.join(ROOT, "python")}).stdout


class PackageTest(unittest.TestCase):
    def test_every_name_is_there_and_documented(self):
        for name in kvbench.__all__:
            thing = getattr(kvbench, name)
            self.assertTrue(callable(thing) or name == "plot", name)
            self.assertTrue(thing.__doc__, name)
        with self.assertRaisesRegex(AttributeError, "`nothing`"):
            _ = kvbench.nothing

    def test_it_needs_no_package_to_be_imported(self):
        done = subprocess.run(
            [sys.executable, "-S", "-E", "-c", "import sys; sys.path.insert(0, sys.argv[1])\n"
             "import kvbench; print('numpy' in sys.modules)", os.path.join(ROOT, "python")],
            capture_output=True, text=True, check=False)
        self.assertEqual((done.stdout, done.stderr), ("False\n", ""))


@unittest.skipIf(missing("h5py", "pandas", "matplotlib"), "no h5py, pandas or matplotlib")
class TraceTest(FolderCase):
    def arrays(self, n=96, seed=0):
        rng = np.random.default_rng(seed)
        return [rng.normal(size=shape).astype(np.float16) for shape in ((4, 48, 8), (2, n, 8), (2, n, 6))]

    def test_a_trace_comes_back(self):
        path = self.path("t.h5")
        own = {"a": {0: self.arrays(), 5: self.arrays(seed=1)}, "b": [self.arrays(n=64, seed=2)]}
        kvbench.write_trace(path, own, model="none", source="random", scale=0.5)
        trace = kvbench.read_trace(path)
        self.assertEqual((trace.prompts, trace.layers, trace.dtype), (["a", "b"], [0, 5], "float16"))
        self.assertEqual(len(trace), 6)
        for (prompt, layer, kv_head), head in trace:
            q, k, v = own[prompt][layer]
            np.testing.assert_array_equal(head.k, k[kv_head])
            np.testing.assert_array_equal(head.v, v[kv_head])
            np.testing.assert_array_equal(head.q, q[2 * kv_head:2 * kv_head + 2])
            self.assertEqual(head.scale, 0.5)
        if KVBENCH:
            self.assertEqual(self.program("info", path).returncode, 0)

    def test_what_is_no_trace(self):
        q, k, v = self.arrays()
        for prompts, words in (
                ({"p": [(q, k)]}, "layers/0: got 2 arrays"),
                ({"p": [(q[0], k, v)]}, r"layers/0/q: got shape \(48, 8\)"),
                ({"p": [(q, k, v[:, 1:])]}, "expected .q_heads, nq, d"),
                ({"p": [(q, k, v), self.arrays(n=64)]}, "got layers of 64, 96 tokens"),
                ({"p": []}, "got layers of no tokens"),
                ({"p": [(q, k * np.float16(np.nan), v)]}, "layers/0/k: head 0, row 0")):
            with self.subTest(words), self.assertRaisesRegex(kvbench.TraceError, words):
                kvbench.write_trace(self.path("t.h5"), prompts, model="none", source="random")
            self.assertEqual(os.listdir(self.folder), [])
        with self.assertRaisesRegex(kvbench.TraceError, "no such file"):
            kvbench.read_trace(self.path("t.h5"))


@unittest.skipUnless(os.access(KVBENCH, os.X_OK), "no program")
@unittest.skipIf(missing("h5py", "pandas", "matplotlib"), "no h5py, pandas or matplotlib")
class MethodTest(FolderCase):
    def setUp(self):
        super().setUp()
        self.done("synth", "-o", self.path("t.h5"), "--layers", "2", "--q-heads", "4", "--kv-heads", "2",
                  "--n", "160", "--d", "16", "--dv", "8")
        self.trace = self.path("t.h5")

    def evaluate(self, method, budget=(0.5, 0.25), **options):
        return kvbench.evaluate(self.trace, method, budget, **{**WINDOWS, **options})

    def test_the_page_s_method_gives_the_rows_of_kvbench(self):
        text = re.search(r"<!-- file: my_method.py -->\n```python\n(.*?)```", read_text(PAGE), re.DOTALL)[1]
        self.assertLess(len(text.splitlines()), 30)
        os.symlink(os.path.join(ROOT, "data"), self.path("data"))
        said = run_python(self.folder, self.write_file("my_method.py", text))
        rows = {line.split()[0]: line.split()[1:] for line in said.splitlines()}
        self.assertEqual(rows["my_snapkv"], rows["snapkv"])
        self.assertNotEqual(rows["my_snapkv"], rows["uniform"])
        self.assertEqual(len(rows["snapkv"]), 2)  # budgets

    def test_rows_are_those_of_the_program(self):
        def of_the_middle(head, task):
            return np.isin(task.middle, newest(head, task))

        def of_all(head, task):
            mask = np.isin(np.arange(len(head.k)), newest(head, task))
            mask[:4] = mask[-32:] = True
            return mask

        own = kvbench.replay(self.trace, algorithm="local", budget=[0.5, 0.25], **WINDOWS)
        order = ["layer", "q_head", "budget_requested"]
        own = own.sort_values(order, ignore_index=True)
        for method in (newest, of_the_middle, of_all):
            mine = self.evaluate(method, seeds=1).sort_values(order, ignore_index=True)
            self.assertEqual(len(mine), 2 * 4 * 2)
            for column in ("rel_error", "bytes", "tokens_kept", "mass_kept", "cosine", *order):
                self.assertEqual(list(mine[column]), list(own[column]), column)
            self.assertEqual(mine.tokens_kept.dtype.kind, "i")
            self.assertEqual((mine.repeats.dtype.kind, set(mine.repeats)), ("i", {1}))
            self.assertEqual(set(mine.algorithm), {method.__name__})
            self.assertTrue((mine.compress_ms > 0).all())

    def test_budgets_are_rounded_as_by_the_program(self):
        from kvbench.api.method import budget_bytes

        self.assertEqual([budget_bytes(0.29, 100), budget_bytes(0.25, 103), budget_bytes(0.0, 8), budget_bytes(1.0, 7)],
                         [29, 25, 0, 7])

    def test_what_a_method_is_given(self):
        seen = []

        def look(head, task):
            seen.append((head, task))
            head.k[:] = 0  # its own copy
            return task.middle[:0]

        with self.subTest("past"):
            rows = self.evaluate(look, [0.3], seeds=2)
            self.assertEqual(set(rows.seed), {0, 1})
            self.assertEqual(len(seen), 2 * 2 * 2)
            head, task = seen[0]
            self.assertEqual((task.prompt, task.layer, task.kv_head), ("p0", 0, 0))
            np.testing.assert_array_equal(task.middle, np.arange(4, 128))
            self.assertEqual(task.bytes, int(0.3 * 124 * (16 + 8) * 2))
            self.assertEqual(task.tokens, task.bytes // 48)
            whole = kvbench.read_trace(self.trace).head("p0", 0, 0)
            np.testing.assert_array_equal(head.q, whole.q[:, :-16])
            self.assertEqual(task.query_positions[-1], 160 - 16 - 1)
            draws = [task.rng.random() for _, task in seen]
            self.assertEqual(len(set(draws)), len(draws))
        for scores, queries in (("all", 160), ("none", 0)):
            with self.subTest(scores):
                seen.clear()
                rows = self.evaluate(look, [0.3], scores=scores, layers=[1])
                self.assertEqual((set(rows.layer), set(rows.scores)), ({1}, {scores}))
                self.assertEqual(len(seen[0][1].query_positions), queries)
                self.assertEqual(seen[0][0].q is None, scores == "none")

    def test_made_entries_and_infeasible_budgets(self):
        def mean(head, task):
            if task.budget < 0.01:
                raise kvbench.Infeasible("no room for a mean")
            k, v = (x[task.middle].mean(axis=0, keepdims=True) for x in (head.k, head.v))
            return kvbench.Made(k, v, log_weight=[np.log(len(task.middle))], diag="means=1")

        rows = self.evaluate(mean, [0.5, 0.001], params={"of": "all"})
        good, bad = (rows[rows.budget_requested == b] for b in (0.5, 0.001))
        self.assertEqual(set(good.status), {"ok"})
        self.assertEqual(set(good.tokens_kept), {4 + 32})
        self.assertEqual(set(good.aux_bytes), {4})
        self.assertEqual((set(good.params), set(good.diag)), ({"of=all"}, {"means=1"}))
        self.assertEqual(set(bad.status), {"infeasible: no room for a mean"})

    def test_layers_with_a_window(self):
        from kvbench.trace.writer import TraceWriter

        rng, self.trace = np.random.default_rng(0), self.path("w.h5")
        windows = {88: 4, 70: 11, 20: 61, 1: None}  # the middle's first token; it has none
        with TraceWriter(self.trace, "none", "random") as writer:
            writer.begin_prompt("p", 96)
            for layer, window in enumerate(windows):
                writer.begin_layer(layer, 2, 1, 48, 8, 8, window=window)
                for name, shape in (("q", (2, 48, 8)), ("k", (96, 8)), ("v", (96, 8))):
                    writer.write(name, 0, 0, rng.normal(size=shape))
        firsts = {}

        def noting(head, task):
            firsts[head.window] = task.middle[0] if len(task.middle) else None
            return newest(head, task)

        columns = ["rel_error", "bytes", "full_bytes", "status"]
        own = kvbench.replay(self.trace, algorithm="local", budget=0.5, **WINDOWS)
        self.assertEqual(self.evaluate(noting, 0.5)[columns].values.tolist(), own[columns].values.tolist())
        self.assertEqual(firsts, windows)
        for token in (None, [5, 50]):
            with self.assertRaisesRegex(kvbench.MethodError, "no tokens of task.middle, .* a window of 70 tokens"):
                self.evaluate(lambda head, task, token=token: kvbench.Made(head.k[:2], head.v[:2], token=token),
                              layers=[1])

    def test_what_a_method_may_not_return(self):
        def heavy(head, task):
            rows = task.tokens
            return kvbench.Made(head.k[:rows], head.v[:rows], log_weight=np.arange(rows) / 7)

        def with_aux(head, task):
            return kvbench.Made(head.k[:3], head.v[:3], aux_bytes=task.bytes)

        # A middle of 124 tokens of 48 bytes: a quarter is 1488 bytes, 31 tokens.
        for result, words in (
                (lambda head, task: task.middle, "returned 124 tokens, expected at most task.tokens: 31 fit$"),
                (heavy, "returned 31 rows of 1612 bytes .124 of them weights., expected at most "
                        "task.bytes = 1488: 28 rows fit$"),
                (with_aux, "returned 3 rows of 1632 bytes .1488 of them aux_bytes., .* 0 rows fit$"),
                (lambda head, task: None, "TypeError|returned None, .* is a `return` missing"),
                (lambda head, task: [0], "position 0, expected those of task.middle, 4 to 127"),
                (lambda head, task: [130], "position 130"),
                (lambda head, task: [5.5], "float64"),
                (lambda head, task: [True, False], r"a mask of shape \[2\], expected \[124\], the "
                                                   r"middle, or \[160\], all tokens"),
                (lambda head, task: kvbench.Made(head.k[:2], head.v[:1]), "v: rows: got 1"),
                (lambda head, task: kvbench.Made(head.k[:2] * np.nan, head.v[:2]), "k.0, 0.: got nan"),
                (lambda head, task: 1 // 0, "ZeroDivisionError: integer division"),
                (lambda head, task: [5, 5], "5")):
            result.__name__ = "method"
            with self.subTest(words):
                with self.assertRaisesRegex(kvbench.MethodError, words) as raised:
                    self.evaluate(result, [0.25])
                self.assertRegex(str(raised.exception), "^method, prompt p0, layer 0, KV head 0, budget 0.25: ")
                self.assertNotIn("/", str(raised.exception).replace("1 // 0", ""))
                self.assertIsNotNone(raised.exception.__cause__)
        with self.assertRaisesRegex(kvbench.TraceError, "algorithm: got ``"):
            self.evaluate(lambda head, task: [], name="")
        with self.assertRaisesRegex(kvbench.TraceError, "has 160 tokens"):
            self.evaluate(newest, recent=200)
        with self.assertRaisesRegex(ValueError, "errors: got 'no'"):
            self.evaluate(newest, errors="no")

    def test_absent_prompts_and_layers_are_refused(self):
        for name, wanted, got in (("prompts", ["p0", "p9"], "p9"), ("prompts", "p0,p9", "p9"), ("layers", [0, 9], "9")):
            with self.assertRaisesRegex(kvbench.TraceError, f"{name}: got {got}, expected some of "):
                self.evaluate(newest, **{name: wanted})
        self.assertEqual(set(self.evaluate(newest, layers=range(1, 99)).layer), {1})  # as in --layers

    def test_a_bad_head_keeps_the_others(self):
        def picky(head, task):
            if (task.layer, task.kv_head) == (1, 0):
                raise RuntimeError("no\nluck")
            return newest(head, task)

        with self.assertWarnsRegex(RuntimeWarning, "2 of 8 calls failed, the first: picky, prompt p0, layer 1"):
            rows = self.evaluate(picky)
        bad = (rows.layer == 1) & (rows.kv_head == 0)
        self.assertEqual(set(rows[bad].status), {"failed: RuntimeError: no luck"})
        self.assertEqual(int(bad.sum()), 4)  # two query heads, two budgets
        good = self.evaluate(newest)
        self.assertEqual(list(rows[~bad].rel_error), list(good[~bad].rel_error))
        with self.assertRaisesRegex(kvbench.MethodError, "KV head 0, budget 0.5: RuntimeError: no luck"):
            self.evaluate(picky, errors="raise")

    def test_tables_come_back(self):
        first = kvbench.replay(self.trace, algorithm="local,uniform", budget=[0.5, 0.25], seeds=2, **WINDOWS)
        rows = pd.concat([first, self.evaluate(newest)])
        path = self.path("plain.csv")
        for more in ({}, {"index": False}):
            rows.to_csv(path, **more)
            again = kvbench.read_results(path)
            pd.testing.assert_frame_equal(again, rows.reset_index(drop=True), check_dtype=False)
            again.to_csv(path, **more)  # and once more
            pd.testing.assert_frame_equal(kvbench.read_results(path), again)
        self.assertIn("newest", kvbench.run("summarize", path))
        for words in (["compare", path, "--to", "local"],
                      ["plot", "error", path, "-o", self.path("e"), "--x", "budget"]):
            done = run_program("kvbench-py", *words)
            self.assertEqual((done.returncode, "Traceback" in done.stderr), (0, False), done.stderr)
        self.assertTrue(kvbench.figure("pareto", again).axes[0].has_data())
        self.assertTrue(kvbench.figure("error", rows, x="budget").axes[0].has_data())  # rows has indices twice
        with self.assertRaisesRegex(ValueError, "name: got 'paretto', expected one of amnesia"):
            kvbench.figure("paretto", rows)
        self.assertTrue(os.path.isfile(kvbench.sample()))

    def test_tokens_in_fewer_bits_survive_a_copy(self):
        """`counted`, the tokens that A of an A@Q holds: read, and written anew."""
        def export(*names):
            return kvbench.replay(self.trace, algorithm=names, budget=0.25, output=own, export_caches=own + ".h5",
                                  **WINDOWS)

        def evaluated(*left_out):
            """Rows of the entries written anew without some of their parts."""
            with kvbench.read_caches(own + ".h5") as held, kvbench.write_caches(copy, self.trace, **WINDOWS) as writer:
                for one in held.groups:
                    to = writer.group(one.algorithm, one.params, one.budget, one.seed, one.scores, one.scope)
                    for place in one.heads("p0"):
                        parts = vars(one.read("p0", *place)).copy()
                        parts = {name: parts[name] for name in PARTS if name not in left_out} | parts["attributes"]
                        to.put("p0", *place, **parts)
            self.done("evaluate", self.trace, "--caches", copy, "-o", again, "--overwrite")
            return kvbench.read_results(again)

        own, copy, again = self.path("own.csv"), self.path("copy.h5"), self.path("again.csv")
        rows = export("h2o@quant-kivi", "h2o", "quant-rotated")
        figures = ["algorithm", "layer", "q_head", "tokens_kept", "bytes", "rel_error", "mass_kept", "amnesia_count",
                   "status"]
        pd.testing.assert_frame_equal(evaluated()[figures], rows[figures])
        for path in (own + ".h5", copy):
            with kvbench.read_caches(path) as caches:
                entries = {group.algorithm: group.read("p0", 1, 0) for group in caches.groups}
            entry = entries["h2o@quant-kivi"]
            self.assertGreater(len(entry.counted), 40)  # above a quarter of the middle's 124
            self.assertEqual((len(entry.counted), entry.counted.dtype), (len(entry.k), np.int64))
            self.assertEqual(entry.attributes["quantised"], len(entry.k))
            self.assertTrue((np.diff(entry.counted) > 0).all())
            self.assertTrue(4 <= entry.counted[0] and entry.counted[-1] < 128)
            self.assertEqual((entries["h2o"].counted, entries["quant-rotated"].counted), (None, None))
        # Without them these tokens count as lost.
        lost = evaluated("counted")
        self.assertEqual(list(lost.rel_error), list(rows.rel_error))
        coded = rows.algorithm == "h2o@quant-kivi"
        self.assertTrue((lost.mass_kept < rows.mass_kept)[coded].all())
        self.assertTrue((lost.mass_kept == rows.mass_kept)[~coded].all())

    def test_side_tables_and_options(self):
        table = self.path("out.csv")
        rows = self.evaluate(newest, [0.25], output=table, per_query=True)
        bins = kvbench.read_results(table, side="queries")
        self.assertEqual(bins[["first", "last", "queries"]].drop_duplicates().to_numpy().tolist(),
                         [[0, 0, 1], [1, 1, 1], [2, 3, 2], [4, 7, 4], [8, 15, 8]])
        self.assertEqual(len(bins), len(rows) * 5)
        self.assertEqual(set(bins.model), set(rows.model))
        rows = self.evaluate(newest, [0.25], output=table, kept=True, per_query="all", overwrite=True)
        self.assertEqual(len(kvbench.read_results([table])), len(rows))
        queries = kvbench.read_results(table, side="queries")
        self.assertEqual(len(queries), len(rows) * 16)
        one = queries[(queries.layer == 0) & (queries.q_head == 3)]
        self.assertEqual(set(one.kv_head), {1})
        row = rows[(rows.layer == 0) & (rows.q_head == 3)].iloc[0]
        self.assertEqual(set(one.rel_error_max), {row.rel_error_max})
        self.assertAlmostEqual(one.rel_error.max(), row.rel_error_max, delta=1e-15)
        kept = kvbench.read_results(table, side="kept")
        self.assertEqual(len(kept), 4)  # KV heads
        self.assertEqual(set(kept.bytes), set(rows.bytes))
        self.assertNotIn("mass_kept", kept)  # differs between the query heads of a KV head
        with self.assertRaisesRegex(kvbench.CsvError, "side: got `rows`"):
            kvbench.read_results(table, side="rows")
        with self.assertRaisesRegex(kvbench.CsvError, "out.steps.csv: no such file"):
            kvbench.read_results(table, side="steps")
        with open(table, "r+", encoding="utf-8") as file:
            text = file.read().replace(",newest,", ",newer,", 1)
            file.seek(0)
            file.write(text)
        with self.assertRaisesRegex(kvbench.CsvError, "SHA-256"):
            kvbench.read_results(table)

    def test_the_program_s_own_words(self):
        with self.assertRaisesRegex(kvbench.ProgramError, "no algorithm 'snapkw'") as caught:
            kvbench.replay(self.trace, algorithm="snapkw", budget=0.5)
        self.assertEqual(caught.exception.exit_code, 2)
        self.assertIn("Usage: kvbench", kvbench.run("--help"))
        with unittest.mock.patch.dict(os.environ, {"KVBENCH": "/none/kvbench"}):
            with self.assertRaisesRegex(kvbench.ProgramError, "/none/kvbench: cannot be run"):
                kvbench.run("--help")

    def test_figures_find_side_tables(self):
        rows = kvbench.evaluate(kvbench.sample(), lambda head, task: task.middle[:task.tokens], 0.25, name="first",
                                per_query=True, layers=[0], progress=False, **OF_SAMPLE)
        self.assertEqual(rows.budget_requested.unique().tolist(), [0.25])
        [axes] = kvbench.figure("offset", rows, budget=0.25).axes
        bins = kvbench.read_results(rows.attrs["paths"][0], side="queries").groupby("first").rel_error_p50.median()
        self.assertEqual(list(axes.lines[0].get_ydata()), bins.tolist())
        with self.assertRaisesRegex(ValueError, "got some rows of .*rows.csv, expected all"):
            kvbench.figure("offset", rows[rows.q_head == 0])
        with self.assertRaisesRegex(kvbench.CsvError, "no such file, expected it beside the rows of a run with kept"):
            kvbench.figure("kept-map", rows)

    def test_comparisons_are_those_of_the_program(self):
        table, out = self.path("out.csv"), self.path("cmp.csv")
        rows = kvbench.replay(kvbench.sample(), table, algorithm="local,snapkv,exact", budget=[0.5, 0.25],
                              layers="0,10", **OF_SAMPLE)
        run_python(self.folder, os.path.join(ROOT, "scripts", "kvbench-py"), "compare", table, "--to", "local",
                   "--exclude", "exact", "--layers", "0", "--csv", out)
        expected = pd.read_csv(out, float_precision="round_trip")
        parts = [rows[rows["algorithm"] == name] for name in ("local", "snapkv", "exact")]
        for given in (rows, table, [table], parts):
            found = kvbench.compare(given, to="local", exclude="exact", layers=0)
            self.assertEqual(list(found.columns), list(expected.columns))
            self.assertEqual(found["method"].tolist(), ["snapkv", "local"] * 2)
            np.testing.assert_array_equal(found["mean"], expected["mean"])
            np.testing.assert_array_equal(found["difference"], expected["difference"])
        self.assertFalse(np.isnan(found["difference"]).all())
        found = kvbench.compare(rows, algorithm="local,snapkv", exclude="oracle,exact", budget="1/4", layers="0,10")
        self.assertEqual((set(found["method"]), set(found["budget"])), ({"local", "snapkv"}, {"0.25"}))
        with self.assertRaisesRegex(ValueError, "budget: got `much`, expected numbers"):
            kvbench.compare(rows, budget="much")
        with self.assertRaisesRegex(TypeError, "unexpected option 'colour', expected one of metric"):
            kvbench.compare(rows, colour=1)
        with self.assertRaisesRegex(kvbench.CsvError, "--to: got `h2o`"):
            kvbench.compare(rows, to="h2o")
        with self.assertRaisesRegex(TypeError, "got DataFrames and paths"):
            kvbench.compare([rows, table])

    def test_methods_by_dict(self):
        table = self.path("out.csv")
        methods = {"streamingllm": {"n_sink": [0, 4]}, "local:tokens=20": {"T": "auto"}}
        rows = kvbench.replay(kvbench.sample(), output=table, protocol="stream", kept=True, layers="0", budget=0.25,
                              algorithm=methods, **OF_SAMPLE)
        self.assertEqual(sorted(rows.params.unique()), ["T=auto;n_sink=0;tokens=auto", "T=auto;n_sink=4;tokens=auto",
                                                        "T=auto;tokens=20"])
        self.assertEqual(kvbench.figure("stream", rows).axes[0].get_ylabel(),
                         kvbench.figure("stream", table).axes[0].get_ylabel())
        self.assertTrue(kvbench.figure("kept-map", kvbench.read_results(table), layers=[0]).axes)
        self.assertTrue(os.path.exists(self.path("out.kept.csv")))


@unittest.skipUnless(os.access(KVBENCH, os.X_OK), "no program")
@unittest.skipIf(missing("h5py"), "no h5py")
class ExamplesTest(FolderCase):
    """The examples that write caches: `kvbench evaluate` reads them. SnapKV's give the rows of kvbench's own."""

    def caches_of(self, name):
        """Runs an example; the rows that evaluate makes of its caches, and their sets."""
        run_python(self.folder, os.path.join(EXAMPLES, name), TRACE, self.path("c.h5"))
        self.done("evaluate", TRACE, "--caches", self.path("c.h5"), "--kept", "-o", self.path("e.csv"))
        found = read_rows(self.path("e.csv"))
        self.assertEqual({row["budget_requested"] for row in found}, BUDGETS)
        self.assertEqual({row["status"] for row in found}, {"ok"})
        self.assertEqual(len(found), 2 * 4 * 9)  # budgets, layers, query heads
        return found, read_rows(self.path("e.kept.csv"))

    def test_the_page_names_every_example(self):
        linked = re.findall(r"\]\(examples/(\S+?)\)", read_text(PAGE))
        self.assertEqual(sorted(linked), sorted(os.listdir(EXAMPLES)))

    def test_snapkv_in_numpy_gives_the_rows_of_kvbench(self):
        found, kept = self.caches_of("snapkv_numpy.py")
        self.done("replay", TRACE, "--algorithm", "snapkv", "--budget", "0.25,0.125", "--kept", "-o",
                  self.path("r.csv"))
        places = ("prompt", "layer", "q_head", "budget_requested")
        expected = {tuple(row[c] for c in places): row for row in read_rows(self.path("r.csv"))}
        tokens = [{(row["layer"], row["kv_head"], row["budget_requested"]): row["tokens"] for row in rows}
                  for rows in (kept, read_rows(self.path("r.kept.csv")))]
        self.assertEqual(len(kept), 2 * 4 * 3)
        self.assertEqual(*tokens)
        for row in found:
            own = expected[tuple(row[c] for c in places)]
            for column in ("tokens_kept", "bytes", "middle_ratio", "mass_kept", "amnesia_count",
                           "rel_error", "eps_op", "cosine", "log_z_error"):
                self.assertEqual(row[column], own[column], column)

    @unittest.skipIf(missing("torch"), "no torch")
    def test_kmeans_in_torch_fills_its_budget_with_made_entries(self):
        found, _ = self.caches_of("kmeans_torch.py")
        for row in found:
            budget = float(row["budget_requested"])
            pair = 2 * (64 + 64)  # bytes of a bfloat16 key and value
            self.assertLessEqual(float(row["middle_ratio"]), budget)
            # A cluster that lost its members leaves room; no more than a hundredth here.
            self.assertGreater(float(row["middle_ratio"]), 0.99 * budget)
            self.assertEqual(int(row["tokens_kept"]), 16 + 512)
            held = int(row["bytes"]) - int(row["aux_bytes"]) - (16 + 512) * pair
            self.assertEqual(int(row["aux_bytes"]) // 4, held // pair)
            self.assertTrue(np.isfinite(float(row["rel_error"])))
