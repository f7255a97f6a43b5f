"""Programs that read tables, at least one for each reader, with tables that are damaged, empty or foreign: one
line on stderr that names the file, exit code 2, no file written."""

import csv
import io
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

from script_case import KVBENCH, FolderCase, call, missing, read_bytes, read_rows, write_bytes, write_rows

from kvbench import __main__ as entry
from kvbench import programs

PACKAGES = missing("numpy", "pandas", "matplotlib", "scipy", "sklearn", "h5py")
WINDOWS = ("--sink", "2", "--recent", "8", "--queries", "4")
# Tables of kvbench replay by name: methods and other options.
RUNS = {
    "a": ("h2o random-local knorm bumblebee:lambda=0,0.3,1;phi=log,power", "--budget 0.6 --budget 0.4 "
          "--per-query"),
    "g": ("h2o:grid", "--budget 0.5"),
    "s": ("h2o", "--budget 0.5 --protocol stream --kept --eval-every 8"),
}
# Columns that say which row it is; all other numbers are what was measured.
WHICH = {"schema", "layer", "q_head", "kv_head", "head", "sink", "recent", "seed", "n_tokens",
         "n_queries", "budget_requested", "budget", "step", "offset", "k", "delta", "n_prefix", "token",
         "is_center", "layers"}

# Script, its command line in a folder of good tables, the table that is damaged, one of another kind.
# What it writes goes to out/.
COMMANDS = [
    ("kvbench-py cluster", "c -o out/x.csv", "c/coverage.csv", "c/delta.csv"),
    ("kvbench-py compare", "a.csv --csv out/x.csv --markdown out/x.md --figures out/x", "a.csv", "a.queries.csv"),
    ("kvbench-py compare", "--score-table m scores.csv --csv out/x.csv --figures out/x", "scores.csv", "s.kept.csv"),
    ("kvbench-py policy", "fit --model m scores.csv --layer-table layers.csv -o out/x.json", "scores.csv",
     "s.kept.csv"),
    ("kvbench-py policy", "fit --model m scores.csv --layer-table layers.csv -o out/x.json", "layers.csv",
     "s.kept.csv"),
    ("kvbench-py policy", "apply s.json layers.csv --csv out/x.csv", "layers.csv", "s.kept.csv"),
    ("kvbench-py policy", "choose s.json layers.csv --budget 0.5 -o out/x.json", "layers.csv", "s.kept.csv"),
    ("kvbench-py plot coverage", "c/coverage.csv -o out/x", "c/coverage.csv", "c/growth.csv"),
    ("kvbench-py plot growth", "c -o out/x", "c/coverage.csv", "c/norms.csv"),
    ("kvbench-py plot growth", "c -o out/x", "c/delta.csv", "c/norms.csv"),
    ("kvbench-py plot growth", "c -o out/x", "c/growth.csv", "c/norms.csv"),
    ("kvbench-py plot kept-map", "s.kept.csv -o out/x", "s.kept.csv", "s.steps.csv"),
    ("kvbench-py plot norms", "c/norms.csv -o out/x", "c/norms.csv", "c/growth.csv"),
    ("kvbench-py plot offset", "a.queries.csv -o out/x", "a.queries.csv", "s.kept.csv"),
    ("kvbench-py plot pareto", "a.csv -o out/x", "a.csv", "s.kept.csv"),
    ("kvbench-py plot stream", "s.csv -o out/x", "s.csv", "s.steps.csv"),
    ("kvbench-py plot stream", "s.csv -o out/x", "s.steps.csv", "s.kept.csv"),
    ("kvbench-py plot tsne", "c/points.csv -o out/x", "c/points.csv", "c/growth.csv"),
    ("kvbench-py tune", "choose g.csv --grids grids.csv --settings out/x.toml --csv out/x.csv", "g.csv",
     "s.kept.csv"),
    ("kvbench-py tune", "choose g.csv --grids grids.csv --settings out/x.toml --csv out/x.csv",
     "grids.csv", "s.kept.csv"),
]
# What need not be refused, by script (or script and table) and damage: why, and the exit code.
GROWTH = (0, "a short stream has no exponent")
LET_PASS = {
    ("kvbench-py plot growth", "c/growth.csv", "NaN"): GROWTH,
}


