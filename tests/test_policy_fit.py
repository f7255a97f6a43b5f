"""kvbench-py policy: the fit against another minimiser, what is held out, averages, and what it refuses."""

import json
import math
import os
import random
import unittest

from script_case import CommandCase, missing, read_text, write_rows

MISSING = missing("numpy", "pandas", "scipy")
if not MISSING:
    import numpy as np
    from scipy import optimize

    from kvbench.budgets import main as policy
    from kvbench.budgets import model

LAYER_COLUMNS = ("schema", "trace", "prompt", "protocol", "sink", "recent", "scores", "device", "n_queries",
                 "algorithm", "params", "budget_requested", "seed", "layer", "out_rel_error",
                 "residual_rel_error")
SCORE_COLUMNS = ("trace", "prompt", "algorithm", "params", "budget_requested", "seed", "layers", "kl", "status")
TRUE = (4.0, 0.5, 0.01)  # sensitivities of three layers
METHODS = ("snapkv", "h2o", "local", "h2o@quant-kivi", "knorm")


def least_squares(squares, kl, ridge):
    """The fit by Levenberg and Marquardt, with numeric derivatives."""
    n, layers = len(kl), len(squares[0])

    def residuals(logs):
        off = [math.log(sum(math.exp(t) * e for t, e in zip(logs, row)) / k) / math.sqrt(n)
               for row, k in zip(squares, kl)]
        mean = sum(logs) / layers
        return off + [math.sqrt(ridge / layers) * (t - mean) for t in logs]

    return [math.exp(t) for t in optimize.least_squares(residuals, [0.0] * layers, xtol=1e-14, ftol=1e-14,
                                                        gtol=1e-14).x]


