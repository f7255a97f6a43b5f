"""Figures from replay tables (lambda, amnesia, reads, reconstruction, stream, heatmap) against values
computed by hand from small tables, and what they share in python/kvbench/tables.py."""

import errno
import math
from unittest import mock

from plot_tables import DIAG, STEP_COLUMNS, FigureTest, infeasible, lambda_rows, load, np, revive_rows

from kvbench import tables as kt
from kvbench.errors import DeviceError
from kvbench.plot import figures as kf
from kvbench.plot import style as ks
from kvbench.plot.kinds import amnesia as plot_amnesia
from kvbench.plot.kinds import bumblebee_lambda as plot_lambda
from kvbench.plot.kinds import heatmap as plot_heatmap
from kvbench.plot.kinds import reads as plot_reads
from kvbench.plot.kinds import reconstruction as plot_reconstruction
from kvbench.plot.kinds import stream as plot_stream

H2O = ks.styles(["h2o"])["h2o"]["color"]


def colors_of(*labels):
    return [look["color"] for look in ks.styles(labels).values()]


def line_of(axes, color):
    """x and y of the one plotted line of this colour; the caps of error bars have other markers."""
    found = [a for a in axes.lines if a.get_color() == color and len(a.get_xdata()) > 0
             and a.get_marker() in (*ks.MARKERS, "None")]
    assert len(found) == 1, f"{len(found)} lines of {color}"
    return list(found[0].get_xdata()), list(found[0].get_ydata())


def spans(axes):
    """Lower and upper ends of the error bars."""
    return [tuple(sorted(segment[:, 1])) for container in axes.containers for segment in container[2][0].get_segments()]


class SharedTest(FigureTest):

    def test_full_disk_is_a_device_failure(self):
        figure = mock.Mock()
        figure.savefig.side_effect = OSError(errno.ENOSPC, "No space left on device")
        with self.assertRaises(DeviceError) as caught:
            kf.save_figure(figure, "x")
        self.assertEqual(caught.exception.exit_code, 3)


class LambdaTest(FigureTest):
    colors = colors_of("bumblebee phi=log", "bumblebee phi=power", "h2o", "random-local")

    def test_lines_and_levels(self):
        figure = plot_lambda.draw(load(plot_lambda, [self.write(lambda_rows())], "rel_error"))
        axes = figure.axes[0]
        xs, ys = line_of(axes, self.colors[0])  # means over heads: 0.1 more than head 0's
        self.near([xs, ys], [[0, 0.3, 1], [0.6, 0.4, 0.5]])
        self.near(line_of(axes, self.colors[1]), [[0.3], [0.3]])
        self.near(line_of(axes, self.colors[2])[1], [0.35, 0.35])  # h2o, across the panel
        self.near(line_of(axes, self.colors[3])[1], [0.4, 0.4])  # seeds' means 0.3 and 0.5
        patch = axes.patches[0]  # a polygon, of newer versions of matplotlib a rectangle
        band = patch.get_patch_transform().transform(patch.get_path().vertices)
        self.near([band[:, 1].min(), band[:, 1].max()], [0.4 - math.sqrt(0.02), 0.4 + math.sqrt(0.02)])
        self.assertEqual([t.get_text() for t in figure.legends[0].texts],
                         ["bumblebee phi=log", "bumblebee phi=power", "h2o", "random-local"])

    def test_panels(self):
        rows = [{**r, "layer": layer, "budget_requested": budget, "rel_error": r["rel_error"] * f}
                for r in lambda_rows() for layer, budget, f in
                ((0, 0.5, 1), (0, 0.25, 2), (3, 0.5, 3), (3, 0.25, 4))]
        path = self.write(rows)
        figure = plot_lambda.draw(load(plot_lambda, [path], "rel_error", by_layer=True))
        drawn = {a.get_title(): line_of(a, self.colors[1])[1][0] for a in figure.axes if a.get_visible()}
        self.assertEqual(list(drawn), ["budget 0.5, layer 0", "budget 0.5, layer 3",
                                       "budget 0.25, layer 0", "budget 0.25, layer 3"])
        self.near(list(drawn.values()), [0.3, 0.9, 0.6, 1.2])
        figure = plot_lambda.draw(load(plot_lambda, [path], "rel_error", budgets=[0.25]))
        self.assertEqual([a.get_title() for a in figure.axes], ["budget 0.25"])
        self.near(line_of(figure.axes[0], self.colors[1])[1], [0.9])  # mean of 0.6 and 1.2


