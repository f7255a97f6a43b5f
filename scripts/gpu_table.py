#!/usr/bin/env python3
"""One page out of what scripts/gpu_check.sh measured on a card.

  scripts/gpu_table.py BENCH.json [--peer PEER.jsonl] [--runs RUNS.tsv] [-o TABLE.md]

BENCH.json: the JSON of bench_device. PEER.jsonl: the lines of bench/peer_torch.py. RUNS.tsv: a
line `name<TAB>CPU seconds<TAB>CUDA seconds` per whole run. Needs Python alone. Exit code 2: bad
usage or a file that is none of these; 3: TABLE.md cannot be written.
"""

import argparse
import json
import math
import sys

UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
RATES = {  # in the context of BENCH.json: name here and in PEER.jsonl, and unit
    "copy_bytes_per_s": ("copy", "B/s"),
    "float64_fma_flops": ("float64_fma", "flop/s"),
    "float64_matrix_flops": ("float64_matrix", "flop/s"),
    "tf32_matrix_flops": ("tf32_matrix", "flop/s"),
    "bf16_matrix_flops": ("bf16_matrix", "flop/s"),
}
MEANING = {
    "copy": "copy within the card's memory, bytes read and written",
    "float64_fma": "float64 FMAs outside the tensor cores",
    "float64_matrix": "float64 product, 8192 x 8192",
    "tf32_matrix": "tf32 product",
    "bf16_matrix": "bfloat16 product",
}


class TableError(Exception):
    """Bad input: one line for the user."""


def number(value, what):
    """A positive finite number; TableError where `value` is none."""
    try:
        out = float(value)
    except (TypeError, ValueError):
        out = math.nan
    if not 0.0 < out < math.inf:
        raise TableError(f"{what}: got {value!r}, expected a positive number")
    return out


def in_units(value, unit):
    """Three digits with a prefix: 3.21 TB/s, 45.6 us."""
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""),
                           (1e-3, "m"), (1e-6, "u"), (1e-9, "n")):
        # 999.7 is written as 1.00 of the next prefix.
        if value >= 0.9995 * factor:
            break
    digits = value / factor
    places = 2 if digits < 9.995 else 1 if digits < 99.95 else 0
    return f"{digits:.{places}f} {prefix}{unit}"


def read(path, parse):
    try:
        with open(path, encoding="utf-8") as file:
            return parse(file.read())
    except OSError as error:
        raise TableError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TableError(f"{path}: not such a file: {type(error).__name__}: {error}") from None


def read_bench(path):
    """Context, and (math, kernel, n, seconds, flop/s, bytes/s, of bound) of each line.

    flop/s is None where nothing is computed, of bound where the bound is not known.
    """
    def parse(text):
        data = json.loads(text)
        rows = []
        for line in data["benchmarks"]:
            if line.get("run_type", "iteration") != "iteration":
                continue
            math_mode, kernel, n = line["name"].split("/")[:3]
            if line.get("error_occurred"):
                raise TableError(f"{path}: {line['name']}: {line.get('error_message')}")
            what = f"{path}: {line['name']}"
            rows.append((math_mode, kernel, int(n),
                         number(line["real_time"] * UNITS[line["time_unit"]], what),
                         number(line["flop/s"], what) if "flop/s" in line else None,
                         number(line["bytes/s"], what),
                         number(line["of_bound"], what) if "of_bound" in line else None))
        if not rows:
            raise TableError(f"{path}: no measurements")
        return data["context"], rows
    return read(path, parse)


def read_peer(path):
    """The card's rates by name, and (dtype, seconds) by KERNEL/n."""
    def parse(text):
        rates, times = {}, {}
        for line in filter(None, text.splitlines()):
            data = json.loads(line)
            kind, _, name = data["name"].partition("/")
            if kind == "card":
                rates[name] = number(data["rate"], f"{path}: {data['name']}")
            else:
                times.setdefault(data["name"], []).append(
                    (data["dtype"], number(data["seconds"], f"{path}: {data['name']}")))
        return rates, times
    return read(path, parse)


def read_runs(path):
    def parse(text):
        return [(name, number(cpu, path), number(cuda, path))
                for name, cpu, cuda in (line.split("\t") for line in text.splitlines())]
    return read(path, parse)


def card_lines(context, peer_rates):
    yield "| the card's own rate | measured | by PyTorch |"
    yield "| --- | --- | --- |"
    for key, (name, unit) in RATES.items():
        own, peer = context.get(key), peer_rates.get(name)
        if own is not None or peer is not None:
            cells = [in_units(number(x, key), unit) if x is not None else "-" for x in (own, peer)]
            yield f"| {MEANING[name]} | {cells[0]} | {cells[1]} |"


def kernel_lines(rows, times):
    yield ("| kernel | n | math | time | arithmetic | memory | of bound | PyTorch | its time "
           "| time / its time |")
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for math_mode, kernel, n, seconds, flops, rate, of_bound in rows:
        share = "-" if of_bound is None else f"{100 * of_bound:.3g} %"
        arithmetic = "-" if flops is None else in_units(flops, "flop/s")
        own = (f"| {kernel} | {n} | {math_mode} | {in_units(seconds, 's')} "
               f"| {arithmetic} | {in_units(rate, 'B/s')} | {share} ")
        for dtype, peer in times.get(f"{kernel}/{n}", [(None, None)]):
            yield own + (f"| {dtype} | {in_units(peer, 's')} | {seconds / peer:.3g} |"
                         if peer is not None else "| - | - | - |")


def page(context, rows, peer, runs):
    rates, times = peer
    out = [f"# kvbench on {context.get('card', 'a CUDA device')}", "",
           f"Driver {context.get('driver', '?')}, {context.get('date', 'no date')}. bench_device, "
           "whose source says what counts as needed arithmetic and memory;",
           "`of bound`: the time that the slower of both takes at the card's own rate, over the "
           "time taken.", "", *card_lines(context, rates), "", *kernel_lines(rows, times)]
    if runs:
        out += ["", "| whole run | CPU | CUDA | CPU / CUDA |", "| --- | --- | --- | --- |"]
        out += [f"| {name} | {in_units(cpu, 's')} | {in_units(cuda, 's')} | {cpu / cuda:.3g} |"
                for name, cpu, cuda in runs]
    return "\n".join(out) + "\n"


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", metavar="BENCH.json")
    parser.add_argument("--peer", metavar="PEER.jsonl")
    parser.add_argument("--runs", metavar="RUNS.tsv")
    parser.add_argument("-o", "--output", metavar="TABLE.md", help="default: stdout")
    options = parser.parse_args(arguments)
    try:
        context, rows = read_bench(options.bench)
        peer = read_peer(options.peer) if options.peer else ({}, {})
        text = page(context, rows, peer, read_runs(options.runs) if options.runs else [])
    except TableError as error:
        print(f"gpu_table.py: {error}", file=sys.stderr)
        return 2
    if options.output is None:
        sys.stdout.write(text)
        return 0
    try:
        with open(options.output, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        print(f"gpu_table.py: {options.output}: {error.strerror}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
