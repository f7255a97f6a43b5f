"""The look of methods, the same in every picture. What stands around figures, which options they
share, and how 25 methods are named."""

import os
import unittest
from unittest import mock

from plot_tables import FigureTest, load, np

from kvbench import command
from kvbench import tables as kt
from kvbench.plot import figures as kf
from kvbench.plot import frame as kfr
from kvbench.plot import layers as kl
from kvbench.plot import names as kn
from kvbench.plot import style as ks
from kvbench.plot.kinds import coverage as plot_coverage
from kvbench.plot.kinds import error as plot_error
from kvbench.plot.kinds import heatmap as plot_heatmap
from kvbench.plot.kinds import pareto as plot_pareto

HEADS = range(2)


class ShownTest(FigureTest):
    """Runs scripts and keeps their figures."""

    def rows(self, layers, names, budgets=(0.5, 0.25, 0.125)):
        return [{"layer": layer, "q_head": head, "algorithm": name, "budget_requested": budget,
                 "ratio": budget, "middle_ratio": budget, "sink": 10, "recent": 12,
                 "rel_error": (0.1 + 0.001 * i + 0.01 * layer) / budget}
                for layer in layers for head in HEADS for i, name in enumerate(names)
                for budget in budgets]

    def picture(self, module, *arguments):
        figures = []
        with mock.patch.object(kf, "save_figure", lambda figure, _: figures.append(figure)):
            code, said = self.run_script(module, *arguments, "-o", self.path("picture"))
        self.assertEqual(code, 0, said)
        figures[0].canvas.draw()
        return figures[0]

    def footer(self, figure):
        return " ".join(next(t for t in figure.texts if t.get_gid() == "footer").get_text().split())

    def names(self, axes):
        """{name: its place}: the texts right of a panel."""
        return {t.get_text(): t for t in axes.texts if t.get_position()[0] == 1.06}

    def refused(self, text, module, *arguments):
        code, said = self.run_script(module, *arguments)
        self.assertEqual(code, 2, said)
        self.assertIn(text, said.strip().splitlines()[-1])


