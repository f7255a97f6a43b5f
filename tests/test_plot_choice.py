"""Which lines figures of many methods draw, and what the Pareto figure compares."""

import csv
import itertools
import unittest
from unittest import mock

from matplotlib.text import Text
from plot_tables import STEP_COLUMNS, FigureTest, infeasible, load, np
from script_case import read_text

from kvbench import tables as kt
from kvbench.plot import choice as kc
from kvbench.plot import figures as kf
from kvbench.plot import layers as kl
from kvbench.plot.kinds import amnesia as plot_amnesia
from kvbench.plot.kinds import error as plot_error
from kvbench.plot.kinds import offset as plot_offset
from kvbench.plot.kinds import pareto as plot_pareto
from kvbench.plot.kinds import stream as plot_stream

NAMES = [f"m{i:02}" for i in range(20)]  # the error grows with the number
TEN = "10 of 22 lines are drawn"
REFERENCES = ("oracle", "oracle-matching")


class ChoiceCase(FigureTest):
    def picture(self, module, *arguments):
        """The laid-out figure, what was said on stderr, and the text below the figure."""
        figures = []
        with mock.patch.object(kf, "save_figure", lambda figure, _: figures.append(figure)):
            code, said = self.run_script(module, *arguments, "-o", self.path("picture"))
        self.assertEqual(code, 0, said)
        figures[0].canvas.draw()
        below = next(t for t in figures[0].texts if t.get_gid() == "footer").get_text()
        return figures[0], said, " ".join(below.split())

    def shown(self, figure):
        """The methods of ROWS that a figure names, anywhere."""
        texts = {text.get_text() for text in figure.findobj(Text) if text.get_visible()}
        return texts & {*NAMES, *REFERENCES}

    def rows(self, **more):
        return [{"algorithm": name, "budget_requested": budget, "middle_ratio": budget,
                 "rel_error": (0.1 + 0.01 * i) / budget, "amnesia_mass": 0.01 * i, "n_tokens": 1000,
                 "tokens_kept": 20 + 980 * budget, **more}
                for i, name in enumerate([*NAMES, *REFERENCES]) for budget in (0.25, 0.125)]


class RuleTest(ChoiceCase):
    def order(self, *points, **more):
        return kc.ranked(kt.pd.DataFrame(points, columns=["label", "size", "mean"]), **more)

    def test_the_smallest_error_at_the_smallest_budget(self):
        # a wins at a half, b at a quarter; c has none there; d's 0.252 is the same budget.
        points = [("a", 0.5, 1), ("a", 0.25, 5), ("b", 0.5, 2), ("b", 0.25, 4), ("c", 0.5, 0.1),
                  ("d", 0.252, 4.5), ("e", 0.25, np.nan)]
        self.assertEqual(self.order(*points), ["b", "d", "a", "e", "c"])
        for some in itertools.islice(itertools.permutations(points), 0, None, 59):
            self.assertEqual(self.order(*some), ["b", "d", "a", "e", "c"])
        self.assertEqual(self.order(("a", 1, 0.1), ("b", 1, 0.9), higher_better=True), ["b", "a"])
        # Without a size a line stands beside those of every one.
        self.assertEqual(self.order(("a", np.nan, 3), ("b", 0.25, 4), ("c", 0.5, 1)),
                         ["a", "b", "c"])

    def test_what_is_always_drawn(self):
        table = kt.pd.DataFrame([(name, 0.25, i) for i, name in enumerate(NAMES + ["exact"])],
                                columns=["label", "size", "mean"])

        def drawn(every=False, highlight=(), **more):
            rows, text = kc.pick(table, "size", (every, [], highlight), **more)
            return list(rows["label"]), text

        self.assertEqual(drawn()[0], [*NAMES[:9], "exact"])
        self.assertEqual(drawn(highlight=["m15"], first=["m19", "m01"])[0], [*NAMES[:7], "m15", "m19", "exact"])
        self.assertEqual(drawn(highlight=NAMES[5:17])[0], NAMES[5:17])
        self.assertEqual(drawn(every=True), ([*NAMES, "exact"], ""))
        table = table[table["label"].isin(NAMES[:10])]
        self.assertEqual(drawn(), (NAMES[:10], ""))


