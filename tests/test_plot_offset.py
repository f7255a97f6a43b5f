"""kvbench-py plot offset against values computed by hand from small tables of single queries."""

import gzip
import os

from plot_tables import STEP_COLUMNS, FigureTest, load
from script_case import read_bytes, write_bytes

from kvbench.plot import style as ks
from kvbench.plot.kinds import offset as plot_offset

COLUMNS = ["schema", "trace", "prompt", "layer", "q_head", "algorithm", "params", "protocol",
           "sink", "recent", "scores", "device", "seed", "n_queries", "budget_requested", "step", "offset",
           "rel_error"]


def line_of(table, label, centre="median"):
    """x and y of a line, by offset."""
    line = table[table["label"] == label].sort_values("offset")
    return [line["offset"].tolist(), line[centre].tolist()]


def rows():
    """a and b at two layers of two heads, four offsets: errors 1 to 4 times the offset's."""
    for name, scale in (("a", 1.0), ("b", 10.0)):
        for layer in (0, 3):
            for head in (0, 1):
                for offset in range(4):
                    yield {"algorithm": name, "layer": layer, "q_head": head, "offset": offset,
                           "step": 96 + offset, "schema": "1.3",
                           "rel_error": scale * (1 + head + 2 * (layer > 0)) * (offset + 1) / 100}


class OffsetTest(FigureTest):
    def table(self, records, name="t.queries.csv", columns=COLUMNS):
        return self.write(records, name, columns=columns)

    def draw(self, path, bins=4, **options):
        table, self.said = self.quiet(load, plot_offset, [path], bins=bins, **options)
        return table

    def test_medians_and_quartiles(self):
        table = self.draw(self.table(rows()))
        self.assertEqual(self.said, "")
        # Of 1, 2, 3, 4: quartiles 1.75, 2.5, 3.25.
        self.near(line_of(table, "a"), [[0, 1, 2, 3], [0.025, 0.05, 0.075, 0.1]])
        self.near(line_of(table, "b")[1], [0.25, 0.5, 0.75, 1.0])
        first = table[table["offset"] == 0].set_index("label")
        self.near(first.loc[["a", "b"], ["low", "high"]], [[0.0175, 0.0325], [0.175, 0.325]])
        plot_offset.draw(table, log_y=True, band=False)

    def test_means_and_bins(self):
        # Two bins of two offsets: of 1, 2, 3, 4 and of 2, 4, 6, 8 the mean is 3.75.
        uneven = [{**r, "rel_error": 0.99} if r["algorithm"] == "a" and r["layer"] and r["q_head"]
                  and r["offset"] == 1 else r for r in rows()]
        table = self.draw(self.table(uneven), bins=2)
        self.near(line_of(table, "b", "mean"), [[0.5, 2.5], [0.375, 0.875]])
        # 0.99 in place of 0.08: the mean moves by 0.91 / 8, the median of 8 not at all.
        self.near(line_of(table, "a", "mean")[1], [0.0375 + 0.91 / 8, 0.0875])
        self.near(line_of(table, "a")[1], [0.035, 0.085])  # 1 2 2 3 4 4 6 x; 3 4 6 8 9 12 12 16

    def test_panels_of_budgets_and_layers(self):
        two = [{**r, "budget_requested": budget, "rel_error": r["rel_error"] * (2 - budget)}
               for r in rows() for budget in (0.25, 0.5)]
        # c has no budget: it stands beside each.
        path = self.table([*two, *({**r, "algorithm": "c", "budget_requested": ""} for r in rows()
                                   if r["algorithm"] == "a")])
        colors = [look["color"] for look in ks.styles("abc").values()]
        for options, panels in (
                ({}, {"budget 0.5": (0.025 * 1.5, 0.025), "budget 0.25": (0.025 * 1.75, 0.025)}),
                ({"budgets": [0.25]}, {"budget 0.25": (0.025 * 1.75, 0.025)}),
                ({"by": "layer", "budgets": [0.5]}, {"layer 0": (0.0225, 0.015), "layer 3": (0.0525, 0.035)}),
                ({"by": "layer", "budgets": [0.5], "layers": [3]}, {"layer 3": (0.0525, 0.035)})):
            axes = plot_offset.draw(self.draw(path, **options), by=options.get("by", "budget")).axes
            self.assertEqual([a.get_title() for a in axes], [*panels])
            for one, expected in zip(axes, panels.values()):
                drawn = {line.get_color(): line.get_ydata()[0] for line in one.lines}
                self.near([drawn[colors[0]], drawn[colors[2]]], expected)

    def test_what_is_not_finite_or_only_rounding(self):
        infinite = [{**r, "rel_error": "inf"} if r["q_head"] and r["layer"] else r for r in rows()]
        exact = [{**r, "algorithm": "exact", "rel_error": 1e-16, "budget_requested": ""}
                 for r in rows() if r["algorithm"] == "a"]
        path = self.table([*infinite, *exact])
        table = self.draw(path)
        self.assertIn("note: exact is exact", self.said)
        self.near(line_of(table, "a")[1][0], 0.025)  # 1, 2, 3, inf
        self.assertEqual({*table["label"]}, {"a", "b"})
        said = self.must(plot_offset, path, "--mean", "-o", self.path("out"))[1]
        self.assertIn("note: a has a mean that is not finite; its line has a gap there", said)

    def test_methods_that_lack_heads_are_left_out(self):
        path = self.table([r for r in rows() if r["algorithm"] == "a" or r["q_head"] == 0])
        self.assertEqual(set(self.draw(path)["label"]), {"a"})
        self.assertIn("note: b: left out where some heads are missing", self.said)
        # Prompts of one name in two traces: b lacks the second.
        path = self.table([{**r, "trace": trace} for trace in "xy" for r in rows()
                           if (trace, r["algorithm"]) != ("y", "b")])
        self.assertEqual(set(self.draw(path)["label"]), {"a"})
        self.assertIn("note: b: left out where some heads are missing", self.said)
        path = self.table([{**r, "rel_error": ""} if r["algorithm"] == "b" else r for r in rows()])
        self.assertEqual(set(self.draw(path)["label"]), {"a"})
        self.assertIn("note: 16 rows without an error are left out (b)", self.said)


