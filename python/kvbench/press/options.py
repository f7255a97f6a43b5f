"""Command line of kvbench-py press."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from kvbench.command import Parser, count
from kvbench.dump.options import DTYPES, OF_TRACES, add_model, names


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses `arguments` or sys.argv. Imports nothing, so that --help needs no torch."""
    parser = Parser(prog="kvbench-py press", description="Runs presses of NVIDIA's kvpress in the model on "
                    "a trace's prompts, and writes what they kept as a caches file (docs/python.md).")
    add = parser.add_argument
    add("trace", nargs="+", metavar="TRACE.h5", help="traces with token ids")
    add_model(add, OF_TRACES)
    add("--press", required=True, action="append", metavar="PRESS", help="a press with its arguments, such "
        "as 'SnapKVPress(0.875)' or 'AdaKVPress(SnapKVPress(0.5,window_size=32))'; may be repeated")
    add("-o", "--output", required=True, metavar="C.h5", help="the caches")
    add("--overwrite", action="store_true", help="replace an existing C.h5")
    add("--windows", choices=("kept", "as-is"), default="kept", help="kept: the press must keep sinks and "
        "recent tokens, and its compression ratio applies to the middle, if the press supports it; as-is: "
        "the press chooses among all tokens, and the caches hold its part of the middle [default: kept]")
    add("--prompts", type=names, metavar="ID,...", help="only these prompts [default: all]")
    add("--sink", type=count, default=16, metavar="TOKENS", help="first tokens, exact [default: 16]")
    add("--recent", type=count, default=512, metavar="TOKENS", help="last tokens, exact [default: 512]")
    add("--queries", type=count, default=256, metavar="N", help="last queries, which are evaluated; the "
        "press sees the prompt before them [default: 256]")
    add("--seed", type=count, default=0, metavar="N", help="torch seed, set before each press [default: 0]")
    add("--compute-dtype", choices=DTYPES, default="float32", help="type in which the model runs [default: float32]")
    return parser.parse_args(arguments)
