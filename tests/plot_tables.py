"""Small tables of every kind, and what tests of figures share."""

import contextlib
import io
import math
import os
from unittest import mock

import numpy as np
from script_case import FolderCase, call, program, read_rows, read_text, write_text

from kvbench import command
from kvbench import tables as kt
from kvbench.plot import figures as kf
from kvbench.plot.kind import KINDS, options_of, run
from kvbench.plot.kinds import stream as plot_stream

# The columns of docs/schema.md that the figures read, with values of an ordinary row.
DEFAULTS = {
    "schema": "1.0", "trace": "t.h5", "prompt": "007", "layer": 0, "q_head": 0, "kv_head": 0,
    "algorithm": "h2o", "params": "", "protocol": "prefill", "sink": 10, "recent": 10,
    "scores": "past", "device": "cpu", "seed": 0, "n_tokens": 100, "n_queries": 4,
    "budget_requested": 0.5, "tokens_kept": 60, "bytes": 1000, "full_bytes": 2000, "ratio": 0.5,
    "middle_ratio": 0.5, "rel_error": 0.1, "amnesia_count": 3, "amnesia_mass": 0.1,
    "read_ratio": "", "recall": "", "status": "ok", "diag": "",
    # OUT.queries.csv alone has these.
    "step": 96, "offset": 0,
}
MEASURED = ("tokens_kept", "bytes", "ratio", "middle_ratio", "rel_error", "amnesia_count", "amnesia_mass")
DIAG = "vague={a};cells={n};k_error={ke};k_bound={kb};v_error={ve};v_bound={vb}"
STEP_COLUMNS = [*plot_stream.JOIN_KEYS, "step", "rel_error", "bytes"]
HEAD = "trace,prompt,layer,kv_head,what,"
# Headers of kvbench cluster's tables.
CLUSTER = {"coverage": HEAD + "k,radius,radius_rel,center", "delta": HEAD + "delta,n_prefix,clusters",
           "growth": HEAD + "delta,alpha,r2", "norms": "trace,prompt,layer,head,what,min,p25,p50,p75,p95,max",
           "points": HEAD + "token,is_center,kept_by,x0,x1",
           "kept": "schema,trace,prompt,layer,kv_head,algorithm,params,protocol,sink,recent,scores,device,seed,"
                   "n_tokens,budget_requested,step,tokens"}


NAMES, SIZES = ("h2o", "uniform", "snapkv"), (0.5, 0.25, 0.125)
DELTAS = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9)


def replay(layers, names=NAMES, sizes=SIZES, **more):
    """Rows of two heads, whose error grows with the layer and with the size's inverse."""
    return [{"layer": layer, "q_head": head, "algorithm": name, "budget_requested": size, "middle_ratio": size,
             "ratio": size, "tokens_kept": 20 + 80 * size, "amnesia_count": 5 + layer % 3,
             "amnesia_mass": 0.01 * (1 + layer % 5), "read_ratio": size, "recall": 1 - size * (1 + i) / 4,
             "rel_error": (1 + i) * (0.02 + 0.01 * (layer % 7)) / size + 0.001 * layer, **more}
            for layer in layers for head in (0, 4) for i, name in enumerate(names) for size in sizes]


def points_of(points, **more):
    """Rows of (algorithm, budget, share of the middle that is held, error)."""
    return [{"algorithm": name, "budget_requested": budget, "middle_ratio": held, "rel_error": error, **more}
            for name, budget, held, error in points]


def radius(layer, k):
    """radius_rel of cluster_tables."""
    return (k / (1 + layer / 100))**-0.1


def alpha(layer, delta):
    """The exponent of cluster_tables."""
    return min(1, 0.01 * layer + 1 - delta)


