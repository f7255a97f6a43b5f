"""kvbench-py policy: the knapsack against trying every choice, what may vary, and its files in the program."""

import itertools
import json
import os
import random
import unittest

from script_case import ROOT, CommandCase, missing, read_rows, read_text, write_rows, write_text

MISSING = missing("numpy", "pandas", "scipy")
if not MISSING:
    import numpy as np

    from kvbench.budgets import choose
    from kvbench.budgets import main as policy

COMMON = ("1.5", "t.h5", "prefill", 16, 512, "past", "cpu", 256, 0, 0.5)
LAYER_COLUMNS = ("schema", "trace", "protocol", "sink", "recent", "scores", "device", "n_queries", "seed",
                 "out_rel_error", "prompt", "algorithm", "params", "budget_requested", "layer", "residual_rel_error")


def brute(cost, budgets, total, sizes):
    """The least sum of costs over every choice within the mean budget, or None."""
    best = None
    for found in itertools.product(range(len(budgets)), repeat=len(cost)):
        if sum(size * budgets[at] for size, at in zip(sizes, found)) <= sum(sizes) * (total + 1e-10):
            value = sum(row[at] for row, at in zip(cost, found))
            best = value if best is None or value < best else best
    return best


@unittest.skipIf(MISSING, f"lacks {', '.join(MISSING)}")
class PolicyTest(CommandCase):
    def module(self):
        return policy

    def test_the_knapsack_equals_trying_every_choice(self):
        dice = random.Random(4)
        infeasible = 0
        for _ in range(1000):
            layers, choices = dice.randint(1, 4), dice.randint(1, 5)
            budgets = [dice.choice((0.03125, 0.0625, 0.125, 0.2, 0.25, 0.5)) for _ in range(choices)]
            scale = 10 ** dice.uniform(-6, 2)
            cost = [[scale * dice.choice((0.0, dice.random(), dice.random() ** 4)) for _ in range(choices)]
                    for _ in range(layers)]
            total = dice.choice((0.05, 0.125, 0.2, 0.3))
            sizes = [dice.choice((1, 1, 3, 8)) for _ in range(layers)]
            expected = brute(cost, budgets, total, sizes)
            if expected is None:
                infeasible += 1
                with self.assertRaises(choose.Infeasible):
                    choose.allocate(np.array(cost), np.array(budgets), total, sizes)
                continue
            found = choose.allocate(np.array(cost), np.array(budgets), total, sizes)
            self.assertLessEqual(sum(size * budgets[at] for size, at in zip(sizes, found)),
                                 sum(sizes) * (total + 1e-8))
            value = sum(row[at] for row, at in zip(cost, found))
            # Sums of at most four numbers in another order; the solver's tolerance is 1e-6 of the largest.
            self.assertLessEqual(abs(value - expected), 2e-6 * max(map(max, cost)))
        self.assertGreater(infeasible, 20)
        self.assertLess(infeasible, 500)

    def test_what_may_vary(self):
        """Algorithm a is best in layer 0, b in layer 1, where bytes count more."""
        variants = ["a", "a", "a", "b", "b", "b"]
        budgets = np.array([0.5, 0.25, 0.125] * 2)
        cost = np.array([[1.0, 2.0, 3.0, 2.0, 3.0, 4.0], [20.0, 30.0, 90.0, 10.0, 40.0, 80.0]])

        def chosen(vary, total=0.25):
            return [(variants[at], budgets[at]) for at in choose.choose(cost, variants, budgets, total, vary, (1, 1))]

        self.assertEqual(chosen("methods"), [("a", 0.25), ("a", 0.25)])
        self.assertEqual(chosen("methods", 0.125), [("a", 0.125), ("b", 0.125)])
        self.assertEqual(chosen("budgets", 0.3125), [("b", 0.125), ("b", 0.5)])
        self.assertEqual(chosen("both", 0.3125), [("a", 0.125), ("b", 0.5)])
        self.assertEqual(choose.uniform(cost, budgets, 0.25), 1)
        self.assertIsNone(choose.uniform(cost, budgets, 0.3))
        for vary, total in (("methods", 0.3), ("budgets", 0.1), ("both", 0.1)):
            with self.assertRaises(choose.Infeasible):
                chosen(vary, total)

    def call(self, *arguments):
        return super().call("choose", *arguments)

    def sensitivities(self, layers, values, model="M", name="s.json"):
        return self.write_file(name, json.dumps(
            {"format": "kvbench-sensitivities", "version": 1, "model": model, "layers": layers,
             "sensitivity": values, "ratio": {"prompt": [0.5, 2], "mean": [0.8, 1.2]}}))

    def layers_table(self, errors):
        """errors: {(prompt, algorithm, budget): [of layers]}."""
        return write_rows(self.path("l.csv"), LAYER_COLUMNS, [
            [*COMMON, prompt, algorithm, "k=1", budget, layer, error]
            for (prompt, algorithm, budget), mine in errors.items() for layer, error in enumerate(mine)])

    def choice(self, *arguments, out="p.json"):
        """(layers of the policy, what it says, what it says on stderr)"""
        said = self.run_script(*arguments, "-o", self.path(out))
        return (json.loads(read_text(self.path(out)))["layers"], *said)

    def test_a_policy_from_tables(self):
        errors = {}
        for prompt, factor in (("p", 1.0), ("q", 3.0)):
            for budget, size in ((0.5, 0.1), (0.25, 0.2), (0.125, 0.3)):
                errors[prompt, "h2o", budget] = [factor * size, factor * size]
                errors[prompt, "local", budget] = [factor * size * 1.5, factor * size * 0.9]
        errors["p", "once", 0.125] = [0.001, 0.001]  # the other prompt lacks it
        tables = self.sensitivities([0, 1], [0.01, 1.0]), self.layers_table(errors), "--budget", "0.3125"
        layers, out, said = self.choice(*tables)
        self.assertEqual(layers, [{"layer": 0, "algorithm": "h2o:k=1", "budget": 0.125},
                                  {"layer": 1, "algorithm": "local:k=1", "budget": 0.5}])
        content = json.loads(read_text(self.path("p.json")))
        self.assertEqual((content["format"], content["budget"], content["model"]), ("kvbench-policy", 0.3125, "M"))
        expected = (1 + 9) / 2 * (0.01 * 0.3**2 + 0.09**2)  # the factor's squares, mean over prompts
        self.assertIn("from 2 prompts", out)
        self.assertIn(f"predicted KL {expected:.4g} nats at a mean budget of 0.3125", out)
        self.assertIn("once at 0.125: skipped, some of 2 prompts lack it", said)
        alone, one, said_of_one = self.choice(*tables, "--prompts", "q", out="q.json")
        self.assertIn(f"from 1 prompt: predicted KL {9 * (0.01 * 0.3**2 + 0.09**2):.4g} nats", one)
        self.assertEqual(said_of_one, "")
        self.run_script(*tables, "--each-prompt", "-o", self.path("own.json"), "--markdown", self.path("own.md"))
        self.assertEqual(read_text(self.path("own.md")).count("from 1 prompt:"), 2)
        self.assertEqual(read_text(self.path("q/own.json")), read_text(self.path("q.json")))
        own = json.loads(read_text(self.path("p/own.json")))["layers"]
        self.assertEqual({one["algorithm"] for one in own}, {"once:k=1"})

    def test_layers_of_unequal_bytes(self):
        """The mean budget is one of bytes: a small layer can have more, and heads share their layer's bytes."""
        sizes, budgets = (300, 100), (0.5, 0.25, 0.125)
        table = write_rows(self.path("b.csv"), (*LAYER_COLUMNS, "residual_rel_error_heads", "budget_bytes"), [
            [*COMMON, prompt, "h2o", "", budget, layer, 0.1 / budget, f"{0.06 / budget};{0.08 / budget}", size]
            for prompt in "pq" for budget in budgets for layer, size in enumerate(sizes)])
        for per in ("layer", "head"):
            layers, out, _ = self.choice("equal", table, "--budget", "0.25", "--per", per)
            self.assertEqual([layer["bytes"] for layer in layers], list(sizes))
            mine = [[one["budget"] for one in layer.get("heads", [layer])] for layer in layers]
            weights = [size / len(one) for size, one in zip(sizes, mine) for _ in one]
            found = [budget for one in mine for budget in one]
            squares = [0.01] * 2 if per == "layer" else [0.0036, 0.0064] * 2
            best = min((sum(square / budget**2 for square, budget in zip(squares, keys)), keys)
                       for keys in itertools.product(budgets, repeat=len(found))
                       if sum(map(lambda w, b: w * b, weights, keys)) <= 400 * 0.25)
            self.assertAlmostEqual(sum(square / budget**2 for square, budget in zip(squares, found)), best[0], 12)
            mean = sum(weight * budget for weight, budget in zip(weights, found)) / 400
            self.assertLessEqual(mean, 0.25)
            self.assertIn(f"at a mean budget of {mean:.4g}.", out)
        write_text(table, read_text(table).replace(",300\n", ",0\n"))
        self.refused("budget_bytes: expected numbers above 0", "equal", table, "--budget", "0.25", "-o",
                     self.path("p.json"))

    def test_equal_sensitivities(self):
        table = self.layers_table({("p", name, budget): [factor * size, size]
                                   for name, factor in (("h2o", 1), ("local", 3))
                                   for budget, size in ((0.5, 0.1), (0.25, 0.2), (0.125, 0.3))})
        words = table, "--budget", "0.3125", "--vary", "both"
        same, text, _ = self.choice("equal", *words)
        measured, other, _ = self.choice(self.sensitivities([0, 1], [1, 1]), *words, out="m.json")
        self.assertEqual(same, measured)
        self.assertIn("Policy from 1 prompt: squared errors ", text)
        self.assertEqual(text.split("squared errors ")[1].split()[0], other.split("predicted KL ")[1].split()[0])
        self.assertEqual(json.loads(read_text(self.path("p.json")))["model"], "")
        self.write_file("model.json", json.dumps({"model": "M"}))
        self.assertIn("Policy for M from", self.choice("equal", *words)[1])
        self.assertEqual(json.loads(read_text(self.path("p.json")))["model"], "M")

    def heads_table(self, errors):
        """errors: {(algorithm, budget): [[of KV heads] of layers]}; a layer's square is 1.5 times the sum."""
        return write_rows(self.path("h.csv"), (*LAYER_COLUMNS, "residual_rel_error_heads"), [
            [*COMMON, prompt, algorithm, "", budget, layer, (1.5 * sum(one**2 for one in heads)) ** 0.5,
             ";".join(map(repr, heads))]
            for prompt in ("p", "q") for (algorithm, budget), mine in errors.items()
            for layer, heads in enumerate(mine)])

    def test_heads_have_their_own_choices(self):
        dice = random.Random(9)
        errors = {(name, budget): [[dice.uniform(0.5, 1.5) * 0.1 / budget for _ in range(2)] for _ in range(2)]
                  for name in ("h2o", "local") for budget in (0.5, 0.25, 0.125)}
        weights, table = (0.2, 3.0), self.heads_table(errors)
        words = (self.sensitivities([0, 1], weights), table, "--budget", "0.25", "--per", "head")
        layers, out, _ = self.choice(*words)
        self.assertEqual([[one["kv_head"] for one in layer["heads"]] for layer in layers], [[0, 1], [0, 1]])
        parts = [(layer, head) for layer in range(2) for head in range(2)]
        best = min((sum(1.5 * weights[layer] * errors[key][layer][head]**2 for (layer, head), key in zip(parts, keys)),
                    keys) for keys in itertools.product(errors, repeat=4) if sum(b for _, b in keys) <= 4 * 0.25)
        self.assertEqual([(one["algorithm"], one["budget"]) for layer in layers for one in layer["heads"]],
                         list(best[1]))
        self.assertIn(f"predicted KL {best[0]:.4g} nats", out)
        text = read_text(table)
        for old, new, what in ((";", "", "expected 2 numbers"), ("residual_rel_error_heads", "x", "is missing")):
            write_text(table, new.join(text.rsplit(old, 1)))
            self.refused(what, *words, "-o", self.path("p.json"))

    def test_the_policy_of_another_model(self):
        other = self.write_file("o.json", json.dumps({"layers": [
            {"layer": at, "algorithm": f"h2o:k={at}", "budget": budget} for at, budget in enumerate((0.5, 0.1, 0.1))]}))
        words = (self.sensitivities([0, 2, 4, 6, 8], [1] * 5), "--budget", "0.25", "--like", other)
        layers, *_ = self.choice(*words)
        # Layers 0 to 4 of 5 lie at depths 0, .6, 1.2, 1.8, 2.4 of 3; the mean budget .26 is scaled to .25.
        self.assertEqual([(one["layer"], one["algorithm"]) for one in layers],
                         [(0, "h2o:k=0"), (2, "h2o:k=0"), (4, "h2o:k=1"), (6, "h2o:k=1"), (8, "h2o:k=2")])
        for one, budget in zip(layers, (0.5, 0.5, 0.1, 0.1, 0.1)):
            self.assertAlmostEqual(one["budget"], budget * 0.25 / 0.26, places=12)
        layers, *_ = self.choice(words[0], "--budget", "0.5", *words[3:], out="whole.json")
        self.assertEqual([one["budget"] for one in layers], [0.5, 0.5, 0.1, 0.1, 0.1])
        for bad in ([{"layer": 0, "heads": []}], [], [{"layer": 0, "algorithm": "h2o", "budget": "nan"}]):
            write_text(other, json.dumps({"layers": bad}))
            self.refused("expected a policy with an algorithm", *words, "-o", self.path("p.json"))

    def test_refusals(self):
        table = self.layers_table({("p", "h2o", 0.5): [0.1, 0.1], ("p", "h2o", 0.25): [0.2, 0.2]})
        good = self.sensitivities([0, 1], [1, 1])
        three = self.sensitivities([0, 1, 2], [1, 1, 1], name="3.json")
        slash = write_text(self.path("slash.csv"), read_text(table).replace(",p,", ",a/b,"))
        for what, *words in (
                ("--budget: got no choice of at most 0.1, the smallest budget is 0.25", good, table, "--budget", "0.1"),
                *(("argument --budget", good, table, "--budget", budget) for budget in ("0", "1.5")),
                ("no rows of algorithm snapkv", good, table, "--budget", "0.5", "--algorithm", "snapkv"),
                ("no algorithm with a budget", good, table, "--budget", "0.5", "--exclude", "h2o"),
                ("which --vary methods needs", good, table, "--budget", "0.3", "--vary", "methods"),
                ("expected the 3 of", three, table, "--budget", "0.5"),
                ("expected either OUT.layers.csv or --like", good, "--budget", "0.5"),
                ("--like: got equal too", "equal", "--budget", "0.5", "--like", table),
                *((f"{words[0]}: got --like too", good, "--like", table, *words, "--budget", "0.5")
                  for words in (["--each-prompt"], ["--vary", "budgets"], ["--algorithm", "h2o"])),
                ("is also an input", good, table, "--budget", "0.5", "--markdown", table),
                ("prompt `a/b`: expected a name", good, slash, "--each-prompt", "--budget", "0.5")):
            with self.subTest(what):
                self.refused(what, *words, "-o", self.path("p.json"))
        self.assertFalse(os.path.exists(self.path("p.json")))

    def test_the_program_runs_it(self):
        sample = os.path.join(ROOT, "data", "sample.h5")
        options = (sample, "--threads", "1", "--overwrite")
        curves, out = self.path("dev.csv"), self.path("out.csv")
        self.done("replay", *options, "--algorithm", "snapkv,local,snapkv@quant-kivi", "--budget", "0.5,0.25,0.125",
                  "-o", curves)
        # The sample has no output projections: the first head's error stands for the layer's.
        rows = [row for row in read_rows(curves) if row["q_head"] == "0"]
        layers = sorted({int(row["layer"]) for row in rows})
        table = write_rows(self.path("l.csv"), LAYER_COLUMNS, [
            [row.get(name, row["rel_error"]) for name in LAYER_COLUMNS] for row in rows])
        found, *_ = self.choice(self.sensitivities(layers, [1.0, 5.0, 0.1, 20.0][:len(layers)], rows[0]["model"]),
                                table, "--budget", "0.25")
        chosen = {str(one["layer"]): one for one in found}
        self.assertGreater(len({one["budget"] for one in chosen.values()}), 1)
        self.done("replay", *options, "--policy", self.path("p.json"), "-o", out)
        plain = {(row["layer"], row["q_head"], f"{row['algorithm']}:{row['params']}",
                  float(row["budget_requested"])): row["rel_error"] for row in read_rows(curves)}
        for row in read_rows(out):
            one = chosen[row["layer"]]
            self.assertEqual((row["algorithm"], row["rel_error"]),
                             ("policy", plain[row["layer"], row["q_head"], one["algorithm"], one["budget"]]))
