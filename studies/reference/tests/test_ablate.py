"""kvbench-study ablate: ratios by ingredient against plain averages, the entries of configs/ablation.toml,
and what it refuses."""

import math
import os
import random
import statistics
import subprocess
import unittest

from study_case import KVBENCH, ROOT, CommandCase, missing, read_text, write_rows

MISSING = missing("numpy", "pandas", "matplotlib", "scipy")
if not MISSING:
    from kvbench_study.ablate import main as ablate

COLUMNS = ("schema", "trace", "prompt", "protocol", "sink", "recent", "scores", "device", "n_queries", "algorithm",
           "params", "budget_requested", "seed", "layer", "out_rel_error", "residual_rel_error")
FIT = "T=auto;heads=equal;keys={};tokens=auto;values={};weights={}"
# (algorithm, params of a budget's rows): the factor of its errors.
ENTRIES = {("h2o", "T=auto"): 1.0, ("oracle", "T=auto"): 0.6,
           ("attention-matching", FIT.format("h2o", "fitted", "fitted")): 0.5,
           ("attention-matching", FIT.format("oracle", "fitted", "fitted")): 0.4,
           ("attention-matching", FIT.format("h2o", "fitted", "one")): 0.8,
           ("attention-matching", FIT.format("h2o", "kept", "fitted")): 0.7,
           ("oracle-matching", FIT.format("h2o", "fitted", "fitted")): 0.3,
           ("oracle-matching", FIT.format("oracle", "fitted", "fitted")): 0.2}
WITH = {"weights fitted": (0.5, 0.8), "values fitted": (0.5, 0.7), "both fitted": (0.5, 1.0),
        "oracle's tokens, nothing fitted": (0.6, 1.0), "oracle's tokens": (0.4, 0.5), "oracle's fit": (0.3, 0.5),
        "oracle's tokens and fit": (0.2, 0.5), "four bits": (1.25, 1.0)}
LAYERS = (0, 3)


