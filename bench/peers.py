#!/usr/bin/env python3
"""kvbench beside other programs that do the same work, on the same file, in the same run.

For each piece of work (bench/peer_rows.py): kvbench synth writes a trace; kvbench, then each peer,
then kvbench again work on it with the same number of threads. Every time is the median of its
repeats. Ratios below 1: kvbench is faster. Also measured: the rate of dense products of this
machine (PyTorch, 2048 x 2048), which says what the products of a piece of work cost at least.

  bench/peers.py --build build/bench -o results/bench/peers.json
  bench/peers.py --only k_center_keys,sketch --threads 1
  bench/peers.py ... --docs docs/performance.md     # renews the table there
  bench/peers.py --isa avx2 ...                     # kvbench and peers without AVX-512: a table of its own

--authors names a checkout of https://github.com/ksheth96/BalanceKV, whose code is a peer. A peer
that is not installed has no line; it is named on stderr. Exit code 1: a program failed; 2: bad
usage; 3: PyTorch, NumPy or h5py is absent.
"""

import argparse
import dataclasses
import json
import os
import platform
import statistics
import sys
import tempfile
import time

import pages
from pages import duration, run

pages.use_fast_openblas()
try:
    import numpy as np
    import peer_rows
    import torch
    ABSENT = None
except ImportError as error:
    ABSENT = error

REPEATS = 3


def parser():
    names = [] if ABSENT else [work.name for work in peer_rows.WORKS]
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default="build/bench", metavar="DIR",
                   help="kvbench and bench/bench_operations [default: build/bench]")
    p.add_argument("--authors", metavar="DIR", help="a checkout of BalanceKV's code")
    p.add_argument("--only", metavar="NAME,...", help="of " + ", ".join(names))
    p.add_argument("--threads", default=f"1,{os.cpu_count()}", metavar="N,...",
                   help="[default: 1 and all]")
    p.add_argument("--isa", choices=["avx2"], help="limit kvbench and peers to this instruction set")
    p.add_argument("--tiny", action="store_true", help="small shapes, to try the code")
    p.add_argument("-o", "--output", metavar="FILE.json", help="what was measured")
    p.add_argument("--docs", metavar="FILE.md", help="a page whose table is renewed")
    options = p.parse_args()
    options.only = options.only.split(",") if options.only else names
    unknown = set(options.only) - set(names)
    if unknown:
        p.error(f"--only: no work named {', '.join(sorted(unknown))}")
    walk = "src/balanced_walk.py"
    if options.authors and not os.path.isfile(os.path.join(options.authors, walk)):
        p.error(f"--authors: {options.authors} has no {walk}")
    try:
        options.threads = sorted({int(t) for t in options.threads.split(",")})
    except ValueError:
        p.error(f"--threads: got {options.threads}, expected numbers with commas between")
    return options


def seconds_of(call):
    """Seconds of each run of `call` and its last result: the first run warms up and does not count,
    unless one takes long."""
    times = []
    result = None
    while len(times) <= REPEATS and sum(times) < 10:
        start = time.perf_counter()
        result = call()
        times.append(time.perf_counter() - start)
    return times[1:] or times, result


def set_threads(count):
    torch.set_num_threads(count)
    try:
        import threadpoolctl  # pylint: disable=import-outside-toplevel
        threadpoolctl.threadpool_limits(count)
    except ImportError:
        pass
    try:
        import numba  # pylint: disable=import-outside-toplevel
        numba.set_num_threads(min(count, numba.config.NUMBA_NUM_THREADS))
    except ImportError:
        pass


def ours(options, work, path, threads, folder):
    """Times of kvbench on the trace and its result, if it has one."""
    kvbench = f"{options.build}/kvbench"
    if work.threads:
        found = [work.own(kvbench, path) for _ in range(REPEATS)]
        return [seconds for seconds, _ in found], found[-1][1]
    if not work.operation:
        command = [kvbench, "replay", path, "-o", f"{folder}/out.csv",
                   "--overwrite", "--algorithm", "exact", "--queries", str(peer_rows.QUERIES),
                   "--threads", str(threads)]
        return seconds_of(lambda: run(command))[0], None
    out = f"{folder}/{work.name}.f64"
    environment = dict(os.environ, KVBENCH_BENCH_TRACE=path, KVBENCH_BENCH_OUT=out,
                       KVBENCH_BENCH_THREADS=str(threads), KVBENCH_BENCH_SIZE=str(work.shape.size),
                       OMP_NUM_THREADS=str(threads))
    text = run([f"{options.build}/bench/bench_operations",
                f"--benchmark_filter=^{work.operation}/", "--benchmark_min_time=0.05",
                f"--benchmark_repetitions={REPEATS}", "--benchmark_format=json"], env=environment)
    times = [b["real_time"] / 1e3 for b in json.loads(text)["benchmarks"]
             if b["run_type"] == "iteration"]
    result = np.fromfile(out) if os.path.exists(out) else None
    return times, result


