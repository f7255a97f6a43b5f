#!/usr/bin/env python3
"""Time and memory of every method against the number of tokens, and the exponents that fit them.

kvbench synth writes a head of n tokens, n doubling from --from to --to; with --trace, the heads are those
of a trace's prompts, n tokens each. Each method compresses the middle to --budget with one thread. From
the row: compress_ms, which includes the method's scores (retrieval: plus search and attention of 64
queries), and the bytes held. From the process: the most memory that it held, less that of `exact` at the
same n, which is what the method needs beside the head. A method stops where the next n would take more
than --limit seconds.

The exponent of a column is the slope of its logarithm against that of n, by least squares over the
upper half of the n measured: 1 for linear, 2 for quadratic.

  bench/curves.py --build build/bench -o results/bench/curves.csv --docs docs/performance.md
  bench/curves.py --trace t.h5 --layer 15 -o results/bench/curves_trace.csv --docs docs/performance.md

Exit code 1: kvbench failed; 2: bad usage.
"""

import argparse
import csv
import json
import math
import os
import re
import subprocess
import sys
import tempfile

from pages import duration, fail, open_for_writing, parts, refuse, renew, run

COLUMNS = ["method", "protocol", "n", "ms", "bytes", "memory_mib"]
QUERIES, WIDTH = 64, 64


def parser():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default="build/bench", metavar="DIR",
                   help="where kvbench is [default: build/bench]")
    p.add_argument("--methods", metavar="NAME,...", help="[default: all]")
    p.add_argument("--from", dest="first", type=int, default=4096, metavar="N",
                   help="fewest tokens [default: 4096]")
    p.add_argument("--to", type=int, default=131072, metavar="N",
                   help="most tokens [default: 131072]")
    p.add_argument("--budget", default="0.25", metavar="RHO",
                   help="fraction of the middle's bytes [default: 0.25]")
    p.add_argument("--limit", type=float, default=20.0, metavar="SECONDS",
                   help="a method stops before it takes longer [default: 20]")
    p.add_argument("--trace", metavar="FILE.h5", help="its prompts, of different lengths, instead of synthetic heads")
    p.add_argument("--layer", default="0", metavar="L", help="with --trace: KV head 0 of this layer [default: 0]")
    p.add_argument("-o", "--output", required=True, metavar="FILE.csv", help="what was measured")
    p.add_argument("--docs", metavar="FILE.md", help="a page whose table is renewed")
    return p.parse_args()


def methods(kvbench, only):
    """(name, protocol) of all methods; under prefill where they have it. `static` is its method A."""
    found = []
    for line in run([kvbench, "list"]).splitlines()[1:]:
        if not line:  # below the table: how to read on
            break
        name, protocols = re.split(r"\s{2,}", line)[:2]
        if name != "static" and (not only or name in only):
            found.append((name, protocols.split()[0]))
    return found


def measure(kvbench, head, name, protocol, budget, folder):
    """Milliseconds, bytes and MiB of one run; a text where it has no row with status ok. head: a trace and
    options of replay that select one head.
    """
    out = f"{folder}/out.csv"
    command = [kvbench, "replay", *head, "-o", out, "--overwrite", "--threads", "1", "--sink", "0",
               "--recent", str(QUERIES), "--queries", str(QUERIES), "--protocol", protocol,
               "--algorithm", name]
    if name != "exact":
        command += ["--budget", budget]
    if protocol == "stream":
        command += ["--eval-every", "1000000000"]
    with open(f"{folder}/log", "w+", encoding="utf-8") as log:
        child = subprocess.Popen(command, stdout=log, stderr=log)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode != 0:
            log.seek(0)
            text = log.read()
            if child.returncode == 2:  # it takes no budget, or the trace lacks what it needs
                return text.strip()
            fail(command, child.returncode, text)
    with open(out, newline="", encoding="utf-8") as file:
        row = next(csv.DictReader(file))
    if row["status"] != "ok":
        return row["status"]
    search = QUERIES * float(row["attend_us_per_query"]) / 1e3 if protocol == "retrieval" else 0.0
    return float(row["compress_ms"]) + search, int(row["bytes"]), usage.ru_maxrss / 1024


def synthetic_heads(kvbench, options, folder):
    """Yields (n, head) of growing n."""
    n = options.first
    while n <= options.to:
        trace = f"{folder}/trace.h5"
        run([kvbench, "synth", "-o", trace, "--layers", "1", "--q-heads", "1", "--kv-heads", "1",
             "--n", str(n), "--nq", "0", "--d", str(WIDTH), "--dv", str(WIDTH), "--gzip", "0"])
        yield n, [trace]
        os.remove(trace)
        n *= 2


