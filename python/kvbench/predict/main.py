"""Predicts the model's loss from the errors of its layers.

    kvbench-py predict fit --model SmolLM2 --scores *.scores.csv.gz --layers *.layers.csv.gz \\
        --exclude exact -o smollm2.json --markdown fit.md
    kvbench-py predict apply smollm2.json OUT.layers.csv

    kvbench-py predict measure --model SmolLM2 --alone *.scores.layers.csv.gz --scores *.scores.csv.gz \\
        --layers *.layers.csv.gz -o measured.json
    kvbench-py predict check measured.json --scores *.scores.csv.gz --layers *.layers.csv.gz --exclude exact

fit: estimates the sensitivity s of each layer in KL = sum s e^2, where e is `residual_rel_error` of
the layer, from tables of kvbench-py score or judge (--scores) and of kvbench replay (--layers) of the
same caches in all layers. The report has predictions for sources and methods that were held out.

measure: the same from runs of kvbench-py judge --each-layer, which compress one layer at a time
(--alone): s is the geometric mean of KL over e^2. --scores has the same caches in all layers, and shows
how far the sum over layers is from their KL.

check: compares the predictions of a file of fit or measure with the scores of other caches.

apply: predicts the KL divergence of each method, budget, seed and prompt of OUT.layers.csv, with the
range of 95 % of the held-out ratios. The rows must have the layers of the fit.

docs/policies.md explains the model and its limits.
"""

import numpy as np

from kvbench import command, units
from kvbench import tables as kt
from kvbench.compare.tables import markdown_table, write_table, write_text
from kvbench.predict import cells, model, tables


def parse_arguments(arguments=None):
    parser = command.plain_parser(__doc__)
    sub = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    fit = sub.add_parser("fit", help="estimate the layers' sensitivities")
    fit.add_argument("--model", required=True, metavar="NAME", help="of the model, as in its traces")
    add_tables(fit)
    fit.add_argument("--ridge", type=positive, default=model.RIDGE, metavar="X",
                     help="weight of the variance of log s over layers [%(default)g]")
    fit.add_argument("-o", "--output", required=True, metavar="SENSITIVITIES.json")
    fit.add_argument("--csv", metavar="CELLS.csv", help="held-out predictions of every cell")
    fit.add_argument("--markdown", metavar="FILE", help="report; - for stdout")
    measure = sub.add_parser("measure", help="measure the sensitivities, one layer at a time")
    measure.add_argument("--model", required=True, metavar="NAME", help="of the model, as in its traces")
    measure.add_argument("--alone", nargs="+", required=True, metavar="SCORES.layers.csv")
    measure.add_argument("--prompts", **cells.PROMPTS)
    measure.add_argument("-o", "--output", required=True, metavar="SENSITIVITIES.json")
    check = sub.add_parser("check", help="compare predictions with scores")
    check.add_argument("sensitivities", metavar="SENSITIVITIES.json")
    for parser_of in (measure, check):
        add_tables(parser_of)
        parser_of.add_argument("--markdown", metavar="FILE", help="report [stdout]")
    check.add_argument("--csv", metavar="CELLS.csv", help="predictions of every cell")
    use = sub.add_parser("apply", help="predict from rows of kvbench replay")
    use.add_argument("sensitivities", metavar="SENSITIVITIES.json")
    use.add_argument("layers", nargs="+", metavar="OUT.layers.csv")
    use.add_argument("--csv", metavar="PREDICTED.csv", help="a row per prompt, method, budget and seed")
    use.add_argument("--markdown", metavar="FILE", help="means over prompts [stdout]")
    return parser.parse_args(arguments)


def add_tables(parser):
    parser.add_argument("--scores", nargs="+", required=True, metavar="SCORES.csv")
    parser.add_argument("--layers", nargs="+", required=True, metavar="OUT.layers.csv")
    parser.add_argument("--records", **units.RECORDS)
    parser.add_argument("--exclude", type=command.name_list, default=[], metavar="NAME,...",
                        help="exclude these algorithms")
    parser.add_argument("--budgets", type=command.number_list, default=[], metavar="SHARE,...")


def positive(text):
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError
    return value


def fit(options):
    found = cells.load(options)
    for text in found.notes:
        kt.note(text)
    weights = model.fit(found.squares.reshape(-1, len(found.layers)), found.kl.ravel(), options.ridge)
    predicted = model.cross_fit(found.squares, found.kl, found.methods(), options.ridge)
    tables.write_sensitivities(options.output, found, weights, predicted, options)
    if options.csv:
        write_table(options.csv, tables.COLUMNS, tables.held_out(found, predicted))
    write_text(options.markdown or "-", tables.markdown(found, weights, predicted, options))


def measure(options):
    found = cells.load(options)
    alone, notes = cells.load_alone(options, found)
    for text in found.notes + notes:
        kt.note(text)
    by_source = model.measure(found.squares, alone)
    weights = np.exp(by_source.mean(axis=0))
    predicted = found.squares @ weights
    tables.write_sensitivities(options.output, found, weights, predicted, options)
    write_text(options.markdown or "-", tables.measured(found, alone, by_source, options))


def check(options):
    content = tables.read_sensitivities(options.sensitivities)
    found = cells.load(options)
    for text in found.notes:
        kt.note(text)
    tables.check_layers(found.layers, content, options)
    predicted = found.squares @ np.array(content["sensitivity"])
    if options.csv:
        write_table(options.csv, tables.COLUMNS, tables.held_out(found, predicted))
    write_text(options.markdown or "-", tables.checked(found, predicted, content, options))


def apply(options):
    content = tables.read_sensitivities(options.sensitivities)
    table, layers = cells.read_layers(options.layers)
    tables.check_layers(layers, content, options)
    rows = tables.apply(table, content)
    if options.csv:
        write_table(options.csv, tables.PREDICTED, rows)
    keys = table.index.to_frame(index=False)
    labels = kt.add_labels(keys[["algorithm", "params"]].drop_duplicates())
    means = tables.means(rows, content, dict(zip(zip(labels["algorithm"], labels["params"]), labels["label"])))
    lines = markdown_table(["budget", "method", "prompts", "KL predicted", "low", "high"], [
        ["-" if row["budget"] is None else f"{row['budget']:g}", row["method"], str(row["prompts"]),
         *(f"{row[name]:.4g}" for name in ("kl_predicted", "low", "high"))] for row in means])
    write_text(options.markdown or "-", "\n".join(lines) + "\n")


def main(arguments=None):
    options = parse_arguments(arguments)
    {"fit": fit, "measure": measure, "check": check, "apply": apply}[options.command](options)


if __name__ == "__main__":
    command.run_main(main)
