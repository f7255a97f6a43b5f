"""docs/kvbench.ipynb in a real kernel: it ends, and its figures are there."""

import base64
import io
import os
import sys
import unittest
from unittest import mock

from script_case import KVBENCH, ROOT, FolderCase, missing

ABSENT = missing("nbclient", "nbformat", "ipykernel", "matplotlib", "pandas", "h5py")


@unittest.skipUnless(KVBENCH, "KVBENCH names no program")
@unittest.skipIf(ABSENT, f"{sys.executable} lacks {', '.join(ABSENT)}")
class NotebookTest(FolderCase):
    def run_cells(self, *more):
        """The notebook's outputs by cell, and those of further cells."""
        import nbformat
        from nbclient import NotebookClient

        notebook = nbformat.read(os.path.join(ROOT, "docs", "kvbench.ipynb"), as_version=4)
        notebook.cells += [nbformat.v4.new_code_cell(text) for text in more]
        environment = {"PYTHONPATH": os.path.join(ROOT, "python"), "KVBENCH": os.path.abspath(KVBENCH),
                       "IPYTHONDIR": self.path("ipython")}
        with mock.patch.dict(os.environ, environment):
            os.environ.pop("MPLBACKEND", None)  # a notebook's is the inline one
            NotebookClient(notebook, timeout=600, kernel_name="python3",
                           resources={"metadata": {"path": self.folder}}).execute()
        return [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]

    def pictures(self, outputs):
        import matplotlib.image
        return [matplotlib.image.imread(io.BytesIO(base64.b64decode(output["data"]["image/png"])))
                for output in outputs if "image/png" in output.get("data", {})]

    def test_it_runs_and_shows_its_figures(self):
        _, table, pareto, own, backend, plotted = self.run_cells(
            "import matplotlib; matplotlib.get_backend()",
            "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()")
        text = table[-1]["data"]["text/plain"]
        for name in ("snapkv", "h2o", "attention-matching", "uniform", "0.125"):
            self.assertIn(name, text)
        for outputs in (pareto, own):
            picture, = self.pictures(outputs)
            self.assertGreater(picture.shape[0] * picture.shape[1], 50000)
            # Lines in colour, not only axes and text.
            spread = picture[..., :3].max(axis=2) - picture[..., :3].min(axis=2)
            self.assertGreater((spread > 0.2).mean(), 0.0005)
            self.assertFalse([output for output in outputs if output.get("name") == "stderr"], outputs)
        self.assertIn("inline", backend[-1]["data"]["text/plain"])
        self.assertEqual(len(self.pictures(plotted)), 1)  # the user's own figures still show
        self.assertTrue(os.path.isfile(self.path("rows.csv")))
