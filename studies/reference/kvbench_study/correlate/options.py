"""Correlates replay metrics with the effect of compressed caches on the model.

    kvbench-study correlate OUT.csv --layer-table OUT.layers.csv --score-table scores.csv --csv correlate.csv

OUT.csv and OUT.layers.csv are tables of kvbench replay, scores.csv is one of kvbench-py score for
the same caches. A cell is a method at a budget; its figure is a mean (or median) over prompts.
Every metric is correlated with every score over cells, by rank (Spearman, Kendall's tau-b): over
all budgets, within each, and within single prompts. Figures are oriented so that higher is worse
(`1-NAME`: inverted) and a good predictor has 1. Intervals (95 %) resample prompts and methods, the
same for all metrics, which are compared pairwise; --resample prompts resamples prompts only, and
gives no verdict. A metric `predicts best` if every other metric is significantly below it and its
correlation is not chance. With fewer than 4 prompts, or too few methods to rule out a chance order
among all metrics (7 for a full table), the result is `not enough to rank`. Each correlation is also
given without one method. studies/reference/commands.md explains the figures.

Scores: kl, loss_change, 1-top_agreement, and wrong_answers, the share of wrong answers among
prompts that the exact model answers right. Only data on both sides counts; a method that lacks a
prompt at a budget is skipped there, with a note.

--csv: a line per score, metric, reduction and scope. --misjudged: methods that a metric misjudges.
--cells: the input values. Without an output the Markdown is printed.
"""

from kvbench import command, units
from kvbench import stats as ks
from kvbench_study.correlate.resamples import BOTH, PROMPTS


def parse_arguments(arguments=None):
    parser = command.plain_parser(__doc__)
    parser.add_argument("inputs", nargs="+", metavar="OUT.csv", help="files of kvbench replay")
    parser.add_argument("--score-table", nargs="+", required=True, metavar="scores.csv",
                        help="files of kvbench-py score")
    parser.add_argument("--layer-table", nargs="+", default=[], metavar="OUT.layers.csv",
                        help="files of kvbench replay, of traces with o_proj")
    parser.add_argument("--predict", action="store_true", help="adds the metric kl_predicted: the KL divergence "
                        "predicted from --layer-table, each cell's from other prompts (sources) and methods")
    command.add_choice(parser.add_argument)
    parser.add_argument("--prompts", **command.PROMPTS)
    parser.add_argument("--pool", **command.POOL)
    parser.add_argument("--resamples", type=command.positive, default=ks.RESAMPLES, metavar="N",
                        help="[10000]")
    parser.add_argument("--resample", choices=(BOTH, PROMPTS), default=BOTH,
                        help="what intervals draw: prompts (sources with --by source) and methods, or "
                             "prompts alone [both]")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the bootstrap [0]")
    parser.add_argument("--digits", type=int, default=2, metavar="N", help="in tables [2]")
    parser.add_argument("--csv", metavar="FILE.csv")
    parser.add_argument("--cells", metavar="FILE.csv", help="both sides of every cell")
    parser.add_argument("--misjudged", metavar="FILE.csv", help="methods that a metric misjudges")
    parser.add_argument("--markdown", metavar="FILE", help="- for stdout")
    parser.add_argument("--figures", metavar="STEM",
                        help="STEM.scatter and STEM.correlations, .png and .pdf")
    parser.add_argument("--by", **units.BY)
    parser.add_argument("--records", **units.RECORDS)
    parser.set_defaults(layers=[], set=None)  # read by compare's analysis.read
    options = parser.parse_args(arguments)
    if options.predict and not options.layer_table:
        parser.error("--predict: expected --layer-table")
    if not (options.csv or options.cells or options.misjudged or options.markdown or options.figures):
        options.markdown = "-"
    return options