class AmnesiaTest(FigureTest):
    def test_heavy_share_by_hand(self):
        # Middle 80 tokens. 60 kept: 40 of them, of which h2o's heavy part is half: 20 / 80.
        rows = [{"params": "heavy_ratio=0.5"}, {"params": "heavy_ratio=1"},
                {"params": "heavy_ratio=0.5", "tokens_kept": 63, "seed": 1},  # floor(43 / 2) = 21
                {"algorithm": "snapkv"},
                {"protocol": "stream", "sink": 5, "recent": 15, "tokens_kept": 30}]
        frame = kt.read_results([self.write(rows)], plot_amnesia.NEEDED)
        self.near(plot_amnesia.heavy_share(frame, "t.csv"), [0.25, 0.5, 21 / 80, 0.5, 0.125])
        frame["params"] = "heavy_ratio=x"
        with self.assertRaisesRegex(kt.CsvError, "got `x`, expected a number"):
            plot_amnesia.heavy_share(frame, "t.csv")

    def test_lines_and_bands(self):
        rows = [{"q_head": head, "params": "heavy_ratio=1", "budget_requested": budget,
                 "tokens_kept": 20 + 80 * budget, "amnesia_count": count + 4 * head,
                 "amnesia_mass": count / 100}
                for head in (0, 1) for budget, count in ((0.5, 6), (0.25, 10))]
        figure = plot_amnesia.draw(load(plot_amnesia, [self.write(rows)]))
        counts, masses = figure.axes
        self.near(line_of(counts, H2O), [[0.25, 0.5], [12, 8]])
        self.near(line_of(masses, H2O), [[0.25, 0.5], [0.1, 0.06]])
        band = counts.collections[0].get_paths()[0].vertices  # heads 4 apart: sd 2 sqrt(2)
        self.near([band[:, 1].min(), band[:, 1].max()], [8 - math.sqrt(8), 12 + math.sqrt(8)])

    def test_layers(self):
        rows = [{"layer": layer, "amnesia_count": layer} for layer in range(7)]
        path = self.write(rows)
        figure = plot_amnesia.draw(load(plot_amnesia, [path], layers=[5, 2], by_layer=True))
        self.assertEqual([a.get_title() for a in figure.axes[:2]], ["layer 2", "layer 5"])
        self.near([line_of(a, H2O)[1][0] for a in figure.axes[:2]], [2, 5])
        for count, panels in ((6, 12), (7, 2)):  # of more than six: means, and maps
            figure = plot_amnesia.draw(load(plot_amnesia, [path], layers=range(count), by_layer=True))
            self.assertEqual(len([a for a in figure.axes if a.lines]), panels)


