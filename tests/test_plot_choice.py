"""Which lines figures of many methods draw, and what the Pareto figure compares."""

import csv
import itertools
import math
import unittest

import pandas as pd
from matplotlib.text import Text
from plot_tables import STEP_COLUMNS, FigureTest, load, np, points_of

from kvbench import tables as kt
from kvbench.plot import choice as kc
from kvbench.plot.kinds import amnesia as plot_amnesia
from kvbench.plot.kinds import error as plot_error
from kvbench.plot.kinds import offset as plot_offset
from kvbench.plot.kinds import pareto as plot_pareto
from kvbench.plot.kinds import stream as plot_stream

NAMES = [f"m{i:02}" for i in range(20)]  # the error grows with the number
TEN = "10 of 22 lines are drawn"
REFERENCES = ("oracle", "oracle-matching")


def shown(figure):
    """The methods of many() that a figure names, anywhere."""
    texts = {text.get_text() for text in figure.findobj(Text) if text.get_visible()}
    return texts & {*NAMES, *REFERENCES}


def many(**more):
    return [{"algorithm": name, "budget_requested": budget, "middle_ratio": budget,
             "rel_error": (0.1 + 0.01 * i) / budget, "amnesia_mass": 0.01 * i, "n_tokens": 1000,
             "tokens_kept": 20 + 980 * budget, **more}
            for i, name in enumerate([*NAMES, *REFERENCES]) for budget in (0.25, 0.125)]


def bold(axes):
    return {t.get_text() for t in axes.texts if t.get_weight() == "bold"}


class RuleTest(unittest.TestCase):
    def order(self, *points, **more):
        return kc.ranked(kt.pd.DataFrame(points, columns=["label", "size", "mean"]), **more)

    def test_the_smallest_error_at_the_smallest_budget(self):
        # a wins at a half, b at a quarter; c has none there; d's 0.252 is the same budget.
        points = [("a", 0.5, 1), ("a", 0.25, 5), ("b", 0.5, 2), ("b", 0.25, 4), ("c", 0.5, 0.1),
                  ("d", 0.252, 4.5), ("e", 0.25, np.nan)]
        for some in [points, *itertools.islice(itertools.permutations(points), 0, None, 59)]:
            self.assertEqual(self.order(*some), ["b", "d", "a", "e", "c"])
        self.assertEqual(self.order(("a", 1, 0.1), ("b", 1, 0.9), higher_better=True), ["b", "a"])
        # Without a size a line stands beside those of every one.
        self.assertEqual(self.order(("a", np.nan, 3), ("b", 0.25, 4), ("c", 0.5, 1)), ["a", "b", "c"])


class FiguresTest(FigureTest):
    def test_ten_of_many(self):
        path = self.write(many())
        queries = self.write(({**row, "offset": at, "layer": 3} for row in many() for at in range(3)), "q.queries.csv")
        steps = many(protocol="stream")
        self.write(({**row, "step": step} for row in steps for step in (199, 599, 999)), "s.steps.csv",
                   columns=STEP_COLUMNS)
        for module, *arguments in (
                (plot_pareto, path), (plot_error, path), (plot_amnesia, path), (plot_offset, queries),
                (plot_offset, queries, "--by", "layer", "--budget", "0.125"),
                (plot_stream, self.write(steps, "s.csv"))):
            with self.subTest(module.__name__, arguments=arguments[1:]):
                self.assertEqual(shown(self.picture(module, *arguments)), {*NAMES[:8], *REFERENCES})
                self.assertIn(f"note: {TEN}: the references and those of the smallest", self.said)
                self.assertIn("--all draws all, --algorithm NAME,... those that it names", self.said)
                self.assertIn(f"{TEN}, the references and those of the smallest", self.below)
                for more, names in ((["--all"], {*NAMES, *REFERENCES}),
                                    (["--algorithm", ",".join(NAMES[4:16])], set(NAMES[4:16]))):
                    self.assertEqual(shown(self.picture(module, *arguments, *more)), names)
                    self.assertNotIn("lines are drawn", self.said + self.below)
        figure = self.picture(plot_error, path, "--highlight", ",".join(NAMES[5:17]))
        self.assertEqual(shown(figure), set(NAMES[5:17]))  # as many as are named

    def test_captions_have_all(self):
        path = self.write(many())
        for module, name in ((plot_error, "m19"), (plot_amnesia, "m19"), (plot_pareto, "m00")):
            self.assertIn(name, self.caption(module, path).partition("Trace")[0])


