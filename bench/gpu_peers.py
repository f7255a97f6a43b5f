#!/usr/bin/env python3
"""kvbench beside PyTorch on one device: the seconds of each, and their ratio, as a table.

  bench/gpu_peers.py --kvbench build/kvbench -o peers.tsv

Inputs have the same shape, not the same numbers. kvbench: compress_ms, or attend_us_per_query times queries,
of `replay --device cuda --threads 1` on a trace that `kvbench synth` writes, summed over heads. PyTorch:
float32 without TF32, the median of 5 runs after one, with a synchronisation each. Needs PyTorch alone.

Exit code: 0; 1, kvbench failed; 2, bad usage; 77, no PyTorch or no device.
"""

import argparse
import csv
import os
import statistics
import sys
import tempfile
import time

from pages import open_for_writing, run

try:
    import torch
    from peer_torch import attention, attention_sums, k_center
except ImportError:
    torch = None

QUERIES = 256


def parser():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--kvbench", default="build/kvbench", metavar="PROGRAM", help="[default: build/kvbench]")
    p.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="of both [default: cuda]")
    p.add_argument("--tiny", action="store_true", help="small inputs, to try the program")
    p.add_argument("-o", "--output", required=True, metavar="FILE.tsv", help="work, PyTorch's and kvbench's seconds")
    return p.parse_args()


def works(tiny):
    """(title, synth options, replay options, column, factor, what PyTorch computes) of each work."""
    n, short = (1024, 1024) if tiny else (32768, 16384)
    many = 1024 if tiny else 131072
    scale = 128**-0.5
    return [
        (f"exact attention, {QUERIES} queries, n={n}, 32/8 heads, d=128",
         ["--q-heads", "32", "--kv-heads", "8", "--n", str(n)], ["--algorithm", "exact"],
         "attend_us_per_query", QUERIES / 1e6,
         lambda r: (attention, r(32, QUERIES, 128), r(8, n, 128), r(8, n, 128), scale)),
        (f"attention sums of every query (h2o), n={short}, 4 query heads, d=128",
         ["--q-heads", "4", "--kv-heads", "1", "--n", str(short)], ["--algorithm", "h2o", "--budget", "0.125",
                                                                    "--heads", "0"],
         "compress_ms", 1e-3, lambda r: (attention_sums, r(4, short, 128), r(short, 128), scale)),
        (f"k-center (clustergen-kcenter), n={many}, d=128, 512 centres",
         ["--q-heads", "1", "--kv-heads", "1", "--n", str(many)],
         ["--algorithm", "clustergen-kcenter:tokens=512;recent_share=0"],
         "compress_ms", 1e-3, lambda r: (k_center, r(many, 128), 512)),
    ]


def timed(function, *arguments, device):
    seconds = []
    for _ in range(6):
        begin = time.perf_counter()
        function(*arguments)
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds[1:])


def kvbench_seconds(options, synth, replay, column, factor, folder):
    trace, out = os.path.join(folder, "t.h5"), os.path.join(folder, "out.csv")
    run([options.kvbench, "synth", "-o", trace, "--layers", "1", "--d", "128", "--dv", "128", "--gzip", "0", *synth])
    run([options.kvbench, "replay", trace, "-o", out, "--overwrite", "--device", options.device, "--threads", "1",
         "--sink", "0", "--recent", str(QUERIES), "--queries", str(QUERIES), "--repeat", "3", *replay])
    os.remove(trace)
    with open(out, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    bad = [row["status"] for row in rows if row["status"] != "ok"]
    if bad or not rows:
        sys.exit(f"gpu_peers.py: {replay}: status {bad[:1]}, expected ok")
    return sum(float(row[column]) for row in rows) * factor


def main():
    options = parser()
    if torch is None or (options.device == "cuda" and not torch.cuda.is_available()):
        print("gpu_peers.py: " + ("no PyTorch here" if torch is None else "PyTorch sees no device"))
        return 77
    torch.backends.cuda.matmul.allow_tf32 = False
    generator = torch.Generator(options.device).manual_seed(1)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, device=options.device)

    with tempfile.TemporaryDirectory() as folder, open_for_writing(options.output) as file, torch.no_grad():
        for title, synth, replay, column, factor, peer in works(options.tiny):
            function, *arguments = peer(normal)
            theirs = timed(function, *arguments, device=options.device)
            del arguments
            ours = kvbench_seconds(options, synth, replay, column, factor, folder)
            file.write(f"{title}\t{theirs:.6f}\t{ours:.6f}\n")
            file.flush()
            print(f"{title}: PyTorch {theirs:.4f} s, kvbench {ours:.4f} s, ratio {ours / theirs:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