class FrameTest(ShownTest):
    def test_footer_and_title(self):
        rows = self.rows(range(3), ["h2o", "snapkv"])
        path = self.write(rows + [{**row, "seed": 1, "rel_error": 2 * row["rel_error"]} for row in rows])
        figure = self.picture(plot_error, path, "--title", "A title", "--model", "M-7B")
        self.assertEqual(
            self.footer(figure), "Model M-7B, trace t.h5, 1 prompt of 100 tokens, 3 layers (0-2), "
            "2 query heads, prefill, sink 10, recent 12, 4 evaluated queries, scores past, 2 seeds. "
            "Bars: standard deviation over seeds, of the means over prompts and heads.")
        title = next(t for t in figure.texts if t.get_gid() == "title")
        self.assertEqual(title.get_text(), "A title")
        boxes = [t.get_window_extent() for t in figure.texts if t.get_gid()]
        for axes in figure.axes:
            drawn = axes.get_tightbbox(figure.canvas.get_renderer())
            for box in (*boxes, figure.legends[0].get_window_extent()):
                self.assertFalse(box.overlaps(drawn))
        self.assertFalse(boxes[1].overlaps(figure.legends[0].get_window_extent()))
        # Without a model, the trace comes first.
        self.assertTrue(self.footer(self.picture(plot_error, path)).startswith("Trace t.h5, 1 p"))

    def test_the_layers_that_are_drawn_are_those_named(self):
        path = self.write(self.rows((0, 4, 9), ["h2o"]))
        figure = self.picture(plot_error, path, "--layers", "4,9")
        self.assertEqual([a.get_title() for a in figure.axes], ["layer 4", "layer 9"])
        self.assertIn("2 layers (4, 9)", self.footer(figure))
        self.refused("no rows with layer 5; it holds 0, 4, 9", plot_error, path, "--layers", "5",
                     "-o", self.path("x"))
        self.refused("--layers: got `a`, expected numbers of layers as 0,2,5", plot_error, path,
                     "--layers", "a", "-o", self.path("x"))

    def test_the_model_is_that_of_the_rows(self):
        for model, begin in (("some/model", "Model some/model, trace"), ("", "Trace t.h5")):
            path = self.write([{**row, "model": model} for row in self.rows([0], ["h2o"])])
            self.assertTrue(self.footer(self.picture(plot_error, path)).startswith(begin))
        figure = self.picture(plot_error, path, "--model", "M-7B")
        self.assertTrue(self.footer(figure).startswith("Model M-7B, trace t.h5"))

    def test_files_by_their_names(self):
        self.assertEqual(command.picture_files("a.b"), ["a.b.png", "a.b.pdf"])
        self.assertEqual(command.picture_files("a,b"), ["a,b.png", "a,b.pdf"])
        self.assertEqual(command.picture_files("a.svg,b.PNG"), ["a.svg", "b.PNG"])
        path = self.write(self.rows([0], ["h2o", "uniform"]))
        contents = []
        for stem in ("one", "two"):
            files = [self.path(stem + ending) for ending in (".png", ".pdf", ".svg")]
            code, said = self.run_script(plot_error, path, "-o", ",".join(files))
            self.assertEqual(code, 0, said)
            contents.append([])
            for name in files:
                with open(name, "rb") as file:
                    contents[-1].append(file.read())
        self.assertEqual(contents[0], contents[1])
        self.assertEqual([c[:4] for c in contents[0][:2]], [b"\x89PNG", b"%PDF"])
        self.assertIn(b"<svg", contents[0][2])
        before = os.listdir(self.folder)
        for text, words in (("a.jpg", "a.jpg`, expected a name that ends in .png, .pdf or"),
                            ("a.png,b", "expected one stem, or names that all end in")):
            self.refused(words, plot_error, path, "-o", self.path(text))
            self.assertEqual(os.listdir(self.folder), before)

    def test_relative_to(self):
        path = self.write([{**row, "rel_error": error * (1 + row["layer"]), "algorithm": name}
                           for row in self.rows([0, 1], ["-"], (0.5, 0.25))
                           for name, error in (("h2o", 0.2), ("uniform", 0.5))]
                          + [{**row, "rel_error": 0.3} for row in
                             self.rows([0, 1], ["local"], (0.125,))])
        table, said = self.quiet(load, plot_error, [path], [], "seeds", relative_to="h2o")
        self.near(table["mean"], [1, 2.5] * 4)
        self.assertIn("note: local: points left out where h2o has none: 2", said)
        figure = self.picture(plot_error, path, "--relative-to", "h2o", "--mean-over-layers")
        self.assertIn("relative error / that of h2o", [t.get_text() for t in figure.texts]
                      + [figure._supylabel.get_text()])
        table, _ = self.quiet(load, plot_pareto, [path], relative_to="uniform")
        self.near(table.loc[table["label"] == "h2o", "mean"], [0.4, 0.4])
        exact = [{**row, "rel_error": 2e-7} for row in self.rows([0, 1], ["exact"], (0.5,))]
        with_exact = self.write([*self.rows([0, 1], ["h2o"], (0.5,)), *exact], "exact.csv")
        table, said = self.quiet(load, plot_heatmap, [with_exact], relative_to="h2o")
        self.near(table["mean"], [1] * 4)  # rounding over an error is still rounding
        self.assertIn("exact is exact and left out", said)
        self.refused("--relative-to: got `nope`, expected one of h2o, uniform, local", plot_error,
                     path, "-o", self.path("x"), "--relative-to", "nope")

    def test_other_columns(self):
        rows = [{**row, "amnesia_mass": 0.25} for row in self.rows([0], ["h2o"])]
        figure = self.picture(plot_error, self.write(rows), "--y", "amnesia_mass")
        self.near(figure.axes[0].lines[0].get_ydata(), [0.25] * 3)
        self.assertEqual(figure._supylabel.get_text(), kt.METRIC_LABELS["amnesia_mass"])


