"""kvbench-study scaling: a planted law is found again, predictions of what is left out against plain fits, refusals."""

import csv
import itertools
import math
import random
import unittest

from study_case import CommandCase, missing, write_rows

MISSING = missing("numpy", "pandas", "scipy")
if not MISSING:
    import numpy as np

    from kvbench_study.scaling import main as scaling

ROWS = ("trace", "prompt", "layer", "q_head", "kv_head", "algorithm", "params", "budget_requested", "seed", "rel_error",
        "status")
LAYERS, HEADS, BUDGETS = range(5), range(2), (0.5, 0.25, 0.125)
LAW = {"h2o": (-0.7, 0.2, 0.3), "local": (-0.3, 0.5, 0.0)}  # exponents of budget and tokens, slope of the entropy


@unittest.skipIf(MISSING, f"lacks {', '.join(MISSING)}")
class ScalingTest(CommandCase):
    def module(self):
        return scaling

    def write(self, name, columns, rows):
        write_rows(self.path(name), columns, rows)

    def length(self, tokens, noise=0.0, prompts=8):
        """Tables of a length; returns the options that name them."""
        chance = random.Random(tokens)
        entropy = {at: 2 + 4 * chance.random() for at in itertools.product(LAYERS, HEADS)}
        names = [f"p{i}" for i in range(prompts)]
        self.write(f"{tokens}/attention.csv", ("trace", "prompt", "layer", "head", "what", "entropy"), [
            ["t.h5", name, layer, head, "queries", entropy[layer, head] + shift]
            for name, shift in zip(names, itertools.cycle((-0.5, 0.5))) for layer, head in entropy])
        self.rows = []
        for name, (layer, head), budget, (method, (a, c, d)) in itertools.product(
                names, entropy, BUDGETS, LAW.items()):
            error = math.exp(-3 + a * math.log(budget) + c * math.log(tokens) + d * entropy[layer, head]
                             + chance.gauss(0, noise))
            self.rows.append(["t.h5", name, layer, head, 0, method, "", budget, 0, error, "ok"])
        self.write(f"{tokens}/rows.csv", ROWS, self.rows)
        return ["--row-table", str(tokens), self.path(f"{tokens}/rows.csv"), "--cluster", str(tokens),
                self.path(str(tokens))]

    def test_a_law_without_noise(self):
        out, _ = self.run_script(*self.length(1024), *self.length(4096), "--csv", self.path("o.csv"), "--markdown", "-")
        for row in self.read("o.csv"):
            for name, value in zip(("budget", "tokens", "entropy"), LAW[row["algorithm"]]):
                for end in ("", "_low", "_high"):
                    self.assertAlmostEqual(float(row[name + end]), value, places=9)
            self.assertEqual((row["sources"], row["cells"]), ("8", str(2 * 8 * len(LAYERS) * len(HEADS) * 3)))
            for name in ("r2", "off_sources", "off_layers"):
                self.assertAlmostEqual(float(row[name]), 1.0, places=9)
        self.assertIn("| `h2o` | -0.70 [-0.70, -0.70] | 0.20 [0.20, 0.20] | 0.30 [0.30, 0.30] | 1.00 | 1.00 | 1.00 |",
                      out)

    def test_what_is_left_out_is_not_fitted(self):
        self.run_script(*self.length(2048, noise=0.3), "--algorithm", "h2o", "--csv", self.path("o.csv"))
        (row,) = self.read("o.csv")
        self.assertEqual(row["tokens"], "")
        rows = [one for one in self.rows if one[5] == "h2o"]
        entropy = {}
        with open(self.path("2048/attention.csv"), encoding="utf-8") as file:
            for one in csv.DictReader(file):
                entropy.setdefault((int(one["layer"]), int(one["head"])), []).append(float(one["entropy"]))
        x = np.array([[1.0, math.log(one[7]), np.mean(entropy[one[2], one[3]])] for one in rows])
        y = np.log([one[9] for one in rows])

        def off(groups):
            out = []
            for group in set(groups):
                held = np.array([one == group for one in groups])
                weights = np.linalg.solve(x[~held].T @ x[~held], x[~held].T @ y[~held])
                out += list(np.abs(x[held] @ weights - y[held]))
            return math.exp(np.median(out))

        weights = np.linalg.solve(x.T @ x, x.T @ y)
        for name, value in (("budget", weights[1]), ("entropy", weights[2]),
                            ("off_layers", off([one[2] for one in rows])),
                            ("off_sources", off([int(one[1][1:]) % 5 for one in rows])),
                            ("r2", 1 - np.var(y - x @ weights) / np.var(y))):
            self.assertAlmostEqual(float(row[name]), value, places=9, msg=name)
        self.assertLess(float(row["budget_low"]), float(row["budget"]))
        self.assertGreater(float(row["budget_high"]), float(row["budget"]))

    def test_few_sources_have_the_range_of_their_own_fits(self):
        out, _ = self.run_script(*self.length(2048, noise=0.3, prompts=4), "--algorithm", "h2o", "--csv",
                                 self.path("o.csv"), "--markdown", "-")
        (row,) = self.read("o.csv")
        slopes = []  # of the budget, which does not go with the entropy
        for name in ("p0", "p1", "p2", "p3"):
            own = [(math.log(one[7]), math.log(one[9])) for one in self.rows if one[1] == name and one[5] == "h2o"]
            slopes.append(np.polyfit(*zip(*own), 1)[0])
        self.assertAlmostEqual(float(row["budget_low"]), min(slopes), places=9)
        self.assertAlmostEqual(float(row["budget_high"]), max(slopes), places=9)
        self.assertIn(f"({min(slopes):.2f} to {max(slopes):.2f})", out)
        self.assertIn("of fewer than 8 least to largest", out)

    def test_refusals(self):
        words = self.length(1024)
        self.refused("expected the same lengths", *words[:3], "--cluster", "4096", words[5])
        self.refused("expected a number of tokens first", "--row-table", "x", words[2], *words[3:])
        self.refused("no rows of label knorm; it holds h2o, local", *words, "--algorithm", "knorm")
        one = [row for row in self.rows if row[7] == 0.5]
        self.write("1024/rows.csv", ROWS, one)
        self.refused("h2o: expected at least two budgets, sources and layers", *words)
        self.write("1024/rows.csv", ROWS, [*self.rows, ["t.h5", "p0", 9, 0, 0, "h2o", "", 0.5, 0, 0.1, "ok"]])
        self.refused("no layer 9, head 0", *words)
        self.write("1024/rows.csv", ROWS, [[*row[:-2], 0.0, "ok"] for row in self.rows])
        self.refused("error 0, expected one above 0", *words)
        self.write("1024/rows.csv", ROWS, [[*row[:-2], "", "failed: x"] for row in self.rows])
        self.refused("no row holds measurements", *words)


if __name__ == "__main__":
    unittest.main()
