"""What stands around figures, which options they share, how 25 methods are named; ten colours and markers
(kvbench/plot/palette.py), and the looks of lines (plot/style.py)."""

import itertools
import unittest

from plot_tables import FigureTest, load, np

from kvbench import command
from kvbench import tables as kt
from kvbench.plot import frame as kfr
from kvbench.plot import style as ks
from kvbench.plot.kinds import error as plot_error
from kvbench.plot.kinds import heatmap as plot_heatmap
from kvbench.plot.kinds import pareto as plot_pareto
from kvbench.plot.palette import COLORS, MARKERS, PLACES, place

APART = 25  # CIELAB: ten times what is just seen, since lines are thin
LIGHTEST = 80  # L* of a line on white paper
# Of linear RGB, as Machado, Oliveira and Fernandes simulate them at severity 1: 10.1109/TVCG.2009.113.
VISIONS = {
    "common": np.eye(3),
    "protanopia": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
                            [-0.003882, -0.048116, 1.051998]]),
    "deuteranopia": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                              [-0.011820, 0.042940, 0.968881]]),
}
XYZ = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750],
                [0.0193339, 0.1191920, 0.9503041]])


class StyleTest(FigureTest):
    def rows(self, layers, names, budgets=(0.5, 0.25, 0.125), **more):
        return [{"layer": layer, "q_head": head, "algorithm": name, "budget_requested": budget,
                 "ratio": budget, "middle_ratio": budget, "sink": 10, "recent": 12,
                 "rel_error": (0.1 + 0.001 * i + 0.01 * layer) / budget, **more}
                for layer in layers for head in range(2) for i, name in enumerate(names) for budget in budgets]

    def test_footer_and_title(self):
        rows = self.rows(range(3), ["h2o", "snapkv"])
        path = self.write(rows + [{**row, "seed": 1, "rel_error": 2 * row["rel_error"]} for row in rows])
        self.picture(plot_error, path, "--model", "M-7B")
        self.assertEqual(
            self.below, "Model M-7B, trace t.h5, 1 prompt of 100 tokens, 3 layers (0-2), "
            "2 query heads, prefill, sink 10, recent 12, 4 evaluated queries, scores past, 2 seeds. "
            "Budgets 0.5, 0.25, 0.125 are 0.5, 0.25, 0.12 of the whole cache (2x, 4x, 8x smaller). "
            "Bars: standard deviation over seeds, of the means over prompts and heads.")
        # The model is that of the rows; without one, the trace comes first.
        for model, begin in (("some/model", "Model some/model, trace"), ("", "Trace t.h5, 1 p")):
            self.picture(plot_error, self.write(self.rows([0], ["h2o"], model=model)))
            self.assertTrue(self.below.startswith(begin), self.below)

    def test_budgets_are_told_as_shares_of_the_whole_cache(self):
        # Layers of 100 and 300 bytes: 150 of 400 are held, whatever their mean share; `b` holds less.
        rows = [{**row, "full_bytes": full, "bytes": held, "ratio": held / full, "middle_ratio": 0.2}
                for layer, full, held in ((0, 100, 60), (1, 300, 90))
                for row in self.rows([layer], ["a", "c"], [0.2])]
        rows += [{**row, "full_bytes": 100, "bytes": 10, "ratio": 0.1, "middle_ratio": 0.1}
                 for row in self.rows(range(2), ["b"], [0.2])]
        self.picture(plot_error, self.write(rows))
        self.assertIn("Budget 0.2 is 0.38 of the whole cache (2.7x smaller).", self.below)
        self.picture(plot_error, self.write([{**row, "protocol": "retrieval"} for row in rows]))
        self.assertNotIn("whole cache", self.below)

    def test_the_layers_that_are_drawn_are_those_named(self):
        figure = self.picture(plot_error, self.write(self.rows((0, 4, 9), ["h2o"])), "--layers", "4,9")
        self.assertEqual([a.get_title() for a in figure.axes], ["layer 4", "layer 9"])
        self.assertIn("2 layers (4, 9)", self.below)

    def test_files_by_their_names(self):
        for output, files in (("a.b", ["a.b.png", "a.b.pdf"]), ("a,b", ["a,b.png", "a,b.pdf"]),
                              ("a.svg,b.PNG", ["a.svg", "b.PNG"])):
            self.assertEqual(command.picture_files(output), files)

    def test_relative_to(self):
        path = self.write([{**row, "rel_error": error * (1 + row["layer"]), "algorithm": name}
                           for row in self.rows([0, 1], ["-"], (0.5, 0.25))
                           for name, error in (("h2o", 0.2), ("uniform", 0.5))]
                          + self.rows([0, 1], ["local"], (0.125,), rel_error=0.3))
        table, said = self.quiet(load, plot_error, [path], [], "seeds", relative_to="h2o")
        self.near(table["mean"], [1, 2.5] * 4)
        self.assertIn("note: local: points left out where h2o has none: 2", said)
        table, _ = self.quiet(load, plot_pareto, [path], relative_to="uniform")
        self.near(table.loc[table["label"] == "h2o", "mean"], [0.4, 0.4])
        with_exact = self.write([*self.rows([0, 1], ["h2o"], (0.5,)),
                                 *self.rows([0, 1], ["exact"], (0.5,), rel_error=2e-7)], "exact.csv")
        table, said = self.quiet(load, plot_heatmap, [with_exact], relative_to="h2o")
        self.near(table["mean"], [1] * 4)  # rounding over an error is still rounding
        self.assertIn("exact is exact and left out", said)

    def test_other_columns(self):
        path = self.write(self.rows([0], ["h2o"], amnesia_mass=0.25))
        self.near(load(plot_error, [path], y="amnesia_mass")["mean"], [0.25] * 3)

    def test_mean_over_layers(self):
        path = self.write(self.rows(range(4), ["h2o", "snapkv"]))
        table = load(plot_error, [path], mean_over_layers=True)
        self.near(table.loc[table["label"] == "h2o", "mean"], np.array([2, 4, 8]) * (0.1 + 0.015))
        rows = [row for row in self.rows(range(2), ["h2o", "snapkv"]) if row["layer"] == 0 or row["algorithm"] == "h2o"]
        table, said = self.quiet(load, plot_error, [self.write(rows)], [], "seeds", mean_over_layers=True)
        self.assertEqual(set(table["label"]), {"h2o"})  # a mean over the easy layers is none
        self.assertIn("snapkv: points left out because some heads are missing", said)