def run_script(name, *words, front=programs.COMMANDS):
    """The program, in this process."""
    return call(lambda: entry.run([*name.split()[1:], *words], front), name, *words)


def files_of(folder):
    """{path: bytes} of all that lies there."""
    return {os.path.join(root, name): read_bytes(os.path.join(root, name))
            for root, _, names in os.walk(folder) for name in names}


def line_of(cells):
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow(cells)
    # Lone bytes stand as surrogates.
    return out.getvalue().encode("utf-8", "surrogateescape")


def text_of(header, rows):
    return b"".join(map(line_of, [header, *rows]))


def is_number(text):
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def damages(data):
    """{name: bytes of the damaged table}."""
    header, *rows = list(csv.reader(io.StringIO(data.decode())))
    end = len(header) - header.index("run_id") if "run_id" in header else 0  # run_id, and all after it
    first, last = rows[0], rows[-1]

    def figure(text, also=()):
        """The rows with this text for what was measured, and for numbers of the columns `also`."""
        return [[text if is_number(cell) and column not in ("schema", "run_id", "row_crc")
                 and (column not in WHICH or column in also) else cell
                 for column, cell in zip(header, row)] for row in rows]

    def cut(row):
        return row[:len(row) // 2] + row[len(row) - end:]

    name = next(i for i, cell in enumerate(first) if cell and not is_number(cell))
    strange = [*last[:name], "\udcff\udcfe", *last[name + 1:]]
    lines = data.splitlines(keepends=True)
    return {
        "empty": b"",
        "header only": lines[0],
        "foreign": b"name,age\nAda,36\nGrace,85\n",
        "not a table": bytes(range(256)) * 40,
        "cut in its last row": data[:-len(lines[-1]) + 3],
        "a name that is not UTF-8": data.replace(header[1].encode(), b"\xff\xfe", 1),
        "an open quote": data + b'"',
        **{what: text_of(header, changed) for what, changed in (
            ("too few cells", [*rows[:-1], cut(last)]),
            ("too many cells", [*rows[:-1], [*last, last[-1]]]), ("not UTF-8", [*rows[:-1], strange]),
            ("NaN", figure("nan")), ("no numbers", figure("x", WHICH)))},
    }


@unittest.skipIf(PACKAGES, f"{sys.executable} lacks {', '.join(PACKAGES)}")
@unittest.skipIf(not KVBENCH, "KVBENCH names no program")
class DamagedTablesTest(FolderCase):
    front, commands, let_pass = programs.COMMANDS, COMMANDS, LET_PASS
    runs = RUNS

    @classmethod
    def setUpClass(cls):
        cls.good = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.good)

        cls.kvbench("synth", "-o", "t.h5", "--prompts", "4", "--layers", "2", "--q-heads", "2",
                "--kv-heads", "2", "--n", "64", "--d", "16", "--dv", "4")
        for name, (methods, options) in cls.runs.items():
            cls.kvbench("replay", "t.h5", *WINDOWS, *(word for method in methods.split()
                        for word in ("--algorithm", method)), *options.split(), "-o", f"{name}.csv")
        cls.kvbench("cluster", "t.h5", "-o", "c", "--pca", "3")
        cls.kvbench("replay", "t.h5", *WINDOWS, "--algorithm", "h2o", "--budget", "0.5", "-o", "k.csv",
                    "--export-caches", "k.h5")
        grids = cls.kvbench("list", "--grid").splitlines(keepends=True)
        write_bytes(os.path.join(cls.good, "grids.csv"), grids[0] + b"".join(
            line for line in grids if line.startswith(b"h2o,")))
        os.mkdir(os.path.join(cls.good, "out"))
        rows = read_rows(os.path.join(cls.good, "a.csv"))
        cls.write_scores("scores.csv", rows)
        cls.write_layers("layers.csv", rows)

    @classmethod
    def kvbench(cls, *words):
        done = subprocess.run([KVBENCH, *words], cwd=cls.good, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    @classmethod
    def write_points(cls, name, keys, rows, values):
        """A row of each different `keys` of rows, with values(i)."""
        points = dict.fromkeys(tuple(row[key] for key in keys) for row in rows)
        table = [{**dict(zip(keys, point)), **values(i)} for i, point in enumerate(points)]
        write_rows(os.path.join(cls.good, name), table[0], [row.values() for row in table])

    @classmethod
    def write_scores(cls, name, rows):
        """What kvbench-py score would say of the caches of these rows."""
        cls.write_points(name, ("trace", "prompt", "algorithm", "params", "budget_requested", "seed"), rows, lambda i: {
            "layers": "all", "kl": (i * 7 % 31) / 10, "loss_change": (i * 5 % 29) / 10,
            "top_agreement": (i * 3 % 23) / 23, "answer_exact_right": 1, "answer_right": i % 2, "status": "ok",
            "answer_nll": 1 + i * 3 % 19, "answer_nll_exact": 1.5, "choice_exact_right": 1, "choice_right": i % 2})

    @classmethod
    def write_layers(cls, name, rows):
        """OUT.layers.csv, without the output projections that real ones take."""
        keys = ("schema", "trace", "prompt", "layer", "algorithm", "params", "protocol", "sink", "recent", "scores",
                "device", "seed", "n_queries", "budget_requested")
        cls.write_points(name, keys, rows, lambda i: {"out_rel_error": (i * 7 % 31) / 31,
                                                      "residual_rel_error": (1 + i * 5 % 29) / 30})

    def setUp(self):
        super().setUp()
        shutil.copytree(self.good, self.folder, dirs_exist_ok=True)
        for path in files_of(self.folder):
            if path.endswith(".json"):  # manifests would find every damage at once
                os.remove(path)
        self.write_file("model.json", '{"model": "m"}')
        self.write_file("s.json", json.dumps(
            {"format": "kvbench-sensitivities", "version": 1, "model": "m", "layers": [0, 1], "sensitivity": [1, 2],
             "ratio": {"prompt": [0.5, 2], "mean": [0.8, 1.2]}}))
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)

    def refused(self, script, words, name, what):
        """One line that names the file (or its folder) and exit code 2; nothing is written."""
        before = files_of(self.folder)
        done = run_script(script, *words.split(), front=self.front)
        said = [line for line in done.err.splitlines() if not line.startswith("note: ")]
        self.assertEqual(done.code, 2, done.err)
        self.assertEqual(len(said), 1, done.err)
        self.assertTrue(said[0].startswith(script + ": "), said[0])
        self.assertIn(name if os.path.exists(name) or "/" not in name else os.path.dirname(name),
                      said[0], what)
        self.assertTrue(files_of(self.folder) == before, f"wrote files: {said[0]}")

    def passes(self, script, words, code=0):
        """It ends with this code; what it wrote goes again."""
        before = files_of(self.folder)
        done = run_script(script, *words.split(), front=self.front)
        self.assertEqual(done.code, code, done.err)
        for path in set(files_of(self.folder)) - set(before):
            os.remove(path)
        for path, was in before.items():
            write_bytes(path, was)

    def test_damaged_tables(self):
        for script, words, name, other in self.commands:
            data = read_bytes(name)
            for what, bad in {**damages(data), "another kind": read_bytes(other)}.items():
                with self.subTest(script, words=words, table=name, damage=what):
                    write_bytes(name, bad)
                    if (script, name, what) in self.let_pass:
                        self.passes(script, words, self.let_pass[script, name, what][0])
                    elif bad != data:  # some tables hold no measured number
                        self.refused(script, words, name, what)
            os.remove(name)
            with self.subTest(script, words=words, table=name, damage="missing"):
                self.refused(script, words, name, "missing")
            os.mkdir(name)
            with self.subTest(script, words=words, table=name, damage="a folder"):
                self.refused(script, words, name, "a folder")
            os.rmdir(name)
            write_bytes(name, data)
            with self.subTest(script, words=words, damage="none"):
                self.passes(script, words)
