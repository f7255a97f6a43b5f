"""kvbench-study claims on tables of replay and cluster with planted effects: what each claim measures and
what it is tested as. Its rules: test_claims_verdicts.py; the model's scores: test_claims_scores.py."""

import itertools
import math
import os
import sys
import unittest

import numpy as np
from claims_rows import AUTHORS, LAYERS, halving_rows, prompts_of, revive_rows, write_records
from plot_tables import DEFAULTS, FigureTest
from study_case import missing, read_text, run_study

SCIPY = not missing("scipy")
if SCIPY:
    import pandas as pd

    from kvbench.cluster.tables import relative_delta
    from kvbench_study.claims import main as paper_claims

COLUMNS = [*DEFAULTS, "rel_error_mean", "eps_fro"]
HOLDS, FAILS, OPEN, ESTIMATE = "holds here", "does not hold here", "not decided", "estimate"
HEAD = "trace,prompt,layer,kv_head,what,"
PAPER = {"sink": 256, "recent": 256, "n_queries": 256, "n_tokens": 2000}


class ClaimsTest(FigureTest):
    def judge(self, *arguments, code=0):
        """({claim: row}, [cells], stderr)."""
        outputs = [option for name in ("csv", "cells", "markdown")
                   for option in ("--" + name, self.path(f"{name}.out"))]
        _, said = self.must(paper_claims, *arguments, *outputs, "--resamples", "2000", code=code)
        if code:
            return said
        return {row["claim"]: row for row in self.table("csv.out")}, self.table("cells.out"), said

    def counts(self, row):
        return [int(row[name]) for name in ("cells", "cells_for", "cells_against")]

    def rows_of(self, claim):
        return [row for row in self.table("csv.out") if row["claim"] == claim]


