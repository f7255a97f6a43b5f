"""kvbench-py compare of scores: means over sources, intervals, tests, and what it refuses. Every number of a table is
compared with one computed here from the rows."""

import gzip
import json
import math
import os
import unittest

from script_case import CommandCase, missing, read_bytes, read_text, write_bytes, write_rows

MISSING = missing("numpy", "pandas", "matplotlib", "scipy")
if not MISSING:
    from scipy import stats

    from kvbench.comparison import main as compare
    from kvbench.comparison import options, score_figure, scores

COLUMNS = ("trace", "prompt", "algorithm", "params", "budget_requested", "seed", "layers", "kl",
           "loss_change", "status")


@unittest.skipIf(MISSING, f"lacks {', '.join(MISSING)}")
class LossesTest(CommandCase):
    def module(self):
        return compare

    def table(self, name, rows, params=""):
        """A table of scores of (prompt, algorithm, budget, seed, kl[, status[, layers]]); params: of all rows, or by
        algorithm."""
        lines = []
        for prompt, algorithm, budget, seed, kl, *more in rows:
            status, layers = [*more, *("ok", 30)[len(more):]]
            own = params.get(algorithm, "") if isinstance(params, dict) else params
            lines.append(["t.h5", prompt, algorithm, own, budget, seed, layers, kl, kl / 2, status])
        path = write_rows(self.path(name), COLUMNS, lines)
        if name.endswith(".gz"):
            write_bytes(path, gzip.compress(read_bytes(path)))
        return path

    def records(self, sources):
        return self.write_file("r.jsonl", "".join(
            json.dumps({"id": prompt, "source": source, "text": "x"}) + "\n" for prompt, source in sources.items()))

    def many(self, sources, better=0.7):
        """Two methods at two budgets over that many sources of a prompt each."""
        return [(f"p{i}", method, budget, 0, (1 + 0.1 * i) * factor * (0.25 / budget))
                for i in range(sources) for budget in (0.25, 0.125)
                for method, factor in (("snapkv", 1), ("h2o", better + 0.01 * (i % 3)))]

    def test_only_some_algorithms(self):
        path = self.table("a.csv", [(f"p{i}", name, 0.25, 0, kl + 0.01 * i) for i in range(6)
                                    for name, kl in (("a", 0.1), ("b", 0.2), ("c", 0.3))])
        self.run_script("--score-table", "M", path, "--algorithm", "c,a", "--to", "a", "--csv", self.path("out.csv"))
        rows = {row["method"]: row for row in self.read("out.csv")}
        self.assertEqual(sorted(rows), ["a", "c"])
        self.assertAlmostEqual(float(rows["c"]["difference"]), 0.2)
        self.assertEqual(rows["c"]["p_holm"], rows["c"]["p"])  # one comparison
        self.assertAlmostEqual(float(rows["c"]["p"]), 2.0 ** -5)

    def test_only_some_policies(self):
        path = write_rows(self.path("a.csv"), COLUMNS, [
            ["t.h5", f"p{i}", algorithm, params, 0.25, 0, 30, kl + 0.01 * i, 0, "ok"] for i in range(6)
            for algorithm, params, kl in (("a", "", 0.1), ("policy", "name=x;sha256=1", 0.2),
                                          ("policy", "name=y;sha256=2", 0.3))])
        for option, names, expected in (("--algorithm", "policy:y,a", ["a", "policy:y"]),
                                        ("--algorithm", "policy:y", ["policy:y"]),
                                        ("--algorithm", "policy", ["policy:x", "policy:y"]),
                                        ("--exclude", "policy:x", ["a", "policy:y"]),
                                        ("--exclude", "policy", ["a"])):
            self.run_script(path, option, names, "--csv", self.path("out.csv"))
            self.assertEqual(sorted(row["method"] for row in self.read("out.csv")), expected, names)
        self.refused("no rows of algorithm policy:z", path, "--algorithm", "policy:z")

    def test_seeds_then_prompts_then_sources(self):
        rows = [("a1", "uniform", 0.25, 0, 1.0), ("a1", "uniform", 0.25, 1, 3.0),  # 2
                ("a2", "uniform", 0.25, 0, 6.0),                                   # a: 4
                ("b1", "uniform", 0.25, 0, 10.0)]
        self.run_script("--score-table", "m", self.table("s.csv.gz", rows), "--csv", self.path("o.csv"),
                        "--records", self.records({"a1": "a", "a2": "a", "b1": "b"}),
                        "--sources", self.path("s.out"))
        row, = self.read("o.csv")
        self.assertEqual((row["sources"], float(row["mean"])), ("2", 7.0))
        self.assertEqual((float(row["low"]), float(row["high"])), (4.0, 10.0))  # too few: the ends
        self.assertEqual({r["source"]: float(r["value"]) for r in self.read("s.out")},
                         {"a": 4.0, "b": 10.0})

    def test_policies_have_their_names(self):
        """Two tables of policies: of two names, of one name twice, of one name for each prompt, and for each model."""
        for name, prompts, models, found, words in (
                ("b", "pp", "m", [("policy:a", "1", 1.0), ("policy:b", "1", 2.0)], ""),
                ("policy", "pp", "m", [("policy:a", "1", 1.0), ("policy", "1", 2.0)], ""),
                ("a", "pp", "m", [("policy sha256=1", "1", 1.0), ("policy sha256=2", "1", 2.0)], ""),
                ("a", "pq", "m", [("policy:a", "2", 1.5)], "policy:a: 2 files of this name, in different prompts"),
                ("a", "pp", "mn", [("policy:a", "1", 1.0), ("policy:a", "1", 2.0)], "")):
            with self.subTest(name=name, prompts=prompts, models=models):
                first, second = (self.table(f"{i}.csv", [(prompts[i], "policy", 0.5, 0, 1.0 + i)],
                                            f"name={own};sha256={i + 1}") for i, own in enumerate(("a", name)))
                more = ["--score-table", "n"] if models == "mn" else []
                _, said = self.run_script("--score-table", "m", first, *more, second, "--csv", self.path("o.csv"))
                self.assertEqual([(row["method"], row["sources"], float(row["mean"])) for row in self.read("o.csv")],
                                 found)
                self.assertIn(words, said)
                self.assertEqual("policy:a" in said, bool(words))

    def test_intervals_and_tests(self):
        out, _ = self.run_script("--score-table", "m", self.table("s.csv", self.many(12)), "--to",
                                 "snapkv", "--csv", self.path("o.csv"), "--markdown", "-")
        rows = {(row["budget"], row["method"]): row for row in self.read("o.csv")}
        for budget in ("0.25", "0.125"):
            row = rows[budget, "h2o"]
            self.assertTrue(float(row["low"]) < float(row["mean"]) < float(row["high"]))
            pairs = [(1 + 0.1 * i) * (0.7 + 0.01 * (i % 3) - 1) * 0.25 / float(budget)
                     for i in range(12)]
            self.assertAlmostEqual(float(row["difference"]), sum(pairs) / 12, 12)
            self.assertAlmostEqual(float(row["p"]), stats.wilcoxon(pairs, method="exact").pvalue, 12)
            self.assertEqual(row["verdict"], "less")
            self.assertEqual(rows[budget, "snapkv"]["verdict"], "")
        self.assertIn("] *", out)

    def test_the_verdict_has_the_direction_of_the_ranks(self):
        """25 sources of 26 are lower, one is much higher: so is the mean."""
        rows = [(f"p{i}", method, 0.25, 0, kl) for i in range(26)
                for method, kl in (("snapkv", 1.0), ("h2o", 0.9 - 0.01 * i if i else 99.0))]
        self.run_script("--score-table", "m", self.table("s.csv", rows), "--to", "snapkv", "--csv", self.path("o.csv"))
        row, = (row for row in self.read("o.csv") if row["method"] == "h2o")
        self.assertGreater(float(row["difference"]), 0)
        self.assertEqual(row["verdict"], "less")

    def test_budgets_in_headings(self):
        self.assertEqual([scores.share(budget) for budget in (1.0, 0.3, 0.125, 0.0, math.nan)],
                         ["1", "0.3", "1/8", "0", "native"])

    def test_few_sources_give_no_verdict(self):
        out, _ = self.run_script("--score-table", "m", self.table("s.csv", self.many(5)), "--to", "snapkv",
                                 "--csv", self.path("o.csv"), "--markdown", "-")
        self.assertLessEqual({row["verdict"] for row in self.read("o.csv")}, {"", "-"})
        self.assertNotIn("*", out.split("Tested")[0])
        self.assertNotIn("[0", out)

    def test_rows_that_are_not_ok(self):
        rows = self.many(9) + [("p0", "kvreviver", 0.25, 0, 2.0),
                               ("p1", "kvreviver", 0.25, 0, math.nan, "infeasible: too small")]
        _, err = self.run_script("--score-table", "m", self.table("s.csv", rows), "--csv",
                                 self.path("o.csv"))
        self.assertIn("| kvreviver | 2.0; 2.0 [-] (n = 1) |", self.run_script(
            "--score-table", "m", self.path("s.csv"), "--budget", "0.25")[0])
        row, = (row for row in self.read("o.csv") if row["method"] == "kvreviver")
        self.assertEqual(row["sources"], "1")
        self.assertIn("kvreviver at 0.25: without 1 source with rows that are not ok", err)

    def test_a_source_without_a_prompt_of_the_others(self):
        """rkv lacks the second of four windows of a source, snapkv and h2o have all."""
        rows = [(f"{source}{i}", method, 0.25, 0, 1.0 + i) for source in "ab" for i in range(4)
                for method in ("snapkv", "h2o", "rkv") if (source, i, method) != ("a", 1, "rkv")]
        _, said = self.run_script("--score-table", "m", self.table("s.csv", rows), "--csv", self.path("o.csv"),
                                  "--records", self.records({row[0]: row[0][0] for row in rows}))
        self.assertIn("m: rkv at 0.25: without 1 source with rows that are not ok or missing", said)
        self.assertEqual({row["method"]: (row["sources"], float(row["mean"])) for row in self.read("o.csv")},
                         {"snapkv": ("2", 2.5), "h2o": ("2", 2.5), "rkv": ("1", 2.5)})

    def test_the_picture(self):
        rows = [(f"p{i}", f"a{at}", budget, 0, (at + 1) * (1 + 0.1 * i) / budget)
                for i in range(9) for budget in (0.25, 0.125) for at in range(12)]
        self.run_script("--score-table", "m", self.table("s.csv", rows), "--figures", self.path("f"))
        for end in (".png", ".pdf"):
            self.assertGreater(os.path.getsize(self.path("f" + end)), 1000)

    def test_texts_of_many_panels_do_not_overlap(self):
        rows = [(f"p{i}", method, budget, 0, 1 + i / budget)
                for i in range(9) for budget in (0.25, 0.125) for method in ("h2o", "local")]
        table = self.table("s.csv", rows)
        for models in range(1, 8):
            words = [word for at in range(models) for word in ("--score-table", f"Qwen2.5-Coder-{at}.5B", table)]
            found = scores.load(options.parse_arguments(words))
            figure = score_figure.draw(found, [], "kl", "budget")
            self.assertEqual(len(figure.axes), models)
            renderer = figure.canvas.get_renderer()
            figure.draw(renderer)
            boxes = [text.get_window_extent(renderer) for axes in figure.axes
                     for text in (axes.title, axes.xaxis.label, axes.yaxis.label) if text.get_text()]
            self.assertGreaterEqual(len(boxes), models + 2)
            for at, box in enumerate(boxes):
                self.assertFalse(any(box.overlaps(other) for other in boxes[at + 1:]), models)

    def test_bytes(self):
        """Points lie at the mean share of all bytes; a method's settings and numbered policies share a line."""
        shares = {("local", "", 0.25): 0.3, ("local", "", 0.125): 0.2,
                  ("policy:a-4", "", 0.25): 0.28, ("policy:a-8", "", 0.125): 0.16,
                  ("kivi", "bits=2", math.nan): 0.2, ("kivi", "bits=4", math.nan): 0.35}
        names = ["trace", "prompt", "algorithm", "params", "budget_requested", "seed", "kl", "status", "ratio"]
        table = write_rows(self.path("s.csv"), names, [
            ["t.h5", f"p{i}", algorithm, params, "" if math.isnan(budget) else budget, 0, (1 + 0.1 * i) / share, "ok",
             share + 0.01 * (i % 2)] for i in range(10) for (algorithm, params, budget), share in shares.items()])
        self.run_script("--score-table", "m", table, "--axis", "bytes", "--figures", self.path("f"), "--csv",
                        self.path("o.csv"))
        for row in self.read("o.csv"):
            share, = (value for (algorithm, params, budget), value in shares.items()
                      if row["method"] == f"{algorithm} {params}".strip()
                      and row["budget"] == ("" if math.isnan(budget) else f"{budget:g}"))
            self.assertAlmostEqual(float(row["bytes"]), share + 0.005, 12)
        found = scores.load(options.parse_arguments(["--score-table", "m", table]))
        lines = score_figure.lines_of(found, "bytes")["m"]
        self.assertEqual({line: [round(x, 12) for x, _ in points] for line, points in lines.items()},
                         {"local": [0.205, 0.305], "policy:a": [0.165, 0.285], "kivi": [0.205, 0.355]})
        for points in lines.values():
            self.assertTrue(all(len(values) == 10 for _, values in points))
        without = "--score-table", "n", self.table("o2.csv", self.many(3))
        for words in (without, ("--score-table", "m", table, *without)):
            self.refused("--axis bytes: the tables of n have no figure of it", *words, "--axis", "bytes", "--figures",
                         self.path("g"))
        natives = self.table("o3.csv", [(f"p{i}", "kivi", "", 0, 1.0 + i) for i in range(3)])
        self.refused("--axis budget: the tables of n have no figure of it", "--score-table", "n", natives, "--figures",
                     self.path("g"))

    def test_tuned_rows_take_the_place_of_the_defaults(self):
        """h2o is tuned in both models, to different settings; snapkv is not."""
        defaults, better = self.many(9), [row for row in self.many(9, 0.5) if row[1] == "h2o"]
        tables = [self.table(name, defaults, {"h2o": "x=1;y=1"}) for name in ("a.csv", "b.csv")]
        tuned = [self.table("ta.csv", better, "x=2;y=1"), self.table("tb.csv", better, "x=1;y=3")]
        words = [word for at, model in enumerate(("m", "n")) for word in
                 ("--score-table", model, tables[at], "--tuned", model, tuned[at])]
        out, _ = self.run_script(*words, "--to", "snapkv", "--csv", self.path("o.csv"), "--markdown", "-")
        rows = {(row["model"], row["budget"], row["method"]): row for row in self.read("o.csv")}
        self.assertEqual(len(rows), 8)
        before = [(1 + 0.1 * i) * (0.7 + 0.01 * (i % 3)) * 2 for i in range(9)]
        after = [(1 + 0.1 * i) * (0.5 + 0.01 * (i % 3)) * 2 for i in range(9)]
        for model, setting in (("m", "x=2"), ("n", "y=3")):
            row = rows[model, "0.125", "h2o"]
            self.assertEqual(row["setting"], setting)
            self.assertAlmostEqual(float(row["mean"]), sum(after) / 9, 12)
            self.assertAlmostEqual(float(row["default"]), sum(before) / 9, 12)
            self.assertAlmostEqual(float(row["change"]), (sum(after) - sum(before)) / 9, 12)
            self.assertTrue(float(row["change_low"]) < float(row["change"]) < float(row["change_high"]) < 0)
            self.assertEqual(rows[model, "0.125", "snapkv"]["setting"], "")
            self.assertIn(f"| {model}, 1/8 | h2o | `{setting}` | ", out)
        self.refused("--tuned: got z, expected models", *words, "--tuned", "z", tuned[0])
        self.refused("--tuned: got m alone", "--score-table", "m", tables[0], "--tuned", "m")
        both = self.write_file("two.csv", read_text(tuned[0]) + "t.h5,p0,h2o,x=3,0.25,0,30,1,1,ok\n")
        self.refused("h2o: got 2 settings", "--score-table", "m", tables[0], "--tuned", "m", both)

    def test_tuned_methods_without_defaults_are_skipped(self):
        rows = self.many(9, 0.5)
        tuned = self.table("t.csv", [row for row in rows if row[1] == "h2o"] +
                           [(row[0], "other", *row[2:]) for row in rows if row[1] == "h2o"], "x=2")
        plain = self.table("a.csv", self.many(9))
        out, said = self.run_script("--score-table", "m", plain, "--tuned", "m", tuned, "--to", "snapkv", "--csv",
                                    self.path("o.csv"), "--markdown", "-")
        self.assertIn("m: other: skipped", said)
        self.assertEqual({row["method"] for row in self.read("o.csv")}, {"h2o", "snapkv"})
        self.assertNotIn("other", out)

    def test_how_alike_two_models_order_methods(self):
        """Means 1 to 6 in one model; the other swaps the first two: 1 - 6 * 2 / (6 * 35)."""
        def rows(order, sources):
            return [(f"p{i}", f"m{at}", 0.25, 0, value * (1 + 0.01 * i)) for i in range(sources)
                    for at, value in enumerate(order)]
        a = self.table("a.csv", rows([1, 2, 3, 4, 5, 6], 9))
        b = self.table("b.csv", rows([2, 1, 3, 4, 5, 6], 4))
        out, _ = self.run_script("--score-table", "a", a, "--score-table", "b", b, "--orders", self.path("o.csv"),
                                 "--markdown", "-")
        means, middles = self.read("o.csv")
        self.assertEqual((means["figure"], middles["figure"]), ("mean", "geometric"))
        for row in (means, middles):
            self.assertAlmostEqual(float(row["spearman"]), 1 - 12 / 210, 9)
            self.assertEqual((row["methods"], row["sources"], row["sources_other"]), ("6", "9", "4"))
            # Sources alone never change this order: methods do.
            self.assertEqual((row["low"], row["high"]), (row["spearman"], row["spearman"]))
            self.assertLess(float(row["both_low"]), float(row["spearman"]))
        self.assertIn("| 1/4 | a | b | 6 | 0.94 [0.94, 0.94; ", out)

    def test_orders_of_drawn_methods_are_those_of_lists_that_hold_them_as_often(self):
        import numpy as np

        from kvbench.comparison import orders

        dice = np.random.default_rng(6)
        a, b = (dice.choice((1, 2, 3, 3.5, 8), size=(40, 7)) for _ in range(2))
        copies = dice.choice((0, 1, 1, 2, 5), size=(40, 7))
        for one, other, many, found in zip(a, b, copies, orders.spearman(a, b, copies)):
            self.assertAlmostEqual(found, stats.spearmanr(np.repeat(one, many), np.repeat(other, many))[0], 12)

    def test_orders_of_a_skewed_loss(self):
        """One source of nine makes the mean of a method: it is last by its mean, first by its logarithms."""
        rows = [(f"p{i}", f"m{at}", 0.25, 0, 50.0 if (at, i) == (1, 8) else at) for i in range(9)
                for at in range(1, 7)]
        plain = [(f"p{i}", f"m{at}", 0.25, 0, at) for i in range(9) for at in range(1, 7)]
        self.run_script("--score-table", "a", self.table("a.csv", rows), "--score-table", "b",
                        self.table("b.csv", plain), "--orders", self.path("o.csv"), "--csv",
                        self.path("c.csv"), "--to", "m2")
        found = {row["figure"]: float(row["spearman"]) for row in self.read("o.csv")}
        self.assertAlmostEqual(found["mean"], 1 - 6 * (5**2 + 5) / 210, 9)
        self.assertAlmostEqual(found["geometric"], 1, 9)
        mine = [row for row in self.read("c.csv") if row["model"] == "a"]
        self.assertEqual([row["method"] for row in mine], [f"m{at}" for at in range(1, 7)])
        self.assertAlmostEqual(float(mine[0]["mean"]), 58 / 9, 12)
        self.assertAlmostEqual(float(mine[0]["geometric"]), 50 ** (1 / 9), 12)
        self.assertAlmostEqual(float(mine[0]["median"]), 1, 12)
        self.assertAlmostEqual(float(mine[0]["ratio"]), 50 ** (1 / 9) / 2, 12)
        self.assertLess(float(mine[0]["ratio_low"]), float(mine[0]["ratio"]))
        for row, ratio in zip(mine[2:], (3 / 2, 2, 5 / 2, 3)):
            self.assertAlmostEqual(float(row["ratio"]), ratio, 12)

    def test_files_of_one_model_need_no_name(self):
        path = self.table("a.csv", self.many(9))
        words = ("--to", "snapkv", "--prompts", "p1,p2,p3", "--csv", self.path("o.csv"))
        self.run_script(path, *words)
        plain = self.read("o.csv")
        self.run_script("--score-table", "model", path, *words)
        self.assertEqual(self.read("o.csv"), plain)
        self.assertEqual({(row["model"], row["sources"]) for row in plain}, {("model", "3")})
        self.write_file("a.csv.json", json.dumps({"settings": {"model": "org/Small @ 1f"}}))
        self.run_script(path, *words)
        self.assertEqual({row["model"] for row in self.read("o.csv")}, {"small"})
        self.refused("no rows of prompt p99", path, "--prompts", "p99")
        self.refused("expected either files, or --score-table", path, "--score-table", "m", path)
        self.refused("expected either files, or --score-table")

    def test_options_of_rows_are_rejected(self):
        path = self.table("a.csv", self.many(3))
        for words in (["--layers", "0"], ["--seed", "0"], ["--pool"], ["--latex", "-"], ["--by", "prompt"]):
            self.refused(f"{words[0]}: got scores, which do not have it", path, *words)
        self.refused("--metric: got cosine, expected one of kl", path, "--metric", "cosine")

    def test_figures_that_are_not_positive_have_no_logarithm(self):
        rows = [(f"p{i}", method, 0.25, 0, kl) for i in range(9)
                for method, kl in (("a", 0.0 if i == 3 else 1.0), ("b", 2.0))]
        out, _ = self.run_script("--score-table", "m", self.table("a.csv", rows), "--to", "b", "--csv",
                                 self.path("c.csv"), "--markdown", "-")
        zero, other = self.read("c.csv")
        self.assertEqual([zero[name] for name in ("geometric", "ratio", "ratio_low", "ratio_high")], 4 * [""])
        self.assertAlmostEqual(float(other["geometric"]), 2, 12)
        self.assertIn("| a | 0.89 [", out)

    def test_errors_of_the_replay(self):
        """Layers and heads of a prompt are averaged; a method without a line for some layer (where a
        head was infeasible) is left out there."""
        def run(lines, metric):
            path = self.write_file("l.csv", "".join(lines))
            _, said = self.run_script("--score-table", "m", path, "--metric", metric, "--csv", self.path("o.csv"))
            row, = self.read("o.csv")
            return row["sources"], float(row["mean"]), said
        lines = ["trace,prompt,source,algorithm,params,budget_requested,seed,layer,residual_rel_error\n"]
        for prompt, source, errors in (("a", "x", (0.1, 0.3)), ("b", "x", (0.5, 0.7)), ("c", "y", (0.2, 0.6))):
            lines += [f"t,{prompt},{source},h2o,,0.25,0,{layer},{error}\n" for layer, error in enumerate(errors)]
        sources, mean, _ = run(lines, "residual_rel_error")
        self.assertEqual(sources, "2")
        self.assertAlmostEqual(mean, (0.4 + 0.4) / 2, 12)
        sources, mean, said = run(lines[:-1], "residual_rel_error")
        self.assertIn("h2o at 0.25: without 1 source with rows that are not ok", said)
        self.assertEqual((sources, mean), ("1", 0.4))
        heads = ["trace,prompt,algorithm,params,budget_requested,seed,layer,q_head,rel_error,status\n",
                 *(f"t,a,h2o,,0.25,0,{layer},{head},{(1 + layer) * (1 + head)},ok\n"
                   for layer in range(2) for head in range(3))]
        self.assertAlmostEqual(run(heads, "rel_error")[1], 1.5 * 2, 12)
        part = [line.replace("h2o", "rkv") for line in heads[1:-1]]  # rkv lacks a head
        self.assertIn("rkv at 0.25: without 1 source", run([*heads, *part], "rel_error")[2])
        self.refused("duplicate row", "--score-table", "m", self.write_file("l.csv", "".join([*heads, heads[1]])),
                     "--metric", "rel_error")

    def test_refusals(self):
        rows = self.many(9)
        good = self.table("s.csv", rows)
        for words, *arguments in (
                ("expected MODEL FILE", "s.csv"), ("a model comes twice", "m", good, "--score-table", "m", good),
                ("no such file", "m", self.path("none.csv")), ("--to: got `rkv`", "m", good, "--to", "rkv"),
                ("no rows with budget_requested 0.5", "m", good, "--budget", "0.5"),
                ("prompt p1 has no source", "m", good, "--records", self.records({"p0": "a"})),
                ("duplicate row", "m", self.table("t.csv", rows + self.many(1))),
                ("layers, expected one number", "m", self.table("u.csv", [*rows, ("p0", "rkv", 0.25, 0, 1., "ok", 8)])),
                ("rkv at 0.25: kl is nan", "m", self.table("w.csv", [*rows, ("p0", "rkv", 0.25, 0, math.nan)])),
                ("no rows with status ok", "m", self.table("v.csv", [("p0", "rkv", 0.25, 0, 1.0, "failed: x")])),
                ("expected at most 10", "m", good, "--show", ",".join(f"a{i}" for i in range(12))),
                ("--show: got `nobody`", "m", good, "--show", "nobody", "--figures", self.path("g"))):
            self.refused(words, "--score-table", *arguments)