class ManyMethodsTest(ShownTest):
    names_25 = ["h2o", *[f"method-{i}" for i in range(23)],
                "bumblebee"]

    def check_names(self, axes, labels):
        named = self.names(axes)
        self.assertEqual(set(named), set(labels))
        boxes = sorted((t.get_window_extent() for t in named.values()), key=lambda box: box.y0)
        panel = axes.get_window_extent()
        for lower, upper in zip(boxes, boxes[1:]):
            self.assertGreater(upper.y0, lower.y0 + 0.8 * lower.height)  # descenders may meet
        for box in boxes:
            self.assertGreater(box.x0, panel.x1)
            self.assertTrue(panel.y0 - box.height < box.y0 and box.y1 < panel.y1 + box.height)

    def test_names_at_line_ends(self):
        for layers in (4, 30):
            path = self.write(self.rows(range(layers), self.names_25))
            figure = self.picture(plot_error, path, "--all")
            panels = [a for a in figure.axes if a.lines]
            self.assertEqual(len(panels), 4 if layers == 4 else 1)
            for axes in panels:
                self.check_names(axes, self.names_25)
            self.assertEqual(figure.legends, [])
            box = figure.get_tightbbox(figure.canvas.get_renderer())
            self.assertLess(box.height, kf.PAGE_HEIGHT)
            self.assertLess(box.width, kf.PAGE_WIDTH + 0.02)

    def test_mean_over_layers(self):
        path = self.write(self.rows(range(4), ["h2o", "snapkv"]))
        figure = self.picture(plot_error, path, "--mean-over-layers")
        (axes,) = figure.axes
        self.near(axes.lines[0].get_ydata(), np.array([2, 4, 8]) * (0.1 + 0.015))
        rows = [row for row in self.rows(range(2), ["h2o", "snapkv"])
                if row["layer"] == 0 or row["algorithm"] == "h2o"]
        table, said = self.quiet(load, plot_error, [self.write(rows)], [], "seeds",
                                 mean_over_layers=True)
        self.assertEqual(set(table["label"]), {"h2o"})  # a mean over the easy layers is none
        self.assertIn("snapkv: points left out because some heads are missing", said)

    def test_highlight(self):
        for layers in (4, 30):
            path = self.write(self.rows(range(layers), self.names_25))
            figure = self.picture(plot_error, path, "--highlight", "h2o,bumblebee")
            axes = next(a for a in figure.axes if a.lines)
            own = [line for line in axes.lines if len(line.get_xdata()) == 3
                   and line.get_marker() != "None"]
            self.assertEqual({line.get_color() for line in own} - {ks.GREY},
                             {ks.styles(["h2o"])["h2o"]["color"], ks.styles(["bumblebee"])["bumblebee"]["color"]})
            bold = {name for name, t in self.names(axes).items() if t.get_weight() == "bold"}
            self.assertEqual(bold, {"h2o", "bumblebee"})
            if layers == 30:
                self.assertEqual([a.get_title() for a in figure.axes if a.images and a.get_title()],
                                 ["h2o", "bumblebee"])
        self.refused("--highlight: got `nope`", plot_error, path, "--highlight", "nope", "-o",
                     self.path("x"))

    def test_places_of_names(self):
        self.near(kn.placed(np.array([0.0, 0.0, 1.0]), 0.1, 0.0, 1.0), [0, 0.1, 1])
        self.near(kn.placed(np.array([1.0, 1.0, 0.2]), 0.1, 0.0, 1.0), [0.9, 1.0, 0.2])
        self.near(kn.placed(np.full(3, 0.5), 0.9, 0.0, 1.0), [0, 0.5, 1])  # no room: closer