class BinsTest(FigureTest):
    """OUT.queries.csv as --per-query writes it, and OUT.csv beside it."""

    COLUMNS = [*plot_offset.LINE_KEYS, *plot_offset.BINS]

    def tables(self, main=({"model": "m"}, {"algorithm": "b", "model": "m"}), name="t"):
        """a and b of two heads, bins 0, 1, 2-3 and 4-7; b's median is ten times a's."""
        main = [{**row, "q_head": head} for row in main for head in (0, 1)]
        self.write([{**row, "algorithm": row.get("algorithm", "a")} for row in main], name + ".csv")
        lines = [{"algorithm": method, "q_head": head, "first": first, "last": last,
                  "queries": last - first + 1, "rel_error_p50": scale * (1 + head) * (first + 1) / 100,
                  "rel_error_mean": scale * (1 + head) * (first + 2) / 100}
                 for method, scale in (("a", 1), ("b", 10)) for head in (0, 1)
                 for first, last in ((0, 0), (1, 1), (2, 3), (4, 7))]
        return self.write(lines, name + ".queries.csv", columns=self.COLUMNS)

    def test_medians_and_means_of_bins(self):
        table, said = self.quiet(load, plot_offset, [self.tables()])
        self.assertEqual(said, "")
        self.near(line_of(table, "a"), [[0, 1, 2.5, 5.5], [0.015, 0.03, 0.045, 0.075]])
        self.near(line_of(table, "b")[1], [0.15, 0.3, 0.45, 0.75])
        first = table[(table["offset"] == 0) & (table["label"] == "a")]
        self.near(first[["low", "high"]], [[0.0125, 0.0175]])
        self.near(line_of(table, "a", "mean")[1], [0.03, 0.045, 0.06, 0.09])
        self.assertEqual(table.attrs["facts"].models, ["m"])
        self.assertIn("of 100 tokens", table.attrs["facts"])

    def test_compressed_tables(self):
        path = self.tables()
        table, _ = self.quiet(load, plot_offset, [path])
        for name in (path, self.path("t.csv")):
            write_bytes(name + ".gz", gzip.compress(read_bytes(name)))
            os.remove(name)
        got, _ = self.quiet(load, plot_offset, [path + ".gz"])
        self.assertTrue(got.equals(table))

    def test_rows_that_are_no_fair_measurements_are_left_out(self):
        path = self.tables(({}, {"algorithm": "b", "status": "degenerate: no head fits"}))
        table, said = self.quiet(load, plot_offset, [path])
        self.assertEqual({*table["label"]}, {"a"})
        self.assertIn("note: 2 degenerate rows are left out (b)", said)

    def test_refusals(self):
        for more, words in (({"sink": 4}, "sink (4, 10)"), ({"model": "n"}, "model (m, n)")):
            self.refused(words, plot_offset, self.tables(({"model": "m"}, {"algorithm": "b", "model": "m", **more})))
        self.must(plot_offset, self.tables(({}, {"algorithm": "b", "precision": "float64"})), "-o", self.path("out"))
        path = self.tables()
        self.write([{"algorithm": "a"}], "u.csv")
        for words, lines, name, columns in (
                ("u.queries.csv: column `first`: expected whole", [
                    {"algorithm": "a", "first": 0.5, "last": 1, "queries": 1, "rel_error_p50": 1, "rel_error_mean": 1}],
                 "u.queries.csv", self.COLUMNS),
                ("t.steps.csv: the steps of a stream, expected OUT.queries.csv of kvbench replay --per-query; "
                 "kvbench-py plot stream OUT.csv draws the steps", [{"budget_requested": 0.5, "step": 9}],
                 "t.steps.csv", STEP_COLUMNS),
                ("x.csv: no table of queries, expected OUT.queries.csv", [{}], "x.csv",
                 ["schema", "algorithm", "params", "status", "step"])):
            self.refused(words, plot_offset, self.write(lines, name, columns=columns))
        self.refused("expected one form", plot_offset, path, self.write(
            ({**row, "trace": "u.h5"} for row in rows()), "v.queries.csv", columns=COLUMNS))
        os.remove(self.path("t.csv"))
        self.refused("t.csv: no such file, expected the table beside", plot_offset, path)
        os.rename(path, self.path("moved.csv"))
        self.refused("moved.csv is not OUT.queries.csv", plot_offset, self.path("moved.csv"))