class ReadsTest(FigureTest):
    def rows(self):
        """topk and pq at two budgets, two heads and seeds; fitted keys, which have no recall."""
        for name, params, factor in (("topk", "tokens=auto;union=head", 1), ("topk", "tokens=auto;union=group", 1.5),
                                     ("pq", "parts=4;tokens=auto", 2),
                                     ("static", "A=attention-matching;tokens=auto", 3)):
            for head in (0, 1):
                for seed in (0, 1) if name == "pq" else (0,):
                    for budget in (0.5, 0.25):
                        yield {"algorithm": name, "params": params, "q_head": head, "seed": seed,
                               "protocol": "retrieval", "budget_requested": budget,
                               "read_ratio": budget - 0.01 * head, "rel_error": factor * (0.1 + head) / budget,
                               "recall": {"topk": 1, "static": 0}.get(name, budget + 0.1 * head + 0.04 * seed)}

    def test_recall_and_prices_by_hand(self):
        table = load(plot_reads, [self.write(list(self.rows()))])
        recall, prices = plot_reads.draw(table).axes
        looks = ks.styles(table["label"])
        colors = [looks[label]["color"] for label in ("topk union=head", "topk union=group", "pq")]
        x = [0.245, 0.495]
        self.near(line_of(recall, colors[2]), [x, [0.32, 0.57]])
        self.near(line_of(recall, colors[0]), [x, [1, 1]])
        self.near(line_of(prices, colors[2]), [x, [2, 2]])
        self.near(line_of(prices, colors[0]), [x, [1, 1]])  # topk by head is the base
        self.near(line_of(prices, colors[1]), [x, [1.5, 1.5]])
        for axes, lines in ((recall, 3), (prices, 4)):  # fitted keys have no recall
            self.assertEqual(sum(a.get_marker() in ks.MARKERS for a in axes.lines), lines)

    def test_named_lines(self):
        path = self.write(list(self.rows()))
        self.assertEqual(set(load(plot_reads, [path], algorithms=["topk union=head", "pq"])["label"]),
                         {"topk union=head", "pq"})
        rows = [row for row in self.rows() if row["algorithm"] != "topk"]
        self.assertEqual(len(plot_reads.draw(load(plot_reads, [self.write(rows)])).axes), 1)


class ReconstructionTest(FigureTest):
    colors = colors_of("kvreviver estimate=sum", "kvreviver estimate=mean")

    def test_errors_over_the_mean_square(self):
        path = self.write([*revive_rows(), {"algorithm": "h2o"}])
        figure = plot_reconstruction.draw(load(plot_reconstruction, [path]))
        keys, values = figure.axes
        self.assertEqual(keys.get_title(), "budget 0.5")
        self.near(line_of(keys, self.colors[0]), [[0.1, 0.2], [5, 2]])  # 2.5 / 0.5, 1 / 0.5
        self.near(line_of(keys, self.colors[1])[1], [0.5, 0.2])
        self.near(line_of(values, self.colors[0])[1], [0.5, 0.5])
        self.near(line_of(keys, "0.3"), [[0.1, 0.2], [2 * math.pi, math.pi]])
        self.assertTrue(any(np.allclose(span, (5 - math.sqrt(2), 5 + math.sqrt(2))) for span in spans(keys)))

    def test_other_axes(self):
        path = self.write(revive_rows())
        table = load(plot_reconstruction, [path], "load")
        keys = plot_reconstruction.draw(table, "load").axes[0]
        self.near(line_of(keys, self.colors[0]), [[1, 2], [2, 5]])
        self.near(line_of(keys, "0.3"), [[1, 2], [math.pi, 2 * math.pi]])
        figure = plot_reconstruction.draw(load(plot_reconstruction, [path], "budget"), "budget")
        self.assertEqual([a.get_title() for a in figure.axes[:2]], ["vague ratio 0.2", "vague ratio 0.1"])
        self.near(line_of(figure.axes[1], self.colors[0]), [[0.5], [5]])

    def test_what_is_left_out(self):
        uneven = {"algorithm": "kvreviver", "diag": next(revive_rows())["diag"],
                  "params": "candidate_ratio=0.7;estimate=sum;recent_ratio=0.2;vague_ratio=0.1"}
        empty = {**next(revive_rows()), "seed": 5, "diag": DIAG.format(a=0, n=15, ke=0, kb=0, ve=0, vb=0)}
        path = self.write([*revive_rows(), uneven, empty])
        table, said = self.quiet(load, plot_reconstruction, [path])
        self.assertIn("candidate_ratio and recent_ratio differ", said)
        self.assertIn("1 rows with an empty sketch", said)
        point = table[(table["part"] == "k") & (table["x"] == 0.1)].iloc[0]
        self.near(point["mean"], 5)