class FiguresTest(ChoiceCase):
    def check(self, module, path, *arguments):
        figure, said, below = self.picture(module, path, *arguments)
        self.assertEqual(self.shown(figure), {*NAMES[:8], *REFERENCES})
        self.assertIn(f"note: {TEN}: the references and those of the smallest", said)
        self.assertIn("--all draws all, --algorithms NAME,... those that it names", said)
        self.assertIn(f"{TEN}, the references and those of the smallest", below)
        figure, said, below = self.picture(module, path, *arguments, "--all")
        self.assertEqual(self.shown(figure), {*NAMES, *REFERENCES})
        self.assertNotIn("lines are drawn", said + below)
        some = NAMES[4:16]
        figure, said, below = self.picture(module, path, *arguments, "--algorithms", ",".join(some))
        self.assertEqual(self.shown(figure), set(some))
        self.assertNotIn("lines are drawn", said + below)

    def test_ten_of_many(self):
        for module in (plot_pareto, plot_error, plot_amnesia):
            with self.subTest(module.__name__):
                self.check(module, self.write(self.rows()))

    def test_ten_of_many_along_the_queries(self):
        rows = [{**row, "offset": offset} for row in self.rows() for offset in range(3)]
        self.check(plot_offset, self.write(rows, "t.queries.csv"))
        for row in rows:
            row["layer"] = 3
        self.check(plot_offset, self.write(rows, "t.queries.csv"), "--by", "layer", "--budgets",
                   "0.125")

    def test_ten_of_many_along_a_stream(self):
        rows = self.rows(protocol="stream")
        steps = [{**row, "step": step} for row in rows for step in (199, 599, 999)]
        self.write(steps, "t.steps.csv", columns=STEP_COLUMNS)
        self.check(plot_stream, self.write(rows))

    def test_captions_have_all(self):
        path = self.write(self.rows())
        for module, name in ((plot_error, "m19"), (plot_amnesia, "m19"), (plot_pareto, "m00")):
            self.must(module, path, "-o", self.path("x.png"), "--caption", self.path("x.txt"))
            self.assertIn(name, read_text(self.path("x.txt")).partition("Trace")[0])