@unittest.skipIf(MISSING, f"lacks {', '.join(MISSING)}")
class AblateTest(CommandCase):
    def module(self):
        return ablate

    def write(self, sources=3, spread=0.1, without=None):
        """The table, and {(algorithm, params, budget, source, layer): error}."""
        chance = random.Random(3)
        lines, errors = [], {}
        points = [(a, p, b, factor) for (a, p), factor in ENTRIES.items() for b in ("0.25", "0.125")]
        points += [(a, f"T={t};k_bits=4" if "@" in a else f"T={t};reduce=mean", "", factor) for t in (1, 2)
                   for a, factor in (("h2o", 1.0), ("h2o@quant-kivi", 1.25))]
        for algorithm, params, budget, factor in points:
            if (algorithm, params) == without:
                continue
            for i in range(sources):
                for layer in LAYERS:
                    error = factor * (1 + layer) * math.exp(chance.gauss(0, spread)) / 10
                    errors[algorithm, params, budget, i, layer] = error
                    lines.append(["1.4", "t.h5", f"p{i}", "prefill", 16, 512, "past", "cpu", 256, algorithm, params,
                                  budget, 0, layer, 0.5, error])
        return write_rows(self.path("layers.csv"), COLUMNS, lines), errors

    def test_factors_without_noise(self):
        path, _ = self.write(spread=0.0)
        self.run_script(path, "--csv", self.path("a.csv"))
        rows = self.read("a.csv")
        self.assertEqual(len(rows), 2 * len(WITH) * (1 + len(LAYERS)))
        for row in rows:
            one, other = WITH[row["comparison"]]
            for name in ("ratio", "ratio_low", "ratio_high"):
                self.assertAlmostEqual(float(row[name]), one / other, places=12)
            self.assertEqual(row["size"].startswith("T="), row["comparison"] == "four bits")

    def test_means_over_layers_and_sources(self):
        path, errors = self.write()
        out, _ = self.run_script(path, "--csv", self.path("a.csv"), "--markdown", "-")
        fit = ("attention-matching", FIT.format("h2o", "fitted", "fitted"), "0.25")
        plain = ("h2o", "T=auto", "0.25")
        of_source = [math.log(statistics.mean(errors[(*fit, i, layer)] for layer in LAYERS)
                              / statistics.mean(errors[(*plain, i, layer)] for layer in LAYERS)) for i in range(3)]
        (row,) = [row for row in self.read("a.csv")
                  if (row["comparison"], row["size"], row["layer"]) == ("both fitted", "0.25", "all")]
        for name, value in (("ratio", statistics.mean(of_source)), ("ratio_low", min(of_source)),
                            ("ratio_high", max(of_source))):
            self.assertAlmostEqual(float(row[name]), math.exp(value), places=12)
        self.assertEqual(row["sources"], "3")
        self.assertIn(f"| `both fitted` | {math.exp(statistics.mean(of_source)):.2f} [", out)
        (row,) = [row for row in self.read("a.csv")
                  if (row["comparison"], row["size"], row["layer"]) == ("both fitted", "0.25", "3")]
        self.assertAlmostEqual(float(row["ratio"]), math.exp(statistics.mean(
            math.log(errors[(*fit, i, 3)] / errors[(*plain, i, 3)]) for i in range(3))), places=12)

    def test_prompts_of_a_source_are_averaged(self):
        path, errors = self.write()
        with open(self.path("r.jsonl"), "w", encoding="utf-8") as file:
            file.write("".join(f'{{"id": "p{i}", "text": "x", "source": "s{i // 2}"}}\n' for i in range(3)))
        self.run_script(path, "--records", self.path("r.jsonl"), "--csv", self.path("a.csv"))
        (row,) = [row for row in self.read("a.csv") if (row["comparison"], row["size"], row["layer"])
                  == ("oracle's tokens, nothing fitted", "0.125", "0")]
        self.assertEqual(row["sources"], "2")
        mine, other = ([statistics.mean(errors[name, "T=auto", "0.125", i, 0] for i in some)
                        for some in ((0, 1), (2,))] for name in ("oracle", "h2o"))
        self.assertAlmostEqual(float(row["ratio"]), math.exp(statistics.mean(
            math.log(a / b) for a, b in zip(mine, other))), places=12)

    def test_figure(self):
        path, _ = self.write()
        self.run_script(path, "--figures", self.path("f"))
        self.assertGreater(os.path.getsize(self.path("f.png")), 10000)
        self.assertTrue(os.path.isfile(self.path("f.pdf")))

    def test_refusals(self):
        path, _ = self.write(without=("attention-matching", FIT.format("h2o", "kept", "fitted")))
        self.refused("no rows of attention-matching:keys=h2o;values=kept;weights=fitted", path)
        text = read_text(path).splitlines(keepends=True)
        other = self.write_file("other.csv", "".join(line for line in text if "attention-matching" not in line))
        self.refused("no rows of attention-matching:keys=h2o", other)
        path, _ = self.write()
        with open(path, encoding="utf-8") as file:
            text = file.read()
        with open(path, "a", encoding="utf-8") as file:
            file.write("".join(line.replace("T=1;reduce=mean", "T=1;reduce=max") + "\n"
                               for line in text.splitlines() if "T=1;reduce=mean" in line))
        self.refused("2 settings of h2o at T=1, expected one", path)
        path, _ = self.write(spread=math.inf)
        self.refused("expected a finite number", path)

    @unittest.skipIf(not KVBENCH, "KVBENCH names no program")
    def test_the_configuration_has_every_entry(self):
        """Of a replay without output projections, whose rows have the same keys."""
        subprocess.run([KVBENCH, "synth", "-o", self.path("t.h5"), "--layers", "1", "--q-heads", "1", "--kv-heads",
                        "1", "--n", "700", "--d", "16", "--dv", "16"], check=True, capture_output=True)
        subprocess.run([KVBENCH, "replay", self.path("t.h5"), "--config",
                        os.path.join(ROOT, "configs", "ablation.toml"), "--recent", "64", "--queries", "32", "-o",
                        self.path("out.csv")], check=True, capture_output=True)
        import pandas as pd

        rows = pd.DataFrame(self.read("out.csv"))
        self.assertTrue((rows["status"] == "ok").all(), rows["status"].unique())
        used = set()
        for one, other in ablate.COMPARISONS.values():
            for variant in (one, other):
                mine = variant.of(rows)
                self.assertGreater(len(mine), 0, variant)
                used |= set(mine.index)
        self.assertEqual(used, set(rows.index))


if __name__ == "__main__":
    unittest.main()