def measure(options, work, folder):
    """Lines of one piece of work, one for each number of threads and peer."""
    path = f"{folder}/{work.name}.h5"
    run([f"{options.build}/kvbench", "synth", "-o", path, *work.shape.options()])
    lines = []
    for threads in [work.threads] if work.threads else options.threads:
        set_threads(threads)
        mine, result = ours(options, work, path, threads, folder)
        theirs = {}
        for label, call in work.peers(path, options).items():
            with torch.no_grad():
                times, got = seconds_of(call)
            theirs[label] = (times, work.agreement(result, got) if result is not None else None)
        mine += ours(options, work, path, threads, folder)[0]
        for label, (times, agreement) in theirs.items() or [(None, ([], None))]:
            lines.append({
                "work": work.name, "title": work.title, "shape": work.shape.words(),
                "threads": threads, "seconds": statistics.median(mine), "runs": mine,
                "flops": work.flops(work.shape), "peer": label, "peer_runs": times,
                "peer_seconds": statistics.median(times) if times else None,
                "agreement": agreement})
        if not theirs:
            sys.stderr.write(f"peers.py: {work.name}: no peer here\n")
    os.remove(path)
    return lines


def product_rates(threads):
    """Flop/s of products of 2048 x 2048 matrices, by element type and number of threads."""
    rates = {}
    for count in threads:
        set_threads(count)
        for kind in (torch.float32, torch.float64):
            a = torch.ones(2048, 2048, dtype=kind)
            times, _ = seconds_of(lambda m=a: torch.mm(m, m))
            rates[f"{str(kind).rpartition('.')[2]}/{count}"] = 2 * 2048**3 / min(times)
    return rates


def table(found):
    """The Markdown table of what was measured: a line for each piece of work and peer, whose cells have
    a value for each number of threads. The JSON file has rates and how far the results agree as well.
    With --isa: the ratios alone, in a line for each piece of work."""
    rows = ["| work | peer | kvbench | peer's time | ratio |", "| --- | --- | --- | --- | --- |"]
    lines = {}
    for line in found["lines"]:
        lines.setdefault((line["title"], line["shape"], line["peer"]), []).append(line)
    last, ratios = None, {}
    for (title, shape, peer), of_threads in lines.items():
        work = f"{title}: {shape}"
        cells = ["", peer or "none here", ", ".join(duration(line["seconds"]) for line in of_threads), "", ""]
        if work != last:
            last = cells[0] = work
        if peer:
            cells[3] = ", ".join(duration(line["peer_seconds"]) for line in of_threads)
            cells[4] = ", ".join(f"{line['seconds'] / line['peer_seconds']:.2f}" for line in of_threads)
            ratios.setdefault(title, []).append(f"{peer}: {cells[4]}")
        rows.append(f"| {' | '.join(cells)} |")
    if found["isa"] != "best":
        rows = ["| work | ratio |", "| --- | --- |",
                *(f"| {title} | {'; '.join(some)} |" for title, some in ratios.items())]
    rates = ", ".join(f"{name.replace('/', ' with ')} thread{'' if name.endswith('/1') else 's'} "
                      f"{rate / 1e9:.0f}" for name, rate in found["products"].items())
    return "\n".join(rows) + f"\n\nGflop/s of products of 2048 x 2048 matrices in the same run: {rates}.\n"


def main():
    if ABSENT and not {"-h", "--help"} & set(sys.argv):
        sys.stderr.write(f"peers.py: {ABSENT}\n")
        sys.exit(3)
    options = parser()
    place = f"peers.py {options.isa}" if options.isa else "peers.py"
    if options.docs:
        pages.parts(options.docs, place)
    found = {"isa": options.isa or "best", "machine": platform.processor() or platform.machine(),
             "cpus": os.cpu_count(), "torch": torch.__version__,
             "products": product_rates(options.threads), "lines": []}
    with tempfile.TemporaryDirectory() as folder:
        for kind in peer_rows.WORKS:
            if kind.name not in options.only:
                continue
            work = kind()
            if options.tiny:
                work.shape = dataclasses.replace(work.shape, **work.tiny)
            sys.stderr.write(f"{work.name}\n")
            found["lines"] += measure(options, work, folder)
    text = table(found)
    print(text, end="")
    if options.output:
        with pages.open_for_writing(options.output) as file:
            json.dump(found, file, indent=1)
    if options.docs:
        pages.renew(options.docs, place, text)


if __name__ == "__main__":
    main()