@unittest.skipUnless(SCIPY, f"{sys.executable} has no scipy")
class PaperClaimsTest(ClaimsTest):
    def halvings(self, rows, *more):
        return self.judge("--fig2", self.write(rows, columns=COLUMNS), *more)

    # ------------------------------------------------------------------------------- BalanceKV

    def test_true_in_every_layer(self):
        claims, cells, said = self.halvings(halving_rows(lambda layer, t: 0.5))
        row = claims["balancekv-figure2"]
        self.assertEqual((row["verdict"], self.counts(row), row["prompts"], row["decide"]),
                         (HOLDS, [8, 8, 0], "8", ""))
        self.assertEqual([float(row[name]) for name in ("share", "share_low", "share_high")], 3 * [1])
        self.assertAlmostEqual(float(row["value"]), 0.5, delta=0.01)  # noise .02 over 256 rows
        self.assertTrue(float(row["low"]) < float(row["value"]) < float(row["high"]) < 1)
        mine = [c for c in cells if c["claim"] == "balancekv-figure2"]
        self.assertEqual([(c["layer"], c["setting"]) for c in mine if c["side"] == "for"],
                         [(layer, f"T={t}") for t in (1, 2, 3, 4) for layer in ("0", "3")])
        self.assertEqual([c["layer"] for c in mine if c["side"] == "shown"], 4 * ["all"])
        for cell in mine:
            self.assertTrue(0 < float(cell["low"]) < float(cell["value"]) < float(cell["high"]) < 1)
            self.assertTrue(float(cell["p"]) <= 0.05)
        self.assertIn("--cluster are left out", said)

    def test_false_in_most(self):
        claims, _, _ = self.halvings(halving_rows(lambda layer, t: 0.9 if (layer, t) == (3, 2) else 1.5))
        row = claims["balancekv-figure2"]
        self.assertEqual((row["verdict"], self.counts(row), float(row["share"])), (FAILS, [8, 1, 7], 1 / 8))
        self.assertIn("layer 0, T=1: 1.5", read_text(self.path("markdown.out")))

    def test_a_draw_is_undecided(self):
        claims, _, _ = self.halvings(halving_rows(lambda layer, t: 1.0, noise=0.3))
        row = claims["balancekv-figure2"]
        self.assertEqual((row["verdict"], self.counts(row)[2]), (OPEN, 0))
        self.assertIn("the mean's interval holds 1", row["decide"])

    def test_the_authors_setting_and_the_default(self):
        """Both stand in the table; the authors' layers alone are a replication."""
        ours = list(halving_rows(lambda layer, t: 0.5, layers=(0, 1, 4, 20)))
        rows = [row for row in halving_rows(lambda layer, t: 1.5 if layer < 20 else 0.8, setting=AUTHORS,
                                            layers=(0, 1, 4, 20)) if row["algorithm"] == "balancekv"]
        self.halvings([{**row, **PAPER} for row in ours + rows])
        found = [(row["method"], row["label"], row["verdict"], self.counts(row)[0],
                  row["protocol"].rpartition("layers ")[2])
                 for row in self.rows_of("balancekv-figure2")]
        self.assertEqual(found, [("balancekv:authors;temp=0.1", "setting replicated", FAILS, 12, "0, 1, 4"),
                                 ("balancekv:authors;temp=0.1", "adapted", HOLDS, 4, "20"),
                                 ("balancekv", "adapted", HOLDS, 16, "0, 1, 4, 20")])
        self.assertEqual([row["differs"] for row in self.rows_of("balancekv-figure2")],
                         ["another model, other texts", "another model, other texts; other layers",
                          "another model, other texts; kvbench's default setting, chosen on development "
                          "prompts; other layers"])
        self.assertEqual([row["method"] for row in self.rows_of("balancekv-rate-eps_fro")],
                         ["balancekv:authors;temp=0.1", "balancekv"])

    def test_what_is_no_replication(self):
        rows = list(halving_rows(lambda layer, t: 0.5, setting=AUTHORS, layers=(0, 1)))
        for change, differs in (({**PAPER, "sink": 16}, "sink 16 in place of 256"),
                                ({**PAPER, "recent": 512, "n_queries": 4},
                                 "recent 512 in place of 256, n_queries 4 in place of 256")):
            claims, _, _ = self.halvings([{**row, **change} for row in rows])
            row = claims["balancekv-figure2"]
            self.assertEqual(row["label"], "adapted")
            self.assertIn(differs, row["differs"])
        claims, _, _ = self.halvings([{**row, **PAPER} for row in rows if "T=4" not in row["params"]])
        row = claims["balancekv-figure2"]
        self.assertEqual((row["label"], "; other T" in row["differs"]), ("adapted", True))
        claims, _, _ = self.halvings([{**row, **PAPER} for row in rows])
        self.assertEqual(claims["balancekv-figure2"]["label"], "setting replicated")

    def test_rates_are_estimates(self):
        """Slopes of exact powers, with noise that averages to nothing over T; no verdict on either side."""
        for rate in (-1.2, -0.8):
            with self.subTest(rate=rate):
                claims, cells, _ = self.halvings(halving_rows(lambda layer, t: 1, rate=rate))
                for metric in ("rel_error", "eps_fro"):
                    row = claims[f"balancekv-rate-{metric}"]
                    self.assertEqual((row["verdict"], row["cells"], row["p_holm"]), (ESTIMATE, "2", ""))
                    self.assertAlmostEqual(float(row["value"]), rate, delta=0.02)
                    self.assertTrue(float(row["low"]) < float(row["value"]) < float(row["high"]))
                    self.assertIn("the theorem is of the stream algorithm", row["differs"])
                    faster = claims[f"balancekv-faster-{metric}"]
                    self.assertEqual(faster["verdict"], ESTIMATE)
                    self.assertAlmostEqual(float(faster["value"]), rate + 0.5, delta=0.02)
                uniform = [float(c["value"]) for c in cells if c["figure"]
                           == "exponent of uniform's rel_error"]
                self.assertEqual(len(uniform), 3)
                np.testing.assert_allclose(uniform, -0.5, atol=0.02)

    def test_incomplete_units_count_nowhere(self):
        """A NaN, a head without status ok, a head that is absent: each takes the prompt out."""
        rows = list(halving_rows(lambda layer, t: 0.5, prompts=10))
        where = {"algorithm": "balancekv", "layer": 3, "q_head": 1, "params": "T=4"}
        hit = [i for i, row in enumerate(rows)
               if all(row[name] == value for name, value in where.items())]
        self.assertEqual(len(hit), 10)
        for spoil, count, word in (({"rel_error_mean": "nan"}, 2, HOLDS), ({"rel_error_mean": "inf"}, 2, HOLDS),
                                   ({"status": "degenerate: x"}, 3, "-"), (None, 3, "-")):
            with self.subTest(spoil=spoil):
                mine = [dict(row) for row in rows]
                for i in reversed(hit[:count]):
                    if spoil is None:
                        del mine[i]
                    else:
                        mine[i].update(spoil)
                claims, cells, _ = self.halvings(mine)
                row = claims["balancekv-figure2"]
                self.assertEqual((row["verdict"], row["prompts"]), (word, str(10 - count)))
                self.assertEqual({c["prompts"] for c in cells if c["claim"] == "balancekv-figure2"
                                  and c["side"] != "shown"}, {str(10 - count)})
                self.assertIn(f"layers 0, 3): {count} of 10.", read_text(self.path("markdown.out")))
        for i in hit:
            rows[i]["rel_error_mean"] = "nan"
        claims, _, _ = self.halvings(rows)
        self.assertEqual((claims["balancekv-figure2"]["decide"], claims["balancekv-figure2"]["verdict"]),
                         ("measurements of 1 of 8 cells that no prompt has whole (first: layer 3, T=4)", OPEN))

    def test_sources_count_once(self):
        """12 prompts of 8 sources; of 4 sources there is no verdict, and n says so."""
        rows = list(halving_rows(lambda layer, t: 0.5, prompts=12))
        claims, _, _ = self.halvings(rows, "--by", "source", "--records",
                                     write_records(self.path("r.jsonl"), 12, 8))
        row = claims["balancekv-figure2"]
        self.assertEqual((row["verdict"], row["prompts"]), (HOLDS, "8"))
        self.assertIn(" | sources | p | verdict |", read_text(self.path("markdown.out")))
        claims, _, _ = self.halvings(rows, "--by", "source", "--records",
                                     write_records(self.path("r.jsonl"), 12, 4))
        row = claims["balancekv-figure2"]
        self.assertEqual((row["verdict"], row["prompts"], row["decide"]),
                         ("-", "4", "at least 8 sources: got 4 of 4 with all cells"))
        # One prompt of a source without its figure takes the source out; a column `source` comes first.
        rows = [{**row, "source": row["prompt"] if row["prompt"] != "p11" else "p0",
                 "status": "failed: x" if row["prompt"] == "p11" and row["layer"] == 3 else "ok"} for row in rows]
        path = self.write(rows, columns=[*COLUMNS, "source"])
        claims, _, _ = self.judge("--fig2", path, "--by", "source")
        self.assertEqual(claims["balancekv-figure2"]["prompts"], "10")

    def test_two_protocols_are_two_rows(self):
        paths = [self.write(halving_rows(lambda layer, t: ratio), name, columns=COLUMNS)
                 for name, ratio in (("a.csv", 0.5), ("b.csv", 5))]
        self.judge("--fig2", paths[0], "--fig2-default", paths[1])
        self.assertEqual([row["verdict"] for row in self.rows_of("balancekv-figure2")], [HOLDS, FAILS])

    # ------------------------------------------------------------------------------ ClusterGen

    def cluster(self, radius, clusters, norm, prompts=8):
        """Folders of kvbench cluster. radius(what, layer, k) of R = 10; clusters(what, layer, delta, n)."""
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
                    counts = [clusters(what, layer, delta, n) for n in (100, 1000, 10000)]
                    alpha = math.log(counts[2] / counts[0]) / math.log(100)
                    parts["growth"].append(f"{at}{delta},{alpha},1")
                    parts["delta"] += [f"{at}{delta},{n},{m}"
                                       for n, m in zip((100, 1000, 10000), counts)]
            # Four query heads, two for each KV head: the larger norm of a pair counts.
            parts["norms"] += [f"{prompt}.h5,{prompt},{layer},{head},queries,0,0,0,0,0,{value}"
                               for layer in LAYERS
                               for head, value in enumerate((1, norm, norm, 1))]
            for name, lines in parts.items():
                with open(os.path.join(out[-1], name + ".csv"), "w", encoding="utf-8") as file:
                    file.write("\n".join(lines) + "\n")
        return out

    @staticmethod
    def growth(what, layer, delta, n):
        """n^0.4 clusters at delta = 5, as many as tokens at 1."""
        return n if delta == 1 else n**0.4

    def test_keys_and_values(self):
        for better, share in ((4, 1), (7, 5 / 6)):
            folders = self.cluster(
                lambda what, layer, k, at=better:
                (at if (layer, k) == (3, 64) else 3) if what == "keys" else 6,
                self.growth, 1.0)
            claims, cells, _ = self.judge("--head-dim", "64", "--cluster", *folders)
            row = claims["clustergen-keys"]
            self.assertEqual((row["verdict"], float(row["share"])), (HOLDS, share))
            cell, = (c for c in cells if c["claim"] == "clustergen-keys"
                     and (c["layer"], c["setting"]) == ("3", "k=64"))
            self.assertAlmostEqual(float(cell["value"]), (better - 6) / 10, delta=0.02)

    def test_growth_of_keys_and_values(self):
        """Keys n^.4, values n^.6 and n^.3, as many as tokens at the small delta: cells are equal there. No
        verdict, since delta is free."""
        for power, share in ((0.6, 0.5), (0.3, 0)):
            folders = self.cluster(lambda *_: 5, lambda what, layer, delta, n, at=power: (
                n if delta == 1 else n**(0.4 if what == "keys" else at)), 1.0)
            claims, cells, _ = self.judge("--head-dim", "64", "--cluster", *folders)
            row = claims["clustergen-growth"]
            self.assertEqual((row["verdict"], float(row["share"]), row["cells"]), (ESTIMATE, share, "4"))
            found = {(c["setting"], c["side"]): float(c["value"]) for c in cells if c["claim"] == "clustergen-growth"}
            for (setting, _), value in found.items():
                np.testing.assert_allclose(value, 0.4 - power if setting == "delta=0.5" else 0, atol=1e-9)
            self.assertEqual({side for _, side in found} - {"shown"},
                             {"for", "against"} if power > 0.4 else {"against"})
            alpha = {c["setting"]: float(c["value"]) for c in cells if c["figure"] == "alpha of values"}
            np.testing.assert_allclose([alpha["delta=0.1"], alpha["delta=0.5"]], [1, power])
        folders = self.cluster(lambda *_: 5, lambda what, layer, delta, n: (
            n**(0.4 if what == "keys" else 0.7)), 1.0)
        claims, _, _ = self.judge("--head-dim", "64", "--cluster", *folders)
        self.assertEqual({claims[f"clustergen-{name}"]["verdict"] for name in ("growth", "sublinear")}, {ESTIMATE})
        self.assertAlmostEqual(float(claims["clustergen-sublinear"]["value"]), 0.4)

    def test_heads_meet_with_radii_of_the_store(self):
        """Five digits of a radius, all of a delta."""
        radii = np.array([33.3333333, 7.12345678, 0.98765432])
        keys = {"trace": "t", "prompt": "p", "layer": 0, "kv_head": range(3), "what": "keys"}
        coverage = pd.DataFrame({**keys, "k": 1, "radius": [float(f"{radius:.5g}") for radius in radii]})
        for share in (0.1, 0.3, 0.7):
            found = relative_delta(pd.DataFrame({**keys, "delta": share * radii}), coverage)
            self.assertEqual(found.tolist(), 3 * [share])

    def test_late_growth(self):
        """A tenth of the tokens up to 256, none after: the exponent from 256 tokens on is 0."""
        folders = self.cluster(lambda *_: 5, lambda what, layer, delta, n: min(n / 10, 25), 1.0)
        _, cells, _ = self.judge("--head-dim", "64", "--cluster", *folders)
        late = {float(c["value"]) for c in cells if c["figure"] == "alpha of keys from 256 tokens on"}
        self.assertEqual(late, {0.0})
        alpha = [float(c["value"]) for c in cells if c["figure"] == "alpha of keys"]
        np.testing.assert_allclose(alpha, math.log(2.5) / math.log(100))

    def test_reach_and_memory(self):
        """By hand, n = 10000, log n = 9.21, scale 1/8: norm 8 at delta 5 reaches 5/9.21 = .54. Estimates."""
        log_n = math.log(10000)
        for norm, memory in ((8, 1 + 2 / log_n), (24, 1 + 6 / log_n), (2, 0.4 + 2.5 / log_n)):
            with self.subTest(norm=norm):
                folders = self.cluster(lambda *_: 5, self.growth, norm)
                claims, cells, _ = self.judge("--head-dim", "64", "--cluster", *folders, "--head-dim", "64")
                row = claims["clustergen-memory"]
                np.testing.assert_allclose(float(row["value"]), memory, rtol=1e-9)
                self.assertEqual((row["verdict"], row["label"]), (ESTIMATE, "assumption checked"))
                reach = {(c["layer"], c["setting"]): float(c["value"]) for c in cells
                         if c["figure"] == "delta r / log n"}
                np.testing.assert_allclose(reach["0", "delta=0.5"], 5 * norm / 8 / log_n, rtol=1e-9)

    def test_another_head_size(self):
        folders = self.cluster(lambda *_: 5, self.growth, 8)
        claims, _, _ = self.judge("--head-dim", "64", "--cluster", *folders, "--head-dim", "16")
        self.assertIn("1/sqrt(16)", claims["clustergen-sublinear"]["protocol"])
        np.testing.assert_allclose(float(claims["clustergen-memory"]["value"]), 1 + 4 / math.log(10000))

    # ------------------------------------------------------------------------------- KVReviver

    def sketch(self, error, prompts=8, params="estimate=sum;"):
        """Two files: vague=none,mean of eight prompts, the sketch of two prompts more."""
        rng = np.random.default_rng(8)

        def rows(words, count):
            for prompt, layer, word in itertools.product(prompts_of(count), LAYERS, words):
                yield {"prompt": prompt, "layer": layer, "algorithm": "kvreviver",
                       "params": f"{params if word == 'sketch' else 'estimate=sum;'}vague={word}",
                       "rel_error": error(layer, word) * math.exp(0.02 * rng.standard_normal())}
        return (self.write(rows(("none", "mean"), prompts), "merging.csv"),
                self.write(rows(("sketch",), prompts + 2), "equal.csv"))

    def test_sketch(self):
        for bad, verdict, counts in ((0.5, HOLDS, [2, 2, 0]), (1.5, OPEN, [2, 1, 1])):
            with self.subTest(verdict=verdict):
                merging, equal = self.sketch(
                    lambda layer, word, at=bad: {"none": 1, "mean": 2}.get(
                        word, at if layer == 3 else 0.5))
                claims, cells, _ = self.judge("--merging", merging, "--equal", equal)
                row = claims["kvreviver-sketch"]
                self.assertEqual((row["verdict"], self.counts(row), row["prompts"], row["label"]),
                                 (verdict, counts, "8", "adapted"))
                mean = [float(c["value"]) for c in cells
                        if c["figure"] == "rel_error over that of vague=mean" and c["layer"] == "0"]
                np.testing.assert_allclose(mean, [0.25], rtol=0.05)

    def test_the_bounds_assumption(self):
        path = self.write([*revive_rows(lambda layer, part: {"k": 20, "v": 0.5}[part]),
                           *revive_rows(lambda layer, part: 0.01, estimate="mean")])
        claims, cells, _ = self.judge("--ratio", path)
        for name, verdict, value in (("keys", FAILS, 20), ("values", HOLDS, 0.5)):
            row = claims[f"kvreviver-normal-{name}"]
            self.assertEqual((row["verdict"], row["cells"], row["label"]), (verdict, "2", "assumption checked"))
            self.assertIn(f"Elements of {name} are normal without a mean", row["statement"])
            np.testing.assert_allclose(float(row["value"]), value, rtol=0.02)
        self.assertEqual({c["setting"] for c in cells},
                         {"budget=0.5;vague_ratio=0.2;candidate_ratio=0.4;recent_ratio=0.4"})
        path = self.write(revive_rows(lambda layer, part: 2 if layer else 0.1))
        claims, _, _ = self.judge("--ratio", path)
        self.assertEqual(self.counts(claims["kvreviver-normal-values"]), [2, 1, 1])

    # -------------------------------------------------------------------------------- refusals

    def test_refusals(self):
        rows = list(halving_rows(lambda layer, t: 1, prompts=4))
        for change, word in (
                (lambda: rows + rows[:1], "duplicate row"),
                (lambda: [{**row, "sink": 11} if i else row for i, row in enumerate(rows)],
                 "rows differ in sink"),
                (lambda: [{**row, "params": row["params"] + f";block={i // 2 % 2}"}
                          for i, row in enumerate(rows)], "with other parameters too than T"),
                (lambda: [{**row, "params": row["params"] + ";step=theory"} for row in rows],
                 "expected the authors' setting (balancekv:authors, temp=0.1 or 1) or the default"),
                (lambda: [row for row in rows if row["params"] in ("T=1", "T=2")],
                 "rows of 2 T, expected 3 or more"),
                (lambda: [row for row in rows if row["algorithm"] == "uniform"],
                 "expected rows of balancekv and uniform")):
            with self.subTest(word=word):
                said = self.judge("--fig2", self.write(change(), columns=COLUMNS), code=2)
                self.assertEqual((said.count("\n"), word in said), (1, True), said)
        merging, equal = self.sketch(lambda *_: 1, params="estimate=mean;")
        self.assertIn("with other parameters too than vague",
                      self.judge("--merging", merging, "--equal", equal, code=2))
        self.assertIn("expected both or neither", self.judge("--merging", merging, code=2))
        self.assertIn("--cluster: expected --head-dim", self.judge("--cluster", self.folder, code=2))
        self.assertIn("expected tables", self.judge(code=2))
        path = self.write(rows, columns=COLUMNS)
        self.assertIn("prompt p0 has no source", self.judge(
            "--fig2", path, "--by", "source", "--records", write_records(self.path("r.jsonl"), 0), code=2))

    def test_as_a_program(self):
        done = run_study("claims", "--fig2", "none.csv")
        self.assertEqual((done.returncode, done.stderr),
                         (2, "kvbench-study claims: none.csv: no such file\n"))
        path = self.write(halving_rows(lambda layer, t: 0.5, prompts=4), columns=COLUMNS)
        done = run_study("claims", "--fig2", path)
        self.assertEqual(done.returncode, 0)
        self.assertIn("| `balancekv-figure2` (balancekv, prefill, ", done.stdout)


if __name__ == "__main__":
    unittest.main()
