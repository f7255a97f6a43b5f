#!/usr/bin/env python3
"""attention-matching beside the same steps in NumPy and SciPy, on the same trace.

The peer is written as a user of SciPy would write it: logits and softmax over the middle by NumPy,
the B largest root mean squares, weights by scipy.optimize.lsq_linear (its two exact methods, trf
and bvls), values by numpy.linalg.solve. kvbench's time is `compress_ms` of a replay with one
thread; SciPy's products run in one thread of OpenBLAS. Also compared: the weights' misfit, so that
neither is fast by stopping early.

  bench/peer_scipy.py --kvbench build/kvbench --shapes 448x768,892x768

A shape is BxR: B kept tokens, R reference queries (one query head); the middle has 3584 tokens of
64 channels. One line per shape on stdout. Exit code 2: bad usage; 3: NumPy, SciPy or h5py is absent.
"""

import argparse
import csv
import os
import subprocess
import sys
import tempfile
import time

from pages import use_fast_openblas

use_fast_openblas()
os.environ["OPENBLAS_NUM_THREADS"] = "1"
try:
    import h5py
    import numpy as np
    from scipy.optimize import lsq_linear
except ImportError as error:
    sys.stderr.write(f"peer_scipy.py: {error}\n")
    sys.exit(3)

MIDDLE, WIDTH, LOW, HIGH, RIDGE = 3584, 64, 1.0, float(np.exp(3)), 1e-2


def shape(text):
    kept, _, rows = text.partition("x")
    return int(kept), int(rows)


def make_trace(kvbench, path, rows):
    """A trace whose reference queries are all behind the middle."""
    subprocess.run([kvbench, "synth", "-o", path, "--n", str(MIDDLE + rows + 1), "--layers", "1",
                    "--q-heads", "1", "--kv-heads", "1", "--d", str(WIDTH), "--dv", str(WIDTH),
                    "--dtype", "float32", "--gzip", "1"], check=True, stdout=subprocess.DEVNULL)


def ours(kvbench, path, kept, rows):
    """Seconds, and the misfit |E w - y| / |y|."""
    out = path + ".csv"
    subprocess.run([kvbench, "replay", path, "-o", out, "--overwrite", "--threads", "1", "--sink",
                    "0", "--recent", str(rows + 1), "--queries", "1", "--algorithm",
                    f"attention-matching:tokens={kept};ref_queries={rows}"], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with open(out, newline="", encoding="utf-8") as file:
        row = next(csv.DictReader(file))
    diag = dict(item.split("=") for item in row["diag"].split(";"))
    return float(row["compress_ms"]) / 1e3, float(diag["mass_error"])


def theirs(path, kept, rows, method):
    with h5py.File(path) as file:
        layer = file["prompts/p0/layers/0"]
        k = layer["k"][0, :MIDDLE].astype(np.float64)
        v = layer["v"][0, :MIDDLE].astype(np.float64)
        q = layer["q"][0, -rows - 1:-1].astype(np.float64)
    start = time.perf_counter()
    logits = q @ k.T / np.sqrt(WIDTH)
    e = np.exp(logits - logits.max(1, keepdims=True))
    y = e.sum(1)
    p = e / y[:, None]
    chosen = np.sort(np.argsort(-np.sqrt((p * p).mean(0)), kind="stable")[:kept])
    fit = lsq_linear(e[:, chosen], y, bounds=(LOW, HIGH), method=method, tol=1e-9)
    x = e[:, chosen] * fit.x
    x /= x.sum(1, keepdims=True)
    gram = x.T @ x
    gram[np.diag_indices(kept)] += RIDGE * np.trace(gram) / kept
    np.linalg.solve(gram, x.T @ (p @ v - x @ v[chosen]))
    seconds = time.perf_counter() - start
    return seconds, float(np.linalg.norm(e[:, chosen] @ fit.x - y) / np.linalg.norm(y))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kvbench", default="build/kvbench", metavar="PROGRAM")
    parser.add_argument("--shapes", default="224x768,448x768", metavar="BxR,...",
                        type=lambda text: [shape(part) for part in text.split(",")])
    parser.add_argument("--methods", default="trf,bvls", metavar="NAME,...",
                        type=lambda text: text.split(","))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "t.h5")
        for kept, rows in args.shapes:
            make_trace(args.kvbench, path, rows)
            seconds, misfit = ours(args.kvbench, path, kept, rows)
            print(f"B {kept} R {rows}: kvbench {seconds:.3f} s, misfit {misfit:.6g}")
            for method in args.methods:
                other, other_misfit = theirs(path, kept, rows, method)
                print(f"  SciPy {method}: {other:.3f} s, misfit {other_misfit:.6g}; kvbench takes "
                      f"{seconds / other:.3f} of it", flush=True)


if __name__ == "__main__":
    main()
