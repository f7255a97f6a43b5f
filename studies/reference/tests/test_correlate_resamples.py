"""kvbench-study correlate draws prompts and methods: the same by loops over expanded lists, coverage of
its intervals on simulated methods, figures without one method, and what is called best then."""

import math
import random
import statistics
import sys
import unittest

from correlate_tables import MANY, REVERSED, SCIPY, SEVEN, UP, Tables, grid
from plot_tables import np

if SCIPY:
    from scipy import stats

    from kvbench_study.correlate import cells as cc
    from kvbench_study.correlate import medians, resamples
    from kvbench_study.correlate import pairs as kr
    from kvbench_study.correlate import ranks as cr

BUDGETS = (0.5, 0.25, 0.125)


def correlations(cells, x, y):
    """{scope: (Spearman, Kendall)} of lists: cells (budget, ...), figures of both sides."""
    out = {}
    for scope in ("all", *dict.fromkeys(budget for budget, _ in cells)):
        mine = [i for i, (budget, _) in enumerate(cells) if scope in ("all", budget)]
        # Digits that a mean's order of summation decides are no difference.
        one, other = ([round(side[i], 10) for i in mine] for side in (x, y))
        if len(set(one)) < 2 or len(set(other)) < 2:
            out[scope] = (math.nan, math.nan)
            continue
        out[scope] = stats.spearmanr(one, other)[0], stats.kendalltau(one, other)[0]
    out["within"] = tuple(np.mean([value for scope, value in out.items() if scope != "all"], axis=0))
    return out


def interval(point, drawn, n):
    drawn = [value for value in drawn if not math.isnan(value)]
    half = stats.t(n - 1).ppf(0.975) * statistics.pstdev(drawn) * math.sqrt(n / (n - 1))
    middle = 2 * point - statistics.mean(drawn)
    return middle - half, middle + half