def cluster_tables(case, layers):
    """A folder as of kvbench cluster, of 4096 tokens and two KV heads that are alike."""
    heads = [(a, h, what) for a in layers for h in range(2) for what in ("keys", "values")]
    case.lines("coverage", [f"t,p,{a},{h},{w},{2**i},{10 * radius(a, 2**i)},{radius(a, 2**i)},0"
                            for a, h, w in heads for i in range(12)])
    case.lines("delta", [f"t,p,{a},{h},{w},{10 * radius(a, 1) * d},{2**n},{2**(n / 2)}"
                         for a, h, w in heads for d in DELTAS for n in range(4, 13)])
    case.lines("growth", [f"t,p,{a},{h},{w},{10 * radius(a, 1) * d},{alpha(a, d)},1"
                          for a, h, w in heads for d in DELTAS])
    case.lines("norms", [f"t,p,{a},{h},{w},1,2,{3 + a},4,{5 + a},{6 + a + h}" for a, h, w in heads])
    return case.folder


def kept_row(step=7, tokens="0-7", label="h2o", params="reduce=mean", budget="0.5", seed=0, layer=0, head=0,
             schema="1.0", protocol="stream", n=8):
    """A line of OUT.kept.csv."""
    return (f"{schema},t.h5,p,{layer},{head},{label},{params},{protocol},0,2,past,cpu,{seed},{n},"
            f"{budget},{step},{tokens}")


def points_rows(n=12, layer=0, head=0, kept="", prompt="p"):
    """Lines of points.csv: a ring of n keys, and n values on a line; tokens 0 and 5 are centres."""
    out = []
    for i in range(n):
        angle, flag = 2 * math.pi * i / n, int(i in (0, 5))
        out.append(f"t.h5,{prompt},{layer},{head},keys,{i},{flag},{kept if i % 3 == 0 else ''},"
                   f"{math.cos(angle)!r},{math.sin(angle)!r}")
        out.append(f"t.h5,{prompt},{layer},{head},values,{i},{flag},,{i},")  # d = 1: x1 is empty
    return out


def infeasible(**values):
    return {**dict.fromkeys(MEASURED, ""), "status": "infeasible: too small", **values}


def lambda_rows():
    """BumbleBee at three lambdas and two phi, h2o, and random-local with two seeds."""
    for head, more in ((0, 0.0), (1, 0.2)):
        for at, error in ((0, 0.5), (0.3, 0.3), (1, 0.4)):
            yield {"q_head": head, "algorithm": "bumblebee", "rel_error": error + more,
                   "params": f"lambda={at};phi=log"}
        yield {"q_head": head, "algorithm": "bumblebee", "rel_error": 0.2 + more, "params": "lambda=0.3;phi=power"}
        yield {"q_head": head, "rel_error": 0.25 + more}
        for seed in (0, 1):
            yield {"q_head": head, "algorithm": "random-local", "seed": seed, "rel_error": 0.2 + 0.2 * seed + more}


def revive_rows():
    """kvreviver with 2 and 1 tokens per cell, sum and mean, two seeds."""
    # a/N = 30/15 = 2: bound 2 pi s with s = 0.5 (keys) and 4 (values).
    for vague, seed, ke in ((0.1, 0, 2.0), (0.1, 1, 3.0), (0.2, 0, 1.0), (0.2, 1, 1.0)):
        for name, factor in (("sum", 1.0), ("mean", 0.1)):
            a = 30 if vague == 0.1 else 15
            load = a / 15
            diag = DIAG.format(a=a, n=15, ke=ke * factor, kb=math.pi * load * 0.5, ve=2 * factor, vb=math.pi * load * 4)
            share = (1 - vague) / 2
            yield {"algorithm": "kvreviver", "seed": seed, "diag": diag,
                   "params": f"candidate_ratio={share:g};estimate={name};"
                             f"recent_ratio={share:g};vague_ratio={vague}"}


def load(module, paths, *arguments, **options):
    """What the kind's load() makes of files."""
    one = KINDS[module.__name__.rpartition(".")[2]]
    paths = [paths] if isinstance(paths, str) else paths
    return module.load(*one.read(paths, **{each.name: each.default for each in options_of(one)}), *arguments, **options)


