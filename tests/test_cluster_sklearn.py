"""kvbench cluster against scikit-learn's distances: coverage and cluster counts at n = 2048."""

import os
import subprocess
import tempfile
import unittest

import numpy as np
from script_case import KVBENCH, missing, read_rows

MISSING = missing("sklearn", "h5py")
N = 2048
# scikit-learn's float64 Euclidean distances come from |a|^2 + |b|^2 - 2<a,b>. With keys of norm
# about 10 the terms are of order 100, so that squares are off by some 1e-13 and distances, which
# are well above 0.1 here, by less than 1e-11; relative to radii near 10 that is far below this.
RELATIVE = 1e-9


def greedy_k_center(distances, count):
    """(radii after 1, 2, ... centres, centres): start at row 0, then the farthest row."""
    nearest = distances[0].copy()
    centers, radii = [0], [nearest.max()]
    while len(centers) < count:
        centers.append(int(nearest.argmax()))
        nearest = np.minimum(nearest, distances[centers[-1]])
        radii.append(nearest.max())
    return radii, centers


def prefix_counts(distances, delta, prefixes):
    """Clusters over prefixes: a row opens one when no representative lies within delta."""
    representatives = []
    for row in range(len(distances)):
        if not representatives or not distances[row, representatives].min() <= delta:
            representatives.append(row)
    return [int(np.searchsorted(representatives, p)) for p in prefixes]


def near_delta(distances, delta):
    """Pairs whose distance is so near delta that rounding could decide for either side."""
    return int((np.abs(distances - delta) <= RELATIVE * delta).sum())


@unittest.skipIf(MISSING, f"needs {', '.join(MISSING)}")
@unittest.skipIf(not KVBENCH, "needs the program (environment variable KVBENCH)")
class ClusterAgainstSklearnTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        import h5py
        from sklearn.metrics import pairwise_distances

        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        trace, out = (os.path.join(cls.folder.name, name) for name in ("t.h5", "out"))
        subprocess.run([KVBENCH, "synth", "-o", trace, "--layers", "1", "--q-heads", "1", "--kv-heads", "1",
                        "--n", str(N), "--nq", "16", "--d", "32", "--dv", "16"], check=True)
        subprocess.run([KVBENCH, "cluster", trace, "-o", out, "--points", "none"], check=True)
        cls.tables = {name: read_rows(os.path.join(out, name + ".csv")) for name in ("coverage", "delta", "norms")}
        with h5py.File(trace) as file:
            layer = next(iter(next(iter(file["prompts"].values()))["layers"].values()))
            cls.rows = {"keys": layer["k"][0].astype(np.float64), "values": layer["v"][0].astype(np.float64)}
        cls.distances = {what: pairwise_distances(rows) for what, rows in cls.rows.items()}

    def table(self, name, what):
        return [row for row in self.tables[name] if row["what"] == what]

    def test_coverage(self):
        for what, distances in self.distances.items():
            with self.subTest(what=what):
                curve = self.table("coverage", what)
                self.assertEqual([int(r["k"]) for r in curve], [2 ** i for i in range(11)])
                radii, centers = (np.array(one)[[2 ** i - 1 for i in range(11)]]
                                  for one in greedy_k_center(distances, N // 2))
                np.testing.assert_allclose([float(row["radius"]) for row in curve], radii, rtol=RELATIVE)
                np.testing.assert_allclose([float(row["radius_rel"]) for row in curve], radii / radii[0],
                                           rtol=2 * RELATIVE)
                self.assertEqual([int(row["center"]) for row in curve], list(centers))

    def test_delta_counts(self):
        prefixes = [2 ** i for i in range(4, 12)]
        for what, distances in self.distances.items():
            rows = self.table("delta", what)
            deltas = sorted({float(r["delta"]) for r in rows})
            self.assertEqual(len(deltas), 9)
            for delta in deltas:
                with self.subTest(what=what, delta=delta):
                    self.assertEqual(near_delta(distances, delta), 0, "choose another trace")
                    got = {int(r["n_prefix"]): int(r["clusters"]) for r in rows if float(r["delta"]) == delta}
                    self.assertEqual(got, dict(zip(prefixes, prefix_counts(distances, delta, prefixes))))

    def test_norms(self):
        for what, rows in self.rows.items():
            norms = np.linalg.norm(rows, axis=1)
            (row,) = self.table("norms", what)
            for column, p in (("min", 0), ("p25", 25), ("p50", 50), ("p75", 75), ("p95", 95), ("max", 100)):
                np.testing.assert_allclose(float(row[column]), np.percentile(norms, p), rtol=1e-12)
