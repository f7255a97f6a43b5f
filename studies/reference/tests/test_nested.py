"""JSON and TOML that are nested too deeply, in every file that the study reads, are one line."""

import glob
import os
import re
import sys
import unittest

from study_case import STUDY, FolderCase, call, missing, read_text

MISSING = missing("numpy", "pandas", "scipy", "sklearn")
NESTED = "[" * 100_000


class NestedTest(FolderCase):
    def test_the_package_parses(self):
        found = [path for path in glob.glob(os.path.join(STUDY, "kvbench_study", "**", "*.py"), recursive=True)
                 if re.search(r"\bjson\.loads?\(", read_text(path))]
        self.assertEqual(found, [])

    @unittest.skipIf(MISSING, f"{sys.executable} lacks {', '.join(MISSING)}")
    def test_policies(self):
        from kvbench.tables import CsvError
        from kvbench_study.atlas import heads
        for text in (NESTED, '{"layers": 1' + "0" * 400 + "}"):
            with self.assertRaisesRegex(CsvError, "s.json: "):
                heads.budgets(self.write_file("s.json", text))

    def test_records_of_prompts(self):
        from kvbench_study.prompts import records as kp
        path = self.write_file("p.jsonl", '{"text": "a"}\n' + NESTED + "\n")
        with self.assertRaisesRegex(kp.PromptError, r"p.jsonl:2: not JSON \(nested"):
            kp.read_jsonl(path)

    def test_a_list_of_prompts(self):
        from kvbench_study.prompts import make
        path = self.write_file("list.toml", "a = " + NESTED)
        done = call(lambda: make.main([path, "--model", "m", "-o", self.path("out")]),
                    "kvbench-study prompts")
        self.assertEqual((done.code, done.err),
                         (2, f"kvbench-study prompts: {path}: nested too deeply\n"))

    def test_plans_and_what_they_name(self):
        from kvbench_study.reference import plan, steps
        path = self.write_file("p.jsonl", NESTED)
        with self.assertRaisesRegex(plan.PlanError, "p.jsonl: records with an id expected: nested"):
            plan.read_prompts([path])
        with self.assertRaisesRegex(plan.PlanError, "plan.toml: nested too deeply"):
            plan.read_plan(self.write_file("plan.toml", "a = " + NESTED))
        self.assertIsNone(steps.read_json(path))


if __name__ == "__main__":
    unittest.main()
