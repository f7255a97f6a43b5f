"""Makes the reference results: model, traces, replays, statistics, tables and pictures.

    make reference                      # all of the plan, or what is left of it
    kvbench-py reference --dry-run      # only say what is left and how long it takes

Prompt by prompt: a trace is made, every stage that needs the prompt runs on it, and it is deleted
(--keep keeps it). When all prompts of a stage are done its reports are made and come to lie in the
results folder. A report whose files a stage reads comes before all other prompts: parameters are
chosen on the development set first. A step is one stage of one prompt. It is done again only where
something changed that it depends on: prompt, model, layers, options, configuration or program.
Interrupt it as you like: the same command goes on from there.

A plan with a store (`store = true`) keeps what its steps found in the results folder, under store/:
what lies there is done, on any machine. When nothing is left, samples of every stage are computed again
and compared (--samples); "complete" is said after that. Rows that another state of lib made stay while
their sample agrees; else their steps are named, and done again with --stale.

With --layers or --full steps are kept in a folder of their own. With --prompts or --layers results
are written only where --output names a folder: they are not the reference.
"""

import argparse
import os
import sys

from kvbench.reference import plan as rp


def names(text):
    return [name for name in text.split(",") if name]


def layer_list(text):
    try:
        out = tuple(int(n) for n in names(text))
    except ValueError:
        out = ()
    if not out or min(out) < 0 or len(set(out)) < len(out):
        raise argparse.ArgumentTypeError(f"got `{text}`, expected different layers, such as 0,8")
    return out


def minutes(text):
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value > 0:
        raise argparse.ArgumentTypeError(f"got `{text}`, expected minutes above 0")
    return value


def count(text):
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"got `{text}`, expected a whole number")
    return int(text)


class FormerOutput(argparse.Action):
    """--out, which is --output now."""

    def __call__(self, parser, namespace, values, option_string=None):
        print("note: --out is now --output", file=sys.stderr)
        namespace.output = values


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--plan", default=os.path.join(rp.ROOT, rp.USUAL), metavar="FILE.toml",
        help=f"what to do [{rp.USUAL}]")
    add("--dry-run", action="store_true", help="list what is left; do nothing")
    add("--only", type=names, default=[], metavar="STAGE,...", help="only these stages")
    add("--prompts", type=names, default=[], metavar="ID,...", help="only these prompts")
    add("--layers", type=layer_list, metavar="N,...", help="these layers, not those of the plan")
    add("--full", action="store_true", help="all layers of the model")
    add("--max-minutes", type=minutes, metavar="M", help="begin nothing that would end later")
    add("--keep", action="store_true", help="keep traces")
    add("--samples", type=count, default=2, metavar="N",
        help="of a plan with a store: variants of a stage that are checked, 0 for none [2]")
    add("--stale", action="store_true", help="do steps again whose sample differs")
    add("-o", "--output", metavar="DIR", help="results folder")
    add("--out", dest="output", action=FormerOutput, help=argparse.SUPPRESS)
    add("--work", metavar="DIR", help="folder of traces and rows")
    add("--kvbench", default=os.path.join(rp.ROOT, "build", "kvbench"), metavar="PROGRAM")
    add("--dump-python", default=os.path.join(rp.ROOT, "build", "dump-venv", "bin", "python"),
        metavar="PROGRAM", help="interpreter with torch [that of `make model`]")
    args = parser.parse_args(arguments)
    if args.full and args.layers:
        parser.error("--full and --layers: expected one of them")
    return args
