"""Small result tables and what tests of the plotting scripts share."""

import contextlib
import io
import math

import numpy as np

from script_case import FolderCase, call, program, read_rows

from kvbench import command
from kvbench import tables as kt
from kvbench.plot import figures as kf
from kvbench.plot import stream as plot_stream

# The columns of docs/schema.md that the figures read, with values of an ordinary row.
DEFAULTS = {
    "schema": "1.0", "trace": "t.h5", "prompt": "007", "layer": 0, "q_head": 0, "kv_head": 0,
    "algorithm": "h2o", "params": "", "protocol": "prefill", "sink": 10, "recent": 10,
    "scores": "past", "device": "cpu", "seed": 0, "n_tokens": 100, "n_queries": 4,
    "budget_requested": 0.5, "tokens_kept": 60, "bytes": 1000, "full_bytes": 2000, "ratio": 0.5,
    "middle_ratio": 0.5, "rel_error": 0.1, "amnesia_count": 3, "amnesia_mass": 0.1,
    "status": "ok", "diag": "",
    # OUT.queries.csv alone has these.
    "step": 96, "offset": 0,
}
MEASURED = ("tokens_kept", "bytes", "ratio", "middle_ratio", "rel_error", "amnesia_count",
            "amnesia_mass")
DIAG = "vague={a};cells={n};k_error={ke};k_bound={kb};v_error={ve};v_bound={vb}"
STEP_COLUMNS = [*plot_stream.JOIN_KEYS, "step", "rel_error", "bytes"]


def infeasible(**values):
    return {**dict.fromkeys(MEASURED, ""), "status": "infeasible: too small", **values}


def lambda_rows():
    """BumbleBee at three lambdas and two phi, h2o, and random-local with two seeds."""
    for head, more in ((0, 0.0), (1, 0.2)):
        for at, error in ((0, 0.5), (0.3, 0.3), (1, 0.4)):
            yield {"q_head": head, "algorithm": "bumblebee", "rel_error": error + more,
                   "params": f"lambda={at};phi=log"}
        yield {"q_head": head, "algorithm": "bumblebee", "rel_error": 0.2 + more,
               "params": "lambda=0.3;phi=power"}
        yield {"q_head": head, "rel_error": 0.25 + more}
        for seed in (0, 1):
            yield {"q_head": head, "algorithm": "random-local", "seed": seed,
                   "rel_error": 0.2 + 0.2 * seed + more}


def revive_rows():
    """kvreviver with 2 and 1 tokens per cell, sum and mean, two seeds."""
    # a/N = 30/15 = 2: bound 2 pi s with s = 0.5 (keys) and 4 (values).
    for vague, seed, ke in ((0.1, 0, 2.0), (0.1, 1, 3.0), (0.2, 0, 1.0), (0.2, 1, 1.0)):
        for name, factor in (("sum", 1.0), ("mean", 0.1)):
            a = 30 if vague == 0.1 else 15
            load = a / 15
            diag = DIAG.format(a=a, n=15, ke=ke * factor, kb=math.pi * load * 0.5,
                               ve=2 * factor, vb=math.pi * load * 4)
            share = (1 - vague) / 2
            yield {"algorithm": "kvreviver", "seed": seed, "diag": diag,
                   "params": f"candidate_ratio={share:g};estimate={name};"
                             f"recent_ratio={share:g};vague_ratio={vague}"}


class FigureTest(FolderCase):
    def setUp(self):
        super().setUp()
        self.addCleanup(kf.plt.close, "all")

    def table(self, name):
        return read_rows(self.path(name))

    def write(self, rows, name="t.csv", drop=(), columns=None):
        rows = list(rows)
        columns = columns or [c for c in DEFAULTS if c not in drop] + [
            c for c in kt.ORIGINS if any(c in row for row in rows)]
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(",".join(columns) + "\n")
            for row in rows:
                file.write(",".join(str({**dict.fromkeys(kt.ORIGINS, ""), **DEFAULTS, **row}[c]) for c in columns) + "\n")
        return self.path(name)

    def call(self, module, *arguments):
        return call(lambda: command.run_main(module.main), program(module), *arguments)

    def run_script(self, module, *arguments):
        """Exit code and stderr."""
        done = self.call(module, *arguments)
        return done.code, done.err

    def must(self, module, *arguments, code=0):
        """stdout and stderr of a run that ends with this code."""
        done = self.call(module, *arguments)
        self.assertEqual(done.code, code, done.err)
        self.assertNotIn("Traceback", done.err)
        return done.out, done.err

    def quiet(self, function, *arguments, **options):
        """Result and what was said on stderr."""
        stderr = io.StringIO()
        with contextlib.redirect_stderr(stderr):
            return function(*arguments, **options), stderr.getvalue()

    def near(self, got, want):
        """Values by hand have few digits; both sides differ by rounding only. NaN fails."""
        np.testing.assert_allclose(np.asarray(got, float), np.asarray(want, float), rtol=1e-12,
                                   equal_nan=False)

    def write_stream(self, keep=lambda row: True):
        """OUT.csv and OUT.steps.csv of h2o and exact with four steps; `keep` chooses steps."""
        rows, steps = [], []
        for name, budget, scale in (("h2o", 0.5, 1.0), ("exact", "", 0.0)):
            for head in (0, 1):
                row = {"algorithm": name, "budget_requested": budget, "q_head": head,
                       "protocol": "stream", "sink": 0}
                rows.append(row)
                for step in (9, 19, 59, 99):
                    steps.append({**row, "step": step, "bytes": 1024 * (step + 1),
                                  "rel_error": scale * (step + 1 + 2 * head) / 100})
        path = self.write(rows)
        self.write([s for s in steps if keep(s)], "t.steps.csv", columns=STEP_COLUMNS)
        return path
