"""Tests whether a model still answers its tasks over compressed caches, with controls.

    kvbench-study answers --score-table unseen u/*.scores.csv --score-table seen s/*.scores.csv \\
        --records tasks.jsonl --markdown answers.md --csv answers.csv --figures answers

`--score-table NAME FILE...` gives the tables of kvbench-py score of one setting, .csv or
.csv.gz, for example with and without the question seen; once per setting. --records gives the
records of the tasks (kvbench-study tasks): `task`, `source` (or `filler`), `wrong`. The unit is the
source, with one prompt of each task; seeds are averaged first. At a budget a method counts the
sources where all its rows are ok.

Per setting, task, budget and method: the number of sources at which the right answer is likelier
than every wrong one; if the model wrote texts, the number of sources whose text contains the answer
(`said`); and the growth of the answer's negative log likelihood over the whole cache, in nats: mean
with a 95 % BCa bootstrap interval over sources (growths have two modes, an answer kept and one lost,
of which studentised intervals are unbounded), or with fewer than 8 sources the minimum and maximum.

Controls: `exact`, which holds everything, must choose right more often than chance (lower bound of
its exact binomial interval), and more often than a method that must fail (--control at its smallest
budget; exact one-sided sign test over the sources at which they differ). Otherwise the setting and
task are dropped from page and figure, and the tables say so.

The figure shows at most ten methods (--show).
"""

from kvbench import command
from kvbench.comparison.tables import write_table, write_text
from kvbench.tables import note
from kvbench.text import list_parts
from kvbench_study.answers import tables

MOST_SHOWN = 10


def parse_arguments(arguments=None):
    parser = command.plain_parser(__doc__)
    parser.add_argument("--score-table", nargs="+", action="append", required=True,
                        metavar=("NAME", "FILE"), help="tables of one setting; once per setting")
    parser.add_argument("--records", nargs="+", required=True, metavar="FILE.jsonl",
                        help="records of the tasks")
    parser.add_argument("--control", default="local", metavar="NAME",
                        help="the method that must fail at its smallest budget [local]")
    parser.add_argument("--exclude", **command.EXCLUDE)
    parser.add_argument("--show", type=list_parts, default=[], metavar="NAME,...",
                        help=f"at most {MOST_SHOWN} methods of the picture; default: by mean rank")
    parser.add_argument("--y", choices=tables.MEASURES, default="change",
                        help="metric of the figure: growth of the answer's negative log likelihood, or "
                        "the share of right choices [change]")
    parser.add_argument("--digits", type=int, default=2, metavar="N", help="[2]")
    parser.add_argument("--csv", metavar="FILE.csv", help="a row per setting, task, budget and method")
    parser.add_argument("--sources", metavar="FILE.csv", help="a row per source as well")
    parser.add_argument("--markdown", metavar="FILE", help="- for stdout")
    parser.add_argument("--figures", metavar="STEM", help="STEM.png and STEM.pdf")
    options = parser.parse_args(arguments)
    command.check_named_files(parser, "--score-table", options.score_table, "setting")
    if len(options.show) > MOST_SHOWN:
        parser.error(f"--show: got {len(options.show)} methods, expected at most {MOST_SHOWN}")
    if not (options.csv or options.sources or options.markdown or options.figures):
        options.markdown = "-"
    return options


def main(arguments=None):
    options = parse_arguments(arguments)
    found = tables.load([(name, files) for name, *files in options.score_table], options.records,
                        options.control, options.exclude)
    for text in found.notes:
        note(text)
    lines = tables.lines(found)
    if options.csv:
        write_table(options.csv, tables.COLUMNS, lines)
    if options.sources:
        write_table(options.sources, tables.SOURCE_COLUMNS, tables.by_source(found))
    if options.markdown:
        from kvbench_study.answers import pages

        write_text(options.markdown, pages.markdown(found, lines, options.digits))
    if options.figures:
        from kvbench_study.answers import figure  # slow import

        figure.draw_to(options.figures, found, lines, options.show or tables.shown(found, lines, MOST_SHOWN),
                       options.y)


if __name__ == "__main__":
    command.run_main(main)
