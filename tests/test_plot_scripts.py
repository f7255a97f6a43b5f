"""What holds for every figure from replay tables: one line per error, --help, legible fonts, widths
that fit a page, and the same bytes each time. Values by hand: test_plot_replay.py."""

import io
import os
import struct
import unittest
from unittest import mock

from matplotlib.text import Text
from plot_tables import FigureTest, infeasible, lambda_rows, revive_rows
from script_case import program, run_program

from kvbench.plot import amnesia as plot_amnesia
from kvbench.plot import bits as plot_bits
from kvbench.plot import bumblebee_lambda as plot_lambda
from kvbench.plot import figures as kf
from kvbench.plot import heatmap as plot_heatmap
from kvbench.plot import offset as plot_offset
from kvbench.plot import pareto as plot_pareto
from kvbench.plot import reads as plot_reads
from kvbench.plot import reconstruction as plot_reconstruction
from kvbench.plot import stream as plot_stream

SCRIPTS_TESTED = (plot_lambda, plot_pareto, plot_amnesia, plot_reconstruction, plot_stream,
                  plot_heatmap, plot_offset, plot_bits, plot_reads)
WIDEST = kf.PAGE_WIDTH + 0.2  # a tight picture has 0.1 inch of margin at each side
SMALLEST = 6.0  # pt, the least that journals take