def trace_heads(kvbench, options):
    """The same of the prompts of --trace."""
    prompts = json.loads(run([kvbench, "info", options.trace, "--json"]))[0]["prompts"]
    for prompt in sorted(prompts, key=lambda one: one["n_tokens"]):
        yield prompt["n_tokens"], [options.trace, "--prompts", prompt["id"], "--layers", options.layer, "--heads", "0"]


def exponent(points):
    """Slope of log y against log n over the upper half; none of fewer than three points."""
    points = [(n, y) for n, y in points if y > 0]
    points = points[-max(3, (len(points) + 1) // 2):]
    if len(points) < 3:
        return None
    xs, ys = zip(*((math.log(n), math.log(y)) for n, y in points))
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys)) / sum((a - x) ** 2 for a in xs)


def growth(slope):
    """The line of the table for an exponent of time."""
    if slope is None or slope < 1.25:
        return "linear"
    return "between" if slope < 1.75 else "quadratic"


def table(rows, left_out=()):
    """The Markdown table: methods by the exponent of their time and the largest n measured. Times below
    10 ms and memory below 16 MiB beside the head are left out. The CSV file has every point."""
    lines = {}
    base = {row["n"]: row["memory_mib"] for row in rows if row["method"] == "exact"}
    for name in dict.fromkeys(row["method"] for row in rows):
        mine = [row for row in rows if row["method"] == name]
        last = mine[-1]
        quick = last["ms"] < 10
        text = f"`{name}`" if quick else f"`{name}` {duration(last['ms'] / 1e3)}"
        memory = last["memory_mib"] - base.get(last["n"], math.inf)
        if memory >= 16:
            text += f" ({memory:.0f} MiB)"
        slope = exponent([(row["n"], row["ms"]) for row in mine])
        lines.setdefault((growth(slope), last["n"]), ([], []))[quick].append(text)
    text = ["| growth of time | n | time at that n (memory beside the head) |", "| --- | --- | --- |"]
    order = ["linear", "between", "quadratic"]
    for kind, n in sorted(lines, key=lambda key: (order.index(key[0]), -key[1])):
        slow, quick = lines[kind, n]
        cell = ", ".join(slow) + ("; " if slow and quick else "")
        text.append(f"| {kind} | {n} | {cell}{'below 10 ms: ' + ', '.join(quick) if quick else ''} |")
    if left_out:
        text += ["", "Not measured (the head lacks what they need, or they do not fit this budget): "
                 + ", ".join(f"`{name}`" for name in left_out) + "."]
    return "\n".join(text) + "\n"


def main():
    options = parser()
    kvbench = f"{options.build}/kvbench"
    place = "curves.py trace" if options.trace else "curves.py"
    if options.docs:
        parts(options.docs, place)
    wanted = options.methods.split(",") if options.methods else []
    waiting = methods(kvbench, wanted and ["exact", *wanted])
    unknown = set(wanted) - {name for name, _ in waiting}
    if unknown:
        refuse(f"--methods: unknown: {', '.join(sorted(unknown))} (kvbench list has all)")
    waiting.sort(key=lambda pair: pair[0] != "exact")
    rows = []
    names = [name for name, _ in waiting]
    with tempfile.TemporaryDirectory() as folder:
        heads = trace_heads(kvbench, options) if options.trace else synthetic_heads(kvbench, options, folder)
        for n, head in heads:
            sys.stderr.write(f"n = {n}: {len(waiting)} methods\n")
            for name, protocol in list(waiting):
                found = measure(kvbench, head, name, protocol, options.budget, folder)
                if isinstance(found, str):  # a longer head may have what this one lacks
                    sys.stderr.write(f"{name}: {found}\n")
                    continue
                rows.append(dict(zip(COLUMNS, (name, protocol, n, *found))))
                times = [(row["n"], row["ms"]) for row in rows if row["method"] == name]
                slope = exponent(times[-3:]) or 2.0
                if found[0] / 1e3 * 2 ** max(slope, 1.0) > options.limit:
                    waiting.remove((name, protocol))
    rows.sort(key=lambda row: (row["method"], row["n"]))
    with open_for_writing(options.output) as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    measured = {row["method"] for row in rows}
    text = table(rows, [name for name in names if name not in measured])
    print(text, end="")
    if options.docs:
        renew(options.docs, place, text)


if __name__ == "__main__":
    main()