@unittest.skipUnless(SCIPY, f"{sys.executable} has no scipy")
class ResamplesTest(Tables):
    def noisy(self, absent=()):
        """Figures with ties and noise of methods and prompts: (rows, other, scores) by key."""
        dice = random.Random(8)
        keys = [key for key in grid(SEVEN, MANY, BUDGETS) if key[1:] not in absent]
        lean = {method: dice.uniform(0.5, 2) for method in SEVEN}
        size = {key: SEVEN[key[1]] * 2**BUDGETS.index(key[2]) for key in keys}
        return ({key: round(size[key] * lean[key[1]] * dice.choice((0.8, 1, 1.2)), 2) for key in keys},
                {key: round(size[key] * dice.choice((0.8, 1, 1.2)), 2) for key in keys},
                {key: round(size[key] * dice.choice((0.5, 1, 1, 2)), 2) for key in keys})

    def files(self, rows, other, scores):
        path = self.write_rows(rows, eps_fro=lambda row: other[
            row["prompt"], row["algorithm"], row["budget_requested"]])
        return path, "--score-table", self.write_scores(scores)

    def test_by_loops_over_expanded_lists(self):
        """Every resample written out: each method with its budgets as often as it was drawn."""
        seed, count = 3, 60
        absent = {("b", 0.125), ("f", 0.125), ("e", 0.5)}
        rows, other, scores = self.noisy(absent)
        self.correlate(*self.files(rows, other, scores), "--resamples", str(count), "--seed", str(seed),
                       "--csv", self.path("c.csv"))
        got = {(line["metric"], line["scope"]): line for line in self.table("c.csv")
               if (line["score"], line["reduction"]) == ("kl", "mean")}
        prompts, methods = sorted(MANY), list(SEVEN)
        unit_draws = np.random.default_rng(seed).multinomial(6, [1 / 6] * 6, size=count)
        # Methods are numbered as they appear in the cells, the largest budget first.
        order = list(dict.fromkeys(m for b in BUDGETS for m in methods if (m, b) not in absent))
        method_draws = np.random.default_rng([seed, 1]).multinomial(7, [1 / 7] * 7, size=count)

        def figure(values, units, method, budget):
            return statistics.mean(values[unit, method, budget] for unit in units)

        def of(units, drawn):
            cells = [(str(b), m) for b in BUDGETS for m in drawn if (m, b) not in absent]
            y = [figure(scores, units, m, float(b)) for b, m in cells]
            # The mean over heads of write_rows is the figure; eps_fro is the same in all heads.
            return [correlations(cells, [figure(side, units, m, float(b)) for b, m in cells], y)
                    for side in (rows, other)]

        point = of(prompts, order)
        drawn = [of([p for p, k in zip(prompts, units) for _ in range(k)],
                    [m for m, k in zip(order, copies) for _ in range(k)])
                 for units, copies in zip(unit_draws, method_draws)]
        for scope in ("all", "within", *map(str, BUDGETS)):
            methods_there = {"0.5": 6, "0.125": 5}.get(scope, 7)
            n = min(methods_there, len(prompts))
            for i, metric in enumerate(("rel_error", "eps_fro")):
                line = got[metric, scope]
                self.assertEqual((line["methods"], line["resampled"]), (str(methods_there), "prompts and methods"))
                for at, name in enumerate(("spearman", "kendall")):
                    self.near(line[name], point[i][scope][at])
                    ends = interval(point[i][scope][at], [one[i][scope][at] for one in drawn], n)
                    self.near([line[f"{name}_low"], line[f"{name}_high"]], np.clip(ends, -1, 1))
            if scope in ("all", "within"):
                self.assertEqual(got["eps_fro", scope]["behind"], "0.0")  # the highest of all
                apart = [one[1][scope][0] - one[0][scope][0] for one in drawn]
                behind = point[1][scope][0] - point[0][scope][0]
                self.assertGreater(behind, 0.01)
                line = got["rel_error", scope]
                self.near([line["behind"], line["behind_low"], line["behind_high"]],
                          [behind, *interval(behind, apart, 6)])

    def test_without_one_method(self):
        rows, other, scores = self.noisy({("e", 0.125)})
        self.correlate(*self.files(rows, other, scores), "--csv", self.path("c.csv"), "--markdown",
                       self.path("c.md"))
        got = {(line["metric"], line["scope"]): line for line in self.table("c.csv")
               if (line["score"], line["reduction"]) == ("kl", "mean")}
        cells = [(str(b), m) for b in BUDGETS for m in SEVEN if (m, b) != ("e", 0.125)]

        def of(values, method, budget):
            return statistics.mean(values[p, method, float(budget)] for p in MANY)

        for metric, side in (("rel_error", rows), ("eps_fro", other)):
            without = {}
            for gone in SEVEN:
                rest = [(b, m) for b, m in cells if m != gone]
                without[gone] = correlations(rest, [of(side, m, b) for b, m in rest],
                                             [of(scores, m, b) for b, m in rest])
            for scope in ("all", "within", "0.25", "0.125"):
                mine = {m: values[scope][0] for m, values in without.items()
                        if (scope, m) != ("0.125", "e")}
                line = got[metric, scope]
                means = {m: statistics.mean(of(scores, m, b) for b, one in cells
                                            if one == m and scope in ("all", "within", b))
                         for m in mine}
                extreme = max(means, key=means.get)
                self.assertEqual(line["extreme_method"], extreme)
                self.near(line["without_extreme"], mine[extreme])
                for end, choose in (("low", min), ("high", max)):
                    self.near(line[f"left_out_{end}"], choose(mine.values()))
                    self.near(mine[line[f"left_out_{end}_method"]], choose(mine.values()))
            self.assertEqual(got[metric, "prompt all"]["left_out_low"], "")
        self.assertEqual(got["rel_error", "within"]["extreme_method"],
                         got["eps_fro", "within"]["extreme_method"])
        with open(self.path("c.md"), encoding="utf-8") as file:
            text = file.read()
        line = got["eps_fro", "all"]
        low, high, rest = (f"{float(line[name]):.2f}" for name in ("left_out_low", "left_out_high",
                                                                  "without_extreme"))
        self.assertIn("Over all cells, without one method: the least and the highest correlation", text)
        self.assertIn(f"| `eps_fro` | {low} ({line['left_out_low_method']}) to {high} "
                      f"({line['left_out_high_method']}); {rest} ({line['extreme_method']}) |", text)

    def test_three_methods_have_none(self):
        """Without one of three there would be two; and three are too few to draw from."""
        few = grid({name: UP[name] for name in "abc"}, MANY)
        text, said = self.correlate(self.write_rows(few), "--score-table", self.write_scores(few), "--csv",
                                    self.path("c.csv"), "--markdown", "-")
        self.assertIn("note: no intervals: 3 methods, expected at least 4\n", said)
        self.assertNotIn("without one method", text)
        for line in self.table("c.csv"):
            if not line["scope"].startswith("prompt"):
                self.assertEqual({line[name] for name in ("spearman_low", "behind_low", "left_out_low",
                                                          "extreme_method", "without_extreme")}, {""})
        _, said = self.correlate(self.path("rows.csv"), "--score-table", self.path("scores.csv"), "--csv",
                                 self.path("c.csv"), "--resample", "prompts")
        self.assertNotIn("no intervals", said)
        self.assertNotIn("", {line["spearman_low"] for line in self.table("c.csv")})

    def test_one_method_makes_no_metric_the_best(self):
        """Where a single method parts the metrics, other methods might not: nothing is best."""
        truth = grid(SEVEN, MANY)
        scores = self.write_scores(truth)

        def run(figures, *more):
            rows = self.write_rows(grid(figures, MANY), eps_fro=lambda row: truth[
                row["prompt"], row["algorithm"], row["budget_requested"]])
            text, _ = self.correlate(rows, "--score-table", scores, "--csv", self.path("c.csv"),
                                     "--markdown", "-", *more)
            return text, {(line["metric"], line["scope"]): line for line in self.table("c.csv")
                          if (line["score"], line["reduction"]) == ("kl", "mean")}

        one_wrong, alone = {**SEVEN, "g": 0.001}, ("--resample", "prompts")
        for figures, more, verdict, other, why in (
                (one_wrong, (), "highest", "alike", "38 of 38 others cannot be told from it"),
                (REVERSED, (), "best", "worse", "every other metric is behind it."),
                (one_wrong, alone, "highest", "worse", "methods were not drawn, so none is best.")):
            text, lines = run(figures, *more)
            for scope in ("all", "within"):
                self.assertEqual(lines["eps_fro", scope]["verdict"], verdict)
                line = lines["rel_error", scope]
                self.assertEqual(line["verdict"], other)
                self.assertIs(float(line["behind_low"]) > 0, other == "worse")
            self.assertEqual("predicts best" in text, verdict == "best")
            self.assertIn(why, text)
            of = "prompts" if more else "prompts and methods"
            self.assertIn(f"200 resamples of the {of}, seed 0; they ", text)
            self.assertEqual("say nothing about other methods" in text, bool(more))
            self.assertEqual({line["resampled"] for (_, scope), line in lines.items()
                              if not scope.startswith("prompt")}, {of})
            self.assertEqual(lines["eps_fro", "prompt all"]["resampled"], "prompts")

    def test_draws_of_methods_are_not_those_of_prompts(self):
        rows = resamples.Rows(6, 6, 50, 4, resamples.BOTH)
        _, alone, units, without = rows.split(rows.units)
        _, _, methods, others = rows.split(rows.methods)
        np.testing.assert_array_equal(alone, np.eye(6))
        np.testing.assert_array_equal(without, np.ones((6, 6)))
        np.testing.assert_array_equal(others, 1 - np.eye(6))
        self.assertTrue((units != methods).any(axis=1).mean() > 0.9)
        _, _, methods, _ = (one := resamples.Rows(6, 9, 50, 4, resamples.PROMPTS)).split(one.methods)
        np.testing.assert_array_equal(methods, np.ones((50, 9)))

    def test_unknown_word(self):
        _, said = self.correlate(*self.files(*self.noisy()), "--resample", "methods", code=2)
        self.assertIn("argument --resample: invalid choice: 'methods' (choose from", said)


