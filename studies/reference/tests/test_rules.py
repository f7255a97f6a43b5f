"""kvbench-study rules: budgets of each rule against numbers by hand, the policy that it writes, refusals."""

import json
import unittest

from study_case import CommandCase, missing, read_text, write_rows, write_text

MISSING = missing("numpy", "pandas", "scipy")
if not MISSING:
    from kvbench_study import rules

COLUMNS = ("trace", "prompt", "protocol", "sink", "recent", "scores", "device", "n_queries", "seed", "algorithm",
           "params", "budget_requested", "layer", "residual_rel_error")
ERRORS = [0.1, 0.4, 0.2, 0.6, 0.3, 0.5]  # of six layers


@unittest.skipIf(MISSING, f"lacks {', '.join(MISSING)}")
class RulesTest(CommandCase):
    def module(self):
        return rules

    def setUp(self):
        super().setUp()
        self.table = write_rows(self.path("t.layers.csv"), COLUMNS, [
            ["t.h5", prompt, "prefill", 16, 512, "past", "cpu", 256, 0, name, params, budget, layer, factor * error]
            for prompt, factor in (("p", 1), ("q", 2)) for budget in (0.25, 0.125)
            for name, params in (("h2o@quant-kivi", "k_bits=4"), ("snapkv", "window=32"))
            for layer, error in enumerate(ERRORS)])
        write_text(self.path("model.json"), json.dumps({"model": "M"}))

    def policy(self, rule, *more, budget="0.125"):
        said, _ = self.run_script(self.table, "--rule", rule, "--algorithm", "h2o@quant-kivi", "--budget", budget,
                                  *more, "-o", self.path("p.json"))
        self.assertIn(f"Policy for M by the rule `{rule}`", said)
        content = json.loads(read_text(self.path("p.json")))
        self.assertEqual((content["model"], content["budget"]), ("M", float(budget)))
        self.assertEqual({one["algorithm"] for one in content["layers"]}, {"h2o@quant-kivi:k_bits=4"})
        self.assertEqual([one["layer"] for one in content["layers"]], list(range(len(ERRORS))))
        return [one["budget"] for one in content["layers"]]

    def test_thirds(self):
        large, small = 0.25, 0.0625
        self.assertEqual(self.policy("first"), [large] * 2 + [small] * 4)
        self.assertEqual(self.policy("last"), [small] * 4 + [large] * 2)
        self.assertEqual(self.policy("error"), [small, small, small, large, small, large])
        drawn = {tuple(self.policy("random", "--seed", str(seed))) for seed in range(8)}
        self.assertGreater(len(drawn), 2)
        for one in drawn:
            self.assertEqual(sorted(one), [small] * 4 + [large] * 2)
        self.assertEqual(self.policy("random", "--seed", "3"), self.policy("random", "--seed", "3"))

    def test_layers_that_three_does_not_divide(self):
        found = rules.budgets_of("first", [1.0] * 28, 0.125)
        self.assertEqual(list(found[:9]), [0.25] * 9)
        for one in found[9:]:
            self.assertAlmostEqual(one, (28 * 0.125 - 9 * 0.25) / 19, places=15)

    def test_a_large_budget_is_all_tokens(self):
        self.assertEqual(list(rules.budgets_of("last", [1.0] * 3, 0.75)), [0.625, 0.625, 1.0])

    def test_pyramid(self):
        for at, one in enumerate(self.policy("pyramid")):
            self.assertAlmostEqual(one, 0.125 * (1.95 - at * (1.95 - 0.05) / 5), places=12)

    def test_refusals(self):
        words = self.table, "--rule", "first", "-o", self.path("p.json")
        self.refused("got 0 choices of h2o at 0.125, expected one of h2o@quant-kivi:k_bits=4, snapkv:window=32", *words,
                     "--algorithm", "h2o", "--budget", "0.125")
        self.refused("got 0 choices of snapkv at 0.5", *words, "--algorithm", "snapkv", "--budget", "0.5")


if __name__ == "__main__":
    unittest.main()