class FrontTest(FigureTest):
    def front(self, *points):
        """Label and size of the front of points_of(points)."""
        table, _ = self.quiet(load, plot_pareto, [self.write(points_of(points))])
        front = plot_pareto.pareto_front(table)
        self.assertEqual(sorted(table.loc[table["front"], "label"]), sorted(front["label"]))
        return list(front[["label", "size"]].itertuples(index=False, name=None))

    def test_points_by_hand(self):
        # c holds a little less of each budget than the others and is far worse: bytes alone would
        # put it on the front.
        rows = [("a", 0.25, 0.25, 0.1), ("a", 0.125, 0.125, 0.2), ("b", 0.25, 0.25, 0.12),
                ("b", 0.125, 0.125, 0.15), ("c", 0.25, 0.248, 0.5), ("c", 0.125, 0.123, 0.6)]
        best = [("b", 0.125), ("a", 0.25)]
        for points, front in (
                (rows, best),
                # Nor at a budget, or a native size, that no other has.
                ([*rows, ("c", 0.0625, 0.062, 0.7), ("c", "", 0.01, 0.9)], best),
                # Two that have it: the better one is on the front.
                ([*rows, ("c", 0.0625, 0.062, 0.7), ("d", 0.0625, 0.062, 0.8)], [("c", 0.0625), *best]),
                ([("a", 0.25, 0.25, 0.1), ("a", 0.5, 0.5, 0.05)], []),
                # An oracle is no one to beat.
                ([("a", 0.25, 0.25, 0.1), ("oracle", 0.25, 0.25, 0.2)], []),
                # 0.4 % less memory counts as the same.
                ([("a", 0.25, 0.25, 0.1), ("d", 0.249, 0.249, 0.3), ("e", 0.249, 0.249, 0.4)], [("a", 0.25)]),
                # It compares at the requested budget: a holds less than b.
                ([("a", 0.5, 0.1, 0.3), ("b", 0.5, 0.5, 0.2), ("c", 0.25, 0.3, 0.4), ("native", "", 0.25, 0.35)],
                 [("native", 0.25), ("b", 0.5)])):
            self.assertEqual(self.front(*points), front)

    def test_sizes_are_sums_of_bytes_over_sums_of_bytes(self):
        """Of layers of 2000 and of 500 bytes, 1600 and 250 of them the middle's."""
        sizes = ((2000, 1600), (500, 250))
        rows = [{"algorithm": name, "layer": layer, "full_bytes": full, "bytes": full - middle * (1 - held),
                 "middle_ratio": held, "ratio": 1 - middle * (1 - held) / full, "budget_requested": 0.25}
                for name, shares in (("a", (0.1, 0.5)), ("b", (0.05, 1.0)))
                for layer, ((full, middle), held) in enumerate(zip(sizes, shares))]
        path = self.write(rows)
        of_middle = [(160 + 125) / 1850, (80 + 250) / 1850]
        for x, expected in (("middle_ratio", of_middle), ("ratio", [(560 + 375) / 2500, (480 + 500) / 2500])):
            self.near(load(plot_pareto, [path], x=x)["x"], expected)
        self.near(load(plot_error, [path], [], "seeds", mean_over_layers=True)["middle_ratio"], of_middle)

    def test_the_middle_is_that_of_the_row(self):
        """Of 100 and 300 bytes, by what rows read that leave nothing out, and of 50 and 250 with other windows."""
        rows = [{"trace": "t", "prompt": "p", "layer": layer, "q_head": 0, "recent": recent, "full_bytes": 1000.0,
                 "bytes": 1000.0 if recent == 10 else 1000.0 - middle / 2, "middle_ratio": 1 if recent == 10 else 0.5,
                 "read_bytes": 0.25 * middle, "read_ratio": 0.25}
                for recent, middles in ((10, (100, 300)), (60, (50, 250))) for layer, middle in enumerate(middles)]
        weights = kt.bytes_of(pd.DataFrame(rows).astype({"middle_ratio": float}), "read_ratio")
        self.near(list(300 * weights), [100, 300, 50, 250])

    def rows(self):
        points = [("a", 0.5, 0.01), ("a", 0.25, 0.2), ("b", 0.5, 0.1), ("b", 0.25, 0.1),
                  ("c", 0.3, 0.1), ("d", 0.249, 0.3), ("oracle", 0.25, 0.001), ("exact", 1, 1e-16)]
        for name, ratio, error in points:
            for seed, shift in ((0, 0.8), (1, 1.2)):
                yield {"algorithm": name, "ratio": ratio + 0.1, "rel_error": error * shift, "seed": seed,
                       "budget_requested": "" if name == "exact" else ratio, "middle_ratio": ratio}

    def test_lines_bars_and_the_front(self):
        table, said = self.quiet(load, plot_pareto, [self.write(self.rows())])
        # c has b's error with more memory.
        front = plot_pareto.pareto_front(table)
        self.assertEqual(list(front["label"]), ["b", "a", "exact"])
        self.near(front[["x", "mean"]][:2], [(0.25, 0.1), (0.5, 0.01)])
        self.assertIn("note: exact has points", said)
        drawn = plot_pareto.drawn_points(table)
        self.assertNotIn("exact", set(drawn["label"]))
        own = drawn[drawn["label"] == "a"].sort_values("x")
        self.near(own[["x", "mean"]], [(0.25, 0.2), (0.5, 0.01)])  # shares of the middle
        self.near(own["sd"] / own["mean"], [0.2 * math.sqrt(2)] * 2)  # of 0.8 and 1.2 times the mean

    def test_what_sees_the_evaluated_queries_stays_outside_and_the_floor_is_drawn(self):
        rows = [*self.rows(), *(
            {"algorithm": name, "params": params, "middle_ratio": ratio, "rel_error": 0.0005 / ratio,
             "budget_requested": ratio} for ratio in (0.25, 0.5)
            for name, params in (("oracle+uniform", ""), ("a", "keys=oracle"), ("oracle-matching", "")))]
        table, _ = self.quiet(load, plot_pareto, [self.write(rows)])
        front = plot_pareto.pareto_front(table)
        self.assertEqual(list(front["algorithm"]), ["b", "a", "exact"])
        self.assertNotIn("keys=oracle", set(front["params"]))
        axes = plot_pareto.draw(table).axes[0]
        dashed = {line.get_label() for line in axes.lines if line.get_linestyle() == "--"}
        self.assertLessEqual({"oracle", "oracle+uniform", "a keys=oracle"}, dashed)
        self.assertIn("least error known", [text.get_text() for text in axes.texts])

    def test_points_of_fewer_bytes_stand_apart(self):
        path = self.write(points_of([("a", 0.25, 0.25, 0.1), ("a", 0.125, 0.12, 0.2), ("b", 0.25, 0.2, 0.3),
                                     ("b", 0.125, 0.125, 0.4)]))
        table = load(plot_pareto, [path])
        self.near(table.loc[table["apart"], ["x", "mean"]], [(0.2, 0.3)])
        for rows, said in ((path, True), (self.write(many(), "many.csv"), False)):
            self.picture(plot_pareto, rows)
            self.assertEqual("Hollow, not joined: holds less than 95 % of its budget." in self.below, said)

    def test_the_front_is_drawn_whatever_is_left_out(self):
        # The last of all at the smallest budget, and the best at the largest.
        figure = self.picture(plot_pareto, self.write([*many(), *points_of([("late", 0.25, 0.25, 0.2),
                                                                            ("late", 0.125, 0.125, 9)])]))
        self.assertIn("note: 10 of 23 lines", self.said)
        self.assertEqual(bold(figure.axes[0]), {"m00", "late"})

    def test_the_front_is_of_errors_also_where_shares_are_drawn(self):
        # Relative to u, a is best at 0.25 (a tenth); in error b wins at 0.5.
        path = self.write(points_of([("u", 0.25, 0.25, 3), ("u", 0.5, 0.5, 0.4), ("a", 0.25, 0.25, 0.3),
                                     ("b", 0.5, 0.5, 0.2)]))
        table, _ = self.quiet(load, plot_pareto, [path], relative_to="u")
        self.near(table["mean"], [1, 1, 0.1, 0.5])
        self.assertEqual(list(plot_pareto.pareto_front(table)["label"]), ["a", "b"])
        self.picture(plot_pareto, path, "--relative-to", "u")
        self.assertIn("Bold: no other method", self.below)  # no steps are drawn