class EqualBudgetTest(ShownTest):
    def test_the_front_compares_at_the_requested_budget(self):
        # a holds less than asked for and less than b: by bytes it would be on the front.
        rows = [{"algorithm": "a", "budget_requested": 0.5, "middle_ratio": 0.1, "rel_error": 0.3},
                {"algorithm": "b", "budget_requested": 0.5, "middle_ratio": 0.5, "rel_error": 0.2},
                {"algorithm": "c", "budget_requested": 0.25, "middle_ratio": 0.3, "rel_error": 0.4},
                {"algorithm": "native", "budget_requested": "", "middle_ratio": 0.25,
                 "rel_error": 0.35}]
        path = self.write(rows)
        for x in ("middle_ratio", "budget_requested"):
            table, _ = self.quiet(load, plot_pareto, [path], x=x)
            self.assertEqual(list(plot_pareto.pareto_front(table)["label"]), ["native", "b"])
        figure = self.picture(plot_pareto, path, "--x", "middle_ratio")
        bold = {name for name, t in self.names(figure.axes[0]).items() if t.get_weight() == "bold"}
        self.assertEqual(bold, {"native", "b"})
        self.assertIn("Bold (grey steps): no other method has a smaller error at the same "
                      "requested budget", self.footer(figure))

    def test_the_front_is_of_errors_also_where_shares_are_drawn(self):
        # Relative to u, a is best at 0.25 (a tenth); in error b wins at 0.5.
        rows = [{"algorithm": name, "budget_requested": budget, "middle_ratio": budget,
                 "rel_error": error} for name, budget, error in
                (("u", 0.25, 3), ("u", 0.5, 0.4), ("a", 0.25, 0.3), ("b", 0.5, 0.2))]
        table, _ = self.quiet(load, plot_pareto, [self.write(rows)], relative_to="u")
        self.near(table["mean"], [1, 1, 0.1, 0.5])
        self.assertEqual(list(plot_pareto.pareto_front(table)["label"]), ["a", "b"])
        self.assertIn("Bold: no other method", self.footer(self.picture(
            plot_pareto, self.path("t.csv"), "--relative-to", "u")))  # no steps are drawn

    def test_points_of_no_byte_are_drawn(self):
        rows = [{"algorithm": "a", "budget_requested": 0.5, "middle_ratio": 0, "rel_error": 0.3},
                {"algorithm": "b", "budget_requested": 0.5, "middle_ratio": 0.5, "rel_error": 0.2},
                {"algorithm": "b", "budget_requested": 0.25, "middle_ratio": 0.25,
                 "rel_error": 0.3}]
        figure = self.picture(plot_pareto, self.write(rows), "--x", "middle_ratio")
        axes = figure.axes[0]
        dot = next(line for line in axes.lines if line.get_label() == "a")
        self.near(dot.get_xdata(), [0.125])  # half of the least size
        ticks = dict(zip(axes.get_xticks(), (t.get_text() for t in axes.get_xticklabels())))
        self.assertEqual(ticks[0.125], "0")
        self.assertLess(axes.get_xlim()[0], 0.125)
        # From there a line to the names would cross the panel: the name stands beside the point.
        self.assertEqual(set(self.names(axes)), {"b"})
        (name,) = [text for text in axes.texts if text.get_text() == "a"]
        self.near(name.xy, (0.125, 0.3))
        # Nothing but such points: still a picture.
        self.picture(plot_pareto, self.write(rows[:1]), "--x", "middle_ratio")


class CoverageTest(ShownTest):
    def test_one_panel_of_many_layers(self):
        lines = [f"t,p,{layer},0,{what},{2**i},1,{0.9**i * (1 if what == 'keys' else 0.9)},0"
                 for layer in range(12) for what in ("keys", "values") for i in range(4)]
        path = self.write_file("coverage.csv", "\n".join(
            ["trace,prompt,layer,kv_head,what,k,radius,radius_rel,center", *lines]) + "\n")
        (axes,) = self.picture(plot_coverage, path, "--mean-over-layers").axes
        self.near(axes.lines[0].get_ydata(), 0.9**np.arange(4))
        figure = self.picture(plot_coverage, path)
        self.assertTrue(figure.get_label().startswith(kl.OVERVIEW))
        self.assertIn("Maps: every layer", self.footer(figure))
        self.assertIn("12 layers (0-11), 1 KV head.", self.footer(figure))


class FactsTest(unittest.TestCase):
    def test_spans(self):
        self.assertEqual(kfr.span([3, 1, 2]), "1-3")
        self.assertEqual(kfr.span([0, 4]), "0, 4")
        self.assertEqual(kfr.span(range(0, 40, 4)), "0 to 36")

    def test_settings_that_differ_are_all_named(self):
        frame = kt.pd.DataFrame({"trace": ["a", "b"], "prompt": ["p", "p"], "protocol": "prefill",
                                 "sink": [0.0, 4.0], "recent": 8.0, "scores": ["none", "past"],
                                 "n_tokens": [64.0, 128.0], "seed": [0, 1]})
        self.assertEqual(kfr.facts_of(frame), "traces: a, b, 2 prompts of 64 to 128 tokens, "
                         "prefill, sink 0, 4, recent 8, scores past, 2 seeds.")
        self.assertIn("scores past, 5 seeds.", kfr.facts_of(frame.assign(seeds=[5.0, 1.0])))


if __name__ == "__main__":
    unittest.main()
