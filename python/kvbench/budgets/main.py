"""Budgets and algorithms by layer, and the loss that they predict.

    kvbench-py policy --model MODEL --prompts dev.jsonl --budget 0.125 -o policy.json

dumps the prompts, replays and chooses. Its files stand in one folder; the same command goes on after an interruption.
The steps, with those of --measure:

    kvbench-py policy measure SCORES.csv --alone SCORES.layers.csv --layer-table OUT.layers.csv -o sensitivities.json
    kvbench-py policy choose sensitivities.json DEV.layers.csv --budget 0.125 -o policy.json
    kvbench replay test.h5 --policy policy.json -o test.csv

docs/policies.md explains the model and its limits.
"""

import sys

import numpy as np

from kvbench import command, units
from kvbench import tables as kt
from kvbench.budgets import cells, make, model, tables
from kvbench.budgets.choose import BOTH, VARY
from kvbench.budgets.policies import HEAD, LAYER, choose
from kvbench.comparison.tables import markdown_table, write_table, write_text
from kvbench.outputs import check_outputs

CHOOSE = """Chooses an algorithm and a budget for each layer.

Reads the sensitivities of layers, and OUT.layers.csv of runs over development prompts, all layers, at several
budgets. Minimises the predicted KL divergence at a mean budget over layers, weighted by the bytes that these are
shares of (`budget_bytes`), of at most --budget. The minimum is
exact (scipy's milp). `equal` in place of the sensitivities minimises the sum of squared errors, without any run of
the model.

--vary methods: every layer has the budget, and its own algorithm. --vary budgets: one algorithm, the best, with
budgets of each layer. --per head chooses for each KV head: the squared error of a layer is taken as the sum over
its heads of `residual_rel_error_heads`, times a factor of the layer. --each-prompt writes a policy from each prompt
alone, FOLDER/PROMPT/POLICY.json for -o FOLDER/POLICY.json. --like takes for each layer the algorithm and budget of
the layer of another model's policy at the same relative depth; budgets are scaled down where their mean exceeds
--budget."""
FIT = """Estimates the sensitivity s of each layer in KL = sum s e^2, where e is `residual_rel_error` of the layer, from
scores and OUT.layers.csv of the same caches in all layers. The report has predictions for sources and methods that
were held out."""
MEASURE = """Measures the sensitivities with caches of one layer at a time (--alone, of kvbench-py score --each-layer):
the geometric mean of KL over e^2. The scores have the same caches in all layers, and show how far the sum over
layers is from their KL."""
CHECK = "Compares the predictions of a file of fit or measure with the scores of other caches."
APPLY = """Predicts the KL divergence of each method, budget, seed and prompt of OUT.layers.csv, with the range of
95 % of the held-out ratios. The rows must have the layers of the fit."""


