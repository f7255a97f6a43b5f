"""Figures from replay tables (lambda, amnesia, reads, reconstruction, stream, heatmap) against values
computed by hand from small tables, and what they share in python/kvbench/tables.py."""

import errno
import math
from unittest import mock

from plot_tables import DIAG, STEP_COLUMNS, FigureTest, infeasible, lambda_rows, load, revive_rows

from kvbench import tables as kt
from kvbench.errors import DeviceError
from kvbench.plot import figures as kf
from kvbench.plot import layers as kl
from kvbench.plot import style as ks
from kvbench.plot.kinds import amnesia as plot_amnesia
from kvbench.plot.kinds import bumblebee_lambda as plot_lambda
from kvbench.plot.kinds import heatmap as plot_heatmap
from kvbench.plot.kinds import reads as plot_reads
from kvbench.plot.kinds import reconstruction as plot_reconstruction
from kvbench.plot.kinds import stream as plot_stream


def points(table, label, x, y="mean"):
    """x and y of a line, by x."""
    line = table[table["label"] == label].sort_values(x)
    return [line[x].tolist(), line[y].tolist()]


class SharedTest(FigureTest):

    def test_full_disk_is_a_device_failure(self):
        figure = mock.Mock()
        figure.savefig.side_effect = OSError(errno.ENOSPC, "No space left on device")
        with self.assertRaises(DeviceError) as caught:
            kf.save_figure(figure, "x")
        self.assertEqual(caught.exception.exit_code, 3)


class LambdaTest(FigureTest):
    def test_lines_and_levels(self):
        table = load(plot_lambda, [self.write(lambda_rows())], "rel_error")
        # Means over heads: 0.1 more than head 0's.
        self.near(points(table, "bumblebee phi=log", "lambda"), [[0, 0.3, 1], [0.6, 0.4, 0.5]])
        self.near(points(table, "bumblebee phi=power", "lambda"), [[0.3], [0.3]])
        levels = table[table["lambda"].isna()].set_index("label")
        self.near(levels.loc["h2o", "mean"], 0.35)
        self.near(levels.loc["random-local", ["mean", "sd"]], [0.4, math.sqrt(0.02)])  # seeds' means 0.3 and 0.5
        self.assertEqual({*table["label"]}, {"bumblebee phi=log", "bumblebee phi=power", "h2o", "random-local"})

    def test_panels(self):
        rows = [{**r, "layer": layer, "budget_requested": budget, "rel_error": r["rel_error"] * f}
                for r in lambda_rows() for layer, budget, f in
                ((0, 0.5, 1), (0, 0.25, 2), (3, 0.5, 3), (3, 0.25, 4))]
        path = self.write(rows)
        for options, expected in (
                ({"by_layer": True}, {(0.25, 0): 0.6, (0.25, 3): 1.2, (0.5, 0): 0.3, (0.5, 3): 0.9}),
                ({"budgets": [0.25]}, {(0.25, kl.ALL): 0.9})):  # mean of 0.6 and 1.2
            table = load(plot_lambda, [path], "rel_error", **options)
            power = table[table["label"] == "bumblebee phi=power"].set_index(["budget_requested", "layer"])["mean"]
            self.assertEqual({*power.index}, {*expected})
            self.near([power[place] for place in expected], [*expected.values()])


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
        table = load(plot_amnesia, [self.write(rows)])
        counts, masses = (table[table["column"] == name] for name in ("amnesia_count", "amnesia_mass"))
        self.near(points(counts, "h2o", "x"), [[0.25, 0.5], [12, 8]])
        self.near(counts["sd"], [math.sqrt(8)] * 2)  # heads 4 apart
        self.near(points(masses, "h2o", "x"), [[0.25, 0.5], [0.1, 0.06]])

    def test_layers(self):
        path = self.write({"layer": layer, "amnesia_count": layer} for layer in range(7))
        table = load(plot_amnesia, [path], layers=[5, 2], by_layer=True)
        counts = table[table["column"] == "amnesia_count"]
        self.near(counts.set_index("layer")["mean"].sort_index(), [2, 5])
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
        x = [0.245, 0.495]
        for label, recall, price in (("topk union=head", [1, 1], 1),  # the base of prices
                                     ("topk union=group", [1, 1], 1.5), ("pq", [0.32, 0.57], 2)):
            self.near(points(table, label, "x", "recall"), [x, recall])
            self.near(points(table, label, "x", "price"), [x, [price] * 2])
        # Fitted keys have no recall.
        for axes, lines in zip(plot_reads.draw(table).axes, (3, 4), strict=True):
            self.assertEqual(sum(a.get_marker() in ks.MARKERS for a in axes.lines), lines)

    def test_named_lines(self):
        path = self.write(list(self.rows()))
        self.assertEqual(set(load(plot_reads, [path], algorithms=["topk union=head", "pq"])["label"]),
                         {"topk union=head", "pq"})
        rows = [row for row in self.rows() if row["algorithm"] != "topk"]
        self.assertEqual(len(plot_reads.draw(load(plot_reads, [self.write(rows)])).axes), 1)


class ReconstructionTest(FigureTest):
    def part(self, table, part, y="mean"):
        """x and y of the line of sums, and the line of means."""
        own = table[table["part"] == part]
        return [points(own, f"kvreviver estimate={name}", "x", y) for name in ("sum", "mean")]

    def test_errors_over_the_mean_square(self):
        table = load(plot_reconstruction, [self.write([*revive_rows(), {"algorithm": "h2o"}])])
        keys, of_means = self.part(table, "k")
        self.near(keys, [[0.1, 0.2], [5, 2]])  # 2.5 / 0.5, 1 / 0.5
        self.near(of_means[1], [0.5, 0.2])
        self.near(self.part(table, "v")[0][1], [0.5, 0.5])
        self.near(self.part(table, "k", "bound")[0][1], [2 * math.pi, math.pi])
        self.near(self.part(table, "k", "sd")[0][1], [math.sqrt(2), 0])

    def test_other_axes(self):
        path = self.write(revive_rows())
        table = load(plot_reconstruction, [path], "load")
        self.near(self.part(table, "k")[0], [[1, 2], [2, 5]])
        self.near(self.part(table, "k", "bound")[0][1], [math.pi, 2 * math.pi])
        table = load(plot_reconstruction, [path], "budget")
        self.near(self.part(table[table["vague_ratio"] == 0.1], "k")[0], [[0.5], [5]])
        for x in ("load", "budget"):
            plot_reconstruction.draw(load(plot_reconstruction, [path], x), x)

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
        table = load(plot_stream, [self.write_stream()], bins=2)
        # Bin 0: steps 9 and 19, bin 1: 59 and 99; heads add 0 and 0.02, 0.01 in the mean.
        for column, expected in (("rel_error", [0.16, 0.81]), ("bytes", [15 * 1024, 80 * 1024]),
                                 ("full", [2000 * 0.15, 2000 * 0.8]), ("limit", [1000, 1000])):
            self.near(points(table[table["column"] == column], "h2o", "step"), [[14, 79], expected])
        self.near(points(table[table["column"] == "rel_error"], "exact", "step")[1], [0, 0])

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
        means = table.set_index(["label", "layer", "q_head"])["mean"]
        self.near(means["a"], [0.101, 0.111, 0.501, 0.511])
        self.near(means["b"], [0.101, 0.111, 0.501])  # a head without a measurement
        plot_heatmap.draw(table)
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