class FigureTest(FolderCase):
    def table(self, name):
        return read_rows(self.path(name))

    def write(self, rows, name="t.csv", drop=(), columns=None):
        rows = list(rows)
        columns = columns or [c for c in DEFAULTS if c not in drop] + [
            c for c in kt.ORIGINS if any(c in row for row in rows)]
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(",".join(columns) + "\n")
            for row in rows:
                whole = {**dict.fromkeys(kt.ORIGINS, ""), **DEFAULTS, **row}
                file.write(",".join(str(whole[c]) for c in columns) + "\n")
        return self.path(name)

    def lines(self, kind, rows, name=None, header=None):
        """A table of kvbench cluster or kept tokens from its lines; `name`: of another file."""
        path = self.path(name or kind + ".csv")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return write_text(path, "\n".join([header or CLUSTER[kind], *rows]) + "\n")

    def call(self, module, *arguments):
        return call(lambda: command.run_main(getattr(module, "main", lambda: run(module))), program(module), *arguments)

    def must(self, module, *arguments, code=0):
        """stdout and stderr of a run that ends with this code."""
        done = self.call(module, *arguments)
        self.assertEqual(done.code, code, done.err)
        self.assertNotIn("Traceback", done.err)
        return done.out, done.err

    def refused(self, text, module, *arguments):
        """Exit code 2, a last line with `text` that begins with the program's name, no file written."""
        before = sorted(os.listdir(self.folder))
        _, said = self.must(module, "-o", self.path("refused"), *arguments, code=2)
        last = said.strip().splitlines()[-1]
        self.assertTrue(last.startswith(program(module) + ": "), last)
        self.assertIn(text, last)
        self.assertEqual(sorted(os.listdir(self.folder)), before)

    def picture(self, module, *arguments):
        """The figure that the program would write, laid out; .said: what it said, .below: the footer."""
        figures = []
        with mock.patch.object(kf, "save_figure", lambda figure, _: figures.append(figure)):
            _, self.said = self.must(module, *arguments, "-o", self.path("picture"))
        figures[0].canvas.draw()
        self.below = " ".join(next(t for t in figures[0].texts if t.get_gid() == "footer").get_text().split())
        return figures[0]

    def on_one_page(self, figure):
        box = figure.get_tightbbox(figure.canvas.get_renderer())
        # The outermost ink is not the outermost text, and text of matplotlib 3.11 is wider than that of 3.6.
        self.assertLess(box.width, kf.PAGE_WIDTH + 0.05)
        self.assertLess(box.height, kf.PAGE_HEIGHT + 0.05)

    def caption(self, module, *arguments):
        self.must(module, *arguments, "-o", self.path("x.png"), "--caption", self.path("x.txt"))
        return read_text(self.path("x.txt"))

    def quiet(self, function, *arguments, **options):
        """Result and what was said on stderr."""
        stderr = io.StringIO()
        with contextlib.redirect_stderr(stderr), command.notes_on_stderr():
            return function(*arguments, **options), stderr.getvalue()

    def near(self, got, want):
        """Values by hand have few digits; both sides differ by rounding only. NaN fails."""
        np.testing.assert_allclose(np.asarray(got, float), np.asarray(want, float), rtol=1e-12, equal_nan=False)

    def write_stream(self, keep=lambda row: True):
        """OUT.csv and OUT.steps.csv of h2o and exact with four steps; `keep` chooses steps."""
        rows, steps = [], []
        for name, budget, scale in (("h2o", 0.5, 1.0), ("exact", "", 0.0)):
            for head in (0, 1):
                row = {"algorithm": name, "budget_requested": budget, "q_head": head, "protocol": "stream", "sink": 0}
                rows.append(row)
                for step in (9, 19, 59, 99):
                    steps.append({**row, "step": step, "bytes": 1024 * (step + 1),
                                  "rel_error": scale * (step + 1 + 2 * head) / 100})
        path = self.write(rows)
        self.write([s for s in steps if keep(s)], "t.steps.csv", columns=STEP_COLUMNS)
        return path
