"""docs/python.md, "Result tables": its blocks run in order, as they stand there; docs/examples/results.R
computes what pandas computes, and both what `kvbench summarize` prints.

R is left out, aloud, where there is no Rscript. The README's block runs too.
"""

import csv
import io
import math
import os
import re
import shutil
import subprocess
import sys
import unittest

from script_case import KVBENCH, ROOT, FolderCase, missing, read_rows, read_text

PAGE = os.path.join(ROOT, "docs", "python.md")
R_EXAMPLE = os.path.join(ROOT, "docs", "examples", "results.R")
SHARED = ("means", "ratios", "best", "offsets")  # variables that both languages make

# What is appended to a language's blocks: each variable as lines of `row,column,value`.
PYTHON = """
import pandas as pd
for name in {names!r}:
    frame = globals()[name]
    frame = frame.to_frame() if isinstance(frame, pd.Series) else frame
    with open(name + ".py.csv", "w") as file:
        for row, line in frame.iterrows():
            for column, value in line.items():
                file.write(f"{{row}},{{column}},{{value}}\\n")
"""
R = """
for (name in c({names})) {{
  table <- get(name)
  if (is.null(dim(table))) table <- matrix(table, dimnames = list(names(table), "0"))
  for (row in rownames(table)) for (column in colnames(table)) {{
    value <- table[row, column]
    text <- if (is.character(value)) value else sprintf("%.17g", value)
    cat(row, ",", column, ",", text, "\\n", sep = "", file = paste0(name, ".r.csv"), append = TRUE)
  }}
}}
"""


def blocks(language):
    section = re.search(r"^## Result tables\n(.*?)^## ", read_text(PAGE), re.MULTILINE | re.DOTALL)[1]
    return "\n".join(re.findall(rf"^```{language}\n(.*?)^```$", section, re.MULTILINE | re.DOTALL))


class PageCase(FolderCase):
    """Runs commands of pages in a folder with kvbench on the PATH."""

    def setUp(self):
        super().setUp()
        os.symlink(os.path.join(ROOT, "data"), self.path("data"))
        os.mkdir(self.path("bin"))
        os.symlink(os.path.abspath(KVBENCH), self.path("bin", "kvbench"))

    def call(self, command):
        done = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, check=False,
            env={**os.environ, "PATH": self.path("bin") + os.pathsep + os.environ["PATH"],
                 "PYTHONPATH": os.path.join(ROOT, "python"), "MPLBACKEND": "Agg"})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("Warning", done.stderr)
        return done.stdout


@unittest.skipUnless(os.access(KVBENCH, os.X_OK), "no program")
@unittest.skipIf(missing("h5py", "pandas", "matplotlib"), "no h5py, pandas or matplotlib")
class ReadmeTest(PageCase):
    def test_its_method_ends_in_a_picture(self):
        [block] = re.findall(r"^```python\n(.*?)^```$", read_text(os.path.join(ROOT, "README.md")),
                             re.MULTILINE | re.DOTALL)
        self.assertEqual(self.call([sys.executable, "-c", block + "print(mine.algorithm.unique())"]),
                         "['newest']\n")
        self.assertGreater(os.path.getsize(self.path("pareto.png")), 1000)


@unittest.skipUnless(os.access(KVBENCH, os.X_OK), "no program")
@unittest.skipIf(missing("h5py", "pandas", "matplotlib"), "no h5py, pandas or matplotlib")
class RecipesTest(PageCase):
    def setUp(self):
        super().setUp()
        self.call(["bash", "-euc", blocks("sh")])
        self.call([sys.executable, "-c", blocks("python") + PYTHON.format(names=SHARED)])

    def values(self, name, language):
        """{(row, column): number or text}"""
        out = {}
        for row, column, value in csv.reader(io.StringIO(read_text(self.path(f"{name}.{language}.csv")))):
            try:
                out[row, column] = float(value)
            except ValueError:
                out[row, column] = value
        self.assertTrue(out, name)
        return out

    def test_pandas_computes_what_the_rows_say(self):
        rows = read_rows(self.path("out.csv"))
        means = self.values("means", "py")
        self.assertEqual(len(means), 4 * 3)  # methods, budgets
        of_layer = {}
        for (method, budget), mean in means.items():
            errors = [float(row["rel_error"]) for row in rows if row["algorithm"] == method
                      and float(row["budget_requested"]) == float(budget)]
            self.assertAlmostEqual(mean, math.fsum(errors) / len(errors), delta=1e-12)
        for row in rows:
            if row["budget_requested"] == "0.25":
                of_layer.setdefault(row["layer"], {}).setdefault(row["algorithm"], []).append(
                    float(row["rel_error"]))
        best = {(layer, "0"): min(errors, key=lambda name: sum(errors[name]) / len(errors[name]))
                for layer, errors in of_layer.items()}
        self.assertEqual(self.values("best", "py"), best)
        ratios = self.values("ratios", "py")
        self.assertEqual({value for (_, name), value in ratios.items() if name == "uniform"}, {1.0})
        self.assertLess(ratios["0.25", "balancekv"], 1)
        self.assertEqual(len(self.values("offsets", "py")), 13 * 4)  # bins of 256 queries, methods
        self.assertGreater(os.path.getsize(self.path("curves.png")), 1000)

    def test_r_computes_what_pandas_computes(self):
        if shutil.which("Rscript") is None:
            self.skipTest("no Rscript")
        names = ", ".join(f'"{name}"' for name in SHARED)
        script = self.write_file("recipes.R", read_text(R_EXAMPLE) + R.format(names=names))
        self.call(["Rscript", "--vanilla", script])
        for name in SHARED:
            mine, other = self.values(name, "py"), self.values(name, "r")
            self.assertEqual(mine.keys(), other.keys(), name)
            for key, value in mine.items():
                if isinstance(value, float):
                    self.assertAlmostEqual(value, other[key], delta=1e-12, msg=f"{name} {key}")
                else:
                    self.assertEqual(value, other[key], f"{name} {key}")
        self.assertGreater(os.path.getsize(self.path("curves.pdf")), 1000)