@unittest.skipIf(MISSING, f"lacks {', '.join(MISSING)}")
class PredictTest(CommandCase):
    def module(self):
        return policy

    def setUp(self):
        super().setUp()
        self.random = random.Random(5)
        self.write_file("model.json", '{"model": "org/M @ 1f"}')

    def errors(self, count):
        return [[self.random.uniform(0.01, 0.3) for _ in TRUE] for _ in range(count)]

    def write(self, name, columns, rows):
        return write_rows(self.path(name), columns, rows)

    def tables(self, points, drop=(), kl=None):
        """Tables of both sides for {(prompt, algorithm, budget, seed): errors of layers}."""
        scores, layers = [], []
        for (prompt, algorithm, budget, seed), errors in points.items():
            value = sum(s * e * e for s, e in zip(TRUE, errors)) if kl is None else kl(prompt, algorithm)
            scores.append(["t.h5", prompt, algorithm, "", budget, seed, len(TRUE), value, "ok"])
            layers += [["1.4", "folder/t.h5", prompt, "prefill", 16, 512, "past", "cpu", 256, algorithm, "", budget,
                        seed, layer, 0.5, error] for layer, error in enumerate(errors)
                       if (prompt, algorithm, layer) not in drop]
        return (self.write("scores.csv", SCORE_COLUMNS, scores), self.write("layers.csv", LAYER_COLUMNS, layers))

    def points(self, sources=4, methods=METHODS):
        return {(f"p{i}", method, budget, 0): errors
                for (i, method, budget), errors in zip(
                    ((i, m, b) for i in range(sources) for m in methods for b in (0.25, 0.125)), self.errors(1000))}

    def fitted(self, scores, layers, *more):
        out, said = self.run_script("fit", "--model", "M", scores, "--layer-table", layers, "-o",
                                    self.path("s.json"), *more)
        return json.loads(read_text(self.path("s.json"))), out, said

    def close(self, found, expected, off):
        for one, other in zip(found, expected, strict=True):
            self.assertLess(abs(math.log(one / other)), off)

    def test_the_fit_equals_another_minimiser(self):
        squares = [[e * e for e in row] for row in self.errors(40)]
        for noise, ridge in ((0.0, 1e-6), (0.5, 0.03), (0.5, 1.0)):
            kl = [sum(s * e for s, e in zip(TRUE, row)) * math.exp(self.random.gauss(0, noise)) for row in squares]
            found = model.fit(np.array(squares), np.array(kl), ridge)
            # Both stop at gradients of some 1e-6.
            self.close(found, least_squares(squares, kl, ridge), 0.01)
            if not noise:
                self.close(found, TRUE, 0.05)

    def test_a_held_out_prediction_reads_neither_its_source_nor_its_method(self):
        squares = np.array([[[e * e for e in row] for row in self.errors(len(METHODS))] for _ in range(5)])
        kl = squares @ np.array(TRUE) * np.exp([[self.random.gauss(0, 0.3) for _ in METHODS] for _ in range(5)])
        usual = model.cross_fit(squares, kl, METHODS)
        for method, others in (("h2o", {"h2o", "h2o@quant-kivi"}), ("local", {"local"}),
                               ("h2o@quant-kivi", {"h2o", "h2o@quant-kivi"})):
            at = METHODS.index(method)
            changed = kl.copy()
            changed[2] *= 7
            changed[:, [METHODS.index(one) for one in others]] *= 3
            again = model.cross_fit(squares, changed, METHODS)
            self.assertEqual(usual[2, at], again[2, at], method)
            self.assertNotEqual(usual[1, at], again[1, at], method)
            train = [i for i, one in enumerate(METHODS) if one not in others]
            rest = [(squares[i, j], kl[i, j]) for i in range(5) if i != 2 for j in train]
            weights = least_squares([row for row, _ in rest], [value for _, value in rest], model.RIDGE)
            expected = sum(s * e for s, e in zip(weights, squares[2, at]))
            self.close([usual[2, at]], [expected], 0.01)

    def test_fit_and_apply(self):
        points = self.points()
        content, out, said = self.fitted(*self.tables(points), "--ridge", "1e-6", "--csv", self.path("c.csv"))
        self.assertEqual((content["layers"], content["model"]), ([0, 1, 2], "org/M @ 1f"))
        self.close(content["sensitivity"], TRUE, 0.05)
        self.assertIn("4 sources, 5 methods, 10 cells", out)
        self.assertEqual(said, "")
        rows = self.read("c.csv")
        self.assertEqual(len(rows), 10)
        self.close([float(row["ratio"]) for row in rows], [1] * 10, 0.05)
        for row in rows:
            mine = [sum(s * e * e for s, e in zip(TRUE, errors)) for (_, method, budget, _), errors
                    in points.items() if (method, budget) == (row["method"], float(row["budget"]))]
            self.assertAlmostEqual(float(row["kl"]), sum(mine) / 4, places=12)
        out, _ = self.run_script("apply", self.path("s.json"), self.path("layers.csv"), "--csv",
                                 self.path("p.csv"))
        for row in self.read("p.csv"):
            errors = points[row["prompt"], row["algorithm"], float(row["budget_requested"]), 0]
            expected = sum(s * e * e for s, e in zip(content["sensitivity"], errors))
            self.assertAlmostEqual(float(row["kl_predicted"]) / expected, 1, places=12)
            for end, factor in zip(("low", "high"), content["ratio"]["prompt"]):
                self.assertAlmostEqual(float(row[end]) / (expected * factor), 1, places=12)
        self.assertEqual(len(self.read("p.csv")), len(points))
        self.assertEqual(len([line for line in out.splitlines() if line.startswith("| `0.")]), 10)

    def test_methods_without_a_budget_are_predicted_and_not_fitted(self):
        errors = (0.1, 0.2, 0.3)
        content, out, said = self.fitted(*self.tables(self.points() | {("p0", "kivi", "", 0): errors}))
        self.assertIn("10 cells", out)
        self.assertIn("kivi: skipped, it has no budget", said)
        self.run_script("apply", self.path("s.json"), self.path("layers.csv"), "--csv", self.path("p.csv"))
        rows = {row["algorithm"]: row for row in self.read("p.csv")}
        self.assertEqual(rows["kivi"]["budget_requested"], "")
        self.assertAlmostEqual(float(rows["kivi"]["kl_predicted"]),
                               sum(s * e * e for s, e in zip(content["sensitivity"], errors)), 12)

    def test_methods_without_a_budget_alone_are_refused(self):
        scores, layers = self.tables({(f"p{i}", method, "", 0): errors for i in range(3)
                                      for method, errors in zip(METHODS, self.errors(5))})
        self.refused("scores.csv: got no method with a budget, expected at least 3", "fit", "--model", "M", scores,
                     "--layer-table", layers, "-o", self.path("s.json"))

    def test_seeds_then_prompts_then_sources(self):
        points = {("a1", "h2o", 0.5, 0): (0.1, 0.1, 0.1), ("a1", "h2o", 0.5, 1): (0.3, 0.1, 0.1),
                  ("a2", "h2o", 0.5, 0): (0.2, 0.2, 0.1), ("b", "h2o", 0.5, 0): (0.1, 0.2, 0.2)}
        for prompt in ("a1", "a2", "b"):
            points |= {(prompt, method, 0.5, 0): errors for method, errors in zip(("local", "knorm", "tova"),
                                                                                  self.errors(3))}
        self.write_file("r.jsonl", "".join(
            json.dumps({"id": prompt, "source": prompt[0], "text": "x"}) + "\n" for prompt in ("a1", "a2", "b")))
        _, out, _ = self.fitted(*self.tables(points), "--records", self.path("r.jsonl"), "--csv",
                                self.path("c.csv"))
        self.assertIn("2 sources, 4 methods", out)
        row = next(row for row in self.read("c.csv") if row["method"] == "h2o")
        kl = {key[:1] + key[3:]: sum(s * e * e for s, e in zip(TRUE, errors)) for key, errors in points.items()
              if key[1] == "h2o"}
        a1, a2, b = (kl["a1", 0] + kl["a1", 1]) / 2, kl["a2", 0], kl["b", 0]
        self.assertAlmostEqual(float(row["kl"]), ((a1 + a2) / 2 + b) / 2, places=12)

    def test_cells_without_every_source_or_without_loss_are_skipped(self):
        points = self.points()
        points |= {(f"p{i}", "exact", 0.25, 0): (1e-8, 1e-8, 1e-8) for i in range(4)}
        points["p0", "tova", 0.25, 0] = (0.1, 0.1, 0.1)
        _, out, said = self.fitted(*self.tables(points))
        self.assertIn("10 cells", out)
        self.assertIn("exact at 0.25: skipped, its KL divergence is 0", said)
        self.assertIn("tova at 0.25: skipped, 3 of 4 sources lack it", said)

    def alone(self, points, factor=lambda method, layer: 1.0, drop=()):
        """A table of layers compressed alone."""
        rows = [["t.h5", prompt, algorithm, "", budget, seed, 1, TRUE[layer] * error**2 * factor(algorithm, layer),
                 "ok", layer] for (prompt, algorithm, budget, seed), errors in points.items()
                for layer, error in enumerate(errors) if (prompt, algorithm, layer) not in drop]
        return self.write(f"alone{len(os.listdir(self.folder))}.csv", (*SCORE_COLUMNS, "layer"), rows)

    def test_measured_sensitivities(self):
        points = self.points()
        scores, layers = self.tables(points)
        made = ("--model", "M", scores, "--layer-table", layers, "-o", self.path("m.json"))
        out, _ = self.run_script("measure", "--alone", self.alone(points), *made)
        content = json.loads(read_text(self.path("m.json")))
        self.close(content["sensitivity"], TRUE, 1e-5)  # six digits
        self.assertIn("| `0` | 4 [4, 4] | 4 to 4 |", out)
        self.assertIn("1.00 [1.00, 1.00]", out)
        # One method's loss in layer 1 is 16 times as large: its geometric mean over five methods.
        out, _ = self.run_script("measure", *made, "--alone", self.alone(
            points, lambda method, layer: 16.0 if (method, layer) == ("h2o", 1) else 1.0))
        self.assertIn(f"| `1` | {0.5 * 16 ** 0.2:.3g} [", out)
        self.assertIn("| 0.5 to 8 |", out)
        # Those of other caches.
        other = self.tables(self.points(8, ("tova", "rkv", "lagkv")))
        out, _ = self.run_script("check", self.path("m.json"), other[0], "--layer-table", other[1], "--csv",
                                 self.path("c.csv"))
        self.assertIn("made from 4 sources, 4 of them among these", out)
        self.assertEqual({row["method"] for row in self.read("c.csv")}, {"tova", "rkv", "lagkv"})

        # On some prompts: the others would make them 9 times as large.
        loud = {key: tuple(9 * one for one in errors) if key[0] in ("p0", "p3") else errors
                for key, errors in points.items()}
        self.tables(points)
        self.run_script("measure", *made, "--alone", self.alone(loud), "--prompts", "p1,p2")
        content = json.loads(read_text(self.path("m.json")))
        self.assertEqual(content["fitted"]["sources"], ["p1", "p2"])
        self.close(content["sensitivity"], TRUE, 1e-5)
        self.refused("no rows of prompt p9; it holds p0, p1", "measure", *made, "--alone", self.alone(points),
                     "--prompts", "p1,p9")

    def test_the_model_is_the_recorded_one(self):
        points = {(f"p{i}", name, 0.25, 0): [0.1 + 0.01 * i, 0.2, 0.05 * at] for i in range(3)
                  for at, name in enumerate(METHODS, 1)}
        scores, layers = self.tables(points)
        files = (scores, "--layer-table", layers, "-o", self.path("s.json"), "--markdown", self.path("m"))
        for made in (("fit", *files), ("measure", *files, "--alone", self.alone(points))):
            self.write_file("scores.csv.json", json.dumps({"settings": {"model": "a/Small @ 1f"}}))
            self.write_file("model.json", '{"model": "small"}')
            self.run_script(*made, "--model", "SMALL")
            self.assertEqual(json.loads(read_text(self.path("s.json")))["model"], "a/Small @ 1f")
            self.refused("--model: got Large, expected a/Small @ 1f, which ", *made, "--model", "Large")
            self.write_file("model.json", '{"model": "large"}')
            self.refused("layers.csv: got rows of large, expected those of a/Small @ 1f, as ", *made)
            for name in ("model.json", "scores.csv.json"):
                os.remove(self.path(name))
            self.refused("scores.csv: got no record of its model, expected a manifest", *made, "--model", "Small")
        # Rows of layers have the manifest of their OUT.csv.
        os.rename(layers, self.path("out.layers.csv"))
        self.write_file("out.csv.json", json.dumps({"traces": [{"model": ""}, {"model": "large"}]}))
        for step, *more in (["apply"], ["choose"], ["check", scores, "--layer-table"]):
            self.refused("out.layers.csv: got rows of large, expected those of a/Small @ 1f, as ", step,
                         self.path("s.json"), *more, self.path("out.layers.csv"),
                         *(["--budget", "0.25", "-o", self.path("p.json")] if step == "choose" else []))

    def test_refusals(self):
        def refuse(what, files, *more):
            self.refused(what, "fit", "--model", "M", files[0], "--layer-table", files[1], "-o",
                         self.path("s.json"), *more)

        points = self.points()
        refuse("p9, h2o: layers are missing", self.tables(
            {**points, ("p9", "h2o", 0.25, 0): (0.1, 0.1, 0.1)}, drop={("p9", "h2o", 2)}))
        refuse("no rows of prompt p1, h2o at 0.25", self.tables(points, drop={("p1", "h2o", i) for i in range(3)}))
        scores, layers = self.tables(points)
        again = self.write_file("again.csv", read_text(layers).replace("folder/", "other/"))
        self.refused("duplicate row", "fit", "--model", "M", scores, "--layer-table", layers, again, "-o",
                     self.path("s.json"))
        refuse("1 source and 5 methods", self.tables(self.points(1)))
        refuse("4 sources and 2 methods", self.tables(self.points(4, METHODS[:2])))
        shared = "h2o", "snapkv", "h2o@snapkv"
        refuse("h2o@snapkv: got only methods that share a name with it", self.tables(self.points(4, shared)))
        files = self.tables(points)
        for table in (self.alone(points, drop={("p1", "h2o", 2)}), self.alone(points, lambda method, layer: 0.0)):
            self.refused("got no KL above", "measure", "--model", "M", files[0], "--layer-table", files[1],
                         "--alone", table, "-o", self.path("m.json"))
        refuse("argument --ridge", files, "--ridge", "0")
        refuse("argument --ridge", files, "--ridge", "nan")
        content, _, _ = self.fitted(*files)
        for change, what in (({"format": "x"}, "expected a file of kvbench-py policy fit"),
                             ({"layers": [0, 1]}, "as many `sensitivity`"),
                             ({"sensitivity": [1, "nan", 1]}, "positive numbers"),
                             ({"ratio": {}}, "two `ratio`"),
                             ({"layers": [0, 1, 3]}, "expected the 3 of")):
            self.write_file("bad.json", json.dumps(content | change))
            self.refused(what, "apply", self.path("bad.json"), files[1])
        self.write_file("bad.json", "{")
        self.refused("bad.json", "apply", self.path("bad.json"), files[1])
        self.refused("no.json", "apply", self.path("no.json"), files[1])
