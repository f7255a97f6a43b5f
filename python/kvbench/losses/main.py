"""Reports the losses of models with compressed caches: a table over models, tests over sources, a
figure.

    kvbench-py losses --scores SmolLM2 a.csv b.csv --scores Qwen c.csv --records prompts.jsonl \\
        --to snapkv --markdown losses.md --csv losses.csv --figure losses

`--scores MODEL FILE...` gives the tables of kvbench-py score or judge of one model, .csv or
.csv.gz; once per model. The unit is the source: seeds of a prompt are averaged first, then the
prompts of a source (column `source` of the tables, or field `source` of the records;
otherwise each prompt is its own source). At a budget a method counts the sources where all its rows
are ok.

The table has the geometric mean over sources of the KL divergence, which ranks the methods, and the
mean, in nats per token, with 95 % studentised bootstrap intervals over sources, or with fewer than 8
sources the minimum and maximum. --to METHOD gives ratios to it, and tests differences to it by the
exact Wilcoxon signed-rank test with Holm's correction over the methods of a model and budget; the
page gives the smallest p that the number of sources can reach, and no verdicts if it is above .05.

--tuned MODEL FILE... gives tables of tuned settings: they replace the methods' rows of --scores,
and the page lists the effect of tuning. --metric residual_rel_error and out_rel_error read
OUT.layers.csv of the replay, rel_error OUT.csv: layers, heads and seeds of a prompt are averaged
first.

For several models the page and --orders have the rank correlation of their means and geometric means,
with intervals over sources, and over sources and methods.

The figure shows at most ten methods (--show), a panel per model: KL by budget, with the intervals
of the table.
"""

from kvbench import command, units
from kvbench.compare.tables import write_table, write_text
from kvbench.losses import orders, tables
from kvbench.tables import note

MOST_SHOWN = 10


def parse_arguments(arguments=None):
    parser = command.plain_parser(__doc__)
    parser.add_argument("--scores", nargs="+", action="append", required=True,
                        metavar=("MODEL", "FILE"), help="tables of one model; once per model")
    parser.add_argument("--tuned", nargs="+", action="append", default=[], metavar=("MODEL", "FILE"),
                        help="tables of settings that replace those of --scores")
    parser.add_argument("--records", **units.SOURCES)
    parser.add_argument("--metric", default="kl", choices=tables.METRICS, help="[kl]")
    parser.add_argument("--to", metavar="METHOD", help="the method that all others are tested against")
    parser.add_argument("--algorithms", type=command.name_list, default=[], metavar="NAME,...",
                        help="only these")
    parser.add_argument("--exclude", type=command.name_list, default=[], metavar="NAME,...",
                        help="exclude these algorithms")
    parser.add_argument("--budgets", type=command.number_list, default=[], metavar="SHARE,...")
    parser.add_argument("--show", type=command.name_list, default=[], metavar="METHOD,...",
                        help=f"at most {MOST_SHOWN} methods of the picture; default: the best of each "
                        "budget and model, then by mean rank")
    parser.add_argument("--digits", type=int, default=3, metavar="N", help="[3]")
    parser.add_argument("--csv", metavar="OUT.csv", help="a row per model, budget and method")
    parser.add_argument("--sources", metavar="SOURCES.csv", help="a row per source as well")
    parser.add_argument("--orders", metavar="ORDERS.csv",
                        help="a row per budget and two models: how alike they order methods")
    parser.add_argument("--markdown", metavar="FILE", help="- for stdout")
    parser.add_argument("--figure", metavar="STEM", help="STEM.png and STEM.pdf")
    options = parser.parse_args(arguments)
    command.check_named_files(parser, "--scores", options.scores, "model", "MODEL")
    command.check_named_files(parser, "--tuned", options.tuned, "model", "MODEL")
    unknown = {model for model, *_ in options.tuned} - {model for model, *_ in options.scores}
    if unknown:
        parser.error(f"--tuned: got {min(unknown)}, expected models of --scores")
    if len(options.show) > MOST_SHOWN:
        parser.error(f"--show: got {len(options.show)} methods, expected at most {MOST_SHOWN}")
    if not (options.csv or options.sources or options.orders or options.markdown or options.figure):
        options.markdown = "-"
    return options


def main(arguments=None):
    options = parse_arguments(arguments)
    scores = [(model, files) for model, *files in options.scores]
    found = tables.load(scores, options.records, options.metric, options.exclude,
                        options.budgets, [(model, files) for model, *files in options.tuned],
                        options.algorithms)
    for text in found.notes:
        note(text)
    lines = tables.lines(found, options.to)
    if options.csv:
        write_table(options.csv, tables.COLUMNS, lines)
    if options.sources:
        write_table(options.sources, tables.SOURCE_COLUMNS, tables.by_source(found))
    alike = orders.orders(found) if options.orders or options.markdown else []
    if options.orders:
        write_table(options.orders, orders.COLUMNS, alike)
    if options.markdown:
        write_text(options.markdown, tables.markdown(found, lines, options) + orders.markdown(alike))
    if options.figure:
        from kvbench.losses import figure  # slow import

        figure.draw_to(options.figure, found, options.show or tables.shown(found, MOST_SHOWN),
                       options.metric)


if __name__ == "__main__":
    command.run_main(main)
