"""Compares methods on the same prompts: means, intervals, tests.

    kvbench-py compare OUT.csv [OUT2.csv ...] --to snapkv --csv cmp.csv --figures cmp
    kvbench-py compare SCORES.csv [SCORES2.csv ...] --records prompts.jsonl --to snapkv --markdown loss.md
    kvbench-py compare --score-table SmolLM2 a.csv b.csv --score-table Qwen c.csv --csv losses.csv

The columns of the files decide what is compared; options of the other kind are rejected.

Rows of kvbench replay. A prompt's figure for a method is the mean of --metric over layers, heads and seeds. Per
budget: mean with a bootstrap interval over prompts, median, means by layer; mean ranks, Friedman's test,
Nemenyi's critical difference; wins. --to NAME adds paired differences to NAME, and the exact Wilcoxon signed-rank
test with Holm's correction over the methods of the budget. --by source averages the prompts of a source first. A
method counts at a prompt if it covers every head with status ok. --csv FILE.csv also writes FILE.layers.csv,
FILE.prompts.csv and FILE.tests.csv.

Scores of kvbench-py score, of one model or, with --score-table, of several; .csv or .csv.gz. Also OUT.layers.csv with
a --metric of layers. The unit is the source: parts and seeds of a prompt are averaged first, then the prompts of a
source (column `source`, or the field of --records). A prompt without a source is its own; with --records it must have
a record. A method counts at a source if all its rows there are ok and none is missing. Per model and budget:
geometric mean over sources, which ranks the methods; mean with a 95 % studentised bootstrap interval, or with fewer
than 8 sources minimum and maximum. --to NAME adds ratios to NAME, and tests the differences as above. --tuned names
tables of tuned settings, which replace the methods' rows. --algorithm policy:NAME is one policy, policy all of them.
For several models the page and --orders have the rank correlations of their means.

docs/statistics.md explains the figures. Without an output the Markdown is printed: of rows one table, with --by-layer
the whole page.
"""

from kvbench import command, units
from kvbench import stats as ks
from kvbench import tables as kt
from kvbench.comparison.tables import csv_files
from kvbench.outputs import check_outputs
from kvbench.text import list_parts

ROWS, SCORES = "rows of kvbench replay", "scores"
MOST_SHOWN = 10  # methods of the figure of scores
AXES = ("budget", "bytes")
# Options that one kind has, and their defaults where these depend on the kind.
ONLY = {ROWS: ("higher_better", "layers", "by_layer", "set", "by", "pool", "alpha", "level", "interval", "resamples",
               "seed", "latex"),
        SCORES: ("score_table", "tuned", "show", "axis", "sources", "orders")}
DEFAULTS = {ROWS: {"metric": "rel_error", "digits": 2, "by": "prompt", "alpha": 0.05, "level": 0.95,
                   "interval": ks.INTERVALS[0], "resamples": ks.RESAMPLES, "seed": 0},
            SCORES: {"metric": "kl", "digits": 2, "axis": AXES[0]}}
METRICS = {"kl": "KL divergence, nats a token", "loss_change": "change of the loss, nats a token",
           "residual_rel_error": "error of a layer's output, of the residual stream",
           "out_rel_error": "relative error of a layer's output",
           "rel_error": "relative error of a head's output"}


share = command.above_0(below=1)