class FactsTest(unittest.TestCase):

    def test_settings_that_differ_are_all_named(self):
        frame = kt.pd.DataFrame({"trace": ["a", "b"], "prompt": ["p", "p"], "protocol": "prefill",
                                 "sink": [0.0, 4.0], "recent": 8.0, "scores": ["none", "past"],
                                 "n_tokens": [64.0, 128.0], "seed": [0, 1]})
        self.assertEqual(kfr.facts_of(frame), "traces: a, b, 2 prompts of 64 to 128 tokens, "
                         "prefill, sink 0, 4, recent 8, scores past, 2 seeds.")
        self.assertIn("scores past, 5 seeds.", kfr.facts_of(frame.assign(seeds=[5.0, 1.0])))


def cielab(colors):
    """[number, vision, 3]: L*, a*, b* of colours #RRGGBB, visions in the order of VISIONS."""
    rgb = np.array([[int(color[i:i + 2], 16) for i in (1, 3, 5)] for color in colors]) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.stack([np.clip(linear @ matrix.T, 0, 1) for matrix in VISIONS.values()], axis=1)
    xyz = seen @ XYZ.T / XYZ.sum(axis=1)
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    x, y, z = np.moveaxis(f, -1, 0)
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=-1)


class PaletteTest(unittest.TestCase):
    def test_ten_are_told_apart_in_every_vision(self):
        places = cielab(COLORS)
        apart = np.linalg.norm(places[:, None] - places[None], axis=-1).min(axis=-1)
        near = [(COLORS[i], COLORS[j], round(float(apart[i, j]), 1))
                for i, j in itertools.combinations(range(len(COLORS)), 2) if not apart[i, j] >= APART]
        self.assertEqual((len(COLORS), near), (10, []))
        self.assertLess(places[:, 0, 0].max(), LIGHTEST)
        self.assertEqual(len(set(MARKERS)), len(COLORS))


class StylesTest(unittest.TestCase):
    def look(self, style):
        return style["color"], style["marker"]

    def test_ten_lines_never_share_a_look(self):
        for labels in ([*PLACES], [f"m{i}" for i in range(10)], [f"h2o T={i}" for i in range(10)],
                       ["h2o", "h2o+balancekv", "h2o@quant-kivi", "oracle", "mine", "yours", "tova"]):
            looks = ks.styles(labels)
            self.assertEqual(list(looks), labels)
            self.assertEqual(len({look["color"] for look in looks.values()}), len(labels))
            self.assertEqual(len({look["marker"] for look in looks.values()}), len(labels))

    def test_more_lines_differ_in_dash(self):
        looks = ks.styles([f"m{i}" for i in range(40)])
        self.assertEqual(len({(*self.look(look), look["linestyle"]) for look in looks.values()}), 40)

    def test_a_method_has_its_place_in_every_picture(self):
        self.assertEqual(len(set(PLACES.values())), len(PLACES))
        for name, at in PLACES.items():
            for others in ([], ["mine", "yours", "a b=1"]):
                self.assertEqual(self.look(ks.styles([*others, name])[name]), (COLORS[at], MARKERS[at]))
        self.assertEqual(place("h2o+balancekv"), PLACES["h2o"])
        self.assertEqual(place("bumblebee-stream"), PLACES["bumblebee"])
        # By a rule of the name alone; not by the order of rows.
        names = ["mine", "yours", "theirs", "ours", "mine T=1"]
        self.assertEqual(ks.styles(names), {name: ks.styles(names[::-1])[name] for name in names})

    def test_what_sees_the_queries_is_never_solid(self):
        looks = ks.styles(["oracle", "oracle-matching", "h2o"])
        self.assertEqual([look["linestyle"] for look in looks.values()], ["--", ":", "-"])

    def test_highlight(self):
        looks = ks.styles(["h2o", "snapkv kernel=5", "exact"], ["snapkv"])
        self.assertEqual([look["color"] for look in looks.values()],
                         [ks.GREY, ks.styles(["snapkv"])["snapkv"]["color"], ks.GREY])
        self.assertLess(looks["h2o"]["zorder"], looks["snapkv kernel=5"]["zorder"])
