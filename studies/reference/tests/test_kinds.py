"""kvbench-study kinds: ratios by kind against numbers by hand, refusals."""

import csv
import unittest

from study_case import CommandCase, missing, write_rows, write_text

MISSING = missing("numpy", "pandas", "scipy")
if not MISSING:
    from kvbench_study import kinds

LOSSES = {"A": {"local": 1.0, "h2o": 0.5, "snapkv": 2.0}, "B": {"local": 2.0, "h2o": 4.0, "snapkv": 1.0},
          "C": {"local": 4.0, "h2o": 1.0}, "D": {"local": 1.0, "h2o": 1.0, "snapkv": 1.0, "exact": 0.0},
          "E": {"h2o": 9.0}}


@unittest.skipIf(MISSING, f"lacks {', '.join(MISSING)}")
class KindsTest(CommandCase):
    def module(self):
        return kinds

    def setUp(self):
        super().setUp()
        self.table = write_rows(self.path("s.csv"), ("model", "budget", "method", "source", "value"), [
            ["M", 0.125, method, source, value] for source, mine in LOSSES.items() for method, value in mine.items()])
        self.works = write_text(self.path("w.toml"), "".join(
            f'[works.{one.lower()}]\ntitle = "{one}"\nkind = "{"prose" if one in "AB" else "code"}"\n'
            for one in LOSSES))

    def test_ratios(self):
        self.run_script(self.table, "--works", self.works, "--to", "local", "--csv", self.path("o.csv"))
        with open(self.path("o.csv"), encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        found = {(row["kind"], row["method"]): [float(row[name]) for name in ("works", "ratio", "least", "largest")]
                 for row in rows}
        expected = {  # E lacks `local`, C `snapkv`; the loss 0 of `exact` counts nowhere
            ("all", "h2o"): [4, (0.5 * 2 * 0.25 * 1) ** 0.25, 0.25, 2], ("prose", "h2o"): [2, 1, 0.5, 2],
            ("prose", "snapkv"): [2, 1, 0.5, 2], ("code", "h2o"): [2, 0.5, 0.25, 1]}
        self.assertEqual(set(found), set(expected))
        for key, values in expected.items():
            for one, other in zip(found[key], values):
                self.assertAlmostEqual(one, other, places=12, msg=str(key))
        self.assertEqual({(row["model"], float(row["budget"])) for row in rows}, {("M", 0.125)})

    def test_refusals(self):
        words = "--csv", self.path("o.csv"), "--to"
        self.refused("s.csv: --to: no losses of tova", self.table, "--works", self.works, *words, "tova")
        few = write_text(self.path("few.toml"), '[works.a]\ntitle = "A"\nkind = "prose"\n')
        self.refused("source `B`: expected the title of a work", self.table, "--works", few, *words, "local")
        bad = write_text(self.path("bad.toml"), '[works.a]\ntitle = "A"\n')
        self.refused("bad.toml: expected works with `title` and `kind`", self.table, "--works", bad, *words, "local")


if __name__ == "__main__":
    unittest.main()
