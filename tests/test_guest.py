"""kvbench as a guest in a caller's process: what imports leave alone, and figures as functions."""

import contextlib
import inspect
import io
import logging
import os
import subprocess
import sys
import unittest

import matplotlib
from matplotlib.figure import Figure
from plot_tables import STEP_COLUMNS, DrawingCase, FigureTest, lambda_rows, revive_rows
from script_case import ROOT, missing

import kvbench
from kvbench import tables as kt
from kvbench.plot import (
    amnesia,
    bits,
    bumblebee_lambda,
    coverage,
    error,
    growth,
    heatmap,
    kept_map,
    norms,
    offset,
    pareto,
    reads,
    reconstruction,
    stream,
    tsne,
)
from kvbench.plot import figures as kf

# In an interpreter of its own: imports every module of kvbench, and says what changed.
IMPORTS = """
import importlib, logging, pkgutil, sys, warnings
sys.path.insert(0, sys.argv[1])
import matplotlib
try:
    import transformers, torch  # what these change is not ours
except ImportError:
    pass

def state():
    root = logging.getLogger()
    raw = {name: dict.__getitem__(matplotlib.rcParams, name) for name in matplotlib.rcParams}
    return {"backend": repr(raw.pop("backend")), "rcParams": raw, "path": list(sys.path),
            "filters": list(warnings.filters), "excepthook": sys.excepthook,
            "logging": (root.level, list(root.handlers), logging.raiseExceptions),
            "streams": (sys.stdout, sys.stderr), "argv": list(sys.argv)}

import numpy, pandas
try:
    import scipy.stats, sklearn.manifold, h5py
except ImportError:
    pass
before = state()
import kvbench
done = []
for module in pkgutil.walk_packages(kvbench.__path__, "kvbench."):
    if module.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(module.name)
        done.append(module.name)
    except ImportError as error:
        assert not (error.name or "").startswith("kvbench"), error
after = state()
assert len(done) > 40, done
for name in before:
    assert before[name] == after[name], (name, before[name], after[name])
assert "matplotlib.pyplot" not in sys.modules, "pyplot is imported"
print("unchanged", len(done))
"""


