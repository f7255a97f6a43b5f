"""kvbench-study atlas: features and best methods against plain averages, the tree on planted data, refusals."""

import gzip
import itertools
import math
import os
import random
import statistics
import unittest

from study_case import CommandCase, missing, read_rows, write_rows

MISSING = missing("numpy", "pandas", "matplotlib", "scipy", "sklearn")
if not MISSING:
    from kvbench_study.atlas import main as atlas

PLACE = ("trace", "prompt", "layer")
ROWS = (*PLACE, "q_head", "kv_head", "algorithm", "params", "budget_requested", "seed", "rel_error", "status")
LAYERS, KV_HEADS, GROUP = range(10), 4, 2


@unittest.skipIf(MISSING, f"lacks {', '.join(MISSING)}")
class AtlasTest(CommandCase):
    def module(self):
        return atlas

    def write(self, name, columns, rows):
        write_rows(self.path(name), columns, rows)

    def model(self, name, seed, prompts=2):
        """Tables of a model in which local is best for heads of small entropy, snapkv for the others."""
        chance = random.Random(seed)
        attention, keys, spectrum, rows = [], [], [], []
        for prompt, layer, h in itertools.product([f"p{i}" for i in range(prompts)], LAYERS, range(KV_HEADS)):
            place = ["t.h5", prompt, layer]
            entropy = 2.0 if (layer + h) % 2 else 6.0
            attention += [[*place, GROUP * h + g, "queries", entropy + chance.random(), 100 * chance.random(),
                           chance.random(), chance.random()] for g in range(GROUP)]
            keys.append([*place, h, "keys", 10 * chance.random(), chance.random()])
            spectrum += [[*place, h, what, 1 + 10 * chance.random()] for what in ("keys", "values")]
            for method, small in (("local", entropy < 4), ("snapkv", entropy > 4), ("h2o", False)):
                size = 0.1 if small else 0.3
                rows += [[*place, GROUP * h + g, h, method, "", budget, 0, size * (1 + chance.random() / 4), "ok"]
                         for g in range(GROUP) for budget in (0.25, 0.125)]
        self.write(f"{name}/attention.csv", (*PLACE, "head", "what", "entropy", "heavy_tokens", "first_mass",
                                             "near_mass"), attention)
        self.write(f"{name}/keys.csv", (*PLACE, "kv_head", "what", "rho", "mean_share"), keys)
        self.write(f"{name}/spectrum.csv", (*PLACE, "kv_head", "what", "participation"), spectrum)
        self.write(f"{name}/rows.csv", ROWS, rows)
        return ["--cluster", name, self.path(name), "--row-table", name, self.path(f"{name}/rows.csv")]

    def test_heads(self):
        words = self.model("a", 1)
        self.write_policy()
        self.run_script(*words, "--policy", "a", self.path("p.json"), "--csv", self.path("o.csv"))
        found = self.read("o.csv")
        self.assertEqual([(row["layer"], row["kv_head"]) for row in found],
                         [(str(layer), str(h)) for layer in LAYERS for h in range(KV_HEADS)])
        rows, attention, spectrum = (read_rows(self.path(f"a/{name}.csv"))
                                     for name in ("rows", "attention", "spectrum"))
        for row in found:
            layer, h = row["layer"], row["kv_head"]
            mine = [one for one in rows
                    if (one["layer"], one["kv_head"], one["budget_requested"]) == (layer, h, "0.125")]
            error = {method: statistics.geometric_mean(
                statistics.mean(float(one["rel_error"]) for one in mine
                                if (one["prompt"], one["algorithm"]) == (prompt, method)) for prompt in ("p0", "p1"))
                     for method in ("local", "snapkv", "h2o")}
            best = min(error, key=error.get)
            self.assertEqual(row["best"], best)
            self.assertEqual(best, "local" if (int(layer) + int(h)) % 2 else "snapkv")
            self.assertAlmostEqual(float(row["error"]), error[best], places=12)
            self.assertAlmostEqual(float(row["entropy"]), statistics.mean(
                float(one["entropy"]) for one in attention
                if one["layer"] == layer and int(one["head"]) // GROUP == int(h)), places=12)
            self.assertAlmostEqual(float(row["value_dims"]), statistics.mean(
                float(one["participation"]) for one in spectrum
                if (one["layer"], one["kv_head"], one["what"]) == (layer, h, "values")), places=12)
            self.assertEqual(float(row["policy_budget"]), 0.5 if int(layer) % 2 else 0.25)

    def write_policy(self):
        with open(self.path("p.json"), "w", encoding="utf-8") as file:
            file.write('{"layers": [' + ", ".join(
                f'{{"layer": {layer}, "budget": {0.5 if layer % 2 else 0.25}}}' for layer in LAYERS) + "]}")

    def test_a_tree_of_other_models_finds_the_rule(self):
        words = [word for i, name in enumerate("abc") for word in self.model(name, i)]
        out, _ = self.run_script(*words)
        for name in "abc":
            self.assertRegex(out, rf"\| `{name}` \| 40 \| 100% \| 50% \| 0\.\d+ \| ")
            (line,) = [line for line in out.splitlines() if line.startswith(f"| `{name}` | 40")]
            tree, _, best = (float(cell) for cell in line.strip("| ").split(" | ")[4:])
            self.assertEqual(tree, best)  # the rule has no exception
            self.assertLess(abs(math.log(best / math.sqrt(1 / 3))), 0.05)
        self.assertIn("| `entropy` | 1.00 | 1.00 | 1.00 |", out)
        self.assertNotIn("left out", self.run_script(*self.model("d", 7))[0])

    def test_tables_of_a_store(self):
        words = self.model("a", 1)
        plain = self.run_script(*words)[0]
        for name in ("attention", "keys", "spectrum"):
            with open(self.path(f"a/{name}.csv"), "rb") as file, gzip.open(self.path(f"p0.{name}.csv.gz"), "wb") as out:
                out.write(file.read())
        words[2] = self.path("p0")
        self.assertEqual(self.run_script(*words)[0], plain)

    def test_pictures(self):
        self.write_policy()
        self.run_script(*self.model("a", 1), *self.model("b c", 2), "--policy", "b c", self.path("p.json"), "--figures",
                        self.path("f"))
        for name in ("f-a.png", "f-b-c.png", "f-b-c.pdf"):
            self.assertGreater(os.path.getsize(self.path(name)), 5000, name)

    def test_refusals(self):
        words = self.model("a", 1)
        self.refused("no rows at budget 0.5", *words, "--budget", "0.5")
        self.refused("budget 0.125: no rows of label knorm; it holds h2o, local, snapkv", *words,
                     "--algorithm", "knorm")
        self.refused("none of b", "--cluster", "b", self.path("a"), *words[3:])
        rows = read_rows(self.path("a/rows.csv"))
        self.write("a/rows.csv", ROWS, [list(row.values()) for row in rows if row["layer"] != "3"])
        self.refused("40 KV heads, ", *words)
        self.write("a/rows.csv", ROWS, [[*list(row.values())[:-1], "failed: x"] for row in rows])
        self.refused("status failed: x", *words)
        self.write("a/rows.csv", ROWS, [list(row.values()) for row in rows if row["prompt"] + row["layer"] != "p13"])
        self.refused("layer 3, KV head 0: not for every source", *words)


if __name__ == "__main__":
    unittest.main()