def parse_arguments(arguments=None):
    parser = command.plain_parser(__doc__)
    make.add_options(parser)
    sub = parser.add_subparsers(dest="command", title="steps", metavar="choose|fit|measure|check|apply")

    def adder(name, help_of, about):
        one = sub.add_parser(name, help=help_of, description=about, formatter_class=parser.formatter_class)
        return one.add_argument

    known = {"metavar": "SENSITIVITIES.json", "help": "of kvbench-py policy fit or measure"}
    add = adder("choose", "choose an algorithm and a budget for each layer", CHOOSE)
    add("sensitivities", metavar=f"SENSITIVITIES.json|{tables.EQUAL}",
        help=f"of kvbench-py policy measure or fit; `{tables.EQUAL}`: all layers have the same")
    add("layer_table", nargs="*", metavar="OUT.layers.csv", help="of kvbench replay on development prompts")
    command.add_choice(add, budget={"type": command.above_0(most=1), "required": True, "metavar": "RHO",
                                    "help": "mean over layers of the fraction of the middle's full bytes"})
    add("--prompts", **command.PROMPTS)
    add("--vary", choices=VARY, default=BOTH, help="what may differ between layers [default: %(default)s]")
    add("--per", choices=(LAYER, HEAD), default=LAYER,
        help="choose for each layer, or for each KV head [default: %(default)s]")
    add("--each-prompt", action="store_true", help="a policy from each prompt alone")
    add("--like", metavar="POLICY.json", help="take the policy of another model, by relative depth")
    add("-o", "--output", required=True, metavar="POLICY.json")
    add("--markdown", metavar="FILE", help="report [default: stdout]")
    for name, *about in (("fit", "estimate the layers' sensitivities", FIT),
                         ("measure", "measure the sensitivities, one layer at a time", MEASURE),
                         ("check", "compare predictions with scores", CHECK)):
        add = adder(name, *about)
        if name == "check":
            add("sensitivities", **known)
        add("scores", nargs="+", metavar="SCORES.csv", help="of kvbench-py score")
        add("--layer-table", nargs="+", required=True, metavar="OUT.layers.csv",
            help="of kvbench replay, for the same caches as the scores")
        add("--records", **units.RECORDS)
        command.add_choice(add)
        add("--prompts", **command.PROMPTS)
        if name != "check":
            add("--model", metavar="MODEL", help="refuse tables of another model; theirs is recorded beside them")
            add("-o", "--output", required=True, metavar="SENSITIVITIES.json")
        if name == "fit":
            add("--ridge", type=command.above_0(), default=model.RIDGE, metavar="X",
                help="weight of the variance of log s over layers [default: %(default)g]")
        if name == "measure":
            add("--alone", nargs="+", required=True, metavar="SCORES.layers.csv",
                help="of kvbench-py score --each-layer")
        else:
            add("--csv", metavar="FILE.csv", help="predictions of every cell")
        add("--markdown", metavar="FILE", help="report [default: stdout]")
    add = adder("apply", "predict from rows of kvbench replay", APPLY)
    add("sensitivities", **known)
    add("layer_table", nargs="+", metavar="OUT.layers.csv", help="of kvbench replay")
    add("--csv", metavar="FILE.csv", help="a row per prompt, method, budget and seed")
    add("--markdown", metavar="FILE", help="means over prompts [default: stdout]")
    words = sys.argv[1:] if arguments is None else arguments
    options = parser.parse_args(words)
    if options.command is None:
        make.check_options(parser, options)
    elif words[0] != options.command:
        parser.error(f"{options.command}: got {words[0]} before it, expected the step first")
    if options.command == "choose":
        if bool(options.layer_table) == bool(options.like):
            parser.error("expected either OUT.layers.csv or --like POLICY.json")
        if options.like and options.sensitivities == tables.EQUAL:
            parser.error(f"--like: got {tables.EQUAL} too, expected SENSITIVITIES.json, which has the layers")
        for name in ("each_prompt", "vary", "per", "algorithm", "exclude", "prompts"):
            if options.like and getattr(options, name) not in (False, BOTH, LAYER, []):
                parser.error(f"--{name.replace('_', '-')}: got --like too, expected OUT.layers.csv")
    check_outputs(inputs_of(options), [getattr(options, name, None) for name in ("output", "csv", "markdown")])
    return options


def inputs_of(options):
    """Returns the files that a command line reads."""
    names = ["sensitivities", "like", "scores", "layer_table", "alone", "records"] if options.command else ["prompts"]
    given = [getattr(options, name, None) or [] for name in names]
    return [file for files in given for file in ([files] if isinstance(files, str) else files)]


def fit(options):
    """fit and measure."""
    options.model = tables.model_of(options)
    found = cells.load(options)
    notes, squares = found.notes, found.squares
    if options.command == "measure":
        alone, more = cells.load_alone(options, found)
        notes += more
        by_source = model.measure(squares, alone)
        weights = np.exp(by_source.mean(axis=0))
        predicted = squares @ weights
        text = tables.measured(found, alone, by_source, options)
    else:
        weights = model.fit(squares.reshape(-1, len(found.layers)), found.kl.ravel(), options.ridge)
        predicted = model.cross_fit(squares, found.kl, found.methods(), options.ridge)
        text = tables.markdown(found, weights, predicted, options)
    finish(options, found, notes, predicted, text, weights)


def finish(options, found, notes, predicted, text, weights=None):
    """Writes what fit, measure and check found."""
    for one in notes:
        kt.note(one)
    if weights is not None:
        tables.write_sensitivities(options.output, found, weights, predicted, options)
    if getattr(options, "csv", None):
        write_table(options.csv, tables.COLUMNS, tables.held_out(found, predicted))
    write_text(options.markdown or "-", text)


def check(options):
    content = tables.read_sensitivities(options.sensitivities)
    found = cells.load(options)
    tables.check_layers(found.layers, content, options)
    predicted = found.squares @ np.array(content["sensitivity"])
    finish(options, found, found.notes, predicted, tables.checked(found, predicted, content, options))


def apply(options):
    content = tables.read_sensitivities(options.sensitivities)
    table, layers = cells.read_layers(options.layer_table)
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
    if options.command is None:
        make.Making(options, main).run()
    else:
        {"choose": choose, "fit": fit, "measure": fit, "check": check, "apply": apply}[options.command](options)