class ImportTest(unittest.TestCase):
    def test_imports_change_nothing(self):
        env = {**os.environ, "MPLBACKEND": "svg"}  # stands for a notebook's
        done = subprocess.run([sys.executable, "-c", IMPORTS, os.path.join(ROOT, "python")], env=env,
                              capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        self.assertTrue(done.stdout.startswith("unchanged"))


class FunctionsTest(FigureTest):
    def silent(self, function, *tables, **options):
        """The result; nothing is printed, and rcParams, backend and warnings stay."""
        before = dict(matplotlib.rcParams)
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            result = function(*tables, **options)
        self.assertEqual((out.getvalue(), err.getvalue()), ("", ""))
        self.assertEqual(dict(matplotlib.rcParams), before)
        return result

    def figure(self, module, tables, **options):
        made = self.silent(module.figure, tables, **options)
        self.assertIsInstance(made, Figure)
        self.assertIn("Measured", made.caption)
        self.assertEqual(made._repr_png_()[:4], b"\x89PNG")
        return made

    def rows(self, **more):
        return [{"algorithm": name, "budget_requested": budget, "middle_ratio": budget,
                 "layer": layer, "rel_error": (0.1 + 0.1 * i) / budget,
                 "tokens_kept": 20 + 80 * budget, **more}
                for i, name in enumerate(("h2o", "snapkv")) for budget in (0.5, 0.25)
                for layer in range(3)]

    def read(self, path):
        return kt.read_results([path], [])

    def test_paths_and_frames_give_the_same_figure(self):
        path = self.write(self.rows())
        for module in (error, pareto):
            with self.subTest(module.__name__):
                made = [self.figure(module, tables) for tables in
                        (path, [kvbench.read_results(path)])]
                self.assertEqual(len({one.caption for one in made}), 1)
                self.assertEqual(len({one._repr_png_() for one in made}), 1)
        self.figure(heatmap, self.read(path))
        self.figure(amnesia, self.read(path))

    def test_other_tables(self):
        self.figure(bumblebee_lambda, self.read(self.write(lambda_rows())))
        self.figure(reconstruction, self.read(self.write(revive_rows())))
        coded = self.write(self.rows(params="k_bits=4;v_bits=4"))
        for kind in bits.KINDS:
            if kind != "map":  # quantizers alone keep all tokens
                self.figure(bits, self.read(coded), kind=kind)
        path = self.write_stream()
        steps = kt.read_table([self.path("t.steps.csv")], STEP_COLUMNS, kt.TEXT_COLUMNS)
        made = [self.figure(stream, tables) for tables in
                (path, {"rows": self.read(path), "steps": steps},
                 {"rows": kvbench.read_results(path), "steps": kvbench.read_results(path, "steps")})]
        self.assertEqual(made[0].caption, made[2].caption)
        self.assertEqual(made[0]._repr_png_(), made[1]._repr_png_())
        queries = self.write([{**row, "offset": at} for row in self.rows() for at in range(3)],
                             "q.queries.csv")
        rows = self.write(self.rows(), "q.csv")
        lines = kt.read_table([queries], ["offset", "rel_error"], kt.TEXT_COLUMNS)
        made = [self.figure(offset, tables) for tables in
                (queries, {"rows": self.read(rows), "queries": lines})]
        self.assertEqual(made[0].caption, made[1].caption)

    def test_tables_of_cluster(self):
        head = "trace,prompt,layer,kv_head,what,"
        frames = {}
        for name, columns, lines in (
                ("coverage", head + "k,radius,radius_rel,center",
                 [f"t,p,0,0,keys,{k},{8 / k},{1 / k},0" for k in (1, 2, 4)]),
                ("delta", head + "delta,n_prefix,clusters",
                 [f"t,p,0,0,keys,1.6,{n},{n // 2}" for n in (4, 8, 16)]),
                ("growth", head + "delta,alpha,r2", ["t,p,0,0,keys,1.6,0.9,1"]),
                ("norms", "trace,prompt,layer,head,what,min,p25,p50,p75,p95,max",
                 [f"t,p,{layer},0,keys,1,2,3,4,5,6" for layer in (0, 1)])):
            path = self.write_file(name + ".csv", "\n".join([columns, *lines]) + "\n")
            frames[name] = kt.pd.read_csv(path)
        for module in (coverage, growth, norms):
            with self.subTest(module.__name__):
                one, two = (self.figure(module, tables) for tables in (self.folder, frames))
                self.assertEqual(one._repr_png_(), two._repr_png_())
        self.figure(coverage, frames["coverage"])

    def test_kept_tokens(self):
        lines = [f"1.0,t.h5,p,0,0,h2o,,stream,0,2,past,cpu,0,8,0.5,{step},0-{step}"
                 for step in (3, 7)]
        path = self.write_file("k.csv", "\n".join(
            ["schema,trace,prompt,layer,kv_head,algorithm,params,protocol,sink,recent,scores,device,"
             "seed,n_tokens,budget_requested,step,tokens", *lines]) + "\n")
        self.figure(kept_map, path)
        self.figure(kept_map, kt.pd.read_csv(path))

    @unittest.skipIf(missing("sklearn"), "no scikit-learn")
    def test_embeddings(self):
        lines = [f"t,p,0,0,keys,{i},{int(i == 3)},,{i % 4},{i * i % 7}" for i in range(12)]
        path = self.write_file("points.csv", "\n".join(
            ["trace,prompt,layer,kv_head,what,token,is_center,kept_by,x0,x1", *lines]) + "\n")
        self.figure(tsne, path, what="keys")

    @unittest.skipIf(missing("scipy"), "no scipy")
    def test_comparisons(self):
        from kvbench.compare import figures as compared

        rows = [{"prompt": f"p{i}", "algorithm": name, "rel_error": value * (1 + 0.1 * i)}
                for i in range(5) for name, value in (("a", 0.1), ("b", 0.2), ("c", 0.4))]
        made = self.silent(compared.figures, self.write(rows), to="a", resamples=100)
        self.assertEqual(set(made), {"cd.0.5", "intervals"})
        self.assertTrue(all(isinstance(one, Figure) for one in made.values()))
        with self.assertRaisesRegex(ValueError, "nope: no such argument"):
            compared.figures(self.write(rows), nope=1)

    def test_errors_are_raised(self):
        path = self.write(self.rows())
        with self.assertRaisesRegex(kvbench.CsvError, "none.csv: no such file"):
            self.silent(pareto.figure, self.path("none.csv"))
        with self.assertRaisesRegex(kvbench.CsvError, "^the table: column `layer` is missing"):
            self.silent(pareto.figure, self.read(path).drop(columns="layer"))
        with self.assertRaisesRegex(kvbench.CsvError, "^the table `steps`: column `step` is missing"):
            rows = self.read(self.write_stream())
            self.silent(stream.figure, {"rows": rows, "steps": rows.drop(columns="step", errors="ignore")})
        with self.assertRaisesRegex(kvbench.CsvError, "--highlight: got `nope`"):
            self.silent(error.figure, path, highlight=["nope"])
        for call, text in ((lambda: pareto.figure(path, x="nope"), "x: got `nope`, expected one of"),
                           (lambda: error.figure(path, spread="nope"), "spread: got `nope`"),
                           (lambda: offset.figure(path, bins=0), "bins: got 0, expected a number"),
                           (lambda: error.figure([]), "tables: got none"),
                           (lambda: error.figure(3), "tables: got int, expected a path")):
            with self.assertRaisesRegex(ValueError, text):
                self.silent(call)

    def test_notes_are_logged(self):
        rows = [*self.rows(), {"algorithm": "bad", "budget_requested": 0.5, "layer": 0}]
        with self.assertLogs("kvbench", logging.INFO) as said:
            self.silent(pareto.figure, self.write(rows))
        self.assertIn("bad: points left out because some heads are missing", said.output[0])

    def test_names_and_signatures(self):
        for module in (amnesia, bits, bumblebee_lambda, coverage, error, growth, heatmap, kept_map, norms,
                       offset, pareto, reads, reconstruction, stream, tsne):
            taken = inspect.signature(module.figure).parameters
            options = vars(module.parse_arguments(["x", "-o", "y"]))
            self.assertEqual(set(taken), {*options, "tables"} - {"inputs", "output", "caption"})
            for name, value in options.items():
                if name in taken and name != "jobs":  # a guest starts no processes unasked
                    self.assertEqual(taken[name].default or None, value or None, name)
        made = [self.figure(error, self.write(self.rows()), algorithms=names)
                for names in ("h2o,snapkv", ["h2o", "snapkv"])]
        self.assertEqual(made[0].caption, made[1].caption)

    def test_a_saved_figure_is_that_of_the_program(self):
        path = self.write(self.rows())
        self.must(pareto, path, "-o", self.path("one.png"))
        kf.save_figure(pareto.figure(path), self.path("two.png"))
        with open(self.path("one.png"), "rb") as one, open(self.path("two.png"), "rb") as two:
            self.assertTrue(one.read() == two.read())


class CheckTest(DrawingCase):
    """The check of every figure finds what it is for."""

    def test_an_empty_panel_and_data_outside_are_found(self):
        from plot_tables import faults

        figure, grid = kf.panels(1, 3)
        grid[0, 0].axhline(1)
        grid[0, 1].plot([0, 1], [0, 1])
        grid[0, 1].set_xlim(0, 0.5)
        grid[0, 2].plot([0, 1], [0, 1])
        found = faults(figure, "x")
        self.assertEqual(len(found), 2)
        self.assertIn("shows no data", found[0])
        self.assertIn("leaves the axes", found[1])


if __name__ == "__main__":
    unittest.main()