class StreamTest(FigureTest):
    def test_lines(self):
        path = self.write_stream()
        table = load(plot_stream, [path], bins=2)
        figure = plot_stream.draw(table)
        errors, memory = figure.axes
        self.assertEqual(errors.get_title(), "budget 0.5")
        # Bin 0: steps 9 and 19, bin 1: 59 and 99; heads add 0 and 0.02, 0.01 in the mean.
        xs, ys = line_of(errors, H2O)
        self.near([xs, ys], [[14, 79], [0.16, 0.81]])
        self.near(line_of(memory, H2O)[1], [15, 80])
        exact = [a for a in errors.lines if a.get_color() == ks.styles(["exact"])["exact"]["color"]]
        self.assertEqual(exact, [])  # no error to draw
        grey = [a for a in memory.lines if a.get_color() == "0.5"]
        self.near(grey[0].get_ydata(), [2000 * 0.15 / 1024, 2000 * 0.8 / 1024])
        self.near(grey[1].get_ydata(), [1000 / 1024, 1000 / 1024])

    def test_steps_of_degenerate_rows_are_left_out(self):
        path = self.write_stream()
        rows = self.table("t.csv") + [{**row, "algorithm": "kvreviver", "status": "degenerate: x"}
                                      for row in self.table("t.csv") if row["algorithm"] == "h2o"]
        steps = self.table("t.steps.csv")
        steps += [{**step, "algorithm": "kvreviver"} for step in steps if step["algorithm"] == "h2o"]
        self.write(rows)
        self.write(steps, "t.steps.csv", columns=STEP_COLUMNS)
        table, said = self.quiet(load, plot_stream, [path])
        self.assertEqual(set(table["label"]), {"h2o", "exact"})
        self.assertIn("2 degenerate rows are left out (kvreviver)", said)

    def test_files_that_do_not_go_together(self):
        self.refused("1 rows of", plot_stream, self.write_stream(lambda s: s["algorithm"] == "h2o" or s["q_head"] == 0))
        path = self.write_stream()
        self.write([{"protocol": "stream", "sink": 0}], "t.csv")
        self.refused("steps have no row", plot_stream, path)
        self.write([{"protocol": "stream"}, {"protocol": "stream"}])
        self.refused("duplicate row: prompt", plot_stream, path)


class HeatmapTest(FigureTest):
    def test_cells(self):
        rows = [{"algorithm": name, "layer": layer, "q_head": head, "seed": seed,
                 "rel_error": (1 + layer) * 0.1 + head * 0.01 + seed * 0.002}
                for name in ("a", "b") for layer in (0, 4) for head in (0, 1) for seed in (0, 1)
                if (name, layer, head) != ("b", 4, 1)]
        rows += [infeasible(algorithm="b", layer=4, q_head=1),
                 {"algorithm": "exact", "rel_error": 1e-16, "budget_requested": ""},
                 {"algorithm": "a", "budget_requested": 0.75, "rel_error": 9}]
        table, said = self.quiet(load, plot_heatmap, [self.write(rows)])
        self.assertIn("budget 0.5 is shown", said)
        self.assertIn("exact is exact", said)
        figure = plot_heatmap.draw(table)
        first, second = figure.axes[:2]
        self.assertEqual([first.get_title(), second.get_title()], ["a", "b"])
        self.near(first.images[0].get_array(), [[0.101, 0.111], [0.501, 0.511]])
        array = np.ma.filled(second.images[0].get_array(), np.nan)
        self.assertTrue(math.isnan(array[1, 1]))
        self.near(array[0], [0.101, 0.111])
        self.near(first.images[0].norm.vmax, 0.511)
        self.near(second.images[0].norm.vmin, 0.101)
        self.assertEqual(plot_heatmap.marks(table), "; hatched: no measurement")
        table, _ = self.quiet(load, plot_heatmap, [self.write(rows)], budget=0.75)
        self.near(table["mean"], [9])

    def test_layers_without_a_window_are_marked(self):
        rows = [{"layer": layer, "rel_error": 0.1, "full_bytes": 300 if layer == 4 else 100} for layer in (0, 2, 4)]
        table, _ = self.quiet(load, plot_heatmap, [self.write(rows)])
        self.assertEqual(plot_heatmap.marks(table), "; ticks at the right: layers without a window")
        self.assertEqual(list(plot_heatmap.draw(table).axes[0].get_yticks(minor=True)), [2])
        table, _ = self.quiet(load, plot_heatmap, [self.write([{**row, "full_bytes": 100} for row in rows])])
        self.assertEqual(plot_heatmap.marks(table), "")