class SummaryTest(FigureTest):
    COLUMNS = ["algorithm", "params", "budget_requested", "count", "degenerate", "infeasible",
               "failed", "mean_rel_error", "sd_rel_error", "mean_middle_ratio", "sd_middle_ratio"]
    POINTS = [(name, budget, budget, error / budget) for name, error in (("a", 0.1), ("b", 0.2))
              for budget in (0.25, 0.125)]

    def summary(self, *lines, columns=None):
        base = {"params": "", "count": 4, "degenerate": 0, "infeasible": 0, "failed": 0,
                "sd_rel_error": 0.01, "sd_middle_ratio": 0}
        with open(self.path("s.csv"), "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, columns or self.COLUMNS)
            writer.writeheader()
            writer.writerows({**base, **line} for line in lines)
        return self.path("s.csv")

    def summary_lines(self):
        return [{"algorithm": name, "budget_requested": budget, "mean_middle_ratio": held, "mean_rel_error": error}
                for name, budget, held, error in self.POINTS]

    def test_a_summary_has_the_points_of_its_rows(self):
        table = load(plot_pareto, [self.summary(*self.summary_lines())])
        other = load(plot_pareto, [self.write(points_of(self.POINTS))])
        for name in ("label", "size", "front", "apart"):
            self.assertEqual(list(table[name]), list(other[name]), name)
        for name in ("x", "mean", "error"):
            self.near(table[name], other[name])
        self.assertTrue(all(map(math.isnan, table["sd"])))
        self.near(load(plot_pareto, [self.path("s.csv")], spread="all")["sd"], [0.01] * 4)
        self.picture(plot_pareto, self.path("s.csv"), "--model", "M")
        self.assertTrue(self.below.startswith("Model M, a summary of 4 rows in each point. Mean over"))

    def test_parts_are_left_out_and_what_is_no_such_summary_is_refused(self):
        lines = self.summary_lines()
        lines[1].update(infeasible=1, count=3)
        path = self.summary(*lines)
        table, said = self.quiet(load, plot_pareto, [path])
        self.assertEqual(len(table), 3)
        self.assertIn("note: a: points left out because some heads are missing: 1", said)
        for arguments, text in (((path, path), "expected it alone, got 2 files"),
                                ((path, "--layers", "0"), "--layers and --pool need the rows"),
                                ((path, "--algorithm", "c"), "no rows of algorithm c"),
                                ((path, "--y", "eps_fro"), "column `mean_eps_fro` is missing")):
            self.refused(text, plot_pareto, *arguments)
        self.summary(*({**lines[0], "layer": layer} for layer in (0, 1)),
                     columns=[*self.COLUMNS[:3], "layer", *self.COLUMNS[3:]])
        self.refused("expected a summary without --by", plot_pareto, path)