class FrontTest(ChoiceCase):
    def front(self, *rows):
        """rows: algorithm, requested budget, share of the middle that is held, error."""
        path = self.write([{"algorithm": name, "budget_requested": budget, "middle_ratio": held,
                            "rel_error": error} for name, budget, held, error in rows])
        table, _ = self.quiet(load, plot_pareto, [path])
        self.assertEqual(list(table.loc[table["front"], "label"].sort_values()),
                         sorted(plot_pareto.pareto_front(table)["label"]))
        return list(plot_pareto.pareto_front(table)[["label", "size"]].itertuples(index=False,
                                                                                  name=None))

    def test_fewest_bytes_are_not_enough(self):
        # c holds a little less of each budget than the others and is far worse: bytes alone would
        # put it on the front.
        rows = [("a", 0.25, 0.25, 0.1), ("a", 0.125, 0.125, 0.2), ("b", 0.25, 0.25, 0.12),
                ("b", 0.125, 0.125, 0.15), ("c", 0.25, 0.248, 0.5), ("c", 0.125, 0.123, 0.6)]
        self.assertEqual(self.front(*rows), [("b", 0.125), ("a", 0.25)])
        # Nor at a budget, or a native size, that no other has.
        self.assertEqual(self.front(*rows, ("c", 0.0625, 0.062, 0.7), ("c", "", 0.01, 0.9)),
                         [("b", 0.125), ("a", 0.25)])
        # Two that have it: the better one is on the front.
        self.assertEqual(self.front(*rows, ("c", 0.0625, 0.062, 0.7), ("d", 0.0625, 0.062, 0.8)),
                         [("c", 0.0625), ("b", 0.125), ("a", 0.25)])
        self.assertEqual(self.front(("a", 0.25, 0.25, 0.1), ("a", 0.5, 0.5, 0.05)), [])
        # An oracle is no one to beat.
        self.assertEqual(self.front(("a", 0.25, 0.25, 0.1), ("oracle", 0.25, 0.25, 0.2)), [])

    def test_what_is_not_whole_is_not_on_the_front(self):
        rows = [{"algorithm": name, "q_head": head, "budget_requested": 0.25, "middle_ratio": 0.25,
                 "rel_error": error} for name, error in (("a", 0.2), ("b", 0.3)) for head in (0, 1)]
        best = {"algorithm": "best", "budget_requested": 0.25}
        for bad in (infeasible(**best, q_head=1),
                    {**best, "q_head": 1, "rel_error": 0.01, "status": "degenerate: empty"}):
            path = self.write([*rows, {**best, "q_head": 0, "middle_ratio": 0.25, "rel_error": 0.01},
                               bad])
            table, said = self.quiet(load, plot_pareto, [path])
            self.assertEqual(list(plot_pareto.pareto_front(table)["label"]), ["a"])
            self.assertIn("best: points left out because some heads are missing: 1", said)

    def test_points_of_fewer_bytes_stand_apart(self):
        rows = [("a", 0.25, 0.25, 0.1), ("a", 0.125, 0.12, 0.2), ("b", 0.25, 0.2, 0.3),
                ("b", 0.125, 0.125, 0.4)]
        path = self.write([{"algorithm": name, "budget_requested": budget, "middle_ratio": held,
                            "rel_error": error} for name, budget, held, error in rows])
        figure, _, below = self.picture(plot_pareto, path)
        lines = [line for line in figure.axes[0].lines if line.get_marker() not in ("None", None, "")]
        joined = {line.get_label(): line for line in lines if line.get_linestyle() != "None"}
        self.near(joined["a"].get_xdata(), [0.12, 0.25])
        self.near(joined["b"].get_xdata(), [0.125])
        (apart,) = [line for line in lines if line.get_linestyle() == "None"]
        self.near([apart.get_xdata(), apart.get_ydata()], [[0.2], [0.3]])
        self.assertEqual(apart.get_markerfacecolor(), "white")
        self.assertIn("Hollow, not joined: holds less than 95 % of its budget.", below)
        self.assertNotIn("Hollow", self.picture(plot_pareto, self.write(self.rows()))[2])

    def test_the_share_of_the_middle_is_the_default(self):
        rows = [{"algorithm": name, "budget_requested": 0.25, "middle_ratio": 0.25, "ratio": 0.35,
                 "rel_error": error} for name, error in (("a", 0.1), ("b", 0.2))]
        figure, _, _ = self.picture(plot_pareto, self.write(rows))
        self.near(figure.axes[0].lines[0].get_xdata(), [0.25])
        self.assertEqual(figure.axes[0].get_xlabel(), "bytes held / bytes of the full middle")

    def test_the_front_is_drawn_whatever_is_left_out(self):
        # The last of all at the smallest budget, and the best at the largest.
        rows = [*self.rows(), {"algorithm": "late", "budget_requested": 0.25, "middle_ratio": 0.25,
                               "rel_error": 0.2},
                {"algorithm": "late", "budget_requested": 0.125, "middle_ratio": 0.125,
                 "rel_error": 9}]
        figure, said, _ = self.picture(plot_pareto, self.write(rows))
        self.assertIn("note: 10 of 23 lines", said)
        bold = {t.get_text() for t in figure.axes[0].texts if t.get_weight() == "bold"}
        self.assertEqual(bold, {"m00", "late"})


