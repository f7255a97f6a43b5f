"""kvbench-py claims on tables with planted effects: what is true in every layer, false in one,
noise, incomplete, or of too few prompts. Its intervals alone: test_kvbench_stats.py."""

import itertools
import math
import os
import sys
import unittest

import numpy as np
from claims_rows import LAYERS, halving_rows, lambda_rows, prompts_of, revive_rows
from script_case import missing, run_program
from plot_tables import DEFAULTS, FigureTest

SCIPY = not missing("scipy")
if SCIPY:
    from kvbench.claims import main as paper_claims

NAN = float("nan")
COLUMNS = [*DEFAULTS, "eps_fro"]
HOLDS, FAILS, OPEN = "holds here", "does not hold here", "not decided"
HEAD = "trace,prompt,layer,kv_head,what,"


@unittest.skipUnless(SCIPY, f"{sys.executable} has no scipy")
class PaperClaimsTest(FigureTest):
    def judge(self, *arguments, code=0):
        """({claim: row}, [cells], stderr)."""
        outputs = [option for name in ("csv", "cells", "markdown")
                   for option in ("--" + name, self.path(f"{name}.out"))]
        _, said = self.must(paper_claims, *arguments, *outputs, "--resamples", "2000", code=code)
        if code:
            return said
        return {row["claim"]: row for row in self.table("csv.out")}, self.table("cells.out"), said

    def halvings(self, rows):
        return self.judge("--fig2", self.write(rows, columns=COLUMNS))

    def counts(self, row):
        return [int(row[name]) for name in ("cells", "cells_for", "cells_against")]

    # ------------------------------------------------------------------------------- BalanceKV

    def test_true_in_every_layer(self):
        claims, cells, said = self.halvings(halving_rows(lambda layer, t: 0.5))
        row = claims["balancekv-figure2"]
        self.assertEqual((row["verdict"], self.counts(row), row["prompts"], row["decide"]),
                         (HOLDS, [8, 8, 0], "8", ""))
        self.assertAlmostEqual(float(row["value"]), 0.5, delta=0.01)  # noise .02 over 256 rows
        self.assertTrue(float(row["low"]) < float(row["value"]) < float(row["high"]) < 1)
        mine = [c for c in cells if c["claim"] == "balancekv-figure2"]
        self.assertEqual([(c["layer"], c["setting"]) for c in mine if c["side"] == "for"],
                         [(layer, f"T={t}") for t in (1, 2, 3, 4) for layer in ("0", "3")])
        self.assertEqual([c["layer"] for c in mine if c["side"] == "shown"], 4 * ["all"])
        for cell in mine:
            self.assertTrue(0 < float(cell["low"]) < float(cell["value"]) < float(cell["high"]) < 1)
            self.assertTrue(float(cell["p"]) <= 0.05)
        # Same slopes: no rate of 1/memory.
        self.assertEqual(claims["balancekv-rate-rel_error"]["verdict"], FAILS)
        self.assertIn("--cluster are left out", said)

    def test_what_a_claim_is_tested_as(self):
        paper = {"sink": 256, "recent": 256, "n_queries": 256, "n_tokens": 2000}
        rows = list(halving_rows(lambda layer, t: 0.5))
        for more, label in ((paper, "setting replicated"), ({**paper, "sink": 16}, "adapted"),
                            ({}, "adapted")):
            claims, _, _ = self.halvings([{**row, **more} for row in rows])
            self.assertEqual(claims["balancekv-figure2"]["label"], label)
            self.assertEqual(claims["balancekv-rate-eps_fro"]["label"], "adapted")
            with open(self.path("markdown.out"), encoding="utf-8") as file:
                text = file.read()
            self.assertIn(f"| BalanceKV, section 4.1, figure 2 | {label} | prefill, sink ", text)
            for word in ("confirm", "refut", "undecided"):
                self.assertNotIn(word, text)

    def test_one_layer_says_the_opposite(self):
        """The mean over layers, and over cells, is on the claim's side."""
        rows = halving_rows(lambda layer, t: 1.3 if (layer, t) == (3, 2) else 0.1)
        claims, cells, _ = self.halvings(rows)
        row = claims["balancekv-figure2"]
        self.assertEqual((row["verdict"], self.counts(row)), (FAILS, [8, 7, 1]))
        self.assertLess(float(row["high"]), 1)
        mean, = (c for c in cells if c["claim"] == "balancekv-figure2" and c["setting"] == "T=2"
                 and c["layer"] == "all")
        self.assertLess(float(mean["high"]), 1)
        with open(self.path("markdown.out"), encoding="utf-8") as file:
            self.assertIn("layer 3, T=2: 1.3", file.read())

    def test_a_draw_is_undecided(self):
        claims, _, _ = self.halvings(halving_rows(lambda layer, t: 1.0, noise=0.3))
        row = claims["balancekv-figure2"]
        self.assertEqual((row["verdict"], self.counts(row)[2]), (OPEN, 0))
        self.assertRegex(row["decide"], r"^\d of 8 cells are open, \d with a mean against; (about|"
                                        r"more than) \d+ prompts to show that it does not hold, if "
                                        r"layer [03], T=")

    def test_too_few_prompts(self):
        claims, cells, _ = self.halvings(halving_rows(lambda layer, t: 0.1, prompts=3))
        row = claims["balancekv-figure2"]
        self.assertEqual((row["verdict"], row["decide"]), (
            OPEN, "at least 4 prompts: 8 of 8 cells have 3 prompts"))
        self.assertEqual({c["side"] for c in cells}, {"open", "shown"})
        self.assertEqual((row["low"], {c["p"] for c in cells}), ("", {""}))

    def test_exponents(self):
        """Slopes of exact powers, with noise that averages to nothing over T."""
        for rate, verdict in ((-1.2, HOLDS), (-0.8, FAILS), (-1.0, OPEN)):
            with self.subTest(rate=rate):
                claims, cells, _ = self.halvings(halving_rows(lambda layer, t: 1, rate=rate))
                for metric in ("rel_error", "eps_fro"):
                    row = claims[f"balancekv-rate-{metric}"]
                    self.assertEqual((row["verdict"], row["cells"]), (verdict, "2"))
                    self.assertAlmostEqual(float(row["value"]), rate, delta=0.02)
                    faster = claims[f"balancekv-faster-{metric}"]
                    self.assertEqual(faster["verdict"], HOLDS)
                    self.assertAlmostEqual(float(faster["value"]), rate + 0.5, delta=0.02)
                uniform = [float(c["value"]) for c in cells if c["figure"]
                           == "exponent of uniform's rel_error"]
                self.assertEqual(len(uniform), 3)
                np.testing.assert_allclose(uniform, -0.5, atol=0.02)

    def test_incomplete_cells_stay_open(self):
        """A NaN, a head without status ok, a head that is absent: each takes the prompt out."""
        rows = list(halving_rows(lambda layer, t: 0.5))
        where = {"algorithm": "balancekv", "layer": 3, "q_head": 1, "params": "T=4"}
        hit = [i for i, row in enumerate(rows)
               if all(row[name] == value for name, value in where.items())]
        self.assertEqual(len(hit), 8)
        for spoil in ({"rel_error": "nan"}, {"rel_error": "inf"}, {"status": "degenerate: x"},
                      None):
            with self.subTest(spoil=spoil):
                mine = [dict(row) for row in rows]
                for i in reversed(hit[:5]):
                    if spoil is None:
                        del mine[i]
                    else:
                        mine[i].update(spoil)
                claims, cells, _ = self.halvings(mine)
                row = claims["balancekv-figure2"]
                self.assertEqual((row["verdict"], self.counts(row), row["prompts"]),
                                 (OPEN, [8, 7, 0], "3"))
                self.assertEqual(row["decide"], "at least 4 prompts: 1 of 8 cells have 3 prompts")
                cell, = (c for c in cells if c["claim"] == "balancekv-figure2"
                         and (c["layer"], c["setting"]) == ("3", "T=4"))
                self.assertEqual((cell["prompts"], cell["side"], cell["low"]), ("3", "open", ""))
        for i in hit:
            rows[i]["rel_error"] = "nan"
        claims, _, _ = self.halvings(rows)
        self.assertEqual(claims["balancekv-figure2"]["decide"],
                         "measurements of 1 of 8 cells that no prompt has whole (first: layer 3, "
                         "T=4)")

    def test_two_protocols_are_two_rows(self):
        paths = [self.write(halving_rows(lambda layer, t: ratio), name, columns=COLUMNS)
                 for name, ratio in (("a.csv", 0.5), ("b.csv", 5))]
        self.judge("--fig2", paths[0], "--fig2-default", paths[1])
        rows = [row["verdict"] for row in self.table("csv.out")
                if row["claim"] == "balancekv-figure2"]
        self.assertEqual(rows, [HOLDS, FAILS])

    # ------------------------------------------------------------------------------- BumbleBee

    def lambdas(self, error, **options):
        claims, cells, _ = self.judge("--lambda", self.write(lambda_rows(error, **options)))
        return claims["bumblebee-extremes"], claims["bumblebee-range"], cells

    def test_lambda_within_the_range(self):
        extremes, best, cells = self.lambdas(lambda layer, at, p: 1 + (at - 0.3)**2 * 20)
        self.assertEqual((extremes["verdict"], self.counts(extremes)), (HOLDS, [8, 8, 0]))
        self.assertEqual((best["verdict"], self.counts(best)), (HOLDS, [4, 4, 0]))
        self.assertEqual(best["prompts"], "8")
        # 0.3 over the better of 0.1 and 0.5: 1 / 1.8.
        self.assertAlmostEqual(float(best["value"]), 1 / 1.8, delta=0.01)
        self.assertEqual({c["setting"] for c in cells if c["claim"] == "bumblebee-range"},
                         {"budget=0.5;phi=log", "budget=0.5;phi=power"})

    def test_lambda_elsewhere_in_one_layer(self):
        extremes, best, _ = self.lambdas(
            lambda layer, at, p: 2 - at if layer == 3 else 1 + (at - 0.3)**2 * 20)
        self.assertEqual((extremes["verdict"], self.counts(extremes)), (FAILS, [8, 6, 2]))
        self.assertEqual((best["verdict"], self.counts(best)), (FAILS, [4, 2, 2]))

    def test_lambda_by_luck(self):
        """Noise alone: chosen on the same prompts, eight lambdas would beat three."""
        values, lucky = [], []
        for seed in range(6):
            rng = np.random.default_rng(seed)
            noise = rng.lognormal(0, 0.3, (2, 11, 8))
            extremes, best, _ = self.lambdas(
                lambda layer, at, p: noise[LAYERS.index(layer), round(10 * at), p], noise=0)
            self.assertEqual((extremes["verdict"], best["verdict"]), 2 * (OPEN,))
            lucky.append(np.log(noise[:, 2:5].min(axis=1)
                                / np.delete(noise, [2, 3, 4], 1).min(axis=1)).mean())
            values.append(math.log(float(best["value"])))
        # The least of 8 normal figures lies 0.58 of their spread below the least of 3.
        self.assertGreater(np.mean(lucky), 0.1)
        # 16 figures of standard deviation .3 sqrt(2) a seed: four standard errors of their mean.
        self.assertLess(abs(np.mean(values)), 4 * 0.3 * math.sqrt(2 / (16 * len(values))))

    def test_one_prompt_chooses_nothing(self):
        _, best, _ = self.lambdas(lambda layer, at, p: 1 + at, prompts=1)
        self.assertEqual((best["verdict"], best["prompts"], best["value"]), (OPEN, "0", ""))

    # ------------------------------------------------------------------------------ ClusterGen

    def cluster(self, radius, clusters, norm, prompts=6):
        """Folders of kvbench cluster. radius(what, layer, k) of R = 10; clusters(layer, delta, n)."""
        rng = np.random.default_rng(6)
        out = []
        for prompt in prompts_of(prompts):
            out.append(self.path(prompt))
            os.makedirs(out[-1], exist_ok=True)
            parts = {"coverage": [HEAD + "k,radius,radius_rel,center"],
                     "growth": [HEAD + "delta,alpha,r2"],
                     "delta": [HEAD + "delta,n_prefix,clusters"],
                     "norms": ["trace,prompt,layer,head,what,min,p25,p50,p75,p95,max"]}
            for layer, head, what in itertools.product(LAYERS, (0, 1), ("keys", "values")):
                at = f"{prompt}.h5,{prompt},{layer},{head},{what},"
                for k in (1, 16, 64, 256):
                    near = radius(what, layer, k) * (1 + 0.01 * rng.standard_normal())
                    near = 10 if k == 1 else near
                    parts["coverage"].append(f"{at}{k},{near},{near / 10},0")
                for delta in (1, 5):
                    counts = [clusters(layer, delta, n) for n in (100, 10000)]
                    alpha = math.log(counts[1] / counts[0]) / math.log(100)
                    parts["growth"].append(f"{at}{delta},{alpha},1")
                    parts["delta"] += [f"{at}{delta},{n},{m}"
                                       for n, m in zip((100, 10000), counts)]
            # Four query heads, two for each KV head: the larger norm of a pair counts.
            parts["norms"] += [f"{prompt}.h5,{prompt},{layer},{head},queries,0,0,0,0,0,{value}"
                               for layer in LAYERS
                               for head, value in enumerate((1, norm, norm, 1))]
            for name, lines in parts.items():
                with open(os.path.join(out[-1], name + ".csv"), "w", encoding="utf-8") as file:
                    file.write("\n".join(lines) + "\n")
        return out

    @staticmethod
    def growth(layer, delta, n):
        """n^0.4 clusters at delta = 5, as many as tokens at 1."""
        return n if delta == 1 else n**0.4

    def test_keys_and_values(self):
        for better, verdict, counts in ((4, HOLDS, [6, 6, 0]), (7, FAILS, [6, 5, 1])):
            with self.subTest(verdict=verdict):
                folders = self.cluster(
                    lambda what, layer, k, at=better:
                    (at if (layer, k) == (3, 64) else 3) if what == "keys" else 6,
                    self.growth, 1.0)
                claims, cells, _ = self.judge("--cluster", *folders)
                row = claims["clustergen-keys"]
                self.assertEqual((row["verdict"], self.counts(row)), (verdict, counts))
                cell, = (c for c in cells if c["claim"] == "clustergen-keys"
                         and (c["layer"], c["setting"]) == ("3", "k=64"))
                self.assertAlmostEqual(float(cell["value"]), (better - 6) / 10, delta=0.02)

    def test_growth_and_reach(self):
        """By hand, n = 10000, log n = 9.21, scale 1/8: norm 8 at delta 5 reaches 5/9.21 = .54."""
        log_n = math.log(10000)
        for norm, premise, memory in ((8, 5 / log_n, 1 + 2 / log_n),
                                      (24, 1 / 0.95, 1 + 6 / log_n),
                                      (2, 0.4 / 0.95, 0.4 + 2.5 / log_n)):
            with self.subTest(norm=norm):
                folders = self.cluster(lambda *_: 5, self.growth, norm)
                claims, cells, _ = self.judge("--cluster", *folders, "--head-dim", "64")
                got = claims["clustergen-premise"], claims["clustergen-memory"]
                np.testing.assert_allclose([float(row["value"]) for row in got],
                                           [premise, memory], rtol=1e-9)
                for row, value in zip(got, (premise, memory)):
                    self.assertEqual(row["verdict"], HOLDS if value < 1 else FAILS)
                reach = {(c["layer"], c["setting"]): float(c["value"]) for c in cells
                         if c["figure"] == "delta r / log n"}
                np.testing.assert_allclose(reach["0", "delta=0.5"], 5 * norm / 8 / log_n, rtol=1e-9)

    def test_another_head_size(self):
        folders = self.cluster(lambda *_: 5, self.growth, 8)
        claims, _, _ = self.judge("--cluster", *folders, "--head-dim", "16")
        self.assertIn("1/sqrt(16)", claims["clustergen-premise"]["protocol"])
        np.testing.assert_allclose(float(claims["clustergen-premise"]["value"]), 1 / 0.95)

    # ------------------------------------------------------------------------------- KVReviver

    def sketch(self, error, prompts=6, params="estimate=sum;"):
        """Two files: vague=none,mean of six prompts, the sketch of two prompts more."""
        rng = np.random.default_rng(8)

        def rows(words, count):
            for prompt, layer, word in itertools.product(prompts_of(count), LAYERS, words):
                yield {"prompt": prompt, "layer": layer, "algorithm": "kvreviver",
                       "params": f"{params if word == 'sketch' else 'estimate=sum;'}vague={word}",
                       "rel_error": error(layer, word) * math.exp(0.02 * rng.standard_normal())}
        return (self.write(rows(("none", "mean"), prompts), "merging.csv"),
                self.write(rows(("sketch",), prompts + 2), "equal.csv"))

    def test_sketch(self):
        for bad, verdict, counts in ((0.5, HOLDS, [2, 2, 0]), (1.5, FAILS, [2, 1, 1])):
            with self.subTest(verdict=verdict):
                merging, equal = self.sketch(
                    lambda layer, word, at=bad: {"none": 1, "mean": 2}.get(
                        word, at if layer == 3 else 0.5))
                claims, cells, _ = self.judge("--merging", merging, "--equal", equal)
                row = claims["kvreviver-sketch"]
                self.assertEqual((row["verdict"], self.counts(row), row["prompts"]),
                                 (verdict, counts, "6"))
                mean = [float(c["value"]) for c in cells
                        if c["figure"] == "rel_error over that of vague=mean" and c["layer"] == "0"]
                np.testing.assert_allclose(mean, [0.25], rtol=0.05)

    def test_bound(self):
        path = self.write([*revive_rows(lambda layer, part: {"k": 20, "v": 0.5}[part]),
                           *revive_rows(lambda layer, part: 0.01, estimate="mean")])
        claims, cells, _ = self.judge("--ratio", path)
        for name, verdict, value in (("keys", FAILS, 20), ("values", HOLDS, 0.5)):
            row = claims[f"kvreviver-bound-{name}"]
            self.assertEqual((row["verdict"], row["cells"]), (verdict, "2"))
            np.testing.assert_allclose(float(row["value"]), value, rtol=0.02)
        self.assertEqual({c["setting"] for c in cells},
                         {"budget=0.5;vague_ratio=0.2;candidate_ratio=0.4;recent_ratio=0.4"})
        path = self.write(revive_rows(lambda layer, part: 2 if layer else 0.1))
        claims, _, _ = self.judge("--ratio", path)
        self.assertEqual(self.counts(claims["kvreviver-bound-values"]), [2, 1, 1])

    # -------------------------------------------------------------------------------- refusals

    def test_refusals(self):
        rows = list(halving_rows(lambda layer, t: 1, prompts=4))
        for change, word in (
                (lambda: rows + rows[:1], "rows stand twice"),
                (lambda: [{**row, "sink": 11} if i else row for i, row in enumerate(rows)],
                 "rows differ in sink"),
                (lambda: [{**row, "params": row["params"] + f";step={i // 2 % 2}"}
                          for i, row in enumerate(rows)], "with other parameters too than T"),
                (lambda: [row for row in rows if row["algorithm"] == "uniform"],
                 "expected rows of balancekv and uniform")):
            with self.subTest(word=word):
                said = self.judge("--fig2", self.write(change(), columns=COLUMNS), code=2)
                self.assertEqual((said.count("\n"), word in said), (1, True), said)
        merging, equal = self.sketch(lambda *_: 1, params="estimate=mean;")
        self.assertIn("with other parameters too than vague",
                      self.judge("--merging", merging, "--equal", equal, code=2))
        self.assertIn("expected both or neither", self.judge("--merging", merging, code=2))
        self.assertIn("expected tables", self.judge(code=2))

    def test_as_a_program(self):
        done = run_program("kvbench-py claims", "--fig2", "none.csv")
        self.assertEqual((done.returncode, done.stderr),
                         (2, "kvbench-py claims: none.csv: no such file\n"))
        path = self.write(halving_rows(lambda layer, t: 0.5, prompts=4), columns=COLUMNS)
        done = run_program("kvbench-py claims", "--fig2", path)
        self.assertEqual(done.returncode, 0)
        self.assertIn("| `balancekv-figure2` | BalanceKV, section 4.1, figure 2 |", done.stdout)


if __name__ == "__main__":
    unittest.main()
