"""Python calls that name methods by dicts, and figures of the side tables beside a frame's table."""

import os
import sys
import unittest

from script_case import KVBENCH, FolderCase, missing

import kvbench

MISSING = missing("h5py", "matplotlib", "numpy", "pandas")
WINDOWS = {"sink": 16, "recent": 64, "queries": 32}


@unittest.skipUnless(KVBENCH, "KVBENCH names no program")
@unittest.skipIf(MISSING, f"{sys.executable} lacks {', '.join(MISSING)}")
class SideFramesTest(FolderCase):
    def test_figures_find_side_tables(self):
        rows = kvbench.evaluate(kvbench.sample(), lambda head, task: task.middle[:task.tokens], 0.25, name="first",
                                per_query=True, layers=[0], progress=False, **WINDOWS)
        self.assertEqual(rows.budget_requested.unique().tolist(), [0.25])
        [axes] = kvbench.figure("offset", rows).axes
        bins = kvbench.read_results(rows.attrs["paths"][0], side="queries").groupby("first").rel_error_p50.median()
        self.assertEqual(list(axes.lines[0].get_ydata()), bins.tolist())
        with self.assertRaisesRegex(ValueError, "got some rows of .*rows.csv, expected all"):
            kvbench.figure("offset", rows[rows.q_head == 0])
        with self.assertRaises(kvbench.CsvError):
            kvbench.figure("kept-map", rows)  # without --kept

    def test_methods_by_dict(self):
        table = self.path("out.csv")
        methods = {"streamingllm": {"n_sink": [0, 4]}, "local:tokens=20": {"T": "auto"}}
        rows = kvbench.replay(kvbench.sample(), output=table, protocol="stream", kept=True, layers="0", budget=0.25,
                              algorithm=methods, **WINDOWS)
        self.assertEqual(sorted(rows.params.unique()), ["T=auto;n_sink=0;tokens=auto", "T=auto;n_sink=4;tokens=auto",
                                                        "T=auto;tokens=20"])
        self.assertEqual(kvbench.figure("stream", rows).axes[0].get_ylabel(),
                         kvbench.figure("stream", table).axes[0].get_ylabel())
        self.assertTrue(kvbench.figure("kept-map", kvbench.read_results(table), layers=[0]).axes)
        self.assertTrue(os.path.exists(self.path("out.kept.csv")))
