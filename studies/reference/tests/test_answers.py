"""kvbench-study answers: shares, growths and intervals from the rows, controls that separate and that do not,
and what it refuses. Every number of a table is compared with one computed here."""

import csv
import gzip
import json
import math
import os
import unittest

from study_case import CommandCase, missing

MISSING = missing("numpy", "pandas", "matplotlib", "scipy")
if not MISSING:
    import numpy as np
    from scipy import stats

    from kvbench import stats as ks
    from kvbench.comparison.scores import extent
    from kvbench_study.answers import main as answers
    from kvbench_study.answers import pages
    from kvbench_study.answers.tables import INTERVAL

COLUMNS = ("trace", "prompt", "algorithm", "params", "budget_requested", "seed", "layers", "answer_nll",
           "answer_nll_exact", "choice_exact_right", "choice_right", "status")
BUDGETS = (0.5, 0.25)
EXACT_NATS = 2.0


@unittest.skipIf(MISSING, f"lacks {', '.join(MISSING)}")
class AnswersTest(CommandCase):
    def module(self):
        return answers

    def table(self, name, rows, said=None):
        """A table of scores of (prompt, algorithm, budget, growth, right[, seed[, status]]). `said` gives answer_right
        of (prompt, algorithm)."""
        opened = gzip.open if name.endswith(".gz") else open
        with opened(self.path(name), "wt", encoding="utf-8", newline="") as file:
            out = csv.writer(file, lineterminator="\n")
            out.writerow([*COLUMNS, *(["answer_right"] if said else [])])
            for prompt, algorithm, budget, growth, right, *more in rows:
                seed, status = [*more, *(0, "ok")[len(more):]]
                nats = "" if growth == "" else EXACT_NATS + growth
                out.writerow(["t.h5", prompt, algorithm, "", budget, seed, 30, nats, EXACT_NATS, 1, right, status,
                              *([said(prompt, algorithm)] if said else [])])
        return self.path(name)

    def records(self, sources=12, tasks=("one-key",), wrong=("2", "3", "4"), name="r.jsonl", **more):
        with open(self.path(name), "w", encoding="utf-8") as file:
            for task in tasks:
                for i in range(sources):
                    file.write(json.dumps({"id": f"{task}-{i}", "task": task, "source": f"s{i}", "filler": f"f{i}",
                                           "wrong": list(wrong), "text": "x", **more}) + "\n")
        return self.path(name)

    @staticmethod
    def growth(i, at, budget):
        return (1 + 0.1 * i + at) / budget

    def rows(self, sources=12, task="one-key", exact=None, local=0, methods=("snapkv", "h2o"), shift=0.0):
        """Exact is right at `exact` sources (all), local at `local`; methods at even ones."""
        exact = sources if exact is None else exact
        out = []
        for i in range(sources):
            prompt = f"{task}-{i}"
            out.append((prompt, "exact", "", 0.001 * i, int(i < exact)))
            out += [(prompt, "oracle", budget, 0.1, 1) for budget in BUDGETS]
            out += [(prompt, "local", budget, 9 + i, int(budget == 0.5 or i < local)) for budget in BUDGETS]
            out += [(prompt, method, budget, self.growth(i, at, budget) + shift, int(i % 2 == 0))
                    for at, method in enumerate(methods) for budget in BUDGETS]
        return out

    def test_shares_growths_and_intervals(self):
        out, _ = self.run_script("--score-table", "unseen", self.table("u.csv.gz", self.rows()), "--records",
                                 self.records(), "--csv", self.path("o.csv"), "--sources", self.path("s.csv"),
                                 "--markdown", "-")
        rows = {(row["method"], row["budget"]): row for row in self.read("o.csv")}
        for at, method in enumerate(("snapkv", "h2o")):
            for budget in BUDGETS:
                row = rows[method, str(budget)]
                values = np.array([self.growth(i, at, budget) for i in range(12)])
                (low, high), = ks.bootstrap_intervals(values[:, None], kind="bca")
                share = stats.binomtest(6, 12).proportion_ci(0.95, "exact")
                for name, value in (("change", values.mean()), ("change_low", low), ("change_high", high),
                                    ("right", 0.5), ("right_low", share.low), ("right_high", share.high),
                                    ("chance", 0.25)):
                    self.assertAlmostEqual(float(row[name]), value, 12, name)
                self.assertEqual((row["sources"], row["setting"], row["task"], row["control"], row["dropped"]),
                                 ("12", "unseen", "one-key", "", ""))
        self.assertEqual(rows["exact", ""]["control"], "must answer")
        self.assertEqual((rows["local", "0.25"]["control"], rows["local", "0.5"]["control"]), ("must fail", ""))
        self.assertIn("| unseen | one-key | 12/12 | [0.74, 1.00] | 0.25 | 12/12 at 1/2 | local at 1/4 | 0/12 | "
                      "0.00024 |  |", out)
        self.assertIn("Of 12 sources 7 right answers or more are above chance (0.25)", out)
        self.assertIn("| snapkv | 6/12; +3.10 [+", out)
        single = {(row["method"], row["budget"], row["source"]): row for row in self.read("s.csv")}
        self.assertAlmostEqual(float(single["h2o", "0.25", "s3"]["change"]), self.growth(3, 1, 0.25), 12)
        self.assertEqual(single["h2o", "0.25", "s3"]["right"], "0.0")

    def test_texts_that_have_the_answer(self):
        """Said at three of twelve sources under snapkv, at all others otherwise; empty without texts."""
        def said(prompt, algorithm):
            return int(algorithm != "snapkv" or prompt in ("one-key-0", "one-key-4", "one-key-7"))

        options = ("--records", self.records(), "--csv", self.path("o.csv"), "--sources", self.path("s.csv"),
                   "--markdown", "-")
        out, _ = self.run_script("--score-table", "unseen", self.table("u.csv", self.rows(), said), *options)
        self.assertEqual({(row["method"], row["said"]) for row in self.read("o.csv")},
                         {("snapkv", "0.25"), ("h2o", "1.0"), ("local", "1.0"), ("oracle", "1.0"), ("exact", "1.0")})
        self.assertEqual({row["source"] for row in self.read("s.csv") if row["said"] == "1.0" and
                          row["method"] == "snapkv"}, {"s0", "s4", "s7"})
        self.assertIn("| snapkv | 6/12; said 3/12; +3.10 [+", out)
        self.assertIn("greedy text contains it (said)", out)
        out, _ = self.run_script("--score-table", "unseen", self.table("u.csv", self.rows()), *options)
        self.assertEqual({row["said"] for row in self.read("o.csv")}, {""})
        self.assertNotIn("(said)", out)

    def test_the_order_of_prompts_in_tables_is_no_matter(self):
        rows, found = self.rows(), []
        for order in (range(12), range(11, -1, -1)):
            table = self.table("u.csv", [row for i in order for row in rows if row[0] == f"one-key-{i}"])
            self.run_script("--score-table", "unseen", table, "--records", self.records(), "--csv", self.path("o.csv"),
                            "--sources", self.path("s.csv"))
            found.append((self.read("o.csv"), self.read("s.csv")))
        self.assertEqual(*found)

    def test_intervals_of_two_modes_are_bounded(self):
        """Growths of SmolLM2-135M's keys under local at 3/4: held at nine sources, lost at three."""
        values = np.array([-0.5, 0.01, 0.02, 0.03, 0.05, 0.07, 0.09, 0.1, 0.12, 14.0, 15.0, 17.0])
        low, high = extent(values, INTERVAL)
        self.assertTrue(values.min() < low < values.mean() < high < values.max(), (low, high))
        self.assertGreater(extent(values)[1], 1.5 * high)  # studentised

    def test_settings_and_tasks_stand_apart(self):
        tasks = ("one-key", "count")
        tables = []
        for name, shift in (("unseen", 3.0), ("seen", 0.0)):
            rows = [row for task in tasks for row in self.rows(task=task, shift=shift + (task == "count"))]
            tables += ["--score-table", name, self.table(f"{name}.csv", rows)]
        out, _ = self.run_script(*tables, "--records", self.records(tasks=tasks), "--csv", self.path("o.csv"),
                                 "--markdown", "-")
        got = {(r["setting"], r["task"]): float(r["change"]) for r in self.read("o.csv")
               if (r["method"], r["budget"]) == ("snapkv", "0.5")}
        base = sum(self.growth(i, 0, 0.5) for i in range(12)) / 12
        for place, shift in ((("unseen", "one-key"), 3), (("unseen", "count"), 4), (("seen", "one-key"), 0),
                             (("seen", "count"), 1)):
            self.assertAlmostEqual(got[place], base + shift, 12)
        self.assertEqual([line for line in out.splitlines() if line.startswith("## ")],
                         ["## one-key, unseen (n = 12)", "## count, unseen (n = 12)", "## one-key, seen (n = 12)",
                          "## count, seen (n = 12)"])

    def dropped(self, rows, *options, records=None):
        """(the column of the csv, the page); the picture is not made."""
        out, err = self.run_script("--score-table", "u", self.table("u.csv", rows), "--records",
                                   records or self.records(), "--csv", self.path("o.csv"), "--markdown", "-",
                                   "--figures", self.path("f"), *options)
        said, = {row["dropped"] for row in self.read("o.csv")}
        self.assertEqual(os.path.exists(self.path("f.png")), not said)
        self.assertEqual("no picture" in err, bool(said))
        self.assertEqual("## one-key" not in out and "snapkv" not in out, bool(said), out)
        self.assertEqual("dropped: controls do not separate" in out, bool(said))
        for end in (".png", ".pdf"):
            if os.path.exists(self.path("f" + end)):
                os.remove(self.path("f" + end))
        return said

    def test_controls_that_do_not_separate_drop_the_task(self):
        self.assertEqual(self.dropped(self.rows()), "")
        # Chance is 1/4: 7 of 12 is above it, 6 is not.
        self.assertEqual(self.dropped(self.rows(exact=7)), "")
        self.assertEqual(self.dropped(self.rows(exact=6)),
                         "controls do not separate: exact is not above chance")
        # With one wrong answer chance is 1/2.
        self.assertEqual(self.dropped(self.rows(exact=9), records=self.records(wrong=["2"])),
                         "controls do not separate: exact is not above chance")
        # Ahead at 5 sources p is .031, at 4 it is .0625.
        self.assertEqual(self.dropped(self.rows(local=7)), "")
        self.assertEqual(self.dropped(self.rows(local=8)),
                         "controls do not separate: exact is not better than local")
        self.assertEqual(self.dropped(self.rows(exact=3, local=9)),
                         "controls do not separate: exact is not above chance; exact is not better than local")
        # Another control, which is right at every other source; one that is not there; no exact.
        self.assertEqual(self.dropped(self.rows(), "--control", "h2o"), "")
        self.assertEqual(self.dropped(self.rows(exact=9), "--control", "h2o"),
                         "controls do not separate: exact is not better than h2o")
        self.assertIn("no rows of snap at a budget", self.dropped(self.rows(), "--control", "snap"))
        self.assertIn("no rows of exact", self.dropped([row for row in self.rows() if row[1] != "exact"]))
        self.assertIn("no rows of exact", self.dropped(self.rows(), "--exclude", "exact"))

    def test_few_sources(self):
        """No sign test of four passes; intervals are the ends."""
        rows = self.rows(sources=4)
        self.assertIn("not better than local", self.dropped(rows))
        out, _ = self.run_script("--score-table", "u", self.table("u.csv", rows), "--records", self.records(),
                                 "--csv", self.path("o.csv"), "--markdown", "-")
        row = next(row for row in self.read("o.csv") if (row["method"], row["budget"]) == ("h2o", "0.5"))
        self.assertEqual((float(row["change_low"]), float(row["change_high"])),
                         (self.growth(0, 1, 0.5), self.growth(3, 1, 0.5)))
        self.assertIn("the sign test reaches p = 0.062 at best: these controls cannot separate.", out)
        rows = self.rows(sources=6)
        out, _ = self.run_script("--score-table", "u", self.table("u.csv", rows), "--records", self.records())
        self.assertIn("or of fewer than 8 sources (least to largest).", out)
        self.assertIn("| snapkv | 3/6; +2.50 (+2.00 to +3.00) |", out)

    def test_seeds_are_averaged_first(self):
        rows = self.rows(methods=("snapkv",)) + [
            (f"one-key-{i}", "uniform", 0.5, growth, right, seed) for i in range(12)
            for seed, growth, right in ((0, 1.0, 1), (1, 3.0 + i, 0))]
        out, _ = self.run_script("--score-table", "u", self.table("u.csv", rows), "--records", self.records(),
                                 "--csv", self.path("o.csv"), "--markdown", "-")
        row, = (row for row in self.read("o.csv") if row["method"] == "uniform")
        self.assertEqual((row["sources"], float(row["right"]), row["right_low"]), ("12", 0.5, ""))
        self.assertAlmostEqual(float(row["change"]), sum(2 + i / 2 for i in range(12)) / 12, 12)
        self.assertIn("| uniform | 6/12; ", out)

    def test_rows_that_are_not_ok(self):
        rows = self.rows() + [("one-key-0", "quant-kivi", 0.25, "", "", 0, "infeasible: x"),
                              ("one-key-1", "quant-kivi", 0.25, 1.0, 1)]
        _, err = self.run_script("--score-table", "u", self.table("u.csv", rows), "--records", self.records(), "--csv",
                                 self.path("o.csv"))
        row, = (row for row in self.read("o.csv") if row["method"] == "quant-kivi")
        self.assertEqual(row["sources"], "1")
        self.assertIn("u, one-key: quant-kivi at 0.25: 1 sources with rows that are not ok are left out", err)

    def test_how_many_must_be_right(self):
        for n, by_chance in ((12, 0.25), (8, 0.25), (5, 0.5), (3, 0.5)):
            fits = [k for k in range(n + 1) if stats.binomtest(k, n).proportion_ci(0.95, "exact").low > by_chance]
            self.assertEqual(pages.needed(n, by_chance), fits[0] if fits else None)

    def test_the_picture(self):
        names = [f"a{i}" for i in range(12)]
        rows = [*self.rows(methods=names), *self.rows(task="count", methods=names, exact=2)]
        tables = ["--score-table", "unseen", self.table("u.csv", rows), "--score-table", "seen",
                  self.table("s.csv", rows), "--records", self.records(tasks=("one-key", "count"))]
        for y in ("change", "right"):
            self.run_script(*tables, "--figures", self.path(y), "--y", y)
            for end in (".png", ".pdf"):
                self.assertGreater(os.path.getsize(self.path(y + end)), 1000)
        self.refused("expected at most 10", *tables, "--show", ",".join(names))
        self.refused("--show: got `nobody`", *tables, "--show", "nobody", "--figures", self.path("g"))
        self.refused("--show: got `exact`", *tables, "--show", "exact", "--figures", self.path("g"))

    def test_refusals(self):
        good, records = self.table("s.csv", self.rows()), self.records()
        common = ("--records", records)
        self.refused("expected NAME FILE", "--score-table", "s.csv", *common)
        self.refused("a setting comes twice", "--score-table", "u", good, "--score-table", "u", good, *common)
        self.refused("no such file", "--score-table", "u", self.path("none.csv"), *common)
        self.refused("no record says the task of one-key-11", "--score-table", "u", good, "--records",
                     self.records(sources=11, name="few.jsonl"))
        self.refused("wrong: got [], expected a list of wrong answers", "--score-table", "u", good, "--records",
                     self.records(wrong=[], name="none.jsonl"))
        self.refused("are both of task one-key and source s", "--score-table", "u", good, "--records",
                     self.records(source="s", name="one.jsonl"))
        self.refused("duplicate row", "--score-table", "u", self.table("t.csv", self.rows() + self.rows(1)), *common)
        for value in (math.nan, "", 2, -0.1):
            rows = [*self.rows(), ("one-key-0", "rkv", 0.25, 1.0, value)]
            self.refused("rkv at 0.25: choice_right is", "--score-table", "u", self.table("w.csv", rows), *common)
        for value in (math.nan, math.inf, ""):
            rows = [*self.rows(), ("one-key-0", "rkv", 0.25, value, 1)]
            self.refused("rkv at 0.25: answer_nll is", "--score-table", "u", self.table("w.csv", rows), *common)
        self.refused("no rows with status ok", "--score-table", "u",
                     self.table("v.csv", [("one-key-0", "rkv", 0.25, 1.0, 1, 0, "failed: x")]), *common)
        old = self.path("old.csv")
        with open(good, encoding="utf-8") as file, open(old, "w", encoding="utf-8") as out:
            out.write(file.read().replace("answer_nll_exact", "other"))
        self.refused("column `answer_nll_exact` is missing", "--score-table", "u", old, *common)


if __name__ == "__main__":
    unittest.main(verbosity=2)
