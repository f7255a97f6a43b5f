"""kvbench-study correlate: correlations by hand and by scipy, what is left out and said,
refusals. Its arithmetic alone: test_correlate_pairs.py; its pictures: test_correlate_pictures.py."""

import random
import statistics
import sys
import unittest

from correlate_tables import MANY, REVERSED, ROW_COLUMNS, SCIPY, SCORE_COLUMNS, SEVEN, UP, Tables, grid
from plot_tables import np
from test_correlate_pairs import of_scipy

if SCIPY:
    from kvbench import tables as kt
    from kvbench_study.correlate import cells as cc
    from kvbench_study.correlate import ranks as cr


@unittest.skipUnless(SCIPY, f"{sys.executable} has no scipy")
class CorrelateTest(Tables):
    def test_perfect_and_reversed(self):
        """Every metric is turned so that a good predictor has 1, and a bad one -1."""
        rows, layers = self.write_rows(grid(UP)), self.write_layers(grid(UP))
        upside_down = {"a": 0.05, "b": 0.03, "c": 0.02, "d": 0.01}
        for values, sign in ((UP, 1), (upside_down, -1)):
            scores = self.write_scores(grid(values))
            self.correlate(rows, "--layer-table", layers, "--score-table", scores, "--csv",
                           self.path("c.csv"))
            found = self.table("c.csv")
            metrics = {line["metric"] for line in found}
            self.assertEqual(metrics, {cc.turned_name(m) for m in
                                       [*cc.HEAD_METRICS, *kt.LAYER_METRICS]})
            self.assertLessEqual({"1-cosine", "1-mass_kept"}, metrics)
            for line in found:
                with self.subTest(**line):
                    if sign > 0 or line["scope"] not in ("all", "prompt all"):
                        # Else methods go the other way, and budgets the same.
                        self.near([line["spearman"], line["kendall"]], [sign, sign])
                    size = {"0.5": 4, "0.25": 4}.get(line["scope"], 8)
                    self.assertEqual((line["cells"], line["prompts"]), (str(size), "2"))
            # Two prompts are too few for intervals.
            self.assertEqual({line["spearman_low"] for line in found}, {""})

    def test_scores_with_and_without_later_columns(self):
        """Tables of prompts that were scored before answers had likelihoods stand beside later ones."""
        rows, figures = self.write_rows(grid(UP)), grid(UP)
        whole = self.write_scores(figures)
        old = self.write_scores({key: value for key, value in figures.items() if key[0] == "p0"}, "old.csv")
        new = self.write_scores({key: value for key, value in figures.items() if key[0] != "p0"}, "new.csv",
                                [*SCORE_COLUMNS, "answer_nll", "choice_right"], answer_nll=lambda _: 2.5,
                                choice_right=lambda _: 1)
        for files in ((old, new), (new, old)):
            self.assertEqual(self.lines(rows, "--score-table", *files)[0], self.lines(rows, "--score-table", whole)[0])

    def test_by_counting_pairs(self):
        """Ties, two prompts, medians: the same from the tables by loops."""
        dice = random.Random(3)
        keys = list(grid(UP))
        rows = {key: dice.choice((0.01, 0.02, 0.05)) for key in keys}
        scores = {key: dice.choice((0.1, 0.2, 0.4)) for key in keys}
        cells = list(dict.fromkeys((budget, method) for _, method, budget in keys))
        heads = [(1 + a) * (1 + b) for a in (0.5, -0.5) for b in (0.2, -0.2)]

        def side(values, cell, reduce):
            return reduce([[values[p, cell[1], cell[0]] * h for h in heads] for p in ("p0", "p1")])

        reductions = {
            "mean": lambda parts: sum(map(sum, parts)) / 8,
            "median": lambda parts: statistics.median(sum(parts, [])),
            "prompt_median": lambda parts: sum(map(statistics.median, parts)) / 2}
        files = self.write_rows(rows), "--score-table", self.write_scores(scores)
        y = {cell: round(sum(scores[p, cell[1], cell[0]] for p in ("p0", "p1")), 9)
             for cell in cells}
        for name, reduce in reductions.items():
            x = {cell: round(side(rows, cell, reduce), 9) for cell in cells}
            got, _ = self.lines(*files, reduction=name)
            by_budget = {}
            for scope, some in (("all", cells), ("0.5", cells[:4]), ("0.25", cells[4:])):
                pair = [x[c] for c in some], [y[c] for c in some]
                by_budget[scope] = of_scipy(*pair)
                self.near([got["kl", scope][m] for m in ("spearman", "kendall")],
                          by_budget[scope])
            self.near([got["kl", "within"][m] for m in ("spearman", "kendall")],
                      np.mean([by_budget["0.5"], by_budget["0.25"]], axis=0))
            # One prompt at a time, then the mean.
            alone = []
            for p in ("p0", "p1"):
                pair = ([round(reduce([[rows[p, c[1], c[0]] * h for h in heads]] * 2), 9)
                         for c in cells], [scores[p, c[1], c[0]] for c in cells])
                alone.append(of_scipy(*pair))
            self.near([got["kl", "prompt all"][m] for m in ("spearman", "kendall")],
                      np.mean(alone, axis=0))

    def test_seeds_are_averaged(self):
        """One side's figure of a cell is the mean of its seeds: b stands between a and c only so."""
        figures = grid({"a": 0.02, "b": 0.02, "c": 0.03})
        rows = []
        for seed, factor in ((0, 0.5), (1, 2.0)):
            path = self.write_rows({k: v for k, v in figures.items()
                                    if k[1] == "b" or seed == 0}, f"r{seed}.csv",
                                   seed=lambda _, seed=seed: seed, rel_error=lambda row, f=factor:
                                   row["rel_error"] * (f if row["algorithm"] == "b" else 1))
            rows.append(path)
        scores = [self.write_scores({k: v for k, v in grid({"a": 1, "b": 2, "c": 3}).items()
                                     if k[1] == "b" or seed == 0}, f"s{seed}.csv",
                                    seed=lambda _, seed=seed: seed) for seed in (0, 1)]
        got, _ = self.lines(*rows, "--score-table", *scores)
        self.near(got["kl", "within"]["spearman"], 1.0)
        _, said = self.lines(*rows, "--score-table", scores[0])  # Seed 1 has no scores: 0 alone counts.
        self.assertNotIn("left out", said)
        got, _ = self.lines(*rows, "--score-table", scores[0])
        self.near(got["kl", "within"]["spearman"], 0.5)  # b, a, c against a, b, c.

    def test_needles(self):
        """Only prompts that the exact model answers right count for wrong answers."""
        figures = grid(UP, prompts=("n0", "n1", "n2", "plain"), budgets=(0.5,))
        wrong = {("a", "n0"): 0, ("b", "n0"): 0, ("c", "n0"): 1, ("d", "n0"): 1,
                 ("a", "n1"): 0, ("b", "n1"): 1, ("c", "n1"): 0, ("d", "n1"): 1}

        def right(row):
            if row["prompt"] == "plain":
                return ""
            # The exact model fails n2: whatever a method says there does not count.
            return 1 - wrong.get((row["algorithm"], row["prompt"]), row["algorithm"] == "a")

        scores = self.write_scores(figures, answer_right=right, answer_exact_right=lambda row: {
            "plain": "", "n2": 0}.get(row["prompt"], 1))
        self.correlate(self.write_rows(figures), "--score-table", scores, "--csv", self.path("c.csv"),
                       "--cells", self.path("cells.csv"))
        cells = {row["method"]: row for row in self.table("cells.csv")}
        self.near([cells[m]["wrong_answers"] for m in "abcd"], [0, 0.5, 0.5, 1])
        line = next(r for r in self.table("c.csv") if (r["score"], r["metric"], r["reduction"],
                                                       r["scope"]) ==
                    ("wrong_answers", "rel_error", "mean", "all"))
        self.assertEqual((line["prompts"], line["cells"]), ("2", "4"))
        self.near([line["spearman"], line["kendall"]], of_scipy([1, 2, 3, 4], [0, .5, .5, 1]))
        usual = next(r for r in self.table("c.csv") if r["score"] == "kl" and r["scope"] == "all")
        self.assertEqual(usual["prompts"], "4")
        # Nobody's exact answer is right: there is no such score.
        scores = self.write_scores(figures, answer_right=right,
                                   answer_exact_right=lambda row: "" if row["prompt"] == "plain"
                                   else 0)
        got, _ = self.lines(self.write_rows(figures), "--score-table", scores)
        self.assertEqual({score for score, _ in got}, {"kl", "loss_change", "1-top_agreement"})

    def test_the_best_and_who_is_misjudged(self):
        """eps_fro is the score itself; the others have its reverse."""
        figures = grid(REVERSED, MANY)
        truth = grid(SEVEN, MANY)
        rows = self.write_rows(figures, eps_fro=lambda row: truth[
            row["prompt"], row["algorithm"], row["budget_requested"]])
        self.correlate(rows, "--score-table", self.write_scores(truth), "--csv", self.path("c.csv"),
                       "--misjudged", self.path("m.csv"), "--markdown", self.path("c.md"))
        lines = {(r["metric"], r["reduction"], r["scope"]): r for r in self.table("c.csv")
                 if r["score"] == "kl"}
        self.assertEqual([lines["eps_fro", "mean", s]["verdict"] for s in ("all", "within")],
                         ["best", "best"])
        for scope in ("all", "within"):
            line = lines["rel_error", "mean", scope]
            self.assertEqual(line["verdict"], "worse")
            self.near(line["behind"], 1 - float(line["spearman"]))
            self.assertGreater(float(line["behind_low"]), 0)
        # Alike at every resample: not told from the best.
        self.assertEqual(lines["eps_fro", "median", "all"]["verdict"], "alike")
        places = {r["method"]: r for r in self.table("m.csv")
                  if (r["score"], r["metric"], r["reduction"]) == ("kl", "rel_error", "mean")}
        # By rel_error g is the first of seven, by the score the last.
        self.near([places[m]["places"] for m in SEVEN], [6, 4, 2, 0, -2, -4, -6])
        self.assertEqual([places[m]["verdict"] for m in SEVEN],
                         ["slandered"] * 3 + [""] + ["flattered"] * 3)
        self.assertEqual({r["places"] for r in self.table("m.csv") if r["metric"] == "eps_fro"
                          and r["score"] == "kl"}, {"0.0"})
        with open(self.path("c.md"), encoding="utf-8") as file:
            text = file.read()
        self.assertIn("| `eps_fro` | **1.00** [1.00, 1.00] |", text)
        self.assertIn("14 cells (7 methods at 2 budgets), 6 prompts.", text)
        self.assertIn("- KL divergence, over all cells: `eps_fro` predicts best (1.00 [1.00, 1.00], 6 "
                      "prompts, 7 methods); every other metric is behind it.", text)
        self.assertIn("g (-6.0)", text)

    def test_the_highest_is_not_the_best_where_another_is_alike(self):
        truth = grid(SEVEN, MANY)
        figures = grid(REVERSED, MANY)
        same = {name: lambda row: truth[row["prompt"], row["algorithm"], row["budget_requested"]]
                for name in ("eps_fro", "eps_op")}
        text, said = self.correlate(self.write_rows(figures, **same), "--score-table",
                                    self.write_scores(truth), "--csv", self.path("c.csv"),
                                    "--markdown", "-")
        self.assertNotIn("not enough", said + text)
        verdicts = {r["metric"]: r["verdict"] for r in self.table("c.csv")
                    if (r["score"], r["scope"], r["reduction"]) == ("kl", "all", "mean")}
        self.assertEqual([verdicts[m] for m in ("eps_fro", "eps_op", "rel_error")],
                         ["highest", "alike", "worse"])
        self.assertIn("- KL divergence, over all cells: `eps_fro` has the highest correlation (1.00 "
                      "[1.00, 1.00], 6 prompts, 7 methods); 5 of 38 others cannot be told from it, so "
                      "none is best.", text)
        self.assertNotIn("predicts best", text)

    def test_too_little_to_rank(self):
        few = {name: SEVEN[name] for name in list(SEVEN)[:6]}
        for values, prompts, numbers in ((few, MANY, "6 prompts and 6 methods"),
                                         (SEVEN, MANY[:3], "3 prompts and 7 methods"),
                                         ({"a": 0.01, "b": 0.02}, MANY[:1], "1 prompt and 2 methods")):
            truth = grid(values, prompts, (0.5, 0.25, 0.125))
            rows = self.write_rows(truth)
            arguments = rows, "--score-table", self.write_scores(truth), "--csv", self.path("c.csv")
            text, said = self.correlate(*arguments, "--markdown", "-")
            words = f"not enough to rank metrics: {numbers}, expected at least 4 and 7"
            self.assertIn(f"note: kl: {words}\n", said)
            self.assertIn(f"- KL divergence, over all cells: {words}.\n", text)
            self.assertFalse("best" in text or "**" in text, text)
            lines = self.table("c.csv")
            self.assertEqual({line["verdict"] for line in lines}, {""})
            self.assertEqual({line["methods"] for line in lines}, {str(len(values))})
            # Intervals are of the prompts: they need these alone.
            some = [line["spearman_low"] != "" for line in lines if line["scope"] == "all"]
            self.assertEqual(set(some), {len(prompts) == 6})

    def test_a_weak_correlation_is_not_the_best(self):
        # eps_fro has some of the score's order, and all else has the reverse.
        truth = grid(SEVEN, MANY, (0.5,))
        weak = dict(zip(SEVEN, (0.03, 0.02, 0.01, 0.08, 0.05, 0.06, 0.04)))
        rows = self.write_rows(grid(REVERSED, MANY, (0.5,)),
                               eps_fro=lambda row: weak[row["algorithm"]])
        text, _ = self.correlate(rows, "--score-table", self.write_scores(truth), "--csv",
                                 self.path("c.csv"), "--markdown", "-")
        lines = {(r["metric"], r["reduction"]): r for r in self.table("c.csv")
                 if (r["score"], r["scope"]) == ("kl", "all")}
        self.assertEqual({r["verdict"] for (metric, _), r in lines.items() if metric != "eps_fro"},
                         {"worse"})
        self.assertEqual(lines["eps_fro", "mean"]["verdict"], "highest")
        self.assertIn("7 methods); with so many methods that may be luck, so none is best.", text)

    def test_methods_to_rank(self):
        for compared, methods in ((1, 5), (3, 5), (4, 6), (18, 6), (19, 7), (126, 7), (127, 8)):
            self.assertEqual(cr.methods_to_rank(compared), methods)

    def test_the_same_again(self):
        dice = random.Random(4)
        figures = {key: value * dice.uniform(0.3, 3) for key, value in grid(UP, MANY).items()}
        rows = self.write_rows(figures)
        scores = self.write_scores({k: v * dice.uniform(0.3, 3) for k, v in figures.items()})
        texts = []
        for seed in ("0", "0", "1"):
            self.correlate(rows, "--score-table", scores, "--csv", self.path("c.csv"), "--misjudged",
                           self.path("m.csv"), "--seed", seed)
            with open(self.path("c.csv"), encoding="utf-8") as c, \
                    open(self.path("m.csv"), encoding="utf-8") as m:
                texts.append(c.read() + m.read())
        self.assertEqual(texts[0], texts[1])
        self.assertNotEqual(texts[0], texts[2])
        for line in self.table("c.csv"):
            if line["scope"] in ("all", "within"):
                low, high = float(line["spearman_low"]), float(line["spearman_high"])
                self.assertTrue(-1 <= low <= high <= 1, line)


