"""Compares methods with statistics over prompts.

    kvbench-py compare OUT.csv [OUT2.csv ...] --to snapkv --csv cmp.csv --figures cmp

A prompt's figure for a method is the mean of a metric over layers, heads and seeds. Per budget:
mean with a bootstrap interval over prompts, median, means by layer; mean ranks, Friedman's test,
Nemenyi's critical difference; wins. With --to NAME also paired differences to NAME with bootstrap
intervals, and the exact Wilcoxon signed-rank test with Holm's correction over the methods of the
budget. Notes say when there are too few prompts to show any difference. docs/statistics.md explains
the figures.

--by source: the unit is the source, whose prompts are averaged first. A method counts at a source
if it counts at all its prompts.

A method counts at a prompt if it covers every head with status ok. A method that lacks prompts is
named, has no rank, and is compared on those it has.

--csv FILE.csv writes FILE.csv (a row per budget and method), FILE.layers.csv, FILE.prompts.csv (the
input values) and FILE.tests.csv. Without an output the Markdown is printed.
"""

import argparse
import math

from kvbench import command, units
from kvbench import stats as ks
from kvbench import tables as kt


def share(text):
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"got `{text}`, expected a number between 0 and 1")
    return value


def parse_arguments(arguments=None):
    parser = command.plain_parser(__doc__)
    parser.add_argument("inputs", nargs="+", metavar="OUT.csv", help="files of kvbench replay")
    parser.add_argument("--to", metavar="NAME", help="compare each method with this one")
    parser.add_argument("--metric", default="rel_error", metavar="COLUMN", help="[rel_error]")
    parser.add_argument("--higher-better", action="store_true", default=None,
                        help="larger is better [for cosine and mass_kept]")
    parser.add_argument("--algorithms", type=command.name_list, default=[], metavar="NAME,...",
                        help="only these; default: all")
    parser.add_argument("--exclude", type=command.name_list, default=[], metavar="NAME,...",
                        help="exclude these, such as oracle,exact")
    parser.add_argument("--budgets", type=command.number_list, default=[], metavar="SHARE,...")
    parser.add_argument("--layers", type=command.number_list, default=[], metavar="N,...")
    parser.add_argument("--prompts", type=command.name_list, default=[], metavar="ID,...",
                        help="only these prompts")
    parser.add_argument("--set", help="only prompts whose record has this `set`, such as test")
    parser.add_argument("--by", **units.BY)
    parser.add_argument("--records", **units.RECORDS)
    parser.add_argument("--pool", **command.POOL)
    parser.add_argument("--alpha", type=share, default=0.05, help="level of the tests [0.05]")
    parser.add_argument("--level", type=share, default=0.95, help="level of the intervals [0.95]")
    parser.add_argument("--interval", choices=ks.INTERVALS, default=ks.INTERVALS[0],
                        help="kind of bootstrap [t]")
    parser.add_argument("--resamples", type=command.positive, default=ks.RESAMPLES, metavar="N",
                        help="[10000]")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the bootstrap [0]")
    parser.add_argument("--digits", type=int, default=4, metavar="N", help="in tables [4]")
    parser.add_argument("--csv", metavar="FILE.csv")
    parser.add_argument("--markdown", metavar="FILE", help="- for stdout")
    parser.add_argument("--latex", metavar="FILE", help="tabulars for booktabs; - for stdout")
    parser.add_argument("--figures", metavar="STEM", help="STEM.cd.BUDGET and STEM.intervals, .png "
                        "and .pdf")
    options = parser.parse_args(arguments)
    if options.set is not None and not options.records:
        parser.error("--set: expected the records that say a prompt's `set`: --records")
    if options.higher_better is None:
        options.higher_better = options.metric in kt.HIGHER_BETTER
    if options.csv is not None and not options.csv.endswith(".csv"):
        parser.error(f"--csv: got `{options.csv}`, expected a name that ends in .csv")
    if not (options.csv or options.markdown or options.latex or options.figures):
        options.markdown = "-"
    return options
