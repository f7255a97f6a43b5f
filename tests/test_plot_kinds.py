"""kvbench as a guest in a caller's process: what imports leave alone, and figures as functions."""

import contextlib
import io
import logging
import os
import subprocess
import sys
import unittest

import matplotlib
from matplotlib.figure import Figure
from plot_tables import NAMES, STEP_COLUMNS, FigureTest, cluster_tables, points_rows, replay
from script_case import ROOT

import kvbench
from kvbench import plot, programs
from kvbench import tables as kt
from kvbench.plot import kind as kk
from kvbench.plot.kinds import pareto as plot_pareto

# In an interpreter of its own: imports every module of kvbench, and says what changed.
IMPORTS = """
import importlib, logging, pkgutil, sys, warnings
sys.path.insert(0, sys.argv[1])
for name in ("numpy", "pandas", "matplotlib", "transformers", "torch", "scipy.stats", "sklearn.manifold", "h5py"):
    try:
        importlib.import_module(name)  # what these change is not ours
    except ImportError:
        pass
import matplotlib

def state():
    root = logging.getLogger()
    return {"rcParams": {name: repr(dict.__getitem__(matplotlib.rcParams, name)) for name in matplotlib.rcParams},
            "path": list(sys.path), "filters": list(warnings.filters), "excepthook": sys.excepthook,
            "logging": (root.level, list(root.handlers), logging.raiseExceptions),
            "streams": (sys.stdout, sys.stderr), "argv": list(sys.argv)}

before, done = state(), 0
import kvbench
for module in pkgutil.walk_packages(kvbench.__path__, "kvbench."):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
            done += 1
        except ImportError as error:
            assert not (error.name or "").startswith("kvbench"), error
after = state()
assert done > 40, done
for name in before:
    assert before[name] == after[name], (name, before[name], after[name])
assert "matplotlib.pyplot" not in sys.modules, "pyplot is imported"
"""


class ImportTest(unittest.TestCase):
    def test_imports_change_nothing(self):
        env = {**os.environ, "MPLBACKEND": "svg"}  # stands for a notebook's
        done = subprocess.run([sys.executable, "-c", IMPORTS, os.path.join(ROOT, "python")], env=env,
                              capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)


ROWS = replay(range(3), NAMES[:2], (0.5, 0.25))


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

    def figure(self, function, *tables, **options):
        made = self.silent(function, *tables, **options)
        self.assertIsInstance(made, Figure)
        self.assertIn("Measured", made.caption)
        self.assertEqual(made._repr_png_()[:4], b"\x89PNG")
        return made

    def read(self, path):
        return kt.read_results([path], [])

    def test_frames_of_several_tables(self):
        path = self.write_stream()
        steps = kt.read_table([self.path("t.steps.csv")], STEP_COLUMNS, kt.TEXT_COLUMNS)
        made = [self.figure(plot.stream, self.read(path), steps), kvbench.figure("stream", path),
                kvbench.figure("stream", {"rows": kvbench.read_results(path),
                                          "steps": kvbench.read_results(path, "steps")})]
        self.assertEqual(len({one._repr_png_() for one in made}), 1)
        queries = self.write([{**row, "offset": at} for row in ROWS for at in range(3)], "q.queries.csv")
        rows = self.write(ROWS, "q.csv")
        lines = kt.read_table([queries], ["offset", "rel_error"], kt.TEXT_COLUMNS)
        made = [self.figure(plot.offset, lines, self.read(rows)), self.figure(plot.offset, lines),
                kvbench.figure("offset", queries)]
        self.assertEqual(len({one.caption for one in made}), 1)
        cluster_tables(self, range(2))
        made = self.figure(plot.growth, *(kt.pd.read_csv(self.path(name + ".csv"))
                                          for name in ("delta", "growth", "coverage")))
        self.assertEqual(made._repr_png_(), kvbench.figure("growth", self.folder)._repr_png_())

    def test_errors_are_raised(self):
        frame = kt.pd.DataFrame(self.read(self.write(ROWS)).to_dict("list"))
        for call, kind, text in (
                (lambda: plot.pareto(frame.drop(columns="layer")), kvbench.CsvError,
                 "^the table: column `layer` is missing"),
                (lambda: plot.pareto(frame.assign(rel_error=["many", *frame["rel_error"][1:]])), kvbench.CsvError,
                 "^the table: row 1: column `rel_error`: got `many`"),
                (lambda: plot.pareto(frame, x="nope"), ValueError, "x: got `nope`, expected one of"),
                (lambda: plot.offset(frame, bins=0), ValueError, "bins: got 0, expected a number"),
                (lambda: kvbench.figure("error", []), ValueError, "tables: got none"),
                # One layer is a list of it.
                (lambda: kvbench.figure("tsne", self.lines("points", points_rows(layer=1)), layers=0),
                 kvbench.CsvError, "--layers: got 0, which it does not hold"),
                (lambda: kvbench.figure("error", 3), ValueError, "tables: got int, expected paths"),
                (lambda: kvbench.figure("erorr", frame), ValueError, "name: got 'erorr', expected one of amnesia"),
                (lambda: kvbench.figure("error", "none.csv"), kvbench.CsvError, "none.csv: no such file")):
            with self.assertRaisesRegex(kind, text):
                self.silent(call)

    def test_notes_are_logged(self):
        rows = [*ROWS, {"algorithm": "bad", "budget_requested": 0.5, "layer": 0}]
        frame = self.read(self.write(rows))
        with self.assertLogs("kvbench", logging.INFO) as said:
            self.silent(plot.pareto, frame)
        self.assertIn("bad: points left out because some heads are missing", said.output[0])
        self.assertIn("cannot be written", self.must(plot_pareto, self.path("t.csv"), "-o", self.path("p"),
                                                     "--caption", self.path("no", "x.txt"), code=2)[1])
        self.assertIn("is also an input", self.must(plot_pareto, self.path("t.csv"), "-o", self.path("p"),
                                                    "--caption", self.path("t.csv"), code=2)[1])

    def test_programs_have_the_options_of_their_functions(self):
        named = {name.removeprefix("plot ") for name in programs.PROGRAMS if name.startswith("plot ")}
        self.assertEqual(named, {name.replace("bumblebee_", "").replace("_", "-") for name in plot.__all__})
        for name in plot.__all__:
            getattr(plot, name)  # imported on first use
            one = kk.KINDS[name]
            given = vars(kk.parser_of(one).parse_args(["x", "-o", "y"]))
            for option in kk.options_of(one):
                if option.name != "jobs":  # a caller starts no processes unasked
                    self.assertEqual(given[option.name] or None, option.default or None, (name, option))
        frame = self.read(self.write(ROWS))
        made = [self.figure(plot.error, frame, algorithm=names) for names in ("h2o,uniform", ["h2o", "uniform"])]
        self.assertEqual(made[0].caption, made[1].caption)