@unittest.skipUnless(SCIPY, f"{sys.executable} has no scipy")
class LeftOutTest(Tables):
    def test_one_side_only(self):
        """Prompts and methods of one side are named and do not count."""
        whole = self.write_rows(grid(UP)), "--score-table", self.write_scores(grid(UP))
        want, said = self.lines(*whole)
        self.assertNotIn("without", said)
        rows = self.write_rows({**grid({**UP, "r": 9}), **grid(UP, ("mine",))})
        scores = self.write_scores({**grid({**UP, "s": 0}), **grid(UP, ("theirs",))})
        got, said = self.lines(rows, "--score-table", scores)
        self.assertEqual(got, want)
        for words in ("prompts without scores: mine", "prompts without rows: theirs",
                      "methods without scores: r", "methods without rows: s"):
            self.assertIn(words, said)

    def test_cells_that_lack_a_prompt(self):
        figures = grid({**UP, "part": 0.04, "weak": 0.06})
        short = {k: v for k, v in figures.items() if k != ("p1", "part", 0.5)}
        rows = self.write_rows(figures, status=lambda row: "infeasible: too small" if
                               (row["algorithm"], row["q_head"], row["budget_requested"]) ==
                               ("weak", 1, 0.25) else "ok")
        got, said = self.lines(rows, "--score-table", self.write_scores(short))
        self.assertIn("part at budget 0.5 left out: it lacks 1 of 2 prompts (no rows, scores or "
                      "seeds): p1", said)
        self.assertIn("weak at budget 0.25 left out: it lacks 2 of 2 prompts (heads infeasible", said)
        self.assertEqual([got["kl", s]["cells"] for s in ("all", "0.5", "0.25")], ["10", "5", "5"])
        failed = self.write_scores(figures, status=lambda row: "failed: x" if
                                   row["algorithm"] == "part" else "ok")
        _, said = self.lines(self.write_rows(figures), "--score-table", failed)
        self.assertIn("failed rows are left out (part)", said)

    def test_metrics_without_values(self):
        layers = self.write_layers(grid(UP), residual="")
        rows = self.write_rows(grid(UP), log_z_error=lambda row: "nan" if row["algorithm"] == "b"
                               else row["rel_error"])
        _, said = self.correlate(rows, "--layer-table", layers, "--score-table", self.write_scores(grid(UP)),
                                 "--csv", self.path("c.csv"))
        self.assertIn("residual_rel_error left out: the tables have no values of it", said)
        self.assertIn("log_z_error left out: not finite for b", said)
        metrics = {line["metric"] for line in self.table("c.csv")}
        self.assertIn("out_rel_error", metrics)
        self.assertFalse(metrics & {"residual_rel_error", "log_z_error"})

    def test_a_constant_side_has_no_correlation(self):
        figures = grid(UP, MANY)
        scores = self.write_scores(figures, kl=lambda row: 1.0 if row["budget_requested"] == 0.5
                                   else row["kl"], top_agreement=lambda _: 1.0)
        got, _ = self.lines(self.write_rows(figures), "--score-table", scores)
        self.assertEqual(got["kl", "0.5"]["spearman"], "")
        self.assertEqual(got["1-top_agreement", "all"]["spearman"], "")
        # The mean over budgets is of those at which the score differs.
        self.near(got["kl", "within"]["spearman"], 1.0)
        self.assertEqual(got["kl", "within"]["cells"], "4")
        text, _ = self.correlate(self.path("rows.csv"), "--score-table", scores)
        self.assertIn("other top token, over all cells: no correlation", text)

    def test_a_predicted_loss(self):
        """Only the second layer counts, and the first layer's errors go the other way."""
        loss = grid(SEVEN, MANY)
        layers = self.write_layers(loss, residual=lambda key, layer:
                                   np.sqrt(loss[key]) if layer else 0.6 - np.sqrt(loss[key]))
        found, _ = self.lines(self.write_rows(loss), "--layer-table", layers, "--score-table", self.write_scores(loss),
                              "--predict", metric="kl_predicted")
        self.near([found["kl", scope]["spearman"] for scope in ("0.5", "0.25")], [1, 1])
        # Equal losses at two budgets have nearly equal predictions.
        self.assertGreater(float(found["kl", "all"]["spearman"]), 0.99)
        self.assertEqual(found["kl", "all"]["level"], "model")

    def test_few_cells_of_a_budget(self):
        figures = {**grid(UP, budgets=(0.5,)), **grid({"a": 1, "b": 2}, budgets=(0.1,))}
        got, said = self.lines(self.write_rows(figures), "--score-table", self.write_scores(figures))
        self.assertIn("budget 0.1: 2 cells, expected at least 3 for its own correlations", said)
        self.assertEqual({scope for _, scope in got}, {"all", "0.5", "within", "prompt all",
                                                       "prompt within"})

    def test_refusals(self):
        figures = grid(UP)
        rows, scores = self.write_rows(figures), self.write_scores(figures)
        layers = self.write_layers(figures)

        def other(**more):
            return self.write_scores(figures, "other.csv", **more)

        first = ("p0", "a", 0.5)
        cases = [
            ("no prompt in common: the rows have p0, p1, the scores q",
             lambda: [rows, "--score-table", self.write_scores(grid(UP, ("q",)), "o.csv")]),
            ("no method in common: the rows have a, b, c, d, the scores z",
             lambda: [rows, "--score-table", self.write_scores(grid({"z": 1}), "o.csv")]),
            ("(trace, prompt, algorithm, params, budget, seed) in common",
             lambda: [rows, "--score-table", other(params=lambda _: "T=1")]),
            ("column `kl`: got nan at prompt p0, a", lambda: [rows, "--score-table", other(
                kl=lambda row: "nan" if row["algorithm"] == "a" else 1)]),
            ("column `kl`: got `x`", lambda: [rows, "--score-table", other(kl=lambda _: "x")]),
            ("duplicate row: prompt p0, a, budget 0.5, seed 0",
             lambda: [rows, "--score-table", scores, scores]),
            ("duplicate row: prompt p0, layer 0", lambda: [rows, rows, "--score-table", scores]),
            ("column `top_agreement` is missing", lambda: [rows, "--score-table", self.write_scores(
                figures, "o.csv", columns=[c for c in SCORE_COLUMNS if c != "top_agreement"])]),
            ("column `eps_op` is missing", lambda: [self.write(
                [dict.fromkeys(cc.HEAD_METRICS, 0)], "o.csv",
                columns=[*ROW_COLUMNS, *cc.HEAD_METRICS[:6]]), "--score-table", scores]),
            ("no column of rel_error, ", lambda: [self.write(
                [{"seeds": 1}], "o.csv", columns=["seeds"]), "--score-table", scores]),
            ("1 cells (method and budget)", lambda: [rows, "--score-table", self.write_scores(
                {k: v for k, v in figures.items() if k[1:] == first[1:]}, "o.csv")]),
            ("expected 0, 1, a mean of these or nothing", lambda: [rows, "--score-table", other(
                answer_right=lambda _: 2)]),
            ("`answer_exact_right` differs within prompt p0", lambda: [rows, "--score-table", other(
                answer_right=lambda _: 1,
                answer_exact_right=lambda row: int(row["algorithm"] == "a"))]),
            ("no row of prompt p1, layer 3, a, which the main table has",
             lambda: [rows, "--score-table", scores, "--layer-table",
                      self.write_layers(figures, "o.csv", drop={("p1", 3)})]),
            ("--predict: expected --layer-table", lambda: [rows, "--score-table", scores, "--predict"]),
            ("--predict: the KL divergence of a cell is 0",
             lambda: [rows, "--score-table", self.write_scores({key: 0 for key in figures}, "zero.csv"),
                      "--layer-table", layers, "--predict"]),
            ("layers.csv: duplicate row: prompt p0, layer 0, a",
             lambda: [rows, "--score-table", scores, "--layer-table", layers, layers]),
            ("column `out_rel_error` is missing", lambda: [rows, "--score-table", scores, "--layer-table",
                                                           rows]),
            ("none.csv: no such file", lambda: [rows, "--score-table", "none.csv"]),
            ("no rows of algorithm z", lambda: [rows, "--score-table", scores, "--algorithm", "z"]),
            ("cannot be written", lambda: [rows, "--score-table", scores, "--csv",
                                           self.path("no/c.csv")])]
        for words, arguments in cases:
            with self.subTest(words):
                _, said = self.correlate(*arguments(), code=2)
                self.assertIn(words, said.strip().splitlines()[-1])


if __name__ == "__main__":
    unittest.main()
