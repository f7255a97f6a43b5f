"""Every kind of figure, of 4 layers and of 30: on one page, of the same bytes each time."""

import contextlib
import importlib
import io
import os

import matplotlib
import pandas as pd
import plot_tables as pt
from script_case import missing, read_bytes

import kvbench
from kvbench import plot
from kvbench.plot import figures as kf

QUANTISED = [(f"{name}@{quantizer}", budget, f"k_bits={bits};v_bits={bits}") for name in ("h2o", "snapkv")
             for quantizer in ("quant-kivi", "quant-rotated") for bits in (2, 4, 8) for budget in (0.25, 0.125)]
WHOLE = [("exact@quant-kivi", "", f"k_bits={k};v_bits={v}") for k in (2, 4, 8) for v in (2, 4, 8)]


def stream(case, layers):
    rows = pt.replay(layers, protocol="stream")
    case.write([{**row, "step": step} for row in rows for step in (9, 19, 59, 99)], "t.steps.csv",
               columns=pt.STEP_COLUMNS)
    return case.write(rows)


def coded(case, layers):
    return case.write({"layer": layer, "algorithm": name, "budget_requested": budget, "params": params,
                       "middle_ratio": budget or 0.3, "tokens_kept": 100 if budget == "" else 60,
                       "rel_error": 0.1 / (budget or 1) + 0.01 * at}
                      for layer in layers for at, (name, budget, params) in enumerate(
                          [*QUANTISED, *WHOLE, *((name, budget, "") for name in pt.NAMES for budget in (0.25, 0.125))]))


# Kind (or kind and its case): a table of these layers, and options.
DRAWN = {
    "amnesia": (lambda case, layers: case.write(pt.replay(layers)), "--by-layer"),
    "bits": (coded, ""), "bits map": (coded, "--kind map --algorithm h2o,h2o@quant-kivi"),
    "bits keys-values": (coded, "--kind keys-values"),
    "bumblebee_lambda": (lambda case, layers: case.write(
        {**row, "layer": layer, "budget_requested": budget} for row in pt.lambda_rows() for layer in layers
        for budget in (0.2, 0.1)), "--by-layer"),
    "coverage": (pt.cluster_tables, ""), "growth": (pt.cluster_tables, ""), "norms": (pt.cluster_tables, ""),
    "error": (lambda case, layers: case.write(pt.replay(layers)), ""),
    "error budget": (lambda case, layers: case.write(pt.replay(layers)), "--x budget --log-y --title Title --model M"),
    "heatmap": (lambda case, layers: case.write(pt.replay(layers, [f"a-long-name-no-{i}" for i in range(34)], (0.5,))),
                ""),
    "kept_map": (lambda case, layers: case.lines("kept", [
        pt.kept_row(step, f"0-{step}", name, layer=at) for step in (3, 7) for name in pt.NAMES for at in layers]), ""),
    "offset": (lambda case, layers: case.write(
        ({**row, "offset": at} for row in pt.replay(layers) for at in range(4)), "q.queries.csv"), ""),
    "pareto": (lambda case, layers: case.write(pt.replay(layers, [*pt.NAMES, "oracle", "oracle-matching"])), ""),
    "reads": (lambda case, layers: case.write(pt.replay(layers, ("topk", "pq", "quest"), protocol="retrieval")), ""),
    "reconstruction": (lambda case, layers: case.write({**row, "layer": layer} for row in pt.revive_rows()
                                                       for layer in layers), ""),
    "stream": (stream, ""),
    "tsne": (lambda case, layers: case.lines("points", [row for layer in layers for row in pt.points_rows(12, layer)]),
             "--jobs 1 --what keys"),
}
SKLEARN = {"tsne"}
# Where one number of layers is enough.
LAYERS = {"error budget": (30,), "heatmap": (30,), **dict.fromkeys(
    ("bits", "bits map", "bits keys-values", "offset", "pareto", "reads", "reconstruction", "stream", "tsne", "norms"),
    (4,))}


def module_of(name):
    return importlib.import_module("kvbench.plot.kinds." + name.split()[0])


class DrawsTest(pt.FigureTest):
    def test_every_kind_fits_a_page(self):
        self.assertEqual({name.split()[0] for name in DRAWN}, {*plot.__all__})
        for name, (make, options) in DRAWN.items():
            if name in SKLEARN and missing("sklearn"):
                continue
            for layers in LAYERS.get(name, (4, 30)):
                with self.subTest(name, layers=layers):
                    figure = self.picture(module_of(name), make(self, range(layers)), *options.split())
                    self.assertIn("Measured", figure.caption)
                    self.on_one_page(figure)

    def test_every_kind_has_the_same_bytes_each_time(self):
        for name, (make, options) in DRAWN.items():
            if name in SKLEARN and missing("sklearn") or " " in name:
                continue
            with self.subTest(name):
                path, before = make(self, range(1)), dict(matplotlib.rcParams)
                ends = {".png": b"\x89PNG", **({".pdf": b"%PDF", ".svg": b"<?xm"} if name == "error" else {})}
                written = self.drawn(name, path, "one", ends)
                self.assertEqual([text[:4] for text in written], [*ends.values()])
                if options not in ("", "--by-layer") or name == "error":
                    self.assertTrue(self.drawn(name, path, "two", ends) == written)  # no dump of the bytes
                self.assertEqual(dict(matplotlib.rcParams), before)
                if options not in ("", "--by-layer"):
                    continue
                # The function of Python draws the program's picture, also of a table as pandas reads it.
                kind, more = name.replace("bumblebee_", "").replace("_", "-"), {"by_layer": True} if options else {}
                table = os.path.join(path, name + ".csv") if os.path.isdir(path) else path
                source = path if name in ("growth", "offset", "stream") else pd.read_csv(table)
                with contextlib.redirect_stdout(io.StringIO()) as out:
                    kf.save_figure(kvbench.figure(kind, source, **more), self.path("three.png"))
                self.assertTrue(read_bytes(self.path("three.png")) == written[0])
                self.assertEqual(out.getvalue(), "")

    def drawn(self, name, path, stem, ends):
        """What the program writes as STEM with each of the ends."""
        files = [self.path(stem + end) for end in ends]
        self.must(module_of(name), path, *DRAWN[name][1].split(), "-o", ",".join(files))
        return [read_bytes(file) for file in files]