def parse_arguments(arguments=None):
    parser = command.plain_parser(__doc__)
    add = parser.add_argument
    add("inputs", nargs="*", metavar="FILE", help="rows of kvbench replay, or scores of one model")
    add("--to", metavar="NAME", help="compare each method with this one")
    add("--metric", metavar="COLUMN",
        help=f"figure to compare [default: rel_error]; of scores one of {', '.join(METRICS)} [default: kl]")
    command.add_choice(add)
    add("--prompts", **command.PROMPTS)
    add("--records", **units.RECORDS)
    add("--csv", metavar="FILE.csv", help="a row per budget and method")
    add("--markdown", metavar="FILE", help="- for stdout")
    add("--digits", type=command.positive, metavar="N", help="significant digits in tables [default: 2]")
    add("--figures", metavar="STEM", help="of rows STEM.cd.BUDGET and STEM.intervals, of scores STEM; .png and .pdf")
    add = parser.add_argument_group(ROWS).add_argument
    add("--higher-better", action="store_true", default=None,
        help="larger is better [default: for cosine, mass_kept and recall]")
    add("--layers", **command.LAYERS)
    add("--by-layer", action="store_true", help="the whole page: a table per budget with medians, wins and Friedman's "
        "test, and means by layer")
    add("--set", metavar="SET", help="only prompts whose record has this `set`, such as test")
    add("--by", **{**units.BY, "default": None})
    add("--pool", **command.POOL)
    add("--alpha", type=share, metavar="SHARE", help="level of the tests [default: 0.05]")
    add("--level", type=share, metavar="SHARE", help="level of the intervals [default: 0.95]")
    add("--interval", choices=ks.INTERVALS, help="kind of bootstrap [default: t]")
    add("--resamples", type=command.positive, metavar="N", help="of the bootstrap [default: 10000]")
    add("--seed", type=command.count, metavar="N", help="seed of the bootstrap [default: 0]")
    add("--latex", metavar="FILE", help="tabulars for booktabs; - for stdout")
    add = parser.add_argument_group(SCORES).add_argument
    add("--score-table", nargs="+", action="append", default=[], metavar=("MODEL", "FILE"),
        help="tables of one model; once per model")
    add("--tuned", nargs="+", action="append", default=[], metavar=("MODEL", "FILE"),
        help="tables of settings that replace those of --score-table")
    add("--show", type=list_parts, default=[], metavar="NAME,...",
        help=f"at most {MOST_SHOWN} methods of the figure [default: the best of each budget and model, then by mean "
             "rank]")
    add("--axis", choices=AXES, help="x axis of the figure: budgets, or shares of all bytes, sinks and recent tokens "
        "included (column `ratio`), with a line for all settings of a method, and for policies whose names differ in a "
        "number at the end [default: budget]")
    add("--sources", metavar="FILE.csv", help="a row per source as well")
    add("--orders", metavar="FILE.csv", help="a row per budget and two models: how alike they order methods")
    options = parser.parse_args(arguments)
    if bool(options.inputs) == bool(options.score_table):
        parser.error("expected either files, or --score-table MODEL FILE...")
    options.kind = SCORES if options.score_table or "q_head" not in kt.header_of(options.inputs[0]) else ROWS
    for name in ONLY[SCORES if options.kind == ROWS else ROWS]:
        value = getattr(options, name)
        if not (value is None or value is False or value == []):
            parser.error(f"--{name.replace('_', '-')}: got {options.kind}, which do not have it")
    for name, value in DEFAULTS[options.kind].items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    (check_rows if options.kind == ROWS else check_scores)(parser, options)
    named = [file for _, *files in [*options.score_table, *options.tuned] for file in files]
    tables = csv_files(options.csv) if options.csv and options.kind == ROWS else [options.csv]
    check_outputs([*options.inputs, *named, *options.records],
                  [*tables, options.markdown, options.latex, options.sources, options.orders])
    if not any(getattr(options, name) for name in ("csv", "markdown", "latex", "figures", "sources", "orders")):
        options.markdown = "-"
    return options


def check_rows(parser, options):
    if options.set is not None and not options.records:
        parser.error("--set: expected the records that say a prompt's `set`: --records")
    if options.higher_better is None:
        options.higher_better = options.metric in kt.HIGHER_BETTER
    if options.csv is not None and not options.csv.endswith(".csv"):
        parser.error(f"--csv: got `{options.csv}`, expected a name that ends in .csv")


def check_scores(parser, options):
    if options.metric not in METRICS:
        parser.error(f"--metric: got {options.metric}, expected one of {', '.join(METRICS)}")
    command.check_named_files(parser, "--score-table", options.score_table, "model", "MODEL")
    command.check_named_files(parser, "--tuned", options.tuned, "model", "MODEL")
    if options.inputs:
        options.score_table = [[", ".join(kt.recorded_models(options.inputs)) or "model", *options.inputs]]
    options.tables = [(model, files) for model, *files in options.score_table]
    unknown = {model for model, *_ in options.tuned} - {model for model, _ in options.tables}
    if unknown:
        parser.error(f"--tuned: got {min(unknown)}, expected models of --score-table")
    if len(options.show) > MOST_SHOWN:
        parser.error(f"--show: got {len(options.show)} methods, expected at most {MOST_SHOWN}")
