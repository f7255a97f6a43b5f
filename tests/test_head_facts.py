"""attention.csv, keys.csv and spectrum.csv of kvbench cluster against numpy."""

import os
import re
import unittest

import numpy as np
from script_case import KVBENCH, FolderCase, missing, read_rows

MISSING = missing("h5py")
N, NQ, D, DV, GROUP = 600, 300, 16, 8, 2
QUERIES, FIRST, NEAR = 256, 16, 256  # of docs/schema.md
# Sums of at most 600 float64 terms, and a float64 eigenvalue problem of 16 rows.
RELATIVE = 1e-9


def attention(queries, keys, scale, sink, window):
    """(position, probabilities of the tokens seen, first of them) of the last queries, one by one."""
    for r in range(max(0, NQ - QUERIES), NQ):
        position = N - NQ + r
        first = max(0, position + 1 - window) if window else 0
        logits = scale * (keys[first:position + 1] @ queries[r])
        top = max(logits.max(), sink)
        weights = np.exp(logits - top)
        yield position, weights / (weights.sum() + np.exp(sink - top)), first


def facts(queries, keys, scale, sink, window):
    """The columns of attention.csv."""
    found = []
    for position, p, first in attention(queries, keys, scale, sink, window):
        falling = np.cumsum(np.sort(p)[::-1])
        tokens = np.arange(first, position + 1)
        found.append([-(p[p > 0] * np.log(p[p > 0])).sum(), 1 + np.argmax(falling >= 0.9 * p.sum()),
                      p[tokens < FIRST].sum(),
                      p[(tokens >= FIRST) & (tokens > position - NEAR)].sum()])
    return np.mean(found, axis=0)


@unittest.skipIf(MISSING, f"needs {', '.join(MISSING)}")
@unittest.skipIf(not KVBENCH, "needs the program (environment variable KVBENCH)")
class HeadFactsTest(FolderCase):
    def setUp(self):
        super().setUp()
        import h5py

        trace = self.path("t.h5")
        self.done("synth", "-o", trace, "--layers", "2", "--q-heads", "4", "--kv-heads", "2", "--n", str(N), "--nq",
                  str(NQ), "--d", str(D), "--dv", str(DV))
        self.sinks, self.windows = [[-np.inf] * 4, [3.0, 5.0, -1.0, 8.0]], [0, 320]
        with h5py.File(trace, "a") as file:
            layers = next(iter(file["prompts"].values()))["layers"]
            layers["1"].attrs["sink_logit"] = np.array(self.sinks[1], dtype=np.float32)
            layers["1"].attrs["window"] = np.int64(self.windows[1])
            self.layers = [{name: layers[str(i)][name][:].astype(np.float64) for name in "qkv"} for i in range(2)]
            self.scale = float(file.attrs.get("scale", D ** -0.5))

    def tables(self, *options):
        out = self.path("out" + "".join(options))
        self.done("cluster", self.path("t.h5"), "-o", out, "--points", "none", *options)
        return {name: read_rows(os.path.join(out, name + ".csv")) for name in ("attention", "keys", "spectrum")}

    def test_attention(self):
        tables = self.tables("--threads", "1")
        self.assertEqual(tables, self.tables("--threads", "3"))
        self.assertEqual([(row["layer"], row["head"], row["what"]) for row in tables["attention"]],
                         [(str(i), str(g), "queries") for i in range(2) for g in range(4)])
        for row in tables["attention"]:
            i, g = int(row["layer"]), int(row["head"])
            expected = facts(self.layers[i]["q"][g], self.layers[i]["k"][g // GROUP], self.scale,
                             self.sinks[i][g], self.windows[i])
            np.testing.assert_allclose(
                [float(row[name]) for name in ("entropy", "heavy_tokens", "first_mass", "near_mass")], expected,
                rtol=RELATIVE, err_msg=str(row))
        # The examples say something: sinks take a share, the window hides the first tokens.
        masses = [[float(row["first_mass"]) for row in tables["attention"] if row["layer"] == i] for i in "01"]
        self.assertGreater(min(masses[0]), 0.0)
        self.assertEqual(max(masses[1]), 0.0)

    def test_windows_are_told(self):
        """Methods whose entries no window can hide: those that replay says are infeasible there."""
        said = re.search(r"windows  1 of 2 layers have a window of 320 tokens: replay --layers global runs (\d+) more "
                         "methods\n", self.done("info", "--no-values", self.path("t.h5")))
        self.assertIsNotNone(said)
        plan = self.program("replay", self.path("t.h5"), "--dry-run", "--algorithm", "all", "--budget", "0.5")
        infeasible = re.search(r"1 of 2 layers have a window: rows of (.*) are infeasible", plan.stderr)[1].split(", ")
        self.assertEqual(int(said[1]), len(infeasible))
        self.done("synth", "-o", self.path("u.h5"))
        self.assertNotIn("windows", self.done("info", "--no-values", self.path("u.h5")))

    def test_keys(self):
        for row in self.tables()["keys"]:
            i, h = int(row["layer"]), int(row["kv_head"])
            keys = self.layers[i]["k"][h]
            queries = self.layers[i]["q"][GROUP * h:GROUP * (h + 1)]
            norms = np.linalg.norm(keys, axis=1)
            self.assertAlmostEqual(float(row["rho"]) / (self.scale * np.linalg.norm(queries, axis=2).max()
                                                        * norms.max()), 1.0, delta=RELATIVE)
            self.assertAlmostEqual(float(row["mean_share"]) / ((keys.mean(axis=0) ** 2).sum()
                                                               / (norms ** 2).mean()), 1.0, delta=RELATIVE)
            sizes = np.sort(np.sqrt((keys ** 2).mean(axis=0)))
            self.assertEqual(int(row["outlier_channels"]), (sizes > 4 * sizes[D // 2]).sum())

    def test_spectrum(self):
        rows = self.tables()["spectrum"]
        self.assertEqual([(row["layer"], row["kv_head"], row["what"]) for row in rows],
                         [(str(i), str(h), what) for i in range(2) for h in range(2) for what in ("keys", "values")])
        for row in rows:
            x = self.layers[int(row["layer"])][row["what"][0]][int(row["kv_head"])]
            v = np.sort(np.linalg.eigvalsh(np.cov(x.T, bias=True)))[::-1]
            np.testing.assert_allclose([float(row["participation"]), float(row["largest_share"])],
                                       [v.sum() ** 2 / (v ** 2).sum(), v[0] / v.sum()], rtol=RELATIVE)
            self.assertEqual(int(row["dims_90"]), 1 + np.argmax(np.cumsum(v) >= 0.9 * v.sum()))