def simulated(dice, methods, prompts, spread, noise):
    """A Table: methods drawn from a population, and two metrics that follow the score equally well but
    each with a deviation of its own for every method, the same at all budgets and prompts."""
    budgets = np.repeat([0.0, 0.8], methods)
    effect = budgets + np.tile(dice.normal(size=methods), 2)
    shape = (prompts, 2 * methods)
    metrics = [effect + spread * np.tile(dice.normal(size=methods), 2) + noise / 3 * dice.normal(size=shape)
               for _ in range(2)]
    level = cc.Level("head", ["one", "other"], np.stack([metric.ravel() for metric in metrics], axis=1),
                     np.repeat(np.arange(prompts), 2 * methods), np.tile(np.arange(2 * methods), prompts))
    cells = [(budget, f"m{i}") for budget in ("0.5", "0.25") for i in range(methods)]
    return cc.Table(cells, list(range(prompts)), [level], {"kl": effect + noise * dice.normal(size=shape)})


@unittest.skipUnless(SCIPY, f"{sys.executable} has no scipy")
class CoverageTest(unittest.TestCase):
    SIMULATIONS = 50

    def test_metrics_that_err_by_method(self):
        """Methods differ more than prompts: intervals of prompts alone miss the population's correlation
        and tell equal metrics apart; those of both do not."""
        dice = np.random.default_rng(9)
        many = simulated(dice, 4000, 1, 1.0, 0.0)
        metric, score = many.levels[0].values[:, 0], many.scores["kl"][0]
        truth = {"all": stats.spearmanr(metric, score)[0],
                 "within": np.mean([stats.spearmanr(metric[half], score[half])[0]
                                    for half in (slice(4000), slice(4000, None))])}
        held = {(mode, scope): 0 for mode in ("both", "prompts") for scope in truth}
        apart = dict.fromkeys(held, 0)
        for _ in range(self.SIMULATIONS):
            table = simulated(dice, 16, 8, 1.0, 0.3)
            found = {mode: cr.correlate(table, 150, 0, mode) for mode in ("both", "prompts")}
            for mode, scope in held:
                lines = found[mode].pick(reduction="mean", scope=scope)
                line = next(line for line in lines if line.metric == "one")
                held[mode, scope] += line.spearman_low <= truth[scope] <= line.spearman_high
                apart[mode, scope] += any(line.behind_low > 0 for line in lines)
        for scope in truth:
            self.assertLess(held["prompts", scope], 0.5 * self.SIMULATIONS)
            self.assertGreaterEqual(held["both", scope], 0.88 * self.SIMULATIONS)
            self.assertGreater(apart["prompts", scope], 0.4 * self.SIMULATIONS)
            self.assertLessEqual(apart["both", scope], 0.05 * self.SIMULATIONS)

    def test_copies_have_the_bias_of_the_sample(self):
        """A method's own budgets agree: tau of few methods is above that of many. Copies that count as
        other methods do raise it as much again, which the interval subtracts."""
        dice = np.random.default_rng(11)
        methods, samples, draws = 12, 4000, 100
        pairs = kr.Pairs(3 * methods)
        everything = list(range(3 * methods))
        group = pairs.group(everything)

        def sides(rows, count):
            effect = np.repeat([0.0, 0.8, 1.6], count) + np.tile(dice.normal(size=(rows, count)), 3)
            return effect, effect + 1.5 * np.tile(dice.normal(size=(rows, count)), 3)

        truth = np.mean([stats.kendalltau(*side)[0] for side in zip(*sides(6, 4000))])
        signs = [pairs.signs(side) for side in sides(samples, methods)]
        taus = kr.kendall(*(kr.Ranked(side, group) for side in signs))
        moved = []
        for i in range(100):
            times = np.tile(dice.multinomial(methods, np.full(methods, 1 / methods), size=draws), 3)
            copies = kr.Copies(times, pairs, everything, group)
            moved.append(kr.kendall(*(kr.Ranked(np.repeat(side[i:i + 1], draws, axis=0), group, copies)
                                      for side in signs)).mean() - taus[i])
        bias = taus.mean() - truth
        self.assertGreater(bias, 0.02)
        self.assertLess(abs(np.mean(moved) - bias), 0.012)  # Four standard errors.

    def test_metrics_that_err_by_prompt(self):
        """Where methods have no deviations of their own, the interval of both holds the truth too."""
        dice = np.random.default_rng(10)
        held = 0
        for _ in range(self.SIMULATIONS):
            found = cr.correlate(simulated(dice, 16, 8, 0.0, 0.6), 150, 0)
            line = found.pick(reduction="mean", scope="within", metric="one")[0]
            held += line.spearman_low <= 1.0 <= line.spearman_high
        self.assertGreaterEqual(held, 0.9 * self.SIMULATIONS)

    def test_pooled_medians(self):
        """As often as each prompt is drawn, its values stand in the pool."""
        dice = random.Random(2)
        values = [(dice.choice((0.5, 1, 2, dice.random())), p, c) for c in range(3)
                  for p in range(4) for _ in range(1 + dice.randrange(5))]
        counts = [[1, 1, 1, 1], [0, 0, 4, 0], [2, 0, 1, 1], [0, 3, 1, 0]]
        got = medians.pooled_medians(*(np.array(column) for column in zip(*values)), np.array(counts))
        want = [[statistics.median([v for v, p, c in values if c == cell
                                    for _ in range(count[p])]) for cell in range(3)]
                for count in counts]
        np.testing.assert_allclose(got, want, rtol=1e-15)


if __name__ == "__main__":
    unittest.main()