class SummaryTest(ChoiceCase):
    COLUMNS = ["algorithm", "params", "budget_requested", "count", "degenerate", "infeasible",
               "failed", "mean_rel_error", "sd_rel_error", "mean_middle_ratio", "sd_middle_ratio"]

    def summary(self, *lines, columns=None):
        columns = columns or self.COLUMNS
        base = {"params": "", "count": 4, "degenerate": 0, "infeasible": 0, "failed": 0,
                "sd_rel_error": 0.01, "sd_middle_ratio": 0}
        with open(self.path("s.csv"), "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows({**base, **line} for line in lines)
        return self.path("s.csv")

    def lines(self):
        return [{"algorithm": name, "budget_requested": budget, "mean_middle_ratio": budget,
                 "mean_rel_error": error / budget} for name, error in (("a", 0.1), ("b", 0.2))
                for budget in (0.25, 0.125)]

    def test_a_summary_has_the_points_of_its_rows(self):
        table = load(plot_pareto, [self.summary(*self.lines())])
        rows = [{"algorithm": line["algorithm"], "budget_requested": line["budget_requested"],
                 "middle_ratio": line["mean_middle_ratio"], "rel_error": line["mean_rel_error"]}
                for line in self.lines()]
        other = load(plot_pareto, [self.write(rows)])
        for name in ("label", "size", "front", "apart"):
            self.assertEqual(list(table[name]), list(other[name]), name)
        for name in ("x", "mean", "error"):
            self.near(table[name], other[name])
        self.assertTrue(np.isnan(table["sd"]).all())
        self.near(load(plot_pareto, [self.path("s.csv")], spread="all")["sd"], [0.01] * 4)
        _, _, below = self.picture(plot_pareto, self.path("s.csv"), "--model", "M")
        self.assertTrue(below.startswith("Model M, a summary of 4 rows in each point. Mean over"))

    def test_parts_are_left_out_and_what_is_no_such_summary_is_refused(self):
        lines = self.lines()
        lines[1].update(infeasible=1, count=3)
        table, said = self.quiet(load, plot_pareto, [self.summary(*lines)])
        self.assertEqual(len(table), 3)
        self.assertIn("note: a: points left out because some heads are missing: 1", said)
        path = self.path("s.csv")
        for arguments, text in (((path, path), "expected it alone, got 2 files"),
                                ((path, "--layers", "0"), "--layers and --pool need the rows"),
                                ((path, "--algorithms", "c"), "no rows of algorithm c"),
                                ((path, "--y", "eps_fro"), "column `mean_eps_fro` is missing")):
            self.assertIn(text, self.must(plot_pareto, *arguments, "-o", path, code=2)[1])
        by = self.summary({**self.lines()[0], "layer": 0}, {**self.lines()[0], "layer": 1},
                          columns=[*self.COLUMNS[:3], "layer", *self.COLUMNS[3:]])
        self.assertIn("expected a summary without --by",
                      self.must(plot_pareto, by, "-o", path, code=2)[1])


class AxesTest(ChoiceCase):
    def test_the_axis_says_where_t_is_from(self):
        def titles(*params):
            figure, _, _ = self.picture(plot_error, self.write(
                [{"algorithm": name, "params": text, "budget_requested": 0.25}
                 for name, text in zip("ab", params)]))
            return figure._supxlabel.get_text()

        self.assertEqual(titles("T=2", "T=2"), "halvings $T$")
        self.assertEqual(titles("", "T=auto"), "halvings ($-\\log_2$ of the budget)")
        self.assertEqual(titles("", "T=2"), "halvings ($T$, or $-\\log_2$ of the budget)")

    def test_maps_below_lines_over_bytes_are_over_budgets(self):
        path = self.write([{"layer": layer, "algorithm": name, "budget_requested": budget,
                            "middle_ratio": budget * share, "rel_error": 0.1 / budget}
                           for layer in range(12) for name, share in (("a", 1), ("b", 0.97))
                           for budget in (0.25, 0.125)])
        for x, lines, maps, ticks in (
                ("middle_ratio", "middle_ratio", "budget", ["1/4", "1/8"]),
                ("budget", "budget", "budget", ["1/4", "1/8"]), ("T", "log2", "log2", ["2", "3"])):
            figure, _, _ = self.picture(plot_error, path, "--x", x)
            (top, bottom) = figure.subfigs
            self.assertEqual(top.axes[0].get_xlabel(), plot_error.AXIS_LABELS[lines])
            self.assertEqual(bottom._supxlabel.get_text(), plot_error.AXIS_LABELS[maps])
            self.assertEqual([t.get_text() for t in bottom.axes[0].get_xticklabels()], ticks)

    def test_lines_of_an_overview_lie_within_the_axes(self):
        path = self.write([{"layer": layer, "algorithm": name, "params": f"T={t}",
                            "rel_error": 0.1 * t + 0.001 * layer}
                           for layer in range(12) for name in "ab" for t in (1, 2, 3)])
        figure, _, _ = self.picture(plot_error, path)
        self.assertTrue(figure.get_label().startswith(kl.OVERVIEW))
        axes = figure.subfigs[0].axes[0]
        lines = [line for line in axes.lines if line.get_marker() not in "_|"]  # without caps of bars
        self.assertEqual(len(lines), 2)
        for line in lines:
            inside = axes.get_window_extent().contains
            for point in line.get_transform().transform(line.get_xydata()):
                self.assertTrue(inside(*point), point)

    def test_other_tables_are_named_with_what_draws_them(self):
        rows = [{"budget_requested": 0.5, "step": 9}]
        steps = self.write(rows, "t.steps.csv", columns=STEP_COLUMNS)
        said = self.must(plot_offset, steps, "-o", self.path("x"), code=2)[1]
        self.assertIn("t.steps.csv: the steps of a stream, expected OUT.queries.csv of kvbench replay "
                      "--per-query; kvbench-py plot stream OUT.csv draws the steps", said)
        table = self.write(self.rows(), columns=["schema", "algorithm", "params", "status", "step"])
        said = self.must(plot_offset, table, "-o", self.path("x"), code=2)[1]
        self.assertIn("t.csv: no table of queries, expected OUT.queries.csv", said)


if __name__ == "__main__":
    unittest.main()
