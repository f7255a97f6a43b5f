"""What the KV heads of models are like, and which method serves each best.

    kvbench cluster t.h5 -o heads --points none
    kvbench replay t.h5 --algorithm h2o,snapkv,local --budget 0.125 -o t.csv
    kvbench-study atlas --cluster SmolLM2 heads --row-table SmolLM2 t.csv --figures atlas

`--cluster MODEL DIR...` gives folders of kvbench cluster (attention.csv, keys.csv, spectrum.csv),
`--row-table MODEL FILE...` tables of kvbench replay over all heads; both once per model. The best method of a
KV head has the smallest `rel_error`, a geometric mean over sources. `--policy MODEL FILE.json` adds the
layers' budgets of a policy.

The report tells whether features predict the choice: a decision tree (three levels) is fitted to the
heads of all other models and names a method for each head of the one left out. It compares the error of
these choices with that of one method for all heads, the best over the other models' heads, and with
that of the best method of each head. With one model only the tables are made.
"""

from kvbench import command, units
from kvbench.comparison.tables import write_table, write_text
from kvbench_study.atlas import choice, heads


def parse_arguments(arguments=None):
    parser = command.plain_parser(__doc__)
    for name, files, required in (("--cluster", "DIR", True), ("--row-table", "FILE", True),
                                  ("--policy", "FILE", False)):
        parser.add_argument(name, nargs="+", action="append", required=required, default=None if required else [],
                            metavar=("MODEL", files), help="of one model; once per model")
    parser.add_argument("--budget", type=command.number, default=0.125, metavar="RHO", help="[0.125]")
    parser.add_argument("--algorithm", **command.ALGORITHM)
    parser.add_argument("--records", **units.SOURCES)
    parser.add_argument("--csv", metavar="FILE.csv", help="a row per KV head")
    parser.add_argument("--markdown", metavar="FILE", help="report [stdout]")
    parser.add_argument("--figures", metavar="STEM", help="STEM-MODEL.png and .pdf, one per model")
    options = parser.parse_args(arguments)
    for name, groups in (("--cluster", options.cluster), ("--row-table", options.row_table),
                         ("--policy", options.policy)):
        command.check_named_files(parser, name, groups, "model", "MODEL")
    if not (options.csv or options.markdown or options.figures):
        options.markdown = "-"
    return options


def main(arguments=None):
    options = parse_arguments(arguments)
    models = heads.load(options)
    if options.csv:
        write_table(options.csv, choice.COLUMNS, [row for one in models for row in choice.rows(one)])
    if options.markdown:
        write_text(options.markdown, choice.report(models, options))
    if options.figures:
        from kvbench_study.atlas import figure  # slow import

        figure.draw_all(options.figures, models)


if __name__ == "__main__":
    command.run_main(main)
