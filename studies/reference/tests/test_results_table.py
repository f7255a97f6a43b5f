"""kvbench-study results-table: means by hand, points that lack heads, order, refusals."""

import contextlib
import io
import unittest

from plot_tables import FigureTest, infeasible
from study_case import run_study

from kvbench import tables as kt
from kvbench_study import results_table


def rows(scale):
    """Two heads, two budgets; random-local with two seeds; quant-kivi infeasible in one head."""
    for head in (0, 1):
        for budget in (0.5, 0.25):
            yield {"q_head": head, "budget_requested": budget,
                   "rel_error": scale * (head + 1) * (1 - budget)}
            for seed in (0, 1):
                yield {"q_head": head, "budget_requested": budget, "algorithm": "random-local",
                       "seed": seed, "rel_error": scale * (0.1 + 0.2 * seed)}
        kivi = {"q_head": head, "budget_requested": 0.5, "algorithm": "quant-kivi"}
        yield infeasible(**kivi) if head else {**kivi, "rel_error": 0.01}
    for head in (0, 1):
        yield {"q_head": head, "algorithm": "exact", "budget_requested": "", "rel_error": 0}


class ResultsTable(FigureTest):
    def run_main(self, *arguments):
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            results_table.main(list(arguments))
        return out.getvalue().splitlines()

    def test_means_by_hand(self):
        a = self.write(rows(1), "a.csv")
        b = self.write(rows(2), "b.csv")
        lines = self.run_main(f"new={a}", f"old={b}")
        self.assertEqual(lines[0], "| algorithm | new 0.5 | new 0.25 | old 0.5 | old 0.25 |")
        # h2o: (0.5 + 1.0) / 2; random-local: (0.1 + 0.3) / 2; one head of quant-kivi is missing.
        self.assertEqual(lines[2:], ["| `random-local` | 0.200 | 0.200 | 0.400 | 0.400 |",
                                     "| `h2o` | 0.750 | 1.125 | 1.500 | 2.250 |"])

    def test_a_point_of_one_table_alone(self):
        a = self.write(rows(1), "a.csv")
        b = self.write([{"q_head": 0, "budget_requested": 0.5, "rel_error": 0.25}], "b.csv")
        self.assertEqual(self.run_main(f"a={a}", "--budget", "0.25")[0], "| algorithm | a 0.25 |")
        lines = self.run_main(f"a={a}", f"b={b}", "--sort-by", "b:0.5")
        self.assertEqual(lines[2:], ["| `h2o` | 0.750 | 1.125 | 0.250 |",
                                     "| `random-local` | 0.200 | 0.200 | - |"])

    def test_files_of_one_label_are_one_table(self):
        """Two prompts, .25 and .75; a method that one of them lacks has no mean."""
        a = self.write([{"prompt": "p", "rel_error": 0.25},
                        {"prompt": "p", "algorithm": "snapkv", "rel_error": 0.5}], "a.csv")
        b = self.write([{"prompt": "q", "rel_error": 0.75}], "b.csv")
        self.assertEqual(self.run_main(f"x={a}", f"x={b}")[2:], ["| `h2o` | 0.500 |"])

    def test_nan_is_not_averaged_away(self):
        a = self.write([{"q_head": 0, "rel_error": "nan"}, {"q_head": 1}], "a.csv")
        self.assertEqual(self.run_main(f"a={a}")[2:], ["| `h2o` | nan |"])

    def test_short_names_leave_out_what_most_variants_have(self):
        params = ["a=1;keys=rms", "a=2;keys=rms", "a=1;keys=omp", "a=1;keys=h2o;h2o.r=3"]
        a = self.write([{"params": p, "rel_error": 0.1 * (i + 1)} for i, p in enumerate(params)],
                       "a.csv")
        names = [line.split("`")[1] for line in self.run_main(f"a={a}")[2:]]
        self.assertEqual(names, ["h2o a=1 keys=rms", "h2o a=2 keys=rms", "h2o a=1 keys=omp",
                                 "h2o a=1 keys=h2o"])
        names = [line.split("`")[1] for line in self.run_main(f"a={a}", "--short")[2:]]
        # rms is the value of two of four: no more than half.
        self.assertEqual(names, ["h2o keys=rms", "h2o a=2 keys=rms", "h2o keys=omp",
                                 "h2o keys=h2o"])

    def test_refusals(self):
        a = self.write(rows(1), "a.csv")
        for arguments in ([f"a={a}", "--sort-by", "a:0.3"], [f"a={a}", f"a={a}"], ["a=nowhere.csv"]):
            with self.assertRaises(kt.CsvError), contextlib.redirect_stderr(io.StringIO()):
                results_table.main(arguments)
        for arguments in (["nolabel"], [f"a={a}", "--sort-by", "x"]):
            with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()):
                results_table.main(arguments)

    def test_rows_of_two_models_are_pooled_only_on_demand(self):
        tables = [f"x={self.write([{'trace': f'{model}.h5', 'model': model}], f'{model}.csv')}" for model in "ab"]
        done = run_study("results-table", *tables)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("model (a, b)", done.stderr)
        done = run_study("results-table", *tables, "--pool")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("| `h2o` |", done.stdout)

    def test_names_do_not_command_the_terminal(self):
        table = self.write([{"algorithm": "x\x9b2J\u202e", "rel_error": 0.25}], "a.csv")
        self.assertEqual(self.run_main(f"a={table}")[-1], "| `x?2J?` | 0.250 |")


if __name__ == "__main__":
    unittest.main()
