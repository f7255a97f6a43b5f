"""models_tables.sh: the tables over all models, from what is there of their stores."""

import csv
import os
import subprocess
import sys
import tempfile
import unittest

import test_compare_scores
from study_case import STUDY, missing

from kvbench_study.reference import store

MISSING = missing("numpy", "pandas", "matplotlib", "scipy", "sklearn")


@unittest.skipIf(MISSING, f"lacks {', '.join(MISSING)}")
class ModelsTablesTest(test_compare_scores.LossesTest):
    def test_the_tables_over_all_models(self):
        """models_tables.sh reads what is there of the models' stores."""
        for folder, stage, rows, params in (
                ("smollm2-135m", "judged", self.judged(9), ""), ("qwen2.5-coder-0.5b", "judged", self.judged(4), ""),
                ("qwen2.5-coder-0.5b", "tuned", [r for r in self.many(4) if r[1] == "h2o"], "x=1"),
                ("smollm2-135m", "tuned", [r for r in self.many(3) if r[1] == "h2o"], "x=1"),
                ("qwen2.5-coder-1.5b", "judged", self.judged(3), "")):  # two stages with too few sources
            for prompt in {row[0] for row in rows}:
                part = self.table("part.csv", [r for r in rows if r[0] == prompt], params)
                with open(part, encoding="utf-8") as file:
                    self.stored(folder, stage, prompt, "scores", *csv.reader(file))
        self.policies("smollm2-135m")
        self.total("gemma3-270m")
        script = os.path.join(STUDY, "models_tables.sh")
        works = self.path("works.toml")
        with open(works, "w", encoding="utf-8") as file:
            file.writelines(f'[works.p{at}]\ntitle = "p{at}"\nkind = "{("prose", "code")[at % 2]}"\n'
                            for at in range(9))
        done = subprocess.run([script, self.folder], capture_output=True, text=True, check=False,
                              env={**os.environ, "PYTHON": sys.executable, "WORKS": works})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual({(row["model"], row["sources"]) for row in self.read("losses.csv") if row["method"] == "h2o"},
                         {("SmolLM2-135M", "9"), ("Qwen2.5-Coder-0.5B", "4")})
        self.assertEqual({row["model"] for row in self.read("tuned.csv") if row["setting"]},
                         {"Qwen2.5-Coder-0.5B"})
        for name in ("losses.to_local.csv", "tuned.to_local.csv"):
            self.assertEqual({row["to"] for row in self.read(name) if row["method"] == "h2o"}, {"local"})
        self.assertEqual({(row["kind"], row["works"]) for row in self.read("losses.kinds.csv")
                          if row["model"] == "SmolLM2-135M" and row["method"] == "h2o"},
                         {("all", "9"), ("prose", "5"), ("code", "4")})
        rows = {(row["method"], row["budget"]): row for row in self.read("policies.csv")}
        # Over the works that both have, three of nine.
        self.assertEqual({row["sources"] for row in rows.values()}, {"3"})
        self.assertEqual(float(rows["policy:both-8", "0.125"]["mean"]), 1.0)
        self.assertEqual(float(rows["policy:own-8", "0.125"]["mean"]), 0.5)
        self.assertEqual({row["method"] for row in self.read("policies.errors.csv")},
                         {"snapkv", "h2o", "local", "h2o@quant-kivi", "policy:both-4", "policy:both-8",
                          "policy:both-16", "policy:own-8"})
        self.assertEqual({row["budget"] for row in self.read("policies.tuned.csv")}, {"0.125"})
        self.assertEqual({(row["model"], row["method"], float(row["bytes"])) for row in self.read("total.csv")},
                         {("Gemma 3 270M", "local", 0.25), ("Gemma 3 270M", "policy:layers-4", 0.25),
                          ("Gemma 3 270M", "quant-kivi", 0.3)})
        self.assertGreater(os.path.getsize(self.path("total.png")), 1000)
        self.assertEqual({row["method"] for row in self.read("policies.tuned.csv") if row["setting"]}, {"h2o"})
        with tempfile.TemporaryDirectory() as empty:
            done = subprocess.run([script, empty], capture_output=True, text=True, check=False,
                                  env={**os.environ, "PYTHON": sys.executable})
        self.assertEqual(done.returncode, 2)
        self.assertIn("found no scores of a model", done.stderr)

    def stored(self, folder, stage, prompt, table, header, *rows):
        """Adds a table to a step of a store."""
        at = store.Store(self.path(f"{folder}/store"))
        files = {table, *(at.record(stage, prompt) or {"files": ()})["files"]}
        rows = [[f"{prompt}.h5", *row[1:], ""] for row in rows]
        at.put(stage, prompt, {table: store.Table([*header, "check"], rows)}, {"files": sorted(files)})

    def total(self, model):
        """Eight works, a method, a policy and a format by the bytes of the whole cache."""
        header = [*test_compare_scores.COLUMNS, "ratio"]
        for prompt in (f"p{at}" for at in range(8)):
            for stage, rows in (("judged", [("local", 0.2, 2, 0.25), ("policy:layers-4", 0.2, 1, 0.25)]),
                                ("formats", [("quant-kivi", "", 1, 0.3)])):
                lines = [["t.h5", prompt, method, "", budget, 0, 18, kl, kl, "ok", ratio]
                         for method, budget, kl, ratio in rows]
                self.stored(f"{model}-total", stage, prompt, "scores", header, *lines)

    def judged(self, sources):
        rows = self.many(sources)
        return rows + [(prompt, "local", *rest) for prompt, method, *rest in rows if method == "snapkv"]

    def policies(self, model):
        """Works p0 to p2, and one without single methods: policies that choose, and of the work itself; layers'
        errors of the single methods too.
        """
        budgets = {4: 0.25, 8: 0.125, 16: 0.0625}
        for prompt in ("p0", "p1", "p2", "q"):
            both = [(prompt, f"policy,name=both-{part};sha256=1", budget, 1.0) for part, budget in budgets.items()]
            own = [(prompt, f"policy,name=own-8;sha256={prompt}", 0.125, 0.5)]
            single = [(prompt, f"{row[1]},", row[2], row[4]) for row in self.judged(9) if row[0] == prompt]
            single += [(prompt, "h2o@quant-kivi,", budget, 2.0) for budget in budgets.values()]
            more = f"{model}-policies"
            for folder, stage, rows in ((more, "judged", both), (more, "judged_more", own),
                                        (model, "judged", single if prompt != "q" else ())):
                for table, columns, rest in (("scores", "layers,kl,loss_change,status", "30,{0},{0},ok"),
                                             ("layers", "layer,residual_rel_error", "0,{0}")) if rows else ():
                    lines = [f"trace,prompt,algorithm,params,budget_requested,seed,{columns}",
                             *(f"t.h5,{name},{variant},{budget},0,{rest.format(value)}"
                               for name, variant, budget, value in rows)]
                    self.stored(folder, stage, prompt, table, *csv.reader(lines))


# Tests of the other file run there.
for _name in [name for name in dir(test_compare_scores.LossesTest) if name.startswith("test_")]:
    setattr(ModelsTablesTest, _name, None)

if __name__ == "__main__":
    unittest.main()