class EveryScriptTest(FigureTest):
    """What holds for all: files, fonts, widths, same bytes, errors, help."""

    def inputs(self):
        """Per script a table that it can draw: many methods, layers and budgets."""
        names = [f"method-{i}" for i in range(14)]
        plain = [{"algorithm": name, "layer": layer, "q_head": head, "budget_requested": budget,
                  "ratio": budget, "middle_ratio": budget, "rel_error": (1 + i) * budget / 10,
                  "tokens_kept": 20 + 80 * budget}
                 for i, name in enumerate(names) for layer in range(4) for head in range(2)
                 for budget in (0.5, 0.25)]
        coded = [{**row, "params": f"k_bits={k};v_bits={v}", "rel_error": row["rel_error"] / k / v,
                  "algorithm": f"{row['algorithm']}@quant-kivi"} for row in plain[:64]
                 for k in (2, 4) for v in (2, 4)]
        return [
            (plot_bits, self.write([*plain[:64], *coded], "bits.csv"), []),
            (plot_bits, self.path("bits.csv"), ["--kind", "map"]),
            (plot_bits, self.path("bits.csv"), ["--kind", "keys-values"]),
            (plot_lambda, self.write(lambda_rows(), "lambda.csv"), []),
            (plot_pareto, self.write(plain, "plain.csv"), []),
            (plot_amnesia, self.path("plain.csv"), ["--by-layer"]),
            (plot_reconstruction, self.write(revive_rows(), "kv.csv"), []),
            (plot_stream, self.write_stream(), ["--band"]),
            (plot_heatmap, self.path("plain.csv"), []),
            (plot_offset, self.write([{**row, "offset": offset} for row in plain
                                      for offset in range(3)], "plain.queries.csv"), ["--log-y"]),
            (plot_offset, self.path("plain.queries.csv"), ["--by", "layer", "--budgets", "0.5"]),
            (plot_reads, self.write([{**row, "protocol": "retrieval", "read_ratio": row["ratio"],
                                      "recall": row["ratio"]} for row in plain]
                                    + [{**row, "algorithm": "topk", "protocol": "retrieval",
                                        "read_ratio": row["ratio"], "recall": 1} for row in plain[:16]],
                                    "reads.csv"), []),
        ]

    def test_pictures(self):
        for module, path, options in self.inputs():
            with self.subTest(module.__name__):
                figures = []
                save = kf.save_figure

                def keep(figure, stem, figures=figures, save=save):
                    figures.append(figure)
                    save(figure, stem)

                contents = []
                for stem in (self.path("one"), self.path("two")):
                    with mock.patch.object(kf, "save_figure", keep):
                        code, said = self.run_script(module, path, "-o", stem, *options)
                    self.assertEqual(code, 0, said)
                    contents.append([open(stem + end, "rb").read() for end in (".png", ".pdf")])
                self.assertEqual(contents[0], contents[1])
                png, pdf = contents[0]
                self.assertEqual((png[:4], pdf[:4]), (b"\x89PNG", b"%PDF"))
                width = struct.unpack(">I", png[16:20])[0] / 200  # inches at 200 dpi
                self.assertLess(width, WIDEST)
                target = (kf.COLUMN_WIDTH if width < kf.COLUMN_WIDTH + 0.2 else kf.PAGE_WIDTH)
                texts = [t for t in figures[0].findobj(Text) if t.get_visible() and t.get_text()]
                self.assertGreater(len(texts), 5)
                small = min(t.get_fontsize() for t in texts) * min(1.0, target / width)
                self.assertGreaterEqual(small, SMALLEST)

    def test_errors_are_one_line_and_exit_2(self):
        only_infeasible = self.write([infeasible(), infeasible(q_head=1)], "infeasible.csv")
        cases = [
            (self.write([{}], "column.csv", drop=("layer",)), "column `layer` is missing"),
            (self.write([], "rows.csv"), "rows.csv: no rows"),
            (self.write([{}, {"schema": "1.1", "q_head": 1}], "mixed.csv"), "mixed schemas"),
            (only_infeasible, "infeasible.csv: no row holds measurements"),
            (self.path("none.csv"), "none.csv: no such file"),
        ]
        for module in SCRIPTS_TESTED:
            for path, text in cases:
                with self.subTest(module.__name__, text=text):
                    code, said = self.run_script(module, path, "-o", self.path("out"))
                    self.assertEqual(code, 2, said)
                    lines = said.strip().splitlines()
                    self.assertIn(text, lines[-1])
                    self.assertTrue(lines[-1].startswith(program(module) + ": "))
                    self.assertTrue(all(line.startswith("note: ") for line in lines[:-1]))
                    self.assertFalse(os.path.exists(self.path("out.png")))
            code, said = self.run_script(module, "x.csv")
            self.assertEqual((code, said.count("\n")), (2, 1), said)
            self.assertIn("-o/--output", said)

    def test_other_errors(self):
        path = self.write([{}])
        for module, text, options in (
                (plot_lambda, "no row with a budget has the parameter lambda", []),
                (plot_pareto, "no rows of algorithm nope; it holds h2o", ["--algorithms", "nope"]),
                (plot_pareto, "no rows with layer 9; it holds 0", ["--layers", "9"]),
                (plot_pareto, "got `many`, expected numbers", ["--layers", "many"]),
                (plot_stream, "got `0`, expected a number above 0", ["--bins", "0"]),
                (plot_offset, "got `x`, expected a number above 0", ["--bins", "x"]),
                (plot_heatmap, "cannot be written", ["-o", self.path("no/out")])):
            with self.subTest(text):
                code, said = self.run_script(module, path, "-o", self.path("out"), *options)
                self.assertEqual(code, 2, said)
                self.assertIn(text, said.strip().splitlines()[-1])
        code, said = self.run_script(plot_pareto, self.write([{"rel_error": 1e-16}]), "-o",
                                     self.path("out"))
        self.assertEqual(code, 2)
        self.assertIn("below 1e-06 in every point", said)

    def test_help(self):
        for module in SCRIPTS_TESTED:
            out = io.StringIO()
            out, _ = self.must(module, "--help")
            self.assertIn(module.__doc__.strip().splitlines()[0], out)

    def test_as_a_program(self):
        result = run_program("kvbench-py plot pareto", "none.csv", "-o", "x")
        self.assertEqual((result.returncode, result.stderr),
                         (2, "kvbench-py plot pareto: none.csv: no such file\n"))


if __name__ == "__main__":
    unittest.main()
